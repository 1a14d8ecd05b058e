/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Moving blocks of a key-value cache between two processes, as an inference server with separate prefill and decode
 * does. The holder tells by message where its cache lies; the taker reads the blocks it wants straight out of it, many
 * at once, and tells the holder when it is through. The holder's processor takes no part in the reads.
 *
 *   cc -o kvmove kvmove.c $(pkg-config --cflags --libs gdrfab)
 *   ./kvmove [blocks]
 */
#include <errno.h>
#include <gdrfab.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define OK(call) do { if ((call) < 0) { fprintf(stderr, "%s: %s\n", #call, gdrfab_last_error()); exit(1); } } while (0)
#define BLOCK ((size_t)64 * 1024)

struct cache { uint64_t addr, key, blocks; };

struct side {
	gdrfab_info *info;
	gdrfab_fabric *fabric;
	gdrfab_eq *eq;
	gdrfab_domain *domain;
	gdrfab_cq *cq;
	gdrfab_ep *ep;
};

/* Both sides make an endpoint, tell each other its address by whatever means they have, and connect. */
static void open_side(struct side *s, int out, int in)
{
	gdrfab_info *hints = gdrfab_dupinfo(NULL);
	gdrfab_cq_attr attr = {sizeof attr, 0, 0, GDRFAB_CQ_FORMAT_DATA, GDRFAB_WAIT_UNSPEC};
	char mine[GDRFAB_ADDR_MAX] = "", theirs[GDRFAB_ADDR_MAX];
	size_t len = sizeof mine;
	uint64_t deadline = 5000000000; /* nothing may take longer than 5 s */
	gdrfab_eq_cm_entry event;
	uint32_t kind;

	hints->caps = GDRFAB_MSG | GDRFAB_RMA;
	hints->mr_mode = GDRFAB_MR_VIRT_ADDR | GDRFAB_MR_PROV_KEY;
	hints->tx_op_flags = GDRFAB_COMPLETION;
	OK(gdrfab_getinfo(gdrfab_version(), NULL, NULL, 0, hints, &s->info));
	gdrfab_freeinfo(hints);
	OK(gdrfab_fabric_open(s->info, NULL, &s->fabric));
	OK(gdrfab_eq_open(s->fabric, NULL, NULL, &s->eq));
	OK(gdrfab_domain_open(s->fabric, s->info, NULL, &s->domain));
	OK(gdrfab_cq_open(s->domain, &attr, NULL, &s->cq));
	OK(gdrfab_ep_open(s->domain, s->info, NULL, &s->ep));
	OK(gdrfab_ep_bind_cq(s->ep, s->cq, GDRFAB_TRANSMIT | GDRFAB_RECV));
	OK(gdrfab_ep_bind_eq(s->ep, s->eq, 0));
	OK(gdrfab_ep_setopt(s->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_DEADLINE, &deadline, sizeof deadline));
	OK(gdrfab_ep_enable(s->ep));

	OK(gdrfab_ep_getname(s->ep, mine, &len));
	if (write(out, mine, sizeof mine) != sizeof mine || read(in, theirs, sizeof theirs) != sizeof theirs)
		exit(1);
	OK(gdrfab_ep_connect_addr(s->ep, theirs, strlen(theirs) + 1));
	OK(gdrfab_eq_sread(s->eq, &kind, &event, sizeof event, -1, 0)); /* GDRFAB_CONNECTED */
}

/* The next completion; an error is said in words. */
static gdrfab_cq_data_entry next(struct side *s)
{
	gdrfab_cq_data_entry done;
	ssize_t got = gdrfab_cq_sread(s->cq, &done, 1, NULL, -1);
	if (got != 1) {
		char words[256] = "";
		gdrfab_cq_err_entry e;
		memset(&e, 0, sizeof e);
		e.struct_size = sizeof e;
		e.err_data = words;
		e.err_data_size = sizeof words;
		gdrfab_cq_readerr(s->cq, &e, 0);
		fprintf(stderr, "%s: %s\n", gdrfab_strerror(e.err), words);
		exit(1);
	}
	return done;
}

static void close_side(struct side *s)
{
	OK(gdrfab_ep_close(s->ep));
	OK(gdrfab_cq_close(s->cq));
	OK(gdrfab_domain_close(s->domain));
	OK(gdrfab_eq_close(s->eq));
	OK(gdrfab_fabric_close(s->fabric));
	gdrfab_freeinfo(s->info);
}

static void holder(struct side *s, uint64_t blocks)
{
	char bye[8];
	void *memory;
	gdrfab_mr *mr;
	OK(gdrfab_mem_alloc(s->domain, blocks * BLOCK, 0, &memory));
	for (uint64_t b = 0; b < blocks; b++)
		memset((char *)memory + b * BLOCK, (int)(b % 251), BLOCK);
	OK(gdrfab_mr_reg(s->domain, memory, blocks * BLOCK, GDRFAB_REMOTE_READ, 0, 0, 0, NULL, &mr));
	OK(gdrfab_recv(s->ep, bye, sizeof bye, NULL, 0, bye));
	struct cache cache = {(uintptr_t)memory, gdrfab_mr_key(mr), blocks};
	OK(gdrfab_inject(s->ep, &cache, sizeof cache, 0));
	next(s); /* the taker is through */
	printf("holder: released, \"%s\"\n", bye);
	OK(gdrfab_mr_close(mr));
	OK(gdrfab_mem_free(s->domain, memory));
	close_side(s);
}

static void taker(struct side *s)
{
	struct cache cache;
	char words[1024];
	OK(gdrfab_recv(s->ep, &cache, sizeof cache, NULL, 0, &cache));
	next(s);
	unsigned char *mine = malloc(cache.blocks * BLOCK);
	uint64_t posted = 0, done = 0;
	while (done < cache.blocks) {
		ssize_t rc = -EAGAIN;
		/* The blocks in reverse, since order is the taker's affair. */
		uint64_t b = cache.blocks - 1 - posted;
		if (posted < cache.blocks)
			rc = gdrfab_read(s->ep, mine + b * BLOCK, BLOCK, NULL, 0, cache.addr + b * BLOCK, cache.key, NULL);
		if (rc == 0) {
			posted++;
			continue;
		}
		if (rc != -EAGAIN)
			OK(rc);
		next(s); /* the queue is full, or all is posted: take a completion */
		done++;
	}
	for (uint64_t b = 0; b < cache.blocks; b++)
		if (mine[b * BLOCK] != b % 251 || mine[(b + 1) * BLOCK - 1] != b % 251)
			exit(1);
	OK(gdrfab_ep_explain(s->ep, cache.key, words, sizeof words));
	printf("taker: %llu blocks of %zu bytes read\ntaker: %s", (unsigned long long)cache.blocks, BLOCK, words);
	OK(gdrfab_send(s->ep, "through", 8, NULL, 0, NULL));
	next(s);
	free(mine);
	close_side(s);
}

int main(int argc, char **argv)
{
	uint64_t blocks = argc > 1 ? strtoull(argv[1], NULL, 0) : 100;
	struct side side;
	int there[2], back[2], status = 1;
	if (pipe(there) < 0 || pipe(back) < 0)
		return 1;
	/* fork first: a child must not use what its parent has opened. */
	pid_t child = fork();
	if (child == 0) {
		open_side(&side, there[1], back[0]);
		holder(&side, blocks);
		return 0;
	}
	open_side(&side, back[1], there[0]);
	taker(&side);
	return waitpid(child, &status, 0) == child && status == 0 ? 0 : 1;
}
