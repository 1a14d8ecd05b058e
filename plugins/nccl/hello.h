/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The messages that the two sides of a new connection exchange, and the proof in each that its sender knows the
 * listener's handle. */
#ifndef GDRFAB_NCCL_HELLO_H
#define GDRFAB_NCCL_HELLO_H

#include "plugin.h"

/* The handle that NCCL carries from the listener to the connecting rank. `ticket` is 0 when it arrives. The
 * connecting side then stores its own ticket there, because NCCL calls connect with the same handle until the
 * connection is made. */
struct handle {
	uint32_t magic;
	char addresses[NCCL_NET_HANDLE_MAXSIZE - 28]; /* each ends with NUL; an empty one ends the list */
	uint64_t ticket;
	uint64_t secret[2];
};

/* The private data of a connection request and of its acceptance. */
struct hello {
	uint32_t magic, eager_max;
	uint64_t answers;	/* 1: written by the accepting side */
	uint64_t addr, key;	/* the half of the board that the peer writes to */
	uint64_t nonce;		/* chosen by the connecting side; the answer repeats it */
	uint64_t proof;		/* keyed hash of the fields above; its key, the listener's secret, is never sent */
};

/* The last byte is the protocol's version. */
enum { MAGIC = 0x676e6602 };

struct hello hello_of(const struct comm *comm, const uint64_t secret[2], uint64_t nonce);
/* Copies the peer's bytes to `hello`. False: they are not a hello of this version. */
bool hello_read(struct hello *hello, const void *data, size_t size);
bool hello_is_proven(const struct hello *hello, const uint64_t secret[2], bool answers);
/* Stores the peer's board address, key and limits in the connection. */
void comm_join(struct comm *comm, const struct hello *hello);
/* Reads one event of the connection. Returns its kind, 0 if there is none, or a negative errno with the reason in
 * `words`. */
int event_of(struct comm *comm, void *data, size_t *size, char *words, size_t words_size);
/* Fills `to` with random bytes. False: the kernel has none. */
bool draw(void *to, size_t size);

#endif
