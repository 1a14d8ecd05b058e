/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What plugins/nccl says while it connects, written down a second time, for peers of it that are none. */
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

/* A hello of who has this handle, with a nonce of its own. */
struct hello hello_for(const struct handle *h, bool answers, uint64_t addr, uint64_t key);
/* The proof anew, after something was changed. */
void hello_prove(struct hello *hello, const struct handle *h);
/* Tries to connect n->ep, a new one, with these bytes; true: it was let in, and this is the answer. */
bool knock(struct node *n, const struct handle *h, const void *hello, size_t size, struct hello *answer);

#endif
