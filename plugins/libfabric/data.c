/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Messages and RMA. gdrfab's calls have libfabric's arguments, flags and results. */
#include "attr.h"

#include <stdio.h>

#define IT(ep) (((struct ep *)(ep))->it)
/* Local pieces of an operation, at most. */
enum { LOCAL_PIECES = 8 };

/* Logs why a data call was refused, so that there is a trace if the caller drops the errno. A wrong argument is a
 * defect of the caller's and is logged as a warning; the end of a connection is not. */
__attribute__((cold, noinline)) ssize_t data_refused(struct fid_ep *ep, ssize_t result, const char *call)
{
	if (result == -FI_EAGAIN)
		return result;
	enter(((struct ep *)ep)->domain->fabric->lib);
	if (result == -FI_EINVAL || result == -FI_EFAULT || result == -FI_EMSGSIZE || result == -FI_EBADFLAGS)
		WARN(FI_LOG_EP_DATA, "%s: %s\n", call, gdrfab_last_error());
	else
		INFO(FI_LOG_EP_DATA, "%s: %s\n", call, gdrfab_last_error());
	return result;
}

/* ---- messages */

static ssize_t msg_recv(struct fid_ep *ep, void *buf, size_t len, void *desc, fi_addr_t src_addr, void *context)
{
	return data_said(ep, gdrfab_recv(IT(ep), buf, len, desc, src_addr, context), "fi_recv");
}

static ssize_t msg_recvv(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t count, fi_addr_t src_addr,
			 void *context)
{
	return data_said(ep, gdrfab_recvv(IT(ep), iov, desc, count, src_addr, context), "fi_recvv");
}

static gdrfab_msg msg_of(const struct fi_msg *from)
{
	return (gdrfab_msg){
		.struct_size = sizeof(gdrfab_msg),
		.msg_iov = from->msg_iov,
		.desc = from->desc,
		.iov_count = from->iov_count,
		.addr = from->addr,
		.context = from->context,
		.data = from->data,
	};
}

/* FI_MORE is dropped: a receive rings no doorbell that waiting for further ones could save. */
static ssize_t msg_recvmsg(struct fid_ep *ep, const struct fi_msg *from, uint64_t flags)
{
	gdrfab_msg msg = msg_of(from);
	return data_said(ep, gdrfab_recvmsg(IT(ep), &msg, flags & ~FI_MORE), "fi_recvmsg");
}

static ssize_t msg_send(struct fid_ep *ep, const void *buf, size_t len, void *desc, fi_addr_t dest_addr, void *context)
{
	return data_said(ep, gdrfab_send(IT(ep), buf, len, desc, dest_addr, context), "fi_send");
}

/* Handles a refused send of several pieces. ofi_rxm puts its header in front of the application's memory, whose
 * address may be NULL (Open MPI's persistent requests with MPI_BOTTOM). Open MPI drops the errno of such a call and
 * waits for ever, so the error is reported as a card would: by an error entry. */
__attribute__((cold, noinline)) static ssize_t sendv_refused(struct fid_ep *ep, ssize_t result, const struct iovec *iov,
							     size_t count, void *context)
{
	struct ep *e = (struct ep *)ep;
	char peer[GDRFAB_ADDR_MAX], words[256];
	size_t size = sizeof peer, len = 0;
	bool unreadable = false;
	data_refused(ep, result, "fi_sendv");
	if (result != -FI_EINVAL || !iov || count < 2 || !iov[0].iov_base || !e->tx_cq)
		return result;
	snprintf(words, sizeof words, "%s", gdrfab_last_error());
	for (size_t i = 0; i < count; i++) {
		unreadable |= !iov[i].iov_base && iov[i].iov_len;
		len += iov[i].iov_len;
	}
	/* Only if connected: before that, no send of the application's is accepted. */
	if (!unreadable || gdrfab_ep_getpeer(e->it, peer, &size) < 0)
		return result;
	return cq_add_unreadable(e->tx_cq, context, FI_SEND | FI_MSG, len, words) ? 0 : result;
}

static ssize_t msg_sendv(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t count, fi_addr_t dest_addr,
			 void *context)
{
	ssize_t result = gdrfab_sendv(IT(ep), iov, desc, count, dest_addr, context);
	return __builtin_expect(result < 0, 0) ? sendv_refused(ep, result, iov, count, context) : result;
}

static ssize_t msg_sendmsg(struct fid_ep *ep, const struct fi_msg *from, uint64_t flags)
{
	gdrfab_msg msg = msg_of(from);
	return data_said(ep, gdrfab_sendmsg(IT(ep), &msg, flags), "fi_sendmsg");
}

static ssize_t msg_inject(struct fid_ep *ep, const void *buf, size_t len, fi_addr_t dest_addr)
{
	return data_said(ep, gdrfab_inject(IT(ep), buf, len, dest_addr), "fi_inject");
}

static ssize_t msg_senddata(struct fid_ep *ep, const void *buf, size_t len, void *desc, uint64_t data,
			    fi_addr_t dest_addr, void *context)
{
	return data_said(ep, gdrfab_senddata(IT(ep), buf, len, desc, data, dest_addr, context), "fi_senddata");
}

static ssize_t msg_injectdata(struct fid_ep *ep, const void *buf, size_t len, uint64_t data, fi_addr_t dest_addr)
{
	return data_said(ep, gdrfab_injectdata(IT(ep), buf, len, data, dest_addr), "fi_injectdata");
}

struct fi_ops_msg msg_ops = {
	.size = sizeof msg_ops,
	.recv = msg_recv,
	.recvv = msg_recvv,
	.recvmsg = msg_recvmsg,
	.send = msg_send,
	.sendv = msg_sendv,
	.sendmsg = msg_sendmsg,
	.inject = msg_inject,
	.senddata = msg_senddata,
	.injectdata = msg_injectdata,
};

/* ---- RMA */

static ssize_t rma_read(struct fid_ep *ep, void *buf, size_t len, void *desc, fi_addr_t src_addr, uint64_t addr,
			uint64_t key, void *context)
{
	return data_said(ep, gdrfab_read(IT(ep), buf, len, desc, src_addr, addr, key, context), "fi_read");
}

static ssize_t rma_readv(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t count, fi_addr_t src_addr,
			 uint64_t addr, uint64_t key, void *context)
{
	return data_said(ep, gdrfab_readv(IT(ep), iov, desc, count, src_addr, addr, key, context), "fi_readv");
}

static gdrfab_msg_rma rma_of(const struct fi_msg_rma *from)
{
	return (gdrfab_msg_rma){
		.struct_size = sizeof(gdrfab_msg_rma),
		.msg_iov = from->msg_iov,
		.desc = from->desc,
		.iov_count = from->iov_count,
		.addr = from->addr,
		.rma_iov = (const gdrfab_rma_iov *)from->rma_iov,
		.rma_iov_count = from->rma_iov_count,
		.context = from->context,
		.data = from->data,
	};
}

static ssize_t list_refused(struct fid_ep *ep, const char *why)
{
	enter(((struct ep *)ep)->domain->fabric->lib);
	WARN(FI_LOG_EP_DATA, "fi_readmsg, fi_writemsg: %s\n", why);
	return -FI_EINVAL;
}

/* Posts an operation of more remote pieces than gdrfab allows as a list: one block for each stretch that is
 * contiguous on both sides. The list has one completion, like any operation. The caller gave up its order when it
 * opened the endpoint. */
__attribute__((cold, noinline)) static ssize_t rma_list(struct fid_ep *ep, const struct fi_msg_rma *from, uint64_t flags, bool reads)
{
	gdrfab_block blocks[LIST_PIECES + LOCAL_PIECES];
	void *descs[LIST_PIECES + LOCAL_PIECES];
	uint64_t keys[LIST_PIECES + LOCAL_PIECES];
	size_t count = 0, local = 0, here = 0;
	if (!from->rma_iov || !from->msg_iov || from->rma_iov_count > LIST_PIECES || from->iov_count > LOCAL_PIECES)
		return list_refused(ep, "iov_count or rma_iov_count is too large, or an array is NULL");
	if (flags & FI_INJECT)
		return list_refused(ep, "FI_INJECT: too many remote pieces; only a list can have so many, and a list cannot inject");
	for (size_t i = 0; i < from->rma_iov_count; i++)
		for (size_t there = 0; there < from->rma_iov[i].len;) {
			while (local < from->iov_count && here == from->msg_iov[local].iov_len) {
				local++;
				here = 0;
			}
			if (local == from->iov_count || !from->msg_iov[local].iov_base)
				return list_refused(ep, "an address is NULL, or the remote pieces are longer than the local ones");
			size_t len = from->rma_iov[i].len - there, left = from->msg_iov[local].iov_len - here;
			len = len < left ? len : left;
			blocks[count] = (gdrfab_block){(char *)from->msg_iov[local].iov_base + here, from->rma_iov[i].addr + there, len};
			descs[count] = from->desc ? from->desc[local] : NULL;
			keys[count++] = from->rma_iov[i].key;
			there += len;
			here += len;
		}
	for (; local < from->iov_count; local++, here = 0)
		if (from->msg_iov[local].iov_len != here)
			return list_refused(ep, "the local pieces are longer than the remote ones");
	if (!count) {
		blocks[count] = (gdrfab_block){NULL, from->rma_iov[0].addr, 0};
		descs[count] = NULL;
		keys[count++] = from->rma_iov[0].key;
	}
	gdrfab_msg_list msg = {
		.struct_size = sizeof msg,
		.blocks = blocks,
		.count = count,
		.desc = from->desc ? descs : NULL,
		.desc_count = from->desc ? count : 0,
		.key = keys,
		.key_count = count,
		.addr = from->addr,
		.context = from->context,
		.data = from->data,
	};
	return reads ? data_said(ep, gdrfab_readlist(IT(ep), &msg, flags), "fi_readmsg")
		     : data_said(ep, gdrfab_writelist(IT(ep), &msg, flags), "fi_writemsg");
}

static ssize_t rma_readmsg(struct fid_ep *ep, const struct fi_msg_rma *from, uint64_t flags)
{
	if (__builtin_expect(from->rma_iov_count > ((struct ep *)ep)->pieces, 0))
		return rma_list(ep, from, flags, true);
	gdrfab_msg_rma msg = rma_of(from);
	return data_said(ep, gdrfab_readmsg(IT(ep), &msg, flags), "fi_readmsg");
}

static ssize_t rma_write(struct fid_ep *ep, const void *buf, size_t len, void *desc, fi_addr_t dest_addr, uint64_t addr,
			 uint64_t key, void *context)
{
	return data_said(ep, gdrfab_write(IT(ep), buf, len, desc, dest_addr, addr, key, context), "fi_write");
}

static ssize_t rma_writev(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t count, fi_addr_t dest_addr,
			  uint64_t addr, uint64_t key, void *context)
{
	return data_said(ep, gdrfab_writev(IT(ep), iov, desc, count, dest_addr, addr, key, context), "fi_writev");
}

static ssize_t rma_writemsg(struct fid_ep *ep, const struct fi_msg_rma *from, uint64_t flags)
{
	if (__builtin_expect(from->rma_iov_count > ((struct ep *)ep)->pieces, 0))
		return rma_list(ep, from, flags, false);
	gdrfab_msg_rma msg = rma_of(from);
	return data_said(ep, gdrfab_writemsg(IT(ep), &msg, flags), "fi_writemsg");
}

static ssize_t rma_inject(struct fid_ep *ep, const void *buf, size_t len, fi_addr_t dest_addr, uint64_t addr, uint64_t key)
{
	return data_said(ep, gdrfab_inject_write(IT(ep), buf, len, dest_addr, addr, key), "fi_inject_write");
}

static ssize_t rma_writedata(struct fid_ep *ep, const void *buf, size_t len, void *desc, uint64_t data,
			     fi_addr_t dest_addr, uint64_t addr, uint64_t key, void *context)
{
	return data_said(ep, gdrfab_writedata(IT(ep), buf, len, desc, data, dest_addr, addr, key, context), "fi_writedata");
}

static ssize_t rma_injectdata(struct fid_ep *ep, const void *buf, size_t len, uint64_t data, fi_addr_t dest_addr,
			      uint64_t addr, uint64_t key)
{
	return data_said(ep, gdrfab_inject_writedata(IT(ep), buf, len, data, dest_addr, addr, key), "fi_inject_writedata");
}

struct fi_ops_rma rma_ops = {
	.size = sizeof rma_ops,
	.read = rma_read,
	.readv = rma_readv,
	.readmsg = rma_readmsg,
	.write = rma_write,
	.writev = rma_writev,
	.writemsg = rma_writemsg,
	.inject = rma_inject,
	.writedata = rma_writedata,
	.injectdata = rma_injectdata,
};
