/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Operations posted to a killed peer: each has one result, and only few may still count as sent, however much time passes
 * between them. The program posts one, reads its entry and rests: nothing else drives its endpoint.
 */
#include "fab_provider.h"
#include "fab_rdm.h"

#include <signal.h>
#include <unistd.h>

enum op { TSEND, SEND, TINJECT, INJECT, WRITE, WRITEDATA, INJECT_WRITE, ATOMIC, OPS };
/* The number of operations that may still succeed, and the number posted in all. */
enum { FEW = 32, POSTED = 60, REST_MS = 2 };

enum { RECEIVED = 3 };
/* The number of times that the receive from the dead peer has ended. */
static int receive_ended;

/* The result of a posted operation: 1 success, 0 failure because the peer has gone. An operation without an entry for success
 * counts as successful if none comes. */
static int result_of(struct self *s, uintptr_t context, bool silent)
{
	gdrfab_cq_tagged_entry e;
	int in_vain = 0;
	for (uint64_t until = test_now_ms() + (uint64_t)test_ms(WAIT_MS); test_now_ms() < until;) {
		ssize_t n = gdrfab_cq_read(s->cq, &e, 1);
		if (n == 1) {
			CHECK(!silent && e.op_context == context_of(context));
			return 1;
		}
		if (n == -GDRFAB_EAVAIL) {
			char words[256] = "";
			gdrfab_cq_err_entry x = {.struct_size = sizeof x, .err_data = words, .err_data_size = sizeof words - 1};
			CHECK_EQ(gdrfab_cq_readerr(s->cq, &x, 0), 1);
			if (x.prov_errno != GDRFAB_PROV_PEER_GONE && x.err != ECONNREFUSED)
				test_fail(__FILE__, __LINE__, "an entry with another reason: %d %s", x.err, words);
			if (x.op_context == context_of(RECEIVED)) {
				receive_ended++;
				continue;
			}
			CHECK(silent || x.op_context == context_of(context));
			return 0;
		}
		CHECK_EQ(n, -EAGAIN);
		if (silent && ++in_vain > 200)
			return 1;
	}
	test_fail(__FILE__, __LINE__, "an operation without a result");
	return 0;
}

/* Waits until the receive has ended. Returns how many injected operations failed meanwhile: over verbs the posts went well, and the
 * card reports the errors later. */
static int await_receive(struct self *s, bool injected)
{
	uint64_t until = test_now_ms() + (uint64_t)test_ms(WAIT_MS);
	int late = 0;
	while (receive_ended == 0 && test_now_ms() < until)
		late += !result_of(s, 0, true);
	CHECK_EQ(receive_ended, 1);
	while (!result_of(s, 0, true))
		late++;
	CHECK(late == 0 || (injected && !strcmp(provider(), "verbs")));
	return late;
}

static ssize_t post(struct self *s, enum op op, uintptr_t context)
{
	static uint64_t word[2];
	uint64_t at = get_number(s, 1), key = get_number(s, 2);
	void *c = context_of(context);
	switch (op) {
	case TSEND:
		return gdrfab_tsend(s->ep, word, 8, NULL, 1, 5, c);
	case SEND:
		return gdrfab_send(s->ep, word, 8, NULL, 1, c);
	case TINJECT:
		return gdrfab_tinject(s->ep, word, 8, 1, 5);
	case INJECT:
		return gdrfab_inject(s->ep, word, 8, 1);
	case WRITE:
		return gdrfab_write(s->ep, word, 8, NULL, 1, at, key, c);
	case WRITEDATA:
		return gdrfab_writedata(s->ep, word, 8, NULL, 7, 1, at, key, c);
	case INJECT_WRITE:
		return gdrfab_inject_write(s->ep, word, 8, 1, at, key);
	default:
		return gdrfab_atomic(s->ep, word, 1, NULL, 1, at, key, GDRFAB_UINT64, GDRFAB_SUM, c);
	}
}

static void after_its_death(struct self *s, enum op op)
{
	static uint64_t word[128];
	bool silent = op == TINJECT || op == INJECT || op == INJECT_WRITE;
	int well = 0, failed = 0;
	if (s->rank == 1) {
		gdrfab_mr *mr;
		OK(gdrfab_mr_reg(s->domain, word, sizeof word, GDRFAB_REMOTE_READ | GDRFAB_REMOTE_WRITE, 0, 0, 0, NULL, &mr));
		put_number(s, 1, (uintptr_t)word), put_number(s, 2, gdrfab_mr_key(mr));
		for (int i = 0; i < 8; i++) {
			trecv(s, 0, &word[i], 8, 5, 0, 1);
			OK(gdrfab_recv(s->ep, &word[8 + i], 8, NULL, 0, context_of(2)));
		}
		meet(s);
		for (;;)
			drive(s);
	}
	meet(s);
	/* The connection is up. */
	tsend(s, 1, "here", 4, 5, 1);
	await(s, 1, NULL);
	CHECK_EQ(post(s, op, 2), 0);
	CHECK_EQ(result_of(s, 2, silent), 1);
	trecv(s, 1, &word[99], 8, 9, 0, RECEIVED);
	test_sleep_ms(20);
	pid_t victim = (pid_t)get_number(s, 0);
	CHECK(kill(victim, SIGKILL) == 0);
	while (!test_process_over(victim))
		test_sleep_ms(1);
	for (uintptr_t i = 0; i < POSTED; i++) {
		ssize_t rc = post(s, op, 100 + i);
		if (rc == 0 && result_of(s, 100 + i, silent)) {
			/* After the first failure no operation succeeds. The failure of an injected one may be read after a later post. */
			CHECK(failed == 0 || silent);
			well++;
		} else {
			CHECK(rc == 0 || (s->connected && rc == -ESHUTDOWN));
			failed++;
		}
		test_sleep_ms(REST_MS);
	}
	int late = await_receive(s, silent);
	well -= late, failed += late;
	if (well > FEW || failed == 0)
		test_fail(__FILE__, __LINE__, "%d of %d posts to a peer that was dead went well", well, (int)POSTED);
}

#define AFTER(name, op) \
	static void name(struct self *s) \
	{ \
		after_its_death(s, op); \
	}
AFTER(tagged, TSEND)
AFTER(untagged, SEND)
AFTER(injected_tagged, TINJECT)
AFTER(injected, INJECT)
AFTER(written, WRITE)
AFTER(written_with_data, WRITEDATA)
AFTER(written_injected, INJECT_WRITE)
AFTER(atomic, ATOMIC)

/* A peer that died before it was reached: sends to it fail, and so do receives from it alone. */
static void before_it_was_reached(struct self *s)
{
	static uint64_t word[2];
	if (s->rank == 1) {
		put_number(s, 1, 1);
		for (;;)
			pause();
	}
	while (!get_number(s, 1))
		drive(s);
	pid_t victim = (pid_t)get_number(s, 0);
	CHECK(kill(victim, SIGKILL) == 0);
	while (!test_process_over(victim))
		test_sleep_ms(1);
	trecv(s, 1, &word[0], 8, 9, 0, RECEIVED);
	tsend(s, 1, "lost", 4, 5, 2);
	CHECK_EQ(result_of(s, 2, false), 0);
	await_receive(s, false);
}

TEST_TABLE(claims)
{
	static const struct rdm_claim both[] = {
		{"tagged", tagged, 2, true},
		{"untagged", untagged, 2, true},
		{"injected_tagged", injected_tagged, 2, true},
		{"injected", injected, 2, true},
		{"written", written, 2, true},
		{"written_with_data", written_with_data, 2, true},
		{"written_injected", written_injected, 2, true},
		{"atomic", atomic, 2, true},
	};
	static const struct rdm_claim bare[] = {{"before_it_was_reached", before_it_was_reached, 2, true}};
	/* A memory checker needs one lane: rdm_end loses peers over tcp. */
	if (test_checked())
		rdm_add(both, sizeof both / sizeof *both);
	else
		rdm_add_both(both, sizeof both / sizeof *both);
	rdm_add(bare, sizeof bare / sizeof *bare);
}
