/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Device memory between two processes: memory freed under its region, a region closed during copies, notifications after the
 * data, and operations with a process that dies.
 */
#include "device.h"

/* The memory is freed and allocated again while its region is open. */
static void frees_under_region(struct node *n)
{
	struct mem m, local;
	target_new(n, &m, 1);
	barrier(n);
	/* By now the peer has used the region. */
	barrier(n);
	m.kind->release(n, &m);
	struct mem again = m;
	again.kind->alloc(n, &again);
	mem_fill(&again, 0, LEN, 0, 2);
	barrier(n);
	/* By now the peer has tried to use the region; the new allocation has none of its bytes. */
	barrier(n);
	CHECK_MEM("memory allocated later", &again, 0, LEN, 0, 2);

	/* The region fails as a local buffer as well. */
	struct remote to = mem_fetch(n);
	ssize_t rc = gdrfab_write(n->ep, m.addr, 4096, mem_desc(&m), 0, to.base, to.key, &m);
	if (rc == 0)
		FAILED(n->cq, &m, EFAULT, GDRFAB_PROV_FAULT, NULL);
	else
		CHECK_EQ(rc, -EFAULT);
	rc = gdrfab_read(n->ep, m.addr, 4096, mem_desc(&m), 0, to.base, to.key, &m);
	if (rc == 0)
		FAILED(n->cq, &m, EFAULT, GDRFAB_PROV_FAULT, NULL);
	else
		CHECK_EQ(rc, -EFAULT);
	CHECK_MEM("memory allocated later", &again, 0, LEN, 0, 2);
	barrier(n);
	OK(gdrfab_mr_close(m.mr));
	again.mr = NULL;
	mem_register(n, &again, 0, LEN, ANY_ACCESS, 0);
	/* Registered again the memory works. */
	mem_new(n, &local, &memkinds[KIND_MALLOC], LEN);
	POST(n->cq, gdrfab_write(n->ep, again.addr, LEN, mem_desc(&again), 0, to.base, to.key, &again));
	DONE(n->cq, &again, GDRFAB_WRITE, NULL);
	mem_end(n, &local);
	mem_end(n, &again);
	node_down(n);
}

static void uses_freed(struct node *n)
{
	unsigned char *buf = (unsigned char *)malloc(LEN);
	struct remote to = initiator_new(n);
	bool staged = way_of(n)->path->bit == GDRFAB_PATH_STAGED;
	struct mem here;
	fill(buf, LEN, 0, 3);
	barrier(n);
	POST(n->cq, gdrfab_read(n->ep, buf, LEN, local_desc(n, buf, LEN), 0, to.base, to.key, buf));
	DONE(n->cq, buf, GDRFAB_READ, NULL);
	CHECK_FILLED("memory before it was freed", buf, LEN, 0, 1);
	barrier(n);
	barrier(n);
	/* A peer's mapping keeps the old memory alive and reaches it; copies by the target find out that it was freed. */
	fill(buf, LEN, 0, 3);
	post_write(n, buf, to);
	if (staged)
		FAILED(n->cq, buf, EFAULT, GDRFAB_PROV_FAULT, NULL);
	else
		DONE(n->cq, buf, GDRFAB_WRITE, NULL);
	memset(buf, 0, LEN);
	POST(n->cq, gdrfab_read(n->ep, buf, LEN, local_desc(n, buf, LEN), 0, to.base, to.key, buf));
	if (staged)
		FAILED(n->cq, buf, EFAULT, GDRFAB_PROV_FAULT, NULL);
	else
		DONE(n->cq, buf, GDRFAB_READ, NULL);
	if (!staged)
		CHECK_FILLED("the old memory", buf, LEN, 0, 3);
	barrier(n);
	mem_new(n, &here, &memkinds[KIND_MEM_ALLOC], LEN);
	memset(here.addr, 0x77, LEN);
	mem_register(n, &here, 0, LEN, REMOTE_ACCESS, 0);
	mem_publish(n, &here);
	barrier(n);
	barrier(n);
	mem_end(n, &here);
	free(buf);
	node_close(n);
}

static void frees_and_closes(struct node *n)
{
	frees_under_region(n);
}

static void freed_under_a_region(const void *arg)
{
	pair(NULL, frees_and_closes, uses_freed, arg);
}

/* A region is closed while the peer's driver copies into it. */
static void closes_under_copies(struct node *n)
{
	struct mem m;
	char word;
	target_new(n, &m, 1);
	barrier(n);
	/* The copies need no progress of this side. */
	n->idle = true;
	oob_recv(n, &word, 1);
	n->idle = false;
	mem_unregister(&m);
	/* After the close all begun copies have ended, and their bytes are in place. */
	CHECK_MEM("what was on its way", &m, 0, LEN, 0, 9);
	mem_fill(&m, 0, LEN, 0, 1);
	barrier(n);
	barrier(n);
	CHECK_MEM("a closed region", &m, 0, LEN, 0, 1);
	mem_end(n, &m);
	node_down(n);
}

static void copies_slowly(struct node *n)
{
	unsigned char *buf = (unsigned char *)malloc(LEN);
	struct remote to = initiator_new(n);
	fill(buf, LEN, 0, 9);
	POST(n->cq, gdrfab_write(n->ep, buf, 1, local_desc(n, buf, 1), 0, to.base, to.key, buf));
	DONE(n->cq, buf, GDRFAB_WRITE, NULL);
	barrier(n);
	setenv("FAKE_DELAY_US", "50000", 1);
	for (int i = 0; i < POSTS; i++)
		post_write(n, buf, to);
	oob_send(n, "p", 1);
	for (int i = 0; i < POSTS; i++)
		DONE(n->cq, buf, GDRFAB_WRITE, NULL);
	barrier(n);
	unsetenv("FAKE_DELAY_US");
	post_write(n, buf, to);
	FAILED(n->cq, buf, EKEYREJECTED, GDRFAB_PROV_KEY, NULL);
	initiator_end(n, buf);
}

static void closed_under_copies(const void *arg)
{
	pair(NULL, closes_under_copies, copies_slowly, arg);
}

/* The notification of a write never overtakes its data. */
static void is_told(struct node *n)
{
	struct mem m;
	done entry;
	target_new(n, &m, 1);
	/* If this side copies the bytes into place, this side's driver is the slow one. */
	if (!one_sided(way_of(n)))
		setenv("FAKE_DELAY_US", "20000", 1);
	for (uint32_t round = 0; round < 6; round++) {
		DATA_CAME(n, &entry);
		CHECK_EQ(entry.data, round);
		CHECK_MEM("what was announced", &m, 0, LEN, 0, 20 + round);
		barrier(n);
	}
	mem_end(n, &m);
	node_down(n);
}

static void tells(struct node *n)
{
	unsigned char *buf = (unsigned char *)malloc(LEN);
	struct remote to = initiator_new(n);
	setenv("FAKE_DELAY_US", "20000", 1);
	for (uint32_t round = 0; round < 6; round++) {
		fill(buf, LEN, 0, 20 + round);
		POST(n->cq, gdrfab_writedata(n->ep, buf, LEN, local_desc(n, buf, LEN), round, 0, to.base, to.key, buf));
		DONE(n->cq, buf, GDRFAB_WRITE, NULL);
		barrier(n);
	}
	free(buf);
	node_down(n);
}

static void told_after_the_data(const void *arg)
{
	pair(NULL, is_told, tells, arg);
}

/* One side is killed while it has the other's memory mapped and copies are under way. */
static void survives(struct node *n)
{
	struct mem m;
	target_new(n, &m, 1);
	barrier(n);
	barrier(n);
	peer_kill(n);
	OK(gdrfab_mr_close(m.mr));
	m.mr = NULL;
	mem_fill(&m, 0, LEN, 0, 4);
	CHECK_MEM("memory that a dead process had mapped", &m, 0, LEN, 0, 4);
	EVENT(n->eq, GDRFAB_SHUTDOWN, n->ep, NULL);
	mem_end(n, &m);
	node_close(n);
}

static void dies_with_handles(struct node *n)
{
	static unsigned char buf[LEN];
	struct remote to = initiator_new(n);
	barrier(n);
	writes(n, buf, to);
	setenv("FAKE_DELAY_US", "1000000", 1);
	post_write(n, buf, to);
	barrier(n);
	for (;;)
		gdrfab_cq_read(n->cq, NULL, 0);
}

static void initiator_killed(const void *arg)
{
	struct setup s = {.victim = TEST_CLIENT};
	pair(&s, survives, dies_with_handles, arg);
}

static void dies_with_memory(struct node *n)
{
	struct mem m;
	target_new(n, &m, 1);
	barrier(n);
	for (;;)
		gdrfab_cq_read(n->cq, NULL, 0);
}

static void survives_target(struct node *n)
{
	unsigned char *buf = (unsigned char *)malloc(LEN);
	struct remote to = initiator_new(n);
	memset(buf, 6, LEN);
	barrier(n);
	writes(n, buf, to);
	setenv("FAKE_DELAY_US", "20000", 1);
	for (int i = 0; i < POSTS; i++)
		post_write(n, buf, to);
	peer_kill(n);
	for (int i = 0; i < POSTS; i++) {
		done entry;
		struct failure f;
		int next = cq_next(n->cq, &entry, 10000);
		CHECK(next != 0);
		if (next > 0)
			continue;
		cq_failure(__FILE__, __LINE__, n->cq, &f);
		CHECK_EQ(f.entry.err, ECONNRESET);
	}
	EVENT(n->eq, GDRFAB_SHUTDOWN, n->ep, NULL);
	free(buf);
	node_close(n);
}

static void target_killed(const void *arg)
{
	struct setup s = {.victim = TEST_SERVER};
	pair(&s, dies_with_memory, survives_target, arg);
}

/* --- the claims --- */

TEST_TABLE(device_transfers)
{
	device_kinds_list();
	size_t count = all_ways_list();
	for (size_t w = 0; w < count; w++) {
		const struct way *way = &ways[w];
		bool ipc = way->path->bit == GDRFAB_PATH_IPC;
		if (left_out(way) || way_spared(way))
			continue;
		bool by_driver = way->kind->alloc == cuda_kinds[0].alloc && way->kind->opaque;
		if (by_driver && !traits()->adapter && way->kind->flavour != CUDA_MANAGED)
			device_claim("freed_under_a_region", way->name, freed_under_a_region, way, 20);
		/* If the provider has no other path, staging carries all device memory. */
		if (!ipc && !(path_known(PATH_SOCKET) && way->kind->opaque))
			continue;
		device_claim("initiator_killed", way->name, initiator_killed, way, 20);
		device_claim("target_killed", way->name, target_killed, way, 20);
		device_claim("told_after_the_data", way->name, told_after_the_data, way, 20);
		if (ipc && way->kind->iface == GDRFAB_HMEM_CUDA)
			device_claim("closed_under_copies", way->name, closed_under_copies, way, 20);
	}
}
