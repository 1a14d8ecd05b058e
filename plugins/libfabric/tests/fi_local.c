/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What operations must be given for local buffers. */
#include "fi_node.h"

#include <pthread.h>

struct local {
	struct local *next;
	const unsigned char *at;
	size_t len;
	struct fid_mr *mr;
};

/* Threads of one node post at the same time. */
static pthread_mutex_t locals = PTHREAD_MUTEX_INITIALIZER;

static bool local_needed(const struct node *n)
{
	return (n->info->domain_attr->mr_mode & FI_MR_LOCAL) || (n->info->mode & FI_LOCAL_MR);
}

void *local_desc(struct node *n, const void *at, size_t len)
{
	if (!len || !local_needed(n))
		return NULL;
	const unsigned char *from = (const unsigned char *)at;
	pthread_mutex_lock(&locals);
	struct local *l = n->locals;
	while (l && !(from >= l->at && from + len <= l->at + l->len))
		l = l->next;
	if (!l) {
		l = (struct local *)calloc(1, sizeof *l);
		l->next = n->locals;
		l->at = from;
		l->len = len;
		l->mr = mr_new(n, at, len, FI_SEND | FI_RECV | FI_READ | FI_WRITE);
		n->locals = l;
	}
	pthread_mutex_unlock(&locals);
	return fi_mr_desc(l->mr);
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
	const unsigned char *from = (const unsigned char *)at;
	pthread_mutex_lock(&locals);
	for (struct local **link = &n->locals; *link;) {
		struct local *l = *link;
		if (from && (l->at + l->len <= from || from + len <= l->at)) {
			link = &l->next;
			continue;
		}
		*link = l->next;
		CLOSE(l->mr);
		free(l);
	}
	pthread_mutex_unlock(&locals);
}

void local_forget_all(struct node *n)
{
	local_forget(n, NULL, 0);
}
