/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Sets NCCL's own variables. A net plugin's init can still do so: NCCL builds its topology and looks for a tuner
 * after it.
 *
 * Every decision here must be equal on all ranks, because ranks with different protocols or numbers of channels wait
 * for each other for ever. So decisions follow from the environment and from the number of CPUs that the host has,
 * regardless of the CPUs that a rank may use. If hosts differ in these, and ranks send through host memory by tcp,
 * set GDRFAB_NCCL_THREADS or GDRFAB_NCCL_TUNE=0 on all of them.
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

/* Sets a variable by one store of a longer copy of `environ`. setenv() could free the array while another thread's
 * getenv() walks through it. The old array and the strings stay allocated, as they must when NCCL closes this
 * library. */
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

/* Sets a variable unless the user has set it, even to an empty string. */
static void set(const char *name, const char *value, const char *because)
{
	const char *own = getenv(name);
	if (!own && put(name, value))
		INFO("%s=%s is set: %s (GDRFAB_NCCL_TUNE=0 sets nothing)", name, value, because);
	else if (!own || strcmp(own, value) != 0)
		INFO("%s=%s is kept as it was set; %s would be better: %s", name, own ? own : "", value, because);
}

/* Reads a number as NCCL does: unset, empty, and without digits mean 0. */
static bool on(const char *name)
{
	const char *text = getenv(name);
	return text && strtoll(text, NULL, 0) != 0;
}

/* True if NCCL's own transports between the GPUs of a host are forbidden. Otherwise NCCL prefers them, and the
 * settings made here would only cost. */
static bool all_is_ours(void)
{
	const char *level = getenv("NCCL_P2P_LEVEL");
	bool no_p2p = on("NCCL_P2P_DISABLE") || (level && (strcasecmp(level, "LOC") == 0 || strcmp(level, "0") == 0));
	return no_p2p && on("NCCL_SHM_DISABLE");
}

/* True if NCCL_PROTO forbids the LL protocol: it is "Simple", "LL128,Simple" or "^LL". */
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

/* The path of this library's file, for NCCL to open it once more. */
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

/* If the user set one of these, the channels are the user's choice, and another tuner would not reduce ours. */
static const char *const channels[] = {"NCCL_MAX_NCHANNELS", "NCCL_MIN_NRINGS", "NCCL_MAX_NRINGS", "NCCL_MIN_CTAS",
				       "NCCL_MAX_CTAS", NULL};

/* Gives communicators many channels for the large sizes; the tuner reduces them for the others. Returns the number,
 * or 0. */
static int widen(const char *channels_wanted, const char *because)
{
	char path[PATH_MAX];
	const char *tuner = getenv("NCCL_TUNER_PLUGIN"), *own = getenv("NCCL_MIN_NCHANNELS");
	if (any_set(channels) || (own && strcmp(own, channels_wanted) != 0)) {
		INFO("the number of channels is left to NCCL: the environment sets it");
		return 0;
	}
	if (!own && !own_path(path, sizeof path))
		return 0;
	if (!own && tuner && strcmp(tuner, path) != 0) {
		INFO("the number of channels is left to NCCL: NCCL_TUNER_PLUGIN=%s would not reduce it for small sizes", tuner);
		return 0;
	}
	if (!own) {
		/* Named by its path, so that NCCL counts the tuner's use of the file too, and no other tuner comes
		 * first. */
		set("NCCL_TUNER_PLUGIN", path, "the plugin's tuner uses fewer channels for small sizes");
		set("NCCL_MIN_NCHANNELS", channels_wanted, because);
	}
	/* True also if the user set these values, or this process inherited them from one with the plugin: only the
	 * values count. */
	return getenv("NCCL_MIN_NCHANNELS") ? atoi(channels_wanted) : 0;
}

/* Settings for GPU memory over shm. */
static int widen_for_gpus(bool asks_tuner)
{
	if (!getenv("NCCL_PROTO"))
		set("NCCL_PROTO", "^LL", "LL sends from host memory into memory of GPUs, which no other process copies");
	if (!no_ll()) {
		INFO("NCCL_PROTO allows LL, with which GPU memory is not used, so no other variable is set");
		return 0;
	}
	/* An NCCL that uses version 8 may be one that does not look for a tuner here. */
	int wide = asks_tuner ? widen(TUNE_WIDTH, "each channel has one chunk in flight, and large sizes need more of them") : 0;
	if (wide) {
		set("NCCL_BUFFSIZE", "16777216", "larger chunks make fewer copies; takes 32 MiB of GPU memory per channel and peer");
		set("NCCL_P2P_NET_CHUNKSIZE", "1048576", "the same for send and receive; takes 512 MiB of GPU memory");
	}
	return wide;
}

/* Settings for host memory. */
static int widen_for_threads(bool asks_tuner, enum tune_way by)
{
	const char *channels_wanted = by == TUNE_HOST ? TUNE_WIDTH : TUNE_WIDTH_TCP;
	int wide = asks_tuner ? widen(channels_wanted, "the helpers share the channels") : 0;
	if (wide && by == TUNE_HOST)
		set("NCCL_BUFFSIZE", "2097152", "data copied through the host stays in its caches");
	else if (wide)
		set("NCCL_P2P_NET_CHUNKSIZE", "524288", "larger pieces of send and receive make fewer calls");
	return wide;
}

/* NCCL's version, such as 22809; 0: unknown. */
static int nccl_version(void)
{
	union {
		void *address;
		ncclResult_t (*get)(int *version);
	} found = {dlsym(RTLD_DEFAULT, "ncclGetVersion")};
	int version = 0;
	/* PyTorch opens its NCCL with local symbols, so the global lookup does not find it. */
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
	/* NCCL 2.20 knows only version 1 of the tuner interface; 2.21 accepts version 2, and 2.22 version 3. */
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
	/* If NCCL allocates LL buffers there too, connections for send and receive look like those for collectives. */
	return tune_way() == TUNE_GPUS && !on("NCCL_ALLOC_P2P_NET_LL_BUFFERS");
}

/* Each rank decides for itself: NCCL reads this variable for each connection. */
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
