/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Posts 8-byte writes or messages and takes their completions, by gdrfab or by the bare verbs, over the same
 * libibverbs: the fake one, whose queues do nothing (c-tests/fakes). count.sh counts the instructions of `measured`
 * under callgrind.
 *
 *   LIBIBVERBS=.../libibverbs.so.1 GDRFAB_DEBUG=ibverbs=$LIBIBVERBS count raw|domain|safe|real write|message DEPTH ROUNDS
 *
 * A round posts DEPTH writes and then takes their completions; or DEPTH receives on another queue pair and as many
 * sends, and takes the completions of both. Every operation requests its completion and carries its bytes inline in
 * the work request, on both sides. `real` is for a real device: as domain, and the bytes must arrive.
 */
#define _GNU_SOURCE
#include "../ok.h"

#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <string.h>

#undef ibv_reg_mr

enum { MOST = 64, BYTES = 8 };

static volatile uint64_t source, target;

/* ---- the bare verbs */

static void *library;

#define CALL(name) ((__typeof__(&name))symbol(#name))
static void *symbol(const char *name)
{
	void *at = dlsym(library, name);
	if (!at)
		fail(name, "no such symbol");
	return at;
}

struct raw {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
};

static void raw_load(void)
{
	const char *name = getenv("LIBIBVERBS");
	library = dlopen(name ? name : "libibverbs.so.1", RTLD_NOW);
	if (!library)
		fail("libibverbs", dlerror());
}

static struct raw raw_open(uint32_t peer)
{
	struct raw r;
	struct ibv_device **list = CALL(ibv_get_device_list)(NULL);
	struct ibv_context *context = list && list[0] ? CALL(ibv_open_device)(list[0]) : NULL;
	if (!context)
		fail("opening a device", "there is none");
	struct ibv_pd *pd = CALL(ibv_alloc_pd)(context);
	r.mr = CALL(ibv_reg_mr)(pd, (void *)&source, sizeof source, IBV_ACCESS_LOCAL_WRITE);
	r.cq = CALL(ibv_create_cq)(context, 4096, NULL, NULL, 0);
	struct ibv_qp_init_attr init = {.send_cq = r.cq, .recv_cq = r.cq, .qp_type = IBV_QPT_RC};
	init.cap = (struct ibv_qp_cap){512, 512, 1, 1, 220};
	r.qp = CALL(ibv_create_qp)(pd, &init);
	if (!r.qp || !r.mr)
		fail("making a queue pair", "refused");
	/* The fake checks only states, not the attributes that a device would need for them. */
	for (int state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++) {
		struct ibv_qp_attr attr = {.qp_state = (enum ibv_qp_state)state, .dest_qp_num = peer};
		if (CALL(ibv_modify_qp)(r.qp, &attr, IBV_QP_STATE | (peer ? IBV_QP_DEST_QPN : 0)))
			fail("ibv_modify_qp", "refused");
	}
	return r;
}

static __attribute__((noinline)) void measured_raw(struct raw *r, int depth, long rounds)
{
	struct ibv_wc wc[16];
	for (long round = 0; round < rounds; round++) {
		for (int i = 0; i < depth; i++) {
			struct ibv_sge sge = {(uintptr_t)&source, BYTES, r->mr->lkey};
			struct ibv_send_wr wr = {.wr_id = (uintptr_t)r, .sg_list = &sge, .num_sge = 1}, *bad;
			wr.opcode = IBV_WR_RDMA_WRITE;
			wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
			wr.wr.rdma.remote_addr = (uintptr_t)&target;
			wr.wr.rdma.rkey = r->mr->rkey;
			if (ibv_post_send(r->qp, &wr, &bad))
				fail("ibv_post_send", "refused");
		}
		for (int done = 0; done < depth;) {
			int n = ibv_poll_cq(r->cq, depth < 16 ? depth : 16, wc);
			if (n < 0 || (n > 0 && (wc[0].status || wc[0].wr_id != (uintptr_t)r)))
				fail("ibv_poll_cq", "a failure");
			done += n;
		}
	}
}

static void raw_take(struct raw *r, int depth)
{
	struct ibv_wc wc[16];
	for (int done = 0; done < depth;) {
		int n = ibv_poll_cq(r->cq, depth < 16 ? depth : 16, wc);
		if (n < 0 || (n > 0 && (wc[0].status || wc[0].wr_id != (uintptr_t)r)))
			fail("ibv_poll_cq", "a failure");
		done += n;
	}
}

static __attribute__((noinline)) void measured_raw_message(struct raw *r, struct raw *to, int depth, long rounds)
{
	for (long round = 0; round < rounds; round++) {
		for (int i = 0; i < depth; i++) {
			struct ibv_sge sge = {(uintptr_t)&target, BYTES, to->mr->lkey};
			struct ibv_recv_wr wr = {.wr_id = (uintptr_t)to, .sg_list = &sge, .num_sge = 1}, *bad;
			if (ibv_post_recv(to->qp, &wr, &bad))
				fail("ibv_post_recv", "refused");
		}
		for (int i = 0; i < depth; i++) {
			struct ibv_sge sge = {(uintptr_t)&source, BYTES, r->mr->lkey};
			struct ibv_send_wr wr = {.wr_id = (uintptr_t)r, .sg_list = &sge, .num_sge = 1}, *bad;
			wr.opcode = IBV_WR_SEND;
			wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
			if (ibv_post_send(r->qp, &wr, &bad))
				fail("ibv_post_send", "refused");
		}
		raw_take(r, depth);
		raw_take(to, depth);
	}
}

/* ---- gdrfab */

struct side {
	gdrfab_cq *cq;
	gdrfab_eq *eq;
	gdrfab_ep *ep;
	gdrfab_domain *domain;
	char address[GDRFAB_ADDR_MAX];
	size_t length;
};

static struct side side_open(gdrfab_info *info, gdrfab_fabric *fabric)
{
	struct side s = {.length = sizeof s.address};
	gdrfab_cq_attr attr = {sizeof attr, 512, 0, GDRFAB_CQ_FORMAT_DATA, GDRFAB_WAIT_NONE};
	OK(gdrfab_domain_open(fabric, info, NULL, &s.domain));
	OK(gdrfab_eq_open(fabric, NULL, NULL, &s.eq));
	OK(gdrfab_cq_open(s.domain, &attr, NULL, &s.cq));
	OK(gdrfab_ep_open(s.domain, info, NULL, &s.ep));
	OK(gdrfab_ep_bind_cq(s.ep, s.cq, GDRFAB_TRANSMIT | GDRFAB_RECV));
	OK(gdrfab_ep_bind_eq(s.ep, s.eq, 0));
	OK(gdrfab_ep_enable(s.ep));
	OK(gdrfab_ep_getname(s.ep, s.address, &s.length));
	/* Without the library's second queue pair: the fake would not carry its handshake. */
	char *service = strstr(s.address, "&svc=");
	if (service) {
		char *end = service + 1 + strcspn(service + 1, "&");
		memmove(service, end, strlen(end) + 1);
	}
	return s;
}

static __attribute__((noinline)) void measured_gdrfab(struct side *s, void *desc, uint64_t key, int depth, long rounds)
{
	gdrfab_cq_data_entry entry[16];
	for (long round = 0; round < rounds; round++) {
		for (int i = 0; i < depth; i++)
			if (gdrfab_write(s->ep, (void *)&source, BYTES, desc, 0, (uintptr_t)&target, key, s))
				fail("gdrfab_write", gdrfab_last_error());
		for (int done = 0; done < depth;) {
			ssize_t n = gdrfab_cq_read(s->cq, entry, depth < 16 ? (size_t)depth : 16);
			if ((n < 0 && n != -EAGAIN) || (n > 0 && entry[0].op_context != s))
				fail("gdrfab_cq_read", "a failure");
			done += n > 0 ? (int)n : 0;
		}
	}
}

static void take(struct side *s, int depth)
{
	gdrfab_cq_data_entry entry[16];
	for (int done = 0; done < depth;) {
		ssize_t n = gdrfab_cq_read(s->cq, entry, depth < 16 ? (size_t)depth : 16);
		if ((n < 0 && n != -EAGAIN) || (n > 0 && entry[0].op_context != s))
			fail("gdrfab_cq_read", "a failure");
		done += n > 0 ? (int)n : 0;
	}
}

static __attribute__((noinline)) void measured_gdrfab_message(struct side *s, struct side *to, void *desc, void *there,
							       int depth, long rounds)
{
	for (long round = 0; round < rounds; round++) {
		for (int i = 0; i < depth; i++)
			if (gdrfab_recv(to->ep, (void *)&target, BYTES, there, 0, to))
				fail("gdrfab_recv", gdrfab_last_error());
		for (int i = 0; i < depth; i++)
			if (gdrfab_send(s->ep, (void *)&source, BYTES, desc, 0, s))
				fail("gdrfab_send", gdrfab_last_error());
		take(s, depth);
		take(to, depth);
	}
}

static void by_gdrfab(bool one_thread, bool real, bool messages, int depth, long rounds)
{
	gdrfab_info *hints = gdrfab_dupinfo(NULL), *info;
	gdrfab_fabric *fabric;
	gdrfab_mr *mr, *there;
	char name[] = "verbs";
	hints->prov_name = name;
	hints->mr_mode = GDRFAB_MR_LOCAL | GDRFAB_MR_VIRT_ADDR | GDRFAB_MR_PROV_KEY;
	hints->threading = one_thread ? GDRFAB_THREAD_DOMAIN : GDRFAB_THREAD_SAFE;
	OK(gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, 0, hints, &info));
	hints->prov_name = NULL;
	OK(gdrfab_fabric_open(info, NULL, &fabric));
	struct side a = side_open(info, fabric), b = side_open(info, fabric);
	OK(gdrfab_ep_connect_addr(a.ep, b.address, b.length));
	OK(gdrfab_ep_connect_addr(b.ep, a.address, a.length));
	OK(gdrfab_mr_reg(a.domain, (void *)&source, sizeof source, GDRFAB_WRITE, 0, 0, 0, NULL, &mr));
	OK(gdrfab_mr_reg(b.domain, (void *)&target, sizeof target, GDRFAB_REMOTE_WRITE, 0, 0, 0, NULL, &there));
	/* The fake has no peer in another process; the bare queue pair has none either. */
	if (!real && !messages)
		OK(gdrfab_ep_close(b.ep));
	if (messages)
		measured_gdrfab_message(&a, &b, gdrfab_mr_desc(mr), gdrfab_mr_desc(there), depth, rounds);
	else
		measured_gdrfab(&a, gdrfab_mr_desc(mr), gdrfab_mr_key(there), depth, rounds);
	for (source = 1; real && source < 1000; source++) {
		measured_gdrfab(&a, gdrfab_mr_desc(mr), gdrfab_mr_key(there), 1, 1);
		if (target != source)
			fail("gdrfab_write", "its completion came, and its bytes did not");
	}
	OK(gdrfab_ep_close(a.ep));
	if (real || messages)
		OK(gdrfab_ep_close(b.ep));
	OK(gdrfab_mr_close(mr));
	OK(gdrfab_mr_close(there));
	for (int i = 0; i < 2; i++) {
		struct side *s = i ? &b : &a;
		OK(gdrfab_cq_close(s->cq));
		OK(gdrfab_eq_close(s->eq));
		OK(gdrfab_domain_close(s->domain));
	}
	OK(gdrfab_fabric_close(fabric));
	gdrfab_freeinfo(info);
	gdrfab_freeinfo(hints);
}

int main(int argc, char **argv)
{
	bool messages = argc == 5 && !strcmp(argv[2], "message");
	int depth = argc == 5 ? atoi(argv[3]) : 0;
	long rounds = argc == 5 ? atol(argv[4]) : 0;
	if (depth < 1 || depth > MOST || rounds < 1) {
		fprintf(stderr, "usage: count raw|domain|safe|real write|message DEPTH ROUNDS\n");
		return 2;
	}
	if (!strcmp(argv[1], "raw")) {
		raw_load();
		struct raw r = raw_open(0);
		if (messages) {
			struct raw to = raw_open(r.qp->qp_num);
			struct ibv_qp_attr attr = {.dest_qp_num = to.qp->qp_num};
			if (CALL(ibv_modify_qp)(r.qp, &attr, IBV_QP_DEST_QPN))
				fail("ibv_modify_qp", "refused");
			measured_raw_message(&r, &to, depth, rounds);
		} else {
			measured_raw(&r, depth, rounds);
		}
	} else {
		by_gdrfab(strcmp(argv[1], "safe") != 0, !strcmp(argv[1], "real"), messages, depth, rounds);
	}
	return 0;
}
