/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The libfabric whose call is running: its log, and the gdrfab providers that it is offered. */
#include "provider.h"

#include <stdlib.h>
#include <string.h>

const char *const kind_names[KINDS + 1] = {"shm", "verbs", "tcp", "rdm"};

enum kind info_kind(const char *fabric_name)
{
	if (fabric_name && strncmp(fabric_name, RDM_FABRIC, strlen(RDM_FABRIC)) == 0)
		return KIND_RDM;
	if (fabric_name && strcmp(fabric_name, kind_names[KIND_SHM]) == 0)
		return KIND_SHM;
	/* The fabrics of devices are named after their networks: "RoCE", "IB-<subnet>". */
	return fabric_name && strcmp(fabric_name, kind_names[KIND_TCP]) == 0 ? KIND_TCP : KIND_VERBS;
}

unsigned lanes_of(const char *set)
{
	unsigned lanes = 0;
	while (*set) {
		size_t length = strcspn(set, "+");
		int kind = 0;
		while (kind < KINDS && (strlen(kind_names[kind]) != length || strncmp(set, kind_names[kind], length)))
			kind++;
		lanes |= 1u << kind;
		set += length + (set[length] != 0);
	}
	return lanes;
}

/* ---- functions that replace those of a libfabric that is gone */

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

static struct libfabric nobody = {.dupinfo = dup_nothing, .freeinfo = free_nothing, .log_enabled = log_nothing};
__thread struct libfabric *caller = &nobody;

void caller_gone(struct libfabric *lib)
{
	lib->dupinfo = dup_nothing;
	lib->freeinfo = free_nothing;
	lib->log_enabled = log_nothing;
	lib->base = NULL;
}

int told(int result, enum fi_log_subsys subsys, const char *doing)
{
	if (result < 0 && result != -FI_EAGAIN)
		INFO(subsys, "%s: %s\n", doing, gdrfab_last_error());
	return result;
}

/* ---- choice of providers */

static bool has(enum kind kind)
{
	for (int i = 0; i < caller->offer.count; i++)
		if (caller->offer.order[i] == kind)
			return true;
	return false;
}

static void add(enum kind kind)
{
	struct offer *offer = &caller->offer;
	if (!has(kind))
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
			WARN(FI_LOG_FABRIC, "FI_GDRFAB_PROVIDERS: \"%.*s\" is not one of shm, verbs, tcp\n", (int)length, list);
		list += length + (list[length] != 0);
	}
}

static long number_of(const char *name)
{
	const char *text = getenv(name);
	return text && *text ? strtol(text, NULL, 10) : 0;
}

/* 1: all processes of the job are on this host; 0: they are not; -1: no launcher says. */
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
		/* A server that listens without a name does not know where its clients are, so the provider that all
		 * clients reach comes first. */
		int one = one_host();
		offer->because = one == 1   ? "the launcher says that all processes are on this host"
				: one == 0 ? "the launcher says that the processes are on several hosts"
					   : "no launcher says on which hosts the processes are";
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
