/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Messages: every call, sizes from nothing to 8 MiB, scattered at both ends, received late or early or too short, many
 * at once and in order; from and to memory of devices as well.
 */
#include "fab.h"

#include <sys/uio.h>

#define LARGEST ((size_t)8 * 1024 * 1024)
#define EDGE ((size_t)64)
#define SENT (GDRFAB_SEND | GDRFAB_MSG)
#define RECEIVED (GDRFAB_RECV | GDRFAB_MSG)
#define EDGE_SEED 9u

static const size_t sizes[] = {0,    1,	    63,	   64,	  65,	 4095,		 4096,
			       4097, 16384, 65536, 65537, 70000, 1024 * 1024 + 3, LARGEST};
#define SIZES (sizeof sizes / sizeof sizes[0])

/* Which memory messages come from and go to. */
struct buffers {
	const struct memkind *from, *to;
	bool described; /* host memory too is registered, and its descriptor passed */
};
static const struct buffers plain = {&memkinds[KIND_MALLOC], &memkinds[KIND_MALLOC], false};

static const struct buffers *buffers_of(const struct node *n)
{
	return n->arg ? (const struct buffers *)n->arg : &plain;
}

static void buffer_new(struct node *n, struct mem *m, const struct memkind *kind, size_t len)
{
	mem_new(n, m, kind, len);
	if (kind->opaque || buffers_of(n)->described || local_needed(n))
		mem_register(n, m, 0, len, GDRFAB_SEND | GDRFAB_RECV, 0);
}

/* A part of a buffer. */
struct part {
	struct mem *mem;
	size_t offset, len;
};

static unsigned char *start(struct part p)
{
	return p.mem->addr + p.offset;
}

/* A receive buffer between two edges that must stay as they are. */
static void edges_set(struct mem *m, size_t len)
{
	mem_fill(m, 0, EDGE + len + EDGE, 0, EDGE_SEED);
}

static void edges_check(struct mem *m, size_t len)
{
	CHECK_MEM("in front of the receive buffer", m, 0, EDGE, 0, EDGE_SEED);
	CHECK_MEM("behind the receive buffer", m, EDGE + len, EDGE, EDGE + len, EDGE_SEED);
}

/* --- each call once per size; the receiver posts before or after the message is sent --- */

enum call { SEND, SENDV, SENDDATA, SENDMSG, SENDMSG_DATA, SENDMSG_INJECT, INJECT, INJECTDATA, CALLS };

static bool carries_data(enum call call)
{
	return call == SENDDATA || call == SENDMSG_DATA || call == INJECTDATA;
}

struct message {
	gdrfab_msg msg;
	struct iovec iov[5];
	void *desc[5];
};

static void in_pieces(struct message *m, struct part p, size_t limit)
{
	size_t count = limit < 5 ? limit : 5, from = 0;
	memset(&m->msg, 0, sizeof m->msg);
	m->msg.struct_size = sizeof m->msg;
	m->msg.msg_iov = m->iov;
	m->msg.desc = mem_desc(p.mem) ? m->desc : NULL;
	m->msg.iov_count = count;
	m->msg.context = start(p);
	for (size_t i = 0; i < count; i++) {
		size_t piece = i + 1 == count ? p.len - from : i == 1 ? 0 : (p.len - from) / 3;
		m->iov[i].iov_base = start(p) + from;
		m->iov[i].iov_len = piece;
		m->desc[i] = mem_desc(p.mem);
		from += piece;
	}
}

static void send_by(struct node *n, enum call call, struct part p, uint64_t data)
{
	unsigned char *buf = start(p);
	void *desc = mem_desc(p.mem);
	struct message m;
	in_pieces(&m, p, n->info->tx_iov_limit);
	data = cq_data(n, data);
	m.msg.data = data;
	switch (call) {
	case SEND:
		POST(n->cq, gdrfab_send(n->ep, buf, p.len, desc, GDRFAB_ADDR_UNSPEC, buf));
		break;
	case SENDV:
		POST(n->cq, gdrfab_sendv(n->ep, m.iov, m.msg.desc, m.msg.iov_count, GDRFAB_ADDR_UNSPEC, buf));
		break;
	case SENDDATA:
		POST(n->cq, gdrfab_senddata(n->ep, buf, p.len, desc, data, GDRFAB_ADDR_UNSPEC, buf));
		break;
	case SENDMSG:
		POST(n->cq, gdrfab_sendmsg(n->ep, &m.msg, GDRFAB_COMPLETION));
		break;
	case SENDMSG_DATA:
		POST(n->cq, gdrfab_sendmsg(n->ep, &m.msg, GDRFAB_COMPLETION | GDRFAB_REMOTE_CQ_DATA));
		break;
	case SENDMSG_INJECT:
		POST(n->cq, gdrfab_sendmsg(n->ep, &m.msg, GDRFAB_COMPLETION | GDRFAB_INJECT));
		mem_fill(p.mem, p.offset, p.len, 0, 99);
		break;
	case INJECT:
		POST(n->cq, gdrfab_inject(n->ep, buf, p.len, GDRFAB_ADDR_UNSPEC));
		memset(buf, 0xee, p.len);
		return;
	default:
		POST(n->cq, gdrfab_injectdata(n->ep, buf, p.len, data, GDRFAB_ADDR_UNSPEC));
		memset(buf, 0xee, p.len);
		return;
	}
	done entry;
	DONE(n->cq, buf, SENT, &entry);
}

static void recv_by(struct node *n, unsigned way, struct part p)
{
	unsigned char *buf = start(p);
	struct message m;
	in_pieces(&m, p, n->info->rx_iov_limit);
	if (way == 0)
		POST(n->cq, gdrfab_recv(n->ep, buf, p.len, mem_desc(p.mem), GDRFAB_ADDR_UNSPEC, buf));
	else if (way == 1)
		POST(n->cq, gdrfab_recvv(n->ep, m.iov, m.msg.desc, m.msg.iov_count, GDRFAB_ADDR_UNSPEC, buf));
	else
		POST(n->cq, gdrfab_recvmsg(n->ep, &m.msg, GDRFAB_COMPLETION));
}

static uint64_t data_of(size_t size, unsigned call)
{
	return 0xfedcba9876543210u ^ (uint64_t)size << 8 ^ call;
}

static bool goes_early(const struct node *n, unsigned call, size_t s)
{
	return (call + s) % 2 && waits_for_receive(n);
}

/* Both sides agree: an inject call takes no descriptor, and so no memory of a device. */
static bool possible(const struct node *n, unsigned call, size_t len)
{
	if (carries_data((enum call)call) && n->info->cq_data_size == 0)
		return false;
	if (call != SENDMSG_INJECT && call != INJECT && call != INJECTDATA)
		return true;
	return len <= n->info->inject_size && (call == SENDMSG_INJECT || !buffers_of(n)->from->opaque);
}

static void call_sender(struct node *n)
{
	struct mem m;
	node_up(n);
	buffer_new(n, &m, buffers_of(n)->from, LARGEST + 1);
	CHECK(n->info->inject_size >= 64);
	CHECK(n->info->max_msg_size >= LARGEST);
	oob_send(n, &n->info->inject_size, sizeof n->info->inject_size);
	for (unsigned call = 0; call < CALLS; call++)
		for (size_t s = 0; s < SIZES; s++) {
			if (!possible(n, call, sizes[s]))
				continue;
			bool early = goes_early(n, call, s);
			struct part p = {&m, 0, sizes[s]};
			mem_fill(&m, 0, sizes[s], 0, (uint32_t)(call * 100 + s));
			if (!early)
				barrier(n);
			send_by(n, (enum call)call, p, data_of(s, call));
			barrier(n);
		}
	QUIET(n->cq, 5);
	mem_end(n, &m);
	node_down(n);
}

static void call_receiver(struct node *n)
{
	struct mem m;
	size_t theirs;
	node_up(n);
	buffer_new(n, &m, buffers_of(n)->to, LARGEST + 2 * EDGE);
	oob_recv(n, &theirs, sizeof theirs);
	CHECK_EQ(theirs, n->info->inject_size);
	for (unsigned call = 0; call < CALLS; call++)
		for (size_t s = 0; s < SIZES; s++) {
			if (!possible(n, call, sizes[s]))
				continue;
			bool early = goes_early(n, call, s);
			size_t len = sizes[s];
			struct part p = {&m, EDGE, len};
			edges_set(&m, len);
			if (early) {
				/* Unexpected: it is on its way, or here, before there is a place for it. */
				uint64_t until = test_now_ms() + 1;
				while (test_now_ms() < until)
					gdrfab_cq_read(n->cq, NULL, 0);
			}
			recv_by(n, (unsigned)((call + s) % 3), p);
			if (!early)
				barrier(n);
			done entry;
			bool data = carries_data((enum call)call);
			DONE(n->cq, start(p), RECEIVED | (data ? GDRFAB_REMOTE_CQ_DATA : 0), &entry);
			CHECK_EQ(entry.len, len);
			CHECK_EQ(entry.flags & GDRFAB_REMOTE_CQ_DATA, data ? GDRFAB_REMOTE_CQ_DATA : 0);
			if (data)
				CHECK_EQ(entry.data, cq_data(n, data_of(s, call)));
			CHECK_MEM("the message", &m, EDGE, len, 0, (uint32_t)(call * 100 + s));
			edges_check(&m, len);
			barrier(n);
		}
	mem_end(n, &m);
	node_down(n);
}

TEST_WITHIN(40, every_call_and_size)
{
	pair(NULL, call_receiver, call_sender, NULL);
}

TEST_WITHIN(40, every_call_and_size_by_address)
{
	struct setup s = {.by_address = true};
	pair(&s, call_sender, call_receiver, NULL);
}

/* --- longer than the receive --- */

static void long_sender(struct node *n)
{
	struct mem m;
	node_up(n);
	buffer_new(n, &m, buffers_of(n)->from, LARGEST);
	mem_fill(&m, 0, LARGEST, 0, 3);
	for (size_t s = 0; s < SIZES; s++) {
		if (sizes[s] < 2)
			continue;
		meet_if_hasty(n);
		if (traits()->survives_failures) {
			send_by(n, SEND, (struct part){&m, 0, sizes[s]}, 0);
		} else {
			POST(n->cq, gdrfab_send(n->ep, m.addr, sizes[s], mem_desc(&m), GDRFAB_ADDR_UNSPEC, &m));
			struct failure f;
			done entry;
			int came = cq_next(n->cq, &entry, 10000);
			/* Where a send has ended well before it is refused, the connection's end tells. */
			CHECK(came == -1 || (came == 1 && !tells_failed_writes(n)));
			if (came == -1)
				cq_failure(__FILE__, __LINE__, n->cq, &f);
			/* The end of the connection may be here before the adapter's answer. */
			if (came == -1 && tells_failed_writes(n) && !failure_is(&f.entry, EREMOTEIO, TOO_LONG) && !flushed(&f.entry))
				test_fail(__FILE__, __LINE__, "%s, provider code %d, \"%s\"",
					  test_number(-f.entry.err), f.entry.prov_errno, f.words);
		}
		barrier(n);
		recover(n);
	}
	meet_if_hasty(n);
	send_by(n, SEND, (struct part){&m, 0, 10}, 0);
	mem_end(n, &m);
	node_down(n);
}

static void short_receiver(struct node *n)
{
	struct mem m;
	struct failure f;
	node_up(n);
	buffer_new(n, &m, buffers_of(n)->to, LARGEST + 2 * EDGE);
	for (size_t s = 0; s < SIZES; s++) {
		if (sizes[s] < 2)
			continue;
		size_t len = s % 3 == 0 ? sizes[s] - 1 : s % 3 == 1 ? sizes[s] / 2 : 0;
		struct part p = {&m, EDGE, len};
		edges_set(&m, len);
		recv_by(n, (unsigned)(s % 2), p);
		meet_if_hasty(n);
		FAILED(n->cq, start(p), GDRFAB_ETRUNC, GDRFAB_PROV_TRUNC, &f);
		CHECK_EQ(f.entry.flags & GDRFAB_RECV, GDRFAB_RECV);
		/* An adapter does not count what it has to refuse. */
		if (traits()->survives_failures) {
			CHECK_EQ(f.entry.len, len);
			CHECK_EQ(f.entry.olen, sizes[s] - len);
			CHECK_EQ(f.entry.flags & RECEIVED, RECEIVED);
			CHECK_MEM("what fitted", &m, EDGE, len, 0, 3);
		}
		edges_check(&m, len);
		barrier(n);
		recover(n);
	}
	/* The next message is received as if nothing had been; over a connection of its own if it must be. */
	struct part p = {&m, 0, 10};
	recv_by(n, 0, p);
	meet_if_hasty(n);
	done entry;
	DONE(n->cq, start(p), RECEIVED, &entry);
	CHECK_EQ(entry.len, 10);
	mem_end(n, &m);
	node_down(n);
}

TEST(too_long_for_the_receive)
{
	pair(NULL, short_receiver, long_sender, NULL);
}

/* --- order and numbers --- */

static const char hasty[] = "a send does not wait for its receive";

#define BATCH 64

/* A mixture, or one size for all; 0: what shm puts beside its ring, of every length. */
static size_t size_in_order(const struct node *n, uint32_t number)
{
	static const size_t mix[] = {4, 64, 8, 500, 4, 3000, 17000, 4, 100000};
	if (!n->arg)
		return mix[number % 9];
	size_t size = *(const size_t *)n->arg;
	return size ? size : 512 + number * 37 % 7680;
}

/* Matching is in order; completions need not be, so a slot is used again when its own operation has ended. */
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
			ssize_t rc = gdrfab_send(n->ep, at, len, local_desc(n, at, len), 0, at);
			if (rc == -EAGAIN && posted > ended)
				break;
			/* Full although all of ours have ended: the other side has yet to take them. */
			if (rc == -EAGAIN)
				POST(n->cq, rc = gdrfab_send(n->ep, at, len, local_desc(n, at, len), 0, at));
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
			POST(n->cq, gdrfab_recv(n->ep, at, 100000, local_desc(n, at, 100000), 0, at));
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

/* 40 megabytes: several times all that a ring has beside it, of whatever size. */
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
		POST(n->cq, gdrfab_send(n->ep, buf[i], 100 * i, local_desc(n, buf[i], 100 * i), 0, buf[i]));
	}
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
	uint64_t until = test_now_ms() + 30;
	while (test_now_ms() < until)
		gdrfab_cq_read(n->cq, NULL, 0);
	for (uint32_t i = 0; i < 32; i++) {
		done entry;
		POST(n->cq, gdrfab_recv(n->ep, buf[i], 4096, local_desc(n, buf[i], 4096), 0, buf[i]));
		DONE(n->cq, buf[i], RECEIVED, &entry);
		CHECK_EQ(entry.len, 100 * i);
		CHECK_FILLED("an early message", buf[i], 100 * i, 0, i);
	}
	gdrfab_stats stats;
	memset(&stats, 0, sizeof stats);
	stats.struct_size = sizeof stats;
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
			POST(n->cq, gdrfab_send(n->ep, out, len, local_desc(n, out, len), 0, out));
		POST(n->cq, gdrfab_recv(n->ep, in, len, local_desc(n, in, len), 0, in));
		meet_if_hasty(n);
		if (!first)
			POST(n->cq, gdrfab_send(n->ep, out, len, local_desc(n, out, len), 0, out));
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
	while (posted < 65536 && (rc = gdrfab_recv(n->ep, &in, 1, local_desc(n, &in, 1), 0, NULL)) == 0)
		posted++;
	/* More than was promised is fine; what is refused is refused with a remedy. */
	CHECK_EITHER(rc, -EAGAIN, 0);
	CHECK(posted >= limit);
	barrier(n);
	for (size_t i = 0; i < limit; i++) {
		POST(n->cq, gdrfab_send(n->ep, &byte, 1, local_desc(n, &byte, 1), 0, NULL));
		for (int left = 2; left > 0; left--)
			CHECK_EQ(cq_next(n->cq, &entry, 10000), 1);
	}
	/* There is room again. */
	OK(gdrfab_recv(n->ep, &in, 1, local_desc(n, &in, 1), 0, NULL));
	node_down(n);
}

TEST_WITHIN(40, receive_queue_full)
{
	struct setup s = {.cq_size = 65536};
	pair(&s, full_side, full_side, NULL);
}

/* --- other settings of the provider --- */

struct variant {
	const char *variable, *value;
	const struct buffers *buffers;
};

static void with_setting(const void *arg)
{
	const struct variant *v = (const struct variant *)arg;
	setenv(v->variable, v->value, 1);
	pair(NULL, call_receiver, call_sender, v->buffers);
}

static void order_with_setting(const void *arg)
{
	static const size_t some_kilobytes = 0;
	const struct variant *v = (const struct variant *)arg;
	setenv(v->variable, v->value, 1);
	pair(NULL, order_receiver, order_sender, strstr(v->variable, "AREA") ? &some_kilobytes : NULL);
}

TEST_TABLE(settings)
{
	static const struct {
		const char *provider;
		struct variant variant;
	} all[] = {
		{"shm", {"GDRFAB_SHM_PATHS", "staged", NULL}},
		{"shm", {"GDRFAB_SHM_EAGER_MAX", "0", NULL}},
		{"shm", {"GDRFAB_SHM_EAGER_MAX", "8192", NULL}},
		{"shm", {"GDRFAB_SHM_AREA_MAX", "131072", NULL}},
		{"shm", {"GDRFAB_SHM_RING_SLOTS", "256", NULL}},
		/* Every message has to be asked for; one at a time; and frames that fit no buffer. */
		{"tcp", {"GDRFAB_TCP_BUDGET", "0", NULL}},
		{"tcp", {"GDRFAB_TCP_BUDGET", "5000", NULL}},
		{"tcp", {"GDRFAB_TCP_WINDOW", "1", NULL}},
		{"tcp", {"GDRFAB_TCP_BUFFER", "32768", NULL}},
	};
	static struct variant variants[sizeof all / sizeof all[0]];
	size_t count = 0;
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		if (strcmp(all[i].provider, provider()) == 0)
			variants[count++] = all[i].variant;
	char name[96];
	for (size_t i = 0; i < count; i++) {
		snprintf(name, sizeof name, "every_call_and_size_%s=%s", variants[i].variable, variants[i].value);
		test_add(name, with_setting, &variants[i], 40);
		snprintf(name, sizeof name, "ten_thousand_in_order_%s=%s", variants[i].variable, variants[i].value);
		test_add(name, order_with_setting, &variants[i], 40);
	}
}

/* --- memory of devices --- */

static void every_call(const void *arg)
{
	pair(NULL, call_receiver, call_sender, arg);
}

static void too_long(const void *arg)
{
	pair(NULL, short_receiver, long_sender, arg);
}

static void add(const struct memkind *from, const struct memkind *to, bool described)
{
	static struct buffers list[5 * DEVICE_KINDS];
	static struct variant staged[5 * DEVICE_KINDS];
	static size_t used;
	struct buffers *b = &list[used];
	char name[96];
	b->from = from;
	b->to = to;
	b->described = described;
	snprintf(name, sizeof name, "every_call_and_size_%s_to_%s", from->name, to->name);
	test_add(name, every_call, b, 40);
	snprintf(name, sizeof name, "too_long_for_the_receive_%s_to_%s", from->name, to->name);
	if (test_count(1, 0) || from == to)
		test_add(name, too_long, b, 40);
	/* Without any mapping, what a vendor's memory can always do. */
	if (from == to && from->alloc != cuda_kinds[0].alloc && test_count(1, 0) && path_known(PATH_DIRECT)) {
		struct variant v = {"GDRFAB_SHM_PATHS", "staged", b};
		staged[used] = v;
		snprintf(name, sizeof name, "every_call_and_size_%s_to_%s_staged", from->name, to->name);
		test_add(name, with_setting, &staged[used], 40);
	}
	used++;
}

TEST_TABLE(devices)
{
	size_t kinds = device_kinds_list();
	for (size_t k = 0; k < kinds; k++) {
		const struct memkind *kind = device_kinds[k];
		if (!kind->opaque)
			continue;
		if (test_count(1, 0) || kind->alloc != cuda_kinds[0].alloc)
			add(kind, kind, false);
		/* One of a vendor's kinds is enough for what concerns the host's side. */
		if (kind->alloc == cuda_kinds[0].alloc)
			continue;
		add(&memkinds[KIND_MALLOC], kind, false);
		if (test_count(0, 1))
			continue;
		add(kind, &memkinds[KIND_MALLOC], false);
		add(&memkinds[KIND_MEM_ALLOC], kind, true);
	}
}
