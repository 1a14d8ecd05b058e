/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Fault injection (GDRFAB_FAULT) with several peers: the third message to a peer loses the connection to this peer only, each
 * peer is counted separately, and receives are delayed, whichever peer they are for. For two endpoints see fault_injection.c.
 */
#include "fab_rdm.h"

enum { LATE_MS = 60, LONG = 1 << 20 };

/* The helpers send no further messages, which would be counted too. */
static void third_is_lost(struct self *s)
{
	static char in[3][LONG], out[LONG];
	char words[256];
	uint64_t from;
	fill(out, LONG, 0, 3);
	if (s->rank == 0) {
		trecv(s, 1, in[0], 8, 10, 0, 1);
		trecv(s, GDRFAB_ADDR_UNSPEC, in[1], 8, 11, 0, 2);
		trecv(s, 2, in[2], 8, 12, 0, 3);
		meet(s);
		/* The first message is offered and waits at its receiver, which has no receive posted for it. */
		tsend(s, 1, out, LONG, 1, 4);
		tsend(s, 1, out, 8, 2, 5);
		await(s, 5, NULL);
		tsend(s, 2, out, 8, 2, 6);
		await(s, 6, NULL);
		meet(s);
		tsend(s, 1, out, 8, 2, 7);
		for (uintptr_t context = 4; context <= 7; context += 3) {
			gdrfab_cq_err_entry e = await_failure(s, context, words);
			CHECK_EQ(e.err, ECONNRESET);
			CHECK_EQ(e.prov_errno, GDRFAB_PROV_PEER_GONE);
			SAYS(words, "GDRFAB_FAULT=drop");
		}
		CHECK_EQ(await_failure(s, 1, words).err, ECONNRESET);
		CHECK_EQ(s->lost_count, 0);
		meet(s);
		/* The new lane to this peer counts anew. */
		for (uintptr_t i = 0; i < 2; i++) {
			tsend(s, 1, out, 8, 3, 8 + i);
			await(s, 8 + i, NULL);
		}
		tsend(s, 2, out, 8, 3, 10);
		await(s, 10, NULL);
		await(s, 2, &from);
		CHECK_EQ(from, 1);
		await(s, 3, &from);
		CHECK_EQ(from, 2);
		CHECK_EQ(s->lost_count, 0);
		return;
	}
	trecv(s, 0, in[0], 8, 2, 0, 1);
	meet(s);
	await(s, 1, NULL);
	CHECK_FILLED("a message before the end", in[0], 8, 0, 3);
	trecv(s, 0, in[1], 8, s->rank == 1 ? 2 : 3, 0, 2);
	meet(s);
	if (s->rank == 1) {
		CHECK_EQ(await_failure(s, 2, words).prov_errno, GDRFAB_PROV_PEER_GONE);
		/* The offered message was lost with the lane. */
		gdrfab_msg_tagged peek = {.struct_size = sizeof peek, .addr = GDRFAB_ADDR_UNSPEC, .tag = 1, .context = context_of(3)};
		OK(gdrfab_trecvmsg(s->ep, &peek, GDRFAB_PEEK));
		CHECK_EQ(await_failure(s, 3, words).err, ENOMSG);
		for (uintptr_t i = 0; i < 2; i++)
			trecv(s, 0, in[i], 8, 3, 0, 4 + i);
	}
	meet(s);
	if (s->rank == 2) {
		await(s, 2, NULL);
	} else {
		await(s, 4, NULL);
		await(s, 5, NULL);
	}
	tsend(s, 0, out, 8, 10 + (uint64_t)s->rank, 6);
	await(s, 6, NULL);
}

static void receives_are_late(struct self *s)
{
	char in[4][8] = {{0}};
	if (s->rank == 1) {
		for (uintptr_t i = 0; i < 2; i++) {
			tsend(s, 0, i ? "second" : "first", 8, 1, i);
			await(s, i, NULL);
		}
	}
	meet(s);
	if (s->rank != 0)
		return;
	uint64_t start = test_now_ms();
	char words[256];
	/* Receives from any peer, from the peer, from a peer that was never reached, and one without a message. */
	trecv(s, GDRFAB_ADDR_UNSPEC, in[0], 8, 1, 0, 1);
	trecv(s, 1, in[1], 8, 1, 0, 2);
	trecv(s, 2, in[2], 8, 1, 0, 3);
	OK(gdrfab_trecv(s->ep, in[3], 8, NULL, GDRFAB_ADDR_UNSPEC, 9, 0, context_of(4)));
	OK(gdrfab_cancel(s->ep, context_of(3)));
	CHECK_EQ(await_failure(s, 3, words).err, ECANCELED);
	CHECK(!has_come(s, 1) || test_now_ms() - start + 1 >= LATE_MS);
	await(s, 1, NULL);
	CHECK(test_now_ms() - start + 1 >= LATE_MS);
	await(s, 2, NULL);
	CHECK(strcmp(in[0], "first") == 0 && strcmp(in[1], "second") == 0);
	OK(gdrfab_cancel(s->ep, context_of(4)));
	CHECK_EQ(await_failure(s, 4, words).err, ECANCELED);
}

static void late_receives_end(struct self *s)
{
	char in[2][8], words[256];
	uint64_t ns = 10000000;
	if (s->rank == 0) {
		OK(gdrfab_ep_setopt(s->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_RECV_DEADLINE, &ns, sizeof ns));
		trecv(s, GDRFAB_ADDR_UNSPEC, in[0], 8, 1, 0, 1);
		CHECK_EQ(await_failure(s, 1, words).err, ETIMEDOUT);
		ns = 0;
		OK(gdrfab_ep_setopt(s->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_RECV_DEADLINE, &ns, sizeof ns));
		trecv(s, GDRFAB_ADDR_UNSPEC, in[1], 8, 1, 0, 2);
		OK(gdrfab_ep_close(s->ep));
		s->ep = NULL;
		CHECK_EQ(await_failure(s, 2, words).err, ECANCELED);
	}
}

TEST_TABLE(rdm_faults)
{
	static const struct rdm_claim claims[] = {
		{"the third message loses its peer and nobody else", third_is_lost, 3, false},
		{"receives are late in their order", receives_are_late, 3, false},
		{"a late receive ends with its deadline and its endpoint", late_receives_end, 1, false},
	};
	char text[64];
	snprintf(text, sizeof text, "drop=3:send,delay=%d:recv", LATE_MS * 1000);
	setenv("GDRFAB_FAULT", text, 1);
	rdm_add(claims, sizeof claims / sizeof *claims);
}
