/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Helpers for all programs about lists: building a list, writing it and reading it back, and a list that ended early. */
#ifndef LIST_BACK_H
#define LIST_BACK_H

#include "fab.h"

/* Makes a list with one descriptor for all blocks; key_count is 1 or the number of blocks. */
static inline gdrfab_msg_list list_of(const struct node *n, const gdrfab_block *blocks, size_t count, void **desc,
				      const uint64_t *keys, size_t key_count, void *context)
{
	gdrfab_msg_list msg;
	memset(&msg, 0, sizeof msg);
	msg.struct_size = sizeof msg;
	msg.blocks = blocks;
	msg.count = count;
	msg.desc = desc;
	msg.desc_count = 1;
	msg.key = keys;
	msg.key_count = key_count;
	msg.addr = connectionless(n->setup) ? PEER : 0;
	msg.context = context;
	return msg;
}

/* Runs the claim over connectionless endpoints. */
static inline void list_rdm(side_fn server, side_fn client, const void *arg)
{
	static const struct setup rdm = {.rdm = true};
	pair(&rdm, server, client, arg);
}

/* Continues the peer, which was stopped while lists ended early: it must not access their memory. */
static inline void list_stays_given_up(struct node *n, struct mem *local)
{
	mem_fill(local, 0, local->len, 0, 9);
	peer_continue(n);
	QUIET(n->cq, 30);
	CHECK_MEM("what is the caller's again", local, 0, local->len, 0, 9);
}

/* Block i of the list has `space` bytes of local memory to itself, from i * space on, and may be shorter. */
static inline void list_comes_back(struct node *n, const gdrfab_msg_list *msg, struct mem *local, size_t space, uint32_t seed)
{
	done entry;
	size_t total = 0;
	for (size_t i = 0; i < msg->count; i++) {
		mem_fill(local, i * space, msg->blocks[i].len, i, seed);
		total += msg->blocks[i].len;
	}
	POST(n->cq, gdrfab_writelist(n->ep, msg, 0));
	DONE(n->cq, msg->context, GDRFAB_WRITE, &entry);
	CHECK_EQ(entry.len, total);
	mem_fill(local, 0, local->len, 0, 9);
	POST(n->cq, gdrfab_readlist(n->ep, msg, 0));
	DONE(n->cq, msg->context, GDRFAB_READ, &entry);
	CHECK_EQ(entry.len, total);
	for (size_t i = 0; i < msg->count; i++) {
		size_t end = msg->blocks[i].len;
		CHECK_MEM("a block that was read", local, i * space, end, i, seed);
		CHECK_MEM("what is behind it", local, i * space + end, space - end, i * space + end, 9);
	}
	QUIET(n->cq, 0);
}

#endif
