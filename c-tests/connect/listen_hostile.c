/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A passive endpoint of shm or tcp under load: clients that connect without end, clients for which the process has no
 * descriptor left, and users that it cannot tell apart. The owner's calls stay short, both sides get an error with a reason,
 * and afterwards the endpoint works as before.
 */
#include "fab.h"
#include "tcp_raw.h"

#include <fcntl.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>

#define LONGEST_MS 40 /* of CPU time, in one call */

static const char other_listeners[] = "its connections are the kernel's, or an adapter's";

static bool over_sockets(void)
{
	return strcmp(provider(), "shm") == 0 || strcmp(provider(), "tcp") == 0;
}

static double cpu_ms(clockid_t clock)
{
	struct timespec t;
	CHECK_EQ(clock_gettime(clock, &t), 0);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* A socket connected to that listener, or -1. */
static int dial(const char *service)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	if (strcmp(provider(), "tcp") == 0)
		return raw_connect(service);
	int len = snprintf(at.sun_path + 1, sizeof at.sun_path - 1, "gdrfab/%s", service);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&at, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + len)) < 0) {
		close(fd);
		return -1;
	}
	return fd;
}

/* --- clients without end --- */

static void storms(const char *service, int which, int ms)
{
	/* Some clients run as another user, if this is root, and some send garbage. */
	if (which == 0 && geteuid() == 0 && (setgid(65534) < 0 || setuid(65534) < 0))
		_exit(1);
	for (uint64_t until = test_now_ms() + (uint64_t)ms; test_now_ms() < until;) {
		int fd = dial(service);
		if (fd < 0)
			continue;
		if (which % 2)
			send(fd, "nonsense", 8, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (strcmp(provider(), "tcp") == 0)
			raw_reset(fd);
		else
			close(fd);
	}
	_exit(0);
}

static void listen_alone(struct node *n)
{
	static const struct setup defaults;
	memset(n, 0, sizeof *n);
	n->side = TEST_SERVER;
	n->setup = &defaults;
	n->oob = -1;
	unique_service(n->service, sizeof n->service);
	n->fds = test_count_fds();
	node_open(n);
	node_listen(n);
}

TEST(callers_without_end_leave_calls_short)
{
	skip_unless(over_sockets(), other_listeners);
	struct node n;
	pid_t callers[3];
	double longest = 0;
	int left = 3, long_ones = 0;
	listen_alone(&n);
	for (int i = 0; i < 3; i++)
		if ((callers[i] = test_fork(TEST_CLIENT)) == 0)
			storms(n.service, i, 800);
	while (left > 0) {
		struct event e;
		uint32_t kind;
		double before = cpu_ms(CLOCK_THREAD_CPUTIME_ID);
		CHECK_EQ(gdrfab_eq_read(n.eq, &kind, &e, sizeof e.entry + sizeof e.data, 0), -EAGAIN);
		double took = cpu_ms(CLOCK_THREAD_CPUTIME_ID) - before;
		longest = took > longest ? took : longest;
		long_ones += took > (double)test_ms(LONGEST_MS);
		left -= waitpid(-1, NULL, WNOHANG) > 0;
	}
	/* Clients connect all the time: a call that they make long is long again. A single long call may be a virtual machine's
	 * clock. */
	if (long_ones > 1)
		test_fail(__FILE__, __LINE__, "%d times gdrfab_eq_read() was long, %.0f ms of CPU time at most", long_ones, longest);
	node_close(&n);
}

/* --- no descriptor left --- */

static int held[4096], holding;

static void hold_all_descriptors(void)
{
	struct rlimit limit;
	CHECK_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
	limit.rlim_cur = 256;
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
	while (holding < 4096 && (held[holding] = fcntl(0, F_DUPFD_CLOEXEC, 3)) >= 0)
		holding++;
	CHECK_EQ(errno, EMFILE);
}

static void calls_in_vain(struct node *n)
{
	struct eq_failure f;
	char word;
	barrier(n);
	node_open(n);
	oob_recv(n, &word, 1);
	n->ep = ep_new(n, n->info, n);
	OK(gdrfab_ep_connect(n->ep, n->info->dest_addr, n->info->dest_addrlen, NULL, 0));
	memset(&f, 0, sizeof f);
	EQ_FAILED(n->eq, n->ep, ECONNREFUSED, 5000, &f);
	if (!strstr((char *)f.data, "descriptor"))
		test_fail(__FILE__, __LINE__, "the caller is told \"%s\"", (char *)f.data);
	OK(gdrfab_ep_close(n->ep));
	oob_send(n, &word, 1);
	oob_recv(n, &word, 1);
	node_connect(n);
	node_down(n);
}

static void has_no_descriptor(struct node *n)
{
	struct eq_failure f;
	struct event e;
	uint32_t kind;
	char word = 'w';
	int told = 0;
	node_open(n);
	node_listen(n);
	barrier(n);
	/* Sleeps once, so that the descriptors that this thread sleeps on exist. */
	CHECK_EQ(gdrfab_eq_sread(n->eq, &kind, &e, sizeof e.entry + sizeof e.data, 100, 0), -EAGAIN);
	hold_all_descriptors();
	oob_send(n, &word, 1);
	double before = cpu_ms(CLOCK_PROCESS_CPUTIME_ID);
	uint64_t start = test_now_ms();
	/* Goes on until the client has its answer, and somewhat longer. */
	for (uint64_t until = 0; !until || test_now_ms() < until;) {
		ssize_t got = gdrfab_eq_sread(n->eq, &kind, &e, sizeof e.entry + sizeof e.data, 50, 0);
		if (got == -GDRFAB_EAVAIL) {
			memset(&f, 0, sizeof f);
			f.entry.struct_size = sizeof f.entry;
			f.entry.err_data = f.data;
			f.entry.err_data_size = sizeof f.data;
			CHECK_EQ(gdrfab_eq_readerr(n->eq, &f.entry, 0), 1);
			CHECK(f.entry.object == n->pep);
			CHECK_EQ(f.entry.err, EMFILE);
			CHECK_EQ(f.entry.data, GDRFAB_CONNREQ);
			CHECK(strstr((char *)f.data, "RLIMIT_NOFILE"));
			told++;
		} else {
			CHECK_EQ(got, -EAGAIN);
		}
		if (!until && recv(n->oob, &word, 1, MSG_DONTWAIT) == 1)
			until = test_now_ms() + 300;
	}
	double share = (cpu_ms(CLOCK_PROCESS_CPUTIME_ID) - before) / (double)(test_now_ms() - start);
	CHECK_EQ(told, 1);
	if (share > 0.5)
		test_fail(__FILE__, __LINE__, "waiting without a descriptor takes %.0f %% of a CPU", share * 100);
	while (holding > 0)
		close(held[--holding]);
	oob_send(n, &word, 1);
	node_accept(n);
	node_down(n);
}

TEST(without_a_descriptor_the_owner_and_the_callers_are_told)
{
	if (!test_count(1, 0))
		test_skip("TEST_FAST: a memory checker has descriptors of its own");
	skip_unless(over_sockets(), other_listeners);
	pair(NULL, has_no_descriptor, calls_in_vain, NULL);
}

/* --- users without a number in the namespace --- */

/* Enters a user namespace in which this user is 65534 and no other user has a number. */
static bool become_nobody(uid_t user)
{
	char map[64];
	int len = snprintf(map, sizeof map, "65534 %u 1", (unsigned)user);
	if (setresgid(user, user, user) < 0 || setresuid(user, user, user) < 0)
		return false;
	/* Without this a process that has changed its user may not write its own files in /proc. */
	prctl(PR_SET_DUMPABLE, 1);
	if (unshare(CLONE_NEWUSER) < 0)
		return false;
	int fd = open("/proc/self/uid_map", O_WRONLY | O_CLOEXEC);
	bool written = fd >= 0 && write(fd, map, (size_t)len) == len;
	close(fd);
	return written && geteuid() == 65534;
}

static void nobody_listens(struct node *n)
{
	struct event e;
	uint32_t kind;
	bool other = *(const bool *)n->arg;
	if (!become_nobody(1000))
		test_skip("no user namespace of one's own here (%s)", strerror(errno));
	node_open(n);
	node_listen(n);
	barrier(n);
	ssize_t got = -EAGAIN;
	for (char word; got == -EAGAIN && (!other || recv(n->oob, &word, 1, MSG_DONTWAIT) != 1);)
		got = gdrfab_eq_sread(n->eq, &kind, &e, sizeof e.entry + sizeof e.data, 20, 0);
	if (other) {
		CHECK_EQ(got, -EAGAIN);
	} else {
		CHECK(got > 0 && kind == GDRFAB_CONNREQ);
		barrier(n);
	}
	if (got > 0)
		gdrfab_freeinfo(e.entry.info);
	node_close(n);
}

static void nobody_calls(struct node *n)
{
	bool other = *(const bool *)n->arg;
	struct eq_failure f;
	if (!become_nobody(other ? 2000 : 1000))
		test_skip("no user namespace of one's own here (%s)", strerror(errno));
	barrier(n);
	node_open(n);
	n->ep = ep_new(n, n->info, n);
	OK(gdrfab_ep_connect(n->ep, n->info->dest_addr, n->info->dest_addrlen, NULL, 0));
	memset(&f, 0, sizeof f);
	if (other) {
		EQ_FAILED(n->eq, n->ep, EACCES, 5000, &f);
		CHECK(strstr((char *)f.data, "user"));
		/* The listener refuses a client that does not check the listener's user. */
		int fd = dial(n->service);
		CHECK(fd >= 0);
		char byte;
		for (uint64_t until = test_now_ms() + (uint64_t)test_ms(5000); recv(fd, &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN;)
			CHECK(test_now_ms() < until);
		close(fd);
		oob_send(n, "o", 1);
	} else {
		barrier(n);
	}
	OK(gdrfab_ep_close(n->ep));
	n->ep = NULL;
	node_close(n);
}

static void nobodies(const void *arg)
{
	skip_unless(strcmp(provider(), "shm") == 0, "it asks nobody for a user");
	if (geteuid() != 0)
		test_skip("only root becomes two other users");
	/* A process recognises its own user by the permission to send signals; under a memory checker this does not work. */
	if (!*(const bool *)arg && !test_has_pidfds())
		test_skip("pidfd_open: %s", strerror(errno));
	pair(NULL, nobody_listens, nobody_calls, arg);
}

TEST_TABLE(users)
{
	static const bool yes = true, no = false;
	test_add("users_without_a_number_are_others", nobodies, &yes, 20);
	test_add("a_user_whose_number_is_that_of_users_without_one_meets_itself", nobodies, &no, 20);
}
