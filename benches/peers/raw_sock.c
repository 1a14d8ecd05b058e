/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The limits of sockets within one host when they are driven by hand: TCP over loopback, both sides spin on
 * non-blocking calls.
 *
 *   raw_sock [-m mode[,mode...]] [-s size[,size...]] [-r reps] [-6]
 * Modes (all of them without -m):
 *   lat      ping-pong; half round trip. Also over a pair of Unix sockets, which shows the cost of TCP
 *   there    `bytes` there and 8 back: the two one-way trips of a put until it is delivered
 *   back     8 there and `bytes` back: those of a get
 *   small    frames of `bytes` after 32 bytes of header, walked and copied out by the receiver; one send for each, or
 *            one for as many as fit into 4 or 64 KiB; ns per frame
 *   stream   transfers of `bytes` into place, pieces of at most cap per call, socket buffers of a fixed size or the
 *            kernel's own; one connection, or two that carry a half each; the system's congestion control or reno,
 *            which paces nothing; ns per transfer and GB/s
 * A run of stream has several variants; the fastest is the floor of that size. */
#include "bench.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define MAX_REPS 64
#define BUF (64u << 20)
#define HEADER 32

struct way {
	const char *name;
	size_t cap;		/* 0: all of it */
	int buffer;		/* 0: the kernel's choice */
	int conns;
	int reno;		/* where it is permitted */
};
static const struct way ways[] = {
	{ "whole", 0, 0, 1, 0 },
	{ "whole+reno", 0, 0, 1, 1 },
	{ "cap32K", 32 << 10, 0, 1, 0 },
	{ "cap512K", 512 << 10, 0, 1, 0 },
	{ "cap512K+reno", 512 << 10, 0, 1, 1 },
	{ "cap128K+buf128K", 128 << 10, 128 << 10, 1, 0 },
	{ "cap256K+buf256K", 256 << 10, 256 << 10, 1, 0 },
	{ "cap512K+buf512K", 512 << 10, 512 << 10, 1, 0 },
	{ "cap512K+buf1M", 512 << 10, 1 << 20, 1, 0 },
	{ "whole+2conns", 0, 0, 2, 0 },
};
#define NWAYS (sizeof ways / sizeof *ways)

static _Atomic uint64_t *turn;
static char *buf;
static int side, family = AF_INET;

static void gate(void)
{
	static uint64_t g;

	g += 2;
	atomic_fetch_add(turn, 1);
	while (atomic_load(turn) < g)
		relax();
}

static void spinning(int fd)
{
	CHECK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK));
}

/* Buffer sizes must be set before connecting, because connecting fixes the window's scale. */
static void connection(int s[2], int buffer, int reno)
{
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr *at = family == AF_INET ? (void *)&v4 : (void *)&v6;
	socklen_t n = family == AF_INET ? sizeof v4 : sizeof v6;
	int one = 1, l = socket(family, SOCK_STREAM, 0);

	CHECK(l);
	CHECK(s[0] = socket(family, SOCK_STREAM, 0));
	for (int k = 0; buffer && k < 2; k++) {
		int fd = k ? l : s[0];

		CHECK(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer));
		CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer));
	}
	CHECK(bind(l, at, n));
	CHECK(listen(l, 1));
	CHECK(getsockname(l, at, &n));
	CHECK(connect(s[0], at, n));
	CHECK(s[1] = accept(l, NULL, NULL));
	close(l);
	for (int k = 0; k < 2; k++) {
		CHECK(setsockopt(s[k], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
		if (reno)
			setsockopt(s[k], IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
		spinning(s[k]);
	}
}

/* One call; returns the bytes moved, 0 if none yet */
static size_t some(int fd, int out, char *p, size_t n)
{
	ssize_t k = out ? send(fd, p, n, MSG_NOSIGNAL) : recv(fd, p, n, 0);

	if (k > 0)
		return (size_t)k;
	if (!k || errno != EAGAIN)
		DIE("side %d: the connection: %s", side, k ? strerror(errno) : "ended");
	return 0;
}

static void all(int fd, int out, char *p, size_t n)
{
	for (size_t k; n; p += k, n -= k)
		k = some(fd, out, p, n);
}

/* Round trips of `there` and `back` bytes; the time of one */
static double trips(int fd, size_t there, size_t back, long it)
{
	double t;

	gate();
	t = now_ns();
	for (long i = 0; i < it; i++) {
		all(fd, !side, buf, there);
		all(fd, side, buf, back);
	}
	t = (now_ns() - t) / (double)it;
	gate();
	return t;
}

/* Frames of n bytes; each send has as many as fit into `batch`, at least one */
static double small(int fd, size_t n, size_t batch, long it)
{
	static char stage[128 << 10];
	size_t frame = HEADER + n, room = batch < frame ? 1 : batch / frame, have = 0;
	char *place = buf + (1 << 20);
	uint64_t head[HEADER / 8] = { 0 }, end = 0;
	double t;

	gate();
	t = now_ns();
	for (long i = 0; !side && i < it;) {
		char *p = stage;

		for (size_t k = 0; k < room && i < it; k++, i++, p += frame) {
			head[1] = n;
			head[2] = (uint64_t)(i & 255) * n;
			memcpy(p, head, HEADER);
			memcpy(p + HEADER, place + head[2], n);
		}
		all(fd, 1, stage, (size_t)(p - stage));
	}
	for (long i = 0; side && i < it;) {
		char *p = stage;

		have += some(fd, 0, stage + have, sizeof stage - have);
		for (; have >= frame; p += frame, have -= frame, i++) {
			memcpy(head, p, HEADER);
			memcpy(place + head[2], p + HEADER, head[1]);
		}
		memmove(stage, p, have);
	}
	all(fd, side, (char *)&end, sizeof end);
	t = (now_ns() - t) / (double)it;
	gate();
	return t;
}

/* Transfers of n bytes one behind another, each to its place; like mode bw of rmabench, 16 places or one */
static double stream(const int *fd, const struct way *w, size_t n, long it)
{
	size_t places = n <= (1 << 20) ? 16 : 1, part = n / (size_t)w->conns, cap = w->cap ? w->cap : n;
	uint64_t end = 0;
	double t;

	gate();
	t = now_ns();
	for (long i = 0; i < it; i++) {
		char *at = buf + (size_t)i % places * n;
		size_t off[2] = { 0 }, left = n;

		while (left)
			for (int c = 0; c < w->conns; c++) {
				size_t rest = part - off[c], k;

				if (!rest)
					continue;
				k = some(fd[c], !side, at + (size_t)c * part + off[c], rest < cap ? rest : cap);
				off[c] += k;
				left -= k;
			}
	}
	all(fd[0], side, (char *)&end, sizeof end);
	t = (now_ns() - t) / (double)it;
	gate();
	return t;
}

static void tell(const char *what, size_t n, double *v, int reps, int rate)
{
	double b[MAX_REPS];

	if (side)
		return;
	for (int r = 0; r < reps; r++)
		b[r] = (double)n / v[r];
	report("sock", what, n, "ns", v, reps);
	if (rate)
		report("sock", what, n, "GB/s", b, reps);
}

#define MEASURE(what, n, rate, once) do { \
	double v_[MAX_REPS]; \
	for (int r_ = -1; r_ < reps; r_++) { /* one to warm up */ \
		double x_ = (once); \
		if (r_ >= 0) \
			v_[r_] = x_; \
	} \
	tell(what, n, v_, reps, rate); \
} while (0)

static int wanted(const char *modes, const char *mode)
{
	size_t n = strlen(mode);

	for (const char *p = modes; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
		if (!strncmp(p, mode, n) && (p[n] == 0 || p[n] == ','))
			return 1;
	return !modes;
}

int main(int argc, char **argv)
{
	static const size_t batches[] = { 0, 4 << 10, 64 << 10 };
	const char *modes = NULL;
	size_t size[32], nsize = 0;
	int pair[2 + NWAYS * 2][2], mine[2 + NWAYS * 2], reps = 21, c, status;
	pid_t me = getpid(), kid;

	while ((c = getopt(argc, argv, "m:s:r:6")) != -1)
		switch (c) {
		case 'm': modes = optarg; break;
		case 's':
			for (char *p = strtok(optarg, ","); p && nsize < 32; p = strtok(NULL, ","))
				size[nsize++] = strtoull(p, NULL, 0);
			break;
		case 'r': reps = atoi(optarg); break;
		case '6': family = AF_INET6; break;
		default: DIE("usage: see the head of raw_sock.c");
		}
	if (reps < 1 || reps > MAX_REPS)
		DIE("-r takes 1 to %d", MAX_REPS);
	for (size_t i = 0; !nsize && i < NSIZES; i++)
		size[i] = bench_sizes[i];
	nsize = nsize ? nsize : NSIZES;
	turn = mem_shared(4096);
	connection(pair[0], 0, 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair[1]));
	for (size_t i = 0; i < NWAYS * 2; i++)
		connection(pair[2 + i], ways[i / 2].buffer, ways[i / 2].reno);
	kid = fork();
	CHECK(kid);
	side = kid == 0;
	if (side) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != me)
			_exit(1);
	}
	pin(side);
	buf = mem_anon(BUF, 1);
	for (size_t i = 0; i < 2 + NWAYS * 2; i++) {
		mine[i] = pair[i][side];
		close(pair[i][!side]);
	}
	for (size_t i = 0; i < nsize; i++) {
		size_t n = size[i];
		long it = iters_for(n, n > (1 << 20) ? 64e6 : 24e6, 2, 4000);
		long many = iters_for(n, n > (1 << 20) ? 256e6 : 64e6, 4, 40000);

		if (n < 8 || n > BUF || n % 8)
			DIE("-s: multiples of 8 up to 64 MiB");
		if (wanted(modes, "lat")) {
			MEASURE("tcp/lat", n, 0, trips(mine[0], n, n, it) / 2);
			MEASURE("unix/lat", n, 0, trips(mine[1], n, n, it) / 2);
		}
		if (wanted(modes, "there"))
			MEASURE("tcp/there", n, 0, trips(mine[0], n, 8, it));
		if (wanted(modes, "back"))
			MEASURE("tcp/back", n, 0, trips(mine[0], 8, n, it));
		for (size_t b = 0; wanted(modes, "small") && n <= 4096 && b < 3; b++) {
			char tag[32];

			snprintf(tag, sizeof tag, "tcp/small/%zuK", batches[b] >> 10);
			MEASURE(tag, n, 0, small(mine[0], n, batches[b], many));
		}
		for (size_t w = 0; wanted(modes, "stream") && n >= 65536 && w < NWAYS; w++) {
			char tag[64];

			snprintf(tag, sizeof tag, "tcp/stream/%s", ways[w].name);
			MEASURE(tag, n, 1, stream(&mine[2 + 2 * w], &ways[w], n, many));
		}
	}
	if (side)
		_exit(0);
	CHECK(waitpid(kid, &status, 0));
	return status != 0;
}
