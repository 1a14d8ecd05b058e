/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Registration of local host buffers, for providers whose operations must name the region of a local buffer. */
#ifndef FAB_LOCAL_H
#define FAB_LOCAL_H

#include "fab_data.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The descriptor for a local buffer of host memory, or NULL where none is needed. The region stays until the domain is
 * closed or the memory is forgotten. Memory must be forgotten before its pages are unmapped (free() does not unmap them:
 * see local_prepare()). */
bool local_needed(const struct node *n);
void *local_desc(struct node *n, const void *at, size_t len);
/* The same for several pieces: fills desc and returns it, or returns NULL where no descriptors are needed. */
void **local_descs(struct node *n, const struct iovec *iov, size_t count, void **desc);
void local_forget(struct node *n, const void *at, size_t len);
void local_forget_all(struct node *n);
/* To be called before the process allocates memory for local_desc(): makes free() keep pages. */
void local_prepare(void);

#ifdef __cplusplus
}
#endif
#endif
