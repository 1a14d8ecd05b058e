/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Domains: the parents of regions, queues and endpoints that are used together. */
#include "attr.h"

#include <stdlib.h>

static int domain_close(struct fid *fid)
{
	enter(((struct domain *)fid)->fabric->lib);
	struct domain *d = (struct domain *)fid;
	int result = told(gdrfab_domain_close(d->it), FI_LOG_DOMAIN, "closing a domain");
	if (result < 0)
		return result;
	gdrfab_freeinfo(d->info);
	free(d);
	return 0;
}

static struct fi_ops fid_ops = {
	.size = sizeof fid_ops,
	.close = domain_close,
	.bind = no_bind,
	.control = no_control,
	NO_FID_EXTRAS,
};

#define OPS(avs)                                                                                                       \
	{                                                                                                              \
		.size = sizeof(struct fi_ops_domain), .av_open = avs, .cq_open = cq_open, .endpoint = ep_open,         \
		.scalable_ep = no_scalable_ep, .cntr_open = cntr_open, .poll_open = no_poll_open,                      \
		.stx_ctx = no_stx_ctx, .srx_ctx = no_srx_ctx, .query_atomic = atomic_query,                            \
		.query_collective = no_query_collective,                                                               \
	}
static struct fi_ops_domain ops = OPS(no_av_open), rdm_ops = OPS(av_open);

/* Finds gdrfab's candidate of that name, with all its capabilities. */
static int find(const struct fabric *fabric, const char *name, gdrfab_info **found)
{
	gdrfab_info *hints = gdrfab_dupinfo(NULL);
	int result;
	if (!hints)
		return -FI_ENOMEM;
	hints->ep_type = kind_type(fabric->kind);
	hints->prov_name = fabric->kind == KIND_RDM ? fabric->info->prov_name : (char *)(uintptr_t)kind_names[fabric->kind];
	hints->domain_name = (char *)(uintptr_t)name;
	hints->mr_mode = GDRFAB_MR_LOCAL | GDRFAB_MR_VIRT_ADDR | GDRFAB_MR_PROV_KEY | GDRFAB_MR_HMEM;
	result = gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, 0, hints, found);
	gdrfab_freeinfo(hints);
	return told(result, FI_LOG_DOMAIN, name);
}

int domain_open(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain, void *context)
{
	enter(((struct fabric *)fabric)->lib);
	struct fabric *f = (struct fabric *)fabric;
	struct opening opening = {.info = NULL};
	struct domain *d;
	int result;
	if (!info || !info->domain_attr || !info->domain_attr->name)
		return REFUSE(FI_EINVAL, FI_LOG_DOMAIN, "fi_domain: info->domain_attr->name: none\n");
	d = calloc(1, sizeof *d);
	if (!d)
		return -FI_ENOMEM;
	d->fabric = f;
	d->addr_format = info->addr_format == FI_FORMAT_UNSPEC ? ADDR_NAME : info->addr_format;
	d->hmem = (info->caps & FI_HMEM) != 0;
	result = find(f, info->domain_attr->name, &d->info);
	if (result == 0)
		result = opening_make(&opening, d->info, info);
	if (result == 0)
		result = told(gdrfab_domain_open(f->it, opening.info, NULL, &d->it), FI_LOG_DOMAIN, info->domain_attr->name);
	opening_free(&opening);
	if (result < 0) {
		gdrfab_freeinfo(d->info);
		free(d);
		return result;
	}
	d->domain.fid.fclass = FI_CLASS_DOMAIN;
	d->domain.fid.context = context;
	d->domain.fid.ops = &fid_ops;
	d->domain.ops = f->kind == KIND_RDM ? &rdm_ops : &ops;
	d->domain.mr = &mr_ops;
	*domain = &d->domain;
	return 0;
}
