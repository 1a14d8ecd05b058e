/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A connection over several addresses (GDRFAB_TCP_RAILS). If any rail is lost at any moment, every byte, message,
 * notification and atomic operation arrives once and in order, and the event queue reports the loss and the return.
 *
 * Rails are broken here by resetting or ending their sockets, in either process. Where TEST_LINKS names two network devices
 * of the server's namespace, and TEST_RAILS and TEST_CLIENT_RAILS the addresses, links are cut and restored as well;
 * tests/check-tcp.sh makes them. TEST_RAIL_ROUNDS: the number of rounds.
 */
#include "fab.h"
#include "misuse.h"
#include "tcp_raw.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define LARGE ((size_t)3 * 1024 * 1024)
#define MESSAGE ((size_t)700001)
#define BLOCKS 64
#define BLOCK ((size_t)3000)
#define STRIDE ((size_t)4096)
#define COUNTER (LARGE + BLOCKS * STRIDE)
#define ALL (COUNTER + 4096)

struct plan {
	const char *server, *client; /* the setting of each side; NULL: not set */
	bool breaks, cuts;
	const char *fault[TEST_SIDES]; /* GDRFAB_FAULT of each side, which loses rails */
	int up; /* expected number of rails */
};

static const char *addresses(enum test_side side)
{
	const char *rails = getenv(side == TEST_SERVER ? "TEST_RAILS" : "TEST_CLIENT_RAILS");
	return rails && *rails ? rails : "127.0.0.1,127.0.0.2";
}

static void begin(struct node *n)
{
	const struct plan *p = (const struct plan *)n->arg;
	const char *rails = n->side == TEST_SERVER ? p->server : p->client;
	if (rails)
		setenv("GDRFAB_TCP_RAILS", *rails ? rails : addresses(n->side), 1);
	else
		unsetenv("GDRFAB_TCP_RAILS");
	if (p->fault[n->side])
		setenv("GDRFAB_FAULT", p->fault[n->side], 1);
	node_up(n);
}

/* The number of lines of the explanation that contain this. */
static int rails_that_are(struct node *n, const char *state)
{
	char words[4096];
	int count = 0;
	CHECK(gdrfab_ep_explain(n->ep, 0, 0, words, sizeof words) > 0);
	for (const char *line = words; (line = strstr(line, "  rail ")) != NULL; line++) {
		const char *end = strchr(line, '\n'), *at = strstr(line, state);
		count += at && end && at < end;
	}
	return count;
}

static void await_rails(struct node *n, int count)
{
	uint64_t until = test_now_ms() + (uint64_t)test_ms(10000);
	while (rails_that_are(n, ": up,") < count) {
		if (test_now_ms() > until)
			test_fail(__FILE__, __LINE__, "%d rails are up, not %d", rails_that_are(n, ": up,"), count);
		gdrfab_cq_read(n->cq, NULL, 0);
		test_sleep_ms(1);
	}
}

/* Ends one of this process's rails: by a reset, which drops data in the kernel, or by an orderly close. */
static void break_rail(int number, bool reset)
{
	const char *rails = getenv("GDRFAB_TCP_RAILS"), *second = strchr(rails, ',') + 1;
	struct in_addr at = {0};
	char first[64];
	snprintf(first, sizeof first, "%.*s", (int)(second - 1 - rails), rails);
	CHECK_EQ(inet_pton(AF_INET, number == 0 ? first : second, &at), 1);
	for (int fd = 3; fd < 1024; fd++) {
		struct sockaddr_in own, peer;
		socklen_t own_len = sizeof own, peer_len = sizeof peer;
		if (getsockname(fd, (struct sockaddr *)&own, &own_len) != 0 || own.sin_family != AF_INET ||
		    getpeername(fd, (struct sockaddr *)&peer, &peer_len) != 0 || own.sin_addr.s_addr != at.s_addr)
			continue;
		struct sockaddr none = {.sa_family = AF_UNSPEC};
		if (reset)
			connect(fd, &none, sizeof none);
		else
			shutdown(fd, SHUT_RDWR);
		return;
	}
}

/* --- every byte, once --- */

static void server_round(struct node *n, struct mem *m, unsigned char *in, unsigned char *out, uint32_t round)
{
	const struct plan *p = (const struct plan *)n->arg;
	bool sent = false, came = false;
	int notes = 0;
	POST(n->cq, gdrfab_recv(n->ep, in, MESSAGE, NULL, 0, in));
	barrier(n);
	while (notes < 2 || !came || !sent) {
		done e;
		CHECK_EQ(cq_next(n->cq, &e, 20000), 1);
		if (e.flags & GDRFAB_REMOTE_CQ_DATA) {
			/* Notifications come in the order of posting, each after its bytes. */
			CHECK_EQ(e.data, 2 * round + (uint32_t)notes);
			if (notes++ == 0) {
				CHECK_MEM("written", m, 0, LARGE, 0, round);
				if (p->breaks && round % 3 == 2)
					break_rail((int)(round / 3 % 2), round % 2);
			} else {
				for (size_t i = 0; i < BLOCKS; i++)
					CHECK_MEM("a block", m, LARGE + i * STRIDE, BLOCK, i * BLOCK, round + 1);
			}
		} else if (e.op_context == in) {
			CHECK(!came);
			came = true;
			CHECK_EQ(e.len, MESSAGE);
			CHECK_FILLED("sent", in, MESSAGE, 0, round + 2);
			fill(out, MESSAGE, 0, round + 3);
			POST(n->cq, gdrfab_send(n->ep, out, MESSAGE, NULL, 0, out));
		} else {
			CHECK(e.op_context == out && !sent);
			sent = true;
		}
	}
	barrier(n);
}

static void client_round(struct node *n, struct remote to, unsigned char *memory[4], uint32_t round)
{
	const struct plan *p = (const struct plan *)n->arg;
	unsigned char *out = memory[0], *list = memory[1], *message = memory[2], *in = memory[3];
	static uint64_t one = 1, before;
	gdrfab_block blocks[BLOCKS];
	const void *ends[] = {out, list, message, in, &before};
	int seen[5] = {0};
	barrier(n);
	fill(out, LARGE, 0, round);
	fill(list, BLOCKS * BLOCK, 0, round + 1);
	fill(message, MESSAGE, 0, round + 2);
	for (size_t i = 0; i < BLOCKS; i++)
		blocks[i] = (gdrfab_block){list + i * BLOCK, to.base + LARGE + i * STRIDE, BLOCK};
	gdrfab_msg_list msg = {.struct_size = sizeof msg, .blocks = blocks, .count = BLOCKS, .key = &to.key, .key_count = 1,
			       .context = list, .data = 2 * round + 1};
	POST(n->cq, gdrfab_recv(n->ep, in, MESSAGE, NULL, 0, in));
	POST(n->cq, gdrfab_writedata(n->ep, out, LARGE, NULL, 2 * round, 0, to.base, to.key, out));
	POST(n->cq, gdrfab_writelist(n->ep, &msg, GDRFAB_REMOTE_CQ_DATA | GDRFAB_COMPLETION));
	POST(n->cq, gdrfab_fetch_atomic(n->ep, &one, 1, NULL, &before, NULL, 0, to.base + COUNTER, to.key, GDRFAB_UINT64,
					GDRFAB_SUM, &before));
	if (p->breaks && round % 3 == 0)
		break_rail((int)(round / 3 % 2), round % 2);
	POST(n->cq, gdrfab_send(n->ep, message, MESSAGE, NULL, 0, message));
	if (p->breaks && round % 3 == 1)
		break_rail((int)(round / 3 % 2), round % 2);
	for (int i = 0; i < 5; i++) {
		done e;
		size_t which = 0;
		CHECK_EQ(cq_next(n->cq, &e, 20000), 1);
		while (which < 5 && ends[which] != e.op_context)
			which++;
		CHECK(which < 5 && seen[which]++ == 0);
	}
	CHECK_EQ(before, round);
	CHECK_FILLED("sent back", in, MESSAGE, 0, round + 3);
	memset(out, 0, LARGE);
	POST(n->cq, gdrfab_read(n->ep, out, LARGE, NULL, 0, to.base, to.key, out));
	DONE(n->cq, out, GDRFAB_READ, NULL);
	CHECK_FILLED("read back", out, LARGE, 0, round);
	barrier(n);
}

/* Cuts one link after the other, each restored before the next is cut, until the process is ended. */
static pid_t cutter(void)
{
	char command[512];
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid != 0)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	snprintf(command, sizeof command,
		 "while :; do for l in %s; do sleep 1.6; ip link set dev $l down; sleep 0.6; ip link set dev $l up; done; done",
		 getenv("TEST_LINKS"));
	execl("/bin/sh", "sh", "-c", command, (char *)NULL);
	_exit(1);
}

/* Checks the rails that gdrfab_ep_query() tells of. */
static void check_rails(struct node *n, const struct rail_news *t, int up)
{
	gdrfab_rail_info rails[5];
	gdrfab_path_info info = {.struct_size = sizeof info, .rails = rails, .rails_max = 5};
	gdrfab_stats stats = {.struct_size = sizeof stats};
	uint64_t lost = 0, bytes = 0;
	memset(rails, 0x5a, sizeof rails);
	OK(gdrfab_ep_query(n->ep, GDRFAB_ADDR_UNSPEC, GDRFAB_KEY_MESSAGES, &info));
	CHECK_EQ(info.rails_count, up > 1 ? up : 0);
	for (uint32_t i = 0; i < info.rails_count; i++) {
		CHECK_EQ(rails[i].up, 1);
		CHECK(strchr(rails[i].own, '.') && strchr(rails[i].peer, '.'));
		CHECK(!rails[i].reserved[0] && !rails[i].reserved[3]);
		lost += rails[i].losses;
		bytes += rails[i].bytes_in;
	}
	CHECK_EQ(rails[info.rails_count].up, 0x5a5a5a5a);
	CHECK(up <= 1 || bytes > MESSAGE);
	CHECK_EQ(lost, (uint64_t)t->lost);
	OK(gdrfab_ep_stats(n->ep, &stats));
	CHECK_EQ(stats.rails_lost, lost);
	/* Without room for all rails the count is the same. */
	for (uint32_t room = 0; room < 2; room++) {
		memset(rails, 0x5a, sizeof rails);
		info.rails_max = room;
		OK(gdrfab_ep_query(n->ep, 0, GDRFAB_KEY_MESSAGES, &info));
		CHECK_EQ(info.rails_count, up > 1 ? up : 0);
		CHECK(rails[room].up == 0x5a5a5a5a && (!room || up <= 1 || rails[0].up == 1));
	}
	info.rails = NULL;
	CHECK_EQ(gdrfab_ep_query(n->ep, 0, GDRFAB_KEY_MESSAGES, &info), -EINVAL);
}

static bool is_lossy(const struct plan *p)
{
	return p->breaks || p->cuts || p->fault[TEST_SERVER] || p->fault[TEST_CLIENT];
}

static void end_rounds(struct node *n, struct rail_news *t)
{
	const struct plan *p = (const struct plan *)n->arg;
	bool lossy = is_lossy(p);
	/* The last loss may be reported after the rail seemed to be up, and its return after that. */
	uint64_t until = test_now_ms() + (uint64_t)test_ms(10000);
	do {
		await_rails(n, p->up);
		QUIET(n->cq, 150);
		rails_told(n, t, "rail ");
	} while (t->lost != t->back && test_now_ms() < until);
	/* Each loss is followed by one return. */
	CHECK_EQ(t->lost, t->back);
	CHECK(lossy ? t->lost > 0 : t->lost == 0);
	check_rails(n, t, p->up);
	barrier(n);
}

static void serves(struct node *n)
{
	const struct plan *p = (const struct plan *)n->arg;
	unsigned char *in = (unsigned char *)calloc(1, MESSAGE), *out = (unsigned char *)calloc(1, MESSAGE);
	struct rail_news told = {0, 0};
	uint32_t count = 0;
	pid_t cuts = 0;
	struct mem m;
	begin(n);
	mem_new(n, &m, &memkinds[KIND_MALLOC], ALL);
	memset(m.addr, 0, ALL);
	mem_register(n, &m, 0, ALL, REMOTE_ACCESS, 0);
	mem_publish(n, &m);
	await_rails(n, p->up);
	barrier(n);
	if (p->cuts)
		cuts = cutter();
	for (char more = 1; oob_recv(n, &more, 1), more; count++) {
		if (p->breaks)
			await_rails(n, p->up);
		server_round(n, &m, in, out, count);
		rails_told(n, &told, "rail ");
	}
	if (cuts) {
		kill(cuts, SIGKILL);
		waitpid(cuts, NULL, 0);
		test_sleep_ms(700);
		CHECK_EQ(system("for l in $TEST_LINKS; do ip link set dev $l up; done"), 0);
	}
	barrier(n);
	end_rounds(n, &told);
	uint64_t counter;
	memcpy(&counter, m.addr + COUNTER, sizeof counter);
	CHECK_EQ(counter, count);
	barrier(n);
	free(in);
	free(out);
	mem_end(n, &m);
	node_down(n);
}

static void asks(struct node *n)
{
	const struct plan *p = (const struct plan *)n->arg;
	unsigned char *memory[] = {malloc(LARGE), malloc(BLOCKS * BLOCK), malloc(MESSAGE), malloc(MESSAGE)};
	struct rail_news told = {0, 0};
	begin(n);
	struct remote to = mem_fetch(n);
	await_rails(n, p->up);
	barrier(n);
	/* Cutting links is slow: this many seconds instead of rounds. */
	int want = rail_rounds(p->cuts ? 16 : p->breaks ? 24 : is_lossy(p) ? 150 : 4);
	uint64_t until = test_now_ms() + (uint64_t)want * 1000;
	uint32_t round = 0;
	for (; p->cuts ? test_now_ms() < until : round < (uint32_t)want; round++) {
		oob_send(n, "\1", 1);
		if (p->breaks)
			await_rails(n, p->up);
		client_round(n, to, memory, round);
		rails_told(n, &told, "rail ");
	}
	oob_send(n, "\0", 1);
	barrier(n);
	end_rounds(n, &told);
	if (told.lost > 0)
		fprintf(stderr, "     %u rounds, %d rails lost and %d back\n", round, told.lost, told.back);
	barrier(n);
	for (size_t i = 0; i < 4; i++)
		free(memory[i]);
	node_down(n);
}

static void run(struct setup s, struct plan p)
{
	const char *node = node_name();
	skip_unless(path_known(PATH_SOCKET), "this is about connections of sockets");
	if (!getenv("TEST_RAILS") && (!node || strcmp(node, "127.0.0.1") != 0))
		test_skip("rails take TEST_RAILS and TEST_CLIENT_RAILS, or the loopback's addresses of IPv4");
	pair(&s, serves, asks, &p);
}

#define BOTH .server = "", .client = "", .up = 2

TEST_WITHIN(40, over_two)
{
	run((struct setup){0}, (struct plan){BOTH});
}

TEST_WITHIN(40, over_two_by_exchanged_addresses)
{
	run((struct setup){.by_address = true}, (struct plan){BOTH});
}

/* Rails by an endpoint's option, which overrides the environment. */
TEST_WITHIN(40, over_two_by_an_option)
{
	const char *server = addresses(TEST_SERVER), *client = addresses(TEST_CLIENT);
	run((struct setup){.rails = {[TEST_SERVER] = server, [TEST_CLIENT] = client}}, (struct plan){.up = 2});
}

TEST_WITHIN(40, over_one_by_an_option)
{
	run((struct setup){.rails = {[TEST_CLIENT] = ""}}, (struct plan){.server = "", .client = ""});
}

TEST_WITHIN(40, over_one_if_the_server_names_none)
{
	run((struct setup){0}, (struct plan){.client = ""});
}

TEST_WITHIN(40, over_one_if_the_client_names_none)
{
	run((struct setup){0}, (struct plan){.server = ""});
}

/* Fault injection loses each rail again and again; on one side only, because both sides could lose all rails at once. */
TEST_WITHIN(3600, broken_on_demand_by_the_server)
{
	run((struct setup){0}, (struct plan){BOTH, .fault = {[TEST_SERVER] = "tcp/rail=13:0,tcp/rail=7:1"}});
}

TEST_WITHIN(3600, broken_on_demand_by_the_client)
{
	run((struct setup){0}, (struct plan){BOTH, .fault = {[TEST_CLIENT] = "tcp/rail=11"}});
}

/* Fault injection (short=): each system call moves only a few bytes. */
TEST_WITHIN(60, in_small_steps)
{
	setenv("GDRFAB_FAULT", "tcp/short=9001", 1);
	run((struct setup){0}, (struct plan){BOTH});
}

TEST_WITHIN(3600, broken)
{
	run((struct setup){0}, (struct plan){BOTH, .breaks = true});
}

TEST_WITHIN(3600, broken_with_a_thread_that_makes_progress)
{
	run((struct setup){.progress = GDRFAB_PROGRESS_AUTO}, (struct plan){BOTH, .breaks = true});
}

TEST_WITHIN(3600, broken_with_a_key)
{
	const char *key = "a secret of this test 0123456789";
	run((struct setup){.key = {[TEST_SERVER] = key, [TEST_CLIENT] = key}}, (struct plan){BOTH, .breaks = true});
}

TEST_WITHIN(3600, cut)
{
	if (!getenv("TEST_LINKS"))
		test_skip("TEST_LINKS names no links that may be cut");
	setenv("GDRFAB_TCP_RAIL_TIMEOUT_MS", "200", 1);
	run((struct setup){0}, (struct plan){BOTH, .cuts = true});
}

/* --- rails that cannot be had are refused --- */

TEST(unknown_interface)
{
	gdrfab_info *info = NULL;
	gdrfab_info *hints = hints_new(&(struct setup){0});
	skip_unless(path_known(PATH_SOCKET), "this is about connections of sockets");
	setenv("GDRFAB_TCP_RAILS", "127.0.0.1,no-such-interface", 1);
	CHECK(provider_getinfo("7471", 0, hints, &info) < 0);
	if (!test_says(gdrfab_last_error(), "no-such-interface"))
		test_fail(__FILE__, __LINE__, "the words name no interface: %s", gdrfab_last_error());
	gdrfab_freeinfo(hints);
}

static void sets(struct node *n)
{
	static const struct {
		const char *rails;
		int errno_;
		const char *why;
	} wrong[] = {{"127.0.0.1,no-such-interface", ENODEV, "no-such-interface"}, {"192.0.2.1", EADDRNOTAVAIL, "192.0.2.1"},
		     {"127.0.0.1,127.0.0.1,127.0.0.1,127.0.0.1,127.0.0.1,127.0.0.1,127.0.0.1,127.0.0.1,127.0.0.1", EINVAL, "9 addresses"},
		     {"\xff", EINVAL, "UTF-8"}};
	enum { LEVEL = GDRFAB_OPT_ENDPOINT, RAILS = GDRFAB_OPT_RAILS };
	char now[64] = "?";
	size_t len = sizeof now;
	unsetenv("GDRFAB_TCP_RAILS");
	node_open(n);
	if (n->side == TEST_CLIENT) {
		gdrfab_ep *ep = ep_new(n, n->info, NULL);
		OK(gdrfab_ep_getopt(ep, LEVEL, RAILS, now, &len));
		CHECK(len == 1 && *now == 0);
		for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
			MISUSE(gdrfab_ep_setopt(ep, LEVEL, RAILS, wrong[i].rails, strlen(wrong[i].rails)), -wrong[i].errno_, wrong[i].why);
		MISUSE(gdrfab_ep_setopt(ep, LEVEL, RAILS, "a\0b", 3), -EINVAL, "NUL");
		MISUSE(gdrfab_ep_setopt(ep, LEVEL, RAILS, NULL, 3), -EINVAL, "optval");
		MISUSE(gdrfab_ep_setopt(ep, LEVEL, RAILS, "a", 1 << 20), -EINVAL, "optlen");
		OK(gdrfab_ep_setopt(ep, LEVEL, RAILS, " lo,127.0.0.2", 13));
		len = 3;
		MISUSE(gdrfab_ep_getopt(ep, LEVEL, RAILS, now, &len), -GDRFAB_ETOOSMALL, "optlen");
		CHECK(len <= sizeof now);
		OK(gdrfab_ep_getopt(ep, LEVEL, RAILS, now, &len));
		CHECK(strlen(now) + 1 == len && strncmp(now, "127.0.0.1,", 10) == 0 && strstr(now, ",127.0.0.2"));
		OK(gdrfab_ep_close(ep));
		barrier(n);
		node_connect(n);
	} else {
		node_listen(n);
		barrier(n);
		node_accept(n);
	}
	/* The number of rails is agreed on when the sides connect. */
	MISUSE(gdrfab_ep_setopt(n->ep, LEVEL, RAILS, "127.0.0.1", 9), -GDRFAB_EOPBADSTATE, "before");
	node_down(n);
}

TEST(the_option_is_honoured_or_refused)
{
	skip_unless(path_known(PATH_SOCKET), "this is about connections of sockets");
	pair(NULL, sets, sets, NULL);
}
