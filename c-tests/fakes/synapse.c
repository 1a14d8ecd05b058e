/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A fake of Gaudi's libSynapse.so, above the fake of libhl-thunk.so: one mapping per acquired device, out of which
 * allocations are cut in steps of 256 bytes. Like the real one it answers nothing before synInitialize, takes a device
 * exclusively, copies only when the stream is waited for, and accesses host memory only where it was mapped.
 *
 * FAKE_SYNAPSE_OLD=1: a version that leaves globalHbmBaseAddress 0.
 */
#define _GNU_SOURCE
#include "fakemem.h"
#include "hlthunk.h"

#include <stdlib.h>
#include <string.h>

enum {
	synSuccess = 0,
	synInvalidArgument = 1,
	synOutOfHostMemory = 3,
	synOutOfDeviceMemory = 4,
	synNoDeviceFound = 8,
	synAllResourcesTaken = 23,
	synUninitialized = 28,
	synMappingNotFound = 34
};
enum { HOST_TO_DRAM, DRAM_TO_HOST, DRAM_TO_DRAM };
enum { synDeviceGaudi = 2, synDeviceGaudi2 = 4 };

typedef struct synDeviceInfoV2 {
	uint64_t sramBaseAddress, dramBaseAddress;
	uint32_t sramSize;
	uint64_t dramSize, tpcEnabledMask;
	uint8_t dramEnabled;
	uint32_t deviceId, fd;
	int deviceType;
	uint8_t deviceIndex;
	uint64_t globalHbmBaseAddress;
} synDeviceInfoV2;

int synInitialize(void);
int synDestroy(void);
int synDeviceGetCount(uint32_t *count);
int synDeviceAcquireByModuleId(uint32_t *device, uint32_t module);
int synDeviceRelease(uint32_t device);
int synDeviceGetInfoV2(uint32_t device, synDeviceInfoV2 *info);
int synDeviceMalloc(uint32_t device, uint64_t size, uint64_t want, uint32_t flags, uint64_t *addr);
int synDeviceFree(uint32_t device, uint64_t addr, uint32_t flags);
int synHostMalloc(uint32_t device, uint64_t size, uint32_t flags, void **addr);
int synHostFree(uint32_t device, const void *addr, uint32_t flags);
int synHostMap(uint32_t device, uint64_t size, const void *addr);
int synHostUnmap(uint32_t device, const void *addr);
int synStreamCreateGeneric(void **stream, uint32_t device, uint32_t flags);
int synStreamDestroy(void *stream);
int synMemCopyAsync(void *stream, uint64_t src, uint64_t size, uint64_t dst, int direction);
int synStreamSynchronize(void *stream);

#define DEVICES 8
/* Large mappings are slow under a memory checker, even if they are not used. */
#define POOL_BYTES (32ull << 20)
#define STEP 256ull
#define RANGES 256
#define QUEUED 64

static bool initialised;
static struct {
	bool acquired;
	int fd;
	uint64_t handle, base;
} devices[DEVICES];

/* Taken ranges of devices, and mapped ranges of the host. */
struct range {
	uint64_t addr, len;
	uint32_t device;
	bool owned;
};
static struct range taken[RANGES], mapped[RANGES];

struct stream {
	uint32_t device;
	int count;
	struct {
		uint64_t to, from, len;
	} copies[QUEUED];
};

#define READY(name, device)                                                                                            \
	do {                                                                                                           \
		FAKE_FAULT(name);                                                                                      \
		if (!initialised)                                                                                      \
			return synUninitialized;                                                                       \
		if ((device) >= DEVICES || !devices[device].acquired)                                                  \
			return synInvalidArgument;                                                                     \
	} while (0)

FAKE_API int synInitialize(void)
{
	FAKE_FAULT(synInitialize);
	initialised = true;
	return synSuccess;
}

FAKE_API int synDestroy(void)
{
	initialised = false;
	return synSuccess;
}

FAKE_API int synDeviceGetCount(uint32_t *count)
{
	FAKE_FAULT(synDeviceGetCount);
	if (!initialised)
		return synUninitialized;
	*count = (uint32_t)hlthunk_get_device_count(HLTHUNK_DEVICE_DONT_CARE);
	return synSuccess;
}

FAKE_API int synDeviceAcquireByModuleId(uint32_t *device, uint32_t module)
{
	FAKE_FAULT(synDeviceAcquireByModuleId);
	uint32_t id = 0;
	if (!initialised)
		return synUninitialized;
	while (id < DEVICES && devices[id].acquired)
		id++;
	int fd = id < DEVICES ? hlthunk_open_by_module_id(module) : -1;
	if (fd < 0)
		return synNoDeviceFound;
	devices[id].fd = fd;
	devices[id].handle = hlthunk_device_memory_alloc(fd, POOL_BYTES, 0, true, true);
	devices[id].base = hlthunk_device_memory_map(fd, devices[id].handle, 0);
	if (!devices[id].base) {
		hlthunk_close(fd);
		return synOutOfDeviceMemory;
	}
	devices[id].acquired = true;
	*device = id;
	return synSuccess;
}

static void forget(struct range *list, uint32_t device)
{
	for (int i = 0; i < RANGES; i++)
		if (list[i].len && list[i].device == device)
			list[i].len = 0;
}

FAKE_API int synDeviceRelease(uint32_t device)
{
	READY(synDeviceRelease, device);
	devices[device].acquired = false;
	hlthunk_close(devices[device].fd);
	forget(taken, device);
	forget(mapped, device);
	return synSuccess;
}

FAKE_API int synDeviceGetInfoV2(uint32_t device, synDeviceInfoV2 *info)
{
	READY(synDeviceGetInfoV2, device);
	const char *old = getenv("FAKE_SYNAPSE_OLD");
	bool first = hlthunk_get_device_name_from_fd(devices[device].fd) == HLTHUNK_DEVICE_GAUDI;
	memset(info, 0, sizeof *info);
	info->dramBaseAddress = devices[device].base;
	info->dramSize = POOL_BYTES;
	info->dramEnabled = 1;
	info->deviceId = 0x1000 + device;
	info->fd = (uint32_t)devices[device].fd;
	info->deviceType = first ? synDeviceGaudi : synDeviceGaudi2;
	info->globalHbmBaseAddress = first || (old && *old == '1') ? 0 : devices[device].base;
	return synSuccess;
}

static struct range *add(struct range *list, uint32_t device, uint64_t addr, uint64_t len, bool owned)
{
	for (int i = 0; i < RANGES; i++)
		if (!list[i].len) {
			list[i] = (struct range){addr, len, device, owned};
			return &list[i];
		}
	return NULL;
}

static struct range *find(struct range *list, uint32_t device, uint64_t addr, uint64_t len)
{
	for (int i = 0; i < RANGES; i++)
		if (list[i].len && list[i].device == device && addr >= list[i].addr && addr - list[i].addr <= list[i].len &&
		    len <= list[i].len - (addr - list[i].addr))
			return &list[i];
	return NULL;
}

FAKE_API int synDeviceMalloc(uint32_t device, uint64_t size, uint64_t want, uint32_t flags, uint64_t *addr)
{
	READY(synDeviceMalloc, device);
	if (!size || !addr || want || flags)
		return synInvalidArgument;
	int status = synOutOfDeviceMemory;
	uint64_t len = (size + STEP - 1) & ~(STEP - 1), at = devices[device].base, end = at + POOL_BYTES;
	fake_lock();
	for (int i = 0; i < RANGES; i++)
		if (taken[i].len && taken[i].device == device && taken[i].addr < at + len && at < taken[i].addr + taken[i].len) {
			at = taken[i].addr + taken[i].len;
			i = -1; /* look at all again */
		}
	if (len <= end - at && add(taken, device, at, len, true)) {
		*addr = at;
		status = synSuccess;
	}
	fake_unlock();
	return status;
}

static int drop(struct range *list, uint32_t device, uint64_t addr, int missing)
{
	fake_lock();
	struct range *r = find(list, device, addr, 1);
	int status = r && r->addr == addr ? synSuccess : missing;
	if (!status)
		r->len = 0;
	fake_unlock();
	return status;
}

FAKE_API int synDeviceFree(uint32_t device, uint64_t addr, uint32_t flags)
{
	READY(synDeviceFree, device);
	return flags ? synInvalidArgument : drop(taken, device, addr, synInvalidArgument);
}

FAKE_API int synHostMap(uint32_t device, uint64_t size, const void *addr)
{
	READY(synHostMap, device);
	fake_lock();
	bool added = size && add(mapped, device, (uint64_t)(uintptr_t)addr, size, false);
	fake_unlock();
	return added ? synSuccess : synAllResourcesTaken;
}

FAKE_API int synHostUnmap(uint32_t device, const void *addr)
{
	READY(synHostUnmap, device);
	return drop(mapped, device, (uint64_t)(uintptr_t)addr, synMappingNotFound);
}

FAKE_API int synHostMalloc(uint32_t device, uint64_t size, uint32_t flags, void **addr)
{
	READY(synHostMalloc, device);
	if (!size || flags)
		return synInvalidArgument;
	*addr = malloc(size);
	return *addr ? synHostMap(device, size, *addr) : synOutOfHostMemory;
}

FAKE_API int synHostFree(uint32_t device, const void *addr, uint32_t flags)
{
	READY(synHostFree, device);
	int status = flags ? synInvalidArgument : synHostUnmap(device, addr);
	if (!status)
		free((void *)(uintptr_t)addr);
	return status;
}

FAKE_API int synStreamCreateGeneric(void **stream, uint32_t device, uint32_t flags)
{
	READY(synStreamCreateGeneric, device);
	struct stream *s = flags ? NULL : calloc(1, sizeof *s);
	if (!s)
		return synInvalidArgument;
	s->device = device;
	*stream = s;
	return synSuccess;
}

FAKE_API int synStreamDestroy(void *stream)
{
	free(stream);
	return synSuccess;
}

FAKE_API int synMemCopyAsync(void *stream, uint64_t src, uint64_t size, uint64_t dst, int direction)
{
	struct stream *s = stream;
	READY(synMemCopyAsync, s->device);
	int status = synSuccess;
	if (direction < HOST_TO_DRAM || direction > DRAM_TO_DRAM || !size || s->count == QUEUED)
		return synInvalidArgument;
	fake_lock();
	for (int side = 0; side < 2 && !status; side++) {
		uint64_t addr = side ? src : dst;
		bool host = direction == (side ? HOST_TO_DRAM : DRAM_TO_HOST);
		if (!find(host ? mapped : taken, s->device, addr, size))
			status = host ? synMappingNotFound : synInvalidArgument;
	}
	if (!status) {
		s->copies[s->count].to = dst;
		s->copies[s->count].from = src;
		s->copies[s->count++].len = size;
	}
	fake_unlock();
	return status;
}

FAKE_API int synStreamSynchronize(void *stream)
{
	struct stream *s = stream;
	READY(synStreamSynchronize, s->device);
	for (int i = 0; i < s->count; i++)
		fake_gaudi_copy(s->copies[i].to, s->copies[i].from, s->copies[i].len);
	s->count = 0;
	return synSuccess;
}
