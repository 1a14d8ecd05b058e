/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What the three files of gaudi_pingpong share: one side of it, and what can be done with its memory and its waits. */
#ifndef PINGPONG_H
#define PINGPONG_H

#include <gdrfab.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LIMIT_MS 10000 /* nothing that depends on the other side takes longer */
#define ROUNDS 3 /* of messages, if nothing else is asked for */

/* The parts of the one region: what is sent from, received into, written into by the peer, and read into. */
enum { OUT, IN, TARGET, BACK, PARTS };

struct side {
	/* what was asked for */
	const char *mem, *provider;
	bool first;
	size_t size;
	int rounds;
	/* the socket, and the line that comes in */
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
	bool near; /* the device is there, so a card close to it is asked for */
	unsigned char *memory, *scratch; /* on the device; a part of it on the host */
	gdrfab_mr *mr;
	gdrfab_mr_info region;
	/* the peer's */
	char peer_mem[32], peer_ep[GDRFAB_ADDR_MAX];
	unsigned long long peer_base, peer_key;
	/* what has come: completions set what their context points to */
	bool connected, sent, received, written, read_back;
	bool ended; /* the connection, and why */
	char why[256];
	int error; /* of the operation that failed, in words: */
	char words[256];
	/* SynapseAI, if this process has acquired a device by it */
	void *synapse;
	uint32_t acquired;
};

#define CALL(call) \
	((call) < 0 ? say("%.*s: %s", (int)strcspn(#call, "("), #call, gdrfab_last_error()) : true)

/* On stderr; returns false. */
bool say(const char *format, ...);

/* --- memory.c --- */

/* Sets iface and device from "gaudi:0"; false: no such name. */
bool memory_named(struct side *s, const char *name);
/* Before the fabric is opened. */
void prepare_device(struct side *s);
/* What was asked for, or if it cannot be had, the host's, and a line that says so. Registered. */
bool take_memory(struct side *s);
void free_memory(struct side *s);
/* After the domain is closed. */
void release_gaudi(struct side *s);
/* The bytes of a side and round: put into a part of this side's memory; looked for as the peer's. */
bool fill(struct side *s, int part, int round);
bool verify(struct side *s, int part, int round, const char *what);
static inline void *at(const struct side *s, int part)
{
	return s->memory + (size_t)part * s->size;
}

/* --- fabric.c --- */

/* Fabric, domain and endpoint; `node` is the address to be reached at, or NULL. */
bool open_fabric(struct side *s, const char *node);
bool connect_fabric(struct side *s);
void close_fabric(struct side *s);
bool post_receive(struct side *s);
/* Waits for a completion, which sets `flag`, and clears it again. */
bool await(struct side *s, bool *flag, const char *what);
/* Whether an errno says that an operation was refused, and not that the peer is gone or silent. */
bool refusal(int error);
/* One line over the socket, with its end; and the next one of the peer, without, in `out` (of sizeof s->line). */
bool tell(struct side *s, const char *line);
bool hear(struct side *s, char *out, const char *what);

#endif
