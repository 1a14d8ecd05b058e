/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Sends messages over shm between two endpoints of one process, so that callgrind can count each step alone;
 * count.sh prints the table. The steps are named after the functions.
 *
 *   count send|sent|recv|arrive|idle msg|rdm|tag|data domain|safe BYTES ROUNDS [POSTED [exact|wild|same]]
 *   count time SECONDS [domain|safe]
 *
 * A round posts a receive, sends a message, takes the completion of the send, and then that of the receive. Each
 * receive has POSTED receives in front of it that fit no message; with `same`, as many that fit every message.
 * `data` are tagged messages with data. `time` runs connected, connectionless and tagged messages in turns and
 * prints the least time of a round of each, of the last also with data, and with 1000 receives posted.
 */
#define _GNU_SOURCE
#include "../ok.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

enum { LONGEST = 8192, FITS = 7, SPARE = 1 << 20 };

static char source[LONGEST], target[LONGEST], spare[8];

enum kind { MSG, RDM, TAG, DATA };

struct side {
	gdrfab_domain *domain;
	gdrfab_eq *eq;
	gdrfab_cq *cq;
	gdrfab_av *av;
	gdrfab_ep *ep;
	char address[GDRFAB_ADDR_MAX];
	size_t length;
};

struct pair {
	enum kind kind;
	gdrfab_info *info;
	gdrfab_fabric *fabric;
	struct side a, b;
};

static struct side side_open(struct pair *p)
{
	struct side s = {.length = sizeof s.address};
	gdrfab_cq_attr attr = {.struct_size = sizeof attr, .size = 4096, .format = p->kind == MSG ? GDRFAB_CQ_FORMAT_CONTEXT : GDRFAB_CQ_FORMAT_TAGGED};

	OK(gdrfab_domain_open(p->fabric, p->info, NULL, &s.domain));
	OK(gdrfab_eq_open(p->fabric, NULL, NULL, &s.eq));
	OK(gdrfab_cq_open(s.domain, &attr, NULL, &s.cq));
	OK(gdrfab_ep_open(s.domain, p->info, NULL, &s.ep));
	OK(gdrfab_ep_bind_cq(s.ep, s.cq, GDRFAB_TRANSMIT | GDRFAB_RECV));
	if (p->kind == MSG) {
		OK(gdrfab_ep_bind_eq(s.ep, s.eq, 0));
	} else {
		OK(gdrfab_av_open(s.domain, NULL, NULL, &s.av));
		OK(gdrfab_ep_bind_av(s.ep, s.av, 0));
	}
	OK(gdrfab_ep_enable(s.ep));
	OK(gdrfab_ep_getname(s.ep, s.address, &s.length));
	return s;
}

static void side_close(struct side *s)
{
	OK(gdrfab_ep_close(s->ep));
	if (s->av)
		OK(gdrfab_av_close(s->av));
	OK(gdrfab_cq_close(s->cq));
	OK(gdrfab_eq_close(s->eq));
	OK(gdrfab_domain_close(s->domain));
}

static void await_connection(struct side *a, struct side *b)
{
	gdrfab_eq_cm_entry entry;
	uint32_t event;
	bool there[2] = {false, false};

	for (int turn = 0; !there[0] || !there[1]; turn++) {
		struct side *s = turn & 1 ? b : a;
		ssize_t n = gdrfab_eq_sread(s->eq, &event, &entry, sizeof entry, 20, 0);

		if (n < 0 && n != -EAGAIN)
			fail("gdrfab_eq_sread", gdrfab_last_error());
		if (n > 0 && event != GDRFAB_CONNECTED)
			fail("gdrfab_eq_sread", "another event than the connection");
		there[turn & 1] |= n > 0;
		if (turn > 1000)
			fail("connecting", "no connection");
	}
}

#define STEP __attribute__((noinline, noclone)) static void

static void done(ssize_t rc, const char *what)
{
	if (rc)
		fail(what, gdrfab_last_error());
}

STEP recv_(struct side *s, enum kind kind, size_t bytes)
{
	done(kind >= TAG ? gdrfab_trecv(s->ep, target, bytes, NULL, GDRFAB_ADDR_UNSPEC, FITS, 0, s)
			 : gdrfab_recv(s->ep, target, bytes, NULL, GDRFAB_ADDR_UNSPEC, s), "a receive");
}

STEP send_(struct side *s, enum kind kind, size_t bytes)
{
	done(kind == DATA  ? gdrfab_tsenddata(s->ep, source, bytes, NULL, FITS, 0, FITS, NULL)
	     : kind == TAG ? gdrfab_tsend(s->ep, source, bytes, NULL, 0, FITS, NULL)
			   : gdrfab_send(s->ep, source, bytes, NULL, 0, NULL), "a send");
}

/* A send has no context; a receive has that of its side. */
static inline void reap(struct side *s, void *context)
{
	union {
		gdrfab_cq_entry context[16];
		gdrfab_cq_tagged_entry tagged[16];
	} entry;
	ssize_t n = gdrfab_cq_read(s->cq, &entry, 16);

	if (n != 1 || entry.context[0].op_context != context)
		fail("gdrfab_cq_read", "nothing there, another entry, or a failure");
}

STEP sent_(struct side *s)
{
	reap(s, NULL);
}

STEP arrive_(struct side *s)
{
	reap(s, s);
}

STEP idle_(struct side *s)
{
	gdrfab_cq_tagged_entry entry[16];

	if (gdrfab_cq_read(s->cq, entry, 16) != -EAGAIN)
		fail("gdrfab_cq_read", "something there, or a failure");
}

static struct pair open_pair(enum kind kind, bool one_thread)
{
	struct pair p = {.kind = kind};
	gdrfab_info *hints = gdrfab_dupinfo(NULL);
	char name[] = "shm";

	hints->prov_name = name;
	hints->ep_type = kind == MSG ? GDRFAB_EP_MSG : GDRFAB_EP_RDM;
	hints->caps = GDRFAB_MSG | (kind == MSG ? 0 : GDRFAB_TAGGED);
	hints->mr_mode = GDRFAB_MR_VIRT_ADDR | GDRFAB_MR_PROV_KEY;
	hints->threading = one_thread ? GDRFAB_THREAD_DOMAIN : GDRFAB_THREAD_SAFE;
	OK(gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, 0, hints, &p.info));
	hints->prov_name = NULL;
	gdrfab_freeinfo(hints);
	OK(gdrfab_fabric_open(p.info, NULL, &p.fabric));
	p.a = side_open(&p), p.b = side_open(&p);
	if (kind == MSG) {
		OK(gdrfab_ep_connect_addr(p.a.ep, p.b.address, p.b.length));
		OK(gdrfab_ep_connect_addr(p.b.ep, p.a.address, p.a.length));
		await_connection(&p.a, &p.b);
		return p;
	}
	OK(gdrfab_av_insert(p.a.av, p.b.address, 1, NULL, 0, NULL));
	OK(gdrfab_av_insert(p.b.av, p.a.address, 1, NULL, 0, NULL));
	/* The first message connects, and needs both sides' progress. */
	recv_(&p.b, kind, 8);
	send_(&p.a, kind, 8);
	gdrfab_cq_tagged_entry entry;
	for (int got = 0; got < 2;)
		got += (gdrfab_cq_read(p.a.cq, &entry, 1) == 1) + (gdrfab_cq_read(p.b.cq, &entry, 1) == 1);
	return p;
}

static void close_pair(struct pair *p)
{
	gdrfab_cq_err_entry e = {.struct_size = sizeof e};

	side_close(&p->a);
	OK(gdrfab_ep_close(p->b.ep));
	/* The POSTED receives are cancelled. */
	while (gdrfab_cq_readerr(p->b.cq, &e, 0) == 1)
		;
	if (p->b.av)
		OK(gdrfab_av_close(p->b.av));
	OK(gdrfab_cq_close(p->b.cq));
	OK(gdrfab_eq_close(p->b.eq));
	OK(gdrfab_domain_close(p->b.domain));
	OK(gdrfab_fabric_close(p->fabric));
	gdrfab_freeinfo(p->info);
}

static void post_same(struct pair *p, long count, size_t bytes)
{
	for (long i = 0; i < count; i++)
		recv_(&p->b, p->kind, bytes);
}

static void post_spare(struct pair *p, long count, bool wild)
{
	for (long i = 0; i < count; i++)
		done(gdrfab_trecv(p->b.ep, spare, sizeof spare, NULL, wild ? GDRFAB_ADDR_UNSPEC : 0, SPARE + ((uint64_t)i << 32),
				  wild ? 0xffff : 0, spare), "a spare receive");
}

static inline void turn(struct pair *p, size_t bytes, bool idle)
{
	recv_(&p->b, p->kind, bytes);
	send_(&p->a, p->kind, bytes);
	sent_(&p->a);
	arrive_(&p->b);
	if (idle)
		idle_(&p->b);
}

static double now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void measure(double seconds, bool one_thread)
{
	static const char *const names[] = {"msg", "rdm", "tag", "tag, with data", "tag, 1000 posted exact", "tag, 1000 posted wild"};
	struct pair pairs[] = {open_pair(MSG, one_thread), open_pair(RDM, one_thread), open_pair(TAG, one_thread),
			       open_pair(DATA, one_thread), open_pair(TAG, one_thread), open_pair(TAG, one_thread)};
	enum { COUNT = sizeof pairs / sizeof *pairs, BATCH = 1000 };
	double least[COUNT], until = now_ns() + seconds * 1e9;

	post_spare(&pairs[4], 1000, false);
	post_spare(&pairs[5], 1000, true);
	for (int k = 0; k < COUNT; k++)
		least[k] = 1e9;
	while (now_ns() < until)
		for (int k = 0; k < COUNT; k++) {
			double start = now_ns(), each;

			for (int i = 0; i < BATCH; i++)
				turn(&pairs[k], 8, false);
			each = (now_ns() - start) / BATCH;
			if (each < least[k])
				least[k] = each;
		}
	for (int k = 0; k < COUNT; k++)
		printf("%-24s %7.1f ns %6.2f of msg\n", names[k], least[k], least[k] / least[0]);
	for (int k = 0; k < COUNT; k++)
		close_pair(&pairs[k]);
}

int main(int argc, char **argv)
{
	if (argc >= 3 && !strcmp(argv[1], "time")) {
		measure(atof(argv[2]), argc < 4 || strcmp(argv[3], "safe"));
		return 0;
	}
	size_t bytes = argc >= 6 ? strtoul(argv[4], NULL, 0) : LONGEST + 1;
	long rounds = argc >= 6 ? atol(argv[5]) : 0;

	if (bytes > LONGEST || rounds < 1) {
		fprintf(stderr, "usage: count STEP msg|rdm|tag|data domain|safe BYTES ROUNDS [POSTED [exact|wild|same]]\n");
		return 2;
	}
	static const char *const kinds[] = {"msg", "rdm", "tag", "data"};
	enum kind kind = MSG;
	while (kind < DATA && strcmp(argv[2], kinds[kind]))
		kind++;
	struct pair p = open_pair(kind, !strcmp(argv[3], "domain"));

	if (argc > 7 && !strcmp(argv[7], "same"))
		post_same(&p, atol(argv[6]), bytes);
	else
		post_spare(&p, argc > 6 ? atol(argv[6]) : 0, argc > 7 && !strcmp(argv[7], "wild"));
	for (long round = 1; round <= rounds; round++) {
		memset(source, (int)round, bytes);
		turn(&p, bytes, true);
		if (memcmp(target, source, bytes))
			fail("a message", "other bytes than were sent");
	}
	close_pair(&p);
	return 0;
}
