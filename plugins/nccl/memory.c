/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Registered memory. A region belongs to one domain, but NCCL may use registered memory with any communicator
 * (regIsGlobal): a handle therefore has one region in each domain that has needed it.
 */
#include "plugin.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { ACCESS = GDRFAB_READ | GDRFAB_WRITE | GDRFAB_REMOTE_READ | GDRFAB_REMOTE_WRITE };

/* Makes a region by the memory's address. With a dma-buf the region is made of that; if the card refuses, by the
 * address. */
static gdrfab_mr *region_of(const struct memory *memory, struct way *way, const gdrfab_mr_dmabuf *file)
{
	struct iovec iov = {memory->data, memory->size};
	gdrfab_mr_attr attr = {.struct_size = sizeof attr, .mr_iov = &iov, .iov_count = 1, .access = ACCESS};
	gdrfab_mr *mr = NULL;
	attr.iface = memory->host ? GDRFAB_HMEM_SYSTEM : GDRFAB_HMEM_AUTO;
	/* The remote address is the pointer itself: either the provider works so (VIRT_ADDR), or the offset makes it
	 * so. */
	if (!(way->info->mr_mode & GDRFAB_MR_VIRT_ADDR))
		attr.offset = (uintptr_t)memory->data;
	if (file) {
		gdrfab_hmem_place place = {.struct_size = sizeof place};
		/* A dma-buf does not tell the driver it belongs to. Without `iface` the library would treat its
		 * bytes as host memory. */
		if (gdrfab_hmem_detect(memory->data, memory->size, &place) == 0) {
			attr.iface = place.iface;
			attr.device = place.device;
		}
		attr.dmabuf = file;
		if (gdrfab_mr_regattr(way->domain, &attr, GDRFAB_MR_DMABUF, &mr) == 0)
			return mr;
		INFO("%s: no region of the dma-buf, registering by address: %s", way->info->domain_name, gdrfab_last_error());
		attr.dmabuf = NULL;
		attr.iface = memory->host ? GDRFAB_HMEM_SYSTEM : GDRFAB_HMEM_AUTO;
		attr.device = 0;
	}
	if (gdrfab_mr_regattr(way->domain, &attr, 0, &mr) < 0) {
		WARN("%s: registering %zu bytes of %s memory at %p: %s", way->info->domain_name, memory->size,
		     memory->host ? "host" : "device", (void *)memory->data, gdrfab_last_error());
		return NULL;
	}
	return mr;
}

/* Number of GPU buffers that NCCL registers for itself on a connection for collectives: one of LL128 and one of
 * Simple. LL's buffer is in host memory. */
enum { OWN_GPU = 2 };

/* True if this is memory that the user registered, offered for a connection for collectives. Such memory is refused,
 * so that NCCL uses its own buffers, with which a wide communicator is several times faster. A connection for send
 * and receive has no LL buffer. */
static bool is_users(struct comm *comm, int type)
{
	if (type != NCCL_PTR_CUDA || !comm->own[0] || comm->own[1] < OWN_GPU || !tune_prefers_own_buffers())
		return false;
	if (!comm->refused)
		INFO("collectives do not use the user's registered memory: NCCL before 2.30 gives it one channel "
		     "(GDRFAB_NCCL_TUNE=0 uses it)");
	comm->refused = true;
	return true;
}

static ncclResult_t make(struct comm *comm, void *data, size_t size, int type, const gdrfab_mr_dmabuf *file,
			 struct memory **out)
{
	struct way *way = comm->device->ways[comm->way];
	gdrfab_mr_info info = {.struct_size = sizeof info};
	struct memory *memory;
	if (type != NCCL_PTR_HOST && type != NCCL_PTR_CUDA) {
		WARN("registering: memory of type %d is neither host nor device memory", type);
		return ncclInvalidArgument;
	}
	if (is_users(comm, type))
		return ncclInvalidUsage;
	memory = calloc(1, sizeof *memory);
	if (!memory)
		return ncclSystemError;
	memory->data = data;
	/* The library has no empty regions. NCCL transfers nothing through an empty one. */
	memory->size = size ? size : 1;
	memory->host = type == NCCL_PTR_HOST;
	memory->of = way->of;
	inventory_hold(memory->of);
	pthread_mutex_init(&memory->lock, NULL);
	gdrfab_mr *mr = region_of(memory, way, file);
	if (!mr) {
		memory_release(memory);
		return ncclSystemError;
	}
	memory->regions[way->number] = mr;
	if (gdrfab_mr_query(mr, &info) == 0) {
		memory->iface = info.iface;
		memory->device = info.device;
	}
	comm->own[type == NCCL_PTR_CUDA]++;
	*out = memory;
	return ncclSuccess;
}

ncclResult_t memory_register(struct comm *comm, void *data, size_t size, int type, struct memory **out)
{
	return make(comm, data, size, type, NULL, out);
}

ncclResult_t memory_register_dmabuf(struct comm *comm, void *data, size_t size, int type, uint64_t offset, int fd,
				    struct memory **out)
{
	/* NCCL gives the offset of the memory in the dma-buf; the library wants the address of the dma-buf's first
	 * byte. */
	gdrfab_mr_dmabuf file = {.fd = fd, .offset = offset, .len = size, .base_addr = (void *)((uintptr_t)data - offset)};
	/* Only cards use a dma-buf. On other ways the memory's driver copies, and finds the memory by its address. */
	bool card = comm->device->ways[comm->way]->kind == KIND_VERBS;
	return make(comm, data, size, type, card && type == NCCL_PTR_CUDA ? &file : NULL, out);
}

ncclResult_t memory_release(struct memory *memory)
{
	ncclResult_t result = ncclSuccess;
	for (int i = 0; i < MAX_DEVICES; i++) {
		int r = -EBUSY;
		/* -EBUSY: a peer's copy is still running, although the call has waited for it. */
		for (int tries = 0; memory->regions[i] && r == -EBUSY && tries < 3; tries++)
			r = gdrfab_mr_close(memory->regions[i]);
		if (memory->regions[i] && r < 0) {
			WARN("deregistering %zu bytes at %p: %s", memory->size, (void *)memory->data, gdrfab_last_error());
			result = ncclSystemError;
		}
	}
	pthread_mutex_destroy(&memory->lock);
	inventory_drop(memory->of);
	free(memory);
	return result;
}

gdrfab_mr *memory_region(struct memory *memory, const struct comm *comm)
{
	struct way *way = comm->device->ways[comm->way];
	gdrfab_mr **place = &memory->regions[way->number];
	if (memory->of != way->of) {
		WARN("memory that was registered before the last finalize is used after it");
		return NULL;
	}
	gdrfab_mr *mr = __atomic_load_n(place, __ATOMIC_ACQUIRE);
	if (mr)
		return mr;
	pthread_mutex_lock(&memory->lock);
	mr = *place;
	if (!mr) {
		mr = region_of(memory, way, NULL);
		__atomic_store_n(place, mr, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&memory->lock);
	return mr;
}
