/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The cost of silent peers to an active one: half a round trip of 8 bytes of a connectionless endpoint that has one
 * peer, and of one that has this peer and many others that have sent one message, taking turns. One thread runs both
 * ends, so that no scheduler is measured. The silent peers are endpoints of another process, and all of them connect
 * at once.
 *
 *   silent LANES SILENT [ROUNDS]
 */
#define _GNU_SOURCE
#include "../ok.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PINGS = 500, PATIENCE_S = 300 };

/* A domain with a queue, and the endpoints that share the queue. */
struct place {
	gdrfab_info *info;
	gdrfab_fabric *fabric;
	gdrfab_domain *domain;
	gdrfab_cq *cq;
	gdrfab_av *av;
	gdrfab_ep *ep;
	char name[GDRFAB_NAME_LEN];
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

static gdrfab_ep *endpoint(struct place *p, char *name)
{
	uint64_t patience = PATIENCE_S * 1000000000ull;
	size_t len = GDRFAB_NAME_LEN;
	gdrfab_ep *ep;

	OK(gdrfab_ep_open(p->domain, p->info, NULL, &ep));
	OK(gdrfab_ep_bind_cq(ep, p->cq, GDRFAB_TRANSMIT | GDRFAB_RECV));
	OK(gdrfab_ep_bind_av(ep, p->av, 0));
	OK(gdrfab_ep_setopt(ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_CONNECT_TIMEOUT, &patience, sizeof patience));
	OK(gdrfab_ep_enable(ep));
	OK(gdrfab_ep_getname(ep, name, &len));
	return ep;
}

static struct place place_open(char *lanes)
{
	gdrfab_cq_attr attr = {.struct_size = sizeof attr, .size = 4096, .format = GDRFAB_CQ_FORMAT_TAGGED};
	gdrfab_info *hints = gdrfab_dupinfo(NULL);
	struct place p;

	hints->prov_name = lanes, hints->ep_type = GDRFAB_EP_RDM, hints->caps = GDRFAB_MSG | GDRFAB_TAGGED;
	hints->threading = GDRFAB_THREAD_DOMAIN;
	hints->mr_mode = GDRFAB_MR_VIRT_ADDR | GDRFAB_MR_PROV_KEY;
	OK(gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, 0, hints, &p.info));
	hints->prov_name = NULL;
	gdrfab_freeinfo(hints);
	OK(gdrfab_fabric_open(p.info, NULL, &p.fabric));
	OK(gdrfab_domain_open(p.fabric, p.info, NULL, &p.domain));
	OK(gdrfab_cq_open(p.domain, &attr, NULL, &p.cq));
	OK(gdrfab_av_open(p.domain, NULL, NULL, &p.av));
	p.ep = endpoint(&p, p.name);
	return p;
}

/* Takes one completion, if there is one. */
static bool reap(struct place *p)
{
	gdrfab_cq_tagged_entry entry;
	ssize_t n = gdrfab_cq_read(p->cq, &entry, 1);

	if (n != 1 && n != -EAGAIN)
		fail("gdrfab_cq_read", gdrfab_last_error());
	return n == 1;
}

static void message(struct place *from, struct place *to)
{
	static uint64_t out, in;

	OK(gdrfab_trecv(to->ep, &in, sizeof in, NULL, GDRFAB_ADDR_UNSPEC, 1, 0, NULL));
	OK(gdrfab_tsend(from->ep, &out, sizeof out, NULL, 0, 1, NULL));
	for (int got = 0; got < 2;)
		got += reap(from) + reap(to);
}

static void meet(struct place *a, struct place *b)
{
	OK(gdrfab_av_insert(a->av, b->name, 1, NULL, 0, NULL));
	OK(gdrfab_av_insert(b->av, a->name, 1, NULL, 0, NULL));
	message(a, b);
	message(b, a);
}

/* The thread's CPU time for half a round trip, in ns; time of other programs does not count. */
static double ping(struct place *a, struct place *b)
{
	double start = now_us(CLOCK_THREAD_CPUTIME_ID);

	for (int i = 0; i < PINGS; i++)
		message(a, b), message(b, a);
	return (now_us(CLOCK_THREAD_CPUTIME_ID) - start) * 1e3 / PINGS / 2;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static int silent_ones(char *lanes, size_t count, int channel)
{
	struct place p = place_open(lanes);
	char name[GDRFAB_NAME_LEN], word;
	uint64_t zero = 0;

	if (read(channel, name, sizeof name) != sizeof name)
		return 1;
	OK(gdrfab_av_insert(p.av, name, 1, NULL, 0, NULL));
	for (size_t i = 0; i < count; i++) {
		char own[GDRFAB_NAME_LEN];
		gdrfab_ep *ep = i ? endpoint(&p, own) : p.ep;
		OK(gdrfab_tsend(ep, &zero, sizeof zero, NULL, 0, 2, NULL));
	}
	for (size_t done = 0; done < count; done += reap(&p))
		;
	return read(channel, &word, 1) != 1;
}

int main(int argc, char **argv)
{
	size_t silent = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
	int rounds = argc > 3 ? atoi(argv[3]) : 101, channel[2], back[2], status;
	struct rlimit files;
	uint64_t in;

	getrlimit(RLIMIT_NOFILE, &files);
	files.rlim_cur = files.rlim_max;
	setrlimit(RLIMIT_NOFILE, &files);
	if (silent < 1 || rounds < 1 || 3 * silent + 100 > files.rlim_cur) {
		fprintf(stderr, "usage: %s LANES SILENT [ROUNDS]; a process has %lu descriptors\n", argv[0], (unsigned long)files.rlim_cur);
		return 77;
	}
	if (pipe(channel) || pipe(back))
		fail("pipe", strerror(errno));
	pid_t others = fork();
	if (others == 0)
		_exit(silent_ones(argv[1], silent, channel[0]));

	struct place alone = place_open(argv[1]), one = place_open(argv[1]), many = place_open(argv[1]), among = place_open(argv[1]);
	double *figures[2] = {calloc((size_t)rounds, sizeof(double)), calloc((size_t)rounds, sizeof(double))};
	meet(&alone, &one);
	meet(&many, &among);
	long before = resident_kib();
	double start = now_us(CLOCK_MONOTONIC);
	for (size_t i = 0; i < silent; i++)
		OK(gdrfab_trecv(many.ep, &in, sizeof in, NULL, GDRFAB_ADDR_UNSPEC, 2, 0, NULL));
	if (write(channel[1], many.name, sizeof many.name) != sizeof many.name)
		fail("write", strerror(errno));
	for (size_t i = 0; i < silent; i += reap(&many))
		;
	printf("%s: %zu call one at once: %.2f s, none is lost; %.1f KiB resident each\n", argv[1], silent,
	       (now_us(CLOCK_MONOTONIC) - start) / 1e6, (double)(resident_kib() - before) / (double)silent);
	for (int i = 0; i < rounds; i++) {
		figures[0][i] = ping(&alone, &one);
		figures[1][i] = ping(&many, &among);
	}
	for (int k = 0; k < 2; k++)
		qsort(figures[k], (size_t)rounds, sizeof(double), by_size);
	double a = figures[0][rounds / 2], b = figures[1][rounds / 2];
	printf("%s: half round trip of 8 bytes: alone %.0f ns, among %zu silent %.0f ns: median ratio %.2f, of the least %.2f\n", argv[1], a,
	       silent, b, b / a, figures[1][0] / figures[0][0]);
	if (write(channel[1], "", 1) != 1)
		fail("write", strerror(errno));
	return waitpid(others, &status, 0) != others || status;
}
