/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The two sides of a claim: two processes that open the library, connect, recover and close. */
#ifndef FAB_NODE_H
#define FAB_NODE_H

#include "fab_data.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Forks both sides; each gets a node with nothing open. Returns when both have ended with 0. */
void pair(const struct setup *setup, side_fn server, side_fn client, const void *arg);

/* The same, repeated up to three times while a side calls came_late(): a busy machine may have been the reason. */
void pair_in_time(const struct setup *setup, side_fn server, side_fn client, const void *arg);
void came_late(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* For a claim of one process: opens everything but an endpoint. */
void node_alone(struct node *n, const struct setup *setup);
/* Opens everything and connects; afterwards both sides hold a connected n->ep. */
void node_up(struct node *n);
/* The second step of node_up(), after node_open(): connects. */
void node_meet(struct node *n);
/* Called by both sides. A connectionless endpoint connects to its peer at its first operation: this sends a message. */
void node_reach(struct node *n);
gdrfab_info *hints_new(const struct setup *setup);
/* True if the setup or TEST_RDM asks for connectionless endpoints. */
bool connectionless(const struct setup *setup);
/* Skips a claim about connections with TEST_RDM. */
void skip_if_connectionless(void);
void node_info(struct node *n);
void node_open(struct node *n);   /* info, fabric, EQ; a client's also domain and CQ */
void node_domain(struct node *n, const gdrfab_info *info);
gdrfab_cq *cq_new(struct node *n, uint32_t format, size_t size, uint32_t wait);
gdrfab_ep *ep_new(struct node *n, const gdrfab_info *info, void *context); /* bound to n->cq and n->eq, enabled */
void node_listen(struct node *n);
gdrfab_info *node_await_request(struct node *n); /* the caller frees it */
void node_connect(struct node *n); /* of a client: opens n->ep and connects it; the other side accepts */
void node_accept(struct node *n);
void ep_connect_by_address(struct node *n, gdrfab_ep *ep);
/* Called by both sides after an operation has failed: if the failure ended the connection, opens new endpoints and connects. */
void recover(struct node *n);
/* The same if only one side knows about failures: that side leads, and the other follows until lead_no_more(). After each
 * recovery the follower posts a receive for a write with data. */
void lead_recovery(struct node *n);
void lead_no_more(struct node *n);
void follow_recovery(struct node *n);
/* Waits for the other side, closes everything, and checks that as many descriptors are open as before. */
void node_down(struct node *n);
/* The same without waiting for the other side. */
void node_close(struct node *n);

/* Out-of-band messages. A waiting side drives n->cq, so that manual progress goes on. */
void oob_send(struct node *n, const void *data, size_t len);
void oob_recv(struct node *n, void *data, size_t len);
void barrier(struct node *n);
/* Waits until the other side's process is gone. */
void await_gone(struct node *n);
/* Sends SIGSTOP to the other side and waits until it is stopped; sends SIGCONT. */
void peer_stop(struct node *n);
void peer_continue(struct node *n);
void peer_kill(struct node *n);
/* A barrier before a send, if the provider fails a send whose receive is not posted (iWARP). */
void meet_if_hasty(struct node *n);

#ifdef __cplusplus
}
#endif
#endif
