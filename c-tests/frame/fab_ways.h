/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The ways to memory: which path can reach which kind. */
#ifndef FAB_WAYS_H
#define FAB_WAYS_H

#include "fab_mem.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const struct path paths[PATHS];
/* Does the provider know it? */
bool path_known(int path);
/* Is this kind worth a claim? Those below EVERYWHERE are. */
bool kind_listed(int kind);
/* What it can offer with the provider under test, and what of that is a courtesy. */
uint64_t kind_paths(const struct memkind *kind);
uint64_t kind_maybe(const struct memkind *kind);
/* Bytes that an endpoint has moved by each path. */
void path_bytes(struct node *n, uint64_t bytes[PATHS]);

/* The target's process has no part in it. */
bool one_sided(const struct way *way);
extern struct way ways[PATHS * (KINDS + DEVICE_KINDS)];
/* Fills ways with those to host memory; returns how many there are. */
size_t ways_list(void);
/* Whether ways[i], of those, is the first of its path: what is about the path alone tries no other kind of memory. */
bool way_leads(size_t i);
/* And with those to device memory behind them; returns how many there are in all. */
size_t all_ways_list(void);

/* Under a memory checker and in an emulated machine, where time is short, another kind of device memory stands for this one: one
 * that peers map, or one that they cannot. Each has its turn where neither is; and what vendors differ in has it here as well, by
 * the programs that call them (hmem, device). */
bool kind_spared(const struct memkind *kind);
/* As well of ways[i]: of host memory, the first kind stands for all that take this path. */
bool way_spared(const struct way *way);
/* At the target: registers so that only this way is offered; skips the claim where the kind need not offer it. */
void way_register(struct node *n, struct mem *m, size_t offset, size_t len, const struct way *way);
/* At the initiator: skips the claim where the kernel refuses the path, fails it where it does not. */
void way_check(struct node *n, const struct way *way, struct remote to);
/* The process that copies for this endpoint, as the explanation of the path to a region names it. */
pid_t copier_of(struct node *n, uint64_t key);
/* node_up of a client whose device copies another process makes. That process is there before this one connects: a listener
 * gives it five seconds from then, and a memory checker may take them. */
void copier_up(struct node *n);
/* May this process copy the peer's memory with process_vm_readv? 0, or the errno. */
int cma_refused(struct node *n);
/* Skips the claim where it may not. */
void skip_if_cma_refused(struct node *n);

#ifdef __cplusplus
}
#endif
#endif
