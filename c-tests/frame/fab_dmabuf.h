/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Dma-bufs of host memory: udmabuf, a dma-heap, vgem. */
#ifndef FAB_DMABUF_H
#define FAB_DMABUF_H

#include "fab_data.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Those made by the kernel's exporters of dma-bufs; the claim is skipped where there is no such exporter. */
void udmabuf_new(struct node *n, struct mem *m);
void heap_new(struct node *n, struct mem *m);
void vgem_new(struct node *n, struct mem *m);
void dmabuf_end(struct node *n, struct mem *m);
/* Stands around the CPU's own accesses to a dma-buf. */
void dmabuf_access(const struct mem *m, bool begins);

#ifdef __cplusplus
}
#endif
#endif
