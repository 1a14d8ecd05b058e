/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Capabilities, mr_mode bits and limits that both directions of conversion need: towards gdrfab (hints.c) and
 * towards libfabric (attr.c). */
#ifndef GDRFAB_FI_ATTR_H
#define GDRFAB_FI_ATTR_H

#include "provider.h"

#define RMA_TARGET (FI_REMOTE_READ | FI_REMOTE_WRITE)
#define RMA_ALL (FI_READ | FI_WRITE | RMA_TARGET)
#define RDM_CAPS (FI_TAGGED | FI_DIRECTED_RECV | FI_SOURCE | FI_MULTI_RECV)
#define TX_CAPS (FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_SEND | FI_READ | FI_WRITE | FI_HMEM | FI_FENCE)
#define RX_CAPS (FI_MSG | FI_RMA | FI_ATOMIC | FI_RECV | RMA_TARGET | FI_HMEM | FI_RMA_EVENT | RDM_CAPS)
/* Secondary capabilities that cost nothing: reported whether or not they are requested. */
#define FREE_CAPS (FI_LOCAL_COMM | FI_REMOTE_COMM | FI_RMA_EVENT | FI_FENCE)
/* The capabilities of an fi_info that gdrfab knows when an object is opened. */
#define OPEN_CAPS(kind)                                                                                                \
	(FI_MSG | FI_RMA | FI_ATOMIC | FI_SEND | FI_RECV | RMA_ALL | FI_HMEM | FI_LOCAL_COMM | FI_REMOTE_COMM |         \
	 FI_RMA_EVENT | ((kind) == KIND_RDM ? RDM_CAPS : 0))
#define TX_OP_FLAGS (FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE)
#define RX_OP_FLAGS(kind) (FI_COMPLETION | ((kind) == KIND_RDM ? FI_MULTI_RECV : 0))
/* mr_mode: the bits that gdrfab lets callers offer, the two values from before version 1.5, and the bits that
 * FI_MR_BASIC means. */
#define MR_NEW 0x1ffc
#define MR_OLD (FI_MR_BASIC | FI_MR_SCALABLE)
#define MR_BASIC_MEANS (FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY)

/* A field of hints, 0 if `hints` or its part is NULL. */
#define OF(hints, part, field) ((hints) && (hints)->part ? (hints)->part->field : 0)

/* Remote pieces of an operation that is posted as a list, possible if the caller does without order. The limit on
 * local pieces stays. */
#define LIST_PIECES 256
/* Orders that a list does not keep: it is ordered neither after earlier operations nor before later ones. */
#define LIST_DISORDER                                                                                                  \
	(FI_ORDER_RAR | FI_ORDER_RAW | FI_ORDER_RAS | FI_ORDER_WAR | FI_ORDER_WAW | FI_ORDER_WAS | FI_ORDER_SAR |      \
	 FI_ORDER_SAW | FI_ORDER_RMA_RAR | FI_ORDER_RMA_RAW | FI_ORDER_RMA_WAR | FI_ORDER_RMA_WAW)
/* True if the caller wants operations of more remote pieces than gdrfab's own limit, which must then be posted as
 * lists. */
static inline bool wants_lists(const struct fi_info *info, const gdrfab_info *from)
{
	return info && info->tx_attr && info->tx_attr->rma_iov_limit > from->rma_iov_limit;
}

static inline uint32_t kind_type(enum kind kind)
{
	return kind == KIND_RDM ? GDRFAB_EP_RDM : GDRFAB_EP_MSG;
}
/* Adds the directions: FI_MSG, FI_TAGGED, FI_RMA and FI_ATOMIC without a direction stand for all directions. */
uint64_t caps_directions(uint64_t caps);
/* True if peers may reach the caller's memory. If not, the caller needs neither keys nor addresses for peers. */
bool caps_target(uint64_t caps);
/* True if mr_mode has the meaning from before version 1.5. */
bool mr_mode_old(uint32_t version, int mr_mode);

#endif
