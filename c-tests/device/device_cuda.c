/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* CUDA alone: the caller's context stays current, operations wait for the caller's stream, and the pointer's device copies. */
#include "device.h"

static void *context(void)
{
	void *now = NULL;
	CU(cuCtxGetCurrent, (void **), &now);
	return now;
}

#define SAME_CONTEXT(before) CHECK(context() == (before))

static void keeps_context(struct node *n, void *current)
{
	struct mem m, local;
	char byte = 1;
	node_up(n);
	SAME_CONTEXT(current);
	mem_new(n, &m, device_kinds[0], LEN);
	SAME_CONTEXT(current);
	mem_fill(&m, 0, LEN, 0, 1);
	SAME_CONTEXT(current);
	mem_register(n, &m, 0, LEN, ANY_ACCESS, 0);
	SAME_CONTEXT(current);
	mem_publish(n, &m);
	struct remote to = mem_fetch(n);
	mem_new(n, &local, &memkinds[KIND_MALLOC], LEN);
	POST(n->cq, gdrfab_write(n->ep, local.addr, LEN, local_desc(n, local.addr, LEN), 0, to.base, to.key, &local));
	SAME_CONTEXT(current);
	DONE(n->cq, &local, GDRFAB_WRITE, NULL);
	SAME_CONTEXT(current);
	POST(n->cq, gdrfab_read(n->ep, &byte, 1, local_desc(n, &byte, 1), 0, to.base, to.key, &byte));
	DONE(n->cq, &byte, GDRFAB_READ, NULL);
	SAME_CONTEXT(current);
	barrier(n);
	SAME_CONTEXT(current);
	mem_end(n, &local);
	mem_unregister(&m);
	SAME_CONTEXT(current);
	mem_end(n, &m);
	SAME_CONTEXT(current);
	node_down(n);
	SAME_CONTEXT(current);
}

static void without_context(struct node *n)
{
	CU(cuInit, (unsigned), 0);
	keeps_context(n, NULL);
}

static void with_context(struct node *n)
{
	int devices = 0;
	CU(cuInit, (unsigned), 0);
	CU(cuDeviceGetCount, (int *), &devices);
	/* Another device than the memory's. */
	cuda_use(n->side == TEST_SERVER ? (uint32_t)devices - 1 : 0);
	keeps_context(n, context());
}

static void context_is_left_alone(const void *arg)
{
	struct setup s = {.by_address = true};
	bool with = arg != NULL;
	pair(&s, with ? with_context : without_context, with ? with_context : without_context, NULL);
}

/* A write begins when the earlier work of the caller's stream is done. */
static void is_filled(struct node *n)
{
	struct mem m;
	target_new(n, &m, 1);
	barrier(n);
	CHECK_MEM("what the stream made", &m, 0, LEN, 0, 31);
	mem_end(n, &m);
	node_down(n);
}

static void fills_by_stream(struct node *n)
{
	unsigned char *made = (unsigned char *)malloc(LEN);
	void *stream = NULL;
	struct mem m;
	struct remote to = initiator_new(n);
	mem_new(n, &m, &cuda_kinds[CUDA_PLAIN], LEN);
	mem_fill(&m, 0, LEN, 0, 30);
	mem_register(n, &m, 0, LEN, ANY_ACCESS, 0);
	fill(made, LEN, 0, 31);
	cuda_use(m.device);
	CU(cuStreamCreate, (void **, unsigned), &stream, 1);
	uint64_t value = (uint64_t)(uintptr_t)stream;
	OK(gdrfab_ep_setopt(n->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_STREAM, &value, sizeof value));
	setenv("FAKE_DELAY_US", "100000", 1);
	CU(cuMemcpyHtoDAsync_v2, (uint64_t, const void *, size_t, void *), (uint64_t)(uintptr_t)m.addr, made, LEN, stream);
	unsetenv("FAKE_DELAY_US");
	POST(n->cq, gdrfab_write(n->ep, m.addr, LEN, mem_desc(&m), 0, to.base, to.key, &m));
	DONE(n->cq, &m, GDRFAB_WRITE, NULL);
	CU(cuStreamDestroy_v2, (void *), stream);
	value = 0;
	OK(gdrfab_ep_setopt(n->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_STREAM, &value, sizeof value));
	barrier(n);
	mem_end(n, &m);
	free(made);
	node_down(n);
}

static void after_the_callers_stream(const void *arg)
{
	pair(NULL, is_filled, fills_by_stream, arg);
}

/* Host memory is copied to a peer's device through a device that this process uses: a context on the peer's device would be
 * time-sliced with the peer's kernels. */
static void writes_by_own_device(struct node *n)
{
	static unsigned char bytes[LEN];
	gdrfab_hmem_info second = {.struct_size = sizeof second};
	int devices = 0;
	CU(cuInit, (unsigned), 0);
	CU(cuDeviceGetCount, (int *), &devices);
	if (devices < 2)
		test_skip("one device");
	cuda_use((uint32_t)devices - 1);
	node_up(n);
	struct remote to = mem_fetch(n);
	fill(bytes, LEN, 0, 31);
	POST(n->cq, gdrfab_write(n->ep, bytes, LEN, NULL, 0, to.base, to.key, bytes));
	DONE(n->cq, bytes, GDRFAB_WRITE, NULL);
	OK(gdrfab_hmem_query(GDRFAB_HMEM_CUDA, 0, &second));
	CHECK_EQ(second.active, 0);
	barrier(n);
	node_down(n);
}

static void by_own_device(const void *arg)
{
	pair(NULL, is_filled, writes_by_own_device, arg);
}

/* --- the claims --- */

TEST_TABLE(cuda)
{
	size_t kinds = device_kinds_list(), count = all_ways_list();
	bool here = kinds && device_kinds[0]->iface == GDRFAB_HMEM_CUDA;
	for (size_t w = 0; w < count; w++) {
		const struct way *way = &ways[w];
		bool ipc = way->path->bit == GDRFAB_PATH_IPC;
		if (ipc && way->kind->iface == GDRFAB_HMEM_CUDA &&
		    !(test_count(0, 1) && way->kind != device_kinds[0] && way->kind->alloc == cuda_kinds[0].alloc))
			device_claim("by_own_device", way->name, by_own_device, way, 20);
		if (here && ((way->kind == &cuda_kinds[CUDA_PLAIN] && ipc) || way->path->bit == GDRFAB_PATH_DIRECT ||
			     way->path->bit == GDRFAB_PATH_SOCKET))
			device_claim("after_the_callers_stream", way->name, after_the_callers_stream, way, 20);
	}
	if (here) {
		static const bool with = true;
		test_add("context_is_left_alone", context_is_left_alone, &with, 20);
		test_add("no_context_is_left_behind", context_is_left_alone, NULL, 20);
	}
}
