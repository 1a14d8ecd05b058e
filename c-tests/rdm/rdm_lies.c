/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Peers over an RDMA device that lie about their posted receives in a working connection: one grants more than a lane has, one
 * takes back granted receives, and one has not posted those that it granted. Each loses its connection with a reason, and an
 * honest peer is served as before. A layer below the peer's library sends the lies (tests/vm/liar-shim.c).
 */
#include "fab_provider.h"
#include "fab_rdm.h"

enum { VICTIM, PROMISES, TAKES_BACK, HAS_NONE, HONEST, RANKS };
enum { HELLO = 1, LIE, PING, RECEIVED = 100, SENT = 200, GREETED = 300 };

static void greet(struct self *s, int other)
{
	static char in[RANKS][8], out[8] = "hello";
	trecv(s, (uint64_t)other, in[other], 8, HELLO, 0, GREETED + (uintptr_t)other);
	tsend(s, other, out, 8, HELLO, SENT);
	await(s, SENT, NULL);
	await(s, GREETED + (uintptr_t)other, NULL);
}

/* The receive that waited for this peer alone fails with this text. */
static void caught(struct self *s, int who, const char *by)
{
	char words[256];
	gdrfab_cq_err_entry e = await_failure(s, RECEIVED + (uintptr_t)who, words);
	CHECK(e.err > 0 && e.src_addr == (uint64_t)who);
	SAYS(words, by);
}

/* Sends until the device reports that the peer has no receive posted. */
static void runs_out(struct self *s, int who)
{
	enum { MANY = 50 };
	static char out[8] = "more";
	char words[256];
	int sent = 0;
	for (uint64_t until = test_now_ms() + (uint64_t)test_ms(WAIT_MS);; drive(s)) {
		CHECK(test_now_ms() < until);
		for (int i = 0; i < s->lost_count; i++) {
			if (s->lost[i].entry.op_context != context_of(RECEIVED + (uintptr_t)who))
				continue;
			CHECK(s->lost[i].entry.err > 0);
			await_failure(s, RECEIVED + (uintptr_t)who, words);
			/* Over iWARP a missing receive only ends the connection, without a reason. */
			SAYS(words, rdm_over_iwarp(s) ? "closed" : "receive");
			return;
		}
		/* More messages than it had receives; each of the rest fails. */
		if (sent < MANY && gdrfab_tsend(s->ep, out, 8, NULL, (uint64_t)who, PING, context_of(SENT + 1)) == 0)
			sent++;
		for (int i = 0; i < s->kept_count; i++)
			if (s->kept[i].entry.op_context == context_of(SENT + 1))
				s->kept[i--] = s->kept[--s->kept_count];
	}
}

static void lies(struct self *s)
{
	static char rest[RANKS][8];
	int rounds = test_count(200, 30);
	if (strcmp(s->lanes, "verbs") != 0)
		test_skip("RDMA devices alone");
	void (*lie)(int credits, bool no_receives);
	*(void **)&lie = liar("verbs_lie");
	if (s->rank == VICTIM)
		for (int i = 1; i < RANKS; i++)
			greet(s, i);
	else
		greet(s, VICTIM);
	if (s->rank == VICTIM)
		for (int i = 1; i < HONEST; i++)
			trecv(s, (uint64_t)i, rest[i], 8, RECEIVED, 0, RECEIVED + (uintptr_t)i);
	meet(s);
	switch (s->rank) {
	case PROMISES:
		lie(1000, false);
		gdrfab_tsend(s->ep, "a lie", 6, NULL, VICTIM, LIE, NULL);
		break;
	case TAKES_BACK:
		lie(-3, false);
		gdrfab_tsend(s->ep, "a lie", 6, NULL, VICTIM, LIE, NULL);
		break;
	case HAS_NONE:
		lie(0, true);
		break;
	case VICTIM:
		caught(s, PROMISES, "reports more free receives");
		caught(s, TAKES_BACK, "reports more free receives");
		break;
	}
	meet(s);
	if (s->rank == VICTIM)
		runs_out(s, HAS_NONE);
	for (int i = 0; i < rounds; i++) {
		if (s->rank == VICTIM)
			greet(s, HONEST);
		else if (s->rank == HONEST)
			greet(s, VICTIM);
	}
	meet(s);
	lie(0, false);
}

TEST_TABLE(claims)
{
	static const struct rdm_claim claims[] = {{"peers_that_lie_about_their_receives", lies, RANKS, false}};
	rdm_meets_none = rdm_cards_alone = true;
	rdm_add(claims, sizeof claims / sizeof *claims);
}
