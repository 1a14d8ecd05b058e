/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Memory of the fake libcuda: plain allocations and their IPC handles, physical memory mapped in segments, pools, managed
 * and pinned host memory, dma-bufs, and what the driver tells of a pointer.
 */
#define _GNU_SOURCE
#include "cuda.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct location {
	int type, id; /* DEVICE 1 */
};

struct alloc_prop {
	int type, handle_types; /* PINNED 1; POSIX_FD 1 */
	struct location location;
	void *win32;
	unsigned char compression, rdma;
	unsigned short usage;
	unsigned char reserved[4];
};

struct access_desc {
	struct location location;
	int flags; /* READ 1, READWRITE 3 */
};

/* Physical memory; mappings and handles count. */
struct phys {
	int fd;
	uint64_t len;
	CUdevice device;
	int handle_types;
	unsigned handles, mappings;
	struct phys *next;
};

struct pool {
	CUdevice device;
	int handle_types;
	bool imported, destroyed, exported;
	uint64_t number; /* with the process, names it elsewhere */
	int pid;
	unsigned users;
	struct pool *next;
};

struct reservation {
	uint64_t va, len;
	struct reservation *next;
};

/* The bytes of an IPC handle and of a pool's pointer, as the other process reads them. */
struct handle {
	uint32_t magic;
	int32_t pid, fd, device;
	uint64_t inode, skew, len, id, pool;
};
#define MAGIC 0xc0da1234u

static struct mem *all;
static struct pool *pools;
static struct reservation *reservations;
static uint64_t last_id = 0x300;

struct mem *cuda_find(uint64_t va)
{
	for (struct mem *m = all; m; m = m->next)
		if (va >= m->va && va - m->va < m->len)
			return m;
	return NULL;
}

bool cuda_covers(uint64_t va, uint64_t len, CUdevice device)
{
	while (len) {
		struct mem *m = cuda_find(va);
		if (!m || !m->block || (m->kind == SEGMENT && !(m->access >> device & 1)))
			return false;
		uint64_t run = m->va + m->len - va;
		if (run > len)
			run = len;
		va += run;
		len -= run;
	}
	return true;
}

bool cuda_touches(uint64_t va, uint64_t len)
{
	for (struct mem *m = all; m; m = m->next)
		if (m->block && va < m->va + m->len && m->va < va + len)
			return true;
	return false;
}

bool cuda_pinned_alike(uint64_t va, uint64_t len)
{
	for (struct mem *m = all; m; m = m->next)
		if (!m->block && va < m->va + m->len && m->va < va + len)
			return va >= m->va && va + len <= m->va + m->len;
	return true;
}

static struct mem *add(uint64_t va, uint64_t len, int kind, CUdevice device, struct fake_block *block)
{
	struct mem *m = calloc(1, sizeof *m);
	if (!m)
		return NULL;
	m->va = va;
	m->len = len;
	m->kind = kind;
	m->device = device;
	m->block = block;
	m->id = ++last_id;
	m->users = 1;
	m->next = all;
	all = m;
	return m;
}

static void take(struct mem *m)
{
	for (struct mem **p = &all; *p; p = &(*p)->next)
		if (*p == m) {
			*p = m->next;
			free(m);
			return;
		}
}

/* Device memory. Small allocations share a page with others in the real driver, so they need not begin on one. */
static struct mem *device_memory(uint64_t len, int kind, CUdevice device)
{
	static unsigned turn;
	uint64_t skew = len <= 1 << 20 && ++turn % 2 == 0 ? 0x800 : 0;
	struct fake_block *b = fake_new(len + skew, 512, device, kind);
	if (!b)
		return NULL;
	struct mem *m = add(b->va + skew, len, kind, device, b);
	if (!m)
		fake_delete(b, false);
	return m;
}

API CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t len)
{
	ENTER(cuMemAlloc_v2);
	NEED_CONTEXT();
	if (!len)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	struct mem *m = device_memory(len, PLAIN, cuda_current()->device);
	if (m) {
		m->context = cuda_current();
		*out = m->va;
	}
	fake_unlock();
	return m ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void release_pool(struct pool *pool)
{
	pool->users--;
	if (!pool->destroyed || pool->users)
		return;
	for (struct pool **p = &pools; *p; p = &(*p)->next)
		if (*p == pool) {
			*p = pool->next;
			free(pool);
			return;
		}
}

API CUresult cuMemFree_v2(CUdeviceptr va)
{
	ENTER(cuMemFree_v2);
	NEED_CONTEXT();
	if (!va)
		return CUDA_SUCCESS;
	fake_lock();
	struct mem *m = cuda_find(va);
	bool ok = m && m->va == va && (m->kind == PLAIN || m->kind == POOLED || m->kind == MANAGED);
	if (ok && --m->users == 0) {
		/* The real one waits for the device too. */
		cuda_drain();
		struct pool *pool = m->pool;
		if (m->block)
			fake_delete(m->block, false);
		else
			munmap((void *)(uintptr_t)m->va, (m->len + PAGE - 1) & ~(PAGE - 1));
		take(m);
		if (pool)
			release_pool(pool);
	}
	fake_unlock();
	return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemGetInfo_v2(size_t *available, size_t *total)
{
	ENTER(cuMemGetInfo_v2);
	NEED_CONTEXT();
	*available = (size_t)4 << 30;
	*total = (size_t)8 << 30;
	return CUDA_SUCCESS;
}

API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *len, CUdeviceptr va)
{
	ENTER(cuMemGetAddressRange_v2);
	NEED_CONTEXT();
	fake_lock();
	struct mem *m = cuda_find(va);
	if (m && base)
		*base = m->va;
	if (m && len)
		*len = m->len;
	fake_unlock();
	return m ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* Host and managed memory. */

static CUresult host_memory(uint64_t *out, size_t len, int kind)
{
	if (!len)
		return CUDA_ERROR_INVALID_VALUE;
	uint64_t rounded = (len + PAGE - 1) & ~(PAGE - 1);
	void *at = mmap(NULL, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	fake_lock();
	struct mem *m = add((uint64_t)(uintptr_t)at, len, kind, cuda_current()->device, NULL);
	if (m)
		m->context = cuda_current();
	fake_unlock();
	if (!m) {
		munmap(at, rounded);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = m->va;
	return CUDA_SUCCESS;
}

API CUresult cuMemAllocManaged(CUdeviceptr *out, size_t len, unsigned flags)
{
	ENTER(cuMemAllocManaged);
	NEED_CONTEXT();
	if (flags != 1 && flags != 2)
		return CUDA_ERROR_INVALID_VALUE;
	uint64_t va = 0;
	CUresult r = host_memory(&va, len, MANAGED);
	if (!r)
		*out = va;
	return r;
}

API CUresult cuMemHostAlloc(void **out, size_t len, unsigned flags)
{
	ENTER(cuMemHostAlloc);
	NEED_CONTEXT();
	if (flags > 7)
		return CUDA_ERROR_INVALID_VALUE;
	uint64_t va = 0;
	CUresult r = host_memory(&va, len, HOST);
	if (!r)
		*out = (void *)(uintptr_t)va;
	return r;
}

API CUresult cuMemFreeHost(void *at)
{
	ENTER(cuMemFreeHost);
	NEED_CONTEXT();
	fake_lock();
	struct mem *m = cuda_find((uint64_t)(uintptr_t)at);
	bool ok = m && m->va == (uint64_t)(uintptr_t)at && m->kind == HOST && !m->registered;
	if (ok) {
		cuda_drain();
		munmap(at, (m->len + PAGE - 1) & ~(PAGE - 1));
		take(m);
	}
	fake_unlock();
	return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemHostRegister_v2(void *at, size_t len, unsigned flags)
{
	ENTER(cuMemHostRegister_v2);
	NEED_CONTEXT();
	uint64_t va = (uint64_t)(uintptr_t)at;
	if (!len || flags > 15)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	CUresult r = CUDA_SUCCESS;
	for (struct mem *m = all; m && !r; m = m->next)
		if (va < m->va + m->len && m->va < va + len)
			r = m->kind == HOST ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED : CUDA_ERROR_INVALID_VALUE;
	if (!r) {
		struct mem *m = add(va, len, HOST, cuda_current()->device, NULL);
		r = m ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
		if (m) {
			m->registered = true;
			m->context = cuda_current();
		}
	}
	fake_unlock();
	return r;
}

API CUresult cuMemHostUnregister(void *at)
{
	ENTER(cuMemHostUnregister);
	NEED_CONTEXT();
	fake_lock();
	struct mem *m = cuda_find((uint64_t)(uintptr_t)at);
	bool ok = m && m->va == (uint64_t)(uintptr_t)at && m->registered;
	if (ok) {
		cuda_must_be_idle("cuMemHostUnregister", m->va, m->len);
		take(m);
	}
	fake_unlock();
	return ok ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *at, unsigned flags)
{
	ENTER(cuMemHostGetDevicePointer_v2);
	NEED_CONTEXT();
	fake_lock();
	struct mem *m = cuda_find((uint64_t)(uintptr_t)at);
	fake_unlock();
	if (flags || !m || m->kind != HOST)
		return CUDA_ERROR_INVALID_VALUE;
	*out = (uint64_t)(uintptr_t)at;
	return CUDA_SUCCESS;
}

/* What the driver tells of a pointer. */

/* The answer, whether there is one, and how wide it is. A driver asked for many at once gives zeros where it has none. */
static CUresult attribute(int which, uint64_t va, uint64_t *value, size_t *size)
{
	struct mem *m = cuda_find(va);
	*size = 8;
	*value = 0;
#ifdef FAKE_OLD
	if (which < 1 || which > 9 || which == 5)
		return CUDA_ERROR_INVALID_VALUE;
#else
	if (which < 1 || which > 20 || which == 5)
		return CUDA_ERROR_INVALID_VALUE;
#endif
	switch (which) {
	case 1: /* CONTEXT */
		*value = m ? (uint64_t)(uintptr_t)m->context : 0;
		break;
	case 2: /* MEMORY_TYPE */
		*size = 4;
		*value = !m ? 0 : m->kind == HOST ? 1 : 2;
		break;
	case 3: /* DEVICE_POINTER */
		*value = m ? va : 0;
		break;
	case 4: /* HOST_POINTER */
		*value = m && !m->block ? va : 0;
		break;
	case 6: /* SYNC_MEMOPS */
		*size = 4;
		break;
	case 7: /* BUFFER_ID */
		*value = m ? m->id : 0;
		break;
	case 8: /* IS_MANAGED */
		*size = 4;
		*value = m && m->kind == MANAGED;
		break;
	case 9: /* DEVICE_ORDINAL */
		*size = 4;
		*value = m ? (uint64_t)m->device : 0xfffffffeu;
		break;
	case 10: /* IS_LEGACY_CUDA_IPC_CAPABLE */
		*size = 1;
		*value = m && m->kind == PLAIN;
		break;
	case 11: /* RANGE_START_ADDR */
	case 12: /* RANGE_SIZE: of segments the whole reservation, also where nothing is mapped */
		for (struct reservation *r = reservations; r; r = r->next)
			if (va >= r->va && va - r->va < r->len)
				*value = which == 11 ? r->va : r->len;
		if (m && m->kind != SEGMENT)
			*value = which == 11 ? m->va : m->len;
		break;
	case 13: /* MAPPED */
		*size = 1;
		*value = m != NULL;
		break;
	case 14: /* ALLOWED_HANDLE_TYPES */
		if (m && m->kind == SEGMENT)
			*value = (uint64_t)m->phys->handle_types;
		else if (m && m->kind == POOLED)
			*value = m->opened ? 0 : (uint64_t)m->pool->handle_types;
		break;
	case 15: /* IS_GPU_DIRECT_RDMA_CAPABLE */
		*size = 1;
		*value = m && (m->kind == PLAIN || m->kind == SEGMENT);
		break;
	case 16: /* ACCESS_FLAGS */
		*size = 4;
		*value = m ? 3 : 0;
		break;
	case 17: /* MEMPOOL_HANDLE */
		*value = m ? (uint64_t)(uintptr_t)m->pool : 0;
		break;
	case 18: /* MAPPING_SIZE */
		*value = !m ? 0 : m->kind == SEGMENT ? m->len : (m->len + GRAIN - 1) & ~(GRAIN - 1);
		break;
	case 19: /* MAPPING_BASE_ADDR */
		*value = !m ? 0 : m->block ? m->block->va : m->va;
		break;
	case 20: /* MEMORY_BLOCK_ID */
		*value = m ? m->id + 1000 : 0;
		break;
	}
	return m ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

API CUresult cuPointerGetAttribute(void *data, int which, CUdeviceptr va)
{
	ENTER(cuPointerGetAttribute);
	uint64_t value;
	size_t size;
	fake_lock();
	CUresult r = attribute(which, va, &value, &size);
	fake_unlock();
	if (r)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(data, &value, size);
	return CUDA_SUCCESS;
}

API CUresult cuPointerGetAttributes(unsigned count, int *which, void **data, CUdeviceptr va)
{
	ENTER(cuPointerGetAttributes);
	CUresult r = CUDA_SUCCESS;
	fake_lock();
	for (unsigned i = 0; i < count && !r; i++) {
		uint64_t value;
		size_t size;
		if (attribute(which[i], va, &value, &size) == CUDA_ERROR_INVALID_VALUE)
			r = CUDA_ERROR_INVALID_VALUE;
		else
			memcpy(data[i], &value, size);
	}
	fake_unlock();
	return r;
}

API CUresult cuPointerSetAttribute(const void *value, int which, CUdeviceptr va)
{
	ENTER(cuPointerSetAttribute);
	fake_lock();
	bool ok = value && which == 6 && cuda_find(va);
	fake_unlock();
	return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Handles of plain allocations. */

static CUresult fill(struct handle *h, struct mem *m)
{
	struct stat st;
	if (fstat(m->block->fd, &st))
		return CUDA_ERROR_INVALID_VALUE;
	memset(h, 0, sizeof *h);
	h->magic = MAGIC;
	h->pid = getpid();
	h->fd = m->block->fd;
	h->device = m->device;
	h->inode = st.st_ino;
	h->skew = m->va - m->block->va;
	h->len = m->len;
	h->id = m->id;
	h->pool = m->pool ? m->pool->number : 0;
	return CUDA_SUCCESS;
}

/* The memory that another process's handle names, if it still is that. */
static struct mem *opened(const struct handle *h, int kind)
{
	struct stat st;
	int fd = h->magic == MAGIC && cuda_device_ok(h->device) ? fake_fetch_fd(h->pid, h->fd) : -1;
	if (fd < 0)
		return NULL;
	struct mem *m = NULL;
	struct fake_block *b = NULL;
	uint64_t whole = (h->skew + h->len + PAGE - 1) & ~(PAGE - 1);
	if (fstat(fd, &st) == 0 && st.st_ino == h->inode && (uint64_t)st.st_size >= whole)
		b = fake_map(fd, 0, whole, 0, h->device, kind);
	close(fd);
	if (b)
		m = add(b->va + h->skew, h->len, kind, h->device, b);
	if (b && !m)
		fake_delete(b, false);
	if (m)
		memcpy(m->handle, h, sizeof *h);
	return m;
}

struct ipc_handle {
	unsigned char bytes[64];
};

API CUresult cuIpcGetMemHandle(struct ipc_handle *out, CUdeviceptr va)
{
	ENTER(cuIpcGetMemHandle);
	NEED_CONTEXT();
	struct handle h;
	fake_lock();
	struct mem *m = cuda_find(va);
	CUresult r = m && m->kind == PLAIN ? fill(&h, m) : CUDA_ERROR_INVALID_VALUE;
	fake_unlock();
	if (!r) {
		memset(out, 0, sizeof *out);
		memcpy(out, &h, sizeof h);
	}
	return r;
}

API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, struct ipc_handle handle, unsigned flags)
{
	ENTER(cuIpcOpenMemHandle_v2);
	NEED_CONTEXT();
	struct handle h;
	memcpy(&h, &handle, sizeof h);
	if (h.magic != MAGIC || flags != 1 || h.pool)
		return CUDA_ERROR_INVALID_VALUE;
	if (h.pid == getpid())
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!cuda_p2p(cuda_current()->device, h.device))
		return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	fake_lock();
	struct mem *m = all;
	while (m && !(m->kind == OPENED && m->context == cuda_current() && memcmp(m->handle, &h, sizeof h) == 0))
		m = m->next;
	if (m)
		m->users++;
	else if ((m = opened(&h, OPENED)) != NULL) {
		/* Counts as memory of the device that opened it. */
		m->context = cuda_current();
		m->device = cuda_current()->device;
	}
	if (m)
		*out = m->va;
	fake_unlock();
	return m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuIpcCloseMemHandle(CUdeviceptr va)
{
	ENTER(cuIpcCloseMemHandle);
	NEED_CONTEXT();
	fake_lock();
	struct mem *m = cuda_find(va);
	bool ok = m && m->kind == OPENED && m->va == va;
	if (ok && --m->users == 0) {
		cuda_must_be_idle("cuIpcCloseMemHandle", m->va, m->len);
		fake_delete(m->block, false);
		take(m);
	}
	fake_unlock();
	return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

#ifndef FAKE_OLD

/* Files that stand for memory carry its kind and device in their names. */
static int memory_file(const char *what, CUdevice device, uint64_t len)
{
	char name[64];
	snprintf(name, sizeof name, "fake-cuda-%s-%d", what, device);
	int fd = memfd_create(name, MFD_CLOEXEC);
	if (fd >= 0 && ftruncate(fd, (off_t)len)) {
		close(fd);
		fd = -1;
	}
	return fd;
}

static bool is_memory_file(int fd, const char *what, CUdevice *device)
{
	char path[64], name[128], format[64];
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	ssize_t n = readlink(path, name, sizeof name - 1);
	if (n <= 0)
		return false;
	name[n] = '\0';
	snprintf(format, sizeof format, "/memfd:fake-cuda-%s-", what);
	size_t len = strlen(format);
	if (strncmp(name, format, len) != 0)
		return false;
	*device = atoi(name + len);
	return cuda_device_ok(*device);
}

/* dma-bufs. */

API CUresult cuMemGetHandleForAddressRange(int *out, CUdeviceptr va, size_t len, int type, unsigned long long flags)
{
	ENTER(cuMemGetHandleForAddressRange);
	NEED_CONTEXT();
	if (type != 1 || flags > 1 || !len || va % PAGE || len % PAGE)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	struct fake_block *first = fake_find(va);
	bool ok = first != NULL, one = first && va + len <= first->va + first->len;
	int kind = first ? first->kind : 0;
	for (uint64_t at = va; ok && at < va + len;) {
		struct fake_block *b = fake_find(at);
		/* One allocation, or mapped segments without a gap, of one device. */
		ok = b && b->kind == kind && b->device == first->device && b->kind != OPENED && (b == first || b->kind == SEGMENT);
		/* Nor memory that a peer's pool lent. */
		struct mem *m = b ? cuda_find(at) : NULL;
		ok = ok && !(m && m->opened);
		at = b ? b->va + b->len : va + len;
	}
	CUresult r = ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	if (ok && (getenv("FAKE_NO_DMABUF") || (flags && !getenv("FAKE_PCIE"))))
		r = CUDA_ERROR_NOT_SUPPORTED;
	if (!r && one && va == first->va && getenv("FAKE_DMABUF_MMAP")) {
		*out = fcntl(first->fd, F_DUPFD_CLOEXEC, 0);
		r = *out < 0 ? 304 : CUDA_SUCCESS;
	} else if (!r) {
		/* Has a size, and cannot be mapped: its descriptor does not read. */
		int fd = memory_file("dmabuf", first->device, len);
		char path[64];
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		*out = fd < 0 ? -1 : open(path, O_WRONLY | O_CLOEXEC);
		if (fd >= 0)
			close(fd);
		r = *out < 0 ? 304 : CUDA_SUCCESS; /* OPERATING_SYSTEM */
	}
	fake_unlock();
	return r;
}

/* Physical memory, mapped in segments. */

static struct phys *physical;

static void release_phys(struct phys *p)
{
	if (p->handles || p->mappings)
		return;
	for (struct phys **at = &physical; *at; at = &(*at)->next)
		if (*at == p) {
			*at = p->next;
			close(p->fd);
			free(p);
			return;
		}
}

static struct phys *phys_of(unsigned long long handle)
{
	for (struct phys *p = physical; p; p = p->next)
		if ((uint64_t)(uintptr_t)p == handle && p->handles)
			return p;
	return NULL;
}

static CUresult new_phys(unsigned long long *out, int fd, uint64_t len, CUdevice device, int handle_types)
{
	struct phys *p = fd < 0 ? NULL : calloc(1, sizeof *p);
	if (!p) {
		if (fd >= 0)
			close(fd);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	p->fd = fd;
	p->len = len;
	p->device = device;
	p->handle_types = handle_types;
	p->handles = 1;
	fake_lock();
	p->next = physical;
	physical = p;
	fake_unlock();
	*out = (uint64_t)(uintptr_t)p;
	return CUDA_SUCCESS;
}

API CUresult cuMemGetAllocationGranularity(size_t *out, const struct alloc_prop *prop, int option)
{
	ENTER(cuMemGetAllocationGranularity);
	if (prop->type != 1 || prop->location.type != 1 || option < 0 || option > 1)
		return CUDA_ERROR_INVALID_VALUE;
	*out = GRAIN;
	return CUDA_SUCCESS;
}

API CUresult cuMemCreate(unsigned long long *out, size_t len, const struct alloc_prop *prop, unsigned long long flags)
{
	ENTER(cuMemCreate);
	if (flags || !len || len % GRAIN || prop->type != 1 || prop->location.type != 1 || prop->handle_types & ~1)
		return CUDA_ERROR_INVALID_VALUE;
	if (!cuda_device_ok(prop->location.id))
		return CUDA_ERROR_INVALID_DEVICE;
	if (len > (size_t)8 << 30)
		return CUDA_ERROR_OUT_OF_MEMORY;
	int fd = memory_file("vmm", prop->location.id, len);
	return new_phys(out, fd, len, prop->location.id, prop->handle_types);
}

API CUresult cuMemRelease(unsigned long long handle)
{
	ENTER(cuMemRelease);
	fake_lock();
	struct phys *p = phys_of(handle);
	if (p) {
		p->handles--;
		release_phys(p);
	}
	fake_unlock();
	return p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemRetainAllocationHandle(unsigned long long *out, void *at)
{
	ENTER(cuMemRetainAllocationHandle);
	fake_lock();
	struct mem *m = cuda_find((uint64_t)(uintptr_t)at);
	bool ok = m && m->kind == SEGMENT;
	if (ok) {
		m->phys->handles++;
		*out = (uint64_t)(uintptr_t)m->phys;
	}
	fake_unlock();
	return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemGetAllocationPropertiesFromHandle(struct alloc_prop *prop, unsigned long long handle)
{
	ENTER(cuMemGetAllocationPropertiesFromHandle);
	fake_lock();
	struct phys *p = phys_of(handle);
	if (p) {
		memset(prop, 0, sizeof *prop);
		prop->type = prop->location.type = prop->rdma = 1;
		prop->handle_types = p->handle_types;
		prop->location.id = p->device;
	}
	fake_unlock();
	return p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemExportToShareableHandle(int *out, unsigned long long handle, int type, unsigned long long flags)
{
	ENTER(cuMemExportToShareableHandle);
	fake_lock();
	struct phys *p = phys_of(handle);
	CUresult r = p && type == 1 && !flags && p->handle_types & 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	if (!r) {
		*out = fcntl(p->fd, F_DUPFD_CLOEXEC, 0);
		r = *out < 0 ? 304 : CUDA_SUCCESS;
	}
	fake_unlock();
	return r;
}

API CUresult cuMemImportFromShareableHandle(unsigned long long *out, void *os_handle, int type)
{
	ENTER(cuMemImportFromShareableHandle);
	struct stat st;
	CUdevice device = 0;
	int fd = (int)(intptr_t)os_handle;
	if (type != 1 || !is_memory_file(fd, "vmm", &device) || fstat(fd, &st))
		return CUDA_ERROR_INVALID_VALUE;
	/* What was imported cannot be exported again. */
	return new_phys(out, fcntl(fd, F_DUPFD_CLOEXEC, 0), (uint64_t)st.st_size, device, 0);
}

API CUresult cuMemAddressReserve(CUdeviceptr *out, size_t len, size_t align, CUdeviceptr at, unsigned long long flags)
{
	ENTER(cuMemAddressReserve);
	(void)at;
	if (flags || !len || len % GRAIN || (align & (align - 1)))
		return CUDA_ERROR_INVALID_VALUE;
	struct reservation *r = calloc(1, sizeof *r);
	uint64_t va = r ? fake_reserve(len, align > GRAIN ? align : GRAIN) : 0;
	if (!va) {
		free(r);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	r->va = va;
	r->len = len;
	fake_lock();
	r->next = reservations;
	reservations = r;
	fake_unlock();
	*out = va;
	return CUDA_SUCCESS;
}

API CUresult cuMemAddressFree(CUdeviceptr va, size_t len)
{
	ENTER(cuMemAddressFree);
	fake_lock();
	struct reservation **p = &reservations;
	while (*p && !((*p)->va == va && (*p)->len == len))
		p = &(*p)->next;
	bool ok = *p && !cuda_touches(va, len);
	if (ok) {
		struct reservation *r = *p;
		*p = r->next;
		fake_unreserve(va, len);
		free(r);
	}
	fake_unlock();
	return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemMap(CUdeviceptr va, size_t len, size_t offset, unsigned long long handle, unsigned long long flags)
{
	ENTER(cuMemMap);
	fake_lock();
	struct phys *p = phys_of(handle);
	struct reservation *in = reservations;
	while (in && !(va >= in->va && va - in->va < in->len && va - in->va + len <= in->len))
		in = in->next;
	CUresult r = CUDA_SUCCESS;
	if (!p || flags || va % GRAIN || !len || (p && len <= p->len && !in) || cuda_touches(va, len))
		r = CUDA_ERROR_INVALID_VALUE;
	else if (offset || len != p->len)
		r = CUDA_ERROR_NOT_SUPPORTED;
	if (!r) {
		struct fake_block *b = fake_map(p->fd, 0, len, va, p->device, SEGMENT);
		struct mem *m = b ? add(va, len, SEGMENT, p->device, b) : NULL;
		r = m ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
		if (m) {
			m->phys = p;
			p->mappings++;
		} else if (b) {
			fake_delete(b, true);
		}
	}
	fake_unlock();
	return r;
}

API CUresult cuMemUnmap(CUdeviceptr va, size_t len)
{
	ENTER(cuMemUnmap);
	fake_lock();
	uint64_t at = va;
	bool ok = len > 0;
	while (ok && at < va + len) {
		struct mem *m = cuda_find(at);
		ok = m && m->kind == SEGMENT && m->va == at && m->va + m->len <= va + len;
		at += m ? m->len : 0;
	}
	if (ok)
		cuda_must_be_idle("cuMemUnmap", va, len);
	for (at = va; ok && at < va + len;) {
		struct mem *m = cuda_find(at);
		struct phys *p = m->phys;
		at += m->len;
		fake_delete(m->block, true);
		take(m);
		p->mappings--;
		release_phys(p);
	}
	fake_unlock();
	return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemSetAccess(CUdeviceptr va, size_t len, const struct access_desc *desc, size_t count)
{
	ENTER(cuMemSetAccess);
	CUresult r = len && count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	for (size_t i = 0; i < count && !r; i++) {
		CUdevice device = desc[i].location.id;
		if (desc[i].location.type != 1 || desc[i].flags & ~3)
			r = CUDA_ERROR_INVALID_VALUE;
		else if (!cuda_device_ok(device))
			r = CUDA_ERROR_INVALID_DEVICE;
		for (uint64_t at = va; !r && at < va + len;) {
			struct mem *m = cuda_find(at);
			if (!m || m->kind != SEGMENT || m->va != at || m->va + m->len > va + len) {
				r = CUDA_ERROR_INVALID_VALUE;
			} else if (!cuda_p2p(device, m->device)) {
				r = CUDA_ERROR_INVALID_DEVICE;
			} else {
				m->access = desc[i].flags == 3 ? m->access | 1u << device : m->access & ~(1u << device);
				at += m->len;
			}
		}
	}
	fake_unlock();
	return r;
}

/* Pools. */

static struct pool *default_pools[MAX_DEVICES];
static uint64_t last_pool;

static struct pool *new_pool(CUdevice device, int handle_types)
{
	struct pool *p = calloc(1, sizeof *p);
	if (!p)
		return NULL;
	p->device = device;
	p->handle_types = handle_types;
	p->number = ++last_pool;
	p->pid = getpid();
	p->next = pools;
	pools = p;
	return p;
}

static bool pool_ok(struct pool *pool)
{
	for (struct pool *p = pools; p; p = p->next)
		if (p == pool)
			return !p->destroyed;
	return false;
}

API CUresult cuMemPoolCreate(struct pool **out, const struct alloc_prop *props)
{
	ENTER(cuMemPoolCreate);
	/* The first members are those of an allocation's. */
	if (props->type != 1 || props->location.type != 1 || props->handle_types & ~1)
		return CUDA_ERROR_INVALID_VALUE;
	if (!cuda_device_ok(props->location.id))
		return CUDA_ERROR_INVALID_DEVICE;
	fake_lock();
	*out = new_pool(props->location.id, props->handle_types);
	fake_unlock();
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuDeviceGetDefaultMemPool(struct pool **out, CUdevice device)
{
	ENTER(cuDeviceGetDefaultMemPool);
	if (!cuda_device_ok(device))
		return CUDA_ERROR_INVALID_DEVICE;
	fake_lock();
	if (!default_pools[device])
		default_pools[device] = new_pool(device, 0);
	*out = default_pools[device];
	fake_unlock();
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuMemPoolDestroy(struct pool *pool)
{
	ENTER(cuMemPoolDestroy);
	fake_lock();
	bool ok = pool_ok(pool);
	if (ok) {
		pool->destroyed = true;
		pool->users++;
		release_pool(pool);
	}
	fake_unlock();
	return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t len, struct pool *pool, CUstream stream)
{
	ENTER(cuMemAllocFromPoolAsync);
	NEED_CONTEXT();
	(void)stream;
	fake_lock();
	bool ok = len && pool_ok(pool) && !pool->imported;
	struct mem *m = ok ? device_memory(len, POOLED, pool->device) : NULL;
	if (m) {
		m->pool = pool;
		pool->users++;
		*out = m->va;
	}
	fake_unlock();
	return m ? CUDA_SUCCESS : ok ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemAllocAsync(CUdeviceptr *out, size_t len, CUstream stream)
{
	ENTER(cuMemAllocAsync);
	NEED_CONTEXT();
	struct pool *pool;
	CUresult r = cuDeviceGetDefaultMemPool(&pool, cuda_current()->device);
	return r ? r : cuMemAllocFromPoolAsync(out, len, pool, stream);
}

API CUresult cuMemFreeAsync(CUdeviceptr va, CUstream stream)
{
	ENTER(cuMemFreeAsync);
	(void)stream;
	return cuMemFree_v2(va);
}

API CUresult cuMemPoolSetAccess(struct pool *pool, const struct access_desc *desc, size_t count)
{
	ENTER(cuMemPoolSetAccess);
	fake_lock();
	CUresult r = pool_ok(pool) && count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count && !r; i++)
		if (desc[i].location.type != 1 || desc[i].flags & ~3)
			r = CUDA_ERROR_INVALID_VALUE;
		else if (!cuda_device_ok(desc[i].location.id) || !cuda_p2p(desc[i].location.id, pool->device))
			r = CUDA_ERROR_INVALID_DEVICE;
	fake_unlock();
	return r;
}

API CUresult cuMemPoolExportToShareableHandle(int *out, struct pool *pool, int type, unsigned long long flags)
{
	ENTER(cuMemPoolExportToShareableHandle);
	fake_lock();
	bool ok = pool_ok(pool) && !pool->imported && pool->handle_types & 1 && type == 1 && !flags;
	CUresult r = ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	int fd = r ? -1 : memory_file("pool", pool->device, PAGE);
	if (!r && (fd < 0 || pwrite(fd, &pool->number, 8, 0) != 8 || pwrite(fd, &pool->pid, 4, 8) != 4))
		r = 304;
	else if (!r)
		pool->exported = true;
	fake_unlock();
	if (!r)
		*out = fd;
	else if (fd >= 0)
		close(fd);
	return r;
}

API CUresult cuMemPoolImportFromShareableHandle(struct pool **out, void *os_handle, int type, unsigned long long flags)
{
	ENTER(cuMemPoolImportFromShareableHandle);
	int fd = (int)(intptr_t)os_handle, pid;
	uint64_t number;
	CUdevice device = 0;
	if (type != 1 || flags || !is_memory_file(fd, "pool", &device))
		return CUDA_ERROR_INVALID_VALUE;
	if (pread(fd, &number, 8, 0) != 8 || pread(fd, &pid, 4, 8) != 4)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	struct pool *p = new_pool(device, 0);
	if (p) {
		p->imported = true;
		p->number = number;
		p->pid = pid;
		*out = p;
	}
	fake_unlock();
	return p ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Works only once the pool has been exported. */
API CUresult cuMemPoolExportPointer(struct ipc_handle *out, CUdeviceptr va)
{
	ENTER(cuMemPoolExportPointer);
	struct handle h;
	fake_lock();
	struct mem *m = cuda_find(va);
	bool ok = m && m->kind == POOLED && m->va == va && !m->opened && m->pool->exported;
	CUresult r = ok ? fill(&h, m) : CUDA_ERROR_INVALID_VALUE;
	fake_unlock();
	if (!r) {
		memset(out, 0, sizeof *out);
		memcpy(out, &h, sizeof h);
	}
	return r;
}

API CUresult cuMemPoolImportPointer(CUdeviceptr *out, struct pool *pool, struct ipc_handle *data)
{
	ENTER(cuMemPoolImportPointer);
	struct handle h;
	memcpy(&h, data, sizeof h);
	fake_lock();
	struct mem *m = all;
	bool ok = h.magic == MAGIC && pool_ok(pool) && pool->imported && h.pool == pool->number && h.pid == pool->pid;
	/* One address in a process, by however many imports of the pool; the first to free it ends it for all. */
	while (ok && m && !(m->opened && memcmp(m->handle, &h, sizeof h) == 0))
		m = m->next;
	if (!ok) {
		m = NULL;
	} else if (!m && (m = opened(&h, POOLED)) != NULL) {
		m->opened = true;
		m->pool = pool;
		pool->users++;
	}
	if (m)
		*out = m->va;
	fake_unlock();
	return m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

#endif
