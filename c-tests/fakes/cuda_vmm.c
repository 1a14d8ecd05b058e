/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The part of the fake libcuda that an old driver lacks: dma-bufs, and physical memory mapped in segments. */
#define _GNU_SOURCE
#include "cuda_vmm.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef FAKE_OLD

int cuda_memory_file(const char *what, CUdevice device, uint64_t len)
{
	char name[64];
	snprintf(name, sizeof name, "fake-cuda-%s-%d", what, device);
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	/* The kernel makes a dma-buf only of a file that cannot shrink. */
	if (fd >= 0 && (ftruncate(fd, (off_t)len) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK))) {
		close(fd);
		fd = -1;
	}
	return fd;
}

bool cuda_is_memory_file(int fd, const char *what, CUdevice *device)
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
		/* The range must be one allocation, or mapped segments of one device without a gap. */
		ok = b && b->kind == kind && b->device == first->device && b->kind != OPENED && (b == first || b->kind == SEGMENT);
		/* Memory imported from a pool is refused. */
		struct mem *m = b ? cuda_find(at) : NULL;
		ok = ok && !(m && m->opened);
		at = b ? b->va + b->len : va + len;
	}
	CUresult r = ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	if (ok && (getenv("FAKE_NO_DMABUF") || (flags && !getenv("FAKE_PCIE"))))
		r = CUDA_ERROR_NOT_SUPPORTED;
	if (!r && one && va == first->va && getenv("FAKE_DMABUF_MMAP")) {
		*out = fake_dmabuf(first);
		r = *out < 0 ? 304 : CUDA_SUCCESS;
	} else if (!r) {
		*out = one ? fake_udmabuf(first->fd, va - first->va, len) : -1;
		if (*out < 0) {
			/* The file has a size and cannot be mapped, because its descriptor is not readable. */
			int fd = cuda_memory_file("dmabuf", first->device, len);
			char path[64];
			snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
			*out = fd < 0 ? -1 : open(path, O_WRONLY | O_CLOEXEC);
			if (fd >= 0)
				close(fd);
		}
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
	int fd = cuda_memory_file("vmm", prop->location.id, len);
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
	if (type != 1 || !cuda_is_memory_file(fd, "vmm", &device) || fstat(fd, &st))
		return CUDA_ERROR_INVALID_VALUE;
	/* An imported handle cannot be exported again. */
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
	r->next = cuda_reservations;
	cuda_reservations = r;
	fake_unlock();
	*out = va;
	return CUDA_SUCCESS;
}

API CUresult cuMemAddressFree(CUdeviceptr va, size_t len)
{
	ENTER(cuMemAddressFree);
	fake_lock();
	struct reservation **p = &cuda_reservations;
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
	struct reservation *in = cuda_reservations;
	while (in && !(va >= in->va && va - in->va < in->len && va - in->va + len <= in->len))
		in = in->next;
	CUresult r = CUDA_SUCCESS;
	if (!p || flags || va % GRAIN || !len || (p && len <= p->len && !in) || cuda_touches(va, len))
		r = CUDA_ERROR_INVALID_VALUE;
	else if (offset || len != p->len)
		r = CUDA_ERROR_NOT_SUPPORTED;
	if (!r) {
		struct fake_block *b = fake_map(p->fd, 0, len, va, p->device, SEGMENT);
		struct mem *m = b ? cuda_add(va, len, SEGMENT, p->device, b) : NULL;
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
		cuda_take(m);
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

#endif
