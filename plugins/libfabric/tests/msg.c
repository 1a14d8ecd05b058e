/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Messages by every call that sends or receives: bytes, lengths, data, flags, and messages that are too long. */
#include "fi.h"

#define SENT (FI_SEND | FI_MSG)
#define RECEIVED (FI_RECV | FI_MSG)
#define LARGEST ((size_t)8 << 20)
#define PIECES 16

enum by { SEND, SENDV, SENDMSG, SENDDATA, INJECT, INJECTDATA, SENDMSG_DATA, SENDMSG_INJECT, SEND_WAYS };
enum into { RECV, RECVV, RECVMSG, RECV_WAYS };

static const char *const by_name[] = {"send",	"sendv",      "sendmsg",      "senddata",
				      "inject", "injectdata", "sendmsg_data", "sendmsg_inject"};
static const char *const into_name[] = {"recv", "recvv", "recvmsg"};

struct way {
	enum by by;
	enum into into;
};
static const struct way ways[] = {
	{SEND, RECV},	{SENDV, RECVV},	  {SENDMSG, RECVMSG},	 {SENDDATA, RECV},	  {INJECT, RECVV},
	{INJECTDATA, RECVMSG}, {SENDMSG_DATA, RECVV}, {SENDMSG_INJECT, RECV}, {SENDV, RECV}, {SEND, RECVV},
};
#define WAYS (sizeof ways / sizeof ways[0])

static const size_t sizes[] = {0,    1,	    7,	   8,	  63,	   64,	    65,	     128,	1000,	     4095,
			       4096, 4097, 8192, 16384, 65536, 65537, 300001, 1 << 20, LARGEST - 1, LARGEST};
#define SIZES (sizeof sizes / sizeof sizes[0])

static bool with_data(enum by by)
{
	return by == SENDDATA || by == INJECTDATA || by == SENDMSG_DATA;
}

static bool injected(enum by by)
{
	return by == INJECT || by == INJECTDATA || by == SENDMSG_INJECT;
}

/* Cuts a buffer into `count` pieces of different lengths; with few bytes some are empty. */
static size_t cut(struct iovec *iov, size_t count, unsigned char *at, size_t len)
{
	if (count > PIECES)
		count = PIECES;
	for (size_t i = 0; i < count; i++) {
		size_t piece = i + 1 < count ? len / count + (i & 1) : len;
		if (piece > len)
			piece = len;
		iov[i].iov_base = at;
		iov[i].iov_len = piece;
		at += piece;
		len -= piece;
	}
	return count;
}

static void post_send(struct node *n, enum by by, unsigned char *at, size_t len, uint64_t data, void *context)
{
	struct iovec iov[PIECES];
	void *descs[PIECES], *desc = local_desc(n, at, len);
	size_t count = cut(iov, n->info->tx_attr->iov_limit, at, len);
	struct fi_msg msg = {iov, local_descs(n, iov, count, descs), count, 0, context, data};
	switch (by) {
	case SEND: POST(n->cq, fi_send(n->ep, at, len, desc, 0, context)); break;
	case SENDV: POST(n->cq, fi_sendv(n->ep, iov, msg.desc, count, 0, context)); break;
	case SENDMSG: POST(n->cq, fi_sendmsg(n->ep, &msg, FI_COMPLETION)); break;
	case SENDDATA: POST(n->cq, fi_senddata(n->ep, at, len, desc, data, 0, context)); break;
	case INJECT: POST(n->cq, fi_inject(n->ep, at, len, 0)); break;
	case INJECTDATA: POST(n->cq, fi_injectdata(n->ep, at, len, data, 0)); break;
	case SENDMSG_DATA: POST(n->cq, fi_sendmsg(n->ep, &msg, FI_REMOTE_CQ_DATA | FI_COMPLETION)); break;
	case SENDMSG_INJECT: POST(n->cq, fi_sendmsg(n->ep, &msg, FI_INJECT | FI_COMPLETION)); break;
	default: break;
	}
	/* An injected buffer is the caller's again. */
	if (injected(by))
		memset(at, 0xee, len);
}

static void post_recv(struct node *n, enum into into, unsigned char *at, size_t len, void *context)
{
	struct iovec iov[PIECES];
	void *descs[PIECES];
	size_t count = cut(iov, n->info->rx_attr->iov_limit, at, len);
	struct fi_msg msg = {iov, local_descs(n, iov, count, descs), count, 0, context, 0};
	switch (into) {
	case RECV: POST(n->cq, fi_recv(n->ep, at, len, local_desc(n, at, len), 0, context)); break;
	case RECVV: POST(n->cq, fi_recvv(n->ep, iov, msg.desc, count, 0, context)); break;
	case RECVMSG: POST(n->cq, fi_recvmsg(n->ep, &msg, FI_COMPLETION)); break;
	default: break;
	}
}

static size_t bounded(const struct node *n, const struct way *w, size_t i)
{
	size_t len = sizes[i], most = n->info->tx_attr->inject_size;
	return injected(w->by) && len > most ? (i & 1 ? most : most / 2) : len;
}

static void sender(struct node *n)
{
	const struct way *w = (const struct way *)n->arg;
	unsigned char *at = (unsigned char *)pages(LARGEST);
	node_up(n);
	CHECK(n->info->ep_attr->max_msg_size >= LARGEST);
	CHECK(n->info->tx_attr->inject_size > 0 && n->info->tx_attr->iov_limit > 0);
	local_desc(n, at, LARGEST);
	for (size_t i = 0; i < SIZES; i++) {
		size_t len = bounded(n, w, i);
		barrier(n);
		oob_send(n, &len, sizeof len);
		fill(at, len, 0, (uint32_t)i);
		/* The first half of the sizes finds a receive waiting; the others are sent before there is one. */
		if (i % 2 == 0)
			barrier(n);
		post_send(n, w->by, at, len, cq_data(n, 0x1122334455667788ull * (i + 1)), &at);
		if (i % 2 == 1)
			barrier(n);
		if (w->by != INJECT && w->by != INJECTDATA)
			DONE(n->cq, &at, SENT, NULL);
		barrier(n);
		QUIET(n->cq, 0);
	}
	local_forget_all(n);
	free(at);
	node_down(n);
}

static void receiver(struct node *n)
{
	const struct way *w = (const struct way *)n->arg;
	unsigned char *at = (unsigned char *)pages(LARGEST + 4096);
	node_up(n);
	local_desc(n, at, LARGEST + 4096);
	for (size_t i = 0; i < SIZES; i++) {
		size_t len;
		done entry;
		barrier(n);
		oob_recv(n, &len, sizeof len);
		memset(at, 0x5a, len + 64);
		if (i % 2 == 1)
			barrier(n);
		/* Exactly as long as needed, or longer. */
		post_recv(n, w->into, at, i % 3 ? len : len + 50, &at[1]);
		if (i % 2 == 0)
			barrier(n);
		DONE(n->cq, &at[1], RECEIVED | (with_data(w->by) ? FI_REMOTE_CQ_DATA : 0), &entry);
		CHECK_EQ(entry.len, len);
		CHECK_FILLED("the message", at, len, 0, (uint32_t)i);
		for (size_t beyond = len; beyond < len + 64; beyond++)
			CHECK_EQ(at[beyond], 0x5a);
		if (with_data(w->by))
			CHECK_EQ(entry.data, cq_data(n, 0x1122334455667788ull * (i + 1)));
		barrier(n);
		QUIET(n->cq, 0);
	}
	local_forget_all(n);
	free(at);
	node_down(n);
}

static void sizes_by(const void *arg)
{
	pair(NULL, receiver, sender, arg);
}

TEST_TABLE(ways)
{
	char name[96];
	for (size_t i = 0; i < WAYS; i++) {
		snprintf(name, sizeof name, "%s_to_%s", by_name[ways[i].by], into_name[ways[i].into]);
		test_add(name, sizes_by, &ways[i], 30);
	}
}

/* --- many at once, in order --- */

enum { MANY = 2000 };

static void many_sender(struct node *n)
{
	static unsigned char at[MANY * 8];
	int posted = 0, ended = 0;
	uint64_t until = test_now_ms() + (uint64_t)test_ms(15000);
	node_up(n);
	fill(at, sizeof at, 0, 7);
	void *desc = local_desc(n, at, sizeof at);
	barrier(n);
	while (ended < MANY) {
		ssize_t rc = posted < MANY ? fi_send(n->ep, at + 8 * posted, 8, desc, 0, at + posted) : -FI_EAGAIN;
		if (rc == 0) {
			posted++;
			continue;
		}
		CHECK_EQ(rc, -FI_EAGAIN);
		/* A refusal need not wait for a completion: the peer may have to make room. */
		if (ended == posted) {
			CHECK(test_now_ms() < until);
			drive(n);
			continue;
		}
		DONE(n->cq, at + ended, SENT, NULL);
		ended++;
	}
	node_down(n);
}

static void many_receiver(struct node *n)
{
	static unsigned char at[MANY * 8];
	int posted = 0;
	done entry;
	node_up(n);
	void *desc = local_desc(n, at, sizeof at);
	barrier(n);
	for (int ended = 0; ended < MANY; ended++) {
		while (posted < MANY && fi_recv(n->ep, at + 8 * posted, 8, desc, 0, at + posted) == 0)
			posted++;
		DONE(n->cq, at + ended, RECEIVED, &entry);
		CHECK_EQ(entry.len, 8);
	}
	CHECK_FILLED("the messages", at, sizeof at, 0, 7);
	node_down(n);
}

TEST(in_order)
{
	pair(NULL, many_receiver, many_sender, NULL);
}

/* --- both directions at once --- */

static void exchange(struct node *n)
{
	size_t len = 1 << 20;
	unsigned char *out = (unsigned char *)pages(len), *in = (unsigned char *)pages(len);
	node_up(n);
	for (uint32_t i = 0; i < 10; i++) {
		done entry;
		uint64_t seen = 0;
		fill(out, len, 0, i + 100 * (uint32_t)n->side);
		post_recv(n, RECV, in, len, in);
		post_send(n, SEND, out, len, 0, out);
		while (seen != (SENT | RECEIVED)) {
			int came = cq_next(n->cq, &entry, 10000);
			CHECK_EQ(came, 1);
			CHECK(entry.flags == SENT ? entry.op_context == out : entry.op_context == in);
			seen |= entry.flags;
		}
		CHECK_FILLED("what came", in, len, 0,
			     i + 100 * (uint32_t)(n->side == TEST_SERVER ? TEST_CLIENT : TEST_SERVER));
	}
	barrier(n);
	local_forget_all(n);
	free(out);
	free(in);
	node_down(n);
}

TEST(both_directions)
{
	pair(NULL, exchange, exchange, NULL);
}
