/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Connections of gdrfab's plugin for NCCL: either side first, many from one listener, to an address without a
 * listener, and from invalid handles. No call waits, and nothing is left of a closed connection.
 */
#include "nccl_drive.h"

#include <pthread.h>

#define A_WHILE 300 /* ms that one side lets the other wait */

static void poll_for(int ms, ncclResult_t (*call)(void *arg, void **comm), void *arg, void **comm)
{
	uint64_t until = test_now_ms() + (uint64_t)ms;
	while (test_now_ms() < until && !*comm) {
		NET(call(arg, comm));
		test_sleep_ms(2);
	}
}

static ncclResult_t connecting(void *h, void **comm)
{
	return net_connect(net.ctx, 0, h, comm);
}

static ncclResult_t accepting(void *listener, void **comm)
{
	return net_accept(listener, comm);
}

/* --- either side first --- */

static void accepts_late(struct node *n)
{
	struct link l = {NULL, NULL};
	struct handle h;
	net_open();
	void *listener = listen_at(0, &h);
	oob_send(n, &h, sizeof h);
	barrier(n);
	l.recv = accept_from(listener);
	NET(net.close_listen(listener));
	message_in(n, l.recv, 100000, 1);
	sides_down(n, &l);
}

static void connects_early(struct node *n)
{
	struct link l = {NULL, NULL};
	struct handle h;
	net_open();
	oob_recv(n, &h, sizeof h);
	poll_for(A_WHILE, connecting, &h, &l.send);
	barrier(n);
	if (!l.send)
		l.send = connect_to(0, &h);
	message_out(n, l.send, 100000, 1);
	sides_down(n, &l);
}

static void connect_first(const void *arg)
{
	pair(NULL, accepts_late, connects_early, arg);
}

static void accepts_early(struct node *n)
{
	struct link l = {NULL, NULL};
	struct handle h;
	net_open();
	void *listener = listen_at(0, &h);
	poll_for(A_WHILE, accepting, listener, &l.recv);
	CHECK(l.recv == NULL);
	oob_send(n, &h, sizeof h);
	l.recv = accept_from(listener);
	NET(net.close_listen(listener));
	message_in(n, l.recv, 100000, 1);
	sides_down(n, &l);
}

static void connects_late(struct node *n)
{
	struct link l = {NULL, NULL};
	struct handle h;
	net_open();
	oob_recv(n, &h, sizeof h);
	l.send = connect_to(0, &h);
	message_out(n, l.send, 100000, 1);
	sides_down(n, &l);
}

static void accept_first(const void *arg)
{
	pair(NULL, accepts_early, connects_late, arg);
}

static void itself(TEST_UNUSED const void *arg)
{
	struct node n;
	struct handle h;
	net_alone(&n);
	net_open();
	void *listener = listen_at(0, &h);
	struct link l = link_to_itself(&h, listener);
	NET(net.close_listen(listener));
	message_to_itself(&n, &l, 10, 1);
	message_to_itself(&n, &l, 1000000, 2);
	link_down(&l);
	net_close(&n);
}

/* The log names the connection's provider, and has gdrfab's own text for the path. */
static void says_path(struct node *n)
{
	/* The device is tcp's, but within a host shm may serve it. */
	bool upgraded = n->arg != NULL;
	if (upgraded)
		setenv("GDRFAB_NCCL_PROVIDERS", "tcp,shm", 1);
	net_open();
	/* init has logged the devices; from here on the log is about the connection, and the sender writes it. */
	log_forget();
	struct link l = link_up(n, TO_SERVER);
	if (n->side == TEST_SERVER)
		message_in(n, l.recv, 100000, 1);
	else
		message_out(n, l.send, 100000, 1);
	const char *want = upgraded ? "shm" : provider(), *other = strcmp(want, "shm") == 0 ? "tcp" : "shm";
	if (n->side == TEST_CLIENT && (!test_says(log_all(), want) || test_says(log_all(), other)))
		test_fail(__FILE__, __LINE__, "a connection is not said to be over %s: \"%s\"", want, log_all());
	if (upgraded) {
		struct props p;
		NET(net_props(0, &p));
		CHECK(test_says(p.name, "tcp"));
	}
	sides_down(n, &l);
}

static void path_said(const void *arg)
{
	pair(NULL, says_path, says_path, arg);
}

/* --- many --- */

#define MANY 64

static void many_accepted(struct node *n)
{
	static void *comms[MANY];
	struct handle h;
	size_t count = *(const size_t *)n->arg;
	net_open();
	void *listener = listen_at(0, &h);
	oob_send(n, &h, sizeof h);
	for (size_t i = 0; i < count; i++)
		comms[i] = accept_from(listener);
	NET(net.close_listen(listener));
	/* The peer says which connection is which, because they may come in any order. */
	struct buf b;
	buf_new(n, &b, HOST_MEM, count * 8);
	buf_reg(&b, comms[0]);
	static struct op ops[MANY];
	for (size_t i = 0; i < count; i++)
		ops[i] = recv_op(comms[i], &b, i * 8, 8, 0);
	ops_run(ops, count, 1);
	bool seen[MANY] = {false};
	for (size_t i = 0; i < count; i++) {
		uint64_t number = 0;
		memcpy(&number, b.at + i * 8, 8);
		CHECK(number < count && !seen[number]);
		seen[number] = true;
		message_in(n, comms[i], 50000, (uint32_t)number);
	}
	buf_end(&b);
	barrier(n);
	for (size_t i = 0; i < count; i++)
		NET(net.close_recv(comms[i]));
	net_close(n);
}

static void many_connected(struct node *n)
{
	static void *comms[MANY];
	static struct handle handles[MANY];
	size_t count = *(const size_t *)n->arg, left = count;
	net_open();
	oob_recv(n, &handles[0], sizeof handles[0]);
	for (size_t i = 1; i < count; i++)
		handles[i] = handles[0];
	/* All at once, each polled in turn. */
	uint64_t until = test_now_ms() + (uint64_t)test_ms(30000);
	while (left) {
		for (size_t i = 0; i < count; i++) {
			if (comms[i])
				continue;
			NET(net_connect(net.ctx, 0, &handles[i], &comms[i]));
			left -= comms[i] != NULL;
		}
		if (test_now_ms() > until)
			test_fail(__FILE__, __LINE__, "%zu of %zu have not connected", left, count);
		test_sleep_ms(1);
	}
	struct buf b;
	buf_new(n, &b, HOST_MEM, count * 8);
	buf_reg(&b, comms[0]);
	static struct op ops[MANY];
	for (size_t i = 0; i < count; i++) {
		uint64_t number = i;
		memcpy(b.at + i * 8, &number, 8);
		ops[i] = send_op(comms[i], &b, i * 8, 8, 0);
	}
	ops_run(ops, count, 1);
	/* The other side receives them in its own order. */
	static struct buf whole[MANY];
	for (size_t i = 0; i < count; i++) {
		buf_new(n, &whole[i], HOST_MEM, 50000);
		buf_reg(&whole[i], comms[i]);
		buf_fill(&whole[i], 0, 50000, (uint32_t)i);
		ops[i] = send_op(comms[i], &whole[i], 0, 50000, 1);
	}
	ops_run(ops, count, 1);
	for (size_t i = 0; i < count; i++)
		buf_end(&whole[i]);
	buf_end(&b);
	barrier(n);
	for (size_t i = 0; i < count; i++)
		NET(net.close_send(comms[i]));
	net_close(n);
}

static void many(const void *arg)
{
	pair(NULL, many_accepted, many_connected, arg);
}

/* Connects and closes over and over: no descriptor, mapping or thread may be left. */
static size_t lines_of(const char *path)
{
	FILE *file = fopen(path, "r");
	size_t lines = 0;
	CHECK(file != NULL);
	for (int c; (c = fgetc(file)) != EOF;)
		lines += c == '\n';
	fclose(file);
	return lines;
}

static long resident(void)
{
	long size = 0, pages = 0;
	FILE *file = fopen("/proc/self/statm", "r");
	CHECK(file != NULL && fscanf(file, "%ld %ld", &size, &pages) == 2);
	fclose(file);
	return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static void cycles(struct node *n)
{
	int rounds = test_count(50, 12), early = 6, fds = 0;
	size_t maps = 0;
	long memory = 0;
	net_open();
	for (int round = 0; round < rounds; round++) {
		struct link l = link_up(n, BOTH_WAYS);
		for (int way = 0; way < 2; way++) {
			if ((n->side == TEST_SERVER) == (way == 0))
				message_in(n, l.recv, 20000, (uint32_t)round);
			else
				message_out(n, l.send, 20000, (uint32_t)round);
		}
		barrier(n);
		link_down(&l);
		/* The side that closes second has seen the other side's end by then. */
		barrier(n);
		if (round == early) {
			fds = test_count_fds();
			maps = lines_of("/proc/self/maps");
			memory = resident();
		}
	}
	int left = test_count_fds() - fds;
	/* Objects of the last two connections stay until their domains are used again or closed. */
	bool leaks = left > 6;
	if (leaks)
		test_list_fds();
	if (leaks)
		test_fail(__FILE__, __LINE__, "%d descriptors are left of %d connections", left, 2 * (rounds - early));
	size_t mapped = lines_of("/proc/self/maps");
	/* Those two have a few mappings each. One mapping for each connection would be more. */
	if (mapped > maps + 11)
		test_fail(__FILE__, __LINE__, "%zu mappings are left of %d connections", mapped - maps,
			  2 * (rounds - early));
	if (test_count(1, 0) && resident() - memory > 2048)
		test_fail(__FILE__, __LINE__, "%ld KiB are left of %d connections", resident() - memory,
			  2 * (rounds - early));
	barrier(n);
	net_close(n);
}

static void connected_again(const void *arg)
{
	pair(NULL, cycles, cycles, arg);
}

/* Several communicators of NCCL connect at the same time, each on a thread of its own. */
struct worker {
	pthread_t thread;
	struct handle h;
	void *listener;
	struct link l;
	int number;
};

static void *works(void *arg)
{
	struct worker *w = (struct worker *)arg;
	struct node n;
	net_alone(&n);
	for (int round = 0; round < test_count(8, 2); round++) {
		w->listener = listen_at(0, &w->h);
		w->l = link_to_itself(&w->h, w->listener);
		NET(net.close_listen(w->listener));
		message_to_itself(&n, &w->l, 30000, (uint32_t)(w->number * 100 + round));
		link_down(&w->l);
	}
	return NULL;
}

static void at_once(TEST_UNUSED const void *arg)
{
	static struct worker workers[4];
	struct node n;
	net_alone(&n);
	net_open();
	for (int i = 0; i < 4; i++) {
		workers[i].number = i;
		CHECK_EQ(pthread_create(&workers[i].thread, NULL, works, &workers[i]), 0);
	}
	for (int i = 0; i < 4; i++)
		pthread_join(workers[i].thread, NULL);
	net_close(&n);
}

/* --- no peer --- */

/* Polls until connecting fails, which must happen in time and with a reason in the log. */
static void never_connects(struct handle *h, int ms)
{
	ncclResult_t result = ncclSuccess;
	void *comm = NULL;
	uint64_t start = test_now_ms();
	log_forget();
	while (result == ncclSuccess) {
		result = net_connect(net.ctx, 0, h, &comm);
		CHECK(comm == NULL);
		if (test_now_ms() - start > (uint64_t)test_ms(ms))
			test_fail(__FILE__, __LINE__, "it goes on connecting to nobody");
		test_sleep_ms(5);
	}
	if (!log_warnings()[0])
		test_fail(__FILE__, __LINE__, "connect is %s, and nothing was said", nccl_word(result));
}

static void nobody(TEST_UNUSED const void *arg)
{
	struct node n;
	struct handle h;
	net_alone(&n);
	timeout_is("1.5");
	net_open();
	/* No peer has come, which is no failure. */
	void *listener = listen_at(0, &h), *comm = NULL;
	poll_for(100, accepting, listener, &comm);
	CHECK(comm == NULL);
	NET(net.close_listen(listener));
	never_connects(&h, 5000);
	net_close(&n);
}

/* The listener is closed while a peer connects. */
static void shuts(struct node *n)
{
	struct handle h;
	timeout_is("1.5");
	net_open();
	void *listener = listen_at(0, &h);
	oob_send(n, &h, sizeof h);
	barrier(n);
	NET(net.close_listen(listener));
	barrier(n);
	net_close(n);
}

static void knocks(struct node *n)
{
	struct handle h;
	void *comm = NULL;
	timeout_is("1.5");
	net_open();
	oob_recv(n, &h, sizeof h);
	poll_for(100, connecting, &h, &comm);
	CHECK(comm == NULL);
	barrier(n);
	never_connects(&h, 5000);
	barrier(n);
	net_close(n);
}

static void shut(const void *arg)
{
	pair(NULL, shuts, knocks, arg);
}

static void garbage(TEST_UNUSED const void *arg)
{
	struct node n;
	struct handle good, h;
	uint64_t random = 7;
	net_alone(&n);
	timeout_is("1");
	net_open();
	void *listener = listen_at(0, &good);
	memset(&h, 0, sizeof h);
	never_connects(&h, 5000);
	memset(&h, 0xff, sizeof h);
	never_connects(&h, 5000);
	for (int i = 0; i < 4; i++) {
		for (size_t k = 0; k < sizeof h; k++)
			h.bytes[k] = (char)test_random(&random);
		never_connects(&h, 5000);
	}
	/* A string without its NUL. */
	memset(&h, 'a', sizeof h);
	never_connects(&h, 5000);
	h = good;
	h.bytes[0] = (char)(h.bytes[0] ^ 0x40);
	never_connects(&h, 5000);
	/* The listener still works. */
	struct link l = link_to_itself(&good, listener);
	message_to_itself(&n, &l, 1000, 3);
	NET(net.close_listen(listener));
	link_down(&l);
	net_close(&n);
}

/* --- the claims --- */

TEST_TABLE(nccl_connect)
{
	static const size_t eight = 8, sixty_four = MANY;
	if (nccl_absent())
		return;
	test_add("connect_before_accept", connect_first, NULL, 40);
	test_add("accept_before_connect", accept_first, NULL, 40);
	test_add("to_itself", itself, NULL, 40);
	test_add("path_is_said", path_said, NULL, 40);
	test_add("path_within_a_host", path_said, "tcp,shm", 40);
	test_add("eight_of_one_listener", many, &eight, 60);
	test_add("sixty_four_of_one_listener", many, &sixty_four, 90);
	test_add("connected_again_and_again", connected_again, NULL, 90);
	test_add("four_threads_at_once", at_once, NULL, 60);
	test_add("nobody_listens", nobody, NULL, 40);
	test_add("listener_goes_away", shut, NULL, 40);
	test_add("garbage_for_a_handle", garbage, NULL, 80);
}
