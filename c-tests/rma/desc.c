/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * GDRFAB_DEBUG=desc: the posting call reports a wrong local descriptor, even if the provider does not need it: a descriptor of
 * another region, of a region that is too small or closed, a handle or a key in its place. Right descriptors work as usual.
 */
#include "fab.h"

#define SIZE 4096

struct wrong {
	const char *name;
	void *desc;
};

/* The arguments of all calls: the buffer, its descriptor, and the peer's region. */
struct call {
	struct node *n;
	char *buf;
	size_t len;
	void *desc;
	struct remote there;
};

/* The offset for atomics: behind the end of the region that is too small. */
#define OPERAND(c) ((c)->buf + 40)

static void *pair_of_descs[2];
static struct iovec pair_of_pieces[2];
/* Of several pieces the second has the wrong descriptor. */
static void in_pieces(const struct call *c, void *good)
{
	pair_of_pieces[0] = (struct iovec){c->buf, 8};
	pair_of_pieces[1] = (struct iovec){c->buf + 8, c->len - 8};
	pair_of_descs[0] = good, pair_of_descs[1] = c->desc;
}

static gdrfab_msg message(void)
{
	return (gdrfab_msg){.struct_size = sizeof(gdrfab_msg), .msg_iov = pair_of_pieces, .desc = pair_of_descs, .iov_count = 2, .addr = PEER};
}

static gdrfab_msg_tagged tagged(void)
{
	return (gdrfab_msg_tagged){.struct_size = sizeof(gdrfab_msg_tagged), .msg_iov = pair_of_pieces, .desc = pair_of_descs,
				   .iov_count = 2, .addr = PEER, .tag = 1};
}

static gdrfab_msg_atomic atomics(const struct call *c)
{
	return (gdrfab_msg_atomic){.struct_size = sizeof(gdrfab_msg_atomic), .buf = OPERAND(c), .count = 1, .addr = PEER,
				   .rma_addr = c->there.base, .key = c->there.key, .datatype = GDRFAB_UINT64, .op = GDRFAB_SUM};
}

#define FOR(c) (c)->n->ep, (c)->buf, (c)->len, (c)->desc
#define WRONG(call)                                                                                                    \
	do {                                                                                                           \
		long long got_ = (long long)(call);                                                                    \
		if (got_ != -EINVAL || !test_says(gdrfab_last_error(), "desc"))                                        \
			test_wrong(__FILE__, __LINE__, "%s: %s is %s%s", name, #call, test_number(got_), test_words(got_)); \
	} while (0)

/* Every call that posts and names local memory. */
static void all_calls(const char *name, const struct call *c, void *good, bool tags)
{
	struct node *n = c->n;
	uint64_t word = 0;
	gdrfab_rma_iov there = {c->there.base, c->len, c->there.key};
	in_pieces(c, good);
	gdrfab_msg msg = message();
	gdrfab_msg_rma rma = {.struct_size = sizeof rma, .msg_iov = pair_of_pieces, .desc = pair_of_descs, .iov_count = 2, .addr = PEER,
			      .rma_iov = &there, .rma_iov_count = 1};
	WRONG(gdrfab_write(FOR(c), PEER, c->there.base, c->there.key, NULL));
	WRONG(gdrfab_read(FOR(c), PEER, c->there.base, c->there.key, NULL));
	if (n->info->cq_data_size)
		WRONG(gdrfab_writedata(FOR(c), 1, PEER, c->there.base, c->there.key, NULL));
	WRONG(gdrfab_send(FOR(c), PEER, NULL));
	WRONG(gdrfab_recv(FOR(c), PEER, NULL));
	if (n->info->cq_data_size)
		WRONG(gdrfab_senddata(FOR(c), 1, PEER, NULL));
	if (n->info->tx_iov_limit > 1) {
		WRONG(gdrfab_writev(n->ep, pair_of_pieces, pair_of_descs, 2, PEER, c->there.base, c->there.key, NULL));
		WRONG(gdrfab_readv(n->ep, pair_of_pieces, pair_of_descs, 2, PEER, c->there.base, c->there.key, NULL));
		WRONG(gdrfab_writemsg(n->ep, &rma, GDRFAB_COMPLETION));
		WRONG(gdrfab_readmsg(n->ep, &rma, GDRFAB_COMPLETION));
		WRONG(gdrfab_sendv(n->ep, pair_of_pieces, pair_of_descs, 2, PEER, NULL));
		WRONG(gdrfab_sendmsg(n->ep, &msg, GDRFAB_COMPLETION));
	}
	if (n->info->rx_iov_limit > 1) {
		WRONG(gdrfab_recvv(n->ep, pair_of_pieces, pair_of_descs, 2, PEER, NULL));
		WRONG(gdrfab_recvmsg(n->ep, &msg, GDRFAB_COMPLETION));
	}
	if (tags) {
		gdrfab_msg_tagged t = tagged();
		WRONG(gdrfab_tsend(FOR(c), PEER, 1, NULL));
		WRONG(gdrfab_tsenddata(FOR(c), 1, PEER, 1, NULL));
		WRONG(gdrfab_trecv(FOR(c), PEER, 1, 0, NULL));
		WRONG(gdrfab_tsendv(n->ep, pair_of_pieces, pair_of_descs, 2, PEER, 1, NULL));
		WRONG(gdrfab_trecvv(n->ep, pair_of_pieces, pair_of_descs, 2, PEER, 1, 0, NULL));
		WRONG(gdrfab_tsendmsg(n->ep, &t, GDRFAB_COMPLETION));
		WRONG(gdrfab_trecvmsg(n->ep, &t, GDRFAB_COMPLETION));
	}
	gdrfab_block blocks[2] = {{c->buf, c->there.base, 8}, {c->buf + 8, c->there.base + 16, c->len - 8}};
	gdrfab_msg_list list = {.struct_size = sizeof list, .blocks = blocks, .count = 2, .desc = pair_of_descs, .desc_count = 2,
				.key = &c->there.key, .key_count = 1, .addr = PEER};
	gdrfab_list *prepared = NULL;
	WRONG(gdrfab_readlist(n->ep, &list, GDRFAB_COMPLETION));
	WRONG(gdrfab_writelist(n->ep, &list, GDRFAB_COMPLETION));
	OK(gdrfab_list_open(n->ep, &list, &prepared));
	WRONG(gdrfab_list_post(prepared, GDRFAB_WRITE | GDRFAB_COMPLETION, 0, NULL));
	OK(gdrfab_list_close(prepared));
	if (traits()->adapter)
		return;
	gdrfab_msg_atomic a = atomics(c);
	WRONG(gdrfab_atomic(n->ep, OPERAND(c), 1, c->desc, PEER, c->there.base, c->there.key, GDRFAB_UINT64, GDRFAB_SUM, NULL));
	WRONG(gdrfab_fetch_atomic(n->ep, OPERAND(c), 1, good, OPERAND(c), c->desc, PEER, c->there.base, c->there.key, GDRFAB_UINT64, GDRFAB_SUM,
				  NULL));
	WRONG(gdrfab_compare_atomic(n->ep, OPERAND(c), 1, good, OPERAND(c), c->desc, &word, NULL, PEER, c->there.base, c->there.key,
				    GDRFAB_UINT64, GDRFAB_CSWAP, NULL));
	a.desc = c->desc;
	WRONG(gdrfab_atomicmsg(n->ep, &a, GDRFAB_COMPLETION));
	a.desc = good, a.result = OPERAND(c), a.result_desc = c->desc;
	WRONG(gdrfab_atomicmsg(n->ep, &a, GDRFAB_COMPLETION));
	/* None of these calls has posted anything. */
	QUIET(n->cq, 5);
}

static void stands_by(struct node *n)
{
	struct mem m;
	node_up(n);
	mem_new(n, &m, &memkinds[KIND_MEM_ALLOC], SIZE);
	mem_register(n, &m, 0, SIZE, REMOTE_ACCESS, 0);
	mem_publish(n, &m);
	barrier(n);
	text_both_ways(n, "and what is right");
	barrier(n);
	mem_end(n, &m);
	node_close(n);
}

static gdrfab_mr *region(gdrfab_domain *domain, const char *at, size_t len, uint64_t key)
{
	gdrfab_mr *mr = NULL;
	OK(gdrfab_mr_reg(domain, at, len, ANY_ACCESS, 0, key, 0, NULL, &mr));
	return mr;
}

static void calls_wrongly(struct node *n)
{
	static char bytes[SIZE], elsewhere[SIZE];
	node_up(n);
	struct remote there = mem_fetch(n);
	gdrfab_mr *good = region(n->domain, bytes, SIZE, 1), *beside = region(n->domain, elsewhere, SIZE, 2);
	gdrfab_mr *small = region(n->domain, bytes, 32, 3), *closed = region(n->domain, bytes, SIZE, 4);
	void *of_closed = gdrfab_mr_desc(closed);
	OK(gdrfab_mr_close(closed));
	const struct wrong all[] = {
		{"another region's", gdrfab_mr_desc(beside)}, {"of a region that is too small", gdrfab_mr_desc(small)},
		{"a closed region's", of_closed},	      {"a handle", good},
		{"a key", (void *)(uintptr_t)gdrfab_mr_key(good)}, {"a small number", (void *)(uintptr_t)1},
	};
	struct call c = {n, bytes, 64, NULL, there};
	bool tags = n->setup->caps & GDRFAB_TAGGED;
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		c.desc = all[i].desc;
		/* A key may happen to equal a valid descriptor. */
		if (c.desc == gdrfab_mr_desc(good) || c.desc == gdrfab_mr_desc(beside))
			c.desc = gdrfab_mr_desc(beside);
		all_calls(all[i].name, &c, gdrfab_mr_desc(good), tags);
	}
	/* The right descriptor, for a buffer that ends with the region. */
	POST(n->cq, gdrfab_write(n->ep, bytes, 64, gdrfab_mr_desc(good), PEER, there.base, there.key, bytes));
	DONE(n->cq, bytes, GDRFAB_WRITE, NULL);
	POST(n->cq, gdrfab_read(n->ep, bytes + SIZE - 64, 64, gdrfab_mr_desc(good), PEER, there.base, there.key, bytes));
	DONE(n->cq, bytes, GDRFAB_READ, NULL);
	POST(n->cq, gdrfab_read(n->ep, bytes, 32, gdrfab_mr_desc(small), PEER, there.base, there.key, bytes));
	DONE(n->cq, bytes, GDRFAB_READ, NULL);
	barrier(n);
	text_both_ways(n, "and what is right");
	OK(gdrfab_mr_close(good));
	OK(gdrfab_mr_close(beside));
	OK(gdrfab_mr_close(small));
	barrier(n);
	node_close(n);
}

static void with_debug(struct setup *s)
{
	set_variable("GDRFAB_DEBUG", "desc");
	pair(s, stands_by, calls_wrongly, NULL);
}

TEST(a_wrong_descriptor_is_told_by_every_call)
{
	static struct setup s = {.caps = GDRFAB_MSG | GDRFAB_RMA};
	with_debug(&s);
}

TEST(a_wrong_descriptor_is_told_by_calls_with_tags)
{
	static struct setup s = {.caps = GDRFAB_MSG | GDRFAB_RMA | GDRFAB_TAGGED};
	skip_unless(!traits()->adapter, "connected endpoints have no tags");
	with_debug(&s);
}

TEST(a_wrong_descriptor_is_told_by_connectionless_endpoints)
{
	static struct setup s = {.caps = GDRFAB_MSG | GDRFAB_RMA | GDRFAB_TAGGED | GDRFAB_DIRECTED_RECV, .rdm = true};
	skip_unless(!traits()->adapter, "no connectionless endpoints");
	with_debug(&s);
}
