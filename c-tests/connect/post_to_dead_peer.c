/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Operations posted on a connected endpoint after its peer was killed: each has one result, and only the first few may
 * succeed; their number is bounded, however much time passes between them. The program posts one, reads its entry, and
 * rests. For connectionless endpoints and endpoints with tags see rdm_dead.c.
 */
#include "fab.h"

#include <signal.h>

/* The number of operations that may still succeed, and the number posted in all. */
enum { FEW = 32, POSTED = 60, REST_MS = 2 };
enum op { SEND, INJECT, WRITE, WRITEDATA, INJECT_WRITE, OPS };
static const char *const op_words[OPS] = {"sends", "injected messages", "writes", "writes with data", "injected writes"};

static enum op op_of(const struct node *n)
{
	return *(const enum op *)n->arg;
}

static void dies(struct node *n)
{
	static uint64_t in[64];
	struct mem m;
	node_up(n);
	mem_new(n, &m, &memkinds[KIND_MALLOC], 4096);
	mem_register(n, &m, 0, 4096, ANY_ACCESS, 0);
	mem_publish(n, &m);
	for (int i = 0; i < 64; i++)
		POST(n->cq, gdrfab_recv(n->ep, &in[i], 8, local_desc(n, &in[i], 8), PEER, &in[i]));
	barrier(n);
	for (;;)
		gdrfab_cq_read(n->cq, NULL, 0);
}

static ssize_t post(struct node *n, struct remote to, uint64_t *word)
{
	switch (op_of(n)) {
	case SEND:
		return gdrfab_send(n->ep, word, 8, local_desc(n, word, 8), PEER, word);
	case INJECT:
		return gdrfab_inject(n->ep, word, 8, PEER);
	case WRITE:
		return gdrfab_write(n->ep, word, 8, local_desc(n, word, 8), PEER, to.base, to.key, word);
	case WRITEDATA:
		return gdrfab_writedata(n->ep, word, 8, local_desc(n, word, 8), 7, PEER, to.base, to.key, word);
	default:
		return gdrfab_inject_write(n->ep, word, 8, PEER, to.base, to.key);
	}
}

/* True if the posted operation succeeded. It has one entry, or none if it was injected and succeeded. */
static bool went_well(struct node *n, const uint64_t *word, bool silent)
{
	struct failure f;
	done e;
	ssize_t got = -EAGAIN;
	int in_vain = 0;
	/* A plain read: a wait would drive all connections. */
	for (uint64_t until = test_now_ms() + (uint64_t)test_ms(15000); got == -EAGAIN && test_now_ms() < until && in_vain < 200; in_vain += silent)
		got = gdrfab_cq_read(n->cq, &e, 1);
	if (got == 1) {
		CHECK(!silent && e.op_context == word);
		return true;
	}
	if (got == -EAGAIN) {
		CHECK(silent);
		return true;
	}
	cq_failure(__FILE__, __LINE__, n->cq, &f);
	CHECK(silent || f.entry.op_context == word);
	CHECK(failure_is(&f.entry, ECONNRESET, GDRFAB_PROV_PEER_GONE) || flushed(&f.entry));
	return false;
}

static void posts_on(struct node *n)
{
	static uint64_t words[POSTED];
	bool silent = op_of(n) == INJECT || op_of(n) == INJECT_WRITE;
	int well = 0, failed = 0;
	node_up(n);
	struct remote to = mem_fetch(n);
	barrier(n);
	CHECK_EQ(post(n, to, words), 0);
	CHECK(went_well(n, words, silent));
	test_sleep_ms(20);
	/* Nothing drives the endpoint meanwhile. */
	CHECK(kill(n->peer, SIGKILL) == 0);
	while (!test_process_over(n->peer))
		test_sleep_ms(1);
	for (int i = 0; i < POSTED; i++) {
		ssize_t rc = post(n, to, &words[i]);
		if (rc == 0 && went_well(n, &words[i], silent)) {
			/* After the first failure no operation succeeds. */
			CHECK_EQ(failed, 0);
			well++;
		} else {
			CHECK(rc == 0 || rc == -ESHUTDOWN);
			failed++;
		}
		test_sleep_ms(REST_MS);
	}
	if (well > FEW || failed == 0)
		test_fail(__FILE__, __LINE__, "%d of %d %s to a peer that was dead went well", well, (int)POSTED, op_words[op_of(n)]);
	EVENT(n->eq, GDRFAB_SHUTDOWN, n->ep, NULL);
	CHECK_EQ(post(n, to, words), -ESHUTDOWN);
	node_close(n);
}

static void after_its_death(const void *arg)
{
	struct setup s = {.victim = TEST_CLIENT};
	if (connectionless(&s))
		test_skip("rdm_dead.c is about connectionless endpoints");
	pair(&s, posts_on, dies, arg);
}

TEST_TABLE(claims)
{
	static enum op ops[OPS];
	for (int i = 0; i < OPS; i++) {
		ops[i] = (enum op)i;
		test_add(op_words[i], after_its_death, &ops[i], 60);
	}
}
