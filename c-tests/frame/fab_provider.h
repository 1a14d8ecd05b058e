/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The provider under test: TEST_PROVIDER, or shm; and what providers differ in. */
#ifndef FAB_PROVIDER_H
#define FAB_PROVIDER_H

#include "fab_data.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Differences between providers that gdrfab_info does not tell. */
struct traits {
	const char *name;
	const char *scheme;     /* what its addresses begin with */
	uint64_t paths;         /* that the provider has */
	uint64_t delivery;      /* GDRFAB_DELIVERY_COMPLETE, or 0 */
	bool numbered;          /* services are port numbers, and TEST_NODE is the address */
	const char *node;       /* the address if TEST_NODE is not set */
	bool adapter;           /* a network adapter does the work: limits, keys and error codes are the adapter's */
	bool survives_failures; /* a failed operation leaves the connection intact; else it ends the connection */
	bool knows_regions;     /* an initiator learns the kind and the paths of a peer's region */
	bool keeps_messages;    /* messages that come before their receive are kept */
	bool cancels;           /* gdrfab_cancel() and deadlines end single operations, without the connection */
};
const struct traits *traits(void);
const char *provider(void);
/* Skips the claim unless `possible`, with the provider's name and the reason. */
void skip_unless(bool possible, const char *why);
/* Sets a variable of the library. Words for GDRFAB_DEBUG join those that are there. */
void set_variable(const char *name, const char *value);
/* Leaves shm the path staged only; the paths of other providers stay. */
void only_staged(void);
/* A service that no other process listens on; the host to listen on (or NULL). */
void unique_service(char *to, size_t size);
const char *node_name(void);
/* The beginning of an address on this host: "verbs://10.0.0.1:", "tcp://[::1]:", "shm://". */
void address_start(char *to, size_t size);
/* gdrfab_getinfo() for this provider alone; the info of a list that belongs to this provider, and to the device at TEST_NODE. */
int provider_getinfo(const char *service, uint64_t flags, gdrfab_info *hints, gdrfab_info **info);
gdrfab_info *provider_pick(gdrfab_info *list);
/* A key that no region has, of the same form as `key`. */
uint64_t wrong_key(uint64_t key);
/* True if a send without a posted receive waits, at either side. If not (iWARP), the sides must meet before: meet_if_hasty(). */
bool waits_for_receive(const struct node *n);
/* True if a write that the peer's side refuses ends as a failure. Over iWARP the write has already ended with success when
 * the refusal arrives; the refusal ends the connection, and a read that is posted then is flushed. */
bool tells_failed_writes(const struct node *n);
/* The path to host memory of gdrfab_mem_alloc() if no setting forbids it. */
uint64_t best_path(void);
/* A path to host memory that needs progress of the target; 0: the provider has none that is always available. */
uint64_t helped_path(void);
/* A function of the libibverbs that misbehaves (tests/vm/liar-shim.c, named by TEST_LIBIBVERBS); skips the claim without
 * it. The device that has the first port of TEST_RAILS. */
void *liar(const char *function);
const char *first_device(void);
/* True if endpoints can also connect by exchanged addresses. */
bool by_address_too(const struct node *n);

/* True if an entry is the failure that has this errno and code over shm; an adapter may report it differently. EREMOTEIO
 * and TOO_LONG: a message longer than its receive, seen by the sender, where this ends the connection. */
enum { TOO_LONG = -1 };
bool failure_is(const gdrfab_cq_err_entry *e, int err, int prov);
/* True if an operation that fails with this key ends the connection. */
bool failure_ends(uint64_t key);
/* True if an operation ended because its connection did; false for providers whose connections survive failures. */
bool flushed(const gdrfab_cq_err_entry *e);

#ifdef __cplusplus
}
#endif
#endif
