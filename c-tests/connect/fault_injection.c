/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Fault injection (GDRFAB_FAULT): lost connections and delayed operations. Both sides see an injected fault like a real one.
 */
#include "fault_injection.h"

#define LONG_AGO 60 /* ms: a delay that is certainly noticed */

/* --- a connection that is lost --- */

/* Checks that the connection has ended as by a dead peer. A connectionless endpoint connects to its peer again. */
static void is_over(struct node *n, struct place *p)
{
	if (connectionless(n->setup)) {
		QUIET(n->cq, 20);
		await_peer(n, false);
		barrier(n);
		POST(n->cq, post(n, p, n->side == TEST_SERVER ? RECV : SEND, LEN - 8, 8));
		DONE(n->cq, p->m.addr + LEN - 8, 0, NULL);
		return;
	}
	EVENT(n->eq, GDRFAB_SHUTDOWN, n->ep, NULL);
	for (int op = 0; op < OPS; op++)
		CHECK_EQ(post(n, p, (enum op)op, 0, 8), -ESHUTDOWN);
	QUIET(n->cq, 20);
}

static void stays(struct node *n)
{
	enum op op = *(const enum op *)n->arg;
	unsigned char *in;
	struct place p;
	place_up(n, &p);
	in = p.m.addr;
	for (size_t i = 0; i < 5; i++)
		POST(n->cq, post(n, &p, RECV, i * 64, 64));
	barrier(n);
	size_t came = op == SEND ? 2 : 0;
	for (size_t i = 0; i < came; i++)
		DONE(n->cq, in + i * 64, GDRFAB_RECV | GDRFAB_MSG, NULL);
	for (size_t i = came; i < 5; i++)
		FAILED(n->cq, in + i * 64, ECONNRESET, GDRFAB_PROV_PEER_GONE, NULL);
	is_over(n, &p);
	place_down(n, &p);
}

static void loses(struct node *n)
{
	enum op op = *(const enum op *)n->arg;
	struct place p;
	struct failure f;
	place_up(n, &p);
	barrier(n);
	for (size_t i = 0; i < 2; i++) {
		POST(n->cq, post(n, &p, op, i * 64, 64));
		DONE(n->cq, p.m.addr + i * 64, 0, NULL);
	}
	/* The call accepts the operation; its entry tells the failure. */
	POST(n->cq, post(n, &p, op, 128, 64));
	FAILED(n->cq, p.m.addr + 128, ECONNRESET, GDRFAB_PROV_PEER_GONE, &f);
	SAYS(f.words, "GDRFAB_FAULT=drop");
	is_over(n, &p);
	place_down(n, &p);
}

static void dropped(const void *arg, uint32_t threading)
{
	enum op op = *(const enum op *)arg;
	struct setup s = {.threading = threading};
	faults("drop=3:%s", op_words[op]);
	pair(&s, stays, loses, arg);
}

static void dropped_with_locks(const void *arg)
{
	dropped(arg, GDRFAB_THREAD_SAFE);
}

static void dropped_without_locks(const void *arg)
{
	dropped(arg, GDRFAB_THREAD_DOMAIN);
}

TEST_TABLE(drops)
{
	static const enum op ops[] = {WRITE, READ, SEND};
	char name[64];
	for (size_t i = 0; i < 3; i++) {
		snprintf(name, sizeof name, "the_third_%s_is_lost", op_words[ops[i]]);
		test_add(name, dropped_with_locks, &ops[i], 20);
		snprintf(name, sizeof name, "the_third_%s_is_lost_without_locks", op_words[ops[i]]);
		if (!test_checked())
			test_add(name, dropped_without_locks, &ops[i], 20);
	}
}

static void waits(struct node *n)
{
	struct place p;
	place_up(n, &p);
	barrier(n);
	is_over(n, &p);
	place_down(n, &p);
}

/* drop=N counts operations of every kind; faults of another provider have no effect. */
static void mixes(struct node *n)
{
	struct place p;
	place_up(n, &p);
	barrier(n);
	POST(n->cq, post(n, &p, WRITE, 0, 64));
	DONE(n->cq, p.m.addr, GDRFAB_WRITE, NULL);
	POST(n->cq, post(n, &p, RECV, 64, 64));
	POST(n->cq, post(n, &p, READ, 128, 64));
	DONE(n->cq, p.m.addr + 128, GDRFAB_READ, NULL);
	POST(n->cq, post(n, &p, WRITE, 192, 64));
	/* Receives end in any order relative to other operations. */
	bool seen[2] = {false, false};
	for (int i = 0; i < 2; i++) {
		done e;
		struct failure f;
		CHECK_EQ(cq_next(n->cq, &e, 10000), -1);
		cq_failure(__FILE__, __LINE__, n->cq, &f);
		CHECK(failure_is(&f.entry, ECONNRESET, GDRFAB_PROV_PEER_GONE));
		CHECK(f.entry.op_context == p.m.addr + 64 || f.entry.op_context == p.m.addr + 192);
		seen[f.entry.op_context == p.m.addr + 192] = true;
	}
	CHECK(seen[0] && seen[1]);
	is_over(n, &p);
	place_down(n, &p);
}

TEST(all_operations_count_together)
{
	faults("%s/drop=4,%s/drop=1,%s/drop=2", provider(), another_provider(), another_provider());
	pair(NULL, waits, mixes, NULL);
}

static void loses_a_receive(struct node *n)
{
	struct place p;
	place_up(n, &p);
	barrier(n);
	POST(n->cq, post(n, &p, RECV, 0, 64));
	POST(n->cq, post(n, &p, RECV, 64, 64));
	FAILED(n->cq, p.m.addr, ECONNRESET, GDRFAB_PROV_PEER_GONE, NULL);
	FAILED(n->cq, p.m.addr + 64, ECONNRESET, GDRFAB_PROV_PEER_GONE, NULL);
	is_over(n, &p);
	place_down(n, &p);
}

TEST(each_side_counts_its_own_receives)
{
	faults("drop=2:recv");
	pair(NULL, waits, loses_a_receive, NULL);
}

/* Outstanding operations fail with the connection, in the order of posting, and none of them was carried out. */
static void loses_many(struct node *n)
{
	struct place p;
	place_up(n, &p);
	mem_fill(&p.m, 0, LEN, 0, 7);
	barrier(n);
	for (size_t i = 0; i < 4; i++)
		POST(n->cq, post(n, &p, WRITE, i * 64, 64));
	for (size_t i = 0; i < 4; i++)
		FAILED(n->cq, p.m.addr + i * 64, ECONNRESET, GDRFAB_PROV_PEER_GONE, NULL);
	is_over(n, &p);
	place_down(n, &p);
}

static void is_left_alone(struct node *n)
{
	struct place p;
	place_up(n, &p);
	mem_fill(&p.m, 0, LEN, 0, 9);
	barrier(n);
	is_over(n, &p);
	CHECK_MEM("memory that nothing has reached", &p.m, 0, LEN - 8, 0, 9);
	place_down(n, &p);
}

TEST(what_was_outstanding_is_lost_too)
{
	faults("delay=5000000:write,drop=4:write");
	pair(NULL, is_left_alone, loses_many, NULL);
}

static void connect_again(struct node *n)
{
	done e;
	struct failure f;
	if (!connectionless(n->setup)) {
		EVENT(n->eq, GDRFAB_SHUTDOWN, n->ep, NULL);
		OK(gdrfab_ep_close(n->ep));
		n->ep = NULL;
	}
	while (cq_next(n->cq, &e, 0) == -1)
		cq_failure(__FILE__, __LINE__, n->cq, &f);
	barrier(n);
	if (connectionless(n->setup))
		return;
	if (n->side == TEST_SERVER) {
		node_accept(n);
		return;
	}
	node_connect(n);
}

static void recovers(struct node *n)
{
	struct place p;
	place_up(n, &p);
	barrier(n);
	for (int round = 0; round < 2; round++) {
		if (n->side == TEST_CLIENT) {
			POST(n->cq, post(n, &p, WRITE, 0, 64));
			FAILED(n->cq, p.m.addr, ECONNRESET, GDRFAB_PROV_PEER_GONE, NULL);
		}
		connect_again(n);
		barrier(n);
		bool once = n->arg != NULL;
		if (once)
			break;
	}
	/* With `once` the new endpoint works; without it each endpoint counts anew. */
	if (n->side == TEST_CLIENT && n->arg) {
		for (int i = 0; i < 3; i++) {
			POST(n->cq, post(n, &p, WRITE, 0, 64));
			DONE(n->cq, p.m.addr, GDRFAB_WRITE, NULL);
		}
	}
	place_down(n, &p);
}

TEST(every_endpoint_counts_for_itself)
{
	faults("drop=1:write");
	pair(NULL, recovers, recovers, NULL);
}

TEST(what_happens_once_leaves_the_next_connection_alone)
{
	faults("drop=1:write:once");
	pair(NULL, recovers, recovers, "once");
}

/* --- operations that are late --- */

static uint64_t since(uint64_t start)
{
	return test_now_ms() - start;
}

static void takes_all(struct node *n)
{
	struct place p;
	place_up(n, &p);
	for (size_t i = 0; i < 8; i++)
		POST(n->cq, post(n, &p, RECV, 2048 + i * 64, 64));
	barrier(n);
	barrier(n);
	CHECK_MEM("what was written late", &p.m, 0, 1024, 0, 3);
	place_down(n, &p);
}

static void is_late(struct node *n)
{
	enum op op = *(const enum op *)n->arg;
	struct place p;
	place_up(n, &p);
	mem_fill(&p.m, 0, 1024, 0, 3);
	POST(n->cq, post(n, &p, RECV, 2048, 64));
	barrier(n);
	if (op != WRITE) {
		POST(n->cq, post(n, &p, WRITE, 0, 1024));
		DONE(n->cq, p.m.addr, GDRFAB_WRITE, NULL);
	}
	uint64_t start = test_now_ms();
	size_t len = op == WRITE ? 128 : 64;
	for (size_t i = 0; i < 8; i++)
		POST(n->cq, post(n, &p, op, i * len, len));
	/* The delay does not make the calls wait. */
	if (since(start) >= 7 * (uint64_t)test_ms(LONG_AGO))
		came_late("the eight calls returned after %llu ms", (unsigned long long)since(start));
	for (size_t i = 0; i < 8; i++) {
		done e;
		ssize_t got;
		do
			got = gdrfab_cq_sread(n->cq, &e, 1, 5000);
		while (got == -EINTR);
		CHECK_EQ(got, 1);
		CHECK(e.op_context == p.m.addr + i * len);
		if (since(start) + 1 < (uint64_t)test_ms(LONG_AGO))
			test_fail(__FILE__, __LINE__, "%s %zu ended after %llu of %d ms", op_words[op], i,
				  (unsigned long long)since(start), test_ms(LONG_AGO));
	}
	CHECK_MEM("what was written and read late", &p.m, 0, 512, 0, 3);
	barrier(n);
	place_down(n, &p);
}

static void late(const void *arg, uint32_t threading, uint32_t progress)
{
	struct setup s = {.threading = threading, .progress = progress};
	faults("%s/delay=%d:%s", provider(), test_ms(LONG_AGO) * 1000, op_words[*(const enum op *)arg]);
	pair_in_time(&s, takes_all, is_late, arg);
}

static void late_with_locks(const void *arg)
{
	late(arg, 0, 0);
}

static void late_without_locks(const void *arg)
{
	late(arg, GDRFAB_THREAD_DOMAIN, 0);
}

static void late_by_a_thread(const void *arg)
{
	late(arg, 0, GDRFAB_PROGRESS_AUTO);
}

TEST_TABLE(delays)
{
	static const enum op ops[] = {WRITE, READ, SEND};
	char name[64];
	for (size_t i = 0; i < 3; i++) {
		snprintf(name, sizeof name, "a_%s_is_late", op_words[ops[i]]);
		test_add(name, late_with_locks, &ops[i], 20);
		/* Locks and threads are ThreadSanitizer's. */
		if (test_checked())
			continue;
		snprintf(name, sizeof name, "a_%s_is_late_without_locks", op_words[ops[i]]);
		test_add(name, late_without_locks, &ops[i], 20);
		snprintf(name, sizeof name, "a_%s_is_late_with_automatic_progress", op_words[ops[i]]);
		test_add(name, late_by_a_thread, &ops[i], 20);
	}
}

static void sends_at_once(struct node *n)
{
	struct place p;
	place_up(n, &p);
	skip_unless(waits_for_receive(n), "a send does not wait for its receive");
	mem_fill(&p.m, 0, LEN, 0, 4);
	barrier(n);
	barrier(n);
	for (size_t i = 0; i < 4; i++)
		POST(n->cq, post(n, &p, SEND, i * 64, 64));
	for (size_t i = 0; i < 4; i++)
		DONE(n->cq, p.m.addr + i * 64, GDRFAB_SEND, NULL);
	place_down(n, &p);
}

static void receives_late(struct node *n)
{
	struct place p;
	place_up(n, &p);
	skip_unless(waits_for_receive(n), "a send does not wait for its receive");
	barrier(n);
	uint64_t start = test_now_ms();
	for (size_t i = 0; i < 4; i++)
		POST(n->cq, post(n, &p, RECV, i * 64, 64));
	barrier(n);
	for (size_t i = 0; i < 4; i++) {
		DONE(n->cq, p.m.addr + i * 64, GDRFAB_RECV, NULL);
		CHECK(since(start) + 1 >= (uint64_t)test_ms(LONG_AGO));
	}
	CHECK_MEM("messages that waited", &p.m, 0, 256, 0, 4);
	place_down(n, &p);
}

TEST(a_receive_is_late)
{
	/* Only the server posts receives. */
	faults("delay=%d:recv", test_ms(LONG_AGO) * 1000);
	pair(NULL, receives_late, sends_at_once, NULL);
}

static void gives_buffers_back(struct node *n)
{
	struct place p;
	unsigned char word[8];
	place_up(n, &p);
	barrier(n);
	for (size_t i = 0; i < 32; i++) {
		fill(word, sizeof word, i * sizeof word, 5);
		POST(n->cq, gdrfab_inject_write(n->ep, word, sizeof word, PEER, p.to.base + i * sizeof word, p.to.key));
	}
	memset(word, 0, sizeof word);
	/* After all delayed operations. */
	POST(n->cq, post(n, &p, READ, 0, 256));
	DONE(n->cq, p.m.addr, GDRFAB_READ, NULL);
	CHECK_MEM("injected late", &p.m, 0, 256, 0, 5);
	place_down(n, &p);
}

static void idles(struct node *n)
{
	struct place p;
	place_up(n, &p);
	barrier(n);
	place_down(n, &p);
}

TEST(the_buffer_of_an_injected_write_is_the_callers_at_once)
{
	faults("delay=%d:write", test_ms(20) * 1000);
	pair(NULL, idles, gives_buffers_back, NULL);
}

/* Other operations are not delayed, except those behind a delayed one. */
static void is_not_late(struct node *n)
{
	struct place p;
	place_up(n, &p);
	barrier(n);
	uint64_t start = test_now_ms();
	POST(n->cq, post(n, &p, WRITE, 0, 64));
	DONE(n->cq, p.m.addr, GDRFAB_WRITE, NULL);
	POST(n->cq, post(n, &p, READ, 0, 64));
	DONE(n->cq, p.m.addr, GDRFAB_READ, NULL);
	CHECK(since(start) < 30000);
	place_down(n, &p);
}

TEST_WITHIN(40, a_delay_of_one_operation_is_not_anothers)
{
	faults("delay=30000000:send,%s/delay=30000000", another_provider());
	pair(NULL, idles, is_not_late, NULL);
}

static void cancels(struct node *n)
{
	struct place p;
	place_up(n, &p);
	skip_unless(traits()->cancels, "nothing is taken back alone");
	barrier(n);
	static const enum op ops[] = {RECV, SEND, WRITE, READ};
	for (size_t i = 0; i < 4; i++) {
		POST(n->cq, post(n, &p, ops[i], i * 64, 64));
		OK(gdrfab_cancel(n->ep, p.m.addr + i * 64));
		FAILED(n->cq, p.m.addr + i * 64, ECANCELED, GDRFAB_PROV_CANCELED, NULL);
	}
	place_down(n, &p);
}

TEST(what_is_late_can_be_cancelled)
{
	faults("delay=30000000");
	pair(NULL, idles, cancels, NULL);
}

static void is_too_late(struct node *n)
{
	struct place p;
	place_up(n, &p);
	barrier(n);
	POST(n->cq, post(n, &p, RECV, 0, 64));
	/* Their deadlines pass one after the other. */
	test_sleep_ms(20);
	POST(n->cq, post(n, &p, WRITE, 64, 64));
	bool seen[2] = {false, false};
	for (int i = 0; i < 2; i++) {
		done e;
		struct failure f;
		CHECK_EQ(cq_next(n->cq, &e, 10000), -1);
		cq_failure(__FILE__, __LINE__, n->cq, &f);
		CHECK(failure_is(&f.entry, ETIMEDOUT, GDRFAB_PROV_DEADLINE) || (i > 0 && flushed(&f.entry)));
		seen[f.entry.op_context != p.m.addr] = true;
	}
	CHECK(seen[0] && seen[1]);
	place_down(n, &p);
}

TEST(a_deadline_comes_before_a_longer_delay)
{
	struct setup s = {.deadline_ms = (uint64_t)test_ms(100)};
	faults("delay=30000000");
	pair(&s, idles, is_too_late, NULL);
}

static void closes_what_is_late(struct node *n)
{
	struct place p;
	place_up(n, &p);
	barrier(n);
	POST(n->cq, post(n, &p, RECV, 0, 64));
	POST(n->cq, post(n, &p, WRITE, 64, 64));
	if (connectionless(n->setup)) {
		OK(gdrfab_ep_close(n->ep));
		n->ep = NULL;
	} else {
		OK(gdrfab_ep_shutdown(n->ep, 0));
	}
	FAILED(n->cq, p.m.addr + 64, ECANCELED, GDRFAB_PROV_CANCELED, NULL);
	FAILED(n->cq, p.m.addr, ECANCELED, GDRFAB_PROV_CANCELED, NULL);
	place_down(n, &p);
}

TEST(what_is_late_ends_with_its_endpoint)
{
	skip_unless(traits()->survives_failures, "the order of flushed operations is the adapter's");
	faults("delay=30000000");
	pair(NULL, idles, closes_what_is_late, NULL);
}
