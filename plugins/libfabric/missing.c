/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Functions for unsupported operations. libfabric calls each slot of a table without a check, so all slots are
 * filled. Connected endpoints have neither tags nor address vectors, and no endpoint has collectives. */
#include "provider.h"

int no_bind(struct fid *fid, struct fid *other, uint64_t flags)
{
	(void)fid, (void)other, (void)flags;
	return -FI_ENOSYS;
}

int no_control(struct fid *fid, int command, void *arg)
{
	(void)fid, (void)command, (void)arg;
	return -FI_ENOSYS;
}

int no_ops_open(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context)
{
	(void)fid, (void)name, (void)flags, (void)ops, (void)context;
	return -FI_ENOSYS;
}

int no_tostr(const struct fid *fid, char *buf, size_t len)
{
	(void)fid, (void)buf, (void)len;
	return -FI_ENOSYS;
}

int no_ops_set(struct fid *fid, const char *name, uint64_t flags, void *ops, void *context)
{
	(void)fid, (void)name, (void)flags, (void)ops, (void)context;
	return -FI_ENOSYS;
}

/* ---- domains and fabrics */

int no_av_open(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **av, void *context)
{
	(void)domain, (void)attr, (void)av, (void)context;
	return -FI_ENOSYS;
}

int no_scalable_ep(struct fid_domain *domain, struct fi_info *info, struct fid_ep **sep, void *context)
{
	(void)info, (void)sep, (void)context;
	enter(((struct domain *)domain)->fabric->lib);
	return REFUSE(FI_ENOSYS, FI_LOG_DOMAIN, "fi_scalable_ep: each endpoint has one context of each side\n");
}

int no_poll_open(struct fid_domain *domain, struct fi_poll_attr *attr, struct fid_poll **pollset)
{
	(void)attr, (void)pollset;
	enter(((struct domain *)domain)->fabric->lib);
	return REFUSE(FI_ENOSYS, FI_LOG_DOMAIN, "fi_poll_open: queues and counters are read one by one\n");
}

int no_stx_ctx(struct fid_domain *domain, struct fi_tx_attr *attr, struct fid_stx **stx, void *context)
{
	(void)attr, (void)stx, (void)context;
	enter(((struct domain *)domain)->fabric->lib);
	return REFUSE(FI_ENOSYS, FI_LOG_DOMAIN, "fi_stx_context: each endpoint sends by a context of its own\n");
}

int no_srx_ctx(struct fid_domain *domain, struct fi_rx_attr *attr, struct fid_ep **rx_ep, void *context)
{
	(void)attr, (void)rx_ep, (void)context;
	enter(((struct domain *)domain)->fabric->lib);
	return REFUSE(FI_ENOSYS, FI_LOG_DOMAIN, "fi_srx_context: each endpoint has receives of its own\n");
}

int no_query_collective(struct fid_domain *domain, enum fi_collective_op coll, struct fi_collective_attr *attr,
			uint64_t flags)
{
	(void)domain, (void)coll, (void)attr, (void)flags;
	return -FI_EOPNOTSUPP;
}

int no_wait_open(struct fid_fabric *fabric, struct fi_wait_attr *attr, struct fid_wait **waitset)
{
	(void)fabric, (void)attr, (void)waitset;
	return -FI_ENOSYS;
}

int no_tx_ctx(struct fid_ep *sep, int index, struct fi_tx_attr *attr, struct fid_ep **tx_ep, void *context)
{
	(void)sep, (void)index, (void)attr, (void)tx_ep, (void)context;
	return -FI_ENOSYS;
}

int no_rx_ctx(struct fid_ep *sep, int index, struct fi_rx_attr *attr, struct fid_ep **rx_ep, void *context)
{
	(void)sep, (void)index, (void)attr, (void)rx_ep, (void)context;
	return -FI_ENOSYS;
}

ssize_t no_size_left(struct fid_ep *ep)
{
	(void)ep;
	return -FI_ENOSYS;
}

int no_setname(fid_t fid, void *addr, size_t addrlen)
{
	(void)fid, (void)addr, (void)addrlen;
	return -FI_ENOSYS;
}

int no_listen(struct fid_pep *pep)
{
	(void)pep;
	return -FI_ENOSYS;
}

int no_reject(struct fid_pep *pep, fid_t handle, const void *param, size_t paramlen)
{
	(void)pep, (void)handle, (void)param, (void)paramlen;
	return -FI_ENOSYS;
}

int no_getpeer(struct fid_ep *ep, void *addr, size_t *addrlen)
{
	(void)ep, (void)addr, (void)addrlen;
	return -FI_ENOSYS;
}

int no_connect(struct fid_ep *ep, const void *addr, const void *param, size_t paramlen)
{
	(void)ep, (void)addr, (void)param, (void)paramlen;
	return -FI_ENOSYS;
}

int no_accept(struct fid_ep *ep, const void *param, size_t paramlen)
{
	(void)ep, (void)param, (void)paramlen;
	return -FI_ENOSYS;
}

int no_shutdown(struct fid_ep *ep, uint64_t flags)
{
	(void)ep, (void)flags;
	return -FI_ENOSYS;
}

int no_join(struct fid_ep *ep, const void *addr, uint64_t flags, struct fid_mc **mc, void *context)
{
	(void)ep, (void)addr, (void)flags, (void)mc, (void)context;
	return -FI_ENOSYS;
}

ssize_t no_cancel(fid_t fid, void *context)
{
	(void)fid, (void)context;
	return -FI_ENOSYS;
}

/* ---- endpoints: functions with the same parameters share one body, named after the parameters */

#define NOTHING(name, ...)                                                                                             \
	static ssize_t name(__VA_ARGS__)                                                                               \
	{                                                                                                              \
		return -FI_ENOSYS;                                                                                     \
	}
#define UNUSED __attribute__((unused))
#define EP UNUSED struct fid_ep *ep
#define ADDR UNUSED fi_addr_t addr
#define CONTEXT UNUSED void *context
#define TAG UNUSED uint64_t tag
#define TYPE UNUSED enum fi_datatype datatype, UNUSED enum fi_op op
#define BYTES UNUSED const void *buf, UNUSED size_t len
#define DESC UNUSED void *desc
#define RESULT UNUSED void *result, UNUSED void *result_desc
#define RESULTS UNUSED struct fi_ioc *resultv, UNUSED void **result_desc, UNUSED size_t result_count
#define FLAGS UNUSED uint64_t flags

NOTHING(tagged_recv, EP, UNUSED void *buf, UNUSED size_t len, DESC, ADDR, TAG, UNUSED uint64_t ignore, CONTEXT)
NOTHING(tagged_recvv, EP, UNUSED const struct iovec *iov, UNUSED void **desc, UNUSED size_t count, ADDR, TAG,
	UNUSED uint64_t ignore, CONTEXT)
NOTHING(tagged_msg, EP, UNUSED const struct fi_msg_tagged *msg, FLAGS)
NOTHING(tagged_send, EP, BYTES, DESC, ADDR, TAG, CONTEXT)
NOTHING(tagged_sendv, EP, UNUSED const struct iovec *iov, UNUSED void **desc, UNUSED size_t count, ADDR, TAG, CONTEXT)
NOTHING(tagged_inject, EP, BYTES, ADDR, TAG)
NOTHING(tagged_senddata, EP, BYTES, DESC, UNUSED uint64_t data, ADDR, TAG, CONTEXT)
NOTHING(tagged_injectdata, EP, BYTES, UNUSED uint64_t data, ADDR, TAG)

struct fi_ops_tagged no_tagged = {
	.size = sizeof no_tagged,
	.recv = tagged_recv,
	.recvv = tagged_recvv,
	.recvmsg = tagged_msg,
	.send = tagged_send,
	.sendv = tagged_sendv,
	.sendmsg = tagged_msg,
	.inject = tagged_inject,
	.senddata = tagged_senddata,
	.injectdata = tagged_injectdata,
};

#define COLL UNUSED fi_addr_t coll_addr
#define ROOT UNUSED fi_addr_t root
#define KIND UNUSED enum fi_datatype datatype

NOTHING(coll_barrier, EP, COLL, CONTEXT)
NOTHING(coll_barrier2, EP, COLL, FLAGS, CONTEXT)
NOTHING(coll_broadcast, EP, UNUSED void *buf, UNUSED size_t count, DESC, COLL, ROOT, KIND, FLAGS, CONTEXT)
NOTHING(coll_all, EP, BYTES, DESC, RESULT, COLL, KIND, FLAGS, CONTEXT)
NOTHING(coll_allreduce, EP, BYTES, DESC, RESULT, COLL, TYPE, FLAGS, CONTEXT)
NOTHING(coll_reduce, EP, BYTES, DESC, RESULT, COLL, ROOT, TYPE, FLAGS, CONTEXT)
NOTHING(coll_rooted, EP, BYTES, DESC, RESULT, COLL, ROOT, KIND, FLAGS, CONTEXT)
NOTHING(coll_msg, EP, UNUSED const struct fi_msg_collective *msg, RESULTS, FLAGS)

struct fi_ops_collective no_collective = {
	.size = sizeof no_collective,
	.barrier = coll_barrier,
	.broadcast = coll_broadcast,
	.alltoall = coll_all,
	.allreduce = coll_allreduce,
	.allgather = coll_all,
	.reduce_scatter = coll_allreduce,
	.reduce = coll_reduce,
	.scatter = coll_rooted,
	.gather = coll_rooted,
	.msg = coll_msg,
	.barrier2 = coll_barrier2,
};
