/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Helpers of the programs about fault injection (GDRFAB_FAULT). Every claim runs in processes of its own, so each sets its
 * own faults. */
#ifndef FAULT_INJECTION_H
#define FAULT_INJECTION_H

#include "fab.h"

#include <stdarg.h>

#define LEN ((size_t)4096)

/* %s is the provider under test. */
__attribute__((format(printf, 1, 2))) static inline void faults(const char *format, ...)
{
	char text[512];
	va_list list;
	va_start(list, format);
	vsnprintf(text, sizeof text, format, list);
	va_end(list);
	setenv("GDRFAB_FAULT", text, 1);
}

static const char *another_provider(void)
{
	return strcmp(provider(), "verbs") == 0 ? "shm" : "verbs";
}

enum op { WRITE, READ, SEND, RECV, OPS };
static const char *const op_words[OPS] = {"write", "read", "send", "recv"};

/* The state of one side of these claims. */
struct place {
	struct mem m;
	struct remote to;
};

/* Drives a connectionless endpoint until it has reached its peer, or until it has lost the peer. */
static inline void await_peer(struct node *n, bool reached)
{
	struct gdrfab_path_info info = {.struct_size = sizeof info};
	uint64_t until = test_now_ms() + (uint64_t)test_ms(10000);
	while ((gdrfab_ep_query(n->ep, PEER, 0, &info) != -ENOTCONN) != reached) {
		CHECK(test_now_ms() < until);
		gdrfab_cq_read(n->cq, NULL, 0);
	}
}

/* Connects a connectionless endpoint to its peer by an operation that is cancelled at once, and so does not count for
 * drop=N. A progress thread could carry the operation out before the cancel: claims with automatic progress count nothing. */
static inline void reach_uncounted(struct node *n)
{
	struct failure f;
	char byte = 0;
	if (n->setup->progress == GDRFAB_PROGRESS_AUTO) {
		node_reach(n);
		barrier(n);
		return;
	}
	if (n->side == TEST_CLIENT) {
		POST(n->cq, gdrfab_send(n->ep, &byte, 1, NULL, PEER, &byte));
		OK(gdrfab_cancel(n->ep, &byte));
		FAILED(n->cq, &byte, ECANCELED, GDRFAB_PROV_CANCELED, &f);
	}
	await_peer(n, true);
	barrier(n);
}

static inline void place_up(struct node *n, struct place *p)
{
	node_up(n);
	if (connectionless(n->setup))
		reach_uncounted(n);
	mem_new(n, &p->m, &memkinds[KIND_MEM_ALLOC], LEN);
	mem_register(n, &p->m, 0, LEN, ANY_ACCESS, 0);
	mem_publish(n, &p->m);
	p->to = mem_fetch(n);
}

static inline ssize_t post(struct node *n, struct place *p, enum op op, size_t at, size_t len)
{
	unsigned char *buf = p->m.addr + at;
	void *desc = mem_desc(&p->m);
	switch (op) {
	case WRITE:
		return gdrfab_write(n->ep, buf, len, desc, PEER, p->to.base + at, p->to.key, buf);
	case READ:
		return gdrfab_read(n->ep, buf, len, desc, PEER, p->to.base + at, p->to.key, buf);
	case SEND:
		return gdrfab_send(n->ep, buf, len, desc, PEER, buf);
	default:
		return gdrfab_recv(n->ep, buf, len, desc, PEER, buf);
	}
}

static inline void place_down(struct node *n, struct place *p)
{
	barrier(n);
	mem_end(n, &p->m);
	node_down(n);
}

#endif
