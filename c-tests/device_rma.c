/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Device memory between two processes: freed under a region, closed under copies, told of after the data, and what becomes of
 * operations when a process or a driver fails.
 */
#include "device.h"

/* Freed and allocated again while a region says that it is there. */
static void frees_under_region(struct node *n)
{
	struct mem m, local;
	target_new(n, &m, 1);
	barrier(n);
	/* The peer has used it. */
	barrier(n);
	m.kind->release(n, &m);
	struct mem again = m;
	again.kind->alloc(n, &again);
	mem_fill(&again, 0, LEN, 0, 2);
	barrier(n);
	/* The peer has tried to use it; nothing of that is in the new allocation. */
	barrier(n);
	CHECK_MEM("memory allocated later", &again, 0, LEN, 0, 2);

	/* As a local buffer as well. */
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
	/* Registered anew it is as good as any. */
	mem_new(n, &local, &memkinds[KIND_MALLOC], LEN);
	POST(n->cq, gdrfab_write(n->ep, again.addr, LEN, mem_desc(&again), 0, to.base, to.key, &again));
	DONE(n->cq, &again, GDRFAB_WRITE, NULL);
	mem_end(n, &local);
	mem_end(n, &again);
	node_down(n);
}

static void post_write(struct node *n, unsigned char *buf, struct remote to)
{
	POST(n->cq, gdrfab_write(n->ep, buf, LEN, local_desc(n, buf, LEN), 0, to.base, to.key, buf));
}

static void writes(struct node *n, unsigned char *buf, struct remote to)
{
	post_write(n, buf, to);
	DONE(n->cq, buf, GDRFAB_WRITE, NULL);
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
	/* A mapping keeps the old memory alive, and reaches that; the target's own copies find out. */
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
#define POSTS 4

static void closes_under_copies(struct node *n)
{
	struct mem m;
	char word;
	target_new(n, &m, 1);
	barrier(n);
	/* The copies go on without this side's help. */
	n->idle = true;
	oob_recv(n, &word, 1);
	n->idle = false;
	mem_unregister(&m);
	/* All that had begun has ended, and its bytes are here. */
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
	barrier(n);
	free(buf);
	node_down(n);
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
	/* Where the bytes are put in place by this side, it is this side's driver that is slow. */
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

/* One side is killed while a mapping of the other's memory is open, and copies are in flight. */
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

/* A code that no header names reaches the caller as a number. */
static const char *copy_fault(uint32_t iface)
{
	switch (iface) {
	case GDRFAB_HMEM_CUDA:
		return "cuMemcpyHtoDAsync_v2=12345";
	case GDRFAB_HMEM_ROCR:
		/* The second for memory that is not pinned. */
		return "hsa_amd_memory_async_copy=12345,hsa_memory_copy=12345";
	default:
		return "zeCommandListAppendMemoryCopy=12345";
	}
}

static void waits(struct node *n)
{
	struct mem m;
	target_new(n, &m, 1);
	barrier(n);
	mem_end(n, &m);
	node_down(n);
}

static void fails_to_copy(struct node *n)
{
	unsigned char *buf = (unsigned char *)malloc(LEN);
	struct remote to = initiator_new(n);
	struct failure f;
	writes(n, buf, to);
	setenv("FAKE_FAULT", copy_fault(way_of(n)->kind->iface), 1);
	post_write(n, buf, to);
	FAILED(n->cq, buf, EIO, GDRFAB_PROV_FAULT, &f);
	SAYS_CODE(f.words, 12345);
	/* Asked how far it is, the driver fails. */
	if (way_of(n)->kind->iface == GDRFAB_HMEM_CUDA) {
		setenv("FAKE_FAULT", "cuStreamQuery=12346,cuEventQuery=12346", 1);
		for (int i = 0; i < POSTS; i++)
			post_write(n, buf, to);
		for (int i = 0; i < POSTS; i++) {
			FAILED(n->cq, buf, EIO, GDRFAB_PROV_FAULT, &f);
			SAYS_CODE(f.words, 12346);
		}
	}
	/* And when it is well again, so is the endpoint. */
	unsetenv("FAKE_FAULT");
	writes(n, buf, to);
	barrier(n);
	free(buf);
	node_down(n);
}

static void unknown_codes(const void *arg)
{
	fakes_only();
	pair(NULL, waits, fails_to_copy, arg);
}

/* Where the other side's driver copies: it fails there, and is told here. */
static void target_fails(struct node *n)
{
	struct mem m;
	target_new(n, &m, 1);
	barrier(n);
	setenv("FAKE_FAULT", copy_fault(way_of(n)->kind->iface), 1);
	barrier(n);
	barrier(n);
	unsetenv("FAKE_FAULT");
	barrier(n);
	barrier(n);
	CHECK_MEM("what came when the driver was well", &m, 0, LEN, 0, 12);
	mem_end(n, &m);
	node_down(n);
}

static void hears_of_it(struct node *n)
{
	unsigned char *buf = (unsigned char *)malloc(LEN);
	struct remote to = initiator_new(n);
	struct failure f;
	done e;
	fill(buf, LEN, 0, 12);
	writes(n, buf, to);
	barrier(n);
	barrier(n);
	for (int i = 0; i < POSTS; i++)
		post_write(n, buf, to);
	for (int i = 0; i < POSTS; i++) {
		CHECK_EQ(cq_next(n->cq, &e, 10000), -1);
		cq_failure(__FILE__, __LINE__, n->cq, &f);
		CHECK_EITHER(f.entry.err, EFAULT, EIO);
		CHECK_EQ(f.entry.prov_errno, GDRFAB_PROV_FAULT);
		CHECK(f.words[0] != 0);
	}
	barrier(n);
	barrier(n);
	writes(n, buf, to);
	barrier(n);
	free(buf);
	node_down(n);
}

static void target_driver_fails(const void *arg)
{
	fakes_only();
	pair(NULL, target_fails, hears_of_it, arg);
}

/* Where the peer's memory cannot be mapped, its bytes still arrive. */
static void cannot_import(struct node *n)
{
	unsigned char *buf = (unsigned char *)malloc(LEN);
	char words[2048];
	uint64_t bytes[PATHS];
	setenv("FAKE_FAULT",
	       "cuIpcOpenMemHandle_v2=12345,cuMemImportFromShareableHandle=12345,cuMemPoolImportFromShareableHandle=12345,"
	       "hsa_amd_ipc_memory_attach=12345,zeMemOpenIpcHandle=12345",
	       1);
	node_up(n);
	struct remote to = mem_fetch(n);
	fill(buf, LEN, 0, 8);
	writes(n, buf, to);
	path_bytes(n, bytes);
	CHECK_EQ(bytes[PATH_STAGED], LEN);
	CHECK(gdrfab_ep_explain(n->ep, to.key, words, sizeof words) > 0);
	SAYS_CODE(words, 12345);
	uint64_t only = GDRFAB_PATH_IPC;
	OK(gdrfab_ep_setopt(n->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_REQUIRE_PATH, &only, sizeof only));
	post_write(n, buf, to);
	FAILED(n->cq, buf, EOPNOTSUPP, GDRFAB_PROV_PATH, NULL);
	barrier(n);
	free(buf);
	node_down(n);
}

static void offers_all(struct node *n)
{
	struct mem m;
	node_up(n);
	mem_new(n, &m, way_of(n)->kind, LEN);
	mem_register(n, &m, 0, LEN, REMOTE_ACCESS, 0);
	mem_publish(n, &m);
	barrier(n);
	CHECK_MEM("what came without a mapping", &m, 0, LEN, 0, 8);
	mem_end(n, &m);
	node_down(n);
}

static void import_refused(const void *arg)
{
	fakes_only();
	pair(NULL, offers_all, cannot_import, arg);
}

/* --- memory of one vendor here and of another there --- */

struct two {
	struct way way;
	const struct memkind *near;
};

static void other_vendor(struct node *n)
{
	const struct two *two = (const struct two *)n->arg;
	struct failure f;
	struct mem m;
	node_up(n);
	struct remote to = mem_fetch(n);
	mem_new(n, &m, two->near, LEN);
	mem_fill(&m, 0, LEN, 0, 8);
	mem_register(n, &m, 0, LEN, ANY_ACCESS, 0);
	POST(n->cq, gdrfab_write(n->ep, m.addr, LEN, mem_desc(&m), 0, to.base, to.key, &m));
	FAILED(n->cq, &m, EOPNOTSUPP, GDRFAB_PROV_PATH, &f);
	uint64_t not = GDRFAB_PATH_IPC;
	OK(gdrfab_ep_setopt(n->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_FORBID_PATH, &not, sizeof not));
	POST(n->cq, gdrfab_write(n->ep, m.addr, LEN, mem_desc(&m), 0, to.base, to.key, &m));
	DONE(n->cq, &m, GDRFAB_WRITE, NULL);
	barrier(n);
	mem_end(n, &m);
	node_down(n);
}

static void two_vendors(const void *arg)
{
	pair(NULL, offers_all, other_vendor, arg);
}

/* --- the claims --- */

TEST_TABLE(device_transfers)
{
	static struct two two;
	size_t kinds = device_kinds_list();
	for (size_t k = 0; k < kinds; k++)
		if (!two.near && device_kinds[k]->iface != device_kinds[0]->iface && (kind_paths(device_kinds[0]) & GDRFAB_PATH_IPC)) {
			two.way.kind = device_kinds[0];
			two.near = device_kinds[k];
			test_add("two_vendors", two_vendors, &two, 20);
		}
	size_t count = all_ways_list();
	for (size_t w = 0; w < count; w++) {
		const struct way *way = &ways[w];
		bool ipc = way->path->bit == GDRFAB_PATH_IPC;
		if (test_count(0, 1) && way->kind != device_kinds[0] && way->kind->alloc == cuda_kinds[0].alloc)
			continue;
		bool by_driver = way->kind->alloc == cuda_kinds[0].alloc && way->kind->opaque;
		if (by_driver && !traits()->adapter && way->kind->flavour != CUDA_MANAGED)
			device_claim("freed_under_a_region", way->name, freed_under_a_region, way, 20);
		/* Where there is nothing else, staging carries all that is about devices. */
		if (!ipc && !(path_known(PATH_SOCKET) && way->kind->opaque))
			continue;
		device_claim("initiator_killed", way->name, initiator_killed, way, 20);
		device_claim("target_killed", way->name, target_killed, way, 20);
		device_claim("told_after_the_data", way->name, told_after_the_data, way, 20);
		if (!ipc && (way->kind->paths & GDRFAB_PATH_IPC))
			device_claim("target_driver_fails", way->name, target_driver_fails, way, 20);
		if (!ipc)
			continue;
		device_claim("unknown_codes", way->name, unknown_codes, way, 20);
		device_claim("import_refused", way->name, import_refused, way, 20);
		if (way->kind->iface == GDRFAB_HMEM_CUDA)
			device_claim("closed_under_copies", way->name, closed_under_copies, way, 20);
	}
}
