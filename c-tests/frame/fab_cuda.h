/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Kinds of CUDA memory from CUDA's own allocators. */
#ifndef FAB_CUDA_H
#define FAB_CUDA_H

#include "fab_data.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The kinds of memory, each allocated by calls of the CUDA driver, without the library. */
enum { CUDA_PLAIN, CUDA_POOL, CUDA_PRIVATE_POOL, CUDA_VMM, CUDA_SEGMENTS, CUDA_MANAGED, CUDA_HOST, CUDA_KINDS };
extern const struct memkind cuda_kinds[CUDA_KINDS];
/* A function of libcuda.so.1; skips the claim if there is none. */
void *cuda_entry(const char *name);
/* Calls a driver function, whose result must be 0. `types` are the types of its parameters. */
#define CU(name, types, ...)                                                                                           \
	do {                                                                                                           \
		int (*call_) types;                                                                                    \
		*(void **)(void *)&call_ = cuda_entry(#name);                                                          \
		test_at(__FILE__, __LINE__);                                                                           \
		int code_ = call_(__VA_ARGS__);                                                                        \
		if (code_ != 0)                                                                                        \
			test_fail(__FILE__, __LINE__, "%s is %d", #name, code_);                                       \
	} while (0)
/* Makes the primary context of a device current, for calls that need one. */
void cuda_use(uint32_t device);
/* The size of a physical segment. */
size_t cuda_segment_size(uint32_t device);

#ifdef __cplusplus
}
#endif
#endif
