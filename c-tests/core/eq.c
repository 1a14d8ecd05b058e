/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The event queue: written events come back, an event larger than the buffer stays, and a wait ends when an event comes. */
#include "fab.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>

#define LONG 8000

static gdrfab_eq *own_queue(struct node *n, size_t size, uint32_t wait)
{
	gdrfab_eq_attr attr = {sizeof attr, size, 0, wait, 0};
	gdrfab_eq *eq = NULL;
	OK(gdrfab_eq_open(n->fabric, &attr, NULL, &eq));
	return eq;
}

TEST(written_events_come_back)
{
	struct {
		uint64_t words[8];
	} in, out;
	uint32_t event = 0;
	struct node n;
	node_alone(&n, NULL);
	gdrfab_eq *eq = own_queue(&n, 0, GDRFAB_WAIT_NONE);
	CHECK_EQ(gdrfab_eq_read(eq, &event, &out, sizeof out, 0), -EAGAIN);
	for (uint32_t i = 0; i < 20; i++) {
		size_t len = i * 3 % 64;
		fill(&in, len, 0, i);
		CHECK_EQ(gdrfab_eq_write(eq, 1000 + i, &in, len, 0), len);
	}
	for (uint32_t i = 0; i < 20; i++) {
		size_t len = i * 3 % 64;
		memset(&out, 0xaa, sizeof out);
		CHECK_EQ(gdrfab_eq_read(eq, &event, &out, sizeof out, 0), len);
		CHECK_EQ(event, 1000 + i);
		CHECK_FILLED("an event", &out, len, 0, i);
		CHECK_EQ(((unsigned char *)&out)[len], 0xaa);
	}
	CHECK_EQ(gdrfab_eq_read(eq, &event, &out, sizeof out, 0), -EAGAIN);
	OK(gdrfab_eq_close(eq));
	node_close(&n);
}

TEST(too_small_a_buffer_keeps_the_event)
{
	char in[40], out[40];
	uint32_t event = 77;
	struct node n;
	node_alone(&n, NULL);
	gdrfab_eq *eq = own_queue(&n, 0, GDRFAB_WAIT_NONE);
	fill(in, sizeof in, 0, 1);
	CHECK_EQ(gdrfab_eq_write(eq, 5000, in, sizeof in, 0), sizeof in);
	memset(out, 'x', sizeof out);
	for (size_t len = 0; len < sizeof in; len += 13)
		CHECK_EQ(gdrfab_eq_read(eq, &event, out, len, 0), -GDRFAB_ETOOSMALL);
	CHECK_EQ(gdrfab_eq_sread(eq, &event, out, 39, 100, 0), -GDRFAB_ETOOSMALL);
	CHECK_EQ(event, 77);
	for (size_t i = 0; i < sizeof out; i++)
		CHECK_EQ(out[i], 'x');
	CHECK_EQ(gdrfab_eq_read(eq, &event, out, sizeof out, 0), sizeof in);
	CHECK_EQ(event, 5000);
	CHECK_FILLED("the event", out, sizeof out, 0, 1);
	OK(gdrfab_eq_close(eq));
	node_close(&n);
}

TEST(peeking_leaves_the_event)
{
	char in[40], out[40];
	uint32_t event = 77;
	struct node n;
	node_alone(&n, NULL);
	gdrfab_eq *eq = own_queue(&n, 0, GDRFAB_WAIT_NONE);
	CHECK_EQ(gdrfab_eq_read(eq, &event, NULL, 0, GDRFAB_PEEK), -EAGAIN);
	CHECK_EQ(gdrfab_eq_sread(eq, &event, NULL, 0, 20, GDRFAB_PEEK), -EAGAIN);
	CHECK_EQ(gdrfab_eq_read(eq, &event, out, sizeof out, GDRFAB_PEEK | GDRFAB_MORE), -GDRFAB_EBADFLAGS);
	CHECK_EQ(event, 77);
	fill(in, sizeof in, 0, 3);
	CHECK_EQ(gdrfab_eq_write(eq, 5000, in, sizeof in, 0), sizeof in);
	CHECK_EQ(gdrfab_eq_write(eq, 5001, in, 1, 0), 1);
	memset(out, 'x', sizeof out);
	for (int i = 0; i < 3; i++) {
		event = 77;
		CHECK_EQ(gdrfab_eq_sread(eq, &event, out, sizeof out, test_ms(LONG), GDRFAB_PEEK), sizeof in);
		CHECK_EQ(event, 5000);
		CHECK_EQ(gdrfab_eq_read(eq, &event, NULL, 0, GDRFAB_PEEK), sizeof in);
		CHECK_EQ(out[i], 'x');
	}
	CHECK_EQ(gdrfab_eq_read(eq, &event, out, sizeof out, 0), sizeof in);
	CHECK_FILLED("the event", out, sizeof out, 0, 3);
	CHECK_EQ(gdrfab_eq_read(eq, &event, out, sizeof out, GDRFAB_PEEK), 1);
	CHECK_EQ(event, 5001);
	OK(gdrfab_eq_close(eq));
	node_close(&n);
}

/* A connection request does not fit into a buffer of size 0, and stays. */
static void request_kept(struct node *n)
{
	uint32_t event = 77;
	char none[4];
	struct event e;
	node_open(n);
	node_listen(n);
	barrier(n);
	CHECK_EQ(gdrfab_eq_sread(n->eq, &event, none, sizeof none, test_ms(LONG), 0), -GDRFAB_ETOOSMALL);
	/* The buffer has room for the entry and not for its data: neither is lost. */
	CHECK_EQ(gdrfab_eq_read(n->eq, &event, &e, sizeof e.entry, 0), -GDRFAB_ETOOSMALL);
	CHECK_EQ(event, 77);
	n->request = NULL;
	EVENT(n->eq, GDRFAB_CONNREQ, n->pep, &e);
	CHECK_EQ(e.data_len, 5);
	CHECK_EQ(memcmp(e.data, "hello", 5), 0);
	CHECK_EQ(memcmp(GDRFAB_EQ_CM_DATA(&e), "hello", 5), 0);
	OK(gdrfab_pep_reject(n->pep, e.entry.info->handle, NULL, 0));
	gdrfab_freeinfo(e.entry.info);
	node_down(n);
}

static void says_hello(struct node *n)
{
	node_open(n);
	barrier(n);
	n->ep = ep_new(n, n->info, n);
	OK(gdrfab_ep_connect(n->ep, n->info->dest_addr, n->info->dest_addrlen, "hello", 5));
	EQ_FAILED(n->eq, n->ep, ECONNREFUSED, LONG, NULL);
	struct eq_failure none;
	memset(&none, 0, sizeof none);
	none.entry.struct_size = sizeof none.entry;
	CHECK_EQ(gdrfab_eq_readerr(n->eq, &none.entry, 0), -EAGAIN);
	node_down(n);
}

TEST(too_small_a_buffer_keeps_the_request)
{
	pair(NULL, request_kept, says_hello, NULL);
}

TEST(a_full_queue_refuses_and_keeps)
{
	uint32_t event, number, written = 0;
	struct node n;
	node_alone(&n, NULL);
	gdrfab_eq *eq = own_queue(&n, 8, GDRFAB_WAIT_NONE);
	ssize_t rc;
	while ((rc = gdrfab_eq_write(eq, 2000, &written, sizeof written, 0)) == sizeof written && written < 100000)
		written++;
	CHECK(written >= 8);
	/* A full queue may grow, or refuse with -EAGAIN. */
	if (written < 100000)
		CHECK_EQ(rc, -EAGAIN);
	for (uint32_t i = 0; i < written; i++) {
		CHECK_EQ(gdrfab_eq_read(eq, &event, &number, sizeof number, 0), sizeof number);
		CHECK_EQ(number, i);
	}
	OK(gdrfab_eq_close(eq));
	node_close(&n);
}

static void *writes_event(void *arg)
{
	uint32_t word = 3;
	test_sleep_ms(60);
	gdrfab_eq_write((gdrfab_eq *)arg, 3000, &word, sizeof word, 0);
	return NULL;
}

static void on_signal(TEST_UNUSED int number)
{
}

TEST(sread)
{
	uint32_t event = 0, word = 0;
	struct node n;
	node_alone(&n, NULL);
	for (int wait = 0; wait < 2; wait++) {
		gdrfab_eq *eq = own_queue(&n, 0, wait ? GDRFAB_WAIT_FD : GDRFAB_WAIT_NONE);
		uint64_t start = test_now_ms();
		CHECK_EQ(gdrfab_eq_sread(eq, &event, &word, sizeof word, 100, 0), -EAGAIN);
		CHECK(test_now_ms() - start >= 99);
		CHECK(test_now_ms() - start < (uint64_t)test_ms(3000));

		pthread_t thread;
		CHECK_EQ(pthread_create(&thread, NULL, writes_event, eq), 0);
		start = test_now_ms();
		CHECK_EQ(gdrfab_eq_sread(eq, &event, &word, sizeof word, -1, 0), sizeof word);
		CHECK_EQ(event, 3000);
		CHECK_EQ(word, 3);
		CHECK(test_now_ms() - start < (uint64_t)test_ms(LONG / 2));
		pthread_join(thread, NULL);

		struct sigaction action;
		/* Repeated, because the first may come before the thread waits. */
		struct itimerval timer = {{0, 80000}, {0, 80000}}, never = {{0, 0}, {0, 0}};
		memset(&action, 0, sizeof action);
		action.sa_handler = on_signal;
		CHECK_EQ(sigaction(SIGALRM, &action, NULL), 0);
		CHECK_EQ(setitimer(ITIMER_REAL, &timer, NULL), 0);
		CHECK_EQ(gdrfab_eq_sread(eq, &event, &word, sizeof word, test_ms(LONG), 0), -EINTR);
		CHECK_EQ(setitimer(ITIMER_REAL, &never, NULL), 0);
		OK(gdrfab_eq_close(eq));
	}
	node_close(&n);
}

TEST(fd)
{
	uint32_t event = 0, word = 9;
	int fd = -42;
	struct node n;
	node_alone(&n, NULL);
	gdrfab_eq *eq = own_queue(&n, 0, GDRFAB_WAIT_FD);
	OK(gdrfab_eq_fd(eq, &fd));
	CHECK(fd >= 0);
	struct pollfd p = {fd, POLLIN, 0};
	OK(gdrfab_eq_trywait(eq));
	CHECK_EQ(poll(&p, 1, 30), 0);
	for (int round = 0; round < 50; round++) {
		CHECK_EQ(gdrfab_eq_write(eq, 1234, &word, sizeof word, 0), sizeof word);
		CHECK_EQ(gdrfab_eq_trywait(eq), -EAGAIN);
		CHECK_EQ(gdrfab_eq_read(eq, &event, &word, sizeof word, 0), sizeof word);
		CHECK_EQ(gdrfab_eq_read(eq, &event, &word, sizeof word, 0), -EAGAIN);
		OK(gdrfab_eq_trywait(eq));
	}
	pthread_t thread;
	CHECK_EQ(pthread_create(&thread, NULL, writes_event, eq), 0);
	CHECK_EQ(poll(&p, 1, test_ms(LONG)), 1);
	CHECK_EQ(gdrfab_eq_read(eq, &event, &word, sizeof word, 0), sizeof word);
	pthread_join(thread, NULL);
	OK(gdrfab_eq_close(eq));
	eq = own_queue(&n, 0, GDRFAB_WAIT_NONE);
	fd = -42;
	CHECK_EQ(gdrfab_eq_fd(eq, &fd), -ENOSYS);
	CHECK_EQ(fd, -42);
	OK(gdrfab_eq_close(eq));
	node_close(&n);
}

/* --- a listener in a poll loop --- */

static ssize_t poll_event(gdrfab_eq *eq, int fd, uint32_t *event, struct event *e)
{
	uint64_t until = test_now_ms() + (uint64_t)test_ms(LONG);
	for (;;) {
		ssize_t size = gdrfab_eq_read(eq, event, e, sizeof e->entry + sizeof e->data, 0);
		if (size != -EAGAIN)
			return size;
		struct pollfd p = {fd, POLLIN, 0};
		if (gdrfab_eq_trywait(eq) == 0 && poll(&p, 1, test_ms(LONG)) == 0)
			test_fail(__FILE__, __LINE__, "the descriptor stayed silent");
		CHECK(test_now_ms() < until);
	}
}

static void polls_for_events(struct node *n)
{
	uint32_t event = UINT32_MAX;
	struct event e;
	int fd = -1;
	node_info(n);
	OK(gdrfab_fabric_open(n->info, n, &n->fabric));
	n->eq = own_queue(n, 0, GDRFAB_WAIT_FD);
	OK(gdrfab_eq_fd(n->eq, &fd));
	if (n->side == TEST_SERVER) {
		node_listen(n);
		barrier(n);
		CHECK(poll_event(n->eq, fd, &event, &e) >= (ssize_t)sizeof e.entry);
		CHECK_EQ(event, GDRFAB_CONNREQ);
		n->request = e.entry.info;
		node_domain(n, n->request);
		n->ep = ep_new(n, n->request, n);
		OK(gdrfab_ep_accept(n->ep, NULL, 0));
	} else {
		barrier(n);
		test_sleep_ms(20);
		node_domain(n, n->info);
		n->ep = ep_new(n, n->info, n);
		OK(gdrfab_ep_connect(n->ep, n->info->dest_addr, n->info->dest_addrlen, NULL, 0));
	}
	CHECK(poll_event(n->eq, fd, &event, &e) >= (ssize_t)sizeof e.entry);
	CHECK_EQ(event, GDRFAB_CONNECTED);
	CHECK(e.entry.object == n->ep);
	if (n->side == TEST_SERVER) {
		CHECK(poll_event(n->eq, fd, &event, &e) >= (ssize_t)sizeof e.entry);
		CHECK_EQ(event, GDRFAB_SHUTDOWN);
		CHECK(e.entry.object == n->ep);
	} else {
		test_sleep_ms(20);
		OK(gdrfab_ep_close(n->ep));
		n->ep = NULL;
	}
	node_down(n);
}

TEST(connecting_in_a_poll_loop)
{
	pair(NULL, polls_for_events, polls_for_events, NULL);
}
