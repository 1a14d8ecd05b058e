/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* libfabric, reliable datagram endpoints. arg: <provider>[,dc][,order][,inject][,safe][,auto]
 *   dc      every put completes on delivery (FI_DELIVERY_COMPLETE)
 *   order   ask for write-after-write order (shm: switches its fast RMA off)
 *   inject  puts and sends up to the inject size use fi_inject_write and fi_inject
 *   safe    FI_THREAD_SAFE instead of FI_THREAD_DOMAIN
 *   auto    FI_PROGRESS_AUTO instead of manual progress
 * ';' inside the provider's name layers, e.g. ofi:tcp;ofi_rxm */
#include "bench.h"
#include "transport.h"
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <sys/socket.h>

#define OK(x) do { \
	long r_ = (long)(x); \
	if (r_) \
		DIE("%s:%d %s -> %s", __FILE__, __LINE__, #x, fi_strerror((int)-r_)); \
} while (0)
#define NCTX 4096

struct ofi {
	struct tp tp;
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_ep *ep;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_mr *mr_in, *mr_src;
	void *d_src;
	fi_addr_t peer;
	uint64_t rbase, rkey;
	long posted, reaped, injected;
	size_t inject;
	int dc;
	struct fi_context2 *tx, *rx;	/* the provider owns one of them per operation in flight */
	unsigned ntx, nrx;
};
struct hello {
	char addr[128];
	uint64_t alen, base, key;
};

static const char *o_version(void)
{
	static char v[32];
	uint32_t n = fi_version();

	snprintf(v, sizeof v, "%u.%u", FI_MAJOR(n), FI_MINOR(n));
	return v;
}

static int o_progress(struct tp *t)
{
	struct ofi *o = (void *)t;
	struct fi_cq_entry e[16];
	int n = 0;
	ssize_t r = fi_cq_read(o->cq, e, 16);

	if (r > 0) {
		for (ssize_t i = 0; i < r; i++) {
			struct fi_context2 *c = e[i].op_context;

			if (c >= o->rx && c < o->rx + NCTX)
				t->received++;
			else
				n++;
		}
	} else if (r != -FI_EAGAIN) {
		struct fi_cq_err_entry er = { 0 };

		fi_cq_readerr(o->cq, &er, 0);
		DIE("completion queue: %s", fi_strerror(er.err));
	}
	o->reaped += n;
	n += (int)o->injected;
	o->injected = 0;
	return n;
}

static void reg(struct ofi *o, void *p, size_t n, uint64_t key, struct fid_mr **mr)
{
	struct iovec v = { p, n };
	struct fi_mr_attr a = { .mr_iov = &v, .iov_count = 1, .requested_key = key };

	a.access = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
	OK(fi_mr_regattr(o->domain, &a, 0, mr));
	if (o->info->domain_attr->mr_mode & FI_MR_ENDPOINT) {
		OK(fi_mr_bind(*mr, &o->ep->fid, 0));
		OK(fi_mr_enable(*mr));
	}
}

static struct fi_info *find(const char *arg, int msg)
{
	struct fi_info *h = fi_allocinfo(), *info;
	int ip = !strncmp(arg, "tcp", 3) || !strncmp(arg, "udp", 3) || !strncmp(arg, "sock", 4);

	h->fabric_attr->prov_name = strndup(arg, strcspn(arg, ","));
	h->caps = FI_MSG;
	if (!msg)
		h->caps |= FI_RMA | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
	h->mode = FI_CONTEXT | FI_CONTEXT2;
	h->ep_attr->type = FI_EP_RDM;
	h->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_LOCAL | FI_MR_ENDPOINT;
	h->domain_attr->threading = has_opt(arg, "safe") ? FI_THREAD_SAFE : FI_THREAD_DOMAIN;
	h->domain_attr->resource_mgmt = FI_RM_ENABLED;
	h->domain_attr->data_progress = has_opt(arg, "auto") ? FI_PROGRESS_AUTO : FI_PROGRESS_MANUAL;
	h->domain_attr->control_progress = h->domain_attr->data_progress;
	if (has_opt(arg, "dc"))
		h->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
	if (has_opt(arg, "order"))
		h->tx_attr->msg_order = h->rx_attr->msg_order = FI_ORDER_RMA_WAW;
	OK(fi_getinfo(FI_VERSION(1, 17), ip ? "127.0.0.1" : NULL, NULL, ip ? FI_SOURCE : 0, h, &info));
	fi_freeinfo(h);
	return info;
}

static struct tp *o_open(const struct tp_open *p)
{
	struct ofi *o = calloc(1, sizeof *o);
	struct fi_av_attr av = { .type = FI_AV_TABLE };
	struct fi_cq_attr cq = { .format = FI_CQ_FORMAT_CONTEXT, .size = NCTX };
	struct hello me = { .alen = sizeof me.addr }, you;
	size_t al = sizeof me.addr;
	char a = 0, b;

	o->info = find(p->arg, p->msg);
	o->dc = has_opt(p->arg, "dc");
	OK(fi_fabric(o->info->fabric_attr, &o->fabric, NULL));
	OK(fi_domain(o->fabric, o->info, &o->domain, NULL));
	OK(fi_av_open(o->domain, &av, &o->av, NULL));
	OK(fi_cq_open(o->domain, &cq, &o->cq, NULL));
	OK(fi_endpoint(o->domain, o->info, &o->ep, NULL));
	OK(fi_ep_bind(o->ep, &o->av->fid, 0));
	OK(fi_ep_bind(o->ep, &o->cq->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_enable(o->ep));
	o->tp.exposed = mem_anon(p->bytes, 1);
	o->tp.source = mem_anon(p->bytes, 1);
	o->tp.bytes = p->bytes;
	reg(o, o->tp.exposed, p->bytes, 1, &o->mr_in);
	reg(o, o->tp.source, p->bytes, 2, &o->mr_src);
	o->d_src = fi_mr_desc(o->mr_src);
	o->tx = calloc(NCTX, sizeof *o->tx);
	o->rx = calloc(NCTX, sizeof *o->rx);
	if (has_opt(p->arg, "inject"))
		o->inject = o->info->tx_attr->inject_size;
	OK(fi_getname(&o->ep->fid, me.addr, &al));
	me.base = o->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uint64_t)o->tp.exposed : 0;
	me.key = fi_mr_key(o->mr_in);
	oob_swap(p->oob, &me, &you, sizeof me);
	if (fi_av_insert(o->av, you.addr, 1, &o->peer, 0, NULL) != 1)
		DIE("fi_av_insert");
	o->rbase = you.base;
	o->rkey = you.key;
	if (!p->side && getenv("TP_VERBOSE"))
		fprintf(stderr, "#ofi prov=%s mr_mode=%lx order=%lx inject=%zu size=%zu progress=%d/%d\n",
			o->info->fabric_attr->prov_name, (long)o->info->domain_attr->mr_mode,
			(long)o->info->tx_attr->msg_order, o->info->tx_attr->inject_size, o->info->tx_attr->size,
			o->info->domain_attr->control_progress, o->info->domain_attr->data_progress);
	if (p->msg)
		return &o->tp;
	/* the first operation connects: let both sides progress */
	while (fi_write(o->ep, o->tp.source, 8, o->d_src, o->peer, o->rbase, o->rkey, &o->tx[0]) == -FI_EAGAIN)
		o_progress(&o->tp);
	o->posted++;
	while (o->reaped < o->posted)
		o_progress(&o->tp);
	if (send(p->oob, &a, 1, 0) != 1)
		DIE("oob");
	while (recv(p->oob, &b, 1, MSG_DONTWAIT) != 1)
		o_progress(&o->tp);
	return &o->tp;
}

static int tx_posted(struct ofi *o, const char *call, ssize_t k)
{
	if (!k) {
		o->ntx = (o->ntx + 1) % NCTX;
		o->posted++;
	} else if (k != -FI_EAGAIN) {
		DIE("%s: %s", call, fi_strerror((int)-k));
	}
	return !k;
}

static int tx_injected(struct ofi *o, const char *call, ssize_t k)
{
	if (!k)
		o->injected++;
	else if (k != -FI_EAGAIN)
		DIE("%s: %s", call, fi_strerror((int)-k));
	return !k;
}

static int o_put(struct tp *t, size_t l, size_t r, size_t n)
{
	struct ofi *o = (void *)t;
	char *from = t->source + l;

	if (n <= o->inject)
		return tx_injected(o, "fi_inject_write",
				   fi_inject_write(o->ep, from, n, o->peer, o->rbase + r, o->rkey));
	return tx_posted(o, "fi_write", fi_write(o->ep, from, n, o->d_src, o->peer, o->rbase + r, o->rkey,
						 &o->tx[o->ntx]));
}

static int o_get(struct tp *t, size_t l, size_t r, size_t n)
{
	struct ofi *o = (void *)t;

	return tx_posted(o, "fi_read", fi_read(o->ep, t->source + l, n, o->d_src, o->peer, o->rbase + r, o->rkey,
					       &o->tx[o->ntx]));
}

static int o_send(struct tp *t, size_t off, size_t n)
{
	struct ofi *o = (void *)t;

	if (n <= o->inject)
		return tx_injected(o, "fi_inject", fi_inject(o->ep, t->source + off, n, o->peer));
	return tx_posted(o, "fi_send", fi_send(o->ep, t->source + off, n, o->d_src, o->peer, &o->tx[o->ntx]));
}

static int o_recv(struct tp *t, size_t off, size_t n)
{
	struct ofi *o = (void *)t;
	ssize_t k = fi_recv(o->ep, t->source + off, n, o->d_src, FI_ADDR_UNSPEC, &o->rx[o->nrx]);

	if (!k)
		o->nrx = (o->nrx + 1) % NCTX;
	else if (k != -FI_EAGAIN)
		DIE("fi_recv: %s", fi_strerror((int)-k));
	return !k;
}

/* every put delivered: with dc each completion says so; otherwise push one 8-byte delivery-complete write behind
 * them (both queues are FIFO) */
static void o_flush(struct tp *t)
{
	struct ofi *o = (void *)t;

	if (!o->dc) {
		size_t at = t->bytes - 8;
		struct iovec v = { t->source + at, 8 };
		struct fi_rma_iov rv = { o->rbase + at, 8, o->rkey };
		struct fi_msg_rma m = { .msg_iov = &v, .desc = &o->d_src, .iov_count = 1, .addr = o->peer,
			.rma_iov = &rv, .rma_iov_count = 1, .context = &o->tx[o->ntx] };

		while (!tx_posted(o, "fi_writemsg", fi_writemsg(o->ep, &m, FI_DELIVERY_COMPLETE | FI_COMPLETION)))
			o_progress(t);
	}
	while (o->reaped < o->posted)
		o_progress(t);
}

static void o_close(struct tp *t)
{
	struct ofi *o = (void *)t;

	fi_close(&o->mr_in->fid);
	fi_close(&o->mr_src->fid);
	fi_close(&o->ep->fid);
	fi_close(&o->cq->fid);
	fi_close(&o->av->fid);
	fi_close(&o->domain->fid);
	fi_close(&o->fabric->fid);
}

const struct tp_ops tp_ofi = {
	"ofi", "libfabric: <prov>[,dc][,order][,inject][,safe][,auto]", o_version, NULL, o_open, o_put, o_get,
	o_send, o_recv, NULL, NULL, o_progress, NULL, o_flush, o_close
};
