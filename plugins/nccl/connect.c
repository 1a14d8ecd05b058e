/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Connecting. A handle holds the listener's addresses: over shm for ranks of its host, and over the network. The
 * connecting side tries them in that order. No call here waits: NCCL calls again with the same handle, and a ticket
 * in the handle finds the attempt that is under way.
 */
#include "hello.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- attempts under way, by ticket */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct comm *connecting;

static struct comm *ticket_take(uint64_t ticket)
{
	struct comm **at = &connecting, *found;
	pthread_mutex_lock(&lock);
	while (*at && (*at)->ticket != ticket)
		at = &(*at)->next;
	found = *at;
	if (found)
		*at = found->next;
	pthread_mutex_unlock(&lock);
	return found;
}

/* Stores an attempt and returns its ticket. The ticket is random, so that no foreign handle names it by chance. 0:
 * the kernel has no random bytes. */
static uint64_t ticket_give(struct comm *comm)
{
	if (!comm->ticket && !draw(&comm->ticket, sizeof comm->ticket))
		comm->ticket = 0;
	if (!comm->ticket)
		return 0;
	comm->since = now_ms();
	pthread_mutex_lock(&lock);
	comm->next = connecting;
	connecting = comm;
	pthread_mutex_unlock(&lock);
	return comm->ticket;
}

void net_forget(const struct context *ctx)
{
	struct comm **at = &connecting, *gone = NULL;
	int64_t now = now_ms();
	pthread_mutex_lock(&lock);
	while (*at) {
		struct comm *comm = *at;
		bool late = comm->device->of->pid != getpid() || now - comm->since > 2 * timeout_ms(comm->device);
		if (ctx ? comm->context == ctx : late) {
			*at = comm->next;
			comm->next = gone;
			gone = comm;
		} else {
			at = &comm->next;
		}
	}
	pthread_mutex_unlock(&lock);
	while (gone) {
		struct comm *comm = gone;
		gone = comm->next;
		INFO("connecting to %s was abandoned", comm->addresses[0]);
		comm_free(comm);
	}
}

/* ---- connecting */

/* The index of the device's way for an address, by its scheme; -1: the device has none. */
static int way_for(const struct device *device, const char *address)
{
	for (int i = 0; i < device->ways_count; i++) {
		const char *name = kind_names[device->ways[i]->kind];
		size_t length = strlen(name);
		if (strncmp(address, name, length) == 0 && strncmp(address + length, "://", 3) == 0)
			return i;
	}
	return -1;
}

/* Appends an address and its error, so that the failure of the last address reports all of them. */
static void add_words(char *all, size_t size, const char *address, const char *words)
{
	size_t used = strlen(all);
	snprintf(all + used, size - used, "%s%s: %s", used ? "; " : "", address, words);
}

/* Starts to connect to the first address that can be tried. Returns NULL if none is left. The errors of the
 * addresses that failed are added to `words`. */
static struct comm *connect_next(struct device *device, const uint64_t secret[2], char (*addresses)[104], int count, char *words,
				 size_t size)
{
	for (int at = 0; at < count; at++) {
		char why[400] = "";
		int way = way_for(device, addresses[at]);
		if (way < 0) {
			add_words(words, size, addresses[at], "this side's device has no provider for this address");
			continue;
		}
		struct comm *comm = comm_new(device, true);
		if (!comm)
			return NULL;
		comm->way = way;
		if (!draw(&comm->nonce, sizeof comm->nonce)) {
			snprintf(why, sizeof why, "the kernel gives no random bytes");
		} else if (comm_open(comm, device->ways[way]->info, why, sizeof why)) {
			struct hello hello = hello_of(comm, secret, comm->nonce);
			int r = gdrfab_ep_connect(comm->ep, addresses[at], strlen(addresses[at]) + 1, &hello, sizeof hello);
			if (r == 0) {
				comm->addresses_count = count - at;
				memcpy(comm->addresses, addresses[at], sizeof comm->addresses[0] * (size_t)(count - at));
				snprintf(comm->words, sizeof comm->words, "%s", words);
				return comm;
			}
			snprintf(why, sizeof why, "%s", gdrfab_last_error());
		}
		comm_free(comm);
		add_words(words, size, addresses[at], why);
	}
	return NULL;
}

static ncclResult_t connect_first(struct device *device, struct handle *handle, struct comm **comm)
{
	char addresses[2][104] = {"", ""}, words[512] = "";
	int count = 0;
	size_t at = 0;
	while (at < sizeof handle->addresses && handle->addresses[at] && count < 2) {
		size_t length = strnlen(handle->addresses + at, sizeof handle->addresses - at);
		if (length == sizeof handle->addresses - at || length >= sizeof addresses[0])
			break;
		memcpy(addresses[count++], handle->addresses + at, length + 1);
		at += length + 1;
	}
	*comm = connect_next(device, handle->secret, addresses, count, words, sizeof words);
	if (*comm)
		return ncclSuccess;
	WARN("connecting: %s", count ? words : "the handle has no address");
	return count ? ncclRemoteError : ncclInvalidArgument;
}

static ncclResult_t connect_at(const struct context *ctx, struct device *device, void *in_handle, struct comm **out)
{
	struct handle handle;
	struct comm *comm = NULL;
	unsigned char data[GDRFAB_CM_DATA_MAX];
	char words[400] = "";
	size_t size = 0;
	memcpy(&handle, in_handle, sizeof handle);
	if (handle.magic != MAGIC) {
		WARN("connecting: the handle was not made by this plugin, or by another version of it");
		return ncclInvalidArgument;
	}
	if (handle.ticket) {
		comm = ticket_take(handle.ticket);
		if (!comm || comm->device != device) {
			WARN("connecting: no connection attempt exists for this handle");
			comm_free(comm);
			return ncclInvalidArgument;
		}
	} else {
		ncclResult_t result = connect_first(device, &handle, &comm);
		if (result != ncclSuccess)
			return result;
	}
	int event = event_of(comm, data, &size, words, sizeof words);
	struct hello hello;
	bool known = event == GDRFAB_CONNECTED && hello_read(&hello, data, size);
	if (known && hello.nonce == comm->nonce && hello_is_proven(&hello, handle.secret, true)) {
		comm_join(comm, &hello);
		if (comm->words[0])
			INFO("connected to %s by %s, after other addresses failed: %s", comm->addresses[0],
			     comm->device->ways[comm->way]->info->domain_name, comm->words);
		handle.ticket = 0;
		memcpy(in_handle, &handle, sizeof handle);
		*out = comm;
		return ncclSuccess;
	}
	if (event) {
		struct comm *failed = comm;
		if (event == GDRFAB_CONNECTED)
			snprintf(words, sizeof words, "the other side %s",
				 known ? "is not the one that made the handle" : "is not this plugin, or another version of it");
		else if (!words[0])
			snprintf(words, sizeof words, "the other side has closed the connection");
		add_words(failed->words, sizeof failed->words, failed->addresses[0], words);
		comm = connect_next(device, handle.secret, &failed->addresses[1], failed->addresses_count - 1, failed->words,
				    sizeof failed->words);
		if (!comm)
			WARN("connecting: %s", failed->words);
		comm_free(failed);
		if (!comm)
			return ncclRemoteError;
	}
	comm->context = ctx;
	handle.ticket = ticket_give(comm);
	if (!handle.ticket) {
		WARN("connecting: the kernel gives no random bytes");
		comm_free(comm);
		return ncclSystemError;
	}
	memcpy(in_handle, &handle, sizeof handle);
	return ncclSuccess;
}

ncclResult_t net_connect(const struct context *ctx, int dev, void *in_handle, struct comm **out)
{
	*out = NULL;
	net_forget(NULL);
	struct device *device = device_hold(ctx, dev);
	if (!device)
		return ncclInvalidArgument;
	ncclResult_t result = connect_at(ctx, device, in_handle, out);
	inventory_drop(device->of);
	return result;
}

ncclResult_t net_close(struct comm *comm)
{
	help_end(comm);
	comm_free(comm);
	return ncclSuccess;
}
