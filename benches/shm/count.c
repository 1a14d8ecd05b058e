/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Sends messages over shm between two endpoints of one process, so that callgrind can count each step alone;
 * count.sh prints the table. The steps are named after the functions.
 *
 *   count send|inject|recv|arrive|sent|idle|write|read|inject_write|writelist|fetch_add domain|safe BYTES DEPTH ROUNDS
 *
 * A round posts DEPTH receives, sends DEPTH messages, takes the completions of the sends, and then those of the
 * receives. For RMA it posts DEPTH writes, reads, inject writes, lists of 1,000 blocks or fetching additions to
 * mapped memory, and takes their completions.
 */
#define _GNU_SOURCE
#include "../ok.h"
#include "../older.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

enum { MOST = 64, LONGEST = 8192, BLOCKS = 1000 };

static char source[LONGEST], target[MOST][LONGEST];

struct side {
	gdrfab_domain *domain;
	gdrfab_eq *eq;
	gdrfab_cq *cq;
	gdrfab_ep *ep;
	char address[GDRFAB_ADDR_MAX];
	size_t length;
};

static struct side side_open(gdrfab_info *info, gdrfab_fabric *fabric)
{
	struct side s = {.length = sizeof s.address};
	gdrfab_cq_attr attr = {.struct_size = sizeof attr, .size = 4096, .format = GDRFAB_CQ_FORMAT_CONTEXT};

	OK(gdrfab_domain_open(fabric, info, NULL, &s.domain));
	OK(gdrfab_eq_open(fabric, NULL, NULL, &s.eq));
	OK(gdrfab_cq_open(s.domain, &attr, NULL, &s.cq));
	OK(gdrfab_ep_open(s.domain, info, NULL, &s.ep));
	OK(gdrfab_ep_bind_cq(s.ep, s.cq, GDRFAB_TRANSMIT | GDRFAB_RECV));
	OK(gdrfab_ep_bind_eq(s.ep, s.eq, 0));
	OK(gdrfab_ep_enable(s.ep));
	OK(gdrfab_ep_getname(s.ep, s.address, &s.length));
	return s;
}

static void side_close(struct side *s)
{
	OK(gdrfab_ep_close(s->ep));
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

STEP recv_(struct side *s, size_t bytes, int depth)
{
	for (int i = 0; i < depth; i++)
		if (gdrfab_recv(s->ep, target[i], bytes, NULL, GDRFAB_ADDR_UNSPEC, s))
			fail("gdrfab_recv", gdrfab_last_error());
}

STEP send_(struct side *s, size_t bytes, int depth)
{
	for (int i = 0; i < depth; i++)
		if (gdrfab_send(s->ep, source, bytes, NULL, GDRFAB_ADDR_UNSPEC, NULL))
			fail("gdrfab_send", gdrfab_last_error());
}

STEP inject_(struct side *s, size_t bytes, int depth)
{
	for (int i = 0; i < depth; i++)
		if (gdrfab_inject(s->ep, source, bytes, GDRFAB_ADDR_UNSPEC))
			fail("gdrfab_inject", gdrfab_last_error());
}

static uint64_t peer_key;
static char *peer_memory;

STEP write_(struct side *s, size_t bytes, int depth)
{
	for (int i = 0; i < depth; i++)
		if (gdrfab_write(s->ep, source, bytes, NULL, GDRFAB_ADDR_UNSPEC, (uint64_t)(uintptr_t)peer_memory, peer_key, NULL))
			fail("gdrfab_write", gdrfab_last_error());
}

STEP read_(struct side *s, size_t bytes, int depth)
{
	for (int i = 0; i < depth; i++)
		if (gdrfab_read(s->ep, target[i], bytes, NULL, GDRFAB_ADDR_UNSPEC, (uint64_t)(uintptr_t)peer_memory, peer_key, NULL))
			fail("gdrfab_read", gdrfab_last_error());
}

STEP inject_write_(struct side *s, size_t bytes, int depth)
{
	for (int i = 0; i < depth; i++)
		if (gdrfab_inject_write(s->ep, source, bytes, GDRFAB_ADDR_UNSPEC, (uint64_t)(uintptr_t)peer_memory, peer_key))
			fail("gdrfab_inject_write", gdrfab_last_error());
}

static gdrfab_block block[BLOCKS];

STEP writelist_(struct side *s, int depth)
{
	gdrfab_msg_list msg = {.struct_size = sizeof msg, .blocks = block, .count = BLOCKS, .key = &peer_key, .key_count = 1};

	for (int i = 0; i < depth; i++)
		if (gdrfab_writelist(s->ep, &msg, 0))
			fail("gdrfab_writelist", gdrfab_last_error());
}

/* No block adjoins the one before. */
static void make_blocks(size_t bytes)
{
	for (int i = 0; i < BLOCKS; i++) {
		size_t half = i % 2 ? LONGEST / 2 : 0;

		block[i] = (gdrfab_block){source + half, (uint64_t)(uintptr_t)peer_memory + LONGEST / 2 - half, bytes};
	}
}

STEP fetch_add_(struct side *s, size_t bytes, int depth)
{
	for (int i = 0; i < depth; i++)
		if (gdrfab_fetch_atomic(s->ep, source, bytes / 8, NULL, target[i], NULL, GDRFAB_ADDR_UNSPEC,
					(uint64_t)(uintptr_t)peer_memory, peer_key, GDRFAB_UINT64, GDRFAB_SUM, NULL))
			fail("gdrfab_fetch_atomic", gdrfab_last_error());
}

/* A send has no context; a receive has that of its side. */
static inline void reap(struct side *s, void *context, int depth)
{
	gdrfab_cq_entry entry[16];

	for (int done = 0; done < depth;) {
		ssize_t n = gdrfab_cq_read(s->cq, entry, 16);

		if (n < 0 || entry[0].op_context != context)
			fail("gdrfab_cq_read", "nothing there, another entry, or a failure");
		done += (int)n;
	}
}

STEP sent_(struct side *s, int depth)
{
	reap(s, NULL, depth);
}

STEP arrive_(struct side *s, int depth)
{
	reap(s, s, depth);
}

STEP idle_(struct side *s, int depth)
{
	gdrfab_cq_entry entry[16];

	for (int i = 0; i < depth; i++)
		if (gdrfab_cq_read(s->cq, entry, 16) != -EAGAIN)
			fail("gdrfab_cq_read", "something there, or a failure");
}

static void transfer(struct side *a, const char *step, size_t bytes, int depth)
{
	if (!strcmp(step, "write"))
		write_(a, bytes, depth);
	else if (!strcmp(step, "read"))
		read_(a, bytes, depth);
	else if (!strcmp(step, "writelist"))
		writelist_(a, depth);
	else if (!strcmp(step, "fetch_add"))
		fetch_add_(a, bytes, depth);
	else
		inject_write_(a, bytes, depth);
	if (strcmp(step, "inject_write"))
		sent_(a, depth);
}

int main(int argc, char **argv)
{
	bool rma = argc == 6 && (strstr(argv[1], "write") || !strcmp(argv[1], "read") || !strcmp(argv[1], "fetch_add"));
	gdrfab_mr *mr = NULL;
	void *memory;
	bool injects = argc == 6 && !strcmp(argv[1], "inject"), one_thread = argc == 6 && !strcmp(argv[2], "domain");
	size_t bytes = argc == 6 ? strtoul(argv[3], NULL, 0) : 0;
	int depth = argc == 6 ? atoi(argv[4]) : 0;
	long rounds = argc == 6 ? atol(argv[5]) : 0;
	gdrfab_info *hints = gdrfab_dupinfo(NULL), *info;
	gdrfab_fabric *fabric;
	char name[] = "shm";

	if (bytes > LONGEST || depth < 1 || depth > MOST || rounds < 1) {
		fprintf(stderr, "usage: count STEP domain|safe BYTES DEPTH ROUNDS\n");
		return 2;
	}
	hints->prov_name = name;
	hints->caps = GDRFAB_MSG | GDRFAB_RMA | GDRFAB_READ | GDRFAB_WRITE | GDRFAB_REMOTE_READ | GDRFAB_REMOTE_WRITE;
	hints->mr_mode = GDRFAB_MR_VIRT_ADDR | GDRFAB_MR_PROV_KEY;
	hints->threading = one_thread ? GDRFAB_THREAD_DOMAIN : GDRFAB_THREAD_SAFE;
	OK(gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, 0, hints, &info));
	hints->prov_name = NULL;
	OK(gdrfab_fabric_open(info, NULL, &fabric));
	struct side a = side_open(info, fabric), b = side_open(info, fabric);
	OK(gdrfab_ep_connect_addr(a.ep, b.address, b.length));
	OK(gdrfab_ep_connect_addr(b.ep, a.address, a.length));
	await_connection(&a, &b);
	OK(gdrfab_mem_alloc(b.domain, GDRFAB_HMEM_SYSTEM, 0, LONGEST, 0, &memory));
	OK(gdrfab_mr_reg(b.domain, memory, LONGEST, GDRFAB_REMOTE_READ | GDRFAB_REMOTE_WRITE, 0, 0, 0, NULL, &mr));
	peer_memory = memory;
	peer_key = gdrfab_mr_key(mr);
	make_blocks(bytes < LONGEST / 2 ? bytes : LONGEST / 2);
	/* The first operation maps the memory, with the owner's help. */
	if (rma) {
		gdrfab_cq_entry entry[1];

		OK(gdrfab_write(a.ep, source, 8, NULL, GDRFAB_ADDR_UNSPEC, (uint64_t)(uintptr_t)peer_memory, peer_key, NULL));
		while (gdrfab_cq_read(a.cq, entry, 1) < 1)
			gdrfab_cq_read(b.cq, entry, 1);
	}
	for (long round = 1; rma && round <= rounds; round++)
		transfer(&a, argv[1], bytes, depth);
	for (long round = 1; !rma && round <= rounds; round++) {
		memset(source, (int)round, bytes);
		recv_(&b, bytes, depth);
		if (injects) {
			inject_(&a, bytes, depth);
		} else {
			send_(&a, bytes, depth);
			sent_(&a, depth);
		}
		arrive_(&b, depth);
		idle_(&b, depth);
		for (int i = 0; i < depth; i++)
			if (memcmp(target[i], source, bytes))
				fail("a message", "other bytes than were sent");
	}
	OK(gdrfab_mr_close(mr));
	OK(gdrfab_mem_free(b.domain, memory));
	side_close(&a);
	side_close(&b);
	OK(gdrfab_fabric_close(fabric));
	gdrfab_freeinfo(info);
	gdrfab_freeinfo(hints);
	return 0;
}
