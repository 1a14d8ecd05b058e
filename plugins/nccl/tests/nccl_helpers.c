/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Helper threads of gdrfab's plugin for NCCL: when they exist, that no message is lost or reordered between them and
 * NCCL's thread, and that they end with their connections. The other programs run with helpers as well.
 */
#include "nccl_drive.h"

#include <dirent.h>
#include <dlfcn.h>
#include <sys/wait.h>

enum { THREADS = 2, LONG = 1 << 20, SHORT = 20000 };

static int helpers_here(void)
{
	char path[300], name[32];
	int count = 0;
	DIR *tasks = opendir("/proc/self/task");
	for (struct dirent *task; tasks && (task = readdir(tasks));) {
		snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
		FILE *file = fopen(path, "r");
		count += file && fgets(name, sizeof name, file) && strcmp(name, "gdrfab-nccl\n") == 0;
		if (file)
			fclose(file);
	}
	closedir(tasks);
	return count;
}

/* Waits for the count: a thread gets its name a moment after it was made, and leaves the list a moment after it was
 * joined. */
static void helpers_are(int line, int want)
{
	uint64_t until = test_now_ms() + (uint64_t)test_ms(5000);
	int here;
	while ((here = helpers_here()) != want && test_now_ms() < until)
		test_sleep_ms(1);
	if (here != want)
		test_fail(__FILE__, line, "%d threads are there, not %d", here, want);
}
#define HELPERS_ARE(want) helpers_are(__LINE__, want)

static void with(const char *threads)
{
	setenv("GDRFAB_NCCL_THREADS", threads, 1);
}

static bool over_tcp(void)
{
	return strcmp(provider(), "tcp") == 0;
}

/* Short messages start no helpers; over shm only the sender has them. */
static void side(struct node *n)
{
	bool send = n->side == TEST_CLIENT;
	struct link l = sides_up(n, HOST_MEM, TO_SERVER);
	for (uint32_t i = 0; i < 8; i++) {
		size_t size = i < 4 ? SHORT : LONG;
		send ? message_out(n, l.send, size, i) : message_in(n, l.recv, size, i);
		if (i == 3)
			CHECK_EQ(helpers_here(), 0);
	}
	HELPERS_ARE(n->arg && (send || over_tcp()) ? THREADS : 0);
	sides_down(n, &l);
	HELPERS_ARE(0);
}

static void come_and_go(const void *arg)
{
	with(arg ? "2" : "0");
	pair(NULL, side, side, arg);
}

/* Lengths below and above the limit, many under way, each at its own offset. */
static void mixed(TEST_UNUSED const void *arg)
{
	struct node n;
	struct handle h;
	struct buf from, to;
	struct op ops[32];
	enum { PLACE = 300000, COUNT = 16 };
	with("2");
	net_alone(&n);
	net_open();
	void *listener = listen_at(0, &h);
	struct link l = link_to_itself(&h, listener);
	buf_new(&n, &from, HOST_MEM, (size_t)PLACE * COUNT);
	buf_new(&n, &to, HOST_MEM, (size_t)PLACE * COUNT);
	buf_reg(&from, l.send);
	buf_reg(&to, l.recv);
	for (uint32_t round = 0; round < (uint32_t)test_count(40, 5); round++) {
		for (size_t i = 0; i < COUNT; i++) {
			size_t size = (i * 7919 + round * 104729) % 3 ? (i * 40503 + round * 65537) % PLACE : (i + round) % 100;
			buf_fill(&from, i * PLACE, size, round + (uint32_t)i);
			ops[2 * i] = recv_op(l.recv, &to, i * PLACE, PLACE, 0);
			ops[2 * i + 1] = send_op(l.send, &from, i * PLACE, size, 0);
		}
		ops_run(ops, 2 * COUNT, COUNT);
		for (size_t i = 0; i < COUNT; i++) {
			CHECK_EQ(ops[2 * i].got[0], ops[2 * i + 1].sizes[0]);
			BUF_CHECK(&to, i * PLACE, ops[2 * i + 1].sizes[0], round + (uint32_t)i);
		}
	}
	HELPERS_ARE(THREADS);
	buf_end(&from);
	buf_end(&to);
	link_down(&l);
	HELPERS_ARE(0);
	NET(net.close_listen(listener));
	net_close(&n);
}

/* Either end closes first, while all of it is under way. */
static void closed_at_work(TEST_UNUSED const void *arg)
{
	struct node n;
	struct handle h;
	enum { COUNT = 8, SIZE = 2 << 20 };
	with("2");
	net_alone(&n);
	net_open();
	void *listener = listen_at(0, &h);
	for (int round = 0; round < test_count(40, 6); round++) {
		struct link l = link_to_itself(&h, listener);
		struct buf from, to;
		struct op ops[2 * COUNT];
		buf_new(&n, &from, HOST_MEM, (size_t)SIZE * COUNT);
		buf_new(&n, &to, HOST_MEM, (size_t)SIZE * COUNT);
		buf_reg(&from, l.send);
		buf_reg(&to, l.recv);
		message_to_itself(&n, &l, LONG, 1);
		for (size_t i = 0; i < COUNT; i++) {
			ops[i] = recv_op(l.recv, &to, i * SIZE, SIZE, 0);
			ops[COUNT + i] = send_op(l.send, &from, i * SIZE, SIZE, 0);
		}
		for (size_t i = 0; i < (size_t)(2 * COUNT); i++)
			round % 2 ? op_push(&ops[i]) : (void)op_post(&ops[i]);
		NET(round % 3 ? net.close_send(l.send) : net.close_recv(l.recv));
		NET(round % 3 ? net.close_recv(l.recv) : net.close_send(l.send));
		HELPERS_ARE(0);
		buf_end(&from);
		buf_end(&to);
	}
	NET(net.close_listen(listener));
	net_close(&n);
}

/* A child of fork() has none of its parent's threads, and starts its own. */
static void in_a_child(TEST_UNUSED const void *arg)
{
	struct handle h, own;
	struct node n;
	with("2");
	net_alone(&n);
	net_open();
	void *listener = listen_at(0, &h);
	struct link l = link_to_itself(&h, listener);
	message_to_itself(&n, &l, LONG, 1);
	CHECK(helpers_here() > 0);
	pid_t child = test_fork(TEST_CLIENT);
	if (child == 0) {
		CHECK_EQ(helpers_here(), 0);
		NET(net_init(&net.ctx));
		void *at = listen_at(0, &own);
		struct link mine = link_to_itself(&own, at);
		message_to_itself(&n, &mine, LONG, 2);
		CHECK(helpers_here() > 0);
		link_down(&mine);
		HELPERS_ARE(0);
		test_child_done();
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child);
	test_child_ended(TEST_CLIENT, status);
	message_to_itself(&n, &l, LONG, 3);
	NET(net.close_listen(listener));
	link_down(&l);
	net_close(&n);
}

static void not_a_number(TEST_UNUSED const void *arg)
{
	static const char *const values[] = {"-1", "17", "x", "2x"};
	void *ctx;
	for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
		with(values[i]);
		net_load();
		NET_FAILS(net_init(&ctx), ncclInvalidUsage);
		CHECK(test_says(log_warnings(), "GDRFAB_NCCL_THREADS"));
		CHECK_EQ(dlclose(net.library), 0);
	}
}

TEST_TABLE(nccl_helpers)
{
	static const int yes = 1;
	if (nccl_absent())
		return;
	test_add("come_with_long_messages_and_go", come_and_go, &yes, 40);
	test_add("none_where_none_are_wanted", come_and_go, NULL, 40);
	test_add("mixed_lengths", mixed, NULL, 60);
	test_add("closed_at_work", closed_at_work, NULL, 60);
	test_add("in_a_child", in_a_child, NULL, 40);
	test_add("not_a_number", not_a_number, NULL, 20);
}
