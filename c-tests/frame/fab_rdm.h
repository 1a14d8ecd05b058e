/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Claims about connectionless endpoints, of up to eight processes and over one set of lanes. The processes exchange their
 * names through shared memory and insert them in the order of their ranks, so that a rank is an index in the address
 * vector. A claim of two processes can also run on connected endpoints with tags: the ranks that calls name are ignored
 * there, and the helpers report the other process as the source of each entry.
 */
#ifndef FAB_RDM_H
#define FAB_RDM_H

#include "claim.h"
#include "pattern.h"

#include <gdrfab.h>

#define MOST 8
#define NAME GDRFAB_NAME_LEN
#define WAIT_MS 15000

/* Memory that all processes of a claim share. */
struct world {
	int met[2048];
	uint64_t number[8];
	unsigned char names[MOST][NAME];
	char address[GDRFAB_ADDR_MAX]; /* where rank 0 of connected ones listens */
};

struct self {
	const char *lanes;
	bool connected;
	struct world *w;
	int rank, count, meetings;
	bool killed; /* rank 1 is killed in this claim */
	bool two_hosts; /* the processes do not find each other's local sockets, as if they were on two hosts */
	gdrfab_info *info;
	gdrfab_fabric *fabric;
	gdrfab_domain *domain;
	gdrfab_cq *cq;
	gdrfab_av *av;
	gdrfab_eq *eq; /* of a connected endpoint */
	gdrfab_ep *ep;
	/* Entries and failures that drive() has taken and no await() has returned yet. */
	struct {
		gdrfab_cq_tagged_entry entry;
		uint64_t from;
	} kept[4096];
	int kept_count;
	struct {
		gdrfab_cq_err_entry entry;
		char words[256];
	} lost[64];
	int lost_count;
};

typedef void (*body)(struct self *s);

/* A claim of a table. rdm_add() adds it once for each set of lanes. */
struct rdm_claim {
	const char *name;
	body run;
	int count;
	/* Rank 0 kills rank 1, whose process number it finds in world->number[0]. */
	bool killed;
};
void rdm_add(const struct rdm_claim *claims, size_t count);
/* The same, and also over connected endpoints with tags; for claims of two processes. */
void rdm_add_both(const struct rdm_claim *claims, size_t count);
/* Callbacks, or NULL: bind further objects to an endpoint before it is enabled, and close them after it is closed. */
extern void (*rdm_bind)(struct self *s);
extern void (*rdm_unbound)(void);
/* A callback for after all processes have ended, or NULL. */
extern void (*rdm_after)(void);
/* Set if messages may arrive at a device that has no receive posted for them, which else fails the claim. */
extern bool rdm_meets_none;
/* Set if no claim is to run over an RDMA device together with other lanes. */
extern bool rdm_cards_alone;

/* True if the lane's device is an iWARP one. */
bool rdm_over_iwarp(const struct self *s);
void *context_of(uintptr_t context);
/* Takes all entries of the queue and keeps them for await(). */
void drive(struct self *s);
bool has_come(struct self *s, uintptr_t context);
/* Waits for the entry with this context. If this operation has failed, the claim fails. */
gdrfab_cq_tagged_entry await(struct self *s, uintptr_t context, uint64_t *from);
gdrfab_cq_err_entry await_failure(struct self *s, uintptr_t context, char words[256]);
/* A barrier of all processes, which drives the endpoint meanwhile. */
void meet(struct self *s);
void open_ep(struct self *s, const char *service);
/* Opens a connected endpoint with tags: rank 0 listens, rank 1 connects to it. */
void open_connected(struct self *s);
/* Closes all objects of the process; s->ep is NULL if the claim has closed the endpoint itself. */
void close_ep(struct self *s);
void put_number(struct self *s, int i, uint64_t number);
uint64_t get_number(struct self *s, int i);
void tsend(struct self *s, int to, const void *buf, size_t len, uint64_t tag, uintptr_t context);
void trecv(struct self *s, uint64_t from, void *buf, size_t len, uint64_t tag, uint64_t ignore, uintptr_t context);

#endif
