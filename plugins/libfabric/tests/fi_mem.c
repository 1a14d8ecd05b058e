/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Memory: regions, descriptors of local buffers, and receives for a peer's writes with data. */
#include "fi.h"

#include <pthread.h>

void *pages(size_t len)
{
	void *at = NULL;
	len = (len + 4095) & ~(size_t)4095;
	if (posix_memalign(&at, 4096, len ? len : 4096) != 0)
		test_fail(__FILE__, __LINE__, "no memory for %zu bytes", len);
	memset(at, 0, len);
	return at;
}

struct fid_mr *mr_new(struct node *n, const void *at, size_t len, uint64_t access)
{
	struct fid_mr *mr = NULL;
	/* A key unlike any other, in case the caller chooses keys. */
	uint64_t key = ++n->next_key + ((uint64_t)n->side << 8);
	int rc = fi_mr_reg(n->domain, at, len, access, 0, key, 0, &mr, n);
	if (rc)
		test_fail(__FILE__, __LINE__, "%zu bytes at %p cannot be registered: %s", len, at, test_number(rc));
	return mr;
}

/* --- local buffers --- */

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

/* --- keys for the peer --- */

void mr_publish(struct node *n, struct fid_mr *mr, const void *at, size_t len)
{
	bool by_address = n->info->domain_attr->mr_mode & (FI_MR_VIRT_ADDR | FI_MR_BASIC);
	struct remote r = {fi_mr_key(mr), by_address ? (uint64_t)(uintptr_t)at : 0, len};
	oob_send(n, &r, sizeof r);
}

struct remote mr_fetch(struct node *n)
{
	struct remote r;
	oob_recv(n, &r, sizeof r);
	return r;
}

/* --- a peer's write with data --- */

bool data_takes_receive(const struct node *n)
{
	return (n->info->mode | n->info->rx_attr->mode) & FI_RX_CQ_DATA;
}

void data_room(struct node *n)
{
	if (data_takes_receive(n))
		POST(n->cq, fi_recv(n->ep, n->data_room, sizeof n->data_room,
				    local_desc(n, n->data_room, sizeof n->data_room), 0, n->data_room));
}

void expect_data(const char *file, int line, struct node *n, done *entry)
{
	uint64_t flags = FI_REMOTE_WRITE | FI_RMA | FI_REMOTE_CQ_DATA;
	test_at(file, line);
	int came = cq_next(n->cq, entry, 10000);
	if (came <= 0)
		test_fail(file, line, "no completion of the peer's write with data (%s)", came ? "a failure" : "10 s");
	/* libfabric's own providers do not set FI_RMA here. */
	if (entry->flags != flags && (is_gdrfab() || (entry->flags | FI_RMA) != flags))
		test_fail(file, line, "the peer's write with data has flags 0x%llx, not 0x%llx",
			  (unsigned long long)entry->flags, (unsigned long long)flags);
	if (data_takes_receive(n) && entry->op_context != n->data_room)
		test_fail(file, line, "the peer's write with data has not the receive's context");
}

uint64_t cq_data(const struct node *n, uint64_t value)
{
	size_t size = n->info->domain_attr->cq_data_size;
	return size >= 8 ? value : value & ((1ull << size * 8) - 1);
}
