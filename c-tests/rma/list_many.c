/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Lists that take several steps: over several regions, over several TCP connections, and cancelled in the middle, after which
 * the caller's memory is not accessed.
 */
#include "list_back.h"

#define LENGTH ((size_t)16 * 1024 * 1024)
#define BLOCKS ((size_t)6000)
#define SPACE (LENGTH / BLOCKS)

struct lists {
	struct remote to[2];
	struct mem local;
	gdrfab_block blocks[BLOCKS];
	uint64_t keys[BLOCKS];
	void *desc;
	gdrfab_msg_list msg;
};

/* Blocks of all lengths up to their space; every other one is in the second region if there is one. */
static void make(struct node *n, struct lists *l, size_t len, bool both)
{
	/* A driver that copies block by block is slow: fewer blocks. */
	size_t count = both ? 300 : BLOCKS;
	mem_new(n, &l->local, &memkinds[KIND_MALLOC], LENGTH);
	for (size_t i = 0; i < count; i++) {
		l->blocks[i].buf = l->local.addr + i * SPACE;
		l->blocks[i].addr = l->to[both && i % 2].base + (i ^ 3) * SPACE;
		l->blocks[i].len = len ? len : i * 7 % SPACE;
		l->keys[i] = l->to[both && i % 2].key;
	}
	l->desc = mem_needed_desc(n, &l->local);
	l->msg = list_of(n, l->blocks, count, &l->desc, l->keys, count, l);
}

static const struct memkind *second(const struct node *n)
{
	return (const struct memkind *)n->arg;
}

static void owns(struct node *n)
{
	struct mem m[2];
	node_up(n);
	for (int i = 0; i < (second(n) ? 2 : 1); i++) {
		mem_new(n, &m[i], i ? second(n) : &memkinds[KIND_MALLOC], LENGTH);
		int result = mem_try_register(n, &m[i], 0, LENGTH, ANY_ACCESS, 0, 0);
		if (result == -EOPNOTSUPP && kind_maybe(m[i].kind))
			test_skip("%s", gdrfab_last_error());
		CHECK_EQ(result, 0);
		mem_publish(n, &m[i]);
	}
	barrier(n);
	for (int i = 0; i < (second(n) ? 2 : 1); i++)
		mem_end(n, &m[i]);
	node_down(n);
}

static void moves(struct node *n)
{
	static struct lists l;
	node_up(n);
	for (int i = 0; i < (second(n) ? 2 : 1); i++)
		l.to[i] = mem_fetch(n);
	/* The first list makes the library open further connections. */
	for (int i = 0; i < 3; i++) {
		make(n, &l, 0, second(n) != NULL);
		list_comes_back(n, &l.msg, &l.local, SPACE, 3);
		mem_end(n, &l.local);
	}
	barrier(n);
	node_down(n);
}

static void several_places(const void *arg)
{
	pair(NULL, owns, moves, arg);
}

static void several_connections(const void *arg)
{
	skip_unless(path_known(PATH_SOCKET), "only tcp has several connections to a peer");
	setenv("GDRFAB_TCP_STREAMS", "3", 1);
	pair(NULL, owns, moves, arg);
}

/* --- given up in the middle --- */

static void owns_and_stops(struct node *n)
{
	struct mem m;
	node_up(n);
	mem_new(n, &m, &memkinds[KIND_MALLOC], LENGTH);
	mem_register(n, &m, 0, LENGTH, ANY_ACCESS, 0);
	mem_fill(&m, 0, LENGTH, 0, 1);
	mem_publish(n, &m);
	barrier(n);
	barrier(n);
	mem_end(n, &m);
	node_close(n);
}

static void gives_up(struct node *n)
{
	static struct lists l;
	bool cancels = n->arg != NULL && traits()->cancels;
	node_up(n);
	l.to[0] = mem_fetch(n);
	make(n, &l, SPACE, false);
	barrier(n);
	for (int round = 0; round < 6; round++) {
		done entry;
		int lists = 3, came = 0;
		l.msg.timeout_ns = cancels ? UINT64_MAX : 100000000u;
		for (int i = 0; i < lists; i++)
			POST(n->cq, gdrfab_readlist(n->ep, &l.msg, 0));
		/* A part of the list moves. */
		for (int i = 0; i < 1 << (2 * round); i++)
			came += cq_next(n->cq, &entry, 0) == 1;
		peer_stop(n);
		if (cancels)
			while (gdrfab_cancel(n->ep, &l) == 0)
				;
		GIVEN_UP(n->cq, lists - came, cancels ? ECANCELED : ETIMEDOUT, BLOCKS);
		list_stays_given_up(n, &l.local);
	}
	/* The connection goes on. */
	l.msg.timeout_ns = 0;
	POST(n->cq, gdrfab_readlist(n->ep, &l.msg, 0));
	DONE(n->cq, &l, GDRFAB_READ, NULL);
	for (size_t i = 0; i < BLOCKS; i++)
		CHECK_MEM("a block that was read", &l.local, i * SPACE, SPACE, (i ^ 3) * SPACE, 1);
	barrier(n);
	mem_end(n, &l.local);
	node_close(n);
}

static void given_up(const void *arg)
{
	skip_unless(traits()->survives_failures, "an operation that is given up ends the connection");
	pair(NULL, owns_and_stops, gives_up, arg);
}

TEST_TABLE(claims)
{
	test_add("beyond_one_frame", several_places, NULL, 30);
	test_add("over_several_connections", several_connections, NULL, 30);
	test_add("late_in_the_middle", given_up, NULL, 60);
	test_add("cancelled_in_the_middle", given_up, "cancels", 60);
	static char names[DEVICE_KINDS][64];
	for (size_t i = 0, count = device_kinds_list(); i < count; i++) {
		if (kind_spared(device_kinds[i]))
			continue;
		snprintf(names[i], sizeof names[i], "host_memory_and_%s", device_kinds[i]->name);
		test_add(names[i], several_places, device_kinds[i], 30);
	}
}
