/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Ways to copy between two cores, and the conditions that decide between them:
 *   own     one core copies over and over; target and source each so many bytes into their pages
 *   far     another core reads each copy, so its lines are there when the next one comes
 *   place   messages go round in 2 MiB, the next behind or in front of the last: half a round trip
 *   raw_copy [own|remote|place] [-s size[,size...]] [-r reps]       without a word: all three */
#include "bench.h"
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

#define MAX_REPS 64
#define AREA (2u << 20)
#define PAGE 4096u

static void by_libc(char *d, const char *s, size_t n)
{
	memcpy(d, s, n);
}

static void by_movsb(char *d, const char *s, size_t n)
{
	__asm__ volatile("rep movsb" : "+D"(d), "+S"(s), "+c"(n)::"memory");
}

/* Repeats the C library's method for short copies, which never uses the string instruction. */
static void by_pieces(char *d, const char *s, size_t n)
{
	for (size_t at = 0; at < n; at += 2048) {
		memcpy(d + at, s + at, n - at < 2048 ? n - at : 2048);
		__asm__ volatile("" ::: "memory");
	}
}

/* Four vectors are read before one is written. */
__attribute__((target("avx2")))
static void by_vectors(char *d, const char *s, size_t n)
{
	size_t at = 32 - ((uintptr_t)d & 31);

	_mm256_storeu_si256((void *)d, _mm256_loadu_si256((const void *)s));
	for (; n - at >= 128; at += 128) {
		__m256i v0 = _mm256_loadu_si256((const void *)(s + at));
		__m256i v1 = _mm256_loadu_si256((const void *)(s + at + 32));
		__m256i v2 = _mm256_loadu_si256((const void *)(s + at + 64));
		__m256i v3 = _mm256_loadu_si256((const void *)(s + at + 96));

		_mm256_store_si256((void *)(d + at), v0);
		_mm256_store_si256((void *)(d + at + 32), v1);
		_mm256_store_si256((void *)(d + at + 64), v2);
		_mm256_store_si256((void *)(d + at + 96), v3);
	}
	for (; n - at >= 32; at += 32)
		_mm256_store_si256((void *)(d + at), _mm256_loadu_si256((const void *)(s + at)));
	_mm256_storeu_si256((void *)(d + n - 32), _mm256_loadu_si256((const void *)(s + n - 32)));
}

static const struct {
	const char *name;
	void (*copy)(char *, const char *, size_t);
} ways[] = {{"memcpy", by_libc}, {"rep_movsb", by_movsb}, {"pieces", by_pieces}, {"vectors", by_vectors}};
#define WAYS (sizeof ways / sizeof *ways)

/* Side 0 writes to the first, side 1 to the second; each counts its writes. */
static struct {
	char *area;
	_Atomic uint64_t *count;
} to[2];
static char *source, *sink;
static int side;

static void own(size_t n, int reps)
{
	static const struct {
		size_t source, target;
	} skews[] = {{0, 0}, {16, 0}, {0, 8}, {0, 16}, {0, 64}};
	double v[MAX_REPS];
	char tag[64];

	for (size_t k = 0; k < sizeof skews / sizeof *skews; k++)
		for (size_t w = 0; w < WAYS; w++) {
			long it = iters_for(n, 10e6, 3, 100000);

			for (int r = 0; r < reps; r++) {
				double t = now_ns();

				for (long i = 0; i < it; i++)
					ways[w].copy(to[0].area + skews[k].target, source + skews[k].source, n);
				v[r] = (double)n * (double)it / (now_ns() - t);
			}
			snprintf(tag, sizeof tag, "own/%zu->%zu/%s", skews[k].source, skews[k].target, ways[w].name);
			report("raw_copy", tag, n, "GB/s", v, reps);
		}
}

enum order { SAME, UP, DOWN };

static size_t place(enum order order, size_t turn, size_t n)
{
	size_t room = (n + 63) / 64 * 64, at = turn % (AREA / room) * room;

	return order == SAME ? 0 : order == UP ? at : AREA - at - room;
}

/* Half a round trip of messages that both sides copy in and out; with a single place, only the first side's
 * messages. */
static double trip(size_t w, enum order order, size_t n, long it)
{
	static uint64_t seq[2];
	double t = 0;

	for (long i = -it / 4; i < it; i++) {
		if (i == 0)
			t = now_ns();
		for (int who = 0; who < 2; who++) {
			char *at = to[who].area + place(order, (size_t)seq[who], n);

			seq[who]++;
			if (who == side) {
				if (order != SAME || who == 0)
					ways[w].copy(at, source, n);
				atomic_store_explicit(to[who].count, seq[who], memory_order_release);
				continue;
			}
			while (atomic_load_explicit(to[who].count, memory_order_acquire) != seq[who])
				relax();
			if (order != SAME || who == 0)
				ways[w].copy(sink, at, n);
		}
	}
	return (now_ns() - t) / (double)it;
}

static void both(enum order first, enum order last, size_t n, int reps)
{
	static const char *const order_name[] = {"remote", "place/up", "place/down"};
	static double v[WAYS][3][MAX_REPS];
	char tag[64];

	for (int r = 0; r < reps; r++)
		for (size_t w = 0; w < WAYS; w++)
			for (enum order o = first; o <= last; o++) {
				double ns = trip(w, o, n, iters_for(n, 10e6, 200, 4000));

				v[w][o][r] = o == SAME ? (double)n / ns : ns / 2;
			}
	for (enum order o = first; o <= last && !side; o++)
		for (size_t w = 0; w < WAYS; w++) {
			snprintf(tag, sizeof tag, "%s/%s", order_name[o], ways[w].name);
			report("raw_copy", tag, n, o == SAME ? "GB/s" : "ns", v[w][o], reps);
		}
}

int main(int argc, char **argv)
{
	size_t sizes[32] = {512, 1024, 2048, 4096, 8192, 65536, 1u << 20}, count = 7;
	const char *only = argc > 1 && argv[1][0] != '-' ? argv[1] : NULL;
	int reps = 21, c;
	pid_t other;

	optind = only ? 2 : 1;
	while ((c = getopt(argc, argv, "s:r:")) >= 0) {
		if (c == 's') {
			count = 0;
			for (char *p = strtok(optarg, ","); p && count < 32; p = strtok(NULL, ","))
				sizes[count++] = strtoul(p, NULL, 0);
		} else if (c == 'r') {
			reps = atoi(optarg);
		} else {
			return 2;
		}
	}
	for (size_t i = 0; i < count; i++)
		if (sizes[i] < 64 || sizes[i] > AREA - PAGE)
			DIE("size %zu: 64 to %u", sizes[i], AREA - PAGE);
	if (reps < 1 || reps > MAX_REPS)
		DIE("repetitions: 1 to %d", MAX_REPS);
	if (!__builtin_cpu_supports("avx2"))
		DIE("this CPU has no AVX2");
	for (int i = 0; i < 2; i++) {
		to[i].area = mem_shared(AREA + PAGE);
		to[i].count = mem_shared(PAGE);
	}
	CHECK(other = fork());
	side = !other;
	pin(side);
	if (side)
		CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0));
	source = mem_anon(AREA, 0);
	sink = mem_anon(AREA, 0);
	for (size_t i = 0; i < count; i++) {
		if (!side && (!only || !strcmp(only, "own")))
			own(sizes[i], reps);
		if (!only || !strcmp(only, "remote"))
			both(SAME, SAME, sizes[i], reps);
		if (!only || !strcmp(only, "place"))
			both(UP, DOWN, sizes[i], reps);
	}
	if (!side)
		CHECK(waitpid(other, NULL, 0));
	return 0;
}
