/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Address vectors, and the names of connectionless endpoints. Inserted addresses have the format of the domain's
 * info: gdrfab names (ADDR_NAME), or socket addresses or text, which mean the endpoint that listens there.
 */
#include "provider.h"

#include <ctype.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Converts a name to the caller's format, in memory from malloc(). */
static void *name_out(struct av *a, const char *name, uint32_t addr_format, size_t *len)
{
	char text[GDRFAB_ADDR_MAX];
	void *made;
	if (addr_format != ADDR_NAME) {
		if (told((int)gdrfab_av_straddr(a->it, name, text, sizeof text), FI_LOG_AV, "writing a name down") < 0)
			return NULL;
		return address_export(text, addr_format, len);
	}
	made = malloc(GDRFAB_NAME_LEN);
	if (made) {
		memcpy(made, name, GDRFAB_NAME_LEN);
		*len = GDRFAB_NAME_LEN;
	}
	return made;
}

/* Bytes from one address to the next. Where the format fixes the family, the addresses' own family is ignored. 0:
 * strings, or an unknown family. */
static size_t stride(uint32_t addr_format, const void *addr)
{
	bool alike = addr_format == FI_SOCKADDR_IN || addr_format == FI_SOCKADDR_IN6;
	switch (alike ? addr_format : address_format(addr, addr_format)) {
	case ADDR_NAME:
		return GDRFAB_NAME_LEN;
	case FI_SOCKADDR_IN:
		return sizeof(struct sockaddr_in);
	case FI_SOCKADDR_IN6:
		return sizeof(struct sockaddr_in6);
	default:
		return 0;
	}
}

static int insert_text(struct av *a, const char *text, fi_addr_t *index)
{
	ssize_t n = gdrfab_av_insertsvc(a->it, NULL, text, index, 0, NULL);
	return n < 0 ? (int)n : 0;
}

/* Inserts one address. With FI_ADDR_STR, `addr` points to a string. */
static int insert_one(struct av *a, const void *addr, fi_addr_t *index)
{
	uint32_t format = a->domain->addr_format;
	char text[ADDRESS_MAX];
	ssize_t n;
	if (format == ADDR_NAME && address_format(addr, FI_SOCKADDR) == FI_FORMAT_UNSPEC) {
		n = gdrfab_av_insert(a->it, addr, 1, index, 0, NULL);
		return n < 0 ? (int)n : n == 1 ? 0 : -FI_EINVAL;
	}
	if (address_import(KIND_RDM, addr, stride(format, addr), format, text) < 0)
		return -FI_EINVAL;
	return insert_text(a, text, index);
}

static int av_insert(struct fid_av *av, const void *addr, size_t count, fi_addr_t *fi_addr, uint64_t flags, void *context)
{
	enter(((struct av *)av)->domain->fabric->lib);
	struct av *a = (struct av *)av;
	const char *at = addr;
	int *errors = flags & FI_SYNC_ERR ? context : NULL;
	size_t step = 0;
	int inserted = 0;
	if (flags & ~(FI_MORE | FI_SYNC_ERR))
		return REFUSE(FI_EBADFLAGS, FI_LOG_AV, "fi_av_insert: flags: %#llx\n", (unsigned long long)flags);
	if (!addr && count)
		return REFUSE(FI_EINVAL, FI_LOG_AV, "fi_av_insert: addr: NULL\n");
	for (size_t i = 0; i < count; i++) {
		bool text = a->domain->addr_format == FI_ADDR_STR;
		const void *one = text ? ((const char *const *)addr)[i] : at;
		fi_addr_t index = FI_ADDR_NOTAVAIL;
		int result = told(insert_one(a, one, &index), FI_LOG_AV, "fi_av_insert");
		if (fi_addr)
			fi_addr[i] = result < 0 ? FI_ADDR_NOTAVAIL : index;
		if (errors)
			errors[i] = -result;
		inserted += result == 0;
		/* If already the first address has no known family, the position of the next is unknown: all are
		 * refused. */
		if (!text && stride(a->domain->addr_format, one))
			step = stride(a->domain->addr_format, one);
		at += step;
	}
	return inserted;
}

static int av_insertsvc(struct fid_av *av, const char *node, const char *service, fi_addr_t *fi_addr, uint64_t flags,
			void *context)
{
	enter(((struct av *)av)->domain->fabric->lib);
	struct av *a = (struct av *)av;
	fi_addr_t index = FI_ADDR_NOTAVAIL;
	ssize_t n = gdrfab_av_insertsvc(a->it, node, service, &index, flags & ~FI_SYNC_ERR, NULL);
	if (fi_addr)
		*fi_addr = index;
	if (flags & FI_SYNC_ERR && context)
		*(int *)context = n < 0 ? (int)-n : 0;
	return told((int)n, FI_LOG_AV, "fi_av_insertsvc");
}

/* Adds `by` to the number at the end of a name: "node7" and 2 make "node9". A name without a number stays the same.
 * False: the result is too long. */
static bool count_up(const char *text, size_t by, char *to, size_t size)
{
	size_t length = strlen(text), digits = length;
	while (digits && isdigit((unsigned char)text[digits - 1]) && length - digits < 9)
		digits--;
	if (digits == length)
		return by == 0 && snprintf(to, size, "%s", text) < (int)size;
	return snprintf(to, size, "%.*s%0*lu", (int)digits, text, (int)(length - digits),
			strtoul(text + digits, NULL, 10) + (unsigned long)by) < (int)size;
}

static int av_insertsym(struct fid_av *av, const char *node, size_t nodecnt, const char *service, size_t svccnt,
			fi_addr_t *fi_addr, uint64_t flags, void *context)
{
	enter(((struct av *)av)->domain->fabric->lib);
	char host[256], port[32];
	int *errors = flags & FI_SYNC_ERR ? context : NULL;
	int inserted = 0;
	size_t at = 0;
	if (!node || !service)
		return REFUSE(FI_EINVAL, FI_LOG_AV, "fi_av_insertsym: node or service: NULL\n");
	for (size_t i = 0; i < nodecnt; i++)
		for (size_t j = 0; j < svccnt; j++, at++) {
			fi_addr_t index = FI_ADDR_NOTAVAIL;
			int result = -FI_EINVAL;
			if (count_up(node, i, host, sizeof host) && count_up(service, j, port, sizeof port))
				result = av_insertsvc(av, host, port, &index, flags & ~FI_SYNC_ERR, NULL);
			if (fi_addr)
				fi_addr[at] = index;
			if (errors)
				errors[at] = result < 0 ? -result : 0;
			inserted += result == 1;
		}
	return inserted;
}

static int av_remove(struct fid_av *av, fi_addr_t *fi_addr, size_t count, uint64_t flags)
{
	enter(((struct av *)av)->domain->fabric->lib);
	return told(gdrfab_av_remove(((struct av *)av)->it, fi_addr, count, flags), FI_LOG_AV, "fi_av_remove");
}

/* The address is cut off if there is no room, as libfabric specifies. */
static int av_lookup(struct fid_av *av, fi_addr_t fi_addr, void *addr, size_t *addrlen)
{
	enter(((struct av *)av)->domain->fabric->lib);
	struct av *a = (struct av *)av;
	char name[GDRFAB_NAME_LEN];
	size_t len = sizeof name;
	void *made;
	int result = told(gdrfab_av_lookup(a->it, fi_addr, name, &len), FI_LOG_AV, "fi_av_lookup");
	if (result < 0)
		return result;
	made = name_out(a, name, a->domain->addr_format, &len);
	if (!made)
		return -FI_ENOMEM;
	result = address_give(made, len, addr, addrlen);
	free(made);
	return result == -FI_ETOOSMALL ? 0 : result;
}

static const char *av_straddr(struct fid_av *av, const void *addr, char *buf, size_t *len)
{
	enter(((struct av *)av)->domain->fabric->lib);
	struct av *a = (struct av *)av;
	uint32_t format = a->domain->addr_format;
	char text[ADDRESS_MAX] = "";
	bool name = format == ADDR_NAME && addr && address_format(addr, FI_SOCKADDR) == FI_FORMAT_UNSPEC;
	size_t room;
	if (!addr || !len)
		return NULL;
	if (name ? gdrfab_av_straddr(a->it, addr, text, sizeof text) < 0
		 : address_import(KIND_RDM, addr, stride(format, addr), format, text) < 0)
		return NULL;
	room = *len;
	*len = strlen(text) + 1;
	if (buf && room)
		snprintf(buf, room, "%s", text);
	return buf;
}

static int av_set(struct fid_av *av, struct fi_av_set_attr *attr, struct fid_av_set **set, void *context)
{
	(void)av, (void)attr, (void)set, (void)context;
	return -FI_ENOSYS;
}

static int av_close(struct fid *fid)
{
	enter(((struct av *)fid)->domain->fabric->lib);
	int result = told(gdrfab_av_close(((struct av *)fid)->it), FI_LOG_AV, "closing an address vector");
	if (result == 0)
		free(fid);
	return result;
}

static struct fi_ops fid_ops = {
	.size = sizeof fid_ops,
	.close = av_close,
	.bind = no_bind,
	.control = no_control,
	NO_FID_EXTRAS,
};

static struct fi_ops_av ops = {
	.size = sizeof ops,
	.insert = av_insert,
	.insertsvc = av_insertsvc,
	.insertsym = av_insertsym,
	.remove = av_remove,
	.lookup = av_lookup,
	.straddr = av_straddr,
	.av_set = av_set,
};

int av_open(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **av, void *context)
{
	enter(((struct domain *)domain)->fabric->lib);
	gdrfab_av_attr to = {.struct_size = sizeof to};
	struct av *a;
	int result;
	if (attr) {
		if (attr->name)
			return REFUSE(FI_ENOSYS, FI_LOG_AV, "fi_av_open: attr->name: address vectors cannot be shared between processes\n");
		if (attr->rx_ctx_bits)
			return REFUSE(FI_ENOSYS, FI_LOG_AV, "fi_av_open: attr->rx_ctx_bits: must be 0 (one receive context each)\n");
		if (attr->flags & FI_EVENT)
			return REFUSE(FI_ENOSYS, FI_LOG_AV, "fi_av_open: FI_EVENT: not supported, insertion is synchronous\n");
		if (attr->flags & ~FI_SYMMETRIC)
			return REFUSE(FI_EBADFLAGS, FI_LOG_AV, "fi_av_open: attr->flags: %#llx\n",
				      (unsigned long long)attr->flags);
		if ((unsigned)attr->type > FI_AV_TABLE)
			return REFUSE(FI_EINVAL, FI_LOG_AV, "fi_av_open: attr->type: %d\n", (int)attr->type);
		to.count = attr->count;
		/* Indexes serve callers that treat addresses as opaque, too. */
		if (attr->type == FI_AV_UNSPEC)
			attr->type = FI_AV_TABLE;
	}
	a = calloc(1, sizeof *a);
	if (!a)
		return -FI_ENOMEM;
	result = told(gdrfab_av_open(((struct domain *)domain)->it, &to, NULL, &a->it), FI_LOG_AV, "opening an address vector");
	if (result < 0) {
		free(a);
		return result;
	}
	a->domain = (struct domain *)domain;
	a->av.fid.fclass = FI_CLASS_AV;
	a->av.fid.context = context;
	a->av.fid.ops = &fid_ops;
	a->av.ops = &ops;
	*av = &a->av;
	return 0;
}

/* ---- endpoints' names */

static int rdm_getname(fid_t fid, void *addr, size_t *addrlen)
{
	enter(((struct ep *)fid)->domain->fabric->lib);
	struct ep *e = (struct ep *)fid;
	char name[GDRFAB_NAME_LEN];
	size_t len = sizeof name;
	void *made;
	int result = told(gdrfab_ep_getname(e->it, name, &len), FI_LOG_EP_CTRL, "fi_getname");
	if (result < 0)
		return result;
	made = name_out(e->av, name, e->addr_format, &len);
	if (!made)
		return -FI_ENOMEM;
	result = address_give(made, len, addr, addrlen);
	free(made);
	return result;
}

struct fi_ops_cm rdm_cm_ops = {
	.size = sizeof rdm_cm_ops,
	.setname = no_setname,
	.getname = rdm_getname,
	.getpeer = no_getpeer,
	.connect = no_connect,
	.listen = no_listen,
	.accept = no_accept,
	.reject = no_reject,
	.shutdown = no_shutdown,
	.join = no_join,
};
