/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What the two processes say to each other beside the provider. */
#include "fi.h"
#include "test_pair.h"

#include <sched.h>
#include <sys/socket.h>

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

void oob_recv(struct node *n, void *data, size_t len)
{
	char *at = (char *)data;
	for (int idle = 0; len > 0; idle++) {
		ssize_t got = recv(n->oob, at, len, n->cq ? MSG_DONTWAIT : 0);
		if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
			drive(n);
			/* The other side may need the CPU more. */
			if (idle < 1000)
				sched_yield();
			else
				usleep(50);
			continue;
		}
		if (got <= 0)
			test_fail(__FILE__, __LINE__, "the other side is gone (%s)",
				  got < 0 ? strerror(errno) : "it closed its end");
		at += got;
		len -= (size_t)got;
	}
}

void barrier(struct node *n)
{
	char word = 'b';
	oob_send(n, &word, 1);
	oob_recv(n, &word, 1);
	if (word != 'b')
		test_fail(__FILE__, __LINE__, "the two sides are out of step (got 0x%02x)", (unsigned char)word);
}
