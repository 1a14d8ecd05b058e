/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Tagged messages. gdrfab's calls have libfabric's arguments, flags and results. */
#include "provider.h"

#define IT(ep) (((struct ep *)(ep))->it)

static gdrfab_msg_tagged msg_of(const struct fi_msg_tagged *from)
{
	return (gdrfab_msg_tagged){
		.struct_size = sizeof(gdrfab_msg_tagged),
		.msg_iov = from->msg_iov,
		.desc = from->desc,
		.iov_count = from->iov_count,
		.addr = from->addr,
		.tag = from->tag,
		.ignore = from->ignore,
		.context = from->context,
		.data = from->data,
	};
}

/* ---- receives */

static ssize_t tagged_recv(struct fid_ep *ep, void *buf, size_t len, void *desc, fi_addr_t src_addr, uint64_t tag,
			   uint64_t ignore, void *context)
{
	return data_said(ep, gdrfab_trecv(IT(ep), buf, len, desc, src_addr, tag, ignore, context), "fi_trecv");
}

static ssize_t tagged_recvv(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t count, fi_addr_t src_addr,
			    uint64_t tag, uint64_t ignore, void *context)
{
	return data_said(ep, gdrfab_trecvv(IT(ep), iov, desc, count, src_addr, tag, ignore, context), "fi_trecvv");
}

static ssize_t tagged_recvmsg(struct fid_ep *ep, const struct fi_msg_tagged *from, uint64_t flags)
{
	gdrfab_msg_tagged msg = msg_of(from);
	return data_said(ep, gdrfab_trecvmsg(IT(ep), &msg, flags), "fi_trecvmsg");
}

/* ---- sends */

/* Handles a refused send. Open MPI 4.1 sends from NULL in persistent requests with MPI_BOTTOM, drops the errno and
 * waits for ever, so the error is reported by an error entry. */
__attribute__((cold, noinline)) static ssize_t send_refused(struct fid_ep *ep, ssize_t result, const void *buf, size_t len,
							    void *context)
{
	struct cq *q = ((struct ep *)ep)->tx_cq;
	data_refused(ep, result, "fi_tsend");
	if (result != -FI_EINVAL || buf || !len || !q)
		return result;
	return cq_add_unreadable(q, context, FI_SEND | FI_TAGGED, len, gdrfab_last_error()) ? 0 : result;
}

static ssize_t tagged_send(struct fid_ep *ep, const void *buf, size_t len, void *desc, fi_addr_t dest_addr, uint64_t tag,
			   void *context)
{
	ssize_t result = gdrfab_tsend(IT(ep), buf, len, desc, dest_addr, tag, context);
	return __builtin_expect(result < 0, 0) ? send_refused(ep, result, buf, len, context) : result;
}

static ssize_t tagged_sendv(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t count, fi_addr_t dest_addr,
			    uint64_t tag, void *context)
{
	return data_said(ep, gdrfab_tsendv(IT(ep), iov, desc, count, dest_addr, tag, context), "fi_tsendv");
}

static ssize_t tagged_sendmsg(struct fid_ep *ep, const struct fi_msg_tagged *from, uint64_t flags)
{
	gdrfab_msg_tagged msg = msg_of(from);
	return data_said(ep, gdrfab_tsendmsg(IT(ep), &msg, flags), "fi_tsendmsg");
}

static ssize_t tagged_inject(struct fid_ep *ep, const void *buf, size_t len, fi_addr_t dest_addr, uint64_t tag)
{
	return data_said(ep, gdrfab_tinject(IT(ep), buf, len, dest_addr, tag), "fi_tinject");
}

static ssize_t tagged_senddata(struct fid_ep *ep, const void *buf, size_t len, void *desc, uint64_t data,
			       fi_addr_t dest_addr, uint64_t tag, void *context)
{
	ssize_t result = gdrfab_tsenddata(IT(ep), buf, len, desc, data, dest_addr, tag, context);
	return __builtin_expect(result < 0, 0) ? send_refused(ep, result, buf, len, context) : result;
}

static ssize_t tagged_injectdata(struct fid_ep *ep, const void *buf, size_t len, uint64_t data, fi_addr_t dest_addr,
				 uint64_t tag)
{
	return data_said(ep, gdrfab_tinjectdata(IT(ep), buf, len, data, dest_addr, tag), "fi_tinjectdata");
}

struct fi_ops_tagged tagged_ops = {
	.size = sizeof tagged_ops,
	.recv = tagged_recv,
	.recvv = tagged_recvv,
	.recvmsg = tagged_recvmsg,
	.send = tagged_send,
	.sendv = tagged_sendv,
	.sendmsg = tagged_sendmsg,
	.inject = tagged_inject,
	.senddata = tagged_senddata,
	.injectdata = tagged_injectdata,
};
