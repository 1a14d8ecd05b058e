/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The cost of pinning, as a stand-in for a NIC's registration: populate, mlock, munlock per size, on 4 KiB and 2 MiB
 * pages, and populate of a memfd. */
#include "bench.h"
#include <sys/resource.h>

#define REPS 31
static const size_t sz[] = { 4096, 65536, 1 << 20, 16 << 20, 256 << 20, 1ul << 30 };

static double populate(char *m, size_t n)
{
	double t = now_ns();

	CHECK(madvise(m, n, MADV_POPULATE_WRITE));
	return now_ns() - t;
}

static void anon(size_t n, int huge, double *f, double *l, double *u)
{
	size_t al = 2u << 20;
	char *raw = mmap(NULL, n + al, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *m;
	double t;

	if (raw == MAP_FAILED)
		DIE("mmap");
	m = (char *)(((uintptr_t)raw + al - 1) / al * al);
	madvise(m, n, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	*f = populate(m, n);
	t = now_ns();
	CHECK(mlock(m, n));
	*l = now_ns() - t;
	t = now_ns();
	CHECK(munlock(m, n));
	*u = now_ns() - t;
	munmap(raw, n + al);
}

static double memfd(size_t n)
{
	int fd = memfd_create("x", 0);
	double t;
	char *m;

	CHECK(fd);
	CHECK(ftruncate(fd, (off_t)n));
	m = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (m == MAP_FAILED)
		DIE("mmap");
	t = populate(m, n);
	munmap(m, n);
	close(fd);
	return t;
}

int main(void)
{
	struct rlimit rl = { RLIM_INFINITY, RLIM_INFINITY };
	double f[REPS], l[REPS], u[REPS], g[REPS];

	pin(0);
	if (setrlimit(RLIMIT_MEMLOCK, &rl)) {
		getrlimit(RLIMIT_MEMLOCK, &rl);
		fprintf(stderr, "RLIMIT_MEMLOCK allows %llu bytes: larger sizes are left out\n",
			(unsigned long long)rl.rlim_max);
	}
	for (int huge = 0; huge < 2; huge++)
		for (size_t i = 0; i < sizeof sz / sizeof *sz; i++) {
			int reps = sz[i] > (64u << 20) ? 5 : REPS;

			if (sz[i] > rl.rlim_max)
				continue;
			for (int r = 0; r < reps; r++) {
				anon(sz[i], huge, &f[r], &l[r], &u[r]);
				g[r] = memfd(sz[i]);
			}
			report("pin", huge ? "populate/2M" : "populate/4K", sz[i], "ns", f, reps);
			report("pin", huge ? "mlock_resident/2M" : "mlock_resident/4K", sz[i], "ns", l, reps);
			report("pin", huge ? "munlock/2M" : "munlock/4K", sz[i], "ns", u, reps);
			if (!huge)
				report("pin", "populate_memfd/4K", sz[i], "ns", g, reps);
		}
	return 0;
}
