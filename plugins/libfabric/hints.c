/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Converts for gdrfab: a caller's hints, and a caller's fi_info that opens an object. */
#include "attr.h"

#include <inttypes.h>
#include <string.h>

/* The mr_mode that the caller supports, in the bits of version 1.5 and later. */
static int mr_mode_offered(uint32_t version, const struct fi_info *hints)
{
	int mode, offered;
	if (!hints || !hints->domain_attr)
		return MR_NEW;
	mode = hints->domain_attr->mr_mode;
	offered = mode & MR_NEW;
	if (mode & FI_MR_BASIC || (mode == FI_MR_UNSPEC && FI_VERSION_LT(version, FI_VERSION(1, 5))))
		offered |= MR_BASIC_MEANS;
	if (mr_mode_old(version, mode) && (hints->mode | hints->domain_attr->mode) & FI_LOCAL_MR)
		offered |= FI_MR_LOCAL;
	if (!caps_target(hints->caps))
		offered |= FI_MR_VIRT_ADDR | FI_MR_PROV_KEY;
	return offered;
}

void hints_make(enum kind kind, uint32_t version, const struct fi_info *hints, gdrfab_info *want)
{
	memset(want, 0, sizeof *want);
	want->struct_size = sizeof *want;
	want->ep_type = kind_type(kind);
	want->prov_name = kind == KIND_RDM ? NULL : (char *)(uintptr_t)kind_names[kind];
	want->mr_mode = (uint32_t)mr_mode_offered(version, hints);
	/* To gdrfab, 0 means that the caller asks for nothing; in libfabric it means that the caller undertakes
	 * nothing. The bit below is the one that no provider asks for. */
	if (want->mr_mode == 0)
		want->mr_mode = GDRFAB_MR_HMEM;
	if (!hints)
		return;
	want->fabric_name = OF(hints, fabric_attr, name);
	if (kind == KIND_RDM && want->fabric_name && info_kind(want->fabric_name) == kind) {
		want->fabric_name += strlen(RDM_FABRIC);
		want->prov_name = want->fabric_name;
	}
	want->tx_op_flags = OF(hints, tx_attr, op_flags);
	want->rx_op_flags = OF(hints, rx_attr, op_flags);
	want->inject_size = OF(hints, tx_attr, inject_size);
	want->tx_size = OF(hints, tx_attr, size);
	want->tx_iov_limit = OF(hints, tx_attr, iov_limit);
	want->rx_size = OF(hints, rx_attr, size);
	want->rx_iov_limit = OF(hints, rx_attr, iov_limit);
	want->max_msg_size = OF(hints, ep_attr, max_msg_size);
	want->domain_name = OF(hints, domain_attr, name);
	want->cq_data_size = OF(hints, domain_attr, cq_data_size);
	want->mr_key_size = OF(hints, domain_attr, mr_key_size);
	want->mr_iov_limit = OF(hints, domain_attr, mr_iov_limit);
	want->mr_cnt = OF(hints, domain_attr, mr_cnt);
	if (kind == KIND_TCP) {
		bool of_ep = OF(hints, ep_attr, auth_key_size) != 0;
		want->auth_key_size = of_ep ? hints->ep_attr->auth_key_size : OF(hints, domain_attr, auth_key_size);
		want->auth_key = of_ep ? hints->ep_attr->auth_key : OF(hints, domain_attr, auth_key);
	}
}

/* ---- opening */

/* The mr_mode of an info, with FI_LOCAL_MR, in the bits of version 1.5 and later. */
static uint32_t mr_mode_chosen(const struct fi_info *info)
{
	int mode = OF(info, domain_attr, mr_mode), chosen = mode & MR_NEW;
	if (mode & FI_MR_BASIC)
		chosen |= MR_BASIC_MEANS;
	if (mode & MR_OLD && (info->mode | OF(info, domain_attr, mode)) & FI_LOCAL_MR)
		chosen |= FI_MR_LOCAL;
	if (!caps_target(info->caps))
		chosen |= FI_MR_VIRT_ADDR | FI_MR_PROV_KEY;
	return (uint32_t)chosen;
}

static int choose(gdrfab_info *to, enum kind kind, const struct fi_info *info)
{
	uint64_t flags = OF(info, tx_attr, op_flags), caps = info->caps & OPEN_CAPS(kind);
	size_t tx = OF(info, tx_attr, size), rx = OF(info, rx_attr, size), asked;
	bool lists = wants_lists(info, to);
	if (info->ep_attr && info->ep_attr->type != FI_EP_UNSPEC && (uint32_t)info->ep_attr->type != to->ep_type)
		return REFUSE(FI_EINVAL, FI_LOG_FABRIC, "info->ep_attr->type: %d, but the fabric's is %d\n",
			      (int)info->ep_attr->type, (int)to->ep_type);
	if (OF(info, ep_attr, tx_ctx_cnt) > 1 || OF(info, ep_attr, rx_ctx_cnt) > 1)
		return REFUSE(FI_EINVAL, FI_LOG_FABRIC, "info->ep_attr: tx_ctx_cnt and rx_ctx_cnt must be at most 1\n");
	if (flags & ~TX_OP_FLAGS)
		return REFUSE(FI_EINVAL, FI_LOG_FABRIC,
			      "info->tx_attr->op_flags: 0x%" PRIx64 "; 0x%" PRIx64 " is known\n", flags,
			      (uint64_t)TX_OP_FLAGS);
	if (OF(info, rx_attr, op_flags) & ~RX_OP_FLAGS(kind))
		return REFUSE(FI_EINVAL, FI_LOG_FABRIC, "info->rx_attr->op_flags: 0x%" PRIx64 "; 0x%" PRIx64 " is known\n",
			      info->rx_attr->op_flags, (uint64_t)RX_OP_FLAGS(kind));
	/* A device may have larger queues than it offers by default, and checks the sizes itself. */
	if (kind == KIND_VERBS ? tx > UINT16_MAX || rx > UINT16_MAX : tx > to->tx_size || rx > to->rx_size)
		return REFUSE(FI_EINVAL, FI_LOG_FABRIC, "info: tx and rx size are %zu and %zu, must be at most %zu and %zu\n", tx, rx,
			      to->tx_size, to->rx_size);
	if (caps)
		to->caps = caps_directions(caps);
	to->mr_mode = mr_mode_chosen(info);
	to->tx_op_flags = flags;
	to->rx_op_flags = OF(info, rx_attr, op_flags);
	if (lists && (OF(info, tx_attr, rma_iov_limit) > LIST_PIECES || OF(info, tx_attr, msg_order) & LIST_DISORDER ||
		      OF(info, tx_attr, comp_order)))
		return REFUSE(FI_EINVAL, FI_LOG_FABRIC,
			      "info->tx_attr->rma_iov_limit: %zu; at most %d, and more than %zu only without msg_order and comp_order\n",
			      info->tx_attr->rma_iov_limit, LIST_PIECES, to->rma_iov_limit);
	/* All of libfabric's connected endpoints have this order: ofi_rxm relies on it, without asking, to put long
	 * messages together. */
	to->comp_order = kind == KIND_RDM || lists ? 0 : GDRFAB_ORDER_STRICT;
	to->threading = OF(info, domain_attr, threading) == FI_THREAD_DOMAIN ? GDRFAB_THREAD_DOMAIN
									     : GDRFAB_THREAD_SAFE;
	to->progress = OF(info, domain_attr, control_progress) == FI_PROGRESS_AUTO ||
			OF(info, domain_attr, data_progress) == FI_PROGRESS_AUTO
		? GDRFAB_PROGRESS_AUTO
		: GDRFAB_PROGRESS_MANUAL;
	to->tx_size = tx ? tx : to->tx_size;
	to->rx_size = rx ? rx : to->rx_size;
	to->tx_iov_limit = (asked = OF(info, tx_attr, iov_limit)) ? asked : to->tx_iov_limit;
	to->rx_iov_limit = (asked = OF(info, rx_attr, iov_limit)) ? asked : to->rx_iov_limit;
	to->rma_iov_limit = (asked = OF(info, tx_attr, rma_iov_limit)) && !lists ? asked : to->rma_iov_limit;
	return 0;
}

/* Converts an address. The result is "" if there is none, and for a port of shm's that is still to be picked. */
static int place(enum kind kind, const void *addr, size_t len, uint32_t addr_format, char *text)
{
	int result;
	text[0] = 0;
	if (!addr)
		return 0;
	if (!len)
		return REFUSE(FI_EINVAL, FI_LOG_FABRIC, "info: an address without a length\n");
	/* The address of a peer without a name, as connection requests have it. */
	if (kind == KIND_SHM && addr_format == FI_ADDR_STR && len == sizeof "shm://" && memcmp(addr, "shm://", len) == 0)
		return 0;
	result = address_import(kind, addr, len, addr_format, text);
	if (result == 0 && kind == KIND_SHM && strcmp(text, "shm://fi-0") == 0)
		text[0] = 0;
	return result;
}

int opening_make(struct opening *opening, const gdrfab_info *base, const struct fi_info *info)
{
	enum kind kind = base->ep_type == GDRFAB_EP_RDM ? KIND_RDM : info_kind(base->fabric_name);
	gdrfab_info to = *base, want;
	int result;
	/* The library may know more fields than this copy has. */
	to.struct_size = sizeof to;
	opening->info = NULL;
	opening->src[0] = opening->dest[0] = 0;
	result = choose(&to, kind, info);
	if (result == 0)
		result = place(kind, info->src_addr, info->src_addrlen, info->addr_format, opening->src);
	if (result == 0 && kind != KIND_RDM)
		result = place(kind, info->dest_addr, info->dest_addrlen, info->addr_format, opening->dest);
	if (result < 0)
		return result;
	hints_make(kind, PROVIDER_API, info, &want);
	if (want.auth_key_size) {
		to.auth_key = want.auth_key;
		to.auth_key_size = want.auth_key_size;
	}
	to.next = NULL;
	to.handle = NULL;
	opening->info = gdrfab_dupinfo(&to);
	if (!opening->info)
		return told(-FI_EINVAL, FI_LOG_FABRIC, "copying an info");
	opening->info->src_addr = opening->src[0] ? opening->src : NULL;
	opening->info->dest_addr = opening->dest[0] ? opening->dest : NULL;
	return 0;
}

void opening_free(struct opening *opening)
{
	gdrfab_freeinfo(opening->info);
	opening->info = NULL;
}
