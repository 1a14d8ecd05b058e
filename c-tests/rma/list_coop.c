/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Lists of host memory that the kernel copies (process_vm_*), where a target that polls or is woken copies a part. Every block
 * is in place when the initiator's entry comes and when the target is notified; a block that one side cannot copy is named.
 */
#include "list.h"

#include <sys/mman.h>

#define ALL ((size_t)BLOCKS * SPACE)
#define SPARE (TARGET - 8) /* of no block */
#define LAST 0xffu

/* Remote CQ data of a list, and of the write that follows after it was read back. */
static uint64_t told(uint32_t seed, bool back)
{
	return seed | (uint64_t)back << 32;
}

static void block_of(struct lists *l, size_t i)
{
	l->blocks[i].buf = l->local.addr + i * SPACE;
	l->blocks[i].addr = l->to.base + (i ^ 1) * SPACE;
	l->blocks[i].len = SPACE;
}

static void begin(struct node *n, struct lists *l)
{
	list_begin(n, l, &memkinds[KIND_MALLOC]);
	for (size_t i = 0; i < BLOCKS; i++)
		block_of(l, i);
}

/* Waits for the next entry of a peer's write, polling or asleep. */
static uint64_t next_told(struct node *n, bool asleep)
{
	gdrfab_cq_data_entry entry;
	ssize_t got = -EAGAIN;
	for (uint64_t until = test_now_ms() + (uint64_t)test_ms(20000); got != 1;) {
		CHECK(test_now_ms() < until);
		got = asleep ? gdrfab_cq_sread(n->cq, &entry, 1, test_ms(20000)) : gdrfab_cq_read(n->cq, &entry, 1);
		CHECK(got == 1 || got == -EAGAIN);
	}
	return entry.data;
}

static void target(struct node *n, bool asleep)
{
	struct mem m;
	uint32_t seed;
	node_up(n);
	mem_new(n, &m, &memkinds[KIND_MALLOC], TARGET);
	mem_fill(&m, 0, TARGET, 0, LAST);
	way_register(n, &m, 0, TARGET, (const struct way *)n->arg);
	mem_publish(n, &m);
	do {
		seed = (uint32_t)next_told(n, asleep);
		for (size_t i = 0; i < BLOCKS && seed != LAST; i++)
			CHECK_MEM("a block that was told of", &m, (i ^ 1) * SPACE, SPACE, i * SPACE, seed);
		CHECK_EQ(next_told(n, asleep), told(seed, true));
		barrier(n);
	} while (seed != LAST);
	mem_end(n, &m);
	node_close(n);
}

static void polls(struct node *n)
{
	target(n, false);
}

static void sleeps(struct node *n)
{
	target(n, true);
}

static uint64_t helped(struct node *n)
{
	gdrfab_stats stats = {0};
	stats.struct_size = sizeof stats;
	OK(gdrfab_ep_stats(n->ep, &stats));
	return stats.bytes_helped;
}

static void tell_back(struct node *n, struct lists *l, uint32_t seed)
{
	done entry;
	POST(n->cq, gdrfab_writedata(n->ep, l->local.addr, 8, l->desc, told(seed, true), l->msg.addr, l->to.base + SPARE, l->to.key, l));
	DONE(n->cq, l, GDRFAB_WRITE, &entry);
	barrier(n);
}

static void end(struct node *n, struct lists *l)
{
	done entry;
	POST(n->cq, gdrfab_writedata(n->ep, l->local.addr, 8, l->desc, LAST, l->msg.addr, l->to.base + SPARE, l->to.key, l));
	DONE(n->cq, l, GDRFAB_WRITE, &entry);
	tell_back(n, l, LAST);
	mem_end(n, &l->local);
	node_close(n);
}

/* Repeats until the target has taken a part both of a written list and of a read one. */
static void moves(struct node *n)
{
	static struct lists l;
	uint64_t writes = 0, reads = 0;
	uint32_t waking = GDRFAB_COOP_WAKING;
	begin(n, &l);
	OK(gdrfab_ep_setopt(n->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_COOP, &waking, sizeof waking));
	uint64_t until = test_now_ms() + (uint64_t)test_ms(20000);
	for (uint32_t seed = 1; (!writes || !reads) && test_now_ms() < until; seed = seed % 100 + 1) {
		done entry;
		uint64_t before = helped(n);
		mem_fill(&l.local, 0, TARGET, 0, seed);
		l.msg.data = told(seed, false);
		POST(n->cq, gdrfab_writelist(n->ep, &l.msg, GDRFAB_REMOTE_CQ_DATA));
		DONE(n->cq, &l, GDRFAB_WRITE, &entry);
		CHECK_EQ(entry.len, ALL);
		writes += helped(n) - before, before = helped(n);
		mem_fill(&l.local, 0, TARGET, 0, LAST);
		POST(n->cq, gdrfab_readlist(n->ep, &l.msg, 0));
		DONE(n->cq, &l, GDRFAB_READ, &entry);
		CHECK_EQ(entry.len, ALL);
		reads += helped(n) - before;
		CHECK_MEM("what was read", &l.local, 0, ALL, 0, seed);
		CHECK_MEM("what was not", &l.local, ALL, TARGET - ALL, ALL, LAST);
		tell_back(n, &l, seed);
	}
	CHECK(writes && reads);
	end(n, &l);
}

static void shared(const void *arg)
{
	pair(NULL, polls, moves, arg);
}

static void shared_rdm(const void *arg)
{
	list_rdm(polls, moves, arg);
}

static void shared_by_who_sleeps(const void *arg)
{
	pair(NULL, sleeps, moves, arg);
}

static void shared_by_who_sleeps_rdm(const void *arg)
{
	list_rdm(sleeps, moves, arg);
}

/* Unmapped pages on the own side: of the first blocks, and of the last, which the target would copy. */
static void blames(struct node *n)
{
	static const size_t bad[] = {3, 500, 998};
	static struct lists l;
	begin(n, &l);
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	for (size_t k = 0; k < 60; k++) {
		size_t block = bad[k % 3], start = (uintptr_t)l.blocks[block].buf / page * page;
		struct failure f;
		OK(munmap((void *)(start + page), page));
		POST(n->cq, k & 1 ? gdrfab_writelist(n->ep, &l.msg, 0) : gdrfab_readlist(n->ep, &l.msg, 0));
		FAILED(n->cq, &l, EFAULT, GDRFAB_PROV_FAULT, &f);
		/* The page may reach into the next block. */
		if (f.entry.block != block && f.entry.block != block + 1)
			test_fail(__FILE__, __LINE__, "block %zu, not %zu: %s", f.entry.block, block, f.words);
		QUIET(n->cq, 0);
		CHECK(mmap((void *)(start + page), page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED);
	}
	end(n, &l);
}

static void pages_that_are_gone_are_named(const void *arg)
{
	skip_unless(test_count(1, 0), "memcheck takes pages that are gone for the program's error");
	pair(NULL, polls, blames, arg);
}

TEST_TABLE(per_way)
{
	static const struct {
		const char *name;
		void (*run)(const void *arg);
	} claims[] = {
		{"shared", shared},
		{"rdm_shared", shared_rdm},
		{"shared_by_who_sleeps", shared_by_who_sleeps},
		{"rdm_shared_by_who_sleeps", shared_by_who_sleeps_rdm},
		{"pages_that_are_gone_are_named", pages_that_are_gone_are_named},
	};
	size_t count = ways_list();
	char name[96];
	for (size_t i = 0; i < count; i++) {
		const struct way *w = &ways[i];
		if (w->path->bit != GDRFAB_PATH_CMA || w->kind != &memkinds[KIND_MALLOC])
			continue;
		for (size_t k = 0; k < sizeof claims / sizeof *claims; k++) {
			snprintf(name, sizeof name, "%s_%s", claims[k].name, w->name);
			test_add(name, claims[k].run, w, 60);
		}
	}
}
