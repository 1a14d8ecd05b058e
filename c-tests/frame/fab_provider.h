/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The provider under test: TEST_PROVIDER, or shm; and what providers differ in. */
#ifndef FAB_PROVIDER_H
#define FAB_PROVIDER_H

#include "fab_data.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What no info tells. */
struct traits {
	const char *name;
	const char *scheme;     /* what its addresses begin with */
	uint64_t paths;         /* those that it knows */
	uint64_t delivery;      /* GDRFAB_DELIVERY_COMPLETE, or 0 */
	bool numbered;          /* services are port numbers, and TEST_NODE is the address */
	const char *node;       /* that address, if TEST_NODE is not set */
	bool adapter;           /* an adapter of the network does the work: its limits, its keys, its words */
	bool survives_failures; /* after an operation has failed the connection is as good as before; else it is over */
	bool knows_regions;     /* an initiator learns what a peer's region is and offers */
	bool keeps_messages;    /* that come before their receive */
	bool cancels;           /* gdrfab_cancel takes back what was posted, and deadlines only what is late */
};
const struct traits *traits(void);
const char *provider(void);
/* Skips the claim, with the provider's name and the reason, where something is not to be had of it. */
void skip_unless(bool possible, const char *why);
/* A name nobody else listens on, and the host where they listen (or NULL). */
void unique_service(char *to, size_t size);
const char *node_name(void);
/* What an address of that host begins with: "verbs://10.0.0.1:", "tcp://[::1]:", "shm://". */
void address_start(char *to, size_t size);
/* gdrfab_getinfo for this provider alone; and the one of a list that is of it, and of the device at TEST_NODE. */
int provider_getinfo(const char *service, uint64_t flags, gdrfab_info *hints, gdrfab_info **info);
gdrfab_info *provider_pick(gdrfab_info *list);
/* A key that names nothing, of the same sort as this one. */
uint64_t wrong_key(uint64_t key);
/* A send without a receive waits, here or there. Where it does not (iWARP), the two sides have to meet before. */
bool waits_for_receive(const struct node *n);
/* A write that the peer's side refuses ends as a failure. Over iWARP it has ended well when the refusal comes, which
 * ends the connection; a read is flushed with that. */
bool tells_failed_writes(const struct node *n);
/* The path to the host memory of gdrfab_mem_alloc, where nothing is in its way. */
uint64_t best_path(void);
/* The path to host memory that needs the target's progress; 0: there is none that is always to be had. */
uint64_t helped_path(void);
/* A function of the libibverbs that misbehaves (tests/vm/liar-shim.c), which GDRFAB_VERBS_LIBRARY names; without it the claim is
 * skipped. And the device that has the first port of TEST_RAILS. */
void *liar(const char *function);
const char *first_device(void);
/* Endpoints connect by exchanged addresses as well. */
bool by_address_too(const struct node *n);

/* Is it the failure that has this errno and code over shm? Of a message that was longer than its receive, seen by the
 * sender of a provider whose connection ends with it: EREMOTEIO, TOO_LONG. */
enum { TOO_LONG = -1 };
bool failure_is(const gdrfab_cq_err_entry *e, int err, int prov);
/* Does an operation that fails with this key take the connection along? */
bool failure_ends(uint64_t key);
/* An operation that ended because its connection did, where connections end with a failure. */
bool flushed(const gdrfab_cq_err_entry *e);

#ifdef __cplusplus
}
#endif
#endif
