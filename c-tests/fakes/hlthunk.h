/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Declarations that the fakes of Gaudi's two libraries share: libSynapse.so takes its memory from libhl-thunk.so, as the real one. */
#ifndef FAKE_HLTHUNK_H
#define FAKE_HLTHUNK_H

#include <stdbool.h>
#include <stdint.h>

#define FAKE_API __attribute__((visibility("default")))

enum { HLTHUNK_DEVICE_GAUDI = 2, HLTHUNK_DEVICE_DONT_CARE = 4, HLTHUNK_DEVICE_GAUDI2 = 5 };

int hlthunk_get_device_count(int name);
int hlthunk_open(int name, const char *busid);
int hlthunk_open_by_module_id(uint32_t module);
int hlthunk_close(int fd);
int hlthunk_get_device_name_from_fd(int fd);
int hlthunk_get_pci_bus_id_from_fd(int fd, char *out, int len);
uint64_t hlthunk_device_memory_alloc(int fd, uint64_t size, uint64_t page_size, bool contiguous, bool shared);
int hlthunk_device_memory_free(int fd, uint64_t handle);
uint64_t hlthunk_device_memory_map(int fd, uint64_t handle, uint64_t hint);
int hlthunk_memory_unmap(int fd, uint64_t va);
int hlthunk_device_memory_export_dmabuf_fd(int fd, uint64_t addr, uint64_t size, uint32_t flags);
int hlthunk_device_mapped_memory_export_dmabuf_fd(int fd, uint64_t addr, uint64_t size, uint64_t offset, uint32_t flags);

/* The DMA engine. One side or both are device memory; false: device memory ends within the copy. */
bool fake_gaudi_copy(uint64_t to, uint64_t from, uint64_t len);

#endif
