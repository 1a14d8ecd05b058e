/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Declarations that the files of the fake libcuda share. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include "fakemem.h"

#define API __attribute__((visibility("default")))

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct fake_context *CUcontext;
typedef struct fake_stream *CUstream;
typedef struct fake_event *CUevent;

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_NO_DEVICE = 100,
	CUDA_ERROR_INVALID_DEVICE = 101,
	CUDA_ERROR_INVALID_CONTEXT = 201,
	CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217,
	CUDA_ERROR_INVALID_HANDLE = 400,
	CUDA_ERROR_NOT_FOUND = 500,
	CUDA_ERROR_NOT_READY = 600,
	CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704,
	CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
	CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
	CUDA_ERROR_NOT_SUPPORTED = 801
};

#define MAX_DEVICES 16
#define PAGE 4096ull
#define GRAIN (2ull << 20) /* the granularity of physical memory and reservations */

struct fake_context {
	CUdevice device;
	unsigned retained; /* 0: not active */
	unsigned flags;
};

/* Kinds of memory. */
enum { PLAIN = 1, SEGMENT, POOLED, OPENED, HOST, MANAGED };

/* Physical memory, with a count of its mappings and handles. */
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
	uint64_t number; /* names the memory in other processes, together with the process number */
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

struct ipc_handle {
	unsigned char bytes[64];
};

/* An allocation or a mapping. Device memory has a block; the program can access host and managed memory. */
struct mem {
	uint64_t va, len;
	int kind;
	CUdevice device;
	uint64_t id; /* BUFFER_ID */
	struct fake_block *block;
	CUcontext context;	 /* NULL: segments and pools */
	struct pool *pool;	 /* POOLED */
	struct phys *phys;	 /* SEGMENT */
	unsigned access;	 /* SEGMENT: bit per device */
	bool registered, opened; /* HOST: not allocated here; POOLED: another process's */
	unsigned users;		 /* OPENED, POOLED: the number of opens */
	unsigned char handle[64];
	struct mem *next;
};

/* All memory that the driver knows, and reserved addresses. */
extern struct mem *cuda_all;
extern struct reservation *cuda_reservations;

/* A block that the copy kernel for lists copies. */
struct unit {
	uint64_t to, from, len, zero;
};

CUresult cuMemFree_v2(CUdeviceptr va);

/* The beginning of each driver function: fault, then lock, then context. */
#define ENTER(name)                                                                                                    \
	do {                                                                                                           \
		FAKE_FAULT(name);                                                                                      \
		if (!cuda_alive())                                                                                     \
			return CUDA_ERROR_NOT_INITIALIZED;                                                             \
	} while (0)
#define NEED_CONTEXT()                                                                                                 \
	do {                                                                                                           \
		if (!cuda_current())                                                                                   \
			return CUDA_ERROR_INVALID_CONTEXT;                                                             \
	} while (0)

bool cuda_alive(void);
int cuda_devices(void);
bool cuda_device_ok(CUdevice d);
CUcontext cuda_current(void);
bool cuda_p2p(CUdevice a, CUdevice b);

/* The memory at `va`, or NULL; under the lock. */
struct mem *cuda_find(uint64_t va);
/* True if all of the range is device memory that `device` may touch; under the lock. */
bool cuda_covers(uint64_t va, uint64_t len, CUdevice device);
/* True if any of the range is; under the lock. */
bool cuda_touches(uint64_t va, uint64_t len);
/* True if the host memory is of one allocation or registration, or wholly unknown; under the lock. */
bool cuda_pinned_alike(uint64_t va, uint64_t len);

/* Under the lock: a new entry, its end, and device memory with one. */
struct mem *cuda_add(uint64_t va, uint64_t len, int kind, CUdevice device, struct fake_block *block);
void cuda_take(struct mem *m);
struct mem *cuda_device_memory(uint64_t len, int kind, CUdevice device);

/* Under the lock: a handle of the memory; the memory that a handle of another process names, if it still exists. */
CUresult cuda_fill(struct handle *h, struct mem *m);
struct mem *cuda_opened(const struct handle *h, int kind);

/* All pools, under the lock. */
extern struct pool *cuda_pools;
/* Drops a user of the pool. */
void cuda_release_pool(struct pool *pool);

/* A copy between memory of any kind, and one launch of the kernel for lists. */
CUresult cuda_copy_any(CUdeviceptr to, CUdeviceptr from, size_t len, CUstream stream);
CUresult cuda_post_list(CUstream stream, uint64_t list, uint64_t count);
/* Runs all posted work of all streams; under the lock. */
void cuda_drain(void);
/* Aborts if a posted copy still uses the range: it would write into the next allocation there. */
void cuda_must_be_idle(const char *who, uint64_t va, uint64_t len);

#endif
