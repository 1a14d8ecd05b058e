/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The functions of the CUDA driver that the benchmarks call. */
#ifndef GPU_BENCH_DRIVER_H
#define GPU_BENCH_DRIVER_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long dptr;
typedef int result;
static struct {
	result (*cuInit)(unsigned);
	result (*cuDeviceGetCount)(int *);
	result (*cuDeviceGetName)(char *, int, int);
	result (*cuDriverGetVersion)(int *);
	result (*cuDevicePrimaryCtxRetain)(void **, int);
	result (*cuCtxSetCurrent)(void *);
	result (*cuMemAlloc_v2)(dptr *, size_t);
	result (*cuMemFree_v2)(dptr);
	result (*cuMemHostAlloc)(void **, size_t, unsigned);
	result (*cuMemsetD8_v2)(dptr, unsigned char, size_t);
	result (*cuIpcGetMemHandle)(char[64], dptr);
	result (*cuIpcCloseMemHandle)(dptr);
	result (*cuStreamCreate)(void **, unsigned);
	result (*cuStreamSynchronize)(void *);
	result (*cuMemcpyDtoDAsync_v2)(dptr, dptr, size_t, void *);
	result (*cuMemcpyHtoDAsync_v2)(dptr, const void *, size_t, void *);
	result (*cuMemcpyDtoHAsync_v2)(void *, dptr, size_t, void *);
	result (*cuMemcpyBatchAsync)(dptr *, dptr *, size_t *, size_t, void *, size_t *, size_t, size_t *, void *); /* or NULL */
	result (*cuModuleLoadData)(void **, const void *);
	result (*cuModuleGetFunction)(void **, void *, const char *);
	result (*cuLaunchKernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
} cu;
/* Passed by value: a struct of 64 bytes goes on the stack. */
struct ipc_handle {
	char bytes[64];
};
static result (*ipc_open)(dptr *, struct ipc_handle, unsigned);

#define CU(call)                                                                                                       \
	do {                                                                                                           \
		result r_ = (call);                                                                                    \
		if (r_) {                                                                                              \
			fprintf(stderr, "%s: %s:%d: CUDA error %d\n", #call, __FILE__, __LINE__, r_);                  \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)
#define OK(call)                                                                                                       \
	do {                                                                                                           \
		long r_ = (long)(call);                                                                                \
		if (r_) {                                                                                              \
			fprintf(stderr, "%s: %s:%d: %ld: %s\n", #call, __FILE__, __LINE__, r_, gdrfab_last_error());   \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

static void find(void *library, const char *name, void *to)
{
	void *at = dlsym(library, name);
	if (!at) {
		fprintf(stderr, "libcuda.so.1 has no %s\n", name);
		exit(77);
	}
	memcpy(to, &at, sizeof at);
}

static int load(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	int count = 0;
	if (!library) {
		fprintf(stderr, "skipped: %s\n", dlerror());
		exit(77);
	}
#define FIND(name) find(library, #name, &cu.name)
	FIND(cuInit);
	FIND(cuDeviceGetCount);
	FIND(cuDeviceGetName);
	FIND(cuDriverGetVersion);
	FIND(cuDevicePrimaryCtxRetain);
	FIND(cuCtxSetCurrent);
	FIND(cuMemAlloc_v2);
	FIND(cuMemFree_v2);
	FIND(cuMemHostAlloc);
	FIND(cuMemsetD8_v2);
	FIND(cuIpcGetMemHandle);
	FIND(cuIpcCloseMemHandle);
	FIND(cuStreamCreate);
	FIND(cuStreamSynchronize);
	FIND(cuMemcpyDtoDAsync_v2);
	FIND(cuMemcpyHtoDAsync_v2);
	FIND(cuMemcpyDtoHAsync_v2);
	FIND(cuModuleLoadData);
	FIND(cuModuleGetFunction);
	FIND(cuLaunchKernel);
	void *batch = dlsym(library, "cuMemcpyBatchAsync"); /* since CUDA 12.8 */
	memcpy(&cu.cuMemcpyBatchAsync, &batch, sizeof batch);
	find(library, "cuIpcOpenMemHandle_v2", &ipc_open);
	CU(cu.cuInit(0));
	CU(cu.cuDeviceGetCount(&count));
	return count;
}

static void use_device(int device)
{
	void *context;
	CU(cu.cuDevicePrimaryCtxRetain(&context, device));
	CU(cu.cuCtxSetCurrent(context));
}

#endif
