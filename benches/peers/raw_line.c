/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Two processes, core 0 and core 1, one shared mapping: the physical floor.
 *   line:  an 8-byte counter bouncing between cores (one line / two lines)
 *   put:   memcpy n-8 bytes into the peer's buffer, then release-store the last 8, which the peer polls. Variants:
 *          +consume (the peer reads all of it), +nt (non-temporal copy), +demote (CLDEMOTE after the store),
 *          +pause (in the poll loop)
 *   bw:    one-way memcpy into and out of the shared mapping, nobody polls
 *   ring:  8-byte messages through a single-producer ring of 64-byte slots (message rate) */
#include "bench.h"
#include <stdatomic.h>
#include <sys/wait.h>

#define REPS 31
#define BUF (64u << 20)
struct ctl {
	_Alignas(128) _Atomic uint64_t a;
	_Alignas(128) _Atomic uint64_t b;
	_Alignas(128) _Atomic uint64_t gate;
};
static struct ctl *c;
static char *box[2];		/* box[i]: messages for side i */
static int side;

static void spin_until(_Atomic uint64_t *p, uint64_t v, int pause)
{
	while (atomic_load_explicit(p, memory_order_acquire) != v)
		if (pause)
			relax();
}

static void gate(void)
{
	static uint64_t g;

	g += 2;
	atomic_fetch_add(&c->gate, 1);
	while (atomic_load(&c->gate) < g)
		relax();
}

static double line(int two, int pause, long n)
{
	_Atomic uint64_t *x = &c->a, *y = two ? &c->b : &c->a;
	uint64_t step = two ? 1 : 2;	/* one line counts both ways */
	double t;

	if (!side) {
		atomic_store(&c->a, 0);
		atomic_store(&c->b, 0);
	}
	gate();
	t = now_ns();
	for (uint64_t i = 1; i <= (uint64_t)n; i++) {
		uint64_t ask = step * i - (step - 1), answer = step * i;

		if (!side) {
			atomic_store_explicit(x, ask, memory_order_release);
			spin_until(y, answer, pause);
		} else {
			spin_until(x, ask, pause);
			atomic_store_explicit(y, answer, memory_order_release);
		}
	}
	return (now_ns() - t) / (2.0 * (double)n);
}

enum { NT = 1, CONSUME = 2, DEMOTE = 4, PAUSE = 8 };

__attribute__((target("cldemote")))
static void demote(char *d, size_t n)
{
	for (size_t i = 0; i < n; i += 64)
		_cldemote(d + i);
}

static uint64_t eat(const char *p, size_t n)
{
	const uint64_t *w = (const void *)p;
	uint64_t s = 0;

	for (size_t i = 0; i < n / 8; i += 8)	/* a word of each line */
		s += w[i];
	return s;
}

static void put(char *dst, char *src, size_t n, uint64_t seq, int fl)
{
	if (n > 8) {
		if (fl & NT)
			nt_copy(dst, src, n - 8);
		else
			memcpy(dst, src, n - 8);
	}
	atomic_store_explicit((_Atomic uint64_t *)(void *)(dst + n - 8), seq, memory_order_release);
	if (fl & DEMOTE)
		demote(dst, n);
}

static double putlat(size_t n, char *src, long it, int fl)
{
	static volatile uint64_t sink;
	_Atomic uint64_t *in = (_Atomic uint64_t *)(void *)(box[side] + n - 8);
	double t;

	atomic_store(in, 0);
	gate();
	t = now_ns();
	for (long i = 1; i <= it; i++)
		for (int turn = 0; turn < 2; turn++)
			if (turn == side) {
				put(box[!side], src, n, (uint64_t)i, fl);
			} else {
				spin_until(in, (uint64_t)i, fl & PAUSE);
				if (fl & CONSUME)
					sink += eat(box[side], n);
			}
	return (now_ns() - t) / (2.0 * (double)it);
}

#define SLOTS 1024
static double ring(uint64_t n)
{
	struct slot {
		_Alignas(64) uint64_t d;
		_Atomic uint64_t seq;
	} *s = (void *)box[0];
	uint64_t freed = 0, sum = 0;
	double t;

	if (!side) {
		memset(box[0], 0, SLOTS * sizeof *s);
		atomic_store(&c->a, 0);
	}
	gate();
	t = now_ns();
	for (uint64_t i = 1; i <= n; i++) {
		struct slot *p = &s[i % SLOTS];

		if (!side) {
			while (i - freed >= SLOTS)
				freed = atomic_load_explicit(&c->a, memory_order_acquire);
			p->d = i;
			atomic_store_explicit(&p->seq, i, memory_order_release);
		} else {
			spin_until(&p->seq, i, 1);
			sum += p->d;
			if (!(i & 127))
				atomic_store_explicit(&c->a, i, memory_order_release);
		}
	}
	t = now_ns() - t;
	if (side && sum != n * (n + 1) / 2)
		DIE("ring: lost messages");
	gate();
	return (double)n / t * 1e3;
}

static void bandwidth(char *src)
{
	double v[REPS];

	for (size_t i = 0; i < NSIZES; i++)
		for (int w = 0; w < 2; w++) {
			size_t n = bench_sizes[i];
			long it = iters_for(n, 128e6, 2, 1000000);

			for (int r = 0; r < REPS; r++) {
				double t = now_ns();

				for (long j = 0; j < it; j++) {
					memcpy(w ? src : box[1], w ? box[1] : src, n);
					__asm__ volatile("" ::: "memory");
				}
				v[r] = (double)n * (double)it / (now_ns() - t);
			}
			report("line", w ? "memfd_read_bw" : "memfd_write_bw", n, "GB/s", v, REPS);
		}
}

int main(void)
{
	static const struct {
		const char *name;
		int fl;
		size_t lo, hi;
	} var[] = {
		{ "put_half_rtt", 0, 8, ~0ul },
		{ "put_half_rtt+pause", PAUSE, 8, 65536 },
		{ "put_half_rtt+demote", DEMOTE, 8, 4096 },
		{ "put_half_rtt+demote+pause", DEMOTE | PAUSE, 8, 4096 },
		{ "put_half_rtt+consume", CONSUME, 1024, ~0ul },
		{ "put_half_rtt+nt", NT, 4096, ~0ul },
		{ "put_half_rtt+nt+consume", NT | CONSUME, 4096, ~0ul },
	};
	double v[REPS];
	char *src, tag[64];

	c = mem_shared(4096);
	box[0] = mem_shared(BUF);
	box[1] = mem_shared(BUF);
	side = fork() == 0;
	if (side)
		prctl(PR_SET_PDEATHSIG, 9);
	pin(side);
	src = mem_anon(BUF, 1);
	for (int two = 0; two < 2; two++)
		for (int pause = 0; pause < 2; pause++) {
			for (int r = 0; r < REPS; r++)
				v[r] = line(two, pause, 20000);
			snprintf(tag, sizeof tag, "line/%s/%s", two ? "2lines" : "1line", pause ? "pause" : "nopause");
			if (!side)
				report("line", tag, 8, "ns", v, REPS);
		}
	for (size_t q = 0; q < sizeof var / sizeof *var; q++)
		for (size_t i = 0; i < NSIZES; i++) {
			size_t n = bench_sizes[i];

			if (n < var[q].lo || n > var[q].hi)
				continue;
			for (int r = 0; r < REPS; r++)
				v[r] = putlat(n, src, iters_for(n, 48e6, 2, 10000), var[q].fl);
			if (!side)
				report("line", var[q].name, n, "ns", v, REPS);
		}
	for (int r = 0; r < REPS; r++)
		v[r] = ring(500000);
	if (!side)
		report("line", "spsc_ring_rate", 8, "Mmsg/s", v, REPS);
	gate();
	if (side)
		_exit(0);
	waitpid(-1, NULL, 0);
	bandwidth(src);
	return 0;
}
