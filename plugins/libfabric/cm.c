/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Connecting: passive endpoints, and the connection calls of endpoints. */
#include "provider.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- addresses for the caller */

static int give(const char *text, uint32_t addr_format, void *addr, size_t *addrlen)
{
	size_t len = 0;
	void *made = address_export(text, addr_format, &len);
	int result = made ? address_give(made, len, addr, addrlen) : -FI_ENOMEM;
	free(made);
	return result;
}

/* ---- passive endpoints */

static int pep_open_again(struct pep *p)
{
	gdrfab_pep *made = NULL;
	int result = told(gdrfab_pep_open(p->fabric->it, p->opening.info, p, &made), FI_LOG_EP_CTRL, "opening a passive endpoint");
	if (result == 0 && p->eq) {
		result = told(gdrfab_pep_bind_eq(made, p->eq->it, 0), FI_LOG_EP_CTRL, "binding an event queue");
		if (result < 0)
			gdrfab_pep_close(made);
	}
	if (result < 0)
		return result;
	if (p->it)
		gdrfab_pep_close(p->it);
	p->it = made;
	return 0;
}

#define GIVEN_UP(call) REFUSE(FI_EOPBADSTATE, FI_LOG_EP_CTRL, call ": an endpoint has taken over this passive endpoint's address\n")

bool pep_is(struct fabric *fabric, fid_t handle)
{
	const struct pep *p;
	pthread_mutex_lock(&fabric->lock);
	for (p = fabric->peps; p && &p->pep.fid != handle;)
		p = p->next;
	pthread_mutex_unlock(&fabric->lock);
	return p != NULL;
}

int pep_give_address(fid_t handle, char *src)
{
	struct pep *p = (struct pep *)handle;
	char text[GDRFAB_ADDR_MAX];
	size_t len = sizeof text;
	int result;
	if (p->fabric->kind != KIND_TCP || p->listens || !p->it)
		return REFUSE(FI_EINVAL, FI_LOG_EP_CTRL,
			      "fi_endpoint: info->handle: only a passive endpoint of tcp that does not listen can hand over its address\n");
	result = told(gdrfab_pep_getname(p->it, text, &len), FI_LOG_EP_CTRL, "fi_endpoint: info->handle");
	if (result < 0)
		return result;
	snprintf(src, ADDRESS_MAX, "%s", text);
	gdrfab_pep_close(p->it);
	p->it = NULL;
	return 0;
}

void pep_take_back(fid_t handle)
{
	pep_open_again((struct pep *)handle);
}

/* Picks a free name for a listener without a port: shm has names where libfabric has ports. The search starts at a
 * number that differs between processes. */
static int pick_name(struct pep *p)
{
	static unsigned last;
	unsigned seed = (unsigned)getpid() * 2654435761u >> 8;
	unsigned port = 1024 + (seed + __atomic_fetch_add(&last, 1, __ATOMIC_RELAXED)) % (65536 - 1024);
	snprintf(p->opening.src, sizeof p->opening.src, "shm://fi-%u", port);
	p->opening.info->src_addr = p->opening.src;
	p->opening.info->src_addrlen = strlen(p->opening.src) + 1;
	return pep_open_again(p);
}

static int pep_close(struct fid *fid)
{
	enter(((struct pep *)fid)->fabric->lib);
	struct pep *p = (struct pep *)fid;
	int result = p->it ? told(gdrfab_pep_close(p->it), FI_LOG_EP_CTRL, "closing a passive endpoint") : 0;
	if (result < 0)
		return result;
	pthread_mutex_lock(&p->fabric->lock);
	for (struct pep **at = &p->fabric->peps; *at; at = &(*at)->next)
		if (*at == p) {
			*at = p->next;
			break;
		}
	pthread_mutex_unlock(&p->fabric->lock);
	if (p->eq)
		eq_forget(p->eq, fid);
	caller->freeinfo(p->info);
	opening_free(&p->opening);
	free(p);
	return 0;
}

static int pep_bind(struct fid *fid, struct fid *other, uint64_t flags)
{
	enter(((struct pep *)fid)->fabric->lib);
	struct pep *p = (struct pep *)fid;
	int result;
	if (other->fclass != FI_CLASS_EQ)
		return REFUSE(FI_EINVAL, FI_LOG_EP_CTRL, "fi_pep_bind: no event queue\n");
	if (!p->it)
		return GIVEN_UP("fi_pep_bind");
	result = told(gdrfab_pep_bind_eq(p->it, ((struct eq *)other)->it, flags), FI_LOG_EP_CTRL, "binding an event queue");
	if (result == 0)
		p->eq = (struct eq *)other;
	return result;
}

static int pep_getopt(fid_t fid, int level, int optname, void *optval, size_t *optlen)
{
	struct pep *p = (struct pep *)fid;
	size_t room;
	if (level != FI_OPT_ENDPOINT || optname != FI_OPT_CM_DATA_SIZE)
		return -FI_ENOPROTOOPT;
	if (!optval || !optlen)
		return -FI_EINVAL;
	room = *optlen;
	*optlen = sizeof(size_t);
	if (room < sizeof(size_t))
		return -FI_ETOOSMALL;
	*(size_t *)optval = p->opening.info->cm_data_size;
	return 0;
}

static int pep_setopt(fid_t fid, int level, int optname, const void *optval, size_t optlen)
{
	(void)fid, (void)level, (void)optname, (void)optval, (void)optlen;
	return -FI_ENOPROTOOPT;
}

static int pep_setname(fid_t fid, void *addr, size_t addrlen)
{
	enter(((struct pep *)fid)->fabric->lib);
	struct pep *p = (struct pep *)fid;
	char text[ADDRESS_MAX], before[ADDRESS_MAX];
	int result;
	if (p->listens)
		return REFUSE(FI_EOPBADSTATE, FI_LOG_EP_CTRL, "fi_setname: the endpoint listens already\n");
	if (!addrlen)
		return REFUSE(FI_EINVAL, FI_LOG_EP_CTRL, "fi_setname: addrlen: 0\n");
	result = address_import(p->fabric->kind, addr, addrlen, p->info->addr_format, text);
	if (result < 0)
		return result;
	memcpy(before, p->opening.src, sizeof before);
	memcpy(p->opening.src, text, sizeof text);
	p->opening.info->src_addr = p->opening.src;
	p->opening.info->src_addrlen = strlen(text) + 1;
	result = pep_open_again(p);
	if (result < 0)
		memcpy(p->opening.src, before, sizeof before);
	else
		p->picks = false;
	return result;
}

static int pep_getname(fid_t fid, void *addr, size_t *addrlen)
{
	enter(((struct pep *)fid)->fabric->lib);
	struct pep *p = (struct pep *)fid;
	char text[GDRFAB_ADDR_MAX];
	size_t len = sizeof text;
	if (!p->it)
		return GIVEN_UP("fi_getname");
	int result = told(gdrfab_pep_getname(p->it, text, &len), FI_LOG_EP_CTRL, "fi_getname");
	return result < 0 ? result : give(text, p->info->addr_format, addr, addrlen);
}

static int pep_listen(struct fid_pep *pep)
{
	enter(((struct pep *)pep)->fabric->lib);
	struct pep *p = (struct pep *)pep;
	if (!p->it)
		return GIVEN_UP("fi_listen");
	int result = gdrfab_pep_listen(p->it);
	for (int tries = 0; result == -EADDRINUSE && p->picks && tries < 1000; tries++) {
		result = pick_name(p);
		if (result == 0)
			result = gdrfab_pep_listen(p->it);
	}
	told(result, FI_LOG_EP_CTRL, "fi_listen");
	if (result == 0) {
		char text[GDRFAB_ADDR_MAX];
		size_t len = sizeof text;
		p->listens = true;
		if (gdrfab_pep_getname(p->it, text, &len) == 0)
			INFO(FI_LOG_EP_CTRL, "listening at %s\n", text);
	}
	return result;
}

static int pep_reject(struct fid_pep *pep, fid_t handle, const void *param, size_t paramlen)
{
	enter(((struct pep *)pep)->fabric->lib);
	struct pep *p = (struct pep *)pep;
	gdrfab_info *request = connreq_take(p->fabric, p, handle);
	int result;
	if (!request)
		return REFUSE(FI_EINVAL, FI_LOG_EP_CTRL, "fi_reject: handle: not an unanswered request of this passive endpoint\n");
	result = told(gdrfab_pep_reject(p->it, request->handle, param, paramlen), FI_LOG_EP_CTRL, "fi_reject");
	gdrfab_freeinfo(request);
	return result;
}

static struct fi_ops pep_fid_ops = {
	.size = sizeof pep_fid_ops,
	.close = pep_close,
	.bind = pep_bind,
	.control = no_control,
	NO_FID_EXTRAS,
};

static struct fi_ops_ep pep_ops = {
	.size = sizeof pep_ops,
	.cancel = no_cancel,
	.getopt = pep_getopt,
	.setopt = pep_setopt,
	.tx_ctx = no_tx_ctx,
	.rx_ctx = no_rx_ctx,
	.rx_size_left = no_size_left,
	.tx_size_left = no_size_left,
};

static struct fi_ops_cm pep_cm_ops = {
	.size = sizeof pep_cm_ops,
	.setname = pep_setname,
	.getname = pep_getname,
	.getpeer = no_getpeer,
	.connect = no_connect,
	.listen = pep_listen,
	.accept = no_accept,
	.reject = pep_reject,
	.shutdown = no_shutdown,
	.join = no_join,
};

int pep_open(struct fid_fabric *fabric, struct fi_info *info, struct fid_pep **pep, void *context)
{
	enter(((struct fabric *)fabric)->lib);
	struct fabric *f = (struct fabric *)fabric;
	struct pep *p;
	int result;
	if (!info)
		return REFUSE(FI_EINVAL, FI_LOG_EP_CTRL, "fi_passive_ep: info: NULL\n");
	p = calloc(1, sizeof *p);
	if (!p)
		return -FI_ENOMEM;
	p->fabric = f;
	p->info = caller->dupinfo(info);
	result = p->info ? opening_make(&p->opening, f->info, info) : -FI_ENOMEM;
	if (result == 0 && f->kind == KIND_SHM && !p->opening.info->src_addr) {
		p->picks = true;
		result = pick_name(p);
	} else if (result == 0) {
		result = pep_open_again(p);
	}
	if (result < 0) {
		if (p->info)
			caller->freeinfo(p->info);
		opening_free(&p->opening);
		free(p);
		return result;
	}
	pthread_mutex_lock(&f->lock);
	p->next = f->peps;
	f->peps = p;
	pthread_mutex_unlock(&f->lock);
	p->pep.fid.fclass = FI_CLASS_PEP;
	p->pep.fid.context = context;
	p->pep.fid.ops = &pep_fid_ops;
	p->pep.ops = &pep_ops;
	p->pep.cm = &pep_cm_ops;
	*pep = &p->pep;
	return 0;
}

/* ---- endpoints */

static int ep_connect(struct fid_ep *ep, const void *addr, const void *param, size_t paramlen)
{
	enter(((struct ep *)ep)->domain->fabric->lib);
	struct ep *e = (struct ep *)ep;
	char text[ADDRESS_MAX];
	const char *to = e->dest;
	if (addr) {
		int result = address_import(e->domain->fabric->kind, addr, 0, e->addr_format, text);
		if (result < 0)
			return result;
		to = text;
	}
	if (!*to)
		return REFUSE(FI_EINVAL, FI_LOG_EP_CTRL, "fi_connect: addr: NULL, and the endpoint's info has no dest_addr\n");
	INFO(FI_LOG_EP_CTRL, "connecting to %s\n", to);
	return told(gdrfab_ep_connect(e->it, to, strlen(to) + 1, param, paramlen), FI_LOG_EP_CTRL, "fi_connect");
}

static int ep_accept(struct fid_ep *ep, const void *param, size_t paramlen)
{
	enter(((struct ep *)ep)->domain->fabric->lib);
	return told(gdrfab_ep_accept(((struct ep *)ep)->it, param, paramlen), FI_LOG_EP_CTRL, "fi_accept");
}

static int ep_shutdown(struct fid_ep *ep, uint64_t flags)
{
	enter(((struct ep *)ep)->domain->fabric->lib);
	struct ep *e = (struct ep *)ep;
	int result = told(gdrfab_ep_shutdown(e->it, flags), FI_LOG_EP_CTRL, "fi_shutdown");
	if (result == 0 && e->eq)
		eq_tell_end(e->eq, e);
	return result;
}

static int ep_getpeer(struct fid_ep *ep, void *addr, size_t *addrlen)
{
	enter(((struct ep *)ep)->domain->fabric->lib);
	struct ep *e = (struct ep *)ep;
	char text[GDRFAB_ADDR_MAX];
	size_t len = sizeof text;
	int result = told(gdrfab_ep_getpeer(e->it, text, &len), FI_LOG_EP_CTRL, "fi_getpeer");
	return result < 0 ? result : give(text, e->addr_format, addr, addrlen);
}

/* The endpoint's own address. With tcp it is the connection's. Otherwise it is the address that the endpoint or its
 * listener was opened with; a connecting endpoint of shm has no name, and so port 0. */
static int ep_getname(fid_t fid, void *addr, size_t *addrlen)
{
	enter(((struct ep *)fid)->domain->fabric->lib);
	struct ep *e = (struct ep *)fid;
	char text[GDRFAB_ADDR_MAX];
	size_t len = sizeof text;
	if (e->domain->fabric->kind == KIND_TCP && gdrfab_ep_getpeer(e->it, text, &len) == 0 &&
	    (len = sizeof text, gdrfab_ep_getname(e->it, text, &len)) == 0) {
		/* The part after "/" distinguishes endpoints behind one address; libfabric has no field for it. */
		text[strlen("tcp://") + strcspn(text + strlen("tcp://"), "/")] = 0;
		return give(text, e->addr_format, addr, addrlen);
	}
	if (!*e->src && e->domain->fabric->kind == KIND_SHM)
		return give("shm://", e->addr_format, addr, addrlen);
	if (!*e->src)
		return REFUSE(FI_EOPBADSTATE, FI_LOG_EP_CTRL, "fi_getname: the endpoint's info has no src_addr\n");
	return give(e->src, e->addr_format, addr, addrlen);
}

struct fi_ops_cm ep_cm_ops = {
	.size = sizeof ep_cm_ops,
	.setname = no_setname,
	.getname = ep_getname,
	.getpeer = ep_getpeer,
	.connect = ep_connect,
	.listen = no_listen,
	.accept = ep_accept,
	.reject = no_reject,
	.shutdown = ep_shutdown,
	.join = no_join,
};
