/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A listener under attack: one process serves, one uses it as a program does and checks every byte, and one is hostile.
 * Whatever the last does, the second must not notice, and the first must not grow.
 */
#ifndef TCP_SIEGE_H
#define TCP_SIEGE_H

#include "tcp_raw.h"

#define SIEGE_LEN ((size_t)512 * 1024) /* of each region; the second half is the good peer's */
#define SIEGE_SEED 41u
/* Descriptors of the good peer's connections for each address in GDRFAB_TCP_RAILS: a rail, and of the next connection a
 * socket, a listener with its three, and what is being closed. */
#define SIEGE_RAIL 8

/* What the three know of each other; shared. */
struct siege {
	char service[64];
	char calls[64];   /* where a hostile one listens; the server calls there as often as it is asked */
	unsigned asked;
	int ready;        /* the server serves, and the good one uses it */
	struct remote open, readable, closed;
	uint64_t secret;  /* the address of memory that is not registered */
	size_t rss_begin, rss_most; /* of the server, KiB */
	int fds_begin, fds_most;
	int taken, turned_down, gone;
	unsigned broke, notes; /* connections that ended with EPROTO; errors that ended none */
	char words[GDRFAB_CM_DATA_MAX]; /* of the last that ended with EPROTO */
	unsigned rounds, connections;
	unsigned slowest_ms, slowest_connection_ms;
};
extern struct siege *siege;

/* Runs one; `attack` is the hostile process, which may use tcp_raw.h and `siege`. limit_ms: for a new connection in between. */
void siege_run(void (*attack)(void), int limit_ms);
/* A connection of the hostile process that has got as far as frames. */
int siege_greeted(void);
/* Is the server as large as it was, and has it as few descriptors, up to so many KiB and so many, and SIEGE_RAIL more for
 * each rail? Says what it found. */
void siege_was_bounded(const char *what, size_t kib, int fds);

#endif
