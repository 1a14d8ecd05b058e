/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Sleeping until a completion comes. The sleep ends by a time limit, by the other side, or by a signal, in the call or in
 * poll() on the descriptor. A lost wake-up shows as a time limit that runs out.
 */
#include "fab.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>

#define LONG 8000 /* ms: longer than any wait here may last */

static uint64_t since(uint64_t start)
{
	return test_now_ms() - start;
}

/* Sends one byte, or writes with data, a little after each request. */
enum { WANT_END, WANT_SEND, WANT_WRITEDATA };
struct request {
	int what, after_ms;
	struct remote to;
};

static void waker(struct node *n)
{
	struct request w;
	uint64_t word = 1;
	node_up(n);
	void *desc = local_desc(n, &word, 8);
	for (;;) {
		oob_recv(n, &w, sizeof w);
		if (w.what == WANT_END)
			break;
		if (w.after_ms)
			test_sleep_ms(w.after_ms);
		if (w.what == WANT_SEND)
			POST(n->cq, gdrfab_send(n->ep, &word, 1, desc, PEER, &word));
		else
			POST(n->cq, gdrfab_writedata(n->ep, &word, 8, desc, 77, PEER, w.to.base, w.to.key, &word));
		DONE(n->cq, &word, 0, NULL);
	}
	node_down(n);
}

static void ask(struct node *n, int what, int after_ms, const struct mem *m)
{
	struct request w;
	memset(&w, 0, sizeof w);
	w.what = what;
	w.after_ms = after_ms;
	if (m) {
		w.to.key = m->key;
		w.to.base = m->base;
	}
	oob_send(n, &w, sizeof w);
}

/* --- sread --- */

static void sleeper(struct node *n)
{
	char in;
	done e;
	struct mem m;
	node_up(n);
	mem_new(n, &m, &memkinds[KIND_MEM_ALLOC], 4096);
	mem_register(n, &m, 0, 4096, REMOTE_ACCESS, 0);

	uint64_t start = test_now_ms();
	CHECK_EQ(gdrfab_cq_sread(n->cq, &e, 1, 0), -EAGAIN);
	CHECK(since(start) < (uint64_t)test_ms(1000));
	start = test_now_ms();
	CHECK_EQ(gdrfab_cq_sread(n->cq, &e, 1, 100), -EAGAIN);
	CHECK(since(start) >= 99);
	CHECK(since(start) < (uint64_t)test_ms(3000));

	for (int round = 0; round < test_count(60, 8); round++) {
		int pause = round < 5 ? 50 : round % 3;
		int what = round % 2 && n->info->cq_data_size > 0 ? WANT_WRITEDATA : WANT_SEND;
		POST(n->cq, gdrfab_recv(n->ep, &in, 1, local_desc(n, &in, 1), PEER, &in));
		ask(n, what, pause, &m);
		start = test_now_ms();
		CHECK_EQ(gdrfab_cq_sread(n->cq, &e, 1, round % 4 == 3 ? -1 : test_ms(LONG)), 1);
		CHECK(since(start) < (uint64_t)test_ms(LONG / 2));
		CHECK((e.flags & (what == WANT_SEND ? GDRFAB_RECV : GDRFAB_REMOTE_WRITE)) != 0);
		if (what == WANT_WRITEDATA)
			CHECK_EQ(e.data, 77);
	}
	ask(n, WANT_END, 0, NULL);
	mem_unregister(&m);
	mem_end(n, &m);
	node_down(n);
}

static void sread_wakes(const void *arg)
{
	pair((const struct setup *)arg, sleeper, waker, NULL);
}

/* --- signals --- */

static void *signals_queue(void *arg)
{
	test_sleep_ms(60);
	gdrfab_cq_signal((gdrfab_cq *)arg);
	return NULL;
}

TEST(queue_signal_wakes)
{
	struct node n;
	done e;
	node_alone(&n, NULL);
	for (int round = 0; round < 5; round++) {
		pthread_t thread;
		CHECK_EQ(pthread_create(&thread, NULL, signals_queue, n.cq), 0);
		uint64_t start = test_now_ms();
		CHECK_EQ(gdrfab_cq_sread(n.cq, &e, 1, test_ms(LONG)), -EAGAIN);
		CHECK(since(start) < (uint64_t)test_ms(LONG / 2));
		pthread_join(thread, NULL);
	}
	node_close(&n);
}

static void on_signal(TEST_UNUSED int number)
{
}

TEST(process_signal_interrupts)
{
	struct sigaction action;
	/* Repeated, because the first may come before the thread waits. */
	struct itimerval timer = {{0, 80000}, {0, 80000}}, never = {{0, 0}, {0, 0}};
	struct node n;
	done e;
	memset(&action, 0, sizeof action);
	action.sa_handler = on_signal;
	CHECK_EQ(sigaction(SIGALRM, &action, NULL), 0);
	node_alone(&n, NULL);
	for (int round = 0; round < 3; round++) {
		CHECK_EQ(setitimer(ITIMER_REAL, &timer, NULL), 0);
		uint64_t start = test_now_ms();
		CHECK_EQ(gdrfab_cq_sread(n.cq, &e, 1, test_ms(LONG)), -EINTR);
		CHECK_EQ(setitimer(ITIMER_REAL, &never, NULL), 0);
		CHECK(since(start) < (uint64_t)test_ms(LONG / 2));
	}
	node_close(&n);
}

/* --- a file descriptor --- */

static void poller(struct node *n)
{
	char in;
	int fd = -1;
	struct mem m;
	node_up(n);
	OK(gdrfab_cq_fd(n->cq, &fd));
	CHECK(fd >= 0);
	mem_new(n, &m, &memkinds[KIND_MEM_ALLOC], 4096);
	mem_register(n, &m, 0, 4096, REMOTE_ACCESS, 0);
	int rounds = test_count(300, 20);
	for (int round = 0; round < rounds; round++) {
		bool writes = round % 2 && n->info->cq_data_size > 0;
		if (!writes || data_takes_receive(n))
			POST(n->cq, gdrfab_recv(n->ep, &in, 1, local_desc(n, &in, 1), PEER, &in));
		/* Before, during and after the moment in which this side goes to sleep. */
		ask(n, writes ? WANT_WRITEDATA : WANT_SEND, round % 10 == 0 ? 5 : 0, &m);
		for (int turns = 0;; turns++) {
			done e;
			struct pollfd p = {fd, POLLIN, 0};
			ssize_t got = gdrfab_cq_read(n->cq, &e, 1);
			if (got == 1) {
				CHECK((e.flags & (writes ? GDRFAB_REMOTE_WRITE : GDRFAB_RECV)) != 0);
				break;
			}
			CHECK_EQ(got, -EAGAIN);
			int may = gdrfab_cq_trywait(n->cq);
			if (may == -EAGAIN)
				continue;
			OK(may);
			int ready = poll(&p, 1, test_ms(LONG));
			if (ready == 0)
				test_fail(__FILE__, __LINE__, "round %d: a wake-up was lost (turn %d)", round, turns);
			CHECK_EQ(ready, 1);
			CHECK_EQ(p.revents, POLLIN);
		}
	}
	/* With an entry to read, gdrfab_cq_trywait() forbids to sleep. */
	POST(n->cq, gdrfab_recv(n->ep, &in, 1, local_desc(n, &in, 1), PEER, &in));
	ask(n, WANT_SEND, 0, NULL);
	uint64_t until = test_now_ms() + (uint64_t)test_ms(LONG);
	while (gdrfab_cq_trywait(n->cq) == 0) {
		struct pollfd p = {fd, POLLIN, 0};
		CHECK_EQ(poll(&p, 1, test_ms(LONG)), 1);
		CHECK(test_now_ms() < until);
	}
	CHECK_EQ(gdrfab_cq_trywait(n->cq), -EAGAIN);
	DONE(n->cq, &in, GDRFAB_RECV, NULL);
	ask(n, WANT_END, 0, NULL);
	mem_end(n, &m);
	node_down(n);
}

static void fd_wakes(const void *arg)
{
	pair((const struct setup *)arg, poller, waker, NULL);
}

TEST(fd_only_where_asked_for)
{
	int fd = -42;
	struct node n;
	node_alone(&n, NULL);
	CHECK_EQ(gdrfab_cq_fd(n.cq, &fd), -ENOSYS);
	CHECK_EQ(fd, -42);
	node_close(&n);
}

/* The descriptor also becomes readable when the peer dies. */
static void poller_of_a_dying_peer(struct node *n)
{
	char in;
	int fd = -1;
	node_up(n);
	node_reach(n);
	OK(gdrfab_cq_fd(n->cq, &fd));
	POST(n->cq, gdrfab_recv(n->ep, &in, 1, local_desc(n, &in, 1), PEER, &in));
	barrier(n);
	uint64_t until = test_now_ms() + (uint64_t)test_ms(LONG);
	done e;
	ssize_t got;
	while ((got = gdrfab_cq_read(n->cq, &e, 1)) == -EAGAIN) {
		struct pollfd p = {fd, POLLIN, 0};
		if (gdrfab_cq_trywait(n->cq) == 0)
			CHECK_EQ(poll(&p, 1, test_ms(LONG)), 1);
		CHECK(test_now_ms() < until);
	}
	CHECK_EQ(got, -GDRFAB_EAVAIL);
	FAILED(n->cq, &in, ECONNRESET, GDRFAB_PROV_PEER_GONE, NULL);
	node_close(n);
}

static void dies_a_little_later(struct node *n)
{
	node_up(n);
	node_reach(n);
	barrier(n);
	test_sleep_ms(50);
	raise(SIGKILL);
}

TEST(fd_wakes_when_the_peer_dies)
{
	struct setup s = {.cq_wait = GDRFAB_WAIT_FD, .victim = TEST_CLIENT};
	pair(&s, poller_of_a_dying_peer, dies_a_little_later, NULL);
}

/* The descriptor becomes readable when a deadline passes, however far away the deadline was. */
static void poller_with_a_deadline(struct node *n)
{
	char in;
	int fd = -1;
	done e;
	ssize_t got;
	node_up(n);
	OK(gdrfab_cq_fd(n->cq, &fd));
	barrier(n);
	/* The deadline counts from the call that posts. */
	uint64_t start = test_now_ms();
	POST(n->cq, gdrfab_recv(n->ep, &in, 1, local_desc(n, &in, 1), PEER, &in));
	while ((got = gdrfab_cq_read(n->cq, &e, 1)) == -EAGAIN) {
		struct pollfd p = {fd, POLLIN, 0};
		if (gdrfab_cq_trywait(n->cq) == 0)
			CHECK_EQ(poll(&p, 1, test_ms(LONG)), 1);
	}
	CHECK_EQ(got, -GDRFAB_EAVAIL);
	CHECK(since(start) >= 1500 && since(start) < (uint64_t)test_ms(LONG));
	FAILED(n->cq, &in, ETIMEDOUT, GDRFAB_PROV_DEADLINE, NULL);
	barrier(n);
	node_close(n);
}

static void says_nothing(struct node *n)
{
	node_up(n);
	barrier(n);
	barrier(n);
	node_close(n);
}

TEST(fd_wakes_for_a_deadline)
{
	struct setup s = {.cq_wait = GDRFAB_WAIT_FD, .deadline_ms = 1500};
	pair(&s, poller_with_a_deadline, says_nothing, NULL);
}

static void sleeper_with_a_dying_peer(struct node *n)
{
	char in;
	done e;
	node_up(n);
	node_reach(n);
	POST(n->cq, gdrfab_recv(n->ep, &in, 1, local_desc(n, &in, 1), PEER, &in));
	barrier(n);
	CHECK_EQ(gdrfab_cq_sread(n->cq, &e, 1, -1), -GDRFAB_EAVAIL);
	FAILED(n->cq, &in, ECONNRESET, GDRFAB_PROV_PEER_GONE, NULL);
	node_close(n);
}

TEST(sread_wakes_when_the_peer_dies)
{
	struct setup s = {.victim = TEST_CLIENT};
	pair(&s, sleeper_with_a_dying_peer, dies_a_little_later, NULL);
}

TEST_TABLE(waits)
{
	static const struct setup manual = {.cq_wait = GDRFAB_WAIT_NONE};
	static const struct setup with_fd = {.cq_wait = GDRFAB_WAIT_FD};
	static const struct setup automatic = {
		.cq_wait = GDRFAB_WAIT_FD, .progress = GDRFAB_PROGRESS_AUTO, .threading = GDRFAB_THREAD_SAFE};
	test_add("sread_wakes", sread_wakes, &manual, 40);
	test_add("sread_wakes_with_fd", sread_wakes, &with_fd, 40);
	test_add("sread_wakes_automatic_progress", sread_wakes, &automatic, 40);
	test_add("fd_wakes", fd_wakes, &with_fd, 40);
	test_add("fd_wakes_automatic_progress", fd_wakes, &automatic, 40);
}
