/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Runs the claims of a program: each in a child, within its time limit, with one line of output. Also the checks' reports. */
#include "claim.h"

#include <dirent.h>
#ifndef TEST_OWN_WORDS
#include <gdrfab.h>
#endif
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#define MAX_CLAIMS 512
#define MAX_MESSAGES 24
#define MESSAGE_SIZE 1000

struct claim {
	char name[96];
	test_fn fn;
	const void *arg;
	int seconds;
};

/* Shared by all processes of a claim. Its strings are literals, valid in each: every process is a fork of the same image. */
struct report {
	int verdict; /* 0: none yet; 1: failed; TEST_SKIPPED */
	int messages;
	char message[MAX_MESSAGES][MESSAGE_SIZE];
	struct {
		const char *file;
		int line;
	} at[TEST_SIDES];
};

static struct claim claims[MAX_CLAIMS];
static int claim_count;
static struct report *report;
static enum test_side my_side;
static bool muted;
/* True if a process of the current trial (test_trial()) has skipped it; shared by its processes. */
static int *trial_skipped;

#ifdef TEST_OWN_WORDS
/* Programs that reach gdrfab through another library (libfabric) do not link gdrfab, and take error texts from that library. */
const char *test_own_strerror(int err);
#define gdrfab_strerror test_own_strerror
#endif

static const char *const side_prefix[TEST_SIDES] = {"", "server: ", "client: "};

void test_add(const char *name, test_fn fn, const void *arg, int seconds)
{
	if (claim_count == MAX_CLAIMS) {
		fprintf(stderr, "too many claims\n");
		abort();
	}
	struct claim *c = &claims[claim_count++];
	snprintf(c->name, sizeof c->name, "%s", name);
	c->fn = fn;
	c->arg = arg;
	c->seconds = seconds;
}

void test_mute(void)
{
	muted = true;
}

void test_trial(void)
{
	trial_skipped = (int *)mmap(NULL, sizeof *trial_skipped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (trial_skipped == MAP_FAILED)
		test_fail(__FILE__, __LINE__, "mmap: %s", strerror(errno));
}

void test_at(const char *file, int line)
{
	/* Each process has one slot: only its first thread records. */
	static __thread enum { UNKNOWN, FIRST, OTHER } thread;
	if (thread == UNKNOWN)
		thread = syscall(SYS_gettid) == getpid() ? FIRST : OTHER;
	if (thread == OTHER)
		return;
	report->at[my_side].file = file;
	report->at[my_side].line = line;
}

bool test_decided(void)
{
	return __atomic_load_n(&report->verdict, __ATOMIC_ACQUIRE) != 0;
}

static void say(int verdict, const char *file, int line, const char *format, va_list args)
{
	if (muted)
		return;
	if (trial_skipped && verdict == TEST_SKIPPED)
		__atomic_store_n(trial_skipped, 1, __ATOMIC_RELEASE);
	if (trial_skipped && __atomic_load_n(trial_skipped, __ATOMIC_ACQUIRE))
		return;
	int none = 0;
	bool first = __atomic_compare_exchange_n(&report->verdict, &none, verdict, false, __ATOMIC_ACQ_REL,
						 __ATOMIC_ACQUIRE);
	/* After a skip, failures of the claim's other processes are consequences of the skip: ignored. */
	if (!first && none == TEST_SKIPPED)
		return;
	int slot = __atomic_fetch_add(&report->messages, 1, __ATOMIC_ACQ_REL);
	if (slot >= MAX_MESSAGES)
		return;
	char *to = report->message[slot];
	int used = snprintf(to, MESSAGE_SIZE, "%s", side_prefix[my_side]);
	if (file)
		used += snprintf(to + used, (size_t)(MESSAGE_SIZE - used), "%s:%d: ", file, line);
	if (used < MESSAGE_SIZE)
		used += vsnprintf(to + used, (size_t)(MESSAGE_SIZE - used), format, args);
	/* A message of a helper also names the claim's own last line. */
	const char *at = report->at[my_side].file;
	if (file && at && used < MESSAGE_SIZE && (strcmp(at, file) != 0 || report->at[my_side].line != line))
		snprintf(to + used, (size_t)(MESSAGE_SIZE - used), " [after %s:%d]", at, report->at[my_side].line);
	/* A message is one line, even if the library's text has several. */
	for (char *c = to; *c; c++)
		if (*c == '\n')
			*c = ' ';
}

void test_fail(const char *file, int line, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	say(1, file, line, format, args);
	va_end(args);
	_exit(1);
}

void test_wrong(const char *file, int line, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	say(1, file, line, format, args);
	va_end(args);
}

void test_skip(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	say(TEST_SKIPPED, NULL, 0, format, args);
	va_end(args);
	_exit(TEST_SKIPPED);
}

const char *test_number(long long value)
{
	static __thread char text[6][80];
	static __thread unsigned next;
	char *to = text[next++ % 6];
	if (value < 0 && value > -4096)
		snprintf(to, sizeof text[0], "%lld (%s)", value, gdrfab_strerror((int)value));
	else if (value > 4096 || value < 0)
		snprintf(to, sizeof text[0], "%lld (0x%llx)", value, (unsigned long long)value);
	else
		snprintf(to, sizeof text[0], "%lld", value);
	return to;
}

const char *test_words(long long value)
{
	static __thread char text[400];
	text[0] = 0;
#ifdef TEST_OWN_WORDS
	(void)value;
#else
	if (value < 0 && value > -4096 && value != -EAGAIN)
		snprintf(text, sizeof text, "; last error: \"%s\"", gdrfab_last_error());
#endif
	return text;
}

static int env_number(const char *name, int otherwise)
{
	const char *text = getenv(name);
	return text && *text ? atoi(text) : otherwise;
}

int test_count(int full, int fast)
{
	return env_number("TEST_FAST", 0) ? fast : full;
}

bool test_checked(void)
{
	return getenv("TEST_CHECKER") != NULL;
}

int test_ms(int ms)
{
	return ms * env_number("TEST_TIME_SCALE", 1);
}

uint64_t test_now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

int test_system(const char *command, ...)
{
	char text[256];
	va_list args;
	va_start(args, command);
	vsnprintf(text, sizeof text, command, args);
	va_end(args);
	return system(text);
}

void test_sleep_ms(int ms)
{
	struct timespec t = {ms / 1000, (ms % 1000) * 1000000L};
	while (nanosleep(&t, &t) < 0 && errno == EINTR)
		;
}

bool test_says(const char *text, const char *word)
{
	size_t len = strlen(word);
	for (; text && *text; text++)
		if (strncasecmp(text, word, len) == 0)
			return true;
	return len == 0;
}

int test_count_fds(void)
{
	int count = 0;
	DIR *dir = opendir("/proc/self/fd");
	if (!dir)
		return -1;
	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}

void test_list_fds(void)
{
	char path[64], to[128];
	for (int fd = 0; fd < 1024; fd++) {
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		ssize_t len = readlink(path, to, sizeof to - 1);
		if (len > 0)
			fprintf(stderr, "     descriptor %d is %.*s\n", fd, (int)len, to);
	}
}

char test_process_state(pid_t pid)
{
	char path[64], text[256] = "";
	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	FILE *file = fopen(path, "r");
	if (!file)
		return 'X';
	size_t len = fread(text, 1, sizeof text - 1, file);
	fclose(file);
	text[len] = 0;
	const char *after = strrchr(text, ')');
	return after && after[1] ? after[2] : 'X';
}

bool test_process_over(pid_t pid)
{
	return strchr("XZ", test_process_state(pid)) != NULL;
}

bool test_has_pidfds(void)
{
	long fd = syscall(SYS_pidfd_open, getpid(), 0);
	if (fd >= 0)
		close((int)fd);
	return fd >= 0;
}

uint64_t test_random(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

pid_t test_fork(enum test_side side)
{
	fflush(NULL);
	pid_t pid = fork();
	if (pid < 0)
		test_fail(__FILE__, __LINE__, "fork: %s", strerror(errno));
	if (pid == 0) {
		my_side = side;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		/* With Yama's ptrace_scope 1 a sibling may copy this process's memory only if this process allows it. */
		prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
	}
	return pid;
}

void test_child_done(void)
{
	/* exit(), not _exit(): the claim covers the library's destructors and a memory checker's report. */
	exit(0);
}

void test_child_ended(enum test_side side, int status)
{
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return;
	enum test_side me = my_side;
	my_side = side;
	const char *file = report->at[side].file ? report->at[side].file : "its start";
	int line = report->at[side].line;
	bool skipped = trial_skipped && __atomic_load_n(trial_skipped, __ATOMIC_ACQUIRE);
	if (skipped || (WIFEXITED(status) && WEXITSTATUS(status) == TEST_SKIPPED))
		_exit(TEST_SKIPPED);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 1 && test_decided())
		_exit(1);
	if (WIFSIGNALED(status))
		test_wrong(file, line, "killed by signal %d (%s) at or after this line", WTERMSIG(status),
			   strsignal(WTERMSIG(status)));
	else
		test_wrong(file, line, "ended with exit status %d after this line (99: a memory checker's finding)",
			   WEXITSTATUS(status));
	my_side = me;
	_exit(1);
}

static void child(const struct claim *c)
{
	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
	c->fn(c->arg);
	if (test_decided())
		_exit(report->verdict);
	exit(0);
}

/* Prints a file of /proc about the process in one line; an unreadable file prints as empty. */
static void show_file(pid_t pid, const char *name)
{
	char path[64], text[1000];
	snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
	FILE *file = fopen(path, "r");
	size_t len = file ? fread(text, 1, sizeof text - 1, file) : 0;
	if (file)
		fclose(file);
	text[len] = 0;
	for (char *c = text; *c; c++)
		if (*c == '\n')
			*c = c[1] ? '|' : 0;
	printf(" %s=%s", name, text);
}

/* For a claim that does not end: prints the state of each of its processes, with its system call and kernel stack. */
static void show_group(pid_t group, const char *claim)
{
	DIR *all = opendir("/proc");
	for (struct dirent *entry; all && (entry = readdir(all));) {
		pid_t pid = atoi(entry->d_name);
		if (pid <= 0 || getpgid(pid) != group)
			continue;
		printf("     %s: process %d", claim, (int)pid);
		show_file(pid, "stat");
		show_file(pid, "syscall");
		show_file(pid, "stack");
		putchar('\n');
	}
	if (all)
		closedir(all);
}

/* Runs one claim; returns 0, 1 or TEST_SKIPPED. */
static int run(const struct claim *c)
{
	memset(report, 0, sizeof *report);
	fflush(NULL);
	uint64_t start = test_now_ms(), limit = start + (uint64_t)test_ms(c->seconds * 1000);
	pid_t pid = fork();
	if (pid == 0)
		child(c);
	if (pid < 0) {
		printf("FAIL %s: fork: %s\n", c->name, strerror(errno));
		return 1;
	}
	setpgid(pid, pid);
	int status = 0;
	bool late = false;
	for (int pause = 1; waitpid(pid, &status, WNOHANG) == 0; pause = pause < 8 ? pause * 2 : 8) {
		test_sleep_ms(pause);
		if (test_now_ms() > limit) {
			late = true;
			break;
		}
	}
	if (late)
		show_group(pid, c->name);
	kill(-pid, SIGKILL);
	if (late)
		waitpid(pid, &status, 0);

	int verdict = report->verdict;
	uint64_t took = test_now_ms() - start;
	char first[MESSAGE_SIZE + 300] = "";
	if (late) {
		size_t used = (size_t)snprintf(first, sizeof first, "no end after %d s; last seen",
					       test_ms(c->seconds * 1000) / 1000);
		for (int s = 0; s < TEST_SIDES; s++)
			if (report->at[s].file && used < sizeof first)
				used += (size_t)snprintf(first + used, sizeof first - used, " [%sat %s:%d]",
							 side_prefix[s], report->at[s].file, report->at[s].line);
		verdict = 1;
	} else if (WIFSIGNALED(status)) {
		snprintf(first, sizeof first, "killed by signal %d (%s) at or after %s:%d", WTERMSIG(status),
			 strsignal(WTERMSIG(status)), report->at[0].file ? report->at[0].file : "its start",
			 report->at[0].line);
		verdict = 1;
	} else if (verdict == 0 && WEXITSTATUS(status) != 0) {
		snprintf(first, sizeof first, "exit status %d (99: a memory checker's finding)", WEXITSTATUS(status));
		verdict = 1;
	}

	int shown = 0, messages = report->messages < MAX_MESSAGES ? report->messages : MAX_MESSAGES;
	if (!first[0] && messages)
		snprintf(first, sizeof first, "%s", report->message[shown++]);
	if (verdict == 0 && took >= 2000)
		printf("ok %s (%.1f s)\n", c->name, (double)took / 1000);
	else if (verdict == 0)
		printf("ok %s\n", c->name);
	else if (verdict == TEST_SKIPPED)
		printf("skip %s: %s\n", c->name, first);
	else
		printf("FAIL %s: %s\n", c->name, first);
	for (; verdict == 1 && shown < messages; shown++)
		printf("     %s: %s\n", c->name, report->message[shown]);
	if (verdict == 1 && report->messages > MAX_MESSAGES)
		printf("     %s: and %d more\n", c->name, report->messages - MAX_MESSAGES);
	return verdict;
}

int main(int argc, char **argv)
{
	const char *filter = argc > 1 ? argv[1] : "";
	int ok = 0, failed = 0, skipped = 0;

	report = (struct report *)mmap(NULL, sizeof *report, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (report == MAP_FAILED) {
		perror("mmap");
		return 1;
	}
	for (int i = 0; i < claim_count; i++) {
		if (!strstr(claims[i].name, filter))
			continue;
		int verdict = run(&claims[i]);
		ok += verdict == 0;
		skipped += verdict == TEST_SKIPPED;
		failed += verdict == 1;
		fflush(stdout);
	}
	if (failed)
		return 1;
	return ok == 0 && skipped ? TEST_SKIPPED : 0;
}
