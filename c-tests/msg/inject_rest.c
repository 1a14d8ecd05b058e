/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Injected operations have no entry to wait for, so the caller may never call the library again: the operations must be sent by
 * the call that posts them. Writes, atomics and messages, several in a row, of connected endpoints and of connectionless ones
 * that have reached their peer; then the caller sleeps outside of the library.
 */
#include "fab.h"
#include "fab_rdm.h"

enum { IN_A_ROW = 3, LEN = 4096, AT_ATOMICS = 1024 };

static void check_words(const unsigned char *at, uint64_t round)
{
	for (uint64_t k = 0; k < IN_A_ROW; k++) {
		uint64_t word;
		memcpy(&word, at + 8 * k, 8);
		CHECK_EQ(word, round);
		memcpy(&word, at + AT_ATOMICS + 8 * k, 8);
		CHECK_EQ(word, round);
	}
}

static bool has_words(const unsigned char *at, uint64_t round)
{
	uint64_t one, other;
	memcpy(&one, at + 8 * (IN_A_ROW - 1), 8);
	memcpy(&other, at + AT_ATOMICS + 8 * (IN_A_ROW - 1), 8);
	return one == round && other == round;
}

static void injects(gdrfab_ep *ep, gdrfab_cq *cq, uint64_t index, struct remote to, uint64_t round)
{
	uint64_t one = 1;
	for (uint64_t k = 0; k < IN_A_ROW; k++)
		POST(cq, gdrfab_inject_write(ep, &round, sizeof round, index, to.base + 8 * k, to.key));
	for (uint64_t k = 0; k < IN_A_ROW; k++)
		POST(cq, gdrfab_inject_atomic(ep, &one, 1, index, to.base + AT_ATOMICS + 8 * k, to.key, GDRFAB_UINT64, GDRFAB_SUM));
}

/* --- between two --- */

struct act {
	int kind;
	/* Mapping this memory needs an answer of the peer, which arrives after the last call. */
	bool asks, rdm;
};

static uint64_t rounds_of(const struct act *a)
{
	return a->asks ? 1 : (uint64_t)test_count(100, 10);
}

static void rests(struct node *n)
{
	const struct act *a = (const struct act *)n->arg;
	node_up(n);
	node_reach(n);
	struct remote to = mem_fetch(n);
	for (uint64_t i = 1; i <= rounds_of(a); i++) {
		char all;
		barrier(n);
		injects(n->ep, n->cq, connectionless(n->setup) ? PEER : 0, to, i);
		if (read(n->oob, &all, 1) != 1)
			test_fail(__FILE__, __LINE__, "the other side has not said that it has them");
	}
	node_down(n);
}

static void sees(struct node *n)
{
	const struct act *a = (const struct act *)n->arg;
	struct mem m;
	node_up(n);
	node_reach(n);
	mem_new(n, &m, &memkinds[a->kind], LEN);
	memset(m.addr, 0, LEN);
	mem_register(n, &m, 0, LEN, REMOTE_ACCESS, 0);
	mem_publish(n, &m);
	for (uint64_t i = 1; i <= rounds_of(a); i++) {
		barrier(n);
		uint64_t until = test_now_ms() + (uint64_t)test_ms(5000);
		while (!has_words(m.addr, i) && test_now_ms() < until)
			gdrfab_cq_read(n->cq, NULL, 0);
		check_words(m.addr, i);
		oob_send(n, "", 1);
	}
	mem_end(n, &m);
	node_down(n);
}

static void between_two(const void *arg)
{
	const struct act *a = (const struct act *)arg;
	struct setup s = {.rdm = a->rdm};
	skip_unless(!traits()->adapter, "has no atomics");
	if (a->asks)
		set_variable("GDRFAB_DEBUG", "no-pidfd");
	pair(&s, sees, rests, arg);
}

/* --- connectionless endpoints that have reached their peer --- */

/* Sleeps outside of the library until the other side has come so far. */
static void rest_until(struct self *s, int which, uint64_t value)
{
	uint64_t until = test_now_ms() + (uint64_t)test_ms(10000);
	while (get_number(s, which) != value && test_now_ms() < until)
		test_sleep_ms(1);
	if (get_number(s, which) != value)
		test_fail(__FILE__, __LINE__, "the other side has not seen what was injected in round %d", (int)value);
}

/* The operations of rank 0 arrive although rank 0 has gone to sleep by then. */
static void met_and_rests(struct self *s)
{
	static unsigned char memory[LEN];
	char in[IN_A_ROW][8];
	gdrfab_mr *mr = NULL;
	if (s->rank == 1) {
		OK(gdrfab_mr_reg(s->domain, memory, LEN, REMOTE_ACCESS, 0, 0, 0, NULL, &mr));
		put_number(s, 0, (uint64_t)(uintptr_t)memory);
		put_number(s, 1, gdrfab_mr_key(mr));
	}
	meet(s);
	struct remote to = {.base = get_number(s, 0), .key = get_number(s, 1), .len = LEN};
	for (uint64_t i = 1; i <= (uint64_t)test_count(100, 10); i++) {
		/* Connects them the first time; later it takes the entries left of the last round. */
		if (s->rank == 0) {
			tsend(s, 1, "met", 4, 100, 100);
			await(s, 100, NULL);
			/* Over a card the first operation asks what a key names, and RMA waits for atomics before it: both are over
			 * with this one. */
			if (s->two_hosts || strcmp(s->lanes, "verbs") == 0) {
				OK(gdrfab_read(s->ep, in[0], sizeof in[0], NULL, 1, to.base, to.key, context_of(101)));
				await(s, 101, NULL);
			}
		} else {
			char met[4];
			for (uintptr_t k = 0; k < IN_A_ROW; k++)
				trecv(s, GDRFAB_ADDR_UNSPEC, in[k], sizeof in[k], k, 0, k);
			trecv(s, 0, met, sizeof met, 100, 0, 100);
			await(s, 100, NULL);
		}
		meet(s);
		if (s->rank == 0) {
			for (uint64_t k = 0; k < IN_A_ROW; k++)
				POST(s->cq, gdrfab_tinject(s->ep, "message", 8, 1, k));
			rest_until(s, 2, i);
			injects(s->ep, s->cq, 1, to, i);
			rest_until(s, 3, i);
			continue;
		}
		for (uintptr_t k = 0; k < IN_A_ROW; k++)
			await(s, k, NULL);
		put_number(s, 2, i);
		uint64_t until = test_now_ms() + (uint64_t)test_ms(5000);
		while (!has_words(memory, i) && test_now_ms() < until)
			drive(s);
		check_words(memory, i);
		put_number(s, 3, i);
	}
	meet(s);
	if (mr)
		OK(gdrfab_mr_close(mr));
}

/* A message with an entry has been sent: messages behind a full socket wait, and have no entries yet. */
static void what_has_an_entry_has_left(struct self *s)
{
	enum { WARM = 500, MESSAGES = 200, BYTES = 4000 };
	static char out[BYTES], in[MESSAGES][BYTES];
	/* The receiver grants more room as it receives. */
	for (int i = 0; i < WARM; i++) {
		if (s->rank == 0)
			tsend(s, 1, out, BYTES, 1000, 1000);
		else
			trecv(s, 0, in[0], BYTES, 1000, 0, 1000);
		await(s, 1000, NULL);
	}
	meet(s);
	if (s->rank == 0) {
		uint64_t sent = 0;
		for (uintptr_t k = 0; k < MESSAGES; k++)
			tsend(s, 1, out, BYTES, k, k);
		for (uintptr_t k = 0; k < MESSAGES; k++)
			sent += has_come(s, k);
		put_number(s, 2, sent);
		put_number(s, 3, 1);
		rest_until(s, 4, 1);
		for (uintptr_t k = sent; k < MESSAGES; k++)
			await(s, k, NULL);
	} else {
		rest_until(s, 3, 1);
		for (uintptr_t k = 0; k < MESSAGES; k++)
			trecv(s, 0, in[k], BYTES, k, 0, k);
		/* Except for the rest of a message that the socket took in part. */
		for (uintptr_t k = 0; k + 1 < get_number(s, 2); k++)
			await(s, k, NULL);
		put_number(s, 4, 1);
		for (uintptr_t k = 0; k < MESSAGES; k++)
			if (k + 1 >= get_number(s, 2))
				await(s, k, NULL);
	}
	meet(s);
}

/* Closing the endpoint sends the rest: over an RDMA device the library first asks for this key, and has sent nothing yet. */
static void closes_behind_it(struct self *s)
{
	static unsigned char memory[8 * IN_A_ROW];
	char met[4];
	gdrfab_mr *mr = NULL;
	uint64_t word = 7;
	if (s->rank == 1) {
		OK(gdrfab_mr_reg(s->domain, memory, sizeof memory, REMOTE_ACCESS, 0, 0, 0, NULL, &mr));
		put_number(s, 0, (uint64_t)(uintptr_t)memory);
		put_number(s, 1, gdrfab_mr_key(mr));
		trecv(s, 0, met, sizeof met, 1, 0, 1);
	}
	meet(s);
	if (s->rank == 0)
		tsend(s, 1, "met", 4, 1, 1);
	await(s, 1, NULL);
	meet(s);
	if (s->rank == 0) {
		for (uint64_t k = 0; k < IN_A_ROW; k++)
			POST(s->cq, gdrfab_inject_write(s->ep, &word, sizeof word, 1, get_number(s, 0) + 8 * k, get_number(s, 1)));
		OK(gdrfab_ep_close(s->ep));
		s->ep = NULL;
		put_number(s, 2, 1);
	} else {
		uint64_t last = 0;
		for (uint64_t until = test_now_ms() + (uint64_t)test_ms(5000); last != word && test_now_ms() < until; drive(s))
			memcpy(&last, memory + sizeof memory - 8, 8);
		CHECK_EQ(last, word);
		rest_until(s, 2, 1);
		OK(gdrfab_mr_close(mr));
	}
	meet(s);
}

TEST_TABLE(claims)
{
	static const struct act acts[] = {{.kind = KIND_MEM_ALLOC}, {.kind = KIND_MALLOC}, {.kind = KIND_MEM_ALLOC, .asks = true},
					  {.kind = KIND_MEM_ALLOC, .asks = true, .rdm = true}};
	static const struct rdm_claim rdm[] = {
		{"after_a_meeting", met_and_rests, 2, false},
		{"what_has_an_entry_has_left", what_has_an_entry_has_left, 2, false},
		{"closes_behind_it", closes_behind_it, 2, false},
	};
	/* Small socket buffers are full after a few messages. */
	setenv("GDRFAB_TCP_BUFFER", "32768", 0);
	test_add("to_shared_memory", between_two, &acts[0], 30);
	test_add("to_private_memory", between_two, &acts[1], 30);
	if (path_known(PATH_DIRECT)) {
		test_add("to_memory_that_is_asked_for", between_two, &acts[2], 30);
		test_add("connectionless_to_memory_that_is_asked_for", between_two, &acts[3], 30);
	}
	rdm_add(rdm, sizeof rdm / sizeof *rdm);
}
