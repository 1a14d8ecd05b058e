/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Objects of the fake libibverbs: their counts, and the events about them. */
#define _GNU_SOURCE
#include "fakeverbs.h"

#include <string.h>
#include <unistd.h>

/* For tests, which find it by dlsym(): the number of existing objects. */
API int fake_verbs_objects(void);

static int objects;

void object_made(void)
{
	__atomic_add_fetch(&objects, 1, __ATOMIC_RELAXED);
}

void object_gone(void)
{
	__atomic_sub_fetch(&objects, 1, __ATOMIC_RELAXED);
}

API int fake_verbs_objects(void)
{
	return __atomic_load_n(&objects, __ATOMIC_RELAXED);
}

void raise_event(struct ibv_context *c, int kind, void *element)
{
	struct ibv_async_event event;
	memset(&event, 0, sizeof event);
	event.element.qp = element;
	event.event_type = (enum ibv_event_type)kind;
	if (write(whole(c)->async_write, &event, sizeof event) < 0)
		return;
}
