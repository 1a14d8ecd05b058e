/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Helpers for programs about lists: a list, and its memory on both sides. */
#ifndef LIST_H
#define LIST_H

#include "list_back.h"

#define TARGET ((size_t)4 * 1024 * 1024)
#define BLOCKS 1000
#define SPACE 4096 /* of each block; those of the random lists are shorter */

struct lists {
	struct remote to;
	struct mem local;
	gdrfab_block blocks[BLOCKS];
	void *desc;
	gdrfab_msg_list msg;
};

static inline void list_begin(struct node *n, struct lists *l, const struct memkind *kind)
{
	node_up(n);
	const struct way *way = (const struct way *)n->arg;
	l->to = mem_fetch(n);
	way_check(n, way, l->to);
	mem_new(n, &l->local, kind, TARGET);
	mem_register(n, &l->local, 0, TARGET, ANY_ACCESS, 0);
	l->desc = mem_desc(&l->local);
	l->msg = list_of(n, l->blocks, BLOCKS, &l->desc, &l->to.key, 1, l);
}

#endif
