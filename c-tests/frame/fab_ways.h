/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Ways: a way is a path together with a kind of memory that it can reach. Tables of claims have one claim for each way. */
#ifndef FAB_WAYS_H
#define FAB_WAYS_H

#include "fab_mem.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const struct path paths[PATHS];
/* True if the provider under test has this path. */
bool path_known(int path);
/* True if this kind has claims of its own. Kinds below EVERYWHERE always do. */
bool kind_listed(int kind);
/* The paths that this kind can offer with the provider under test; the paths among them that are not promised. */
uint64_t kind_paths(const struct memkind *kind);
uint64_t kind_maybe(const struct memkind *kind);
/* The bytes that n->ep has moved by each path. */
void path_bytes(struct node *n, uint64_t bytes[PATHS]);

/* True if the target's process takes no part in a transfer. */
bool one_sided(const struct way *way);
extern struct way ways[PATHS * (KINDS + DEVICE_KINDS)];
/* Fills `ways` with the ways to host memory; returns their number. */
size_t ways_list(void);
/* True if ways[i] is the first of its path: claims about a path alone use only this kind of memory. */
bool way_leads(size_t i);
/* The same, followed by the ways to device memory; returns the number of all. */
size_t all_ways_list(void);

/* True if this kind of device memory is left out because time is short: under a memory checker and in an emulated machine.
 * One kind that peers can map and one that they cannot stand for all others there. Differences between vendors are still
 * covered, by the programs hmem and device. */
bool kind_spared(const struct memkind *kind);
/* The same for a way: of host memory, the first kind of a path stands for all others. */
bool way_spared(const struct way *way);
/* At the target: registers the memory so that only this path is offered; skips the claim if the path is not promised and
 * refused. */
void way_register(struct node *n, struct mem *m, size_t offset, size_t len, const struct way *way);
/* At the initiator: checks that this path is taken. Skips the claim if the kernel refuses the path, else fails it. */
void way_check(struct node *n, const struct way *way, struct remote to);
/* Tells of one rail to a peer, zeros if there is none of that number. Returns the number of rails, or a negative errno. */
int rail_query(gdrfab_ep *ep, uint64_t peer, uint32_t number, gdrfab_rail_info *rail);

/* The process that copies device memory for this endpoint, taken from gdrfab_ep_explain(). */
pid_t copier_of(struct node *n, uint64_t key);
/* node_up() of a client with GDRFAB_HMEM_DRIVER=process. The copying process is started before the client connects: a listener
 * allows it five seconds from then on, and a memory checker may need longer. */
void copier_up(struct node *n);
/* 0 if the kernel lets this process copy the peer's memory with process_vm_readv(), else the errno. */
int cma_refused(struct node *n);
/* Skips the claim if it does not. */
void skip_if_cma_refused(struct node *n);

#ifdef __cplusplus
}
#endif
#endif
