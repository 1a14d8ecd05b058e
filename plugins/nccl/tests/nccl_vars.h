/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* NCCL's variables, as a user sets them before init and as a claim checks them after it; and calls of the tuner as
 * NCCL makes them. */
#ifndef NCCL_VARS_H
#define NCCL_VARS_H

#include "nccl_drive.h"

#include "../nccl_tuner.h"

enum { OLDEST_TUNER = 2, NEWEST_TUNER = 6, WIDE = 16 };

/* Clears every variable that init sets or reads, but forbids NCCL's own transports, so that all data goes through
 * the plugin; shm, no helpers. */
void user_begins(void);
/* Loads the plugin and initialises it once. */
void *loaded(void);
/* The same where memory of GPUs is really offered (net_open_with() says where); otherwise the claim is skipped. */
void *loaded_over_cuda(void);

/* Checks a variable's value. NULL: not set. */
void is(const char *name, const char *want);
/* Checks that none of the variables that init may set is set. */
void none_set(void);

struct tuner {
	int version;
	const void *table;
	void *ctx;
};

ncclResult_t tuner_init(struct tuner *t, int version, size_t ranks, size_t nodes);
/* Asks the tuner as for a communicator of NCCL's. Inputs that the tuner ignores are -1, and memory that it must not
 * write follows its table. Returns nChannels, or 0 if the tuner left the choice to NCCL. */
int ask(struct tuner *t, ncclFunc_t func, size_t bytes, int pipelined, int registered);
/* True if the last answer chose NCCL's protocol Simple. */
extern bool asked_simple;
void tuner_end(struct tuner *t);
/* Checks that the tuner leaves every choice to NCCL. */
void leaves_all_alone(size_t ranks, size_t nodes);

#endif
