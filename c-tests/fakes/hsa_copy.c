/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Copies of the fake HSA runtime. Each read of a signal runs one asynchronous copy, the youngest that may run: copies that are
 * not ordered by signals run in the wrong order.
 */
#define _GNU_SOURCE
#include "fakehsa.h"

struct copy {
	uint64_t to, from, len;
	sig_t dep, done;
	struct copy *next;
};
static struct copy *copies; /* youngest first */
static struct lock *locks;

status_t hsa_amd_memory_lock(void *host, size_t len, agent_t *agents, int count, void **agent_ptr)
{
	CALL(hsa_amd_memory_lock);
	if (!host || !len || !agent_ptr || !agents != !count)
		return INVALID_ARGUMENT;
	struct lock *l = malloc(sizeof *l);
	if (!l)
		return OUT_OF_RESOURCES;
	/* An address that only agents can use. */
	uint64_t within = (uint64_t)(uintptr_t)host & 4095;
	uint64_t at = fake_reserve((len + within + 4095) & ~(uint64_t)4095, 4096);
	fake_lock();
	*l = (struct lock){(uint64_t)(uintptr_t)host, at + within, len, locks};
	locks = l;
	fake_unlock();
	*agent_ptr = (void *)(uintptr_t)l->agent;
	return SUCCESS;
}

status_t hsa_amd_memory_unlock(void *host)
{
	CALL(hsa_amd_memory_unlock);
	fake_lock();
	struct lock **p = &locks, *found;
	while (*p && (*p)->host != (uint64_t)(uintptr_t)host)
		p = &(*p)->next;
	found = *p;
	if (found) {
		*p = found->next;
		uint64_t within = found->agent & 4095;
		fake_unreserve(found->agent - within, (found->len + within + 4095) & ~(uint64_t)4095);
		free(found);
	}
	fake_unlock();
	return found ? SUCCESS : INVALID_ARGUMENT;
}

struct lock *hsa_find_lock(uint64_t at)
{
	for (struct lock *l = locks; l; l = l->next)
		if ((at >= l->host && at - l->host < l->len) || (at >= l->agent && at - l->agent < l->len))
			return l;
	return NULL;
}

/* Translates an agent's address: device memory stays the same, locked memory becomes the host's address; 0: invalid. */
static uint64_t resolve(uint64_t at, uint64_t len, agent_t one, agent_t other)
{
	struct fake_block *b = fake_find(at);
	if (b) {
		bool allowed = at + len <= b->va + b->len;
		if (hsa_is_gpu(one))
			allowed = allowed && hsa_reaches(one, b);
		if (hsa_is_gpu(other))
			allowed = allowed && hsa_reaches(other, b);
		return allowed ? at : 0;
	}
	for (struct lock *l = locks; l; l = l->next)
		if (at >= l->agent && at - l->agent < l->len)
			return at - l->agent + len <= l->len ? l->host + (at - l->agent) : 0;
	return 0;
}

status_t hsa_memory_copy(void *to, const void *from, size_t len)
{
	CALL(hsa_memory_copy);
	fake_lock();
	bool done = fake_copy((uint64_t)(uintptr_t)to, (uint64_t)(uintptr_t)from, len);
	fake_unlock();
	return done ? SUCCESS : INVALID_ARGUMENT;
}

status_t hsa_signal_create(int64_t initial, uint32_t count, const agent_t *consumers, sig_t *signal)
{
	CALL(hsa_signal_create);
	int64_t *value = malloc(sizeof *value);
	if (!value || !signal || !count != !consumers)
		return INVALID_ARGUMENT;
	*value = initial;
	signal->handle = (uint64_t)(uintptr_t)value;
	return SUCCESS;
}

static int64_t *value_of(sig_t signal)
{
	return (int64_t *)(uintptr_t)signal.handle;
}

status_t hsa_signal_destroy(sig_t signal)
{
	CALL(hsa_signal_destroy);
	fake_lock();
	for (struct copy *c = copies; c; c = c->next)
		if (c->dep.handle == signal.handle || c->done.handle == signal.handle)
			abort(); /* an engine would use freed memory */
	fake_unlock();
	free(value_of(signal));
	return SUCCESS;
}

void hsa_signal_store_screlease(sig_t signal, int64_t value)
{
	fake_lock();
	*value_of(signal) = value;
	fake_unlock();
}

/* The youngest copy that may run. */
static void run_one(void)
{
	for (struct copy **p = &copies; *p; p = &(*p)->next) {
		struct copy *c = *p;
		if (c->dep.handle && *value_of(c->dep) != 0)
			continue;
		int broken = fake_fault("hsa_copy_engine");
		if (broken)
			*value_of(c->done) = broken;
		else if (fake_copy(c->to, c->from, c->len))
			*value_of(c->done) -= 1;
		else
			*value_of(c->done) = -1;
		*p = c->next;
		free(c);
		return;
	}
}

int64_t hsa_signal_load_scacquire(sig_t signal)
{
	fake_lock();
	int64_t value = *value_of(signal);
	run_one();
	fake_unlock();
	return value;
}

int64_t hsa_signal_wait_scacquire(sig_t signal, uint32_t condition, int64_t value, uint64_t timeout, uint32_t state)
{
	(void)timeout;
	(void)state;
	for (int i = 0; i < 100; i++) {
		int64_t now = hsa_signal_load_scacquire(signal);
		if (condition == 2 && now < value)
			return now;
	}
	return hsa_signal_load_scacquire(signal);
}

status_t hsa_amd_memory_async_copy(void *to, agent_t to_agent, const void *from, agent_t from_agent, size_t len,
				   uint32_t dep_count, const sig_t *deps, sig_t completion)
{
	CALL(hsa_amd_memory_async_copy);
	if (!to || !from || !completion.handle || dep_count > 1)
		return INVALID_ARGUMENT;
	if (!len)
		return SUCCESS; /* and the signal stays as it is */
	fake_lock();
	uint64_t t = resolve((uint64_t)(uintptr_t)to, len, to_agent, from_agent);
	uint64_t f = resolve((uint64_t)(uintptr_t)from, len, to_agent, from_agent);
	struct copy *c = t && f ? malloc(sizeof *c) : NULL;
	if (c) {
		*c = (struct copy){t, f, len, dep_count ? deps[0] : (sig_t){0}, completion, copies};
		copies = c;
	}
	fake_unlock();
	return c ? SUCCESS : INVALID_AGENT; /* a real engine faults */
}
