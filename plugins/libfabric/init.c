/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What libfabric loads, where its own functions are, and which of gdrfab's providers are offered. */
#include "provider.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

const char *const kind_names[KINDS] = {"shm", "verbs", "tcp"};

/* ---- what remains of a libfabric that is gone */

static int log_nothing(const struct fi_provider *prov, enum fi_log_level level, enum fi_log_subsys subsys)
{
	(void)prov, (void)level, (void)subsys;
	return 0;
}

static struct fi_info *dup_nothing(const struct fi_info *info)
{
	(void)info;
	return NULL;
}

static void free_nothing(struct fi_info *info)
{
	(void)info;
}

#define GONE .dupinfo = dup_nothing, .freeinfo = free_nothing, .log_enabled = log_nothing

static struct libfabric nobody = {GONE};
__thread struct libfabric *caller = &nobody;

/* ---- one for each: libfabric calls these without saying who it is */

enum { MOST = 8 };
static struct libfabric slots[MOST];
static pthread_mutex_t slots_lock = PTHREAD_MUTEX_INITIALIZER;

static void cleanup(struct libfabric *lib)
{
	pthread_mutex_lock(&slots_lock);
	/* A libfabric that finds this file twice loads it twice, cleans one up, and keeps the other. */
	if (lib->loads > 0 && --lib->loads == 0) {
		lib->dupinfo = dup_nothing;
		lib->freeinfo = free_nothing;
		lib->log_enabled = log_nothing;
		lib->base = NULL;
	}
	pthread_mutex_unlock(&slots_lock);
}

#define SLOT(n)                                                                                                        \
	static int getinfo_##n(uint32_t version, const char *node, const char *service, uint64_t flags,                \
			       const struct fi_info *hints, struct fi_info **info)                                     \
	{                                                                                                              \
		enter(&slots[n]);                                                                                      \
		return info_get(version, node, service, flags, hints, info);                                           \
	}                                                                                                              \
	static int fabric_##n(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)                  \
	{                                                                                                              \
		enter(&slots[n]);                                                                                      \
		return fabric_open(attr, fabric, context);                                                             \
	}                                                                                                              \
	static void cleanup_##n(void)                                                                                  \
	{                                                                                                              \
		cleanup(&slots[n]);                                                                                    \
	}
SLOT(0) SLOT(1) SLOT(2) SLOT(3) SLOT(4) SLOT(5) SLOT(6) SLOT(7)
#undef SLOT
#define SLOT(n) {.getinfo = getinfo_##n, .fabric = fabric_##n, .cleanup = cleanup_##n}
static const struct fi_provider entries[MOST] = {SLOT(0), SLOT(1), SLOT(2), SLOT(3), SLOT(4), SLOT(5), SLOT(6), SLOT(7)};

static void *function(void *from, const char *name)
{
	void *at = from ? dlsym(from, name) : NULL;
	return at ? at : dlsym(RTLD_DEFAULT, name);
}

/* Finds libfabric's functions where the caller's code is. */
static bool find_libfabric(struct libfabric *lib, const char *file)
{
	void *from = NULL;
	uint32_t (*version)(void);
	if (file)
		from = dlopen(file, RTLD_LAZY | RTLD_NOLOAD);
	if (!from)
		from = dlopen(NULL, RTLD_LAZY); /* linked into the program */
	*(void **)&lib->dupinfo = function(from, "fi_dupinfo");
	*(void **)&lib->freeinfo = function(from, "fi_freeinfo");
	*(void **)&lib->log_enabled = function(from, "fi_log_enabled");
	*(void **)&lib->log = function(from, "fi_log");
	*(void **)&lib->param_define = function(from, "fi_param_define");
	*(void **)&lib->param_get = function(from, "fi_param_get");
	*(void **)&version = function(from, "fi_version");
	if (from)
		dlclose(from);
	if (!lib->dupinfo || !lib->freeinfo || !lib->log_enabled || !lib->log || !lib->param_define || !lib->param_get ||
	    !version)
		return false;
	/* libfabric leaves out providers whose version is below the application's. Newer ones only append, to structures
	 * whose sizes it knows itself and to tables that say theirs. */
	lib->provider.fi_version = version();
	return true;
}

/* The entry of the libfabric at base, an old or a new one. NULL: there are too many, or it lacks a function. */
static struct libfabric *load(void *base, const char *file)
{
	struct libfabric *lib = NULL;
	for (int i = 0; i < MOST && !lib; i++)
		if (slots[i].loads && slots[i].base == base && find_libfabric(&slots[i], file))
			lib = &slots[i];
	for (int i = 0; i < MOST && !lib; i++) {
		if (slots[i].loads)
			continue;
		lib = &slots[i];
		memset(lib, 0, sizeof *lib);
		lib->provider = entries[i];
		lib->provider.version = FI_VERSION(GDRFAB_VERSION_MAJOR, GDRFAB_VERSION_MINOR);
		lib->provider.name = "gdrfab";
		lib->decided = (pthread_once_t)PTHREAD_ONCE_INIT;
		lib->base = base;
		if (!find_libfabric(lib, file)) {
			*lib = nobody;
			return NULL;
		}
	}
	if (lib)
		lib->loads++;
	return lib;
}

__attribute__((visibility("default"))) struct fi_provider *fi_prov_ini(void)
{
	Dl_info at = {0};
	bool known = dladdr(__builtin_return_address(0), &at) != 0;
	pthread_mutex_lock(&slots_lock);
	struct libfabric *lib = load(known ? at.dli_fbase : NULL, known ? at.dli_fname : NULL);
	pthread_mutex_unlock(&slots_lock);
	if (!lib)
		return NULL;
	lib->param_define(&lib->provider, "providers", FI_PARAM_STRING,
			  "Which of gdrfab's providers are offered, in this order: shm, verbs, tcp, separated by commas "
			  "(default: all; shm first if the launcher says that all processes are on one host, else last)");
	return &lib->provider;
}

int told(int result, enum fi_log_subsys subsys, const char *doing)
{
	if (result < 0 && result != -FI_EAGAIN)
		INFO(subsys, "%s: %s\n", doing, gdrfab_last_error());
	return result;
}

/* ---- which providers */

static void add(enum kind kind)
{
	struct offer *offer = &caller->offer;
	for (int i = 0; i < offer->count; i++)
		if (offer->order[i] == kind)
			return;
	offer->order[offer->count++] = kind;
}

static void add_named(const char *list)
{
	while (*list) {
		size_t length = strcspn(list, ",;");
		int kind = 0;
		while (kind < KINDS && (strlen(kind_names[kind]) != length || strncmp(list, kind_names[kind], length)))
			kind++;
		if (kind < KINDS)
			add((enum kind)kind);
		else
			WARN(FI_LOG_FABRIC, "FI_GDRFAB_PROVIDERS: \"%.*s\" is none of shm, verbs, tcp\n", (int)length, list);
		list += length + (list[length] != 0);
	}
}

static long number_of(const char *name)
{
	const char *text = getenv(name);
	return text && *text ? strtol(text, NULL, 10) : 0;
}

/* 1: all processes of the job are on this host; 0: they are not; -1: nobody says. */
static int one_host(void)
{
	static const char *const sizes[][2] = {
		{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"},
		{"PMI_SIZE", "MPI_LOCALNRANKS"}, /* MPICH's hydra */
		{"MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"},
	};
	for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
		long all = number_of(sizes[i][0]), here = number_of(sizes[i][1]);
		if (all > 0 && here > 0)
			return all == here;
	}
	long nodes = number_of("SLURM_STEP_NUM_NODES");
	return nodes > 0 ? nodes == 1 : -1;
}

static void decide(void)
{
	struct offer *offer = &caller->offer;
	char *list = NULL;
	if (caller->param_get(&caller->provider, "providers", &list) == 0 && list && *list) {
		offer->because = "FI_GDRFAB_PROVIDERS names them";
		add_named(list);
	} else {
		/* A server that listens without a name does not know where its clients are: what all of them reach is first. */
		int one = one_host();
		offer->because = one == 1   ? "the launcher says that all processes are on this host"
				: one == 0 ? "the launcher says that the processes are on several hosts"
					   : "no launcher says where the processes are";
		if (one == 1)
			add(KIND_SHM);
		add(KIND_VERBS);
		add(KIND_TCP);
		add(KIND_SHM);
	}
	for (int i = 0; i < offer->count; i++)
		INFO(FI_LOG_FABRIC, "offered as number %d: %s (%s)\n", i + 1, kind_names[offer->order[i]], offer->because);
}

const struct offer *offered(void)
{
	pthread_once(&caller->decided, decide);
	return &caller->offer;
}
