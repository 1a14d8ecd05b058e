/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A peer that is killed, stopped for a while, or started again at the same address, at each stage between two endpoints: each
 * operation with it ends once, those with a third peer go on, and the next message to the new process arrives.
 */
#include "fab_provider.h"
#include "fab_rdm.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum stage {
	BEFORE,  /* nothing was ever sent to it */
	DURING,  /* connecting; it has not accepted */
	EAGER,   /* short messages lie in its ring */
	OFFERED, /* a long message was offered, which it has not received */
	FETCHED, /* it is copying a long message */
	AFTER,   /* all is done */
	STAGES
};
static const char *const stages[STAGES] = {"before wire-up", "during wire-up", "eager in flight", "offered", "being fetched", "after"};
enum what { KILL, STOP, WHATS };
static const char *const whats[WHATS] = {"killed", "stopped"};

enum { LONG = 8 << 20, SHORT = 20 };

struct end {
	enum stage stage;
	enum what what;
	const char *lanes;
	char name[96];
};

/* Memory that the processes of a claim share. */
struct both {
	struct world w;
	int at; /* the step that the peer has reached */
	int go; /* the step that it may do */
};

static void await_number(const int *number, int least)
{
	for (uint64_t until = test_now_ms() + (uint64_t)test_ms(WAIT_MS); __atomic_load_n(number, __ATOMIC_SEQ_CST) < least; test_sleep_ms(1))
		CHECK(test_now_ms() < until);
}

static void set_number(int *number, int to)
{
	__atomic_store_n(number, to, __ATOMIC_SEQ_CST);
}

/* The peer: publishes its name, and does the steps of the stage until it is ended. */
static void peer(const struct end *e, struct both *b, const char *service, int rank)
{
	static struct self s;
	static char buf[LONG];
	char word[8];
	size_t len = NAME;
	s.lanes = e->lanes, s.w = &b->w, s.rank = rank;
	open_ep(&s, service);
	OK(gdrfab_ep_getname(s.ep, b->w.names[rank], &len));
	CHECK_EQ(gdrfab_av_insert(s.av, b->w.names[0], 1, NULL, 0, NULL), 1);
	set_number(&b->at, rank);
	if (rank > 1) {
		trecv(&s, 0, word, 8, 77, 0, 1);
		await(&s, 1, NULL);
		CHECK(memcmp(word, "the new", 8) == 0);
		tsend(&s, 0, "answer", 7, 78, 2);
		await(&s, 2, NULL);
		for (uint64_t until = test_now_ms() + (uint64_t)test_ms(WAIT_MS); __atomic_load_n(&b->go, __ATOMIC_SEQ_CST) < 9; drive(&s))
			CHECK(test_now_ms() < until);
		close_ep(&s);
		test_child_done();
	}
	if (e->stage > DURING) {
		/* Reaches the peer, so that later operations find the connection up. */
		trecv(&s, 0, word, 8, 1, 0, 1);
		await(&s, 1, NULL);
	}
	if (e->stage == AFTER) {
		trecv(&s, 0, buf, LONG, 3, 0, 2);
		await(&s, 2, NULL);
	}
	set_number(&b->at, 2);
	await_number(&b->go, 1);
	if (e->stage == FETCHED)
		trecv(&s, 0, buf, LONG, 3, 0, 2);
	if (e->stage == FETCHED)
		for (int i = 0; i < 3; i++)
			drive(&s);
	set_number(&b->at, 3);
	if (e->what == KILL)
		for (;;)
			pause();
	/* Stopped at about this point and continued: all messages arrive. */
	if (e->stage == EAGER)
		for (uintptr_t i = 0; i < SHORT; i++) {
			trecv(&s, 0, word, 8, 2, 0, 10 + i);
			await(&s, 10 + i, NULL);
		}
	if (e->stage == OFFERED)
		trecv(&s, 0, buf, LONG, 3, 0, 2);
	if (e->stage == OFFERED || e->stage == FETCHED)
		await(&s, 2, NULL);
	if (e->stage == OFFERED || e->stage == FETCHED || e->stage == AFTER)
		CHECK_FILLED("the long message", buf, LONG, 0, 5);
	trecv(&s, 0, word, 8, 77, 0, 3);
	await(&s, 3, NULL);
	tsend(&s, 0, "answer", 7, 78, 4);
	await(&s, 4, NULL);
	for (uint64_t until = test_now_ms() + (uint64_t)test_ms(WAIT_MS); __atomic_load_n(&b->go, __ATOMIC_SEQ_CST) < 9; drive(&s))
		CHECK(test_now_ms() < until);
	close_ep(&s);
	test_child_done();
}

/* Each operation ends, with success or with an error about the peer. */
static int count_ends(struct self *s, uintptr_t context)
{
	int n = 0;
	for (int i = 0; i < s->kept_count; i++)
		n += s->kept[i].entry.op_context == context_of(context);
	for (int i = 0; i < s->lost_count; i++)
		n += s->lost[i].entry.op_context == context_of(context);
	return n;
}

static void run_end(const void *arg)
{
	const struct end *e = (const struct end *)arg;
	static struct self s;
	static char buf[LONG];
	char text[GDRFAB_ADDR_MAX], word[8], port[8] = "0";
	size_t len = NAME;
	int status, posted = 0;
	struct both *b = (struct both *)mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(b != MAP_FAILED);
	s.lanes = e->lanes, s.w = &b->w;
	fill(buf, LONG, 0, 5);
	open_ep(&s, NULL);
	OK(gdrfab_ep_getname(s.ep, b->w.names[0], &len));
	pid_t first = test_fork(TEST_CLIENT);
	if (first == 0)
		peer(e, b, NULL, 1);
	await_number(&b->at, 1);
	CHECK_EQ(gdrfab_av_insert(s.av, b->w.names[1], 1, NULL, 0, NULL), 1);
	CHECK(gdrfab_av_straddr(s.av, b->w.names[1], text, sizeof text) > 0);
	snprintf(port, sizeof port, "%s", strrchr(strtok(text + strlen("rdm://"), "/"), ':') + 1);
	if (e->stage > DURING) {
		tsend(&s, 0, "hello", 6, 1, 1);
		await(&s, 1, NULL);
	}
	if (e->stage == AFTER) {
		tsend(&s, 0, buf, LONG, 3, 2);
		await(&s, 2, NULL);
	}
	for (uint64_t until = test_now_ms() + (uint64_t)test_ms(WAIT_MS); __atomic_load_n(&b->at, __ATOMIC_SEQ_CST) < 2; drive(&s))
		CHECK(test_now_ms() < until);
	if (e->stage == EAGER)
		for (; posted < SHORT; posted++)
			tsend(&s, 0, "short", 6, 2, 3);
	if (e->stage == OFFERED || e->stage == FETCHED)
		tsend(&s, 0, buf, LONG, 3, 3), posted++;
	drive(&s);
	set_number(&b->go, 1);
	for (uint64_t until = test_now_ms() + (uint64_t)test_ms(WAIT_MS); __atomic_load_n(&b->at, __ATOMIC_SEQ_CST) < 3; drive(&s))
		CHECK(test_now_ms() < until);
	if (e->what == STOP) {
		CHECK(kill(first, SIGSTOP) == 0);
		while (test_process_state(first) != 'T' && !test_process_over(first))
			test_sleep_ms(1);
	}
	if (e->stage == DURING)
		tsend(&s, 0, "called", 7, e->what == STOP ? 77 : 4, 3), posted++;
	for (uint64_t until = test_now_ms() + 50; test_now_ms() < until;)
		drive(&s);
	/* A peer that is only slow causes no error. */
	CHECK_EQ(s.lost_count, 0);
	trecv(&s, 0, word, 8, 78, 0, 4);
	if (e->what == STOP) {
		CHECK(kill(first, SIGCONT) == 0);
		if (e->stage != DURING)
			tsend(&s, 0, "go on", 6, 77, 5);
		await(&s, 4, NULL);
		for (int i = 0; i < posted; i++)
			await(&s, 3, NULL);
	} else {
		CHECK(kill(first, SIGKILL) == 0);
		CHECK(waitpid(first, &status, 0) == first);
		/* A new process starts at once, at the same address. */
		if (test_fork(TEST_CLIENT) == 0)
			peer(e, b, port, 4);
		await_number(&b->at, 4);
		/* Messages for the old process fail, or had arrived before its end. */
		tsend(&s, 0, "for old", 8, 77, 5);
		for (uint64_t until = test_now_ms() + (uint64_t)test_ms(WAIT_MS); count_ends(&s, 3) < posted || count_ends(&s, 5) < 1; drive(&s))
			CHECK(test_now_ms() < until);
		if (e->stage != BEFORE && e->stage != DURING)
			for (uint64_t until = test_now_ms() + (uint64_t)test_ms(WAIT_MS); count_ends(&s, 4) < 1; drive(&s))
				CHECK(test_now_ms() < until);
		for (int i = 0; i < s.lost_count; i++)
			if (s.lost[i].entry.prov_errno != GDRFAB_PROV_PEER_GONE && s.lost[i].entry.err != ECONNREFUSED)
				test_fail(__FILE__, __LINE__, "an entry with another reason: %s", s.lost[i].words);
		s.lost_count = s.kept_count = 0;
		uint64_t index = 99;
		CHECK_EQ(gdrfab_av_insert(s.av, b->w.names[4], 1, &index, 0, NULL), 1);
		trecv(&s, index, word, 8, 78, 0, 6);
		tsend(&s, (int)index, "the new", 8, 77, 7);
		await(&s, 6, NULL), await(&s, 7, NULL);
	}
	CHECK(memcmp(word, "answer", 7) == 0);
	set_number(&b->go, 9);
	while (wait(&status) > 0)
		test_child_ended(TEST_CLIENT, status);
	close_ep(&s);
}

TEST_TABLE(ends)
{
	static const char *const usual[] = {"shm+tcp", "tcp"}, *const cards[] = {"shm+verbs+tcp", "verbs"};
	const char *const *lanes = strcmp(provider(), "verbs") ? usual : cards;
	static struct end all[2 * STAGES * WHATS];
	size_t n = 0;
	/* On one host all goes over shm, with an RDMA device too: TEST_FAST tries only the device alone. */
	for (int l = lanes == cards ? test_count(0, 1) : 0; l < 2; l++)
		for (int stage = 0; stage < STAGES; stage++)
			for (int what = 0; what < WHATS; what++) {
				/* The memory of a peer that ended is freed by the same code at each stage: a memory checker stops it over one
				 * lane, and kills it over the other. */
				if (test_checked() && what != l)
					continue;
				struct end *e = &all[n++];
				e->stage = (enum stage)stage, e->what = (enum what)what, e->lanes = lanes[l];
				snprintf(e->name, sizeof e->name, "%s, %s, over %s", whats[what], stages[stage], lanes[l]);
				test_add(e->name, run_end, e, 30);
			}
}
