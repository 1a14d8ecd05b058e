/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A fake of AWS Neuron's runtime, libnrt.so.1. Like the real one it works between nrt_init and nrt_close only, and not in
 * a child; addresses come from device memory mapped when it was initialised (NEURON_RT_MAP_HBM=0 maps none), of which
 * two cores share one; nrt_memcpy_to_device checks nothing; a dma-buf must cover whole pages of one tensor.
 *
 * -DFAKE_OLD: a runtime without nrt_get_hbm_mmap_va and nrt_get_dmabuf_fd_v2. The older dma-buf begins at the tensor.
 */
#define _GNU_SOURCE
#include "fakemem.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

enum {
	NRT_SUCCESS = 0,
	NRT_FAILURE = 1,
	NRT_INVALID = 2,
	NRT_INVALID_HANDLE = 3,
	NRT_RESOURCE = 4,
	NRT_UNINITIALIZED = 13,
	NRT_CLOSED = 14
};

#define MAX_CORES 64
#define HBM_BYTES (1ull << 30)
#define PAGE 4095ull

typedef struct nrt_tensor {
	struct fake_block *block; /* NULL: an empty tensor */
	size_t size;
	int core;
} nrt_tensor_t;

int nrt_init(int framework, const char *fw_version, const char *fal_version);
void nrt_close(void);
int nrt_get_total_nc_count(uint32_t *count);
int nrt_get_visible_nc_count(uint32_t *count);
const char *nrt_get_status_as_str(int status);
int nrt_tensor_allocate(int placement, int core, size_t size, const char *name, nrt_tensor_t **tensor);
int nrt_tensor_allocate_empty(const char *name, nrt_tensor_t **tensor);
void nrt_tensor_free(nrt_tensor_t **tensor);
void *nrt_tensor_get_va(const nrt_tensor_t *tensor);
size_t nrt_tensor_get_size(const nrt_tensor_t *tensor);
int nrt_tensor_read(const nrt_tensor_t *tensor, void *buf, size_t offset, size_t size);
int nrt_tensor_write(nrt_tensor_t *tensor, const void *buf, size_t offset, size_t size);
int nrt_memcpy_to_device(void *dest, const void *src, size_t size);
int nrt_get_dmabuf_fd(uint64_t va, uint64_t size, int *fd);
#ifndef FAKE_OLD
int nrt_get_hbm_mmap_va(int device, int hbm, void **addr, size_t *size);
int nrt_get_dmabuf_fd_v2(uint64_t va, uint64_t size, int *fd, uint64_t *offset);
#endif

static enum { START, RUNNING, CLOSED } state;
static pid_t owner;
static uint64_t hbm[MAX_CORES];

static int cores(void)
{
	int n = fake_devices(2);
	return n < 0 ? 0 : n > MAX_CORES ? MAX_CORES : n;
}

static int gate(void)
{
	switch (state) {
	case START:
		return NRT_UNINITIALIZED;
	case CLOSED:
		return NRT_CLOSED;
	default:
		return getpid() == owner ? NRT_SUCCESS : NRT_FAILURE;
	}
}

#define GATE(name)                                                                                                     \
	do {                                                                                                           \
		FAKE_FAULT(name);                                                                                      \
		int gate_ = gate();                                                                                    \
		if (gate_)                                                                                             \
			return gate_;                                                                                  \
	} while (0)

API int nrt_init(int framework, const char *fw_version, const char *fal_version)
{
	FAKE_FAULT(nrt_init);
	if (framework < 1 || !fw_version || !fal_version || cores() == 0)
		return NRT_INVALID;
	if (state == RUNNING)
		return gate();
	const char *map = getenv("NEURON_RT_MAP_HBM");
	for (int core = 0; core < cores(); core += 2)
		hbm[core / 2] = map && strcmp(map, "0") == 0 ? 0 : fake_reserve(HBM_BYTES, 1 << 21);
	state = RUNNING;
	owner = getpid();
	return NRT_SUCCESS;
}

API void nrt_close(void)
{
	if (gate() == NRT_SUCCESS)
		state = CLOSED;
}

API int nrt_get_total_nc_count(uint32_t *count)
{
	FAKE_FAULT(nrt_get_total_nc_count);
	*count = (uint32_t)cores();
	return *count ? NRT_SUCCESS : NRT_FAILURE;
}

API int nrt_get_visible_nc_count(uint32_t *count)
{
	FAKE_FAULT(nrt_get_visible_nc_count);
	*count = (uint32_t)cores();
	return NRT_SUCCESS;
}

API const char *nrt_get_status_as_str(int status)
{
	switch (status) {
	case NRT_SUCCESS:
		return "NRT_SUCCESS";
	case NRT_FAILURE:
		return "NRT_FAILURE";
	case NRT_INVALID:
		return "NRT_INVALID";
	case NRT_INVALID_HANDLE:
		return "NRT_INVALID_HANDLE";
	case NRT_RESOURCE:
		return "NRT_RESOURCE";
	case NRT_UNINITIALIZED:
		return "NRT_UNINITIALIZED";
	case NRT_CLOSED:
		return "NRT_CLOSED";
	default:
		return "UNKNOWN";
	}
}

API int nrt_tensor_allocate_empty(const char *name, nrt_tensor_t **tensor)
{
	(void)name;
	GATE(nrt_tensor_allocate_empty);
	if (!tensor)
		return NRT_INVALID;
	*tensor = calloc(1, sizeof **tensor);
	return *tensor ? NRT_SUCCESS : NRT_RESOURCE;
}

/* The first free range in the memory of a core; freed addresses are used again. */
static uint64_t place(int core, uint64_t len)
{
	uint64_t start = hbm[core / 2], end = start + HBM_BYTES, at = start;
	for (uint64_t page = at; page < end && page - at < len; page += PAGE + 1) {
		struct fake_block *b = fake_find(page);
		if (b) {
			at = b->va + b->len;
			page = at - (PAGE + 1);
		}
	}
	return end - at >= len ? at : 0;
}

API int nrt_tensor_allocate(int placement, int core, size_t size, const char *name, nrt_tensor_t **tensor)
{
	GATE(nrt_tensor_allocate);
	if (placement != 0 || core < 0 || core >= cores() || !size || !tensor)
		return NRT_INVALID;
	int status = nrt_tensor_allocate_empty(name, tensor);
	if (status)
		return status;
	uint64_t len = (size + PAGE) & ~PAGE;
	int fd = memfd_create("fake-neuron-memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	fake_lock();
	if (fd >= 0 && ftruncate(fd, (off_t)len) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0) {
		uint64_t va = hbm[core / 2] ? place(core, len) : 0;
		if (va || !hbm[core / 2])
			(*tensor)->block = fake_map(fd, 0, len, va, core, va != 0);
	}
	fake_unlock();
	if (fd >= 0)
		close(fd);
	(*tensor)->size = size;
	(*tensor)->core = core;
	if ((*tensor)->block)
		return NRT_SUCCESS;
	free(*tensor);
	*tensor = NULL;
	return NRT_RESOURCE;
}

API void nrt_tensor_free(nrt_tensor_t **tensor)
{
	if (!tensor || !*tensor)
		return;
	fake_lock();
	if ((*tensor)->block)
		fake_delete((*tensor)->block, (*tensor)->block->kind);
	fake_unlock();
	free(*tensor);
	*tensor = NULL;
}

API void *nrt_tensor_get_va(const nrt_tensor_t *tensor)
{
	if (fake_fault("nrt_tensor_get_va") || gate() || !tensor->block || !tensor->block->kind)
		return NULL;
	return (void *)(uintptr_t)tensor->block->va;
}

API size_t nrt_tensor_get_size(const nrt_tensor_t *tensor)
{
	return tensor->size;
}

static bool inside(const nrt_tensor_t *tensor, size_t offset, size_t size)
{
	return tensor && tensor->block && offset <= tensor->size && size <= tensor->size - offset;
}

API int nrt_tensor_read(const nrt_tensor_t *tensor, void *buf, size_t offset, size_t size)
{
	GATE(nrt_tensor_read);
	if (!inside(tensor, offset, size))
		return NRT_INVALID;
	memcpy(buf, tensor->block->alias + offset, size);
	return NRT_SUCCESS;
}

API int nrt_tensor_write(nrt_tensor_t *tensor, const void *buf, size_t offset, size_t size)
{
	GATE(nrt_tensor_write);
	if (!inside(tensor, offset, size))
		return NRT_INVALID;
	memcpy(tensor->block->alias + offset, buf, size);
	return NRT_SUCCESS;
}

API int nrt_memcpy_to_device(void *dest, const void *src, size_t size)
{
	FAKE_FAULT(nrt_memcpy_to_device);
	fake_lock();
	fake_copy((uint64_t)(uintptr_t)dest, (uint64_t)(uintptr_t)src, size);
	fake_unlock();
	return NRT_SUCCESS;
}

static int dmabuf(uint64_t va, uint64_t size, int *fd, uint64_t *offset)
{
	int status = NRT_INVALID;
	if ((va | size) & PAGE || !size || !fd)
		return status;
	fake_lock();
	struct fake_block *b = fake_find(va);
	if (b && size <= b->va + b->len - va) {
		*fd = fake_dmabuf(b);
		*offset = va - b->va;
		status = *fd < 0 ? NRT_RESOURCE : NRT_SUCCESS;
	}
	fake_unlock();
	return status;
}

API int nrt_get_dmabuf_fd(uint64_t va, uint64_t size, int *fd)
{
	uint64_t offset = 0;
	GATE(nrt_get_dmabuf_fd);
	int status = dmabuf(va, size, fd, &offset);
	if (status == NRT_SUCCESS && offset) {
		close(*fd);
		status = NRT_INVALID;
	}
	return status;
}

#ifndef FAKE_OLD
API int nrt_get_dmabuf_fd_v2(uint64_t va, uint64_t size, int *fd, uint64_t *offset)
{
	GATE(nrt_get_dmabuf_fd_v2);
	return dmabuf(va, size, fd, offset);
}

API int nrt_get_hbm_mmap_va(int device, int index, void **addr, size_t *size)
{
	GATE(nrt_get_hbm_mmap_va);
	if (device < 0 || device >= (cores() + 1) / 2 || index < 0 || !addr || !size)
		return NRT_INVALID;
	if (index > 0 || !hbm[device])
		return NRT_INVALID_HANDLE;
	*addr = (void *)(uintptr_t)hbm[device];
	*size = HBM_BYTES;
	return NRT_SUCCESS;
}
#endif
