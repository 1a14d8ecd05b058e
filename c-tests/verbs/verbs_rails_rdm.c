/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Connectionless endpoints over two RDMA ports (GDRFAB_VERBS_RAILS in both processes): long reads, writes and messages of
 * registered memory use both ports, and are correct and in order while the second is lost again and again (GDRFAB_FAULT). */
#include "fab_rdm.h"
#include "fab_ways.h"

#define LARGE ((size_t)3 << 20)
#define ROUNDS 6

static void fill_all(unsigned char *at, uint32_t seed)
{
	fill(at, LARGE, 0, seed);
}

/* Both ranks write into, read from and send to each other. */
static void long_operations(struct self *s)
{
	if (!getenv("GDRFAB_VERBS_RAILS"))
		test_skip("GDRFAB_VERBS_RAILS names no ports");
	if (strcmp(s->lanes, "verbs") != 0 && !s->two_hosts)
		test_skip("within a host other lanes are nearer");
	uint64_t all = GDRFAB_READ | GDRFAB_WRITE | GDRFAB_SEND | GDRFAB_RECV | GDRFAB_REMOTE_READ | GDRFAB_REMOTE_WRITE;
	unsigned char *mem = (unsigned char *)malloc(4 * LARGE), *out = mem + LARGE, *in = mem + 2 * LARGE, *back = mem + 3 * LARGE;
	uint64_t peer = (uint64_t)!s->rank;
	bool is_virtual = s->info->mr_mode & GDRFAB_MR_VIRT_ADDR;
	gdrfab_rail_info rail;
	gdrfab_mr *mr;
	char words[4096];
	OK(gdrfab_mr_reg(s->domain, mem, 4 * LARGE, all, 0, 77, 0, NULL, &mr));
	void *desc = gdrfab_mr_desc(mr);
	put_number(s, 2 * s->rank, gdrfab_mr_key(mr));
	put_number(s, 2 * s->rank + 1, is_virtual ? (uint64_t)(uintptr_t)mem : 0);
	meet(s);
	uint64_t key = get_number(s, 2 * (int)peer), addr = get_number(s, 2 * (int)peer + 1);
	for (uint32_t round = 0; round < ROUNDS; round++) {
		uint32_t mine = 4 * round + (uint32_t)s->rank, theirs = 4 * round + (uint32_t)peer;
		fill_all(out, mine);
		OK(gdrfab_trecv(s->ep, in, LARGE, desc, peer, round, 0, context_of(1)));
		meet(s);
		OK(gdrfab_write(s->ep, out, LARGE, desc, peer, addr, key, context_of(2)));
		OK(gdrfab_tsend(s->ep, out, LARGE, desc, peer, round, context_of(3)));
		CHECK_EQ(await(s, 1, NULL).len, LARGE);
		CHECK_FILLED("sent", in, LARGE, 0, theirs);
		/* The message was posted behind the write. */
		CHECK_FILLED("written", mem, LARGE, 0, theirs);
		await(s, 2, NULL);
		await(s, 3, NULL);
		memset(back, 0, LARGE);
		OK(gdrfab_read(s->ep, back, LARGE, desc, peer, addr, key, context_of(4)));
		await(s, 4, NULL);
		CHECK_FILLED("read back", back, LARGE, 0, mine);
		meet(s);
	}
	CHECK(gdrfab_ep_explain(s->ep, peer, key, words, sizeof words) > 0);
	CHECK_EQ(rail_query(s->ep, peer, 1, &rail), 2);
	if (rail.bytes_out + rail.bytes_in == 0 && rail.losses == 0)
		test_fail(__FILE__, __LINE__, "the second rail has carried nothing: %s", words);
	meet(s);
	OK(gdrfab_mr_close(mr));
	free(mem);
}

TEST_TABLE(claims)
{
	static const struct rdm_claim claims[] = {{"long_operations_over_rails", long_operations, 2, false}};
	rdm_add(claims, sizeof claims / sizeof *claims);
}
