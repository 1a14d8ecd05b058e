/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Two real processes that open the library each for itself and connect. */
#ifndef FAB_NODE_H
#define FAB_NODE_H

#include "fab_data.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Forks both sides; each gets a node with nothing open. Returns when both have ended well. */
void pair(const struct setup *setup, side_fn server, side_fn client, const void *arg);

/* The same up to three times, until no side has said that something came late: a busy machine may have been why. */
void pair_in_time(const struct setup *setup, side_fn server, side_fn client, const void *arg);
void came_late(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* One process alone: everything but an endpoint is opened. */
void node_alone(struct node *n, const struct setup *setup);
/* Opens everything and connects; afterwards both sides hold a connected n->ep. */
void node_up(struct node *n);
/* The steps of node_up: node_open, and node_meet, which connects. */
void node_meet(struct node *n);
/* Both sides: a connectionless endpoint reaches its peer when it first has something for it; here, by a message. */
void node_reach(struct node *n);
gdrfab_info *hints_new(const struct setup *setup);
/* As the setup or TEST_RDM says. */
bool connectionless(const struct setup *setup);
/* A claim about connections is none with TEST_RDM. */
void skip_if_connectionless(void);
void node_info(struct node *n);
void node_open(struct node *n);   /* info, fabric, EQ; a client's also domain and CQ */
void node_domain(struct node *n, const gdrfab_info *info);
gdrfab_cq *cq_new(struct node *n, uint32_t format, size_t size, uint32_t wait);
gdrfab_ep *ep_new(struct node *n, const gdrfab_info *info, void *context); /* bound to n->cq and n->eq, enabled */
void node_listen(struct node *n);
gdrfab_info *node_await_request(struct node *n); /* the caller frees it */
void node_connect(struct node *n); /* a client's new n->ep, once the other side accepts */
void node_accept(struct node *n);
void ep_connect_by_address(struct node *n, gdrfab_ep *ep);
/* Both sides, after an operation has failed: where that ended the connection, a new one of a new endpoint. */
void recover(struct node *n);
/* The same where only one side knows when: the one leads, and the other follows until the first has no more, each time
 * with room for a write with data. */
void lead_recovery(struct node *n);
void lead_no_more(struct node *n);
void follow_recovery(struct node *n);
/* Meets the other side, closes everything, and finds as many files open as before. */
void node_down(struct node *n);
/* The same without the other side. */
void node_close(struct node *n);

/* Out of band. While it waits it drives n->cq, so that manual progress does not stop. */
void oob_send(struct node *n, const void *data, size_t len);
void oob_recv(struct node *n, void *data, size_t len);
void barrier(struct node *n);
/* Waits until the other side's process is gone. */
void await_gone(struct node *n);
/* SIGSTOP for the other side, and the wait until it stands still; and back. */
void peer_stop(struct node *n);
void peer_continue(struct node *n);
void peer_kill(struct node *n);
/* Both sides, before a send that the provider would not keep until its receive is posted. */
void meet_if_hasty(struct node *n);

#ifdef __cplusplus
}
#endif
#endif
