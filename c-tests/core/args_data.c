/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Calls every function of the data path and of the queues wrongly, on a connected endpoint: nothing is posted, read or
 * written, and the connection works as before.
 */
#include "misuse.h"

#include <sys/uio.h>

#define GARBAGE_FLAGS (1ull << 5 | 1ull << 62)
#define MANY 4096

static void partner(struct node *n)
{
	struct mem m;
	static char in[64];
	node_up(n);
	mem_new(n, &m, &memkinds[KIND_MEM_ALLOC], 8192);
	fill(m.addr, 8192, 0, 1);
	mem_register(n, &m, 0, 8192, REMOTE_ACCESS, 0);
	mem_publish(n, &m);
	barrier(n);
	CHECK_FILLED("the target of what was never posted", m.addr, 8192, 0, 1);
	QUIET(n->cq, 5);
	POST(n->cq, gdrfab_recv(n->ep, in, sizeof in, local_desc(n, in, sizeof in), 0, in));
	barrier(n);
	done e;
	DONE(n->cq, in, GDRFAB_RECV, &e);
	CHECK_EQ(e.len, 4);
	barrier(n);
	mem_end(n, &m);
	node_down(n);
}

/* Checks that the connection still works. */
static void still_well(struct node *n)
{
	QUIET(n->cq, 5);
	barrier(n);
	barrier(n);
	static char well[] = "well";
	POST(n->cq, gdrfab_send(n->ep, well, 4, local_desc(n, well, 4), 0, n));
	DONE(n->cq, n, GDRFAB_SEND, NULL);
	barrier(n);
	node_down(n);
}

static char buf[4096];
static struct iovec many[MANY];
static void *descs[MANY]; /* one for each possible piece */

static void misuses_messages(struct node *n)
{
	node_up(n);
	mem_fetch(n);
	gdrfab_ep *ep = n->ep;
	struct iovec one = {buf, 64}, hole = {NULL, 64}, endless[2] = {{buf, SIZE_MAX - 10}, {buf, 100}};
	size_t over = n->info->max_msg_size + 1;
	void *desc = local_desc(n, buf, sizeof buf);
	for (int i = 0; i < MANY; i++)
		many[i] = one, descs[i] = desc;

	MISUSE(gdrfab_send(NULL, buf, 1, NULL, 0, NULL), -EINVAL, "ep");
	MISUSE(gdrfab_send(ep, NULL, 1, NULL, 0, NULL), -EINVAL, "buf");
	MISUSE_EITHER(gdrfab_send(ep, buf, over, desc, 0, NULL), -EMSGSIZE, -EINVAL, "len");
	MISUSE_EITHER(gdrfab_send(ep, buf, SIZE_MAX, desc, 0, NULL), -EMSGSIZE, -EINVAL, "len");
	MISUSE(gdrfab_sendv(NULL, &one, NULL, 1, 0, NULL), -EINVAL, "ep");
	MISUSE(gdrfab_sendv(ep, NULL, NULL, 1, 0, NULL), -EINVAL, "iov");
	MISUSE(gdrfab_sendv(ep, &hole, NULL, 1, 0, NULL), -EINVAL, "iov");
	MISUSE(gdrfab_sendv(ep, many, NULL, n->info->tx_iov_limit + 1, 0, NULL), -EINVAL, "count");
	MISUSE(gdrfab_sendv(ep, many, NULL, SIZE_MAX, 0, NULL), -EINVAL, "count");
	MISUSE_EITHER(gdrfab_sendv(ep, endless, NULL, 2, 0, NULL), -EINVAL, -EMSGSIZE, "");
	MISUSE(gdrfab_senddata(NULL, buf, 1, NULL, 1, 0, NULL), -EINVAL, "ep");
	MISUSE(gdrfab_senddata(ep, NULL, 1, NULL, 1, 0, NULL), -EINVAL, "buf");
	MISUSE(gdrfab_inject(NULL, buf, 1, 0), -EINVAL, "ep");
	MISUSE(gdrfab_inject(ep, NULL, 1, 0), -EINVAL, "buf");
	MISUSE_EITHER(gdrfab_inject(ep, buf, n->info->inject_size + 1, 0), -EMSGSIZE, -EINVAL, "len");
	MISUSE(gdrfab_injectdata(NULL, buf, 1, 1, 0), -EINVAL, "ep");
	MISUSE(gdrfab_injectdata(ep, NULL, 1, 1, 0), -EINVAL, "buf");
	MISUSE_EITHER(gdrfab_injectdata(ep, buf, SIZE_MAX, 1, 0), -EMSGSIZE, -EINVAL, "len");
	MISUSE(gdrfab_recv(NULL, buf, 1, NULL, 0, NULL), -EINVAL, "ep");
	MISUSE(gdrfab_recv(ep, NULL, 1, NULL, 0, NULL), -EINVAL, "buf");
	MISUSE(gdrfab_recvv(NULL, &one, NULL, 1, 0, NULL), -EINVAL, "ep");
	MISUSE(gdrfab_recvv(ep, NULL, NULL, 1, 0, NULL), -EINVAL, "iov");
	MISUSE(gdrfab_recvv(ep, &hole, NULL, 1, 0, NULL), -EINVAL, "iov");
	MISUSE(gdrfab_recvv(ep, many, NULL, n->info->rx_iov_limit + 1, 0, NULL), -EINVAL, "count");
	MISUSE(gdrfab_cancel(NULL, NULL), -EINVAL, "ep");

	gdrfab_msg good, bad;
	memset(&good, 0, sizeof good);
	good.struct_size = sizeof good;
	good.msg_iov = &one;
	good.desc = desc ? descs : NULL;
	good.iov_count = 1;
	MISUSE(gdrfab_sendmsg(NULL, &good, 0), -EINVAL, "ep");
	MISUSE(gdrfab_sendmsg(ep, NULL, 0), -EINVAL, "msg");
	BAD_FLAGS(gdrfab_sendmsg(ep, &good, GARBAGE_FLAGS));
	bad = good, bad.msg_iov = NULL;
	MISUSE(gdrfab_sendmsg(ep, &bad, 0), -EINVAL, "iov");
	MISUSE(gdrfab_recvmsg(ep, &bad, 0), -EINVAL, "iov");
	bad = good, bad.msg_iov = many, bad.iov_count = MANY;
	MISUSE(gdrfab_sendmsg(ep, &bad, 0), -EINVAL, "iov_count");
	MISUSE(gdrfab_recvmsg(ep, &bad, 0), -EINVAL, "iov_count");
	one.iov_len = n->info->inject_size + 1;
	MISUSE_EITHER(gdrfab_sendmsg(ep, &good, GDRFAB_INJECT), -EMSGSIZE, -EINVAL, "");
	MISUSE(gdrfab_recvmsg(NULL, &good, 0), -EINVAL, "ep");
	MISUSE(gdrfab_recvmsg(ep, NULL, 0), -EINVAL, "msg");
	BAD_FLAGS(gdrfab_recvmsg(ep, &good, GARBAGE_FLAGS));
	still_well(n);
}

TEST(messages)
{
	pair(NULL, partner, misuses_messages, NULL);
}

static void misuses_rma(struct node *n)
{
	node_up(n);
	struct remote to = mem_fetch(n);
	gdrfab_ep *ep = n->ep;
	uint64_t at = to.base, key = to.key;
	void *desc = local_desc(n, buf, sizeof buf);
	struct iovec one = {buf, 64}, hole = {NULL, 64}, endless[2] = {{buf, SIZE_MAX - 10}, {buf, 100}};
	for (int i = 0; i < MANY; i++)
		many[i] = one, descs[i] = desc;

	MISUSE(gdrfab_write(NULL, buf, 1, NULL, 0, at, key, NULL), -EINVAL, "ep");
	MISUSE(gdrfab_write(ep, NULL, 1, NULL, 0, at, key, NULL), -EINVAL, "buf");
	MISUSE(gdrfab_writev(NULL, &one, NULL, 1, 0, at, key, NULL), -EINVAL, "ep");
	MISUSE(gdrfab_writev(ep, NULL, NULL, 1, 0, at, key, NULL), -EINVAL, "iov");
	MISUSE(gdrfab_writev(ep, &hole, NULL, 1, 0, at, key, NULL), -EINVAL, "iov");
	MISUSE(gdrfab_writev(ep, many, NULL, n->info->tx_iov_limit + 1, 0, at, key, NULL), -EINVAL, "count");
	MISUSE(gdrfab_writev(ep, many, NULL, SIZE_MAX, 0, at, key, NULL), -EINVAL, "count");
	MISUSE_EITHER(gdrfab_writev(ep, endless, NULL, 2, 0, at, key, NULL), -EINVAL, -EMSGSIZE, "");
	MISUSE(gdrfab_writedata(NULL, buf, 1, NULL, 1, 0, at, key, NULL), -EINVAL, "ep");
	MISUSE(gdrfab_writedata(ep, NULL, 1, NULL, 1, 0, at, key, NULL), -EINVAL, "buf");
	MISUSE(gdrfab_inject_write(NULL, buf, 1, 0, at, key), -EINVAL, "ep");
	MISUSE(gdrfab_inject_write(ep, NULL, 1, 0, at, key), -EINVAL, "buf");
	MISUSE_EITHER(gdrfab_inject_write(ep, buf, n->info->inject_size + 1, 0, at, key), -EMSGSIZE, -EINVAL, "len");
	MISUSE(gdrfab_atomic(NULL, buf, 1, NULL, 0, at, key, GDRFAB_INT8, GDRFAB_SUM, NULL), -EINVAL, "ep");
	MISUSE(gdrfab_inject_atomic(NULL, buf, 1, 0, at, key, GDRFAB_INT8, GDRFAB_SUM), -EINVAL, "ep");
	MISUSE(gdrfab_fetch_atomic(NULL, buf, 1, NULL, buf, NULL, 0, at, key, GDRFAB_INT8, GDRFAB_SUM, NULL), -EINVAL, "ep");
	MISUSE(gdrfab_compare_atomic(NULL, buf, 1, NULL, buf, NULL, buf, NULL, 0, at, key, GDRFAB_INT8, GDRFAB_CSWAP, NULL), -EINVAL, "ep");
	MISUSE(gdrfab_atomicmsg(ep, NULL, 0), -EINVAL, "msg");
	MISUSE(gdrfab_atomicvalid(NULL, GDRFAB_INT8, GDRFAB_SUM, NULL), -EINVAL, "ep");
	MISUSE(gdrfab_fetch_atomicvalid(NULL, GDRFAB_INT8, GDRFAB_SUM, NULL), -EINVAL, "ep");
	MISUSE(gdrfab_compare_atomicvalid(NULL, GDRFAB_INT8, GDRFAB_CSWAP, NULL), -EINVAL, "ep");
	MISUSE(gdrfab_inject_writedata(NULL, buf, 1, 1, 0, at, key), -EINVAL, "ep");
	MISUSE(gdrfab_inject_writedata(ep, NULL, 1, 1, 0, at, key), -EINVAL, "buf");
	MISUSE_EITHER(gdrfab_inject_writedata(ep, buf, SIZE_MAX, 1, 0, at, key), -EMSGSIZE, -EINVAL, "len");
	MISUSE(gdrfab_read(NULL, buf, 1, NULL, 0, at, key, NULL), -EINVAL, "ep");
	MISUSE(gdrfab_read(ep, NULL, 1, NULL, 0, at, key, NULL), -EINVAL, "buf");
	MISUSE(gdrfab_readv(NULL, &one, NULL, 1, 0, at, key, NULL), -EINVAL, "ep");
	MISUSE(gdrfab_readv(ep, NULL, NULL, 1, 0, at, key, NULL), -EINVAL, "iov");
	MISUSE(gdrfab_readv(ep, &hole, NULL, 1, 0, at, key, NULL), -EINVAL, "iov");
	MISUSE(gdrfab_readv(ep, many, NULL, n->info->tx_iov_limit + 1, 0, at, key, NULL), -EINVAL, "count");

	static gdrfab_rma_iov remote[MANY];
	for (int i = 0; i < MANY; i++)
		remote[i].addr = at, remote[i].len = 64, remote[i].key = key;
	gdrfab_msg_rma good, bad;
	memset(&good, 0, sizeof good);
	good.struct_size = sizeof good;
	good.msg_iov = &one;
	good.desc = desc ? descs : NULL;
	good.iov_count = 1;
	good.rma_iov = remote;
	good.rma_iov_count = 1;
	MISUSE(gdrfab_writemsg(NULL, &good, 0), -EINVAL, "ep");
	MISUSE(gdrfab_writemsg(ep, NULL, 0), -EINVAL, "msg");
	BAD_FLAGS(gdrfab_writemsg(ep, &good, GARBAGE_FLAGS));
	MISUSE(gdrfab_readmsg(NULL, &good, 0), -EINVAL, "ep");
	MISUSE(gdrfab_readmsg(ep, NULL, 0), -EINVAL, "msg");
	BAD_FLAGS(gdrfab_readmsg(ep, &good, GARBAGE_FLAGS));
	/* A read cannot carry remote data. */
	BAD_FLAGS(gdrfab_readmsg(ep, &good, GDRFAB_REMOTE_CQ_DATA));
	bad = good, bad.msg_iov = NULL;
	MISUSE(gdrfab_writemsg(ep, &bad, 0), -EINVAL, "iov");
	MISUSE(gdrfab_readmsg(ep, &bad, 0), -EINVAL, "iov");
	bad = good, bad.rma_iov = NULL;
	MISUSE(gdrfab_writemsg(ep, &bad, 0), -EINVAL, "rma_iov");
	MISUSE(gdrfab_readmsg(ep, &bad, 0), -EINVAL, "rma_iov");
	bad = good, bad.rma_iov_count = n->info->rma_iov_limit + 1;
	MISUSE(gdrfab_writemsg(ep, &bad, 0), -EINVAL, "rma_iov");
	bad = good, bad.rma_iov_count = SIZE_MAX;
	MISUSE(gdrfab_readmsg(ep, &bad, 0), -EINVAL, "rma_iov");
	bad = good, bad.msg_iov = many, bad.iov_count = MANY;
	MISUSE(gdrfab_writemsg(ep, &bad, 0), -EINVAL, "iov_count");
	/* The local and the remote length must be equal. */
	remote[0].len = 63;
	MISUSE(gdrfab_writemsg(ep, &good, 0), -EINVAL, "rma_iov");
	remote[0].len = 65;
	MISUSE(gdrfab_readmsg(ep, &good, 0), -EINVAL, "rma_iov");
	still_well(n);
}

TEST(rma)
{
	pair(NULL, partner, misuses_rma, NULL);
}

TEST(completion_queues)
{
	struct node n;
	node_alone(&n, NULL);
	done e[2];
	uint64_t src[2] = {77, 77};
	int fd = -42;
	gdrfab_cq_err_entry err;
	memset(e, 0x5a, sizeof e);
	memset(&err, 0, sizeof err);
	err.struct_size = sizeof err;
	MISUSE(gdrfab_cq_read(NULL, e, 1), -EINVAL, "cq");
	MISUSE(gdrfab_cq_read(n.cq, NULL, 1), -EINVAL, "buf");
	MISUSE(gdrfab_cq_readfrom(NULL, e, 1, src), -EINVAL, "cq");
	MISUSE(gdrfab_cq_readfrom(n.cq, NULL, 1, src), -EINVAL, "buf");
	MISUSE(gdrfab_cq_sread(NULL, e, 1, 0), -EINVAL, "cq");
	MISUSE(gdrfab_cq_sread(n.cq, NULL, 1, 0), -EINVAL, "buf");
	MISUSE(gdrfab_cq_readerr(NULL, &err, 0), -EINVAL, "cq");
	MISUSE(gdrfab_cq_readerr(n.cq, NULL, 0), -EINVAL, "entry");
	BAD_FLAGS(gdrfab_cq_readerr(n.cq, &err, GARBAGE_FLAGS));
	MISUSE(gdrfab_cq_signal(NULL), -EINVAL, "cq");
	MISUSE(gdrfab_cq_fd(NULL, &fd), -EINVAL, "cq");
	MISUSE(gdrfab_cq_fd(n.cq, NULL), -EINVAL, "fd");
	MISUSE(gdrfab_cq_trywait(NULL), -EINVAL, "cq");
	CHECK(gdrfab_cq_strerror(NULL, GDRFAB_PROV_KEY, NULL, NULL, 0) != NULL);
	/* A huge count returns only the entries that exist. */
	WANT_EQ(gdrfab_cq_read(n.cq, e, SIZE_MAX), -EAGAIN);
	CHECK_EQ(e[0].flags, 0x5a5a5a5a5a5a5a5a);
	CHECK_EQ(src[0], 77);
	CHECK_EQ(fd, -42);
	node_close(&n);
}

TEST(event_queues)
{
	struct node n;
	node_alone(&n, NULL);
	struct event e;
	uint32_t event = 99;
	int fd = -42;
	gdrfab_eq_err_entry err;
	memset(&e, 0x5a, sizeof e);
	memset(&err, 0, sizeof err);
	err.struct_size = sizeof err;
	MISUSE(gdrfab_eq_read(NULL, &event, &e, sizeof e, 0), -EINVAL, "eq");
	MISUSE(gdrfab_eq_read(n.eq, NULL, &e, sizeof e, 0), -EINVAL, "event");
	MISUSE(gdrfab_eq_read(n.eq, &event, NULL, sizeof e, 0), -EINVAL, "buf");
	BAD_FLAGS(gdrfab_eq_read(n.eq, &event, &e, sizeof e, GARBAGE_FLAGS));
	MISUSE(gdrfab_eq_sread(NULL, &event, &e, sizeof e, 0, 0), -EINVAL, "eq");
	MISUSE(gdrfab_eq_sread(n.eq, NULL, &e, sizeof e, 0, 0), -EINVAL, "event");
	MISUSE(gdrfab_eq_sread(n.eq, &event, NULL, sizeof e, 0, 0), -EINVAL, "buf");
	BAD_FLAGS(gdrfab_eq_sread(n.eq, &event, &e, sizeof e, 0, GARBAGE_FLAGS));
	MISUSE(gdrfab_eq_readerr(NULL, &err, 0), -EINVAL, "eq");
	MISUSE(gdrfab_eq_readerr(n.eq, NULL, 0), -EINVAL, "entry");
	MISUSE(gdrfab_eq_write(NULL, 1000, &e, 8, 0), -EINVAL, "eq");
	MISUSE(gdrfab_eq_write(n.eq, 1000, NULL, 8, 0), -EINVAL, "buf");
	BAD_FLAGS(gdrfab_eq_write(n.eq, 1000, &e, 8, GARBAGE_FLAGS));
	MISUSE(gdrfab_eq_fd(NULL, &fd), -EINVAL, "eq");
	MISUSE(gdrfab_eq_fd(n.eq, NULL), -EINVAL, "fd");
	MISUSE(gdrfab_eq_trywait(NULL), -EINVAL, "eq");
	CHECK(gdrfab_eq_strerror(NULL, GDRFAB_PROV_REJECTED, NULL, NULL, 0) != NULL);
	CHECK_EQ(event, 99);
	CHECK_EQ(fd, -42);
	CHECK(e.entry.object == (void *)0x5a5a5a5a5a5a5a5a);
	WANT_EQ(gdrfab_eq_read(n.eq, &event, &e, sizeof e, 0), -EAGAIN);
	node_close(&n);
}

TEST(counters_and_the_rest)
{
	struct node n;
	node_alone(&n, NULL);
	int fd = -42;
	gdrfab_cntr *c = NULL;
	OK(gdrfab_cntr_open(n.domain, NULL, NULL, &c));
	gdrfab_cntr_read(NULL);
	gdrfab_cntr_readerr(NULL);
	MISUSE(gdrfab_cntr_add(NULL, 1), -EINVAL, "cntr");
	MISUSE(gdrfab_cntr_set(NULL, 1), -EINVAL, "cntr");
	MISUSE(gdrfab_cntr_adderr(NULL, 1), -EINVAL, "cntr");
	MISUSE(gdrfab_cntr_seterr(NULL, 1), -EINVAL, "cntr");
	MISUSE(gdrfab_cntr_wait(NULL, 1, 0), -EINVAL, "cntr");
	MISUSE(gdrfab_cntr_fd(NULL, &fd), -EINVAL, "cntr");
	MISUSE(gdrfab_cntr_fd(c, NULL), -EINVAL, "fd");
	MISUSE(gdrfab_cntr_trywait(NULL), -EINVAL, "cntr");
	OK(gdrfab_cntr_close(c));
	MISUSE(gdrfab_log_set(99, NULL, NULL), -EINVAL, "level");
	MISUSE(gdrfab_log_set(-1, NULL, NULL), -EINVAL, "level");
	CHECK_EQ(fd, -42);
	node_close(&n);
}
