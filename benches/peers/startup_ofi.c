/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* libfabric: an endpoint that writes to itself */
#include "bench.h"
#include "startup.h"
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#define OK(x) do { \
	long r_ = (long)(x); \
	if (r_) \
		DIE("%s -> %s", #x, fi_strerror((int)-r_)); \
} while (0)
const char startup_name[] = "ofi";

void startup_child(const char *prov, double t[STEPS])
{
	static char buf[8192];
	struct fi_info *h = fi_allocinfo(), *i;
	struct fid_fabric *f;
	struct fid_domain *d;
	struct fid_ep *e;
	struct fid_av *a;
	struct fid_cq *q;
	struct fid_mr *m;
	struct fi_av_attr aa = { .type = FI_AV_TABLE };
	struct fi_cq_attr ca = { .format = FI_CQ_FORMAT_CONTEXT };
	struct fi_context2 c;
	struct fi_cq_entry ce;
	char name[256];
	size_t nl = sizeof name;
	fi_addr_t self;
	uint64_t base;
	ssize_t r;
	int ip = strncmp(prov, "shm", 3) != 0;

	h->fabric_attr->prov_name = strdup(prov);
	h->caps = FI_MSG | FI_RMA;
	h->mode = FI_CONTEXT | FI_CONTEXT2;
	h->ep_attr->type = FI_EP_RDM;
	h->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_LOCAL;
	h->domain_attr->threading = FI_THREAD_DOMAIN;
	h->domain_attr->control_progress = h->domain_attr->data_progress = FI_PROGRESS_MANUAL;
	OK(fi_getinfo(FI_VERSION(1, 17), ip ? "127.0.0.1" : NULL, NULL, ip ? FI_SOURCE : 0, h, &i));
	t[GETINFO] = now_ns();
	OK(fi_fabric(i->fabric_attr, &f, NULL));
	OK(fi_domain(f, i, &d, NULL));
	t[DOMAIN] = now_ns();
	OK(fi_av_open(d, &aa, &a, NULL));
	OK(fi_cq_open(d, &ca, &q, NULL));
	OK(fi_endpoint(d, i, &e, NULL));
	OK(fi_ep_bind(e, &a->fid, 0));
	OK(fi_ep_bind(e, &q->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_enable(e));
	t[ENDPOINT] = now_ns();
	OK(fi_getname(&e->fid, name, &nl));
	if (fi_av_insert(a, name, 1, &self, 0, NULL) != 1)
		DIE("fi_av_insert");
	t[CONNECT] = now_ns();
	OK(fi_mr_reg(d, buf, sizeof buf, FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 7, 0, &m, NULL));
	base = i->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uint64_t)buf : 0;
	while ((r = fi_write(e, buf, 8, fi_mr_desc(m), self, base + 4096, fi_mr_key(m), &c)) == -FI_EAGAIN)
		fi_cq_read(q, &ce, 1);
	OK(r);
	while ((r = fi_cq_read(q, &ce, 1)) == -FI_EAGAIN)
		;
	if (r != 1)
		DIE("fi_cq_read: %zd", r);
	t[FIRST] = now_ns();
	fi_close(&m->fid);
	fi_close(&e->fid);
	fi_close(&q->fid);
	fi_close(&a->fid);
	fi_close(&d->fid);
	fi_close(&f->fid);
	t[CLOSE] = now_ns();
}
