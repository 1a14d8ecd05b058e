/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The objects of one connection: opening and closing them, and ending the connection on an error. */
#include "plugin.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

size_t room_of(size_t eager_max)
{
	return (sizeof(struct eager) + eager_max + 63) / 64 * 64;
}

static size_t board_size(const struct comm *comm)
{
	return RECORDS * sizeof(struct record) + EAGERS * comm->eager_room;
}

ncclResult_t comm_fail(struct comm *comm, int err, const char *doing, const char *words)
{
	bool remote = comm->peer_left || err == ECONNRESET || err == ENOTCONN || err == ESHUTDOWN || err == ETIMEDOUT || err == ECONNREFUSED ||
		      err == EPROTO || err == EKEYREJECTED || err == EREMOTEIO || err == ECONNABORTED || err == EHOSTUNREACH;
	if (comm->verdict != ncclSuccess)
		return comm->verdict;
	/* Logged before the verdict is set: as soon as NCCL's thread reads the verdict, which it may do while a helper is here,
	 * it takes the connection for ended. */
	WARN("%s over %s: %s: %s", comm->sends ? "sending" : "receiving",
	     comm->device->ways[comm->way]->info->domain_name, doing, words && *words ? words : gdrfab_strerror(err));
	__atomic_store_n(&comm->verdict, remote ? ncclRemoteError : ncclSystemError, __ATOMIC_RELEASE);
	/* NCCL tests no further requests of this connection, but a copy of device memory ends for the other side only when
	 * this side makes progress. So the connection is ended here; otherwise the other side could not free its memory. */
	int r = gdrfab_ep_shutdown(comm->ep, 0);
	if (r < 0 && r != -ESHUTDOWN && r != -ENOTCONN)
		INFO("ending a connection that failed: %s", gdrfab_last_error());
	return comm->verdict;
}

void comm_free(struct comm *comm)
{
	if (!comm)
		return;
	/* The endpoint is closed first. This ends its operations, so that nothing touches the board or a caller's buffer. */
	if (comm->ep && gdrfab_ep_close(comm->ep) < 0)
		INFO("closing an endpoint: %s", gdrfab_last_error());
	if (comm->board_region)
		for (int tries = 0; gdrfab_mr_close(comm->board_region) == -EBUSY && tries < 3; tries++)
			;
	if (comm->cq)
		gdrfab_cq_close(comm->cq);
	if (comm->eq)
		gdrfab_eq_close(comm->eq);
	if (comm->board)
		gdrfab_mem_free(comm->device->ways[comm->way]->domain, comm->board);
	free(comm->requests);
	free(comm->asked);
	inventory_drop(comm->device->of);
	pthread_mutex_destroy(&comm->lock);
	pthread_mutex_destroy(&comm->reader);
	free(comm);
}

int64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int64_t timeout_ms(const struct device *device)
{
	return (int64_t)(device->of->settings.timeout_ns / 1000000);
}

bool comm_open(struct comm *comm, const gdrfab_info *info, char *words, size_t size)
{
	struct way *way = comm->device->ways[comm->way];
	gdrfab_cq_attr cq = {.struct_size = sizeof cq, .size = 2 * (MAX_SENDS + RECORDS + EAGERS),
			     .format = GDRFAB_CQ_FORMAT_DATA, .wait_obj = GDRFAB_WAIT_NONE};
	gdrfab_eq_attr eq = {.struct_size = sizeof eq, .wait_obj = GDRFAB_WAIT_NONE};
	uint64_t timeout = way->of->settings.timeout_ns;
	void *board;

	comm->eager_max = way->of->settings.eager;
	comm->eager_room = room_of(comm->eager_max);
	if (way_open(way) != ncclSuccess) {
		snprintf(words, size, "%s", gdrfab_last_error());
		return false;
	}
	if (gdrfab_eq_open(way->fabric, &eq, NULL, &comm->eq) < 0 || gdrfab_cq_open(way->domain, &cq, NULL, &comm->cq) < 0 ||
	    gdrfab_ep_open(way->domain, info, comm, &comm->ep) < 0 || gdrfab_ep_bind_eq(comm->ep, comm->eq, 0) < 0 ||
	    gdrfab_ep_bind_cq(comm->ep, comm->cq, GDRFAB_TRANSMIT | GDRFAB_RECV) < 0 ||
	    gdrfab_ep_setopt(comm->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_CONNECT_TIMEOUT, &timeout, sizeof timeout) < 0 ||
	    (way->kind == KIND_SHM && way->sees_devices && way->of->settings.gpu == GPU_ELSEWHERE && !copies_elsewhere(comm->ep)) ||
	    gdrfab_ep_enable(comm->ep) < 0 || gdrfab_mem_alloc(way->domain, GDRFAB_HMEM_SYSTEM, 0, board_size(comm), 0, &board) < 0) {
		snprintf(words, size, "%s", gdrfab_last_error());
		return false;
	}
	comm->board = board;
	memset(board, 0, board_size(comm));
	comm->records = board;
	comm->eagers = comm->board + RECORDS * sizeof(struct record);
	if (gdrfab_mr_reg(way->domain, board, board_size(comm), GDRFAB_WRITE | GDRFAB_REMOTE_WRITE,
			  way->info->mr_mode & GDRFAB_MR_VIRT_ADDR ? 0 : (uintptr_t)board, 0, 0, NULL,
			  &comm->board_region) < 0) {
		snprintf(words, size, "%s", gdrfab_last_error());
		return false;
	}
	comm->requests_count = comm->sends ? MAX_SENDS : NCCL_NET_MAX_REQUESTS;
	comm->requests = calloc((size_t)comm->requests_count, sizeof *comm->requests);
	comm->asked = calloc(RECORDS, sizeof *comm->asked);
	if (!comm->requests || !comm->asked) {
		snprintf(words, size, "no memory for requests");
		return false;
	}
	return true;
}

struct comm *comm_new(struct device *device, bool sends)
{
	struct comm *comm = calloc(1, sizeof *comm);
	if (comm) {
		comm->device = device;
		inventory_hold(device->of);
		comm->sends = sends;
		comm->posts_end = &comm->posts;
		pthread_mutex_init(&comm->reader, NULL);
		pthread_mutex_init(&comm->lock, NULL);
		/* Assumed until a record says otherwise. */
		comm->peer_takes_host = true;
	}
	return comm;
}
