/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Memory: regions, and room for a peer's writes with data. */
#include "fi_node.h"

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
	/* Unlike any other, should the caller be the one to choose. */
	uint64_t key = ++n->next_key + ((uint64_t)n->side << 8);
	int rc = fi_mr_reg(n->domain, at, len, access, 0, key, 0, &mr, n);
	if (rc)
		test_fail(__FILE__, __LINE__, "%zu bytes at %p cannot be registered: %s", len, at, test_number(rc));
	return mr;
}

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
	/* libfabric's own forget to say that it was RMA. */
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
