/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Messages of every kind and length mixed, both ways, with fewer receives than messages. None overtakes another, and
 * a buffer whose send has completed, or that was injected, may be overwritten at once. ofi_rxm and an MPI above it
 * use an endpoint like this.
 */
#include "fi.h"

#define SENT (FI_SEND | FI_MSG)
#define RECEIVED (FI_RECV | FI_MSG)
#define ROOM ((size_t)17000)

enum { RECVS = 16, SENDS = 32 };

struct lane {
	unsigned char *in[RECVS], *out[SENDS];
	bool busy[SENDS];
	uint64_t sent, ended, came, total;
	int order[SENDS]; /* buffers of the sends under way, in order */
	int head, tail;
	uint64_t seed;
};

/* The properties of message i, which both sides compute alike. */
struct shape {
	size_t len;
	int call;
	uint32_t seed;
};

static struct shape shape_of(const struct node *n, enum test_side from, uint64_t i)
{
	uint64_t seed = (i + 1) * 2654435761u + (uint64_t)from * 977;
	for (int k = 0; k < 3; k++)
		test_random(&seed);
	struct shape s;
	s.call = (int)(test_random(&seed) % 6);
	s.len = test_random(&seed) % 4 ? test_random(&seed) % 200 : test_random(&seed) % ROOM;
	if (s.call < 2)
		s.len %= n->info->tx_attr->inject_size + 1;
	s.seed = (uint32_t)i;
	return s;
}

static ssize_t post(struct node *n, const struct shape *s, unsigned char *at, void *context, uint64_t i)
{
	void *desc = local_desc(n, at, s->len ? s->len : 1);
	struct iovec iov[2] = {{at, s->len / 2}, {at + s->len / 2, s->len - s->len / 2}};
	void *descs[2] = {desc, desc};
	struct fi_msg msg = {iov, desc ? descs : NULL, 2, 0, context, i & 0xffff};
	switch (s->call) {
	case 0: return fi_inject(n->ep, at, s->len, 0);
	case 1: return fi_injectdata(n->ep, at, s->len, i & 0xffff, 0);
	case 2: return fi_senddata(n->ep, at, s->len, desc, i & 0xffff, 0, context);
	case 3: return fi_sendv(n->ep, iov, msg.desc, 2, 0, context);
	case 4: return fi_sendmsg(n->ep, &msg, FI_COMPLETION | FI_REMOTE_CQ_DATA);
	default: return fi_send(n->ep, at, s->len, desc, 0, context);
	}
}

static bool carries_data(int call)
{
	return call == 1 || call == 2 || call == 4;
}

/* Posts as many as are accepted, up to the number of buffers. */
static void send_some(struct node *n, struct lane *l)
{
	while (l->sent < l->total) {
		struct shape s = shape_of(n, n->side, l->sent);
		int slot = 0;
		while (slot < SENDS && l->busy[slot])
			slot++;
		if (slot == SENDS)
			return;
		fill(l->out[slot], s.len, 0, s.seed);
		ssize_t rc = post(n, &s, l->out[slot], l->out[slot], l->sent);
		if (rc == -FI_EAGAIN)
			return;
		if (rc != 0)
			test_fail(__FILE__, __LINE__, "message %d by call %d, %zu bytes: %s", (int)l->sent, s.call,
				  s.len, test_number(rc));
		l->sent++;
		if (s.call < 2) {
			/* An injected buffer is the caller's again. */
			memset(l->out[slot], 0xdd, s.len);
			continue;
		}
		l->busy[slot] = true;
		l->order[l->tail++ % SENDS] = slot;
	}
}

static void take_received(struct node *n, struct lane *l, const done *entry)
{
	enum test_side from = n->side == TEST_SERVER ? TEST_CLIENT : TEST_SERVER;
	struct shape s = shape_of(n, from, l->came);
	size_t slot = l->came % RECVS;
	if (entry->op_context != l->in[slot])
		test_fail(__FILE__, __LINE__, "message %d came into another receive than the oldest", (int)l->came);
	if (entry->len != s.len)
		test_fail(__FILE__, __LINE__, "message %d has %zu bytes, not %zu: another one has overtaken it",
			  (int)l->came, entry->len, s.len);
	CHECK_EQ(entry->flags, RECEIVED | (carries_data(s.call) ? FI_REMOTE_CQ_DATA : 0));
	if (carries_data(s.call))
		CHECK_EQ(entry->data, l->came & 0xffff);
	CHECK_FILLED("the message", l->in[slot], s.len, 0, s.seed);
	l->came++;
	/* Sometimes the receiver is slow. */
	if (test_random(&l->seed) % 200 == 0)
		usleep(500);
	if (l->came + RECVS <= l->total)
		POST(n->cq, fi_recv(n->ep, l->in[slot], ROOM, local_desc(n, l->in[slot], ROOM), 0, l->in[slot]));
}

static void mix(struct node *n)
{
	struct lane l;
	memset(&l, 0, sizeof l);
	l.total = (uint64_t)test_count(20000, 1000);
	l.seed = (uint64_t)n->side + 1;
	node_up(n);
	CHECK(n->info->tx_attr->iov_limit >= 2);
	for (int i = 0; i < RECVS; i++)
		l.in[i] = (unsigned char *)pages(ROOM);
	for (int i = 0; i < SENDS; i++)
		l.out[i] = (unsigned char *)pages(ROOM);
	for (int i = 0; i < RECVS; i++)
		POST(n->cq, fi_recv(n->ep, l.in[i], ROOM, local_desc(n, l.in[i], ROOM), 0, l.in[i]));
	for (int i = 0; i < SENDS; i++)
		local_desc(n, l.out[i], ROOM);
	barrier(n);
	while (l.sent < l.total || l.head != l.tail || l.came < l.total) {
		done entry;
		send_some(n, &l);
		int got = cq_next(n->cq, &entry, l.sent < l.total ? 0 : 10000);
		if (got < 0)
			DONE(n->cq, NULL, 0, NULL);
		if (got == 0 && l.sent < l.total)
			continue;
		CHECK_EQ(got, 1);
		if (entry.flags & FI_RECV) {
			take_received(n, &l, &entry);
			continue;
		}
		CHECK_EQ(entry.flags, SENT);
		CHECK(l.head != l.tail);
		int slot = l.order[l.head++ % SENDS];
		if (!(n->info->tx_attr->comp_order & FI_ORDER_STRICT))
			for (slot = 0; slot < SENDS && entry.op_context != l.out[slot]; slot++)
				;
		CHECK(slot < SENDS && l.busy[slot] && entry.op_context == l.out[slot]);
		l.busy[slot] = false;
		memset(l.out[slot], 0xcc, 300);
	}
	barrier(n);
	QUIET(n->cq, 0);
	local_forget_all(n);
	for (int i = 0; i < RECVS; i++)
		free(l.in[i]);
	for (int i = 0; i < SENDS; i++)
		free(l.out[i]);
	node_down(n);
}

TEST_WITHIN(60, mixed)
{
	pair(NULL, mix, mix, NULL);
}

/* The same with other settings, which may use other code paths. */
TEST_WITHIN(60, mixed_auto_progress)
{
	struct setup setup = {.progress = FI_PROGRESS_AUTO};
	pair(&setup, mix, mix, NULL);
}

TEST_WITHIN(60, mixed_one_thread)
{
	struct setup setup = {.threading = FI_THREAD_DOMAIN};
	pair(&setup, mix, mix, NULL);
}

TEST_WITHIN(60, mixed_with_a_small_queue)
{
	struct setup setup = {.tx_size = 8, .rx_size = RECVS};
	pair(&setup, mix, mix, NULL);
}

/* --- completions in the order of posting --- */

/* ofi_rxm splits long messages and takes the last piece's completion for that of all, whatever comp_order says. If
 * comp_order is strict, this holds for writes and reads as well; in libfabric's own tcp it does not hold for reads. */
enum { BATCH = 24 };

static void orderly_sender(struct node *n)
{
	unsigned char *at = (unsigned char *)pages(BATCH * ROOM);
	node_up(n);
	struct remote r = mr_fetch(n);
	bool with_rma = n->info->tx_attr->comp_order & FI_ORDER_STRICT;
	void *desc = local_desc(n, at, BATCH * ROOM);
	uint64_t seed = 5;
	for (int round = 0; round < test_count(200, 20); round++) {
		uint64_t flags[BATCH];
		barrier(n);
		for (size_t i = 0; i < BATCH; i++) {
			size_t len = i % 2 ? test_random(&seed) % 100 : test_random(&seed) % ROOM;
			unsigned char *from = at + i * ROOM;
			int what = (int)(test_random(&seed) % (with_rma ? is_gdrfab() ? 3 : 2 : 1));
			flags[i] = what == 0 ? SENT : FI_RMA | (what == 1 ? FI_WRITE : FI_READ);
			if (what == 0)
				POST(n->cq, fi_send(n->ep, from, len, desc, 0, from));
			else if (what == 1)
				POST(n->cq, fi_write(n->ep, from, len + 1, desc, 0, r.base, r.key, from));
			else
				POST(n->cq, fi_read(n->ep, from, len + 1, desc, 0, r.base, r.key, from));
		}
		for (size_t i = 0; i < BATCH; i++)
			DONE(n->cq, at + i * ROOM, flags[i], NULL);
		int sends = 0;
		for (size_t i = 0; i < BATCH; i++)
			sends += flags[i] == SENT;
		oob_send(n, &sends, sizeof sends);
		barrier(n);
	}
	local_forget_all(n);
	free(at);
	node_down(n);
}

static void orderly_receiver(struct node *n)
{
	unsigned char *at = (unsigned char *)pages(BATCH * ROOM), *target = (unsigned char *)pages(ROOM);
	node_up(n);
	struct fid_mr *mr = mr_new(n, target, ROOM, FI_REMOTE_READ | FI_REMOTE_WRITE);
	mr_publish(n, mr, target, ROOM);
	void *desc = local_desc(n, at, BATCH * ROOM);
	int left = 0;
	for (int round = 0; round < test_count(200, 20); round++) {
		int sends;
		for (; left < BATCH; left++)
			POST(n->cq, fi_recv(n->ep, at, ROOM, desc, 0, at));
		barrier(n);
		oob_recv(n, &sends, sizeof sends);
		for (; sends > 0; sends--, left--)
			DONE(n->cq, at, RECEIVED, NULL);
		barrier(n);
	}
	barrier(n);
	CLOSE(n->ep);
	n->ep = NULL;
	CLOSE(mr);
	node_close(n);
	free(target);
	free(at);
}

TEST_WITHIN(30, completions_in_order)
{
	pair(NULL, orderly_receiver, orderly_sender, NULL);
}

/* --- one message after the other --- */

/* Like fi_pingpong through ofi_rxm: many receives are posted, one message is under way at a time, and the send's
 * completion is taken whenever it comes. Nothing but the messages drives either side. */
static void pingpong(struct node *n)
{
	unsigned char *in = (unsigned char *)pages(RECVS * ROOM), *out = (unsigned char *)pages(ROOM);
	uint64_t sent = 0, ended = 0, came = 0, rounds = (uint64_t)test_count(20000, 500);
	node_up(n);
	void *in_desc = local_desc(n, in, RECVS * ROOM), *out_desc = local_desc(n, out, ROOM);
	for (size_t i = 0; i < RECVS; i++)
		POST(n->cq, fi_recv(n->ep, in + i * ROOM, ROOM, in_desc, 0, in + i * ROOM));
	barrier(n);
	bool mine = n->side == TEST_CLIENT;
	while (came < rounds || sent < rounds || ended < sent) {
		done entry;
		if (mine && sent < rounds && ended == sent) {
			size_t len = sent % 97 == 96 ? ROOM - sent % 1000 : sent / 64 % 200;
			bool inject = sent % 2 && len <= n->info->tx_attr->inject_size;
			fill(out, len, 0, (uint32_t)sent);
			if (inject)
				POST(n->cq, fi_inject(n->ep, out, len, 0));
			else
				POST(n->cq, fi_send(n->ep, out, len, out_desc, 0, out));
			sent++;
			ended += inject;
			mine = false;
			continue;
		}
		int got = cq_next(n->cq, &entry, 10000);
		if (got != 1)
			test_fail(__FILE__, __LINE__, "%s after %d sent, %d completed, %d received",
				  got ? "a failure" : "nothing", (int)sent, (int)ended, (int)came);
		if (entry.flags == SENT) {
			ended++;
			continue;
		}
		size_t len = came % 97 == 96 ? ROOM - came % 1000 : came / 64 % 200;
		unsigned char *at = in + came % RECVS * ROOM;
		CHECK(entry.op_context == at);
		CHECK_EQ(entry.len, len);
		CHECK_FILLED("the message", at, len, 0, (uint32_t)came);
		POST(n->cq, fi_recv(n->ep, at, ROOM, in_desc, 0, at));
		came++;
		mine = true;
	}
	barrier(n);
	CLOSE(n->ep);
	n->ep = NULL;
	local_forget_all(n);
	node_close(n);
	free(in);
	free(out);
}

TEST_WITHIN(60, ping_pong)
{
	pair(NULL, pingpong, pingpong, NULL);
}
