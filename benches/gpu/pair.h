/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Two processes with a GPU each, connected by gdrfab and by a socket; shared by the benchmarks of GPU memory. */
#ifndef GPU_BENCH_PAIR_H
#define GPU_BENCH_PAIR_H

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
	OK(gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, 0, hints, &info));
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

static size_t exposed; /* bytes of each of the regions */

struct target {
	uint64_t key, addr;
	struct ipc_handle handle; /* all zero: the driver has no IPC for this kind of memory */
};

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
			CU(cu.cuMemAlloc_v2(&plain, exposed));
			addr = (void *)(uintptr_t)plain;
			CU(cu.cuIpcGetMemHandle(t.handle.bytes, plain));
		} else if (kind == 'v') {
			OK(gdrfab_mem_alloc(domain, GDRFAB_HMEM_CUDA, (uint32_t)device, exposed, 0, &addr));
		}
		CU(cu.cuMemsetD8_v2((dptr)(uintptr_t)addr, 0, exposed));
		gdrfab_mr *mr = reg(addr, exposed);
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

static void reap(int left)
{
	gdrfab_cq_entry entries[16];
	while (left > 0) {
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

/* Closes the target's region and removes its mapping, so that no later sample pays for that. */
static void leave(void)
{
	char k;
	say("o", 1);
	hear(&k, 1);
	for (double until = now_us() + 5000; now_us() < until;)
		gdrfab_cq_read(cq, NULL, 0);
}

static FILE *table;

/* Forks, and runs one side in each process; the target uses the last GPU. argv[1]: the file for the table, if given.
 * `bytes`: size of each region. */
static int pair(int argc, char **argv, size_t bytes, void (*measure)(int device, int other))
{
	int ends[2];
	exposed = bytes;
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
		return 1;
	pid_t server = fork();
	sock = ends[server == 0];
	close(ends[server != 0]);
	/* The target makes progress while it waits for messages of the initiator. */
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

#endif
