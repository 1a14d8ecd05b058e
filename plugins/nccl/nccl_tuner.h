/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The interface between NCCL and a tuner: versions 2 to 6, for 64-bit machines. Written from the interface's
 * description, as nccl_net.h is. The cost table is an array [algorithms][protocols] of floats.
 */
#ifndef GDRFAB_NCCL_TUNER_H
#define GDRFAB_NCCL_TUNER_H

#include "nccl_net.h"

typedef enum {
	ncclFuncBroadcast = 0,
	ncclFuncReduce = 1,
	ncclFuncAllGather = 2,
	ncclFuncReduceScatter = 3,
	ncclFuncAllReduce = 4,
} ncclFunc_t;

enum {
	NCCL_TUNER_ALGORITHMS = 7,
	NCCL_TUNER_PROTOCOLS = 3,
	NCCL_TUNER_RING = 1,
	NCCL_TUNER_SIMPLE = 2,
};

typedef struct {
	int nNvlDomains;
	int minRanksPerNvlDomain;
	int maxRanksPerNvlDomain;
} ncclNvlDomainInfo_v5_t;

/* NCCL's model of the cost of a collective. This tuner does not change it. */
typedef struct ncclTunerConstants_v5 ncclTunerConstants_v5_t;

typedef struct {
	const char *name;
	ncclResult_t (*init)(size_t ranks, size_t nodes, ncclDebugLogger_t log, void **ctx);
	ncclResult_t (*getCollInfo)(void *ctx, ncclFunc_t func, size_t bytes, int collNet, int nvls, int pipelined,
				    int *algorithm, int *protocol, int *channels);
	ncclResult_t (*destroy)(void *ctx);
} ncclTuner_v2_t;

typedef struct {
	const char *name;
	ncclResult_t (*init)(size_t ranks, size_t nodes, ncclDebugLogger_t log, void **ctx);
	ncclResult_t (*getCollInfo)(void *ctx, ncclFunc_t func, size_t bytes, int pipelined, float **costs, int algorithms,
				    int protocols, int *channels);
	ncclResult_t (*destroy)(void *ctx);
} ncclTuner_v3_t;

typedef struct {
	const char *name;
	ncclResult_t (*init)(size_t ranks, size_t nodes, ncclDebugLogger_t log, void **ctx);
	ncclResult_t (*getCollInfo)(void *ctx, ncclFunc_t func, size_t bytes, int pipelined, float **costs, int algorithms,
				    int protocols, int registered, int *channels);
	ncclResult_t (*destroy)(void *ctx);
} ncclTuner_v4_t;

typedef struct {
	const char *name;
	ncclResult_t (*init)(void **ctx, uint64_t communicator, size_t ranks, size_t nodes, ncclDebugLogger_t log,
			     ncclNvlDomainInfo_v5_t *domains, ncclTunerConstants_v5_t *constants);
	ncclResult_t (*getCollInfo)(void *ctx, ncclFunc_t func, size_t bytes, int pipelined, float **costs, int algorithms,
				    int protocols, int registered, int *channels);
	ncclResult_t (*finalize)(void *ctx);
} ncclTuner_v5_t;

typedef struct {
	const char *name;
	ncclResult_t (*init)(void **ctx, uint64_t communicator, size_t ranks, size_t nodes, ncclDebugLogger_t log,
			     ncclNvlDomainInfo_v5_t *domains, ncclTunerConstants_v5_t *constants);
	ncclResult_t (*getCollInfo)(void *ctx, ncclFunc_t func, size_t bytes, int pipelined, float **costs, int algorithms,
				    int protocols, int registered, int *channels);
	ncclResult_t (*finalize)(void *ctx);
	/* NULL: NCCL's own. */
	ncclResult_t (*getChunkSize)(void *ctx, ncclFunc_t func, size_t bytes, int algorithm, int protocol, int channels,
				     size_t *size);
} ncclTuner_v6_t;

NCCL_NET_SIZE(ncclNvlDomainInfo_v5_t, 12);
NCCL_NET_SIZE(ncclTuner_v2_t, 32);
NCCL_NET_SIZE(ncclTuner_v3_t, 32);
NCCL_NET_SIZE(ncclTuner_v4_t, 32);
NCCL_NET_SIZE(ncclTuner_v5_t, 32);
NCCL_NET_SIZE(ncclTuner_v6_t, 40);

#endif
