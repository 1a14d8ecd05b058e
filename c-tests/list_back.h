/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* For the programs about lists that go several ways: a list that is written, and read back into emptied memory. */
#ifndef LIST_BACK_H
#define LIST_BACK_H

#include "fab.h"

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
