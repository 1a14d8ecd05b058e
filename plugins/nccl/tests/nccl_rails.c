/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * gdrfab's plugin for NCCL over several rails: while some of them are lost and come back, every message arrives
 * whole, and NCCL's log reports it.
 */
#include "nccl_drive.h"

#define MESSAGES 60
#define LARGEST ((size_t)1 << 20)

static const char *fault_of(const struct node *n)
{
	return ((const char *const *)n->arg)[n->side];
}

static struct link rails_up(struct node *n)
{
	setenv("GDRFAB_TCP_RAILS", "127.0.0.1,127.0.0.2", 1);
	if (*fault_of(n))
		setenv("GDRFAB_FAULT", fault_of(n), 1);
	return sides_up(n, HOST_MEM, BOTH_WAYS);
}

static size_t length(size_t i)
{
	static const size_t some[] = {8, 70000, 0, LARGEST, 8192, 8193, 300000, 1};
	return some[i % (sizeof some / sizeof some[0])];
}

/* A connection's events are read while an operation waits for long. */
static bool is_told(struct op *waits, const char *words)
{
	for (int i = 0; i < 3000 && !waits->done && !strstr(log_all(), words); i++)
		if (op_post(waits))
			op_done(waits);
	return strstr(log_all(), words) != NULL;
}

static void runs(struct node *n)
{
	struct link l = rails_up(n);
	struct buf in, out;
	bool told = !*fault_of(n), theirs = false;
	uint64_t until = test_now_ms() + (uint64_t)test_ms(20000);
	buf_new(n, &in, HOST_MEM, LARGEST);
	buf_new(n, &out, HOST_MEM, LARGEST);
	buf_reg(&in, l.recv);
	buf_reg(&out, l.send);
	for (uint32_t i = 0; i < MESSAGES || !told || !theirs; i++) {
		size_t len = length(i);
		uint32_t own = 2 * i + (n->side == TEST_SERVER), other = 2 * i + (n->side != TEST_SERVER);
		struct op ops[2] = {recv_op(l.recv, &in, 0, LARGEST, (int)i), send_op(l.send, &out, 0, len, (int)i)};
		buf_blank(&in);
		buf_fill(&out, 0, len, own);
		if (!told && i % 20 == 19)
			told = is_told(&ops[0], "the connection goes on: rail ");
		ops_run(ops, 2, 2);
		CHECK_EQ(ops[0].got[0], len);
		BUF_ONLY(&in, 0, len, other);
		oob_send(n, &told, sizeof told);
		oob_recv(n, &theirs, sizeof theirs);
		if (test_now_ms() > until)
			test_fail(__FILE__, __LINE__, "after %u messages no rail was lost; the log is \"%s\"", i, log_all());
	}
	buf_end(&in);
	buf_end(&out);
	sides_down(n, &l);
}

/* Only one side injects the faults, as both together could lose all rails at once. */
static void lost(const char *fault, enum test_side by)
{
	const char *const faults[TEST_SIDES] = {[TEST_SERVER] = by == TEST_SERVER ? fault : "", [TEST_CLIENT] = by == TEST_CLIENT ? fault : ""};
	if (strcmp(provider(), "tcp") != 0)
		test_skip("a device of tcp has rails; one of verbs is a port, and one of shm has none");
	pair(NULL, runs, runs, faults);
}

TEST_WITHIN(60, lost_by_one)
{
	lost("tcp/rail=13:0,tcp/rail=7:1", TEST_SERVER);
}

TEST_WITHIN(60, lost_by_the_other)
{
	lost("tcp/rail=11", TEST_CLIENT);
}
