/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Local buffers of host memory, where operations must name the region that they lie in. */
#ifndef FAB_LOCAL_H
#define FAB_LOCAL_H

#include "fab_data.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The descriptor for a local buffer of host memory: NULL where none is needed. The region lasts as long as the domain,
 * or until the memory is forgotten, which it must be before its pages are given back (free() does not). */
bool local_needed(const struct node *n);
void *local_desc(struct node *n, const void *at, size_t len);
/* The same of several pieces: fills desc and returns it, or NULL. */
void **local_descs(struct node *n, const struct iovec *iov, size_t count, void **desc);
void local_forget(struct node *n, const void *at, size_t len);
void local_forget_all(struct node *n);
/* Before any memory is allocated that a process will name by local_desc. */
void local_prepare(void);

#ifdef __cplusplus
}
#endif
#endif
