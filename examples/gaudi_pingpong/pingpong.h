/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Declarations that the three files of gaudi_pingpong share: one side of the demo, its memory, and its waits. */
#ifndef PINGPONG_H
#define PINGPONG_H

#include <gdrfab.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LIMIT_MS 10000 /* limit in ms of every wait for the other side */
#define ROUNDS 3 /* of messages, by default */

/* The parts of the region: sent from, received into, written into by the peer, read into. */
enum { OUT, IN, TARGET, BACK, PARTS };

struct side {
	/* the arguments */
	const char *mem, *provider;
	bool first;
	size_t size;
	int rounds;
	/* the socket, and the incoming line */
	int sock;
	char line[600];
	size_t line_len;
	/* the fabric */
	gdrfab_info *info;
	gdrfab_fabric *fabric;
	gdrfab_eq *eq;
	gdrfab_domain *domain;
	gdrfab_cq *cq;
	gdrfab_ep *ep;
	int eq_fd, cq_fd;
	/* the memory */
	uint32_t iface, device;
	bool near; /* the device exists, so the nearest card is asked for */
	unsigned char *memory, *scratch; /* on the device; a part of it in the host */
	gdrfab_mr *mr;
	gdrfab_mr_info region;
	/* the peer's */
	char peer_mem[32], peer_ep[GDRFAB_ADDR_MAX];
	unsigned long long peer_base, peer_key;
	/* completions set the flag that their context points to */
	bool connected, sent, received, written, read_back;
	bool ended; /* the connection is over, with the reason: */
	char why[256];
	int error; /* errno and text of the failed operation: */
	char words[256];
	/* SynapseAI, if this process has acquired a device by it */
	void *synapse;
	uint32_t acquired;
};

#define CALL(call) \
	((call) < 0 ? say("%.*s: %s", (int)strcspn(#call, "("), #call, gdrfab_last_error()) : true)

/* Prints to stderr; returns false. */
bool say(const char *format, ...);

/* --- memory.c --- */

/* Sets iface and device from "gaudi:0"; false: no such name. */
bool memory_named(struct side *s, const char *name);
/* Called before the fabric is opened. */
void prepare_device(struct side *s);
/* Allocates and registers the requested memory or, if it is not available, host memory, and prints which. */
bool take_memory(struct side *s);
void free_memory(struct side *s);
/* Called after the domain is closed. */
void release_gaudi(struct side *s);
/* The bytes of a side and round: fill() puts this side's into a part of its memory, verify() looks for the peer's. */
bool fill(struct side *s, int part, int round);
bool verify(struct side *s, int part, int round, const char *what);
static inline void *at(const struct side *s, int part)
{
	return s->memory + (size_t)part * s->size;
}

/* --- fabric.c --- */

/* Opens fabric, domain and endpoint; `node` is the address at which to be reached, or NULL. */
bool open_fabric(struct side *s, const char *node);
bool connect_fabric(struct side *s);
void close_fabric(struct side *s);
bool post_receive(struct side *s);
/* Waits for a completion, which sets `flag`, and clears it again. */
bool await(struct side *s, bool *flag, const char *what);
/* True if an errno means that an operation was refused, and not that the peer is gone or silent. */
bool refusal(int error);
/* tell() sends one line, with its end, over the socket; hear() gets the peer's next line, without its end, in `out`
 * (of sizeof s->line). */
bool tell(struct side *s, const char *line);
bool hear(struct side *s, char *out, const char *what);

#endif
