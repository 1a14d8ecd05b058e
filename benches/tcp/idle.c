/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The cost of idle connections to an active one: half a round trip of 8 bytes to a tcp server with one connection,
 * and to one with many, taking turns. One thread runs both ends, so that no scheduler is measured; the clients of
 * the idle connections are another process.
 *
 *   idle IDLE [ROUNDS [poll]]
 *
 * `poll`: the server waits by gdrfab_cq_trywait() and poll() for each message. RLIMIT_NOFILE bounds IDLE.
 */
#define _GNU_SOURCE
#include "../ok.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PINGS = 200 };

/* A domain with its queues, and its connections. */
struct place {
	gdrfab_info *info;
	gdrfab_fabric *fabric;
	gdrfab_eq *eq;
	gdrfab_domain *domain;
	gdrfab_cq *cq;
	gdrfab_pep *pep;
	gdrfab_ep **eps, *active;
};

static double now_us(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static long resident_kib(void)
{
	long size = 0, pages = 0;
	FILE *f = fopen("/proc/self/statm", "r");

	if (!f || fscanf(f, "%ld %ld", &size, &pages) != 2)
		fail("/proc/self/statm", "unreadable");
	fclose(f);
	return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static void place_open(struct place *p, const char *service, bool listens, size_t count)
{
	gdrfab_info *hints = gdrfab_dupinfo(NULL);
	gdrfab_cq_attr attr = {.struct_size = sizeof attr, .size = 4096, .format = GDRFAB_CQ_FORMAT_DATA, .wait_obj = GDRFAB_WAIT_FD};
	char name[] = "tcp";

	hints->prov_name = name;
	hints->caps = GDRFAB_MSG;
	OK(gdrfab_getinfo(GDRFAB_VERSION, "127.0.0.1", service, listens ? GDRFAB_SOURCE : 0, hints, &p->info));
	hints->prov_name = NULL;
	gdrfab_freeinfo(hints);
	OK(gdrfab_fabric_open(p->info, NULL, &p->fabric));
	OK(gdrfab_eq_open(p->fabric, NULL, NULL, &p->eq));
	OK(gdrfab_domain_open(p->fabric, p->info, NULL, &p->domain));
	OK(gdrfab_cq_open(p->domain, &attr, NULL, &p->cq));
	p->eps = calloc(count, sizeof *p->eps);
	if (!p->eps)
		fail("memory", "none");
	if (listens) {
		OK(gdrfab_pep_open(p->fabric, p->info, NULL, &p->pep));
		OK(gdrfab_pep_bind_eq(p->pep, p->eq, 0));
		OK(gdrfab_pep_listen(p->pep));
	}
}

static gdrfab_ep *endpoint(struct place *p, gdrfab_info *info)
{
	gdrfab_ep *ep;

	OK(gdrfab_ep_open(p->domain, info, NULL, &ep));
	OK(gdrfab_ep_bind_cq(ep, p->cq, GDRFAB_TRANSMIT | GDRFAB_RECV));
	OK(gdrfab_ep_bind_eq(ep, p->eq, 0));
	OK(gdrfab_ep_enable(ep));
	return ep;
}

/* Waits for the next event of this queue; `other`: another queue of this thread that must make progress meanwhile. */
static gdrfab_eq_cm_entry event(struct place *p, uint32_t wanted, struct place *other)
{
	gdrfab_eq_cm_entry entry;
	uint32_t kind;
	ssize_t n;

	do {
		if (other)
			gdrfab_eq_read(other->eq, &kind, NULL, 0, GDRFAB_PEEK);
		n = gdrfab_eq_sread(p->eq, &kind, &entry, sizeof entry, other ? 1 : 20000, 0);
	} while (other && n == -EAGAIN);
	if (n < 0 || kind != wanted)
		fail("gdrfab_eq_sread", n < 0 ? gdrfab_last_error() : "another event");
	return entry;
}

static void serve_one(struct place *p, size_t i, struct place *other)
{
	gdrfab_eq_cm_entry asks = event(p, GDRFAB_CONNREQ, other);

	p->eps[i] = endpoint(p, asks.info);
	gdrfab_freeinfo(asks.info);
	OK(gdrfab_ep_accept(p->eps[i], NULL, 0));
}

static void call(struct place *p, size_t i)
{
	p->eps[i] = endpoint(p, p->info);
	OK(gdrfab_ep_connect(p->eps[i], p->info->dest_addr, p->info->dest_addrlen, NULL, 0));
}

/* Makes a connection both of whose ends belong to this thread. */
static void meet(struct place *server, size_t i, struct place *client)
{
	call(client, 0);
	serve_one(server, i, client);
	event(client, GDRFAB_CONNECTED, server);
	event(server, GDRFAB_CONNECTED, client);
	server->active = server->eps[i], client->active = client->eps[0];
}

static void take(struct place *p)
{
	gdrfab_cq_data_entry entry;
	ssize_t n;

	while ((n = gdrfab_cq_read(p->cq, &entry, 1)) == -EAGAIN)
		;
	if (n != 1)
		fail("gdrfab_cq_read", gdrfab_last_error());
}

static void message(struct place *from, struct place *to, bool polls)
{
	static uint64_t out, in;
	int fd = -1;

	OK(gdrfab_recv(to->active, &in, sizeof in, NULL, 0, NULL));
	if (polls) {
		OK(gdrfab_cq_fd(to->cq, &fd));
		while (gdrfab_cq_trywait(to->cq) == -EAGAIN)
			;
	}
	OK(gdrfab_send(from->active, &out, sizeof out, NULL, 0, NULL));
	take(from);
	if (polls) {
		struct pollfd p = {.fd = fd, .events = POLLIN};
		if (poll(&p, 1, 20000) != 1)
			fail("poll", "nothing came");
	}
	take(to);
}

/* The thread's CPU time for half a round trip, in us; time of other programs does not count. */
static double ping(struct place *client, struct place *server, bool polls)
{
	double start = now_us(CLOCK_THREAD_CPUTIME_ID);

	for (int i = 0; i < PINGS; i++) {
		message(client, server, polls);
		message(server, client, false);
	}
	return (now_us(CLOCK_THREAD_CPUTIME_ID) - start) / PINGS / 2;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *v, int n)
{
	qsort(v, (size_t)n, sizeof *v, by_size);
	return v[n / 2];
}

/* The clients of idle connections. */
static int idle_clients(const char *service, size_t count, int channel)
{
	struct place many = {0};
	char word;

	if (read(channel, &word, 1) != 1)
		return 1;
	if (count > 0) {
		place_open(&many, service, false, count);
		for (size_t i = 0; i < count; i++) {
			call(&many, i);
			event(&many, GDRFAB_CONNECTED, NULL);
		}
	}
	return read(channel, &word, 1) != 1;
}

int main(int argc, char **argv)
{
	size_t idle = argc > 1 ? strtoul(argv[1], NULL, 10) : 999;
	int rounds = argc > 2 ? atoi(argv[2]) : 101, channel[2], status;
	bool polls = argc > 3 && strcmp(argv[3], "poll") == 0;
	struct rlimit files;
	struct place alone = {0}, many = {0}, one = {0}, among = {0};
	char word = 0, ports[2][16];

	getrlimit(RLIMIT_NOFILE, &files);
	files.rlim_cur = files.rlim_max;
	setrlimit(RLIMIT_NOFILE, &files);
	if (rounds < 1 || idle + 100 > files.rlim_cur) {
		fprintf(stderr, "usage: %s IDLE [ROUNDS [poll]]; a process has %lu descriptors\n", argv[0], (unsigned long)files.rlim_cur);
		return 77;
	}
	for (int i = 0; i < 2; i++)
		snprintf(ports[i], sizeof ports[i], "%d", 20000 + 2 * (getpid() % 5000) + i);
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, channel))
		fail("socketpair", strerror(errno));
	pid_t clients = fork();
	if (clients == 0)
		_exit(idle_clients(ports[1], idle, channel[1]));

	double *figures[2] = {calloc((size_t)rounds, sizeof(double)), calloc((size_t)rounds, sizeof(double))};
	place_open(&alone, ports[0], true, 1);
	place_open(&many, ports[1], true, idle + 1);
	if (write(channel[0], &word, 1) != 1)
		fail("write", strerror(errno));
	double start = now_us(CLOCK_MONOTONIC);
	long before = resident_kib();
	for (size_t i = 0; i < idle; i++) {
		serve_one(&many, i, NULL);
		event(&many, GDRFAB_CONNECTED, NULL);
	}
	if (idle > 0)
		printf("%zu connections in %.2f s, %.1f KiB resident each\n", idle, (now_us(CLOCK_MONOTONIC) - start) / 1e6,
		       (double)(resident_kib() - before) / (double)idle);
	place_open(&one, ports[0], false, 1);
	place_open(&among, ports[1], false, 1);
	meet(&alone, 0, &one);
	meet(&many, idle, &among);
	for (int i = 0; i < rounds; i++) {
		figures[0][i] = ping(&one, &alone, polls);
		figures[1][i] = ping(&among, &many, polls);
	}
	double a = median(figures[0], rounds), b = median(figures[1], rounds);
	printf("%s: half round trip of 8 bytes: alone %.2f us, among %zu idle %.2f us: median ratio %.2f, of the least %.2f\n",
	       polls ? "poll()" : "reading", a, idle, b,
	       b / a, figures[1][0] / figures[0][0]);
	if (write(channel[0], &word, 1) != 1)
		fail("write", strerror(errno));
	return waitpid(clients, &status, 0) != clients || status;
}
