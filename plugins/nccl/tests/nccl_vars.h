/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* NCCL's variables, as a user has them before init and a claim looks at them after it, and the tuner as NCCL asks it. */
#ifndef NCCL_VARS_H
#define NCCL_VARS_H

#include "nccl_drive.h"

#include "../nccl_tuner.h"

enum { OLDEST_TUNER = 2, NEWEST_TUNER = 6, WIDE = 16 };

/* Nothing that init sets or heeds, but NCCL's own ways forbidden, so that everything goes through the plugin; shm, no helpers. */
void user_begins(void);
/* Loaded, and initialised once. */
void *loaded(void);
/* The same where memory of GPUs is really offered; see net_open_with() for what that takes. Else the claim is skipped. */
void *loaded_over_cuda(void);

/* NULL: not set. */
void is(const char *name, const char *want);
/* Of all that init may set. */
void none_set(void);

struct tuner {
	int version;
	const void *table;
	void *ctx;
};

ncclResult_t tuner_init(struct tuner *t, int version, size_t ranks, size_t nodes);
/* A communicator of NCCL's: its table, with what it ignores at -1, is followed by what is not the tuner's. Gives nChannels, 0
 * if that was left to NCCL. */
int ask(struct tuner *t, ncclFunc_t func, size_t bytes, int pipelined, int registered);
/* Whether the last answer chose NCCL's protocol Simple. */
extern bool asked_simple;
void tuner_end(struct tuner *t);
/* Whatever it is asked, NCCL chooses. */
void leaves_all_alone(size_t ranks, size_t nodes);

#endif
