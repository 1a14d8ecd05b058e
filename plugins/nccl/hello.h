/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What the two sides of a new connection tell each other, and how each proves that it knows the listener's handle. */
#ifndef GDRFAB_NCCL_HELLO_H
#define GDRFAB_NCCL_HELLO_H

#include "plugin.h"

/* What NCCL carries from the listener to whoever connects. `ticket` is 0 on the way, and then the caller's own: NCCL calls
 * with the same handle until the connection is there. */
struct handle {
	uint32_t magic;
	char addresses[NCCL_NET_HANDLE_MAXSIZE - 28]; /* each ends with NUL; an empty one ends the list */
	uint64_t ticket;
	uint64_t secret[2];
};

/* Private data of connecting and of accepting. */
struct hello {
	uint32_t magic, eager_max;
	uint64_t answers;	/* 1: of the accepting side */
	uint64_t addr, key;	/* of the board's half for the peer */
	uint64_t nonce;		/* the connecting side's; the answer repeats it */
	uint64_t proof;		/* of all this under the listener's secret, which itself never travels here */
};

/* The last byte is the version. */
enum { MAGIC = 0x676e6602 };

struct hello hello_of(const struct comm *comm, const uint64_t secret[2], uint64_t nonce);
/* The peer's bytes, if they are a hello. */
bool hello_read(struct hello *hello, const void *data, size_t size);
bool hello_is_proven(const struct hello *hello, const uint64_t secret[2], bool answers);
/* Takes over what the peer says. */
void comm_join(struct comm *comm, const struct hello *hello);
/* An event of the connection: its kind, 0 if there is none, or a negative errno with words. */
int event_of(struct comm *comm, void *data, size_t *size, char *words, size_t words_size);
/* Random bytes; false: the kernel has none. */
bool draw(void *to, size_t size);

#endif
