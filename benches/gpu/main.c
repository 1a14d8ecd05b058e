/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * gdrfab between two processes with GPU memory, beside the same copies by the bare driver through a mapping of the same
 * memory, in one run: the limit and the library in turns, medians of each, one table. Two GPUs if there are two.
 *
 *   gpu-bench [markdown file]
 */
#include "driver.h"

#include <errno.h>
#include <fcntl.h>
#include <gdrfab.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define LARGEST (256 * MIB)
#define HOST_BYTES (64 * MIB)

/* --- both sides --- */

static int sock;
static gdrfab_domain *domain;
static gdrfab_cq *cq;
static gdrfab_ep *ep;

static void say(const void *data, size_t len)
{
	if (write(sock, data, len) != (ssize_t)len)
		exit(1);
}

static void hear(void *data, size_t len)
{
	char *at = data;
	while (len) {
		ssize_t got = read(sock, at, len);
		if (got == -1 && errno == EAGAIN) {
			if (cq)
				gdrfab_cq_read(cq, NULL, 0);
			continue;
		}
		if (got <= 0)
			exit(1);
		at += got;
		len -= (size_t)got;
	}
}

static void connect_both(void)
{
	gdrfab_info *hints = gdrfab_dupinfo(NULL), *info = NULL;
	gdrfab_fabric *fabric;
	gdrfab_eq *eq;
	gdrfab_cq_attr attr;
	struct {
		char text[GDRFAB_ADDR_MAX];
		size_t len;
	} mine, theirs;
	hints->caps = GDRFAB_RMA | GDRFAB_MSG;
	hints->mr_mode = GDRFAB_MR_VIRT_ADDR | GDRFAB_MR_PROV_KEY;
	OK(gdrfab_getinfo(gdrfab_version(), NULL, NULL, 0, hints, &info));
	OK(gdrfab_fabric_open(info, NULL, &fabric));
	OK(gdrfab_domain_open(fabric, info, NULL, &domain));
	memset(&attr, 0, sizeof attr);
	attr.struct_size = sizeof attr;
	attr.size = 1024;
	attr.format = GDRFAB_CQ_FORMAT_CONTEXT;
	OK(gdrfab_cq_open(domain, &attr, NULL, &cq));
	OK(gdrfab_eq_open(fabric, NULL, NULL, &eq));
	OK(gdrfab_ep_open(domain, info, NULL, &ep));
	OK(gdrfab_ep_bind_cq(ep, cq, GDRFAB_TRANSMIT | GDRFAB_RECV));
	OK(gdrfab_ep_bind_eq(ep, eq, 0));
	OK(gdrfab_ep_enable(ep));
	memset(&mine, 0, sizeof mine);
	mine.len = sizeof mine.text;
	OK(gdrfab_ep_getname(ep, mine.text, &mine.len));
	say(&mine, sizeof mine);
	hear(&theirs, sizeof theirs);
	OK(gdrfab_ep_connect_addr(ep, theirs.text, theirs.len));
	for (;;) {
		uint32_t event;
		gdrfab_eq_cm_entry entry;
		ssize_t got = gdrfab_eq_sread(eq, &event, &entry, sizeof entry, 10000, 0);
		if (got > 0 && event == GDRFAB_CONNECTED)
			return;
		if (got < 0 && got != -EAGAIN) {
			fprintf(stderr, "connecting: %s\n", gdrfab_last_error());
			exit(1);
		}
	}
}

static gdrfab_mr *reg(void *addr, size_t len)
{
	struct iovec iov = {addr, len};
	gdrfab_mr_attr attr;
	gdrfab_mr *mr;
	memset(&attr, 0, sizeof attr);
	attr.struct_size = sizeof attr;
	attr.mr_iov = &iov;
	attr.iov_count = 1;
	attr.access = GDRFAB_READ | GDRFAB_WRITE | GDRFAB_REMOTE_READ | GDRFAB_REMOTE_WRITE;
	attr.iface = GDRFAB_HMEM_AUTO;
	OK(gdrfab_mr_regattr(domain, &attr, 0, &mr));
	return mr;
}

struct target {
	uint64_t key, addr;
	struct ipc_handle handle; /* all zero: the driver's IPC is not for this kind */
};

/* --- the target's process --- */

static void serve(int device)
{
	use_device(device);
	connect_both();
	for (;;) {
		char kind, over;
		struct target t;
		dptr plain = 0;
		void *addr = NULL;
		hear(&kind, 1);
		if (kind == 'q')
			return;
		memset(&t, 0, sizeof t);
		if (kind == 'p') {
			CU(cu.cuMemAlloc_v2(&plain, LARGEST));
			addr = (void *)(uintptr_t)plain;
			CU(cu.cuIpcGetMemHandle(t.handle.bytes, plain));
		} else if (kind == 'v') {
			OK(gdrfab_mem_alloc_on(domain, GDRFAB_HMEM_CUDA, (uint32_t)device, LARGEST, 0, &addr));
		}
		CU(cu.cuMemsetD8_v2((dptr)(uintptr_t)addr, 0, LARGEST));
		gdrfab_mr *mr = reg(addr, LARGEST);
		t.key = gdrfab_mr_key(mr);
		t.addr = (uint64_t)(uintptr_t)addr;
		say(&t, sizeof t);
		hear(&over, 1);
		OK(gdrfab_mr_close(mr));
		if (plain)
			CU(cu.cuMemFree_v2(plain));
		else
			OK(gdrfab_mem_free(domain, addr));
		say("k", 1);
	}
}

/* --- the initiator's process --- */

static double now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

static double median(double *samples, int count)
{
	qsort(samples, (size_t)count, sizeof *samples, ascending);
	return samples[count / 2];
}

struct job {
	struct target to;
	dptr mapped; /* the driver's mapping of the target, for the limit */
	dptr local;
	void *host;
	void *desc;
	void *stream;
	size_t len;
	int depth;
	int reads;
};

static void raw(const struct job *j)
{
	for (int i = 0; i < j->depth; i++) {
		dptr remote = j->mapped + (dptr)i * j->len, local = j->local + (dptr)i * j->len;
		if (j->host && j->reads)
			CU(cu.cuMemcpyDtoHAsync_v2(j->host, remote, j->len, j->stream));
		else if (j->host)
			CU(cu.cuMemcpyHtoDAsync_v2(remote, j->host, j->len, j->stream));
		else if (j->reads)
			CU(cu.cuMemcpyDtoDAsync_v2(local, remote, j->len, j->stream));
		else
			CU(cu.cuMemcpyDtoDAsync_v2(remote, local, j->len, j->stream));
	}
	CU(cu.cuStreamSynchronize(j->stream));
}

static void ours(const struct job *j)
{
	gdrfab_cq_entry entries[16];
	for (int i = 0; i < j->depth; i++) {
		size_t at = (size_t)i * j->len;
		char *local = j->host ? (char *)j->host : (char *)(uintptr_t)j->local + at;
		ssize_t posted;
		do {
			posted = j->reads ? gdrfab_read(ep, local, j->len, j->desc, 0, j->to.addr + at, j->to.key, NULL)
					  : gdrfab_write(ep, local, j->len, j->desc, 0, j->to.addr + at, j->to.key, NULL);
		} while (posted == -EAGAIN && (gdrfab_cq_read(cq, NULL, 0), 1));
		OK(posted);
	}
	for (int left = j->depth; left > 0;) {
		ssize_t got = gdrfab_cq_read(cq, entries, 16);
		if (got > 0) {
			left -= (int)got;
		} else if (got != -EAGAIN) {
			gdrfab_cq_err_entry e;
			char words[256] = "";
			memset(&e, 0, sizeof e);
			e.struct_size = sizeof e;
			e.err_data = words;
			e.err_data_size = sizeof words;
			gdrfab_cq_readerr(cq, &e, 0);
			fprintf(stderr, "an operation failed: %d %s\n", e.err, words);
			exit(1);
		}
	}
}

static FILE *table;

static void row(const char *what, struct job *j, const char *bar)
{
	enum { ROUNDS = 9 };
	double limit[ROUNDS], mine[ROUNDS];
	size_t bytes = j->len * (size_t)j->depth;
	int many = bytes > 64 * MIB ? 10 : bytes > MIB ? 50 : 400;
	raw(j);
	ours(j);
	for (int r = 0; r < ROUNDS; r++) {
		double t0 = now_us();
		for (int i = 0; i < many; i++)
			raw(j);
		double t1 = now_us();
		for (int i = 0; i < many; i++)
			ours(j);
		double t2 = now_us();
		limit[r] = (t1 - t0) / many;
		mine[r] = (t2 - t1) / many;
	}
	double l = median(limit, ROUNDS), m = median(mine, ROUNDS);
	char size[32];
	snprintf(size, sizeof size, j->len >= MIB ? "%zu MiB" : "%zu KiB", j->len >= MIB ? j->len / MIB : j->len / 1024);
	fprintf(table, "| %s | %s | %d | %.2f | %.2f | %.1f | %.1f | %.3f | %s |\n", what, size, j->depth, l, m,
		(double)bytes / l / 1e3, (double)bytes / m / 1e3, m / l, bar);
	fflush(table);
}

static double reg_once(dptr addr, size_t len)
{
	double start = now_us();
	gdrfab_mr *mr = reg((void *)(uintptr_t)addr, len);
	double end = now_us();
	OK(gdrfab_mr_close(mr));
	return end - start;
}

static void registration(void)
{
	enum { FRESH = 15, AGAIN = 2001 };
	static double first[FRESH], again[AGAIN];
	dptr at[FRESH];
	for (int i = 0; i < FRESH; i++) {
		CU(cu.cuMemAlloc_v2(&at[i], HOST_BYTES));
		first[i] = reg_once(at[i], HOST_BYTES);
	}
	for (int i = 0; i < AGAIN; i++)
		again[i] = reg_once(at[0], HOST_BYTES);
	gdrfab_hmem_place place;
	double start = now_us();
	for (int i = 0; i < 1000; i++) {
		memset(&place, 0, sizeof place);
		place.struct_size = sizeof place;
		OK(gdrfab_hmem_detect((void *)(uintptr_t)at[0], 0, &place));
	}
	double detect = (now_us() - start) / 1000;
	fprintf(table, "\nRegistration of 64 MiB of cuMemAlloc memory: first %.1f us (bar 25), again %.2f us, "
		       "gdrfab_hmem_detect alone %.2f us.\n", median(first, FRESH), median(again, AGAIN), detect);
	for (int i = 0; i < FRESH; i++)
		CU(cu.cuMemFree_v2(at[i]));
}

static dptr open_limit(const struct target *t)
{
	dptr mapped = 0;
	CU(ipc_open(&mapped, t->handle, 1));
	return mapped;
}

static struct target ask(char kind)
{
	struct target t;
	say(&kind, 1);
	hear(&t, sizeof t);
	return t;
}

/* Ends with the target's region closed, and with what was mapped of it unmapped: no later sample pays for that. */
static void leave(void)
{
	char k;
	say("o", 1);
	hear(&k, 1);
	for (double until = now_us() + 5000; now_us() < until;)
		gdrfab_cq_read(cq, NULL, 0);
}

static void measure(int device, int other)
{
	static const size_t sizes[] = {8 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20};
	struct job j;
	char name[2][128], word[64];
	int version = 0;
	memset(&j, 0, sizeof j);
	use_device(device);
	connect_both();
	CU(cu.cuStreamCreate(&j.stream, 1));
	CU(cu.cuMemAlloc_v2(&j.local, LARGEST));
	CU(cu.cuMemsetD8_v2(j.local, 7, LARGEST));
	gdrfab_mr *local = reg((void *)(uintptr_t)j.local, LARGEST);
	j.desc = gdrfab_mr_desc(local);
	CU(cu.cuDeviceGetName(name[0], sizeof name[0], device));
	CU(cu.cuDeviceGetName(name[1], sizeof name[1], other));
	CU(cu.cuDriverGetVersion(&version));
	fprintf(table, "%s (device %d) to %s (device %d), CUDA driver API %d, two processes; medians of 9 rounds, the limit "
		       "and gdrfab in turns.\n\n", name[0], device, name[1], other, version);

	/* The first use of a peer's region, beside the driver's own opening of the same handle. */
	enum { TRIES = 11 };
	double driver[TRIES], mine[TRIES];
	/* Once beforehand: streams and the like are made for the first operation of all. */
	j.to = ask('p');
	j.len = 8 << 10;
	j.depth = 1;
	ours(&j);
	leave();
	for (int i = 0; i < TRIES; i++) {
		j.to = ask('p');
		j.len = 8 << 10;
		j.depth = 1;
		double t0 = now_us();
		if (i % 2)
			ours(&j);
		double t1 = now_us();
		dptr mapped = open_limit(&j.to);
		double t2 = now_us();
		if (i % 2)
			mine[i / 2] = t1 - t0;
		else
			driver[i / 2] = t2 - t1;
		CU(cu.cuIpcCloseMemHandle(mapped));
		leave();
	}
	fprintf(table, "First use of a peer's 256 MiB: gdrfab's first write %.0f us, the driver's cuIpcOpenMemHandle %.0f us.\n\n",
		median(mine, TRIES / 2), median(driver, TRIES - TRIES / 2));

	fprintf(table, "| what | size | depth | driver us | gdrfab us | driver GB/s | gdrfab GB/s | time ratio | bar |\n"
		       "|---|---|---|---|---|---|---|---|---|\n");
	j.to = ask('p');
	dptr limit = j.mapped = open_limit(&j.to);
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
		for (j.reads = 0; j.reads < 2; j.reads++) {
			j.len = sizes[i];
			j.depth = 1;
			row(j.reads ? "read, cuMemAlloc" : "write, cuMemAlloc", &j,
			    j.len == 8 << 10 ? "1.10" : j.len == 1 << 20 ? "1.05" : j.len == 256 << 20 ? "1.01" : "");
		}
	for (size_t i = 0; i < 3; i++)
		for (j.reads = 0; j.reads < 2; j.reads++) {
			j.len = sizes[i];
			j.depth = 16;
			row(j.reads ? "read, cuMemAlloc" : "write, cuMemAlloc", &j, "1.11");
		}
	j.depth = 1;
	j.len = HOST_BYTES;
	void *pinned, *ours_alloc;
	CU(cu.cuMemHostAlloc(&pinned, HOST_BYTES, 1));
	OK(gdrfab_mem_alloc(domain, HOST_BYTES, 0, &ours_alloc));
	gdrfab_mr *host_mr[2] = {reg(pinned, HOST_BYTES), reg(ours_alloc, HOST_BYTES)};
	void *device_desc = j.desc;
	for (int k = 0; k < 2; k++)
		for (j.reads = 0; j.reads < 2; j.reads++) {
			j.host = k ? ours_alloc : pinned;
			j.desc = gdrfab_mr_desc(host_mr[k]);
			snprintf(word, sizeof word, "%s, %s", j.reads ? "remote GPU to host" : "host to remote GPU",
				 k ? "mem_alloc" : "cuMemHostAlloc");
			row(word, &j, "1.03");
		}
	j.host = NULL;
	j.desc = device_desc;
	leave();
	/* The limit stays the mapping of plain memory: the copies are alike, only the target's kind differs. */
	struct target vmm = ask('v');
	j.to = vmm;
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
		for (j.reads = 0; j.reads < 2; j.reads++) {
			j.len = sizes[i];
			row(j.reads ? "read, VMM beside cuMemAlloc" : "write, VMM beside cuMemAlloc", &j, "1.03 of cuMemAlloc");
		}
	leave();
	CU(cu.cuIpcCloseMemHandle(limit));
	registration();
	say("q", 1);
}

int main(int argc, char **argv)
{
	int ends[2];
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
		return 1;
	pid_t server = fork();
	sock = ends[server == 0];
	close(ends[server != 0]);
	/* The target drives its progress while it waits for words of the initiator. */
	if (server == 0)
		fcntl(sock, F_SETFL, O_NONBLOCK);
	int devices = load();
	if (server == 0) {
		serve(devices - 1);
		return 0;
	}
	table = argc > 1 ? fopen(argv[1], "w") : stdout;
	if (!table)
		return 1;
	measure(0, devices - 1);
	int status = 0;
	waitpid(server, &status, 0);
	return status != 0;
}
