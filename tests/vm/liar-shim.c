/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Linked into the same library as dmabuf-shim.c, in place of libibverbs. A test calls the functions below to make its own process a peer
 * that lies about its receives (c-tests/rdm/rdm_lies.c), or to lose the answers to its card's requests or the card's way to the peer
 * (c-tests/verbs/verbs_rails*.c). All other calls go to libibverbs, so these faults happen in the middle of a working connection.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define API __attribute__((visibility("default")))

/* From now on each message claims that `credits` more receives are posted than really are. With `no_receives`, no
 * receive is posted any more. */
API void verbs_lie(int credits, bool no_receives);

/* From now on the answer to every `of_each`-th request from soft-RoCE's device of this name is lost: its queue pair
 * fails as if no answer had come, with all that follows. 0: no answer is lost. */
API void verbs_lose_answers(const char *device, int of_each);

/* The next `times` attempts to connect a queue pair of the device of this name fail; 0: no change. Returns the
 * attempts left. */
API int verbs_fail_to_connect(const char *device, int times);

static const char *loser = "", *failing = "";
static int fails;
static int each, left;
static uint32_t silent; /* the queue pair that has failed like this */
static struct {
	uint32_t number;
	struct ibv_qp *qp;
} known[64];
static unsigned count;
static int (*poll_fn)(struct ibv_cq *, int, struct ibv_wc *);
static int lie;
static bool deaf;
/* The posting function of each device that the process has opened. */
static struct device {
	struct ibv_context *of;
	int (*send)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
	int (*recv)(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **);
} devices[64];

static struct device *device_of(struct ibv_context *context)
{
	struct device *at = devices;
	while (at < devices + 63 && at->of && at->of != context)
		at++;
	return at;
}

API void verbs_lie(int credits, bool no_receives)
{
	lie = credits, deaf = no_receives;
}

/* The upper half of a packet's first word counts receives. */
static int send_lies(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	for (struct ibv_send_wr *at = wr; at && lie; at = at->next)
		if (at->opcode == IBV_WR_SEND && at->num_sge == 1 && at->sg_list->length >= 8)
			((uint32_t *)(uintptr_t)at->sg_list->addr)[1] += (uint32_t)lie;
	return device_of(qp->context)->send(qp, wr, bad);
}

static int receive_not(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return deaf ? 0 : device_of(qp->context)->recv(qp, wr, bad);
}

API void verbs_lose_answers(const char *device, int of_each)
{
	loser = device, each = left = of_each;
}

API int verbs_fail_to_connect(const char *device, int times)
{
	failing = device, fails = times ? times : fails;
	return fails;
}

static void *of_verbs(const char *name)
{
	void *verbs = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD), *found = NULL;
	if (verbs) {
		found = dlsym(verbs, name);
		dlclose(verbs);
	}
	return found;
}

API int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	int (*modify)(struct ibv_qp *, struct ibv_qp_attr *, int);
	*(void **)&modify = of_verbs("ibv_modify_qp");
	if (mask & IBV_QP_STATE && attr->qp_state == IBV_QPS_RESET && qp->qp_num == silent)
		silent = 0;
	if (mask & IBV_QP_STATE && attr->qp_state == IBV_QPS_RTR && fails && strcmp(qp->context->device->name, failing) == 0) {
		fails--;
		return ETIMEDOUT;
	}
	return modify ? modify(qp, attr, mask) : ENOSYS;
}

static void stop(uint32_t number)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	/* The newest queue pair of this number, because older ones may be gone. */
	for (unsigned i = count; i-- > 0 && count - i <= 64;)
		if (known[i % 64].number == number) {
			ibv_modify_qp(known[i % 64].qp, &attr, IBV_QP_STATE);
			return;
		}
}

static int poll_loses(struct ibv_cq *cq, int room, struct ibv_wc *wc)
{
	int got = poll_fn(cq, room, wc);
	for (int i = 0; i < got && strcmp(cq->context->device->name, loser) == 0; i++) {
		if (wc[i].status != IBV_WC_SUCCESS || wc[i].opcode >= IBV_WC_RECV)
			continue;
		if (wc[i].qp_num == silent) {
			wc[i].status = IBV_WC_WR_FLUSH_ERR;
		} else if (each && --left == 0) {
			left = each, silent = wc[i].qp_num;
			wc[i].status = IBV_WC_RETRY_EXC_ERR;
			stop(silent);
		}
	}
	return got;
}

API struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct ibv_qp *(*create)(struct ibv_pd *, struct ibv_qp_init_attr *);
	*(void **)&create = of_verbs("ibv_create_qp");
	if (!create) {
		errno = ENOSYS;
		return NULL;
	}
	struct ibv_qp *qp = create(pd, attr);
	if (qp && qp->context->ops.post_send != send_lies) {
		struct device *device = device_of(qp->context);
		device->of = qp->context, device->send = qp->context->ops.post_send, device->recv = qp->context->ops.post_recv;
		qp->context->ops.post_send = send_lies, qp->context->ops.post_recv = receive_not;
	}
	if (qp) {
		silent = qp->qp_num == silent ? 0 : silent;
		known[count % 64].number = qp->qp_num;
		known[count++ % 64].qp = qp;
	}
	return qp;
}

API struct ibv_cq *ibv_create_cq(struct ibv_context *context, int size, void *of, struct ibv_comp_channel *channel, int vector)
{
	struct ibv_cq *(*create)(struct ibv_context *, int, void *, struct ibv_comp_channel *, int);
	*(void **)&create = of_verbs("ibv_create_cq");
	if (!create) {
		errno = ENOSYS;
		return NULL;
	}
	if (strncmp(context->device->name, "rxe", 3) == 0 && context->ops.poll_cq != poll_loses) {
		poll_fn = context->ops.poll_cq;
		context->ops.poll_cq = poll_loses;
	}
	return create(context, size, of, channel, vector);
}
