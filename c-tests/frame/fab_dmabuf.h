/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Dma-bufs of host memory: udmabuf, a dma-heap, vgem. */
#ifndef FAB_DMABUF_H
#define FAB_DMABUF_H

#include "fab_data.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Allocate a dma-buf by one of the kernel's exporters; the claim is skipped if this machine lacks the exporter. */
void udmabuf_new(struct node *n, struct mem *m);
void heap_new(struct node *n, struct mem *m);
void vgem_new(struct node *n, struct mem *m);
void dmabuf_end(struct node *n, struct mem *m);
/* Begins or ends accesses of the CPU to a dma-buf. */
void dmabuf_access(const struct mem *m, bool begins);

#ifdef __cplusplus
}
#endif
#endif
