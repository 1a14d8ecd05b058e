/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Connections. A handle names where a listener can be reached: over shm for ranks of its host, and over the wire. Who
 * connects tries them in that order; nothing here waits.
 */
#include "plugin.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* What NCCL carries from the listener to whoever connects. `ticket` is 0 on the way, and then the caller's own: NCCL calls
 * with the same handle until the connection is there. */
struct handle {
	uint32_t magic, version;
	uint64_t ticket;
	char addresses[NCCL_NET_HANDLE_MAXSIZE - 16]; /* each ends with NUL; an empty one ends the list */
};

/* Private data of connecting and of accepting. */
struct hello {
	uint32_t magic, version;
	uint32_t eager_max, reserved;
	uint64_t addr, key; /* of the board's half for the peer */
};

enum { MAGIC = 0x676e6674, VERSION = 1 };

/* Bytes of eager messages that are under way over tcp. */
enum { TCP_EARLY = 32768 };

/* Requests of a listener that are answered and not yet connected, and what part of the time limit the oldest of them has at
 * least, when there are too many. */
enum { COMING = 8, PART = 10 };

struct listener {
	struct device *device;
	gdrfab_eq *eqs[2];
	gdrfab_pep *peps[2];
	struct comm *coming[COMING]; /* the oldest first */
	int coming_count;
};

typedef char handle_fits[sizeof(struct handle) == NCCL_NET_HANDLE_MAXSIZE ? 1 : -1];

static struct hello hello_of(const struct comm *comm)
{
	struct hello hello = {.magic = MAGIC, .version = VERSION, .eager_max = (uint32_t)comm->eager_max};
	hello.addr = (uintptr_t)comm->board;
	hello.key = gdrfab_mr_key(comm->board_region);
	return hello;
}

/* The peer's bytes, if they are a hello. */
static bool hello_read(struct hello *hello, const void *data, size_t size)
{
	if (size < sizeof *hello)
		return false;
	memcpy(hello, data, sizeof *hello);
	return hello->magic == MAGIC && hello->version == VERSION;
}

static void comm_join(struct comm *comm, const struct hello *hello)
{
	comm->peer_addr = hello->addr;
	comm->peer_key = hello->key;
	comm->peer_eager_room = room_of(hello->eager_max);
	if (hello->eager_max < comm->eager_max)
		comm->eager_max = hello->eager_max;
	comm->early_limit = SIZE_MAX;
	if (comm->device->ways[comm->way]->kind != KIND_TCP)
		return;
	/* The other side may read nothing for minutes. What its kernel takes meanwhile is bounded, and a sender that it keeps
	 * waiting is cut off after GDRFAB_TCP_TIMEOUT_MS. */
	comm->early_limit = TCP_EARLY;
	if (comm->eager_max > TCP_EARLY)
		comm->eager_max = TCP_EARLY;
}

/* An event of the connection: its kind, 0 if there is none, or a negative errno with words. */
static int event_of(struct comm *comm, void *data, size_t *size, char *words, size_t words_size)
{
	struct {
		gdrfab_eq_cm_entry entry;
		unsigned char data[GDRFAB_CM_DATA_MAX];
	} event;
	uint32_t kind;
	ssize_t got = gdrfab_eq_read(comm->eq, &kind, &event, sizeof event, 0);
	if (got == -EAGAIN)
		return 0;
	if (got == -GDRFAB_EAVAIL) {
		gdrfab_eq_err_entry error = {.struct_size = sizeof error};
		char text[256];
		gdrfab_eq_readerr(comm->eq, &error, 0);
		const char *why = gdrfab_eq_strerror(comm->eq, error.prov_errno, error.err_data, text, sizeof text);
		snprintf(words, words_size, "%s", error.prov_errno ? why : gdrfab_strerror(error.err));
		return error.err ? -error.err : -EIO;
	}
	if (got < 0) {
		snprintf(words, words_size, "%s", gdrfab_last_error());
		return (int)got;
	}
	if (data && (size_t)got > sizeof event.entry) {
		*size = (size_t)got - sizeof event.entry;
		memcpy(data, event.data, *size);
	} else if (size) {
		*size = 0;
	}
	return (int)kind;
}

/* ---- connecting: what is under way, by ticket */

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

/* Random, so that no foreign handle names it by chance; 0: the kernel has no random bytes. */
static uint64_t ticket_give(struct comm *comm)
{
	if (!comm->ticket && getrandom(&comm->ticket, sizeof comm->ticket, 0) != sizeof comm->ticket)
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
		INFO("connecting to %s was given up", comm->addresses[0]);
		comm_free(comm);
	}
}

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
	free(listener);
	return ncclSuccess;
}

ncclResult_t net_listen(const struct context *ctx, int dev, void *out_handle, struct listener **out)
{
	struct device *device = device_hold(ctx, dev);
	struct listener *listener = device ? calloc(1, sizeof *listener) : NULL;
	struct handle handle = {.magic = MAGIC, .version = VERSION};
	size_t used = 0, listens = 0;
	if (!device)
		return ncclInvalidArgument;
	if (!listener) {
		inventory_drop(device->of);
		return ncclSystemError;
	}
	listener->device = device;
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

/* ---- connecting */

/* The device's way that an address is for. */
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

/* What failed so far goes along, so that the last way's failure tells of all. */
static void add_words(char *all, size_t size, const char *address, const char *words)
{
	size_t used = strlen(all);
	snprintf(all + used, size - used, "%s%s: %s", used ? "; " : "", address, words);
}

/* Begins to connect by the first address that is left; NULL if none is. The words of those that failed are in `words`. */
static struct comm *connect_next(struct device *device, char (*addresses)[104], int count, char *words, size_t size)
{
	for (int at = 0; at < count; at++) {
		char why[400] = "";
		int way = way_for(device, addresses[at]);
		if (way < 0) {
			add_words(words, size, addresses[at], "this side's device has no such way");
			continue;
		}
		struct comm *comm = comm_new(device, true);
		if (!comm)
			return NULL;
		comm->way = way;
		if (comm_open(comm, device->ways[way]->info, why, sizeof why)) {
			struct hello hello = hello_of(comm);
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
	*comm = connect_next(device, addresses, count, words, sizeof words);
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
	if (handle.magic != MAGIC || handle.version != VERSION) {
		WARN("connecting: the handle is not of this plugin, or of another version of it");
		return ncclInvalidArgument;
	}
	if (handle.ticket) {
		comm = ticket_take(handle.ticket);
		if (!comm || comm->device != device) {
			WARN("connecting: nothing is under way for this handle");
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
	if (event == GDRFAB_CONNECTED && hello_read(&hello, data, size)) {
		comm_join(comm, &hello);
		if (comm->words[0])
			INFO("connected to %s by %s, because of %s", comm->addresses[0],
			     comm->device->ways[comm->way]->info->domain_name, comm->words);
		handle.ticket = 0;
		memcpy(in_handle, &handle, sizeof handle);
		*out = comm;
		return ncclSuccess;
	}
	if (event) {
		struct comm *failed = comm;
		if (event == GDRFAB_CONNECTED)
			snprintf(words, sizeof words, "the other side is not this plugin, or another version of it");
		else if (!words[0])
			snprintf(words, sizeof words, "the other side has closed the connection");
		add_words(failed->words, sizeof failed->words, failed->addresses[0], words);
		comm = connect_next(device, &failed->addresses[1], failed->addresses_count - 1, failed->words,
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

/* ---- accepting */

/* Answers a request that waits; what makes no sense is rejected, and NCCL never hears of it. */
static void take_request(struct listener *listener, int way)
{
	struct {
		gdrfab_eq_cm_entry entry;
		unsigned char data[GDRFAB_CM_DATA_MAX];
	} event;
	uint32_t kind;
	char words[400] = "";
	ssize_t got = gdrfab_eq_read(listener->eqs[way], &kind, &event, sizeof event, 0);
	if (got == -GDRFAB_EAVAIL) {
		gdrfab_eq_err_entry error = {.struct_size = sizeof error};
		gdrfab_eq_readerr(listener->eqs[way], &error, 0);
		INFO("listening: %s", gdrfab_strerror(error.err));
	}
	if (got < (ssize_t)sizeof event.entry || kind != GDRFAB_CONNREQ || !event.entry.info)
		return;
	struct comm *comm = comm_new(listener->device, false);
	if (comm)
		comm->way = way;
	struct hello hello;
	bool sane = comm && hello_read(&hello, event.data, (size_t)got - sizeof event.entry);
	if (sane && comm_open(comm, event.entry.info, words, sizeof words)) {
		/* Made before the two agree: the sender computes the places of eager messages from this side's own limit. */
		struct hello answer = hello_of(comm);
		comm_join(comm, &hello);
		hello = answer;
		if (gdrfab_ep_accept(comm->ep, &hello, sizeof hello) == 0) {
			comm->since = now_ms();
			listener->coming[listener->coming_count++] = comm;
			comm = NULL;
		} else {
			snprintf(words, sizeof words, "%s", gdrfab_last_error());
		}
	} else if (event.entry.info->handle && (!comm || !comm->ep)) {
		gdrfab_pep_reject(listener->peps[way], event.entry.info->handle, NULL, 0);
	}
	if (comm)
		INFO("a request to connect was not accepted: %s",
		     sane ? words : "it is not of this plugin, or of another version of it");
	comm_free(comm);
	gdrfab_freeinfo(event.entry.info);
}

static void coming_remove(struct listener *listener, int i)
{
	listener->coming_count--;
	memmove(&listener->coming[i], &listener->coming[i + 1], (size_t)(listener->coming_count - i) * sizeof listener->coming[0]);
}

/* Room for one more request: where none is left, the oldest that has had its part of the time gives way. */
static bool has_room(struct listener *listener, int way)
{
	struct comm *oldest = listener->coming[0];
	uint32_t kind;
	if (listener->coming_count < COMING)
		return true;
	if (now_ms() - oldest->since < timeout_ms(listener->device) / PART ||
	    gdrfab_eq_read(listener->eqs[way], &kind, NULL, 0, GDRFAB_PEEK) == -EAGAIN)
		return false;
	INFO("a connection that never came about gave way to another");
	coming_remove(listener, 0);
	comm_free(oldest);
	return true;
}

ncclResult_t net_accept(struct listener *listener, struct comm **out)
{
	*out = NULL;
	for (int i = 0; i < 2; i++)
		if (listener->eqs[i] && listener->peps[i] && has_room(listener, i))
			take_request(listener, i);
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
		/* Whoever asked tries another way, or tells its own NCCL. */
		INFO("a connection was lost before it was there: %s", words);
		coming_remove(listener, i);
		comm_free(comm);
	}
	return ncclSuccess;
}

ncclResult_t net_close(struct comm *comm)
{
	comm_free(comm);
	return ncclSuccess;
}
