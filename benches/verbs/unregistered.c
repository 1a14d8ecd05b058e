/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The cost of unregistered buffers over a card: messages of a connectionless endpoint from and to registered memory,
 * and from and to the same memory without a descriptor, taking turns. One thread runs both ends.
 *
 *   unregistered LANES ROUNDS BYTES...
 */
#define _GNU_SOURCE
#include "../ok.h"

#include <errno.h>
#include <string.h>
#include <time.h>

enum { LONGEST = 1 << 22 };

struct side {
	gdrfab_domain *domain;
	gdrfab_cq *cq;
	gdrfab_av *av;
	gdrfab_ep *ep;
	gdrfab_mr *mr;
	char *buf, name[GDRFAB_NAME_LEN];
};

static struct side side_open(gdrfab_fabric *fabric, gdrfab_info *info)
{
	gdrfab_cq_attr attr = {.struct_size = sizeof attr, .size = 100, .format = GDRFAB_CQ_FORMAT_TAGGED};
	struct side s = {.buf = malloc(LONGEST)};
	size_t len = sizeof s.name;

	if (!s.buf)
		fail("malloc", "no memory");
	memset(s.buf, 1, LONGEST);
	OK(gdrfab_domain_open(fabric, info, NULL, &s.domain));
	OK(gdrfab_cq_open(s.domain, &attr, NULL, &s.cq));
	OK(gdrfab_av_open(s.domain, NULL, NULL, &s.av));
	OK(gdrfab_ep_open(s.domain, info, NULL, &s.ep));
	OK(gdrfab_ep_bind_cq(s.ep, s.cq, GDRFAB_TRANSMIT | GDRFAB_RECV));
	OK(gdrfab_ep_bind_av(s.ep, s.av, 0));
	OK(gdrfab_ep_enable(s.ep));
	OK(gdrfab_ep_getname(s.ep, s.name, &len));
	OK(gdrfab_mr_reg(s.domain, s.buf, LONGEST, GDRFAB_SEND | GDRFAB_RECV | GDRFAB_READ | GDRFAB_WRITE | GDRFAB_REMOTE_READ, 0, 0, 0, NULL, &s.mr));
	return s;
}

static int reap(struct side *s)
{
	gdrfab_cq_tagged_entry entry;
	ssize_t n = gdrfab_cq_read(s->cq, &entry, 1);

	if (n != 1 && n != -EAGAIN)
		fail("gdrfab_cq_read", gdrfab_last_error());
	return n == 1;
}

/* Time of both ways, in us. */
static double round_trip(struct side *a, struct side *b, size_t bytes, int named)
{
	struct timespec from, to, moment = {0, 1000};

	clock_gettime(CLOCK_MONOTONIC, &from);
	for (int way = 0; way < 2; way++) {
		struct side *s = way ? b : a, *r = way ? a : b;
		OK(gdrfab_trecv(r->ep, r->buf, bytes, named ? gdrfab_mr_desc(r->mr) : NULL, GDRFAB_ADDR_UNSPEC, 1, 0, NULL));
		OK(gdrfab_tsend(s->ep, s->buf, bytes, named ? gdrfab_mr_desc(s->mr) : NULL, 0, 1, NULL));
		for (int got = 0, now; got < 2; got += now) {
			now = reap(a) + reap(b);
			/* The kernel's part of soft-RoCE needs the core, which a thread that only yields does not
			 * release. */
			if (!now)
				nanosleep(&moment, NULL);
		}
	}
	clock_gettime(CLOCK_MONOTONIC, &to);
	return (double)(to.tv_sec - from.tv_sec) * 1e6 + (double)(to.tv_nsec - from.tv_nsec) / 1e3;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	int rounds = argc > 3 ? atoi(argv[2]) : 0;
	gdrfab_info *hints = gdrfab_dupinfo(NULL), *info;
	gdrfab_fabric *fabric;

	if (rounds < 1) {
		fprintf(stderr, "usage: %s LANES ROUNDS BYTES...\n", argv[0]);
		return 2;
	}
	hints->prov_name = argv[1], hints->ep_type = GDRFAB_EP_RDM, hints->caps = GDRFAB_MSG | GDRFAB_TAGGED;
	hints->mr_mode = GDRFAB_MR_VIRT_ADDR | GDRFAB_MR_PROV_KEY;
	OK(gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, 0, hints, &info));
	hints->prov_name = NULL;
	gdrfab_freeinfo(hints);
	OK(gdrfab_fabric_open(info, NULL, &fabric));
	struct side a = side_open(fabric, info), b = side_open(fabric, info);
	OK(gdrfab_av_insert(a.av, b.name, 1, NULL, 0, NULL));
	OK(gdrfab_av_insert(b.av, a.name, 1, NULL, 0, NULL));
	for (int i = 3; i < argc; i++) {
		size_t bytes = strtoul(argv[i], NULL, 0);
		double *us[2] = {calloc((size_t)rounds, sizeof(double)), calloc((size_t)rounds, sizeof(double))};

		if (bytes > LONGEST)
			fail(argv[i], "too long");
		round_trip(&a, &b, bytes, 1), round_trip(&a, &b, bytes, 0);
		for (int k = 0; k < rounds; k++)
			for (int named = 0; named < 2; named++)
				us[named][k] = round_trip(&a, &b, bytes, named);
		for (int k = 0; k < 2; k++)
			qsort(us[k], (size_t)rounds, sizeof(double), by_size);
		printf("%s: a round trip of %zu bytes: registered %.1f us, unregistered %.1f us: median ratio %.2f, of the least %.2f\n", argv[1],
		       bytes, us[1][rounds / 2], us[0][rounds / 2], us[0][rounds / 2] / us[1][rounds / 2], us[0][0] / us[1][0]);
	}
	return 0;
}
