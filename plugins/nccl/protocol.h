/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What posting (transfer.c) and arrivals (arrivals.c) share: the words of the protocol, which transfer.c describes. */
#ifndef GDRFAB_NCCL_PROTOCOL_H
#define GDRFAB_NCCL_PROTOCOL_H

#include "plugin.h"

/* The 32 bits that come with a write: what it was, and where. */
enum { WHAT_SHIFT = 30, RECORD_CAME = 0, DATA_CAME = 1, EAGER_CAME = 2 };

static inline uint32_t word(uint32_t what, uint32_t place)
{
	return what << WHAT_SHIFT | place;
}

static inline struct eager *eager_at(const struct comm *comm, uint32_t number)
{
	return (struct eager *)(void *)(comm->eagers + (number % EAGERS) * comm->eager_room);
}

static inline unsigned char *body_of(struct eager *eager)
{
	return (unsigned char *)(eager + 1);
}

static inline bool is_done(const struct request *request)
{
	return __atomic_load_n(&request->done, __ATOMIC_ACQUIRE);
}

static inline void set_done(struct request *request)
{
	__atomic_store_n(&request->done, true, __ATOMIC_RELEASE);
}

static inline bool is_free(const struct request *request)
{
	return !__atomic_load_n(&request->comm, __ATOMIC_ACQUIRE);
}

/* Whether helpers drive the connection now: NCCL's thread leaves it to them. */
static inline bool is_helped(const struct comm *comm)
{
	return comm->slot && __atomic_load_n(&comm->slot->long_ones, __ATOMIC_RELAXED) > 0;
}

static inline struct request *request_of(struct comm *comm, uint32_t group)
{
	return &comm->requests[group % NCCL_NET_MAX_REQUESTS];
}

static inline struct record *asked_at(const struct comm *comm, uint32_t number)
{
	return &comm->asked[number % RECORDS];
}

/* ---- arrivals.c */

/* Posts what waits, takes what has come, and ends what has ended; whether there was any. Without the lock; nothing happens if
 * another thread is at it. */
bool progress(struct comm *comm);
/* The connection's end shows in its event queue alone if nothing of ours was under way. Without the lock. */
void look_for_end(struct comm *comm);
/* A record cannot be delivered. That ends the receives that lack data, and no others: a sender may close its side as soon
 * as its last, eager message has arrived. */
void peer_takes_no_more(struct comm *comm, int err, const char *words);
ncclResult_t peer_is_gone(struct comm *comm);
/* Receives for which eager messages have come already. */
void take_kept(struct comm *comm, struct request *request);
/* Records that are served make room for the next ones. */
void skip_served(struct comm *comm);

#endif
