/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Pools of the fake libcuda, which an old driver lacks. */
#define _GNU_SOURCE
#include "cuda_vmm.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef FAKE_OLD

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
	p->next = cuda_pools;
	cuda_pools = p;
	return p;
}

static bool pool_ok(struct pool *pool)
{
	for (struct pool *p = cuda_pools; p; p = p->next)
		if (p == pool)
			return !p->destroyed;
	return false;
}

API CUresult cuMemPoolCreate(struct pool **out, const struct alloc_prop *props)
{
	ENTER(cuMemPoolCreate);
	/* The first members are the same as of an allocation's properties. */
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
		cuda_release_pool(pool);
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
	struct mem *m = ok ? cuda_device_memory(len, POOLED, pool->device) : NULL;
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
	int fd = r ? -1 : cuda_memory_file("pool", pool->device, PAGE);
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
	if (type != 1 || flags || !cuda_is_memory_file(fd, "pool", &device))
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
	CUresult r = ok ? cuda_fill(&h, m) : CUDA_ERROR_INVALID_VALUE;
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
	struct mem *m = cuda_all;
	bool ok = h.magic == MAGIC && pool_ok(pool) && pool->imported && h.pool == pool->number && h.pid == pool->pid;
	/* The real driver's answer to the exporting process is not known; no program may rely on it. */
	ok = ok && h.pid != getpid();
	/* All imports of the pool in a process share one address; the first free ends it for all. */
	while (ok && m && !(m->opened && memcmp(m->handle, &h, sizeof h) == 0))
		m = m->next;
	if (!ok) {
		m = NULL;
	} else if (!m && (m = cuda_opened(&h, POOLED)) != NULL) {
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
