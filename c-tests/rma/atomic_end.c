/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Atomic operations that end early. After gdrfab_mr_close() has returned 0, no operation of a peer changes the memory; after
 * an entry has come, the operation's result buffer is not written any more; and each accepted operation has one entry. This
 * holds however the connection ends, and whether the peer runs, is stopped or dies.
 */
#include "fab.h"

#include <sys/socket.h>

enum { WORDS = 128, BYTES = 8 * WORDS, LEN = 8192, WINDOW = 32, TRIALS = 4 };
enum ending { EP_CLOSE, SHUTDOWN, STOP, KILL, REGION, ENDINGS };
static const char *const ending_words[ENDINGS] = {"ep_close", "shutdown", "stop", "kill", "nothing_else"};
enum { AGAIN = 0xaa };

struct act {
	enum ending ending;
	uint64_t require;
};

static void stays(const void *at, size_t len, const char *since)
{
	const unsigned char *bytes = (const unsigned char *)at;
	for (int look = 0; look < 3; look++) {
		test_sleep_ms(30);
		for (size_t i = 0; i < len; i++)
			if (bytes[i] != AGAIN)
				test_fail(__FILE__, __LINE__, "byte %zu changed after %s", i, since);
	}
}

/* The other side may already have seen that the connection has ended. */
static void tell(struct node *n)
{
	if (send(n->oob, "x", 1, MSG_NOSIGNAL) < 0)
		CHECK(errno == EPIPE || errno == ECONNRESET);
}

static bool told(struct node *n)
{
	char word;
	return recv(n->oob, &word, 1, MSG_DONTWAIT) == 1;
}

/* --- a region and its owner --- */

static void owner(struct node *n)
{
	const struct act *a = (const struct act *)n->arg;
	uint64_t seed = (uint64_t)getpid();
	struct mem m;
	node_up(n);
	mem_new(n, &m, &memkinds[KIND_MEM_ALLOC], LEN);
	memset(m.addr, 0, LEN);
	mem_register(n, &m, 0, LEN, REMOTE_ACCESS, a->require);
	mem_publish(n, &m);
	barrier(n);
	for (uint64_t until = test_now_ms() + 5 + test_random(&seed) % 20; test_now_ms() < until;)
		gdrfab_cq_read(n->cq, NULL, 0);
	if (a->ending == EP_CLOSE) {
		OK(gdrfab_ep_close(n->ep));
		n->ep = NULL;
	} else if (a->ending == SHUTDOWN) {
		int rc = gdrfab_ep_shutdown(n->ep, 0);
		CHECK_EITHER(rc, 0, -ESHUTDOWN);
	} else if (a->ending == STOP) {
		peer_stop(n);
	} else if (a->ending == KILL) {
		peer_kill(n);
	}
	bool resumed = a->ending != STOP;
	int rc;
	uint64_t late = test_now_ms() + (uint64_t)test_ms(10000);
	while ((rc = gdrfab_mr_close(m.mr)) == -EBUSY && test_now_ms() < late) {
		if (!resumed)
			peer_continue(n);
		resumed = true;
	}
	CHECK_EQ(rc, 0);
	m.mr = NULL;
	memset(m.addr, AGAIN, LEN);
	if (!resumed)
		peer_continue(n);
	/* This side keeps making progress: late operations find no region. */
	for (uint64_t until = test_now_ms() + 20; n->ep && test_now_ms() < until;)
		gdrfab_cq_read(n->cq, NULL, 0);
	stays(m.addr, LEN, "gdrfab_mr_close() returned 0");
	if (a->ending != KILL)
		tell(n);
	for (uint64_t until = test_now_ms() + (uint64_t)test_ms(5000); a->ending != KILL && !told(n) && test_now_ms() < until;)
		gdrfab_cq_read(n->cq, NULL, 0);
	mem_end(n, &m);
	node_close(n);
}

static int posts(struct node *n, struct remote to, unsigned i, uint64_t (*old)[WORDS])
{
	static uint64_t twos[WORDS], zeros[WORDS];
	uint64_t at = to.base + i % 7 * BYTES;
	memset(twos, 0x22, sizeof twos);
	switch (i % 4) {
	case 0: return (int)gdrfab_atomic(n->ep, twos, WORDS, NULL, 0, at, to.key, GDRFAB_UINT64, GDRFAB_ATOMIC_WRITE, NULL);
	case 1: return (int)gdrfab_fetch_atomic(n->ep, twos, WORDS, NULL, old[i % WINDOW], NULL, 0, at, to.key, GDRFAB_UINT64,
						GDRFAB_SUM, NULL);
	case 2: return (int)gdrfab_compare_atomic(n->ep, twos, WORDS, NULL, zeros, NULL, old[i % WINDOW], NULL, 0, at, to.key,
						  GDRFAB_UINT64, GDRFAB_CSWAP_NE, NULL);
	default: return (int)gdrfab_atomic(n->ep, twos, 1, NULL, 0, at, to.key, GDRFAB_UINT32, GDRFAB_BXOR, NULL);
	}
}

static void user(struct node *n)
{
	static uint64_t old[WINDOW][WORDS];
	const struct act *a = (const struct act *)n->arg;
	long posted = 0, ended = 0, refused = 0;
	node_up(n);
	struct remote to = mem_fetch(n);
	barrier(n);
	bool over = false;
	uint64_t late = test_now_ms() + (uint64_t)test_ms(15000);
	while ((!over || ended < posted) && test_now_ms() < late) {
		int rc = over || posted - ended >= WINDOW ? -EAGAIN : posts(n, to, (unsigned)posted, old);
		if (rc != 0 && rc != -EAGAIN)
			CHECK_EITHER(rc, -ESHUTDOWN, -ENOTCONN);
		posted += rc == 0;
		done entry;
		struct failure f;
		ssize_t got = gdrfab_cq_read(n->cq, &entry, 1);
		if (got == -GDRFAB_EAVAIL) {
			cq_failure(__FILE__, __LINE__, n->cq, &f);
			CHECK(f.words[0] != 0);
			refused += f.entry.prov_errno == GDRFAB_PROV_KEY;
			ended++;
		}
		ended += got == 1;
		over = over || (rc != 0 && rc != -EAGAIN) || told(n);
	}
	CHECK_EQ(ended, posted);
	/* Other connections are not affected. */
	if (a->ending == REGION)
		CHECK(refused > 0);
	tell(n);
	node_close(n);
}

static void closed_region(const void *arg)
{
	const struct act *a = (const struct act *)arg;
	skip_unless(!traits()->adapter, "has no atomics");
	struct setup s = {.victim = a->ending == KILL ? TEST_CLIENT : TEST_REFEREE};
	for (int i = 0; i < test_count(TRIALS, 1) && !test_decided(); i++)
		pair(&s, owner, user, a);
}

/* --- operations of no elements --- */

static void lends(struct node *n)
{
	const struct act *a = (const struct act *)n->arg;
	struct mem m;
	node_up(n);
	mem_new(n, &m, &memkinds[KIND_MEM_ALLOC], LEN);
	mem_register(n, &m, 0, LEN, REMOTE_ACCESS, a->require);
	mem_publish(n, &m);
	barrier(n);
	mem_end(n, &m);
	node_down(n);
}

static void asks_for_nothing(struct node *n)
{
	done entry;
	int one, two;
	node_up(n);
	struct remote to = mem_fetch(n);
	for (uint64_t at = 0; at <= LEN; at += LEN) {
		POST(n->cq, gdrfab_fetch_atomic(n->ep, NULL, 0, NULL, NULL, NULL, 0, to.base + at, to.key, GDRFAB_UINT64, GDRFAB_SUM, &one));
		DONE(n->cq, &one, GDRFAB_ATOMIC | GDRFAB_READ, &entry);
		CHECK_EQ(entry.len, 0);
		POST(n->cq, gdrfab_compare_atomic(n->ep, NULL, 0, NULL, NULL, NULL, NULL, NULL, 0, to.base + at, to.key, GDRFAB_INT8,
						  GDRFAB_MSWAP, &two));
		DONE(n->cq, &two, GDRFAB_ATOMIC | GDRFAB_READ, &entry);
		CHECK_EQ(entry.len, 0);
	}
	barrier(n);
	node_down(n);
}

static void nothing_to_fetch(const void *arg)
{
	skip_unless(!traits()->adapter, "has no atomics");
	pair(NULL, lends, asks_for_nothing, arg);
}

/* --- the result buffer of an operation --- */

/* Makes no progress until it is told to; the operations that it carries out then are late. */
static void rests(struct node *n)
{
	struct mem m;
	node_up(n);
	mem_new(n, &m, &memkinds[KIND_MALLOC], LEN);
	memset(m.addr, 0x33, LEN);
	mem_register(n, &m, 0, LEN, REMOTE_ACCESS, helped_path());
	mem_publish(n, &m);
	barrier(n);
	for (uint64_t until = test_now_ms() + (uint64_t)test_ms(10000); !told(n) && test_now_ms() < until;)
		test_sleep_ms(1);
	for (uint64_t until = test_now_ms() + 100; test_now_ms() < until;)
		gdrfab_cq_read(n->cq, NULL, 0);
	mem_end(n, &m);
	node_close(n);
}

enum early { BY_DEADLINE, BY_CANCEL, BY_SHUTDOWN, BY_CLOSE, EARLY };
static const char *const early_words[EARLY] = {"deadline", "cancel", "shutdown", "ep_close"};

static void gives_up(struct node *n)
{
	enum early how = *(const enum early *)n->arg;
	static uint64_t old[WINDOW][WORDS], ones[WORDS];
	int posted = 0, ended = 0;
	node_up(n);
	struct remote to = mem_fetch(n);
	barrier(n);
	/* Posts as many as this side accepts without progress of the other side. */
	while (posted < WINDOW && gdrfab_fetch_atomic(n->ep, ones, WORDS, NULL, old[posted], NULL, 0, to.base, to.key, GDRFAB_UINT64,
						      GDRFAB_BOR, &old[posted]) == 0)
		posted++;
	CHECK(posted > 0);
	if (how == BY_CANCEL)
		for (int i = 0; i < posted; i++)
			OK(gdrfab_cancel(n->ep, &old[i]));
	if (how == BY_SHUTDOWN)
		OK(gdrfab_ep_shutdown(n->ep, 0));
	int rc = how == BY_CLOSE ? -EBUSY : 0;
	for (uint64_t late = test_now_ms() + (uint64_t)test_ms(10000); (ended < posted || rc) && test_now_ms() < late;) {
		done entry;
		struct failure f;
		if (rc && (rc = gdrfab_ep_close(n->ep)) == 0)
			n->ep = NULL;
		if (rc == 0 && how == BY_CLOSE)
			break;
		ssize_t got = gdrfab_cq_read(n->cq, &entry, 1);
		if (got != -GDRFAB_EAVAIL) {
			CHECK_EQ(got, -EAGAIN);
			continue;
		}
		cq_failure(__FILE__, __LINE__, n->cq, &f);
		ended++;
	}
	CHECK_EQ(rc, 0);
	if (how != BY_CLOSE)
		CHECK_EQ(ended, posted);
	memset(old, AGAIN, sizeof old);
	tell(n);
	for (uint64_t until = test_now_ms() + 120; test_now_ms() < until;)
		gdrfab_cq_read(n->cq, NULL, 0);
	stays(old, sizeof old, "the operations' entries");
	node_close(n);
}

static void ended_operation(const void *arg)
{
	skip_unless(!traits()->adapter, "has no atomics");
	struct setup s = {.deadline_ms = *(const enum early *)arg == BY_DEADLINE ? 100 : 0};
	pair(&s, rests, gives_up, arg);
}

TEST_TABLE(ends)
{
	static struct act acts[2 * ENDINGS];
	static enum early ways_out[EARLY];
	static char names[2 * ENDINGS + EARLY][64];
	bool is_shm = path_known(PATH_DIRECT);
	size_t at = 0;
	for (int e = 0; e < ENDINGS; e++) {
		/* The region's memory is let go in the same way, whether the peer's connection or its process ends: a memory checker sees the
		 * first way and the last. */
		if (test_checked() && e > 0 && e + 1 < ENDINGS)
			continue;
		for (int staged = 0; staged < (is_shm ? 2 : 1); staged++, at++) {
			acts[at].ending = (enum ending)e;
			acts[at].require = !is_shm ? 0 : staged ? GDRFAB_PATH_STAGED : GDRFAB_PATH_DIRECT;
			snprintf(names[at], sizeof names[at], "closed_region_%s_%s", !is_shm ? "socket" : staged ? "staged" : "direct",
				 ending_words[e]);
			test_add(names[at], closed_region, &acts[at], 60);
		}
	}
	test_add(is_shm ? "nothing_to_fetch_direct" : "nothing_to_fetch_socket", nothing_to_fetch, &acts[0], 20);
	if (is_shm)
		test_add("nothing_to_fetch_staged", nothing_to_fetch, &acts[1], 20);
	for (int e = 0; e < EARLY; e++, at++) {
		ways_out[e] = (enum early)e;
		snprintf(names[at], sizeof names[at], "ended_operation_%s", early_words[e]);
		test_add(names[at], ended_operation, &ways_out[e], 30);
	}
}
