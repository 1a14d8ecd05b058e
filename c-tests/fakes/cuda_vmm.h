/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Declarations that segments and pools of the fake libcuda share. */
#ifndef CUDA_VMM_H
#define CUDA_VMM_H

#include "cuda.h"

struct location {
	int type, id; /* DEVICE 1 */
};

struct alloc_prop {
	int type, handle_types; /* PINNED 1; POSIX_FD 1 */
	struct location location;
	void *win32;
	unsigned char compression, rdma;
	unsigned short usage;
	unsigned char reserved[4];
};

struct access_desc {
	struct location location;
	int flags; /* READ 1, READWRITE 3 */
};

/* Files that stand for memory carry its kind and device in their names. */
int cuda_memory_file(const char *what, CUdevice device, uint64_t len);
bool cuda_is_memory_file(int fd, const char *what, CUdevice *device);

#endif
