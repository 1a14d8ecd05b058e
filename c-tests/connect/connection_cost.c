/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Resources that connections take in a process: memory, mappings and descriptors are counted, and bounded by the kernel's
 * own limits, on both sides. docs/servers.md has the figures.
 */
#include "fab.h"

#include <sys/resource.h>

#define MOST 1000
#define A_FEW 24
#define SPACE ((size_t)256 << 20)
#define LEN 64

/* The size of this process's address space, in bytes. */
static size_t space(void)
{
	unsigned long pages = 0;
	FILE *f = fopen("/proc/self/statm", "r");
	CHECK(f && fscanf(f, "%lu", &pages) == 1);
	fclose(f);
	return pages * (size_t)sysconf(_SC_PAGESIZE);
}

static void limit(int what, rlim_t to)
{
	struct rlimit r;
	CHECK_EQ(getrlimit(what, &r), 0);
	if (r.rlim_max != RLIM_INFINITY && r.rlim_max < to)
		test_skip("a hard limit of %lu is below what is to be had", (unsigned long)r.rlim_max);
	r.rlim_cur = to;
	CHECK_EQ(setrlimit(what, &r), 0);
}

struct before {
	int fds;
	size_t space;
};

/* Called when everything but connections is open. */
static struct before begin(struct node *n)
{
	struct before b = {test_count_fds(), space()};
	const char *preload = getenv("LD_PRELOAD");
	if (preload && strstr(preload, "vgpreload"))
		test_skip("a memory checker maps all of a file at once");
	limit(RLIMIT_NOFILE, (rlim_t)b.fds + MOST + A_FEW);
	limit(RLIMIT_AS, b.space + SPACE);
	(void)n;
	return b;
}

static void end(const struct before *b)
{
	int fds = test_count_fds() - b->fds;
	size_t grown = space() - b->space;
	if (fds > MOST + A_FEW)
		test_fail(__FILE__, __LINE__, "%d connections have %d descriptors", MOST, fds);
	if (grown > SPACE)
		test_fail(__FILE__, __LINE__, "%d connections have %zu KiB of address space each", MOST, grown / MOST / 1024);
	/* Printed as well, because growth below the bounds fails nothing. */
	printf("     %d connections: %d descriptors, %zu KiB of address space each\n", MOST, fds, grown / MOST / 1024);
}

static void serves(struct node *n)
{
	static gdrfab_ep *eps[MOST];
	static uint64_t in[MOST];
	struct mem m;
	node_open(n);
	node_domain(n, n->info);
	node_listen(n);
	mem_new(n, &m, &memkinds[KIND_MEM_ALLOC], MOST * LEN);
	mem_register(n, &m, 0, MOST * LEN, ANY_ACCESS, 0);
	struct before b = begin(n);
	barrier(n);
	for (int i = 0; i < MOST; i++) {
		gdrfab_info *request = node_await_request(n);
		eps[i] = ep_new(n, request, NULL);
		POST(n->cq, gdrfab_recv(eps[i], &in[i], 8, NULL, 0, &in[i]));
		OK(gdrfab_ep_accept(eps[i], NULL, 0));
		gdrfab_freeinfo(request);
		EVENT(n->eq, GDRFAB_CONNECTED, eps[i], NULL);
	}
	mem_publish(n, &m);
	for (int i = 0; i < MOST; i++) {
		done e;
		CHECK_EQ(cq_next(n->cq, &e, 10000), 1);
		CHECK_EQ(*(uint64_t *)e.op_context, (uint64_t)((uint64_t *)e.op_context - in));
	}
	barrier(n);
	for (size_t i = 0; i < MOST; i++)
		CHECK_MEM("what a client wrote", &m, i * LEN, LEN, 0, (uint32_t)i);
	end(&b);
	barrier(n);
	for (int i = 0; i < MOST; i++)
		OK(gdrfab_ep_close(eps[i]));
	limit(RLIMIT_AS, RLIM_INFINITY);
	mem_end(n, &m);
	node_close(n);
}

static void comes(struct node *n)
{
	static gdrfab_ep *eps[MOST];
	unsigned char bytes[LEN];
	node_open(n);
	struct before b = begin(n);
	barrier(n);
	for (int i = 0; i < MOST; i++) {
		eps[i] = ep_new(n, n->info, NULL);
		OK(gdrfab_ep_connect(eps[i], n->info->dest_addr, n->info->dest_addrlen, NULL, 0));
		EVENT(n->eq, GDRFAB_CONNECTED, eps[i], NULL);
	}
	struct remote to = mem_fetch(n);
	for (uint64_t i = 0; i < MOST; i++) {
		fill(bytes, LEN, 0, (uint32_t)i);
		POST(n->cq, gdrfab_write(eps[i], bytes, LEN, NULL, 0, to.base + i * LEN, to.key, n));
		DONE(n->cq, n, 0, NULL);
		POST(n->cq, gdrfab_send(eps[i], &i, 8, NULL, 0, n));
		DONE(n->cq, n, 0, NULL);
	}
	barrier(n);
	end(&b);
	barrier(n);
	for (int i = 0; i < MOST; i++)
		OK(gdrfab_ep_close(eps[i]));
	node_close(n);
}

TEST_WITHIN(240, a_thousand_connections_of_a_process_fit)
{
	skip_unless(path_known(PATH_DIRECT), "this bound is shm's");
	pair(NULL, serves, comes, NULL);
}

/* ---- areas that are mapped late work like areas that are mapped from the beginning */

#define ROUNDS 3000
#define LONG 4000

static void round_trip(struct node *n)
{
	static unsigned char out[LONG], in[LONG];
	node_up(n);
	/* More messages than the ring has lines, and more bytes than the area beside it has at first. */
	for (int i = 0; i < ROUNDS; i++) {
		size_t len = i % 7 == 0 ? LONG : (size_t)(i % 600) + 1;
		POST(n->cq, gdrfab_recv(n->ep, in, LONG, NULL, 0, in));
		if (n->side == TEST_CLIENT) {
			fill(out, len, 0, (uint32_t)i);
			POST(n->cq, gdrfab_send(n->ep, out, len, NULL, 0, out));
			for (int k = 0; k < 2; k++) {
				done e;
				CHECK_EQ(cq_next(n->cq, &e, 10000), 1);
			}
		} else {
			DONE(n->cq, in, 0, NULL);
			CHECK_FILLED("what came", in, len, 0, (uint32_t)i);
			POST(n->cq, gdrfab_send(n->ep, in, len, NULL, 0, out));
			DONE(n->cq, out, 0, NULL);
		}
		CHECK_FILLED("what came", in, len, 0, (uint32_t)i);
	}
	node_down(n);
}

TEST(a_ring_goes_round_when_all_of_it_is_mapped)
{
	skip_unless(path_known(PATH_DIRECT), "this is about shm");
	pair(NULL, round_trip, round_trip, NULL);
}

static void floods(struct node *n)
{
	static unsigned char out[600];
	int sent = 0;
	node_up(n);
	/* The peer receives nothing yet: the ring fills beyond its first mapping. */
	for (ssize_t rc = 0; rc == 0 && sent < 1000; sent += rc == 0) {
		fill(out, sizeof out, 0, (uint32_t)sent);
		rc = gdrfab_inject(n->ep, out, (size_t)(sent % 500) + 1, 0);
		CHECK(rc == 0 || rc == -EAGAIN);
	}
	if (sent < 200)
		test_fail(__FILE__, __LINE__, "%d messages fill the ring: %s", sent, gdrfab_last_error());
	oob_send(n, &sent, sizeof sent);
	barrier(n);
	node_down(n);
}

static void drains(struct node *n)
{
	unsigned char in[600];
	int sent;
	node_up(n);
	n->idle = true;
	oob_recv(n, &sent, sizeof sent);
	for (int i = 0; i < sent; i++) {
		POST(n->cq, gdrfab_recv(n->ep, in, sizeof in, NULL, 0, in));
		done e;
		CHECK_EQ(cq_next(n->cq, &e, 10000), 1);
		CHECK_EQ(e.len, i % 500 + 1);
		CHECK_FILLED("what came", in, e.len, 0, (uint32_t)i);
	}
	barrier(n);
	node_down(n);
}

TEST(a_full_ring_is_taken_from_its_beginning)
{
	skip_unless(path_known(PATH_DIRECT), "this is about shm");
	/* Messages complete when they are in the ring. */
	static const struct setup eager = {.tx_op_flags = GDRFAB_COMPLETION};
	pair(&eager, drains, floods, NULL);
}
