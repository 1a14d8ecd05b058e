/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A connection over two RDMA ports (GDRFAB_VERBS_RAILS): whenever the further one is lost, every byte, message and notification
 * comes once and in order, and the event queue tells of the loss and of the return. Both sides write, read and send at the same
 * time. TEST_RAILS names the ports, first that of TEST_NODE; links go down where TEST_BREAK=1 says that they may.
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
#define ALL (LIST + BLOCKS * STRIDE)

struct plan {
	bool rails[TEST_SIDES]; /* which sides name ports */
	const char *fault[TEST_SIDES]; /* GDRFAB_FAULT=... of that side; rails are lost by it */
	bool cuts, closes, all; /* all: they name none, but say all */
};

static bool has_rails(const struct node *n)
{
	const struct plan *p = (const struct plan *)n->arg;
	return p->rails[TEST_SERVER] && p->rails[TEST_CLIENT];
}

static gdrfab_rail_info rail(struct node *n, uint32_t number)
{
	gdrfab_rail_info info = {.struct_size = sizeof info};
	OK(gdrfab_ep_query_rail(n->ep, 0, number, &info));
	return info;
}

static void await_rail(struct node *n)
{
	uint64_t until = test_now_ms() + (uint64_t)test_ms(10000);
	while (has_rails(n) && !rail(n, 1).up) {
		if (test_now_ms() > until)
			test_fail(__FILE__, __LINE__, "the second rail does not come up");
		gdrfab_cq_read(n->cq, NULL, 0);
	}
}

struct memory {
	struct mem m; /* the peer's to write and read */
	struct remote to;
	unsigned char *out, *in[3], *back;
};

static void memory_new(struct node *n, struct memory *a)
{
	mem_new(n, &a->m, &memkinds[KIND_MALLOC], ALL);
	memset(a->m.addr, 0, ALL);
	mem_register(n, &a->m, 0, ALL, REMOTE_ACCESS, 0);
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

/* The same on both sides: each writes into the other's memory, and checks its own. */
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
		/* In the order in which they were posted, each after its bytes and those before; but lists, which keep none. */
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

/* Takes the second rail's link away for a moment, again and again, until it is ended. */
static pid_t cutter(void)
{
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid != 0)
		return pid;
	execl("/bin/sh", "sh", "-c",
	      "while :; do sleep 0.7; ip link set dev $TEST_LINK down; sleep 0.4; ip link set dev $TEST_LINK up; done", (char *)NULL);
	_exit(1);
}

static void both(struct node *n)
{
	const struct plan *p = (const struct plan *)n->arg;
	bool lossy = p->fault[TEST_SERVER] || p->fault[TEST_CLIENT] || p->cuts;
	gdrfab_stats stats = {.struct_size = sizeof stats};
	gdrfab_rail_info info = {.struct_size = sizeof info};
	struct rail_news told = {0, 0};
	struct memory a;
	char words[4096];
	pid_t cuts = 0;
	node_up(n);
	memory_new(n, &a);
	await_rail(n);
	barrier(n);
	if (p->cuts && n->side == TEST_SERVER)
		cuts = cutter();
	uint32_t rounds = (uint32_t)(p->cuts ? test_count(60, 8) : lossy ? test_count(40, 5) : 3);
	for (uint32_t round = 0; round < rounds; round++) {
		one_round(n, &a, round);
		rails_told(n, &told, "rail 1");
	}
	if (cuts) {
		kill(cuts, SIGKILL);
		waitpid(cuts, NULL, 0);
		CHECK_EQ(system("ip link set dev $TEST_LINK up"), 0);
	}
	barrier(n);
	await_rail(n);
	QUIET(n->cq, 150);
	rails_told(n, &told, "rail 1");
	CHECK_EQ(told.lost, told.back);
	CHECK(lossy ? told.lost > 0 : told.lost == 0);
	OK(gdrfab_ep_stats(n->ep, &stats));
	CHECK_EQ(stats.rails_lost, (uint64_t)told.lost);
	CHECK_EQ(stats.errors, 0);
	CHECK(gdrfab_ep_explain(n->ep, a.to.key, words, sizeof words) > 0);
	if (has_rails(n)) {
		CHECK(rail(n, 0).up && rail(n, 0).bytes_out > 0);
		info = rail(n, 1);
		CHECK_EQ(info.losses, (uint32_t)told.lost);
		CHECK(info.own[0] && info.peer[0]);
		/* It has a smaller MTU, and so the smaller share; what is lost again and again may bring nothing. */
		if (!lossy && info.bytes_out + info.bytes_in == 0)
			test_fail(__FILE__, __LINE__, "the second rail has carried nothing: %s", words);
		CHECK(test_says(words, "rail 1, ") && test_says(words, ": up, "));
		CHECK_EQ(gdrfab_ep_query_rail(n->ep, 0, 2, &info), -ENOENT);
		CHECK(gdrfab_mr_explain(a.m.mr, words, sizeof words) > 0);
		CHECK(test_says(words, "carries it too"));
		if (lossy && n->side == TEST_CLIENT)
			fprintf(stderr, "     %u rounds, the second rail lost %d times\n", rounds, told.lost);
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

/* The same two: the third device has another type of address. */
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

/* By the library itself, after so many parts and again; each side's losses are the other's too. */
TEST_WITHIN(120, broken_by_one_side)
{
	over((struct setup){0}, (struct plan){BOTH, .fault = {[TEST_SERVER] = "GDRFAB_FAULT=verbs/rail=2:1"}}, both, both);
}

TEST_WITHIN(120, broken_by_both_sides)
{
	over((struct setup){0}, (struct plan){BOTH, .fault = {[TEST_SERVER] = "GDRFAB_FAULT=verbs/rail=1", [TEST_CLIENT] = "GDRFAB_FAULT=verbs/rail=3"}}, both, both);
}

TEST_WITHIN(120, broken_with_a_thread_that_makes_progress)
{
	over((struct setup){.progress = GDRFAB_PROGRESS_AUTO}, (struct plan){BOTH, .fault = {[TEST_CLIENT] = "GDRFAB_FAULT=verbs/rail=1"}}, both, both);
}

TEST_WITHIN(120, cut)
{
	const char *may = getenv("TEST_BREAK");
	if (!may || strcmp(may, "1") != 0 || !getenv("TEST_LINK"))
		test_skip("TEST_BREAK=1 and TEST_LINK let this claim take a link away");
	over((struct setup){0}, (struct plan){BOTH, .cuts = true}, both, both);
}

/* --- what is closed is closed on every rail --- */

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

/* --- what is asked for is to be had --- */

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
