/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The other half of docs/tcp-wire.md, written from that text alone: a client of plain sockets that can say everything
 * that the library says, and everything that it never would.
 */
#ifndef TCP_RAW_H
#define TCP_RAW_H

#include "fab_data.h"

/* Sizes and numbers of the document. */
enum {
	RAW_HELLO = 64,
	RAW_INTRO = 48,
	RAW_BODY_MAX = 1024,
	RAW_HEADER = 16,
	RAW_WHOLE_MAX = 16 << 10,
	RAW_PART = 256 << 10,
};
enum { RAW_READY, RAW_WRITE, RAW_READ, RAW_ANSWERED, RAW_SEND, RAW_OFFER, RAW_TAKE, RAW_TAKEN, RAW_REPORT, RAW_GOT,
       RAW_MATCHED, RAW_NOTHING, RAW_BYE, RAW_STREAMS, RAW_ATOMIC, RAW_DOOR, RAW_KINDS };
enum { RAW_DATA = 1, RAW_ACK = 2, RAW_PROMPT = 4, RAW_PARTS = 8, RAW_FAILED = 16 };
enum { RAW_REJECTED = 1, RAW_VERSION, RAW_KEY_NEEDED, RAW_KEY_WRONG, RAW_WRONG_DOOR, RAW_BUSY, RAW_SEAL_NEEDED };
enum { RAW_LATER = 0x8000 }; /* of the number of streams: once they would help */

void raw_put(unsigned char *to, uint64_t value, int bytes);
uint64_t raw_get(const unsigned char *from, int bytes);

/* A socket connected to TEST_NODE and this port; or -1, with errno. */
int raw_connect(const char *service);
/* A socket that listens on a port of its own, which is written to service; backlog as for listen(). */
int raw_listen(char *service, size_t size, int backlog);
/* Closes it with a reset, which leaves nothing behind in the kernel. */
void raw_reset(int fd);
/* All of it, or false: the other side has closed. */
bool raw_send(int fd, const void *data, size_t len);
/* 1: all of it; 0: the other side closed before; -1: nothing came for ms. */
int raw_recv(int fd, void *data, size_t len, int ms);
/* Reads what comes until the other side closes; false if it does not within ms. */
bool raw_closed(int fd, int ms);

/* A good HELLO; a good INTRO of this window and budget with private data, and its length. */
void raw_hello(unsigned char hello[RAW_HELLO], uint64_t seed);
size_t raw_intro(unsigned char *intro, uint32_t window, uint32_t budget, const void *data, size_t len);
/* What the listener granted. */
struct raw_terms {
	uint32_t status, window, budget;
};
/* HELLO to READY; false if the listener does not want this. */
bool raw_greet(int fd, struct raw_terms *terms);
/* The same of a client that speaks up to this version. */
bool raw_greet_as(int fd, int version, struct raw_terms *terms);

/* HELLO to ANSWER of this version, for a passive endpoint or for more of a connection. Gives the status of CHALLENGE or
 * ANSWER, -1: closed without one; the body of an ANSWER takes the place of what was said. */
struct raw_meeting {
	int version, purpose;
	uint64_t token;
	uint32_t streams, rails; /* wanted, perhaps with RAW_LATER; rails have addresses of zeros */
	const void *data;
	size_t len;
	unsigned char body[RAW_BODY_MAX];
	size_t body_len;
};
int raw_meet(int fd, struct raw_meeting *m);

/* A frame; pieces are three words each. Returns its bytes without a body. */
struct raw_frame {
	uint8_t kind, flags, pieces, paths;
	uint32_t done;
	uint64_t len;
	uint64_t word[32];
	int words;
};
size_t raw_frame(unsigned char *to, const struct raw_frame *f);
/* A frame of no piece and no word; one of RMA of one piece. */
struct raw_frame raw_bare(int kind, int flags, uint64_t len);
struct raw_frame raw_rma(int kind, int flags, uint64_t addr, uint64_t key, uint64_t len);
/* The next frame that is not NOTHING or MATCHED, with its body (at most max bytes) in body; as raw_recv. */
int raw_next(int fd, struct raw_frame *f, void *body, size_t max, int ms);

#endif
