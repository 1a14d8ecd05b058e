/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Operations that end early, by their deadline or by gdrfab_cancel(): they end in time with an error entry, and after the
 * entry the library does not access their buffer, whatever the other side does later.
 */
#include "fab.h"

#define LARGE ((size_t)8 * 1024 * 1024)
#define SOON 200 /* ms */

static const char hasty[] = "a send does not wait for its receive";

static void ended_in_time(uint64_t start, int ms)
{
	uint64_t took = test_now_ms() - start;
	if (took + 2 < (uint64_t)ms || took > (uint64_t)ms + (uint64_t)test_ms(2500))
		test_fail(__FILE__, __LINE__, "ended after %llu ms, deadline %d ms", (unsigned long long)took, ms);
}

static void set_option(gdrfab_ep *ep, int option, uint64_t ns)
{
	uint64_t back = 1;
	size_t size = sizeof back;
	OK(gdrfab_ep_setopt(ep, GDRFAB_OPT_ENDPOINT, option, &ns, sizeof ns));
	OK(gdrfab_ep_getopt(ep, GDRFAB_OPT_ENDPOINT, option, &back, &size));
	CHECK_EQ(back, ns);
	CHECK_EQ(size, sizeof back);
}

/* Sets the deadlines of operations and of receives. */
static void set_deadline(gdrfab_ep *ep, int ms)
{
	set_option(ep, GDRFAB_OPT_DEADLINE, (uint64_t)ms * 1000000u);
	set_option(ep, GDRFAB_OPT_RECV_DEADLINE, (uint64_t)ms * 1000000u);
}

static gdrfab_msg message(struct iovec *iov, void *context, int ms)
{
	gdrfab_msg m;
	memset(&m, 0, sizeof m);
	m.struct_size = sizeof m;
	m.msg_iov = iov;
	m.iov_count = 1;
	m.addr = PEER;
	m.context = context;
	m.timeout_ns = (uint64_t)ms * 1000000u;
	return m;
}

/* --- receives --- */

/* Sends 64 bytes of test data at each request; the request 0 ends it. */
enum { AGAIN = 1 << 30 };
static void sends_when_told(struct node *n)
{
	static unsigned char buf[64];
	uint32_t seed;
	node_up(n);
	for (;;) {
		oob_recv(n, &seed, sizeof seed);
		if (seed == 0)
			break;
		if (seed == AGAIN) {
			recover(n);
			continue;
		}
		fill(buf, sizeof buf, 0, seed);
		POST(n->cq, gdrfab_send(n->ep, buf, sizeof buf, local_desc(n, buf, sizeof buf), PEER, buf));
		DONE(n->cq, buf, GDRFAB_SEND, NULL);
	}
	node_down(n);
}

static void tell(struct node *n, uint32_t seed)
{
	oob_send(n, &seed, sizeof seed);
}

/* Connects anew after an operation that ended early, if its end has ended the connection. */
static void go_on(struct node *n)
{
	if (traits()->survives_failures)
		return;
	tell(n, AGAIN);
	recover(n);
}

/* After a receive ended early the next message goes to the next buffer, and the first buffer stays unchanged. */
static void next_goes_elsewhere(struct node *n, const unsigned char *given_up, unsigned char *next, uint32_t seed)
{
	done entry;
	POST(n->cq, gdrfab_recv(n->ep, next, 64, local_desc(n, next, 64), PEER, next));
	tell(n, seed);
	DONE(n->cq, next, GDRFAB_RECV, &entry);
	CHECK_EQ(entry.len, 64);
	CHECK_FILLED("the next message", next, 64, 0, seed);
	CHECK_FILLED("the buffer given up", given_up, 64, 0, 1000);
}

/* A receive without a message is not late by itself; UINT64_MAX means no deadline, in the option and for one receive. */
static void receives_when_it_comes(struct node *n)
{
	unsigned char in[4][64];
	node_up(n);
	for (int i = 0; i < 4; i++) {
		struct iovec iov = {in[i], sizeof in[i]};
		void *desc = NULL;
		gdrfab_msg msg = message(&iov, in[i], 0);
		bool described = local_descs(n, &iov, 1, &desc) != NULL;
		msg.desc = described ? &desc : NULL;
		msg.timeout_ns = i == 3 ? UINT64_MAX : 0;
		set_option(n->ep, GDRFAB_OPT_DEADLINE, SOON * 1000000u);
		set_option(n->ep, GDRFAB_OPT_RECV_DEADLINE, i == 0 ? 0 : i < 3 ? UINT64_MAX : SOON * 1000000u);
		if (i == 1)
			POST(n->cq, gdrfab_recv(n->ep, in[i], sizeof in[i], local_desc(n, in[i], sizeof in[i]), PEER, in[i]));
		else
			POST(n->cq, gdrfab_recvmsg(n->ep, &msg, GDRFAB_COMPLETION));
	}
	QUIET(n->cq, 2 * SOON);
	for (uint32_t i = 0; i < 4; i++) {
		tell(n, 1 + i);
		DONE(n->cq, in[i], GDRFAB_RECV, NULL);
		CHECK_FILLED("a message that came late", in[i], 64, 0, 1 + i);
	}
	tell(n, 0);
	node_down(n);
}

TEST(idle_receives_outlast_the_deadline_of_operations)
{
	pair(NULL, receives_when_it_comes, sends_when_told, NULL);
}

static void receives_in_vain(struct node *n)
{
	unsigned char first[64], second[64];
	struct iovec iov = {first, sizeof first};
	void *desc = NULL;
	uint64_t start;
	node_up(n);
	bool described = local_descs(n, &iov, 1, &desc) != NULL;
	fill(first, sizeof first, 0, 1000);

	set_deadline(n->ep, SOON);
	start = test_now_ms();
	POST(n->cq, gdrfab_recv(n->ep, first, 64, local_desc(n, first, 64), PEER, first));
	FAILED(n->cq, first, ETIMEDOUT, GDRFAB_PROV_DEADLINE, NULL);
	ended_in_time(start, SOON);
	go_on(n);
	/* The next operations must not be late on a busy machine. */
	set_deadline(n->ep, 60000);
	next_goes_elsewhere(n, first, second, 1);

	/* The operation's own deadline overrides the endpoint's, whether shorter or longer. */
	gdrfab_msg msg = message(&iov, &iov, SOON);
	msg.desc = described ? &desc : NULL;
	start = test_now_ms();
	POST(n->cq, gdrfab_recvmsg(n->ep, &msg, GDRFAB_COMPLETION));
	FAILED(n->cq, &iov, ETIMEDOUT, GDRFAB_PROV_DEADLINE, NULL);
	ended_in_time(start, SOON);
	go_on(n);
	next_goes_elsewhere(n, first, second, 2);
	set_deadline(n->ep, SOON / 4);
	msg = message(&iov, &iov, SOON);
	msg.desc = described ? &desc : NULL;
	start = test_now_ms();
	POST(n->cq, gdrfab_recvmsg(n->ep, &msg, GDRFAB_COMPLETION));
	FAILED(n->cq, &iov, ETIMEDOUT, GDRFAB_PROV_DEADLINE, NULL);
	ended_in_time(start, SOON);
	go_on(n);

	/* 0 means no deadline: operations wait without limit. */
	set_deadline(n->ep, 0);
	POST(n->cq, gdrfab_recv(n->ep, second, 64, local_desc(n, second, 64), PEER, second));
	QUIET(n->cq, SOON * 2);
	tell(n, 3);
	DONE(n->cq, second, GDRFAB_RECV, NULL);

	/* Many at once, each with its own deadline; those that are matched in time succeed. */
	static unsigned char many[3][64];
	for (int i = 0; i < 3; i++) {
		struct iovec one = {many[i], 64};
		void *desc;
		msg = message(&one, many[i], i == 1 ? 0 : SOON / 2 + i * 50);
		msg.desc = local_descs(n, &one, 1, &desc);
		POST(n->cq, gdrfab_recvmsg(n->ep, &msg, GDRFAB_COMPLETION));
	}
	FAILED(n->cq, many[0], ETIMEDOUT, GDRFAB_PROV_DEADLINE, NULL);
	if (traits()->survives_failures) {
		FAILED(n->cq, many[2], ETIMEDOUT, GDRFAB_PROV_DEADLINE, NULL);
		tell(n, 4);
		DONE(n->cq, many[1], GDRFAB_RECV, NULL);
		CHECK_FILLED("received in between", many[1], 64, 0, 4);
	} else {
		/* Ends all: the receive without a deadline, and the receive whose deadline may have passed. */
		struct failure f;
		done e;
		FAILED(n->cq, many[1], ECANCELED, GDRFAB_PROV_CANCELED, NULL);
		CHECK_EQ(cq_next(n->cq, &e, 10000), -1);
		cq_failure(__FILE__, __LINE__, n->cq, &f);
		CHECK(f.entry.op_context == many[2]);
		CHECK(flushed(&f.entry) || failure_is(&f.entry, ETIMEDOUT, GDRFAB_PROV_DEADLINE));
	}
	tell(n, 0);
	node_down(n);
}

TEST(receive)
{
	pair(NULL, receives_in_vain, sends_when_told, NULL);
}

static void sleeps_until_deadline(struct node *n)
{
	unsigned char in[64];
	done e;
	node_up(n);
	set_deadline(n->ep, SOON);
	uint64_t start = test_now_ms();
	POST(n->cq, gdrfab_recv(n->ep, in, 64, local_desc(n, in, 64), PEER, in));
	CHECK_EQ(gdrfab_cq_sread(n->cq, &e, 1, -1), -GDRFAB_EAVAIL);
	FAILED(n->cq, in, ETIMEDOUT, GDRFAB_PROV_DEADLINE, NULL);
	ended_in_time(start, SOON);
	tell(n, 0);
	node_down(n);
}

TEST(deadline_wakes_a_sleeper)
{
	pair(NULL, sleeps_until_deadline, sends_when_told, NULL);
}

static void cancels_receives(struct node *n)
{
	unsigned char buf[4][64], next[64];
	done entry;
	node_up(n);
	if (!traits()->cancels) {
		POST(n->cq, gdrfab_recv(n->ep, next, 64, local_desc(n, next, 64), PEER, next));
		CHECK_EQ(gdrfab_cancel(n->ep, next), -EOPNOTSUPP);
		CHECK(gdrfab_last_error()[0] != 0);
		tell(n, 7);
		DONE(n->cq, next, GDRFAB_RECV, &entry);
		tell(n, 0);
		node_down(n);
		return;
	}
	for (int i = 0; i < 4; i++) {
		fill(buf[i], 64, 0, 1000);
		POST(n->cq, gdrfab_recv(n->ep, buf[i], 64, local_desc(n, buf[i], 64), PEER, buf[i]));
	}
	CHECK_EQ(gdrfab_cancel(n->ep, next), -ENOENT);
	OK(gdrfab_cancel(n->ep, buf[2]));
	FAILED(n->cq, buf[2], ECANCELED, GDRFAB_PROV_CANCELED, NULL);
	OK(gdrfab_cancel(n->ep, buf[0]));
	FAILED(n->cq, buf[0], ECANCELED, GDRFAB_PROV_CANCELED, NULL);
	CHECK_EQ(gdrfab_cancel(n->ep, buf[0]), -ENOENT);
	tell(n, 7);
	DONE(n->cq, buf[1], GDRFAB_RECV, &entry);
	CHECK_FILLED("the first that was left", buf[1], 64, 0, 7);
	CHECK_EQ(gdrfab_cancel(n->ep, buf[1]), -ENOENT);
	tell(n, 8);
	DONE(n->cq, buf[3], GDRFAB_RECV, &entry);
	CHECK_FILLED("the second that was left", buf[3], 64, 0, 8);
	next_goes_elsewhere(n, buf[0], next, 9);
	CHECK_FILLED("the other buffer given up", buf[2], 64, 0, 1000);
	QUIET(n->cq, 5);
	tell(n, 0);
	node_down(n);
}

TEST(cancel_receives)
{
	pair(NULL, cancels_receives, sends_when_told, NULL);
}

/* --- large sends without a receive --- */

static void given_up_sender(struct node *n)
{
	bool cancels = n->arg != NULL;
	unsigned char *buf = (unsigned char *)malloc(LARGE), small[64];
	struct iovec iov = {buf, LARGE};
	gdrfab_msg msg = message(&iov, buf, cancels ? 0 : SOON);
	void *desc;
	node_up(n);
	skip_unless(waits_for_receive(n), hasty);
	msg.desc = local_descs(n, &iov, 1, &desc);
	fill(buf, LARGE, 0, 1);
	uint64_t start = test_now_ms();
	POST(n->cq, gdrfab_sendmsg(n->ep, &msg, GDRFAB_COMPLETION));
	if (cancels) {
		QUIET(n->cq, 20);
		OK(gdrfab_cancel(n->ep, buf));
		FAILED(n->cq, buf, ECANCELED, GDRFAB_PROV_CANCELED, NULL);
		CHECK_EQ(gdrfab_cancel(n->ep, buf), -ENOENT);
	} else {
		FAILED(n->cq, buf, ETIMEDOUT, GDRFAB_PROV_DEADLINE, NULL);
		ended_in_time(start, SOON);
	}
	/* The buffer is the caller's again: a late copy would show these bytes. */
	memset(buf, 0xdd, LARGE);
	barrier(n);
	recover(n);
	fill(small, 64, 0, 2);
	POST(n->cq, gdrfab_send(n->ep, small, 64, local_desc(n, small, 64), PEER, small));
	DONE(n->cq, small, GDRFAB_SEND, NULL);
	barrier(n);
	free(buf);
	node_down(n);
}

static void late_receiver(struct node *n)
{
	unsigned char *buf = (unsigned char *)malloc(LARGE);
	node_up(n);
	skip_unless(waits_for_receive(n), hasty);
	memset(buf, 0, LARGE);
	barrier(n);
	recover(n);
	/* The receiver may see the message that ended early as a failure or not at all; it never receives it. */
	for (int turn = 0;; turn++) {
		done entry;
		struct failure f;
		CHECK(turn < 3);
		POST(n->cq, gdrfab_recv(n->ep, buf, LARGE, local_desc(n, buf, LARGE), PEER, buf));
		int next = cq_next(n->cq, &entry, 10000);
		CHECK(next != 0);
		if (next == -1) {
			cq_failure(__FILE__, __LINE__, n->cq, &f);
			CHECK(f.words[0] != 0);
			continue;
		}
		CHECK_EQ(entry.len, 64);
		CHECK_FILLED("the message after the one given up", buf, 64, 0, 2);
		break;
	}
	barrier(n);
	free(buf);
	node_down(n);
}

TEST(large_send_nobody_receives)
{
	pair(NULL, late_receiver, given_up_sender, NULL);
}

TEST(cancel_a_large_send)
{
	skip_unless(traits()->cancels, "what is posted cannot be taken back; cancel_receives has its answer");
	pair(NULL, late_receiver, given_up_sender, "cancel");
}

/* --- a stopped peer --- */

static void stands_still(struct node *n)
{
	struct mem m;
	node_up(n);
	mem_new(n, &m, &memkinds[KIND_MALLOC], LARGE);
	fill(m.addr, LARGE, 0, 50);
	mem_register(n, &m, 0, LARGE, REMOTE_ACCESS, helped_path());
	mem_publish(n, &m);
	barrier(n);
	/* This process is stopped in here. Only bytes sent while the buffer belonged to the library may be found afterwards. */
	n->idle = true;
	barrier(n);
	n->idle = false;
	uint64_t until = test_now_ms() + 200;
	while (test_now_ms() < until)
		gdrfab_cq_read(n->cq, NULL, 0);
	unsigned char *was = (unsigned char *)malloc(LARGE), *sent = (unsigned char *)malloc(LARGE);
	fill(was, LARGE, 0, 50);
	fill(sent, LARGE, 0, 51);
	for (size_t i = 0; i < LARGE; i++)
		if (m.addr[i] != was[i] && m.addr[i] != sent[i])
			test_fail(__FILE__, __LINE__, "byte %zu is 0x%02x: neither 0x%02x as it was nor 0x%02x as sent",
				  i, m.addr[i], was[i], sent[i]);
	free(was);
	free(sent);
	mem_end(n, &m);
	barrier(n);
	node_close(n);
}

static void does_not_wait(struct node *n)
{
	unsigned char *buf = (unsigned char *)malloc(LARGE), *in = (unsigned char *)malloc(LARGE);
	node_up(n);
	struct remote to = mem_fetch(n);
	barrier(n);
	peer_stop(n);
	set_deadline(n->ep, SOON);
	uint64_t start = test_now_ms();
	fill(buf, LARGE, 0, 51);
	memset(in, 0x55, LARGE);
	POST(n->cq, gdrfab_write(n->ep, buf, LARGE, local_desc(n, buf, LARGE), PEER, to.base, to.key, buf));
	FAILED(n->cq, buf, ETIMEDOUT, GDRFAB_PROV_DEADLINE, NULL);
	ended_in_time(start, SOON);
	memset(buf, 0xdd, LARGE);

	start = test_now_ms();
	ssize_t rc = gdrfab_read(n->ep, in, LARGE, local_desc(n, in, LARGE), PEER, to.base, to.key, in);
	CHECK_EITHER(rc, 0, -EAGAIN);
	if (rc == 0) {
		FAILED(n->cq, in, ETIMEDOUT, GDRFAB_PROV_DEADLINE, NULL);
		ended_in_time(start, SOON);
	}
	peer_continue(n);
	/* Answers that arrive now are too late to be stored. */
	barrier(n);
	uint64_t until = test_now_ms() + 200;
	while (test_now_ms() < until)
		gdrfab_cq_read(n->cq, NULL, 0);
	for (size_t i = 0; i < LARGE; i++)
		if (in[i] != 0x55)
			test_fail(__FILE__, __LINE__, "byte %zu of the read given up became 0x%02x", i, in[i]);
	free(buf);
	free(in);
	barrier(n);
	node_close(n);
}

TEST_WITHIN(30, staged_transfer_with_a_stopped_peer)
{
	skip_unless(helped_path() != 0, "host memory is staged for those alone who ask for it");
	pair(NULL, stands_still, does_not_wait, NULL);
}

static void stopped_reader(struct node *n)
{
	static unsigned char in[64];
	node_up(n);
	skip_unless(waits_for_receive(n), hasty);
	POST(n->cq, gdrfab_recv(n->ep, in, sizeof in, local_desc(n, in, sizeof in), PEER, in));
	barrier(n);
	n->idle = true;
	barrier(n);
	node_close(n);
}

/* Small messages to a stopped peer: the queue fills, no call hangs, and each posted operation ends. */
static void fills_the_queue(struct node *n)
{
	static unsigned char out[64];
	size_t posted = 0, ended = 0, late = 0;
	node_up(n);
	skip_unless(waits_for_receive(n), hasty);
	barrier(n);
	peer_stop(n);
	set_deadline(n->ep, SOON);
	ssize_t rc = 0;
	void *desc = local_desc(n, out, sizeof out);
	while (posted < 100000 && (rc = gdrfab_send(n->ep, out, sizeof out, desc, PEER, out)) == 0) {
		posted++;
		if (posted % 256 == 0)
			gdrfab_cq_read(n->cq, NULL, 0);
	}
	/* A connectionless endpoint accepts them all. */
	CHECK_EITHER(rc, -EAGAIN, connectionless(n->setup) ? 0 : -EAGAIN);
	uint64_t start = test_now_ms();
	while (ended < posted) {
		done entry;
		struct failure f;
		int next = cq_next(n->cq, &entry, SOON + 3000);
		CHECK(next != 0);
		if (next == -1) {
			cq_failure(__FILE__, __LINE__, n->cq, &f);
			bool in_time = failure_is(&f.entry, ETIMEDOUT, GDRFAB_PROV_DEADLINE);
			CHECK(in_time || flushed(&f.entry));
			late += in_time;
		}
		ended++;
	}
	CHECK(late > 0);
	CHECK(test_now_ms() - start < (uint64_t)test_ms(SOON + 3000));
	peer_continue(n);
	barrier(n);
	node_close(n);
}

TEST(small_sends_to_a_stopped_peer)
{
	pair(NULL, stopped_reader, fills_the_queue, NULL);
}
