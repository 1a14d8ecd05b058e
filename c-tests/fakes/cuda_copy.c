/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Copies of the fake libcuda, and other writes into memory: each is posted to a stream. */
#include "cuda_stream.h"

enum side { HOST_SIDE, DEVICE_SIDE, ANY_SIDE };

/* True if the range is of the kind that the function was told. Host memory is not checked, as in the real driver, except
 * that it must not be pinned in part only. */
static bool side_ok(enum side side, uint64_t va, uint64_t len, CUdevice device)
{
	bool touches = cuda_touches(va, len);
	if (side == ANY_SIDE)
		side = touches ? DEVICE_SIDE : HOST_SIDE;
	if (side == DEVICE_SIDE) {
		struct mem *m = cuda_find(va);
		return cuda_covers(va, len, device) || (m && !m->block && va - m->va + len <= m->len);
	}
	return !touches && cuda_pinned_alike(va, len);
}

static CUresult copy(CUstream stream, uint64_t to, enum side to_side, uint64_t from, enum side from_side, uint64_t len)
{
	fake_lock();
	CUstream s = cuda_stream_of(stream);
	CUresult r = CUDA_ERROR_INVALID_VALUE;
	if (!s)
		r = CUDA_ERROR_INVALID_HANDLE;
	else if (!len)
		r = CUDA_SUCCESS;
	else if (side_ok(to_side, to, len, cuda_device_of(s)) && side_ok(from_side, from, len, cuda_device_of(s))) {
		struct op *op = cuda_post(s, COPY);
		r = op ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
		if (op) {
			op->to = to;
			op->from = from;
			op->len = len;
		}
	}
	fake_unlock();
	return r;
}

CUresult cuda_copy_any(CUdeviceptr to, CUdeviceptr from, size_t len, CUstream stream)
{
	return copy(stream, to, ANY_SIDE, from, ANY_SIDE, len);
}

CUresult cuda_post_list(CUstream stream, uint64_t list, uint64_t count)
{
	fake_lock();
	CUstream s = cuda_stream_of(stream);
	struct op *op = s ? cuda_post(s, LIST) : NULL;
	if (op) {
		op->from = list;
		op->len = count;
	}
	fake_unlock();
	return !s ? CUDA_ERROR_INVALID_HANDLE : op ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t len, CUstream stream)
{
	ENTER(cuMemcpyAsync);
	NEED_CONTEXT();
	return copy(stream, to, ANY_SIDE, from, ANY_SIDE, len);
}

API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t len, CUstream stream)
{
	ENTER(cuMemcpyHtoDAsync_v2);
	NEED_CONTEXT();
	return copy(stream, to, DEVICE_SIDE, (uint64_t)(uintptr_t)from, HOST_SIDE, len);
}

API CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t len, CUstream stream)
{
	ENTER(cuMemcpyDtoHAsync_v2);
	NEED_CONTEXT();
	return copy(stream, (uint64_t)(uintptr_t)to, HOST_SIDE, from, DEVICE_SIDE, len);
}

API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t len, CUstream stream)
{
	ENTER(cuMemcpyDtoDAsync_v2);
	NEED_CONTEXT();
	return copy(stream, to, DEVICE_SIDE, from, DEVICE_SIDE, len);
}

API CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t len,
			       CUstream stream)
{
	ENTER(cuMemcpyPeerAsync);
	NEED_CONTEXT();
	if (!to_context || !from_context)
		return CUDA_ERROR_INVALID_CONTEXT;
	return copy(stream, to, DEVICE_SIDE, from, DEVICE_SIDE, len);
}

/* Synchronous copies, for programs that prepare and check memory. */
static CUresult copy_now(uint64_t to, enum side to_side, uint64_t from, enum side from_side, uint64_t len)
{
	CUresult r = copy(NULL, to, to_side, from, from_side, len);
	return r ? r : cuStreamSynchronize(NULL);
}

API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t len)
{
	ENTER(cuMemcpyHtoD_v2);
	NEED_CONTEXT();
	return copy_now(to, DEVICE_SIDE, (uint64_t)(uintptr_t)from, HOST_SIDE, len);
}

API CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t len)
{
	ENTER(cuMemcpyDtoH_v2);
	NEED_CONTEXT();
	return copy_now((uint64_t)(uintptr_t)to, HOST_SIDE, from, DEVICE_SIDE, len);
}

API CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char byte, size_t len, CUstream stream)
{
	ENTER(cuMemsetD8Async);
	NEED_CONTEXT();
	fake_lock();
	CUstream s = cuda_stream_of(stream);
	CUresult r = !s ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
	if (s && side_ok(DEVICE_SIDE, to, len, cuda_device_of(s))) {
		struct op *op = cuda_post(s, FILL);
		r = op ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
		if (op) {
			op->to = to;
			op->from = byte;
			op->len = len;
		}
	}
	fake_unlock();
	return r;
}

API CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char byte, size_t len)
{
	ENTER(cuMemsetD8_v2);
	CUresult r = cuMemsetD8Async(to, byte, len, NULL);
	return r ? r : cuStreamSynchronize(NULL);
}

static CUresult write32(CUstream stream, CUdeviceptr to, uint32_t value, unsigned flags)
{
	if (flags > 1 || to & 3)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	CUstream s = cuda_stream_of(stream);
	CUresult r = !s ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
	/* Device memory, or host memory that the driver knows. */
	if (s && cuda_find(to)) {
		struct op *op = cuda_post(s, WRITE32);
		r = op ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
		if (op) {
			op->to = to;
			op->from = value;
			op->len = 4;
		}
	}
	fake_unlock();
	return r;
}

API CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr to, uint32_t value, unsigned flags)
{
	ENTER(cuStreamWriteValue32);
	return write32(stream, to, value, flags);
}

API CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr to, uint32_t value, unsigned flags)
{
	ENTER(cuStreamWriteValue32_v2);
	return write32(stream, to, value, flags);
}
