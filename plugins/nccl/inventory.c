/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The lifetime of the devices. Contexts hold them from init to finalize, and so does each open object, which NCCL
 * may close before finalize or after. */
#include "plugin.h"

#include <stdlib.h>
#include <unistd.h>

/* init_lock admits one init at a time; `lock` protects the two variables below. */
static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct inventory *current;
static struct context *contexts;

static void inventory_free(struct inventory *it)
{
	for (int i = 0; i < it->ways_count; i++)
		way_close(&it->ways[i]);
	free(it);
}

void inventory_hold(struct inventory *it)
{
	__atomic_add_fetch(&it->holders, 1, __ATOMIC_RELAXED);
}

void inventory_drop(struct inventory *it)
{
	if (__atomic_sub_fetch(&it->holders, 1, __ATOMIC_ACQ_REL) == 0)
		inventory_free(it);
}

/* The current inventory, or NULL. A child of fork() cannot use its parent's and forgets it. The caller holds `lock`. */
static struct inventory *usable(void)
{
	if (current && current->pid != getpid()) {
		current = NULL;
		contexts = NULL;
	}
	return current;
}

/* Adds a context to this process's inventory and returns it. NULL: there is no inventory yet. */
static struct inventory *join(struct context *ctx)
{
	pthread_mutex_lock(&lock);
	struct inventory *it = usable();
	if (it) {
		it->contexts++;
		inventory_hold(it);
	}
	if (it && ctx) {
		ctx->of = it;
		ctx->next = contexts;
		contexts = ctx;
	}
	pthread_mutex_unlock(&lock);
	return it;
}

static ncclResult_t begin(struct context *ctx, bool asks_tuner)
{
	struct inventory *it = join(ctx);
	if (it) {
		tune_begin(&it->settings, asks_tuner);
		tune_level(it);
		return ncclSuccess;
	}
	it = calloc(1, sizeof *it);
	if (!it)
		return ncclSystemError;
	if (!settings_read(&it->settings)) {
		free(it);
		return ncclInvalidUsage;
	}
	it->pid = getpid();
	INFO("gdrfab %s; devices: %s", gdrfab_version_string(), it->settings.because);
	tune_begin(&it->settings, asks_tuner);
	devices_find(it);
	tune_level(it);
	pthread_mutex_lock(&lock);
	current = it;
	pthread_mutex_unlock(&lock);
	join(ctx);
	return ncclSuccess;
}

ncclResult_t devices_begin(struct context **out, bool asks_tuner)
{
	struct context *ctx = out ? calloc(1, sizeof *ctx) : NULL;
	if (out && !ctx)
		return ncclSystemError;
	pthread_mutex_lock(&init_lock);
	ncclResult_t result = begin(ctx, asks_tuner);
	pthread_mutex_unlock(&init_lock);
	if (result != ncclSuccess)
		free(ctx);
	else if (out)
		*out = ctx;
	return result;
}

bool devices_end(struct context *ctx, void (*forget)(const struct context *ctx))
{
	struct context **at = &contexts;
	pthread_mutex_lock(&lock);
	usable();
	while (ctx && *at && *at != ctx)
		at = &(*at)->next;
	bool found = ctx && *at;
	struct inventory *it = found ? ctx->of : NULL;
	if (found) {
		*at = ctx->next;
		/* The next init finds the devices again. */
		if (--it->contexts == 0)
			current = NULL;
	}
	pthread_mutex_unlock(&lock);
	if (!found) {
		WARN("finalize: ctx is not from init, or finalized already");
		return false;
	}
	forget(ctx);
	inventory_drop(it);
	free(ctx);
	return true;
}

int devices_count(void)
{
	pthread_mutex_lock(&lock);
	int count = usable() ? current->devices_count : 0;
	pthread_mutex_unlock(&lock);
	return count;
}

/* The caller holds `lock`. */
static struct device *find_device(const struct context *ctx, int number)
{
	const struct context *at = contexts;
	struct inventory *it = usable();
	while (ctx && at && at != ctx)
		at = at->next;
	if (ctx && it)
		it = at ? at->of : NULL;
	if (!it)
		WARN("device %d: %s", number, ctx ? "the context is finalized" : "call init first");
	else if (number < 0 || number >= it->devices_count)
		WARN("device %d does not exist; there are %d", number, it->devices_count);
	else
		return &it->devices[number];
	return NULL;
}

struct device *device_hold(const struct context *ctx, int number)
{
	pthread_mutex_lock(&lock);
	struct device *device = find_device(ctx, number);
	if (device)
		inventory_hold(device->of);
	pthread_mutex_unlock(&lock);
	return device;
}

struct device *device_get(int number)
{
	pthread_mutex_lock(&lock);
	struct device *device = find_device(NULL, number);
	pthread_mutex_unlock(&lock);
	return device;
}
