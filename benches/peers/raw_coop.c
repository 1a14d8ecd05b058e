/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Can two cores move one large put faster than one? Source and destination are shared mappings (or private memory
 * reached with CMA); side 0 copies all of it, or side 0 the first and side 1 the second half. Also an eager message
 * (copy in, copy out) with and without CLDEMOTE by the sender.
 *   raw_coop [-s size[,size...]] [-r reps]      with -s: only these sizes, and no messages */
#include "bench.h"
#include <signal.h>
#include <stdatomic.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define MAX_REPS 64
#define BUF (64u << 20)
enum how { COPY, NT, CMA };
static const char *const how_name[] = { "memcpy", "nt", "cma" };

struct ctl {
	_Alignas(128) _Atomic uint64_t gate;
	_Alignas(128) _Atomic uint64_t go;
	_Alignas(128) _Atomic uint64_t done;
	_Alignas(128) _Atomic uint64_t flag[2][16];
};
static struct ctl *ctl;
static char *src, *dst, *priv;
static pid_t other;
static int side;

static void gate(void)
{
	static uint64_t g;

	g += 2;
	atomic_fetch_add(&ctl->gate, 1);
	while (atomic_load(&ctl->gate) < g)
		relax();
}

__attribute__((target("cldemote")))
static void demote(char *d, size_t n)
{
	for (size_t i = 0; i < n; i += 64)
		_cldemote(d + i);
}

/* CMA: side 0 owns the source, side 1 the destination, both at priv */
static void part(enum how how, size_t off, size_t n)
{
	struct iovec l = { priv + off, n }, r = { priv + off, n };
	ssize_t k;

	if (how == COPY) {
		memcpy(dst + off, src + off, n);
	} else if (how == NT) {
		nt_copy(dst + off, src + off, n);
	} else {
		k = side ? process_vm_readv(other, &l, 1, &r, 1, 0) : process_vm_writev(other, &l, 1, &r, 1, 0);
		if (k != (ssize_t)n)
			DIE("process_vm: %s", strerror(errno));
	}
}

static double big(enum how how, int both, size_t n, long it)
{
	static uint64_t seq;
	double t;

	gate();
	t = now_ns();
	for (long i = 0; i < it; i++) {
		seq++;
		if (!side) {
			if (both)
				atomic_store(&ctl->go, seq);
			part(how, 0, both ? n / 2 : n);
			while (both && atomic_load(&ctl->done) != seq)
				relax();
		} else if (both) {
			while (atomic_load(&ctl->go) != seq)
				relax();
			part(how, n / 2, n / 2);
			atomic_store(&ctl->done, seq);
		}
	}
	t = (now_ns() - t) / (double)it;
	gate();
	return t;
}

/* ping-pong: copy into the shared slot, the peer copies out to private memory */
static double eager(size_t n, long it, int dm)
{
	char *slot[2] = { dst, dst + (1 << 20) };
	double t;

	if (!side) {
		atomic_store(&ctl->flag[0][0], 0);
		atomic_store(&ctl->flag[1][0], 0);
	}
	gate();
	t = now_ns();
	for (long i = 1; i <= it; i++)
		for (int turn = 0; turn < 2; turn++)
			if (turn == side) {
				memcpy(slot[side], priv, n);
				if (dm)
					demote(slot[side], n);
				atomic_store_explicit(&ctl->flag[side][0], (uint64_t)i, memory_order_release);
			} else {
				while (atomic_load_explicit(&ctl->flag[!side][0], memory_order_acquire) != (uint64_t)i)
					relax();
				memcpy(priv + (1 << 20), slot[!side], n);
			}
	t = (now_ns() - t) / (2.0 * (double)it);
	gate();
	return t;
}

static void copies(size_t n, int reps)
{
	double v[MAX_REPS], b[MAX_REPS];
	char tag[64];

	for (enum how how = COPY; how <= CMA; how++)
		for (int both = 0; both < 2; both++) {
			for (int r = -1; r < reps; r++) {
				double x = big(how, both, n, iters_for(n, 64e6, 2, 200));

				if (r >= 0) {
					v[r] = x;
					b[r] = (double)n / x;
				}
			}
			if (side)
				continue;
			snprintf(tag, sizeof tag, "%s/%dcore", how_name[how], both + 1);
			report("coop", tag, n, "ns", v, reps);
			report("coop", tag, n, "GB/s", b, reps);
		}
}

int main(int argc, char **argv)
{
	size_t size[32], nsize = 0;
	int reps = 21, c;
	double v[MAX_REPS];
	pid_t me = getpid(), kid;

	while ((c = getopt(argc, argv, "s:r:")) != -1)
		switch (c) {
		case 's':
			for (char *p = strtok(optarg, ","); p && nsize < 32; p = strtok(NULL, ","))
				size[nsize++] = strtoull(p, NULL, 0);
			break;
		case 'r': reps = atoi(optarg); break;
		default: DIE("usage: see the head of raw_coop.c");
		}
	if (reps < 1 || reps > MAX_REPS)
		DIE("-r takes 1 to %d", MAX_REPS);
	ctl = mem_shared(4096);
	src = mem_shared(BUF);
	dst = mem_shared(BUF);
	priv = mem_anon(BUF, 1);
	kid = fork();
	side = kid == 0;
	if (side)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	other = side ? me : kid;
	allow_cma();
	pin(side);
	memset(priv, side, BUF);
	gate();
	for (size_t i = 0; i < nsize; i++) {
		if (size[i] < 512 || size[i] > BUF)
			DIE("-s: 512 bytes to 64 MiB");
		copies(size[i], reps);
	}
	for (size_t n = 65536; !nsize && n <= BUF; n *= n < (1 << 20) ? 4 : 8)
		copies(n, reps);
	for (size_t n = 64; !nsize && n <= 65536; n *= n == 64 ? 16 : 4)
		for (int dm = 0; dm < 2; dm++) {
			for (int r = 0; r < reps; r++)
				v[r] = eager(n, iters_for(n, 16e6, 10, 10000), dm);
			if (!side)
				report("coop", dm ? "eager_copyin_copyout+demote" : "eager_copyin_copyout", n, "ns", v,
				       reps);
		}
	if (side)
		_exit(0);
	waitpid(kid, NULL, 0);
	return 0;
}
