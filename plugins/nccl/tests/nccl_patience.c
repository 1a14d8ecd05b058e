/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Long waits. NCCL posts a receive minutes before the other rank's kernel has anything to send, and a busy rank does
 * not call the plugin at all. Time limits are for peers that are gone, so none may end anything here.
 */
#include "nccl_drive.h"

#include <sys/mman.h>

#define TIMEOUT "1"
#define PAUSE 2500
#define TAG 3

static struct link patient_up(struct node *n)
{
	timeout_is(TIMEOUT);
	return sides_up(n, HOST_MEM, TO_SERVER);
}

static size_t size_of(const struct node *n)
{
	return *(const size_t *)n->arg;
}

/* Posts a receive and tests it all the while. */
static void asks(struct node *n)
{
	struct link l = patient_up(n);
	struct buf b;
	buf_new(n, &b, HOST_MEM, size_of(n));
	buf_reg(&b, l.recv);
	struct op op = recv_op(l.recv, &b, 0, size_of(n), TAG);
	op_push(&op);
	barrier(n);
	if (n->side == TEST_SERVER && getenv("STOPS_PEER")) {
		peer_stop(n);
		test_sleep_ms(PAUSE);
		peer_continue(n);
	}
	op_wait(&op);
	CHECK_EQ(op.got[0], size_of(n));
	BUF_CHECK(&b, 0, size_of(n), 5);
	buf_end(&b);
	sides_down(n, &l);
}

static void sends_after_a_while(struct node *n)
{
	struct link l = patient_up(n);
	struct buf b;
	buf_new(n, &b, HOST_MEM, size_of(n));
	buf_reg(&b, l.send);
	buf_fill(&b, 0, size_of(n), 5);
	barrier(n);
	test_sleep_ms(PAUSE);
	struct op op = send_op(l.send, &b, 0, size_of(n), TAG);
	op_finish(&op);
	buf_end(&b);
	sides_down(n, &l);
}

static void late_sender(const void *arg)
{
	pair(NULL, asks, sends_after_a_while, arg);
}

static void stopped_sender(const void *arg)
{
	setenv("STOPS_PEER", "1", 1);
	pair(NULL, asks, sends_after_a_while, arg);
}

#define EARLY 8192 /* bytes that go early */
static bool *went; /* atomic, shared by both sides: the early message has been sent */

/* Sends and tests all the while. With an early message the request may be done at once. */
static void sends_at_once(struct node *n)
{
	struct link l = patient_up(n);
	struct buf b;
	buf_new(n, &b, HOST_MEM, size_of(n));
	buf_reg(&b, l.send);
	buf_fill(&b, 0, size_of(n), 5);
	barrier(n);
	struct op op = send_op(l.send, &b, 0, size_of(n), TAG);
	bool early = size_of(n) <= EARLY;
	uint64_t until = test_now_ms() + (early ? (uint64_t)test_ms(10000) : PAUSE + 500u);
	while (!op.done && test_now_ms() < until)
		NET(op_step(&op));
	/* An early message needs no call of the other side, which receives only after this. */
	if (early) {
		CHECK(op.done);
		__atomic_store_n(went, true, __ATOMIC_RELEASE);
	}
	op_finish(&op);
	buf_end(&b);
	sides_down(n, &l);
}

static void receives_after_a_while(struct node *n)
{
	struct link l = patient_up(n);
	struct buf b;
	buf_new(n, &b, HOST_MEM, size_of(n));
	buf_reg(&b, l.recv);
	barrier(n);
	test_sleep_ms(PAUSE);
	for (uint64_t until = test_now_ms() + (uint64_t)test_ms(15000);
	     size_of(n) <= EARLY && !__atomic_load_n(went, __ATOMIC_ACQUIRE) && test_now_ms() < until;)
		test_sleep_ms(1);
	struct op op = recv_op(l.recv, &b, 0, size_of(n), TAG);
	op_finish(&op);
	BUF_CHECK(&b, 0, size_of(n), 5);
	buf_end(&b);
	sides_down(n, &l);
}

static void late_receiver(const void *arg)
{
	went = (bool *)mmap(NULL, sizeof *went, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(went != MAP_FAILED);
	pair(NULL, receives_after_a_while, sends_at_once, arg);
}

/* The most early messages, to a process that reads none of them: either the kernel's buffers hold them or the sender
 * waits, and nobody takes that for a dead network. */
#define FLOOD 24

static void flood_op(struct op *op, void *comm, struct buf *b, int i, bool send)
{
	*op = send ? send_op(comm, b, (size_t)i * EARLY, EARLY, TAG) : recv_op(comm, b, (size_t)i * EARLY, EARLY, TAG);
}

static void floods(struct node *n)
{
	setenv("GDRFAB_TCP_TIMEOUT_MS", "1000", 1);
	struct link l = patient_up(n);
	struct buf b;
	struct op ops[FLOOD];
	buf_new(n, &b, HOST_MEM, (size_t)FLOOD * EARLY);
	buf_reg(&b, l.send);
	buf_fill(&b, 0, b.len, 5);
	for (int i = 0; i < FLOOD; i++)
		flood_op(&ops[i], l.send, &b, i, true);
	barrier(n);
	uint64_t until = test_now_ms() + PAUSE + 500;
	while (test_now_ms() < until)
		for (int i = 0; i < FLOOD && (i == 0 || ops[i - 1].request || ops[i - 1].done); i++)
			NET(op_step(&ops[i]));
	for (int i = 0; i < FLOOD; i++)
		op_finish(&ops[i]);
	buf_end(&b);
	sides_down(n, &l);
}

static void reads_none(struct node *n)
{
	setenv("GDRFAB_TCP_TIMEOUT_MS", "1000", 1);
	struct link l = patient_up(n);
	struct buf b;
	buf_new(n, &b, HOST_MEM, (size_t)FLOOD * EARLY);
	buf_reg(&b, l.recv);
	barrier(n);
	test_sleep_ms(PAUSE);
	for (int i = 0; i < FLOOD; i++) {
		struct op op;
		flood_op(&op, l.recv, &b, i, false);
		op_finish(&op);
	}
	BUF_CHECK(&b, 0, b.len, 5);
	buf_end(&b);
	sides_down(n, &l);
}

static void late_receiver_of_many(const void *arg)
{
	pair(NULL, reads_none, floods, arg);
}

TEST_TABLE(patience)
{
	static const size_t small = 100, large = 300000;
	if (nccl_absent())
		return;
	test_add("late_sender_small", late_sender, &small, 30);
	test_add("late_sender_large", late_sender, &large, 30);
	test_add("stopped_sender", stopped_sender, &large, 30);
	test_add("late_receiver_small", late_receiver, &small, 30);
	test_add("late_receiver_large", late_receiver, &large, 30);
	test_add("late_receiver_of_many", late_receiver_of_many, NULL, 30);
}
