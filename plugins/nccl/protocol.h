/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The words of the protocol and small accessors, shared by transfer.c, which posts and describes the protocol, and
 * arrivals.c, which handles the arrivals. */
#ifndef GDRFAB_NCCL_PROTOCOL_H
#define GDRFAB_NCCL_PROTOCOL_H

#include "plugin.h"

/* The 32 bits of immediate data that come with a write: the kind of the write, and its slot. */
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

/* True if helpers drive the connection now. NCCL's thread then leaves it to them. */
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

/* Posts queued sends, takes completions, and ends requests that are complete. Returns whether there was any. The
 * caller must not hold `lock`. Does nothing if another thread is doing this already. */
bool progress(struct comm *comm);
/* Reads the event queue for the connection's end, which nothing else shows while no operation is under way. The
 * caller must not hold `lock`. */
void look_for_end(struct comm *comm);
/* Notes that a record could not be delivered. Only the receives that lack their data end: a sender may close its
 * side as soon as its last, eager message has arrived. */
void peer_takes_no_more(struct comm *comm, int err, const char *words);
ncclResult_t peer_is_gone(struct comm *comm);
/* Fills receives from eager messages that have arrived already. */
void take_kept(struct comm *comm, struct request *request);
/* Drops records whose receives are all served, so that the next ones have room. */
void skip_served(struct comm *comm);

#endif
