/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Endpoints: opening, binding, options. */
#include "attr.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Option numbers of libfabric versions newer than the headers that we build with. */
enum { OPT_CUDA_API_PERMITTED = 10, OPT_SHARED_MEMORY_PERMITTED = 11 };

/* Logs the endpoint's counts of operations and bytes, so that a log tells which provider carried a job. */
static void say_counts(struct ep *e)
{
	gdrfab_stats s = {.struct_size = sizeof s};
	char peer[GDRFAB_ADDR_MAX] = "nobody";
	size_t len = sizeof peer;
	if (!caller->log_enabled(&caller->provider, FI_LOG_INFO, FI_LOG_EP_CTRL) || gdrfab_ep_stats(e->it, &s) < 0)
		return;
	if (e->av)
		snprintf(peer, sizeof peer, "its address vector");
	else if (gdrfab_ep_getpeer(e->it, peer, &len) < 0 && *e->dest)
		snprintf(peer, sizeof peer, "%s", e->dest);
#define OPS(path) (unsigned long long)s.by_path[GDRFAB_PATH_INDEX(path)].ops
	INFO(FI_LOG_EP_CTRL,
	     "%s endpoint to %s closed: %llu messages sent, %llu received; RMA operations by path: direct %llu, cma %llu, "
	     "staged %llu, ipc %llu, nic %llu, socket %llu\n",
	     e->domain->info->prov_name, peer, (unsigned long long)s.sends, (unsigned long long)s.recvs,
	     OPS(GDRFAB_PATH_DIRECT), OPS(GDRFAB_PATH_CMA), OPS(GDRFAB_PATH_STAGED), OPS(GDRFAB_PATH_IPC), OPS(GDRFAB_PATH_NIC),
	     OPS(GDRFAB_PATH_SOCKET));
#undef OPS
}

static int ep_close(struct fid *fid)
{
	enter(((struct ep *)fid)->domain->fabric->lib);
	struct ep *e = (struct ep *)fid;
	say_counts(e);
	int result = told(gdrfab_ep_close(e->it), FI_LOG_EP_CTRL, "closing an endpoint");
	if (result < 0)
		return result;
	if (e->eq)
		eq_forget(e->eq, fid);
	free(e);
	return 0;
}

static int ep_bind(struct fid *fid, struct fid *other, uint64_t flags)
{
	enter(((struct ep *)fid)->domain->fabric->lib);
	struct ep *e = (struct ep *)fid;
	bool rdm = e->domain->fabric->kind == KIND_RDM;
	int result;
	switch (other->fclass) {
	case FI_CLASS_CQ:
		result = gdrfab_ep_bind_cq(e->it, ((struct cq *)other)->it, flags);
		if (result == 0 && flags & FI_TRANSMIT)
			e->tx_cq = (struct cq *)other;
		break;
	case FI_CLASS_AV:
		result = rdm ? gdrfab_ep_bind_av(e->it, ((struct av *)other)->it, flags) : -FI_EINVAL;
		if (result == 0)
			e->av = (struct av *)other;
		break;
	case FI_CLASS_EQ:
		/* Programs bind an event queue to any endpoint. A connectionless one has no events. */
		if (rdm)
			return 0;
		result = gdrfab_ep_bind_eq(e->it, ((struct eq *)other)->it, flags);
		if (result == 0)
			e->eq = (struct eq *)other;
		break;
	case FI_CLASS_CNTR:
		/* gdrfab's counter counts only writes with data, libfabric's counts all. If peers may not read or
		 * write at all, there is no difference. */
		if (flags & e->caps & (FI_REMOTE_READ | FI_REMOTE_WRITE))
			return REFUSE(FI_ENOSYS, FI_LOG_EP_CTRL,
				      "fi_ep_bind: remote reads and writes of an endpoint cannot be counted, as they can bypass its CPU; "
				      "bind a counter of writes to a region\n");
		flags &= ~(FI_REMOTE_READ | FI_REMOTE_WRITE);
		result = flags ? gdrfab_ep_bind_cntr(e->it, ((struct cntr *)other)->it, flags) : 0;
		break;
	default:
		return REFUSE(FI_EINVAL, FI_LOG_EP_CTRL, "fi_ep_bind: bfid is neither a queue nor a counter nor an address vector\n");
	}
	return told(result, FI_LOG_EP_CTRL, "fi_ep_bind");
}

static int ep_control(struct fid *fid, int command, void *arg)
{
	enter(((struct ep *)fid)->domain->fabric->lib);
	struct ep *e = (struct ep *)fid;
	uint64_t *flags = arg;
	switch (command) {
	case FI_ENABLE:
		return told(gdrfab_ep_enable(e->it), FI_LOG_EP_CTRL, "fi_enable");
	case FI_GETOPSFLAG:
		/* The caller names one direction and gets its flags. */
		if (!flags || !(*flags & (FI_TRANSMIT | FI_RECV)) || (*flags & FI_TRANSMIT && *flags & FI_RECV))
			return -FI_EINVAL;
		*flags = *flags & FI_TRANSMIT ? e->tx_op_flags : e->rx_op_flags;
		return 0;
	default:
		return -FI_ENOSYS;
	}
}

static ssize_t ep_cancel(fid_t fid, void *context)
{
	return gdrfab_cancel(((struct ep *)fid)->it, context);
}

static int ep_getopt(fid_t fid, int level, int optname, void *optval, size_t *optlen)
{
	enter(((struct ep *)fid)->domain->fabric->lib);
	bool rdm = ((struct ep *)fid)->domain->fabric->kind == KIND_RDM;
	/* Each kind of endpoint has one such option, with the same number in gdrfab. */
	if (level != FI_OPT_ENDPOINT || optname != (rdm ? FI_OPT_MIN_MULTI_RECV : FI_OPT_CM_DATA_SIZE))
		return -FI_ENOPROTOOPT;
	return told(gdrfab_ep_getopt(((struct ep *)fid)->it, GDRFAB_OPT_ENDPOINT, optname, optval, optlen), FI_LOG_EP_CTRL,
		    "fi_getopt");
}

/* Permits or forbids driver calls in this process. If they are forbidden, another process copies over shm. The other
 * providers copy by CUDA's driver in this process. */
static int driver_calls(struct ep *e, bool permitted)
{
	uint32_t value = permitted;
	return gdrfab_ep_setopt(e->it, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_DRIVER_CALLS, &value, sizeof value);
}

static int ep_setopt(fid_t fid, int level, int optname, const void *optval, size_t optlen)
{
	enter(((struct ep *)fid)->domain->fabric->lib);
	struct ep *e = (struct ep *)fid;
	if (level != FI_OPT_ENDPOINT)
		return -FI_ENOPROTOOPT;
	switch (optname) {
	case FI_OPT_MIN_MULTI_RECV:
		if (e->domain->fabric->kind != KIND_RDM)
			return -FI_ENOPROTOOPT;
		return told(gdrfab_ep_setopt(e->it, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_MIN_MULTI_RECV, optval, optlen),
			    FI_LOG_EP_CTRL, "FI_OPT_MIN_MULTI_RECV");
	case FI_OPT_FI_HMEM_P2P:
		if (!optval || optlen != sizeof(int))
			return -FI_EINVAL;
		/* gdrfab reports and logs the paths that a region offers. No path can be promised before there is a
		 * region. */
		return *(const int *)optval == FI_HMEM_P2P_ENABLED || *(const int *)optval == FI_HMEM_P2P_PREFERRED
			       ? 0
			       : REFUSE(FI_EOPNOTSUPP, FI_LOG_EP_CTRL, "FI_OPT_FI_HMEM_P2P: must be enabled or preferred\n");
	case OPT_CUDA_API_PERMITTED:
		if (!optval || optlen != sizeof(bool))
			return -FI_EINVAL;
		return told(driver_calls(e, *(const unsigned char *)optval != 0), FI_LOG_EP_CTRL, "FI_OPT_CUDA_API_PERMITTED");
	case OPT_SHARED_MEMORY_PERMITTED:
		if (!optval || optlen != sizeof(bool))
			return -FI_EINVAL;
		return *(const unsigned char *)optval || !strstr(e->domain->info->prov_name, "shm") ? 0 : -FI_EOPNOTSUPP;
	default:
		return -FI_ENOPROTOOPT;
	}
}

static struct fi_ops fid_ops = {
	.size = sizeof fid_ops,
	.close = ep_close,
	.bind = ep_bind,
	.control = ep_control,
	NO_FID_EXTRAS,
};

static struct fi_ops_ep ops = {
	.size = sizeof ops,
	.cancel = ep_cancel,
	.getopt = ep_getopt,
	.setopt = ep_setopt,
	.tx_ctx = no_tx_ctx,
	.rx_ctx = no_rx_ctx,
	.rx_size_left = no_size_left,
	.tx_size_left = no_size_left,
};

/* Removes the time limit on connecting: a peer that computes answers no call meanwhile, and that must not end a job.
 * If a peer dies, the call still fails. */
static int waits_for_peers(struct ep *e)
{
	uint64_t never = 0;
	return gdrfab_ep_setopt(e->it, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_CONNECT_TIMEOUT, &never, sizeof never);
}

/* Opens gdrfab's endpoint. One that answers a connection request is opened with the request's info, which is
 * consumed. */
static int open_it(struct ep *e, struct opening *opening, fid_t handle)
{
	gdrfab_info *request;
	int result;
	if (!handle)
		return gdrfab_ep_open(e->domain->it, opening->info, e, &e->it);
	if (pep_is(e->domain->fabric, handle)) {
		result = pep_give_address(handle, opening->src);
		if (result < 0)
			return result;
		opening->info->src_addr = opening->src;
		opening->info->src_addrlen = strlen(opening->src) + 1;
		result = gdrfab_ep_open(e->domain->it, opening->info, e, &e->it);
		if (result < 0)
			pep_take_back(handle);
		return result;
	}
	request = connreq_take(e->domain->fabric, NULL, handle);
	if (!request)
		return REFUSE(FI_EINVAL, FI_LOG_EP_CTRL, "fi_endpoint: info->handle: not an unanswered connection request\n");
	opening->info->handle = request->handle;
	if (request->src_addr)
		snprintf(opening->src, sizeof opening->src, "%s", request->src_addr);
	opening->info->src_addr = opening->info->dest_addr = NULL;
	opening->info->src_addrlen = opening->info->dest_addrlen = 0;
	result = gdrfab_ep_open(e->domain->it, opening->info, e, &e->it);
	gdrfab_freeinfo(request);
	return result;
}

int ep_open(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context)
{
	enter(((struct domain *)domain)->fabric->lib);
	struct domain *d = (struct domain *)domain;
	struct opening opening = {.info = NULL};
	struct ep *e;
	int result;
	if (!info)
		return REFUSE(FI_EINVAL, FI_LOG_EP_CTRL, "fi_endpoint: info: NULL\n");
	e = calloc(1, sizeof *e);
	if (!e)
		return -FI_ENOMEM;
	e->domain = d;
	e->addr_format = d->fabric->kind == KIND_RDM && info->addr_format == FI_FORMAT_UNSPEC ? ADDR_NAME : info->addr_format;
	e->caps = info->caps ? caps_directions(info->caps) : ~0ull;
	e->tx_op_flags = info->tx_attr ? info->tx_attr->op_flags : 0;
	e->rx_op_flags = info->rx_attr ? info->rx_attr->op_flags : 0;
	e->pieces = wants_lists(info, d->info) ? d->info->rma_iov_limit : SIZE_MAX;
	result = opening_make(&opening, d->info, info);
	if (result == 0) {
		result = told(open_it(e, &opening, info->handle), FI_LOG_EP_CTRL, "fi_endpoint");
		if (result == 0)
			result = told(waits_for_peers(e), FI_LOG_EP_CTRL, "fi_endpoint");
		memcpy(e->src, opening.src, sizeof e->src);
		memcpy(e->dest, opening.dest, sizeof e->dest);
	}
	opening_free(&opening);
	if (result < 0) {
		if (e->it)
			gdrfab_ep_close(e->it);
		free(e);
		return result;
	}
	e->ep.fid.fclass = FI_CLASS_EP;
	e->ep.fid.context = context;
	e->ep.fid.ops = &fid_ops;
	e->ep.ops = &ops;
	e->ep.cm = &ep_cm_ops;
	e->ep.msg = &msg_ops;
	e->ep.rma = &rma_ops;
	e->ep.tagged = &no_tagged;
	if (d->fabric->kind == KIND_RDM) {
		e->ep.cm = &rdm_cm_ops;
		e->ep.tagged = &tagged_ops;
	}
	e->ep.atomic = &atomic_ops;
	e->ep.collective = &no_collective;
	*ep = &e->ep;
	return 0;
}
