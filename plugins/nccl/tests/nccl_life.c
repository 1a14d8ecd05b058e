/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Lifetimes in gdrfab's plugin for NCCL: finalize and every close in every order, connection attempts that are given
 * up, clients that stop halfway, inits one after another, at once and in a child, and calls that come too early or
 * too late.
 */
#include "nccl_drive.h"

#include <pthread.h>
#include <sys/wait.h>

/* --- finalize and the closes --- */

enum { FINALIZE, CLOSE_SEND, CLOSE_RECV, CLOSE_LISTEN, DEREG, STEPS };

static void in_order(struct node *n, const int *steps, void *library)
{
	struct handle h;
	struct buf b;
	void *ctx;
	/* The first init is that of net_open(). From version 11 on this one has its own devices. */
	NET(net_init(&ctx));
	net.ctx = ctx;
	void *listener = listen_at(0, &h);
	struct link l = link_to_itself(&h, listener);
	message_to_itself(n, &l, 20000, 1);
	buf_new(n, &b, HOST_MEM, 4096);
	buf_reg(&b, l.send);
	for (int i = 0; i < STEPS; i++) {
		switch (steps[i]) {
		case FINALIZE: NET(net_finalize(ctx)); break;
		case CLOSE_SEND: NET(net.close_send(l.send)); break;
		case CLOSE_RECV: NET(net.close_recv(l.recv)); break;
		case CLOSE_LISTEN: NET(net.close_listen(listener)); break;
		default: NET(net.dereg(l.send, b.mhandle));
		}
	}
	b.mhandle = NULL;
	buf_end(&b);
	CHECK(library == net.library);
}

static void every_order(TEST_UNUSED const void *arg)
{
	int steps[STEPS] = {0}, fds = 0, rounds = 0, skip = test_count(1, 7);
	struct node n;
	net_alone(&n);
	net_unhurried = true;
	setenv("GDRFAB_NCCL_PROVIDERS", provider(), 0);
	net_load();
	/* All numbers of STEPS digits below STEPS, without those that repeat a digit. */
	for (int number = 0, all = STEPS * STEPS * STEPS * STEPS * STEPS; number < all; number++) {
		unsigned seen = 0;
		for (int i = 0, rest = number; i < STEPS; i++, rest /= STEPS) {
			steps[i] = rest % STEPS;
			seen |= 1u << steps[i];
		}
		if (seen != (1u << STEPS) - 1 || rounds++ % skip)
			continue;
		in_order(&n, steps, net.library);
		if (!fds)
			fds = test_count_fds();
		if (net.version >= 11 && test_count_fds() != fds)
			test_fail(__FILE__, __LINE__, "%d descriptors are left", test_count_fds() - fds);
	}
	CHECK(rounds == 120);
}

/* A connection goes on carrying data after finalize, and after an init with other settings. */
static void other_settings(TEST_UNUSED const void *arg)
{
	const char *other = strcmp(provider(), "shm") == 0 ? "tcp" : "shm";
	struct handle h, h2;
	struct node n;
	struct props p;
	struct buf b;
	net_alone(&n);
	net_open();
	void *listener = listen_at(0, &h);
	struct link l = link_to_itself(&h, listener);
	NET(net_finalize(net.ctx));
	message_to_itself(&n, &l, 50000, 1);
	setenv("GDRFAB_NCCL_PROVIDERS", other, 1);
	NET(net_init(&net.ctx));
	NET(net_props(0, &p));
	/* Before version 11 there is no finalize, and the first settings stay. */
	CHECK(test_says(p.name, net.version >= 11 ? other : provider()));
	void *listener2 = listen_at(0, &h2);
	struct link l2 = link_to_itself(&h2, listener2);
	message_to_itself(&n, &l2, 50000, 2);
	message_to_itself(&n, &l, 50000, 3);
	if (net.version >= 11) {
		/* Memory of one provider cannot be used with the other. */
		buf_new(&n, &b, HOST_MEM, 4096);
		buf_reg(&b, l.send);
		struct op op = recv_op(l2.recv, &b, 0, 10, 1);
		NET_FAILS(net_irecv(op.comm, 1, op.data, op.sizes, op.tags, op.mhandles, &op.request), ncclSystemError);
		buf_end(&b);
	}
	link_down(&l);
	link_down(&l2);
	NET(net.close_listen(listener));
	NET(net.close_listen(listener2));
	net_close(&n);
}

/* --- connection attempts that are given up --- */

enum { GIVEN_UP = 20 };

static void give_up(struct handle *left)
{
	void *comm = NULL;
	for (int i = 0; i < GIVEN_UP; i++) {
		void *listener = listen_at(0, left);
		for (int calls = 0; calls < 1 + i % 3 && !comm; calls++)
			NET(net_connect(net.ctx, 0, left, &comm));
		CHECK(comm == NULL);
		NET(net.close_listen(listener));
	}
}

static void given_up_and_finalized(TEST_UNUSED const void *arg)
{
	struct handle h;
	struct node n;
	net_alone(&n);
	net_open();
	if (net.version < 11)
		test_skip("there is no finalize before version 11");
	give_up(&h);
	net_close(&n);
}

static void given_up_and_late(TEST_UNUSED const void *arg)
{
	struct handle h, other;
	struct node n;
	void *comm;
	net_alone(&n);
	timeout_is("0.3");
	net_open();
	/* Descriptors that the provider opens once and keeps. */
	NET(net.close_listen(listen_at(0, &other)));
	int before = test_count_fds();
	give_up(&h);
	CHECK(test_count_fds() > before);
	test_sleep_ms(test_ms(700));
	NET(net.close_listen(listen_at(0, &other)));
	if (test_count_fds() > before)
		test_fail(__FILE__, __LINE__, "%d descriptors are left", test_count_fds() - before);
	/* A caller that comes back for the attempt gets an error. */
	NET_FAILS(net_connect(net.ctx, 0, &h, &comm), ncclInvalidArgument);
	net_close(&n);
}

/* --- clients that stop halfway --- */

static void stalled(const void *arg)
{
	int count = *(const int *)arg;
	struct handle h, copies[12];
	struct node n;
	void *comm;
	net_alone(&n);
	/* If all places are in use, each request has a tenth of this time. */
	timeout_is("8");
	net_open();
	void *listener = listen_at(0, &h);
	for (int i = 0; i < count; i++) {
		copies[i] = h;
		NET(net_connect(net.ctx, 0, &copies[i], &comm));
		CHECK(comm == NULL);
		for (int turn = 0; turn < 20; turn++) {
			NET(net_accept(listener, &comm));
			CHECK(comm == NULL);
			test_sleep_ms(1);
		}
	}
	uint64_t start = test_now_ms();
	struct link l = link_to_itself(&h, listener);
	if (test_now_ms() - start > (uint64_t)test_ms(4000))
		test_fail(__FILE__, __LINE__, "%d clients that stopped held the next for %llu ms", count,
			  (unsigned long long)(test_now_ms() - start));
	message_to_itself(&n, &l, 1000, 1);
	link_down(&l);
	/* The first of the requests that still had time are connected. */
	NET(net.close_listen(listener));
	net_close(&n);
}

/* --- too early, too late --- */

static void refused(void *ctx)
{
	struct handle h = {{0}};
	struct props p;
	void *made = NULL;
	int count = -1;
	NET(net.count(&count));
	CHECK_EQ(count, 0);
	NET_FAILS(net_props(0, &p), ncclInvalidArgument);
	NET_FAILS(net_listen(ctx, 0, &h, &made), ncclInvalidArgument);
	NET_FAILS(net_connect(ctx, 0, &h, &made), ncclInvalidArgument);
	CHECK(made == NULL);
}

static void too_early_too_late(TEST_UNUSED const void *arg)
{
	struct node n;
	int nothing = 0;
	void *first, *second;
	net_alone(&n);
	setenv("GDRFAB_NCCL_PROVIDERS", provider(), 0);
	net_load();
	int count = -1;
	NET(net.count(&count));
	CHECK_EQ(count, 0);
	if (net.version < 11)
		return;
	CHECK(net_finalize(&nothing) == ncclInvalidArgument);
	CHECK(net_finalize(NULL) == ncclInvalidArgument);
	NET(net_init(&first));
	NET(net_init(&second));
	CHECK(first != second);
	NET(net_finalize(first));
	NET_FAILS(net_finalize(first), ncclInvalidArgument);
	struct handle h;
	void *made = NULL;
	NET_FAILS(net_listen(first, 0, &h, &made), ncclInvalidArgument);
	NET(net_listen(second, 0, &h, &made));
	NET(net_finalize(second));
	NET(net.close_listen(made));
	refused(second);
	refused(NULL);
	NET(net_init(&net.ctx));
	net_close(&n);
}

/* --- several inits --- */

static void *inits(void *arg)
{
	struct node n;
	unsigned number = (unsigned)(size_t)arg;
	net_alone(&n);
	for (int round = 0; round < test_count(30, 6); round++) {
		struct handle h;
		void *ctx, *listener = NULL;
		struct link l = {NULL, NULL};
		NET(net_init(&ctx));
		NET(net_listen(ctx, 0, &h, &listener));
		uint64_t until = test_now_ms() + (uint64_t)test_ms(10000);
		while (!l.send || !l.recv) {
			if (!l.send)
				NET(net_connect(ctx, 0, &h, &l.send));
			if (!l.recv)
				NET(net_accept(listener, &l.recv));
			CHECK(test_now_ms() < until);
		}
		bool early = (number + (unsigned)round) % 2;
		if (early)
			NET(net_finalize(ctx));
		message_to_itself(&n, &l, 3000, number);
		NET(net.close_listen(listener));
		link_down(&l);
		if (!early)
			NET(net_finalize(ctx));
	}
	return NULL;
}

static void inits_at_once(TEST_UNUSED const void *arg)
{
	pthread_t threads[4];
	net_unhurried = true;
	setenv("GDRFAB_NCCL_PROVIDERS", provider(), 0);
	net_load();
	for (size_t i = 0; i < 4; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, inits, (void *)i), 0);
	for (size_t i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
}

/* Objects that a child of fork() has from its parent are refused. After an init of the child's own, both processes
 * work. */
static void in_a_child(TEST_UNUSED const void *arg)
{
	struct handle h, own;
	struct node n;
	net_alone(&n);
	net_open();
	void *listener = listen_at(0, &h);
	struct link l = link_to_itself(&h, listener);
	pid_t child = test_fork(TEST_CLIENT);
	if (child == 0) {
		refused(net.ctx);
		if (net.version >= 11)
			NET_FAILS(net_finalize(net.ctx), ncclInvalidArgument);
		NET(net_init(&net.ctx));
		void *at = listen_at(0, &own);
		struct link mine = link_to_itself(&own, at);
		message_to_itself(&n, &mine, 10000, 1);
		link_down(&mine);
		NET(net.close_listen(at));
		NET(net_finalize(net.ctx));
		test_child_done();
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child);
	test_child_ended(TEST_CLIENT, status);
	message_to_itself(&n, &l, 10000, 2);
	NET(net.close_listen(listener));
	link_down(&l);
	net_close(&n);
}

TEST_TABLE(nccl_life)
{
	static const int some = 5, more_than_places = 10;
	if (nccl_absent())
		return;
	test_add("finalize_and_closes_in_every_order", every_order, NULL, 60);
	test_add("finalize_then_other_settings", other_settings, NULL, 40);
	test_add("given_up_connects_end_with_finalize", given_up_and_finalized, NULL, 40);
	test_add("given_up_connects_end_in_time", given_up_and_late, NULL, 40);
	test_add("five_stalled_clients", stalled, &some, 40);
	test_add("more_stalled_clients_than_places", stalled, &more_than_places, 40);
	test_add("too_early_and_too_late", too_early_too_late, NULL, 40);
	test_add("inits_at_once", inits_at_once, NULL, 60);
	test_add("in_a_child", in_a_child, NULL, 40);
}
