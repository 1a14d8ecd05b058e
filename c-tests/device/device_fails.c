/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Transfers of device memory that fail in a driver, here or at the target: the error text contains the driver's code, and the
 * endpoint goes on. Memory that a driver cannot map takes another path.
 */
#include "device.h"

/* A code without a name reaches the caller as a number. */
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
	/* The driver fails when it is asked about the copy's progress. */
	if (way_of(n)->kind->iface == GDRFAB_HMEM_CUDA) {
		setenv("FAKE_FAULT", "cuStreamQuery=12346,cuEventQuery=12346", 1);
		for (int i = 0; i < POSTS; i++)
			post_write(n, buf, to);
		for (int i = 0; i < POSTS; i++) {
			FAILED(n->cq, buf, EIO, GDRFAB_PROV_FAULT, &f);
			SAYS_CODE(f.words, 12346);
		}
	}
	/* When the driver works again, so does the endpoint. */
	unsetenv("FAKE_FAULT");
	writes(n, buf, to);
	initiator_end(n, buf);
}

static void unknown_codes(const void *arg)
{
	fakes_only();
	pair(NULL, waits, fails_to_copy, arg);
}

/* The other side's driver copies: it fails there, and the error is reported here. */
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
	initiator_end(n, buf);
}

static void target_driver_fails(const void *arg)
{
	fakes_only();
	pair(NULL, target_fails, hears_of_it, arg);
}

/* The peer's memory cannot be mapped: its bytes are staged. */
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
	CHECK(gdrfab_ep_explain(n->ep, 0, to.key, words, sizeof words) > 0);
	SAYS_CODE(words, 12345);
	uint64_t only = GDRFAB_PATH_IPC;
	OK(gdrfab_ep_setopt(n->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_REQUIRE_PATH, &only, sizeof only));
	post_write(n, buf, to);
	FAILED(n->cq, buf, EOPNOTSUPP, GDRFAB_PROV_PATH, NULL);
	initiator_end(n, buf);
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

/* --- memory of different vendors on the two sides --- */

struct two {
	struct way way;
	const struct memkind *local;
};

static void other_vendor(struct node *n)
{
	const struct two *two = (const struct two *)n->arg;
	struct failure f;
	struct mem m;
	node_up(n);
	struct remote to = mem_fetch(n);
	mem_new(n, &m, two->local, LEN);
	mem_fill(&m, 0, LEN, 0, 8);
	mem_register(n, &m, 0, LEN, ANY_ACCESS, 0);
	POST(n->cq, gdrfab_write(n->ep, m.addr, LEN, mem_desc(&m), 0, to.base, to.key, &m));
	FAILED(n->cq, &m, EOPNOTSUPP, GDRFAB_PROV_PATH, &f);
	uint64_t ipc = GDRFAB_PATH_IPC;
	OK(gdrfab_ep_setopt(n->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_FORBID_PATH, &ipc, sizeof ipc));
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

TEST_TABLE(failing_drivers)
{
	static struct two two;
	size_t kinds = device_kinds_list();
	for (size_t k = 0; k < kinds; k++)
		if (!two.local && device_kinds[k]->iface != device_kinds[0]->iface && (kind_paths(device_kinds[0]) & GDRFAB_PATH_IPC)) {
			two.way.kind = device_kinds[0];
			two.local = device_kinds[k];
			test_add("two_vendors", two_vendors, &two, 20);
		}
	size_t count = all_ways_list();
	for (size_t w = 0; w < count; w++) {
		const struct way *way = &ways[w];
		bool ipc = way->path->bit == GDRFAB_PATH_IPC;
		if (left_out(way))
			continue;
		if (ipc) {
			device_claim("unknown_codes", way->name, unknown_codes, way, 20);
			device_claim("import_refused", way->name, import_refused, way, 20);
		} else if (path_known(PATH_SOCKET) && way->kind->opaque && (way->kind->paths & GDRFAB_PATH_IPC)) {
			device_claim("target_driver_fails", way->name, target_driver_fails, way, 20);
		}
	}
}
