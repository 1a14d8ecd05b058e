/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Fabrics: the root objects. Each stands for one gdrfab fabric, whose members can reach each other. */
#include "attr.h"

#include <stdlib.h>
#include <string.h>

static int fabric_close(struct fid *fid)
{
	enter(((struct fabric *)fid)->lib);
	struct fabric *f = (struct fabric *)fid;
	int result = told(gdrfab_fabric_close(f->it), FI_LOG_FABRIC, "closing a fabric");
	if (result < 0)
		return result;
	while (f->requests) {
		struct connreq *r = f->requests;
		f->requests = r->next;
		gdrfab_freeinfo(r->info);
		free(r);
	}
	pthread_mutex_destroy(&f->lock);
	gdrfab_freeinfo(f->info);
	free(f);
	return 0;
}

/* 0: the caller may sleep on all of them; -FI_EAGAIN: one of them has something to read. */
static int fabric_trywait(struct fid_fabric *fabric, struct fid **fids, int count)
{
	enter(((struct fabric *)fabric)->lib);
	for (int i = 0; i < count; i++) {
		int result;
		switch (fids[i]->fclass) {
		case FI_CLASS_CQ:
			result = cq_has_unreadable((struct cq *)fids[i]) ? -FI_EAGAIN
									 : gdrfab_cq_trywait(((struct cq *)fids[i])->it);
			break;
		case FI_CLASS_CNTR:
			result = gdrfab_cntr_trywait(((struct cntr *)fids[i])->it);
			break;
		case FI_CLASS_EQ: {
			struct eq *eq = (struct eq *)fids[i];
			pthread_mutex_lock(&eq->lock);
			result = eq->failed || eq->holds ? -FI_EAGAIN : gdrfab_eq_trywait(eq->it);
			pthread_mutex_unlock(&eq->lock);
			break;
		}
		default:
			return REFUSE(FI_EINVAL, FI_LOG_FABRIC, "fi_trywait: fids[%d] is neither a queue nor a counter\n", i);
		}
		if (result < 0)
			return told(result, FI_LOG_FABRIC, "fi_trywait");
	}
	return 0;
}

static struct fi_ops fid_ops = {
	.size = sizeof fid_ops,
	.close = fabric_close,
	.bind = no_bind,
	.control = no_control,
	NO_FID_EXTRAS,
};

static struct fi_ops_fabric ops = {
	.size = sizeof ops,
	.domain = domain_open,
	.passive_ep = pep_open,
	.eq_open = eq_open,
	.wait_open = no_wait_open,
	.trywait = fabric_trywait,
};

int fabric_open(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)
{
	struct fabric *f;
	gdrfab_info *hints;
	int result;
	if (!attr || !attr->name)
		return REFUSE(FI_EINVAL, FI_LOG_FABRIC, "fi_fabric: attr->name: none\n");
	f = calloc(1, sizeof *f);
	hints = gdrfab_dupinfo(NULL);
	if (!f || !hints) {
		free(f);
		gdrfab_freeinfo(hints);
		return -FI_ENOMEM;
	}
	f->lib = caller;
	f->kind = info_kind(attr->name);
	hints->ep_type = kind_type(f->kind);
	hints->fabric_name = f->kind == KIND_RDM ? attr->name + strlen(RDM_FABRIC) : attr->name;
	hints->prov_name = f->kind == KIND_RDM ? hints->fabric_name : (char *)(uintptr_t)kind_names[f->kind];
	hints->mr_mode = GDRFAB_MR_LOCAL | GDRFAB_MR_VIRT_ADDR | GDRFAB_MR_PROV_KEY | GDRFAB_MR_HMEM;
	result = gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, 0, hints, &f->info);
	gdrfab_freeinfo(hints);
	if (result == 0)
		result = gdrfab_fabric_open(f->info, NULL, &f->it);
	if (result < 0) {
		told(result, FI_LOG_FABRIC, attr->name);
		gdrfab_freeinfo(f->info);
		free(f);
		return result;
	}
	pthread_mutex_init(&f->lock, NULL);
	f->fabric.fid.fclass = FI_CLASS_FABRIC;
	f->fabric.fid.context = context;
	f->fabric.fid.ops = &fid_ops;
	f->fabric.ops = &ops;
	f->fabric.api_version = attr->api_version;
	*fabric = &f->fabric;
	return 0;
}
