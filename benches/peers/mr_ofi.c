/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* fi_mr_regattr + fi_close for mr_cost */
#include "bench.h"
#include "mr.h"
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_errno.h>

#define OK(x) do { \
	long r_ = (long)(x); \
	if (r_) \
		DIE("%s -> %s", #x, fi_strerror((int)-r_)); \
} while (0)
static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;

static char *o_open(const char *prov, size_t bytes)
{
	struct fi_info *h = fi_allocinfo();
	char *mem = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (mem == MAP_FAILED)
		DIE("mmap");
	h->fabric_attr->prov_name = strdup(prov);
	h->caps = FI_MSG | FI_RMA;
	h->mode = FI_CONTEXT | FI_CONTEXT2;
	h->ep_attr->type = FI_EP_RDM;
	h->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_LOCAL;
	h->domain_attr->threading = FI_THREAD_DOMAIN;
	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, h, &info));
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_domain(fabric, info, &domain, NULL));
	fi_freeinfo(h);
	return mem;
}

static void *o_reg(char *mem, size_t len, uint64_t key)
{
	struct iovec v = { mem, len };
	struct fi_mr_attr a = { .mr_iov = &v, .iov_count = 1, .requested_key = key,
		.access = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE };
	struct fid_mr *mr = NULL;

	OK(fi_mr_regattr(domain, &a, 0, &mr));
	return mr;
}

static void o_drop(void *mr)
{
	OK(fi_close(&((struct fid_mr *)mr)->fid));
}

static void o_close(void)
{
	fi_close(&domain->fid);
	fi_close(&fabric->fid);
	fi_freeinfo(info);
}

const struct mr_ops mr_ofi = { "ofi", o_open, o_reg, o_drop, o_close };
