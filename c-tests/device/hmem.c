/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The gdrfab_hmem_* calls: devices, the kind of a pointer, dma-bufs, copies and allocations. The claims about devices run for
 * each vendor whose driver is available: the fakes of GDRFAB_FAKES, or a real one.
 */
#include "hmem.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/uio.h>

/* A function of a runtime that the application must call; skips the claim without it. */
static void entry(const char *library, const char *symbol, void *function)
{
	void *handle = dlopen(library, RTLD_NOW);
	void *found = handle ? dlsym(handle, symbol) : NULL;
	if (!found)
		test_skip("no %s of %s here", symbol, library);
	memcpy(function, &found, sizeof found);
}

static void neuron_prepare(void)
{
	int (*init)(int, const char *, const char *);
	entry("libnrt.so.1", "nrt_init", &init);
	CHECK_EQ(init(1, "", ""), 0);
}

static void synapseai_prepare(void)
{
	int (*init)(void), (*acquire)(uint32_t *, uint32_t);
	uint32_t device;
	entry("libSynapse.so", "synInitialize", &init);
	entry("libSynapse.so", "synDeviceAcquireByModuleId", &acquire);
	CHECK_EQ(init(), 0);
	for (uint32_t module = 0; module < 2; module++)
		CHECK_EQ(acquire(&device, module), 0);
}

static const struct vendor vendors[] = {
	{GDRFAB_HMEM_CUDA, "cuda", NULL},
	{GDRFAB_HMEM_ROCR, "rocr", NULL},
	{GDRFAB_HMEM_ZE, "ze", NULL},
	{GDRFAB_HMEM_NEURON, "neuron", neuron_prepare},
	{GDRFAB_HMEM_SYNAPSEAI, "synapseai", synapseai_prepare},
};
#define VENDORS (sizeof vendors / sizeof vendors[0])

/* --- without any device --- */

/* GDRFAB_HMEM excludes a vendor: its library is not opened, and every call fails with this reason. */
TEST(ruled_out)
{
	static char host[64];
	char text[1024];
	void *at = NULL;
	struct node n;
	setenv("GDRFAB_HMEM", "none", 1);
	node_alone(&n, NULL);
	for (size_t i = 0; i < VENDORS; i++) {
		const struct vendor *v = &vendors[i];
		gdrfab_hmem_info info;
		MISUSE(query(v->iface, UINT32_MAX, &info), -ENOSYS, v->name);
		MISUSE(query(v->iface, 0, &info), -ENOSYS, "GDRFAB_HMEM");
		MISUSE(gdrfab_mem_alloc(n.domain, v->iface, 0, 64, 0, &at), -ENOSYS, v->name);
		MISUSE(gdrfab_hmem_copy_to(v->iface, 0, host, host + 32, 32), -ENOSYS, v->name);
		MISUSE(gdrfab_hmem_copy_from(v->iface, 0, host, host + 32, 32), -ENOSYS, v->name);
		MISUSE(gdrfab_hmem_flush(v->iface, 0), -ENOSYS, v->name);
		CHECK(gdrfab_hmem_explain(v->iface, text, sizeof text) > 0);
		CHECK(names(text, v->name) && names(text, "not usable") && names(text, "GDRFAB_HMEM"));
	}
	CHECK(at == NULL);
	CHECK_EQ(detect(host, 1).iface, GDRFAB_HMEM_SYSTEM);
	node_close(&n);
}

TEST(words_for_all)
{
	char text[65536], one[65536], cut[8];
	ssize_t len = gdrfab_hmem_explain(GDRFAB_HMEM_AUTO, text, sizeof text);
	CHECK(len > 0 && (size_t)len < sizeof text && strlen(text) == (size_t)len);
	CHECK(names(text, "system: usable"));
	for (size_t i = 0; i < VENDORS; i++) {
		gdrfab_hmem_info info;
		int result = query(vendors[i].iface, UINT32_MAX, &info);
		CHECK(gdrfab_hmem_explain(vendors[i].iface, one, sizeof one) > 0);
		CHECK(strstr(text, one) != NULL);
		CHECK(strncmp(one, vendors[i].name, strlen(vendors[i].name)) == 0);
		CHECK_EQ(names(one, ": not usable: "), result != 0);
		if (result == 0)
			continue;
		CHECK(result == -ENOSYS || result == -ENODEV || result == -EPERM);
		CHECK(query(vendors[i].iface, UINT32_MAX, &info) == result);
		CHECK(names(gdrfab_last_error(), vendors[i].name));
	}
	/* The text has the same length at each call: the queries in between have changed nothing. */
	CHECK_EQ(gdrfab_hmem_explain(GDRFAB_HMEM_AUTO, NULL, 0), len);
	CHECK_EQ(gdrfab_hmem_explain(GDRFAB_HMEM_AUTO, cut, sizeof cut), len);
	CHECK_EQ(strlen(cut), sizeof cut - 1);
}

/* --- with devices --- */

static void devices(const void *arg)
{
	const struct vendor *v = (const struct vendor *)arg;
	uint32_t count = use(v);
	gdrfab_hmem_info info[64], beyond;
	for (uint32_t d = 0; d < count && d < 64; d++) {
		OK(query(v->iface, d, &info[d]));
		CHECK_EQ(info[d].struct_size, sizeof info[d]);
		CHECK_EQ(info[d].iface, v->iface);
		CHECK_EQ(info[d].device, d);
		CHECK_EQ(info[d].devices, count);
		CHECK(info[d].active <= 1);
		CHECK(info[d].dmabuf <= 0 && info[d].ipc <= 0);
		CHECK(memchr(info[d].name, 0, sizeof info[d].name) != NULL && info[d].name[0] != 0);
		CHECK(memchr(info[d].pci, 0, sizeof info[d].pci) != NULL);
		CHECK_EQ(info[d].peers >> d & 1, 0);
		CHECK_EQ(info[d].peers >> (count < 63 ? count : 63) >> 1, 0);
	}
	MISUSE(query(v->iface, count, &beyond), -ENODEV, "device");
	MISUSE(query(v->iface, UINT32_MAX - 1, &beyond), -ENODEV, v->name);
	struct node n;
	void *at = NULL;
	char host[8];
	node_alone(&n, NULL);
	MISUSE(gdrfab_mem_alloc(n.domain, v->iface, count, 64, 0, &at), -ENODEV, "device");
	MISUSE(gdrfab_mem_alloc(n.domain, v->iface, 0, 0, 0, &at), -EINVAL, "len");
	MISUSE(gdrfab_hmem_copy_to(v->iface, count, host, host, 0), -ENODEV, "device");
	MISUSE(gdrfab_hmem_flush(v->iface, count), -ENODEV, "device");
	MISUSE(gdrfab_hmem_flush(v->iface, UINT32_MAX), -ENODEV, "device");
	CHECK(at == NULL);
	node_close(&n);
}

static void pointers(const void *arg)
{
	const struct vendor *v = (const struct vendor *)arg;
	uint32_t count = use(v);
	struct node n;
	node_alone(&n, NULL);
	for (uint32_t d = 0; d < count && d < 2; d++) {
		unsigned char *at = alloc_on(&n, v, d, PIECE);
		gdrfab_hmem_place place = detect(at, 0), inside = detect(at + 4097, 100);
		CHECK_EQ(place.iface, v->iface);
		CHECK_EQ(place.device, d);
		CHECK(place.kind != GDRFAB_HMEM_KIND_HOST && place.kind <= GDRFAB_HMEM_KIND_IMPORTED);
		CHECK(place.base <= (uintptr_t)at && place.base + place.len >= (uintptr_t)at + PIECE);
		CHECK(place.covered >= PIECE);
		CHECK_EQ(place.covered, place.base + place.len - (uintptr_t)at);
		CHECK_EQ(inside.base, place.base);
		CHECK_EQ(inside.len, place.len);
		CHECK_EQ(inside.id, place.id);
		CHECK_EQ(inside.covered, place.covered - 4097);
		/* Memory behind the allocation may be the same device's; it counts only as far as the query asks. */
		CHECK(detect(at, place.covered).covered == place.covered);
		CHECK(detect(at + place.covered - 1, 1).covered >= 1);
		OK(gdrfab_mem_free(n.domain, at));
		MISUSE(gdrfab_mem_free(n.domain, at), -EINVAL, "addr");
		/* After the free: unknown memory, or a part of a larger range that the process still holds. */
		gdrfab_hmem_place gone = detect(at, 1);
		CHECK(gone.iface == GDRFAB_HMEM_SYSTEM || (gone.iface == v->iface && (gone.id != place.id || gone.id == 0)));
	}
	/* The identity of an allocation is never used again, even at the same address. */
	uint64_t last = 0;
	for (int i = 0; i < 8; i++) {
		unsigned char *at = alloc_on(&n, v, 0, PIECE);
		uint64_t id = detect(at, 1).id;
		CHECK(id == 0 || id != last);
		last = id;
		OK(gdrfab_mem_free(n.domain, at));
	}
	node_close(&n);
}

static void copies(const void *arg)
{
	static unsigned char host[PIECE], back[PIECE];
	const struct vendor *v = (const struct vendor *)arg;
	uint32_t count = use(v);
	struct node n;
	node_alone(&n, NULL);
	unsigned char *at = alloc_on(&n, v, 0, PIECE);
	size_t room = (size_t)(detect(at, 0).base + detect(at, 0).len - (uintptr_t)at);
	static const size_t sizes[] = {1, 7, 64, 4096, 4097, 65536, PIECE - 13};
	for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
		uint32_t iface = i % 2 ? GDRFAB_HMEM_AUTO : v->iface;
		fill(host, sizeof host, 0, (uint32_t)i);
		OK(gdrfab_hmem_copy_to(v->iface, 0, at, host, PIECE));
		fill(host, sizes[i], 0, 100 + (uint32_t)i);
		OK(gdrfab_hmem_copy_to(iface, 0, at + 13, host, sizes[i]));
		memset(back, 0, sizeof back);
		OK(gdrfab_hmem_copy_from(iface, 0, back, at, PIECE));
		CHECK_FILLED("before the copy", back, 13, 0, (uint32_t)i);
		CHECK_FILLED("the copy", back + 13, sizes[i], 0, 100 + (uint32_t)i);
		CHECK_FILLED("behind the copy", back + 13 + sizes[i], PIECE - 13 - sizes[i], 13 + sizes[i], (uint32_t)i);
		memset(back, 0, sizeof back);
		OK(gdrfab_hmem_copy_from(iface, 0, back, at + 13, sizes[i]));
		CHECK_FILLED("a part", back, sizes[i], 0, 100 + (uint32_t)i);
	}
	/* Wrong pointers are errors with a reason, and nothing is copied. */
	MISUSE(gdrfab_hmem_copy_to(v->iface, 0, host, back, 64), -EINVAL, v->name);
	MISUSE(gdrfab_hmem_copy_from(v->iface, 0, host, back, 64), -EINVAL, v->name);
	MISUSE(gdrfab_hmem_copy_to(v->iface, 0, at, at + 64, 64), -EINVAL, "src");
	MISUSE(gdrfab_hmem_copy_from(v->iface, 0, at, at + 64, 64), -EINVAL, "dest");
	MISUSE(gdrfab_hmem_copy_to(GDRFAB_HMEM_SYSTEM, 0, at, host, 64), -EINVAL, v->name);
	MISUSE(gdrfab_hmem_copy_from(GDRFAB_HMEM_SYSTEM, 0, host, at, 64), -EINVAL, v->name);
	if (detect(at + room - 1, 2).covered == 1)
		MISUSE(gdrfab_hmem_copy_to(v->iface, 0, at + room - 32, host, 64), -EINVAL, "dest");
	if (count > 1 && detect(at, 1).id != 0)
		MISUSE(gdrfab_hmem_copy_to(v->iface, 1, at, host, 64), -EINVAL, "device");
	memset(back, 0, sizeof back);
	OK(gdrfab_hmem_copy_from(v->iface, 0, back, at + 13, sizes[6]));
	CHECK_FILLED("after the wrong ones", back, sizes[6], 0, 106);
	bool elsewhere = detect(at, 1).id != 0;
	OK(gdrfab_mem_free(n.domain, at));
	if (elsewhere && detect(at, 1).iface == GDRFAB_HMEM_SYSTEM) {
		MISUSE(gdrfab_hmem_copy_to(v->iface, 0, at, host, 64), -EINVAL, v->name);
		MISUSE(gdrfab_hmem_copy_from(v->iface, 0, host, at, 64), -EINVAL, v->name);
	}
	node_close(&n);
}

/* A flush is not needed, or is done, or fails with the reason that there is none. */
static void flushes(const void *arg)
{
	const struct vendor *v = (const struct vendor *)arg;
	uint32_t count = use(v);
	for (uint32_t d = 0; d < count; d++) {
		int result = gdrfab_hmem_flush(v->iface, d);
		if (v->iface != GDRFAB_HMEM_CUDA || result != 0)
			MISUSE(result, -EOPNOTSUPP, v->name);
		CHECK_EQ(gdrfab_hmem_flush(v->iface, d), result);
	}
}

static void dmabufs(const void *arg)
{
	static unsigned char host[PIECE];
	const struct vendor *v = (const struct vendor *)arg;
	gdrfab_hmem_info info;
	struct node n;
	use(v);
	OK(query(v->iface, 0, &info));
	node_alone(&n, NULL);
	unsigned char *at = alloc_on(&n, v, 0, PIECE);
	fill(host, sizeof host, 0, 5);
	OK(gdrfab_hmem_copy_to(v->iface, 0, at, host, sizeof host));
	gdrfab_mr_dmabuf out = {-1, 77, 0, 0, NULL};
	int fds = test_count_fds(), result = gdrfab_hmem_export_dmabuf(at + 5000, 60000, 0, &out);
	if (info.dmabuf != 0) {
		CHECK(result < 0 && gdrfab_last_error()[0] != 0);
		OK(gdrfab_mem_free(n.domain, at));
		node_close(&n);
		test_skip("%s exports no dma-buf here", v->name);
	}
	CHECK_EQ(result, 0);
	CHECK_EQ(test_count_fds(), fds + 1);
	CHECK_EQ(fcntl(out.fd, F_GETFD), FD_CLOEXEC);
	CHECK_EQ(out.reserved, 0);
	CHECK_EQ(out.len, 60000);
	CHECK_EQ((uintptr_t)out.base_addr + out.offset, (uintptr_t)at + 5000);
	off_t size = lseek(out.fd, 0, SEEK_END);
	CHECK(size < 0 || (uint64_t)size >= out.offset + out.len);
	/* Registration accepts a dma-buf that the CPU can map. */
	gdrfab_mr_attr attr;
	gdrfab_mr *mr = NULL;
	memset(&attr, 0, sizeof attr);
	attr.struct_size = sizeof attr;
	attr.dmabuf = &out;
	attr.iov_count = 1;
	attr.access = REMOTE_ACCESS;
	result = gdrfab_mr_regattr(n.domain, &attr, GDRFAB_MR_DMABUF, &mr);
	unsigned char *map = (unsigned char *)mmap(NULL, (size_t)out.offset + out.len, PROT_READ, MAP_SHARED, out.fd, 0);
	if (map != MAP_FAILED) {
		CHECK_FILLED("the dma-buf", map + out.offset, out.len, 5000, 5);
		munmap(map, (size_t)out.offset + out.len);
		CHECK_EQ(result, 0);
	}
	if (result == 0) {
		gdrfab_mr_info region;
		memset(&region, 0, sizeof region);
		region.struct_size = sizeof region;
		OK(gdrfab_mr_query(mr, &region));
		CHECK_EQ(region.base, (uintptr_t)at + 5000);
		CHECK_EQ(region.len, 60000);
		OK(gdrfab_mr_close(mr));
	} else {
		CHECK(gdrfab_last_error()[0] != 0);
	}
	close(out.fd);
	/* Ranges beyond the memory, and many exports. */
	size_t room = (size_t)detect(at, 0).covered;
	if (detect(at, room + 1).covered == room)
		CHECK(gdrfab_hmem_export_dmabuf(at, room + 1, 0, &out) < 0);
	for (int i = 0; i < test_count(2000, 100); i++) {
		OK(gdrfab_hmem_export_dmabuf(at, PIECE, 0, &out));
		CHECK_EQ(close(out.fd), 0);
	}
	OK(gdrfab_mem_free(n.domain, at));
	CHECK(test_count_fds() <= fds);
	node_close(&n);
}

/* The allocation belongs to its domain. */
static void belonging(const void *arg)
{
	const struct vendor *v = (const struct vendor *)arg;
	struct node n, other;
	use(v);
	node_alone(&n, NULL);
	node_alone(&other, NULL);
	unsigned char *at = alloc_on(&n, v, 0, PIECE), *second = alloc_on(&n, v, 0, 1);
	MISUSE(gdrfab_mem_free(other.domain, at), -EINVAL, "addr");
	MISUSE(gdrfab_mem_free(n.domain, at + 1), -EINVAL, "addr");
	OK(gdrfab_cq_close(n.cq));
	MISUSE(gdrfab_domain_close(n.domain), -EBUSY, "device memory");
	OK(gdrfab_mem_free(n.domain, second));
	MISUSE(gdrfab_domain_close(n.domain), -EBUSY, "device memory");
	OK(gdrfab_mem_free(n.domain, at));
	n.cq = cq_new(&n, GDRFAB_CQ_FORMAT_DATA, 16, GDRFAB_WAIT_NONE);
	node_close(&other);
	node_close(&n);
}

/* Memory with a region in it cannot be freed. */
static void covered_by_a_region(const void *arg)
{
	const struct vendor *v = (const struct vendor *)arg;
	struct node n;
	gdrfab_mr *mr = NULL;
	gdrfab_mr_attr attr;
	use(v);
	node_alone(&n, NULL);
	unsigned char *at = alloc_on(&n, v, 0, PIECE);
	struct iovec iov = {at + 100, 1000};
	memset(&attr, 0, sizeof attr);
	attr.struct_size = sizeof attr;
	attr.mr_iov = &iov;
	attr.iov_count = 1;
	attr.access = REMOTE_ACCESS;
	attr.iface = v->iface;
	int result = gdrfab_mr_regattr(n.domain, &attr, 0, &mr);
	if (result == 0) {
		MISUSE(gdrfab_mem_free(n.domain, at), -EBUSY, "region");
		OK(gdrfab_mr_close(mr));
	}
	OK(gdrfab_mem_free(n.domain, at));
	node_close(&n);
	CHECK_EQ(result, 0);
}

/* Drivers do not survive a fork. */
static void forked(const void *arg)
{
	const struct vendor *v = (const struct vendor *)arg;
	use(v);
	pid_t pid = test_fork(TEST_CLIENT);
	if (pid == 0) {
		gdrfab_hmem_info info;
		MISUSE(query(v->iface, UINT32_MAX, &info), -EPERM, "fork");
		MISUSE(gdrfab_hmem_copy_to(v->iface, 0, &info, &info, 0), -EPERM, v->name);
		MISUSE(gdrfab_hmem_flush(v->iface, 0), -EPERM, v->name);
		test_child_done();
	}
	int status = 0;
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	test_child_ended(TEST_CLIENT, status);
}

/* The driver's descriptors are no standard ones where the library makes it open them. */
static void without_the_first_three(const void *arg)
{
	const struct vendor *v = (const struct vendor *)arg;
	gdrfab_hmem_info info;
	gdrfab_mr_dmabuf out = {-1, 0, 0, 0, NULL};
	char byte = 1;
	struct node n;
	use(v);
	OK(query(v->iface, 0, &info));
	node_alone(&n, NULL);
	for (int fd = 0; fd < 3; fd++)
		n.fds -= close(fd) == 0;
	unsigned char *at = alloc_on(&n, v, 0, PIECE);
	OK(gdrfab_hmem_copy_to(v->iface, 0, at, &byte, 1));
	if (info.dmabuf == 0)
		OK(gdrfab_hmem_export_dmabuf(at, PIECE, 0, &out));
	for (int fd = 0; fd < 3; fd++)
		if (fcntl(fd, F_GETFD) >= 0)
			test_fail(__FILE__, __LINE__, "descriptor %d is open", fd);
	if (info.dmabuf == 0)
		CHECK_EQ(close(out.fd), 0);
	OK(gdrfab_mem_free(n.domain, at));
	node_close(&n);
}

TEST_TABLE(of_vendors)
{
	static const struct {
		const char *name;
		test_fn fn;
	} claims[] = {
		{"devices", devices}, {"pointers", pointers},	{"copies", copies},
		{"flushes", flushes}, {"dmabufs", dmabufs},	{"belonging", belonging},
		{"forked", forked},   {"covered_by_a_region", covered_by_a_region},
		{"without_the_first_three", without_the_first_three},
	};
	static char words[VENDORS * sizeof claims / sizeof claims[0]][64];
	size_t used = 0;
	for (size_t i = 0; i < VENDORS; i++)
		for (size_t c = 0; c < sizeof claims / sizeof claims[0]; c++) {
			char *name = words[used++];
			snprintf(name, sizeof words[0], "%s_%s", vendors[i].name, claims[c].name);
			test_add(name, claims[c].fn, &vendors[i], 30);
		}
}
