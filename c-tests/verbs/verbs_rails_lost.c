/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Events while the first of two RDMA ports (GDRFAB_VERBS_RAILS) is down: it stays down, a deadline passes, either side closes,
 * dies or is stopped, the other port goes down too, or reconnecting fails at first. Each operation ends once, a failure has a
 * reason, and a successful operation was carried out once. TEST_RAILS names the ports, TEST_FIRST_LINK and TEST_LINK the
 * links that may be cut.
 */
#include "fab.h"

#include <signal.h>

#define WRITES 3
#define LEN ((size_t)4096)

struct plan {
	bool late;    /* the client's operations have a deadline, which passes */
	bool closes;  /* the server closes its endpoint; noticed however long a rail may stay down */
	bool dies;    /* the server is killed; noticed as well */
	bool stops;   /* the server is stopped; the link comes back meanwhile, and then the server is continued */
	bool alone;   /* the second link goes down too */
	bool refused; /* the link comes back, and the first attempts to connect over it fail */
	int patience_ms; /* the time that a rail may stay down; negative: no limit */
};

static const struct plan *plan_of(const struct node *n)
{
	return (const struct plan *)n->arg;
}

/* The connection ends with the second rail: its link goes down, or the peer's device does not answer. */
static bool is_alone(const struct plan *p)
{
	return p->alone || p->closes || p->dies;
}

static bool is_up(struct node *n, uint32_t number)
{
	gdrfab_rail_info info;
	gdrfab_cq_read(n->cq, NULL, 0);
	CHECK_EQ(rail_query(n->ep, 0, number, &info), 2);
	return info.up;
}

static void await_rail(struct node *n, uint32_t number, bool up)
{
	uint64_t until = test_now_ms() + (uint64_t)test_ms(10000);
	while (is_up(n, number) != up)
		if (test_now_ms() > until)
			test_fail(__FILE__, __LINE__, "rail %u does not %s", (unsigned)number, up ? "come up" : "go down");
}

static void link_goes(const char *which, const char *where)
{
	CHECK_EQ(test_system("ip link set dev %s %s", getenv(which), where), 0);
}

/* Tells the libibverbs of the virtual machine to fail connecting queue pairs of the first device; returns the failures left. */
static int fail_to_connect(int times)
{
	int (*fails)(const char *, int);
	*(void **)&fails = liar("verbs_fail_to_connect");
	return fails(first_device(), times);
}

/* Waits for the end of the connection, after the loss of the first rail. */
static void hear_the_end(struct node *n)
{
	struct eq_failure f;
	struct event e;
	uint32_t event = 0;
	bool first = false, second = false;
	uint64_t until = test_now_ms() + (uint64_t)test_ms(10000);
	while (event != GDRFAB_SHUTDOWN) {
		event = 0;
		if (eq_next(n->eq, &event, &e, &f) < 0) {
			first |= test_says((const char *)f.data, "rail 0, ");
			second |= test_says((const char *)f.data, "rail 1, ");
		}
		gdrfab_cq_read(n->cq, NULL, 0);
		if (test_now_ms() > until)
			test_fail(__FILE__, __LINE__, "nothing tells of the end");
	}
	CHECK(first && (second || !is_alone(plan_of(n))));
}

/* late: the context of the operation whose deadline has passed. If both sides end the connection, either may see the other gone. */
static void ends_with_words(struct node *n, int count, const void *late)
{
	const struct plan *p = plan_of(n);
	struct failure failed;
	done entry;
	for (int i = 0; i < count; i++) {
		if (cq_next(n->cq, &entry, 10000) != -1)
			test_fail(__FILE__, __LINE__, "operation %d does not fail", i);
		cq_failure(__FILE__, __LINE__, n->cq, &failed);
		CHECK_EQ(failed.entry.err, late && failed.entry.op_context == late ? ETIMEDOUT : ECANCELED);
		if (!test_says(failed.words, p->late && n->side == TEST_CLIENT ? "deadline" : is_alone(p) ? "no rail is left" : "rail "))
			test_fail(__FILE__, __LINE__, "these are not the words: %s", failed.words);
	}
	QUIET(n->cq, 50);
}

static void losing(struct node *n)
{
	const struct plan *p = plan_of(n);
	uint64_t patience = p->patience_ms < 0 ? 0 : (uint64_t)test_ms(p->patience_ms) * 1000000, deadline = (uint64_t)test_ms(50) * 1000000;
	bool server = n->side == TEST_SERVER, lives = p->stops || p->refused;
	unsigned char out[LEN], in[WRITES + 1][8];
	int receives = server ? WRITES + 1 : 1;
	struct remote to = {0};
	struct mem m;
	done e;
	node_up(n);
	mem_new(n, &m, &memkinds[KIND_MALLOC], LEN);
	mem_register(n, &m, 0, LEN, REMOTE_ACCESS, 0);
	if (server)
		mem_publish(n, &m);
	else
		to = mem_fetch(n);
	await_rail(n, 1, true);
	OK(gdrfab_ep_setopt(n->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_CONNECT_TIMEOUT, &patience, sizeof patience));
	for (int i = 0; i < receives; i++)
		POST(n->cq, gdrfab_recv(n->ep, in[i], 8, local_desc(n, in, sizeof in), 0, in[i]));
	barrier(n);
	/* A killed server cannot restore the link: the client does. */
	if (!server)
		link_goes("TEST_FIRST_LINK", "down");
	barrier(n);
	memset(out, 0x5a, LEN);
	void *desc = server ? NULL : local_desc(n, out, LEN);
	for (uint64_t i = 0; !server && i < WRITES; i++) {
		/* Only the first write has the deadline: the second iteration sets it back to none. */
		if (p->late && i < 2)
			OK(gdrfab_ep_setopt(n->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_DEADLINE, &deadline, sizeof deadline));
		deadline = 0;
		POST(n->cq, gdrfab_writedata(n->ep, out, LEN, desc, i, 0, to.base, to.key, out + i));
	}
	if (!p->late)
		await_rail(n, 0, false);
	uint64_t since = test_now_ms();
	if (!server && p->refused)
		fail_to_connect(2);
	barrier(n);
	if (p->closes && server) {
		OK(gdrfab_ep_close(n->ep));
		n->ep = NULL;
		CHECK(test_now_ms() - since < (uint64_t)test_ms(1000));
	}
	if (p->dies && server)
		await_gone(n);
	if (p->dies && !server)
		peer_kill(n);
	if (p->alone && !server)
		link_goes("TEST_LINK", "down");
	if (p->stops && !server)
		peer_stop(n);
	if (lives && !server)
		link_goes("TEST_FIRST_LINK", "up");
	if (p->stops && !server) {
		for (uint64_t until = test_now_ms() + (uint64_t)test_ms(100); test_now_ms() < until;)
			CHECK(!is_up(n, 0));
		peer_continue(n);
	}
	for (uint64_t i = 0; lives && i < WRITES; i++) {
		CHECK_EQ(cq_next(n->cq, &e, 10000), 1);
		if (!server)
			CHECK(e.op_context == out + i);
		else
			CHECK(e.flags & GDRFAB_REMOTE_WRITE && e.data == i);
	}
	if (lives) {
		if (server)
			CHECK(((unsigned char *)m.addr)[0] == 0x5a && ((unsigned char *)m.addr)[LEN - 1] == 0x5a);
		barrier(n);
		QUIET(n->cq, 50);
		await_rail(n, 0, true);
		if (p->refused && !server)
			CHECK_EQ(fail_to_connect(0), 0);
		barrier(n);
		POST(n->cq, gdrfab_inject(n->ep, "goodbye", 8, 0));
		/* Each write has consumed one receive. */
		DONE(n->cq, in[receives - 1], GDRFAB_RECV, NULL);
		CHECK(memcmp(in[receives - 1], "goodbye", 8) == 0);
	} else if (n->ep) {
		ends_with_words(n, server ? receives : WRITES + receives, p->late ? out : NULL);
		hear_the_end(n);
	}
	if (!p->dies)
		barrier(n);
	if (!server) {
		link_goes("TEST_FIRST_LINK", "up");
		link_goes("TEST_LINK", "up");
	}
	local_forget_all(n);
	mem_end(n, &m);
	node_close(n);
}

static void over(struct plan p, enum test_side victim)
{
	/* A disconnect of rdma_cm over a link that is down would break soft-RoCE's device for good. */
	struct setup s = {.by_address = true, .victim = victim};
	char rails[256];
	skip_unless(strcmp(provider(), "verbs") == 0, "this is about RDMA devices");
	skip_unless(getenv("TEST_BREAK") && getenv("TEST_RAILS") && getenv("TEST_LINK") && getenv("TEST_FIRST_LINK"),
		    "TEST_BREAK=1, TEST_RAILS, TEST_LINK and TEST_FIRST_LINK name no links that may be taken away");
	snprintf(rails, sizeof rails, "GDRFAB_VERBS_RAILS=%s", getenv("TEST_RAILS"));
	s.env[TEST_SERVER][0] = s.env[TEST_CLIENT][0] = rails;
	/* soft-RoCE takes a retry count of 7 as unlimited. */
	s.env[TEST_SERVER][1] = s.env[TEST_CLIENT][1] = "GDRFAB_VERBS_RETRIES=6";
	/* A failed claim may have left the links down. */
	link_goes("TEST_FIRST_LINK", "up");
	link_goes("TEST_LINK", "up");
	p.patience_ms = p.patience_ms ? p.patience_ms : 3000;
	pair(&s, losing, losing, &p);
}

TEST_WITHIN(30, it_stays_away)
{
	over((struct plan){.patience_ms = 200}, TEST_REFEREE);
}

TEST_WITHIN(30, a_deadline_passes)
{
	over((struct plan){.late = true, .patience_ms = 250}, TEST_REFEREE);
}

TEST_WITHIN(30, the_peer_closes)
{
	over((struct plan){.closes = true, .patience_ms = -1}, TEST_REFEREE);
}

TEST_WITHIN(30, the_peer_dies)
{
	over((struct plan){.dies = true, .patience_ms = -1}, TEST_SERVER);
}

TEST_WITHIN(30, the_peer_stops_and_goes_on)
{
	over((struct plan){.stops = true}, TEST_REFEREE);
}

TEST_WITHIN(30, the_other_one_is_lost_too)
{
	over((struct plan){.alone = true}, TEST_REFEREE);
}

TEST_WITHIN(30, it_is_lost_again_on_its_way_back)
{
	over((struct plan){.refused = true}, TEST_REFEREE);
}
