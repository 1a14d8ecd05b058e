/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A fake of libcuda: initialisation, devices and contexts. cuda_mem.c has the memory, cuda_async.c the streams.
 * Its answers, refusals and codes follow a real driver (13.0, H200) as far as these were looked up or tried.
 *
 * Environment, besides FAKE_FAULT and FAKE_DEVICES of fakemem.h:
 *   FAKE_NO_P2P=1         no device can access another's memory
 *   FAKE_NO_DMABUF=1      the devices export no dma-buf; FAKE_PCIE=1: mapping through the PCIe BAR is possible
 *   FAKE_DMABUF_MMAP=1    a dma-buf of a whole allocation can be mapped by the CPU, as with drivers from 13.3
 *   FAKE_RDMA_ORDERING=N  the order of NICs' writes: 0 none, 100 for the device itself, 200 (the default) for all devices
 *   FAKE_NO_FLUSH=1       the host cannot flush
 *   FAKE_DELAY_US=N       a copy takes effect N microseconds after it was posted, or after the previous copy
 *
 * -DFAKE_OLD: a driver without dma-buf, mapped segments, pools, and the newer attributes.
 */
#define _GNU_SOURCE
#include "cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef FAKE_OLD
#define VERSION 10010
#define NEW 0
#else
#define VERSION 13000
#define NEW 1
#endif

static pid_t owner; /* a driver does not survive a fork */
static int devices;
static struct fake_context primary[MAX_DEVICES];
static __thread CUcontext stack[64];
static __thread int depth;

bool cuda_alive(void)
{
	return owner && owner == getpid();
}

int cuda_devices(void)
{
	return devices;
}

bool cuda_device_ok(CUdevice d)
{
	return d >= 0 && d < devices;
}

CUcontext cuda_current(void)
{
	return depth ? stack[depth - 1] : NULL;
}

bool cuda_p2p(CUdevice a, CUdevice b)
{
	return a == b || !getenv("FAKE_NO_P2P");
}

API CUresult cuInit(unsigned flags)
{
	FAKE_FAULT(cuInit);
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (owner && owner != getpid())
		return CUDA_ERROR_NOT_INITIALIZED;
	devices = fake_devices(2);
	if (devices > MAX_DEVICES)
		devices = MAX_DEVICES;
	if (devices <= 0)
		return CUDA_ERROR_NO_DEVICE;
	for (int i = 0; i < devices; i++)
		primary[i].device = i;
	owner = getpid();
	return CUDA_SUCCESS;
}

API CUresult cuDriverGetVersion(int *version)
{
	FAKE_FAULT(cuDriverGetVersion);
	*version = VERSION;
	return CUDA_SUCCESS;
}

API CUresult cuGetErrorName(CUresult code, const char **name)
{
	static const struct {
		int code;
		const char *name;
	} names[] = {{0, "CUDA_SUCCESS"},
		     {1, "CUDA_ERROR_INVALID_VALUE"},
		     {2, "CUDA_ERROR_OUT_OF_MEMORY"},
		     {3, "CUDA_ERROR_NOT_INITIALIZED"},
		     {100, "CUDA_ERROR_NO_DEVICE"},
		     {101, "CUDA_ERROR_INVALID_DEVICE"},
		     {201, "CUDA_ERROR_INVALID_CONTEXT"},
		     {217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"},
		     {304, "CUDA_ERROR_OPERATING_SYSTEM"},
		     {400, "CUDA_ERROR_INVALID_HANDLE"},
		     {500, "CUDA_ERROR_NOT_FOUND"},
		     {600, "CUDA_ERROR_NOT_READY"},
		     {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
		     {704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED"},
		     {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
		     {800, "CUDA_ERROR_NOT_PERMITTED"},
		     {801, "CUDA_ERROR_NOT_SUPPORTED"},
		     {999, "CUDA_ERROR_UNKNOWN"}};
	*name = NULL;
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
		if (names[i].code == code)
			*name = names[i].name;
	return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuDeviceGetCount(int *count)
{
	ENTER(cuDeviceGetCount);
	*count = devices;
	return CUDA_SUCCESS;
}

API CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	ENTER(cuDeviceGet);
	if (!cuda_device_ok(ordinal))
		return CUDA_ERROR_INVALID_DEVICE;
	*device = ordinal;
	return CUDA_SUCCESS;
}

API CUresult cuDeviceGetName(char *name, int len, CUdevice device)
{
	ENTER(cuDeviceGetName);
	if (!cuda_device_ok(device))
		return CUDA_ERROR_INVALID_DEVICE;
	snprintf(name, (size_t)len, "Fake GPU %d", device);
	return CUDA_SUCCESS;
}

static CUresult uuid(unsigned char *bytes, CUdevice device)
{
	if (!cuda_device_ok(device))
		return CUDA_ERROR_INVALID_DEVICE;
	for (int i = 0; i < 16; i++)
		bytes[i] = (unsigned char)(0xa0 + i);
	bytes[15] = (unsigned char)device;
	return CUDA_SUCCESS;
}

API CUresult cuDeviceGetUuid(void *bytes, CUdevice device)
{
	ENTER(cuDeviceGetUuid);
	return uuid(bytes, device);
}

#ifndef FAKE_OLD
API CUresult cuDeviceGetUuid_v2(void *bytes, CUdevice device)
{
	ENTER(cuDeviceGetUuid_v2);
	return uuid(bytes, device);
}
#endif

API CUresult cuDeviceGetPCIBusId(char *id, int len, CUdevice device)
{
	ENTER(cuDeviceGetPCIBusId);
	if (!cuda_device_ok(device))
		return CUDA_ERROR_INVALID_DEVICE;
	snprintf(id, (size_t)len, "0000:%02X:00.0", 0x1a + device);
	return CUDA_SUCCESS;
}

API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	ENTER(cuDeviceTotalMem_v2);
	if (!cuda_device_ok(device))
		return CUDA_ERROR_INVALID_DEVICE;
	*bytes = (size_t)8 << 30;
	return CUDA_SUCCESS;
}

API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
	ENTER(cuDeviceGetAttribute);
	if (!cuda_device_ok(device))
		return CUDA_ERROR_INVALID_DEVICE;
	switch (attribute) {
	case 41: /* UNIFIED_ADDRESSING */
		*value = 1;
		return CUDA_SUCCESS;
	case 33: /* PCI_BUS_ID */
		*value = 0x1a + device;
		return CUDA_SUCCESS;
	case 40: /* ASYNC_ENGINE_COUNT */
		*value = 3;
		return CUDA_SUCCESS;
	case 34: /* PCI_DEVICE_ID */
	case 50: /* PCI_DOMAIN_ID */
	case 18: /* INTEGRATED */
		*value = 0;
		return CUDA_SUCCESS;
	case 75: /* COMPUTE_CAPABILITY_MAJOR */
		*value = 9;
		return CUDA_SUCCESS;
	case 98:  /* CAN_FLUSH_REMOTE_WRITES */
	case 102: /* VIRTUAL_MEMORY_MANAGEMENT */
	case 103: /* HANDLE_TYPE_POSIX_FD */
	case 110: /* GPU_DIRECT_RDMA_WITH_CUDA_VMM */
	case 115: /* MEMORY_POOLS */
	case 116: /* GPU_DIRECT_RDMA_SUPPORTED */
	case 119: /* MEMPOOL_SUPPORTED_HANDLE_TYPES */
	case 124: /* DMA_BUF_SUPPORTED */
		*value = attribute != 124 || !getenv("FAKE_NO_DMABUF");
		return NEW ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	case 117: /* GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS: HOST 1, MEMOPS 2 */
		*value = getenv("FAKE_NO_FLUSH") ? 2 : 1;
		return NEW ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	case 118: /* GPU_DIRECT_RDMA_WRITES_ORDERING */
		*value = getenv("FAKE_RDMA_ORDERING") ? atoi(getenv("FAKE_RDMA_ORDERING")) : 200;
		return NEW ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

API CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
	ENTER(cuDeviceCanAccessPeer);
	if (!cuda_device_ok(device) || !cuda_device_ok(peer))
		return CUDA_ERROR_INVALID_DEVICE;
	*can = device != peer && cuda_p2p(device, peer);
	return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	ENTER(cuDevicePrimaryCtxRetain);
	if (!cuda_device_ok(device))
		return CUDA_ERROR_INVALID_DEVICE;
	fake_lock();
	primary[device].retained++;
	fake_unlock();
	*context = &primary[device];
	return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	ENTER(cuDevicePrimaryCtxRelease_v2);
	if (!cuda_device_ok(device))
		return CUDA_ERROR_INVALID_DEVICE;
	fake_lock();
	bool active = primary[device].retained > 0;
	primary[device].retained -= active;
	fake_unlock();
	return active ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
	ENTER(cuDevicePrimaryCtxGetState);
	if (!cuda_device_ok(device))
		return CUDA_ERROR_INVALID_DEVICE;
	*flags = primary[device].flags;
	*active = primary[device].retained > 0;
	return CUDA_SUCCESS;
}

static bool valid(CUcontext context)
{
	for (int i = 0; i < devices; i++)
		if (context == &primary[i])
			return context->retained > 0;
	return false;
}

API CUresult cuCtxGetCurrent(CUcontext *context)
{
	ENTER(cuCtxGetCurrent);
	*context = cuda_current();
	return CUDA_SUCCESS;
}

API CUresult cuCtxSetCurrent(CUcontext context)
{
	ENTER(cuCtxSetCurrent);
	if (context && !valid(context))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!context)
		depth -= depth > 0;
	else
		stack[depth ? depth - 1 : depth++] = context;
	return CUDA_SUCCESS;
}

API CUresult cuCtxPushCurrent_v2(CUcontext context)
{
	ENTER(cuCtxPushCurrent_v2);
	if (!valid(context) || depth == (int)(sizeof stack / sizeof stack[0]))
		return CUDA_ERROR_INVALID_CONTEXT;
	stack[depth++] = context;
	return CUDA_SUCCESS;
}

API CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
	ENTER(cuCtxPopCurrent_v2);
	NEED_CONTEXT();
	depth--;
	if (context)
		*context = stack[depth];
	return CUDA_SUCCESS;
}

API CUresult cuCtxGetDevice(CUdevice *device)
{
	ENTER(cuCtxGetDevice);
	NEED_CONTEXT();
	*device = cuda_current()->device;
	return CUDA_SUCCESS;
}

static bool peer_access[MAX_DEVICES][MAX_DEVICES];

API CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
	ENTER(cuCtxEnablePeerAccess);
	NEED_CONTEXT();
	if (flags || !valid(peer) || peer == cuda_current())
		return CUDA_ERROR_INVALID_VALUE;
	if (!cuda_p2p(peer->device, cuda_current()->device))
		return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	fake_lock();
	bool *enabled = &peer_access[cuda_current()->device][peer->device], before = *enabled;
	*enabled = true;
	fake_unlock();
	return before ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED : CUDA_SUCCESS;
}

#ifndef FAKE_OLD
static unsigned flushes[MAX_DEVICES];

API CUresult cuFlushGPUDirectRDMAWrites(int target, int scope)
{
	ENTER(cuFlushGPUDirectRDMAWrites);
	NEED_CONTEXT();
	/* CURRENT_CTX; TO_OWNER, TO_ALL_DEVICES */
	if (target != 0 || (scope != 100 && scope != 200))
		return CUDA_ERROR_INVALID_VALUE;
	if (getenv("FAKE_NO_FLUSH"))
		return CUDA_ERROR_NOT_SUPPORTED;
	fake_lock();
	flushes[cuda_current()->device]++;
	fake_unlock();
	return CUDA_SUCCESS;
}

/* For programs, which find it by dlsym(): the number of flushes of the device. */
API unsigned fake_cuda_flushes(CUdevice device)
{
	return cuda_device_ok(device) ? flushes[device] : 0;
}
#endif
