/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Further streams for long transfers that the library opens by itself: if the network limits a single connection, whichever side
 * sends, and never within a host or if the peer is the slow part. TEST_LIMIT: the link limits each connection;
 * tests/check-tcp.sh makes it.
 */
#include "fab.h"

#define LARGE ((size_t)1024 * 1024)
#define DEPTH 2
#define TICK 100 /* ms: what a slow peer sleeps between two looks; a wire whose CPU is busy carries 2 MiB in 20 */

struct plan {
	bool reads;   /* the listener sends */
	bool slow;    /* the receiver takes little at a time */
	bool expects; /* further streams are expected */
	int ms;	      /* the time to wait for them */
	const char *words;
};

static bool says(struct node *n, uint64_t key, const char *what)
{
	char words[2048];
	CHECK(gdrfab_ep_explain(n->ep, 0, key, words, sizeof words) > 0);
	return strstr(words, what) != NULL;
}

static void is_there(struct node *n)
{
	const struct plan *p = (const struct plan *)n->arg;
	struct mem m;
	node_up(n);
	mem_new(n, &m, &memkinds[KIND_MALLOC], DEPTH * LARGE);
	mem_register(n, &m, 0, DEPTH * LARGE, REMOTE_ACCESS, 0);
	if (p->reads)
		fill(m.addr, DEPTH * LARGE, 0, 7);
	mem_publish(n, &m);
	static char in[8];
	POST(n->cq, gdrfab_recv(n->ep, in, sizeof in, NULL, 0, in));
	done e;
	if (p->slow)
		while (cq_next(n->cq, &e, 0) == 0)
			test_sleep_ms(TICK);
	else
		CHECK_EQ(cq_next(n->cq, &e, p->ms + 10000), 1);
	CHECK(e.op_context == in);
	if (!p->reads)
		CHECK_MEM("written over them", &m, 0, DEPTH * LARGE, 0, 7);
	barrier(n);
	mem_end(n, &m);
	node_down(n);
}

static void transfers(struct node *n)
{
	const struct plan *p = (const struct plan *)n->arg;
	unsigned char *memory = (unsigned char *)malloc(DEPTH * LARGE);
	node_up(n);
	struct remote to = mem_fetch(n);
	uint64_t until = test_now_ms() + (uint64_t)test_ms(p->ms);
	size_t posted = 0, ended = 0, behind = 0;
	bool came = false;
	fill(memory, DEPTH * LARGE, 0, p->reads ? 8 : 7);
	while (ended < posted || (behind < 8 && test_now_ms() < until)) {
		if (posted < ended + DEPTH && behind < 8 && test_now_ms() < until) {
			size_t at = posted++ % DEPTH * LARGE;
			if (p->reads)
				POST(n->cq, gdrfab_read(n->ep, memory + at, LARGE, NULL, 0, to.base + at, to.key, memory));
			else
				POST(n->cq, gdrfab_write(n->ep, memory + at, LARGE, NULL, 0, to.base + at, to.key, memory));
			continue;
		}
		DONE(n->cq, memory, p->reads ? GDRFAB_READ : GDRFAB_WRITE, NULL);
		ended++;
		came = came || says(n, to.key, "of host memory use") || says(n, to.key, "additional streams are not used");
		/* Some transfers must use the streams, too. */
		behind += came;
	}
	/* The explanation tells that there are no streams, and the reason. The library measures transfers, and on a busy machine it
	 * may not have measured enough of them. */
	if (came != p->expects || (p->words && !says(n, to.key, p->words))) {
		char words[2048];
		CHECK(gdrfab_ep_explain(n->ep, 0, to.key, words, sizeof words) > 0);
		const char *said = strstr(words, "stream");
		came_late("additional streams: %d, expected: %d; explained: %s", came, p->expects, said ? said : words);
	}
	if (p->reads)
		CHECK_FILLED("read over them", memory, DEPTH * LARGE, 0, 7);
	POST(n->cq, gdrfab_send(n->ep, memory, 8, NULL, 0, memory));
	DONE(n->cq, memory, GDRFAB_SEND, NULL);
	barrier(n);
	free(memory);
	node_down(n);
}

static void over(struct setup s, struct plan p)
{
	skip_unless(path_known(PATH_SOCKET), "this is about connections of sockets");
	unsetenv("GDRFAB_TCP_STREAMS");
	pair_in_time(&s, is_there, transfers, &p);
}

static void over_limits(struct setup s, struct plan p)
{
	if (!getenv("TEST_LIMIT"))
		test_skip("no link with a limit for each connection");
	over(s, p);
}

TEST_WITHIN(120, limit_for_who_called)
{
	over_limits((struct setup){0}, (struct plan){.expects = true, .ms = 20000});
}

TEST_WITHIN(120, limit_for_who_was_called)
{
	over_limits((struct setup){0}, (struct plan){.reads = true, .expects = true, .ms = 20000});
}

TEST_WITHIN(120, limit_with_a_key_and_a_thread)
{
	const char *key = "a secret of this test 0123456789";
	over_limits((struct setup){.progress = GDRFAB_PROGRESS_AUTO, .key = {[TEST_SERVER] = key, [TEST_CLIENT] = key}},
		    (struct plan){.expects = true, .ms = 20000});
}

TEST_WITHIN(120, limit_and_one_side_that_wants_none)
{
	over_limits((struct setup){.tcp_streams = {[TEST_SERVER] = 1}}, (struct plan){.ms = 2500, .words = "no additional streams: the peer uses none"});
}

TEST_WITHIN(60, not_for_a_slow_peer)
{
	if (!getenv("TEST_CLIENT_NETNS") || getenv("TEST_LIMIT"))
		test_skip("no other host whose link is fast");
	over((struct setup){0}, (struct plan){.slow = true, .ms = 4000, .words = "the network does not limit it"});
}

TEST_WITHIN(30, not_within_a_host)
{
	if (getenv("TEST_CLIENT_NETNS"))
		test_skip("the other end is no address of this host");
	over((struct setup){0}, (struct plan){.ms = 2000});
}
