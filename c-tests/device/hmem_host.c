/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The gdrfab_hmem_* calls, used wrongly or with host memory: no device is needed. */
#include "hmem.h"

TEST(misuse_of_questions)
{
	gdrfab_hmem_info info, before;
	gdrfab_hmem_place place, untouched;
	char text[64];
	memset(&info, 0x5a, sizeof info);
	info.struct_size = sizeof info;
	before = info;
	MISUSE(gdrfab_hmem_query(GDRFAB_HMEM_SYSTEM, UINT32_MAX, NULL), -EINVAL, "info");
	MISUSE(gdrfab_hmem_query(6, UINT32_MAX, &info), -EINVAL, "iface");
	MISUSE(gdrfab_hmem_query(GDRFAB_HMEM_AUTO, UINT32_MAX, &info), -EINVAL, "iface");
	MISUSE(gdrfab_hmem_query(GDRFAB_HMEM_SYSTEM, 0, &info), -ENODEV, "device");
	CHECK(memcmp(&info, &before, sizeof info) == 0);
	info.struct_size = sizeof(size_t);
	MISUSE(gdrfab_hmem_query(GDRFAB_HMEM_SYSTEM, UINT32_MAX, &info), -EINVAL, "struct_size");

	memset(&place, 0x5a, sizeof place);
	place.struct_size = sizeof place;
	untouched = place;
	MISUSE(gdrfab_hmem_detect(text, 1, NULL), -EINVAL, "place");
	MISUSE(gdrfab_hmem_detect(NULL, 1, &place), -EINVAL, "ptr");
	MISUSE(gdrfab_hmem_detect(text, SIZE_MAX, &place), -EINVAL, "len");
	CHECK(memcmp(&place, &untouched, sizeof place) == 0);

	MISUSE(gdrfab_hmem_explain(GDRFAB_HMEM_CUDA, NULL, 1), -EINVAL, "buf");
	MISUSE(gdrfab_hmem_explain(17, text, sizeof text), -EINVAL, "iface");
}

TEST(misuse_of_copies)
{
	char a[16] = "to", b[16] = "from";
	for (int back = 0; back < 2; back++) {
		int (*copy)(uint32_t, uint32_t, void *, const void *, size_t) =
			back ? gdrfab_hmem_copy_from : gdrfab_hmem_copy_to;
		MISUSE(copy(6, 0, a, b, 4), -EINVAL, "iface");
		MISUSE(copy(6, 0, a, b, 0), -EINVAL, "iface");
		MISUSE(copy(GDRFAB_HMEM_SYSTEM, 0, NULL, b, 4), -EINVAL, "dest");
		MISUSE(copy(GDRFAB_HMEM_SYSTEM, 0, a, NULL, 4), -EINVAL, "src");
		MISUSE(copy(GDRFAB_HMEM_SYSTEM, 0, a, b, SIZE_MAX), -EINVAL, "len");
		MISUSE(copy(GDRFAB_HMEM_SYSTEM, 1, a, b, 4), -ENODEV, "device");
		CHECK(strcmp(a, "to") == 0 && strcmp(b, "from") == 0);
		OK(copy(GDRFAB_HMEM_SYSTEM, 0, NULL, NULL, 0));
		OK(copy(GDRFAB_HMEM_AUTO, 7, NULL, NULL, 0));
	}
}

TEST(misuse_of_dmabufs)
{
	static char host[8192];
	gdrfab_mr_dmabuf out = {-7, 0, 0, 0, NULL};
	/* This call asks the drivers, which keep descriptors open from then on. */
	MISUSE(gdrfab_hmem_export_dmabuf(host, 4096, 0, &out), -EOPNOTSUPP, "host memory");
	int fds = test_count_fds();
	MISUSE(gdrfab_hmem_export_dmabuf(NULL, 4096, 0, &out), -EINVAL, "ptr");
	MISUSE(gdrfab_hmem_export_dmabuf(host, 0, 0, &out), -EINVAL, "len");
	MISUSE(gdrfab_hmem_export_dmabuf(host, 4096, 0, NULL), -EINVAL, "out");
	BAD_FLAGS(gdrfab_hmem_export_dmabuf(host, 4096, 2, &out));
	MISUSE(gdrfab_hmem_export_dmabuf(host, 4096, GDRFAB_DMABUF_PCIE, &out), -EOPNOTSUPP, "host memory");
	CHECK_EQ(out.fd, -7);
	CHECK_EQ(test_count_fds(), fds);
}

TEST(misuse_of_allocation)
{
	struct node n;
	void *marker = MARKER(void), *at = marker;
	char host[64];
	node_alone(&n, NULL);
	MISUSE(gdrfab_mem_alloc(NULL, GDRFAB_HMEM_SYSTEM, 0, 64, 0, &at), -EINVAL, "domain");
	MISUSE(gdrfab_mem_alloc(n.domain, GDRFAB_HMEM_SYSTEM, 0, 64, 0, NULL), -EINVAL, "addr");
	MISUSE(gdrfab_mem_alloc(n.domain, GDRFAB_HMEM_SYSTEM, 0, 0, 0, &at), -EINVAL, "len");
	MISUSE(gdrfab_mem_alloc(n.domain, GDRFAB_HMEM_SYSTEM, 1, 64, 0, &at), -ENODEV, "device");
	MISUSE(gdrfab_mem_alloc(n.domain, GDRFAB_HMEM_AUTO, 0, 64, 0, &at), -EINVAL, "iface");
	MISUSE(gdrfab_mem_alloc(n.domain, 6, 0, 64, 0, &at), -EINVAL, "iface");
	BAD_FLAGS(gdrfab_mem_alloc(n.domain, GDRFAB_HMEM_SYSTEM, 0, 64, 1, &at));
	CHECK(at == marker);
	MISUSE(gdrfab_mem_free(n.domain, host), -EINVAL, "addr");
	node_close(&n);
}

TEST(misuse_of_flushes)
{
	MISUSE(gdrfab_hmem_flush(6, 0), -EINVAL, "iface");
	MISUSE(gdrfab_hmem_flush(GDRFAB_HMEM_AUTO, 0), -EINVAL, "iface");
	MISUSE(gdrfab_hmem_flush(GDRFAB_HMEM_SYSTEM, 1), -ENODEV, "device");
	MISUSE(gdrfab_hmem_flush(GDRFAB_HMEM_SYSTEM, UINT32_MAX), -ENODEV, "device");
	OK(gdrfab_hmem_flush(GDRFAB_HMEM_SYSTEM, 0));
}

TEST(host_memory)
{
	struct node n;
	static char data[64];
	void *at = NULL;
	node_alone(&n, NULL);
	OK(gdrfab_mem_alloc(n.domain, GDRFAB_HMEM_SYSTEM, 0, 5000, 0, &at));
	const void *places[] = {&n, data, at, "text", (const void *)(uintptr_t)8};
	for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
		gdrfab_hmem_place place = detect(places[i], 12);
		CHECK_EQ(place.iface, GDRFAB_HMEM_SYSTEM);
		CHECK_EQ(place.kind, GDRFAB_HMEM_KIND_HOST);
		CHECK_EQ(place.device, 0);
		CHECK_EQ(place.base, 0);
		CHECK_EQ(place.len, 0);
		CHECK_EQ(place.id, 0);
		CHECK_EQ(place.covered, 12);
	}
	fill(data, sizeof data, 0, 1);
	OK(gdrfab_hmem_copy_to(GDRFAB_HMEM_SYSTEM, 0, at, data, sizeof data));
	CHECK_FILLED("copied to", at, sizeof data, 0, 1);
	memset(data, 0, sizeof data);
	OK(gdrfab_hmem_copy_from(GDRFAB_HMEM_AUTO, 3, data, at, sizeof data));
	CHECK_FILLED("copied from", data, sizeof data, 0, 1);
	OK(gdrfab_mem_free(n.domain, at));
	node_close(&n);
}
