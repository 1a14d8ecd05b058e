/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * NCCL's own variables, which a net plugin's init may still set: NCCL builds its topology, and looks for a tuner, after it.
 * Whether to, and what, follows from what is equal on all ranks, as those with different protocols or numbers of channels wait
 * for each other for ever: the environment, and the CPUs that a host has, whichever of them a rank may use. Where hosts differ
 * in these and ranks send by tcp through host memory, GDRFAB_NCCL_THREADS or GDRFAB_NCCL_TUNE=0 on all of them decides.
 */
#include "plugin.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static int width;
static enum tune_way way;

int tune_width(void)
{
	return __atomic_load_n(&width, __ATOMIC_ACQUIRE);
}

enum tune_way tune_way(void)
{
	return __atomic_load_n(&way, __ATOMIC_ACQUIRE);
}

/* Not setenv(), which may free the array that another thread's getenv() walks through: a longer copy takes its place in one
 * store, and both stay, as the strings do when NCCL closes this library. */
static bool put(const char *name, const char *value)
{
	size_t count = 0, size = strlen(name) + strlen(value) + 2;
	while (environ && environ[count])
		count++;
	char **longer = malloc((count + 2) * sizeof *longer), *entry = malloc(size);
	if (!longer || !entry) {
		free(longer);
		free(entry);
		return false;
	}
	snprintf(entry, size, "%s=%s", name, value);
	if (count)
		memcpy(longer, environ, count * sizeof *longer);
	longer[count] = entry;
	longer[count + 1] = NULL;
	__atomic_store_n(&environ, longer, __ATOMIC_RELEASE);
	return true;
}

/* Unless the user has set it, be it to nothing. */
static void set(const char *name, const char *value, const char *because)
{
	const char *own = getenv(name);
	if (!own && put(name, value))
		INFO("%s=%s is set: %s (GDRFAB_NCCL_TUNE=0 sets nothing)", name, value, because);
	else if (!own || strcmp(own, value) != 0)
		INFO("%s=%s stays as it was set, and is not %s: %s", name, own ? own : "", value, because);
}

/* As NCCL reads a number: not set, empty, or without digits is 0. */
static bool on(const char *name)
{
	const char *text = getenv(name);
	return text && strtoll(text, NULL, 0) != 0;
}

/* Whether NCCL's own ways between the GPUs of a host are forbidden: else it prefers them, and pays for what is set here. */
static bool all_is_ours(void)
{
	const char *level = getenv("NCCL_P2P_LEVEL");
	bool no_p2p = on("NCCL_P2P_DISABLE") || (level && (strcasecmp(level, "LOC") == 0 || strcmp(level, "0") == 0));
	return no_p2p && on("NCCL_SHM_DISABLE");
}

/* Whether NCCL has been told to do without its LL protocol: NCCL_PROTO is "Simple", "LL128,Simple", or "^LL". */
bool no_ll(void)
{
	const char *list = getenv("NCCL_PROTO");
	if (!list || !*list || strpbrk(list, ":;"))
		return false;
	bool not = *list == '^', named = false;
	for (list += not; *list; list += *list == ',') {
		size_t length = strcspn(list, ",");
		named |= length == 2 && strncasecmp(list, "LL", 2) == 0;
		list += length;
	}
	return named == not;
}

/* This file, for NCCL to open once more. */
static bool own_path(char *path, size_t size)
{
	Dl_info found;
	char whole[PATH_MAX];
	if (!dladdr(&width, &found) || !found.dli_fname)
		return false;
	bool is_path = strchr(found.dli_fname, '/') && realpath(found.dli_fname, whole);
	return (size_t)snprintf(path, size, "%s", is_path ? whole : found.dli_fname) < size;
}

static bool any_set(const char *const *names)
{
	while (*names && !getenv(*names))
		names++;
	return *names != NULL;
}

/* Who chooses channels has chosen; another tuner would not narrow these. */
static const char *const channels[] = {"NCCL_MAX_NCHANNELS", "NCCL_MIN_NRINGS", "NCCL_MAX_NRINGS", "NCCL_MIN_CTAS",
				       "NCCL_MAX_CTAS", NULL};

/* Wide for the large sizes; the tuner narrows the others. Gives how wide. */
static int widen(const char *channels_wanted, const char *because)
{
	char path[PATH_MAX];
	const char *tuner = getenv("NCCL_TUNER_PLUGIN"), *own = getenv("NCCL_MIN_NCHANNELS");
	if (any_set(channels) || (own && strcmp(own, channels_wanted) != 0)) {
		INFO("the number of channels is left to NCCL: the environment has something to say of it");
		return 0;
	}
	if (!own && !own_path(path, sizeof path))
		return 0;
	if (!own && tuner && strcmp(tuner, path) != 0) {
		INFO("the number of channels is left to NCCL: NCCL_TUNER_PLUGIN=%s would not narrow it for small sizes", tuner);
		return 0;
	}
	if (!own) {
		/* By name, so that NCCL counts the tuner's use of the file too, and no other tuner precedes. */
		set("NCCL_TUNER_PLUGIN", path, "the plugin's tuner narrows wide communicators for small sizes");
		set("NCCL_MIN_NCHANNELS", channels_wanted, because);
	}
	/* Also where a user has set that, or this process inherited it from one with the plugin: the values decide, not who. */
	return getenv("NCCL_MIN_NCHANNELS") ? atoi(channels_wanted) : 0;
}

/* For memory of GPUs over shm. */
static int widen_for_gpus(bool asks_tuner)
{
	if (!getenv("NCCL_PROTO"))
		set("NCCL_PROTO", "^LL", "LL sends from host memory into memory of GPUs, which no other process copies");
	if (!no_ll()) {
		INFO("NCCL_PROTO allows LL, with which memory of GPUs is not used: nothing else is set");
		return 0;
	}
	/* Before version 9, NCCL may be one that does not look for a tuner here. */
	int wide = asks_tuner ? widen(TUNE_WIDTH, "each channel has one chunk on its way, and large sizes need more of them") : 0;
	if (wide) {
		set("NCCL_BUFFSIZE", "16777216", "larger chunks make fewer copies; takes 32 MiB of GPU memory per channel and peer");
		set("NCCL_P2P_NET_CHUNKSIZE", "1048576", "the same for send and receive; takes 512 MiB of GPU memory");
	}
	return wide;
}

/* For memory of the host. */
static int widen_for_threads(bool asks_tuner, enum tune_way by)
{
	const char *channels_wanted = by == TUNE_HOST ? TUNE_WIDTH : TUNE_WIDTH_TCP;
	int wide = asks_tuner ? widen(channels_wanted, "the helpers share the channels") : 0;
	if (wide && by == TUNE_HOST)
		set("NCCL_BUFFSIZE", "2097152", "what is copied through the host stays in its caches");
	else if (wide)
		set("NCCL_P2P_NET_CHUNKSIZE", "524288", "larger pieces of send and receive make fewer calls");
	return wide;
}

/* As 22809; 0: not to be had. */
static int nccl_version(void)
{
	union {
		void *address;
		ncclResult_t (*get)(int *version);
	} found = {dlsym(RTLD_DEFAULT, "ncclGetVersion")};
	int version = 0;
	/* PyTorch opens its NCCL for itself alone. */
	void *file = found.address ? NULL : dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD);
	if (file)
		found.address = dlsym(file, "ncclGetVersion");
	if (!found.address || found.get(&version) != ncclSuccess)
		version = 0;
	if (file)
		dlclose(file);
	return version;
}

bool tune_is_asked_for(void)
{
	/* 2.20 knows version 1 of tuners alone; 2.21 takes version 2, 2.22 version 3. */
	return nccl_version() >= 22100;
}

void tune_begin(const struct settings *s, bool asks_tuner)
{
	int wide = 0;
	enum tune_way by = TUNE_NOTHING;
	if (!s->tune)
		INFO("NCCL's variables are left alone: GDRFAB_NCCL_TUNE=0");
	else if (s->offered > 0 && s->order[0] == KIND_SHM && s->gpu == GPU_ELSEWHERE && all_is_ours())
		wide = widen_for_gpus(asks_tuner), by = TUNE_GPUS;
	else if (s->offered > 0 && s->threads > 1 && all_is_ours() &&
		 (s->order[0] == KIND_SHM ? s->gpu == GPU_BY_NOBODY : s->order[0] == KIND_TCP && s->gpu != GPU_HERE))
		wide = widen_for_threads(asks_tuner, by = s->order[0] == KIND_SHM ? TUNE_HOST : TUNE_TCP);
	__atomic_store_n(&way, wide ? by : TUNE_NOTHING, __ATOMIC_RELEASE);
	__atomic_store_n(&width, wide, __ATOMIC_RELEASE);
}

bool tune_prefers_own_buffers(void)
{
	/* With LL buffers, connections of send and receive look like those of collectives. */
	return tune_way() == TUNE_GPUS && !on("NCCL_ALLOC_P2P_NET_LL_BUFFERS");
}

/* Each rank for itself: NCCL asks this for each connection. */
void tune_level(const struct inventory *it)
{
	bool shm = false, card = false;
	for (int i = 0; i < it->devices_count; i++) {
		const struct device *d = &it->devices[i];
		bool cuda = d->ptr_support & NCCL_PTR_CUDA;
		shm |= cuda && d->ways[0]->kind == KIND_SHM && (d->ways_count == 1 || d->ways[1]->kind == KIND_TCP);
		card |= cuda && (d->ways[0]->kind == KIND_VERBS || (d->ways_count > 1 && d->ways[1]->kind == KIND_VERBS));
	}
	if (it->settings.tune && it->settings.gpu == GPU_ELSEWHERE && shm && !card && all_is_ours())
		set("NCCL_NET_GDR_LEVEL", "SYS", "NCCL cannot see that shm is close to every GPU");
}
