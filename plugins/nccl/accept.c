/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Listening and accepting. A request is accepted if it proves that its sender was given the listener's handle. No
 * call here waits. */
#include "hello.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <stdio.h>

/* COMING: accepted requests of one listener that are not connected yet, at most. PART: when there are more, the
 * oldest is dropped, but not before it has had 1/PART of the time limit. */
enum { COMING = 8, PART = 10 };

/* Requests that one call refuses at most. */
enum { REFUSALS = 64 };

struct listener {
	struct device *device;
	uint64_t secret[2];
	uint64_t *nonces; /* nonces of the requests whose proof was good: none is accepted twice */
	size_t nonces_count, nonces_room;
	bool told; /* a request without a proof has been logged */
	gdrfab_eq *eqs[2];
	gdrfab_pep *peps[2];
	struct comm *coming[COMING]; /* accepted, not connected yet; the oldest first */
	int coming_count;
};

typedef char handle_fits[sizeof(struct handle) == NCCL_NET_HANDLE_MAXSIZE ? 1 : -1];

/* ---- listening */

ncclResult_t net_close_listener(struct listener *listener)
{
	if (!listener)
		return ncclSuccess;
	for (int i = 0; i < 2; i++) {
		if (listener->peps[i])
			gdrfab_pep_close(listener->peps[i]);
		if (listener->eqs[i])
			gdrfab_eq_close(listener->eqs[i]);
	}
	for (int i = 0; i < listener->coming_count; i++)
		comm_free(listener->coming[i]);
	inventory_drop(listener->device->of);
	free(listener->nonces);
	explicit_bzero(listener->secret, sizeof listener->secret);
	free(listener);
	return ncclSuccess;
}

ncclResult_t net_listen(const struct context *ctx, int dev, void *out_handle, struct listener **out)
{
	struct device *device = device_hold(ctx, dev);
	struct listener *listener = device ? calloc(1, sizeof *listener) : NULL;
	struct handle handle = {.magic = MAGIC};
	size_t used = 0, listens = 0;
	if (!device)
		return ncclInvalidArgument;
	if (!listener) {
		inventory_drop(device->of);
		return ncclSystemError;
	}
	listener->device = device;
	if (!draw(handle.secret, sizeof handle.secret)) {
		WARN("listening: the kernel gives no random bytes");
		net_close_listener(listener);
		return ncclSystemError;
	}
	memcpy(listener->secret, handle.secret, sizeof listener->secret);
	net_forget(NULL);
	for (int i = 0; i < device->ways_count; i++) {
		struct way *way = device->ways[i];
		char address[GDRFAB_ADDR_MAX];
		size_t size = sizeof address;
		gdrfab_eq_attr eq = {.struct_size = sizeof eq, .wait_obj = GDRFAB_WAIT_NONE};
		if (way_open(way) != ncclSuccess)
			continue;
		if (gdrfab_eq_open(way->fabric, &eq, NULL, &listener->eqs[i]) < 0 ||
		    gdrfab_pep_open(way->fabric, way->info, NULL, &listener->peps[i]) < 0 ||
		    gdrfab_pep_bind_eq(listener->peps[i], listener->eqs[i], 0) < 0 ||
		    gdrfab_pep_listen(listener->peps[i]) < 0 ||
		    gdrfab_pep_getname(listener->peps[i], address, &size) < 0) {
			WARN("listening by %s: %s", way->info->domain_name, gdrfab_last_error());
			continue;
		}
		if (used + size >= sizeof handle.addresses) {
			WARN("listening by %s: the address %s does not fit in NCCL's handle", way->info->domain_name, address);
			continue;
		}
		memcpy(handle.addresses + used, address, size);
		used += size;
		listens++;
	}
	if (!listens) {
		net_close_listener(listener);
		return ncclSystemError;
	}
	memcpy(out_handle, &handle, sizeof handle);
	*out = listener;
	return ncclSuccess;
}

/* ---- accepting */

/* Stores a nonce. False: it was stored before, or there is no memory. */
static bool nonce_is_new(struct listener *listener, uint64_t nonce)
{
	for (size_t i = 0; i < listener->nonces_count; i++)
		if (listener->nonces[i] == nonce)
			return false;
	if (listener->nonces_count == listener->nonces_room) {
		size_t room = listener->nonces_room ? 2 * listener->nonces_room : 8;
		uint64_t *more = realloc(listener->nonces, room * sizeof *more);
		if (!more)
			return false;
		listener->nonces = more;
		listener->nonces_room = room;
	}
	listener->nonces[listener->nonces_count++] = nonce;
	return true;
}

/* Checks a request. Returns NULL if its sender was given the handle and its nonce is new, else the reason to refuse
 * it. */
static const char *lacks(struct listener *listener, struct hello *hello, const void *data, size_t size)
{
	if (!hello_read(hello, data, size))
		return "its sender is not this plugin, or another version of it";
	if (!hello_is_proven(hello, listener->secret, false))
		return "its sender does not have this listener's handle";
	return nonce_is_new(listener, hello->nonce) ? NULL : "it is a repetition of an earlier request";
}

static void refuse(struct listener *listener, int way, gdrfab_info *info, const char *why)
{
	if (info->handle)
		gdrfab_pep_reject(listener->peps[way], info->handle, NULL, 0);
	/* Logged once, because a stranger may send requests for ever. */
	if (!listener->told)
		WARN("a connection request over %s was refused: %s; further refusals are not logged",
		     listener->device->ways[way]->info->domain_name, why);
	listener->told = true;
}

/* Accepts a request. If that fails, the log says so; NCCL is not told. */
static void let_in(struct listener *listener, int way, gdrfab_info *info, const struct hello *hello)
{
	char words[400] = "no memory";
	struct comm *comm = comm_new(listener->device, false);
	if (comm)
		comm->way = way;
	if (comm && comm_open(comm, info, words, sizeof words)) {
		/* Made before comm_join() lowers eager_max: the sender computes the slots of eager messages from
		 * this side's own limit. */
		struct hello answer = hello_of(comm, listener->secret, hello->nonce);
		comm_join(comm, hello);
		if (gdrfab_ep_accept(comm->ep, &answer, sizeof answer) == 0) {
			comm->since = now_ms();
			listener->coming[listener->coming_count++] = comm;
			return;
		}
		snprintf(words, sizeof words, "%s", gdrfab_last_error());
	} else if (info->handle && (!comm || !comm->ep)) {
		gdrfab_pep_reject(listener->peps[way], info->handle, NULL, 0);
	}
	INFO("a connection request was not accepted: %s", words);
	comm_free(comm);
}

/* Answers one waiting request. Returns true if it was refused, which is cheap, so that the caller may look at the
 * next one. */
static bool take_request(struct listener *listener, int way)
{
	struct {
		gdrfab_eq_cm_entry entry;
		unsigned char data[GDRFAB_CM_DATA_MAX];
	} event;
	uint32_t kind;
	struct hello hello;
	ssize_t got = gdrfab_eq_read(listener->eqs[way], &kind, &event, sizeof event, 0);
	if (got == -GDRFAB_EAVAIL) {
		gdrfab_eq_err_entry error = {.struct_size = sizeof error};
		gdrfab_eq_readerr(listener->eqs[way], &error, 0);
		INFO("listening: %s", gdrfab_strerror(error.err));
	}
	if (got < (ssize_t)sizeof event.entry || kind != GDRFAB_CONNREQ || !event.entry.info)
		return false;
	const char *why = lacks(listener, &hello, event.data, (size_t)got - sizeof event.entry);
	if (why)
		refuse(listener, way, event.entry.info, why);
	else
		let_in(listener, way, event.entry.info, &hello);
	gdrfab_freeinfo(event.entry.info);
	return why != NULL;
}

static void coming_remove(struct listener *listener, int i)
{
	listener->coming_count--;
	memmove(&listener->coming[i], &listener->coming[i + 1], (size_t)(listener->coming_count - i) * sizeof listener->coming[0]);
}

/* True if one more request can be taken. If all places are in use and a request waits, the oldest connection is
 * dropped once it has had its part of the time limit. */
static bool has_room(struct listener *listener, int way)
{
	struct comm *oldest = listener->coming[0];
	uint32_t kind;
	if (listener->coming_count < COMING)
		return true;
	if (now_ms() - oldest->since < timeout_ms(listener->device) / PART ||
	    gdrfab_eq_read(listener->eqs[way], &kind, NULL, 0, GDRFAB_PEEK) == -EAGAIN)
		return false;
	INFO("an incomplete connection was dropped for a newer one");
	coming_remove(listener, 0);
	comm_free(oldest);
	return true;
}

ncclResult_t net_accept(struct listener *listener, struct comm **out)
{
	*out = NULL;
	for (int i = 0; i < 2; i++)
		for (int refused = 0; refused < REFUSALS && listener->eqs[i] && listener->peps[i] && has_room(listener, i); refused++)
			if (!take_request(listener, i))
				break;
	for (int i = 0; i < listener->coming_count;) {
		char words[400] = "no answer within the time limit";
		struct comm *comm = listener->coming[i];
		int event = event_of(comm, NULL, NULL, words, sizeof words);
		if (event == GDRFAB_CONNECTED) {
			coming_remove(listener, i);
			*out = comm;
			return ncclSuccess;
		}
		if (event == 0 && now_ms() - comm->since < timeout_ms(comm->device)) {
			i++;
			continue;
		}
		/* The connecting side tries its next address, or reports the error to its own NCCL. */
		INFO("a connection was lost before it was complete: %s", words);
		coming_remove(listener, i);
		comm_free(comm);
	}
	return ncclSuccess;
}
