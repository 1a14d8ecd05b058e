/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Declarations that the files of the fake Level Zero loader share. */
#ifndef ZE_H
#define ZE_H

#include "fakemem.h"

#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))

enum {
	SUCCESS = 0,
	NOT_READY = 1,
	OUT_OF_DEVICE_MEMORY = 0x70000003,
	UNINITIALIZED = 0x78000001,
	UNSUPPORTED_FEATURE = 0x78000003,
	INVALID_ARGUMENT = 0x78000004,
	INVALID_NULL_HANDLE = 0x78000005,
	OBJECT_IN_USE = 0x78000006,
	INVALID_NULL_POINTER = 0x78000007,
	INVALID_SIZE = 0x78000008,
	INVALID_ENUMERATION = 0x7800000c,
	ADDRESS_NOT_FOUND = 0x78000021
};
enum { TYPE_UNKNOWN, TYPE_HOST, TYPE_DEVICE, TYPE_SHARED };

typedef uint32_t result_t;
typedef struct chained {
	uint32_t stype;
	void *next;
	uint32_t flags, number; /* where the struct has them */
} chained_t;
typedef struct {
	uint32_t stype;
	void *next;
	uint32_t type, vendor, device, flags, subdevice, clock;
	uint64_t max_alloc;
	uint32_t counts[7];
	uint64_t timer;
	uint32_t bits[2];
	uint8_t uuid[16];
	char name[256];
} device_properties_t;
typedef struct {
	uint32_t stype;
	void *next;
	uint32_t flags, clock, width;
	uint64_t total;
	char name[256];
} memory_properties_t;
typedef struct {
	uint32_t stype;
	void *next;
	uint32_t import, export, image_import, image_export;
} external_properties_t;
typedef struct {
	uint32_t stype;
	void *next;
	uint32_t domain, bus, device, function;
	int32_t generation, width;
	int64_t bandwidth;
} pci_properties_t;
typedef struct {
	uint32_t stype;
	void *next;
	uint32_t flags;
	size_t pattern;
	uint32_t queues;
} group_properties_t;
typedef struct {
	uint32_t stype;
	void *next;
	uint32_t ordinal, index, flags, mode, priority;
} queue_desc_t;
typedef struct {
	uint32_t stype;
	void *next;
	uint32_t index, signal, wait;
} event_desc_t;
typedef struct {
	uint32_t stype;
	void *next;
	uint32_t type;
	uint64_t id, page;
} alloc_properties_t;
typedef struct {
	uint32_t stype;
	void *next;
	uint32_t flags;
	int fd;
} export_fd_t;
typedef struct {
	char data[64];
} ipc_t;

API result_t zeInit(uint32_t flags);
API result_t zeDriverGet(uint32_t *count, void **drivers);
API result_t zeDriverGetIpcProperties(void *driver, chained_t *p);
API result_t zeDeviceGet(void *driver, uint32_t *count, void **devices);
API result_t zeDeviceGetProperties(void *device, device_properties_t *p);
API result_t zeDeviceGetMemoryProperties(void *device, uint32_t *count, memory_properties_t *p);
API result_t zeDeviceGetExternalMemoryProperties(void *device, external_properties_t *p);
API result_t zeDeviceGetCommandQueueGroupProperties(void *device, uint32_t *count, group_properties_t *p);
API result_t zeDevicePciGetPropertiesExt(void *device, pci_properties_t *p);
API result_t zeDeviceCanAccessPeer(void *device, void *peer, uint8_t *yes);
API result_t zeContextCreate(void *driver, const chained_t *desc, void **context);
API result_t zeContextDestroy(void *context);
API result_t zeMemAllocDevice(void *context, const chained_t *desc, size_t len, size_t align, void *device, void **ptr);
API result_t zeMemAllocHost(void *context, const chained_t *desc, size_t len, size_t align, void **ptr);
API result_t zeMemAllocShared(void *context, const chained_t *desc, const chained_t *host, size_t len, size_t align,
			      void *device, void **ptr);
API result_t zeMemFree(void *context, void *ptr);
API result_t zeMemGetAllocProperties(void *context, const void *ptr, alloc_properties_t *p, void **device);
API result_t zeMemGetAddressRange(void *context, const void *ptr, void **base, size_t *len);
API result_t zeMemGetIpcHandle(void *context, const void *ptr, ipc_t *handle);
API result_t zeMemOpenIpcHandle(void *context, void *device, ipc_t handle, uint32_t flags, void **ptr);
API result_t zeMemCloseIpcHandle(void *context, const void *ptr);
API result_t zeCommandListCreateImmediate(void *context, void *device, const queue_desc_t *desc, void **list);
API result_t zeCommandListDestroy(void *list);
API result_t zeCommandListAppendMemoryCopy(void *list, void *to, const void *from, size_t len, void *signal, uint32_t count,
					   void **waits);
API result_t zeEventPoolCreate(void *context, const chained_t *desc, uint32_t count, void **devices, void **pool);
API result_t zeEventPoolDestroy(void *pool);
API result_t zeEventCreate(void *pool, const event_desc_t *desc, void **event);
API result_t zeEventDestroy(void *event);
API result_t zeEventHostSynchronize(void *event, uint64_t timeout);
API result_t zeEventQueryStatus(void *event);
API result_t zeEventHostReset(void *event);
#ifndef FAKE_OLD
API result_t zeDeviceGetRootDevice(void *device, void **root);
API result_t zeMemPutIpcHandle(void *context, ipc_t handle);
#endif

extern bool ze_up;
extern char ze_context; /* there is one */

#define CALL(name)                                                                                                     \
	FAKE_FAULT(name);                                                                                              \
	if (!ze_up)                                                                                                       \
	return UNINITIALIZED
#define KIND(p, kind)                                                                                                  \
	if (!(p))                                                                                                      \
		return INVALID_NULL_POINTER;                                                                           \
	if ((p)->stype != (kind))                                                                                      \
	return INVALID_ENUMERATION
#define CONTEXT()                                                                                                      \
	if (context != &ze_context)                                                                                   \
	return INVALID_NULL_HANDLE

#endif
