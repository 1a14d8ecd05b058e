/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A hostile peer with rails, of a server under siege, or that this one calls: see tcp_raw.h and tcp_siege.h. Written from
 * docs/tcp-wire.md alone. */
#ifndef TCP_RAW_RAILS_H
#define TCP_RAW_RAILS_H

#include "tcp_siege.h"

#define HEAD 24
#define SEGMENT 61440u
#define WINDOW ((uint64_t)8 << 20)
#define BODY 16384u /* of a WRITE here */
#define WRITES (RAW_HEADER + 24 + BODY)
enum { DATA, DOWN };
enum { FOR_RAILS = 3, PLACE = 18 };

struct hostile {
	int rail[2]; /* -1: not up */
	unsigned char door[2][PLACE];
	uint64_t token;
	int doors; /* as granted */
	uint64_t next;   /* byte of this side's stream */
	uint64_t taken;  /* of the other */
	unsigned writes, broke;
};

/* Connects to where a door is, as ANSWER has it; -1: nobody is there. */
int rails_call(const unsigned char *place);
/* HELLO to ANSWER for this purpose; its status. */
int rails_introduce(int fd, int purpose, uint64_t token, const void *data, size_t len);
/* A rail of this number, as the so-manieth; what the door says of it. */
int rails_join(const struct hostile *h, int door, uint64_t token, int number, uint32_t generation, int *fd);
/* A segment with this head and n bytes, whatever the head says. */
bool rails_segment(int fd, int kind, uint64_t len, uint64_t from, uint64_t taken, const void *bytes, size_t n);
/* The next bytes of the stream over this rail. */
void rails_say(struct hostile *h, int rail, const void *bytes, size_t n);
/* The next one that calls at a listening socket, within ms, or -1; what it says of itself, once it was challenged, and
 * whether it kept to the handshake; the answer. */
int rails_called(int listening, int ms);
bool rails_hear(int fd, struct raw_meeting *m);
bool rails_answer(int fd, const void *body, size_t len);
/* The body of an ANSWER that grants so many rails, of which so many addresses follow. */
size_t rails_terms(unsigned char *body, uint32_t rails, uint64_t token, unsigned char (*places)[PLACE], size_t count);
/* An address as ANSWER has it. */
void rails_place(unsigned char *place, uint32_t ip, unsigned port);
/* The server under siege calls once more; how it introduces itself. */
int rails_ask(struct raw_meeting *m);
/* A socket that listens on every address, for rails, and its port. */
int rails_door(unsigned *port);

/* A connection that has one rail, of two that were agreed on; one that has both. */
struct hostile rails_connect(void);
struct hostile rails_open(void);
void rails_end(struct hostile *h);
/* The server has ended it, with these words to whom it belongs. */
void rails_broken(struct hostile *h, const char *what, const char *why);

/* A WRITE, of WRITES bytes. */
void rails_write_frame(unsigned char *to, int flags);
/* Reads segments until the server has carried out this many writes, each of which it counts once. */
void rails_await_done(struct hostile *h, unsigned count);
/* A write over each rail, in halves. */
void rails_go_well(struct hostile *h);

/* Runs an attack on a server that has rails, and wants it to grow no more than this. The attacker calls it, or is called:
 * then rails_connect() and rails_open() wait for that, and h.door is its own. */
void rails_siege(const char *what, void (*attack)(void), size_t kib, int fds);
void rails_siege_back(const char *what, void (*attack)(void), int rails, size_t kib, int fds);

#endif
