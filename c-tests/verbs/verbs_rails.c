/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A connection over two RDMA ports (GDRFAB_VERBS_RAILS). Whenever a port is lost, every byte, message and notification arrives
 * once and in order, and the event queue reports the loss and the return. Both sides write, read and send at once. TEST_RAILS
 * names the ports, first the port of TEST_NODE; links go down only with TEST_BREAK=1. TEST_RAIL_ROUNDS: the number of rounds.
 */
#include "fab.h"

#include <signal.h>
#include <sys/wait.h>

#define LARGE ((size_t)3 << 20)
#define DATA (((size_t)1 << 20) + 4096)
#define MESSAGE ((size_t)100001)
#define BLOCKS 64
#define BLOCK ((size_t)24 * 1024)
#define STRIDE ((size_t)32 * 1024)
#define LIST (LARGE + DATA)
#define SMALL (LIST + BLOCKS * STRIDE)
#define SHORTS 24 /* of each kind */
#define ALL (SMALL + 4096)

struct plan {
	bool rails[TEST_SIDES]; /* which sides name ports */
	const char *fault[TEST_SIDES]; /* GDRFAB_FAULT of each side, which loses rails */
	bool cuts, closes, all; /* all: the sides name no ports, but set "all" */
	uint64_t access; /* further access rights of the memory */
	bool first; /* the first rail is lost, and not the second */
	int unanswered; /* the first rail is lost at every so many requests: the peer has the request, and its answer is dropped */
};

static bool has_rails(const struct node *n)
{
	const struct plan *p = (const struct plan *)n->arg;
	return p->rails[TEST_SERVER] && p->rails[TEST_CLIENT];
}

static gdrfab_rail_info rail(struct node *n, uint32_t number)
{
	gdrfab_rail_info info;
	CHECK_EQ(rail_query(n->ep, 0, number, &info), 2);
	return info;
}

static void await_rail(struct node *n)
{
	uint64_t until = test_now_ms() + (uint64_t)test_ms(10000);
	while (has_rails(n) && !(rail(n, 0).up && rail(n, 1).up)) {
		if (test_now_ms() > until)
			test_fail(__FILE__, __LINE__, "a rail does not come up");
		gdrfab_cq_read(n->cq, NULL, 0);
	}
}

struct memory {
	struct mem m; /* the peer writes and reads it */
	struct remote to;
	unsigned char *out, *in[3], *back;
};

static void memory_new(struct node *n, struct memory *a)
{
	mem_new(n, &a->m, &memkinds[KIND_MALLOC], ALL);
	memset(a->m.addr, 0, ALL);
	mem_register(n, &a->m, 0, ALL, REMOTE_ACCESS | ((const struct plan *)n->arg)->access, 0);
	a->out = (unsigned char *)malloc(ALL);
	for (int i = 0; i < 3; i++)
		a->in[i] = (unsigned char *)malloc(MESSAGE);
	a->back = (unsigned char *)malloc(LARGE);
	if (n->side == TEST_SERVER) {
		mem_publish(n, &a->m);
		a->to = mem_fetch(n);
	} else {
		a->to = mem_fetch(n);
		mem_publish(n, &a->m);
	}
}

static void memory_end(struct node *n, struct memory *a)
{
	free(a->out);
	for (int i = 0; i < 3; i++)
		free(a->in[i]);
	free(a->back);
	mem_end(n, &a->m);
}

static void over(struct setup s, struct plan p, side_fn server, side_fn client)
{
	char rails[256];
	skip_unless(strcmp(provider(), "verbs") == 0, "this is about RDMA devices");
	if (!getenv("TEST_RAILS"))
		test_skip("TEST_RAILS names no two ports");
	snprintf(rails, sizeof rails, "GDRFAB_VERBS_RAILS=%s", p.all ? "all" : getenv("TEST_RAILS"));
	for (int side = TEST_SERVER; side <= TEST_CLIENT; side++) {
		s.env[side][0] = p.rails[side] ? rails : p.fault[side];
		s.env[side][1] = p.rails[side] ? p.fault[side] : NULL;
	}
	pair(&s, server, client, &p);
}

/* The same on both sides: each writes into the other's memory and checks its own. */
static void one_round(struct node *n, struct memory *a, uint32_t round)
{
	uint32_t is_server = n->side == TEST_SERVER, mine = 10 * round + is_server, theirs = 10 * round + !is_server;
	unsigned char *out = a->out, *list = a->out + LIST;
	void *desc = local_desc(n, out, ALL), *keys[] = {desc};
	const void *ends[] = {out, out + LARGE, list, list + 1};
	gdrfab_block blocks[BLOCKS];
	int seen[4] = {0}, came = 0, blocks_came = 0, message_came = 0;
	fill(out, LARGE, 0, mine);
	fill(out + LARGE, DATA, 0, mine + 2);
	fill(list, BLOCKS * BLOCK, 0, mine + 4);
	for (size_t i = 0; i < BLOCKS; i++)
		blocks[i] = (gdrfab_block){list + i * BLOCK, a->to.base + LIST + i * STRIDE, BLOCK};
	gdrfab_msg_list msg = {.struct_size = sizeof msg, .blocks = blocks, .count = BLOCKS, .key = &a->to.key, .key_count = 1,
			       .desc = keys, .desc_count = 1, .context = list, .data = 2 * round + 1};
	for (int i = 0; i < 3; i++)
		POST(n->cq, gdrfab_recv(n->ep, a->in[i], MESSAGE, local_desc(n, a->in[i], MESSAGE), 0, a->in[i]));
	barrier(n);
	POST(n->cq, gdrfab_write(n->ep, out, LARGE, desc, 0, a->to.base, a->to.key, out));
	POST(n->cq, gdrfab_writedata(n->ep, out + LARGE, DATA, desc, 2 * round, 0, a->to.base + LARGE, a->to.key, out + LARGE));
	POST(n->cq, gdrfab_writelist(n->ep, &msg, GDRFAB_REMOTE_CQ_DATA | GDRFAB_COMPLETION));
	POST(n->cq, gdrfab_send(n->ep, out, MESSAGE, desc, 0, list + 1));
	for (int i = 0; i < 7; i++) {
		done e;
		size_t which = 0;
		CHECK_EQ(cq_next(n->cq, &e, 30000), 1);
		while (which < 4 && ends[which] != e.op_context)
			which++;
		if (which < 4) {
			CHECK(seen[which]++ == 0);
			continue;
		}
		/* Notifications come in the order of posting, each after its own and all earlier bytes; lists have no order. */
		CHECK(came < 3 && e.op_context == a->in[came++]);
		CHECK_MEM("written", &a->m, 0, LARGE, 0, theirs);
		if (!(e.flags & GDRFAB_REMOTE_CQ_DATA)) {
			CHECK(message_came++ == 0 && came > 1 && e.len == MESSAGE);
			CHECK_FILLED("sent", e.op_context, MESSAGE, 0, theirs);
		} else if (came == 1) {
			CHECK(e.data == 2 * round && e.len == DATA);
			CHECK_MEM("written with data", &a->m, LARGE, DATA, 0, theirs + 2);
		} else {
			CHECK(blocks_came++ == 0 && e.data == 2 * round + 1);
			for (size_t k = 0; k < BLOCKS; k++)
				CHECK_MEM("a block", &a->m, LIST + k * STRIDE, BLOCK, k * BLOCK, theirs + 4);
		}
	}
	memset(a->back, 0, LARGE);
	POST(n->cq, gdrfab_read(n->ep, a->back, LARGE, local_desc(n, a->back, LARGE), 0, a->to.base, a->to.key, a->back));
	DONE(n->cq, a->back, GDRFAB_READ, NULL);
	CHECK_FILLED("read back", a->back, LARGE, 0, mine);
	barrier(n);
}

/* Short operations: each message and notification arrives once, in order, and after the earlier writes. */
static void short_ones(struct node *n, struct memory *a, uint32_t round)
{
	static uint64_t words[SHORTS], in[SHORTS], back[SHORTS];
	uint32_t mine = 2 * round + (n->side == TEST_SERVER), theirs = 2 * round + (n->side != TEST_SERVER);
	volatile uint64_t *at = (volatile uint64_t *)(void *)((unsigned char *)a->m.addr + SMALL);
	void *desc = local_desc(n, words, sizeof words), *into = local_desc(n, back, sizeof back);
	int own = 0, came = 0, got = 0;
	for (int i = 0; i < SHORTS; i++) {
		POST(n->cq, gdrfab_recv(n->ep, &in[i], 8, local_desc(n, in, sizeof in), 0, &in[i]));
		POST(n->cq, gdrfab_recv(n->ep, &in[i], 8, local_desc(n, in, sizeof in), 0, &in[i]));
	}
	barrier(n);
	for (int i = 0; i < SHORTS; i++) {
		uint64_t to = a->to.base + SMALL + 8 * (uint64_t)i;
		words[i] = (uint64_t)mine << 32 | (uint64_t)i;
		POST(n->cq, gdrfab_inject_write(n->ep, &words[i], 8, 0, to, a->to.key));
		if (i % 2)
			POST(n->cq, gdrfab_inject(n->ep, &words[i], 8, 0));
		else
			POST(n->cq, gdrfab_send(n->ep, &words[i], 8, desc, 0, &words[i]));
		POST(n->cq, gdrfab_writedata(n->ep, &words[i], 8, desc, (uint64_t)i, 0, to + 2048, a->to.key, &words[i]));
		POST(n->cq, gdrfab_read(n->ep, &back[i], 8, into, 0, to + 2048, a->to.key, &back[i]));
	}
	while (own + came + got < SHORTS * 4 + SHORTS / 2) {
		done e;
		CHECK_EQ(cq_next(n->cq, &e, 30000), 1);
		if (e.flags & (GDRFAB_RECV | GDRFAB_REMOTE_WRITE)) {
			int i = came++ / 2;
			uint64_t is = (uint64_t)theirs << 32 | (uint64_t)i;
			CHECK(e.op_context == &in[i] && at[i] == is);
			CHECK_EQ(e.flags & GDRFAB_RECV ? in[i] : at[256 + i], is);
			CHECK_EQ(!(e.flags & GDRFAB_RECV), (came + 1) % 2);
			if (e.flags & GDRFAB_REMOTE_CQ_DATA)
				CHECK_EQ(e.data, (uint64_t)i);
		} else if (e.flags & GDRFAB_READ) {
			CHECK(e.op_context == &back[got]);
			CHECK_EQ(back[got], words[got]);
			got++;
		} else {
			/* An even number has a message and a write, an odd number a write. */
			int i = own / 3 * 2 + own % 3 / 2;
			CHECK(e.op_context == &words[i]);
			own++;
		}
	}
	barrier(n);
}

/* Cuts the rail's link for a moment, again and again, until it is told to end; then the link is up. */
static pid_t cutter(const char *link)
{
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid != 0)
		return pid;
	execl("/bin/sh", "sh", "-c",
	      "trap 'exit 0' TERM; while :; do sleep 0.7; ip link set dev $0 down; sleep 0.4; ip link set dev $0 up; done", link, (char *)NULL);
	_exit(1);
}

/* Reads the reports about the lost rail; for the first rail the event queue also reports its port. */
static void hear(struct node *n, struct rail_news *news)
{
	const struct plan *p = (const struct plan *)n->arg;
	struct eq_failure f;
	struct event e;
	uint32_t event;
	for (int got; (got = eq_next(n->eq, &event, &e, &f)) != 0;) {
		const char *words = got > 0 ? (const char *)e.data : (const char *)f.data;
		CHECK_EQ(got < 0 ? f.entry.data : event, GDRFAB_NOTIFY);
		if (test_says(words, p->first ? "rail 0, " : "rail 1, "))
			*(got > 0 ? &news->back : &news->lost) += 1;
		else
			CHECK(p->first && test_says(words, "port 1 of "));
	}
}

/* Tells the libibverbs of the virtual machine (tests/vm/liar-shim.c) to drop answers to the first device. */
static void lose_answers(int of_each)
{
	void (*lose)(const char *, int);
	*(void **)&lose = liar("verbs_lose_answers");
	lose(first_device(), of_each);
}

/* The number of this process's queue pairs on the first device. */
static int pairs(void)
{
	return test_system("exit $(rdma resource show qp link %s | grep -c 'pid %d ')", first_device(), (int)getpid()) / 256;
}

static void both(struct node *n)
{
	const struct plan *p = (const struct plan *)n->arg;
	bool lossy = p->fault[TEST_SERVER] || p->fault[TEST_CLIENT] || p->cuts || p->unanswered;
	gdrfab_stats stats = {.struct_size = sizeof stats};
	gdrfab_rail_info info;
	struct rail_news told = {0, 0};
	struct memory a;
	char words[4096];
	const char *link = getenv(p->first ? "TEST_FIRST_LINK" : "TEST_LINK");
	pid_t cuts = 0;
	node_up(n);
	memory_new(n, &a);
	await_rail(n);
	barrier(n);
	int had = p->first ? pairs() : 0, lost = 0;
	if (p->cuts && n->side == TEST_SERVER)
		cuts = cutter(link);
	if (p->unanswered && n->side == TEST_SERVER)
		lose_answers(p->unanswered);
	uint32_t round = 0, rounds = (uint32_t)rail_rounds(p->cuts ? test_count(60, p->first ? 5 : 8) : lossy ? test_count(40, p->first ? 3 : 5) : 3);
	/* Cuts come at their own times: rounds go on until both sides have seen one. */
	for (; round < rounds || (p->cuts && (told.lost == 0 || lost == 0)); round++) {
		one_round(n, &a, round);
		if (p->first)
			short_ones(n, &a, round);
		barrier(n);
		hear(n, &told);
		oob_send(n, &told.lost, sizeof told.lost), oob_recv(n, &lost, sizeof lost);
	}
	if (p->unanswered && n->side == TEST_SERVER)
		lose_answers(0);
	if (cuts) {
		kill(cuts, SIGTERM);
		waitpid(cuts, NULL, 0);
		CHECK_EQ(test_system("ip link set dev %s up", link), 0);
	}
	barrier(n);
	await_rail(n);
	QUIET(n->cq, 150);
	hear(n, &told);
	CHECK_EQ(told.lost, told.back);
	CHECK(lossy ? told.lost > 0 : told.lost == 0);
	/* rdma_cm ends a connection by the number of its queue pair, which must be unique. */
	CHECK(!had || pairs() == had + !n->setup->by_address);
	OK(gdrfab_ep_stats(n->ep, &stats));
	CHECK_EQ(stats.rails_lost, (uint64_t)told.lost);
	CHECK_EQ(stats.errors, 0);
	CHECK(gdrfab_ep_explain(n->ep, 0, a.to.key, words, sizeof words) > 0);
	if (has_rails(n)) {
		/* Counted only where links are cut: a rail that the peer loses again and again may be down at every transfer. */
		info = rail(n, 0);
		CHECK(info.up);
		if (!lossy || (p->fault[n->side] && !p->fault[!n->side] && !p->first))
			CHECK(info.bytes_out + info.bytes_in > 0);
		CHECK_EQ(rail(n, !p->first).losses, (uint32_t)told.lost);
		info = rail(n, 1);
		CHECK(info.own[0] && info.peer[0]);
		/* The second port has a smaller MTU and so the smaller share; a rail that is lost again and again may carry nothing. */
		if (!lossy && info.bytes_out + info.bytes_in == 0)
			test_fail(__FILE__, __LINE__, "the second rail has carried nothing: %s", words);
		CHECK(test_says(words, "rail 1, ") && test_says(words, ": up, "));
		CHECK(gdrfab_mr_explain(a.m.mr, words, sizeof words) > 0);
		CHECK(test_says(words, "registered there too"));
		if (lossy && n->side == TEST_CLIENT)
			fprintf(stderr, "     %u rounds, the %s rail lost %d times\n", round, p->first ? "first" : "second", told.lost);
	}
	barrier(n);
	local_forget_all(n);
	memory_end(n, &a);
	node_down(n);
}

#define BOTH .rails = {[TEST_SERVER] = true, [TEST_CLIENT] = true}

TEST_WITHIN(60, over_two)
{
	over((struct setup){0}, (struct plan){BOTH}, both, both);
}

TEST_WITHIN(60, over_two_by_exchanged_addresses)
{
	over((struct setup){.by_address = true}, (struct plan){BOTH}, both, both);
}

/* "all" gives the same two ports: the third device has another type of address. */
TEST_WITHIN(60, over_every_port)
{
	over((struct setup){0}, (struct plan){BOTH, .all = true}, both, both);
}

TEST_WITHIN(60, over_one_if_the_server_names_none)
{
	over((struct setup){0}, (struct plan){.rails = {[TEST_CLIENT] = true}}, both, both);
}

TEST_WITHIN(60, over_one_if_the_client_names_none)
{
	over((struct setup){0}, (struct plan){.rails = {[TEST_SERVER] = true}}, both, both);
}

/* Fault injection loses a rail after so many parts, again and again; each side sees the other's losses too. */
TEST_WITHIN(120, broken_by_one_side)
{
	over((struct setup){0}, (struct plan){BOTH, .fault = {[TEST_SERVER] = "GDRFAB_FAULT=verbs/rail=2:1"}}, both, both);
}

TEST_WITHIN(3600, broken_by_both_sides)
{
	over((struct setup){0}, (struct plan){BOTH, .fault = {[TEST_SERVER] = "GDRFAB_FAULT=verbs/rail=1", [TEST_CLIENT] = "GDRFAB_FAULT=verbs/rail=3"}}, both, both);
}

TEST_WITHIN(120, broken_with_a_thread_that_makes_progress)
{
	over((struct setup){.progress = GDRFAB_PROGRESS_AUTO}, (struct plan){BOTH, .fault = {[TEST_CLIENT] = "GDRFAB_FAULT=verbs/rail=1"}}, both, both);
}

TEST_WITHIN(3600, cut)
{
	skip_unless(getenv("TEST_BREAK") && getenv("TEST_LINK"), "TEST_BREAK=1 and TEST_LINK let this claim take a link away");
	over((struct setup){0}, (struct plan){BOTH, .cuts = true}, both, both);
}

/* --- the first rail, which carries all short operations --- */

TEST_WITHIN(120, first_broken_by_one_side)
{
	over((struct setup){0}, (struct plan){BOTH, .first = true, .fault = {[TEST_SERVER] = "GDRFAB_FAULT=verbs/rail=37:0"}}, both, both);
}

TEST_WITHIN(3600, first_broken_by_both_sides)
{
	over((struct setup){.by_address = true}, (struct plan){BOTH, .first = true, .fault = {[TEST_SERVER] = "GDRFAB_FAULT=verbs/rail=37:0", [TEST_CLIENT] = "GDRFAB_FAULT=verbs/rail=23:0"}}, both, both);
}

/* An operation that has arrived is not repeated, although its acknowledgement was lost. */
TEST_WITHIN(120, first_unanswered)
{
	over((struct setup){0}, (struct plan){BOTH, .first = true, .unanswered = 41}, both, both);
}

TEST_WITHIN(120, first_cut)
{
	skip_unless(getenv("TEST_FIRST_LINK") != NULL, "TEST_FIRST_LINK names no link that may be taken away");
	over((struct setup){0}, (struct plan){BOTH, .cuts = true, .first = true}, both, both);
}

/* Each side adds to a number of the other: a failed sum may have been carried out, and none is carried out twice. Sums whose
 * answers the server's device did not get have been carried out. */
static void counts(struct node *n)
{
	uint64_t one = 1, mine[2] = {0, 0}, theirs[2];
	struct failure f;
	struct memory a;
	done entry;
	node_up(n);
	memory_new(n, &a);
	await_rail(n);
	barrier(n);
	int unanswered = n->side == TEST_SERVER ? ((const struct plan *)n->arg)->unanswered : 0;
	if (unanswered)
		lose_answers(unanswered);
	for (uint64_t i = 0; i < 200; i += mine[0] + mine[1] - i) {
		POST(n->cq, gdrfab_atomic(n->ep, &one, 1, NULL, 0, a.to.base, a.to.key, GDRFAB_UINT64, GDRFAB_SUM, &one));
		int got = cq_next(n->cq, &entry, 30000);
		CHECK(got != 0);
		mine[got < 0]++;
		if (got < 0) {
			cq_failure(__FILE__, __LINE__, n->cq, &f);
			CHECK(test_says(f.words, "executed the operation"));
		}
	}
	if (unanswered)
		lose_answers(0);
	POST(n->cq, gdrfab_recv(n->ep, theirs, sizeof theirs, local_desc(n, theirs, sizeof theirs), 0, theirs));
	barrier(n);
	POST(n->cq, gdrfab_inject(n->ep, mine, sizeof mine, 0));
	DONE(n->cq, theirs, GDRFAB_RECV, NULL);
	uint64_t sum = *(volatile uint64_t *)a.m.addr;
	CHECK(sum >= theirs[0] && sum <= theirs[0] + theirs[1]);
	if (n->side == TEST_CLIENT)
		fprintf(stderr, "     %d of 200 failed on one side, %d on the other\n", (int)mine[1], (int)theirs[1]);
	CHECK(mine[1] + theirs[1] > 0);
	if (((const struct plan *)n->arg)->unanswered && n->side == TEST_CLIENT)
		CHECK_EQ(sum, theirs[0] + theirs[1]);
	local_forget_all(n);
	memory_end(n, &a);
	node_down(n);
}

TEST_WITHIN(60, first_broken_among_atomics)
{
	over((struct setup){0}, (struct plan){BOTH, .first = true, .access = GDRFAB_ATOMIC, .fault = {[TEST_SERVER] = "GDRFAB_FAULT=verbs/rail=47:0"}}, counts, counts);
}

TEST_WITHIN(60, first_unanswered_among_atomics)
{
	over((struct setup){0}, (struct plan){BOTH, .first = true, .access = GDRFAB_ATOMIC, .unanswered = 23}, counts, counts);
}

/* --- a closed region is closed on every rail --- */

static void closes(struct node *n)
{
	struct memory a;
	node_up(n);
	memory_new(n, &a);
	await_rail(n);
	one_round(n, &a, 1);
	mem_unregister(&a.m);
	memset(a.m.addr, 0x5a, ALL);
	barrier(n);
	barrier(n);
	for (size_t i = 0; i < ALL; i++)
		CHECK_EQ(((unsigned char *)a.m.addr)[i], 0x5a);
	barrier(n);
	local_forget_all(n);
	memory_end(n, &a);
	node_close(n);
}

static void writes_on(struct node *n)
{
	struct failure f;
	struct memory a;
	node_up(n);
	memory_new(n, &a);
	await_rail(n);
	one_round(n, &a, 1);
	barrier(n);
	POST(n->cq, gdrfab_write(n->ep, a.out, LARGE, local_desc(n, a.out, LARGE), 0, a.to.base, a.to.key, a.out));
	FAILED(n->cq, a.out, EKEYREJECTED, GDRFAB_PROV_VERBS + 10, &f);
	barrier(n);
	barrier(n);
	mem_unregister(&a.m);
	local_forget_all(n);
	memory_end(n, &a);
	node_close(n);
}

TEST_WITHIN(60, a_closed_region_is_closed_on_every_rail)
{
	over((struct setup){0}, (struct plan){BOTH}, closes, writes_on);
}

/* --- ports that do not exist are refused --- */

TEST(unknown_port)
{
	gdrfab_info *info = NULL;
	skip_unless(strcmp(provider(), "verbs") == 0, "this is about RDMA devices");
	gdrfab_info *hints = hints_new(&(struct setup){0});
	setenv("GDRFAB_VERBS_RAILS", "no-such-device:1", 1);
	CHECK(provider_getinfo("7471", 0, hints, &info) < 0);
	if (!test_says(gdrfab_last_error(), "no-such-device"))
		test_fail(__FILE__, __LINE__, "the words name no device: %s", gdrfab_last_error());
	gdrfab_freeinfo(hints);
}
