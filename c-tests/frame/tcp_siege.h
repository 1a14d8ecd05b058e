/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A tcp listener under attack by three processes: a server, a good peer that uses the server as a program does and checks
 * every byte, and a hostile client. The hostile client must not disturb the good peer or make the server grow.
 */
#ifndef TCP_SIEGE_H
#define TCP_SIEGE_H

#include "tcp_raw.h"

#define SIEGE_LEN ((size_t)512 * 1024) /* of each region; the good peer uses the second half */
#define SIEGE_SEED 41u
/* Descriptors that the server may have for the good peer for each address in GDRFAB_TCP_RAILS: a rail of the connection,
 * and for the peer's next connection a socket, a listener (three descriptors), and sockets that are closing. */
#define SIEGE_RAIL 8

/* Memory that the three processes share. */
struct siege {
	char service[64];
	char calls[64];   /* the port of a hostile listener; the server connects to it `asked` times */
	unsigned asked;
	int ready;        /* the good peer uses the server: the attack may begin */
	struct remote open, readable, closed;
	uint64_t secret;  /* the address of memory that is not registered */
	size_t rss_begin, rss_most; /* of the server, KiB */
	int fds_begin, fds_most;
	int taken, turned_down, gone;
	unsigned broke, notes; /* connections that ended with EPROTO; errors that ended no connection */
	char words[GDRFAB_CM_DATA_MAX]; /* error text of the last connection that ended with EPROTO */
	unsigned rounds, connections;
	unsigned slowest_ms, slowest_connection_ms;
};
extern struct siege *siege;

/* Runs the three processes. `attack` runs in the hostile one and may use tcp_raw.h and `siege`. limit_ms: the time that a new
 * connection of the good peer may take. */
void siege_run(void (*attack)(void), int limit_ms);
/* Connects from the hostile process and does the whole handshake, so that frames can follow. */
int siege_greeted(void);
/* Prints how much the server has grown, and fails the claim beyond these KiB and these descriptors (and SIEGE_RAIL more for
 * each rail of the environment). */
void siege_was_bounded(const char *what, size_t kib, int fds);

#endif
