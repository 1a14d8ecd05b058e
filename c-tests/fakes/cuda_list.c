/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Copies of many blocks at once, of the fake libcuda: the driver's batches, and gdrfab's own kernel, which the fake knows by
 * its name and carries out itself. Like a real kernel it may access only memory that its device reaches; else it aborts.
 */
#define _GNU_SOURCE
#include "cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An older driver has neither. */
#ifndef FAKE_OLD

static int loaded, kernel;

static bool reached(uint64_t va, uint64_t len, CUdevice device)
{
	struct mem *m = cuda_find(va);
	return m && (m->block ? cuda_covers(va, len, device) : va + len <= m->va + m->len);
}

API CUresult cuModuleLoadData(void **out, const void *image)
{
	ENTER(cuModuleLoadData);
	NEED_CONTEXT();
	if (!strstr((const char *)image, ".entry gdrfab_copy_list("))
		return CUDA_ERROR_INVALID_VALUE;
	*out = &loaded;
	return CUDA_SUCCESS;
}

API CUresult cuModuleGetFunction(void **out, void *module, const char *name)
{
	ENTER(cuModuleGetFunction);
	NEED_CONTEXT();
	if (module != &loaded || strcmp(name, "gdrfab_copy_list") != 0)
		return CUDA_ERROR_NOT_FOUND;
	*out = &kernel;
	return CUDA_SUCCESS;
}

API CUresult cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned wide, unsigned high, unsigned deep,
			    unsigned shared, CUstream stream, void **parameters, void **extra)
{
	ENTER(cuLaunchKernel);
	NEED_CONTEXT();
	if (function != &kernel || !x || x > 0x7fffffff || y != 1 || z != 1 || !wide || wide > 1024 || high != 1 || deep != 1 || shared || extra)
		return CUDA_ERROR_INVALID_VALUE;
	uint64_t list = *(uint64_t *)parameters[0];
	uint32_t count = *(uint32_t *)parameters[1];
	const struct unit *units = (const struct unit *)(uintptr_t)list;
	CUdevice device = cuda_current()->device;
	fake_lock();
	bool ok = reached(list, count * sizeof *units, device);
	for (uint32_t i = 0; ok && i < count; i++)
		ok = !units[i].len || (reached(units[i].to, units[i].len, device) && reached(units[i].from, units[i].len, device));
	fake_unlock();
	if (!ok) {
		fprintf(stderr, "fake libcuda: a kernel would touch what its device does not reach\n");
		abort();
	}
	return cuda_post_list(stream, list, count);
}

API CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *len, size_t count, void *how, size_t *first, size_t hows,
				   CUstream stream)
{
	ENTER(cuMemcpyBatchAsync_v2);
	NEED_CONTEXT();
	if (!count || !how || !first || hows != 1 || first[0] != 0)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++)
		if (!len[i])
			return CUDA_ERROR_INVALID_VALUE;
	CUresult r = CUDA_SUCCESS;
	for (size_t i = 0; i < count && !r; i++)
		r = cuda_copy_any(to[i], from[i], len[i], stream);
	return r;
}

#endif
