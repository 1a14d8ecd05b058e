/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Helpers of every program here: pinning, time, copies, statistics, and one result format, so that a script can read
 * all results alike: RES,<program>,<case>,<bytes>,<unit>,<median>,<min>,<max>,<reps>. x86-64 Linux only. */
#ifndef BENCH_H
#define BENCH_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <immintrin.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define DIE(...) do { \
	fprintf(stderr, __VA_ARGS__); \
	fputc('\n', stderr); \
	exit(1); \
} while (0)
#define CHECK(x) do { \
	long long r_ = (long long)(x); \
	if (r_ < 0) \
		DIE("%s:%d: %s -> %lld (%s)", __FILE__, __LINE__, #x, r_, strerror(errno)); \
} while (0)

static inline double now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static inline void pin(int cpu)
{
	cpu_set_t s;

	CPU_ZERO(&s);
	CPU_SET(cpu, &s);
	if (cpu >= 0)
		CHECK(sched_setaffinity(0, sizeof s, &s));
}

/* Allows the peer to reach into this process: Yama's default permits only ancestors, and the two sides are parent
 * and child, both ways. EINVAL: a kernel without Yama, where nothing needs permission. */
static inline void allow_cma(void)
{
#ifdef PR_SET_PTRACER
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
#endif
}

static inline void relax(void)
{
	_mm_pause();
}

/* Non-temporal copy in pieces of 256 bytes; the rest is stored as usual. dst is 64-byte aligned. */
__attribute__((target("avx512f")))
static inline size_t nt_copy_512(char *d, const char *s, size_t n)
{
	size_t i = 0;

	for (; i + 256 <= n; i += 256)
		for (size_t k = i; k < i + 256; k += 64)
			_mm512_stream_si512((void *)(d + k), _mm512_loadu_si512(s + k));
	return i;
}

static inline size_t nt_copy_128(char *d, const char *s, size_t n)
{
	size_t i = 0;

	for (; i + 256 <= n; i += 256)
		for (size_t k = i; k < i + 256; k += 16)
			_mm_stream_si128((void *)(d + k), _mm_loadu_si128((const void *)(s + k)));
	return i;
}

static inline void nt_copy(char *d, const char *s, size_t n)
{
	size_t i = __builtin_cpu_supports("avx512f") ? nt_copy_512(d, s, n) : nt_copy_128(d, s, n);

	_mm_sfence();
	memcpy(d + i, s + i, n - i);
}

static inline int cmp_dbl(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static inline void report(const char *prog, const char *what, size_t bytes, const char *unit,
			  double *v, int n)
{
	qsort(v, (size_t)n, sizeof *v, cmp_dbl);
	printf("RES,%s,%s,%zu,%s,%.6g,%.6g,%.6g,%d\n", prog, what, bytes, unit, v[n / 2], v[0],
	       v[n - 1], n);
	fflush(stdout);
}

/* private, faulted-in, optionally huge-page backed memory */
static inline void *mem_anon(size_t n, int huge)
{
	size_t al = 2u << 20, len = (n + al - 1) / al * al;
	char *p = mmap(NULL, len + al, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		DIE("mmap of %zu bytes: %s", len + al, strerror(errno));
	p = (char *)(((uintptr_t)p + al - 1) / al * al);
	madvise(p, len, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	memset(p, 1, len);
	return p;
}

/* zeroed memory shared with a forked child */
static inline void *mem_shared(size_t n)
{
	int fd = memfd_create("bench", 0);
	char *p;

	CHECK(fd);
	CHECK(ftruncate(fd, (off_t)n));
	p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		DIE("mmap of %zu shared bytes: %s", n, strerror(errno));
	memset(p, 0, n);
	close(fd);
	return p;
}

static const size_t bench_sizes[] = { 8, 64, 1024, 4096, 65536, 1 << 20, 16 << 20, 64 << 20 };
#define NSIZES (sizeof bench_sizes / sizeof bench_sizes[0])

/* the number of iterations with which one repetition moves about `work` bytes, within [lo, hi] */
static inline long iters_for(size_t bytes, double work, long lo, long hi)
{
	double n = work / (double)bytes;

	return n < (double)lo ? lo : n > (double)hi ? hi : (long)n;
}
#endif
