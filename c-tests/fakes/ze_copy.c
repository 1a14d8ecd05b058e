/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Command lists and events of the fake Level Zero loader. Each query of an event runs one copy of the asynchronous lists, the
 * youngest that may run: copies that are not ordered by events run in the wrong order. A command list is for one thread at a
 * time; a second thread aborts.
 */
#define _GNU_SOURCE
#include "ze.h"

/* Handles are addresses of these objects. */
struct pool {
	uint32_t room, used;
};
struct event {
	struct pool *pool;
	int state; /* 0: not set, 1: set, else the error */
};
struct list {
	uint32_t mode;
	int busy;
};
struct copy {
	uint64_t to, from, len;
	struct event *wait, *done;
	struct list *list;
	struct copy *next;
};

static struct copy *copies; /* youngest first */

result_t zeCommandListCreateImmediate(void *context, void *device, const queue_desc_t *desc, void **list)
{
	CALL(zeCommandListCreateImmediate);
	CONTEXT();
	KIND(desc, 0xe);
	if (desc->ordinal != 1 || !device)
		return INVALID_ARGUMENT; /* the group that only copies was not found */
	struct list *l = calloc(1, sizeof *l);
	if (!l)
		return OUT_OF_DEVICE_MEMORY;
	l->mode = desc->mode;
	*list = l;
	return SUCCESS;
}

result_t zeCommandListDestroy(void *list)
{
	CALL(zeCommandListDestroy);
	fake_lock();
	for (struct copy *c = copies; c; c = c->next)
		if (c->list == list)
			abort(); /* it still runs */
	fake_unlock();
	free(list);
	return SUCCESS;
}

result_t zeCommandListAppendMemoryCopy(void *list, void *to, const void *from, size_t len, void *signal, uint32_t count,
				       void **waits)
{
	CALL(zeCommandListAppendMemoryCopy);
	struct list *l = list;
	if (!l)
		return INVALID_NULL_HANDLE;
	if (!to || !from)
		return INVALID_NULL_POINTER;
	if (count > 1 || !count != !waits)
		return INVALID_SIZE;
	if (__sync_lock_test_and_set(&l->busy, 1))
		abort(); /* two threads on one list */
	result_t result = SUCCESS;
	uint64_t t = (uint64_t)(uintptr_t)to, f = (uint64_t)(uintptr_t)from;
	fake_lock();
	if (l->mode == 1) {
		result = fake_copy(t, f, len) ? SUCCESS : INVALID_ARGUMENT;
	} else {
		struct copy *c = malloc(sizeof *c);
		if (c) {
			*c = (struct copy){t, f, len, count ? waits[0] : NULL, signal, l, copies};
			copies = c;
		}
	}
	fake_unlock();
	__sync_lock_release(&l->busy);
	return result;
}

result_t zeEventPoolCreate(void *context, const chained_t *desc, uint32_t count, void **devices, void **pool)
{
	CALL(zeEventPoolCreate);
	CONTEXT();
	KIND(desc, 0x10);
	struct pool *p = calloc(1, sizeof *p);
	if (!p || !desc->number || !(desc->flags & 1) || !count != !devices)
		return INVALID_SIZE;
	p->room = desc->number;
	*pool = p;
	return SUCCESS;
}

result_t zeEventPoolDestroy(void *pool)
{
	CALL(zeEventPoolDestroy);
	if (((struct pool *)pool)->used)
		return OBJECT_IN_USE;
	free(pool);
	return SUCCESS;
}

result_t zeEventCreate(void *pool, const event_desc_t *desc, void **event)
{
	CALL(zeEventCreate);
	KIND(desc, 0x11);
	struct pool *p = pool;
	struct event *e = calloc(1, sizeof *e);
	if (!e || desc->index >= p->room)
		return INVALID_ARGUMENT;
	e->pool = p;
	p->used++;
	*event = e;
	return SUCCESS;
}

result_t zeEventDestroy(void *event)
{
	CALL(zeEventDestroy);
	fake_lock();
	for (struct copy *c = copies; c; c = c->next)
		if (c->wait == event || c->done == event)
			abort(); /* an engine would use freed memory */
	fake_unlock();
	((struct event *)event)->pool->used--;
	free(event);
	return SUCCESS;
}

/* The youngest copy that may run. */
static void run_one(void)
{
	for (struct copy **p = &copies; *p; p = &(*p)->next) {
		struct copy *c = *p;
		if (c->wait && !c->wait->state)
			continue;
		int state = fake_fault("ze_copy_engine");
		if (!state)
			state = fake_copy(c->to, c->from, c->len) ? 1 : INVALID_ARGUMENT;
		if (c->done)
			c->done->state = state;
		*p = c->next;
		free(c);
		return;
	}
}

result_t zeEventQueryStatus(void *event)
{
	CALL(zeEventQueryStatus);
	fake_lock();
	int state = ((struct event *)event)->state;
	run_one();
	fake_unlock();
	return state == 0 ? NOT_READY : state == 1 ? SUCCESS : (result_t)state;
}

result_t zeEventHostSynchronize(void *event, uint64_t timeout)
{
	CALL(zeEventHostSynchronize);
	(void)timeout;
	result_t result = NOT_READY;
	for (int i = 0; i < 1000 && result == NOT_READY; i++)
		result = zeEventQueryStatus(event);
	return result;
}

result_t zeEventHostReset(void *event)
{
	CALL(zeEventHostReset);
	((struct event *)event)->state = 0;
	return SUCCESS;
}
