/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Atomics that the RDMA device carries out, on regions registered with GDRFAB_ATOMIC: two processes that change one word at
 * once lose nothing. Operations that no device has are refused with a text, and so is such a region where only a CPU would
 * carry the operations out.
 */
#include "fab.h"

enum { LEN = 4096, ROUNDS = 400, MINE = 3, THEIRS = 7 };

#define CARD_ACCESS (GDRFAB_ATOMIC | REMOTE_ACCESS)
#define ADD(ep, by, at, key, ctx) gdrfab_atomic(ep, by, 1, NULL, 0, at, key, GDRFAB_UINT64, GDRFAB_SUM, ctx)
#define FETCH(ep, by, old, at, key, op, ctx)                                                                           \
	gdrfab_fetch_atomic(ep, by, 1, NULL, old, NULL, 0, at, key, GDRFAB_INT64, op, ctx)
#define CAS(ep, by, as, old, at, key, ctx)                                                                             \
	gdrfab_compare_atomic(ep, by, 1, NULL, as, NULL, old, NULL, 0, at, key, GDRFAB_UINT64, GDRFAB_CSWAP, ctx)

/* The atomic operations of the info's device; 0: none, or no device. */
static uint32_t card_does(const gdrfab_info *info)
{
	gdrfab_nic_attr nic;
	memset(&nic, 0, sizeof nic);
	nic.struct_size = sizeof nic;
	return gdrfab_info_nic(info, &nic) == 0 ? nic.atomics : 0;
}

static void needs_card(struct node *n)
{
	if (!card_does(n->info))
		test_skip("%s: no card that carries out atomics", provider());
}

/* Registers a word for the device's atomics, with the value 0. */
static void word_new(struct node *n, struct mem *m)
{
	mem_new(n, m, &memkinds[KIND_MALLOC], LEN);
	memset(m->addr, 0, LEN);
	mem_register(n, m, 0, LEN, CARD_ACCESS, 0);
	CHECK_EQ(mr_query(m->mr).access, CARD_ACCESS);
	mem_publish(n, m);
}

static void await(struct node *n, const void *context)
{
	done entry;
	CHECK_EQ(cq_next(n->cq, &entry, 10000), 1);
	CHECK(entry.op_context == context);
}

/* Reads the word by an atomic operation of the device. */
static uint64_t word_now(struct node *n, gdrfab_ep *ep, uint64_t at, uint64_t key)
{
	uint64_t now = ~0ull;
	POST(n->cq, FETCH(ep, NULL, &now, at, key, GDRFAB_ATOMIC_READ, &now));
	await(n, &now);
	return now;
}

/* --- two processes at once --- */

/* Adds many times, by calls that fetch, that do not, and that are injected; subtracts once. Returns the sum. */
static uint64_t adds(struct node *n, gdrfab_ep *ep, uint64_t at, uint64_t key, uint64_t by)
{
	uint64_t old = 0, last = 0, less = 0 - by, sum = 0;
	int rounds = test_count(ROUNDS, 100);
	for (int i = 0; i < rounds; i++) {
		POST(n->cq, ADD(ep, &by, at, key, &by));
		POST(n->cq, gdrfab_inject_atomic(ep, &by, 1, 0, at, key, GDRFAB_INT64, GDRFAB_SUM));
		POST(n->cq, FETCH(ep, &by, &old, at, key, GDRFAB_SUM, &old));
		await(n, &by);
		await(n, &old);
		/* The fetched value contains this side's earlier sums; the other side subtracts at most THEIRS. */
		CHECK(old + THEIRS >= last + 2 * by);
		last = old + by;
		sum += 3 * by;
	}
	POST(n->cq, ADD(ep, &less, at, key, &less));
	await(n, &less);
	return sum - by;
}

/* Increments by compare-and-swap until so many swaps succeeded: no increment of the other side is lost. */
static uint64_t swaps(struct node *n, gdrfab_ep *ep, uint64_t at, uint64_t key, uint64_t by)
{
	uint64_t seen = 0, sum = 0;
	for (int left = test_count(ROUNDS, 60); left > 0;) {
		uint64_t next = seen + by, old;
		POST(n->cq, CAS(ep, &next, &seen, &old, at, key, &old));
		await(n, &old);
		if (old == seen)
			left--, sum += by, old = next;
		seen = old;
	}
	return sum;
}

typedef uint64_t (*change_fn)(struct node *n, gdrfab_ep *ep, uint64_t at, uint64_t key, uint64_t by);

struct change {
	change_fn fn;
};

/* Two queue pairs of one process are connected to each other: the device changes memory of its own process. */
static void loop_open(struct node *n, gdrfab_ep *ends[2])
{
	char names[2][GDRFAB_ADDR_MAX];
	for (int i = 0; i < 2; i++) {
		size_t len = sizeof names[i];
		ends[i] = ep_new(n, n->info, NULL);
		OK(gdrfab_ep_getname(ends[i], names[i], &len));
	}
	for (int i = 0; i < 2; i++)
		OK(gdrfab_ep_connect_addr(ends[i], names[!i], strlen(names[!i]) + 1));
	for (int i = 0; i < 2; i++) {
		gdrfab_eq_cm_entry end;
		uint32_t event = 0;
		CHECK(gdrfab_eq_sread(n->eq, &event, &end, sizeof end, test_ms(10000), 0) > 0);
		CHECK_EQ(event, GDRFAB_CONNECTED);
	}
}

static void owner(struct node *n)
{
	struct mem m;
	gdrfab_ep *ends[2];
	uint64_t theirs;
	node_up(n);
	needs_card(n);
	word_new(n, &m);
	loop_open(n, ends);
	barrier(n);
	uint64_t mine = ((const struct change *)n->arg)->fn(n, ends[0], m.base, m.key, MINE);
	oob_recv(n, &theirs, sizeof theirs);
	CHECK_EQ(word_now(n, ends[0], m.base, m.key), mine + theirs);
	CHECK_EQ(word_now(n, ends[0], m.base + 8, m.key), 0);
	barrier(n);
	for (int i = 0; i < 2; i++)
		OK(gdrfab_ep_close(ends[i]));
	mem_end(n, &m);
	node_down(n);
}

static void user(struct node *n)
{
	node_up(n);
	needs_card(n);
	struct remote to = mem_fetch(n);
	barrier(n);
	uint64_t sum = ((const struct change *)n->arg)->fn(n, n->ep, to.base, to.key, THEIRS);
	oob_send(n, &sum, sizeof sum);
	barrier(n);
	node_down(n);
}

static void at_once(const void *arg)
{
	skip_unless(traits()->adapter, "has no card");
	pair(NULL, owner, user, arg);
}

/* --- in the order of posting, beside RMA --- */

static void lends(struct node *n)
{
	struct mem m;
	node_up(n);
	needs_card(n);
	word_new(n, &m);
	barrier(n);
	mem_end(n, &m);
	node_down(n);
}

static void mixes(struct node *n)
{
	static uint64_t words[2], old;
	uint64_t two = 2, *there = &words[0], *now = &words[1];
	node_up(n);
	needs_card(n);
	struct remote to = mem_fetch(n);
	void *desc = local_desc(n, words, sizeof words);
	gdrfab_msg_atomic m = {.struct_size = sizeof m, .buf = &two, .result = &old, .count = 1, .rma_addr = to.base, .key = to.key,
			       .datatype = GDRFAB_UINT64, .op = GDRFAB_SUM, .context = &old, .timeout_ns = 10000000000};
	struct iovec iov = {there, 8};
	gdrfab_rma_iov rma = {to.base, 8, to.key};
	for (uint64_t i = 1; i <= (uint64_t)test_count(ROUNDS, 50); i++) {
		*there = i * 10;
		/* The write is part of a chain that is posted with its last member; the atomic operation must post it before. */
		gdrfab_msg_rma write = {.struct_size = sizeof write, .msg_iov = &iov, .desc = &desc, .iov_count = 1, .rma_iov = &rma,
					.rma_iov_count = 1, .context = there};
		POST(n->cq, gdrfab_writemsg(n->ep, &write, GDRFAB_COMPLETION | GDRFAB_MORE));
		POST(n->cq, gdrfab_atomicmsg(n->ep, &m, GDRFAB_COMPLETION));
		POST(n->cq, gdrfab_read(n->ep, now, 8, desc, 0, to.base, to.key, now));
		await(n, there);
		await(n, &old);
		await(n, now);
		CHECK_EQ(old, i * 10);
		CHECK_EQ(*now, i * 10 + 2);
	}
	barrier(n);
	local_forget_all(n);
	node_down(n);
}

TEST(in_order_with_writes_and_reads)
{
	skip_unless(traits()->adapter, "has no card");
	pair(NULL, lends, mixes, NULL);
}

/* --- the end of a connection --- */

enum { UNDER_WAY = 16 };

static void counts_what_came(struct node *n)
{
	struct mem m;
	uint64_t word;
	int done;
	node_up(n);
	needs_card(n);
	word_new(n, &m);
	oob_recv(n, &done, sizeof done);
	mem_unregister(&m);
	memcpy(&word, m.addr, sizeof word);
	/* Operations that succeeded were carried out; the others may have been. */
	CHECK(word >= (uint64_t)done && word <= UNDER_WAY);
	barrier(n);
	mem_end(n, &m);
	node_close(n);
}

/* Each operation has one entry, and a failed one has not written its result buffer. */
static void shuts_down(struct node *n)
{
	static uint64_t old[UNDER_WAY], one = 1;
	int ended[UNDER_WAY] = {0}, done = 0;
	node_up(n);
	needs_card(n);
	struct remote to = mem_fetch(n);
	memset(old, 0xee, sizeof old);
	for (int i = 0; i < UNDER_WAY; i++)
		POST(n->cq, FETCH(n->ep, &one, &old[i], to.base, to.key, GDRFAB_SUM, &old[i]));
	OK(gdrfab_ep_shutdown(n->ep, 0));
	for (int left = UNDER_WAY; left > 0; left--) {
		gdrfab_cq_data_entry entry;
		struct failure f;
		int got = cq_next(n->cq, &entry, 10000);
		CHECK(got != 0);
		if (got < 0)
			cq_failure(__FILE__, __LINE__, n->cq, &f);
		uint64_t *at = (uint64_t *)(got < 0 ? f.entry.op_context : entry.op_context);
		CHECK(at >= old && at < old + UNDER_WAY && !ended[at - old]++);
		CHECK_EQ(*at, got < 0 ? 0xeeeeeeeeeeeeeeee : (uint64_t)(at - old));
		done += got > 0;
	}
	oob_send(n, &done, sizeof done);
	barrier(n);
	node_close(n);
}

TEST(each_ends_once_with_the_connection)
{
	skip_unless(traits()->adapter, "has no card");
	pair(NULL, counts_what_came, shuts_down, NULL);
}

/* --- refused operations --- */

static void strict(struct node *n)
{
	struct mem m[2];
	node_up(n);
	needs_card(n);
	word_new(n, &m[0]);
	/* This region was registered without GDRFAB_ATOMIC. */
	mem_new(n, &m[1], &memkinds[KIND_MALLOC], LEN);
	memset(m[1].addr, 5, LEN);
	mem_register(n, &m[1], 0, LEN, REMOTE_ACCESS, 0);
	mem_publish(n, &m[1]);
	follow_recovery(n);
	barrier(n);
	/* A closed region is not reached any more. */
	mem_unregister(&m[0]);
	barrier(n);
	barrier(n);
	CHECK_EQ(m[0].addr[0] | m[0].addr[8], 0);
	CHECK_EQ(m[1].addr[0], 5);
	mem_end(n, &m[0]);
	mem_end(n, &m[1]);
	node_down(n);
}

static void refused(struct node *n)
{
	uint64_t one[2] = {1, 1}, old;
	size_t count = 0;
	struct failure f;
	node_up(n);
	needs_card(n);
	struct remote to = mem_fetch(n), plain = mem_fetch(n);
	for (uint32_t type = GDRFAB_INT8; type <= GDRFAB_DOUBLE; type++) {
		bool word = type == GDRFAB_INT64 || type == GDRFAB_UINT64;
		for (uint32_t op = GDRFAB_MIN; op <= GDRFAB_MSWAP; op++) {
			int sum = word && op == GDRFAB_SUM ? 0 : -EOPNOTSUPP, read = word && op == GDRFAB_ATOMIC_READ ? 0 : sum;
			int swap = word && op == GDRFAB_CSWAP ? 0 : -EOPNOTSUPP;
			CHECK_EQ(gdrfab_atomicvalid(n->ep, type, op, &count), sum);
			CHECK_EQ(gdrfab_fetch_atomicvalid(n->ep, type, op, NULL), read);
			CHECK_EQ(gdrfab_compare_atomicvalid(n->ep, type, op, NULL), swap);
			if (sum)
				CHECK_EQ(gdrfab_atomic(n->ep, one, 1, NULL, 0, to.base, to.key, type, op, one), -EOPNOTSUPP);
			if (read)
				CHECK_EQ(gdrfab_fetch_atomic(n->ep, one, 1, NULL, &old, NULL, 0, to.base, to.key, type, op, one),
					 -EOPNOTSUPP);
		}
	}
	CHECK_EQ(count, 1);
	CHECK_EQ(gdrfab_atomic(n->ep, one, 1, NULL, 0, to.base, to.key, GDRFAB_UINT64, GDRFAB_BOR, one), -EOPNOTSUPP);
	SAYS(gdrfab_last_error(), "RDMA devices");
	CHECK_EQ(gdrfab_atomic(n->ep, one, 2, NULL, 0, to.base, to.key, GDRFAB_UINT64, GDRFAB_SUM, one), -EMSGSIZE);
	SAYS(gdrfab_last_error(), "count");
	CHECK_EQ(gdrfab_atomic(n->ep, one, 0, NULL, 0, to.base, to.key, GDRFAB_UINT64, GDRFAB_SUM, one), -EOPNOTSUPP);
	SAYS(gdrfab_last_error(), "count");
	CHECK_EQ(ADD(n->ep, one, to.base + 4, to.key, one), -EINVAL);
	SAYS(gdrfab_last_error(), "multiple");
	CHECK_EQ(ADD(n->ep, one, to.base, to.key | 1ull << 40, one), -EINVAL);
	SAYS(gdrfab_last_error(), "key");
	POST(n->cq, ADD(n->ep, one, plain.base, plain.key, one));
	FAILED(n->cq, one, EKEYREJECTED, GDRFAB_PROV_VERBS + 10, &f);
	SAYS(f.words, "atomic operation");
	lead_recovery(n);
	lead_no_more(n);
	barrier(n);
	barrier(n);
	POST(n->cq, FETCH(n->ep, one, &old, to.base, to.key, GDRFAB_SUM, &old));
	FAILED(n->cq, &old, EKEYREJECTED, GDRFAB_PROV_VERBS + 10, &f);
	barrier(n);
	node_down(n);
}

TEST(what_no_card_does_is_refused)
{
	skip_unless(traits()->adapter, "has no card");
	pair(NULL, strict, refused, NULL);
}

/* --- without a device --- */

static void declares(struct node *n)
{
	struct mem m;
	struct iovec iov;
	node_up(n);
	if (card_does(n->info))
		test_skip("a card carries out atomics");
	mem_new(n, &m, &memkinds[KIND_MALLOC], LEN);
	CHECK_EQ(mem_try_register(n, &m, 0, LEN, CARD_ACCESS, 0, 17), -EOPNOTSUPP);
	SAYS(gdrfab_last_error(), "GDRFAB_ATOMIC");
	CHECK_EQ(gdrfab_mr_reg(n->domain, m.addr, LEN, GDRFAB_ATOMIC, 0, 17, 0, NULL, &m.mr), -EOPNOTSUPP);
	iov.iov_base = m.addr, iov.iov_len = LEN;
	CHECK_EQ(gdrfab_mr_regv(n->domain, &iov, 1, CARD_ACCESS, 0, 17, 0, NULL, &m.mr), -EOPNOTSUPP);
	SAYS(gdrfab_last_error(), "GDRFAB_ATOMIC");
	/* The memory can still be registered without GDRFAB_ATOMIC. */
	mem_register(n, &m, 0, LEN, REMOTE_ACCESS, 0);
	mem_end(n, &m);
	node_down(n);
}

TEST(refused_where_no_card_does_it)
{
	pair(NULL, declares, declares, NULL);
}

TEST_TABLE(all)
{
	static const struct change add = {adds}, swap = {swaps};
	test_add("two_processes_add_at_once", at_once, &add, 30);
	test_add("two_processes_compare_and_swap_at_once", at_once, &swap, 30);
}
