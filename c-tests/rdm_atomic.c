/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Atomics of many connectionless endpoints on the same words: their sum is exact, and what is sent behind them comes behind. */
#include "fab_rdm.h"

enum { WINDOW = 16 };

static struct remote_word {
	uint64_t addr, key;
} word_of(struct self *s)
{
	struct remote_word w = {get_number(s, 0), get_number(s, 1)};
	return w;
}

/* Rank 0's memory, which peers of this host map or which its process alone reaches. */
static void *publish(struct self *s, bool shared, uint64_t flags, gdrfab_mr **mr)
{
	void *at = NULL;
	if (shared)
		OK(gdrfab_mem_alloc(s->domain, 4096, 0, &at));
	else
		at = calloc(1, 4096);
	OK(gdrfab_mr_reg(s->domain, at, 4096, GDRFAB_REMOTE_READ | GDRFAB_REMOTE_WRITE, 0, 0, flags, NULL, mr));
	put_number(s, 0, (uintptr_t)at);
	put_number(s, 1, gdrfab_mr_key(*mr));
	return at;
}

static void withdraw(struct self *s, bool shared, void *at, gdrfab_mr *mr)
{
	OK(gdrfab_mr_close(mr));
	if (shared)
		OK(gdrfab_mem_free(s->domain, at));
	else
		free(at);
}

/* ATOMIC_MS: for how long; a second for the tests of a day. */
static void everybody_adds(struct self *s, bool shared)
{
	uint64_t one = 1, *at = NULL, old[WINDOW], before = 0, count = 0, half = 0;
	gdrfab_mr *mr = NULL;
	const char *ms = getenv("ATOMIC_MS");
	if (s->rank == 0)
		at = (uint64_t *)publish(s, shared, 0, &mr);
	meet(s);
	struct remote_word w = word_of(s);
	for (uint64_t until = test_now_ms() + (ms ? strtoull(ms, NULL, 10) : (uint64_t)test_count(700, 100)); test_now_ms() < until;) {
		for (int i = 0; i < WINDOW; i++) {
			OK(gdrfab_fetch_atomic(s->ep, &one, 1, NULL, &old[i], NULL, 0, w.addr, w.key, GDRFAB_UINT64, GDRFAB_SUM,
					       context_of(1)));
			OK(gdrfab_inject_atomic(s->ep, &one, 1, 0, w.addr + 8, w.key, GDRFAB_INT32, GDRFAB_SUM));
		}
		for (int i = 0; i < WINDOW; i++)
			await(s, 1, NULL);
		/* Nobody gets the same value twice, and one's own grow. */
		for (int i = 0; i < WINDOW; i++) {
			CHECK(count + (uint64_t)i == 0 || old[i] > before || (count == 0 && i == 0));
			before = old[i];
		}
		count += WINDOW;
		half += WINDOW;
	}
	OK(gdrfab_atomic(s->ep, &count, 1, NULL, 0, w.addr + 16, w.key, GDRFAB_UINT64, GDRFAB_SUM, context_of(2)));
	await(s, 2, NULL);
	meet(s);
	if (s->rank == 0) {
		CHECK(at[2] > 0);
		CHECK_EQ(at[0], at[2]);
		CHECK_EQ(at[1], at[2] & 0xffffffff);
		withdraw(s, shared, at, mr);
	}
}

static void everybody_adds_to_shared(struct self *s)
{
	everybody_adds(s, true);
}

static void everybody_adds_to_private(struct self *s)
{
	everybody_adds(s, false);
}

/* A compare-and-swap decides who goes next; the tally is a plain word that only the winner touches. */
static void a_lock_of_all(struct self *s)
{
	enum { ROUNDS = 30 };
	uint64_t mine = (uint64_t)s->rank + 1, nobody = 0, was, tally, *at = NULL;
	gdrfab_mr *mr = NULL;
	if (s->rank == 0)
		at = (uint64_t *)publish(s, true, 0, &mr);
	meet(s);
	struct remote_word w = word_of(s);
	for (int i = 0; i < ROUNDS; i++) {
		do {
			OK(gdrfab_compare_atomic(s->ep, &mine, 1, NULL, &nobody, NULL, &was, NULL, 0, w.addr, w.key, GDRFAB_UINT64,
						 GDRFAB_CSWAP, context_of(1)));
			await(s, 1, NULL);
		} while (was != 0);
		OK(gdrfab_read(s->ep, &tally, 8, NULL, 0, w.addr + 64, w.key, context_of(2)));
		await(s, 2, NULL);
		tally++;
		OK(gdrfab_write(s->ep, &tally, 8, NULL, 0, w.addr + 64, w.key, context_of(3)));
		/* Behind the write. */
		OK(gdrfab_fetch_atomic(s->ep, &nobody, 1, NULL, &was, NULL, 0, w.addr, w.key, GDRFAB_UINT64, GDRFAB_ATOMIC_WRITE,
				       context_of(4)));
		await(s, 3, NULL);
		await(s, 4, NULL);
		CHECK_EQ(was, mine);
	}
	meet(s);
	if (s->rank == 0) {
		CHECK_EQ(at[0], 0);
		CHECK_EQ(at[8], ROUNDS * s->count);
		withdraw(s, true, at, mr);
	}
}

/* A message finds what was added before it, and a region's counter has counted it. */
static void messages_come_behind(struct self *s)
{
	enum { ROUNDS = 50 };
	uint64_t one = 1, *at = NULL;
	char word[8];
	gdrfab_mr *mr = NULL;
	gdrfab_cntr *cntr = NULL;
	if (s->rank == 0) {
		at = (uint64_t *)publish(s, true, GDRFAB_RMA_EVENT, &mr);
		OK(gdrfab_cntr_open(s->domain, NULL, NULL, &cntr));
		OK(gdrfab_mr_bind_cntr(mr, cntr, GDRFAB_REMOTE_WRITE));
	}
	meet(s);
	struct remote_word w = word_of(s);
	for (uint64_t i = 1; i <= ROUNDS; i++) {
		if (s->rank == 1) {
			OK(gdrfab_atomic(s->ep, &one, 1, NULL, 0, w.addr, w.key, GDRFAB_UINT64, GDRFAB_SUM, context_of(1)));
			tsend(s, 0, "added", 6, i, 2);
			await(s, 1, NULL);
			await(s, 2, NULL);
		} else {
			trecv(s, 1, word, 8, i, 0, 3);
			await(s, 3, NULL);
			CHECK(__atomic_load_n(at, __ATOMIC_ACQUIRE) >= i);
			CHECK(gdrfab_cntr_read(cntr) >= i);
		}
	}
	meet(s);
	if (s->rank == 0) {
		CHECK_EQ(*at, ROUNDS);
		CHECK_EQ(gdrfab_cntr_read(cntr), ROUNDS);
		withdraw(s, true, at, mr);
		OK(gdrfab_cntr_close(cntr));
	}
}

/* CPUs carry them out, so that no region is a card's alone. */
static void not_by_a_card(struct self *s)
{
	uint64_t word = 0;
	gdrfab_mr *mr = NULL;
	CHECK_EQ(gdrfab_mr_reg(s->domain, &word, sizeof word, GDRFAB_ATOMIC | GDRFAB_REMOTE_WRITE, 0, 9, 0, NULL, &mr), -EOPNOTSUPP);
	SAYS(gdrfab_last_error(), "GDRFAB_ATOMIC");
	CHECK(mr == NULL);
}

TEST_TABLE(claims)
{
	static const struct rdm_claim claims[] = {
		{"eight_add_to_shared_memory", everybody_adds_to_shared, 8, false},
		{"eight_add_to_private_memory", everybody_adds_to_private, 8, false},
		{"a_lock_of_four", a_lock_of_all, 4, false},
		{"messages_come_behind", messages_come_behind, 2, false},
		{"a_region_for_a_card_is_refused", not_by_a_card, 2, false},
	};
	rdm_add(claims, sizeof claims / sizeof *claims);
}
