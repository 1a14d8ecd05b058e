/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The protocol. Who receives writes a record into the sender's mailbox: for each receive of a group where the bytes go.
 * The sender writes them there, straight from NCCL's buffer, together with a number that says which receive it was. Each
 * side learns by entries of its completion queue; nothing is copied here, and nothing waits.
 *
 * Small messages between host memories may go before the record comes: as eager messages, into a place on the receiver's
 * board, from which the receiver copies. Both sides pair sends and receives the same way without asking: the nth send of a
 * tag belongs to the nth receive of that tag. For that the order must be the same on both sides, so nothing goes eagerly
 * while a write straight into a buffer is on its way.
 */
#include "plugin.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* The 32 bits that come with a write: what it was, and where. */
enum { WHAT_SHIFT = 30, RECORD_CAME = 0, DATA_CAME = 1, EAGER_CAME = 2 };

static uint32_t word(uint32_t what, uint32_t place)
{
	return what << WHAT_SHIFT | place;
}

static struct eager *eager_at(const struct comm *comm, uint32_t number)
{
	return (struct eager *)(void *)(comm->eagers + (number % EAGERS) * comm->eager_room);
}

static unsigned char *body_of(struct eager *eager)
{
	return (unsigned char *)(eager + 1);
}

static ncclResult_t broke(struct comm *comm, const char *what)
{
	return comm_fail(comm, EPROTO, "the other side broke the protocol", what);
}

/* ---- the receiver's side */

/* Bytes of an eager message into the receive that they belong to. */
static bool place_eager(struct comm *comm, struct request *request, int i, uint32_t place)
{
	struct memory *memory = request->memory[i];
	const unsigned char *body = body_of(eager_at(comm, place));
	size_t size = comm->eager_heads[place].size;
	if (size > comm->eager_max || size > request->room[i]) {
		broke(comm, "an eager message is longer than what it is for");
		return false;
	}
	if (size && memory->host) {
		memcpy(request->data[i], body, size);
	} else if (size) {
		int r = gdrfab_hmem_copy_to(memory->iface, (uint32_t)memory->device, request->data[i], body, size);
		if (r < 0) {
			comm_fail(comm, -r, "copying an eager message", gdrfab_last_error());
			return false;
		}
	}
	request->sizes[i] = size;
	request->missing &= ~(1u << i);
	request->done = !request->missing;
	return true;
}

/* Frees places of eager messages, without gaps: the sender is told one number. */
static void free_places(struct comm *comm)
{
	while (comm->eager_done != comm->eager_seen && !comm->eager_kept[comm->eager_done % EAGERS])
		comm->eager_done++;
}

static struct request *request_of(struct comm *comm, uint32_t group)
{
	return &comm->requests[group % NCCL_NET_MAX_REQUESTS];
}

/* The oldest receive of that tag without data. */
static bool waiting_for(struct comm *comm, uint32_t tag, struct request **request, int *i)
{
	for (uint32_t group = comm->group_next - NCCL_NET_MAX_REQUESTS; group != comm->group_next; group++) {
		struct request *r = request_of(comm, group);
		if (!r->comm || r->number != group)
			continue;
		for (int k = 0; k < r->n; k++)
			if (r->missing & 1u << k && r->tags[k] == tag) {
				*request = r;
				*i = k;
				return true;
			}
	}
	return false;
}

static void eager_came(struct comm *comm, uint32_t place)
{
	struct request *request;
	struct eager head;
	int i;
	if (!comm->eager_max || place != comm->eager_seen % EAGERS || comm->eager_seen - comm->eager_done >= EAGERS) {
		broke(comm, "an eager message came out of order");
		return;
	}
	memcpy(&head, eager_at(comm, place), sizeof head);
	if (head.number != comm->eager_seen) {
		broke(comm, "an eager message has another one's number");
		return;
	}
	comm->eager_heads[place] = head;
	comm->eager_seen++;
	if (waiting_for(comm, head.tag, &request, &i))
		place_eager(comm, request, i, place);
	else
		comm->eager_kept[place] = true;
	free_places(comm);
}

static void data_came(struct comm *comm, uint32_t place, size_t size)
{
	struct request *request = request_of(comm, place / MAX_RECVS);
	uint32_t i = place % MAX_RECVS;
	if (place >= MAX_SENDS || !request->comm || !(request->missing & 1u << i)) {
		broke(comm, "data came for a receive that nobody waits for");
		return;
	}
	if (size > request->room[i]) {
		broke(comm, "more data came than the receive has room for");
		return;
	}
	request->sizes[i] = size;
	request->missing &= ~(1u << i);
	request->done = !request->missing;
}

/* ---- the sender's side */

static struct record *asked_at(const struct comm *comm, uint32_t number)
{
	return &comm->asked[number % RECORDS];
}

static void skip_served(struct comm *comm)
{
	while (comm->record_head != comm->record_end) {
		uint32_t all = (1u << asked_at(comm, comm->record_head)->n) - 1;
		if (comm->taken[comm->record_head % RECORDS] != all)
			break;
		comm->record_head++;
	}
}

/* Receives that eager messages have filled, or will fill: those of their tags, in order. */
static void settle_eagers(struct comm *comm, const struct record *record, uint8_t *taken)
{
	for (uint32_t i = 0; i < record->n; i++)
		for (int k = 0; k < comm->unasked_count; k++)
			if (comm->unasked[k] == record->offers[i].tag) {
				comm->unasked_count--;
				memmove(&comm->unasked[k], &comm->unasked[k + 1],
					(size_t)(comm->unasked_count - k) * sizeof comm->unasked[0]);
				*taken |= (uint8_t)(1u << i);
				break;
			}
}

/* Says once which way the bytes take. */
static void explain(struct comm *comm, const struct record *record)
{
	char words[1200];
	comm->explained = true;
	if (gdrfab_ep_explain(comm->ep, record->offers[0].key, words, sizeof words) < 0)
		snprintf(words, sizeof words, "%s", gdrfab_last_error());
	const struct way *way = comm->device->ways[comm->way];
	INFO("sending over %s, %s, into %s memory: %s", kind_names[way->kind], way->info->domain_name,
	     record->offers[0].host ? "host" : "device", words);
}

static void record_came(struct comm *comm, uint32_t place)
{
	struct record *record = asked_at(comm, place);
	if (place != comm->record_end % RECORDS || comm->record_end - comm->record_head >= RECORDS) {
		broke(comm, "a record came out of order");
		return;
	}
	memcpy(record, &comm->records[place], sizeof *record);
	if (record->number != comm->record_end || record->n < 1 || record->n > MAX_RECVS ||
	    comm->eager_sent - record->eagers_taken > EAGERS || record->eagers_taken - comm->eager_freed > EAGERS) {
		broke(comm, "a record makes no sense");
		return;
	}
	for (; comm->eager_freed != record->eagers_taken; comm->eager_freed++)
		comm->early -= comm->eager_sizes[comm->eager_freed % EAGERS];
	comm->peer_takes_host = true;
	for (uint32_t i = 0; i < record->n; i++)
		comm->peer_takes_host &= record->offers[i].host == 1;
	comm->taken[place] = 0;
	comm->record_end++;
	settle_eagers(comm, record, &comm->taken[place]);
	skip_served(comm);
	if (!comm->explained)
		explain(comm, record);
}

/* ---- both sides */

static void entry_came(struct comm *comm, const gdrfab_cq_data_entry *entry)
{
	if (entry->flags & GDRFAB_REMOTE_CQ_DATA) {
		uint32_t what = (uint32_t)entry->data >> WHAT_SHIFT, place = (uint32_t)entry->data & ((1u << WHAT_SHIFT) - 1);
		if (comm->sends && what == RECORD_CAME)
			record_came(comm, place);
		else if (!comm->sends && what == DATA_CAME)
			data_came(comm, place, entry->len);
		else if (!comm->sends && what == EAGER_CAME)
			eager_came(comm, place);
		else
			broke(comm, "a write with a number that means nothing");
		return;
	}
	/* A record's own completion has no context; a send's ends its request. */
	struct request *request = entry->op_context;
	if (!request)
		return;
	comm->direct -= request->direct;
	request->done = true;
}

/* A record cannot be delivered. That ends the receives that lack data, and no others: a sender may close its side as soon
 * as its last, eager message has arrived. */
static void peer_takes_no_more(struct comm *comm, int err, const char *words)
{
	if (comm->peer_left)
		return;
	comm->peer_left = true;
	comm->left_err = err;
	snprintf(comm->words, sizeof comm->words, "%s", words);
}

static ncclResult_t peer_is_gone(struct comm *comm)
{
	if (comm->left_err)
		return comm_fail(comm, comm->left_err, "the other side takes no more", comm->words);
	return comm_fail(comm, ECONNRESET, "waiting", "the other side has left, or has died");
}

static void error_came(struct comm *comm)
{
	gdrfab_cq_err_entry error = {.struct_size = sizeof error};
	char text[512];
	if (gdrfab_cq_readerr(comm->cq, &error, 0) < 0)
		return;
	const char *words = gdrfab_cq_strerror(comm->cq, error.prov_errno, error.err_data, text, sizeof text);
	if (error.op_context)
		comm_fail(comm, error.err, "a transfer failed", words);
	else
		peer_takes_no_more(comm, error.err, words);
}

static void progress(struct comm *comm)
{
	gdrfab_cq_data_entry entries[16];
	for (;;) {
		ssize_t n = gdrfab_cq_read(comm->cq, entries, 16);
		if (n == -GDRFAB_EAVAIL && comm->verdict == ncclSuccess) {
			error_came(comm);
			continue;
		}
		for (ssize_t i = 0; i < n && comm->verdict == ncclSuccess; i++)
			entry_came(comm, &entries[i]);
		if (n < 16)
			return;
	}
}

/* The connection's end shows in its event queue alone if nothing of ours was under way. */
static void look_for_end(struct comm *comm)
{
	gdrfab_eq_cm_entry event;
	uint32_t kind;
	ssize_t got = gdrfab_eq_read(comm->eq, &kind, &event, sizeof event, 0);
	if (got == -EAGAIN)
		return;
	if (got >= 0 && kind != GDRFAB_SHUTDOWN)
		return;
	/* What came before the end still counts. */
	progress(comm);
	comm->peer_left = true;
}

/* A free request; the search goes on where the last one ended. */
static struct request *request_new(struct comm *comm)
{
	for (int i = 0; i < comm->requests_count; i++) {
		struct request *request = &comm->requests[comm->request_next];
		comm->request_next = (comm->request_next + 1) % comm->requests_count;
		if (!request->comm)
			return request;
	}
	return NULL;
}

/* ---- isend */

static ncclResult_t post_failed(struct comm *comm, ssize_t error)
{
	return comm_fail(comm, (int)-error, "posting", gdrfab_last_error());
}

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
	memcpy(body_of(eager), data, size);
	struct iovec from = {eager, sizeof *eager + size};
	struct gdrfab_rma_iov to = {comm->peer_addr + RECORDS * sizeof(struct record) + place * comm->peer_eager_room,
				    from.iov_len, comm->peer_key};
	void *desc = gdrfab_mr_desc(comm->board_region);
	/* Done when the bytes are on their way: the other side may not call for minutes. Their place here is not used again
	 * before it has said that its own is free. */
	gdrfab_msg_rma msg = {.struct_size = sizeof msg, .msg_iov = &from, .desc = &desc, .iov_count = 1, .rma_iov = &to,
			      .rma_iov_count = 1, .context = request, .data = word(EAGER_CAME, place)};
	ssize_t r = gdrfab_writemsg(comm->ep, &msg, GDRFAB_REMOTE_CQ_DATA | GDRFAB_COMPLETION | GDRFAB_INJECT_COMPLETE);
	if (r == -EAGAIN)
		return ncclSuccess;
	if (r < 0)
		return post_failed(comm, r);
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

static ncclResult_t send_to(struct comm *comm, const void *data, size_t size, const struct offer *offer, uint32_t number,
			    uint32_t i, gdrfab_mr *mr, struct request **out)
{
	struct request *request = request_new(comm);
	if (!request)
		return ncclSuccess;
	uint32_t place = number % NCCL_NET_MAX_REQUESTS * MAX_RECVS + i;
	struct iovec from = {(void *)(uintptr_t)data, size};
	struct gdrfab_rma_iov to = {offer->addr, size, offer->key};
	void *desc = gdrfab_mr_desc(mr);
	/* The other side waits for these bytes, so that there is a time by which it has them. Records and eager messages have
	 * none: over tcp they are acknowledged when NCCL next calls there, minutes later perhaps. So would these bytes be, if
	 * theirs is the last receive for which NCCL calls, and the sender waits: the answer is asked for with them. */
	uint64_t answered = comm->device->ways[comm->way]->kind == KIND_TCP ? GDRFAB_DELIVERY_COMPLETE : 0;
	gdrfab_msg_rma msg = {.struct_size = sizeof msg, .msg_iov = &from, .desc = &desc, .iov_count = 1, .rma_iov = &to,
			      .rma_iov_count = 1, .context = request, .data = word(DATA_CAME, place),
			      .timeout_ns = comm->device->of->settings.timeout_ns};
	ssize_t r = gdrfab_writemsg(comm->ep, &msg, GDRFAB_REMOTE_CQ_DATA | GDRFAB_COMPLETION | answered);
	if (r == -EAGAIN)
		return ncclSuccess;
	if (r < 0)
		return post_failed(comm, r);
	memset(request, 0, sizeof *request);
	request->comm = comm;
	request->sends = request->direct = true;
	request->n = 1;
	request->sizes[0] = size;
	comm->direct++;
	comm->taken[number % RECORDS] |= (uint8_t)(1u << i);
	skip_served(comm);
	*out = request;
	return ncclSuccess;
}

/* The oldest receive of that tag that is not served. */
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

ncclResult_t net_isend(struct comm *comm, void *data, size_t size, int tag, struct memory *memory, struct request **out)
{
	uint32_t number, i;
	*out = NULL;
	progress(comm);
	if (comm->verdict != ncclSuccess)
		return comm->verdict;
	if (!memory) {
		WARN("sending: the memory is not registered");
		return ncclInvalidArgument;
	}
	if (offered(comm, (uint32_t)tag, &number, &i)) {
		const struct offer *offer = &asked_at(comm, number)->offers[i];
		if (size > offer->size) {
			WARN("sending %zu bytes, tag %d, where the receive has room for %llu: sizes differ between ranks", size,
			     tag, (unsigned long long)offer->size);
			return ncclInvalidUsage;
		}
		gdrfab_mr *mr = memory_region(memory, comm);
		if (!mr)
			return ncclSystemError;
		return send_to(comm, data, size, offer, number, i, mr, out);
	}
	if (size <= comm->eager_max && memory->host && comm->peer_takes_host && !comm->direct &&
	    comm->unasked_count < EAGERS && comm->eager_sent - comm->eager_freed < EAGERS &&
	    (comm->early == 0 || comm->early + size <= comm->early_limit))
		return send_eagerly(comm, data, size, (uint32_t)tag, out);
	if ((++comm->idle & 1023) == 0)
		look_for_end(comm);
	return comm->peer_left ? peer_is_gone(comm) : ncclSuccess;
}

/* ---- irecv */

/* Receives for which eager messages have come already. */
static void take_kept(struct comm *comm, struct request *request)
{
	for (uint32_t e = comm->eager_done; e != comm->eager_seen && comm->verdict == ncclSuccess; e++) {
		uint32_t place = e % EAGERS;
		if (!comm->eager_kept[place])
			continue;
		for (int i = 0; i < request->n; i++)
			if (request->missing & 1u << i && request->tags[i] == comm->eager_heads[place].tag) {
				place_eager(comm, request, i, place);
				comm->eager_kept[place] = false;
				break;
			}
	}
	free_places(comm);
}

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

ncclResult_t net_irecv(struct comm *comm, int n, void **data, const size_t *sizes, const int *tags,
		       struct memory **memory, struct request **out)
{
	*out = NULL;
	if (n < 1 || n > MAX_RECVS) {
		WARN("receiving: a group of %d, 1 to %d are possible", n, MAX_RECVS);
		return ncclInvalidArgument;
	}
	if (comm->verdict != ncclSuccess)
		return comm->verdict;
	struct request *request = request_of(comm, comm->group_next);
	if (request->comm)
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
	if (r == -EAGAIN) {
		progress(comm);
		return comm->verdict;
	}
	if (r < 0)
		peer_takes_no_more(comm, (int)-r, gdrfab_last_error());
	request->comm = comm;
	request->n = n;
	request->number = comm->group_next++;
	request->missing = (1u << n) - 1;
	take_kept(comm, request);
	*out = request;
	return comm->verdict;
}

ncclResult_t net_iflush(struct comm *comm, int n, const int *sizes, struct memory **memory)
{
	/* Copy engines and CPUs leave nothing behind; only a card's writes may still be in the bus. */
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
		WARN("test of a request that has ended");
		return ncclInvalidArgument;
	}
	if (!request->done) {
		progress(comm);
		if (!request->done && (++comm->idle & 1023) == 0)
			look_for_end(comm);
	}
	if (!request->done) {
		return comm->peer_left ? peer_is_gone(comm) : comm->verdict;
	}
	for (int i = 0; sizes && i < request->n; i++)
		sizes[i] = (int)request->sizes[i];
	*done = 1;
	request->comm = NULL;
	return ncclSuccess;
}
