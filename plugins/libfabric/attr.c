/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Makes the attributes of a candidate for a caller of fi_getinfo. gdrfab itself checks the hints that it understands
 * (hints_make()); the others are checked here. Each refusal names the attribute in the log, because "no data" alone
 * helps nobody.
 */
#include "attr.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

bool mr_mode_old(uint32_t version, int mr_mode)
{
	return !(mr_mode & MR_NEW) && (FI_VERSION_LT(version, FI_VERSION(1, 5)) || mr_mode & MR_OLD);
}

uint64_t caps_directions(uint64_t caps)
{
	if (caps & (FI_MSG | FI_TAGGED) && !(caps & (FI_SEND | FI_RECV)))
		caps |= FI_SEND | FI_RECV;
	if (caps & (FI_RMA | FI_ATOMIC) && !(caps & RMA_ALL))
		caps |= RMA_ALL;
	return caps;
}

bool caps_target(uint64_t caps)
{
	return !caps || caps_directions(caps) & RMA_TARGET;
}

/* Completion queues and counters are limited by memory only. Some callers want a number before they allocate. */
#define PLENTY 65536
/* All 64 bits of a tag are the caller's. libfabric writes alternating bits for fields of any width. */
#define TAG_GENERIC 0xaaaaaaaaaaaaaaaau
/* Bytes of text that an error entry's err_data can have. */
#define ERR_DATA 512

/* The capabilities of one side (transmit or receive). A primary capability goes when its last direction goes. */
static uint64_t half(uint64_t caps, uint64_t side)
{
	caps &= side;
	if (!(caps & (FI_SEND | FI_RECV)))
		caps &= ~(FI_MSG | FI_TAGGED);
	if (!(caps & RMA_ALL))
		caps &= ~(FI_RMA | FI_ATOMIC);
	return caps;
}

/* ---- checking the hints */

struct candidate {
	enum kind kind;
	const gdrfab_info *from;
	bool out; /* an attribute did not fit */
};

#define OUT(c, ...)                                                                                                    \
	do {                                                                                                           \
		char why[768];                                                                                         \
		snprintf(why, sizeof why, __VA_ARGS__);                                                                \
		INFO(FI_LOG_FABRIC, "%s (%s) left out: %s\n", kind_names[(c)->kind], (c)->from->domain_name, why);     \
		(c)->out = true;                                                                                       \
	} while (0)

static void at_most(struct candidate *c, const char *what, size_t wanted, size_t offered)
{
	if (wanted > offered)
		OUT(c, "%s: %zu wanted, %zu offered", what, wanted, offered);
}

/* Capabilities that gdrfab lacks, and so has no hints for. */
static const struct {
	uint64_t bit;
	const char *name;
} foreign[] = {
	{FI_TAGGED, "FI_TAGGED"},
	{FI_ATOMIC, "FI_ATOMIC"},
	{FI_MULTICAST, "FI_MULTICAST"},
	{FI_COLLECTIVE, "FI_COLLECTIVE"},
	{FI_MULTI_RECV, "FI_MULTI_RECV"},
	{FI_TRIGGER, "FI_TRIGGER"},
	{FI_VARIABLE_MSG, "FI_VARIABLE_MSG"},
	{FI_RMA_PMEM, "FI_RMA_PMEM"},
	{FI_SOURCE, "FI_SOURCE"},
	{FI_SOURCE_ERR, "FI_SOURCE_ERR"},
	{FI_SHARED_AV, "FI_SHARED_AV"},
	{FI_NAMED_RX_CTX, "FI_NAMED_RX_CTX"},
	{FI_DIRECTED_RECV, "FI_DIRECTED_RECV"},
};

static void caps_within(struct candidate *c, const char *what, uint64_t wanted, uint64_t offered)
{
	uint64_t lacks = wanted & ~offered, known;
	char names[384] = "", words[256] = "";
	size_t used = 0;
	if (!lacks)
		return;
	for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++)
		if (lacks & foreign[i].bit)
			used += (size_t)snprintf(names + used, sizeof names - used, " %s", foreign[i].name);
	known = lacks;
	for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++)
		known &= ~foreign[i].bit;
	if (known)
		gdrfab_tostr(&known, GDRFAB_TYPE_CAPS, words, sizeof words);
	OUT(c, "%s: lacks%s%s%s, which the hints want", what, names, words[0] ? " " : "", words);
}

static void bits_within(struct candidate *c, const char *what, uint64_t wanted, uint64_t offered)
{
	if (wanted & ~offered)
		OUT(c, "%s: 0x%" PRIx64 " wanted, 0x%" PRIx64 " offered", what, wanted, offered);
}

/* Adds the specific orders: FI_ORDER_RAR and the like stand for the orders of RMA and of atomics together. */
static uint64_t orders(uint64_t order)
{
	static const uint64_t both[][2] = {
		{FI_ORDER_RAR, FI_ORDER_RMA_RAR | FI_ORDER_ATOMIC_RAR},
		{FI_ORDER_RAW, FI_ORDER_RMA_RAW | FI_ORDER_ATOMIC_RAW},
		{FI_ORDER_WAR, FI_ORDER_RMA_WAR | FI_ORDER_ATOMIC_WAR},
		{FI_ORDER_WAW, FI_ORDER_RMA_WAW | FI_ORDER_ATOMIC_WAW},
	};
	for (size_t i = 0; i < sizeof both / sizeof both[0]; i++)
		if (order & both[i][0])
			order |= both[i][1];
	return order;
}

static void unshared(struct candidate *c, const char *what, size_t wanted)
{
	if (wanted == FI_SHARED_CONTEXT)
		OUT(c, "%s: FI_SHARED_CONTEXT wanted, but each endpoint has a context of its own", what);
	else
		at_most(c, what, wanted, 1);
}

static void judge_ep(struct candidate *c, const struct fi_ep_attr *ep, const struct fi_ep_attr *offered)
{
	if (ep->protocol != FI_PROTO_UNSPEC && ep->protocol != offered->protocol)
		OUT(c, "ep_attr->protocol: 0x%x wanted, 0x%x offered", ep->protocol, offered->protocol);
	at_most(c, "ep_attr->protocol_version", ep->protocol_version, offered->protocol_version);
	at_most(c, "ep_attr->max_order_raw_size", ep->max_order_raw_size, offered->max_order_raw_size);
	at_most(c, "ep_attr->max_order_war_size", ep->max_order_war_size, offered->max_order_war_size);
	at_most(c, "ep_attr->max_order_waw_size", ep->max_order_waw_size, offered->max_order_waw_size);
	unshared(c, "ep_attr->tx_ctx_cnt", ep->tx_ctx_cnt);
	unshared(c, "ep_attr->rx_ctx_cnt", ep->rx_ctx_cnt);
}

static void judge_domain(struct candidate *c, const struct fi_domain_attr *d, const struct fi_domain_attr *offered)
{
	at_most(c, "domain_attr->cq_cnt", d->cq_cnt, offered->cq_cnt);
	at_most(c, "domain_attr->ep_cnt", d->ep_cnt, offered->ep_cnt);
	at_most(c, "domain_attr->cntr_cnt", d->cntr_cnt, offered->cntr_cnt);
	at_most(c, "domain_attr->tx_ctx_cnt", d->tx_ctx_cnt, offered->tx_ctx_cnt);
	at_most(c, "domain_attr->rx_ctx_cnt", d->rx_ctx_cnt, offered->rx_ctx_cnt);
	at_most(c, "domain_attr->max_ep_tx_ctx", d->max_ep_tx_ctx, offered->max_ep_tx_ctx);
	at_most(c, "domain_attr->max_ep_rx_ctx", d->max_ep_rx_ctx, offered->max_ep_rx_ctx);
	at_most(c, "domain_attr->max_ep_stx_ctx", d->max_ep_stx_ctx, offered->max_ep_stx_ctx);
	at_most(c, "domain_attr->max_ep_srx_ctx", d->max_ep_srx_ctx, offered->max_ep_srx_ctx);
	at_most(c, "domain_attr->max_err_data", d->max_err_data, offered->max_err_data);
	caps_within(c, "domain_attr->caps", d->caps, offered->caps);
}

static void judge(struct candidate *c, const struct fi_info *hints, uint64_t all, const struct fi_info *info)
{
	const struct fi_tx_attr *tx = hints->tx_attr;
	const struct fi_rx_attr *rx = hints->rx_attr;
	uint64_t mode = rx && rx->mode ? rx->mode : hints->mode;
	caps_within(c, "caps", hints->caps, all);
	if (tx) {
		caps_within(c, "tx_attr->caps", tx->caps, all);
		at_most(c, "tx_attr->rma_iov_limit", tx->rma_iov_limit, LIST_PIECES);
		bits_within(c, "tx_attr->msg_order", tx->msg_order, info->tx_attr->msg_order);
		bits_within(c, "tx_attr->comp_order", tx->comp_order, info->tx_attr->comp_order);
	}
	if (rx) {
		caps_within(c, "rx_attr->caps", rx->caps, all);
		bits_within(c, "rx_attr->msg_order", rx->msg_order, info->rx_attr->msg_order);
		bits_within(c, "rx_attr->comp_order", rx->comp_order, info->rx_attr->comp_order);
		bits_within(c, "rx_attr->op_flags", rx->op_flags, RX_OP_FLAGS(c->kind));
		at_most(c, "rx_attr->total_buffered_recv", rx->total_buffered_recv, 0);
	}
	if (info->mode & FI_RX_CQ_DATA && !(mode & FI_RX_CQ_DATA))
		OUT(c, "mode: the hints lack FI_RX_CQ_DATA, but a write with data consumes a receive here");
	if (info->caps & FI_HMEM && hints->domain_attr && !(hints->domain_attr->mr_mode & FI_MR_HMEM))
		OUT(c, "caps: FI_HMEM needs FI_MR_HMEM in mr_mode: device memory must be registered here");
	if (hints->ep_attr)
		judge_ep(c, hints->ep_attr, info->ep_attr);
	if (hints->domain_attr)
		judge_domain(c, hints->domain_attr, info->domain_attr);
	/* Refused, because a secret that is ignored is worse than none. */
	if (c->kind != KIND_TCP && (OF(hints, ep_attr, auth_key_size) || OF(hints, domain_attr, auth_key_size)))
		OUT(c, "auth_key: only tcp supports it");
}

/* ---- making the attributes */

/* A limit on endpoints: those of tcp and shm use at least one descriptor each. A device reports its number of queue
 * pairs. */
static size_t descriptors(void)
{
	struct rlimit limit;
	if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur > PLENTY)
		return PLENTY;
	return (size_t)limit.rlim_cur;
}

static int mr_mode_told(uint32_t version, const struct fi_info *hints, const gdrfab_info *from, uint64_t caps)
{
	int mode = (int)from->mr_mode;
	int asked = hints && hints->domain_attr ? hints->domain_attr->mr_mode : FI_MR_UNSPEC;
	if (hints && hints->domain_attr && !caps_target(hints->caps))
		mode &= ~(FI_MR_VIRT_ADDR | FI_MR_PROV_KEY);
	if (caps & FI_HMEM)
		mode |= FI_MR_HMEM;
	/* Versions before 1.5 have two values only. There FI_LOCAL_MR in fi_info's mode means FI_MR_LOCAL. */
	if (mr_mode_old(version, asked) && (!hints || hints->domain_attr || FI_VERSION_LT(version, FI_VERSION(1, 5))))
		return asked == FI_MR_SCALABLE ? FI_MR_SCALABLE : FI_MR_BASIC;
	return mode;
}

static void fill_domain(struct fi_domain_attr *d, enum kind kind, const gdrfab_info *from, const struct fi_info *hints,
			const gdrfab_nic_attr *nic)
{
	bool automatic = OF(hints, domain_attr, control_progress) == FI_PROGRESS_AUTO ||
		OF(hints, domain_attr, data_progress) == FI_PROGRESS_AUTO;
	/* All other values that a caller may ask for promise less than FI_THREAD_SAFE. */
	d->threading = OF(hints, domain_attr, threading) == FI_THREAD_DOMAIN ? FI_THREAD_DOMAIN : FI_THREAD_SAFE;
	/* gdrfab has one setting for both. */
	d->control_progress = d->data_progress = automatic ? FI_PROGRESS_AUTO : FI_PROGRESS_MANUAL;
	d->resource_mgmt = FI_RM_ENABLED;
	/* An index is allowed: callers must treat an fi_addr_t as opaque. */
	d->av_type = kind == KIND_RDM ? OF(hints, domain_attr, av_type) : FI_AV_UNSPEC;
	d->mr_key_size = from->mr_key_size;
	d->cq_data_size = from->cq_data_size;
	d->cq_cnt = nic ? nic->max_cq : PLENTY;
	d->ep_cnt = nic ? nic->max_qp : descriptors();
	d->cntr_cnt = PLENTY;
	d->tx_ctx_cnt = d->rx_ctx_cnt = d->max_ep_tx_ctx = d->max_ep_rx_ctx = 1;
	d->max_ep_stx_ctx = d->max_ep_srx_ctx = 0;
	d->mr_iov_limit = from->mr_iov_limit;
	d->mr_cnt = from->mr_cnt;
	d->caps = from->caps & (FI_LOCAL_COMM | FI_REMOTE_COMM);
	d->max_err_data = ERR_DATA;
}

static void fill_ep(struct fi_ep_attr *ep, enum kind kind, const gdrfab_info *from, bool lists)
{
	uint64_t order = lists ? 0 : from->msg_order;
	ep->type = (enum fi_ep_type)kind_type(kind);
	ep->mem_tag_format = kind == KIND_RDM ? TAG_GENERIC : 0;
	ep->protocol = PROTOCOL(kind);
	ep->protocol_version = PROTOCOL_VERSION;
	ep->max_msg_size = from->max_msg_size;
	ep->max_order_raw_size = order & FI_ORDER_RAW ? from->max_msg_size : 0;
	ep->max_order_war_size = order & FI_ORDER_WAR ? from->max_msg_size : 0;
	ep->max_order_waw_size = order & FI_ORDER_WAW ? from->max_msg_size : 0;
	ep->tx_ctx_cnt = ep->rx_ctx_cnt = 1;
}

/* The iov_limit for a caller that asks for none. ofi_rxm uses as many pieces as it is offered, but has room for four
 * with its own header. */
static size_t unasked(enum kind kind, size_t iov_limit)
{
	return iov_limit < 4 || kind == KIND_RDM ? iov_limit : 4;
}

static void fill_sides(struct fi_info *info, enum kind kind, const gdrfab_info *from, const struct fi_info *hints)
{
	struct fi_tx_attr *tx = info->tx_attr;
	struct fi_rx_attr *rx = info->rx_attr;
	uint64_t tx_caps = OF(hints, tx_attr, caps), rx_caps = OF(hints, rx_attr, caps);
	bool lists = wants_lists(hints, from);
	size_t asked;
	tx->caps = half(tx_caps ? caps_directions(tx_caps) : info->caps, TX_CAPS);
	rx->caps = half(rx_caps ? caps_directions(rx_caps) : info->caps, RX_CAPS);
	tx->op_flags = OF(hints, tx_attr, op_flags);
	rx->op_flags = OF(hints, rx_attr, op_flags);
	tx->msg_order = rx->msg_order = orders(from->msg_order) & ~(lists ? LIST_DISORDER : 0);
	/* Endpoints are opened with this order (hints.c), because layers above rely on it without asking. */
	tx->comp_order = rx->comp_order = kind == KIND_RDM || lists ? FI_ORDER_NONE : FI_ORDER_STRICT;
	tx->inject_size = from->inject_size;
	/* Granted as requested: gdrfab has checked that the sizes are possible. */
	tx->size = (asked = OF(hints, tx_attr, size)) ? asked : from->tx_size;
	rx->size = (asked = OF(hints, rx_attr, size)) ? asked : from->rx_size;
	tx->iov_limit = (asked = OF(hints, tx_attr, iov_limit)) ? asked : unasked(kind, from->tx_iov_limit);
	rx->iov_limit = (asked = OF(hints, rx_attr, iov_limit)) ? asked : unasked(kind, from->rx_iov_limit);
	tx->rma_iov_limit = (asked = OF(hints, tx_attr, rma_iov_limit)) ? asked : from->rma_iov_limit;
}

/* Copies a key, if there is one. False: no memory. */
static bool key_copy(uint8_t **to, size_t *to_size, const uint8_t *from, size_t size)
{
	if (!from || !size)
		return true;
	*to = malloc(size);
	if (!*to)
		return false;
	memcpy(*to, from, size);
	*to_size = size;
	return true;
}

static bool keys_copy(struct fi_info *info, const struct fi_info *hints)
{
	return key_copy(&info->ep_attr->auth_key, &info->ep_attr->auth_key_size, OF(hints, ep_attr, auth_key),
			OF(hints, ep_attr, auth_key_size)) &&
		key_copy(&info->domain_attr->auth_key, &info->domain_attr->auth_key_size,
			 OF(hints, domain_attr, auth_key), OF(hints, domain_attr, auth_key_size));
}

/* True if this host has an accelerator that gdrfab can use. Called only if the caller asks for FI_HMEM, because it
 * opens drivers. */
static bool devices_here(void)
{
	for (uint32_t iface = GDRFAB_HMEM_CUDA; iface <= GDRFAB_HMEM_SYNAPSEAI; iface++) {
		gdrfab_hmem_info at = {.struct_size = sizeof at};
		if (gdrfab_hmem_query(iface, UINT32_MAX, &at) == 0)
			return true;
		INFO(FI_LOG_FABRIC, "no FI_HMEM of interface %u: %s\n", iface, gdrfab_last_error());
	}
	return false;
}

static uint64_t caps_told(enum kind kind, uint64_t all, const struct fi_info *hints)
{
	uint64_t caps;
	/* MPICH asks without hints first, and then requests all that it was offered. */
	if (!hints && kind == KIND_RDM)
		return all;
	if (!hints || !hints->caps)
		return all & ~FI_HMEM;
	caps = caps_directions(hints->caps) | (all & FREE_CAPS);
	/* Without remote writes there are no events of remote writes. */
	return caps & FI_REMOTE_WRITE || hints->caps & FI_RMA_EVENT ? caps : caps & ~FI_RMA_EVENT;
}

static char *name_of(enum kind kind, const char *fabric_name)
{
	const char *before = kind == KIND_RDM ? RDM_FABRIC : "";
	size_t size = strlen(before) + strlen(fabric_name) + 1;
	char *made = malloc(size);
	if (made)
		snprintf(made, size, "%s%s", before, fabric_name);
	return made;
}

int attr_make(enum kind kind, uint32_t version, const gdrfab_info *from, const struct fi_info *hints,
	      struct fi_info **made)
{
	struct candidate c = {.kind = kind, .from = from};
	struct fi_info *info = caller->dupinfo(NULL);
	gdrfab_nic_attr nic;
	/* In gdrfab FI_FENCE is a flag of operations, not a capability. */
	uint64_t all = (from->caps & OPEN_CAPS(kind)) | FI_FENCE;
	bool has_nic = nic_read(from, &nic);
	if (!info)
		return -FI_ENOMEM;
	if ((hints ? hints->caps & FI_HMEM : kind == KIND_RDM) && !devices_here())
		all &= ~FI_HMEM;
	info->caps = caps_told(kind, all, hints);
	/* FI_RX_CQ_DATA is needed only by callers that post receives; otherwise gdrfab keeps receives of its own for
	 * incoming data. */
	if (info->caps & (FI_MSG | FI_RECV))
		info->mode = info->rx_attr->mode = from->mode & FI_RX_CQ_DATA;
	/* A connectionless endpoint has one queue pair for each peer, so the device's count of queue pairs is no
	 * count of endpoints. */
	fill_domain(info->domain_attr, kind, from, hints, has_nic && kind != KIND_RDM ? &nic : NULL);
	fill_ep(info->ep_attr, kind, from, wants_lists(hints, from));
	fill_sides(info, kind, from, hints);
	info->domain_attr->mr_mode = mr_mode_told(version, hints, from, info->caps);
	if (info->domain_attr->mr_mode & MR_OLD && from->mr_mode & FI_MR_LOCAL) {
		info->mode |= FI_LOCAL_MR;
		info->tx_attr->mode |= FI_LOCAL_MR;
		info->rx_attr->mode |= FI_LOCAL_MR;
		info->domain_attr->mode |= FI_LOCAL_MR;
	}
	if (hints)
		judge(&c, hints, all, info);
	if (c.out) {
		caller->freeinfo(info);
		return -FI_ENODATA;
	}
	/* prov_name stays NULL: libfabric fills it in, with the layers above this provider. */
	info->fabric_attr->name = name_of(kind, from->fabric_name);
	info->fabric_attr->prov_version = caller->provider.version;
	info->fabric_attr->api_version = version;
	info->domain_attr->name = strdup(from->domain_name);
	info->nic = has_nic ? nic_make(&nic) : NULL;
	if (!info->fabric_attr->name || !info->domain_attr->name || (has_nic && !info->nic) ||
	    !keys_copy(info, hints)) {
		caller->freeinfo(info);
		return -FI_ENOMEM;
	}
	*made = info;
	return 0;
}
