/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Bandwidth over one connection: `rails serve NODE PORT`, and `rails write NODE PORT BYTES SECONDS` or `rails read
 * ...`, which print MB/s (10^6). rails.sh and streams.sh run this program over links with limits or faults.
 */
#define _GNU_SOURCE
#include "../ok.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

enum { ROOM = 64 << 20, DEPTH = 2 };

struct target {
	uint64_t addr, key;
};

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	bool serves = argc == 4 && strcmp(argv[1], "serve") == 0, reads = argc == 6 && strcmp(argv[1], "read") == 0;
	gdrfab_cq_attr attr = {.struct_size = sizeof attr, .size = 64, .format = GDRFAB_CQ_FORMAT_CONTEXT, .wait_obj = GDRFAB_WAIT_FD};
	struct {
		gdrfab_eq_cm_entry entry;
		struct target target;
	} came;
	gdrfab_info *hints = gdrfab_dupinfo(NULL), *info;
	gdrfab_fabric *fabric;
	gdrfab_domain *domain;
	gdrfab_eq *eq;
	gdrfab_cq *cq;
	gdrfab_ep *ep;
	gdrfab_mr *mr;
	gdrfab_cq_entry done;
	char name[] = "tcp", *memory = malloc(ROOM);
	uint32_t event;

	if (!serves && argc != 6)
		fail("usage", "rails serve NODE PORT | rails write|read NODE PORT BYTES SECONDS");
	memset(memory, 1, ROOM);
	hints->prov_name = name;
	OK(gdrfab_getinfo(GDRFAB_VERSION, argv[2], argv[3], serves ? GDRFAB_SOURCE : 0, hints, &info));
	OK(gdrfab_fabric_open(info, NULL, &fabric));
	OK(gdrfab_eq_open(fabric, NULL, NULL, &eq));
	if (serves) {
		gdrfab_pep *pep;
		OK(gdrfab_pep_open(fabric, info, NULL, &pep));
		OK(gdrfab_pep_bind_eq(pep, eq, 0));
		OK(gdrfab_pep_listen(pep));
		OK(gdrfab_eq_sread(eq, &event, &came, sizeof came, -1, 0));
		info = came.entry.info;
	}
	OK(gdrfab_domain_open(fabric, info, NULL, &domain));
	OK(gdrfab_cq_open(domain, &attr, NULL, &cq));
	OK(gdrfab_ep_open(domain, info, NULL, &ep));
	OK(gdrfab_ep_bind_cq(ep, cq, GDRFAB_TRANSMIT | GDRFAB_RECV));
	OK(gdrfab_ep_bind_eq(ep, eq, 0));
	OK(gdrfab_ep_enable(ep));
	if (serves) {
		struct target here = {(uint64_t)memory, 0};
		OK(gdrfab_mr_reg(domain, memory, ROOM, GDRFAB_REMOTE_WRITE | GDRFAB_REMOTE_READ, 0, 0, 0, NULL, &mr));
		here.key = gdrfab_mr_key(mr);
		if (!(info->mr_mode & GDRFAB_MR_VIRT_ADDR))
			here.addr = 0;
		OK(gdrfab_ep_accept(ep, &here, sizeof here));
		/* Until the client has disconnected. */
		for (ssize_t n = 0; (n = gdrfab_eq_read(eq, &event, &came, sizeof came, 0)) == -EAGAIN || event != GDRFAB_SHUTDOWN;)
			gdrfab_cq_sread(cq, &done, 1, 20);
		return 0;
	}
	size_t bytes = strtoull(argv[4], NULL, 0), posted = 0, ended = 0;
	double seconds = strtod(argv[5], NULL);
	OK(gdrfab_ep_connect(ep, info->dest_addr, info->dest_addrlen, NULL, 0));
	OK(gdrfab_eq_sread(eq, &event, &came, sizeof came, 20000, 0));
	/* Counts only after a second, when rails are up and windows are open. */
	double start = now() + 1, measured = 0, end = start + seconds;
	size_t before = 0;
	while (now() < end || ended < posted) {
		if (posted - ended < DEPTH && now() < end) {
			struct target *t = &came.target;
			posted += (reads ? gdrfab_read(ep, memory, bytes, NULL, 0, t->addr, t->key, NULL)
					 : gdrfab_write(ep, memory, bytes, NULL, 0, t->addr, t->key, NULL)) == 0;
		}
		ssize_t n = gdrfab_cq_sread(cq, &done, 1, 5);
		if (n == 1)
			ended++;
		else if (n != -EAGAIN)
			fail("gdrfab_cq_sread", gdrfab_last_error());
		if (n == 1 && now() < start)
			before = ended, measured = now();
	}
	if (measured == 0)
		measured = start - 1;
	printf("%.1f\n", (double)(ended - before) * (double)bytes / (now() - measured) / 1e6);
	char words[4096];
	OK(gdrfab_ep_explain(ep, 0, came.target.key, words, sizeof words));
	fprintf(stderr, "%s\n", words);
	OK(gdrfab_ep_close(ep));
	return 0;
}
