/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Declarations for the programs of connectionless endpoints: endpoints of one process that address each other by
 * their indexes. */
#ifndef FI_RDM_H
#define FI_RDM_H

#include "fi.h"

#include <rdma/fi_tagged.h>

#define TAG_CAPS (FI_MSG | FI_TAGGED | FI_RMA | FI_DIRECTED_RECV | FI_SOURCE | FI_MULTI_RECV)

/* An endpoint that reaches the others by their indexes. */
struct end {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_cq *cq;
	struct fid_av *av;
	struct fid_ep *ep;
	char name[256];
	size_t namelen;
};

struct fi_info *rdm_hints(uint64_t caps);
void end_open_with(struct end *e, struct fi_info *hints, enum fi_av_type type, uint64_t cq_flags);
void end_open(struct end *e, uint64_t caps);
void end_close(struct end *e);
fi_addr_t end_knows(struct end *e, const struct end *other);
/* The next entry of e, while the other endpoint is driven too; NULL: an error entry is next. */
struct fi_cq_tagged_entry *end_next(struct end *e, struct end *other, fi_addr_t *from);
/* Expects an error entry with this errno, and copies it to `entry` unless that is NULL. */
void end_failed(struct end *e, int err, struct fi_cq_err_entry *entry);

#endif
