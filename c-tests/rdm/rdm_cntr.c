/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Counters of endpoints that match messages, connectionless and connected: they count like the counters in cntr.c, including
 * peers' writes with data, and the counter of a region counts every write into it.
 */
#include "fab_rdm.h"

enum { SENDS, RECVS, READS, WRITES, REMOTE_WRITES, COUNTERS };

static gdrfab_cntr *all[COUNTERS], *of_region;

static const uint64_t counts[COUNTERS] = {GDRFAB_SEND, GDRFAB_RECV, GDRFAB_READ, GDRFAB_WRITE, GDRFAB_REMOTE_WRITE};

/* Binds every other counter; the rest is bound after the endpoint is enabled. */
static void bind_counters(struct self *s)
{
	for (int i = 0; i < COUNTERS; i++) {
		OK(gdrfab_cntr_open(s->domain, NULL, NULL, &all[i]));
		if (i % 2 == 0)
			OK(gdrfab_ep_bind_cntr(s->ep, all[i], counts[i]));
	}
}

static void bind_the_rest(struct self *s)
{
	for (int i = 1; i < COUNTERS; i += 2)
		OK(gdrfab_ep_bind_cntr(s->ep, all[i], counts[i]));
	CHECK_EQ(gdrfab_ep_bind_cntr(s->ep, all[0], GDRFAB_RECV), -EBUSY);
	CHECK_EQ(gdrfab_ep_bind_cntr(s->ep, all[0], GDRFAB_REMOTE_READ), -EOPNOTSUPP);
	SAYS(gdrfab_last_error(), "GDRFAB_REMOTE_READ");
}

static void expect_counts(uint64_t sends, uint64_t recvs, uint64_t reads, uint64_t writes, uint64_t remote)
{
	const uint64_t want[COUNTERS] = {sends, recvs, reads, writes, remote};
	for (int i = 0; i < COUNTERS; i++) {
		OK(gdrfab_cntr_wait(all[i], want[i], test_ms(WAIT_MS)));
		/* The wait alone would accept a count that is too high. */
		CHECK_EQ(gdrfab_cntr_read(all[i]), want[i]);
	}
}

static void target(struct self *s)
{
	static char mem[4096], in[5][64];
	gdrfab_mr *mr = NULL;
	struct iovec iov = {mem, sizeof mem};
	gdrfab_mr_attr attr = {0};
	attr.struct_size = sizeof attr, attr.mr_iov = &iov, attr.iov_count = 1;
	attr.access = GDRFAB_REMOTE_READ | GDRFAB_REMOTE_WRITE;
	OK(gdrfab_mr_regattr(s->domain, &attr, 0, &mr));
	OK(gdrfab_cntr_open(s->domain, NULL, NULL, &of_region));
	OK(gdrfab_mr_bind_cntr(mr, of_region, GDRFAB_REMOTE_WRITE));
	for (int i = 0; i < 5; i++)
		if (i % 2)
			OK(gdrfab_recv(s->ep, in[i], sizeof in[i], NULL, GDRFAB_ADDR_UNSPEC, in[i]));
		else
			trecv(s, GDRFAB_ADDR_UNSPEC, in[i], sizeof in[i], 7, 0, 1);
	put_number(s, 0, gdrfab_mr_key(mr)), put_number(s, 1, (uintptr_t)mem);
	meet(s);
	/* Plain writes count for the region and not for the target's endpoint. */
	expect_counts(0, 5, 0, 0, 4);
	OK(gdrfab_cntr_wait(of_region, 6, test_ms(WAIT_MS)));
	meet(s);
	CHECK_EQ(gdrfab_cntr_read(of_region), 6);
	CHECK_EQ(gdrfab_cntr_readerr(of_region), 0);
	OK(gdrfab_mr_close(mr));
	OK(gdrfab_cntr_close(of_region));
}

static void initiator(struct self *s)
{
	char word[8] = "counted", words[256];
	meet(s);
	uint64_t key = get_number(s, 0), addr = get_number(s, 1);
	for (int i = 0; i < 3; i++) {
		tsend(s, 1, word, 8, 7, 1);
		OK(gdrfab_writedata(s->ep, word, 8, NULL, 1, 1, addr, key, context_of(2)));
		OK(gdrfab_read(s->ep, word, 8, NULL, 1, addr, key, context_of(3)));
	}
	OK(gdrfab_inject(s->ep, word, 8, 1));
	OK(gdrfab_inject(s->ep, word, 8, 1));
	OK(gdrfab_inject_write(s->ep, word, 8, 1, addr, key));
	OK(gdrfab_inject_writedata(s->ep, word, 8, 1, 1, addr, key));
	OK(gdrfab_write(s->ep, word, 8, NULL, 1, addr, key, context_of(4)));
	expect_counts(5, 0, 3, 6, 0);
	/* Errors are counted separately. */
	OK(gdrfab_write(s->ep, word, 8, NULL, 1, addr, key + 1, context_of(5)));
	CHECK_EQ(await_failure(s, 5, words).prov_errno, GDRFAB_PROV_KEY);
	CHECK_EQ(gdrfab_cntr_readerr(all[WRITES]), 1);
	expect_counts(5, 0, 3, 6, 0);
	meet(s);
}

static void counted(struct self *s)
{
	bind_the_rest(s);
	if (s->rank == 1)
		target(s);
	else
		initiator(s);
	CHECK_EQ(gdrfab_cntr_close(all[0]), -EBUSY);
}

static void close_counters(void)
{
	for (int i = 0; i < COUNTERS; i++)
		OK(gdrfab_cntr_close(all[i]));
}

TEST_TABLE(claims)
{
	static const struct rdm_claim claims[] = {{"counters_of_both_sides", counted, 2, false}};
	rdm_bind = bind_counters, rdm_unbound = close_counters;
	rdm_add_both(claims, 1);
}
