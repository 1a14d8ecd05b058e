/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Lists that take many calls of the kernel, or many rounds of the target's progress. A region may be closed at any point of
 * this: it is not accessed after its close, and the list ends with one entry that tells so.
 */
#include "list.h"

#define LONG_BLOCKS 32768
#define LONG_SPACE 2048

static size_t blocks_count(void)
{
	return (size_t)test_count(LONG_BLOCKS, 4096);
}

static int rounds(void)
{
	return test_count(8, 2);
}

static void closes(struct node *n)
{
	const struct way *way = (const struct way *)n->arg;
	const size_t len = blocks_count() * LONG_SPACE;
	struct mem m;
	gdrfab_cq_data_entry entry;
	node_up(n);
	mem_new(n, &m, way->kind, len);
	for (int i = 0; i < rounds(); i++) {
		way_register(n, &m, 0, len, way);
		mem_publish(n, &m);
		barrier(n);
		/* The close comes at another point of the list each time. */
		uint64_t until = test_now_ms() + (uint64_t)i * 2;
		do
			CHECK_EQ(gdrfab_cq_read(n->cq, &entry, 1), -EAGAIN);
		while (test_now_ms() < until);
		mem_unregister(&m);
		mem_fill(&m, 0, len, 0, (uint32_t)i + 1);
		until = test_now_ms() + 20;
		do
			CHECK_EQ(gdrfab_cq_read(n->cq, &entry, 1), -EAGAIN);
		while (test_now_ms() < until);
		CHECK_MEM("what was closed", &m, 0, len, 0, (uint32_t)i + 1);
		barrier(n);
	}
	mem_end(n, &m);
	node_close(n);
}

static void writes(struct node *n)
{
	static gdrfab_block blocks[LONG_BLOCKS];
	const struct way *way = (const struct way *)n->arg;
	const size_t count = blocks_count(), len = count * LONG_SPACE;
	struct mem local;
	void *desc;
	node_up(n);
	mem_new(n, &local, &memkinds[KIND_MALLOC], len);
	mem_register(n, &local, 0, len, ANY_ACCESS, 0);
	desc = mem_desc(&local);
	for (int i = 0; i < rounds(); i++) {
		struct remote to = mem_fetch(n);
		way_check(n, way, to);
		for (size_t at = 0; at < count; at++) {
			blocks[at].buf = local.addr + at * LONG_SPACE;
			/* Neighbours are swapped: else all blocks would be joined into one. */
			blocks[at].addr = to.base + (at ^ 1) * LONG_SPACE;
			blocks[at].len = LONG_SPACE;
		}
		gdrfab_msg_list msg = list_of(n, blocks, count, &desc, &to.key, 1, &local);
		barrier(n);
		for (int end = 1; end > 0;) {
			done entry;
			struct failure f;
			POST(n->cq, gdrfab_writelist(n->ep, &msg, 0));
			end = cq_next(n->cq, &entry, 20000);
			if (end < 0) {
				cq_failure(__FILE__, __LINE__, n->cq, &f);
				CHECK(f.entry.op_context == &local);
				CHECK_EQ(f.entry.prov_errno, GDRFAB_PROV_KEY);
				CHECK(f.entry.block < count);
			}
		}
		barrier(n);
	}
	mem_end(n, &local);
	node_close(n);
}

static void closed_on_the_way(const void *arg)
{
	skip_unless(traits()->survives_failures, "a write that is refused ends the connection");
	pair(NULL, closes, writes, arg);
}

TEST_TABLE(per_way)
{
	size_t count = ways_list();
	char name[64];
	for (size_t i = 0; i < count; i++) {
		const struct way *w = &ways[i];
		if (w->kind != &memkinds[KIND_MEM_ALLOC] && w->kind != &memkinds[KIND_MALLOC])
			continue;
		snprintf(name, sizeof name, "closed_on_the_way_%s", w->name);
		test_add(name, closed_on_the_way, w, 60);
	}
}
