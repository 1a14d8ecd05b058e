/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A fake of the Level Zero loader with one driver, libze_loader.so.1. Like the real one it answers nothing before zeInit;
 * the descriptor of an exported allocation belongs to the driver and is the same each time; an IPC handle begins with a
 * descriptor, which must be the importing process's own when the handle is opened, and contains an offset; structs have a type.
 *
 * -DFAKE_OLD: a loader without zeMemPutIpcHandle and zeDeviceGetRootDevice.
 *
 * FAKE_ZE_EXPORT=n, FAKE_ZE_IPC=n: the exports of devices (2: dma-buf), the IPC of the driver (1: memory).
 * FAKE_ZE_PEER=0: no device can access another's memory. A fault of `ze_copy_engine` is the state that a copy which was started leaves
 * in its event.
 */
#define _GNU_SOURCE
#include "ze.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

/* The handle of a device is the address of one of these. */
struct device {
	int index;
};

#define EXPORTABLE 0x100 /* a flag in the kind of a block, besides its type */
#define LIMIT 64
#define POOL_OFFSET 40 /* of the handle: what a driver puts behind the descriptor */

bool ze_up;
char ze_context;
static char the_driver;
static struct device all[LIMIT];
/* Memory that the CPU reaches as well. */
static struct {
	char *at;
	size_t len;
	uint64_t id;
	int type;
} host[LIMIT];
static uint64_t host_ids = 1u << 20;

static int setting(const char *name, int normally)
{
	const char *text = getenv(name);
	return text ? atoi(text) : normally;
}

static uint32_t device_count(void)
{
	uint32_t count = (uint32_t)fake_devices(2);
	for (uint32_t i = 0; i < count && i < LIMIT; i++)
		all[i].index = (int)i;
	return count < LIMIT ? count : LIMIT;
}

static struct fake_block *find(const void *ptr)
{
	return fake_find((uint64_t)(uintptr_t)ptr);
}

result_t zeInit(uint32_t flags)
{
	FAKE_FAULT(zeInit);
	if (flags > 3)
		return INVALID_ENUMERATION;
	if (!device_count())
		return UNINITIALIZED; /* no driver for it */
	ze_up = true;
	return SUCCESS;
}

result_t zeDriverGet(uint32_t *count, void **drivers)
{
	CALL(zeDriverGet);
	if (*count && drivers)
		drivers[0] = &the_driver;
	*count = 1;
	return SUCCESS;
}

result_t zeDriverGetIpcProperties(void *driver, chained_t *p)
{
	CALL(zeDriverGetIpcProperties);
	KIND(p, 0x2);
	p->flags = (uint32_t)setting("FAKE_ZE_IPC", 1);
	return driver ? SUCCESS : INVALID_NULL_HANDLE;
}

result_t zeDeviceGet(void *driver, uint32_t *count, void **devices)
{
	CALL(zeDeviceGet);
	uint32_t have = device_count();
	for (uint32_t i = 0; devices && i < have && i < *count; i++)
		devices[i] = &all[i];
	if (!*count || *count > have)
		*count = have;
	return driver ? SUCCESS : INVALID_NULL_HANDLE;
}

#ifndef FAKE_OLD
result_t zeDeviceGetRootDevice(void *device, void **root)
{
	CALL(zeDeviceGetRootDevice);
	*root = device;
	return SUCCESS;
}
#endif

result_t zeDeviceGetProperties(void *device, device_properties_t *p)
{
	CALL(zeDeviceGetProperties);
	KIND(p, 0x3);
	p->type = 1;
	p->vendor = 0x8086;
	memset(p->uuid, 0x5a, sizeof p->uuid);
	p->uuid[15] = (uint8_t)((struct device *)device)->index;
	strcpy(p->name, "Fake Data Center GPU");
	return SUCCESS;
}

result_t zeDeviceGetMemoryProperties(void *device, uint32_t *count, memory_properties_t *p)
{
	CALL(zeDeviceGetMemoryProperties);
	if (*count && p) {
		KIND(p, 0x7);
		p->total = 16ull << 30;
	}
	*count = 1;
	return device ? SUCCESS : INVALID_NULL_HANDLE;
}

result_t zeDeviceGetExternalMemoryProperties(void *device, external_properties_t *p)
{
	CALL(zeDeviceGetExternalMemoryProperties);
	KIND(p, 0xc);
	p->export = (uint32_t)setting("FAKE_ZE_EXPORT", 2);
	return device ? SUCCESS : INVALID_NULL_HANDLE;
}

/* A queue group for everything, and one for copies only. */
result_t zeDeviceGetCommandQueueGroupProperties(void *device, uint32_t *count, group_properties_t *p)
{
	CALL(zeDeviceGetCommandQueueGroupProperties);
	for (uint32_t i = 0; p && i < 2 && i < *count; i++) {
		KIND(&p[i], 0x6);
		p[i].flags = i ? 2 : 7;
		p[i].queues = 1;
	}
	*count = 2;
	return device ? SUCCESS : INVALID_NULL_HANDLE;
}

result_t zeDevicePciGetPropertiesExt(void *device, pci_properties_t *p)
{
	CALL(zeDevicePciGetPropertiesExt);
	KIND(p, 0x10008);
	p->bus = 0x30 + (uint32_t)((struct device *)device)->index;
	return SUCCESS;
}

result_t zeDeviceCanAccessPeer(void *device, void *peer, uint8_t *yes)
{
	CALL(zeDeviceCanAccessPeer);
	*yes = device == peer || setting("FAKE_ZE_PEER", 1);
	return SUCCESS;
}

result_t zeContextCreate(void *driver, const chained_t *desc, void **context)
{
	CALL(zeContextCreate);
	KIND(desc, 0xd);
	*context = &ze_context;
	return driver ? SUCCESS : INVALID_NULL_HANDLE;
}

result_t zeContextDestroy(void *context)
{
	CALL(zeContextDestroy);
	CONTEXT();
	return SUCCESS;
}

result_t zeMemAllocDevice(void *context, const chained_t *desc, size_t len, size_t align, void *device, void **ptr)
{
	CALL(zeMemAllocDevice);
	CONTEXT();
	KIND(desc, 0x15);
	if (!len || !device || !ptr)
		return len ? INVALID_NULL_HANDLE : INVALID_SIZE;
	int kind = TYPE_DEVICE;
	for (const chained_t *e = desc->next; e; e = e->next) {
		if (e->stype != 0x18 || !(e->flags & (uint32_t)setting("FAKE_ZE_EXPORT", 2)))
			return UNSUPPORTED_FEATURE;
		kind |= EXPORTABLE;
	}
	fake_lock();
	struct fake_block *b = fake_new(len, align, ((struct device *)device)->index, kind);
	fake_unlock();
	if (!b)
		return OUT_OF_DEVICE_MEMORY;
	*ptr = (void *)(uintptr_t)b->va;
	return SUCCESS;
}

static result_t host_alloc(size_t len, int type, void **ptr)
{
	fake_lock();
	int i = 0;
	while (i < LIMIT && host[i].at)
		i++;
	char *at = i < LIMIT ? mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : MAP_FAILED;
	if (at != MAP_FAILED) {
		host[i].at = at;
		host[i].len = len;
		host[i].id = ++host_ids;
		host[i].type = type;
		*ptr = at;
	}
	fake_unlock();
	return at == MAP_FAILED ? OUT_OF_DEVICE_MEMORY : SUCCESS;
}

static int find_host(const void *ptr)
{
	for (int i = 0; i < LIMIT; i++)
		if (host[i].at && (const char *)ptr >= host[i].at && (size_t)((const char *)ptr - host[i].at) < host[i].len)
			return i;
	return -1;
}

result_t zeMemAllocHost(void *context, const chained_t *desc, size_t len, size_t align, void **ptr)
{
	CALL(zeMemAllocHost);
	CONTEXT();
	KIND(desc, 0x16);
	(void)align;
	return host_alloc(len, TYPE_HOST, ptr);
}

result_t zeMemAllocShared(void *context, const chained_t *desc, const chained_t *host_desc, size_t len, size_t align,
			  void *device, void **ptr)
{
	CALL(zeMemAllocShared);
	CONTEXT();
	KIND(desc, 0x15);
	KIND(host_desc, 0x16);
	(void)align;
	(void)device;
	return host_alloc(len, TYPE_SHARED, ptr);
}

result_t zeMemFree(void *context, void *ptr)
{
	CALL(zeMemFree);
	CONTEXT();
	fake_lock();
	struct fake_block *b = find(ptr);
	int i = find_host(ptr);
	bool good = (b && b->va == (uint64_t)(uintptr_t)ptr && !b->imported) || (i >= 0 && host[i].at == ptr);
	if (good && b) {
		fake_delete(b, false);
	} else if (good) {
		munmap(host[i].at, host[i].len);
		host[i].at = NULL;
	}
	fake_unlock();
	return good ? SUCCESS : INVALID_ARGUMENT;
}

result_t zeMemGetAllocProperties(void *context, const void *ptr, alloc_properties_t *p, void **device)
{
	CALL(zeMemGetAllocProperties);
	CONTEXT();
	if (!ptr)
		return INVALID_NULL_POINTER;
	KIND(p, 0x17);
	result_t result = SUCCESS;
	fake_lock();
	struct fake_block *b = find(ptr);
	int i = find_host(ptr);
	p->type = b ? TYPE_DEVICE : i >= 0 ? (uint32_t)host[i].type : TYPE_UNKNOWN;
	p->id = b ? b->id - 1 : i >= 0 ? host[i].id : 0;
	if (device)
		*device = b ? &all[b->device] : NULL;
	for (export_fd_t *e = p->next; e; e = e->next) {
		if (e->stype != 0x1a || e->flags != 2 || !b || !(b->kind & EXPORTABLE))
			result = INVALID_ARGUMENT;
		else
			e->fd = b->fd;
	}
	fake_unlock();
	return result;
}

result_t zeMemGetAddressRange(void *context, const void *ptr, void **base, size_t *len)
{
	CALL(zeMemGetAddressRange);
	CONTEXT();
	fake_lock();
	struct fake_block *b = find(ptr);
	int i = find_host(ptr);
	if (b) {
		*base = (void *)(uintptr_t)b->va;
		*len = b->len;
	} else if (i >= 0) {
		*base = host[i].at;
		*len = host[i].len;
	}
	fake_unlock();
	return b || i >= 0 ? SUCCESS : ADDRESS_NOT_FOUND;
}

result_t zeMemGetIpcHandle(void *context, const void *ptr, ipc_t *handle)
{
	CALL(zeMemGetIpcHandle);
	CONTEXT();
	fake_lock();
	struct fake_block *b = find(ptr);
	int fd = b && !b->imported ? fake_dmabuf(b) : -1;
	fake_unlock();
	if (!b)
		return INVALID_ARGUMENT;
	if (fd < 0)
		return OUT_OF_DEVICE_MEMORY;
	memset(handle->data, 0, sizeof handle->data);
	memcpy(handle->data, &fd, sizeof fd);
	handle->data[POOL_OFFSET] = 'o';
	return SUCCESS;
}

#ifndef FAKE_OLD
result_t zeMemPutIpcHandle(void *context, ipc_t handle)
{
	CALL(zeMemPutIpcHandle);
	CONTEXT();
	int fd;
	memcpy(&fd, handle.data, sizeof fd);
	return close(fd) ? INVALID_ARGUMENT : SUCCESS;
}
#endif

result_t zeMemOpenIpcHandle(void *context, void *device, ipc_t handle, uint32_t flags, void **ptr)
{
	CALL(zeMemOpenIpcHandle);
	CONTEXT();
	char path[64], name[64] = {0};
	int fd;
	memcpy(&fd, handle.data, sizeof fd);
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	if (handle.data[POOL_OFFSET] != 'o' || flags || readlink(path, name, sizeof name - 1) < 0 ||
	    !strstr(name, "fake-device-memory"))
		return INVALID_ARGUMENT;
	fake_lock();
	struct fake_block *b =
		fake_map(fd, 0, (uint64_t)lseek(fd, 0, SEEK_END), 0, ((struct device *)device)->index, TYPE_DEVICE);
	if (b)
		b->imported = true;
	fake_unlock();
	if (!b)
		return OUT_OF_DEVICE_MEMORY;
	*ptr = (void *)(uintptr_t)b->va;
	return SUCCESS;
}

result_t zeMemCloseIpcHandle(void *context, const void *ptr)
{
	CALL(zeMemCloseIpcHandle);
	CONTEXT();
	fake_lock();
	struct fake_block *b = find(ptr);
	bool good = b && b->imported && b->va == (uint64_t)(uintptr_t)ptr;
	if (good)
		fake_delete(b, false);
	fake_unlock();
	return good ? SUCCESS : INVALID_ARGUMENT;
}
