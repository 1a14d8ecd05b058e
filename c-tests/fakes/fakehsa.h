/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Declarations that the files of the fake HSA runtime share. */
#ifndef FAKEHSA_H
#define FAKEHSA_H

#include "fakemem.h"

#include <stdlib.h>
#include <string.h>

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

/* Host memory that agents can access, at another address. */
struct lock {
	uint64_t host, agent, len;
	struct lock *next;
};

/* The number of times that the runtime was initialised. */
extern int hsa_users;

int hsa_gpus(void);
bool hsa_is_gpu(agent_t a);
/* In `kind` allocations keep the GPUs that can access them; imports keep the number of granules that the importer claimed. */
bool hsa_reaches(agent_t a, const struct fake_block *b);
/* The locked host memory that contains an address of the host or of an agent; fake_lock() is held. */
struct lock *hsa_find_lock(uint64_t at);

#define CALL(name)                                                                                                     \
	FAKE_FAULT(name);                                                                                              \
	if (!hsa_users)                                                                                                    \
	return NOT_INITIALIZED

#endif
