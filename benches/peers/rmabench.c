/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Latency, rate and bandwidth between two pinned processes over an exchangeable transport.
 *   rmabench -t backend[:options] [-m mode] [-s size[,size...]] [-r reps] [-w window] [-b blocks] [-c cpu0,cpu1] [-i]
 *   rmabench -l                      list the back-ends of this build: name, version, options
 * Modes:
 *   lat       put ping-pong; the peer polls the last 8 bytes and answers alike; half round trip
 *   dclat     put and wait until delivered (flush)
 *   getlat    one get at a time
 *   faddlat   one fetch-and-add of 8 bytes at a time; no sizes
 *   bw        window of puts, flushed at the end; ns per put and GB/s
 *   getbw     window of gets
 *   readlist  window of gets, each of a list of -b blocks (1024) in random places of both sides; a size is all its bytes
 *   writelist the same of puts
 *   sendlat   message ping-pong, two receives always posted; half round trip
 *   sendrate  window of sends to posted receives, until the last has arrived; ns per message
 *   waitlat   sendlat with both sides in the back-end's blocking wait
 *   idle      both sides wait in vain for a second; CPU time of side 0, ns per second; no sizes
 * -i: in the one-way modes (dclat getlat faddlat bw getbw readlist writelist) side 1 sleeps instead of driving its transport. A transport that
 *     needs its target's help never ends with it. */
#include "bench.h"
#include "transport.h"
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/wait.h>

static const struct tp_ops *const backends[] = {
	&tp_memfd,
	&tp_cma,
#ifdef WITH_GDRFAB
	&tp_gdrfab,
#endif
#ifdef WITH_OFI
	&tp_ofi,
#endif
#ifdef WITH_UCP
	&tp_ucp,
#endif
};
#define NBACKENDS (sizeof backends / sizeof *backends)

enum mode { LAT, DCLAT, GETLAT, FADDLAT, BW, GETBW, READLIST, WRITELIST, SENDLAT, SENDRATE, WAITLAT, IDLE, NMODES };
static const char *const mode_name[] = {
	"lat", "dclat", "getlat", "faddlat", "bw", "getbw", "readlist", "writelist", "sendlat", "sendrate", "waitlat", "idle"
};

struct ctl {
	_Alignas(128) _Atomic uint64_t gate;
	_Alignas(128) _Atomic uint64_t done;
};
#define MAX_REPS 256

static struct ctl *ctl;
static struct tp *tp;
static int side, idle;
static long window;
static struct tp_block *blocks;	/* of a list: offsets in both memories, in blocks */
static size_t block_count = 1024;
static volatile sig_atomic_t closing;

void oob_swap(int fd, const void *mine, void *theirs, size_t n)
{
	if (send(fd, mine, n, MSG_NOSIGNAL) != (ssize_t)n || recv(fd, theirs, n, MSG_WAITALL) != (ssize_t)n)
		DIE("side %d: the other side is gone", side);
}

int has_opt(const char *arg, const char *opt)
{
	size_t n = strlen(opt);

	for (const char *p = arg; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
		if (!strncmp(p, opt, n) && (p[n] == 0 || p[n] == ','))
			return 1;
	return 0;
}

/* barrier that keeps the transport moving */
static void gate(void)
{
	static uint64_t g;

	g += 2;
	atomic_fetch_add(&ctl->gate, 1);
	while (atomic_load(&ctl->gate) < g)
		tp->ops->progress(tp);
}

static _Atomic uint64_t *tail(char *base, size_t off, size_t n)
{
	return (_Atomic uint64_t *)(void *)(base + off + n - 8);
}

static double lat(size_t n, long it)
{
	_Atomic uint64_t *in = tail(tp->exposed, 0, n), *out = tail(tp->source, 0, n);
	double t;

	atomic_store(in, 0);
	gate();
	t = now_ns();
	for (long i = 1; i <= it; i++)
		for (int turn = 0; turn < 2; turn++)
			if (turn == side) {
				atomic_store_explicit(out, (uint64_t)i, memory_order_relaxed);
				while (!tp->ops->put(tp, 0, 0, n))
					tp->ops->progress(tp);
			} else {
				while (atomic_load_explicit(in, memory_order_acquire) != (uint64_t)i)
					tp->ops->progress(tp);
			}
	t = (now_ns() - t) / (2.0 * (double)it);
	tp->ops->flush(tp);
	gate();
	return t;
}

/* Gives each block an offset of its own, with a free one after each, so that no block adjoins another. */
static void shuffle(void)
{
	uint64_t x = 88172645463325252;

	blocks = malloc(block_count * sizeof *blocks);
	for (size_t i = 0; i < block_count; i++)
		blocks[i].loff = blocks[i].roff = 2 * i;
	for (size_t i = block_count; i-- > 1;) {
		size_t l = (x = x * 6364136223846793005 + 1442695040888963407, x >> 33) % (i + 1), t = blocks[i].loff;
		size_t r = (x = x * 6364136223846793005 + 1442695040888963407, x >> 33) % (i + 1), u = blocks[i].roff;

		blocks[i].loff = blocks[l].loff;
		blocks[l].loff = t;
		blocks[i].roff = blocks[r].roff;
		blocks[r].roff = u;
	}
}

/* side 0 works, side 1 only progresses, or sleeps */
static double oneway(enum mode m, size_t n, long it)
{
	static uint64_t round;
	int puts = m == DCLAT || m == BW || m == WRITELIST, lists = m == READLIST || m == WRITELIST;
	long posted = 0, done = 0, win = m == DCLAT || m == GETLAT || m == FADDLAT ? 1 : window;
	long slots = (long)(tp->bytes / n);
	double t;

	if (slots > window)
		slots = window;
	gate();
	round++;
	t = now_ns();
	if (side) {
		while (atomic_load_explicit(&ctl->done, memory_order_acquire) != round)
			if (idle)
				usleep(50);
			else
				tp->ops->progress(tp);
	} else {
		while (done < it) {
			while (posted < it && posted - done < win) {
				size_t off = (size_t)(posted % slots) * n;

				if (m == FADDLAT ? !tp->ops->fadd(tp, off, off)
				    : lists ? !tp->ops->list(tp, blocks, block_count, n / block_count, !puts)
					  : !(puts ? tp->ops->put : tp->ops->get)(tp, off, off, n))
					break;
				posted++;
				if (m == DCLAT) {
					tp->ops->flush(tp);
					done++;
				}
				if (win > 16 && !(posted & 15))
					break;	/* reap now and then */
			}
			if (m != DCLAT)
				done += tp->ops->progress(tp);
		}
		if (m == BW || m == WRITELIST)
			tp->ops->flush(tp);
		t = now_ns() - t;
		atomic_store(&ctl->done, round);
	}
	gate();
	return t / (double)it;
}

static void post_recv(size_t off, size_t n)
{
	while (!tp->ops->recv(tp, off, n))
		tp->ops->progress(tp);
}

/* Two receives stay posted, so that re-posting is off the critical path and no message comes unexpected. */
static double sendlat(int (*turn_of)(struct tp *), size_t n, long it)
{
	size_t half = tp->bytes / 2;
	long first = tp->received, in_flight = 0;
	double t;

	for (int k = 0; k < 2; k++)
		post_recv(half + (size_t)k * n, n);
	gate();
	t = now_ns();
	for (long i = 1; i <= it; i++) {
		size_t at = half + (size_t)(~i & 1) * n;

		for (int turn = 0; turn < 2; turn++)
			if (turn == side) {
				while (in_flight)
					in_flight -= turn_of(tp);
				atomic_store_explicit(tail(tp->source, 0, n), (uint64_t)i, memory_order_relaxed);
				while (!tp->ops->send(tp, 0, n))
					in_flight -= tp->ops->progress(tp);
				in_flight++;
			} else {
				while (tp->received < first + i)
					in_flight -= turn_of(tp);
				if (atomic_load_explicit(tail(tp->source, at, n), memory_order_relaxed) != (uint64_t)i)
					DIE("side %d: message %ld of %zu bytes carries other data", side, i, n);
			}
		if (i + 2 <= it)
			post_recv(at, n);
	}
	t = (now_ns() - t) / (2.0 * (double)it);
	while (in_flight)
		in_flight -= tp->ops->progress(tp);
	gate();
	return t;
}

static int asleep(struct tp *t)
{
	return t->ops->wait(t, 1000);
}

/* CPU time of this process in a second of waiting for nothing */
static double idle_second(void)
{
	struct timespec a, b;
	double t;

	gate();
	t = now_ns();
	CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a));
	for (double left = 1e9; left > 1e6; left = t + 1e9 - now_ns())
		tp->ops->wait(tp, (int)(left / 1e6));
	CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b));
	t = now_ns() - t;
	gate();
	return ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / t * 1e9;
}

static double sendrate(size_t n, long it)
{
	static uint64_t round;
	size_t half = tp->bytes / 2;
	long win = (long)(half / n) < window ? (long)(half / n) : window;
	long first = tp->received, posted = 0, done = 0;
	double t;

	for (; side && posted < it && posted < win; posted++)
		post_recv(half + (size_t)(posted % win) * n, n);
	gate();
	round++;
	t = now_ns();
	if (side) {
		while (tp->received - first < it) {
			tp->ops->progress(tp);
			while (posted < it && posted - (tp->received - first) < win &&
			       tp->ops->recv(tp, half + (size_t)(posted % win) * n, n))
				posted++;
		}
		atomic_store(&ctl->done, round);
	} else {
		while (done < it) {
			while (posted < it && posted - done < win &&
			       tp->ops->send(tp, (size_t)(posted % win) * n, n))
				if (!(++posted & 15))
					break;
			done += tp->ops->progress(tp);
		}
		while (atomic_load_explicit(&ctl->done, memory_order_acquire) != round)
			tp->ops->progress(tp);
		t = now_ns() - t;
	}
	gate();
	return t / (double)it;
}

static long window_for(size_t n, long asked)
{
	return asked ? asked : n <= 4096 ? 256 : n <= (1 << 20) ? 16 : 4;
}

static void run(const char *name, enum mode m, size_t n, int reps)
{
	int streams = m == BW || m == GETBW || m == READLIST || m == WRITELIST || m == SENDRATE, big = n > (1 << 20);
	long it = streams ? iters_for(n, big ? 256e6 : 64e6, window, 40000)
			  : iters_for(n, big ? 64e6 : 24e6, 2, 4000);
	double v[MAX_REPS], b[MAX_REPS];
	char tag[128];

	for (int r = -2; r < reps; r++) {	/* two to warm up */
		double x = m == LAT ? lat(n, it) : m == SENDLAT ? sendlat(tp->ops->progress, n, it) :
			   m == WAITLAT ? sendlat(asleep, n, it) : m == IDLE ? idle_second() :
			   m == SENDRATE ? sendrate(n, it) : oneway(m, n, it);

		if (r >= 0) {
			v[r] = x;
			b[r] = (double)n / x;
		}
	}
	if (side)
		return;
	snprintf(tag, sizeof tag, "%s/%s", name, mode_name[m]);
	for (char *p = tag; *p; p++)
		if (*p == ',')
			*p = '+';
	report("rma", tag, m == IDLE ? 0 : n, m == IDLE ? "ns/s" : "ns", v, reps);
	if (streams)
		report("rma", tag, n, "GB/s", b, reps);
}

/* A side that dies must not leave the other one spinning. */
static void on_child(int sig)
{
	static const char words[] = "side 1 ended early\n";

	(void)sig;
	if (closing)
		return;
	if (write(2, words, sizeof words - 1) < 0)
		_exit(2);
	_exit(1);
}

static int list(void)
{
	for (size_t i = 0; i < NBACKENDS; i++)
		printf("%s\t%s\t%s\n", backends[i]->name, backends[i]->version(), backends[i]->help);
	return 0;
}

static const struct tp_ops *find(const char *spec)
{
	size_t n = strcspn(spec, ":");

	for (size_t i = 0; i < NBACKENDS; i++)
		if (strlen(backends[i]->name) == n && !strncmp(backends[i]->name, spec, n))
			return backends[i];
	DIE("no back-end %s in this build (-l lists them)", spec);
}

int main(int argc, char **argv)
{
	const char *name = "memfd", *mode = "lat", *sizes = NULL, *end;
	size_t sz[32], nsz = 0, bytes = 4u << 20;
	int reps = 21, cpu[2] = { 0, 1 }, c, sv[2], status;
	long asked = 0;
	enum mode m = LAT;
	struct tp_open open = { .arg = "" };
	const struct tp_ops *ops;
	pid_t me = getpid(), kid;

	while ((c = getopt(argc, argv, "t:m:s:r:w:b:c:il")) != -1)
		switch (c) {
		case 't': name = optarg; break;
		case 'm': mode = optarg; break;
		case 's': sizes = optarg; break;
		case 'r': reps = atoi(optarg); break;
		case 'w': asked = atol(optarg); break;
		case 'b': block_count = strtoull(optarg, NULL, 0); break;
		case 'c': sscanf(optarg, "%d,%d", &cpu[0], &cpu[1]); break;
		case 'i': idle = 1; break;
		case 'l': return list();
		default: DIE("usage: see the head of rmabench.c");
		}
	ops = find(name);
	if (strchr(name, ':'))
		open.arg = strchr(name, ':') + 1;
	while (m < NMODES && strcmp(mode, mode_name[m]))
		m++;
	if (m == NMODES)
		DIE("no mode %s", mode);
	if (reps < 1 || reps > MAX_REPS)
		DIE("-r takes 1 to %d", MAX_REPS);
	open.msg = m >= SENDLAT;
	open.sleeps = m == WAITLAT || m == IDLE;
	open.atomic = m == FADDLAT;
	if (open.sleeps && !ops->wait)
		DIE("%s does not wait asleep", ops->name);
	if (open.msg && !ops->send)
		DIE("%s has no messages", ops->name);
	if ((m == READLIST || m == WRITELIST) && !ops->list)
		DIE("%s has no lists", ops->name);
	if (m == FADDLAT && !ops->fadd)
		DIE("%s has no atomics", ops->name);
	if (block_count < 1 || block_count > 1 << 20)
		DIE("-b takes 1 to %d", 1 << 20);
	if (idle && (m == LAT || open.msg))
		DIE("-i: both sides work in mode %s", mode);
	for (const char *p = sizes; p && *p && nsz < 32; p = *end ? end + 1 : end) {
		char *e;

		sz[nsz++] = strtoull(p, &e, 0);
		if (e == p || sz[nsz - 1] < 8 || sz[nsz - 1] % 8)
			DIE("-s: sizes are multiples of 8");
		end = e;
	}
	if (m == IDLE || m == FADDLAT) {
		sizes = "";
		sz[0] = 8;
		nsz = 1;
	}
	for (size_t i = 0; !sizes && i < NSIZES; i++)
		if (!open.msg || bench_sizes[i] <= (1 << 20))
			sz[nsz++] = bench_sizes[i];
	for (size_t i = 0; i < nsz; i++) {	/* all slots of a window; half for each direction of messages */
		size_t need = sz[i] > (1 << 20) ? sz[i] : sz[i] * (size_t)window_for(sz[i], asked);

		if (m == READLIST || m == WRITELIST) {
			if (sz[i] % (8 * block_count))
				DIE("-s: a list of %zu blocks has blocks of a multiple of 8 bytes", block_count);
			need = 2 * sz[i];
		}
		need = (open.msg ? 2 : 1) * (need + (2u << 20) - 1) / (2u << 20) * (2u << 20);
		if (need > bytes)
			bytes = need;
	}
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sv));
	ctl = mem_shared(4096);
	if (ops->setup)
		ops->setup(bytes);
	signal(SIGCHLD, on_child);
	kid = fork();
	CHECK(kid);
	side = kid == 0;
	if (side) {
		signal(SIGCHLD, SIG_DFL);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != me)
			_exit(1);
	}
	close(sv[!side]);
	allow_cma();
	pin(cpu[side]);
	open.side = side;
	open.oob = sv[side];
	open.bytes = bytes;
	tp = ops->open(&open);
	tp->ops = ops;
	tp->bytes = bytes;
	memset(tp->source, 0, bytes);
	if (m == READLIST || m == WRITELIST)
		shuffle();
	for (size_t i = 0; i < nsz; i++) {
		window = window_for(sz[i], asked);
		run(name, m, sz[i], reps);
	}
	closing = 1;
	gate();
	ops->close(tp);
	if (side)
		_exit(0);
	waitpid(kid, &status, 0);
	return status != 0;
}
