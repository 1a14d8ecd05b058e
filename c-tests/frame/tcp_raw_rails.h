/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A hostile peer whose connection has rails (GDRFAB_TCP_RAILS), written from docs/tcp-wire.md alone: a client of the server
 * under siege, or a listener that the server connects to. See tcp_raw.h and tcp_siege.h.
 */
#ifndef TCP_RAW_RAILS_H
#define TCP_RAW_RAILS_H

#include "tcp_siege.h"

#define HEAD 24
#define SEGMENT 61440u
#define WINDOW ((uint64_t)8 << 20)
#define BODY 16384u /* bytes that one WRITE carries here */
#define WRITES (RAW_HEADER + 24 + BODY)
enum { DATA, DOWN };
enum { FOR_RAILS = 3, PLACE = 18 };

struct hostile {
	int rail[2]; /* sockets; -1: not connected */
	unsigned char door[2][PLACE];
	uint64_t token;
	int doors; /* addresses for rails that the server granted */
	uint64_t next;   /* the next byte of the stream to the server */
	uint64_t taken;  /* the bytes taken of the stream from the server */
	unsigned writes, broke;
};

/* Connects to an address as ANSWER encodes it; -1: no listener there. */
int rails_call(const unsigned char *place);
/* Does the handshake from HELLO to ANSWER for this purpose; returns the status. */
int rails_introduce(int fd, int purpose, uint64_t token, const void *data, size_t len);
/* Connects to address `door` and asks for the rail `number` of this generation; returns the status of the answer. */
int rails_join(const struct hostile *h, int door, uint64_t token, int number, uint32_t generation, int *fd);
/* Sends a segment with this head and n bytes; the head may be wrong. */
bool rails_segment(int fd, int kind, uint64_t len, uint64_t from, uint64_t taken, const void *bytes, size_t n);
/* Sends the next bytes of the stream over this rail. */
void rails_say(struct hostile *h, int rail, const void *bytes, size_t n);
/* The server's side of the handshake. Accepts the next connection within ms, or -1. Sends a challenge and reads the INTRO;
 * false if the caller breaks the handshake. Sends an ANSWER with this body. */
int rails_called(int listening, int ms);
bool rails_hear(int fd, struct raw_meeting *m);
bool rails_answer(int fd, const void *body, size_t len);
/* Builds the body of an ANSWER that grants `rails` rails and lists `count` addresses; returns its length. */
size_t rails_terms(unsigned char *body, uint32_t rails, uint64_t token, unsigned char (*places)[PLACE], size_t count);
/* Encodes an address as ANSWER has it. */
void rails_place(unsigned char *place, uint32_t ip, unsigned port);
/* Makes the server under siege connect once more; returns the socket, and the server's INTRO in m. */
int rails_ask(struct raw_meeting *m);
/* Opens a socket that listens for rails on every address, and returns its port. */
int rails_door(unsigned *port);

/* Make a connection for which two rails are agreed on: with one of them connected, or with both. */
struct hostile rails_connect(void);
struct hostile rails_open(void);
void rails_end(struct hostile *h);
/* Checks that the server has ended the connection, with an error text that contains `why`. */
void rails_broken(struct hostile *h, const char *what, const char *why);

/* Encodes a WRITE frame with its body: WRITES bytes. */
void rails_write_frame(unsigned char *to, int flags);
/* Reads segments until the server reports this many writes as carried out; more fail the claim. */
void rails_await_done(struct hostile *h, unsigned count);
/* Sends a write over each rail, in two halves, and waits until each was carried out. */
void rails_go_well(struct hostile *h);

/* Run an attack on a server with rails, which must not grow by more than this. With rails_siege() the attacker connects to
 * the server. With rails_siege_back() the server connects to the attacker: rails_connect() and rails_open() wait for it, and
 * h.door is the attacker's own address. */
void rails_siege(const char *what, void (*attack)(void), size_t kib, int fds);
void rails_siege_back(const char *what, void (*attack)(void), int rails, size_t kib, int fds);

#endif
