/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The order of calls in gdrfab's plugin for NCCL: receives before sends and after, messages sent before their
 * receive is posted, and messages longer than their receive.
 */
#include "nccl_drive.h"

#define EAGER ((size_t)8192) /* GDRFAB_NCCL_EAGER's default */
#define A_WHILE 300	     /* ms that one side lets the other wait */

/* Drives an operation for ms. Returns whether it has ended. */
static bool ends_within(struct op *op, int ms)
{
	uint64_t until = test_now_ms() + (uint64_t)ms;
	while (!op->done && test_now_ms() < until) {
		if (op_post(op))
			op_done(op);
		test_sleep_ms(1);
	}
	return op->done;
}

/* --- one message --- */

struct early {
	const char *name, *eager; /* GDRFAB_NCCL_EAGER */
	size_t size;
	int from, to;
	bool taken; /* the send is accepted before the receive is posted */
};

static const struct early *early_of(const struct node *n)
{
	return (const struct early *)n->arg;
}

static struct link early_up(struct node *n)
{
	const struct early *e = early_of(n);
	if (e->eager)
		setenv("GDRFAB_NCCL_EAGER", e->eager, 1);
	return sides_up(n, n->side == TEST_SERVER ? e->to : e->from, TO_SERVER);
}

static void received_late(struct node *n)
{
	const struct early *e = early_of(n);
	struct link l = early_up(n);
	struct buf b;
	buf_new(n, &b, e->to, e->size + 100);
	buf_reg(&b, l.recv);
	barrier(n);
	/* Nothing has arrived where nothing was requested. */
	BUF_BLANK(&b, 0, e->size + 100);
	struct op op = recv_op(l.recv, &b, 1, e->size + 50, 2);
	op_finish(&op);
	CHECK_EQ(op.got[0], e->size);
	BUF_ONLY(&b, 1, e->size, 8);
	buf_end(&b);
	sides_down(n, &l);
}

static void sent_early(struct node *n)
{
	const struct early *e = early_of(n);
	struct link l = early_up(n);
	struct buf b;
	buf_new(n, &b, e->from, e->size + 1);
	buf_reg(&b, l.send);
	buf_fill(&b, 1, e->size, 8);
	struct op op = send_op(l.send, &b, 1, e->size, 2);
	bool done = ends_within(&op, A_WHILE), taken = op.request || op.done;
	if (taken != e->taken)
		test_fail(__FILE__, __LINE__, "a send of %zu bytes %s before its receive is posted", e->size,
			  taken ? "is taken" : "is not taken");
	/* Over shm a send completes without the peer's help. The memory of a completed send is the caller's again. */
	if (strcmp(provider(), "shm") == 0)
		CHECK_EQ(done, e->taken);
	if (done)
		buf_blank(&b);
	barrier(n);
	op_finish(&op);
	buf_end(&b);
	sides_down(n, &l);
}

static void isend_first(const void *arg)
{
	mixed_memory(((const struct early *)arg)->from, ((const struct early *)arg)->to);
	pair(NULL, received_late, sent_early, arg);
}

static void waits_for_it(struct node *n)
{
	const struct early *e = early_of(n);
	struct link l = early_up(n);
	struct buf b;
	buf_new(n, &b, e->to, e->size);
	buf_reg(&b, l.recv);
	struct op op = recv_op(l.recv, &b, 0, e->size, 2);
	/* The hint must not be taken for a request. */
	op.hint = true;
	CHECK(op_post(&op));
	CHECK(!ends_within(&op, A_WHILE));
	barrier(n);
	op_finish(&op);
	CHECK_EQ(op.got[0], e->size);
	BUF_ONLY(&b, 0, e->size, 8);
	buf_end(&b);
	sides_down(n, &l);
}

static void sends_to_it(struct node *n)
{
	const struct early *e = early_of(n);
	struct link l = early_up(n);
	struct buf b;
	buf_new(n, &b, e->from, e->size);
	buf_reg(&b, l.send);
	buf_fill(&b, 0, e->size, 8);
	struct op op = send_op(l.send, &b, 0, e->size, 2);
	barrier(n);
	op_finish(&op);
	buf_end(&b);
	sides_down(n, &l);
}

static void irecv_first(const void *arg)
{
	mixed_memory(((const struct early *)arg)->from, ((const struct early *)arg)->to);
	pair(NULL, waits_for_it, sends_to_it, arg);
}

/* --- many messages, while the peer does not receive --- */

static size_t flood_size(size_t i, bool mixed)
{
	static const size_t some[] = {100, 1 << 20, 5, 70000, 0, EAGER, EAGER + 1, 1, 300000};
	return mixed ? some[i % (sizeof some / sizeof some[0])] : EAGER - i % 3;
}

static void flood(struct node *n)
{
	bool mixed = n->arg != NULL, send = n->side == TEST_CLIENT;
	struct link l = sides_up(n, HOST_MEM, TO_SERVER);
	size_t count = mixed ? 90 : 300, total = 0;
	struct op *ops = (struct op *)calloc(count, sizeof *ops);
	size_t *at = (size_t *)calloc(count, sizeof *at);
	CHECK(ops && at);
	for (size_t i = 0; i < count; i++) {
		at[i] = total;
		total += flood_size(i, mixed);
	}
	struct buf b;
	buf_new(n, &b, HOST_MEM, total);
	buf_reg(&b, send ? l.send : l.recv);
	for (size_t i = 0; i < count; i++) {
		size_t len = flood_size(i, mixed);
		if (send)
			buf_fill(&b, at[i], len, (uint32_t)i);
		ops[i] = send ? send_op(l.send, &b, at[i], len, 0) : recv_op(l.recv, &b, at[i], len, 0);
	}
	if (!send)
		test_sleep_ms(A_WHILE);
	ops_run(ops, count, mixed ? 16 : 32);
	for (size_t i = 0; i < count; i++) {
		CHECK_EQ(ops[i].got[0], flood_size(i, mixed));
		BUF_CHECK(&b, at[i], flood_size(i, mixed), (uint32_t)i);
	}
	buf_end(&b);
	free(ops);
	free(at);
	sides_down(n, &l);
}

static void flooded(const void *arg)
{
	pair(NULL, flood, flood, arg);
}

/* --- done is done --- */

/* The number of messages of that size that may be sent before they are requested: over tcp 32 KiB in all. */
static uint32_t early_ones(size_t size)
{
	return size == EAGER && strcmp(provider(), "tcp") == 0 ? 4 : 8;
}

/* The sender closes as soon as its own side reports completion. Nothing that it sent may be lost. */
static void closes_at_once(struct node *n)
{
	struct link l = sides_up(n, HOST_MEM, TO_SERVER);
	const size_t size = *(const size_t *)n->arg;
	const uint32_t count = early_ones(size);
	struct buf b;
	buf_new(n, &b, HOST_MEM, size * 8);
	buf_reg(&b, l.send);
	struct op ops[8];
	for (uint32_t i = 0; i < count; i++) {
		buf_fill(&b, i * size, size, i);
		ops[i] = send_op(l.send, &b, i * size, size, 0);
	}
	/* Early messages are sent before their receives are posted; the others have theirs. */
	barrier(n);
	ops_run(ops, count, 8);
	buf_end(&b);
	NET(net.close_send(l.send));
	net_close(n);
	barrier(n);
	barrier(n);
}

static void receives_what_was_sent(struct node *n)
{
	struct link l = sides_up(n, HOST_MEM, TO_SERVER);
	const size_t size = *(const size_t *)n->arg;
	const uint32_t count = early_ones(size);
	struct buf b;
	buf_new(n, &b, HOST_MEM, size * 8);
	buf_reg(&b, l.recv);
	struct op ops[8];
	for (uint32_t i = 0; i < count; i++)
		ops[i] = recv_op(l.recv, &b, i * size, size, 0);
	/* A receive of another tag, so that this side makes progress as NCCL's thread would. */
	struct op other = recv_op(l.recv, &b, 0, 0, 7);
	CHECK(op_post(size > EAGER ? &ops[0] : &other));
	for (uint32_t i = 1; i < count && size > EAGER; i++)
		CHECK(op_post(&ops[i]));
	barrier(n);
	if (size > EAGER) {
		ops_run(ops, 4, 8);
		barrier_beside(n, &ops[7]);
	} else {
		barrier_beside(n, &other);
	}
	test_sleep_ms(A_WHILE);
	ops_run(ops, count, 8);
	for (uint32_t i = 0; i < count; i++) {
		CHECK_EQ(ops[i].got[0], size);
		BUF_CHECK(&b, i * size, size, i);
	}
	buf_end(&b);
	barrier(n);
	link_down(&l);
	net_close(n);
}

static void closed_at_once(const void *arg)
{
	pair(NULL, receives_what_was_sent, closes_at_once, arg);
}

/* --- too long --- */

/* The receive is posted: the send that does not fit is refused. */
static void expects_less(struct node *n)
{
	setenv("GDRFAB_NCCL_EAGER", "0", 1);
	timeout_is("5");
	struct link l = sides_up(n, HOST_MEM, TO_SERVER);
	const size_t size = *(const size_t *)n->arg;
	struct buf b;
	buf_new(n, &b, HOST_MEM, size + 100);
	buf_reg(&b, l.recv);
	struct op op = recv_op(l.recv, &b, 0, size, 0);
	CHECK(op_post(&op));
	barrier(n);
	barrier_beside(n, &op);
	CHECK(!op.done);
	BUF_BLANK(&b, 0, size + 100);
	link_down(&l);
	buf_end(&b);
	net_close(n);
}

static void sends_more(struct node *n)
{
	setenv("GDRFAB_NCCL_EAGER", "0", 1);
	timeout_is("5");
	struct link l = sides_up(n, HOST_MEM, TO_SERVER);
	const size_t size = *(const size_t *)n->arg;
	struct buf b;
	char number[32];
	buf_new(n, &b, HOST_MEM, size + 1);
	buf_reg(&b, l.send);
	barrier(n);
	log_forget();
	ncclResult_t result = ncclSuccess;
	void *request = NULL;
	uint64_t until = test_now_ms() + (uint64_t)test_ms(10000);
	while (result == ncclSuccess) {
		result = net_isend(l.send, b.at, size + 1, 0, b.mhandle, &request);
		CHECK(request == NULL);
		CHECK(test_now_ms() < until);
	}
	if (result != ncclInvalidUsage)
		test_fail(__FILE__, __LINE__, "a send that does not fit is %s; it said \"%s\"", nccl_word(result),
			  log_warnings());
	snprintf(number, sizeof number, "%zu", size);
	if (!test_says(log_warnings(), number))
		test_fail(__FILE__, __LINE__, "the size of the receive, %s, is not named: \"%s\"", number, log_warnings());
	barrier(n);
	buf_end(&b);
	link_down(&l);
	net_close(n);
}

static void too_long(const void *arg)
{
	pair(NULL, expects_less, sends_more, arg);
}

/* The message was under way before the receive was posted: the receive fails, with a reason, and no byte is written
 * beyond it. */
static void expects_less_late(struct node *n)
{
	timeout_is("3");
	struct link l = sides_up(n, HOST_MEM, TO_SERVER);
	struct buf b;
	buf_new(n, &b, HOST_MEM, 2000);
	buf_reg(&b, l.recv);
	barrier(n);
	struct op op = recv_op(l.recv, &b, 0, 1000, 0);
	ncclResult_t result = ncclSuccess;
	int done = 0, got = 0;
	uint64_t until = test_now_ms() + (uint64_t)test_ms(10000);
	log_forget();
	CHECK(op_post(&op));
	while (result == ncclSuccess && !done) {
		result = net.test(op.request, &done, &got);
		CHECK(test_now_ms() < until);
		test_sleep_ms(1);
	}
	if (result == ncclSuccess)
		test_fail(__FILE__, __LINE__, "a receive of 1000 bytes got %d of 1001", got);
	CHECK(log_warnings()[0] != 0);
	BUF_BLANK(&b, 1000, 1000);
	barrier(n);
	link_down(&l);
	buf_end(&b);
	net_close(n);
}

static void sends_more_early(struct node *n)
{
	timeout_is("3");
	struct link l = sides_up(n, HOST_MEM, TO_SERVER);
	struct buf b;
	buf_new(n, &b, HOST_MEM, 1001);
	buf_reg(&b, l.send);
	struct op op = send_op(l.send, &b, 0, 1001, 0);
	CHECK(ends_within(&op, 10000));
	barrier(n);
	barrier(n);
	buf_end(&b);
	link_down(&l);
	net_close(n);
}

static void too_long_early(const void *arg)
{
	pair(NULL, expects_less_late, sends_more_early, arg);
}

/* --- the claims --- */

TEST_TABLE(nccl_order)
{
	static const struct early cases[] = {
		{"0_bytes", NULL, 0, HOST_MEM, HOST_MEM, true},
		{"64_bytes", NULL, 64, HOST_MEM, HOST_MEM, true},
		{"8192_bytes", NULL, EAGER, HOST_MEM, HOST_MEM, true},
		{"8193_bytes", NULL, EAGER + 1, HOST_MEM, HOST_MEM, false},
		{"1_MiB", NULL, 1 << 20, HOST_MEM, HOST_MEM, false},
		{"64_bytes_none_early", "0", 64, HOST_MEM, HOST_MEM, false},
		{"1000_bytes_of_at_most_1000", "1000", 1000, HOST_MEM, HOST_MEM, true},
		{"1001_bytes_of_at_most_1000", "1000", 1001, HOST_MEM, HOST_MEM, false},
		{"to_device", NULL, 5000, HOST_MEM, CUDA_VMM_MEM, true},
		{"of_device", NULL, 5000, CUDA_VMM_MEM, HOST_MEM, false},
	};
	static const size_t small = 1000, at_most = EAGER, large = 200000;
	if (nccl_absent())
		return;
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		char name[96];
		snprintf(name, sizeof name, "isend_first_%s", cases[i].name);
		test_add(name, isend_first, &cases[i], 50);
		snprintf(name, sizeof name, "irecv_first_%s", cases[i].name);
		test_add(name, irecv_first, &cases[i], 50);
	}
	test_add("early_flood", flooded, NULL, 60);
	test_add("early_and_large_in_order", flooded, "mixed", 60);
	test_add("closed_when_done_small", closed_at_once, &small, 50);
	test_add("closed_when_done_8192", closed_at_once, &at_most, 50);
	test_add("closed_when_done_large", closed_at_once, &large, 50);
	test_add("longer_than_its_receive", too_long, &large, 50);
	test_add("longer_than_its_receive_small", too_long, &small, 50);
	test_add("longer_than_its_receive_early", too_long_early, NULL, 50);
}
