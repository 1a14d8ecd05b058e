/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Every RMA call, as a table: a transfer, the call that makes it, and the wait for its entry. */
#ifndef RMA_CALLS_H
#define RMA_CALLS_H

#include "fab.h"

#include <sys/uio.h>

#define MAX_IOV 16
#define COUNT(array) (sizeof(array) / sizeof(array)[0])

struct transfer {
	struct node *n;
	struct remote to;
	struct mem *local;
	unsigned char *buf; /* in local, `lead` bytes from its start */
	size_t lead, len, offset;
	void *desc;
	uint64_t data;
	size_t iov_limit, rma_limit;
};

/* Splits [0, len) into `count` pieces of unequal size, some of them empty. */
static size_t split(size_t len, size_t count, size_t *ends)
{
	size_t at = 0;
	for (size_t i = 0; i < count; i++) {
		size_t left = len - at;
		size_t piece = i + 1 == count ? left : i % 4 == 2 ? 0 : left / (count - i) + (i & 1);
		at += piece > left ? left : piece;
		ends[i] = at;
	}
	return count;
}

static void scatter(const struct transfer *t, struct iovec *iov, void **desc, size_t count)
{
	size_t ends[MAX_IOV], from = 0;
	split(t->len, count, ends);
	for (size_t i = 0; i < count; i++) {
		iov[i].iov_base = t->buf + from;
		iov[i].iov_len = ends[i] - from;
		desc[i] = t->desc;
		from = ends[i];
	}
}

static size_t scatter_remote(const struct transfer *t, gdrfab_rma_iov *iov)
{
	size_t count = t->rma_limit < 3 ? t->rma_limit : 3, ends[3], from = 0;
	split(t->len, count, ends);
	for (size_t i = 0; i < count; i++) {
		iov[i].addr = t->to.base + t->offset + from;
		iov[i].len = ends[i] - from;
		iov[i].key = t->to.key;
		from = ends[i];
	}
	return count;
}

static uint64_t there(const struct transfer *t)
{
	return t->to.base + t->offset;
}

/* Bytes in host memory that a claim about device memory causes too: fenced reads, and copies by connectionless endpoints. */
static uint64_t fenced;
/* An injected write has no entry: a fenced read behind it shows that it is done. */
static void fence(struct transfer *t)
{
	char byte;
	fenced++;
	void *desc;
	struct iovec iov = {&byte, 1};
	gdrfab_rma_iov remote = {t->to.base, 1, t->to.key};
	gdrfab_msg_rma msg;
	memset(&msg, 0, sizeof msg);
	msg.struct_size = sizeof msg;
	msg.msg_iov = &iov;
	msg.desc = local_descs(t->n, &iov, 1, &desc);
	msg.iov_count = 1;
	msg.rma_iov = &remote;
	msg.rma_iov_count = 1;
	msg.addr = PEER;
	msg.context = &byte;
	POST(t->n->cq, gdrfab_readmsg(t->n->ep, &msg, GDRFAB_COMPLETION | GDRFAB_FENCE));
	DONE(t->n->cq, &byte, GDRFAB_READ | GDRFAB_RMA, NULL);
}

static void put(struct transfer *t)
{
	POST(t->n->cq, gdrfab_write(t->n->ep, t->buf, t->len, t->desc, PEER, there(t), t->to.key, t));
	DONE(t->n->cq, t, GDRFAB_WRITE | GDRFAB_RMA, NULL);
}

static void put_v(struct transfer *t)
{
	struct iovec iov[MAX_IOV];
	void *desc[MAX_IOV];
	scatter(t, iov, desc, t->iov_limit);
	POST(t->n->cq, gdrfab_writev(t->n->ep, iov, t->desc ? desc : NULL, t->iov_limit, PEER, there(t),
				     t->to.key, t));
	DONE(t->n->cq, t, GDRFAB_WRITE | GDRFAB_RMA, NULL);
}

struct message {
	gdrfab_msg_rma msg;
	struct iovec iov[MAX_IOV];
	void *desc[MAX_IOV];
	gdrfab_rma_iov remote[3];
};

static const gdrfab_msg_rma *rma_message(const struct transfer *t, struct message *m)
{
	memset(&m->msg, 0, sizeof m->msg);
	scatter(t, m->iov, m->desc, t->iov_limit);
	m->msg.struct_size = sizeof m->msg;
	m->msg.msg_iov = m->iov;
	m->msg.desc = t->desc ? m->desc : NULL;
	m->msg.iov_count = t->iov_limit;
	m->msg.addr = PEER;
	m->msg.rma_iov = m->remote;
	m->msg.rma_iov_count = scatter_remote(t, m->remote);
	m->msg.context = (void *)t;
	m->msg.data = t->data;
	return &m->msg;
}

static void put_msg(struct transfer *t)
{
	struct message m;
	POST(t->n->cq, gdrfab_writemsg(t->n->ep, rma_message(t, &m), GDRFAB_COMPLETION | traits()->delivery));
	DONE(t->n->cq, t, GDRFAB_WRITE | GDRFAB_RMA, NULL);
}

static void put_msg_data(struct transfer *t)
{
	struct message m;
	POST(t->n->cq, gdrfab_writemsg(t->n->ep, rma_message(t, &m),
				       GDRFAB_COMPLETION | traits()->delivery | GDRFAB_REMOTE_CQ_DATA));
	DONE(t->n->cq, t, GDRFAB_WRITE | GDRFAB_RMA, NULL);
}

/* The only inject call that takes a descriptor, and so device memory. */
static void put_msg_inject(struct transfer *t)
{
	struct message m;
	POST(t->n->cq, gdrfab_writemsg(t->n->ep, rma_message(t, &m), GDRFAB_COMPLETION | GDRFAB_INJECT));
	fenced += connectionless(t->n->setup) ? t->len : 0;
	mem_fill(t->local, t->lead, t->len, 0, 99); /* the buffer is the caller's again at once */
	DONE(t->n->cq, t, GDRFAB_WRITE | GDRFAB_RMA, NULL);
	/* Complete when the buffer may be reused; a fenced read behind it proves that the bytes are there. */
	fence(t);
}

static void put_data(struct transfer *t)
{
	POST(t->n->cq, gdrfab_writedata(t->n->ep, t->buf, t->len, t->desc, t->data, PEER, there(t),
					t->to.key, t));
	DONE(t->n->cq, t, GDRFAB_WRITE | GDRFAB_RMA, NULL);
}

static void put_inject(struct transfer *t)
{
	POST(t->n->cq, gdrfab_inject_write(t->n->ep, t->buf, t->len, PEER, there(t), t->to.key));
	memset(t->buf, 0xee, t->len); /* the buffer is the caller's again at once */
	fence(t);
}

static void put_inject_data(struct transfer *t)
{
	POST(t->n->cq, gdrfab_inject_writedata(t->n->ep, t->buf, t->len, t->data, PEER, there(t),
					       t->to.key));
	memset(t->buf, 0xee, t->len);
	fence(t);
}

static void get(struct transfer *t)
{
	POST(t->n->cq, gdrfab_read(t->n->ep, t->buf, t->len, t->desc, PEER, there(t), t->to.key, t));
	DONE(t->n->cq, t, GDRFAB_READ | GDRFAB_RMA, NULL);
}

static void get_v(struct transfer *t)
{
	struct iovec iov[MAX_IOV];
	void *desc[MAX_IOV];
	scatter(t, iov, desc, t->iov_limit);
	POST(t->n->cq, gdrfab_readv(t->n->ep, iov, t->desc ? desc : NULL, t->iov_limit, PEER, there(t),
				    t->to.key, t));
	DONE(t->n->cq, t, GDRFAB_READ | GDRFAB_RMA, NULL);
}

static void get_msg(struct transfer *t)
{
	struct message m;
	POST(t->n->cq, gdrfab_readmsg(t->n->ep, rma_message(t, &m), GDRFAB_COMPLETION));
	DONE(t->n->cq, t, GDRFAB_READ | GDRFAB_RMA, NULL);
}

/* Every call that moves bytes for an initiator. */
static const struct {
	void (*call)(struct transfer *t);
	bool reads, injects, announces, nameless; /* nameless: takes no descriptor */
} calls[] = {
	{put, false, false, false, false},
	{put_v, false, false, false, false},
	{put_msg, false, false, false, false},
	{put_msg_data, false, false, true, false},
	{put_data, false, false, true, false},
	{put_inject, false, true, false, true},
	{put_inject_data, false, true, true, true},
	{put_msg_inject, false, true, false, false},
	{get, true, false, false, false},
	{get_v, true, false, false, false},
	{get_msg, true, false, false, false},
};
enum { CALL_WRITE = 0, CALL_READ = 8 };

#endif
