/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* CUDA's contexts and kinds of memory, and driver faults that only a fake can have. */
#include "hmem.h"

static const struct vendor cuda = {GDRFAB_HMEM_CUDA, "cuda", NULL};

static uint32_t active(uint32_t device)
{
	gdrfab_hmem_info info;
	OK(query(GDRFAB_HMEM_CUDA, device, &info));
	return info.active;
}

/* A query makes no context on a device; using it does, on this device only, by the library or by the program. */
TEST(cuda_devices_in_use)
{
	static unsigned char host[64];
	gdrfab_hmem_info info;
	struct node n;
	uint32_t count = use(&cuda), last = count - 1;
	char text[4096];
	node_alone(&n, NULL);
	CHECK(gdrfab_hmem_explain(GDRFAB_HMEM_CUDA, text, sizeof text) > 0);
	CHECK_EQ(detect(host, sizeof host).iface, GDRFAB_HMEM_SYSTEM);
	for (int again = 0; again < 2; again++)
		for (uint32_t d = 0; d < count; d++) {
			unsigned flags = 0;
			int state = -1;
			CHECK_EQ(active(d), 0);
			CU(cuDevicePrimaryCtxGetState, (int, unsigned *, int *), (int)d, &flags, &state);
			CHECK_EQ(state, 0);
		}
	OK(query(GDRFAB_HMEM_CUDA, UINT32_MAX, &info));
	CHECK_EQ(info.active, 0);
	/* Used by the library. */
	unsigned char *at = alloc_on(&n, &cuda, last, PIECE);
	for (uint32_t d = 0; d < count; d++)
		CHECK_EQ(active(d), d == last);
	OK(gdrfab_mem_free(n.domain, at));
	/* Used by the program. */
	cuda_use(0);
	CHECK_EQ(active(0), 1);
	node_close(&n);
}

/* Memory of all CUDA allocators is recognised, and memory of several segments is one range if the query asks for it. */
TEST(cuda_kinds_of_memory)
{
	static const uint32_t kinds[CUDA_KINDS] = {
		[CUDA_PLAIN] = GDRFAB_HMEM_KIND_PLAIN,	[CUDA_POOL] = GDRFAB_HMEM_KIND_POOL,
		[CUDA_PRIVATE_POOL] = GDRFAB_HMEM_KIND_POOL, [CUDA_VMM] = GDRFAB_HMEM_KIND_SEGMENT,
		[CUDA_SEGMENTS] = GDRFAB_HMEM_KIND_SEGMENT, [CUDA_MANAGED] = GDRFAB_HMEM_KIND_MANAGED,
		[CUDA_HOST] = GDRFAB_HMEM_KIND_PINNED,
	};
	struct node n;
	use(&cuda);
	node_alone(&n, NULL);
	for (int k = 0; k < CUDA_KINDS; k++) {
		struct mem m;
		size_t len = k == CUDA_SEGMENTS ? 2 * cuda_segment_size(0) : 2 * PIECE;
		unsigned char *host = (unsigned char *)malloc(2 * len);
		CHECK(host != NULL);
		mem_new(&n, &m, &cuda_kinds[k], len);
		gdrfab_hmem_place one = detect(m.addr + 100, 0), all = detect(m.addr + 100, len - 100);
		CHECK_EQ(one.iface, GDRFAB_HMEM_CUDA);
		WANT_EQ(one.kind, kinds[k]);
		CHECK(one.base <= (uintptr_t)m.addr + 100);
		CHECK_EQ(one.covered, one.base + one.len - (uintptr_t)m.addr - 100);
		CHECK(all.covered >= len - 100);
		CHECK_EQ(all.base, one.base);
		if (k == CUDA_SEGMENTS) {
			gdrfab_hmem_place last = detect(m.addr + len - 1, 1);
			CHECK(one.covered < len - 100);
			CHECK(last.id != one.id && last.base >= one.base + one.len);
		}
		fill(host, len, 0, (uint32_t)k);
		OK(gdrfab_hmem_copy_to(GDRFAB_HMEM_CUDA, one.device, m.addr, host, len));
		OK(gdrfab_hmem_copy_from(GDRFAB_HMEM_AUTO, 0, host + len, m.addr, len));
		CHECK_FILLED("copied there and back", host + len, len, 0, (uint32_t)k);
		const unsigned char *was = m.addr;
		mem_end(&n, &m);
		CHECK(detect(was, 1).id != one.id);
		free(host);
	}
	node_close(&n);
}

/* --- faults of a fake driver --- */

static void need_fakes(void)
{
	if (!getenv("GDRFAB_FAKES"))
		test_skip("GDRFAB_FAKES names no fake drivers");
}

TEST(a_driver_that_fails)
{
	static unsigned char host[PIECE];
	gdrfab_mr_dmabuf out = {-1, 0, 0, 0, NULL};
	void *none = NULL;
	struct node n;
	need_fakes();
	use(&cuda);
	node_alone(&n, NULL);
	unsigned char *at = alloc_on(&n, &cuda, 0, PIECE);
	int fds = test_count_fds();
	/* Known and unknown codes of the driver: both are in the text. */
	setenv("FAKE_FAULT", "cuMemGetHandleForAddressRange=801", 1);
	MISUSE(gdrfab_hmem_export_dmabuf(at, PIECE, 0, &out), -EOPNOTSUPP, "801");
	setenv("FAKE_FAULT", "cuMemGetHandleForAddressRange=31337", 1);
	MISUSE(gdrfab_hmem_export_dmabuf(at, PIECE, 0, &out), -EIO, "31337");
	setenv("FAKE_FAULT", "cuMemCreate=2,cuMemAlloc_v2=2", 1);
	MISUSE(gdrfab_mem_alloc(n.domain, GDRFAB_HMEM_CUDA, 0, PIECE, 0, &none), -ENOMEM, "cu");
	setenv("FAKE_FAULT", "cuMemcpyHtoDAsync_v2=719,cuMemcpyAsync=719", 1);
	MISUSE(gdrfab_hmem_copy_to(GDRFAB_HMEM_CUDA, 0, at, host, PIECE), -EIO, "719");
	unsetenv("FAKE_FAULT");
	CHECK(none == NULL && out.fd == -1);
	CHECK_EQ(test_count_fds(), fds);
	OK(gdrfab_hmem_copy_to(GDRFAB_HMEM_CUDA, 0, at, host, PIECE));
	OK(gdrfab_mem_free(n.domain, at));
	node_close(&n);
}

static unsigned flushes_of(int device)
{
	unsigned (*times)(int);
	*(void **)(void *)&times = cuda_entry("fake_cuda_flushes");
	return times(device);
}

/* The driver flushes only if the device does not order writes of NICs, and in the device's context. */
TEST(cuda_flushes)
{
	static const char *orderings[] = {"0", "100", "200"};
	need_fakes();
	for (int i = 0; i < 3; i++) {
		pid_t pid = test_fork(TEST_CLIENT);
		if (pid == 0) {
			setenv("FAKE_RDMA_ORDERING", orderings[i], 1);
			CHECK_EQ(use(&cuda), 2);
			OK(gdrfab_hmem_flush(GDRFAB_HMEM_CUDA, 1));
			OK(gdrfab_hmem_flush(GDRFAB_HMEM_CUDA, 1));
			CHECK_EQ(flushes_of(1), i == 0 ? 2 : 0);
			CHECK_EQ(flushes_of(0), 0);
			/* No context is made if none is needed, and the caller's stays current. */
			CHECK_EQ(active(1), i == 0);
			CHECK_EQ(active(0), 0);
			cuda_use(0);
			OK(gdrfab_hmem_flush(GDRFAB_HMEM_CUDA, 1));
			int device = -1;
			CU(cuCtxGetDevice, (int *), &device);
			CHECK_EQ(device, 0);
			setenv("FAKE_FAULT", "cuFlushGPUDirectRDMAWrites=719", 1);
			if (i == 0)
				MISUSE(gdrfab_hmem_flush(GDRFAB_HMEM_CUDA, 1), -EIO, "719");
			else
				OK(gdrfab_hmem_flush(GDRFAB_HMEM_CUDA, 1));
			CU(cuCtxGetDevice, (int *), &device);
			CHECK_EQ(device, 0);
			test_child_done();
		}
		int status = 0;
		CHECK_EQ(waitpid(pid, &status, 0), pid);
		test_child_ended(TEST_CLIENT, status);
	}
}

TEST(cuda_without_a_flush)
{
	need_fakes();
	setenv("FAKE_RDMA_ORDERING", "0", 1);
	setenv("FAKE_NO_FLUSH", "1", 1);
	use(&cuda);
	MISUSE(gdrfab_hmem_flush(GDRFAB_HMEM_CUDA, 0), -EOPNOTSUPP, "flush");
	CHECK_EQ(active(0), 0);
}
