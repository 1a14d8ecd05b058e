/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Declarations that the files of file_transfer share: the messages of its protocol, and a few calls around the
 * fabric's objects (fabric.c). Only fabric.c, and the lines of sender.c and receiver.c that register and write, call
 * gdrfab.
 *
 *   sender                                    receiver
 *   OFFER id, length, hash             ->
 *                                      <-     REGION address, key, slots, bytes per slot, bytes it has already
 *   RMA write of a piece into a slot   =>
 *   PIECES: number of pieces written   ->
 *                                      <-     CREDIT: number of pieces taken out, whose slots are free again
 *   DONE                               ->
 *                                      <-     VERDICT good, or bad and the reason
 */
#ifndef FILE_TRANSFER_H
#define FILE_TRANSFER_H

#include <gdrfab.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#define SLOTS 16 /* pieces that the receiver's region holds, so the most that are under way */

enum { OFFER = 1, REGION, PIECES, CREDIT, DONE, VERDICT };

/* All messages have one layout. The numbers are sent in network byte order (message_swap). */
struct message {
	uint64_t kind;
	uint64_t id;	       /* of the transfer: the hash's first 8 bytes; the receiver names its region only for it */
	uint64_t len;	       /* OFFER: of the file; REGION: of a piece */
	uint64_t addr, key;    /* REGION */
	uint64_t slots;	       /* REGION */
	uint64_t count;	       /* PIECES, CREDIT: pieces since the beginning; REGION: bytes; VERDICT: 0 if good */
	unsigned char hash[32]; /* OFFER: SHA-256 of the file */
	char text[88];	       /* VERDICT: the reason if bad */
};

/* Precedes the bytes in a slot, written by the same work request. In network byte order too. */
struct head {
	uint64_t number, offset, len;
};

/* Bytes of a slot: the head, followed by the piece. */
#define SLOT_BYTES(piece) (sizeof(struct head) + (piece))

/* A completion's context (the verbs' wr_id) points to this: the work request that completed. */
struct work {
	enum { RECEIVE, SEND, WRITE, WRITE_HEAD } kind;
	unsigned index;
	bool busy;
};

/* As many receives as there can be messages under way: the peer never has more than SLOTS pieces under way. */
#define MESSAGES (SLOTS + 4)

struct fabric {
	gdrfab_info *info;
	gdrfab_fabric *fabric;
	gdrfab_eq *eq;
	gdrfab_pep *pep;
	gdrfab_domain *domain;
	gdrfab_cq *cq;
	gdrfab_ep *ep;
	gdrfab_mr *mr;		  /* region of the messages */
	struct message *messages; /* MESSAGES for receives, then MESSAGES for sends */
	struct work receives[MESSAGES], sends[MESSAGES];
	int cq_fd, eq_fd;
	int limit_ms; /* the longest silence of the peer that is accepted */
	bool ended;   /* the connection is over; completions from before may still be in the queue */
	char why[160];
};

/* The result of fabric_step(). */
enum step { STEP_FAILED, STEP_NOTHING, STEP_MESSAGE, STEP_SENT, STEP_WRITTEN, STEP_ENDED };
struct event {
	struct message message; /* STEP_MESSAGE */
	unsigned index;		/* STEP_WRITTEN: of the work */
};

/* Listens and prints the address; provider and address may be NULL. These calls print their errors on stderr. */
bool fabric_listen(struct fabric *f, const char *provider, const char *addr);
/* Waits for a sender, for as long as it takes, and accepts it. */
bool fabric_accept(struct fabric *f);
bool fabric_connect(struct fabric *f, const char *addr);

/* Returns the next event; with `wait`, sleeps until there is one, at most for the time limit. */
enum step fabric_step(struct fabric *f, struct event *event, bool wait);
/* Waits for a message of this kind and transfer; any other is an error. id 0: any transfer. */
bool fabric_expect(struct fabric *f, uint64_t kind, uint64_t id, struct message *out);
/* Converts the result of a posting call: 1: posted, 0: no room now (wait for a step and try again), -1: an error,
 * which is printed. */
int fabric_posted(struct fabric *f, ssize_t rc, const char *what);
int fabric_send(struct fabric *f, const struct message *m);
/* Prints that the peer is gone, and how this was noticed. */
void fabric_say_ended(const struct fabric *f);
/* Closes all open objects, in the reverse order of opening. */
void fabric_close(struct fabric *f);

/* Converts a number to network byte order, and back. */
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
/* Prints "file_transfer: ..." on stderr, after the progress bar if there is one. Returns false. */
bool say(const char *format, ...);
void progress(const char *what, uint64_t done, uint64_t all);

#endif
