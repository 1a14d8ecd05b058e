/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A fake of Gaudi's libhl-thunk.so. Like the real one it opens a device once, exports only from the very address that
 * it mapped, in whole pages and with exactly O_RDWR | O_CLOEXEC, and gives dma-bufs that the CPU cannot map: the
 * descriptor is open for writing only. The memory that it stands for can be read by its path in /proc: "gaudi ADDR SIZE".
 *
 * -DFAKE_OLD: the first generation, whose memory is exported by another call and any address in it.
 */
#define _GNU_SOURCE
#include "hlthunk.h"

#include "fakemem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_DEVICES 8
#define MAX_BLOCKS 256
#define PAGE 4095ull

#ifdef FAKE_OLD
#define GENERATION HLTHUNK_DEVICE_GAUDI
#else
#define GENERATION HLTHUNK_DEVICE_GAUDI2
#endif

/* Descriptors of the open devices; 0: not open. */
static int open_fd[MAX_DEVICES];

/* Allocations by handle, from 1; mapped or not. */
static struct {
	int fd;
	struct fake_block *block;
	bool mapped;
} allocations[MAX_BLOCKS];

static int device_of(int fd)
{
	for (int i = 0; i < MAX_DEVICES; i++)
		if (fd > 0 && open_fd[i] == fd)
			return i;
	return -1;
}

FAKE_API int hlthunk_get_device_count(int name)
{
	FAKE_FAULT(hlthunk_get_device_count);
	int n = fake_devices(2);
	return name != HLTHUNK_DEVICE_DONT_CARE && name != GENERATION ? 0 : n < 0 ? 0 : n > MAX_DEVICES ? MAX_DEVICES : n;
}

static int open_device(int device)
{
	int rc = -EBUSY;
	fake_lock();
	if (!open_fd[device]) {
		int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
		rc = fd < 0 ? -errno : fd;
		if (fd >= 0)
			open_fd[device] = fd;
	}
	fake_unlock();
	return rc;
}

FAKE_API int hlthunk_open(int name, const char *busid)
{
	FAKE_FAULT(hlthunk_open);
	int rc = -ENODEV, n = hlthunk_get_device_count(name);
	if (busid)
		return -EINVAL;
	for (int i = 0; i < n; i++) {
		rc = open_device(i);
		if (rc != -EBUSY)
			break;
	}
	return rc;
}

FAKE_API int hlthunk_open_by_module_id(uint32_t module)
{
	FAKE_FAULT(hlthunk_open_by_module_id);
	if (module >= (uint32_t)hlthunk_get_device_count(HLTHUNK_DEVICE_DONT_CARE))
		return -ENODEV;
	return open_device((int)module);
}

FAKE_API int hlthunk_close(int fd)
{
	FAKE_FAULT(hlthunk_close);
	int device = device_of(fd);
	if (device < 0)
		return -EBADF;
	fake_lock();
	for (int i = 0; i < MAX_BLOCKS; i++)
		if (allocations[i].block && allocations[i].fd == fd) {
			fake_delete(allocations[i].block, false);
			allocations[i].block = NULL;
		}
	open_fd[device] = 0;
	fake_unlock();
	return close(fd);
}

FAKE_API int hlthunk_get_device_name_from_fd(int fd)
{
	return device_of(fd) < 0 ? 3 /* INVALID */ : GENERATION;
}

FAKE_API int hlthunk_get_pci_bus_id_from_fd(int fd, char *out, int len)
{
	FAKE_FAULT(hlthunk_get_pci_bus_id_from_fd);
	int device = device_of(fd);
	if (device < 0 || len < 13)
		return -EINVAL;
	snprintf(out, (size_t)len, "0000:%02x:00.0", 0x4d + device);
	return 0;
}

FAKE_API uint64_t hlthunk_device_memory_alloc(int fd, uint64_t size, uint64_t page_size, bool contiguous, bool shared)
{
	uint64_t handle = 0;
	int device = device_of(fd);
	(void)page_size, (void)contiguous, (void)shared;
	if (device < 0 || !size || fake_fault("hlthunk_device_memory_alloc"))
		return 0;
	fake_lock();
	for (int i = 0; i < MAX_BLOCKS && !handle; i++)
		if (!allocations[i].block) {
			allocations[i].block = fake_new(size, 1 << 21, device, 0);
			allocations[i].fd = fd;
			allocations[i].mapped = false;
			handle = allocations[i].block ? (uint64_t)i + 1 : 0;
			break;
		}
	fake_unlock();
	return handle;
}

static bool known(int fd, uint64_t handle)
{
	return handle && handle <= MAX_BLOCKS && allocations[handle - 1].block && allocations[handle - 1].fd == fd;
}

FAKE_API int hlthunk_device_memory_free(int fd, uint64_t handle)
{
	FAKE_FAULT(hlthunk_device_memory_free);
	int rc = -EINVAL;
	fake_lock();
	if (known(fd, handle)) {
		rc = allocations[handle - 1].mapped ? -EBUSY : 0;
		if (rc == 0) {
			fake_delete(allocations[handle - 1].block, false);
			allocations[handle - 1].block = NULL;
		}
	}
	fake_unlock();
	return rc;
}

FAKE_API uint64_t hlthunk_device_memory_map(int fd, uint64_t handle, uint64_t hint)
{
	uint64_t va = 0;
	(void)hint;
	if (fake_fault("hlthunk_device_memory_map"))
		return 0;
	fake_lock();
	if (known(fd, handle) && !allocations[handle - 1].mapped) {
		allocations[handle - 1].mapped = true;
		va = allocations[handle - 1].block->va;
	}
	fake_unlock();
	return va;
}

/* The mapping that contains `va`. */
static int mapping(int fd, uint64_t va)
{
	for (int i = 0; i < MAX_BLOCKS; i++)
		if (known(fd, (uint64_t)i + 1) && allocations[i].mapped && va >= allocations[i].block->va &&
		    va - allocations[i].block->va < allocations[i].block->len)
			return i;
	return -1;
}

FAKE_API int hlthunk_memory_unmap(int fd, uint64_t va)
{
	FAKE_FAULT(hlthunk_memory_unmap);
	fake_lock();
	int i = mapping(fd, va);
	bool exact = i >= 0 && allocations[i].block->va == va;
	if (exact)
		allocations[i].mapped = false;
	fake_unlock();
	return exact ? 0 : -EINVAL;
}

/* A real dma-buf if the kernel can make it; else a file that only has the size. */
static int dmabuf(const struct fake_block *b, uint64_t addr, uint64_t size)
{
	int real = fake_udmabuf(b->fd, addr - b->va, size);
	if (real >= 0)
		return real;
	char text[64], path[64];
	int fd = memfd_create("fake-gaudi-dmabuf", MFD_CLOEXEC);
	if (fd < 0)
		return -errno;
	int n = snprintf(text, sizeof text, "gaudi %#llx %llu", (unsigned long long)addr, (unsigned long long)size);
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	int rc = ftruncate(fd, (off_t)size) || pwrite(fd, text, (size_t)n, 0) != n ? -1 : open(path, O_WRONLY | O_CLOEXEC);
	rc = rc < 0 ? -errno : rc;
	close(fd);
	return rc;
}

static int export(int fd, bool exact, uint64_t addr, uint64_t size, uint64_t offset, uint32_t flags)
{
	int rc = -EINVAL;
	if (flags != (O_RDWR | O_CLOEXEC) || !size || (addr | size | offset) & PAGE)
		return rc;
	fake_lock();
	int i = mapping(fd, addr);
	if (i >= 0 && (!exact || allocations[i].block->va == addr)) {
		uint64_t left = allocations[i].block->va + allocations[i].block->len - addr;
		if (offset <= left && size <= left - offset)
			rc = dmabuf(allocations[i].block, addr + offset, size);
	}
	fake_unlock();
	return rc;
}

FAKE_API int hlthunk_device_memory_export_dmabuf_fd(int fd, uint64_t addr, uint64_t size, uint32_t flags)
{
	FAKE_FAULT(hlthunk_device_memory_export_dmabuf_fd);
	return GENERATION == HLTHUNK_DEVICE_GAUDI ? export(fd, false, addr, size, 0, flags) : -EOPNOTSUPP;
}

FAKE_API int hlthunk_device_mapped_memory_export_dmabuf_fd(int fd, uint64_t addr, uint64_t size, uint64_t offset,
							   uint32_t flags)
{
	FAKE_FAULT(hlthunk_device_mapped_memory_export_dmabuf_fd);
	return GENERATION == HLTHUNK_DEVICE_GAUDI ? -EOPNOTSUPP : export(fd, true, addr, size, offset, flags);
}

FAKE_API bool fake_gaudi_copy(uint64_t to, uint64_t from, uint64_t len)
{
	fake_lock();
	bool done = fake_copy(to, from, len);
	fake_unlock();
	return done;
}
