/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A fake of AMD's HSA runtime, libhsa-runtime64.so.1. Like the real one it answers nothing before hsa_init; agents reach
 * memory only with permission, and host memory only where it was locked, at another address; an IPC handle is of
 * a whole allocation, and the length of an attach is not checked; making a dma-buf of imported memory crashes.
 *
 * -DFAKE_OLD: a runtime without dma-bufs and without notices of freed memory.
 *
 * FAKE_HSA_DMABUF=0: a kernel without dma-buf export. FAKE_HSA_UUID=0: GPUs without a UUID. A fault of
 * `hsa_copy_engine` is the value that a copy which was started leaves in its signal.
 */
#define _GNU_SOURCE
#include "fakehsa.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

/* Notices of freed memory. */
struct notice {
	uint64_t base;
	void *ptr, *data;
	void (*callback)(void *, void *);
	struct notice *next;
};
static struct notice *notices;

static struct fake_block *find(const void *ptr)
{
	return fake_find((uint64_t)(uintptr_t)ptr);
}

status_t hsa_init(void)
{
	FAKE_FAULT(hsa_init);
	if (hsa_gpus() == 0 && getenv("FAKE_HSA_NO_KFD"))
		return OUT_OF_RESOURCES;
	hsa_users++;
	return SUCCESS;
}

status_t hsa_shut_down(void)
{
	FAKE_FAULT(hsa_shut_down);
	if (!hsa_users)
		return NOT_INITIALIZED;
	hsa_users--;
	return SUCCESS;
}

status_t hsa_status_string(status_t status, const char **text)
{
	switch (status) {
	case SUCCESS:
		*text = "HSA_STATUS_SUCCESS";
		return SUCCESS;
	case INVALID_ARGUMENT:
		*text = "HSA_STATUS_ERROR_INVALID_ARGUMENT: one of the actual arguments does not meet a precondition";
		return SUCCESS;
	case INVALID_ALLOCATION:
		*text = "HSA_STATUS_ERROR_INVALID_ALLOCATION: the requested allocation is not valid";
		return SUCCESS;
	case OUT_OF_RESOURCES:
		*text = "HSA_STATUS_ERROR_OUT_OF_RESOURCES: the runtime failed to allocate the necessary resources";
		return SUCCESS;
	case NOT_INITIALIZED:
		*text = "HSA_STATUS_ERROR_NOT_INITIALIZED: an API other than hsa_init has been invoked before";
		return SUCCESS;
	default:
		return INVALID_ARGUMENT;
	}
}

status_t hsa_system_get_info(uint32_t attribute, void *value)
{
	CALL(hsa_system_get_info);
	const char *dmabuf = getenv("FAKE_HSA_DMABUF");
	switch (attribute) {
	case 0:
		*(uint16_t *)value = 1;
		return SUCCESS;
	case 0x204:
		*(bool *)value = !dmabuf || atoi(dmabuf);
		return SUCCESS;
	default:
		return INVALID_ARGUMENT;
	}
}

status_t hsa_iterate_agents(status_t (*callback)(agent_t, void *), void *data)
{
	CALL(hsa_iterate_agents);
	status_t status = callback((agent_t){CPU}, data);
	for (int i = 0; i < hsa_gpus() && status == SUCCESS; i++)
		status = callback((agent_t){GPU + (unsigned)i}, data);
	return status;
}

status_t hsa_agent_get_info(agent_t agent, uint32_t attribute, void *value)
{
	CALL(hsa_agent_get_info);
	bool gpu = hsa_is_gpu(agent);
	unsigned index = (unsigned)(agent.handle - GPU);
	const char *uuid = getenv("FAKE_HSA_UUID");
	if (!gpu && agent.handle != CPU)
		return INVALID_AGENT;
	switch (attribute) {
	case 0: /* char[64] */
		memset(value, 0, 64);
		strcpy(value, gpu ? "gfx90a" : "Fake CPU");
		return SUCCESS;
	case 17:
		*(uint32_t *)value = gpu;
		return SUCCESS;
	case 0xa006:
		*(uint32_t *)value = (0x40 + index) << 8;
		return SUCCESS;
	case 0xa009: /* char[64] */
		memset(value, 0, 64);
		strcpy(value, gpu ? "Fake Instinct" : "Fake CPU");
		return SUCCESS;
	case 0xa00f:
		*(uint32_t *)value = 0;
		return SUCCESS;
	case 0xa011: /* char[21] */
		if (gpu && (!uuid || atoi(uuid)))
			snprintf(value, 21, "GPU-00fa4e00000000%02x", index);
		else
			strcpy(value, gpu ? "GPU-XX" : "CPU-XX");
		return SUCCESS;
	default:
		return INVALID_ARGUMENT;
	}
}

status_t hsa_amd_agent_iterate_memory_pools(agent_t agent, status_t (*callback)(pool_t, void *), void *data)
{
	CALL(hsa_amd_agent_iterate_memory_pools);
	status_t status = callback((pool_t){FINE + agent.handle}, data);
	if (hsa_is_gpu(agent) && status == SUCCESS)
		status = callback((pool_t){COARSE + agent.handle}, data);
	return status;
}

status_t hsa_amd_memory_pool_get_info(pool_t pool, uint32_t attribute, void *value)
{
	CALL(hsa_amd_memory_pool_get_info);
	switch (attribute) {
	case 0:
		*(uint32_t *)value = 0;
		return SUCCESS;
	case 1:
		*(uint32_t *)value = pool.handle < FINE ? 4 : 2;
		return SUCCESS;
	case 2:
		*(size_t *)value = (size_t)16 << 30;
		return SUCCESS;
	case 5:
		*(bool *)value = true;
		return SUCCESS;
	case 6:
		*(size_t *)value = GRANULE;
		return SUCCESS;
	default:
		return INVALID_ARGUMENT;
	}
}

/* Every GPU can get access to every other's memory. */
status_t hsa_amd_agent_memory_pool_get_info(agent_t agent, pool_t pool, uint32_t attribute, void *value)
{
	CALL(hsa_amd_agent_memory_pool_get_info);
	if (attribute)
		return INVALID_ARGUMENT;
	*(uint32_t *)value = pool.handle == COARSE + agent.handle ? 1 : 2;
	return SUCCESS;
}

status_t hsa_amd_memory_pool_allocate(pool_t pool, size_t len, uint32_t flags, void **ptr)
{
	CALL(hsa_amd_memory_pool_allocate);
	unsigned index = (unsigned)(pool.handle - COARSE - GPU);
	if (!len || flags || !ptr || index >= (unsigned)hsa_gpus())
		return INVALID_ARGUMENT;
	fake_lock();
	struct fake_block *b = fake_new(len, 4096, (int)index, 1 << index);
	fake_unlock();
	if (!b)
		return OUT_OF_RESOURCES;
	*ptr = (void *)(uintptr_t)b->va;
	return SUCCESS;
}

status_t hsa_amd_memory_pool_free(void *ptr)
{
	CALL(hsa_amd_memory_pool_free);
	fake_lock();
	struct fake_block *b = find(ptr);
	if (!b || b->va != (uint64_t)(uintptr_t)ptr || b->imported) {
		fake_unlock();
		return ptr ? INVALID_ALLOCATION : SUCCESS;
	}
	uint64_t base = b->va;
	struct notice *due = NULL;
	for (struct notice **p = &notices; *p;) {
		struct notice *n = *p;
		if (n->base == base) {
			*p = n->next;
			n->next = due;
			due = n;
		} else {
			p = &n->next;
		}
	}
	fake_unlock();
	/* Called before the memory is freed, and without the lock. */
	while (due) {
		struct notice *n = due;
		due = n->next;
		n->callback(n->ptr, n->data);
		free(n);
	}
	fake_lock();
	fake_delete(b, false);
	fake_unlock();
	return SUCCESS;
}

status_t hsa_amd_agents_allow_access(uint32_t count, const agent_t *agents, const uint32_t *flags, const void *ptr)
{
	CALL(hsa_amd_agents_allow_access);
	fake_lock();
	struct fake_block *b = find(ptr);
	status_t status = b && count && agents && !flags ? SUCCESS : INVALID_ARGUMENT;
	if (status == SUCCESS) {
		b->kind = 1 << b->device;
		for (uint32_t i = 0; i < count; i++)
			if (hsa_is_gpu(agents[i]))
				b->kind |= 1 << (agents[i].handle - GPU);
	}
	fake_unlock();
	return status;
}

#ifndef FAKE_OLD
status_t hsa_amd_register_deallocation_callback(void *ptr, void (*callback)(void *, void *), void *data)
{
	CALL(hsa_amd_register_deallocation_callback);
	if (!ptr || !callback)
		return INVALID_ARGUMENT;
	fake_lock();
	struct fake_block *b = find(ptr);
	struct notice *n = b && !b->imported ? malloc(sizeof *n) : NULL;
	if (n) {
		*n = (struct notice){b->va, ptr, data, callback, notices};
		notices = n;
	}
	fake_unlock();
	return n ? SUCCESS : INVALID_ALLOCATION;
}
#endif

status_t hsa_amd_pointer_info(const void *ptr, pointer_info_t *info, void *(*alloc)(size_t), uint32_t *count,
			      agent_t **accessible)
{
	CALL(hsa_amd_pointer_info);
	if (!ptr || !info || !info->size)
		return INVALID_ARGUMENT;
	pointer_info_t out = {0};
	out.size = info->size < sizeof out ? info->size : (uint32_t)sizeof out;
	fake_lock();
	struct fake_block *b = find(ptr);
	struct lock *l = hsa_find_lock((uint64_t)(uintptr_t)ptr);
	if (b) {
		out.type = b->imported ? TYPE_IPC : TYPE_HSA;
		out.agent_base = out.host_base = (void *)(uintptr_t)b->va;
		out.len = b->imported ? (size_t)b->kind * GRANULE : b->len;
		out.owner.handle = GPU + (unsigned)b->device;
		out.global_flags = 4;
	} else if (l) {
		out.type = TYPE_LOCKED;
		out.agent_base = (void *)(uintptr_t)l->agent;
		out.host_base = (void *)(uintptr_t)l->host;
		out.len = l->len;
		out.owner.handle = CPU;
		out.global_flags = 2;
	}
	if ((b || l) && alloc && count && accessible) {
		*accessible = alloc(sizeof **accessible * (unsigned)(hsa_gpus() + 1));
		*count = 0;
		for (int i = 0; i < hsa_gpus(); i++)
			if (l || hsa_reaches((agent_t){GPU + (unsigned)i}, b))
				(*accessible)[(*count)++].handle = GPU + (unsigned)i;
	}
	fake_unlock();
	memcpy(info, &out, out.size);
	return SUCCESS;
}

status_t hsa_amd_ipc_memory_create(void *ptr, size_t len, ipc_t *handle)
{
	CALL(hsa_amd_ipc_memory_create);
	fake_lock();
	struct fake_block *b = find(ptr);
	status_t status = INVALID_ARGUMENT;
	if (b && handle && !b->imported && b->va == (uint64_t)(uintptr_t)ptr && b->len == len) {
		*handle = (ipc_t){{0xfa4e, (uint32_t)getpid(), (uint32_t)b->fd, (uint32_t)b->device}};
		status = SUCCESS;
	}
	fake_unlock();
	return status;
}

status_t hsa_amd_ipc_memory_attach(const ipc_t *handle, size_t len, uint32_t count, const agent_t *agents, void **ptr)
{
	CALL(hsa_amd_ipc_memory_attach);
	if (!handle || handle->handle[0] != 0xfa4e || !ptr || (count && !agents))
		return INVALID_ARGUMENT;
	int fd = fake_fetch_fd((int)handle->handle[1], (int)handle->handle[2]);
	if (fd < 0)
		return INVALID_ARGUMENT;
	/* Like the real runtime it maps the whole allocation, independent of the named length. */
	uint64_t real = (uint64_t)lseek(fd, 0, SEEK_END);
	fake_lock();
	struct fake_block *b = fake_map(fd, 0, real, 0, (int)handle->handle[3], (int)(len / GRANULE));
	if (b)
		b->imported = true;
	fake_unlock();
	close(fd);
	if (!b)
		return OUT_OF_RESOURCES;
	*ptr = (void *)(uintptr_t)b->va;
	return SUCCESS;
}

status_t hsa_amd_ipc_memory_detach(void *ptr)
{
	CALL(hsa_amd_ipc_memory_detach);
	fake_lock();
	struct fake_block *b = find(ptr);
	bool good = b && b->imported && b->va == (uint64_t)(uintptr_t)ptr;
	if (good)
		fake_delete(b, false);
	fake_unlock();
	return good ? SUCCESS : INVALID_ARGUMENT;
}

#ifndef FAKE_OLD
static status_t export_dmabuf(const void *ptr, size_t len, int *fd, uint64_t *offset)
{
	status_t status = INVALID_ALLOCATION;
	const char *dmabuf = getenv("FAKE_HSA_DMABUF");
	if (dmabuf && !atoi(dmabuf))
		return ERROR;
	fake_lock();
	struct fake_block *b = find(ptr);
	if (b && b->imported)
		abort();
	if (b && (uint64_t)(uintptr_t)ptr - b->va + len <= b->len) {
		int copy = fake_dmabuf(b);
		status = copy < 0 ? OUT_OF_RESOURCES : SUCCESS;
		if (copy >= 0) {
			*fd = copy;
			*offset = (uint64_t)(uintptr_t)ptr - b->va;
		}
	}
	fake_unlock();
	return status;
}

status_t hsa_amd_portable_export_dmabuf(const void *ptr, size_t len, int *fd, uint64_t *offset)
{
	CALL(hsa_amd_portable_export_dmabuf);
	return fd && offset ? export_dmabuf(ptr, len, fd, offset) : INVALID_ARGUMENT;
}

status_t hsa_amd_portable_export_dmabuf_v2(const void *ptr, size_t len, int *fd, uint64_t *offset, uint64_t flags)
{
	CALL(hsa_amd_portable_export_dmabuf_v2);
	return fd && offset && flags <= 1 ? export_dmabuf(ptr, len, fd, offset) : INVALID_ARGUMENT;
}
#endif
