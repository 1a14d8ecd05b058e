/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Copies on the streams of the fake libcuda. All functions but the last are called with the lock held. */
#ifndef CUDA_STREAM_H
#define CUDA_STREAM_H

#include "cuda.h"

enum op_kind { COPY, FILL, WRITE32, RECORD, WAIT, LIST };

struct op {
	enum op_kind kind;
	uint64_t to, from, len;
	CUevent event;
	uint64_t turn; /* the number of the event's recording */
	int64_t posted, due;
	int refusals; /* queries to be answered with "not ready" */
	struct op *next;
};

/* The stream behind a handle: NULL, 1 and 2 are the default streams. NULL if there is none. */
CUstream cuda_stream_of(CUstream s);
/* Appends an operation to the stream; NULL: no memory. */
struct op *cuda_post(CUstream s, enum op_kind kind);
/* The default streams belong to no context. */
CUdevice cuda_device_of(CUstream s);

CUresult cuStreamSynchronize(CUstream stream);

#endif
