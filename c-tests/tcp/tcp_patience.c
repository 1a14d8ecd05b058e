/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A peer that computes or is stopped for longer than GDRFAB_TCP_TIMEOUT_MS is not lost as long as its kernel answers, even if
 * more data waits for it than the kernel has room for.
 */
#include "fab.h"

#define BLOCK ((size_t)512 * 1024)
#define BLOCKS 8
#define TIMEOUT 1000 /* ms: GDRFAB_TCP_TIMEOUT_MS */
#define AWAY 3500

enum wait { POLLS, SLEEPS, COMPUTES };

struct patience {
	const char *name;
	bool stopped; /* else the peer only makes no call */
	enum wait wait; /* how the other side waits */
	const char *variable, *value;
};

static void is_away(struct node *n)
{
	const struct patience *p = (const struct patience *)n->arg;
	struct mem m;
	node_up(n);
	mem_new(n, &m, &memkinds[KIND_MALLOC], BLOCKS * BLOCK);
	memset(m.addr, 0, m.len);
	mem_register(n, &m, 0, m.len, REMOTE_ACCESS, 0);
	mem_publish(n, &m);
	barrier(n);
	if (!p->stopped)
		test_sleep_ms(AWAY);
	/* If it is to be stopped, it is stopped and continued in here. */
	n->idle = p->stopped;
	barrier(n);
	n->idle = false;
	barrier(n);
	for (size_t i = 0; i < BLOCKS; i++)
		CHECK_FILLED("a block", m.addr + i * BLOCK, BLOCK, 0, (uint32_t)i + 1);
	mem_end(n, &m);
	node_down(n);
}

static void waits_for_it(struct node *n)
{
	const struct patience *p = (const struct patience *)n->arg;
	unsigned char *out = (unsigned char *)malloc(BLOCKS * BLOCK);
	size_t ended = 0;
	node_up(n);
	struct remote to = mem_fetch(n);
	/* Counted from before the peer stops, so that it cannot be back by then. */
	uint64_t until = test_now_ms() + AWAY;
	barrier(n);
	if (p->stopped)
		peer_stop(n);
	for (size_t i = 0; i < BLOCKS; i++) {
		fill(out + i * BLOCK, BLOCK, 0, (uint32_t)i + 1);
		POST(n->cq, gdrfab_write(n->ep, out + i * BLOCK, BLOCK, NULL, 0, to.base + i * BLOCK, to.key, out));
	}
	if (p->wait == COMPUTES)
		test_sleep_ms((int)(until - test_now_ms()));
	while (test_now_ms() + 100 < until) {
		done e;
		ssize_t got = p->wait == SLEEPS ? gdrfab_cq_sread(n->cq, &e, 1, 100) : cq_next(n->cq, &e, 100);
		CHECK(got == 1 || got == 0 || got == -EAGAIN);
		ended += got == 1;
	}
	CHECK(ended < BLOCKS);
	if (p->stopped)
		peer_continue(n);
	barrier(n);
	for (; ended < BLOCKS; ended++)
		DONE(n->cq, out, GDRFAB_WRITE, NULL);
	barrier(n);
	free(out);
	node_down(n);
}

static void patience(const void *arg)
{
	const struct patience *p = (const struct patience *)arg;
	char text[16];
	skip_unless(path_known(PATH_SOCKET), "this is about sockets");
	snprintf(text, sizeof text, "%d", TIMEOUT);
	setenv("GDRFAB_TCP_TIMEOUT_MS", text, 1);
	/* More data than the kernel has room for. */
	setenv("GDRFAB_TCP_BUFFER", "65536", 1);
	if (p->variable)
		setenv(p->variable, p->value, 1);
	pair(NULL, is_away, waits_for_it, arg);
}

TEST_TABLE(patience)
{
	static const struct patience all[] = {
		{"a_peer_that_computes_lives", false, POLLS, NULL, NULL},
		{"a_peer_that_computes_lives_for_a_sleeper", false, SLEEPS, NULL, NULL},
		{"both_compute_and_live", false, COMPUTES, NULL, NULL},
		{"a_stopped_peer_lives", true, SLEEPS, NULL, NULL},
		{"a_peer_that_computes_lives_over_streams", false, POLLS, "GDRFAB_TCP_STREAMS", "2"},
		{"a_peer_that_computes_lives_over_rails", false, POLLS, "GDRFAB_TCP_RAILS", "127.0.0.1,127.0.0.2"},
	};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		test_add(all[i].name, patience, &all[i], 40);
}
