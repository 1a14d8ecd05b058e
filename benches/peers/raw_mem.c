/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* One core's copy bandwidth: libc memcpy, rep movsb and non-temporal stores; in and out of cache; 4 KiB and 2 MiB
 * pages. */
#include "bench.h"

#define REPS 11

static void copy_libc(char *d, const char *s, size_t n)
{
	memcpy(d, s, n);
}

static void copy_movsb(char *d, const char *s, size_t n)
{
	__asm__ volatile("rep movsb" : "+D"(d), "+S"(s), "+c"(n) :: "memory");
}

static const struct {
	const char *name;
	void (*copy)(char *, const char *, size_t);
} kind[] = { { "memcpy", copy_libc }, { "rep_movsb", copy_movsb }, { "nt", nt_copy } };

static double rate(int k, char *dst, const char *src, size_t n, size_t span)
{
	long it = iters_for(n, 96e6, 2, 2000000);
	size_t off = 0;
	double t = now_ns();

	for (long j = 0; j < it; j++) {
		kind[k].copy(dst + off, src + off, n);
		__asm__ volatile("" ::: "memory");
		off += n;
		if (off + n > span)
			off = 0;
	}
	return (double)n * (double)it / (now_ns() - t);
}

int main(void)
{
	size_t pool = 512u << 20;	/* larger than the last cache: cycling through it defeats it */
	double v[REPS];
	char tag[64];

	pin(0);
	for (int huge = 0; huge < 2; huge++) {
		char *src = mem_anon(pool, huge), *dst = mem_anon(pool, huge);

		for (int k = 0; k < 3; k++)
			for (size_t i = 0; i < NSIZES; i++)
				for (int cold = 0; cold < 2; cold++) {
					size_t n = bench_sizes[i];

					if ((n < 1024 && k) || (n < 4096 && cold))
						continue;
					for (int r = -2; r < REPS; r++) {
						double x = rate(k, dst, src, n, cold ? pool : n);

						if (r >= 0)
							v[r] = x;
					}
					snprintf(tag, sizeof tag, "%s/%s/%s", kind[k].name, cold ? "cold" : "hot",
						 huge ? "2M" : "4K");
					report("mem", tag, n, "GB/s", v, REPS);
				}
		munmap(src, pool);
		munmap(dst, pool);
	}
	return 0;
}
