/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Lists whose blocks lie in regions with different paths, in turns. All blocks move; a refused block is named; the peer's entry
 * and a fence cover all blocks; and after a list has ended early its memory is not accessed.
 */
#include "list_back.h"

#define SPACE 4096
#define TARGET ((size_t)16 * SPACE)
#define EACH 15 /* blocks of a way: no multiple of an operation's maximum, so that some operations have blocks of two ways */
#define MOST 16 /* ways */
#define BLOCKS_MOST (MOST * EACH)

struct lists {
	size_t count; /* of ways */
	struct remote to[MOST];
	struct mem local;
	void *desc;
	gdrfab_block blocks[BLOCKS_MOST];
	uint64_t keys[BLOCKS_MOST];
	gdrfab_msg_list msg;
};

struct regions {
	size_t count;
	const struct way *of[MOST];
	struct mem m[MOST];
};

/* The devices' memory of two vendors. */
static const struct memkind two_vendors = {.name = "two_vendors"};

static bool is_about(const struct node *n, const struct memkind *kind)
{
	if (n->arg == &two_vendors)
		return strcmp(kind->name, "cuda_plain") == 0 || strcmp(kind->name, "rocr_alloc") == 0;
	return kind == n->arg;
}

static const struct memkind *local_kind(const struct node *n)
{
	return n->arg && n->arg != &two_vendors ? (const struct memkind *)n->arg : &memkinds[KIND_MALLOC];
}

/* Private and shared host memory, and one kind of device memory if the claim is about one: each by every path. */
static const struct way *next_way(const struct node *n, size_t *at)
{
	for (size_t count = all_ways_list(); *at < count;) {
		const struct way *w = &ways[(*at)++];
		if (w->kind == &memkinds[KIND_MALLOC] || w->kind == &memkinds[KIND_MEM_ALLOC] || is_about(n, w->kind))
			return w;
	}
	return NULL;
}

static void regions_new(struct node *n, struct regions *r)
{
	const struct way *w;
	memset(r, 0, sizeof *r);
	for (size_t at = 0; (w = next_way(n, &at)) != NULL;) {
		struct mem *m = &r->m[r->count];
		CHECK(r->count < MOST);
		if (w->path->bit == GDRFAB_PATH_CMA && cma_refused(n))
			continue;
		mem_new(n, m, w->kind, TARGET);
		int result = mem_try_register(n, m, 0, TARGET, ANY_ACCESS, w->path->bit, 0);
		if (result == -EOPNOTSUPP && (kind_maybe(w->kind) & w->path->bit)) {
			mem_end(n, m);
			continue;
		}
		CHECK_EQ(result, 0);
		mem_fill(m, 0, TARGET, r->count * TARGET, 1);
		r->of[r->count++] = w;
	}
	if (r->count < 2)
		test_skip("memory is reached in one way only");
	oob_send(n, &r->count, sizeof r->count);
	for (size_t i = 0; i < r->count; i++)
		mem_publish(n, &r->m[i]);
}

static void regions_end(struct node *n, struct regions *r)
{
	for (size_t i = 0; i < r->count; i++)
		mem_end(n, &r->m[i]);
}

/* The peer's position of block i, in the order of the local blocks; and its offset among all bytes. */
static size_t place_of(const struct lists *l, size_t i, size_t *position)
{
	size_t way = i % l->count, at = (i / l->count ^ 1) * SPACE;
	*position = way * TARGET + at;
	return l->to[way].base + at;
}

static void list_new(struct node *n, struct lists *l, const struct memkind *kind)
{
	size_t position, blocks = l->count * EACH;
	mem_new(n, &l->local, kind, blocks * SPACE);
	if (kind != &memkinds[KIND_MALLOC])
		mem_register(n, &l->local, 0, blocks * SPACE, ANY_ACCESS, 0);
	l->desc = mem_needed_desc(n, &l->local);
	l->msg = list_of(n, l->blocks, blocks, &l->desc, l->keys, blocks, l);
	for (size_t i = 0; i < blocks; i++) {
		l->blocks[i].buf = l->local.addr + i * SPACE;
		l->blocks[i].addr = place_of(l, i, &position);
		l->blocks[i].len = i % 3 ? SPACE : 1 + i * 29 % (SPACE - 1);
		l->keys[i] = l->to[i % l->count].key;
	}
}

static void lists_begin(struct node *n, struct lists *l)
{
	node_up(n);
	oob_recv(n, &l->count, sizeof l->count);
	for (size_t i = 0; i < l->count; i++)
		l->to[i] = mem_fetch(n);
}

/* --- all move --- */

static void owns(struct node *n)
{
	static struct regions r;
	node_up(n);
	regions_new(n, &r);
	barrier(n);
	regions_end(n, &r);
	node_down(n);
}

static void moves(struct node *n)
{
	static struct lists l;
	const struct memkind *kinds[] = {&memkinds[KIND_MALLOC], &memkinds[KIND_MEM_ALLOC],
					 local_kind(n)};
	lists_begin(n, &l);
	for (uint32_t k = 0; k < 3; k++) {
		list_new(n, &l, kinds[k]);
		list_comes_back(n, &l.msg, &l.local, SPACE, 2 + k);
		mem_end(n, &l.local);
	}
	barrier(n);
	node_down(n);
}

static void all_move(const void *arg)
{
	pair(NULL, owns, moves, arg);
}

static void all_move_rdm(const void *arg)
{
	list_rdm(owns, moves, arg);
}

/* --- a refused block --- */

static void blames(struct node *n)
{
	static struct lists l;
	lists_begin(n, &l);
	list_new(n, &l, local_kind(n));
	for (size_t k = l.count; k < 2 * l.count; k++) {
		gdrfab_block good = l.blocks[k];
		struct failure f;
		l.blocks[k].addr = l.to[k % l.count].base + TARGET - l.blocks[k].len + 1;
		POST(n->cq, gdrfab_readlist(n->ep, &l.msg, 0));
		FAILED(n->cq, &l, ERANGE, GDRFAB_PROV_BOUNDS, &f);
		CHECK_EQ(f.entry.block, k);
		mem_fill(&l.local, 0, l.msg.count * SPACE, 0, 9);
		QUIET(n->cq, 5);
		CHECK_MEM("what is the caller's again", &l.local, 0, l.msg.count * SPACE, 0, 9);
		l.blocks[k] = good;
	}
	list_comes_back(n, &l.msg, &l.local, SPACE, 5);
	barrier(n);
	mem_end(n, &l.local);
	node_down(n);
}

static void one_is_named(const void *arg)
{
	skip_unless(traits()->survives_failures, "an operation that fails ends the connection");
	pair(NULL, owns, blames, arg);
}

/* --- the peer's entry, and a fence --- */

static void is_told(struct node *n)
{
	static struct regions r;
	static struct lists l; /* as the other side has it */
	done entry;
	node_up(n);
	if (n->info->cq_data_size == 0)
		test_skip("no data goes with writes");
	data_room(n);
	regions_new(n, &r);
	l.count = r.count;
	DATA_CAME(n, &entry);
	CHECK_EQ(entry.data, cq_data(n, 0x1234567));
	for (size_t i = 0; i < l.count * EACH; i++) {
		size_t position;
		place_of(&l, i, &position);
		CHECK_MEM("what the entry tells of", &r.m[i % l.count], position % TARGET, SPACE, i * SPACE, 3);
	}
	barrier(n);
	barrier(n);
	regions_end(n, &r);
	node_down(n);
}

static void tells(struct node *n)
{
	static struct lists l;
	lists_begin(n, &l);
	list_new(n, &l, local_kind(n));
	size_t total = l.msg.count * SPACE;
	for (size_t i = 0; i < l.msg.count; i++)
		l.blocks[i].len = SPACE;
	l.msg.data = 0x1234567;
	mem_fill(&l.local, 0, total, 0, 3);
	POST(n->cq, gdrfab_writelist(n->ep, &l.msg, GDRFAB_REMOTE_CQ_DATA));
	DONE(n->cq, &l, GDRFAB_WRITE, NULL);
	barrier(n);
	/* The second list is fenced: it begins when the first has ended, and reads the bytes that the first wrote. */
	for (int round = 0; round < 4; round++) {
		uint32_t seed = 20u + (uint32_t)round;
		struct mem back;
		void *desc;
		mem_fill(&l.local, 0, total, 0, seed);
		POST(n->cq, gdrfab_writelist(n->ep, &l.msg, 0));
		mem_new(n, &back, &memkinds[KIND_MALLOC], total);
		gdrfab_msg_list second = l.msg;
		static gdrfab_block blocks[BLOCKS_MOST];
		for (size_t i = 0; i < l.msg.count; i++) {
			blocks[i] = l.blocks[i];
			blocks[i].buf = back.addr + i * SPACE;
		}
		desc = mem_needed_desc(n, &back);
		second.blocks = blocks;
		second.desc = &desc;
		second.context = &back;
		POST(n->cq, gdrfab_readlist(n->ep, &second, GDRFAB_FENCE));
		DONE(n->cq, &l, GDRFAB_WRITE, NULL);
		DONE(n->cq, &back, GDRFAB_READ, NULL);
		CHECK_MEM("what a fenced list reads", &back, 0, total, 0, seed);
		mem_end(n, &back);
	}
	barrier(n);
	mem_end(n, &l.local);
	node_down(n);
}

static void told_at_the_end(const void *arg)
{
	pair(NULL, is_told, tells, arg);
}

/* --- cancelled and late --- */

static void stands_by(struct node *n)
{
	static struct regions r;
	node_up(n);
	regions_new(n, &r);
	barrier(n);
	barrier(n);
	regions_end(n, &r);
	node_close(n);
}

static void gives_up(struct node *n)
{
	static struct lists l;
	lists_begin(n, &l);
	list_new(n, &l, local_kind(n));
	barrier(n);
	for (int round = 0; round < 4; round++) {
		bool cancels = traits()->cancels && round % 2;
		int lists = 3;
		l.msg.timeout_ns = cancels ? UINT64_MAX : 100000000u;
		peer_stop(n);
		for (int i = 0; i < lists; i++)
			POST(n->cq, gdrfab_readlist(n->ep, &l.msg, 0));
		if (cancels) {
			QUIET(n->cq, round * 5);
			while (gdrfab_cancel(n->ep, &l) == 0)
				;
		}
		/* A part of the list needs the peer's progress. */
		CHECK_EQ(GIVEN_UP(n->cq, lists, cancels ? ECANCELED : ETIMEDOUT, l.msg.count), lists);
		list_stays_given_up(n, &l.local);
	}
	l.msg.timeout_ns = 0;
	list_comes_back(n, &l.msg, &l.local, SPACE, 6);
	barrier(n);
	mem_end(n, &l.local);
	node_close(n);
}

static void given_up(const void *arg)
{
	skip_unless(traits()->survives_failures, "an operation that is given up ends the connection");
	pair(NULL, stands_by, gives_up, arg);
}

TEST_TABLE(per_kind)
{
	char name[64];
	const struct memkind *kinds[DEVICE_KINDS + 2] = {NULL};
	size_t count = device_kinds_list();
	memcpy(kinds + 1, device_kinds, count * sizeof kinds[0]);
	kinds[count + 1] = &two_vendors;
	for (size_t i = 0; i < count + 2; i++) {
		const struct memkind *kind = kinds[i];
		const char *what = kind ? kind->name : "host";
		bool stands_for_all = !kind || strcmp(what, "cuda_plain") == 0;
		if (stands_for_all || !(kind_spared(kind) || (test_checked() && kind == device_kinds[0]))) {
			snprintf(name, sizeof name, "all_move_%s", what);
			test_add(name, all_move, kind, 30);
		}
		/* The results do not depend on the kind of memory: a memory checker runs one. */
		if (test_checked() && !stands_for_all)
			continue;
		snprintf(name, sizeof name, "rdm_all_move_%s", what);
		test_add(name, all_move_rdm, kind, 30);
		snprintf(name, sizeof name, "one_is_named_%s", what);
		test_add(name, one_is_named, kind, 30);
		snprintf(name, sizeof name, "told_at_the_end_%s", what);
		test_add(name, told_at_the_end, kind, 30);
		snprintf(name, sizeof name, "given_up_%s", what);
		test_add(name, given_up, kind, 30);
	}
}
