/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Of the same library as dmabuf-shim.c: makes the process a peer that lies about its receives (c-tests/rdm_lies.c). All else it
 * does is the library's, so the lie comes in the middle of a connection that works.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>

#define API __attribute__((visibility("default")))

/* From now on each message says that so many more receives are posted than are; and none is posted any more. */
API void verbs_lie(int credits, bool no_receives);

static int lie;
static bool deaf;
static int (*send_fn)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
static int (*recv_fn)(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **);

API void verbs_lie(int credits, bool no_receives)
{
	lie = credits, deaf = no_receives;
}

/* The upper half of a parcel's first word is what it says of receives. */
static int send_lies(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	for (struct ibv_send_wr *at = wr; at && lie; at = at->next)
		if (at->opcode == IBV_WR_SEND && at->num_sge == 1 && at->sg_list->length >= 8)
			((uint32_t *)(uintptr_t)at->sg_list->addr)[1] += (uint32_t)lie;
	return send_fn(qp, wr, bad);
}

static int receive_not(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return deaf ? 0 : recv_fn(qp, wr, bad);
}

API struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct ibv_qp *(*create)(struct ibv_pd *, struct ibv_qp_init_attr *);
	void *verbs = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
	if (!verbs) {
		errno = ENOSYS;
		return NULL;
	}
	*(void **)&create = dlsym(verbs, "ibv_create_qp");
	dlclose(verbs);
	struct ibv_qp *qp = create(pd, attr);
	if (qp && qp->context->ops.post_send != send_lies) {
		send_fn = qp->context->ops.post_send, recv_fn = qp->context->ops.post_recv;
		qp->context->ops.post_send = send_lies, qp->context->ops.post_recv = receive_not;
	}
	return qp;
}
