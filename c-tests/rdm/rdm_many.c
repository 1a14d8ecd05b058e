/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Connectionless endpoints of many processes, some of which are killed and replaced. */
#include "fab_rdm.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

static void everybody_sends_first(struct self *s)
{
	enum { EACH = 60 };
	static const size_t lens[] = {8, 3000, 9000, 70000};
	static char from[MOST][EACH][70000], to[MOST][EACH][70000];
	for (int k = 0; k < s->count; k++) {
		for (int i = 0; i < EACH; i++) {
			fill(from[k][i], lens[i % 4], 0, (uint32_t)(s->rank * 1000 + k * 100 + i));
			tsend(s, k, from[k][i], lens[i % 4], (uint64_t)i, 1);
		}
	}
	/* The last peer first. */
	for (int k = s->count - 1; k >= 0; k--)
		for (int i = EACH - 1; i >= 0; i--)
			trecv(s, (uint64_t)k, to[k][i], lens[i % 4], (uint64_t)i, 0, 2);
	for (int i = 0; i < s->count * EACH; i++)
		await(s, 1, NULL), await(s, 2, NULL);
	for (int k = 0; k < s->count; k++)
		for (int i = 0; i < EACH; i++)
			CHECK_FILLED("a message", to[k][i], lens[i % 4], 0, (uint32_t)(k * 1000 + s->rank * 100 + i));
}

/* Sends to a resting process wait until it goes on, and never for retries of the device (fab_rdm.c checks this), however many
 * processes send at once; other processes are served meanwhile. */
static void one_rests(struct self *s)
{
	enum { ALL = 120, SENDERS = 3, HERE = 1000 };
	static char from[ALL][3000], to[SENDERS + 1][ALL][3000], word[4];
	int next = s->rank == 0 ? 2 : s->rank == 2 ? 3 : 0;
	meet(s);
	if (s->rank == 1) {
		while (get_number(s, 0) < SENDERS)
			usleep(1000);
		for (int k = 0; k <= SENDERS; k++)
			for (int i = 0; i < ALL && k != 1; i++)
				trecv(s, (uint64_t)k, to[k][i], 3000, (uint64_t)i, 0, 1);
		for (int i = 0; i < SENDERS * ALL; i++)
			await(s, 1, NULL);
		for (int k = 0; k <= SENDERS; k++)
			for (int i = 0; i < ALL && k != 1; i++)
				CHECK_FILLED("a message", to[k][i], i % 2 ? 3000 : 8, 0, (uint32_t)(k * ALL + i));
		return;
	}
	for (int i = 0; i < ALL; i++) {
		fill(from[i], i % 2 ? 3000 : 8, 0, (uint32_t)(s->rank * ALL + i));
		tsend(s, 1, from[i], i % 2 ? 3000 : 8, (uint64_t)i, 1);
	}
	trecv(s, GDRFAB_ADDR_UNSPEC, word, 4, HERE, 0, 2);
	tsend(s, next, "here", 4, HERE, 3);
	await(s, 2, NULL), await(s, 3, NULL);
	for (uint64_t until = test_now_ms() + 200; test_now_ms() < until;)
		drive(s);
	__atomic_fetch_add(&s->w->number[0], 1, __ATOMIC_SEQ_CST);
	for (int i = 0; i < ALL; i++)
		await(s, 1, NULL);
}

/* Unregistered buffers at an address that has other pages each time: the earlier pages are neither read nor written. */
static void other_pages_at_the_same_address(struct self *s)
{
	enum { ROUNDS = 12, LEN = 200000 };
	char *at = (char *)mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(at != MAP_FAILED);
	for (int i = 0; i < ROUNDS; i++) {
		size_t len = i % 3 == 0 ? LEN : i % 3 == 1 ? 20000 : 40000;
		if (i % 4 == 3) {
			pid_t pid = fork(); /* the next write makes a copy of the page */
			if (pid == 0)
				_exit(0);
			CHECK(pid > 0 && waitpid(pid, NULL, 0) == pid);
		} else {
			CHECK(munmap(at, LEN) == 0);
			CHECK(mmap(at, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == (void *)at);
		}
		if (s->rank == 0) {
			fill(at, len, 0, (uint32_t)i);
			tsend(s, 1, at, len, (uint64_t)i, 1);
		} else {
			memset(at, 0, len);
			trecv(s, 0, at, len, (uint64_t)i, 0, 1);
		}
		await(s, 1, NULL);
		if (s->rank == 1)
			CHECK_FILLED("a message", at, len, 0, (uint32_t)i);
	}
	CHECK(munmap(at, LEN) == 0);
}

static void all_call_each_other_at_once(struct self *s)
{
	uint64_t word[MOST], got[MOST];
	meet(s);
	for (int k = 0; k < s->count; k++) {
		word[k] = (uint64_t)(s->rank * 100 + k);
		trecv(s, (uint64_t)k, &got[k], 8, 1, 0, 2);
		tsend(s, k, &word[k], 8, 1, 1);
	}
	for (int k = 0; k < s->count; k++)
		await(s, 1, NULL), await(s, 2, NULL);
	for (int k = 0; k < s->count; k++)
		CHECK_EQ(got[k], k * 100 + s->rank);
}

static void the_killed_takes_only_its_own(struct self *s)
{
	static char buf[100000];
	char word[4], its[4], words[256];
	if (s->rank == 1) {
		/* The victim is reached by both, and killed with a message that it never receives. */
		trecv(s, 0, word, 4, 1, 0, 1);
		await(s, 1, NULL);
		meet(s);
		for (;;)
			pause();
	}
	if (s->rank == 0) {
		tsend(s, 1, "here", 4, 1, 1);
		await(s, 1, NULL);
		tsend(s, 1, buf, sizeof buf, 9, 2);
		trecv(s, GDRFAB_ADDR_UNSPEC, word, 4, 5, 0, 3);
		trecv(s, 1, its, 4, 5, 0, 5);
		meet(s);
		kill((pid_t)get_number(s, 0), SIGKILL);
		gdrfab_cq_err_entry e = await_failure(s, 2, words);
		CHECK_EQ(e.prov_errno, GDRFAB_PROV_PEER_GONE);
		/* Receives from the victim alone. */
		CHECK_EQ(await_failure(s, 5, words).prov_errno, GDRFAB_PROV_PEER_GONE);
		/* No process listens there any more: fails with a reason. */
		tsend(s, 1, "lost", 4, 1, 4);
		await_failure(s, 4, words);
		CHECK(words[0] != 0);
		put_number(s, 1, 1);
		uint64_t from = 99;
		await(s, 3, &from);
		CHECK_EQ(from, 2);
	} else {
		meet(s);
		while (!get_number(s, 1))
			drive(s);
		tsend(s, 0, "live", 4, 5, 1);
		await(s, 1, NULL);
	}
}

/* Another process at the same port: messages for the first never reach it. */
static void restarted_on_the_same_port(struct self *s)
{
	char word[8], more[8], words[256], text[GDRFAB_ADDR_MAX];
	size_t len = NAME;
	if (s->rank == 1) {
		trecv(s, 0, word, 4, 1, 0, 1);
		await(s, 1, NULL);
		CHECK(gdrfab_av_straddr(s->av, s->w->names[1], text, sizeof text) > 0);
		char *port = strrchr(text, ':') + 1;
		*strchr(port, '/') = 0;
		close_ep(s);
		put_number(s, 0, strtoull(port, NULL, 10));
		open_ep(s, port);
		OK(gdrfab_ep_getname(s->ep, s->w->names[2], &len));
		trecv(s, GDRFAB_ADDR_UNSPEC, word, 4, 0, ~0ull, 2);
		trecv(s, GDRFAB_ADDR_UNSPEC, more, 4, 0, ~0ull, 3);
		meet(s);
		await(s, 2, NULL);
		await(s, 3, NULL);
		CHECK(memcmp(word, "bare", 4) == 0);
		CHECK(memcmp(more, "new ", 4) == 0);
		return;
	}
	tsend(s, 1, "old ", 4, 1, 1);
	await(s, 1, NULL);
	meet(s);
	/* A message may be sent before this side learns of the end. */
	for (uint64_t until = test_now_ms() + (uint64_t)test_ms(300); test_now_ms() < until;)
		drive(s);
	uint64_t index = 0;
	tsend(s, 1, "old ", 4, 2, 2);
	CHECK_EQ(await_failure(s, 2, words).prov_errno, GDRFAB_PROV_PEER_GONE);
	CHECK(gdrfab_av_straddr(s->av, s->w->names[1], text, sizeof text) > 0);
	/* A name without a nonce means any process that listens there. */
	char *node = strstr(text, "//") + 2, port[16];
	*strrchr(node, ':') = 0;
	snprintf(port, sizeof port, "%llu", (unsigned long long)get_number(s, 0));
	CHECK_EQ(gdrfab_av_insertsvc(s->av, node, port, &index, 0, NULL), 1);
	tsend(s, (int)index, "bare", 4, 3, 3);
	await(s, 3, NULL);
	CHECK_EQ(gdrfab_av_insert(s->av, s->w->names[2], 1, &index, 0, NULL), 1);
	tsend(s, (int)index, "new ", 4, 4, 4);
	await(s, 4, NULL);
}

TEST_TABLE(claims)
{
	static const struct rdm_claim claims[] = {
		{"both_call_each_other_at_once", all_call_each_other_at_once, 2, false},
		{"eight_call_each_other_at_once", all_call_each_other_at_once, 8, false},
		{"everybody_sends_first", everybody_sends_first, 4, false},
		{"one_rests_while_the_others_send", one_rests, 4, false},
		{"other_pages_at_the_same_address", other_pages_at_the_same_address, 2, false},
		{"the_killed_takes_only_its_own", the_killed_takes_only_its_own, 3, true},
		{"restarted_on_the_same_port", restarted_on_the_same_port, 2, false},
	};
	rdm_add(claims, sizeof claims / sizeof *claims);
}
