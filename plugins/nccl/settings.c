/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Reads the plugin's own environment variables, and the variables of a launcher that tell where the ranks are. */
#include "plugin.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *const kind_names[KINDS] = {"shm", "verbs", "tcp"};

static void offer(struct settings *s, enum kind kind)
{
	for (int i = 0; i < s->offered; i++)
		if (s->order[i] == kind)
			return;
	s->may[kind] = true;
	s->order[s->offered++] = kind;
}

static bool read_list(struct settings *s, const char *list)
{
	while (*list) {
		size_t length = strcspn(list, ",");
		int kind = 0;
		while (kind < KINDS && (strlen(kind_names[kind]) != length || strncmp(list, kind_names[kind], length)))
			kind++;
		if (kind == KINDS) {
			WARN("GDRFAB_NCCL_PROVIDERS: \"%.*s\" is not one of shm, verbs, tcp", (int)length, list);
			return false;
		}
		offer(s, (enum kind)kind);
		list += length + (list[length] == ',');
	}
	return true;
}

static long number_of(const char *name)
{
	const char *text = getenv(name);
	return text && *text ? strtol(text, NULL, 10) : 0;
}

/* 1: all ranks are on this host; 0: they are not; -1: no launcher says. */
static int one_host(void)
{
	static const char *const sizes[][2] = {
		{"WORLD_SIZE", "LOCAL_WORLD_SIZE"}, /* torchrun */
		{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"},
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

static bool read_seconds(const char *name, uint64_t *ns)
{
	const char *text = getenv(name);
	char *end;
	if (!text || !*text)
		return true;
	double seconds = strtod(text, &end);
	if (*end || !(seconds > 0 && seconds <= 1e6)) {
		WARN("%s=%s: seconds are expected, more than 0 and up to a million", name, text);
		return false;
	}
	*ns = (uint64_t)(seconds * 1e9);
	return true;
}

static bool read_switch(const char *name, bool *on)
{
	const char *text = getenv(name);
	if (!text || !*text)
		return true;
	if ((*text != '0' && *text != '1') || text[1]) {
		WARN("%s=%s: 0 or 1 is expected", name, text);
		return false;
	}
	*on = *text == '1';
	return true;
}

static bool read_gpu(const char *name, enum gpu_copies *gpu)
{
	const char *text = getenv(name);
	bool here = false;
	*gpu = GPU_ELSEWHERE;
	if (!read_switch(name, &here))
		return false;
	if (text && *text)
		*gpu = here ? GPU_HERE : GPU_BY_NOBODY;
	return true;
}

static bool read_bytes(const char *name, size_t max, size_t *bytes)
{
	const char *text = getenv(name);
	char *end;
	if (!text || !*text)
		return true;
	errno = 0;
	unsigned long long value = strtoull(text, &end, 10);
	if (*end || errno || *text == '-' || value > max) {
		WARN("%s=%s: a number of bytes is expected, 0 to %zu", name, text, max);
		return false;
	}
	*bytes = (size_t)value;
	return true;
}

/* The number of ranks on this host, if a launcher says; else 0. */
static long ranks_here(void)
{
	static const char *const names[] = {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"};
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
		if (number_of(names[i]) > 0)
			return number_of(names[i]);
	return 0;
}

/* Helper threads for one rank that shares these CPUs with the others: half of its part of the CPUs, rounded down to
 * a power of two, because the channels, a power of two too, are divided among them. */
static int threads_of(long cpus)
{
	long ranks = ranks_here(), part = cpus / (ranks ? ranks : USUAL_RANKS);
	int threads = part < 4 ? 0 : 2;
	while (threads && threads < USUAL_THREADS && threads * 4 <= part)
		threads *= 2;
	return threads;
}

/* `threads`, which decides the width of communicators, must be equal on all ranks: it does not depend on the CPUs to
 * which this rank is bound. The number of threads that this rank starts, `own`, may depend on them. */
static bool read_threads(const char *name, int *threads, int *own)
{
	const char *text = getenv(name);
	cpu_set_t cpus;
	char *end;
	if (text && *text) {
		long value = strtol(text, &end, 10);
		if (*end || value < 0 || value > MAX_THREADS) {
			WARN("%s=%s: a number of threads is expected, 0 to %d", name, text, MAX_THREADS);
			return false;
		}
		*threads = *own = (int)value;
		return true;
	}
	*own = sched_getaffinity(0, sizeof cpus, &cpus) ? 0 : threads_of(CPU_COUNT(&cpus));
	*threads = threads_of(sysconf(_SC_NPROCESSORS_CONF));
	if (*own > *threads)
		*own = *threads;
	if (*own < *threads)
		INFO("%d threads for long messages, not %d: this rank may use some CPUs only (%s says how many it starts)", *own,
		     *threads, name);
	return true;
}

bool settings_read(struct settings *s)
{
	const char *list = getenv("GDRFAB_NCCL_PROVIDERS");
	memset(s, 0, sizeof *s);
	s->timeout_ns = 20000000000ull;
	s->eager = 8192;
	s->tune = true;
	if (!read_gpu("GDRFAB_NCCL_GDR", &s->gpu) || !read_seconds("GDRFAB_NCCL_TIMEOUT", &s->timeout_ns) ||
	    !read_bytes("GDRFAB_NCCL_EAGER", 1 << 20, &s->eager) || !read_switch("GDRFAB_NCCL_TUNE", &s->tune) ||
	    !read_threads("GDRFAB_NCCL_THREADS", &s->threads, &s->own_threads))
		return false;
	if (list && *list) {
		s->named = true;
		s->because = "GDRFAB_NCCL_PROVIDERS names them";
		return read_list(s, list);
	}
	int one = one_host();
	if (one != 0)
		offer(s, KIND_SHM);
	if (one != 1) {
		offer(s, KIND_VERBS);
		offer(s, KIND_TCP);
	}
	s->may[KIND_SHM] = true;
	s->because = one == 1	? "the launcher says that all ranks are on this host"
		     : one == 0 ? "the launcher says that the ranks are on several hosts"
				: "no launcher says on which hosts the ranks are";
	return true;
}
