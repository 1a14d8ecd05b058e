/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A tuner for NCCL: the number of channels of a wide communicator that a collective of some size uses and, for host
 * memory, the protocol. All ranks must answer alike, so an answer depends only on values that are equal on all of
 * them: the choice of tune.c, the number of ranks, the collective, and its size. Registration of the buffers is
 * ignored, as it may differ between ranks.
 *
 * Sizes and collectives that were not measured are left to NCCL. Numbers of ranks that were not measured use the
 * nearest one measured: at 256 KiB all channels together are slower than any answer of the tables.
 */
#include "plugin.h"

#include "nccl_tuner.h"

#include <stdlib.h>

struct measured {
	ncclFunc_t func;
	size_t ranks, bytes;
	int channels;
	double us;
};

static const struct measured of_gpus[] = {
#include "tuner_table.h"
}, of_host[] = {
#include "tuner_table_host.h"
}, of_tcp[] = {
#include "tuner_table_tcp.h"
};

#define TABLE(rows) {rows, sizeof(rows) / sizeof(rows)[0]}

static const struct table {
	const struct measured *rows;
	size_t count;
} tables[] = {[TUNE_GPUS] = TABLE(of_gpus), [TUNE_HOST] = TABLE(of_host), [TUNE_TCP] = TABLE(of_tcp)};

/* Bytes that NCCL gives a channel at least with its Simple protocol: 512 threads of 64 bytes. */
enum { SHARE = 32768 };

/* Sizes of the table used for one collective; any more are ignored. */
enum { SIZES = 24, FUNCS = ncclFuncAllReduce + 1 };

/* The fastest number of channels by size. Computed once, because NCCL asks before each launch. */
struct tuner {
	int width;
	enum tune_way way;
	struct choices {
		int count;
		struct choice {
			size_t bytes;
			int channels;
		} by_size[SIZES];
	} of[FUNCS];
};

/* The fastest row of this size; NULL unless the table compares at least two numbers of channels. */
static const struct measured *best(const struct table *table, ncclFunc_t func, size_t ranks, size_t bytes)
{
	const struct measured *fastest = NULL;
	bool compared = false;
	for (const struct measured *row = table->rows; row < table->rows + table->count; row++) {
		if (row->func != func || row->ranks != ranks || row->bytes != bytes)
			continue;
		compared |= fastest && fastest->channels != row->channels;
		if (!fastest || row->us < fastest->us)
			fastest = row;
	}
	return compared ? fastest : NULL;
}

static double ratio(size_t a, size_t b)
{
	return a > b ? (double)a / (double)b : (double)b / (double)a;
}

/* The measured number of ranks that is nearest to `ranks`; 0: none was measured. */
static size_t nearest_ranks(const struct table *table, ncclFunc_t func, size_t ranks)
{
	size_t nearest = 0;
	for (const struct measured *row = table->rows; row < table->rows + table->count; row++)
		if (row->func == func && (!nearest || ratio(row->ranks, ranks) < ratio(nearest, ranks)))
			nearest = row->ranks;
	return nearest;
}

/* Collects the fastest choice of each size. The rows of one size are adjacent in the table. */
static void choices_find(struct choices *choices, const struct table *table, ncclFunc_t func, size_t ranks)
{
	size_t before = 0;
	for (const struct measured *row = table->rows; row < table->rows + table->count && choices->count < SIZES; row++) {
		if (row->func != func || row->ranks != ranks || row->bytes == before)
			continue;
		const struct measured *fastest = best(table, func, ranks, before = row->bytes);
		if (fastest)
			choices->by_size[choices->count++] = (struct choice){fastest->bytes, fastest->channels};
	}
}

/* The number of channels for a collective. 0: NCCL chooses, as for all sizes outside the measured range. */
static int channels_for(const struct tuner *t, ncclFunc_t func, size_t bytes)
{
	if ((unsigned)func >= FUNCS)
		return 0;
	const struct choices *choices = &t->of[func];
	const struct choice *nearest = NULL;
	bool below = false, above = false;
	for (const struct choice *c = choices->by_size; c < choices->by_size + choices->count; c++) {
		below |= c->bytes <= bytes;
		above |= c->bytes >= bytes;
		if (!nearest || ratio(c->bytes, bytes) < ratio(nearest->bytes, bytes))
			nearest = c;
	}
	if (!below || !above)
		return 0;
	int channels = nearest->channels;
	size_t shares = bytes / SHARE;
	if ((size_t)channels > shares)
		channels = shares ? (int)shares : 1;
	return channels < t->width ? channels : t->width;
}

/* The size from which on Simple is faster than LL, although NCCL still prefers LL there; 0: left to NCCL. */
static size_t simple_from(enum tune_way way, ncclFunc_t func)
{
	if (way == TUNE_HOST)
		return 256 << 10;
	return way == TUNE_TCP && func == ncclFuncAllReduce ? 128 << 10 : 0;
}

/* `costs` is NULL if this version of the interface has no cost table. */
static ncclResult_t choose(void *ctx, ncclFunc_t func, size_t bytes, int pipelined, float *costs, int algorithms, int protocols,
			   int *channels)
{
	const struct tuner *t = ctx;
	int chosen = t && channels && pipelined == 1 ? channels_for(t, func, bytes) : 0;
	if (!chosen)
		return ncclSuccess;
	*channels = chosen;
	size_t from = simple_from(t->way, func);
	if (costs && from && bytes >= from && algorithms > NCCL_TUNER_RING && protocols > NCCL_TUNER_SIMPLE) {
		float *cost = &costs[NCCL_TUNER_RING * protocols + NCCL_TUNER_SIMPLE];
		/* A negative cost means that the combination is not available. */
		if (*cost > 0)
			*cost = 0;
	}
	return ncclSuccess;
}

static ncclResult_t begin(size_t ranks, size_t nodes, ncclDebugLogger_t log, void **ctx)
{
	if (!ctx)
		return ncclInvalidArgument;
	*ctx = NULL;
	log_set(log);
	/* Applies only if NCCL uses this net plugin between the GPUs of a host too: then each rank is a node of its
	 * own. */
	if (!tune_width() || ranks != nodes || ranks < 2)
		return ncclSuccess;
	struct tuner *t = calloc(1, sizeof *t);
	if (!t)
		return ncclSystemError;
	t->width = tune_width();
	t->way = tune_way();
	for (int func = 0; func < FUNCS; func++)
		choices_find(&t->of[func], &tables[t->way], (ncclFunc_t)func, nearest_ranks(&tables[t->way], (ncclFunc_t)func, ranks));
	INFO("%zu ranks: collectives take as many of the %d channels as was measured to be fastest (GDRFAB_NCCL_TUNE=0: NCCL's choice)",
	     ranks, t->width);
	*ctx = t;
	return ncclSuccess;
}

static ncclResult_t begin_v5(void **ctx, uint64_t communicator, size_t ranks, size_t nodes, ncclDebugLogger_t log,
			     ncclNvlDomainInfo_v5_t *domains, ncclTunerConstants_v5_t *constants)
{
	(void)communicator, (void)domains, (void)constants;
	return begin(ranks, nodes, log, ctx);
}

static ncclResult_t choose_v2(void *ctx, ncclFunc_t func, size_t bytes, int collNet, int nvls, int pipelined, int *algorithm,
			      int *protocol, int *channels)
{
	(void)collNet, (void)nvls, (void)algorithm, (void)protocol;
	return choose(ctx, func, bytes, pipelined, NULL, 0, 0, channels);
}

static ncclResult_t choose_v3(void *ctx, ncclFunc_t func, size_t bytes, int pipelined, float **costs, int algorithms,
			      int protocols, int *channels)
{
	return choose(ctx, func, bytes, pipelined, (float *)(void *)costs, algorithms, protocols, channels);
}

static ncclResult_t choose_v4(void *ctx, ncclFunc_t func, size_t bytes, int pipelined, float **costs, int algorithms,
			      int protocols, int registered, int *channels)
{
	(void)registered;
	return choose(ctx, func, bytes, pipelined, (float *)(void *)costs, algorithms, protocols, channels);
}

static ncclResult_t end(void *ctx)
{
	free(ctx);
	return ncclSuccess;
}

#define EXPORT __attribute__((visibility("default"))) extern const

EXPORT ncclTuner_v2_t ncclTunerPlugin_v2;
EXPORT ncclTuner_v3_t ncclTunerPlugin_v3;
EXPORT ncclTuner_v4_t ncclTunerPlugin_v4;
EXPORT ncclTuner_v5_t ncclTunerPlugin_v5;
EXPORT ncclTuner_v6_t ncclTunerPlugin_v6;

const ncclTuner_v2_t ncclTunerPlugin_v2 = {"gdrfab", begin, choose_v2, end};
const ncclTuner_v3_t ncclTunerPlugin_v3 = {"gdrfab", begin, choose_v3, end};
const ncclTuner_v4_t ncclTunerPlugin_v4 = {"gdrfab", begin, choose_v4, end};
const ncclTuner_v5_t ncclTunerPlugin_v5 = {"gdrfab", begin_v5, choose_v4, end};
const ncclTuner_v6_t ncclTunerPlugin_v6 = {"gdrfab", begin_v5, choose_v4, end, NULL};
