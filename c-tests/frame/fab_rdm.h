/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Connectionless endpoints of up to eight processes, over one set of lanes. They learn each other's names through shared
 * memory, and insert all of them in the order of their ranks, so that a rank is an index. Or connected endpoints with tags,
 * of two processes: the ranks that calls name mean nothing there, and entries are told to come from the other one.
 */
#ifndef FAB_RDM_H
#define FAB_RDM_H

#include "claim.h"
#include "pattern.h"

#include <gdrfab.h>

#define MOST 8
#define NAME GDRFAB_NAME_LEN
#define WAIT_MS 15000

/* What all processes of a claim see. */
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
	bool killed; /* rank 1 is, in this claim */
	bool two_hosts; /* they find no sockets of each other, as on hosts of their own */
	gdrfab_info *info;
	gdrfab_fabric *fabric;
	gdrfab_domain *domain;
	gdrfab_cq *cq;
	gdrfab_av *av;
	gdrfab_eq *eq; /* of a connected one */
	gdrfab_ep *ep;
	/* Entries that came while others were awaited. */
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

/* A table of claims adds each over every set of lanes. */
struct rdm_claim {
	const char *name;
	body run;
	int count;
	/* Rank 1 is killed by rank 0, which finds its number in the world. */
	bool killed;
};
void rdm_add(const struct rdm_claim *claims, size_t count);
/* And over connected endpoints with tags, of claims of two processes. */
void rdm_add_both(const struct rdm_claim *claims, size_t count);
/* What else is bound before an endpoint is enabled, and closed after it; or NULL. */
extern void (*rdm_bind)(struct self *s);
extern void (*rdm_unbound)(void);
/* What is done when all processes have ended, or NULL. */
extern void (*rdm_after)(void);
/* Messages may meet a device without a receive for them. */
extern bool rdm_meets_none;
/* No claim is about a card beside other lanes. */
extern bool rdm_cards_alone;

/* Whether the lane's card is one of iWARP. */
bool rdm_over_iwarp(const struct self *s);
void *context_of(uintptr_t context);
/* Keeps what comes. */
void drive(struct self *s);
bool has_come(struct self *s, uintptr_t context);
/* The entry of this context; the failure of another one is a failure of the claim. */
gdrfab_cq_tagged_entry await(struct self *s, uintptr_t context, uint64_t *from);
gdrfab_cq_err_entry await_failure(struct self *s, uintptr_t context, char words[256]);
/* Waits until all are here, and drives meanwhile. */
void meet(struct self *s);
void open_ep(struct self *s, const char *service);
/* Opens a connected endpoint with tags, as rank 0 or as rank 1, which calls it. */
void open_connected(struct self *s);
/* With `ep` NULL the endpoint is closed already. */
void close_ep(struct self *s);
void put_number(struct self *s, int i, uint64_t number);
uint64_t get_number(struct self *s, int i);
void tsend(struct self *s, int to, const void *buf, size_t len, uint64_t tag, uintptr_t context);
void trecv(struct self *s, uint64_t from, void *buf, size_t len, uint64_t tag, uint64_t ignore, uintptr_t context);

#endif
