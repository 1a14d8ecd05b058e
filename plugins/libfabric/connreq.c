/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Connection requests, from the event that reports them to the endpoint that accepts or the call that rejects. */
#include "provider.h"

#include <stdlib.h>
#include <string.h>


struct connreq *connreq_make(struct pep *pep, gdrfab_info *info)
{
	struct connreq *r = info ? calloc(1, sizeof *r) : NULL;
	if (!r) {
		gdrfab_freeinfo(info);
		return NULL;
	}
	r->fid.fclass = FI_CLASS_CONNREQ;
	r->info = info;
	r->fabric = pep->fabric;
	r->pep = pep;
	pthread_mutex_lock(&r->fabric->lock);
	r->next = r->fabric->requests;
	r->fabric->requests = r;
	pthread_mutex_unlock(&r->fabric->lock);
	return r;
}

/* The handle comes from the application, so it is searched for in the list and not dereferenced. */
gdrfab_info *connreq_take(struct fabric *fabric, const struct pep *pep, fid_t handle)
{
	struct connreq *found;
	gdrfab_info *info = NULL;
	pthread_mutex_lock(&fabric->lock);
	for (struct connreq **at = &fabric->requests; (found = *at) != NULL; at = &found->next) {
		if (&found->fid != handle || (pep && found->pep != pep))
			continue;
		*at = found->next;
		info = found->info;
		free(found);
		break;
	}
	pthread_mutex_unlock(&fabric->lock);
	return info;
}

struct fi_info *connreq_info(struct pep *pep, struct connreq *request)
{
	struct fi_info *info = caller->dupinfo(pep->info);
	if (!info)
		return NULL;
	info->handle = &request->fid;
	free(info->dest_addr);
	info->dest_addr = NULL;
	info->dest_addrlen = 0;
	if (request->info->dest_addr)
		info->dest_addr = address_export(request->info->dest_addr, info->addr_format, &info->dest_addrlen);
	/* One listener may use several cards: the request names the card through which it came. */
	if (request->info->domain_name && info->domain_attr->name &&
	    strcmp(request->info->domain_name, info->domain_attr->name) != 0) {
		char *name = strdup(request->info->domain_name);
		if (name) {
			free(info->domain_attr->name);
			info->domain_attr->name = name;
		}
	}
	return info;
}
