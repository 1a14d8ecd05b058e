/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What the parts of file_transfer share: the messages of its protocol, and the fabric's objects behind a few calls
 * (fabric.c). Only fabric.c, and the lines of sender.c and receiver.c that register and write, call gdrfab.
 *
 *   sender                                    receiver
 *   OFFER id, length, hash             ->
 *                                      <-     REGION address, key, slots, bytes per slot, bytes it has already
 *   RMA write of a piece into a slot   =>
 *   PIECES: so many are there          ->
 *                                      <-     CREDIT: so many are taken, their slots are free again
 *   DONE                               ->
 *                                      <-     VERDICT good, or bad and why
 */
#ifndef FILE_TRANSFER_H
#define FILE_TRANSFER_H

#include <gdrfab.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#define SLOTS 16 /* pieces that the receiver's region holds, so the most that are under way */

enum { OFFER = 1, REGION, PIECES, CREDIT, DONE, VERDICT };

/* One layout for all messages. The numbers travel in network byte order (message_swap). */
struct message {
	uint64_t kind;
	uint64_t id;	       /* of the transfer: the hash's first 8 bytes. It is exchanged for the region's key */
	uint64_t len;	       /* OFFER: of the file; REGION: of a piece */
	uint64_t addr, key;    /* REGION */
	uint64_t slots;	       /* REGION */
	uint64_t count;	       /* PIECES, CREDIT: pieces since the beginning; REGION: bytes; VERDICT: 0 if good */
	unsigned char hash[32]; /* OFFER: SHA-256 of the file */
	char text[88];	       /* VERDICT: what is bad */
};

/* Stands before the bytes in a slot, written by the same work request. In network byte order too. */
struct head {
	uint64_t number, offset, len;
};

/* A slot: the head, and the bytes right behind it. */
#define SLOT_BYTES(piece) (sizeof(struct head) + (piece))

/* What a completion's context (the verbs' wr_id) points to: which work request this was. */
struct work {
	enum { RECEIVE, SEND, WRITE, WRITE_HEAD } kind;
	unsigned index;
	bool busy;
};

/* As many receives as messages can be on their way: the peer never has more than SLOTS pieces under way. */
#define MESSAGES (SLOTS + 4)

struct fabric {
	gdrfab_info *info;
	gdrfab_fabric *fabric;
	gdrfab_eq *eq;
	gdrfab_pep *pep;
	gdrfab_domain *domain;
	gdrfab_cq *cq;
	gdrfab_ep *ep;
	gdrfab_mr *mr;		  /* of the messages */
	struct message *messages; /* MESSAGES for receives, then MESSAGES for sends */
	struct work receives[MESSAGES], sends[MESSAGES];
	int cq_fd, eq_fd;
	int limit_ms; /* the longest silence of the peer that is borne */
	bool ended;   /* the connection is over; what came before may still be in the queue */
	char why[160];
};

/* What has happened. */
enum step { STEP_FAILED, STEP_NOTHING, STEP_MESSAGE, STEP_SENT, STEP_WRITTEN, STEP_ENDED };
struct event {
	struct message message; /* STEP_MESSAGE */
	unsigned index;		/* STEP_WRITTEN: of the work */
};

/* Listens and says where; provider and address may be NULL. Errors of these calls are said on stderr. */
bool fabric_listen(struct fabric *f, const char *provider, const char *addr);
/* Waits for a sender, for as long as it takes, and accepts it. */
bool fabric_accept(struct fabric *f);
bool fabric_connect(struct fabric *f, const char *addr);

/* The next thing that happens; with `wait`, sleeps until it does, for the time limit at most. */
enum step fabric_step(struct fabric *f, struct event *event, bool wait);
/* Waits for a message of this kind and transfer; any other is an error. id 0: any transfer. */
bool fabric_expect(struct fabric *f, uint64_t kind, uint64_t id, struct message *out);
/* What a posting call returned: 1 posted, 0 not now (wait for a step and try again), -1 said to be wrong. */
int fabric_posted(struct fabric *f, ssize_t rc, const char *what);
int fabric_send(struct fabric *f, const struct message *m);
/* Says that the peer is gone, and how that was learnt. */
void fabric_say_ended(const struct fabric *f);
/* Closes whatever is open, in the reverse order of opening. */
void fabric_close(struct fabric *f);

/* Network byte order of a number, and back. */
uint64_t wire(uint64_t number);

/* --- main.c --- */
struct options {
	const char *provider, *listen, *path;
	uint64_t window;
	bool resume;
	int limit_ms;
};
bool send_file(const char *addr, const struct options *o);
bool receive_file(const struct options *o);
extern volatile sig_atomic_t interrupted;
long long now_ms(void);
/* "file_transfer: ..." on stderr, behind the progress bar if there is one. Returns false. */
bool say(const char *format, ...);
void progress(const char *what, uint64_t done, uint64_t all);

#endif
