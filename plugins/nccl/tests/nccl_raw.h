/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The connection messages of plugins/nccl, written a second time, for peers that are not the plugin. */
#ifndef NCCL_RAW_H
#define NCCL_RAW_H

#include "nccl_drive.h"

enum { MAGIC = 0x676e6602, HANDLE_ADDRESS = 4, HANDLE_SECRET = 112 };

struct hello {
	uint32_t magic, eager_max;
	uint64_t answers;
	uint64_t addr, key;
	uint64_t nonce, proof;
};

/* A hello from a peer that has this handle, with a nonce of its own. */
struct hello hello_for(const struct handle *h, bool answers, uint64_t addr, uint64_t key);
/* Computes the proof again after a field was changed. */
void hello_prove(struct hello *hello, const struct handle *h);
/* Tries to connect a new n->ep with these bytes. True: accepted; `answer` is filled. */
bool knock(struct node *n, const struct handle *h, const void *hello, size_t size, struct hello *answer);

#endif
