/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A receiver that is stopped while it copies an offered message: this send may be held beyond its deadline, because its buffer
 * is being read. Sends that the receiver is not reading end at their deadlines.
 */
#include "fab_provider.h"
#include "fab_rdm.h"

#include <signal.h>
#include <unistd.h>

enum { LONG = 64 << 20, SHORT = 64 << 10, OFFERS = 6, ROUNDS = 30, DEADLINE_MS = 300 };

/* Earlier offers, on both sides, so that the endpoint is in the state of one that has run for a while. */
static void warm_up(struct self *s, char *buf)
{
	for (uintptr_t i = 0; i < 4 * OFFERS; i++)
		if (s->rank == 0)
			tsend(s, 1, buf, SHORT, 1, i);
		else
			trecv(s, 0, buf, SHORT, 1, 0, i);
	for (uintptr_t i = 0; i < 4 * OFFERS; i++)
		await(s, i, NULL);
	meet(s);
}

/* Posts the long message, or its receive. */
static bool is_over(struct self *s)
{
	bool over = has_come(s, 1);
	for (int i = 0; i < s->lost_count; i++)
		over |= s->lost[i].entry.op_context == context_of(1);
	return over;
}

/* Shared number 0: the round that rank 1 may begin; 1: its process number; 2: the finished round, or a larger number at the
 * end. */
static void reads(struct self *s, char *buf)
{
	put_number(s, 1, (uint64_t)getpid());
	for (uint64_t round = 1; round <= ROUNDS; round++) {
		meet(s);
		while (get_number(s, 0) < round)
			drive(s);
		trecv(s, 0, buf, LONG, 1 + round, 0, 1);
		while (get_number(s, 2) < round)
			drive(s);
		/* A receive that copies cannot be cancelled; a receive whose message was taken back waits for the next. */
		for (uint64_t until = test_now_ms() + (uint64_t)test_ms(WAIT_MS); !is_over(s); gdrfab_cancel(s->ep, context_of(1)))
			CHECK(test_now_ms() < until);
		meet(s);
		s->kept_count = s->lost_count = 0;
		if (get_number(s, 2) > ROUNDS)
			return;
	}
}

/* Counts the short messages that have failed. */
static int count_late(struct self *s)
{
	int n = 0;
	drive(s);
	for (int i = 0; i < s->lost_count; i++)
		n += s->lost[i].entry.op_context != context_of(1) && s->lost[i].entry.err == ETIMEDOUT;
	return n;
}

static void offers(struct self *s, char *buf)
{
	uint64_t ns = (uint64_t)test_ms(DEADLINE_MS) * 1000000;
	/* Over tcp the sender's own process reads the buffer: no send is held. */
	bool by_socket = strcmp(s->lanes, "tcp") == 0;
	int caught = 0, enough = by_socket ? 0 : 3;
	OK(gdrfab_ep_setopt(s->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_DEADLINE, &ns, sizeof ns));
	for (uint64_t round = 1; round <= ROUNDS; round++) {
		meet(s);
		pid_t reader = (pid_t)get_number(s, 1);
		tsend(s, 1, buf, LONG, 1 + round, 1);
		for (uintptr_t i = 0; i < OFFERS; i++)
			tsend(s, 1, buf + i * SHORT, SHORT, 99, 2 + i);
		drive(s);
		put_number(s, 0, round);
		for (uint64_t until = test_now_ms() + 1 + round % 5; test_now_ms() < until;)
			drive(s);
		OK(kill(reader, SIGSTOP));
		while (test_process_state(reader) != 'T')
			test_sleep_ms(1);
		bool early = is_over(s);
		for (uint64_t until = test_now_ms() + (uint64_t)test_ms(DEADLINE_MS + 2000); count_late(s) < OFFERS && test_now_ms() < until;)
			;
		int late = count_late(s);
		bool held = !early && !is_over(s);
		OK(kill(reader, SIGCONT));
		if (late < OFFERS)
			test_fail(__FILE__, __LINE__, "%d of %d offers that nobody reads were held%s", OFFERS - late, (int)OFFERS,
				  held ? " beside the one that is being read" : "");
		for (uint64_t until = test_now_ms() + (uint64_t)test_ms(WAIT_MS); !is_over(s); drive(s))
			CHECK(test_now_ms() < until);
		caught += held;
		if (held)
			for (int i = 0; i < s->lost_count; i++)
				if (s->lost[i].entry.op_context == context_of(1))
					SAYS(s->lost[i].words, "reading");
		bool last = caught == enough || round == ROUNDS;
		put_number(s, 2, last ? ROUNDS + 1 : round);
		meet(s);
		s->kept_count = s->lost_count = 0;
		if (last)
			break;
	}
	CHECK(by_socket ? caught == 0 : caught > 0);
}

static void stopped(struct self *s)
{
	skip_unless(!traits()->adapter, "what a card may read is held until its process has said that it will not");
	if (test_checked())
		test_skip("under a checker no read takes long because of its length");
	char *buf = (char *)malloc(LONG);
	memset(buf, 1, LONG);
	warm_up(s, buf);
	(s->rank ? reads : offers)(s, buf);
	free(buf);
}

/*
 * A buffer for several messages is cancelled while a stopped sender has a message on its way into it: the entry that releases the
 * buffer is the last of its context, and has the flag for it.
 */
static void cancelled_in_the_middle(struct self *s)
{
	enum { BYTES = 8 << 20 };
	char *buf = (char *)malloc(2 * BYTES);
	CHECK(buf != NULL);
	memset(buf, 1, 2 * BYTES);
	if (s->rank == 0) {
		tsend(s, 1, "here", 4, 1, 1);
		await(s, 1, NULL);
		OK(gdrfab_send(s->ep, buf, BYTES, NULL, 1, context_of(2)));
		drive(s);
		put_number(s, 1, (uint64_t)getpid());
		for (uint64_t until = test_now_ms() + (uint64_t)test_ms(WAIT_MS); !get_number(s, 2) && test_now_ms() < until;)
			drive(s);
	} else {
		struct iovec iov = {buf, 2 * BYTES};
		gdrfab_msg message = {.struct_size = sizeof message, .msg_iov = &iov, .iov_count = 1, .addr = 0, .context = context_of(7)};
		bool released = false;
		char word[4];
		trecv(s, 0, word, 4, 1, 0, 1);
		await(s, 1, NULL);
		while (!get_number(s, 1))
			drive(s);
		pid_t sender = (pid_t)get_number(s, 1);
		OK(kill(sender, SIGSTOP));
		while (test_process_state(sender) != 'T')
			test_sleep_ms(1);
		OK(gdrfab_recvmsg(s->ep, &message, GDRFAB_MULTI_RECV | GDRFAB_COMPLETION));
		for (int i = 0; i < 50; i++)
			drive(s);
		OK(gdrfab_cancel(s->ep, context_of(7)));
		uint64_t until = test_now_ms() + (uint64_t)test_ms(WAIT_MS);
		for (int turn = 0; !released && test_now_ms() < until; turn++) {
			gdrfab_cq_tagged_entry e;
			ssize_t n = gdrfab_cq_read(s->cq, &e, 1);
			if (n == 1) {
				CHECK(e.op_context == context_of(7) && e.len == BYTES && !(e.flags & GDRFAB_MULTI_RECV));
			} else if (n == -GDRFAB_EAVAIL) {
				gdrfab_cq_err_entry x = {.struct_size = sizeof x};
				CHECK_EQ(gdrfab_cq_readerr(s->cq, &x, 0), 1);
				CHECK(x.op_context == context_of(7) && x.err == ECANCELED);
				CHECK(x.flags & GDRFAB_MULTI_RECV);
				released = true;
			}
			if (turn == 1000)
				OK(kill(sender, SIGCONT));
		}
		CHECK(released);
		int before = s->kept_count + s->lost_count;
		/* The buffer is the program's now. */
		memset(buf, 2, 2 * BYTES);
		OK(kill(sender, SIGCONT));
		for (int i = 0; i < 1000; i++)
			drive(s);
		CHECK_EQ(s->kept_count + s->lost_count, before);
		for (size_t i = 0; i < 2 * BYTES; i += 4096)
			CHECK_EQ(buf[i], 2);
		put_number(s, 2, 1);
	}
	free(buf);
}

TEST_TABLE(stopped_readers)
{
	static const struct rdm_claim claims[] = {
		{"a reader that is stopped holds the offer it reads and no other", stopped, 2, false},
	};
	static const struct rdm_claim bare[] = {
		{"a buffer for several messages is released once nothing is on its way into it", cancelled_in_the_middle, 2, false},
	};
	rdm_add_both(claims, sizeof claims / sizeof *claims);
	rdm_add(bare, sizeof bare / sizeof *bare);
}
