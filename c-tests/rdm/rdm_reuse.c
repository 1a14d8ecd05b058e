/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Buffers of messages whose address belongs to other memory by the next message: freed and allocated again, mapped again, or
 * shared with a child that was forked meanwhile. Each message contains the bytes at the time of its send.
 */
#include "fab_cuda.h"
#include "fab_mem.h"
#include "fab_rdm.h"

#include <sys/mman.h>
#include <sys/wait.h>

/* DEVICE_BYTES: so large that the fake driver returns a page-aligned address each time. */
enum { LENS = 4, MOST_BYTES = 300000, DEVICE_BYTES = 1100000, SENT = 1, RECEIVED = 2, STEP = 1 << 20 };

/* Lengths: offered; copied by the device's lane; registered by it; of several pages. */
static const size_t lens[LENS] = {9000, 20000, 70001, MOST_BYTES};

static gdrfab_stats stats_of(struct self *s)
{
	gdrfab_stats stats = {.struct_size = sizeof stats};
	OK(gdrfab_ep_stats(s->ep, &stats));
	return stats;
}

/* --- host memory without registration --- */

/* Maps fresh pages at a fixed address. */
static unsigned char *pages_anew(unsigned char *at)
{
	void *fresh = mmap(at, STEP, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0);
	CHECK(fresh != MAP_FAILED);
	return (unsigned char *)fresh;
}

static void of_the_host(struct self *s)
{
	unsigned char *out = pages_anew(NULL), *in = pages_anew(NULL);
	uint64_t peer = (uint64_t)!s->rank;
	for (uint32_t round = 0; round < (uint32_t)test_count(60, 12); round++) {
		size_t len = lens[round % LENS], skip = 1000 + round;
		uint32_t mine = 2 * round + (uint32_t)s->rank, theirs = 2 * round + (uint32_t)peer;
		out = pages_anew(out), in = pages_anew(in);
		fill(out + skip, len, 0, mine);
		trecv(s, peer, in + skip, len, round, 0, RECEIVED);
		tsend(s, (int)peer, out + skip, len, round, SENT);
		/* While both messages are under way and a child shares their pages, other bytes of the pages are written. */
		pid_t forked = fork();
		if (forked == 0) {
			in[skip + len] = out[skip + len] = 7;
			usleep(2000);
			_exit(0);
		}
		CHECK(forked > 0);
		in[0] = out[0] = in[skip + len] = out[skip + len] = 1;
		CHECK_EQ(await(s, RECEIVED, NULL).len, len);
		await(s, SENT, NULL);
		CHECK_FILLED("a message", in + skip, len, 0, theirs);
		CHECK(in[0] == 1 && in[skip + len] == 1 && in[skip - 1] == 0);
		CHECK_EQ(waitpid(forked, NULL, 0), forked);
	}
	munmap(out, STEP);
	munmap(in, STEP);
}

/* --- device memory in a region that peers may not read --- */

static void sends(struct self *s, struct mem *m, uint64_t tag, uint32_t seed)
{
	mem_fill(m, 0, m->len, 0, seed);
	OK(gdrfab_tsend(s->ep, m->addr, m->len, mem_desc(m), 1, tag, context_of(SENT)));
	await(s, SENT, NULL);
}

/* Rank 0 sends twice from each allocation; the second time the device has it registered. */
static void of_a_device(struct self *s)
{
	struct node n = {.side = s->rank ? TEST_CLIENT : TEST_SERVER, .domain = s->domain, .info = s->info, .drivers = true};
	static unsigned char in[DEVICE_BYTES];
	uint32_t rounds = (uint32_t)test_count(16, 6), same = 0;
	struct mem m;
	const char *ifaces = getenv("TEST_IFACES");
	if (ifaces && !strstr(ifaces, "cuda"))
		test_skip("TEST_IFACES does not name cuda");
	if (s->rank) {
		for (uint32_t i = 0; i < 3 * rounds; i++) {
			trecv(s, 0, in, sizeof in, i, 0, RECEIVED);
			CHECK_EQ(await(s, RECEIVED, NULL).len, sizeof in);
			CHECK_FILLED("a message", in, sizeof in, 0, i);
		}
		return;
	}
	/* Freed by the driver, without notice to the library. */
	mem_new(&n, &m, &cuda_kinds[CUDA_PLAIN], DEVICE_BYTES);
	for (uint32_t round = 0; round < rounds; round++) {
		mem_register(&n, &m, 0, m.len, GDRFAB_SEND, 0);
		gdrfab_stats before = stats_of(s), after;
		sends(s, &m, 3 * round, 3 * round);
		sends(s, &m, 3 * round + 1, 3 * round + 1);
		after = stats_of(s);
		/* Only a device lane caches registrations, and only of memory that the device reaches. */
		uint64_t missed = after.cache_misses - before.cache_misses;
		bool by_card = (strcmp(s->lanes, "verbs") == 0 || s->two_hosts) && mr_query(m.mr).paths & GDRFAB_PATH_DMABUF;
		CHECK_EQ(missed, by_card);
		CHECK_EQ(after.cache_hits - before.cache_hits, missed);
		/* Freed under its region: the next message is of the new allocation. */
		unsigned char *was = m.addr;
		m.kind->release(&n, &m);
		m.kind->alloc(&n, &m);
		same += m.addr == was;
		if (m.addr != was) {
			mem_unregister(&m);
			mem_register(&n, &m, 0, m.len, GDRFAB_SEND, 0);
		}
		sends(s, &m, 3 * round + 2, 3 * round + 2);
		CHECK_EQ(stats_of(s).cache_hits, after.cache_hits);
		mem_unregister(&m);
	}
	mem_end(&n, &m);
	if (getenv("GDRFAB_FAKES") && same == 0)
		test_fail(__FILE__, __LINE__, "no allocation came back at the address of the one before");
}

TEST_TABLE(claims)
{
	static const struct rdm_claim claims[] = {{"other_memory_at_the_same_address", of_the_host, 2, false},
						  {"another_allocation_at_the_same_address", of_a_device, 2, false}};
	rdm_add(claims, sizeof claims / sizeof *claims);
}
