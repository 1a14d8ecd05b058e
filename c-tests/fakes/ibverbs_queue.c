/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Queues of the fake libibverbs: a work request is complete when it is posted. No byte moves, so that what a program
 * does around the calls can be counted.
 *
 * A send, or a write with immediate data, to a queue pair of this process ends the oldest receive posted there, if any.
 * Faults: `post_send`, `post_recv`, `wc` (the status of a completion) and `qp_event` (the number of an asynchronous event
 * of the queue pair, which comes before the completion); looked for only if FAKE_FAULT is set when the queue pair is
 * created, because asking takes longer than posting. A test can then act as the peer as well: deliver a message
 * (`fake_verbs_deliver`), read the messages sent to the peer (`fake_verbs_said`), and stop all acknowledgements
 * (`fake_verbs_deafen`).
 */
#define _GNU_SOURCE
#include "fakeverbs.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct qp *qps; /* under fake_lock */
static int fences, bells, requests;
static uint64_t last[6]; /* the fields of the newest atomic operation */

/* For tests: the number of fenced work requests so far; the number of posting calls, and of their work requests. */
API int fake_verbs_fences(void);
API int fake_verbs_fences(void)
{
	return __atomic_load_n(&fences, __ATOMIC_RELAXED);
}

API int fake_verbs_bells(void);
API int fake_verbs_bells(void)
{
	return __atomic_load_n(&bells, __ATOMIC_RELAXED);
}

API int fake_verbs_requests(void);
API int fake_verbs_requests(void)
{
	return __atomic_load_n(&requests, __ATOMIC_RELAXED);
}

/* Opcode, remote address, compare or add operand, swap operand, remote key and length of the last atomic operation. */
API const uint64_t *fake_verbs_atomic(void);
API const uint64_t *fake_verbs_atomic(void)
{
	return last;
}

static void complete(struct cq *cq, const struct ibv_wc *wc)
{
	bool wake;
	pthread_spin_lock(&cq->lock);
	if (cq->count == cq->size) {
		wake = !cq->overrun;
		cq->overrun = true;
		pthread_spin_unlock(&cq->lock);
		if (wake)
			raise_event(cq->ibv.context, IBV_EVENT_CQ_ERR, &cq->ibv);
		return;
	}
	uint32_t at = cq->head + cq->count++;
	cq->ring[at < cq->size ? at : at - cq->size] = *wc;
	wake = cq->armed;
	cq->armed = false;
	pthread_spin_unlock(&cq->lock);
	if (wake && cq->ibv.channel) {
		struct ibv_cq *who = &cq->ibv;
		/* A full pipe is readable anyway. */
		if (write(((struct channel *)cq->ibv.channel)->write, &who, sizeof who) < 0)
			return;
	}
}

int queue_poll(struct ibv_cq *ibv, int max, struct ibv_wc *wc)
{
	struct cq *cq = (struct cq *)ibv;
	int n = 0;
	/* Read without the lock, as a driver reads its device's ring. */
	if (__atomic_load_n(&cq->count, __ATOMIC_ACQUIRE) == 0)
		return cq->overrun ? -1 : 0;
	pthread_spin_lock(&cq->lock);
	while (n < max && cq->count) {
		wc[n++] = cq->ring[cq->head];
		cq->head = cq->head + 1 < cq->size ? cq->head + 1 : 0;
		cq->count--;
	}
	pthread_spin_unlock(&cq->lock);
	return n;
}

int queue_arm(struct ibv_cq *ibv, int solicited_only)
{
	struct cq *cq = (struct cq *)ibv;
	(void)solicited_only;
	pthread_spin_lock(&cq->lock);
	cq->armed = true;
	pthread_spin_unlock(&cq->lock);
	return 0;
}

static void end_receive(struct qp *qp, enum ibv_wc_status status, const struct ibv_send_wr *by, uint32_t len)
{
	struct ibv_wc wc = {.status = status, .opcode = IBV_WC_RECV, .qp_num = qp->ibv.qp_num, .byte_len = len};
	pthread_spin_lock(&qp->lock);
	if (qp->count == 0) {
		pthread_spin_unlock(&qp->lock);
		return;
	}
	wc.wr_id = qp->receives[qp->head].id;
	qp->head = qp->head + 1 < qp->size ? qp->head + 1 : 0;
	qp->count--;
	pthread_spin_unlock(&qp->lock);
	if (by && by->opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
		wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
	if (by && by->opcode != IBV_WR_SEND) {
		wc.wc_flags = IBV_WC_WITH_IMM;
		wc.imm_data = by->imm_data;
	}
	if (by && by->sg_list && by->num_sge)
		wc.src_qp = qp->attr.dest_qp_num;
	complete((struct cq *)qp->ibv.recv_cq, &wc);
}

static void flush(struct qp *qp)
{
	while (qp->count)
		end_receive(qp, IBV_WC_WR_FLUSH_ERR, NULL, 0);
}

static struct qp *find(uint32_t number)
{
	struct qp *qp = qps;
	while (qp && qp->ibv.qp_num != number)
		qp = qp->next;
	return qp;
}

static enum ibv_wc_opcode completed(enum ibv_wr_opcode opcode)
{
	switch (opcode) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		return IBV_WC_RDMA_WRITE;
	case IBV_WR_RDMA_READ:
		return IBV_WC_RDMA_READ;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		return IBV_WC_COMP_SWAP;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		return IBV_WC_FETCH_ADD;
	default:
		return IBV_WC_SEND;
	}
}

static int fail(struct qp *qp, const char *what)
{
	return qp->faulty ? fake_fault(what) : 0;
}

static void to_error(struct qp *qp)
{
	qp->ibv.state = IBV_QPS_ERR;
	flush(qp);
}

int queue_send(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct qp *qp = (struct qp *)ibv;
	bells++;
	for (; wr; wr = wr->next) {
		int refused = fail(qp, "post_send");
		if (!refused && ibv->state < IBV_QPS_RTS)
			refused = EINVAL;
		if (refused) {
			*bad = wr;
			return refused;
		}
		if (wr->send_flags & IBV_SEND_FENCE)
			__atomic_add_fetch(&fences, 1, __ATOMIC_RELAXED);
		requests++;
		uint32_t len = 0;
		for (int i = 0; i < wr->num_sge; i++)
			len += wr->sg_list[i].length;
		if (wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
			last[0] = wr->opcode, last[1] = wr->wr.atomic.remote_addr, last[2] = wr->wr.atomic.compare_add;
			last[3] = wr->wr.atomic.swap, last[4] = wr->wr.atomic.rkey, last[5] = len;
		}
		if ((wr->send_flags & IBV_SEND_INLINE) && len > qp->max_inline) {
			*bad = wr;
			return ENOMEM;
		}
		if (qp->faulty && wr->opcode == IBV_WR_SEND && wr->num_sge == 1 && len == sizeof *qp->said)
			memcpy(qp->said[qp->says++ % SAID], (void *)(uintptr_t)wr->sg_list->addr, len);
		if (qp->deaf)
			continue;
		enum ibv_wc_status status = ibv->state == IBV_QPS_ERR ? IBV_WC_WR_FLUSH_ERR : (unsigned)fail(qp, "wc");
		int event = fail(qp, "qp_event");
		if (event)
			raise_event(ibv->context, event, ibv);
		if (status == IBV_WC_SUCCESS && qp->peer && qp->peer->ibv.state != IBV_QPS_ERR &&
		    (wr->opcode == IBV_WR_SEND || wr->opcode == IBV_WR_SEND_WITH_IMM ||
		     wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM))
			end_receive(qp->peer, IBV_WC_SUCCESS, wr, len);
		if (status || qp->signal_all || (wr->send_flags & IBV_SEND_SIGNALED)) {
			struct ibv_wc wc = {.wr_id = wr->wr_id, .status = status, .opcode = completed(wr->opcode)};
			wc.qp_num = ibv->qp_num;
			wc.byte_len = len;
			wc.vendor_err = status && status != IBV_WC_WR_FLUSH_ERR ? 0x5a : 0;
			complete((struct cq *)ibv->send_cq, &wc);
		}
		if (status && ibv->state != IBV_QPS_ERR)
			to_error(qp);
	}
	return 0;
}

int queue_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct qp *qp = (struct qp *)ibv;
	for (; wr; wr = wr->next) {
		int refused = fail(qp, "post_recv");
		if (!refused && ibv->state == IBV_QPS_RESET)
			refused = EINVAL;
		pthread_spin_lock(&qp->lock);
		if (!refused && qp->count == qp->size)
			refused = ENOMEM;
		if (!refused) {
			uint32_t at = qp->head + qp->count++;
			struct receive *r = &qp->receives[at < qp->size ? at : at - qp->size];
			r->id = wr->wr_id;
			r->at = wr->num_sge ? (void *)(uintptr_t)wr->sg_list->addr : NULL;
			r->room = wr->num_sge ? wr->sg_list->length : 0;
		}
		pthread_spin_unlock(&qp->lock);
		if (refused) {
			*bad = wr;
			return refused;
		}
	}
	if (ibv->state == IBV_QPS_ERR)
		flush(qp);
	return 0;
}

/* For tests, about the queue pair with this number: delivers `len` bytes, of which its receive copies as many as it has room
 * for. */
API void fake_verbs_deliver(uint32_t number, const void *bytes, uint32_t len);
/* Its message with this index, from 0 on; false: not sent yet, or overwritten by later ones. */
API bool fake_verbs_said(uint32_t number, uint32_t place, void *bytes);
/* The number of reads that it may have under way at once. */
API int fake_verbs_reads(uint32_t number);
/* From now on none of its messages is acknowledged. */
API void fake_verbs_deafen(uint32_t number);

static struct qp *number(uint32_t number)
{
	fake_lock();
	struct qp *qp = find(number);
	fake_unlock();
	return qp;
}

API void fake_verbs_deliver(uint32_t to, const void *bytes, uint32_t len)
{
	static const struct ibv_send_wr plain = {.opcode = IBV_WR_SEND};
	struct qp *qp = number(to);
	if (!qp || !qp->count)
		return;
	const struct receive *r = &qp->receives[qp->head];
	if (r->at)
		memcpy(r->at, bytes, len < r->room ? len : r->room);
	end_receive(qp, IBV_WC_SUCCESS, &plain, len);
}

API bool fake_verbs_said(uint32_t from, uint32_t place, void *bytes)
{
	struct qp *qp = number(from);
	if (!qp || place >= qp->says || qp->says - place > SAID)
		return false;
	memcpy(bytes, qp->said[place % SAID], sizeof *qp->said);
	return true;
}

API int fake_verbs_reads(uint32_t of)
{
	struct qp *qp = number(of);
	return qp ? qp->attr.max_rd_atomic : -1;
}

API void fake_verbs_deafen(uint32_t of)
{
	struct qp *qp = number(of);
	if (qp)
		qp->deaf = true;
}

int fake_most_entries(void)
{
	const char *most = getenv("FAKE_IBVERBS_CQE");
	return most ? atoi(most) : 1 << 20;
}

API struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *data, struct ibv_comp_channel *channel,
				 int vector)
{
	FAULT_NULL(ibv_create_cq);
	if (cqe <= 0 || cqe > fake_most_entries() || vector != 0) {
		errno = EINVAL;
		return NULL;
	}
	struct cq *cq = calloc(1, sizeof *cq);
	if (!cq || !(cq->ring = calloc((size_t)cqe, sizeof *cq->ring))) {
		free(cq);
		return NULL;
	}
	pthread_spin_init(&cq->lock, PTHREAD_PROCESS_PRIVATE);
	cq->size = (uint32_t)cqe;
	cq->ibv.context = context;
	cq->ibv.channel = channel;
	cq->ibv.cq_context = data;
	cq->ibv.cqe = cqe;
	if (channel)
		channel->refcnt++;
	object_made();
	return &cq->ibv;
}

API int ibv_resize_cq(struct ibv_cq *ibv, int cqe)
{
	struct cq *cq = (struct cq *)ibv;
	FAKE_FAULT(ibv_resize_cq);
	struct ibv_wc *ring = cqe > 0 && cqe <= fake_most_entries() && (uint32_t)cqe >= cq->count ? calloc((size_t)cqe, sizeof *ring) : NULL;
	if (!ring)
		return EINVAL;
	pthread_spin_lock(&cq->lock);
	for (uint32_t i = 0; i < cq->count; i++)
		ring[i] = cq->ring[(cq->head + i) % cq->size];
	free(cq->ring);
	cq->ring = ring;
	cq->head = 0;
	cq->size = (uint32_t)cqe;
	ibv->cqe = cqe;
	pthread_spin_unlock(&cq->lock);
	return 0;
}

API int ibv_destroy_cq(struct ibv_cq *ibv)
{
	struct cq *cq = (struct cq *)ibv;
	FAKE_FAULT(ibv_destroy_cq);
	fake_lock();
	struct qp *user = qps;
	while (user && user->ibv.send_cq != ibv && user->ibv.recv_cq != ibv)
		user = user->next;
	fake_unlock();
	if (user)
		return EBUSY;
	if (ibv->channel)
		ibv->channel->refcnt--;
	pthread_spin_destroy(&cq->lock);
	free(cq->ring);
	free(cq);
	object_gone();
	return 0;
}

API struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
	static uint32_t number = 0x11;
	FAULT_NULL(ibv_create_qp);
	if (init->qp_type != IBV_QPT_RC || !init->send_cq || !init->recv_cq || init->cap.max_send_wr > 1 << 14 ||
	    init->cap.max_recv_wr > 1 << 14 || init->cap.max_send_sge > 16 || init->cap.max_recv_sge > 16 ||
	    init->cap.max_inline_data > 512) {
		errno = EINVAL;
		return NULL;
	}
	struct qp *qp = calloc(1, sizeof *qp);
	qp->size = init->cap.max_recv_wr;
	qp->receives = calloc(qp->size ? qp->size : 1, sizeof *qp->receives);
	pthread_spin_init(&qp->lock, PTHREAD_PROCESS_PRIVATE);
	qp->signal_all = init->sq_sig_all;
	qp->faulty = getenv("FAKE_FAULT") != NULL;
	qp->max_inline = init->cap.max_inline_data;
	qp->attr.cap = init->cap;
	qp->ibv.context = pd->context;
	qp->ibv.qp_context = init->qp_context;
	qp->ibv.pd = pd;
	qp->ibv.send_cq = init->send_cq;
	qp->ibv.recv_cq = init->recv_cq;
	qp->ibv.qp_type = init->qp_type;
	fake_lock();
	qp->ibv.qp_num = number++;
	qp->next = qps;
	qps = qp;
	fake_unlock();
	object_made();
	return &qp->ibv;
}

API int ibv_modify_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int mask)
{
	struct qp *qp = (struct qp *)ibv;
	FAKE_FAULT(ibv_modify_qp);
	if (mask & IBV_QP_DEST_QPN) {
		fake_lock();
		qp->peer = find(attr->dest_qp_num);
		/* The queue pair that was connected first could not find this one then: completes its link. */
		if (qp->peer && qp->peer->attr.dest_qp_num == ibv->qp_num)
			qp->peer->peer = qp;
		qp->attr.dest_qp_num = attr->dest_qp_num;
		fake_unlock();
	}
	if (mask & IBV_QP_MAX_QP_RD_ATOMIC)
		qp->attr.max_rd_atomic = attr->max_rd_atomic;
	if (mask & IBV_QP_ACCESS_FLAGS)
		qp->attr.qp_access_flags = attr->qp_access_flags;
	if (!(mask & IBV_QP_STATE))
		return 0;
	/* Each state can follow only the previous one; reset and error can follow all. */
	if (attr->qp_state != IBV_QPS_RESET && attr->qp_state != IBV_QPS_ERR && attr->qp_state != ibv->state &&
	    attr->qp_state != ibv->state + 1)
		return EINVAL;
	ibv->state = attr->qp_state;
	if (ibv->state == IBV_QPS_ERR)
		flush(qp);
	if (ibv->state == IBV_QPS_RESET)
		qp->head = qp->count = 0;
	return 0;
}

API int ibv_query_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	struct qp *qp = (struct qp *)ibv;
	FAKE_FAULT(ibv_query_qp);
	(void)mask;
	*attr = qp->attr;
	attr->qp_state = attr->cur_qp_state = ibv->state;
	memset(init, 0, sizeof *init);
	init->send_cq = ibv->send_cq;
	init->recv_cq = ibv->recv_cq;
	init->cap = qp->attr.cap;
	init->qp_type = ibv->qp_type;
	return 0;
}

API int ibv_destroy_qp(struct ibv_qp *ibv)
{
	struct qp *qp = (struct qp *)ibv, **at = &qps;
	FAKE_FAULT(ibv_destroy_qp);
	fake_lock();
	while (*at != qp)
		at = &(*at)->next;
	*at = qp->next;
	for (struct qp *other = qps; other; other = other->next)
		if (other->peer == qp)
			other->peer = NULL;
	fake_unlock();
	/* Completions of a destroyed queue pair are gone, as with a device. */
	struct cq *queues[2] = {(struct cq *)ibv->send_cq, (struct cq *)ibv->recv_cq};
	for (int i = 0; i < 2; i++) {
		struct cq *cq = queues[i];
		uint32_t kept = 0;
		pthread_spin_lock(&cq->lock);
		for (uint32_t n = 0; n < cq->count; n++) {
			struct ibv_wc wc = cq->ring[(cq->head + n) % cq->size];
			if (wc.qp_num != ibv->qp_num)
				cq->ring[(cq->head + kept++) % cq->size] = wc;
		}
		cq->count = kept;
		pthread_spin_unlock(&cq->lock);
	}
	pthread_spin_destroy(&qp->lock);
	free(qp->receives);
	free(qp);
	object_gone();
	return 0;
}
