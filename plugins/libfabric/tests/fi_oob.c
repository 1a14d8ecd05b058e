/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Messages between the two processes beside the provider. */
#include "fi.h"
#include "process_pair.h"

void oob_send(struct node *n, const void *data, size_t len)
{
	test_oob_send(n->oob, data, len);
}

void drive(struct node *n)
{
	struct fi_eq_cm_entry entry;
	uint32_t event;
	if (n->cq)
		fi_cq_read(n->cq, NULL, 0);
	if (n->eq)
		fi_eq_read(n->eq, &event, &entry, sizeof entry, FI_PEEK);
}

static void drive_node(void *of)
{
	drive((struct node *)of);
}

void oob_recv(struct node *n, void *data, size_t len)
{
	test_oob_recv(n->oob, data, len, n->cq ? drive_node : NULL, n);
}

void barrier(struct node *n)
{
	test_barrier(n->oob, n->cq ? drive_node : NULL, n);
}
