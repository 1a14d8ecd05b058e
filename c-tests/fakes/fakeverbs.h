/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Declarations that the control calls (ibverbs.c) and the queues (ibverbs_queue.c) of the fake libibverbs share. */
#ifndef FAKEVERBS_H
#define FAKEVERBS_H

#include "fakemem.h"

#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

/* The header has inline wrappers for functions that are defined here. */
#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

#define API __attribute__((visibility("default")))

/* For functions that return NULL and set errno. */
#define FAULT_NULL(name)                                                                                               \
	do {                                                                                                           \
		int fault_ = fake_fault(#name);                                                                        \
		if (fault_) {                                                                                          \
			errno = fault_;                                                                                \
			return NULL;                                                                                   \
		}                                                                                                      \
	} while (0)

struct context {
	struct verbs_context verbs; /* ends with the ibv_context that programs see */
	int async_write;
	struct context *next;
};

/* The fake's context around the context that programs see. */
static inline struct context *whole(struct ibv_context *ibv)
{
	return (struct context *)(void *)((char *)ibv - offsetof(struct context, verbs.context));
}

struct channel {
	struct ibv_comp_channel ibv;
	int write;
};

struct cq {
	struct ibv_cq ibv;
	pthread_spinlock_t lock;
	struct ibv_wc *ring;
	uint32_t size, head, count;
	bool armed, overrun;
};

struct receive {
	uint64_t id;
	void *at; /* its first piece */
	uint32_t room;
};

#define SAID 64
struct qp {
	struct ibv_qp ibv;
	pthread_spinlock_t lock; /* of the receives */
	struct receive *receives;
	uint32_t size, head, count;
	bool signal_all, faulty, deaf;
	uint64_t said[SAID][8]; /* its last messages of exactly 64 bytes */
	uint32_t says;
	uint32_t max_inline;
	struct ibv_qp_attr attr;
	struct qp *peer, *next;
};

/* Counts of existing objects: every create adds one and every destroy subtracts one. */
void object_made(void);
void object_gone(void);

/* Writes an event that ibv_get_async_event() will return. */
void raise_event(struct ibv_context *c, int kind, void *element);

/* The most entries that a completion queue can have. */
int fake_most_entries(void);

/* The data path, for the context's operations. */
int queue_poll(struct ibv_cq *cq, int max, struct ibv_wc *wc);
int queue_arm(struct ibv_cq *cq, int solicited_only);
int queue_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int queue_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

#endif
