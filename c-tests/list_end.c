/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Ends in the middle of a list: once a region is closed, or the endpoint, nothing touches the memory any more, and each list
 * has its one entry.
 */
#include "fab.h"

#define LENGTH ((size_t)4 * 1024 * 1024)
#define BLOCKS 1024
#define SPACE 4096
#define LISTS 8

struct lists {
	struct remote to;
	struct mem local;
	gdrfab_block blocks[BLOCKS];
	void *desc;
	gdrfab_msg_list msg;
};

/* Progress of this side for a while. */
static void turn_for(struct node *n, int ms)
{
	uint64_t until = test_now_ms() + (uint64_t)ms;
	gdrfab_cq_data_entry entry;
	while (test_now_ms() < until)
		CHECK_EQ(gdrfab_cq_read(n->cq, &entry, 1), -EAGAIN);
}

static void begin(struct node *n, struct lists *l)
{
	node_up(n);
	l->to = mem_fetch(n);
	way_check(n, (const struct way *)n->arg, l->to.key);
	mem_new(n, &l->local, &memkinds[KIND_MALLOC], LENGTH);
	mem_register(n, &l->local, 0, LENGTH, ANY_ACCESS, 0);
	l->desc = mem_desc(&l->local);
	memset(&l->msg, 0, sizeof l->msg);
	l->msg.struct_size = sizeof l->msg;
	l->msg.blocks = l->blocks;
	l->msg.count = BLOCKS;
	l->msg.desc = &l->desc;
	l->msg.desc_count = 1;
	l->msg.key = &l->to.key;
	l->msg.key_count = 1;
	l->msg.context = l;
	for (size_t i = 0; i < BLOCKS; i++) {
		l->blocks[i].buf = l->local.addr + i * SPACE;
		l->blocks[i].addr = l->to.base + (i ^ 1) * SPACE;
		l->blocks[i].len = SPACE;
	}
	barrier(n);
}

/* Takes one entry, if there is one: 1 of a success, -1 of a failure. */
static int ended(struct node *n)
{
	gdrfab_cq_data_entry entry;
	struct failure f;
	ssize_t got = gdrfab_cq_read(n->cq, &entry, 1);
	if (got == -GDRFAB_EAVAIL) {
		cq_failure(__FILE__, __LINE__, n->cq, &f);
		return -1;
	}
	CHECK(got == 1 || got == -EAGAIN);
	return got == 1;
}

static void target(struct node *n, bool closes)
{
	const struct way *way = (const struct way *)n->arg;
	struct mem m;
	node_up(n);
	mem_new(n, &m, way->kind, LENGTH);
	way_register(n, &m, 0, LENGTH, way);
	mem_publish(n, &m);
	barrier(n);
	turn_for(n, 5);
	if (closes) {
		mem_unregister(&m);
		mem_fill(&m, 0, LENGTH, 0, 7);
		turn_for(n, 30);
		CHECK_MEM("what was closed", &m, 0, LENGTH, 0, 7);
	}
	barrier(n);
	mem_end(n, &m);
	node_close(n);
}

static void closes(struct node *n)
{
	target(n, true);
}

static void stays(struct node *n)
{
	target(n, false);
}

static void is_refused(struct node *n)
{
	static struct lists l;
	begin(n, &l);
	uint64_t until = test_now_ms() + (uint64_t)test_ms(10000);
	int last = 1;
	while (last > 0 && test_now_ms() < until) {
		POST(n->cq, gdrfab_writelist(n->ep, &l.msg, 0));
		while ((last = ended(n)) == 0)
			;
	}
	CHECK_EQ(last, -1);
	barrier(n);
	mem_end(n, &l.local);
	node_close(n);
}

static void ends_early(struct node *n)
{
	static struct lists l;
	size_t posted = 0, came = 0;
	begin(n, &l);
	for (size_t i = 0; i < LISTS; i++) {
		ssize_t rc = i % 2 ? gdrfab_writelist(n->ep, &l.msg, 0) : gdrfab_readlist(n->ep, &l.msg, 0);
		CHECK(rc == 0 || rc == -EAGAIN);
		posted += rc == 0;
		came += ended(n) != 0;
	}
	uint64_t until = test_now_ms() + (uint64_t)test_ms(10000);
	int rc;
	while ((rc = gdrfab_ep_close(n->ep)) == -EBUSY && test_now_ms() < until)
		;
	CHECK_EQ(rc, 0);
	n->ep = NULL;
	for (int end; (end = ended(n)) != 0;)
		came++;
	CHECK_EQ(came, posted);
	mem_unregister(&l.local);
	mem_fill(&l.local, 0, LENGTH, 0, 9);
	test_sleep_ms(20);
	CHECK_MEM("what is the caller's again", &l.local, 0, LENGTH, 0, 9);
	barrier(n);
	mem_end(n, &l.local);
	node_close(n);
}

static void region_closed(const void *arg)
{
	pair(NULL, closes, is_refused, arg);
}

static void endpoint_closed(const void *arg)
{
	pair(NULL, stays, ends_early, arg);
}

TEST_TABLE(per_way)
{
	size_t count = ways_list();
	char name[64];
	for (size_t i = 0; i < count; i++) {
		const struct way *w = &ways[i];
		if (w->kind != &memkinds[KIND_MEM_ALLOC] && w->kind != &memkinds[KIND_MALLOC])
			continue;
		snprintf(name, sizeof name, "region_closed_%s", w->name);
		test_add(name, region_closed, w, 30);
		snprintf(name, sizeof name, "endpoint_closed_%s", w->name);
		test_add(name, endpoint_closed, w, 30);
	}
}
