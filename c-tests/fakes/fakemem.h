/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Device memory for the fake drivers. The program gets addresses that it cannot access: a stray load or store faults at
 * once. The fake itself copies through an alias. An allocation is a memory file, so that another process can map it as
 * well, at another address and also without access.
 *
 * Faults: the environment variable FAKE_FAULT, read at each call, lists `function=code` or `function=code@n` (only the
 * n-th call from now on, counted per function), separated by commas. A function asks FAKE_FAULT(name) first.
 * FAKE_HANG=function@FILE: a call that finds FILE removes it, and returns when FILE exists again.
 */
#ifndef FAKEMEM_H
#define FAKEMEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fake_block {
	uint64_t va, len; /* the program's addresses */
	char *alias;	  /* the fake's own mapping, for copies */
	int fd;		  /* the memory file, owned */
	uint64_t id;	  /* unique in a process for ever */
	int device;
	int kind;	 /* for use by the driver */
	bool imported;
	struct fake_block *next;
};

/* `len` bytes of device memory at a fresh address with this alignment (a power of two); NULL without memory. */
struct fake_block *fake_new(uint64_t len, uint64_t align, int device, int kind);

/* Maps the memory file `fd` (duplicated) as device memory; at `va` if that is not 0, over the reservation there. */
struct fake_block *fake_map(int fd, uint64_t offset, uint64_t len, uint64_t va, int device, int kind);

/* Reserves addresses without access, for later mappings. */
uint64_t fake_reserve(uint64_t len, uint64_t align);
void fake_unreserve(uint64_t va, uint64_t len);

/* Unmaps and frees a block. `keep_reserved`: its addresses stay reserved. */
void fake_delete(struct fake_block *b, bool keep_reserved);

/* The block that `va` lies in, or NULL. */
struct fake_block *fake_find(uint64_t va);

/* Copies; either side may be device memory, of one block or of adjacent ones, or host memory. False: a range of device
 * memory ends within the copy. */
bool fake_copy(uint64_t to, uint64_t from, uint64_t len);

/* Makes a real dma-buf over pages of a memory file, if the kernel can (/dev/udmabuf), so that an RDMA driver can import
 * it; else returns -1. */
int fake_udmabuf(int fd, uint64_t offset, uint64_t len);
/* The same for a whole block; returns its file if no dma-buf can be made. */
int fake_dmabuf(const struct fake_block *b);

/* Opens a file of another process, by its descriptor number, as IPC handles name it; -1 with errno. */
int fake_fetch_fd(int pid, int fd);

/* The code that FAKE_FAULT names for this call, or 0. */
int fake_fault(const char *function);

/* The number of driver calls by this thread. For programs, which find it by dlsym(). */
__attribute__((visibility("default"))) int fake_calls_of_thread(void);

/* The number of devices: FAKE_DEVICES, or `normally` if it is not set. */
int fake_devices(int normally);

#define FAKE_FAULT(name)                                                                                               \
	do {                                                                                                           \
		int fault_ = fake_fault(#name);                                                                        \
		if (fault_)                                                                                            \
			return fault_;                                                                                 \
	} while (0)

/* The driver may be called from any thread. */
void fake_lock(void);
void fake_unlock(void);

#endif
