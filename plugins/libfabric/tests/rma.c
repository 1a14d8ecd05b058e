/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Reads and writes by every call: bytes at the right place and nowhere else, flags, and remote data. */
#include "fi.h"

#define WRITTEN (FI_WRITE | FI_RMA)
#define READ_DONE (FI_READ | FI_RMA)
#define LARGEST ((size_t)8 << 20)
#define EDGE 64
#define PIECES 16

/* With delivery as the completion level, a completed write proves that its bytes have arrived. */
static const struct setup delivered = {.tx_op_flags = FI_DELIVERY_COMPLETE};

static void rma_pair(side_fn target, side_fn initiator, const void *arg)
{
	/* An adapter does not promise delivery. */
	pair(is_carried_by("verbs") ? NULL : &delivered, target, initiator, arg);
}

enum op { WRITE, WRITEV, WRITEMSG, WRITEDATA, INJECT, INJECT_WRITEDATA, WRITEMSG_DATA, WRITEMSG_INJECT, READ, READV,
	  READMSG, OPS };
static const char *const op_name[OPS] = {"write",	     "writev",	      "writemsg",	 "writedata",
					 "inject_write", "inject_writedata", "writemsg_data", "writemsg_inject",
					 "read",	     "readv",	      "readmsg"};

static const size_t sizes[] = {1, 7, 8, 63, 64, 65, 1000, 4096, 4097, 65537, 300001, 1 << 20, LARGEST};
#define SIZES (sizeof sizes / sizeof sizes[0])

static bool is_read(enum op op)
{
	return op >= READ;
}

static bool has_data(enum op op)
{
	return op == WRITEDATA || op == INJECT_WRITEDATA || op == WRITEMSG_DATA;
}

static bool is_inject(enum op op)
{
	return op == INJECT || op == INJECT_WRITEDATA || op == WRITEMSG_INJECT;
}

static uint64_t data_of(const struct node *n, size_t i)
{
	return cq_data(n, 0x8877665544332211ull * (i + 1));
}

static size_t length(const struct node *n, enum op op, size_t i)
{
	return is_inject(op) && sizes[i] > n->info->tx_attr->inject_size ? n->info->tx_attr->inject_size : sizes[i];
}

/* Numbers of local and of remote pieces, which are cut at different offsets. */
static size_t pieces(size_t len, size_t most, size_t i)
{
	size_t count = most < PIECES ? most : PIECES;
	return len < count ? 1 : 1 + i % count;
}

static void post(struct node *n, enum op op, unsigned char *at, struct remote r, size_t len, size_t i)
{
	struct iovec iov[PIECES];
	struct fi_rma_iov rma[PIECES];
	void *descs[PIECES], *desc = local_desc(n, at, len);
	size_t count = pieces(len, n->info->tx_attr->iov_limit, i);
	size_t far_count = pieces(len, n->info->tx_attr->rma_iov_limit, i + 1);
	uint64_t data = data_of(n, i);
	for (size_t p = 0, from = 0; p < count; p++) {
		size_t end = p + 1 < count ? len * (p + 1) / count : len;
		iov[p] = (struct iovec){at + from, end - from};
		from = end;
	}
	for (size_t p = 0, from = 0; p < far_count; p++) {
		size_t end = p + 1 < far_count ? len / far_count * (p + 1) : len;
		rma[p] = (struct fi_rma_iov){r.base + EDGE + from, end - from, r.key};
		from = end;
	}
	struct fi_msg_rma msg = {iov, local_descs(n, iov, count, descs), count, 0, rma, far_count, at, data};
	struct fid_ep *ep = n->ep;
	switch (op) {
	case WRITE: POST(n->cq, fi_write(ep, at, len, desc, 0, r.base + EDGE, r.key, at)); break;
	case WRITEV: POST(n->cq, fi_writev(ep, iov, msg.desc, count, 0, r.base + EDGE, r.key, at)); break;
	case WRITEMSG:
		POST(n->cq, fi_writemsg(ep, &msg, FI_COMPLETION | (n->setup->tx_op_flags & FI_DELIVERY_COMPLETE)));
		break;
	case WRITEDATA: POST(n->cq, fi_writedata(ep, at, len, desc, data, 0, r.base + EDGE, r.key, at)); break;
	case INJECT: POST(n->cq, fi_inject_write(ep, at, len, 0, r.base + EDGE, r.key)); break;
	case INJECT_WRITEDATA:
		POST(n->cq, fi_inject_writedata(ep, at, len, data, 0, r.base + EDGE, r.key));
		break;
	case WRITEMSG_DATA: POST(n->cq, fi_writemsg(ep, &msg, FI_COMPLETION | FI_REMOTE_CQ_DATA)); break;
	case WRITEMSG_INJECT: POST(n->cq, fi_writemsg(ep, &msg, FI_COMPLETION | FI_INJECT)); break;
	case READ: POST(n->cq, fi_read(ep, at, len, desc, 0, r.base + EDGE, r.key, at)); break;
	case READV: POST(n->cq, fi_readv(ep, iov, msg.desc, count, 0, r.base + EDGE, r.key, at)); break;
	case READMSG: POST(n->cq, fi_readmsg(ep, &msg, FI_COMPLETION)); break;
	default: break;
	}
	if (is_inject(op))
		memset(at, 0xee, len);
}

static void initiator(struct node *n)
{
	enum op op = *(const enum op *)n->arg;
	unsigned char *at = (unsigned char *)pages(LARGEST), one = 0;
	node_up(n);
	local_desc(n, at, LARGEST);
	struct remote r = mr_fetch(n);
	for (size_t i = 0; i < SIZES; i++) {
		size_t len = length(n, op, i);
		barrier(n);
		if (is_read(op))
			memset(at, 0x11, len);
		else
			fill(at, len, 0, (uint32_t)i);
		post(n, op, at, r, len, i);
		if (op != INJECT && op != INJECT_WRITEDATA)
			DONE(n->cq, at, is_read(op) ? READ_DONE : WRITTEN, NULL);
		if (is_read(op))
			CHECK_FILLED("what was read", at, len, 0, (uint32_t)i + 100);
		/* A read after the write returns bytes that have arrived. */
		if (!is_read(op) && !has_data(op)) {
			POST(n->cq, fi_read(n->ep, &one, 1, local_desc(n, &one, 1), 0, r.base, r.key, &one));
			DONE(n->cq, &one, READ_DONE, NULL);
		}
		barrier(n);
		QUIET(n->cq, 0);
	}
	local_forget_all(n);
	free(at);
	node_down(n);
}

static void check_edge(const unsigned char *at)
{
	for (size_t i = 0; i < EDGE; i++)
		CHECK_EQ(at[i], 0x5a);
}

static void target(struct node *n)
{
	enum op op = *(const enum op *)n->arg;
	size_t room = LARGEST + 2 * EDGE;
	unsigned char *at = (unsigned char *)pages(room);
	node_up(n);
	struct fid_mr *mr = mr_new(n, at, room, is_read(op) ? FI_REMOTE_READ : FI_REMOTE_READ | FI_REMOTE_WRITE);
	mr_publish(n, mr, at, room);
	for (size_t i = 0; i < SIZES; i++) {
		size_t len = length(n, op, i);
		done entry;
		memset(at, 0x5a, len + 2 * EDGE);
		if (is_read(op))
			fill(at + EDGE, len, 0, (uint32_t)i + 100);
		if (has_data(op))
			data_room(n);
		barrier(n);
		if (has_data(op)) {
			DATA_CAME(n, &entry);
			CHECK_EQ(entry.data, data_of(n, i));
			/* The data arrives after the bytes. */
			CHECK_FILLED("what was written, when its data came", at + EDGE, len, 0, (uint32_t)i);
		}
		barrier(n);
		CHECK_FILLED("the region", at + EDGE, len, 0, (uint32_t)i + (is_read(op) ? 100 : 0));
		check_edge(at);
		check_edge(at + EDGE + len);
		QUIET(n->cq, 0);
	}
	CLOSE(mr);
	free(at);
	node_down(n);
}

static void op_claim(const void *arg)
{
	rma_pair(target, initiator, arg);
}

TEST_TABLE(ops)
{
	static const enum op all[OPS] = {WRITE, WRITEV, WRITEMSG, WRITEDATA, INJECT, INJECT_WRITEDATA, WRITEMSG_DATA,
					 WRITEMSG_INJECT, READ, READV, READMSG};
	for (size_t i = 0; i < OPS; i++)
		test_add(op_name[i], op_claim, &all[i], 30);
}

/* --- several regions in one operation --- */

static void gatherer(struct node *n)
{
	unsigned char at[300];
	node_up(n);
	size_t count = n->info->tx_attr->rma_iov_limit;
	struct remote r[2] = {mr_fetch(n), mr_fetch(n)};
	skip_unless(count >= 2, "reaches one region at a time");
	struct fi_rma_iov targets[2] = {{r[0].base + 10, 100, r[0].key}, {r[1].base + 20, 200, r[1].key}};
	struct iovec iov = {at, sizeof at};
	void *desc = local_desc(n, at, sizeof at);
	struct fi_msg_rma msg = {&iov, desc ? &desc : NULL, 1, 0, targets, 2, at, 0};
	fill(at, sizeof at, 0, 5);
	barrier(n);
	POST(n->cq, fi_writemsg(n->ep, &msg, FI_COMPLETION | (n->setup->tx_op_flags & FI_DELIVERY_COMPLETE)));
	DONE(n->cq, at, WRITTEN, NULL);
	memset(at, 0, sizeof at);
	POST(n->cq, fi_readmsg(n->ep, &msg, FI_COMPLETION));
	DONE(n->cq, at, READ_DONE, NULL);
	CHECK_FILLED("what was written and read", at, sizeof at, 0, 5);
	barrier(n);
	node_down(n);
}

static void scattered(struct node *n)
{
	unsigned char *at[2];
	struct fid_mr *mr[2];
	node_up(n);
	for (int i = 0; i < 2; i++) {
		at[i] = (unsigned char *)pages(400);
		mr[i] = mr_new(n, at[i], 400, FI_REMOTE_READ | FI_REMOTE_WRITE);
		mr_publish(n, mr[i], at[i], 400);
	}
	barrier(n);
	barrier(n);
	CHECK_FILLED("the first region", at[0] + 10, 100, 0, 5);
	CHECK_FILLED("the second region", at[1] + 20, 200, 100, 5);
	CHECK(at[0][9] == 0 && at[0][110] == 0 && at[1][19] == 0 && at[1][220] == 0);
	for (int i = 0; i < 2; i++) {
		CLOSE(mr[i]);
		free(at[i]);
	}
	node_down(n);
}

TEST(two_regions)
{
	rma_pair(scattered, gatherer, NULL);
}

/* --- more remote pieces than gdrfab's own limit, for callers that give up order --- */

enum { TARGETS = 200, TARGET_LEN = 300, LOCALS = 3 };
static const struct setup many = {.rma_iov_limit = 256};

static void makes_many(struct node *n)
{
	size_t total = (size_t)TARGETS * TARGET_LEN;
	unsigned char *at = (unsigned char *)pages(total);
	struct fi_rma_iov targets[TARGETS];
	struct iovec iov[LOCALS];
	void *descs[LOCALS];
	skip_unless(is_gdrfab(), "has fewer");
	node_up(n);
	CHECK_EQ(n->info->tx_attr->rma_iov_limit, 256);
	CHECK_EQ(n->info->tx_attr->msg_order & (FI_ORDER_WAW | FI_ORDER_RAW | FI_ORDER_SAW), 0);
	CHECK_EQ(n->info->tx_attr->comp_order, FI_ORDER_NONE);
	struct remote r = mr_fetch(n);
	for (size_t i = 0; i < TARGETS; i++)
		targets[i] = (struct fi_rma_iov){r.base + (i ^ 1) * 2 * TARGET_LEN, i == 7 ? 0 : TARGET_LEN, r.key};
	total -= TARGET_LEN;
	for (size_t i = 0, from = 0; i < LOCALS; i++) {
		size_t end = i + 1 < LOCALS ? total / LOCALS * (i + 1) + 1 : total;
		iov[i] = (struct iovec){at + from, end - from};
		from = end;
	}
	local_desc(n, at, total);
	struct fi_msg_rma msg = {iov, local_descs(n, iov, LOCALS, descs), LOCALS, 0, targets, TARGETS, at, cq_data(n, 0x77)};
	for (int round = 0; round < 3; round++) {
		done entry;
		fill(at, total, 0, (uint32_t)round);
		barrier(n);
		POST(n->cq, fi_writemsg(n->ep, &msg, FI_COMPLETION | FI_REMOTE_CQ_DATA));
		DONE(n->cq, at, WRITTEN, &entry);
		barrier(n);
		memset(at, 0, total);
		POST(n->cq, fi_readmsg(n->ep, &msg, FI_COMPLETION));
		DONE(n->cq, at, READ_DONE, &entry);
		CHECK_FILLED("what was written and read", at, total, 0, (uint32_t)round);
		barrier(n);
	}
	/* Lengths that do not match are refused, and nothing is posted. */
	iov[1].iov_len--;
	CHECK_EQ(fi_writemsg(n->ep, &msg, FI_COMPLETION), -FI_EINVAL);
	iov[1].iov_len += 2;
	CHECK_EQ(fi_writemsg(n->ep, &msg, FI_COMPLETION), -FI_EINVAL);
	iov[1].iov_len--;
	CHECK_EQ(fi_writemsg(n->ep, &msg, FI_COMPLETION | FI_INJECT), -FI_EINVAL);
	msg.rma_iov_count = 257;
	CHECK_EQ(fi_readmsg(n->ep, &msg, FI_COMPLETION), -FI_EINVAL);
	QUIET(n->cq, 0);
	barrier(n);
	local_forget_all(n);
	free(at);
	node_down(n);
}

static void has_many(struct node *n)
{
	size_t room = (size_t)TARGETS * 2 * TARGET_LEN;
	unsigned char *at = (unsigned char *)pages(room);
	skip_unless(is_gdrfab(), "has fewer");
	node_up(n);
	struct fid_mr *mr = mr_new(n, at, room, FI_REMOTE_READ | FI_REMOTE_WRITE);
	mr_publish(n, mr, at, room);
	for (int round = 0; round < 3; round++) {
		done entry;
		memset(at, 0x5a, room);
		data_room(n);
		barrier(n);
		DATA_CAME(n, &entry);
		CHECK_EQ(entry.data, cq_data(n, 0x77));
		for (size_t i = 0, position = 0; i < TARGETS; i++) {
			unsigned char *there = at + (i ^ 1) * 2 * TARGET_LEN;
			if (i != 7)
				CHECK_FILLED("a piece", there, TARGET_LEN, position, (uint32_t)round);
			for (size_t k = i == 7 ? 0 : TARGET_LEN; k < 2 * TARGET_LEN; k++)
				CHECK_EQ(there[k], 0x5a);
			position += i == 7 ? 0 : TARGET_LEN;
		}
		barrier(n);
		barrier(n);
	}
	barrier(n);
	CLOSE(mr);
	free(at);
	node_down(n);
}

TEST(many_regions_without_order)
{
	pair(&many, has_many, makes_many, NULL);
}

TEST(many_regions_have_no_order)
{
	struct fi_info *hints = hints_new(&many), *list;
	struct node n;
	skip_unless(is_gdrfab(), "has fewer");
	hints->tx_attr->msg_order = FI_ORDER_WAW;
	CHECK_EQ(provider_getinfo(NULL, NULL, 0, hints, &list), -FI_ENODATA);
	hints->tx_attr->msg_order = 0;
	hints->tx_attr->comp_order = FI_ORDER_STRICT;
	CHECK_EQ(provider_getinfo(NULL, NULL, 0, hints, &list), -FI_ENODATA);
	hints->tx_attr->comp_order = 0;
	OK(provider_getinfo(NULL, NULL, 0, hints, &list));
	fi_freeinfo(list);
	fi_freeinfo(hints);
	/* It cannot be opened with a limit that was not offered, either. */
	node_alone(&n, &many);
	struct fid_ep *ep;
	n.info->tx_attr->msg_order |= FI_ORDER_WAW;
	CHECK_EQ(fi_endpoint(n.domain, n.info, &ep, NULL), -FI_EINVAL);
	n.info->tx_attr->msg_order &= ~FI_ORDER_WAW;
	n.info->tx_attr->rma_iov_limit = 257;
	CHECK_EQ(fi_endpoint(n.domain, n.info, &ep, NULL), -FI_EINVAL);
	node_close(&n);
}

/* --- order, many at once, and messages in between --- */

enum { ROUNDS = 1000 };

static ssize_t busy_post(struct node *n, bool reads, uint64_t *at, size_t i, struct remote r)
{
	void *desc = local_desc(n, at, ROUNDS * sizeof *at);
	if (i == ROUNDS)
		return -FI_EAGAIN;
	return reads ? fi_read(n->ep, &at[i], 8, desc, 0, r.base + 8 * i, r.key, &at[i])
		     : fi_write(n->ep, &at[i], 8, desc, 0, r.base + 8 * i, r.key, &at[i]);
}

static void busy_writer(struct node *n)
{
	static uint64_t words[ROUNDS];
	uint64_t until = test_now_ms() + (uint64_t)test_ms(15000);
	node_up(n);
	struct remote r = mr_fetch(n);
	for (size_t i = 0; i < ROUNDS; i++)
		words[i] = i + 1;
	for (int reads = 0; reads < 2; reads++) {
		for (size_t posted = 0, ended = 0; ended < ROUNDS;) {
			ssize_t rc = busy_post(n, reads, words, posted, r);
			if (rc == 0) {
				posted++;
				continue;
			}
			CHECK_EQ(rc, -FI_EAGAIN);
			if (ended == posted) {
				CHECK(test_now_ms() < until);
				drive(n);
				continue;
			}
			DONE(n->cq, &words[ended], reads ? READ_DONE : WRITTEN, NULL);
			if (reads)
				CHECK_EQ(words[ended], ended + 1);
			ended++;
		}
		if (!reads)
			memset(words, 0, sizeof words);
	}
	node_down(n);
}

static void busy_target(struct node *n)
{
	uint64_t *at = (uint64_t *)pages(ROUNDS * 8);
	node_up(n);
	struct fid_mr *mr = mr_new(n, at, ROUNDS * 8, FI_REMOTE_READ | FI_REMOTE_WRITE);
	mr_publish(n, mr, at, ROUNDS * 8);
	barrier(n);
	for (size_t i = 0; i < ROUNDS; i++)
		CHECK_EQ(at[i], i + 1);
	CLOSE(mr);
	free(at);
	node_close(n);
}

TEST(many_at_once)
{
	rma_pair(busy_target, busy_writer, NULL);
}

/* A message that comes after a write is seen after it (FI_ORDER_SAW). */
static void order_writer(struct node *n)
{
	uint64_t *at = (uint64_t *)pages(65536);
	node_up(n);
	skip_unless(n->info->tx_attr->msg_order & FI_ORDER_SAW, "has no order of sends after writes");
	struct remote r = mr_fetch(n);
	void *desc = local_desc(n, at, 65536);
	for (uint64_t i = 1; i <= 200; i++) {
		size_t len = i % 2 ? 8 : 65536;
		memset(at, (int)i, len);
		barrier(n);
		POST(n->cq, fi_write(n->ep, at, len, desc, 0, r.base, r.key, at));
		POST(n->cq, fi_send(n->ep, at, 8, desc, 0, &at[1]));
		DONE(n->cq, at, WRITTEN, NULL);
		DONE(n->cq, &at[1], FI_SEND | FI_MSG, NULL);
	}
	local_forget_all(n);
	free(at);
	node_down(n);
}

static void order_target(struct node *n)
{
	unsigned char *at = (unsigned char *)pages(65536);
	uint64_t note;
	node_up(n);
	struct fid_mr *mr = mr_new(n, at, 65536, FI_REMOTE_READ | FI_REMOTE_WRITE);
	mr_publish(n, mr, at, 65536);
	for (uint64_t i = 1; i <= 200; i++) {
		POST(n->cq, fi_recv(n->ep, &note, 8, local_desc(n, &note, 8), 0, &note));
		barrier(n);
		DONE(n->cq, &note, FI_RECV | FI_MSG, NULL);
		CHECK_EQ(at[0], (unsigned char)i);
		CHECK_EQ(at[i % 2 ? 7 : 65535], (unsigned char)i);
	}
	CLOSE(mr);
	free(at);
	node_down(n);
}

TEST(message_after_write)
{
	rma_pair(order_target, order_writer, NULL);
}
