/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Structs that carry their size (struct_size): a struct that is too short is refused, a longer one is accepted if the part
 * that the library does not know is zero, and the library writes nothing behind the caller's size.
 */
#include "fab.h"

#include <sys/uio.h>

#define MORE 32

/* An argument struct as a caller built with a later header would pass it. */
#define LATER(type)                                                                                                    \
	struct {                                                                                                       \
		type now;                                                                                              \
		unsigned char later[MORE];                                                                             \
	}

/* Calls with struct_size too small, larger with zeros behind, and larger with other bytes behind. */
#define SIZES(input, call, ok)                                                                                         \
	do {                                                                                                           \
		memset((input).later, 0, MORE);                                                                        \
		for (size_t size_ = 0; size_ < 8; size_ += 7) {                                                        \
			(input).now.struct_size = size_;                                                               \
			WANT_EQ(call, -EINVAL);                                                                        \
		}                                                                                                      \
		(input).now.struct_size = sizeof(input);                                                               \
		(input).later[MORE - 1] = 1;                                                                           \
		WANT_EQ(call, -E2BIG);                                                                                 \
		(input).later[MORE - 1] = 0;                                                                           \
		(input).later[0] = 1;                                                                                  \
		WANT_EQ(call, -E2BIG);                                                                                 \
		(input).later[0] = 0;                                                                                  \
		WANT_EQ(call, ok);                                                                                     \
		(input).now.struct_size = sizeof((input).now);                                                         \
	} while (0)

TEST(hints)
{
	LATER(gdrfab_info) hints;
	gdrfab_info *info = NULL;
	memset(&hints, 0, sizeof hints);
	SIZES(hints, gdrfab_getinfo(GDRFAB_VERSION, NULL, "c-tests", 0, &hints.now, &info), 0);
	CHECK(info != NULL);
	CHECK_EQ(info->struct_size, sizeof *info);
	gdrfab_freeinfo(info);
	gdrfab_info *empty = gdrfab_dupinfo(NULL);
	CHECK(empty != NULL);
	CHECK_EQ(empty->struct_size, sizeof *empty);
	gdrfab_freeinfo(empty);
}

TEST(attributes)
{
	LATER(gdrfab_cq_attr) cq_attr;
	LATER(gdrfab_eq_attr) eq_attr;
	LATER(gdrfab_cntr_attr) cntr_attr;
	gdrfab_cq *cq = NULL;
	gdrfab_eq *eq = NULL;
	gdrfab_cntr *cntr = NULL;
	struct node n;
	node_alone(&n, NULL);
	memset(&cq_attr, 0, sizeof cq_attr);
	memset(&eq_attr, 0, sizeof eq_attr);
	memset(&cntr_attr, 0, sizeof cntr_attr);
	SIZES(cq_attr, gdrfab_cq_open(n.domain, &cq_attr.now, NULL, &cq), 0);
	SIZES(eq_attr, gdrfab_eq_open(n.fabric, &eq_attr.now, NULL, &eq), 0);
	SIZES(cntr_attr, gdrfab_cntr_open(n.domain, &cntr_attr.now, NULL, &cntr), 0);
	CHECK(cq && eq && cntr);
	OK(gdrfab_cq_close(cq));
	OK(gdrfab_eq_close(eq));
	OK(gdrfab_cntr_close(cntr));
	/* Reserved fields must be zero. */
	eq_attr.now.reserved = 1;
	cntr_attr.now.reserved = 1;
	WANT_EQ(gdrfab_eq_open(n.fabric, &eq_attr.now, NULL, &eq), -EINVAL);
	WANT_EQ(gdrfab_cntr_open(n.domain, &cntr_attr.now, NULL, &cntr), -EINVAL);
	node_close(&n);
}

TEST(regions)
{
	static char buf[64];
	struct iovec iov = {buf, sizeof buf};
	LATER(gdrfab_mr_attr) attr;
	gdrfab_mr *mr = NULL;
	struct node n;
	node_alone(&n, NULL);
	memset(&attr, 0, sizeof attr);
	attr.now.mr_iov = &iov;
	attr.now.iov_count = 1;
	attr.now.access = REMOTE_ACCESS;
	SIZES(attr, gdrfab_mr_regattr(n.domain, &attr.now, 0, &mr), 0);
	CHECK(mr != NULL);

	/* Result structs: nothing is written behind the caller's size. */
	union {
		gdrfab_mr_info info;
		unsigned char bytes[sizeof(gdrfab_mr_info) + MORE];
	} out;
	for (size_t size = 0; size <= sizeof out; size++) {
		memset(&out, 0x5a, sizeof out);
		if (size > sizeof out.info)
			memset(out.bytes + sizeof out.info, 0, size - sizeof out.info);
		out.info.struct_size = size;
		int rc = gdrfab_mr_query(mr, &out.info);
		if (size < 8 || rc != 0)
			WANT_EQ(rc, -EINVAL);
		if (size >= sizeof out.info)
			WANT_EQ(rc, 0);
		for (size_t i = size < 8 ? 8 : size; i < sizeof out; i++)
			if (out.bytes[i] != 0x5a)
				test_fail(__FILE__, __LINE__, "struct_size %zu: byte %zu was written", size, i);
	}
	OK(gdrfab_mr_close(mr));
	node_close(&n);
}

/* --- structs of a connected endpoint --- */

static void partner(struct node *n)
{
	struct mem m;
	static char in[64];
	node_up(n);
	for (int i = 0; i < 8; i++)
		POST(n->cq, gdrfab_recv(n->ep, in, sizeof in, local_desc(n, in, sizeof in), 0, in));
	mem_new(n, &m, &memkinds[KIND_MEM_ALLOC], 4096);
	mem_register(n, &m, 0, 4096, REMOTE_ACCESS, 0);
	mem_publish(n, &m);
	barrier(n);
	mem_end(n, &m);
	node_down(n);
}

static void sizes_of_errors(struct node *n, char *buf, struct remote to)
{
	LATER(gdrfab_stats) stats;
	done e;
	/* The error entry stays in the queue until the struct is large enough. */
	union {
		gdrfab_cq_err_entry entry;
		unsigned char bytes[sizeof(gdrfab_cq_err_entry) + MORE];
	} err;
	/* Over verbs the first error ends the connection, and with it the second operation. */
	for (int i = 0; i < 2; i++)
		OK(gdrfab_write(n->ep, buf, 8, local_desc(n, buf, 8), 0, to.base, wrong_key(to.key), buf));
	CHECK_EQ(cq_next(n->cq, &e, 10000), -1);
	memset(&err, 0, sizeof err);
	CHECK_EQ(gdrfab_cq_readerr(n->cq, &err.entry, 0), -EINVAL);
	err.entry.struct_size = sizeof err;
	CHECK_EQ(gdrfab_cq_readerr(n->cq, &err.entry, 0), 1);
	CHECK_EQ(err.entry.err, EKEYREJECTED);
	CHECK(err.entry.op_context == buf);
	/* The struct of a caller with an older header ends earlier. */
	CHECK_EQ(cq_next(n->cq, &e, 10000), -1);
	memset(&err, 0x5a, sizeof err);
	err.entry.struct_size = offsetof(gdrfab_cq_err_entry, tag);
	err.entry.err_data = NULL;
	CHECK_EQ(gdrfab_cq_readerr(n->cq, &err.entry, 0), 1);
	CHECK(err.entry.err == EKEYREJECTED || traits()->adapter);
	for (size_t i = offsetof(gdrfab_cq_err_entry, tag); i < sizeof err; i++)
		CHECK_EQ(err.bytes[i], 0x5a);
	memset(&stats, 0, sizeof stats);
	stats.now.struct_size = sizeof stats;
	OK(gdrfab_ep_stats(n->ep, &stats.now));
	CHECK(stats.now.errors >= 2);
}

static void sizes_of_messages(struct node *n)
{
	static char buf[64];
	struct iovec iov = {buf, sizeof buf};
	void *desc;
	LATER(gdrfab_msg) msg;
	LATER(gdrfab_msg_rma) rma;
	done e;
	node_up(n);
	struct remote to = mem_fetch(n);
	gdrfab_rma_iov remote = {to.base, sizeof buf, to.key};
	memset(&msg, 0, sizeof msg);
	memset(&rma, 0, sizeof rma);
	msg.now.msg_iov = rma.now.msg_iov = &iov;
	msg.now.desc = rma.now.desc = local_descs(n, &iov, 1, &desc);
	msg.now.iov_count = rma.now.iov_count = 1;
	rma.now.rma_iov = &remote;
	rma.now.rma_iov_count = 1;
	SIZES(msg, gdrfab_sendmsg(n->ep, &msg.now, GDRFAB_COMPLETION), 0);
	DONE(n->cq, NULL, GDRFAB_SEND, &e);
	SIZES(rma, gdrfab_writemsg(n->ep, &rma.now, GDRFAB_COMPLETION), 0);
	DONE(n->cq, NULL, GDRFAB_WRITE, &e);
	SIZES(rma, gdrfab_readmsg(n->ep, &rma.now, GDRFAB_COMPLETION), 0);
	DONE(n->cq, NULL, GDRFAB_READ, &e);
	SIZES(msg, gdrfab_recvmsg(n->ep, &msg.now, GDRFAB_COMPLETION), 0);
	if (traits()->cancels) {
		OK(gdrfab_cancel(n->ep, NULL));
		FAILED(n->cq, NULL, ECANCELED, GDRFAB_PROV_CANCELED, NULL);
	}

	LATER(gdrfab_path_info) path;
	LATER(gdrfab_stats) stats;
	memset(&path, 0, sizeof path);
	memset(&stats, 0, sizeof stats);
	CHECK_EQ(gdrfab_ep_query(n->ep, 0, to.key, &path.now), -EINVAL);
	CHECK_EQ(gdrfab_ep_stats(n->ep, &stats.now), -EINVAL);
	path.now.struct_size = sizeof path;
	stats.now.struct_size = sizeof stats;
	OK(gdrfab_ep_query(n->ep, 0, to.key, &path.now));
	OK(gdrfab_ep_stats(n->ep, &stats.now));
	CHECK_EQ(path.now.path, best_path());
	CHECK(stats.now.sends >= 1);
	CHECK(stats.now.by_path[PATH_DIRECT].ops >= 2 || !path_known(PATH_DIRECT));
	/* Before 0.2 the struct was shorter, and had other fields. */
	memset(&stats, 0x5a, sizeof stats);
	stats.now.struct_size = offsetof(gdrfab_stats, sends);
	CHECK_EQ(gdrfab_ep_stats(n->ep, &stats.now), -EINVAL);
	unsigned char *bytes = (unsigned char *)&stats;
	for (size_t i = offsetof(gdrfab_stats, sends); i < sizeof stats; i++)
		CHECK_EQ(bytes[i], 0x5a);

	if (tells_failed_writes(n))
		sizes_of_errors(n, buf, to);
	barrier(n);
	node_down(n);
}

TEST(messages_and_results)
{
	pair(NULL, partner, sizes_of_messages, NULL);
}
