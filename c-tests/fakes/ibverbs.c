/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A fake libibverbs with devices fake0, fake1...: registration checks what the kernel checks (ibverbs_mr.c), queues
 * complete at once (ibverbs_queue.c). It is for counting instructions and for tests where the kernel has no RDMA; it
 * proves nothing about a real device. Programs load it by GDRFAB_DEBUG=ibverbs=FILE only.
 *
 * FAKE_DEVICES: the number of devices (1). FAKE_IBVERBS_LINK=ib: an InfiniBand port instead of RoCE. FAKE_IBVERBS_DMABUF=0:
 * the kernel refuses dma-bufs. FAKE_IBVERBS_PEER_MEM=1: it pins memory that the CPU cannot access. FAKE_IBVERBS_ATOMICS: its
 * atomic_cap (1); FAKE_IBVERBS_CQE: its max_cqe. FAKE_FAULT as in fakemem.h.
 *
 * -DFAKE_OLD: a library without dma-bufs, ibv_reg_mr_iova2, GID tables and extended verbs.
 */
#define _GNU_SOURCE
#include "fakeverbs.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PORTS 1
#define GIDS 2

/* For tests, which find it by dlsym: an asynchronous event of every open device (about queue pair or completion queue
 * `element`, or port `port`). */
API void fake_verbs_raise(int kind, void *element, int port);
/* Declared only by newer headers, or hidden by inline functions. */
API int _ibv_query_gid_ex(struct ibv_context *c, uint32_t port, uint32_t index, struct ibv_gid_entry *entry,
			  uint32_t flags, size_t size);
API ssize_t _ibv_query_gid_table(struct ibv_context *c, struct ibv_gid_entry *entries, size_t max, uint32_t flags,
				 size_t size);

static struct context *contexts; /* under fake_lock */
static bool infiniband(void)
{
	const char *link = getenv("FAKE_IBVERBS_LINK");
	return link && strcmp(link, "ib") == 0;
}

/* ---- devices */

API struct ibv_device **ibv_get_device_list(int *count)
{
	FAULT_NULL(ibv_get_device_list);
	int n = fake_devices(1);
	struct ibv_device **list = calloc((size_t)n + 1, sizeof *list);
	for (int i = 0; i < n; i++) {
		/* Devices outlive their list, because a context points to its device. */
		static struct ibv_device devices[16];
		struct ibv_device *d = list[i] = &devices[i % 16];
		d->node_type = IBV_NODE_CA;
		d->transport_type = IBV_TRANSPORT_IB;
		snprintf(d->name, sizeof d->name, "fake%d", i);
		snprintf(d->dev_name, sizeof d->dev_name, "uverbs-fake%d", i);
	}
	if (count)
		*count = n;
	return list;
}

API void ibv_free_device_list(struct ibv_device **list)
{
	free(list);
}

API const char *ibv_get_device_name(struct ibv_device *device)
{
	return device->name;
}

API __be64 ibv_get_device_guid(struct ibv_device *device)
{
	(void)device;
	return ((uint64_t)htonl(0x66616b65) << 32) | htonl(0x02000000);
}

API int ibv_query_device(struct ibv_context *c, struct ibv_device_attr *attr)
{
	FAKE_FAULT(ibv_query_device);
	memset(attr, 0, sizeof *attr);
	snprintf(attr->fw_ver, sizeof attr->fw_ver, "fake");
	attr->node_guid = attr->sys_image_guid = ibv_get_device_guid(c->device);
	attr->max_mr_size = ~0ull;
	attr->page_size_cap = ~0xfffull;
	attr->max_qp = attr->max_cq = attr->max_pd = 1 << 16;
	attr->max_qp_wr = 1 << 14;
	attr->max_sge = attr->max_sge_rd = 16;
	attr->max_cqe = fake_most_entries();
	attr->max_mr = 1 << 24;
	attr->max_qp_rd_atom = attr->max_qp_init_rd_atom = 16;
	const char *atomics = getenv("FAKE_IBVERBS_ATOMICS");
	attr->atomic_cap = atomics ? (enum ibv_atomic_cap)atoi(atomics) : IBV_ATOMIC_HCA;
	attr->max_pkeys = 1;
	attr->phys_port_cnt = PORTS;
	return 0;
}

static void fill_port(struct ibv_port_attr *a)
{
	a->state = IBV_PORT_ACTIVE;
	a->max_mtu = a->active_mtu = IBV_MTU_4096;
	a->gid_tbl_len = GIDS;
	a->max_msg_sz = 1u << 30;
	a->pkey_tbl_len = 1;
	a->lid = infiniband() ? 7 : 0;
	a->active_width = 2;
	a->active_speed = 32;
	a->phys_state = 5;
	a->link_layer = infiniband() ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
}

/* The plain symbol knows the attributes up to link_layer, and the caller's structure may end there. */
API int ibv_query_port(struct ibv_context *c, uint8_t port, struct _compat_ibv_port_attr *attr)
{
	struct ibv_port_attr whole = {0};
	(void)c;
	FAKE_FAULT(ibv_query_port);
	if (port == 0 || port > PORTS)
		return EINVAL;
	fill_port(&whole);
	memcpy(attr, &whole, offsetof(struct ibv_port_attr, flags));
	return 0;
}

static void gid(int index, uint8_t raw[16])
{
	static const uint8_t local[2][16] = {{0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xff, 0xfe, 0, 0, 1},
					     {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1}};
	memcpy(raw, local[index], 16);
}

API int ibv_query_gid(struct ibv_context *c, uint8_t port, int index, union ibv_gid *out)
{
	(void)c;
	FAKE_FAULT(ibv_query_gid);
	if (port == 0 || port > PORTS || index < 0 || index >= GIDS) {
		errno = EINVAL;
		return -1;
	}
	gid(index, out->raw);
	return 0;
}

#ifndef FAKE_OLD
API int _ibv_query_gid_ex(struct ibv_context *c, uint32_t port, uint32_t index, struct ibv_gid_entry *entry,
			  uint32_t flags, size_t size)
{
	(void)c;
	FAKE_FAULT(_ibv_query_gid_ex);
	if (port == 0 || port > PORTS || index >= GIDS || flags || size < sizeof *entry)
		return EINVAL;
	memset(entry, 0, sizeof *entry);
	gid((int)index, entry->gid.raw);
	entry->gid_index = index;
	entry->port_num = port;
	entry->gid_type = infiniband() ? IBV_GID_TYPE_IB : IBV_GID_TYPE_ROCE_V2;
	entry->ndev_ifindex = infiniband() ? 0 : 1;
	return 0;
}

API ssize_t _ibv_query_gid_table(struct ibv_context *c, struct ibv_gid_entry *entries, size_t max, uint32_t flags,
				 size_t size)
{
	int fault = fake_fault("_ibv_query_gid_table");
	if (fault || max < GIDS)
		return fault ? -fault : -EINVAL;
	for (uint32_t i = 0; i < GIDS; i++)
		_ibv_query_gid_ex(c, 1, i, &entries[i], flags, size);
	return GIDS;
}

static int port_ext(struct ibv_context *c, uint8_t port, struct ibv_port_attr *attr, size_t len)
{
	struct ibv_port_attr whole = {0};
	(void)c;
	FAKE_FAULT(ibv_query_port);
	if (port == 0 || port > PORTS)
		return EINVAL;
	fill_port(&whole);
	memset(attr, 0, len);
	memcpy(attr, &whole, len < sizeof whole ? len : sizeof whole);
	return 0;
}

static int device_ext(struct ibv_context *c, const struct ibv_query_device_ex_input *input,
		      struct ibv_device_attr_ex *attr, size_t len)
{
	struct ibv_device_attr_ex whole;
	(void)input;
	FAKE_FAULT(ibv_query_device_ex);
	memset(&whole, 0, sizeof whole);
	ibv_query_device(c, &whole.orig_attr);
	memset(attr, 0, len);
	memcpy(attr, &whole, len < sizeof whole ? len : sizeof whole);
	return 0;
}
#endif

API struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	int pipes[2];
	FAULT_NULL(ibv_open_device);
	struct context *c = calloc(1, sizeof *c);
	if (!c || pipe2(pipes, O_CLOEXEC)) {
		free(c);
		return NULL;
	}
	struct ibv_context *ibv = &c->verbs.context;
	ibv->device = device;
	ibv->ops.poll_cq = queue_poll;
	ibv->ops.req_notify_cq = queue_arm;
	ibv->ops.post_send = queue_send;
	ibv->ops.post_recv = queue_recv;
	ibv->cmd_fd = -1;
	ibv->async_fd = pipes[0];
	ibv->num_comp_vectors = 1;
#ifndef FAKE_OLD
	ibv->abi_compat = __VERBS_ABI_IS_EXTENDED;
	c->verbs.sz = sizeof c->verbs;
	c->verbs.query_port = port_ext;
	c->verbs.query_device_ex = device_ext;
#endif
	/* A program that reads no events must not block the call that raises them. */
	fcntl(pipes[1], F_SETFL, O_NONBLOCK);
	c->async_write = pipes[1];
	fake_lock();
	c->next = contexts;
	contexts = c;
	fake_unlock();
	object_made();
	return ibv;
}

API int ibv_close_device(struct ibv_context *ibv)
{
	struct context *c = whole(ibv), **at = &contexts;
	FAKE_FAULT(ibv_close_device);
	fake_lock();
	while (*at && *at != c)
		at = &(*at)->next;
	if (*at)
		*at = c->next;
	fake_unlock();
	close(ibv->async_fd);
	close(c->async_write);
	free(c);
	object_gone();
	return 0;
}

/* ---- events */

API void fake_verbs_raise(int kind, void *element, int port)
{
	struct context *c;
	fake_lock();
	for (c = contexts; c; c = c->next)
		raise_event(&c->verbs.context, kind, element ? element : (void *)(intptr_t)port);
	fake_unlock();
}

API int ibv_get_async_event(struct ibv_context *c, struct ibv_async_event *event)
{
	ssize_t n = read(c->async_fd, event, sizeof *event);
	return n == (ssize_t)sizeof *event ? 0 : -1;
}

API void ibv_ack_async_event(struct ibv_async_event *event)
{
	(void)event;
}

API struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *c)
{
	int pipes[2];
	FAULT_NULL(ibv_create_comp_channel);
	struct channel *channel = calloc(1, sizeof *channel);
	if (!channel || pipe2(pipes, O_CLOEXEC)) {
		free(channel);
		return NULL;
	}
	/* A late program must not block the call that completes. */
	fcntl(pipes[1], F_SETFL, O_NONBLOCK);
	channel->ibv.context = c;
	channel->ibv.fd = pipes[0];
	channel->write = pipes[1];
	object_made();
	return &channel->ibv;
}

API int ibv_destroy_comp_channel(struct ibv_comp_channel *ibv)
{
	struct channel *channel = (struct channel *)ibv;
	FAKE_FAULT(ibv_destroy_comp_channel);
	if (ibv->refcnt)
		return EBUSY;
	close(ibv->fd);
	close(channel->write);
	free(channel);
	object_gone();
	return 0;
}

API int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **data)
{
	if (read(channel->fd, cq, sizeof *cq) != (ssize_t)sizeof *cq)
		return -1;
	*data = (*cq)->cq_context;
	return 0;
}

API void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int events)
{
	cq->comp_events_completed += events;
}

/* ---- texts */

API const char *ibv_wc_status_str(enum ibv_wc_status status)
{
	return status == IBV_WC_SUCCESS ? "success" : "failed";
}

API const char *ibv_node_type_str(enum ibv_node_type node_type)
{
	return node_type == IBV_NODE_CA ? "InfiniBand channel adapter" : "unknown";
}

API enum ibv_fork_status ibv_is_fork_initialized(void)
{
	return IBV_FORK_UNNEEDED;
}
