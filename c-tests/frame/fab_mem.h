/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Memory of every kind, of hosts and devices. */
#ifndef FAB_MEM_H
#define FAB_MEM_H

#include "fab_data.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KIND_MALLOC, KIND_MEM_ALLOC, KIND_MEMFD, EVERYWHERE, KIND_UDMABUF = EVERYWHERE, KIND_HEAP, KIND_VGEM, KINDS };
extern const struct memkind memkinds[KINDS];
/* Kinds of device memory, of the interfaces that TEST_IFACES names ("cuda,rocr"). A variable names them because the process
 * that lists them forks later, and a driver that it had opened would not survive the fork. */
enum { DEVICE_KINDS = 32 };
extern const struct memkind *device_kinds[DEVICE_KINDS];
size_t device_kinds_list(void);

void mem_new(struct node *n, struct mem *m, const struct memkind *kind, size_t len);
/* Registers [offset, offset+len) of m; returns the library's result. require: GDRFAB_PATH_* or 0. */
int mem_try_register(struct node *n, struct mem *m, size_t offset, size_t len, uint64_t access, uint64_t require,
		     uint64_t requested_key);
void mem_register(struct node *n, struct mem *m, size_t offset, size_t len, uint64_t access, uint64_t require);
gdrfab_mr_info mr_query(gdrfab_mr *mr);
void mem_unregister(struct mem *m);
void mem_end(struct node *n, struct mem *m);
/* The number of devices of an interface; skips the claim if the interface cannot be used. */
uint32_t device_count(struct node *n, uint32_t iface);
/* The descriptor for local operations; NULL if the memory is not registered. */
void *mem_desc(const struct mem *m);
/* The descriptor that an operation needs: device memory always has one, host memory only if the provider asks for it. */
void *mem_needed_desc(struct node *n, const struct mem *m);

/* Copy bytes into and out of memory of any kind. */
void mem_write(struct mem *m, size_t offset, const void *from, size_t len);
void mem_read(struct mem *m, size_t offset, void *to, size_t len);
/* As fill() and check_filled(), for the bytes from offset on. */
void mem_fill(struct mem *m, size_t offset, size_t len, size_t position, uint32_t seed);
void mem_check(const char *file, int line, const char *what, struct mem *m, size_t offset, size_t len, size_t position,
	       uint32_t seed);
#define CHECK_MEM(what, m, offset, len, position, seed)                                                                \
	mem_check(__FILE__, __LINE__, what, m, offset, len, position, seed)

void mem_publish(struct node *n, const struct mem *m);
struct remote mem_fetch(struct node *n);
/* Registers host memory that the claim has allocated by itself, and sends its key and address to the other side's mem_fetch(). */
gdrfab_mr *host_publish(struct node *n, void *at, size_t len, uint64_t access);

#ifdef __cplusplus
}
#endif
#endif
