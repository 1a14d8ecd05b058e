/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Peers of gdrfab's plugin for NCCL that are killed, stop or close in the middle of something. The other side learns
 * of it in time, by a result that NCCL understands and a log line that a reader understands, and can close
 * everything.
 */
#include "nccl_drive.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>

#define TIMEOUT "2"    /* s: GDRFAB_NCCL_TIMEOUT */
#define IN_TIME 5000   /* ms: TIMEOUT, and a margin for a busy machine */
#define PATIENCE 4000  /* ms that a close may take */
#define LARGE ((size_t)1 << 20)
#define FLIGHT ((size_t)8)

struct fault {
	int kind;
	bool sender_left; /* the survivor sends */
	int round;
};

static const struct fault *fault_of(const struct node *n)
{
	return (const struct fault *)n->arg;
}

static bool sends_here(const struct node *n)
{
	return fault_of(n)->sender_left == (n->side == TEST_SERVER);
}

static struct link fault_up(struct node *n)
{
	timeout_is(TIMEOUT);
	return sides_up(n, fault_of(n)->kind, fault_of(n)->sender_left ? TO_CLIENT : TO_SERVER);
}

static void nothing_in_dev_shm(void)
{
	struct dirent *entry;
	DIR *dir = opendir("/dev/shm");
	if (!dir)
		return;
	while ((entry = readdir(dir)))
		if (strstr(entry->d_name, "gdrfab"))
			test_fail(__FILE__, __LINE__, "/dev/shm/%s was left behind", entry->d_name);
	closedir(dir);
}

/* The survivor's other connections still work. Then everything is closed, in a short time. */
static void close_up(struct node *n, struct link *l, struct buf *b)
{
	struct handle h;
	void *listener = listen_at(0, &h);
	struct link self = link_to_itself(&h, listener);
	NET(net.close_listen(listener));
	message_to_itself(n, &self, 100000, 4);
	uint64_t start = test_now_ms();
	link_down(&self);
	if (b)
		buf_end(b);
	link_down(l);
	net_close(n);
	if (test_now_ms() - start > (uint64_t)test_ms(PATIENCE))
		test_fail(__FILE__, __LINE__, "closing took %llu ms", (unsigned long long)(test_now_ms() - start));
	nothing_in_dev_shm();
}

static void run(side_fn survivor, side_fn victim, const struct fault *f, int rounds)
{
	struct setup s = {.victim = TEST_CLIENT};
	for (int round = 0; round < rounds; round++) {
		struct fault here = *f;
		here.round = round;
		pair(&s, survivor, victim, &here);
	}
}

/* --- in the middle of transfers --- */

static struct op large_op(struct node *n, struct link *l, struct buf *b, size_t i)
{
	size_t at = i % FLIGHT * LARGE;
	return sends_here(n) ? send_op(l->send, b, at, LARGE, 0) : recv_op(l->recv, b, at, LARGE, 0);
}

static void large_buf(struct node *n, struct link *l, struct buf *b)
{
	buf_new(n, b, fault_of(n)->kind, FLIGHT * LARGE);
	buf_reg(b, sends_here(n) ? l->send : l->recv);
}

static void streams(struct node *n)
{
	struct link l = fault_up(n);
	struct buf b;
	struct op ops[FLIGHT];
	large_buf(n, &l, &b);
	for (size_t i = 0; i < FLIGHT; i++)
		ops[i] = large_op(n, &l, &b, i);
	barrier(n);
	for (size_t i = 0;; i = (i + 1) % FLIGHT) {
		op_finish(&ops[i]);
		ops[i].done = false;
	}
}

struct blow {
	struct node *n;
	int ms;
	pthread_t thread;
};

static void *strikes(void *arg)
{
	struct blow *blow = (struct blow *)arg;
	test_sleep_ms(blow->ms);
	kill(blow->n->peer, SIGKILL);
	return NULL;
}

static void sees_the_end(struct node *n)
{
	struct link l = fault_up(n);
	struct buf b;
	struct op op[FLIGHT];
	large_buf(n, &l, &b);
	for (size_t i = 0; i < FLIGHT; i++)
		op[i] = large_op(n, &l, &b, i);
	struct blow blow = {.n = n, .ms = 5 + fault_of(n)->round * 7};
	barrier(n);
	CHECK_EQ(pthread_create(&blow.thread, NULL, strikes, &blow), 0);
	uint64_t start = test_now_ms();
	log_forget();
	ncclResult_t result = ncclSuccess;
	size_t ended = 0;
	while (result == ncclSuccess) {
		for (size_t i = 0; i < FLIGHT && result == ncclSuccess; i++) {
			bool was = op[i].done;
			result = op_step(&op[i]);
			ended += op[i].done && !was;
		}
		/* All have ended: starts the next round. */
		for (size_t i = 0; ended == FLIGHT && i < FLIGHT; i++)
			op[i].done = false;
		ended = ended == FLIGHT ? 0 : ended;
		if (test_now_ms() - start > (uint64_t)(blow.ms + test_ms(IN_TIME)))
			test_fail(__FILE__, __LINE__, "the peer was killed, and %zu of %zu requests go on; it said \"%s\"",
				  FLIGHT - ended, FLIGHT, log_warnings());
	}
	network_error(__FILE__, __LINE__, result);
	pthread_join(blow.thread, NULL);
	await_gone(n);
	/* The other requests of this connection end as well, unless they were done before. */
	for (size_t i = 0; i < FLIGHT; i++)
		if (op[i].request)
			OP_ENDS(&op[i], IN_TIME);
	close_up(n, &l, &b);
}

static void killed_in_the_middle(const void *arg)
{
	run(sees_the_end, streams, (const struct fault *)arg, test_count(5, 2));
}

/* --- while one side only waits --- */

static void does_nothing(struct node *n)
{
	struct link l = fault_up(n);
	barrier(n);
	for (;;)
		pause();
	link_down(&l);
}

static void waits_for_nothing(struct node *n)
{
	struct link l = fault_up(n);
	struct buf b;
	struct op ops[3];
	large_buf(n, &l, &b);
	for (size_t i = 0; i < 3; i++)
		ops[i] = large_op(n, &l, &b, i);
	barrier(n);
	/* Receives are accepted. A send may be; otherwise it is tried again. */
	uint64_t until = test_now_ms() + 100;
	while (test_now_ms() < until)
		for (size_t i = 0; i < 3; i++) {
			NET(op_step(&ops[i]));
			CHECK(!ops[i].done);
			CHECK(ops[i].request || ops[i].send);
		}
	log_forget();
	peer_kill(n);
	for (size_t i = 0; i < 3; i++)
		OP_FAILS(&ops[i], IN_TIME);
	close_up(n, &l, &b);
}

static void killed_while_idle(const void *arg)
{
	run(waits_for_nothing, does_nothing, (const struct fault *)arg, 1);
}

/* --- before there is a connection --- */

static void listens_only(struct node *n)
{
	struct handle h;
	timeout_is(TIMEOUT);
	net_open();
	listen_at(0, &h);
	oob_send(n, &h, sizeof h);
	for (;;)
		pause();
}

static void connects_in_vain(struct node *n)
{
	struct handle h;
	struct link none = {NULL, NULL};
	void *comm = NULL;
	bool stopped = fault_of(n)->round == 1, early = fault_of(n)->round == 2;
	timeout_is(TIMEOUT);
	net_open();
	oob_recv(n, &h, sizeof h);
	if (early)
		NET(net_connect(net.ctx, 0, &h, &comm));
	if (stopped)
		peer_stop(n);
	else
		peer_kill(n);
	ncclResult_t result = ncclSuccess;
	uint64_t start = test_now_ms();
	log_forget();
	while (result == ncclSuccess && !comm) {
		result = net_connect(net.ctx, 0, &h, &comm);
		if (test_now_ms() - start > (uint64_t)test_ms(IN_TIME))
			test_fail(__FILE__, __LINE__, "it goes on connecting to a process that is %s",
				  stopped ? "stopped" : "dead");
		test_sleep_ms(2);
	}
	CHECK(comm == NULL);
	network_error(__FILE__, __LINE__, result);
	if (stopped)
		peer_kill(n);
	close_up(n, &none, NULL);
}

static void listener_killed(const void *arg)
{
	run(connects_in_vain, listens_only, (const struct fault *)arg, 3);
}

static void knocks_and_waits(struct node *n)
{
	struct handle h;
	void *comm = NULL;
	timeout_is(TIMEOUT);
	net_open();
	oob_recv(n, &h, sizeof h);
	for (int i = 0; i < 20; i++) {
		if (!comm)
			NET(net_connect(net.ctx, 0, &h, &comm));
		test_sleep_ms(1);
	}
	barrier(n);
	for (;;)
		pause();
}

/* The first peer that asked is dead. The next one is accepted nevertheless. */
static void lets_in_the_next(struct node *n)
{
	struct handle h;
	struct link none = {NULL, NULL}, self;
	void *first = NULL;
	timeout_is(TIMEOUT);
	net_open();
	void *listener = listen_at(0, &h);
	oob_send(n, &h, sizeof h);
	barrier(n);
	peer_kill(n);
	uint64_t until = test_now_ms() + (uint64_t)test_ms(500);
	while (!first && test_now_ms() < until)
		NET(net_accept(listener, &first));
	self = link_to_itself(&h, listener);
	message_to_itself(n, &self, 1000, 1);
	if (first)
		NET(net.close_recv(first));
	link_down(&self);
	NET(net.close_listen(listener));
	close_up(n, &none, NULL);
}

static void caller_killed(const void *arg)
{
	run(lets_in_the_next, knocks_and_waits, (const struct fault *)arg, 1);
}

/* --- closed with requests outstanding --- */

/* Bits of `round`: 1: the memory is given back before the connection is closed; 2: requests are under way. */
static void closes_early(struct node *n)
{
	struct link l = fault_up(n), other;
	struct handle h;
	struct buf b;
	struct op ops[FLIGHT];
	bool memory_first = fault_of(n)->round & 1, busy = fault_of(n)->round & 2;
	/* Closes last the connection by which the memory is registered, as otherwise none is left to unregister it
	 * with. */
	void *listener = listen_at(0, &h);
	other = link_to_itself(&h, listener);
	NET(net.close_listen(listener));
	buf_new(n, &b, fault_of(n)->kind, FLIGHT * LARGE);
	buf_reg(&b, other.recv);
	for (size_t i = 0; i < FLIGHT; i++)
		ops[i] = large_op(n, &l, &b, i);
	barrier(n);
	uint64_t until = test_now_ms() + (busy ? 15 : 3);
	do {
		for (size_t i = 0; i < FLIGHT && (busy || !sends_here(n)); i++) {
			NET(op_step(&ops[i]));
			ops[i].done = false;
		}
	} while (test_now_ms() < until);
	uint64_t start = test_now_ms();
	if (memory_first)
		buf_dereg(&b);
	link_down(&l);
	if (test_now_ms() - start > (uint64_t)test_ms(PATIENCE))
		test_fail(__FILE__, __LINE__, "closing took %llu ms", (unsigned long long)(test_now_ms() - start));
	buf_blank(&b);
	barrier(n);
	barrier(n);
	/* Until a peer of this host has seen the end, it may write into registered memory. */
	if (memory_first)
		BUF_BLANK(&b, 0, FLIGHT * LARGE);
	if (b.mhandle)
		buf_dereg(&b);
	buf_blank(&b);
	barrier(n);
	BUF_BLANK(&b, 0, FLIGHT * LARGE);
	buf_end(&b);
	link_down(&other);
	net_close(n);
	nothing_in_dev_shm();
}

/* Continues until the error says that the other side has left. */
static void drive_to_the_end(struct node *n, struct op *ops)
{
	ncclResult_t result = ncclSuccess;
	uint64_t until = test_now_ms() + (uint64_t)test_ms(IN_TIME);
	while (result == ncclSuccess) {
		for (size_t i = 0; i < FLIGHT && result == ncclSuccess; i++) {
			result = op_step(&ops[i]);
			ops[i].done = false;
		}
		if (test_now_ms() > until)
			test_fail(__FILE__, __LINE__, "the other side has closed, and %s goes on",
				  sends_here(n) ? "sending" : "receiving");
	}
	network_error(__FILE__, __LINE__, result);
	for (size_t i = 0; i < FLIGHT; i++)
		if (ops[i].request)
			OP_ENDS(&ops[i], IN_TIME);
}

static void is_left(struct node *n)
{
	struct link l = fault_up(n);
	struct buf b;
	struct op ops[FLIGHT];
	bool memory_first = fault_of(n)->round & 1, busy = fault_of(n)->round & 2;
	large_buf(n, &l, &b);
	for (size_t i = 0; i < FLIGHT; i++) {
		ops[i] = large_op(n, &l, &b, i);
		if (!busy && !sends_here(n))
			CHECK(op_post(&ops[i]));
	}
	log_forget();
	barrier(n);
	if (busy)
		drive_to_the_end(n, ops);
	barrier(n);
	if (!busy && sends_here(n) && !memory_first)
		drive_to_the_end(n, ops);
	else
		for (size_t i = 0; i < FLIGHT && !busy; i++)
			OP_FAILS(&ops[i], IN_TIME);
	barrier(n);
	/* The other side has unregistered its memory, and this side still tries. */
	for (size_t i = 0; i < FLIGHT; i++)
		if (!ops[i].request)
			op_step(&ops[i]);
	barrier(n);
	close_up(n, &l, &b);
}

static void closed_in_flight(const void *arg)
{
	for (int round = 0; round < 4; round++) {
		struct fault here = *(const struct fault *)arg;
		here.round = round;
		pair(NULL, is_left, closes_early, &here);
	}
}

/* --- the claims --- */

TEST_TABLE(nccl_fault)
{
	static const int kinds[] = {HOST_MEM, CUDA_VMM_MEM};
	static struct fault faults[4];
	size_t used = 0;
	char name[96];
	if (nccl_absent())
		return;
	for (int k = 0; k < 2; k++)
		for (int sender = 0; sender < 2; sender++) {
			struct fault *f = &faults[used++];
			const char *who = sender ? "receiver" : "sender", *what = mem_names[kinds[k]];
			f->kind = kinds[k];
			f->sender_left = sender;
			snprintf(name, sizeof name, "%s_killed_in_the_middle_%s", who, what);
			test_add(name, killed_in_the_middle, f, 60);
			snprintf(name, sizeof name, "%s_killed_while_idle_%s", who, what);
			test_add(name, killed_while_idle, f, 60);
			snprintf(name, sizeof name, "%s_closes_in_flight_%s", who, what);
			test_add(name, closed_in_flight, f, 60);
		}
	test_add("listener_killed_or_stopped", listener_killed, &faults[0], 60);
	test_add("caller_killed_while_it_connects", caller_killed, &faults[0], 60);
}
