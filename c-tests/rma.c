/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Every RMA call over every path to every kind of memory: sizes around the edges of cache lines, pages and rings,
 * unaligned at both ends, scattered over many iovecs, and checked byte for byte on both sides of the target.
 */
#include "fab.h"

#include <sys/uio.h>

#define TARGET_SIZE ((size_t)1536 * 1024)
#define MARGIN ((size_t)8192) /* bytes checked on both sides after each operation; all are checked at the end */
#define BASE_SEED 1u
#define MAX_IOV 16

static const size_t sizes[] = {0, 1, 63, 64, 65, 4095, 4096, 4097, 1024 * 1024 + 3};
static const size_t offsets[] = {MARGIN, MARGIN + 1, MARGIN + 4095};
#define COUNT(array) (sizeof(array) / sizeof(array)[0])

/* --- the target: checks what the initiator says it has written --- */

enum { VERIFY, END };
struct order {
	uint32_t what, seed;
	size_t offset, len;
	uint64_t announced; /* a completion with data comes along */
	uint64_t data;
};

static void check_around(const unsigned char *at, size_t total, size_t offset, size_t len, size_t margin, uint32_t seed)
{
	size_t from = offset > margin ? offset - margin : 0;
	size_t end = offset + len, to = end + margin < total ? end + margin : total;
	CHECK_FILLED("before the target bytes", at + from, offset - from, from, BASE_SEED);
	CHECK_FILLED("target bytes", at + offset, len, 0, seed);
	CHECK_FILLED("after the target bytes", at + end, to - end, end, BASE_SEED);
}

static void obey(struct node *n, struct mem *m)
{
	struct order o;
	char ack = 'k';
	for (;;) {
		oob_recv(n, &o, sizeof o);
		if (o.what == END)
			break;
		if (o.announced) {
			done entry;
			DONE(n->cq, NULL, GDRFAB_REMOTE_WRITE | GDRFAB_RMA | GDRFAB_REMOTE_CQ_DATA, &entry);
			CHECK_EQ(entry.data, o.data);
			CHECK_EQ(entry.len, o.len);
		}
		check_around(m->addr, TARGET_SIZE, o.offset, o.len, MARGIN, o.seed);
		fill(m->addr + o.offset, o.len, o.offset, BASE_SEED);
		oob_send(n, &ack, 1);
	}
	CHECK_FILLED("the whole target at the end", m->addr, TARGET_SIZE, 0, BASE_SEED);
	QUIET(n->cq, 0);
}

static void target(struct node *n)
{
	const struct way *way = (const struct way *)n->arg;
	struct mem m;
	node_up(n);
	mem_new(n, &m, way->kind, TARGET_SIZE);
	fill(m.addr, TARGET_SIZE, 0, BASE_SEED);
	way_register(n, &m, 0, TARGET_SIZE, way);
	mem_publish(n, &m);
	obey(n, &m);
	mem_end(n, &m);
	node_down(n);
}

static void order(struct node *n, const struct order *o)
{
	char ack;
	oob_send(n, o, sizeof *o);
	oob_recv(n, &ack, 1);
}

/* --- the initiator --- */

struct transfer {
	struct node *n;
	struct remote to;
	unsigned char *buf;
	size_t len, offset;
	void *desc;
	uint64_t data;
	size_t iov_limit, rma_limit;
};

/* Splits [0, len) into count pieces of unequal size, some of them empty. */
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

static void scatter(const struct transfer *t, struct iovec *iov, size_t count)
{
	size_t ends[MAX_IOV], from = 0;
	split(t->len, count, ends);
	for (size_t i = 0; i < count; i++) {
		iov[i].iov_base = t->buf + from;
		iov[i].iov_len = ends[i] - from;
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

static void put(struct transfer *t)
{
	POST(t->n->cq, gdrfab_write(t->n->ep, t->buf, t->len, t->desc, GDRFAB_ADDR_UNSPEC, there(t), t->to.key, t));
	DONE(t->n->cq, t, GDRFAB_WRITE | GDRFAB_RMA, NULL);
}

static void put_v(struct transfer *t)
{
	struct iovec iov[MAX_IOV];
	void *desc[MAX_IOV];
	scatter(t, iov, t->iov_limit);
	for (size_t i = 0; i < t->iov_limit; i++)
		desc[i] = t->desc;
	POST(t->n->cq, gdrfab_writev(t->n->ep, iov, t->desc ? desc : NULL, t->iov_limit, GDRFAB_ADDR_UNSPEC, there(t),
				     t->to.key, t));
	DONE(t->n->cq, t, GDRFAB_WRITE | GDRFAB_RMA, NULL);
}

static void rma_message(const struct transfer *t, gdrfab_msg_rma *msg, struct iovec *iov, gdrfab_rma_iov *remote)
{
	memset(msg, 0, sizeof *msg);
	scatter(t, iov, t->iov_limit);
	msg->struct_size = sizeof *msg;
	msg->msg_iov = iov;
	msg->iov_count = t->iov_limit;
	msg->addr = GDRFAB_ADDR_UNSPEC;
	msg->rma_iov = remote;
	msg->rma_iov_count = scatter_remote(t, remote);
	msg->context = (void *)t;
	msg->data = t->data;
}

static void put_msg(struct transfer *t)
{
	struct iovec iov[MAX_IOV];
	gdrfab_rma_iov remote[3];
	gdrfab_msg_rma msg;
	rma_message(t, &msg, iov, remote);
	POST(t->n->cq, gdrfab_writemsg(t->n->ep, &msg, GDRFAB_COMPLETION | GDRFAB_DELIVERY_COMPLETE));
	DONE(t->n->cq, t, GDRFAB_WRITE | GDRFAB_RMA, NULL);
}

static void put_msg_data(struct transfer *t)
{
	struct iovec iov[MAX_IOV];
	gdrfab_rma_iov remote[3];
	gdrfab_msg_rma msg;
	rma_message(t, &msg, iov, remote);
	POST(t->n->cq, gdrfab_writemsg(t->n->ep, &msg,
				       GDRFAB_COMPLETION | GDRFAB_DELIVERY_COMPLETE | GDRFAB_REMOTE_CQ_DATA));
	DONE(t->n->cq, t, GDRFAB_WRITE | GDRFAB_RMA, NULL);
}

static void put_data(struct transfer *t)
{
	POST(t->n->cq, gdrfab_writedata(t->n->ep, t->buf, t->len, t->desc, t->data, GDRFAB_ADDR_UNSPEC, there(t),
					t->to.key, t));
	DONE(t->n->cq, t, GDRFAB_WRITE | GDRFAB_RMA, NULL);
}

/* An injected write says nothing when it is done: a fenced read behind it does. */
static void fence(struct transfer *t)
{
	char byte;
	struct iovec iov = {&byte, 1};
	gdrfab_rma_iov remote = {t->to.base, 1, t->to.key};
	gdrfab_msg_rma msg;
	memset(&msg, 0, sizeof msg);
	msg.struct_size = sizeof msg;
	msg.msg_iov = &iov;
	msg.iov_count = 1;
	msg.rma_iov = &remote;
	msg.rma_iov_count = 1;
	msg.context = &byte;
	POST(t->n->cq, gdrfab_readmsg(t->n->ep, &msg, GDRFAB_COMPLETION | GDRFAB_FENCE));
	DONE(t->n->cq, &byte, GDRFAB_READ | GDRFAB_RMA, NULL);
}

static void put_inject(struct transfer *t)
{
	POST(t->n->cq, gdrfab_inject_write(t->n->ep, t->buf, t->len, GDRFAB_ADDR_UNSPEC, there(t), t->to.key));
	memset(t->buf, 0xee, t->len); /* the buffer is the caller's again at once */
	fence(t);
}

static void put_inject_data(struct transfer *t)
{
	POST(t->n->cq, gdrfab_inject_writedata(t->n->ep, t->buf, t->len, t->data, GDRFAB_ADDR_UNSPEC, there(t),
					       t->to.key));
	memset(t->buf, 0xee, t->len);
	fence(t);
}

static void get(struct transfer *t)
{
	POST(t->n->cq, gdrfab_read(t->n->ep, t->buf, t->len, t->desc, GDRFAB_ADDR_UNSPEC, there(t), t->to.key, t));
	DONE(t->n->cq, t, GDRFAB_READ | GDRFAB_RMA, NULL);
}

static void get_v(struct transfer *t)
{
	struct iovec iov[MAX_IOV];
	scatter(t, iov, t->iov_limit);
	POST(t->n->cq, gdrfab_readv(t->n->ep, iov, NULL, t->iov_limit, GDRFAB_ADDR_UNSPEC, there(t), t->to.key, t));
	DONE(t->n->cq, t, GDRFAB_READ | GDRFAB_RMA, NULL);
}

static void get_msg(struct transfer *t)
{
	struct iovec iov[MAX_IOV];
	gdrfab_rma_iov remote[3];
	gdrfab_msg_rma msg;
	rma_message(t, &msg, iov, remote);
	POST(t->n->cq, gdrfab_readmsg(t->n->ep, &msg, GDRFAB_COMPLETION));
	DONE(t->n->cq, t, GDRFAB_READ | GDRFAB_RMA, NULL);
}

static const struct {
	void (*call)(struct transfer *t);
	bool reads, injects, announces;
} calls[] = {
	{put, false, false, false},
	{put_v, false, false, false},
	{put_msg, false, false, false},
	{put_msg_data, false, false, true},
	{put_data, false, false, true},
	{put_inject, false, true, false},
	{put_inject_data, false, true, true},
	{get, true, false, false},
	{get_v, true, false, false},
	{get_msg, true, false, false},
};

static size_t at_most(size_t value, size_t limit)
{
	return value < limit ? value : limit;
}

/* One transfer into or out of the middle of a local buffer, whose edges must stay as they were. */
static void transfer(struct node *n, struct remote to, unsigned char *local, void *desc, size_t call, size_t len,
		     size_t offset, uint32_t seed)
{
	size_t lead = 64 + offset % 7, total = lead + len + 64;
	struct transfer t = {n, to, local + lead, len, offset, desc, 0x1122334455667788u * (seed + 1), 0, 0};
	t.iov_limit = at_most(n->info->tx_iov_limit, MAX_IOV);
	t.rma_limit = n->info->rma_iov_limit;

	fill(local, total, 0, 2);
	if (!calls[call].reads)
		fill(t.buf, len, 0, seed);
	calls[call].call(&t);
	CHECK_FILLED("before the local bytes", local, lead, 0, 2);
	CHECK_FILLED("after the local bytes", t.buf + len, 64, lead + len, 2);
	if (calls[call].reads) {
		CHECK_FILLED("bytes read", t.buf, len, offset, BASE_SEED);
		return;
	}
	struct order o = {VERIFY, seed, offset, len, calls[call].announces, t.data};
	order(n, &o);
}

static void initiator(struct node *n)
{
	const struct way *way = (const struct way *)n->arg;
	node_up(n);
	CHECK(n->info->tx_iov_limit >= 1);
	CHECK(n->info->rma_iov_limit >= 1);
	struct remote to = mem_fetch(n);
	way_check(n, way, to.key);

	struct mem local;
	mem_new(n, &local, &memkinds[KIND_MALLOC], TARGET_SIZE);
	mem_register(n, &local, 0, TARGET_SIZE, GDRFAB_READ | GDRFAB_WRITE, 0);
	uint32_t seed = 10;
	for (size_t call = 0; call < COUNT(calls); call++)
		for (size_t s = 0; s < COUNT(sizes); s++)
			for (size_t o = 0; o < (sizes[s] > 65536 ? 1 : COUNT(offsets)); o++) {
				if (calls[call].injects && sizes[s] > n->info->inject_size)
					continue;
				/* A local registration may be passed or left out. */
				void *desc = o & 1 ? gdrfab_mr_desc(local.mr) : NULL;
				transfer(n, to, local.addr, desc, call, sizes[s], offsets[(o + s) % 3], seed++);
			}
	gdrfab_stats stats;
	memset(&stats, 0, sizeof stats);
	stats.struct_size = sizeof stats;
	OK(gdrfab_ep_stats(n->ep, &stats));
	uint64_t bytes[PATHS] = {stats.bytes_direct, stats.bytes_cma, stats.bytes_staged};
	for (int p = 0; p < PATHS; p++)
		if ((bytes[p] > 0) != (way->path == &paths[p]))
			test_fail(__FILE__, __LINE__, "%llu bytes went the path %s, asked for was %s",
				  (unsigned long long)bytes[p], paths[p].name, way->path->name);
	CHECK_EQ(stats.errors, 0);

	struct order end = {END, 0, 0, 0, 0, 0};
	oob_send(n, &end, sizeof end);
	mem_end(n, &local);
	node_down(n);
}

static void every_call(const void *arg)
{
	pair(NULL, target, initiator, arg);
}

/* --- offsets instead of virtual addresses, requested keys --- */

static void offset_target(struct node *n)
{
	struct mem m;
	node_up(n);
	CHECK_EQ(n->request->mr_mode & (GDRFAB_MR_VIRT_ADDR | GDRFAB_MR_PROV_KEY), 0);
	mem_new(n, &m, &memkinds[KIND_MEM_ALLOC], TARGET_SIZE);
	fill(m.addr, TARGET_SIZE, 0, BASE_SEED);
	OK(mem_try_register(n, &m, 0, TARGET_SIZE, REMOTE_ACCESS, 0, 4711));
	CHECK_EQ(m.key, 4711);
	CHECK_EQ(m.base, 0);
	barrier(n);
	obey(n, &m);
	mem_end(n, &m);
	node_down(n);
}

static void offset_initiator(struct node *n)
{
	node_up(n);
	barrier(n);
	struct remote to = {4711, 0, TARGET_SIZE};
	unsigned char *local = (unsigned char *)malloc(TARGET_SIZE);
	for (size_t s = 0; s < COUNT(sizes); s++) {
		transfer(n, to, local, NULL, 0, sizes[s], MARGIN + 17, 20 + (uint32_t)s);
		transfer(n, to, local, NULL, 7, sizes[s], MARGIN + 17, 40 + (uint32_t)s);
	}
	struct order end = {END, 0, 0, 0, 0, 0};
	oob_send(n, &end, sizeof end);
	free(local);
	node_down(n);
}

TEST(offset_addressing_and_requested_keys)
{
	struct setup s = {.offsets = true};
	pair(&s, offset_target, offset_initiator, NULL);
}

/* The same with a setting of the provider changed: what is slower or smaller is as correct. */
struct variant {
	const char *variable, *value;
	int path, kind;
	const struct way *way;
};

static struct variant variants[] = {
	{"GDRFAB_SHM_PIDFD", "0", PATH_DIRECT, KIND_MEM_ALLOC, NULL},
	{"GDRFAB_SHM_PIDFD", "0", PATH_DIRECT, KIND_MEMFD, NULL},
	{"GDRFAB_SHM_MEMBARRIER", "0", PATH_DIRECT, KIND_MEM_ALLOC, NULL},
	{"GDRFAB_SHM_MEMBARRIER", "0", PATH_STAGED, KIND_MALLOC, NULL},
	{"GDRFAB_SHM_NT_THRESHOLD", "4096", PATH_DIRECT, KIND_MEM_ALLOC, NULL},
	{"GDRFAB_SHM_COOP", "0", PATH_DIRECT, KIND_MEM_ALLOC, NULL},
	{"GDRFAB_SHM_COOP_MIN", "4096", PATH_DIRECT, KIND_MEM_ALLOC, NULL},
	{"GDRFAB_SHM_COOP_MIN", "4096", PATH_CMA, KIND_MALLOC, NULL},
	{"GDRFAB_SHM_RING_SLOTS", "256", PATH_STAGED, KIND_MALLOC, NULL},
	{"GDRFAB_SHM_EAGER_MAX", "0", PATH_STAGED, KIND_MALLOC, NULL},
};

static void every_call_with(const void *arg)
{
	const struct variant *v = (const struct variant *)arg;
	setenv(v->variable, v->value, 1);
	pair(NULL, target, initiator, v->way);
}

TEST_TABLE(every_call)
{
	size_t count = ways_list();
	char name[96];
	for (size_t i = 0; i < count; i++) {
		snprintf(name, sizeof name, "every_call_%s", ways[i].name);
		test_add(name, every_call, &ways[i], 60);
	}
	for (size_t v = 0; v < COUNT(variants); v++)
		for (size_t i = 0; i < count; i++) {
			if (ways[i].path != &paths[variants[v].path] || ways[i].kind != &memkinds[variants[v].kind])
				continue;
			variants[v].way = &ways[i];
			snprintf(name, sizeof name, "every_call_%s_%s=%s", ways[i].name, variants[v].variable,
				 variants[v].value);
			test_add(name, every_call_with, &variants[v], 60);
		}
}
