/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Lists that end early. After a region or the endpoint is closed, its memory is not accessed any more. A list that is
 * cancelled or late, or whose peer dies, has one entry like any other.
 */
#include "list.h"

#define LISTS 8

/* Drives this side for a while. */
static void turn_for(struct node *n, int ms)
{
	uint64_t until = test_now_ms() + (uint64_t)ms;
	gdrfab_cq_data_entry entry;
	while (test_now_ms() < until)
		CHECK_EQ(gdrfab_cq_read(n->cq, &entry, 1), -EAGAIN);
}

/* Makes a list of full blocks, and waits for the peer. */
static void begin(struct node *n, struct lists *l)
{
	list_begin(n, l, &memkinds[KIND_MALLOC]);
	/* A memory checker does not see the peer's writes into this process: the memory is set before. */
	mem_fill(&l->local, 0, TARGET, 0, 1);
	for (size_t i = 0; i < BLOCKS; i++) {
		l->blocks[i].buf = l->local.addr + i * SPACE;
		l->blocks[i].addr = l->to.base + (i ^ 1) * SPACE;
		l->blocks[i].len = SPACE;
	}
	barrier(n);
}

/* Takes one entry, sleeping up to ms for it: 1 for a success, -1 for a failure, which is stored in f; 0: none. */
static int ended_within(struct node *n, int ms, struct failure *f)
{
	gdrfab_cq_data_entry entry;
	ssize_t got = ms ? gdrfab_cq_sread(n->cq, &entry, 1, ms) : gdrfab_cq_read(n->cq, &entry, 1);
	if (got == -GDRFAB_EAVAIL) {
		cq_failure(__FILE__, __LINE__, n->cq, f);
		return -1;
	}
	CHECK(got == 1 || got == -EAGAIN);
	return got == 1;
}

static int ended(struct node *n)
{
	struct failure f;
	return ended_within(n, 0, &f);
}

static void target(struct node *n, bool closes)
{
	const struct way *way = (const struct way *)n->arg;
	struct mem m;
	node_up(n);
	mem_new(n, &m, way->kind, TARGET);
	way_register(n, &m, 0, TARGET, way);
	mem_publish(n, &m);
	barrier(n);
	turn_for(n, 5);
	if (closes) {
		mem_unregister(&m);
		mem_fill(&m, 0, TARGET, 0, 7);
		turn_for(n, 30);
		CHECK_MEM("what was closed", &m, 0, TARGET, 0, 7);
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
	mem_fill(&l.local, 0, TARGET, 0, 9);
	test_sleep_ms(20);
	CHECK_MEM("what is the caller's again", &l.local, 0, TARGET, 0, 9);
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

/* --- cancelled and late --- */

static void stands_by(struct node *n)
{
	const struct way *way = (const struct way *)n->arg;
	struct mem m;
	node_up(n);
	mem_new(n, &m, way->kind, TARGET);
	way_register(n, &m, 0, TARGET, way);
	mem_publish(n, &m);
	barrier(n);
	n->idle = true;
	barrier(n);
	n->idle = false;
	barrier(n);
	mem_end(n, &m);
	node_close(n);
}

static void gives_up(struct node *n)
{
	static struct lists l;
	begin(n, &l);
	peer_stop(n);
	uint64_t start = test_now_ms();
	l.msg.timeout_ns = 200000000u;
	POST(n->cq, gdrfab_readlist(n->ep, &l.msg, 0));
	struct failure f;
	int end = 0;
	while (end == 0 && test_now_ms() < start + (uint64_t)test_ms(5000))
		end = ended_within(n, 100, &f);
	CHECK_EQ(end, -1);
	CHECK_EQ(f.entry.err, ETIMEDOUT);
	CHECK(f.entry.op_context == &l);
	CHECK(test_now_ms() - start + 2 >= 200);
	if (traits()->cancels) {
		l.msg.timeout_ns = UINT64_MAX;
		POST(n->cq, gdrfab_readlist(n->ep, &l.msg, 0));
		QUIET(n->cq, 20);
		OK(gdrfab_cancel(n->ep, &l));
		FAILED(n->cq, &l, ECANCELED, GDRFAB_PROV_CANCELED, NULL);
	}
	peer_continue(n);
	barrier(n);
	QUIET(n->cq, 50);
	barrier(n);
	mem_end(n, &l.local);
	node_close(n);
}

static void given_up(const void *arg)
{
	pair(NULL, stands_by, gives_up, arg);
}

static void given_up_rdm(const void *arg)
{
	list_rdm(stands_by, gives_up, arg);
}

static void mourns(struct node *n)
{
	static struct lists l;
	begin(n, &l);
	peer_stop(n);
	POST(n->cq, gdrfab_writelist(n->ep, &l.msg, 0));
	QUIET(n->cq, 20);
	peer_kill(n);
	done entry;
	struct failure f;
	CHECK_EQ(cq_next(n->cq, &entry, 10000), -1);
	cq_failure(__FILE__, __LINE__, n->cq, &f);
	CHECK(f.entry.op_context == &l);
	CHECK(f.entry.block < BLOCKS);
	QUIET(n->cq, 50);
	mem_end(n, &l.local);
	node_close(n);
}

static void peer_dies(const void *arg)
{
	struct setup s = {.victim = TEST_SERVER};
	pair(&s, stands_by, mourns, arg);
}

static void peer_dies_rdm(const void *arg)
{
	struct setup s = {.rdm = true, .victim = TEST_SERVER};
	pair(&s, stands_by, mourns, arg);
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
		if (w->kind != &memkinds[KIND_MALLOC] || one_sided(w))
			continue;
		snprintf(name, sizeof name, "given_up_%s", w->name);
		test_add(name, given_up, w, 30);
		snprintf(name, sizeof name, "peer_dies_%s", w->name);
		test_add(name, peer_dies, w, 30);
		snprintf(name, sizeof name, "rdm_given_up_%s", w->name);
		test_add(name, given_up_rdm, w, 30);
		snprintf(name, sizeof name, "rdm_peer_dies_%s", w->name);
		test_add(name, peer_dies_rdm, w, 30);
	}
}
