/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Calls that connected endpoints do not have. libfabric checks no slot before it calls it, so each must return an
 * error. */
#include "fi.h"

#include <rdma/fi_atomic.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_tagged.h>

/* The two errnos by which a provider reports that it lacks a call. */
static bool none(ssize_t rc)
{
	return rc == -FI_ENOSYS || rc == -FI_EOPNOTSUPP;
}

#define NONE(call)                                                                                                     \
	do {                                                                                                           \
		test_at(__FILE__, __LINE__);                                                                           \
		ssize_t rc_ = (call);                                                                                  \
		if (!none(rc_))                                                                                        \
			test_wrong(__FILE__, __LINE__, "%s is %s", #call, test_number(rc_));                           \
	} while (0)

static struct node n;
static unsigned char at[64];

static void open_alone(void)
{
	skip_unless(is_gdrfab(), "leaves slots empty");
	node_alone(&n, NULL);
	n.ep = ep_new(&n, n.info, &n);
}

TEST(tagged)
{
	struct iovec iov = {at, sizeof at};
	struct fi_msg_tagged msg;
	memset(&msg, 0, sizeof msg);
	msg.msg_iov = &iov;
	msg.iov_count = 1;
	open_alone();
	NONE(fi_trecv(n.ep, at, 8, NULL, 0, 1, 0, NULL));
	NONE(fi_trecvv(n.ep, &iov, NULL, 1, 0, 1, 0, NULL));
	NONE(fi_trecvmsg(n.ep, &msg, 0));
	NONE(fi_tsend(n.ep, at, 8, NULL, 0, 1, NULL));
	NONE(fi_tsendv(n.ep, &iov, NULL, 1, 0, 1, NULL));
	NONE(fi_tsendmsg(n.ep, &msg, 0));
	NONE(fi_tinject(n.ep, at, 8, 0, 1));
	NONE(fi_tsenddata(n.ep, at, 8, NULL, 1, 0, 1, NULL));
	NONE(fi_tinjectdata(n.ep, at, 8, 1, 0, 1));
	node_close(&n);
}

TEST(atomics)
{
	struct fi_ioc ioc = {at, 1};
	struct fi_rma_ioc target = {0, 1, 1};
	struct fi_msg_atomic msg;
	struct fi_atomic_attr attr;
	size_t count = 0;
	memset(&msg, 0, sizeof msg);
	msg.msg_iov = &ioc;
	msg.iov_count = 1;
	msg.rma_iov = &target;
	msg.rma_iov_count = 1;
	msg.datatype = FI_UINT64;
	msg.op = FI_SUM;
	skip_unless(is_carried_by("verbs"), "has atomics");
	open_alone();
	NONE(fi_atomic(n.ep, at, 1, NULL, 0, 0, 1, FI_UINT64, FI_SUM, NULL));
	NONE(fi_atomicv(n.ep, &ioc, NULL, 1, 0, 0, 1, FI_UINT64, FI_SUM, NULL));
	NONE(fi_atomicmsg(n.ep, &msg, 0));
	NONE(fi_inject_atomic(n.ep, at, 1, 0, 0, 1, FI_UINT64, FI_SUM));
	NONE(fi_fetch_atomic(n.ep, at, 1, NULL, at, NULL, 0, 0, 1, FI_UINT64, FI_SUM, NULL));
	NONE(fi_fetch_atomicv(n.ep, &ioc, NULL, 1, &ioc, NULL, 1, 0, 0, 1, FI_UINT64, FI_SUM, NULL));
	NONE(fi_fetch_atomicmsg(n.ep, &msg, &ioc, NULL, 1, 0));
	NONE(fi_compare_atomic(n.ep, at, 1, NULL, at, NULL, at, NULL, 0, 0, 1, FI_UINT64, FI_CSWAP, NULL));
	NONE(fi_compare_atomicv(n.ep, &ioc, NULL, 1, &ioc, NULL, 1, &ioc, NULL, 1, 0, 0, 1, FI_UINT64, FI_CSWAP,
				NULL));
	NONE(fi_compare_atomicmsg(n.ep, &msg, &ioc, NULL, 1, &ioc, NULL, 1, 0));
	NONE(fi_atomicvalid(n.ep, FI_UINT64, FI_SUM, &count));
	NONE(fi_fetch_atomicvalid(n.ep, FI_UINT64, FI_SUM, &count));
	NONE(fi_compare_atomicvalid(n.ep, FI_UINT64, FI_CSWAP, &count));
	NONE(fi_query_atomic(n.domain, FI_UINT64, FI_SUM, &attr, 0));
	node_close(&n);
}

TEST(objects_of_a_domain)
{
	struct fi_av_attr av_attr;
	struct fi_poll_attr poll_attr;
	struct fid_av *av = NULL;
	struct fid_ep *ep = NULL;
	struct fid_stx *stx = NULL;
	struct fid_poll *poll = NULL;
	uint64_t key = 0, base = 0;
	uint8_t raw[64];
	size_t raw_size = sizeof raw;
	void *ops = NULL;
	memset(&av_attr, 0, sizeof av_attr);
	memset(&poll_attr, 0, sizeof poll_attr);
	open_alone();
	NONE(fi_av_open(n.domain, &av_attr, &av, NULL));
	NONE(fi_scalable_ep(n.domain, n.info, &ep, NULL));
	NONE(fi_stx_context(n.domain, n.info->tx_attr, &stx, NULL));
	int rc = fi_srx_context(n.domain, n.info->rx_attr, &ep, NULL);
	if (n.info->domain_attr->max_ep_srx_ctx == 0)
		NONE(rc);
	else
		CLOSE(ep);
	NONE(fi_poll_open(n.domain, &poll_attr, &poll));
	NONE(fi_query_collective(n.domain, FI_BARRIER, NULL, 0));
	NONE(fi_domain_bind(n.domain, &n.eq->fid, 0));
	/* Extensions by name, among them those that ofi_rxm asks for. */
	NONE(fi_open_ops(&n.domain->fid, "ofix_flow_ctrl_v1", 0, &ops, NULL));
	NONE(fi_set_ops(&n.domain->fid, "ofix_dynamic_rbuf_v2", 0, &ops, NULL));
	NONE(fi_open_ops(&n.domain->fid, "no such thing", 0, &ops, NULL));
	NONE(fi_mr_map_raw(n.domain, 0, raw, sizeof raw, &key, 0));
	NONE(fi_mr_unmap_key(n.domain, 1));
	struct fid_mr *mr = mr_new(&n, at, sizeof at, FI_REMOTE_READ);
	/* A key of eight bytes may also be returned raw. */
	rc = fi_mr_raw_attr(mr, &base, raw, &raw_size, 0);
	CHECK(rc == 0 || none(rc));
	struct iovec iov = {at, sizeof at};
	rc = fi_mr_refresh(mr, &iov, 1, 0);
	CHECK(rc == 0 || none(rc));
	CLOSE(mr);
	node_close(&n);
}

TEST(calls_of_an_endpoint)
{
	struct fid_ep *other = NULL;
	struct fid_mc *mc = NULL;
	uint64_t flags = FI_TRANSMIT;
	open_alone();
	NONE(fi_ep_alias(n.ep, &other, 0));
	NONE(fi_tx_context(n.ep, 0, NULL, &other, NULL));
	NONE(fi_rx_context(n.ep, 0, NULL, &other, NULL));
	NONE(n.ep->ops->rx_size_left(n.ep));
	NONE(n.ep->ops->tx_size_left(n.ep));
	NONE(fi_join(n.ep, at, 0, &mc, NULL));
	NONE(fi_listen((struct fid_pep *)n.ep));
	NONE(fi_reject((struct fid_pep *)n.ep, NULL, NULL, 0));
	/* The default flags of one direction. */
	ssize_t rc = fi_control(&n.ep->fid, FI_GETOPSFLAG, &flags);
	CHECK(none(rc) || (rc == 0 && (flags & ~(FI_TRANSMIT | FI_COMPLETION)) == 0));
	NONE(fi_control(&n.ep->fid, 4711, &flags));
	/* A receive that was never posted cannot be cancelled. A provider that cancels nothing returns that errno. */
	rc = fi_cancel(&n.ep->fid, at);
	CHECK(rc == -FI_ENOENT || none(rc));
	node_close(&n);
}

TEST(calls_of_a_listener)
{
	size_t len = sizeof at;
	open_alone();
	struct fid_ep *as_ep = (struct fid_ep *)n.pep;
	NONE(fi_connect(as_ep, n.addr, NULL, 0));
	NONE(fi_accept(as_ep, NULL, 0));
	NONE(fi_shutdown(as_ep, 0));
	NONE(fi_getpeer(as_ep, at, &len));
	ssize_t rc = fi_cancel(&n.pep->fid, at);
	CHECK(none(rc));
	rc = fi_control(&n.pep->fid, 4711, NULL);
	CHECK(none(rc));
	int backlog = 5;
	rc = fi_control(&n.pep->fid, FI_BACKLOG, &backlog);
	CHECK(rc == 0 || none(rc));
	node_close(&n);
}

TEST(calls_of_queues_and_the_fabric)
{
	struct fid_wait *wait = NULL;
	struct fi_wait_attr wait_attr;
	struct fid_domain *domain = NULL;
	void *ops = NULL;
	memset(&wait_attr, 0, sizeof wait_attr);
	wait_attr.wait_obj = FI_WAIT_UNSPEC;
	open_alone();
	NONE(fi_wait_open(n.fabric, &wait_attr, &wait));
	NONE(fi_open_ops(&n.fabric->fid, "no such thing", 0, &ops, NULL));
	NONE(fi_control(&n.fabric->fid, 4711, NULL));
	NONE(fi_control(&n.domain->fid, 4711, NULL));
	NONE(fi_control(&n.cq->fid, 4711, NULL));
	NONE(fi_control(&n.eq->fid, 4711, NULL));
	NONE(fi_open_ops(&n.cq->fid, "no such thing", 0, &ops, NULL));
	NONE(fi_open_ops(&n.eq->fid, "no such thing", 0, &ops, NULL));
	NONE(fi_open_ops(&n.ep->fid, "no such thing", 0, &ops, NULL));
	NONE(n.cq->fid.ops->bind(&n.cq->fid, &n.eq->fid, 0));
	NONE(n.fabric->fid.ops->bind(&n.fabric->fid, &n.eq->fid, 0));
	/* Flags that may mean something to newer versions of libfabric. */
	int rc = fi_domain2(n.fabric, n.info, &domain, 1ull << 40, NULL);
	CHECK(rc < 0);
	/* Each object and each error has a name. */
	char text[256] = "";
	CHECK(fi_cq_strerror(n.cq, 1, NULL, text, sizeof text) != NULL);
	CHECK(fi_eq_strerror(n.eq, 1, NULL, text, sizeof text) != NULL);
	CHECK(fi_cq_strerror(n.cq, 123456, NULL, NULL, 0) != NULL);
	CHECK(fi_eq_strerror(n.eq, -5, NULL, NULL, 0) != NULL);
	node_close(&n);
}

/* Collectives are called through a table of the endpoint's. */
TEST(collectives)
{
	struct fid_mc *mc = NULL;
	uint64_t result;
	open_alone();
	NONE(fi_join_collective(n.ep, 0, NULL, 0, &mc, NULL));
	NONE(fi_barrier(n.ep, 0, NULL));
	NONE(fi_broadcast(n.ep, at, 1, NULL, 0, 0, FI_UINT64, 0, NULL));
	NONE(fi_alltoall(n.ep, at, 1, NULL, &result, NULL, 0, FI_UINT64, 0, NULL));
	NONE(fi_allreduce(n.ep, at, 1, NULL, &result, NULL, 0, FI_UINT64, FI_SUM, 0, NULL));
	NONE(fi_allgather(n.ep, at, 1, NULL, &result, NULL, 0, FI_UINT64, 0, NULL));
	NONE(fi_reduce(n.ep, at, 1, NULL, &result, NULL, 0, 0, FI_UINT64, FI_SUM, 0, NULL));
	NONE(fi_scatter(n.ep, at, 1, NULL, &result, NULL, 0, 0, FI_UINT64, 0, NULL));
	NONE(fi_gather(n.ep, at, 1, NULL, &result, NULL, 0, 0, FI_UINT64, 0, NULL));
	node_close(&n);
}
