/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What libfabric loads, where its own functions are, and which of gdrfab's providers are offered. */
#include "provider.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

struct libfabric libfabric;
const char *const kind_names[KINDS] = {"shm", "verbs", "tcp"};

static void cleanup(void)
{
	/* Nothing is held beyond objects that the application closes; the library itself stays loaded. */
}

struct fi_provider provider = {
	.version = FI_VERSION(GDRFAB_VERSION_MAJOR, GDRFAB_VERSION_MINOR),
	.name = "gdrfab",
	.getinfo = info_get,
	.fabric = fabric_open,
	.cleanup = cleanup,
};

static void *function(void *from, const char *name)
{
	void *at = from ? dlsym(from, name) : NULL;
	return at ? at : dlsym(RTLD_DEFAULT, name);
}

/* Finds libfabric's functions where the caller's code is. */
static bool find_libfabric(void *caller)
{
	Dl_info at;
	void *from = NULL;
	uint32_t (*version)(void);
	if (dladdr(caller, &at) && at.dli_fname)
		from = dlopen(at.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
	if (!from)
		from = dlopen(NULL, RTLD_LAZY); /* linked into the program */
	*(void **)&libfabric.dupinfo = function(from, "fi_dupinfo");
	*(void **)&libfabric.freeinfo = function(from, "fi_freeinfo");
	*(void **)&libfabric.log_enabled = function(from, "fi_log_enabled");
	*(void **)&libfabric.log = function(from, "fi_log");
	*(void **)&libfabric.param_define = function(from, "fi_param_define");
	*(void **)&libfabric.param_get = function(from, "fi_param_get");
	*(void **)&version = function(from, "fi_version");
	if (from)
		dlclose(from);
	if (!libfabric.dupinfo || !libfabric.freeinfo || !libfabric.log_enabled || !libfabric.log ||
	    !libfabric.param_define || !libfabric.param_get || !version)
		return false;
	/* libfabric leaves out providers whose version is below the application's. Newer ones only append, to structures
	 * whose sizes it knows itself and to tables that say theirs. */
	provider.fi_version = version();
	return true;
}

__attribute__((visibility("default"))) struct fi_provider *fi_prov_ini(void)
{
	if (!find_libfabric(__builtin_return_address(0)))
		return NULL;
	libfabric.param_define(&provider, "providers", FI_PARAM_STRING,
			       "Which of gdrfab's providers are offered, in this order: shm, verbs, tcp, separated by commas "
			       "(default: all; shm first if the launcher says that all processes are on one host, else last)");
	return &provider;
}

int told(int result, enum fi_log_subsys subsys, const char *doing)
{
	if (result < 0 && result != -FI_EAGAIN)
		INFO(subsys, "%s: %s\n", doing, gdrfab_last_error());
	return result;
}

/* ---- which providers */

static struct offer offer;

static void add(enum kind kind)
{
	for (int i = 0; i < offer.count; i++)
		if (offer.order[i] == kind)
			return;
	offer.order[offer.count++] = kind;
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
	char *list = NULL;
	if (libfabric.param_get(&provider, "providers", &list) == 0 && list && *list) {
		offer.because = "FI_GDRFAB_PROVIDERS names them";
		add_named(list);
	} else {
		/* A server that listens without a name does not know where its clients are: what all of them reach is first. */
		int one = one_host();
		offer.because = one == 1   ? "the launcher says that all processes are on this host"
				: one == 0 ? "the launcher says that the processes are on several hosts"
					   : "no launcher says where the processes are";
		if (one == 1)
			add(KIND_SHM);
		add(KIND_VERBS);
		add(KIND_TCP);
		add(KIND_SHM);
	}
	for (int i = 0; i < offer.count; i++)
		INFO(FI_LOG_FABRIC, "offered as number %d: %s (%s)\n", i + 1, kind_names[offer.order[i]], offer.because);
}

const struct offer *offered(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, decide);
	return &offer;
}
