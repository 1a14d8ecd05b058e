/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Handles completions and incoming writes: data and eager messages for receives, records in the sender's mailbox,
 * completed sends, and the end of the connection. */
#include "hello.h"
#include "protocol.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static ncclResult_t broke(struct comm *comm, const char *what)
{
	return comm_fail(comm, EPROTO, "the other side violated the protocol", what);
}

/* ---- the receiver's side */

static void came_whole(struct request *request, uint32_t i)
{
	request->missing &= ~(1u << i);
	if (!request->missing)
		set_done(request);
}

/* Copies an eager message's body into its receive. */
static bool place_eager(struct comm *comm, struct request *request, int i, uint32_t place)
{
	struct memory *memory = request->memory[i];
	const unsigned char *body = body_of(eager_at(comm, place));
	size_t size = comm->eager_heads[place].size;
	if (size > comm->eager_max || size > request->room[i]) {
		broke(comm, "an eager message is longer than its receive");
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
	came_whole(request, i);
	return true;
}

/* Frees the slots of eager messages in order, without gaps, because the sender is told a single count. */
static void free_places(struct comm *comm)
{
	while (comm->eager_done != comm->eager_seen && !comm->eager_kept[comm->eager_done % EAGERS])
		comm->eager_done++;
}

/* Finds the oldest receive of that tag that lacks its data. */
static bool waiting_for(struct comm *comm, uint32_t tag, struct request **request, int *i)
{
	for (uint32_t group = comm->group_next - NCCL_NET_MAX_REQUESTS; group != comm->group_next; group++) {
		struct request *r = request_of(comm, group);
		if (is_free(r) || r->number != group)
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
		broke(comm, "an eager message arrived out of order");
		return;
	}
	memcpy(&head, eager_at(comm, place), sizeof head);
	if (head.number != comm->eager_seen) {
		broke(comm, "an eager message has a wrong number");
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
	if (place >= MAX_SENDS || is_free(request) || !(request->missing & 1u << i)) {
		broke(comm, "data arrived for a receive that was not posted");
		return;
	}
	if (size > request->room[i]) {
		broke(comm, "more data arrived than the receive has room for");
		return;
	}
	request->sizes[i] = size;
	comm->gets_long = size >= LONG;
	came_whole(request, i);
}

void take_kept(struct comm *comm, struct request *request)
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

/* ---- the sender's side */

void skip_served(struct comm *comm)
{
	while (comm->record_head != comm->record_end) {
		uint32_t all = (1u << asked_at(comm, comm->record_head)->n) - 1;
		if (comm->taken[comm->record_head % RECORDS] != all)
			break;
		comm->record_head++;
	}
}

/* Marks the receives of a new record that eager messages have filled or will fill: the first receives of the
 * messages' tags, in order. */
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

/* Logs, once for each connection, the path that the bytes take. */
static void explain(struct comm *comm, const struct record *record)
{
	char words[1200];
	comm->explained = true;
	if (gdrfab_ep_explain(comm->ep, 0, record->offers[0].key, words, sizeof words) < 0)
		snprintf(words, sizeof words, "%s", gdrfab_last_error());
	const struct way *way = comm->device->ways[comm->way];
	INFO("sending over %s, %s, into %s memory: %s", kind_names[way->kind], way->info->domain_name,
	     record->offers[0].host ? "host" : "device", words);
}

static void record_came(struct comm *comm, uint32_t place)
{
	struct record *record = asked_at(comm, place);
	if (place != comm->record_end % RECORDS || comm->record_end - comm->record_head >= RECORDS) {
		broke(comm, "a record arrived out of order");
		return;
	}
	memcpy(record, &comm->records[place], sizeof *record);
	if (record->number != comm->record_end || record->n < 1 || record->n > MAX_RECVS ||
	    comm->eager_sent - record->eagers_taken > EAGERS || record->eagers_taken - comm->eager_freed > EAGERS) {
		broke(comm, "a record is invalid");
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
			broke(comm, "a write has an unknown number");
		return;
	}
	/* A record's completion has no context. A send's completion ends its request. */
	struct request *request = entry->op_context;
	if (!request)
		return;
	comm->direct -= request->direct;
	set_done(request);
}

void peer_takes_no_more(struct comm *comm, int err, const char *words)
{
	if (comm->peer_left)
		return;
	comm->peer_left = true;
	comm->left_err = err;
	snprintf(comm->words, sizeof comm->words, "%s", words);
}

ncclResult_t peer_is_gone(struct comm *comm)
{
	if (comm->left_err)
		return comm_fail(comm, comm->left_err, "the other side has closed the connection", comm->words);
	return comm_fail(comm, ECONNRESET, "waiting", "the other side closed the connection or died");
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

/* Posts one send, with a time limit, because the peer waits for these bytes. Records and eager messages have no limit:
 * over tcp they are acknowledged when NCCL at the peer next calls, which may be minutes later. The same could happen to
 * these bytes, if theirs is the last receive that NCCL there calls for, and the sender would wait. So over tcp the write
 * requests the peer's answer at once (GDRFAB_DELIVERY_COMPLETE). */
static ssize_t post(struct comm *comm, struct request *request)
{
	uint64_t answered = comm->device->ways[comm->way]->kind == KIND_TCP ? GDRFAB_DELIVERY_COMPLETE : 0;
	struct iovec from = {(void *)(uintptr_t)request->from, request->to.len};
	gdrfab_msg_rma msg = {.struct_size = sizeof msg, .msg_iov = &from, .desc = &request->desc, .iov_count = 1,
			      .rma_iov = &request->to, .rma_iov_count = 1, .context = request,
			      .data = word(DATA_CAME, request->place), .timeout_ns = comm->device->of->settings.timeout_ns};
	return gdrfab_writemsg(comm->ep, &msg, GDRFAB_REMOTE_CQ_DATA | GDRFAB_COMPLETION | answered);
}

/* The oldest queued send, or NULL. Does not hold `lock` while the send is posted, because posting may copy the data. */
static struct request *next_post(struct comm *comm)
{
	pthread_mutex_lock(&comm->lock);
	struct request *request = comm->verdict == ncclSuccess ? comm->posts : NULL;
	pthread_mutex_unlock(&comm->lock);
	return request;
}

static bool post_all(struct comm *comm)
{
	struct request *request;
	bool any = false;
	while ((request = next_post(comm))) {
		ssize_t r = post(comm, request);
		if (r == -EAGAIN)
			break;
		any = true;
		pthread_mutex_lock(&comm->lock);
		comm->posts = request->next;
		if (!comm->posts)
			comm->posts_end = &comm->posts;
		if (r < 0)
			comm_fail(comm, (int)-r, "posting", gdrfab_last_error());
		pthread_mutex_unlock(&comm->lock);
	}
	return any;
}

/* Posts, takes completions and handles them, until there are no more. The caller holds `reader`. */
static bool drive(struct comm *comm)
{
	gdrfab_cq_data_entry entries[16];
	bool any = post_all(comm), again = true;
	while (again) {
		ssize_t n = gdrfab_cq_read(comm->cq, entries, 16);
		if (n == -EAGAIN)
			break;
		any = true;
		pthread_mutex_lock(&comm->lock);
		again = comm->verdict == ncclSuccess && (n == 16 || n == -GDRFAB_EAVAIL);
		if (again && n < 0)
			error_came(comm);
		for (ssize_t i = 0; i < n && comm->verdict == ncclSuccess; i++)
			entry_came(comm, &entries[i]);
		pthread_mutex_unlock(&comm->lock);
	}
	return any;
}

bool progress(struct comm *comm)
{
	if (pthread_mutex_trylock(&comm->reader))
		return false;
	bool any = drive(comm);
	pthread_mutex_unlock(&comm->reader);
	return any;
}

void look_for_end(struct comm *comm)
{
	char words[256];
	int event = event_of(comm, NULL, NULL, words, sizeof words);
	if (event >= 0 && event != GDRFAB_SHUTDOWN)
		return;
	/* Entries that came before the end still count. */
	pthread_mutex_lock(&comm->reader);
	drive(comm);
	pthread_mutex_unlock(&comm->reader);
	pthread_mutex_lock(&comm->lock);
	comm->peer_left = true;
	pthread_mutex_unlock(&comm->lock);
}
