/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * gdrfab between two processes with GPU memory, beside the same copies by the bare driver through a mapping of the
 * same memory, which is the limit. Library and limit take turns in one run; medians, one table. Uses two GPUs if
 * there are two.
 *
 *   gpu-main [markdown file]
 */
#include "pair.h"

#define LARGEST (256 * MIB)
#define HOST_BYTES (64 * MIB)

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
	reap(j->depth);
}

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
	/* Once beforehand, because the very first operation makes streams and other objects. */
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
	OK(gdrfab_mem_alloc(domain, GDRFAB_HMEM_SYSTEM, 0, HOST_BYTES, 0, &ours_alloc));
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
	/* The limit stays the mapping of plain memory: the copies are the same, only the kind of the target memory
	 * differs. */
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
	return pair(argc, argv, LARGEST, measure);
}
