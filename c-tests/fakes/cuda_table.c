/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The memory and the pools that the fake libcuda knows. */
#define _GNU_SOURCE
#include "cuda.h"

#include <stdlib.h>

struct mem *cuda_all;
static uint64_t last_id = 0x300;

struct mem *cuda_find(uint64_t va)
{
	for (struct mem *m = cuda_all; m; m = m->next)
		if (va >= m->va && va - m->va < m->len)
			return m;
	return NULL;
}

bool cuda_covers(uint64_t va, uint64_t len, CUdevice device)
{
	while (len) {
		struct mem *m = cuda_find(va);
		if (!m || !m->block || (m->kind == SEGMENT && !(m->access >> device & 1)))
			return false;
		uint64_t run = m->va + m->len - va;
		if (run > len)
			run = len;
		va += run;
		len -= run;
	}
	return true;
}

bool cuda_touches(uint64_t va, uint64_t len)
{
	for (struct mem *m = cuda_all; m; m = m->next)
		if (m->block && va < m->va + m->len && m->va < va + len)
			return true;
	return false;
}

bool cuda_pinned_alike(uint64_t va, uint64_t len)
{
	for (struct mem *m = cuda_all; m; m = m->next)
		if (!m->block && va < m->va + m->len && m->va < va + len)
			return va >= m->va && va + len <= m->va + m->len;
	return true;
}

struct mem *cuda_add(uint64_t va, uint64_t len, int kind, CUdevice device, struct fake_block *block)
{
	struct mem *m = calloc(1, sizeof *m);
	if (!m)
		return NULL;
	m->va = va;
	m->len = len;
	m->kind = kind;
	m->device = device;
	m->block = block;
	m->id = ++last_id;
	m->users = 1;
	m->next = cuda_all;
	cuda_all = m;
	return m;
}

void cuda_take(struct mem *m)
{
	for (struct mem **p = &cuda_all; *p; p = &(*p)->next)
		if (*p == m) {
			*p = m->next;
			free(m);
			return;
		}
}

/* Device memory. Small allocations share a page with others in the real driver, so they need not begin on one. */
struct mem *cuda_device_memory(uint64_t len, int kind, CUdevice device)
{
	static unsigned turn;
	uint64_t skew = len <= 1 << 20 && ++turn % 2 == 0 ? 0x800 : 0;
	struct fake_block *b = fake_new(len + skew, 512, device, kind);
	if (!b)
		return NULL;
	struct mem *m = cuda_add(b->va + skew, len, kind, device, b);
	if (!m)
		fake_delete(b, false);
	return m;
}

struct pool *cuda_pools;
struct reservation *cuda_reservations;

void cuda_release_pool(struct pool *pool)
{
	pool->users--;
	if (!pool->destroyed || pool->users)
		return;
	for (struct pool **p = &cuda_pools; *p; p = &(*p)->next)
		if (*p == pool) {
			*p = pool->next;
			free(pool);
			return;
		}
}
