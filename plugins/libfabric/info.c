/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * fi_getinfo. The node, the service and the hints' addresses are converted to a question to gdrfab, for each of its
 * providers in the order in which they are offered. gdrfab's candidates are converted to fi_infos, one for each
 * address that a server may listen on. The log has the reason for each candidate that is left out.
 */
#include "provider.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* The caller's question. */
struct ask {
	uint32_t version;
	const char *node, *service;
	uint64_t flags;
	const struct fi_info *hints;
	uint32_t addr_format;
};

/* The question, converted for one of gdrfab's providers. */
struct place {
	const char *node, *service; /* for gdrfab; points to the texts below or to the caller's */
	bool source;
	char node_text[NI_MAXHOST], service_text[ADDRESS_MAX];
	char src[ADDRESS_MAX], dest[ADDRESS_MAX]; /* from the hints; "": none */
	bool listed; /* one result for each address of this host */
	uint16_t port;
};

#define OUT(kind, ...)                                                                                                 \
	do {                                                                                                           \
		char why[512];                                                                                         \
		snprintf(why, sizeof why, __VA_ARGS__);                                                                \
		INFO(FI_LOG_FABRIC, "%s left out: %s\n", kind_names[kind], why);                                       \
	} while (0)
#define LEAVE_OUT(kind, ...)                                                                                           \
	do {                                                                                                           \
		OUT(kind, __VA_ARGS__);                                                                                \
		return -FI_ENODATA;                                                                                    \
	} while (0)

/* ---- converting the question */

static bool numeric(const char *node)
{
	unsigned char at[sizeof(struct in6_addr)];
	char v6[INET6_ADDRSTRLEN];
	size_t length = strcspn(node, "%");
	if (inet_pton(AF_INET, node, at) == 1)
		return true;
	if (length >= sizeof v6)
		return false;
	memcpy(v6, node, length);
	v6[length] = 0;
	return inet_pton(AF_INET6, v6, at) == 1;
}

/* A port from a number or from a name in this host's list of services; -1: neither. */
static int port_of(const char *service)
{
	const struct addrinfo want = {.ai_socktype = SOCK_STREAM};
	struct addrinfo *found;
	char *end;
	unsigned long port = strtoul(service, &end, 10);
	int result = -1;
	if (*service >= '0' && *service <= '9' && !*end)
		return port <= UINT16_MAX ? (int)port : -1;
	if (*service < 'A' || getaddrinfo(NULL, service, &want, &found) != 0)
		return -1;
	if (found->ai_family == AF_INET)
		result = ntohs(((struct sockaddr_in *)found->ai_addr)->sin_port);
	else if (found->ai_family == AF_INET6)
		result = ntohs(((struct sockaddr_in6 *)found->ai_addr)->sin6_port);
	freeaddrinfo(found);
	return result;
}

/* Looks up one address of a name: the first, but IPv4 before IPv6, in the order in which servers list theirs. */
static int look_up(const char *node, int family, char *text, size_t size)
{
	const struct addrinfo want = {.ai_family = family, .ai_socktype = SOCK_STREAM};
	struct addrinfo *found, *best;
	int result = getaddrinfo(node, NULL, &want, &found);
	if (result)
		LEAVE_OUT(KIND_TCP, "node \"%s\": %s", node, gai_strerror(result));
	for (best = found; best && best->ai_family != AF_INET;)
		best = best->ai_next;
	best = best ? best : found;
	result = getnameinfo(best->ai_addr, best->ai_addrlen, text, (socklen_t)size, NULL, 0, NI_NUMERICHOST);
	freeaddrinfo(found);
	if (result)
		LEAVE_OUT(KIND_TCP, "node \"%s\": %s", node, gai_strerror(result));
	return 0;
}

/* Handles a node or service that is a complete gdrfab address. */
static int whole(enum kind kind, const struct ask *ask, const char *text, struct place *p)
{
	if (ask->addr_format != FI_ADDR_STR)
		LEAVE_OUT(kind, "\"%s\" needs addr_format FI_ADDR_STR", text);
	if (address_import(kind, text, strlen(text) + 1, FI_ADDR_STR, p->service_text) < 0)
		LEAVE_OUT(kind, "\"%s\" is not an address of this provider", text);
	p->node = NULL;
	p->service = p->service_text;
	return 0;
}

static bool from_shm(const struct ask *ask)
{
	const struct sockaddr_in6 *src = ask->hints ? ask->hints->src_addr : NULL;
	return src && ask->hints->src_addrlen == sizeof *src && src->sin6_family == AF_INET6 &&
		address_shm_place(&src->sin6_addr) == SHM_HERE;
}

static int place_node(enum kind kind, const struct ask *ask, struct place *p)
{
	struct in6_addr at;
	enum shm_place is = SHM_NOT;
	if (inet_pton(AF_INET6, ask->node, &at) == 1)
		is = address_shm_place(&at);
	if (is != SHM_NOT && kind != KIND_SHM)
		LEAVE_OUT(kind, "node %s is an address of shm", ask->node);
	if (is == SHM_ELSEWHERE)
		LEAVE_OUT(kind, "node %s is another host, or this one before it was booted", ask->node);
	if (ask->flags & FI_NUMERICHOST && !numeric(ask->node))
		LEAVE_OUT(kind, "node \"%s\" is not numeric, but FI_NUMERICHOST is set", ask->node);
	/* A caller that names an IP address and a socket format may bind a socket to the answer, so shm is left out;
	 * not if its source is an address of shm's. */
	if (kind == KIND_SHM && is == SHM_NOT && (ask->addr_format == FI_SOCKADDR || ask->addr_format == FI_SOCKADDR_IN6) &&
	    numeric(ask->node) && !from_shm(ask))
		LEAVE_OUT(kind, "node %s is an IP address, which shm does not have", ask->node);
	p->node = is == SHM_HERE ? NULL : ask->node;
	if (kind_has_sockets(kind) && ask->addr_format != FI_ADDR_STR) {
		p->node = p->node_text;
		return look_up(ask->node, address_family(ask->addr_format), p->node_text, sizeof p->node_text);
	}
	return 0;
}

static int place_service(enum kind kind, const struct ask *ask, struct place *p)
{
	int port = port_of(ask->service);
	if (port < 0 && kind == KIND_SHM && ask->addr_format == FI_ADDR_STR) {
		p->service = ask->service;
		return 0;
	}
	if (port < 0)
		LEAVE_OUT(kind, "service \"%s\" is neither a port number nor a service name that this host knows", ask->service);
	p->port = (uint16_t)port;
	if (kind == KIND_SHM && port == 0)
		return 0;
	snprintf(p->service_text, sizeof p->service_text, kind == KIND_SHM ? "fi-%d" : "%d", port);
	p->service = p->service_text;
	return 0;
}

static int place_hints(enum kind kind, const struct ask *ask, bool named, struct place *p)
{
	const struct fi_info *h = ask->hints;
	if (!h)
		return 0;
	if ((h->src_addr && !h->src_addrlen) || (h->dest_addr && !h->dest_addrlen))
		LEAVE_OUT(kind, "hints: an address without a length");
	if (h->src_addr && !p->source && address_import(kind, h->src_addr, h->src_addrlen, h->addr_format, p->src) < 0)
		LEAVE_OUT(kind, "hints->src_addr is not an address of this provider");
	if (h->dest_addr && (p->source || !named) &&
	    address_import(kind, h->dest_addr, h->dest_addrlen, h->addr_format, p->dest) < 0)
		LEAVE_OUT(kind, "hints->dest_addr is not an address of this provider");
	return 0;
}

static int place_make(enum kind kind, const struct ask *ask, struct place *p)
{
	const char *text = ask->node && strstr(ask->node, "://") ? ask->node
		: ask->service && strstr(ask->service, "://")    ? ask->service
								 : NULL;
	bool named = ask->node || ask->service;
	int result = 0;
	memset(p, 0, sizeof *p);
	p->source = named && ask->flags & FI_SOURCE;
	if (kind != KIND_RDM && ask->addr_format == ADDR_NAME)
		LEAVE_OUT(kind, "addr_format: the hints ask for connectionless endpoints' addresses");
	if (kind == KIND_SHM && ask->addr_format == FI_SOCKADDR_IN)
		LEAVE_OUT(kind, "addr_format: FI_SOCKADDR_IN wanted, FI_SOCKADDR_IN6 and FI_ADDR_STR offered");
	if (text) {
		result = whole(kind, ask, text, p);
	} else {
		if (ask->node)
			result = place_node(kind, ask, p);
		if (result == 0 && ask->service)
			result = place_service(kind, ask, p);
	}
	if (result == 0)
		result = place_hints(kind, ask, named, p);
	if (result < 0)
		return result;
	if (kind_has_sockets(kind) && !text && !ask->node) {
		p->listed = p->source || (!named && !p->src[0] && !p->dest[0]);
		if (p->listed)
			p->service = NULL;
		else if (named && ask->addr_format == FI_SOCKADDR_IN6)
			p->node = "::1";
	}
	return 0;
}

/* ---- this host's addresses */

/* Preference among addresses to listen on: those that lead out of this host first, and IPv4 before IPv6. -1: not for
 * listening. */
static int rank(const struct ifaddrs *i, int family)
{
	const char *only = getenv("GDRFAB_TCP_IFACE");
	const struct sockaddr_in6 *v6 = (const void *)i->ifa_addr;
	int is;
	if (!i->ifa_addr || !(i->ifa_flags & IFF_UP) || !(i->ifa_flags & IFF_RUNNING))
		return -1;
	is = i->ifa_addr->sa_family;
	if ((is != AF_INET && is != AF_INET6) || (family != AF_UNSPEC && is != family))
		return -1;
	/* A link-local address needs an interface's number, which differs on another host. */
	if (is == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr))
		return -1;
	if (only && *only && strcmp(only, i->ifa_name) != 0)
		return -1;
	/* Container bridges and the loopback lead to no other host. */
	if (i->ifa_flags & IFF_LOOPBACK)
		return 4 + (is == AF_INET6);
	return (strncmp(i->ifa_name, "docker", 6) == 0 ? 2 : 0) + (is == AF_INET6);
}

/* Finds tcp's own address on the route to `dest`. False: no route, or it cannot be found out. */
static bool toward(enum kind kind, const char *dest, char *src)
{
	size_t len;
	struct sockaddr_storage own = {0};
	socklen_t own_len = sizeof own;
	struct sockaddr *to = address_export(dest, FI_FORMAT_UNSPEC, &len);
	bool found;
	int fd;
	if (!to)
		return false;
	/* Nothing is sent; the kernel picks a route. Port 0 would be refused. */
	if (to->sa_family == AF_INET)
		((struct sockaddr_in *)to)->sin_port = htons(1);
	else
		((struct sockaddr_in6 *)to)->sin6_port = htons(1);
	fd = socket(to->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	found = fd >= 0 && connect(fd, to, (socklen_t)len) == 0 &&
		getsockname(fd, (struct sockaddr *)&own, &own_len) == 0;
	if (fd >= 0)
		close(fd);
	free(to);
	if (!found)
		return false;
	if (own.ss_family == AF_INET)
		((struct sockaddr_in *)&own)->sin_port = 0;
	else
		((struct sockaddr_in6 *)&own)->sin6_port = 0;
	return address_import(kind, &own, own_len, FI_SOCKADDR, src) == 0;
}

/* ---- converting the answers */

struct list {
	struct fi_info *head, **tail;
};

/* Appends `info`, which it owns, with its addresses. The info is dropped if the addresses have no form in the format
 * asked for. */
static void append(struct list *list, enum kind kind, const struct ask *ask, const char *src, const char *dest,
		   struct fi_info *info)
{
	uint32_t src_is = 0, dest_is = 0;
	uint32_t format = kind == KIND_RDM && ask->addr_format == FI_FORMAT_UNSPEC ? ADDR_NAME : ask->addr_format;
	if (ask->hints)
		info->handle = ask->hints->handle;
	if (src && *src)
		info->src_addr = address_export(src, format, &info->src_addrlen);
	if (dest && *dest)
		info->dest_addr = address_export(dest, format, &info->dest_addrlen);
	if ((src && *src && !info->src_addr) || (dest && *dest && !info->dest_addr)) {
		OUT(kind, "%s cannot be given in addr_format %" PRIu32 " asks for",
		    info->src_addr || !src || !*src ? dest : src, format);
		caller->freeinfo(info);
		return;
	}
	src_is = address_format(info->src_addr, format);
	dest_is = address_format(info->dest_addr, format);
	if (info->src_addr && info->dest_addr && src_is != dest_is) {
		OUT(kind, "%s cannot connect to %s: their address formats differ", src, dest);
		caller->freeinfo(info);
		return;
	}
	info->addr_format = info->src_addr ? src_is : dest_is;
	*list->tail = info;
	list->tail = &info->next;
}

/* Appends one info for each address that may be listened on. Owns `info`. */
static int append_listed(struct list *list, enum kind kind, const struct ask *ask, const struct place *p, struct fi_info *info)
{
	struct fi_info **before = list->tail;
	struct ifaddrs *all;
	int result = 0;
	if (getifaddrs(&all) != 0) {
		OUT(kind, "listing this host's interfaces (getifaddrs): errno %d", errno);
		caller->freeinfo(info);
		return 0;
	}
	for (int now = 0; now <= 5 && result == 0; now++)
		for (struct ifaddrs *i = all; i && result == 0; i = i->ifa_next) {
			char src[ADDRESS_MAX];
			struct fi_info *one;
			if (rank(i, address_family(ask->addr_format)) != now ||
			    address_import(kind, i->ifa_addr, 0, FI_SOCKADDR, src) < 0)
				continue;
			snprintf(strrchr(src, ':'), 8, ":%u", (unsigned)p->port);
			one = caller->dupinfo(info);
			if (one)
				append(list, kind, ask, src, p->dest, one);
			else
				result = -FI_ENOMEM;
		}
	freeifaddrs(all);
	caller->freeinfo(info);
	if (result == 0 && list->tail == before)
		OUT(kind, "no interface that is up has an address of the family that is wanted");
	return result;
}

/* Writes the address of a device's port to `src`, with the port number of the socket address `wanted`. False:
 * `wanted` names another host. */
static bool same_host(const char *own, const char *wanted, char *src)
{
	static const char any[] = "://0.0.0.0:", any6[] = "://[::]:";
	const char *own_port = strrchr(own, ':'), *wanted_port = strrchr(wanted, ':');
	bool wild = strstr(wanted, any) || strstr(wanted, any6);
	if (!own_port || !wanted_port)
		return false;
	if (!wild && (own_port - own != wanted_port - wanted || strncmp(own, wanted, (size_t)(own_port - own)) != 0))
		return false;
	return snprintf(src, ADDRESS_MAX, "%.*s%s", (int)(own_port - own), own, wanted_port) < ADDRESS_MAX;
}

/* Converts one candidate that gdrfab found to fit. */
static int answer(struct list *list, enum kind kind, const struct ask *ask, const struct place *p,
		  const gdrfab_info *from)
{
	const char *dest = p->dest[0] ? p->dest : from->dest_addr;
	/* A set of lanes with a card listens at the card's address. */
	bool card = kind == KIND_RDM && from->src_addr && (!p->source || p->listed);
	char src[ADDRESS_MAX] = "";
	struct fi_info *info;
	int result;
	snprintf(src, sizeof src, "%s", p->src[0] ? p->src : from->src_addr ? from->src_addr : "");
	if (card && p->listed)
		snprintf(strrchr(src, ':'), 8, ":%u", (unsigned)p->port);
	if (kind == KIND_VERBS || card) {
		if (!from->src_addr) {
			OUT(kind, "%s: its port has no IP address, which connecting needs", from->domain_name);
			return 0;
		}
		if (p->src[0] && !same_host(from->src_addr, p->src, src)) {
			OUT(kind, "%s: hints->src_addr is %s, but this device has %s", from->domain_name, p->src, from->src_addr);
			return 0;
		}
	}
	if (kind == KIND_SHM && ask->addr_format != FI_ADDR_STR) {
		if (!src[0])
			snprintf(src, sizeof src, "shm://fi-0");
		/* A host without a service: answered like the other providers of libfabric. */
		if (!dest && ask->node && !p->source)
			dest = "shm://fi-0";
	}
	/* Layers that also listen do so at the source address; a loopback address there would reach no other host. */
	if (kind_has_sockets(kind) && !p->listed && !src[0] && dest && (kind == KIND_RDM || ask->addr_format != FI_ADDR_STR))
		toward(kind, dest, src);
	result = attr_make(kind, ask->version, from, ask->hints, &info);
	if (result < 0)
		return result == -FI_ENODATA ? 0 : result;
	if (p->listed && !card)
		return append_listed(list, kind, ask, p, info);
	append(list, kind, ask, src, dest, info);
	return 0;
}

/* True if a candidate is to be answered for `kind`. For connectionless endpoints: only sets of offered providers,
 * and no set that is part of one already answered. */
static bool is_of(enum kind kind, const gdrfab_info *at, const gdrfab_info *want, const bool *answered)
{
	unsigned lanes, known = 0;
	/* gdrfab lists other candidates only to say that they were not asked for. */
	if (!at->prov_name || at->ep_type != want->ep_type || (want->prov_name && strcmp(at->prov_name, want->prov_name) != 0))
		return false;
	if (kind != KIND_RDM)
		return true;
	for (int i = 0; i < offered()->count; i++)
		known |= 1u << offered()->order[i];
	lanes = lanes_of(at->prov_name);
	if (lanes & ~known)
		return false;
	for (unsigned other = 0; other < 1u << KINDS; other++)
		if (answered[other] && other != lanes && !(lanes & ~other))
			return false;
	return true;
}

static int offer_kind(struct list *list, enum kind kind, const struct ask *ask)
{
	gdrfab_info want, *all = NULL;
	bool answered[1 << KINDS] = {false};
	struct place p;
	int result = place_make(kind, ask, &p);
	if (result < 0)
		return 0;
	hints_make(kind, ask->version, ask->hints, &want);
	result = gdrfab_getinfo(GDRFAB_VERSION, p.node, p.service,
				(p.source ? GDRFAB_SOURCE : 0) | GDRFAB_GETINFO_ALL, &want, &all);
	if (told(result, FI_LOG_FABRIC, kind_names[kind]) < 0)
		return result == -FI_ENOMEM ? result : 0;
	for (const gdrfab_info *at = all; at && result == 0; at = at->next) {
		struct fi_info **before = list->tail;
		if (!is_of(kind, at, &want, answered))
			continue;
		if (at->reason_errno)
			INFO(FI_LOG_FABRIC, "%s (%s) left out: %s\n", kind_names[kind],
			     at->domain_name ? at->domain_name : at->prov_name,
			     at->reason ? at->reason : gdrfab_strerror((int)at->reason_errno));
		else
			result = answer(list, kind, ask, &p, at);
		if (kind == KIND_RDM && list->tail != before)
			answered[lanes_of(at->prov_name)] = true;
	}
	gdrfab_freeinfo(all);
	return result;
}

int info_get(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints,
	     struct fi_info **info)
{
	/* The other flags are for libfabric itself or for its layers. */
	const struct ask ask = {version, node, service, flags, hints, hints ? hints->addr_format : FI_FORMAT_UNSPEC};
	const struct offer *offer = offered();
	struct list list = {.tail = &list.head};
	enum fi_ep_type type = hints && hints->ep_attr ? hints->ep_attr->type : FI_EP_UNSPEC;
	int result = 0;
	if (type != FI_EP_UNSPEC && type != FI_EP_MSG && type != FI_EP_RDM)
		return REFUSE(FI_ENODATA, FI_LOG_FABRIC, "ep_attr->type: %d wanted, FI_EP_MSG and FI_EP_RDM offered\n", (int)type);
	if (ask.addr_format > FI_SOCKADDR_IN6 && ask.addr_format != FI_ADDR_STR && ask.addr_format != ADDR_NAME)
		return REFUSE(FI_ENODATA, FI_LOG_FABRIC,
			      "addr_format: %" PRIu32 " wanted; socket addresses and text offered\n", ask.addr_format);
	for (int i = 0; i < offer->count && result == 0 && type != FI_EP_RDM; i++)
		result = offer_kind(&list, offer->order[i], &ask);
	if (result == 0 && type != FI_EP_MSG)
		result = offer_kind(&list, KIND_RDM, &ask);
	if (result == 0 && !list.head)
		result = -FI_ENODATA;
	if (result < 0) {
		caller->freeinfo(list.head);
		return result;
	}
	*info = list.head;
	return 0;
}
