/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A fake of AMD's HSA runtime, libhsa-runtime64.so.1. Like the real one it answers nothing before hsa_init; agents reach
 * memory only as they were allowed to, and host memory only where it was locked, at another address; an IPC handle is of
 * a whole allocation, and the length of an attach is believed; a dma-buf of imported memory is a crash.
 *
 * Asynchronous copies run one per look at a signal, the youngest that may run first: what is not ordered by signals
 * comes out in the wrong order.
 *
 * -DFAKE_OLD: a runtime without dma-bufs and without notices of freed memory.
 *
 * FAKE_HSA_DMABUF=0: a kernel without dma-buf export. FAKE_HSA_UUID=0: GPUs without a UUID. A fault of
 * `hsa_copy_engine` is the value that a copy which was started leaves in its signal.
 */
#define _GNU_SOURCE
#include "fakemem.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

enum {
	SUCCESS = 0,
	ERROR = 0x1000,
	INVALID_ARGUMENT = 0x1001,
	INVALID_ALLOCATION = 0x1003,
	INVALID_AGENT = 0x1004,
	INVALID_SIGNAL = 0x1006,
	OUT_OF_RESOURCES = 0x1008,
	NOT_INITIALIZED = 0x100b
};

enum { TYPE_UNKNOWN, TYPE_HSA, TYPE_LOCKED, TYPE_GRAPHICS, TYPE_IPC };

typedef uint32_t status_t;
typedef struct {
	uint64_t handle;
} agent_t, pool_t, sig_t;
typedef struct {
	uint32_t handle[8];
} ipc_t;
typedef struct {
	uint32_t size, type;
	void *agent_base, *host_base;
	size_t len;
	void *user_data;
	agent_t owner;
	uint32_t global_flags;
} pointer_info_t;

/* Agents: CPU 1, GPUs from 0x100. Pools: 0x1000 + agent for bulk data, 0x2000 + agent fine-grained. */
#define CPU 1u
#define GPU 0x100u
#define COARSE 0x1000u
#define FINE 0x2000u
#define GRANULE 4096u

API status_t hsa_init(void);
API status_t hsa_shut_down(void);
API status_t hsa_status_string(status_t status, const char **text);
API status_t hsa_system_get_info(uint32_t attribute, void *value);
API status_t hsa_iterate_agents(status_t (*callback)(agent_t, void *), void *data);
API status_t hsa_agent_get_info(agent_t agent, uint32_t attribute, void *value);
API status_t hsa_memory_copy(void *to, const void *from, size_t len);
API status_t hsa_signal_create(int64_t initial, uint32_t count, const agent_t *consumers, sig_t *signal);
API status_t hsa_signal_destroy(sig_t signal);
API int64_t hsa_signal_load_scacquire(sig_t signal);
API void hsa_signal_store_screlease(sig_t signal, int64_t value);
API int64_t hsa_signal_wait_scacquire(sig_t signal, uint32_t condition, int64_t value, uint64_t timeout, uint32_t state);
API status_t hsa_amd_agent_iterate_memory_pools(agent_t agent, status_t (*callback)(pool_t, void *), void *data);
API status_t hsa_amd_memory_pool_get_info(pool_t pool, uint32_t attribute, void *value);
API status_t hsa_amd_agent_memory_pool_get_info(agent_t agent, pool_t pool, uint32_t attribute, void *value);
API status_t hsa_amd_memory_pool_allocate(pool_t pool, size_t len, uint32_t flags, void **ptr);
API status_t hsa_amd_memory_pool_free(void *ptr);
API status_t hsa_amd_agents_allow_access(uint32_t count, const agent_t *agents, const uint32_t *flags, const void *ptr);
API status_t hsa_amd_memory_async_copy(void *to, agent_t to_agent, const void *from, agent_t from_agent, size_t len,
				       uint32_t dep_count, const sig_t *deps, sig_t completion);
API status_t hsa_amd_memory_lock(void *host, size_t len, agent_t *agents, int count, void **agent_ptr);
API status_t hsa_amd_memory_unlock(void *host);
API status_t hsa_amd_pointer_info(const void *ptr, pointer_info_t *info, void *(*alloc)(size_t), uint32_t *count,
				  agent_t **accessible);
API status_t hsa_amd_ipc_memory_create(void *ptr, size_t len, ipc_t *handle);
API status_t hsa_amd_ipc_memory_attach(const ipc_t *handle, size_t len, uint32_t count, const agent_t *agents, void **ptr);
API status_t hsa_amd_ipc_memory_detach(void *ptr);
#ifndef FAKE_OLD
API status_t hsa_amd_register_deallocation_callback(void *ptr, void (*callback)(void *, void *), void *data);
API status_t hsa_amd_portable_export_dmabuf(const void *ptr, size_t len, int *fd, uint64_t *offset);
API status_t hsa_amd_portable_export_dmabuf_v2(const void *ptr, size_t len, int *fd, uint64_t *offset, uint64_t flags);
#endif

static int users;

/* Notices of freed memory, and copies that were started. */
struct notice {
	uint64_t base;
	void *ptr, *data;
	void (*callback)(void *, void *);
	struct notice *next;
};
struct copy {
	uint64_t to, from, len;
	sig_t dep, done;
	struct copy *next;
};
struct lock {
	uint64_t host, agent, len;
	struct lock *next;
};
static struct notice *notices;
static struct copy *copies; /* youngest first */
static struct lock *locks;

static int gpus(void)
{
	return fake_devices(2);
}

static bool is_gpu(agent_t a)
{
	return a.handle >= GPU && a.handle < GPU + (uint64_t)gpus();
}

/* Allocations remember in `kind` which GPUs reach them; imports how many granules the importer claimed. */
static bool reaches(agent_t a, const struct fake_block *b)
{
	return b->imported || b->kind >> (a.handle - GPU) & 1;
}

static struct fake_block *find(const void *ptr)
{
	return fake_find((uint64_t)(uintptr_t)ptr);
}

status_t hsa_init(void)
{
	FAKE_FAULT(hsa_init);
	if (gpus() == 0 && getenv("FAKE_HSA_NO_KFD"))
		return OUT_OF_RESOURCES;
	users++;
	return SUCCESS;
}

status_t hsa_shut_down(void)
{
	FAKE_FAULT(hsa_shut_down);
	if (!users)
		return NOT_INITIALIZED;
	users--;
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

#define CALL(name)                                                                                                     \
	FAKE_FAULT(name);                                                                                              \
	if (!users)                                                                                                    \
	return NOT_INITIALIZED

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
	for (int i = 0; i < gpus() && status == SUCCESS; i++)
		status = callback((agent_t){GPU + (unsigned)i}, data);
	return status;
}

status_t hsa_agent_get_info(agent_t agent, uint32_t attribute, void *value)
{
	CALL(hsa_agent_get_info);
	bool gpu = is_gpu(agent);
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
	if (is_gpu(agent) && status == SUCCESS)
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

/* Every GPU may be allowed into every other's memory. */
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
	if (!len || flags || !ptr || index >= (unsigned)gpus())
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
	/* Before the memory goes, and under no lock. */
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
			if (is_gpu(agents[i]))
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

status_t hsa_amd_memory_lock(void *host, size_t len, agent_t *agents, int count, void **agent_ptr)
{
	CALL(hsa_amd_memory_lock);
	if (!host || !len || !agent_ptr || !agents != !count)
		return INVALID_ARGUMENT;
	struct lock *l = malloc(sizeof *l);
	if (!l)
		return OUT_OF_RESOURCES;
	/* An address that is good for agents only. */
	uint64_t within = (uint64_t)(uintptr_t)host & 4095;
	uint64_t at = fake_reserve((len + within + 4095) & ~(uint64_t)4095, 4096);
	fake_lock();
	*l = (struct lock){(uint64_t)(uintptr_t)host, at + within, len, locks};
	locks = l;
	fake_unlock();
	*agent_ptr = (void *)(uintptr_t)l->agent;
	return SUCCESS;
}

status_t hsa_amd_memory_unlock(void *host)
{
	CALL(hsa_amd_memory_unlock);
	fake_lock();
	struct lock **p = &locks, *found;
	while (*p && (*p)->host != (uint64_t)(uintptr_t)host)
		p = &(*p)->next;
	found = *p;
	if (found) {
		*p = found->next;
		uint64_t within = found->agent & 4095;
		fake_unreserve(found->agent - within, (found->len + within + 4095) & ~(uint64_t)4095);
		free(found);
	}
	fake_unlock();
	return found ? SUCCESS : INVALID_ARGUMENT;
}

static struct lock *find_lock(uint64_t at)
{
	for (struct lock *l = locks; l; l = l->next)
		if ((at >= l->host && at - l->host < l->len) || (at >= l->agent && at - l->agent < l->len))
			return l;
	return NULL;
}

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
	struct lock *l = find_lock((uint64_t)(uintptr_t)ptr);
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
		*accessible = alloc(sizeof **accessible * (unsigned)(gpus() + 1));
		*count = 0;
		for (int i = 0; i < gpus(); i++)
			if (l || reaches((agent_t){GPU + (unsigned)i}, b))
				(*accessible)[(*count)++].handle = GPU + (unsigned)i;
	}
	fake_unlock();
	memcpy(info, &out, out.size);
	return SUCCESS;
}

/* Where an agent's address leads: device memory to itself, locked memory to the host's address; 0: nowhere. */
static uint64_t resolve(uint64_t at, uint64_t len, agent_t one, agent_t other)
{
	struct fake_block *b = fake_find(at);
	if (b) {
		bool allowed = at + len <= b->va + b->len;
		if (is_gpu(one))
			allowed = allowed && reaches(one, b);
		if (is_gpu(other))
			allowed = allowed && reaches(other, b);
		return allowed ? at : 0;
	}
	for (struct lock *l = locks; l; l = l->next)
		if (at >= l->agent && at - l->agent < l->len)
			return at - l->agent + len <= l->len ? l->host + (at - l->agent) : 0;
	return 0;
}

status_t hsa_memory_copy(void *to, const void *from, size_t len)
{
	CALL(hsa_memory_copy);
	fake_lock();
	bool done = fake_copy((uint64_t)(uintptr_t)to, (uint64_t)(uintptr_t)from, len);
	fake_unlock();
	return done ? SUCCESS : INVALID_ARGUMENT;
}

status_t hsa_signal_create(int64_t initial, uint32_t count, const agent_t *consumers, sig_t *signal)
{
	CALL(hsa_signal_create);
	int64_t *value = malloc(sizeof *value);
	if (!value || !signal || !count != !consumers)
		return INVALID_ARGUMENT;
	*value = initial;
	signal->handle = (uint64_t)(uintptr_t)value;
	return SUCCESS;
}

static int64_t *value_of(sig_t signal)
{
	return (int64_t *)(uintptr_t)signal.handle;
}

status_t hsa_signal_destroy(sig_t signal)
{
	CALL(hsa_signal_destroy);
	fake_lock();
	for (struct copy *c = copies; c; c = c->next)
		if (c->dep.handle == signal.handle || c->done.handle == signal.handle)
			abort(); /* an engine would use freed memory */
	fake_unlock();
	free(value_of(signal));
	return SUCCESS;
}

void hsa_signal_store_screlease(sig_t signal, int64_t value)
{
	fake_lock();
	*value_of(signal) = value;
	fake_unlock();
}

/* The youngest copy that may run. */
static void run_one(void)
{
	for (struct copy **p = &copies; *p; p = &(*p)->next) {
		struct copy *c = *p;
		if (c->dep.handle && *value_of(c->dep) != 0)
			continue;
		int broken = fake_fault("hsa_copy_engine");
		if (broken)
			*value_of(c->done) = broken;
		else if (fake_copy(c->to, c->from, c->len))
			*value_of(c->done) -= 1;
		else
			*value_of(c->done) = -1;
		*p = c->next;
		free(c);
		return;
	}
}

int64_t hsa_signal_load_scacquire(sig_t signal)
{
	fake_lock();
	int64_t value = *value_of(signal);
	run_one();
	fake_unlock();
	return value;
}

int64_t hsa_signal_wait_scacquire(sig_t signal, uint32_t condition, int64_t value, uint64_t timeout, uint32_t state)
{
	(void)timeout;
	(void)state;
	for (int i = 0; i < 100; i++) {
		int64_t now = hsa_signal_load_scacquire(signal);
		if (condition == 2 && now < value)
			return now;
	}
	return hsa_signal_load_scacquire(signal);
}

status_t hsa_amd_memory_async_copy(void *to, agent_t to_agent, const void *from, agent_t from_agent, size_t len,
				   uint32_t dep_count, const sig_t *deps, sig_t completion)
{
	CALL(hsa_amd_memory_async_copy);
	if (!to || !from || !completion.handle || dep_count > 1)
		return INVALID_ARGUMENT;
	if (!len)
		return SUCCESS; /* and the signal stays as it is */
	fake_lock();
	uint64_t t = resolve((uint64_t)(uintptr_t)to, len, to_agent, from_agent);
	uint64_t f = resolve((uint64_t)(uintptr_t)from, len, to_agent, from_agent);
	struct copy *c = t && f ? malloc(sizeof *c) : NULL;
	if (c) {
		*c = (struct copy){t, f, len, dep_count ? deps[0] : (sig_t){0}, completion, copies};
		copies = c;
	}
	fake_unlock();
	return c ? SUCCESS : INVALID_AGENT; /* a real engine faults */
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
	/* Like the real one: what is mapped is the allocation, whatever length was named. */
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
