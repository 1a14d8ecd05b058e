/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Many messages at once: their order, unexpected messages, messages from both sides, and more than the receive queue holds. */
#include "msg.h"

/* --- order and numbers --- */

static const char hasty[] = "a send does not wait for its receive";

#define BATCH 64

/* The length of message `number`: a mixture without n->arg, else one length for all; 0 stands for lengths that shm stores beside
 * its ring. */
static size_t size_in_order(const struct node *n, uint32_t number)
{
	static const size_t mix[] = {4, 64, 8, 500, 4, 3000, 17000, 4, 100000};
	if (!n->arg)
		return mix[number % 9];
	size_t size = *(const size_t *)n->arg;
	return size ? size : 512 + number * 37 % 7680;
}

/* Matching is in order, completions need not be: a slot is reused when its own operation has ended. */
struct slots {
	unsigned char *buf[BATCH];
	uint32_t number[BATCH];
	bool busy[BATCH];
};

static void slots_new(struct slots *s)
{
	memset(s, 0, sizeof *s);
	for (int i = 0; i < BATCH; i++)
		s->buf[i] = (unsigned char *)malloc(100000);
}

static void slots_end(struct slots *s)
{
	for (int i = 0; i < BATCH; i++)
		free(s->buf[i]);
}

static unsigned slot_done(struct node *n, struct slots *s, uint64_t flags, done *entry)
{
	struct failure f;
	int next = cq_next(n->cq, entry, 10000);
	if (next == -1) {
		cq_failure(__FILE__, __LINE__, n->cq, &f);
		test_fail(__FILE__, __LINE__, "%s: %s", test_number(-f.entry.err), f.words);
	}
	if (next == 0) {
		gdrfab_stats stats;
		unsigned busy = 0;
		memset(&stats, 0, sizeof stats);
		stats.struct_size = sizeof stats;
		gdrfab_ep_stats(n->ep, &stats);
		for (int i = 0; i < BATCH; i++)
			busy += s->busy[i];
		test_fail(__FILE__, __LINE__, "nothing ended for 10 s; in flight %u, sends %llu, receives %llu", busy,
			  (unsigned long long)stats.sends, (unsigned long long)stats.recvs);
	}
	CHECK_EQ(entry->flags & flags, flags);
	unsigned slot = 0;
	while (slot < BATCH && s->buf[slot] != entry->op_context)
		slot++;
	CHECK(slot < BATCH);
	CHECK(s->busy[slot]);
	s->busy[slot] = false;
	return slot;
}

static void order_sender(struct node *n)
{
	uint32_t total = (uint32_t)test_count(10000, 300), posted = 0;
	struct slots s;
	done entry;
	slots_new(&s);
	node_up(n);
	skip_unless(waits_for_receive(n), hasty);
	for (uint32_t ended = 0; ended < total; ended++) {
		for (; posted < total && !s.busy[posted % BATCH]; posted++) {
			unsigned char *at = s.buf[posted % BATCH];
			fill(at, size_in_order(n, posted), 0, posted);
			memcpy(at, &posted, sizeof posted);
			size_t len = size_in_order(n, posted);
			ssize_t rc = gdrfab_send(n->ep, at, len, local_desc(n, at, len), PEER, at);
			if (rc == -EAGAIN && posted > ended)
				break;
			/* Still full although all own operations have ended: the other side must receive first. */
			if (rc == -EAGAIN)
				POST(n->cq, rc = gdrfab_send(n->ep, at, len, local_desc(n, at, len), PEER, at));
			OK(rc);
			s.busy[posted % BATCH] = true;
		}
		slot_done(n, &s, SENT, &entry);
	}
	slots_end(&s);
	node_down(n);
}

static void order_receiver(struct node *n)
{
	uint32_t total = (uint32_t)test_count(10000, 300), posted = 0;
	struct slots s;
	done entry;
	slots_new(&s);
	node_up(n);
	skip_unless(waits_for_receive(n), hasty);
	for (uint32_t ended = 0; ended < total; ended++) {
		/* Receives are scarce at times: some messages wait for a receive, some receives for a message. */
		uint32_t ahead = ended / 500 % 2 ? 1 : BATCH;
		for (; posted < total && posted < ended + ahead && !s.busy[posted % BATCH]; posted++) {
			unsigned slot = posted % BATCH;
			unsigned char *at = s.buf[slot];
			POST(n->cq, gdrfab_recv(n->ep, at, 100000, local_desc(n, at, 100000), PEER, at));
			s.busy[slot] = true;
			s.number[slot] = posted;
		}
		uint32_t got;
		unsigned slot = slot_done(n, &s, RECEIVED, &entry);
		memcpy(&got, s.buf[slot], sizeof got);
		CHECK_EQ(got, s.number[slot]);
		CHECK_EQ(entry.len, size_in_order(n, got));
		CHECK_FILLED("a message in order", s.buf[slot] + 4, entry.len - 4, 4, got);
	}
	QUIET(n->cq, 5);
	slots_end(&s);
	node_down(n);
}

TEST_WITHIN(40, ten_thousand_in_order)
{
	pair(NULL, order_receiver, order_sender, NULL);
}

TEST_WITHIN(40, ten_thousand_small_in_order)
{
	static const size_t size = 16;
	pair(NULL, order_receiver, order_sender, &size);
}

/* 40 MB: several times the area beside a ring, whatever its size. */
TEST_WITHIN(40, ten_thousand_of_some_kilobytes_in_order)
{
	static const size_t size = 0;
	pair(NULL, order_receiver, order_sender, &size);
}

TEST_WITHIN(40, ten_thousand_large_in_order)
{
	static const size_t size = 9000;
	pair(NULL, order_receiver, order_sender, &size);
}

TEST_WITHIN(40, ten_thousand_in_order_automatic_progress)
{
	struct setup s = {.progress = GDRFAB_PROGRESS_AUTO, .threading = GDRFAB_THREAD_SAFE};
	pair(&s, order_receiver, order_sender, NULL);
}

/* --- many unexpected ones, received much later --- */

static void early_sender(struct node *n)
{
	static unsigned char buf[32][4096];
	node_up(n);
	skip_unless(waits_for_receive(n), hasty);
	for (uint32_t i = 0; i < 32; i++) {
		fill(buf[i], 100 * i, 0, i);
		POST(n->cq, gdrfab_send(n->ep, buf[i], 100 * i, local_desc(n, buf[i], 100 * i), PEER, buf[i]));
	}
	barrier(n);
	for (int i = 0; i < 32; i++) {
		done entry;
		CHECK_EQ(cq_next(n->cq, &entry, 10000), 1);
		CHECK_EQ(entry.flags & SENT, SENT);
	}
	node_down(n);
}

static void late_receiver(struct node *n)
{
	static unsigned char buf[32][4096];
	node_up(n);
	skip_unless(waits_for_receive(n), hasty);
	gdrfab_stats stats;
	memset(&stats, 0, sizeof stats);
	stats.struct_size = sizeof stats;
	barrier(n);
	/* All are posted; one at least comes before its receive. */
	uint64_t until = test_now_ms() + (uint64_t)test_ms(10000);
	do {
		gdrfab_cq_read(n->cq, NULL, 0);
		OK(gdrfab_ep_stats(n->ep, &stats));
	} while (traits()->keeps_messages && stats.unexpected == 0 && test_now_ms() < until);
	for (uint32_t i = 0; i < 32; i++) {
		done entry;
		POST(n->cq, gdrfab_recv(n->ep, buf[i], 4096, local_desc(n, buf[i], 4096), PEER, buf[i]));
		DONE(n->cq, buf[i], RECEIVED, &entry);
		CHECK_EQ(entry.len, 100 * i);
		CHECK_FILLED("an early message", buf[i], 100 * i, 0, i);
	}
	OK(gdrfab_ep_stats(n->ep, &stats));
	CHECK_EQ(stats.recvs, 32);
	CHECK_EQ(stats.unexpected > 0, traits()->keeps_messages);
	CHECK_EQ(stats.errors, 0);
	node_down(n);
}

TEST(sent_before_received)
{
	pair(NULL, late_receiver, early_sender, NULL);
}

/* --- both sides send large messages at once, which must not wait for each other for ever --- */

static void crossing(struct node *n)
{
	size_t len = 3 * 1024 * 1024;
	unsigned char *out = (unsigned char *)malloc(len), *in = (unsigned char *)malloc(len);
	uint32_t mine = n->side, theirs = mine == TEST_SERVER ? TEST_CLIENT : TEST_SERVER;
	int rounds = test_count(10, 2);
	node_up(n);
	for (int i = 0; i < rounds; i++) {
		fill(out, len, 0, mine * 100 + (uint32_t)i);
		bool first = waits_for_receive(n);
		if (first)
			POST(n->cq, gdrfab_send(n->ep, out, len, local_desc(n, out, len), PEER, out));
		POST(n->cq, gdrfab_recv(n->ep, in, len, local_desc(n, in, len), PEER, in));
		meet_if_hasty(n);
		if (!first)
			POST(n->cq, gdrfab_send(n->ep, out, len, local_desc(n, out, len), PEER, out));
		done entry;
		for (int left = 2; left > 0; left--) {
			int next = cq_next(n->cq, &entry, 10000);
			CHECK_EQ(next, 1);
			CHECK(entry.op_context == in || entry.op_context == out);
			if (entry.op_context == in)
				CHECK_EQ(entry.len, len);
		}
		CHECK_FILLED("the other side's message", in, len, 0, theirs * 100 + (uint32_t)i);
	}
	free(in);
	free(out);
	node_down(n);
}

TEST(both_send_at_once)
{
	pair(NULL, crossing, crossing, NULL);
}

/* --- at least rx_size receives can be posted, and one too many is no error --- */

static void full_side(struct node *n)
{
	char byte = 1, in;
	done entry;
	node_up(n);
	size_t posted = 0, limit = n->info->rx_size;
	CHECK(limit >= 16);
	ssize_t rc = 0;
	while (posted < 65536 && (rc = gdrfab_recv(n->ep, &in, 1, local_desc(n, &in, 1), PEER, NULL)) == 0)
		posted++;
	/* More than rx_size may be accepted; one too many is -EAGAIN. */
	CHECK_EITHER(rc, -EAGAIN, 0);
	CHECK(posted >= limit);
	barrier(n);
	/* The rx_size of a connectionless endpoint is very large. */
	for (size_t i = 0; i < limit && i < 4096; i++) {
		POST(n->cq, gdrfab_send(n->ep, &byte, 1, local_desc(n, &byte, 1), PEER, NULL));
		for (int left = 2; left > 0; left--)
			CHECK_EQ(cq_next(n->cq, &entry, 10000), 1);
	}
	/* There is room again. */
	OK(gdrfab_recv(n->ep, &in, 1, local_desc(n, &in, 1), PEER, NULL));
	node_down(n);
}

TEST_WITHIN(40, receive_queue_full)
{
	struct setup s = {.cq_size = 65536};
	pair(&s, full_side, full_side, NULL);
}

/* --- other settings of the provider --- */

static void order_with_setting(const void *arg)
{
	static const size_t some_kilobytes = 0;
	const struct variant *v = (const struct variant *)arg;
	set_variable(v->variable, v->value);
	pair(NULL, order_receiver, order_sender, strstr(v->value, "area-max") ? &some_kilobytes : NULL);
}

TEST_TABLE(settings)
{
	/* A memory checker sees messages of every size with these settings in msg. */
	if (test_checked())
		return;
	add_with_settings("ten_thousand_in_order", order_with_setting);
}
