/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Local buffers for providers that want each in a region: the pages around a buffer are registered when it is first used,
 * and the region is kept. free() keeps pages in the process, so that a region never covers other pages later.
 */
#include "fab_local.h"
#include "fab_provider.h"

#include <malloc.h>
#include <pthread.h>

struct local {
	struct local *next;
	gdrfab_domain *domain;
	uintptr_t from, to;
	gdrfab_mr *mr;
};

static bool forced(void)
{
	const char *text = getenv("TEST_FORCE_LOCAL");
	return text && *text && *text != '0';
}

void local_prepare(void)
{
	if (!forced() && !traits()->adapter)
		return;
	mallopt(M_MMAP_MAX, 0);
	mallopt(M_TRIM_THRESHOLD, -1);
	mallopt(M_ARENA_MAX, 1);
}

bool local_needed(const struct node *n)
{
	const gdrfab_info *info = n->request ? n->request : n->info;
	return forced() || (info && (info->mr_mode & GDRFAB_MR_LOCAL));
}

static pthread_mutex_t locals = PTHREAD_MUTEX_INITIALIZER;

void *local_desc(struct node *n, const void *at, size_t len)
{
	if (len == 0 || !local_needed(n))
		return NULL;
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE) - 1;
	static uint64_t key = 1u << 28; /* for providers with requested keys; far from the keys of the claims */
	uintptr_t from = (uintptr_t)at & ~page, to = ((uintptr_t)at + len + page) & ~page;
	pthread_mutex_lock(&locals);
	struct local *l = n->locals;
	while (l && !(l->domain == n->domain && l->from <= from && to <= l->to))
		l = l->next;
	if (!l) {
		l = (struct local *)calloc(1, sizeof *l);
		l->next = n->locals;
		l->domain = n->domain;
		l->from = from;
		l->to = to;
		const uint64_t access = ANY_ACCESS & ~REMOTE_ACCESS;
		int rc = gdrfab_mr_reg(n->domain, (void *)from, to - from, access, 0, key++, 0, NULL, &l->mr);
		if (rc != 0)
			test_fail(__FILE__, __LINE__, "a local buffer of %zu bytes at %p cannot be registered: %s%s",
				  len, at, test_number(rc), test_words(rc));
		n->locals = l;
	}
	pthread_mutex_unlock(&locals);
	return gdrfab_mr_desc(l->mr);
}

void **local_descs(struct node *n, const struct iovec *iov, size_t count, void **desc)
{
	if (!local_needed(n))
		return NULL;
	for (size_t i = 0; i < count; i++)
		desc[i] = local_desc(n, iov[i].iov_base, iov[i].iov_len);
	return desc;
}

void local_forget(struct node *n, const void *at, size_t len)
{
	pthread_mutex_lock(&locals);
	for (struct local **link = &n->locals; *link;) {
		struct local *l = *link;
		if (l->to <= (uintptr_t)at || (at && (uintptr_t)at + len <= l->from)) {
			link = &l->next;
			continue;
		}
		*link = l->next;
		OK(gdrfab_mr_close(l->mr));
		free(l);
	}
	pthread_mutex_unlock(&locals);
}

void local_forget_all(struct node *n)
{
	local_forget(n, NULL, 0);
}
