/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Lists of blocks: exactly the bytes of the blocks move, over every path, and the error for a refused list names the block.
 */
#include "list.h"

enum { VERIFY, FILL, RECOVER, END };
struct order {
	uint32_t what, seed;
	uint64_t data; /* remote CQ data whose entry comes first */
};

static void tell(struct node *n, uint32_t what, uint32_t seed, uint64_t data)
{
	struct order o = {what, seed, data};
	char ack;
	oob_send(n, &o, sizeof o);
	if (what != RECOVER)
		oob_recv(n, &ack, 1);
}

/* The position and length of block i of a random list. */
static size_t block_len(uint32_t seed, size_t i)
{
	static const size_t lens[] = {0, 1, 3, 8, 15, 16, 17, 64, 1000, 4000};
	return lens[(i * 7 + seed) % 10];
}

static size_t block_at(uint32_t seed, size_t i)
{
	/* The target positions are in another order than the blocks. */
	return (i * 389 + seed) % BLOCKS * SPACE + (i + seed) % 90;
}

/* --- the target --- */

static void verify(struct mem *m, uint32_t seed)
{
	unsigned char *all = (unsigned char *)malloc(TARGET), *want = (unsigned char *)malloc(TARGET);
	fill(want, TARGET, 0, 1);
	for (size_t i = 0; seed != 1 && i < BLOCKS; i++)
		fill(want + block_at(seed, i), block_len(seed, i), i, seed);
	mem_read(m, 0, all, TARGET);
	bool same = memcmp(all, want, TARGET) == 0;
	for (size_t i = 0; i < TARGET && !same; i++)
		if (all[i] != want[i])
			test_fail(__FILE__, __LINE__, "byte %zu of the target is %u, not %u", i, all[i], want[i]);
	free(all);
	free(want);
}

static void target(struct node *n)
{
	const struct way *way = (const struct way *)n->arg;
	struct mem m;
	struct order o;
	node_up(n);
	mem_new(n, &m, way->kind, TARGET);
	mem_fill(&m, 0, TARGET, 0, 1);
	way_register(n, &m, 0, TARGET, way);
	data_room(n);
	mem_publish(n, &m);
	for (;;) {
		oob_recv(n, &o, sizeof o);
		if (o.what == END)
			break;
		if (o.what == RECOVER) {
			recover(n);
			continue;
		}
		if (o.data != 0) {
			done entry;
			DATA_CAME(n, &entry);
			CHECK_EQ(entry.data, o.data);
			data_room(n);
		}
		if (o.what == VERIFY)
			verify(&m, o.seed);
		mem_fill(&m, 0, TARGET, 0, 1);
		oob_send(n, "k", 1);
	}
	oob_send(n, "k", 1);
	mem_end(n, &m);
	node_down(n);
}

/* --- the initiator --- */

static void end(struct node *n, struct lists *l)
{
	tell(n, END, 0, 0);
	mem_end(n, &l->local);
	node_down(n);
}

/* Makes a random list with the same layout here as in the target; returns its bytes. */
static size_t random_list(struct lists *l, uint32_t seed)
{
	size_t total = 0;
	for (size_t i = 0; i < BLOCKS; i++) {
		size_t len = block_len(seed, i), at = block_at(seed, i);
		l->blocks[i].buf = l->local.addr + i * SPACE + (seed + i * 5) % 90;
		l->blocks[i].addr = l->to.base + at;
		l->blocks[i].len = len;
		total += len;
	}
	return total;
}

static void fill_blocks(struct lists *l, uint32_t seed, bool from_target)
{
	for (size_t i = 0; i < BLOCKS; i++) {
		gdrfab_block *b = &l->blocks[i];
		size_t at = (size_t)((unsigned char *)b->buf - l->local.addr);
		if (seed == 0)
			CHECK_MEM("a block that was read", &l->local, at, b->len, (size_t)(b->addr - l->to.base), 1);
		else if (!from_target)
			mem_fill(&l->local, at, b->len, i, seed);
	}
}

static void check_read(struct lists *l, uint32_t seed)
{
	for (size_t i = 0; i < BLOCKS; i++) {
		size_t at = (size_t)((unsigned char *)l->blocks[i].buf - l->local.addr);
		CHECK_MEM("a block that was read again", &l->local, at, l->blocks[i].len, i, seed);
	}
}

/* Writes a list with data and reads it back; the same with a prepared list that is posted several times. */
static void moves_of(struct node *n, const struct memkind *kind)
{
	static struct lists l;
	list_begin(n, &l, kind);
	/* iWARP has no remote CQ data. */
	bool may_tell = n->info->cq_data_size > 0;
	uint64_t told = n->info->cq_data_size >= 8 ? 0x1122334455667788u : 0x11223344u;
	for (uint32_t seed = 2; seed < 5; seed++) {
		bool tells = may_tell && seed != 2;
		size_t total = random_list(&l, seed);
		done entry;
		fill_blocks(&l, seed, false);
		l.msg.data = told;
		if (seed < 4) {
			POST(n->cq, gdrfab_writelist(n->ep, &l.msg, tells ? GDRFAB_REMOTE_CQ_DATA | GDRFAB_FENCE : 0));
			DONE(n->cq, &l, GDRFAB_RMA | GDRFAB_WRITE, &entry);
			CHECK_EQ(entry.len, total);
		} else {
			gdrfab_list *list;
			OK(gdrfab_list_open(n->ep, &l.msg, &list));
			for (int k = 0; k < 3; k++) {
				uint64_t flags = GDRFAB_WRITE | (k == 2 && may_tell ? GDRFAB_REMOTE_CQ_DATA : 0);
				POST(n->cq, gdrfab_list_post(list, flags, told, &l));
			}
			for (int k = 0; k < 3; k++)
				DONE(n->cq, &l, GDRFAB_WRITE, &entry);
			for (int k = 0; k < 3; k++) {
				fill_blocks(&l, 7, false);
				POST(n->cq, gdrfab_list_post(list, GDRFAB_READ, 0, &l));
				DONE(n->cq, &l, GDRFAB_READ, &entry);
				check_read(&l, seed);
			}
			OK(gdrfab_list_close(list));
			CHECK_EQ(entry.len, total);
		}
		tell(n, VERIFY, seed, tells ? told : 0);
		POST(n->cq, gdrfab_readlist(n->ep, &l.msg, 0));
		DONE(n->cq, &l, GDRFAB_RMA | GDRFAB_READ, &entry);
		CHECK_EQ(entry.len, total);
		fill_blocks(&l, 0, true);
		QUIET(n->cq, 0);
	}
	/* A list of empty blocks only, also with data. */
	for (size_t i = 0; i < BLOCKS; i++)
		l.blocks[i].len = 0;
	for (int k = 0; k < 2; k++) {
		done none;
		POST(n->cq, gdrfab_writelist(n->ep, &l.msg, k && may_tell ? GDRFAB_REMOTE_CQ_DATA : 0));
		DONE(n->cq, &l, GDRFAB_WRITE, &none);
		CHECK_EQ(none.len, 0);
	}
	tell(n, VERIFY, 1, may_tell ? told : 0);
	end(n, &l);
}

static void moves(struct node *n)
{
	const struct way *way = (const struct way *)n->arg;
	moves_of(n, way->kind->opaque ? way->kind : &memkinds[KIND_MALLOC]);
}

static void blocks_move(const void *arg)
{
	pair(NULL, target, moves, arg);
}

static void blocks_move_rdm(const void *arg)
{
	list_rdm(target, moves, arg);
}

/* From host memory to a device's, which a driver has to pin, and back. */
static void moves_host(struct node *n)
{
	moves_of(n, &memkinds[KIND_MALLOC]);
}

static void host_blocks_move(const void *arg)
{
	pair(NULL, target, moves_host, arg);
}

/* Descriptors and keys of a prepared list are checked at every post. */
static void closes(struct node *n)
{
	const struct way *way = (const struct way *)n->arg;
	static struct lists l;
	gdrfab_list *list;
	done entry;
	list_begin(n, &l, way->kind);
	random_list(&l, 2);
	OK(gdrfab_list_open(n->ep, &l.msg, &list));
	for (int k = 0; k < 2; k++) {
		POST(n->cq, gdrfab_list_post(list, GDRFAB_WRITE, 0, &l));
		DONE(n->cq, &l, GDRFAB_WRITE, &entry);
	}
	mem_unregister(&l.local);
	CHECK_EQ(gdrfab_list_post(list, GDRFAB_WRITE, 0, &l), -EINVAL);
	mem_register(n, &l.local, 0, TARGET, ANY_ACCESS, 0);
	CHECK_EQ(gdrfab_list_post(list, GDRFAB_WRITE, 0, &l), -EINVAL);
	QUIET(n->cq, 0);
	OK(gdrfab_list_close(list));
	end(n, &l);
}

static void closed_regions_end_a_prepared_list(const void *arg)
{
	pair(NULL, target, closes, arg);
}

/* If the driver launches no copy kernel, it copies block by block. */
static void blocks_move_without_a_kernel(const void *arg)
{
	setenv("GDRFAB_CUDA_MAX_CTAS", "0", 1);
	pair(NULL, target, moves, arg);
}

static void blocks_move_where_no_kernel_loads(const void *arg)
{
	setenv("FAKE_FAULT", "cuModuleLoadData=222", 1);
	pair(NULL, target, moves, arg);
}

/* A staged operation that fails ends no connection. */
static bool survives(const struct node *n)
{
	return traits()->survives_failures || ((const struct way *)n->arg)->path->bit == GDRFAB_PATH_STAGED;
}

static void refused(struct node *n, struct lists *l, const char *what, uint64_t flags, int err, int prov, size_t block, bool all)
{
	struct failure f;
	POST(n->cq, flags & GDRFAB_WRITE ? gdrfab_writelist(n->ep, &l->msg, 0) : gdrfab_readlist(n->ep, &l->msg, 0));
	FAILED(n->cq, l, err, prov, &f);
	if (f.entry.block != block)
		test_fail(__FILE__, __LINE__, "%s: block %zu, not %zu: %s", what, f.entry.block, block, f.words);
	QUIET(n->cq, 0);
	if (!survives(n)) {
		tell(n, RECOVER, 0, 0);
		recover(n);
	} else if (all) {
		/* No byte has moved. */
		tell(n, VERIFY, 1, 0);
	}
}

static void refuses(struct node *n)
{
	static struct lists l;
	static uint64_t keys[BLOCKS];
	const struct way *way = (const struct way *)n->arg;
	list_begin(n, &l, way->kind->opaque ? way->kind : &memkinds[KIND_MALLOC]);
	bool first = (n->info->list_paths & way->path->bit) != 0;
	mem_fill(&l.local, 0, TARGET, 0, 1);
	random_list(&l, 2);
	l.blocks[777].addr = l.to.base + TARGET - 100;
	l.blocks[777].len = 101;
	refused(n, &l, "out of bounds by one byte", GDRFAB_WRITE, ERANGE, GDRFAB_PROV_BOUNDS, 777, first);
	refused(n, &l, "read out of bounds", GDRFAB_READ, ERANGE, GDRFAB_PROV_BOUNDS, 777, first);
	/* The same among adjoining blocks, which are joined. */
	for (size_t i = 0; i < BLOCKS; i++) {
		l.blocks[i].buf = l.local.addr + i * 1000;
		l.blocks[i].addr = l.to.base + TARGET - 700 * 1000 - 1 + i * 1000;
		l.blocks[i].len = 1000;
	}
	l.blocks[710].addr = l.to.base;
	l.msg.count = 701;
	l.blocks[700].len = 2;
	/* If the refusal ends the connection, the library cannot find out which of the joined blocks was refused. */
	size_t named = survives(n) ? 700 : 0;
	refused(n, &l, "joined blocks", GDRFAB_WRITE, ERANGE, GDRFAB_PROV_BOUNDS, named, first);
	l.msg.count = BLOCKS;
	random_list(&l, 2);
	for (size_t i = 0; i < BLOCKS; i++)
		keys[i] = l.to.key;
	l.blocks[555].len = 8;
	keys[555] = wrong_key(l.to.key);
	l.msg.key = keys;
	l.msg.key_count = BLOCKS;
	refused(n, &l, "a foreign key", GDRFAB_WRITE, EKEYREJECTED, GDRFAB_PROV_KEY, 555, first);
	keys[555] = l.to.key;
	/* Overlapping targets are allowed, and a key and a descriptor for each block. */
	void *descs[BLOCKS];
	for (size_t i = 0; i < BLOCKS; i++) {
		descs[i] = l.desc;
		l.blocks[i].addr = l.to.base + i;
		l.blocks[i].len = 500;
	}
	l.msg.desc = descs;
	l.msg.desc_count = BLOCKS;
	POST(n->cq, gdrfab_writelist(n->ep, &l.msg, 0));
	DONE(n->cq, &l, GDRFAB_WRITE, NULL);
	tell(n, FILL, 0, 0);
	/* Errors on this side are results of the call. */
	l.msg.desc_count = 2;
	CHECK_EQ(gdrfab_writelist(n->ep, &l.msg, 0), -EINVAL);
	l.msg.desc_count = BLOCKS;
	CHECK_EQ(gdrfab_writelist(n->ep, &l.msg, GDRFAB_INJECT), -GDRFAB_EBADFLAGS);
	CHECK_EQ(gdrfab_readlist(n->ep, &l.msg, GDRFAB_REMOTE_CQ_DATA), -GDRFAB_EBADFLAGS);
	l.msg.count = 0;
	CHECK_EQ(gdrfab_writelist(n->ep, &l.msg, 0), -EINVAL);
	l.msg.count = n->info->list_limit + 1;
	CHECK_EQ(gdrfab_writelist(n->ep, &l.msg, 0), -EINVAL);
	l.msg.count = BLOCKS;
	l.blocks[3].buf = NULL;
	CHECK_EQ(gdrfab_writelist(n->ep, &l.msg, 0), -EINVAL);
	SAYS(gdrfab_last_error(), "blocks[3]");
	QUIET(n->cq, 0);
	end(n, &l);
}

static void names_the_block(const void *arg)
{
	pair(NULL, target, refuses, arg);
}

static void names_the_block_rdm(const void *arg)
{
	list_rdm(target, refuses, arg);
}

/* Very many very small blocks. */
static void counts(struct node *n)
{
	static struct lists l;
	const struct way *way = (const struct way *)n->arg;
	list_begin(n, &l, way->kind->opaque ? way->kind : &memkinds[KIND_MALLOC]);
	/* An adapter moves them one by one, which is slow: fewer. */
	bool native = (n->info->list_paths & way->path->bit) != 0 && !way->kind->opaque && !traits()->adapter;
	size_t count = native ? (size_t)test_count(1000000, 20000) : (size_t)test_count(20000, 2000);
	gdrfab_block *blocks = (gdrfab_block *)malloc(count * sizeof *blocks);
	for (size_t i = 0; i < count; i++) {
		blocks[i].buf = l.local.addr + i * 4;
		blocks[i].addr = l.to.base + (i ^ 1) * 4;
		blocks[i].len = 4;
	}
	l.msg.blocks = blocks;
	l.msg.count = count;
	mem_fill(&l.local, 0, count * 4, 0, 9);
	POST(n->cq, gdrfab_writelist(n->ep, &l.msg, 0));
	DONE(n->cq, &l, GDRFAB_WRITE, NULL);
	for (size_t i = 0; i < count; i++)
		blocks[i].addr = l.to.base + i * 4;
	POST(n->cq, gdrfab_readlist(n->ep, &l.msg, 0));
	DONE(n->cq, &l, GDRFAB_READ, NULL);
	uint32_t *back = (uint32_t *)malloc(count * 4), *want = (uint32_t *)malloc(count * 4);
	mem_read(&l.local, 0, back, count * 4);
	fill(want, count * 4, 0, 9);
	for (size_t i = 0; i < count; i++)
		if (back[i] != want[i ^ 1])
			test_fail(__FILE__, __LINE__, "block %zu is %08x, not %08x", i, back[i], want[i ^ 1]);
	free(back);
	free(want);
	free(blocks);
	tell(n, FILL, 0, 0);
	end(n, &l);
}

static void many_blocks(const void *arg)
{
	pair(NULL, target, counts, arg);
}

TEST_TABLE(per_way)
{
	size_t count = all_ways_list();
	char name[64];
	for (size_t i = 0; i < count; i++) {
		const struct way *w = &ways[i];
		/* The results do not depend on the kind of memory: a memory checker runs one. */
		bool stands_for_all = w->kind->opaque ? strstr(w->name, "cuda_plain") != NULL : !way_spared(w);
		if (stands_for_all || !(way_spared(w) || (test_checked() && w->kind == device_kinds[0]))) {
			snprintf(name, sizeof name, "blocks_move_%s", w->name);
			test_add(name, blocks_move, w, 30);
		}
		if (stands_for_all || !test_count(0, 1)) {
			snprintf(name, sizeof name, "names_the_block_%s", w->name);
			test_add(name, names_the_block, w, 30);
		}
		if (w->kind->opaque && w->path->bit == GDRFAB_PATH_IPC &&
		    (!test_checked() || stands_for_all || strstr(w->name, "cuda_segments"))) {
			snprintf(name, sizeof name, "host_blocks_move_%s", w->name);
			test_add(name, host_blocks_move, w, 30);
		}
		if (w->kind->opaque && w->path->bit == GDRFAB_PATH_IPC && (!test_checked() || stands_for_all)) {
			snprintf(name, sizeof name, "closed_regions_end_a_prepared_list_%s", w->name);
			test_add(name, closed_regions_end_a_prepared_list, w, 30);
		}
		uint64_t kernels = path_known(PATH_IPC) ? GDRFAB_PATH_IPC : GDRFAB_PATH_STAGED;
		if (strstr(w->name, "cuda_plain") && w->path->bit == kernels) {
			if (!test_checked())
				test_add("blocks_move_without_a_kernel", blocks_move_without_a_kernel, w, 30);
			if (!getenv("TEST_REAL"))
				test_add("blocks_move_where_no_kernel_loads", blocks_move_where_no_kernel_loads, w, 30);
		}
		/* One kind of memory for each path is enough for these. */
		if (w->kind != &memkinds[KIND_MEM_ALLOC] && w->kind != &memkinds[KIND_MALLOC] && !w->kind->opaque)
			continue;
		if (stands_for_all || !test_checked()) {
			snprintf(name, sizeof name, "many_blocks_%s", w->name);
			test_add(name, many_blocks, w, 30);
		}
		/* A memory checker runs them once where the initiator moves the blocks, and once where the target does. */
		if (test_checked() && (w->path->bit == GDRFAB_PATH_CMA || (w->kind->opaque && w->path->bit == GDRFAB_PATH_STAGED)))
			continue;
		if (w->kind->opaque ? strstr(w->name, "cuda_plain") != NULL : !way_spared(w)) {
			snprintf(name, sizeof name, "rdm_blocks_move_%s", w->name);
			test_add(name, blocks_move_rdm, w, 30);
			snprintf(name, sizeof name, "rdm_names_the_block_%s", w->name);
			test_add(name, names_the_block_rdm, w, 30);
		}
	}
}
