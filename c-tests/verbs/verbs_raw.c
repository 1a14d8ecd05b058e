/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A peer without gdrfab: a queue pair of plain libibverbs on the other side, connected by exchanged addresses. gdrfab adds no
 * protocol of its own to messages, writes and reads, so both sides understand each other.
 *
 * Built where libibverbs has its headers (run.sh), and for the provider verbs alone.
 */
#include "fab.h"

#include <arpa/inet.h>
#include <infiniband/verbs.h>

#define SIZE 8192

/* --- the other side: libibverbs alone --- */

struct raw {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	unsigned char *memory;
	union ibv_gid gid;
	int gid_index;
	enum ibv_mtu mtu;
};

#define NEED(what)                                                                                                     \
	do {                                                                                                           \
		test_at(__FILE__, __LINE__);                                                                           \
		if (!(what))                                                                                           \
			test_fail(__FILE__, __LINE__, "%s: %s", #what, strerror(errno));                               \
	} while (0)

/* Finds the device and the index in its table that hold this GID. */
static void raw_open(struct raw *r, const union ibv_gid *gid)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	NEED(list != NULL);
	for (int i = 0; i < count && !r->context; i++) {
		struct ibv_context *c = ibv_open_device(list[i]);
		for (int k = 0; c && k < 16; k++)
			if (ibv_query_gid(c, 1, k, &r->gid) == 0 && memcmp(&r->gid, gid, sizeof *gid) == 0) {
				r->context = c;
				r->gid_index = k;
				break;
			}
		if (c && !r->context)
			ibv_close_device(c);
	}
	ibv_free_device_list(list);
	NEED(r->context != NULL);
	NEED((r->pd = ibv_alloc_pd(r->context)) != NULL);
	NEED((r->cq = ibv_create_cq(r->context, 64, NULL, NULL, 0)) != NULL);
	NEED((r->memory = (unsigned char *)aligned_alloc(4096, SIZE)) != NULL);
	memset(r->memory, 0, SIZE);
	NEED((r->mr = ibv_reg_mr(r->pd, r->memory, SIZE,
				 IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)) != NULL);
	struct ibv_qp_init_attr attr = {.send_cq = r->cq,
					.recv_cq = r->cq,
					.qp_type = IBV_QPT_RC,
					.cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1}};
	NEED((r->qp = ibv_create_qp(r->pd, &attr)) != NULL);
}

static void raw_connect(struct raw *r, uint32_t qpn, uint32_t psn, uint32_t own_psn)
{
	struct ibv_qp_attr init = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
	NEED(ibv_modify_qp(r->qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR,
				  .path_mtu = r->mtu,
				  .dest_qp_num = qpn,
				  .rq_psn = psn,
				  .max_dest_rd_atomic = 1,
				  .min_rnr_timer = 12,
				  .ah_attr = {.is_global = 1,
					      .port_num = 1,
					      .grh = {.dgid = r->gid, .sgid_index = (uint8_t)r->gid_index, .hop_limit = 1}}};
	NEED(ibv_modify_qp(r->qp, &rtr,
			   IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS,
				  .timeout = 14,
				  .retry_cnt = 7,
				  .rnr_retry = 7,
				  .sq_psn = own_psn,
				  .max_rd_atomic = 1};
	NEED(ibv_modify_qp(r->qp, &rts,
			   IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				   IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static struct ibv_wc raw_await(struct raw *r)
{
	struct ibv_wc wc;
	uint64_t until = test_now_ms() + (uint64_t)test_ms(10000);
	int n;
	while ((n = ibv_poll_cq(r->cq, 1, &wc)) == 0 && test_now_ms() < until)
		;
	NEED(n == 1);
	if (wc.status != IBV_WC_SUCCESS)
		test_fail(__FILE__, __LINE__, "the raw side: %s", ibv_wc_status_str(wc.status));
	return wc;
}

static struct ibv_sge raw_piece(const struct raw *r, size_t offset, size_t len)
{
	struct ibv_sge piece = {(uintptr_t)r->memory + offset, (uint32_t)len, r->mr->lkey};
	return piece;
}

static void raw_receive(struct raw *r, size_t offset, size_t len)
{
	struct ibv_sge piece = raw_piece(r, offset, len);
	struct ibv_recv_wr wr = {.sg_list = &piece, .num_sge = 1}, *bad;
	NEED(ibv_post_recv(r->qp, &wr, &bad) == 0);
}

static void raw_post(struct raw *r, enum ibv_wr_opcode opcode, size_t offset, size_t len, uint64_t addr, uint32_t rkey,
		     uint32_t imm)
{
	struct ibv_sge piece = raw_piece(r, offset, len);
	struct ibv_send_wr wr = {
		.sg_list = &piece, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED, .imm_data = htonl(imm)};
	struct ibv_send_wr *bad;
	wr.wr.rdma.remote_addr = addr;
	wr.wr.rdma.rkey = rkey;
	NEED(ibv_post_send(r->qp, &wr, &bad) == 0);
	raw_await(r);
}

static void raw_side(struct node *n)
{
	struct raw r = {0};
	char theirs[GDRFAB_ADDR_MAX], mine[GDRFAB_ADDR_MAX], digits[33];
	uint32_t qpn, psn, mtu, own_psn = 4711;
	union ibv_gid gid;
	oob_recv(n, theirs, sizeof theirs);
	if (sscanf(theirs, "verbs+qp://?lid=%*u&gid=%32[0-9a-f]&qpn=%u&psn=%u&mtu=%u", digits, &qpn, &psn, &mtu) != 4)
		test_fail(__FILE__, __LINE__, "the address %s", theirs);
	for (int i = 0; i < 16; i++) {
		unsigned byte;
		sscanf(digits + 2 * i, "%2x", &byte);
		gid.raw[i] = (uint8_t)byte;
	}
	raw_open(&r, &gid);
	r.mtu = mtu >= 4096 ? IBV_MTU_4096 : mtu >= 2048 ? IBV_MTU_2048 : mtu >= 1024 ? IBV_MTU_1024 : IBV_MTU_512;
	snprintf(mine, sizeof mine, "verbs+qp://?lid=0&gid=%s&qpn=%u&psn=%u&mtu=%u", digits, r.qp->qp_num, own_psn, mtu);
	raw_connect(&r, qpn, psn, own_psn);
	raw_receive(&r, 0, 1024);
	raw_receive(&r, 1024, 1024);
	oob_send(n, mine, sizeof mine);

	struct remote here = {r.mr->rkey, (uintptr_t)r.memory, SIZE}, there;
	oob_send(n, &here, sizeof here);
	oob_recv(n, &there, sizeof there);

	/* From libibverbs: a message, a message with data, a write with data. */
	struct ibv_wc wc = raw_await(&r);
	CHECK(wc.opcode == IBV_WC_RECV && wc.byte_len == 700);
	CHECK_FILLED("the message", r.memory, 700, 0, 1);
	wc = raw_await(&r);
	CHECK(wc.opcode == IBV_WC_RECV && wc.byte_len == 5 && wc.wc_flags & IBV_WC_WITH_IMM);
	CHECK(ntohl(wc.imm_data) == 0xc0ffee);
	raw_receive(&r, 0, 0);
	barrier(n);
	wc = raw_await(&r);
	CHECK(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.byte_len == 2000 && ntohl(wc.imm_data) == 0xfeedface);
	CHECK_FILLED("the write", r.memory + 4096, 2000, 0, 3);

	/* From gdrfab: the same in the other direction. */
	barrier(n);
	fill(r.memory, 600, 0, 4);
	raw_post(&r, IBV_WR_SEND, 0, 600, 0, 0, 0);
	raw_post(&r, IBV_WR_SEND_WITH_IMM, 0, 600, 0, 0, 77);
	fill(r.memory + 2048, 1500, 0, 5);
	/* Behind the messages, which the other side may still be checking. */
	raw_post(&r, IBV_WR_RDMA_WRITE, 2048, 1500, there.base + 4096, (uint32_t)there.key, 0);
	raw_post(&r, IBV_WR_RDMA_WRITE_WITH_IMM, 2048, 0, there.base, (uint32_t)there.key, 78);
	raw_post(&r, IBV_WR_RDMA_READ, 6000, 1500, there.base + 4096, (uint32_t)there.key, 0);
	CHECK_FILLED("what was read back", r.memory + 6000, 1500, 0, 5);
	barrier(n);

	ibv_destroy_qp(r.qp);
	ibv_dereg_mr(r.mr);
	ibv_destroy_cq(r.cq);
	ibv_dealloc_pd(r.pd);
	ibv_close_device(r.context);
	free(r.memory);
}

/* --- the side with gdrfab --- */

static void gdrfab_side(struct node *n)
{
	char mine[GDRFAB_ADDR_MAX] = "", theirs[GDRFAB_ADDR_MAX];
	size_t len = sizeof mine;
	node_open(n);
	n->ep = ep_new(n, n->info, NULL);
	OK(gdrfab_ep_getname(n->ep, mine, &len));
	struct mem m;
	mem_new(n, &m, &memkinds[KIND_MALLOC], SIZE);
	mem_register(n, &m, 0, SIZE, ANY_ACCESS, 0);
	void *desc = mem_desc(&m);
	oob_send(n, mine, sizeof mine);
	oob_recv(n, theirs, sizeof theirs);
	OK(gdrfab_ep_connect_addr(n->ep, theirs, strlen(theirs) + 1));
	EVENT(n->eq, GDRFAB_CONNECTED, n->ep, NULL);
	struct remote there, here = {m.key, m.base, SIZE};
	oob_recv(n, &there, sizeof there);
	oob_send(n, &here, sizeof here);

	int a, b, c;
	fill(m.addr, 700, 0, 1);
	POST(n->cq, gdrfab_send(n->ep, m.addr, 700, desc, 0, &a));
	POST(n->cq, gdrfab_senddata(n->ep, m.addr, 5, desc, 0xc0ffee, 0, &b));
	DONE(n->cq, &a, GDRFAB_SEND, NULL);
	DONE(n->cq, &b, GDRFAB_SEND, NULL);
	barrier(n);
	fill(m.addr + 4096, 2000, 0, 3);
	POST(n->cq, gdrfab_writedata(n->ep, m.addr + 4096, 2000, desc, 0xfeedface, 0, there.base + 4096, there.key, &c));
	DONE(n->cq, &c, GDRFAB_WRITE, NULL);
	POST(n->cq, gdrfab_read(n->ep, m.addr, 2000, desc, 0, there.base + 4096, there.key, &c));
	DONE(n->cq, &c, GDRFAB_READ, NULL);
	CHECK_FILLED("what was read back", m.addr, 2000, 0, 3);

	done entry;
	for (int i = 0; i < 3; i++)
		POST(n->cq, gdrfab_recv(n->ep, m.addr + 1024 * i, 1024, desc, 0, &b));
	barrier(n);
	DONE(n->cq, &b, GDRFAB_RECV | GDRFAB_MSG, &entry);
	CHECK(entry.len == 600);
	CHECK_FILLED("the raw side's message", m.addr, 600, 0, 4);
	DONE(n->cq, &b, GDRFAB_RECV | GDRFAB_REMOTE_CQ_DATA, &entry);
	CHECK(entry.len == 600 && entry.data == 77);
	DONE(n->cq, &b, GDRFAB_REMOTE_WRITE | GDRFAB_REMOTE_CQ_DATA, &entry);
	CHECK(entry.data == 78);
	barrier(n);

	mem_unregister(&m);
	mem_end(n, &m);
	node_close(n);
}

TEST(a_queue_pair_of_plain_libibverbs_is_a_peer)
{
	skip_unless(strcmp(provider(), "verbs") == 0, "a peer of plain verbs is for verbs");
	pair(NULL, raw_side, gdrfab_side, NULL);
}
