/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The protocol. The receiver writes a record into the sender's mailbox: the address of the buffer of each receive of
 * a group. The sender writes the bytes there, straight from NCCL's buffer, with immediate data that names the
 * receive. Each side learns of the other's writes by entries of its completion queue. The protocol itself copies
 * nothing, and no call waits.
 *
 * Small messages between host memories may be sent before the record has come. Such an eager message goes into a
 * slot on the receiver's board, and the receiver copies it to its buffer. Both sides pair sends and receives by the
 * same rule: the nth send of a tag belongs to the nth receive of that tag. The rule needs the same order on both
 * sides, so no message is sent eagerly while a direct write is under way.
 */
#include "protocol.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

/* A free request, searched from where the last search ended; NULL if all are in use. */
static struct request *request_new(struct comm *comm)
{
	for (int i = 0; i < comm->requests_count; i++) {
		struct request *request = &comm->requests[comm->request_next];
		comm->request_next = (comm->request_next + 1) % comm->requests_count;
		if (is_free(request))
			return request;
	}
	return NULL;
}

/* ---- isend */

static ncclResult_t send_eagerly(struct comm *comm, const void *data, size_t size, uint32_t tag, struct request **out)
{
	struct request *request = request_new(comm);
	uint32_t place = comm->eager_sent % EAGERS;
	struct eager *eager = eager_at(comm, comm->eager_sent);
	if (!request)
		return ncclSuccess;
	eager->number = comm->eager_sent;
	eager->tag = tag;
	eager->size = size;
	if (size)
		memcpy(body_of(eager), data, size);
	struct iovec from = {eager, sizeof *eager + size};
	struct gdrfab_rma_iov to = {comm->peer_addr + RECORDS * sizeof(struct record) + place * comm->peer_eager_room,
				    from.iov_len, comm->peer_key};
	void *desc = gdrfab_mr_desc(comm->board_region);
	/* The send is done when its bytes are under way, because the peer may not call for minutes. The slot on this
	 * side's board is not reused before the peer has said that its own slot is free. */
	gdrfab_msg_rma msg = {.struct_size = sizeof msg, .msg_iov = &from, .desc = &desc, .iov_count = 1, .rma_iov = &to,
			      .rma_iov_count = 1, .context = request, .data = word(EAGER_CAME, place)};
	ssize_t r = gdrfab_writemsg(comm->ep, &msg, GDRFAB_REMOTE_CQ_DATA | GDRFAB_COMPLETION | GDRFAB_INJECT_COMPLETE);
	if (r == -EAGAIN)
		return ncclSuccess;
	if (r < 0)
		return comm_fail(comm, (int)-r, "posting", gdrfab_last_error());
	comm->eager_sizes[place] = size;
	comm->early += size;
	comm->eager_sent++;
	comm->unasked[comm->unasked_count++] = tag;
	memset(request, 0, sizeof *request);
	request->comm = comm;
	request->sends = true;
	request->n = 1;
	request->sizes[0] = size;
	*out = request;
	return ncclSuccess;
}

/* Queues a direct write; progress() posts it. */
static void send_to(struct comm *comm, const void *data, size_t size, const struct offer *offer, uint32_t number, uint32_t i,
		    gdrfab_mr *mr, struct request *request)
{
	memset(request, 0, sizeof *request);
	request->sends = request->direct = true;
	request->n = 1;
	request->sizes[0] = size;
	request->from = data;
	request->desc = gdrfab_mr_desc(mr);
	request->to = (struct gdrfab_rma_iov){offer->addr, size, offer->key};
	request->place = number % NCCL_NET_MAX_REQUESTS * MAX_RECVS + i;
	request->comm = comm;
	*comm->posts_end = request;
	comm->posts_end = &request->next;
	comm->direct++;
	comm->taken[number % RECORDS] |= (uint8_t)(1u << i);
	skip_served(comm);
}

/* Finds the oldest receive of that tag that is not served. */
static bool offered(struct comm *comm, uint32_t tag, uint32_t *number, uint32_t *i)
{
	for (*number = comm->record_head; *number != comm->record_end; ++*number) {
		const struct record *record = asked_at(comm, *number);
		for (*i = 0; *i < record->n; ++*i)
			if (record->offers[*i].tag == tag && !(comm->taken[*number % RECORDS] & 1u << *i))
				return true;
	}
	return false;
}

static ncclResult_t send_locked(struct comm *comm, void *data, size_t size, uint32_t tag, struct memory *memory, struct request **out)
{
	uint32_t number, i;
	if (offered(comm, tag, &number, &i)) {
		const struct offer *offer = &asked_at(comm, number)->offers[i];
		if (size > offer->size) {
			WARN("sending %zu bytes, tag %d, where the receive has room for %llu: sizes differ between ranks", size,
			     (int)tag, (unsigned long long)offer->size);
			return ncclInvalidUsage;
		}
		gdrfab_mr *mr = memory_region(memory, comm);
		if (!mr)
			return ncclSystemError;
		*out = request_new(comm);
		if (*out)
			send_to(comm, data, size, offer, number, i, mr, *out);
		return ncclSuccess;
	}
	if (size <= comm->eager_max && memory->host && comm->peer_takes_host && !comm->direct &&
	    comm->unasked_count < EAGERS && comm->eager_sent - comm->eager_freed < EAGERS &&
	    (comm->early == 0 || comm->early + size <= comm->early_limit))
		return send_eagerly(comm, data, size, tag, out);
	return ncclSuccess;
}

/* Called when nothing has come: the error to return if nothing can come any more. */
static ncclResult_t verdict_on(struct comm *comm, const struct request *request)
{
	if (pthread_mutex_trylock(&comm->lock))
		return ncclSuccess;
	bool gone = comm->peer_left && !(request && is_done(request));
	ncclResult_t result = gone ? peer_is_gone(comm) : comm->verdict;
	pthread_mutex_unlock(&comm->lock);
	return result;
}

ncclResult_t net_isend(struct comm *comm, void *data, size_t size, int tag, struct memory *memory, struct request **out)
{
	*out = NULL;
	if (!is_helped(comm))
		progress(comm);
	if (verdict_of(comm) != ncclSuccess)
		return verdict_of(comm);
	if (!memory) {
		WARN("sending: the memory is not registered");
		return ncclInvalidArgument;
	}
	if (!data && size) {
		WARN("sending %zu bytes: data is NULL", size);
		return ncclInvalidArgument;
	}
	/* A helper holds the lock for a moment. NCCL calls again. */
	if (pthread_mutex_trylock(&comm->lock))
		return ncclSuccess;
	ncclResult_t result = send_locked(comm, data, size, (uint32_t)tag, memory, out);
	pthread_mutex_unlock(&comm->lock);
	if (result != ncclSuccess)
		return result;
	if (!*out) {
		if ((++comm->idle & 1023) == 0)
			look_for_end(comm);
		return verdict_on(comm, NULL);
	}
	(*out)->helped = (*out)->direct && size >= LONG && help_is_wanted(comm, memory) && help_begin(comm);
	if ((*out)->direct && !is_helped(comm))
		progress(comm);
	return verdict_of(comm);
}

/* ---- irecv */

static ssize_t post_record(struct comm *comm, const struct record *record, uint32_t place)
{
	size_t size = offsetof(struct record, offers) + record->n * sizeof record->offers[0];
	uint64_t to = comm->peer_addr + place * sizeof *record;
	if (comm->peer_left)
		return 0;
	if (size <= comm->device->ways[comm->way]->info->inject_size)
		return gdrfab_inject_writedata(comm->ep, record, size, word(RECORD_CAME, place), 0, to, comm->peer_key);
	return gdrfab_writedata(comm->ep, record, size, gdrfab_mr_desc(comm->board_region), word(RECORD_CAME, place), 0, to,
				comm->peer_key, NULL);
}

static ncclResult_t receive_locked(struct comm *comm, int n, void **data, const size_t *sizes, const int *tags,
				   struct memory **memory, struct request **out)
{
	if (n < 1 || n > MAX_RECVS) {
		WARN("receiving: a group of %d, must be 1 to %d", n, MAX_RECVS);
		return ncclInvalidArgument;
	}
	if (comm->verdict != ncclSuccess)
		return comm->verdict;
	struct request *request = request_of(comm, comm->group_next);
	if (!is_free(request))
		return ncclSuccess;
	uint32_t place = comm->group_next % RECORDS;
	struct record *record = &comm->records[place];
	memset(request, 0, sizeof *request);
	record->number = comm->group_next;
	record->n = (uint32_t)n;
	record->eagers_taken = comm->eager_done;
	for (int i = 0; i < n; i++) {
		if (!memory[i]) {
			WARN("receiving: the memory is not registered");
			return ncclInvalidArgument;
		}
		if (!data[i] && sizes[i]) {
			WARN("receiving %zu bytes: data is NULL", sizes[i]);
			return ncclInvalidArgument;
		}
		gdrfab_mr *mr = memory_region(memory[i], comm);
		if (!mr)
			return ncclSystemError;
		record->offers[i] = (struct offer){(uintptr_t)data[i], gdrfab_mr_key(mr), sizes[i], (uint32_t)tags[i],
						   memory[i]->host};
		request->data[i] = data[i];
		request->room[i] = sizes[i];
		request->tags[i] = (uint32_t)tags[i];
		request->memory[i] = memory[i];
	}
	ssize_t r = post_record(comm, record, place);
	if (r == -EAGAIN)
		return ncclSuccess;
	if (r < 0)
		peer_takes_no_more(comm, (int)-r, gdrfab_last_error());
	request->n = n;
	request->number = comm->group_next++;
	request->missing = (1u << n) - 1;
	request->comm = comm;
	take_kept(comm, request);
	*out = request;
	return comm->verdict;
}

ncclResult_t net_irecv(struct comm *comm, int n, void **data, const size_t *sizes, const int *tags,
		       struct memory **memory, struct request **out)
{
	*out = NULL;
	if (pthread_mutex_trylock(&comm->lock))
		return ncclSuccess;
	ncclResult_t result = receive_locked(comm, n, data, sizes, tags, memory, out);
	bool gets_long = comm->gets_long;
	pthread_mutex_unlock(&comm->lock);
	if (result != ncclSuccess)
		return result;
	if (!*out && !is_helped(comm))
		progress(comm);
	if (*out)
		(*out)->helped = gets_long && help_is_wanted(comm, memory[0]) && help_begin(comm);
	return verdict_of(comm);
}

ncclResult_t net_iflush(struct comm *comm, int n, const int *sizes, struct memory **memory)
{
	/* Copies by CPUs and copy engines are complete when they are reported. Only a card's writes may still be on
	 * the bus. */
	if (comm->device->ways[comm->way]->kind != KIND_VERBS)
		return ncclSuccess;
	for (int i = 0; i < n; i++) {
		if (memory[i]->host || sizes[i] == 0)
			continue;
		int r = gdrfab_hmem_flush(memory[i]->iface, (uint32_t)memory[i]->device);
		return r < 0 && r != -EOPNOTSUPP ? comm_fail(comm, -r, "flushing", gdrfab_last_error()) : ncclSuccess;
	}
	return ncclSuccess;
}

/* ---- test */

ncclResult_t net_test(struct request *request, int *done, int *sizes)
{
	struct comm *comm = request->comm;
	*done = 0;
	if (!comm) {
		WARN("test: the request has ended already");
		return ncclInvalidArgument;
	}
	bool helped = is_helped(comm);
	if (!is_done(request) && !helped)
		progress(comm);
	if (!is_done(request)) {
		if ((++comm->idle & 1023) == 0)
			look_for_end(comm);
		ncclResult_t result = helped && comm->idle & 63 ? ncclSuccess : verdict_on(comm, request);
		if (!is_done(request))
			return result;
	}
	for (int i = 0; sizes && i < request->n; i++)
		sizes[i] = (int)request->sizes[i];
	*done = 1;
	if (request->helped)
		__atomic_sub_fetch(&comm->slot->long_ones, 1, __ATOMIC_RELEASE);
	__atomic_store_n(&request->comm, NULL, __ATOMIC_RELEASE);
	return ncclSuccess;
}
