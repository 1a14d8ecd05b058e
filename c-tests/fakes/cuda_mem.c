/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Memory of the fake libcuda: plain allocations and their IPC handles, managed and pinned host memory, and the
 * driver's answers about a pointer.
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

API CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t len)
{
	ENTER(cuMemAlloc_v2);
	NEED_CONTEXT();
	if (!len)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	struct mem *m = cuda_device_memory(len, PLAIN, cuda_current()->device);
	if (m) {
		m->context = cuda_current();
		*out = m->va;
	}
	fake_unlock();
	return m ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
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
		/* The real driver waits for the device too. */
		cuda_drain();
		struct pool *pool = m->pool;
		if (m->block)
			fake_delete(m->block, false);
		else
			munmap((void *)(uintptr_t)m->va, (m->len + PAGE - 1) & ~(PAGE - 1));
		cuda_take(m);
		if (pool)
			cuda_release_pool(pool);
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
	struct mem *m = cuda_add((uint64_t)(uintptr_t)at, len, kind, cuda_current()->device, NULL);
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
		cuda_take(m);
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
	for (struct mem *m = cuda_all; m && !r; m = m->next)
		if (va < m->va + m->len && m->va < va + len)
			r = m->kind == HOST ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED : CUDA_ERROR_INVALID_VALUE;
	if (!r) {
		struct mem *m = cuda_add(va, len, HOST, cuda_current()->device, NULL);
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
		cuda_take(m);
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

/* The driver's answers about a pointer. */

/* The answer, its width, and whether there is one. A query for many attributes returns zeros for missing answers. */
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
		for (struct reservation *r = cuda_reservations; r; r = r->next)
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

CUresult cuda_fill(struct handle *h, struct mem *m)
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

/* The memory that a handle of another process names, if it still exists. */
struct mem *cuda_opened(const struct handle *h, int kind)
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
		m = cuda_add(b->va + h->skew, h->len, kind, h->device, b);
	if (b && !m)
		fake_delete(b, false);
	if (m)
		memcpy(m->handle, h, sizeof *h);
	return m;
}

API CUresult cuIpcGetMemHandle(struct ipc_handle *out, CUdeviceptr va)
{
	ENTER(cuIpcGetMemHandle);
	NEED_CONTEXT();
	struct handle h;
	fake_lock();
	struct mem *m = cuda_find(va);
	CUresult r = m && m->kind == PLAIN ? cuda_fill(&h, m) : CUDA_ERROR_INVALID_VALUE;
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
	/* Refused in the process that made the handle, as by the real driver. */
	if (h.pid == getpid())
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!cuda_p2p(cuda_current()->device, h.device))
		return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	fake_lock();
	struct mem *m = cuda_all;
	while (m && !(m->kind == OPENED && m->context == cuda_current() && memcmp(m->handle, &h, sizeof h) == 0))
		m = m->next;
	if (m)
		m->users++;
	else if ((m = cuda_opened(&h, OPENED)) != NULL) {
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
		cuda_take(m);
	}
	fake_unlock();
	return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
