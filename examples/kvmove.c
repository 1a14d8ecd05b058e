/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Moves blocks of a key-value cache between two processes, like an inference server with separate prefill and
 * decode. The holder describes its cache in a message. The taker reads the blocks that it wants straight out of the
 * cache, all of them in one call, and tells the holder when it has finished. The holder's processor takes no part in
 * the reads.
 *
 *   cc -o kvmove kvmove.c $(pkg-config --cflags --libs gdrfab)
 *   ./kvmove [--mem host|cuda:N] [--blocks N] [--size BYTES] [--die]
 *
 * --die: the holder is killed once the taker knows its cache.
 */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <gdrfab.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define OK(call) do { if ((call) < 0) { fprintf(stderr, "%s: %s\n", #call, gdrfab_last_error()); exit(1); } } while (0)
#define DEADLINE ((uint64_t)5000000000) /* nothing may take longer than 5 s */
#define ROUNDS 20

static struct { uint64_t blocks, size; uint32_t iface; uint64_t device; bool die; } what = {1000, 16384, GDRFAB_HMEM_SYSTEM, 0, false};

struct cache { uint64_t addr, key; };

struct side {
	gdrfab_info *info;
	gdrfab_fabric *fabric;
	gdrfab_eq *eq;
	gdrfab_domain *domain;
	gdrfab_cq *cq;
	gdrfab_ep *ep;
};

/* Memory of this side, registered in a region: NICs accept no other. */
struct memory {
	char *addr;
	gdrfab_mr *mr;
};

/* Each side makes an endpoint, sends the other its address by its own means, and connects. */
static void open_side(struct side *s, int out, int in)
{
	gdrfab_info *hints = gdrfab_dupinfo(NULL);
	gdrfab_cq_attr attr = {sizeof attr, 0, 0, GDRFAB_CQ_FORMAT_DATA, GDRFAB_WAIT_NONE};
	char mine[GDRFAB_ADDR_MAX] = "", theirs[GDRFAB_ADDR_MAX];
	size_t len = sizeof mine;
	uint64_t deadline = DEADLINE;
	gdrfab_eq_cm_entry event;
	uint32_t kind;

	hints->caps = GDRFAB_MSG | GDRFAB_RMA;
	/* This program meets all these requirements, so that every provider can be used. */
	hints->mr_mode = GDRFAB_MR_VIRT_ADDR | GDRFAB_MR_PROV_KEY | GDRFAB_MR_LOCAL;
	hints->tx_op_flags = GDRFAB_COMPLETION;
	OK(gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, 0, hints, &s->info));
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
	if (write(out, mine, sizeof mine) != sizeof mine || read(in, theirs, sizeof theirs) != sizeof theirs) {
		fprintf(stderr, "the peer left before it told its address\n");
		exit(1);
	}
	OK(gdrfab_ep_connect_addr(s->ep, theirs, strlen(theirs) + 1));
	OK(gdrfab_eq_sread(s->eq, &kind, &event, sizeof event, -1, 0));
	if (kind != GDRFAB_CONNECTED) {
		fprintf(stderr, "the peer left before the connection stood\n");
		exit(1);
	}
}

static struct memory memory_of(struct side *s, uint32_t iface, size_t len, uint64_t access)
{
	struct memory m;
	void *addr;
	uint32_t device = iface == GDRFAB_HMEM_SYSTEM ? 0 : (uint32_t)what.device;
	OK(gdrfab_mem_alloc(s->domain, iface, device, len, 0, &addr));
	struct iovec iov = {addr, len};
	gdrfab_mr_attr attr;
	memset(&attr, 0, sizeof attr);
	attr.struct_size = sizeof attr;
	attr.mr_iov = &iov;
	attr.iov_count = 1;
	attr.access = access;
	attr.iface = iface;
	attr.device = iface == GDRFAB_HMEM_SYSTEM ? 0 : what.device;
	OK(gdrfab_mr_regattr(s->domain, &attr, 0, &m.mr));
	m.addr = addr;
	return m;
}

static void memory_end(struct side *s, struct memory *m)
{
	OK(gdrfab_mr_close(m->mr));
	OK(gdrfab_mem_free(s->domain, m->addr));
}

/* Takes the next completion. False: it is an error, which is printed, with the number of the block if it belongs to
 * a list. After the completion nothing touches the memory of its operation any more. */
static bool next(struct side *s)
{
	gdrfab_cq_data_entry done;
	ssize_t got = gdrfab_cq_sread(s->cq, &done, 1, -1);
	if (got == 1)
		return true;
	char words[256] = "";
	gdrfab_cq_err_entry e;
	memset(&e, 0, sizeof e);
	e.struct_size = sizeof e;
	e.err_data = words;
	e.err_data_size = sizeof words;
	OK(gdrfab_cq_readerr(s->cq, &e, 0));
	printf("%s: %s\n", gdrfab_strerror(e.err), words);
	return false;
}

static void must(struct side *s)
{
	if (next(s))
		return;
	fprintf(stderr, "the peer left before it was through\n");
	exit(1);
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

static void holder(struct side *s)
{
	struct memory blocks = memory_of(s, what.iface, what.blocks * what.size, GDRFAB_REMOTE_READ);
	struct memory bye = memory_of(s, GDRFAB_HMEM_SYSTEM, 4096, GDRFAB_RECV);
	char *block = malloc(what.size);
	for (uint64_t b = 0; b < what.blocks; b++) {
		memset(block, (int)(b % 251), what.size);
		OK(gdrfab_hmem_copy_to(what.iface, (uint32_t)what.device, blocks.addr + b * what.size, block, what.size));
	}
	free(block);
	OK(gdrfab_recv(s->ep, bye.addr, 4096, gdrfab_mr_desc(bye.mr), 0, NULL));
	struct cache cache = {(uintptr_t)blocks.addr, gdrfab_mr_key(blocks.mr)};
	OK(gdrfab_inject(s->ep, &cache, sizeof cache, 0));
	must(s); /* the taker has finished or, with --die, knows the cache */
	if (what.die)
		raise(SIGKILL);
	printf("holder: released, \"%s\"\n", bye.addr);
	memory_end(s, &bye);
	memory_end(s, &blocks);
	close_side(s);
}

static uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Reads until a read fails: the error entry names the block at which it stopped, and the cache here is free again. */
static void outlive(struct side *s, const gdrfab_msg_list *msg)
{
	for (uint64_t until = now_ns() + DEADLINE; now_ns() < until;) {
		ssize_t rc = gdrfab_readlist(s->ep, msg, 0);
		if (rc == -EAGAIN) {
			gdrfab_cq_read(s->cq, NULL, 0);
			continue;
		}
		if (rc < 0)
			printf("taker: no list can be posted: %s\n", gdrfab_last_error());
		if (rc < 0 || !next(s))
			return;
	}
	fprintf(stderr, "taker: the holder's death shows nowhere\n");
	exit(1);
}

static void taker(struct side *s)
{
	struct memory mail = memory_of(s, GDRFAB_HMEM_SYSTEM, 4096, GDRFAB_SEND | GDRFAB_RECV);
	struct memory mine = memory_of(s, what.iface, what.blocks * what.size, GDRFAB_READ);
	struct cache cache;
	char words[1024];
	OK(gdrfab_recv(s->ep, mail.addr, 4096, gdrfab_mr_desc(mail.mr), 0, NULL));
	must(s);
	memcpy(&cache, mail.addr, sizeof cache);

	/* Any block from anywhere to anywhere; here each goes to its own place, in some order. */
	gdrfab_block *blocks = calloc(what.blocks, sizeof *blocks);
	for (uint64_t b = 0; b < what.blocks; b++) {
		uint64_t other = (uint64_t)rand() % (b + 1);
		blocks[b] = blocks[other];
		blocks[other].buf = mine.addr + b * what.size;
		blocks[other].addr = cache.addr + b * what.size;
		blocks[other].len = what.size;
	}
	void *desc = gdrfab_mr_desc(mine.mr);
	gdrfab_msg_list msg;
	memset(&msg, 0, sizeof msg);
	msg.struct_size = sizeof msg;
	msg.blocks = blocks;
	msg.count = what.blocks;
	msg.desc = &desc;
	msg.desc_count = 1;
	msg.key = &cache.key;
	msg.key_count = 1;
	msg.timeout_ns = DEADLINE;

	OK(gdrfab_readlist(s->ep, &msg, 0));
	must(s);
	char *block = malloc(what.size);
	for (uint64_t b = 0; b < what.blocks; b++) {
		OK(gdrfab_hmem_copy_from(what.iface, (uint32_t)what.device, block, mine.addr + b * what.size, what.size));
		for (uint64_t i = 0; i < what.size; i++)
			if ((unsigned char)block[i] != b % 251) {
				fprintf(stderr, "byte %llu of block %llu is wrong\n", (unsigned long long)i, (unsigned long long)b);
				exit(1);
			}
	}
	free(block);
	OK(gdrfab_ep_explain(s->ep, 0, cache.key, words, sizeof words));
	printf("taker: %s", words);

	/* The same blocks are read many times, so the list is prepared once. */
	gdrfab_list *list;
	OK(gdrfab_list_open(s->ep, &msg, &list));
	uint64_t start = now_ns();
	for (int round = 0; round < ROUNDS; round++) {
		OK(gdrfab_list_post(list, GDRFAB_READ, 0, NULL));
		must(s);
	}
	double each = (double)(now_ns() - start) / ROUNDS;
	OK(gdrfab_list_close(list));
	printf("taker: %llu blocks of %llu bytes in %.0f us: %.2f GB/s\n", (unsigned long long)what.blocks,
	       (unsigned long long)what.size, each / 1000, (double)(what.blocks * what.size) / each);

	strcpy(mail.addr, "through");
	OK(gdrfab_send(s->ep, mail.addr, 8, gdrfab_mr_desc(mail.mr), 0, NULL));
	must(s);
	if (what.die)
		outlive(s, &msg);
	free(blocks);
	memory_end(s, &mine);
	memory_end(s, &mail);
	close_side(s);
}

static void parse(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		const char *value = i + 1 < argc ? argv[i + 1] : "";
		if (strcmp(argv[i], "--die") == 0) {
			what.die = true;
			continue;
		}
		i++;
		if (strcmp(argv[i - 1], "--blocks") == 0 && (what.blocks = strtoull(value, NULL, 0)) > 0)
			continue;
		if (strcmp(argv[i - 1], "--size") == 0 && (what.size = strtoull(value, NULL, 0)) > 0)
			continue;
		if (strcmp(argv[i - 1], "--mem") == 0 && strcmp(value, "host") == 0)
			continue;
		if (strcmp(argv[i - 1], "--mem") == 0 && strncmp(value, "cuda:", 5) == 0) {
			what.iface = GDRFAB_HMEM_CUDA;
			what.device = strtoull(value + 5, NULL, 0);
			continue;
		}
		fprintf(stderr, "usage: kvmove [--mem host|cuda:N] [--blocks N] [--size BYTES] [--die]\n");
		exit(2);
	}
}

int main(int argc, char **argv)
{
	struct side side;
	int there[2], back[2], status = 1;
	parse(argc, argv);
	if (pipe(there) < 0 || pipe(back) < 0)
		return 1;
	signal(SIGPIPE, SIG_IGN); /* a write() to a peer that has left then returns an error */
	/* Forks first: a child must not use objects that its parent has opened. */
	pid_t child = fork();
	if (child < 0)
		return 1;
	/* A pipe reports the peer's end only if this side holds no copy of the peer's end. */
	close(child ? there[1] : there[0]);
	close(child ? back[0] : back[1]);
	if (child == 0) {
		open_side(&side, there[1], back[0]);
		holder(&side);
		return 0;
	}
	open_side(&side, back[1], there[0]);
	taker(&side);
	if (waitpid(child, &status, 0) != child)
		return 1;
	bool good = what.die ? WIFSIGNALED(status) : status == 0;
	if (!good)
		fprintf(stderr, "the holder did not end as it should\n");
	return !good;
}
