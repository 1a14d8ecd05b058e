/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * CUDA memory of each kind, allocated by calls of the driver, as a program does that does not know gdrfab. The prototypes
 * and structs are written out here, so that no vendor header is needed.
 */
#include "fab_cuda.h"

#include <dlfcn.h>

typedef uint64_t device_ptr;

struct location {
	int type, id;
};
#define ON_DEVICE 1

struct allocation_prop {
	int type, handle_types;
	struct location location;
	void *win32;
	unsigned char compression, rdma;
	unsigned short usage;
	unsigned char reserved[4];
};
struct pool_prop {
	int type, handle_types;
	struct location location;
	void *win32;
	size_t max_size;
	unsigned char reserved[56];
};
struct access_desc {
	struct location location;
	int flags;
};
#define PINNED 1
#define POSIX_FD 1
#define READ_WRITE 3
#define ATTACH_GLOBAL 1

void *cuda_entry(const char *name)
{
	static void *library;
	if (!library)
		library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library)
		test_skip("libcuda.so.1: %s", dlerror());
	void *entry = dlsym(library, name);
	if (!entry)
		test_skip("libcuda.so.1 has no %s", name);
	return entry;
}

static void *primary(uint32_t device)
{
	static void *contexts[64];
	CHECK(device < 64);
	if (!contexts[device]) {
		CU(cuInit, (unsigned), 0);
		CU(cuDevicePrimaryCtxRetain, (void **, int), &contexts[device], (int)device);
	}
	return contexts[device];
}

void cuda_use(uint32_t device)
{
	CU(cuCtxSetCurrent, (void *), primary(device));
}

static struct allocation_prop shareable(uint32_t device)
{
	struct allocation_prop prop;
	memset(&prop, 0, sizeof prop);
	prop.type = PINNED;
	prop.handle_types = POSIX_FD;
	prop.location.type = ON_DEVICE;
	prop.location.id = (int)device;
	return prop;
}

size_t cuda_segment_size(uint32_t device)
{
	struct allocation_prop prop = shareable(device);
	size_t size = 0;
	CU(cuMemGetAllocationGranularity, (size_t *, const struct allocation_prop *, int), &size, &prop, 0);
	CHECK(size > 0);
	return size;
}

/* Physical segments of one allocation; three, so that one of them has a neighbour on both sides. */
#define SEGMENTS (MEM_HANDLES - 1)

static void segments_new(struct mem *m, size_t count)
{
	struct allocation_prop prop = shareable(m->device);
	struct access_desc access = {prop.location, READ_WRITE};
	size_t unit = cuda_segment_size(m->device), each = (m->len / count + unit - 1) / unit * unit;
	device_ptr at = 0;
	m->reserved = each * count;
	CU(cuMemAddressReserve, (device_ptr *, size_t, size_t, device_ptr, uint64_t), &at, m->reserved, 0, 0, 0);
	for (size_t i = 0; i < count; i++) {
		CU(cuMemCreate, (uint64_t *, size_t, const struct allocation_prop *, uint64_t), &m->handles[i], each,
		   &prop, 0);
		CU(cuMemMap, (device_ptr, size_t, size_t, uint64_t, uint64_t), at + i * each, each, 0, m->handles[i], 0);
	}
	CU(cuMemSetAccess, (device_ptr, size_t, const struct access_desc *, size_t), at, m->reserved, &access, 1);
	/* With several segments the memory begins late in the first, so that it crosses a border however large a segment is. */
	size_t skip = count > 1 ? (each - m->len / count) & ~(size_t)4095 : 0;
	m->handles[SEGMENTS] = at;
	m->addr = (unsigned char *)(uintptr_t)(at + skip);
}

static void segments_end(struct mem *m, size_t count)
{
	device_ptr at = m->handles[SEGMENTS];
	size_t each = m->reserved / count;
	for (size_t i = 0; i < count; i++) {
		CU(cuMemUnmap, (device_ptr, size_t), at + i * each, each);
		CU(cuMemRelease, (uint64_t), m->handles[i]);
	}
	CU(cuMemAddressFree, (device_ptr, size_t), at, m->reserved);
}

static device_ptr pool_new(struct mem *m, int handle_types)
{
	struct pool_prop prop;
	void *pool = NULL;
	device_ptr at = 0;
	memset(&prop, 0, sizeof prop);
	prop.type = PINNED;
	prop.handle_types = handle_types;
	prop.location.type = ON_DEVICE;
	prop.location.id = (int)m->device;
	CU(cuMemPoolCreate, (void **, const struct pool_prop *), &pool, &prop);
	m->handles[0] = (uint64_t)(uintptr_t)pool;
	CU(cuMemAllocFromPoolAsync, (device_ptr *, size_t, void *, void *), &at, m->len, pool, NULL);
	CU(cuStreamSynchronize, (void *), NULL);
	return at;
}

static void cuda_new(TEST_UNUSED struct node *n, struct mem *m)
{
	device_ptr at = 0;
	void *host = NULL;
	cuda_use(m->device);
	switch (m->kind->flavour) {
	case CUDA_PLAIN:
		CU(cuMemAlloc_v2, (device_ptr *, size_t), &at, m->len);
		break;
	case CUDA_POOL:
	case CUDA_PRIVATE_POOL:
		at = pool_new(m, m->kind->flavour == CUDA_POOL ? POSIX_FD : 0);
		break;
	case CUDA_VMM:
	case CUDA_SEGMENTS:
		segments_new(m, m->kind->flavour == CUDA_VMM ? 1 : SEGMENTS);
		return;
	case CUDA_MANAGED:
		CU(cuMemAllocManaged, (device_ptr *, size_t, unsigned), &at, m->len, ATTACH_GLOBAL);
		break;
	default:
		CU(cuMemHostAlloc, (void **, size_t, unsigned), &host, m->len, 0);
		at = (device_ptr)(uintptr_t)host;
	}
	m->addr = (unsigned char *)(uintptr_t)at;
	CHECK(m->addr != NULL);
}

static void cuda_end(TEST_UNUSED struct node *n, struct mem *m)
{
	device_ptr at = (device_ptr)(uintptr_t)m->addr;
	cuda_use(m->device);
	switch (m->kind->flavour) {
	case CUDA_VMM:
	case CUDA_SEGMENTS:
		segments_end(m, m->kind->flavour == CUDA_VMM ? 1 : SEGMENTS);
		break;
	case CUDA_POOL:
	case CUDA_PRIVATE_POOL:
		CU(cuMemFreeAsync, (device_ptr, void *), at, NULL);
		CU(cuStreamSynchronize, (void *), NULL);
		CU(cuMemPoolDestroy, (void *), (void *)(uintptr_t)m->handles[0]);
		break;
	case CUDA_HOST:
		CU(cuMemFreeHost, (void *), m->addr);
		break;
	default:
		CU(cuMemFree_v2, (device_ptr), at);
	}
}

#define CUDA_KIND(number, text, ways, may, shut)                                                                       \
	[number] = {.name = "cuda_" text,                                                                              \
		    .paths = ways,                                                                                     \
		    .alloc = cuda_new,                                                                                 \
		    .release = cuda_end,                                                                               \
		    .maybe = may,                                                                                      \
		    .iface = GDRFAB_HMEM_CUDA,                                                                         \
		    .opaque = shut,                                                                                    \
		    .flavour = number}
#define MAPPED (GDRFAB_PATH_IPC | GDRFAB_PATH_STAGED)

const struct memkind cuda_kinds[CUDA_KINDS] = {
	CUDA_KIND(CUDA_PLAIN, "plain", MAPPED, 0, true),
	CUDA_KIND(CUDA_POOL, "pool", MAPPED, 0, true),
	CUDA_KIND(CUDA_PRIVATE_POOL, "private_pool", GDRFAB_PATH_STAGED, 0, true),
	CUDA_KIND(CUDA_VMM, "vmm", MAPPED, 0, true),
	CUDA_KIND(CUDA_SEGMENTS, "segments", MAPPED, 0, true),
	CUDA_KIND(CUDA_MANAGED, "managed", GDRFAB_PATH_STAGED, 0, true),
	/* The kernel may refuse process_vm_readv() on the driver's mapping, so this path is not promised. */
	CUDA_KIND(CUDA_HOST, "host", GDRFAB_PATH_CMA | GDRFAB_PATH_STAGED, GDRFAB_PATH_CMA, false),
};
