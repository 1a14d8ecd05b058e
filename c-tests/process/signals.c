/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Signals belong to the program: the library's threads block them, and the library's system calls cause none (SIGPIPE,
 * SIGBUS, SIGXFSZ). Such a failure is an errno, or a lost line of the log.
 */
#include "fab.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>

/* ---- threads */

/* The signals that a thread of this process blocks, as a bit mask. */
static uint64_t blocked_by(const char *thread)
{
	char path[300], line[256];
	unsigned long long mask = 0;

	snprintf(path, sizeof path, "/proc/self/task/%s/status", thread);
	FILE *status = fopen(path, "r");
	while (status && fgets(line, sizeof line, status))
		if (sscanf(line, "SigBlk: %llx", &mask) == 1)
			break;
	if (status)
		fclose(status);
	return mask;
}

static const char *task_path(const char *thread)
{
	static char path[300];
	snprintf(path, sizeof path, "/proc/self/task/%s", thread);
	return path;
}

/* The number of other threads that leave a signal unblocked, or block a signal of a faulting instruction. */
static int check_threads(void)
{
	static const int of_instructions[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
	int threads = 0;
	char own[20];
	uint64_t wanted = 0;

	for (int signal = 1; signal < 32; signal++)
		if (signal != SIGKILL && signal != SIGSTOP)
			wanted |= 1ull << (signal - 1);
	for (size_t i = 0; i < sizeof of_instructions / sizeof *of_instructions; i++)
		wanted &= ~(1ull << (of_instructions[i] - 1));
	snprintf(own, sizeof own, "%d", getpid());
	DIR *all = opendir("/proc/self/task");
	CHECK(all);
	for (struct dirent *entry; (entry = readdir(all));) {
		if (entry->d_name[0] == '.' || strcmp(entry->d_name, own) == 0)
			continue;
		threads++;
		/* The C library blocks all signals for a moment when a thread begins and ends; 0: the thread has ended. */
		uint64_t blocked, until = test_now_ms() + (uint64_t)test_ms(1000);
		while ((blocked = blocked_by(entry->d_name) & 0x7fffffff) != wanted && blocked && test_now_ms() < until)
			test_sleep_ms(1);
		if (blocked || access(task_path(entry->d_name), F_OK) == 0)
			WANT_EQ(blocked, wanted);
	}
	closedir(all);
	return threads;
}

static void driven_by_a_thread(struct node *n)
{
	char in = 0, out = 'x';
	done e;

	node_up(n);
	CHECK(check_threads() > 0);
	/* The program reads its signal by signalfd, and goes on. */
	sigset_t term;
	sigemptyset(&term);
	sigaddset(&term, SIGTERM);
	CHECK(sigprocmask(SIG_BLOCK, &term, NULL) == 0);
	int fd = signalfd(-1, &term, SFD_CLOEXEC);
	struct signalfd_siginfo told;
	CHECK(kill(getpid(), SIGTERM) == 0);
	CHECK_EQ(read(fd, &told, sizeof told), sizeof told);
	CHECK_EQ(told.ssi_signo, SIGTERM);
	close(fd);
	POST(n->cq, gdrfab_recv(n->ep, &in, 1, local_desc(n, &in, 1), 0, &in));
	meet_if_hasty(n);
	POST(n->cq, gdrfab_send(n->ep, &out, 1, local_desc(n, &out, 1), PEER, &out));
	for (int left = 2; left > 0; left--)
		CHECK_EQ(cq_next(n->cq, &e, 10000), 1);
	CHECK_EQ(in, 'x');
	check_threads();
	node_down(n);
}

TEST(threads_of_the_library_take_no_signal)
{
	struct setup setup = {.progress = GDRFAB_PROGRESS_AUTO};
	pair(&setup, driven_by_a_thread, driven_by_a_thread, NULL);
}

/* The library's thread that calls a driver. */
TEST(nor_does_the_thread_of_a_driver)
{
	struct node n;
	if (!device_kinds_list())
		test_skip("no driver here");
	set_variable("GDRFAB_HMEM_DRIVER", "thread");
	node_alone(&n, NULL);
	struct mem m;
	mem_new(&n, &m, device_kinds[0], 4096);
	if (mem_try_register(&n, &m, 0, 4096, GDRFAB_REMOTE_WRITE, 0, 0) == 0)
		CHECK(check_threads() > 0);
	mem_end(&n, &m);
	node_close(&n);
}

/* ---- the log */

/* Makes a call fail, which writes at least one line to the log. */
static void provoke_a_line(void)
{
	gdrfab_info *info = NULL;
	CHECK(gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, ~0ull, NULL, &info) < 0);
	gdrfab_freeinfo(info);
}

static bool is_pending(int signal)
{
	sigset_t now;
	sigpending(&now);
	return sigismember(&now, signal) == 1;
}

static void with_stderr(int fd, int signal, bool blocked)
{
	int before = dup(2), status;
	pid_t pid = test_fork(TEST_CLIENT);
	if (pid == 0) {
		sigset_t one;
		sigemptyset(&one);
		sigaddset(&one, signal);
		sigprocmask(blocked ? SIG_BLOCK : SIG_UNBLOCK, &one, NULL);
		OK(gdrfab_log_set(4, NULL, NULL));
		dup2(fd, 2);
		provoke_a_line();
		provoke_a_line();
		dup2(before, 2);
		CHECK(!is_pending(signal));
		test_child_done();
	}
	close(before);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	if (status)
		test_child_ended(TEST_CLIENT, status);
}

TEST(a_line_for_a_reader_that_has_gone_is_lost)
{
	int ends[2];
	CHECK(pipe(ends) == 0);
	close(ends[0]);
	signal(SIGPIPE, SIG_DFL);
	with_stderr(ends[1], SIGPIPE, false);
	with_stderr(ends[1], SIGPIPE, true);
}

TEST(a_line_for_a_file_that_may_grow_no_more_is_lost)
{
	struct rlimit none = {0, RLIM_INFINITY};
	int file = memfd_create("log", MFD_CLOEXEC);
	CHECK(file >= 0);
	signal(SIGXFSZ, SIG_DFL);
	CHECK(setrlimit(RLIMIT_FSIZE, &none) == 0);
	with_stderr(file, SIGXFSZ, false);
	with_stderr(file, SIGXFSZ, true);
}

/* ---- memory files */

static void limit_files(rlim_t bytes)
{
	struct rlimit limit = {bytes, RLIM_INFINITY};
	CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
	signal(SIGXFSZ, SIG_DFL);
}

/* Checks a call that may need a file: it succeeds, or fails with a reason. */
static bool goes(const char *call, int rc)
{
	if (rc == 0)
		return true;
	if (rc != -EFBIG || !strstr(gdrfab_last_error(), "RLIMIT_FSIZE"))
		test_wrong(__FILE__, __LINE__, "%s is %s%s", call, test_number(rc), test_words(rc));
	return false;
}
#define GOES(call) goes(#call, call)

static void opens_all(rlim_t bytes)
{
	struct node n = {.side = TEST_CLIENT};
	static const struct setup setup = {.progress = GDRFAB_PROGRESS_AUTO};
	char memory[4096];
	gdrfab_mr *mr;
	void *at;

	n.setup = &setup;
	unique_service(n.service, sizeof n.service);
	limit_files(bytes);
	/* A provider that needs memory files gives the reason in gdrfab_getinfo(). */
	gdrfab_info *hints = hints_new(&setup);
	int rc = provider_getinfo(NULL, 0, hints, &n.info);
	gdrfab_freeinfo(hints);
	if (rc == -ENODATA && strstr(gdrfab_last_error(), "RLIMIT_FSIZE"))
		return;
	CHECK_EQ(rc, 0);
	OK(gdrfab_fabric_open(n.info, &n, &n.fabric));
	gdrfab_eq_attr attr = {sizeof attr, 0, 0, GDRFAB_WAIT_NONE, 0};
	OK(gdrfab_eq_open(n.fabric, &attr, &n, &n.eq));
	if (GOES(gdrfab_domain_open(n.fabric, n.info, &n, &n.domain))) {
		if (GOES(gdrfab_mem_alloc(n.domain, GDRFAB_HMEM_SYSTEM, 0, 8 << 20, 0, &at)))
			OK(gdrfab_mem_free(n.domain, at));
		if (GOES(gdrfab_mr_reg(n.domain, memory, sizeof memory, GDRFAB_REMOTE_WRITE, 0, 0, 0, NULL, &mr)))
			OK(gdrfab_mr_close(mr));
		gdrfab_cq_attr of_cq = {.struct_size = sizeof of_cq, .format = GDRFAB_CQ_FORMAT_DATA, .wait_obj = GDRFAB_WAIT_FD};
		OK(gdrfab_cq_open(n.domain, &of_cq, NULL, &n.cq));
		if (GOES(gdrfab_ep_open(n.domain, n.info, NULL, &n.ep))) {
			OK(gdrfab_ep_bind_eq(n.ep, n.eq, 0));
			OK(gdrfab_ep_bind_cq(n.ep, n.cq, GDRFAB_TRANSMIT | GDRFAB_RECV));
			GOES(gdrfab_ep_enable(n.ep));
		}
	}
}

TEST(opening_under_a_limit_of_files_is_an_errno)
{
	if (test_checked())
		test_skip("its processes end with open objects, which a checker takes for lost memory");
	static const rlim_t limits[] = {0, 1, 4096, 16384, 65536, 1 << 20, 4 << 20};
	for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
		int status;
		pid_t pid = test_fork(TEST_CLIENT);
		if (pid == 0) {
			opens_all(limits[i]);
			_exit(0);
		}
		CHECK_EQ(waitpid(pid, &status, 0), pid);
		if (status)
			test_child_ended(TEST_CLIENT, status);
	}
}

/* Transfers between private memory of both sides, both ways, with sizes for each path. */
static void moves_data(struct node *n)
{
	static const size_t lengths[] = {8, 200, 4096, 60000, 1 << 20};
	static unsigned char out[1 << 20], in[1 << 20], back[1 << 20];
	struct mem m;
	void *at;
	done e;

	node_up(n);
	mem_new(n, &m, &memkinds[KIND_MALLOC], 1 << 20);
	mem_register(n, &m, 0, 1 << 20, REMOTE_ACCESS, 0);
	mem_publish(n, &m);
	struct remote to = mem_fetch(n);
	limit_files(0);
	int rc = gdrfab_mem_alloc(n->domain, GDRFAB_HMEM_SYSTEM, 0, 1 << 20, 0, &at);
	if (rc != 0 && rc != -EFBIG)
		CHECK_EQ(rc, -EFBIG);
	for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
		size_t len = lengths[i];
		fill(out, len, 0, 1 + (uint32_t)i);
		POST(n->cq, gdrfab_write(n->ep, out, len, local_desc(n, out, sizeof out), PEER, to.base, to.key, out));
		DONE(n->cq, out, GDRFAB_WRITE, NULL);
		POST(n->cq, gdrfab_read(n->ep, back, len, local_desc(n, back, sizeof back), PEER, to.base, to.key, back));
		DONE(n->cq, back, GDRFAB_READ, NULL);
		CHECK_FILLED("written and read back", back, len, 0, 1 + (uint32_t)i);
		barrier(n);
		POST(n->cq, gdrfab_recv(n->ep, in, len, local_desc(n, in, sizeof in), 0, in));
		meet_if_hasty(n);
		POST(n->cq, gdrfab_send(n->ep, out, len, local_desc(n, out, sizeof out), PEER, out));
		for (int left = 2; left > 0; left--)
			CHECK_EQ(cq_next(n->cq, &e, 10000), 1);
		CHECK_FILLED("a message", in, len, 0, 1 + (uint32_t)i);
	}
	barrier(n);
	mem_end(n, &m);
	node_down(n);
}

TEST(data_moves_under_a_limit_of_files)
{
	static const struct setup setup = {0};
	pair(&setup, moves_data, moves_data, NULL);
}

TEST(and_sealed)
{
	static const struct setup setup = {.key = {"0123456789abcdef0123456789abcdef", "0123456789abcdef0123456789abcdef", "0123456789abcdef0123456789abcdef"}};
	if (strcmp(provider(), "tcp") != 0)
		test_skip("%s seals nothing", provider());
	pair(&setup, moves_data, moves_data, NULL);
}
