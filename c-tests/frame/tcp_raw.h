/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A client of the tcp provider's wire protocol, of plain sockets. It was written from docs/tcp-wire.md alone, not from the
 * library's source, so it tests that page too. It can send every frame that the library sends, and frames that the library
 * never would.
 */
#ifndef TCP_RAW_H
#define TCP_RAW_H

#include "fab_data.h"

/* Sizes and numbers from docs/tcp-wire.md. */
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
enum { RAW_LATER = 0x8000 }; /* flag in the number of streams: open them later, when they would help */

void raw_put(unsigned char *to, uint64_t value, int bytes);
uint64_t raw_get(const unsigned char *from, int bytes);

/* Connects a socket to TEST_NODE and this port; -1, with errno, if it cannot. */
int raw_connect(const char *service);
/* Opens a socket that listens, and writes its port to service. */
int raw_listen(char *service, size_t size, int backlog);
/* Closes the socket with a reset, so that no connection stays in TIME_WAIT. */
void raw_reset(int fd);
/* Sends all bytes; false if the other side has closed. */
bool raw_send(int fd, const void *data, size_t len);
/* Receives len bytes. 1: all; 0: the other side closed before; -1: no bytes arrived for ms. */
int raw_recv(int fd, void *data, size_t len, int ms);
/* Reads and drops bytes until the other side closes; false if it does not close within ms. */
bool raw_closed(int fd, int ms);

/* Builds a valid HELLO. Builds a valid INTRO with this window, budget and private data; returns its length. */
void raw_hello(unsigned char hello[RAW_HELLO], uint64_t seed);
size_t raw_intro(unsigned char *intro, uint32_t window, uint32_t budget, const void *data, size_t len);
/* The terms that the listener granted. */
struct raw_terms {
	uint32_t status, window, budget;
};
/* Does the whole handshake, HELLO to READY; false if the listener refuses. */
bool raw_greet(int fd, struct raw_terms *terms);
/* The same as a client that speaks versions up to this one. */
bool raw_greet_as(int fd, int version, struct raw_terms *terms);

/* Does the handshake from HELLO to ANSWER in this version: with a passive endpoint, or for a further stream or rail of a
 * connection (purpose, token). Returns the status of CHALLENGE or ANSWER, or -1 if the other side closed without one, and
 * leaves the body of the ANSWER in m->body. */
struct raw_meeting {
	int version, purpose;
	uint64_t token;
	uint32_t streams, rails; /* wanted; streams may have RAW_LATER; the addresses of rails are sent as zeros */
	const void *data;
	size_t len;
	unsigned char body[RAW_BODY_MAX];
	size_t body_len;
};
int raw_meet(int fd, struct raw_meeting *m);

/* A frame; each piece is three words. raw_frame() encodes it and returns its length without a body. */
struct raw_frame {
	uint8_t kind, flags, pieces, paths;
	uint32_t done;
	uint64_t len;
	uint64_t word[32];
	int words;
};
size_t raw_frame(unsigned char *to, const struct raw_frame *f);
/* A frame without pieces and words; an RMA frame of one piece. */
struct raw_frame raw_bare(int kind, int flags, uint64_t len);
struct raw_frame raw_rma(int kind, int flags, uint64_t addr, uint64_t key, uint64_t len);
/* Receives the next frame that is not NOTHING or MATCHED, and at most max bytes of its body; results as of raw_recv(). */
int raw_next(int fd, struct raw_frame *f, void *body, size_t max, int ms);

#endif
