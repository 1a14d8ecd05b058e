/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Atomics of many connectionless endpoints on the same words: the sum is exact, and later messages arrive after them. Atomics
 * of the RDMA device in regions registered with GDRFAB_ATOMIC, where other paths and operations are refused.
 */
#include "fab_provider.h"
#include "fab_rdm.h"

#include <signal.h>
#include <unistd.h>

enum { WINDOW = 16 };

static struct remote_word {
	uint64_t addr, key;
} word_of(struct self *s)
{
	struct remote_word w = {get_number(s, 0), get_number(s, 1)};
	return w;
}

#define RIGHTS (GDRFAB_REMOTE_READ | GDRFAB_REMOTE_WRITE)
#define ADD(s, by, at, key, ctx) gdrfab_atomic((s)->ep, by, 1, NULL, 0, at, key, GDRFAB_UINT64, GDRFAB_SUM, context_of(ctx))
#define FETCH(s, by, old, peer, at, key, op, ctx)                                                                      \
	gdrfab_fetch_atomic((s)->ep, by, 1, NULL, old, NULL, peer, at, key, GDRFAB_INT64, op, context_of(ctx))

/* The memory of rank 0: memory that peers of this host map, or memory that only its process reaches. */
static void *publish(struct self *s, bool shared, uint64_t access, uint64_t flags, gdrfab_mr **mr)
{
	void *at = NULL;
	if (shared)
		OK(gdrfab_mem_alloc(s->domain, GDRFAB_HMEM_SYSTEM, 0, 4096, 0, &at));
	else
		at = calloc(1, 4096);
	OK(gdrfab_mr_reg(s->domain, at, 4096, access, 0, 0, flags, NULL, mr));
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

/* Ten seconds where a loss is most likely and a round is cheapest; elsewhere almost one second. */
static void everybody_adds(struct self *s, bool shared)
{
	uint64_t one = 1, *at = NULL, old[WINDOW], before = 0, count = 0, half = 0;
	gdrfab_mr *mr = NULL;
	bool most = shared && !strcmp(s->lanes, "shm") && !strcmp(provider(), "shm");
	uint64_t ms = (uint64_t)test_count(most ? 10000 : 700, 100);
	if (s->rank == 0)
		at = (uint64_t *)publish(s, shared, RIGHTS, 0, &mr);
	meet(s);
	struct remote_word w = word_of(s);
	for (uint64_t until = test_now_ms() + ms; test_now_ms() < until;) {
		for (int i = 0; i < WINDOW; i++) {
			OK(gdrfab_fetch_atomic(s->ep, &one, 1, NULL, &old[i], NULL, 0, w.addr, w.key, GDRFAB_UINT64, GDRFAB_SUM,
					       context_of(1)));
			OK(gdrfab_inject_atomic(s->ep, &one, 1, 0, w.addr + 8, w.key, GDRFAB_INT32, GDRFAB_SUM));
		}
		for (int i = 0; i < WINDOW; i++)
			await(s, 1, NULL);
		/* No value is fetched twice, and each rank's values grow. */
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
		at = (uint64_t *)publish(s, true, RIGHTS, 0, &mr);
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
		/* Carried out after the write. */
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

/* When a message arrives, earlier atomics have been carried out and counted by the region's counter. */
static void come_behind(struct self *s, uint64_t access)
{
	enum { ROUNDS = 50 };
	uint64_t one = 1, *at = NULL;
	char word[8];
	gdrfab_mr *mr = NULL;
	gdrfab_cntr *cntr = NULL;
	if (s->rank == 0) {
		at = (uint64_t *)publish(s, true, access, GDRFAB_RMA_EVENT, &mr);
		OK(gdrfab_cntr_open(s->domain, NULL, NULL, &cntr));
		OK(gdrfab_mr_bind_cntr(mr, cntr, GDRFAB_REMOTE_WRITE));
	}
	meet(s);
	struct remote_word w = word_of(s);
	for (uint64_t i = 1; i <= ROUNDS; i++) {
		if (s->rank == 1) {
			OK(ADD(s, &one, w.addr, w.key, 1));
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

static void messages_come_behind(struct self *s)
{
	come_behind(s, RIGHTS);
}

/* --- atomics of the device --- */

#define BY_CARD (GDRFAB_ATOMIC | RIGHTS)

/* True if the other ranks reach rank 0 by its device. Without one, CPUs carry out all atomics, and GDRFAB_ATOMIC is refused. */
static bool reach_by_card(struct self *s)
{
	uint64_t word = 0;
	gdrfab_mr *mr = NULL;
	if (strstr(s->lanes, "verbs") && !rdm_over_iwarp(s))
		return s->two_hosts || strcmp(s->lanes, "verbs") == 0;
	CHECK_EQ(gdrfab_mr_reg(s->domain, &word, sizeof word, BY_CARD, 0, 9, 0, NULL, &mr), -EOPNOTSUPP);
	SAYS(gdrfab_last_error(), "GDRFAB_ATOMIC");
	CHECK(mr == NULL);
	test_skip("over %s no card%s carries out atomics", s->lanes, strstr(s->lanes, "verbs") ? " of iWARP" : "");
}

static void needs_card(struct self *s)
{
	if (!reach_by_card(s))
		test_skip("within a host another lane is nearer");
}

/* Sums, some of which fetch or are injected, and as many swaps: no change of another process is lost. */
static void two_change_a_cards_words(struct self *s)
{
	uint64_t *at = NULL, by = 2 * (uint64_t)s->rank + 1, old = 0, last = 0, seen = 0, sum = 0, swapped = 0;
	gdrfab_mr *mr = NULL;
	needs_card(s);
	if (s->rank == 0)
		at = (uint64_t *)publish(s, false, BY_CARD, 0, &mr);
	meet(s);
	struct remote_word w = word_of(s);
	for (int left = s->rank ? test_count(300, 40) : 0; left > 0; left--) {
		OK(ADD(s, &by, w.addr, w.key, 1));
		OK(gdrfab_inject_atomic(s->ep, &by, 1, 0, w.addr, w.key, GDRFAB_UINT64, GDRFAB_SUM));
		OK(FETCH(s, &by, &old, 0, w.addr, w.key, GDRFAB_SUM, 2));
		await(s, 1, NULL);
		CHECK_EQ(await(s, 2, NULL).flags, GDRFAB_ATOMIC | GDRFAB_READ);
		CHECK(old >= last + 2 * by);
		last = old + by, sum += 3 * by;
		for (bool mine = false; !mine; seen = old) {
			uint64_t next = seen + by;
			OK(gdrfab_compare_atomic(s->ep, &next, 1, NULL, &seen, NULL, &old, NULL, 0, w.addr + 8, w.key, GDRFAB_UINT64,
						 GDRFAB_CSWAP, context_of(3)));
			await(s, 3, NULL);
			mine = old == seen;
		}
		swapped += by;
	}
	put_number(s, 2 * s->rank + 2, sum);
	put_number(s, 2 * s->rank + 3, swapped);
	meet(s);
	if (s->rank == 0) {
		OK(gdrfab_mr_close(mr));
		CHECK_EQ(at[0], get_number(s, 4) + get_number(s, 6));
		CHECK_EQ(at[1], get_number(s, 5) + get_number(s, 7));
		CHECK_EQ(at[2], 0);
		free(at);
	}
}

static void messages_come_behind_a_cards(struct self *s)
{
	needs_card(s);
	come_behind(s, BY_CARD);
}

static void fails(struct self *s, uintptr_t context, int err, const char *says)
{
	char words[256];
	CHECK_EQ(await_failure(s, context, words).err, err);
	SAYS(words, says);
}

/* Refused are atomics by a CPU or by another device in such a region; the connection goes on. */
static void what_no_card_does_is_refused(struct self *s)
{
	uint64_t *at = NULL, one[2] = {1, 1}, old = 77;
	gdrfab_mr *mr = NULL, *plain = NULL, *bare = NULL, *parts = NULL;
	bool by_card = reach_by_card(s);
	if (s->rank == 0) {
		at = (uint64_t *)publish(s, true, BY_CARD, 0, &mr);
		struct iovec two[2] = {{at, 64}, {at + 64, 64}};
		CHECK_EQ(gdrfab_mr_regv(s->domain, two, 2, BY_CARD, 0, 0, 0, NULL, &parts), -EOPNOTSUPP);
		SAYS(gdrfab_last_error(), "iov_count");
		OK(gdrfab_mr_reg(s->domain, at + 16, 64, RIGHTS, 0, 0, 0, NULL, &plain));
		OK(gdrfab_mr_reg(s->domain, at + 32, 64, GDRFAB_ATOMIC, 0, 0, 0, NULL, &bare));
		put_number(s, 2, gdrfab_mr_key(plain));
		put_number(s, 3, gdrfab_mr_key(bare));
		/* The CPU of the own process is refused, too. */
		OK(FETCH(s, one, &old, 0, (uintptr_t)at, gdrfab_mr_key(mr), GDRFAB_SUM, 1));
		fails(s, 1, EOPNOTSUPP, "GDRFAB_ATOMIC");
	}
	meet(s);
	struct remote_word w = word_of(s);
	uint64_t other = get_number(s, 2), atomics = get_number(s, 3);
	if (s->rank && !by_card) {
		OK(FETCH(s, one, &old, 0, w.addr, w.key, GDRFAB_SUM, 2));
		fails(s, 2, EOPNOTSUPP, "shm");
		OK(FETCH(s, one, &old, 0, w.addr, w.key, GDRFAB_ATOMIC_READ, 2));
		fails(s, 2, EOPNOTSUPP, "GDRFAB_ATOMIC");
		CHECK_EQ(old, 77);
	}
	if (s->rank) {
		for (uint32_t type = GDRFAB_INT8; type <= GDRFAB_DOUBLE; type++)
			for (uint32_t op = GDRFAB_MIN; op <= GDRFAB_ATOMIC_WRITE; op++) {
				bool word = type == GDRFAB_INT64 || type == GDRFAB_UINT64;
				if ((word && (op == GDRFAB_SUM || op == GDRFAB_ATOMIC_READ)) || gdrfab_fetch_atomicvalid(s->ep, type, op, NULL))
					continue;
				CHECK_EQ(gdrfab_fetch_atomic(s->ep, one, 1, NULL, &old, NULL, 0, w.addr, w.key, type, op, NULL), -EOPNOTSUPP);
				SAYS(gdrfab_last_error(), "RDMA devices");
			}
		CHECK_EQ(gdrfab_atomic(s->ep, one, 2, NULL, 0, w.addr, w.key, GDRFAB_UINT64, GDRFAB_SUM, NULL), -EMSGSIZE);
		CHECK_EQ(gdrfab_atomic(s->ep, one, 0, NULL, 0, w.addr, w.key, GDRFAB_UINT64, GDRFAB_SUM, NULL), -EOPNOTSUPP);
		SAYS(gdrfab_last_error(), "count");
		CHECK_EQ(ADD(s, one, w.addr + 4, w.key, 3), -EINVAL);
	}
	if (s->rank && by_card) {
		OK(ADD(s, one, w.addr + 4096, w.key, 3));
		fails(s, 3, ERANGE, "");
		/* A region without GDRFAB_ATOMIC, with any variant of its key. */
		OK(ADD(s, one, w.addr + 128, other ^ (other ^ w.key) >> 61 << 61, 3));
		fails(s, 3, EKEYREJECTED, "");
		OK(gdrfab_read(s->ep, &old, 8, NULL, 0, w.addr + 256, atomics, context_of(3)));
		fails(s, 3, EACCES, "");
		CHECK_EQ(old, 77);
		OK(ADD(s, one, w.addr + 256, atomics, 3));
		await(s, 3, NULL);
		/* Writes and reads work as usual, in order, and the CPU serves other regions. */
		for (uint64_t i = 1; i <= 20; i++) {
			OK(gdrfab_write(s->ep, &i, 8, NULL, 0, w.addr, w.key, context_of(4)));
			OK(FETCH(s, one, &old, 0, w.addr, w.key, GDRFAB_SUM, 5));
			OK(gdrfab_atomic(s->ep, one, 1, NULL, 0, w.addr + 128, other, GDRFAB_UINT64, GDRFAB_BXOR, context_of(6)));
			OK(gdrfab_read(s->ep, &one[1], 8, NULL, 0, w.addr, w.key, context_of(7)));
			for (uintptr_t context = 4; context < 8; context++)
				await(s, context, NULL);
			CHECK_EQ(old, i);
			CHECK_EQ(one[1], i + 1);
		}
	}
	meet(s);
	if (s->rank == 0) {
		OK(gdrfab_mr_close(plain));
		OK(gdrfab_mr_close(bare));
		CHECK_EQ(at[0], by_card ? 21 : 0);
		CHECK_EQ(at[16], 0);
		CHECK_EQ(at[32], by_card);
		withdraw(s, true, at, mr);
	}
	/* A closed region is not reached any more; the peer is. */
	char word[8];
	trecv(s, !s->rank, word, 8, 1, 0, 8);
	if (s->rank) {
		await(s, 8, NULL);
		OK(ADD(s, one, w.addr, w.key, 9));
		fails(s, 9, by_card ? EKEYREJECTED : EOPNOTSUPP, "");
	}
	tsend(s, !s->rank, "over", 5, 1, 10);
	await(s, 10, NULL);
	if (s->rank == 0)
		await(s, 8, NULL);
}

/* The target dies: each operation ends once, successful ones were carried out, and none twice. */
static void a_cards_target_dies(struct self *s)
{
	enum { UNDER_WAY = 64 };
	static uint64_t one = 1, old[UNDER_WAY];
	pid_t victim = (pid_t)get_number(s, 0);
	uint64_t *word = &s->w->number[4], done = 0;
	gdrfab_mr *mr = NULL;
	needs_card(s);
	if (s->rank == 1) {
		OK(gdrfab_mr_reg(s->domain, word, 8, GDRFAB_ATOMIC, 0, 0, 0, NULL, &mr));
		put_number(s, 1, (uintptr_t)word);
		put_number(s, 2, gdrfab_mr_key(mr));
		for (meet(s);; drive(s))
			;
	}
	meet(s);
	memset(old, 0xee, sizeof old);
	for (uintptr_t i = 0; i < UNDER_WAY; i++)
		OK(FETCH(s, &one, &old[i], 1, get_number(s, 1), get_number(s, 2), GDRFAB_SUM, i + 1));
	while (!has_come(s, 1))
		;
	OK(kill(victim, SIGKILL));
	for (uint64_t until = test_now_ms() + (uint64_t)test_ms(WAIT_MS); s->kept_count + s->lost_count < UNDER_WAY; drive(s))
		CHECK(test_now_ms() < until);
	for (int i = 0; i < s->kept_count; i++)
		done |= 1ull << ((uintptr_t)s->kept[i].entry.op_context - 1);
	/* The fetched values grow, as no other rank changes the word; a failed operation may have been carried out. */
	for (uint64_t i = 0, next = 0; i < UNDER_WAY; i++) {
		CHECK(done >> i & 1 ? old[i] >= next : old[i] == 0xeeeeeeeeeeeeeeee);
		next = done >> i & 1 ? old[i] + 1 : next;
	}
	for (int i = 0; i < s->lost_count; i++) {
		uint64_t bit = 1ull << ((uintptr_t)s->lost[i].entry.op_context - 1);
		CHECK(!(done & bit));
		done |= bit;
	}
	CHECK_EQ(~done, 0);
	CHECK(get_number(s, 4) >= (uint64_t)s->kept_count && get_number(s, 4) <= UNDER_WAY);
	s->kept_count = s->lost_count = 0;
}

/* The device's link goes down and up meanwhile: each operation ends once, with a text if it fails, and the sum lies between
 * the successful operations and all. */
static void a_cards_link_is_cut(struct self *s)
{
	const char *may = getenv("TEST_BREAK");
	uint64_t *at = NULL, one = 1, old[WINDOW], posted = 0, done = 0;
	gdrfab_mr *mr = NULL;
	needs_card(s);
	if (!may || strcmp(may, "1") != 0)
		test_skip("TEST_BREAK=1 lets this claim take links away");
	if (s->rank == 0)
		at = (uint64_t *)publish(s, false, BY_CARD, 0, &mr);
	meet(s);
	struct remote_word w = word_of(s);
	if (s->rank)
		CHECK_EQ(test_system("n=$(cat /sys/class/infiniband/%.*s/ports/1/gid_attrs/ndevs/0); for i in 1 2 3; do sleep 0.1; "
				     "ip link set dev $n down; sleep 0.2; ip link set dev $n up; done; touch /tmp/gdrfab-cut-%d &",
				     (int)strcspn(s->info->domain_name, ":"), s->info->domain_name, (int)getpid()), 0);
	char over[64];
	snprintf(over, sizeof over, "/tmp/gdrfab-cut-%d", (int)getpid());
	for (bool last = s->rank == 0; !last;) {
		last = access(over, F_OK) == 0;
		for (uintptr_t i = 0; i < WINDOW; i++, posted++)
			OK(FETCH(s, &one, &old[i], 0, w.addr, w.key, GDRFAB_SUM, i));
		for (uint64_t until = test_now_ms() + (uint64_t)test_ms(WAIT_MS); s->kept_count + s->lost_count < WINDOW; drive(s))
			CHECK(test_now_ms() < until);
		uint32_t ended = 0;
		for (int i = 0; i < s->kept_count; i++)
			ended |= 1u << (uintptr_t)s->kept[i].entry.op_context;
		for (int i = 0; i < s->lost_count; i++) {
			CHECK(s->lost[i].entry.err != 0 && s->lost[i].words[0]);
			ended |= 1u << (uintptr_t)s->lost[i].entry.op_context;
		}
		CHECK_EQ(ended, (1u << WINDOW) - 1);
		done += (uint64_t)s->kept_count;
		s->kept_count = s->lost_count = 0;
	}
	if (s->rank) {
		CHECK(done > 0);
		OK(unlink(over));
		put_number(s, 2, done);
		put_number(s, 3, posted);
	}
	meet(s);
	if (s->rank == 0) {
		OK(gdrfab_mr_close(mr));
		CHECK(*at >= get_number(s, 2) && *at <= get_number(s, 3));
		free(at);
	}
}

TEST_TABLE(claims)
{
	static const struct rdm_claim by_cpu[] = {
		{"messages_come_behind", messages_come_behind, 2, false},
		{"eight_add_to_shared_memory", everybody_adds_to_shared, 8, false},
		{"eight_add_to_private_memory", everybody_adds_to_private, 8, false},
		{"a_lock_of_four", a_lock_of_all, 4, false},
	};
	static const struct rdm_claim by_card[] = {
		{"two_change_a_cards_words", two_change_a_cards_words, 3, false},
		{"messages_come_behind_a_cards", messages_come_behind_a_cards, 2, false},
		{"what_no_card_does_is_refused", what_no_card_does_is_refused, 2, false},
		{"a_cards_target_dies", a_cards_target_dies, 2, true},
		{"a_cards_link_is_cut", a_cards_link_is_cut, 2, false},
	};
	rdm_add(by_cpu, sizeof by_cpu / sizeof *by_cpu);
	/* If all of them skip, with TEST_FAST the first alone prints the reason. */
	rdm_add(by_card, strcmp(provider(), "verbs") && test_count(0, 1) ? 1 : sizeof by_card / sizeof *by_card);
}
