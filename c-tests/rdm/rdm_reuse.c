/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Memory that messages leave from and arrive in, and that is other memory at the same address by the next one: freed and
 * allocated anew, mapped anew, shared with a child that was forked meanwhile. What arrives is what lay there when it was sent.
 */
#include "fab_cuda.h"
#include "fab_mem.h"
#include "fab_rdm.h"

#include <sys/mman.h>
#include <sys/wait.h>

/* DEVICE_BYTES: so many that the fake driver begins at a page each time. */
enum { LENS = 4, MOST_BYTES = 300000, DEVICE_BYTES = 1100000, SENT = 1, RECEIVED = 2, STEP = 1 << 20 };

/* Offered; copied by a card's lane, registered by it, of several pages. */
static const size_t lens[LENS] = {9000, 20000, 70001, MOST_BYTES};

static gdrfab_stats stats_of(struct self *s)
{
	gdrfab_stats stats = {.struct_size = sizeof stats};
	OK(gdrfab_ep_stats(s->ep, &stats));
	return stats;
}

/* --- of the host, which nobody registered --- */

/* Pages at a fixed address that hold nothing yet. */
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
		/* Both are under way, and what lies beside them in their pages is written while a child shares those. */
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

/* --- of a device, in a region that peers may not read --- */

static void sends(struct self *s, struct mem *m, uint64_t tag, uint32_t seed)
{
	mem_fill(m, 0, m->len, 0, seed);
	OK(gdrfab_tsend(s->ep, m->addr, m->len, mem_desc(m), 1, tag, context_of(SENT)));
	await(s, SENT, NULL);
}

/* Rank 0 sends twice from each allocation; the second time a card knows it. */
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
	/* Freed by the driver, which does not ask the library. */
	mem_new(&n, &m, &cuda_kinds[CUDA_PLAIN], DEVICE_BYTES);
	for (uint32_t round = 0; round < rounds; round++) {
		mem_register(&n, &m, 0, m.len, GDRFAB_SEND, 0);
		gdrfab_stats before = stats_of(s), after;
		sends(s, &m, 3 * round, 3 * round);
		sends(s, &m, 3 * round + 1, 3 * round + 1);
		after = stats_of(s);
		/* Over other lanes nothing is kept, nor what a card does not reach. */
		uint64_t missed = after.cache_misses - before.cache_misses;
		bool by_card = (strcmp(s->lanes, "verbs") == 0 || s->two_hosts) && mr_query(m.mr).paths & GDRFAB_PATH_DMABUF;
		CHECK_EQ(missed, by_card);
		CHECK_EQ(after.cache_hits - before.cache_hits, missed);
		/* It is freed too early, and what comes instead of it is what the next message is of. */
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
