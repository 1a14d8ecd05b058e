/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The tables of functions that NCCL looks up by name, one for each version of its net interface. This file only
 * converts between the versions; the functions that do the work are declared in plugin.h. */
#include "plugin.h"

#include <string.h>

/* ---- functions that are the same in all versions, and conversions of arguments */

static ncclResult_t get_devices(int *count)
{
	if (!count)
		return ncclInvalidArgument;
	*count = devices_count();
	return ncclSuccess;
}

/* An NCCL that uses version 9 is 2.24 or newer, and always looks for a tuner in this library. One that uses version
 * 8 may not. */
static ncclResult_t init_v8(ncclDebugLogger_t log)
{
	log_set(log);
	return devices_begin(NULL, tune_is_asked_for());
}

static ncclResult_t init_once(ncclDebugLogger_t log)
{
	log_set(log);
	return devices_begin(NULL, true);
}

static ncclResult_t init_profiled(ncclDebugLogger_t log, ncclProfilerCallback_t profile)
{
	(void)profile;
	return init_once(log);
}

static ncclResult_t init_for(void **ctx, uint64_t comm_id, ncclNetCommConfig_t *config, ncclDebugLogger_t log,
			     ncclProfilerCallback_t profile)
{
	struct context *made;
	(void)comm_id, (void)config, (void)profile;
	if (!ctx)
		return ncclInvalidArgument;
	log_set(log);
	ncclResult_t result = devices_begin(&made, true);
	if (result == ncclSuccess)
		*ctx = made;
	return result;
}

static ncclResult_t finalize(void *ctx)
{
	return devices_end(ctx, net_forget) ? ncclSuccess : ncclInvalidArgument;
}

static ncclResult_t listen_for(void *ctx, int dev, void *handle, void **listener)
{
	struct listener *made;
	if (!handle || !listener)
		return ncclInvalidArgument;
	ncclResult_t result = net_listen(ctx, dev, handle, &made);
	if (result == ncclSuccess)
		*listener = made;
	return result;
}

static ncclResult_t listen_on(int dev, void *handle, void **listener)
{
	return listen_for(NULL, dev, handle, listener);
}

/* Device offload is declined: this plugin has no transfers that a GPU's kernel drives. */
static ncclResult_t connect_for(void *ctx, int dev, void *handle, void **comm, ncclNetDeviceHandle_t **offload)
{
	struct comm *made;
	if (!handle || !comm)
		return ncclInvalidArgument;
	if (offload)
		*offload = NULL;
	ncclResult_t result = net_connect(ctx, dev, handle, &made);
	*comm = result == ncclSuccess ? made : NULL;
	return result;
}

static ncclResult_t connect_to(int dev, void *handle, void **comm, ncclNetDeviceHandle_t **offload)
{
	return connect_for(NULL, dev, handle, comm, offload);
}

static ncclResult_t connect_configured(int dev, ncclNetCommConfig_t *config, void *handle, void **comm,
				       ncclNetDeviceHandle_t **offload)
{
	(void)config;
	return connect_to(dev, handle, comm, offload);
}

static ncclResult_t accept_from(void *listener, void **comm, ncclNetDeviceHandle_t **offload)
{
	struct comm *made;
	if (!listener || !comm)
		return ncclInvalidArgument;
	if (offload)
		*offload = NULL;
	ncclResult_t result = net_accept(listener, &made);
	*comm = result == ncclSuccess ? made : NULL;
	return result;
}

static ncclResult_t reg_mr(void *comm, void *data, size_t size, int type, void **handle)
{
	struct memory *made;
	if (!comm || !data || !handle)
		return ncclInvalidArgument;
	ncclResult_t result = memory_register(comm, data, size, type, &made);
	if (result == ncclSuccess)
		*handle = made;
	return result;
}

static ncclResult_t reg_mr_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **handle)
{
	struct memory *made;
	if (!comm || !data || !handle)
		return ncclInvalidArgument;
	ncclResult_t result = memory_register_dmabuf(comm, data, size, type, offset, fd, &made);
	if (result == ncclSuccess)
		*handle = made;
	return result;
}

static ncclResult_t dereg_mr(void *comm, void *handle)
{
	(void)comm;
	return handle ? memory_release(handle) : ncclSuccess;
}

static ncclResult_t isend(void *comm, void *data, size_t size, int tag, void *memory, void **request)
{
	struct request *made;
	if (!comm || !request)
		return ncclInvalidArgument;
	ncclResult_t result = net_isend(comm, data, size, tag, memory, &made);
	*request = result == ncclSuccess ? made : NULL;
	return result;
}

static ncclResult_t isend_profiled(void *comm, void *data, size_t size, int tag, void *memory, void *event, void **request)
{
	(void)event;
	return isend(comm, data, size, tag, memory, request);
}

static ncclResult_t isend_int(void *comm, void *data, int size, int tag, void *memory, void **request)
{
	return size < 0 ? ncclInvalidArgument : isend(comm, data, (size_t)size, tag, memory, request);
}

/* *request may hold a hint (NCCL_NET_OPTIONAL_RECV_COMPLETION). A completion costs nothing extra here, so it is
 * always reported. */
static ncclResult_t irecv(void *comm, int n, void **data, size_t *sizes, int *tags, void **memory, void **request)
{
	struct request *made;
	if (!comm || !data || !sizes || !tags || !memory || !request)
		return ncclInvalidArgument;
	ncclResult_t result = net_irecv(comm, n, data, sizes, tags, (struct memory **)(void *)memory, &made);
	*request = result == ncclSuccess ? made : NULL;
	return result;
}

static ncclResult_t irecv_profiled(void *comm, int n, void **data, size_t *sizes, int *tags, void **memory, void **events,
				   void **request)
{
	(void)events;
	return irecv(comm, n, data, sizes, tags, memory, request);
}

static ncclResult_t irecv_int(void *comm, int n, void **data, int *sizes, int *tags, void **memory, void **request)
{
	size_t wide[MAX_RECVS] = {0};
	if (!sizes)
		return ncclInvalidArgument;
	/* net_irecv() refuses a group that is too large, and logs the reason. */
	for (int i = 0; i < n && i < MAX_RECVS; i++) {
		if (sizes[i] < 0)
			return ncclInvalidArgument;
		wide[i] = (size_t)sizes[i];
	}
	return irecv(comm, n, data, wide, tags, memory, request);
}

static ncclResult_t iflush(void *comm, int n, void **data, int *sizes, void **memory, void **request)
{
	(void)data;
	if (!comm || !sizes || !memory || !request)
		return ncclInvalidArgument;
	*request = NULL;
	return net_iflush(comm, n, sizes, (struct memory **)(void *)memory);
}

static ncclResult_t test(void *request, int *done, int *sizes)
{
	return request && done ? net_test(request, done, sizes) : ncclInvalidArgument;
}

static ncclResult_t close_comm(void *comm)
{
	return net_close(comm);
}

static ncclResult_t close_listener(void *listener)
{
	return net_close_listener(listener);
}

/* ---- properties and tables */

/* Sets the fields that all versions have. */
#define PROPERTIES(p, d)                                                                                               \
	do {                                                                                                           \
		memset((p), 0, sizeof *(p));                                                                           \
		(p)->name = (d)->name;                                                                                 \
		(p)->pciPath = (d)->pci[0] ? (d)->pci : NULL;                                                          \
		(p)->guid = (d)->guid;                                                                                 \
		(p)->ptrSupport = (d)->ptr_support;                                                                    \
		(p)->regIsGlobal = 1;                                                                                  \
		(p)->speed = (d)->speed;                                                                               \
		(p)->port = (d)->port;                                                                                 \
		(p)->latency = (d)->latency;                                                                           \
		(p)->maxComms = 1 << 16;                                                                               \
		(p)->maxRecvs = MAX_RECVS;                                                                             \
		(p)->netDeviceType = NCCL_NET_DEVICE_HOST;                                                             \
		(p)->netDeviceVersion = NCCL_NET_DEVICE_INVALID_VERSION;                                               \
	} while (0)

#define PROPERTIES_SINCE_V9(p, d, dev)                                                                                 \
	do {                                                                                                           \
		(p)->vProps.ndevs = 1;                                                                                 \
		(p)->vProps.devs[0] = (dev);                                                                           \
		(p)->maxP2pBytes = (p)->maxCollBytes = (d)->max_bytes;                                                 \
	} while (0)

static ncclResult_t properties_v8(int dev, ncclNetProperties_v8_t *p)
{
	struct device *device = p ? device_get(dev) : NULL;
	if (!device)
		return ncclInvalidArgument;
	PROPERTIES(p, device);
	return ncclSuccess;
}

static ncclResult_t properties_v9(int dev, ncclNetProperties_v9_t *p)
{
	struct device *device = p ? device_get(dev) : NULL;
	if (!device)
		return ncclInvalidArgument;
	PROPERTIES(p, device);
	PROPERTIES_SINCE_V9(p, device, dev);
	return ncclSuccess;
}

static ncclResult_t properties_v11(int dev, ncclNetProperties_v11_t *p)
{
	struct device *device = p ? device_get(dev) : NULL;
	if (!device)
		return ncclInvalidArgument;
	PROPERTIES(p, device);
	PROPERTIES_SINCE_V9(p, device, dev);
	p->maxMultiRequestSize = 1;
	return ncclSuccess;
}

static ncclResult_t properties_v12(int dev, ncclNetProperties_v12_t *p)
{
	struct device *device = p ? device_get(dev) : NULL;
	if (!device)
		return ncclInvalidArgument;
	PROPERTIES(p, device);
	PROPERTIES_SINCE_V9(p, device, dev);
	p->maxMultiRequestSize = 1;
	p->railId = p->planeId = NCCL_NET_ID_UNDEF;
	return ncclSuccess;
}

#define EXPORT __attribute__((visibility("default"))) extern const

#define COMMON                                                                                                         \
	.name = "gdrfab", .devices = get_devices, .accept = accept_from, .regMr = reg_mr, .regMrDmaBuf = reg_mr_dmabuf, \
	.deregMr = dereg_mr, .iflush = iflush, .test = test, .closeSend = close_comm, .closeRecv = close_comm,         \
	.closeListen = close_listener

EXPORT ncclNet_v8_t ncclNetPlugin_v8;
EXPORT ncclNet_v9_t ncclNetPlugin_v9;
EXPORT ncclNet_v10_t ncclNetPlugin_v10;
EXPORT ncclNet_v11_t ncclNetPlugin_v11;
EXPORT ncclNet_v12_t ncclNetPlugin_v12;

const ncclNet_v8_t ncclNetPlugin_v8 = {
	COMMON, .init = init_v8, .getProperties = properties_v8, .listen = listen_on, .connect = connect_to,
	.isend = isend_int, .irecv = irecv_int,
};

const ncclNet_v9_t ncclNetPlugin_v9 = {
	COMMON, .init = init_once, .getProperties = properties_v9, .listen = listen_on, .connect = connect_to,
	.isend = isend, .irecv = irecv,
};

const ncclNet_v10_t ncclNetPlugin_v10 = {
	COMMON, .init = init_profiled, .getProperties = properties_v9, .listen = listen_on, .connect = connect_configured,
	.isend = isend_profiled, .irecv = irecv_profiled,
};

const ncclNet_v11_t ncclNetPlugin_v11 = {
	COMMON, .init = init_for, .getProperties = properties_v11, .listen = listen_for, .connect = connect_for,
	.isend = isend_profiled, .irecv = irecv_profiled, .finalize = finalize,
};

const ncclNet_v12_t ncclNetPlugin_v12 = {
	COMMON, .init = init_for, .getProperties = properties_v12, .listen = listen_for, .connect = connect_for,
	.isend = isend_profiled, .irecv = irecv_profiled, .finalize = finalize,
};
