/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * fork() in a process that uses the library: the child ends cleanly and does not disturb its parent's connections, cannot use
 * the inherited handles, and can open its own. An executed program inherits no descriptor.
 */
#include "fab.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* A few messages and writes each way: the connection is alive. */
static void exchange(struct node *n, struct remote to, uint32_t seed)
{
	unsigned char out[500], in[500], back[500];
	done e;
	fill(out, sizeof out, 0, seed);
	POST(n->cq, gdrfab_recv(n->ep, in, sizeof in, local_desc(n, in, sizeof in), 0, in));
	meet_if_hasty(n);
	POST(n->cq, gdrfab_send(n->ep, out, sizeof out, local_desc(n, out, sizeof out), 0, out));
	for (int left = 2; left > 0; left--)
		CHECK_EQ(cq_next(n->cq, &e, 10000), 1);
	CHECK_FILLED("a message", in, sizeof in, 0, seed);
	POST(n->cq, gdrfab_write(n->ep, out, sizeof out, local_desc(n, out, sizeof out), 0, to.base, to.key, out));
	DONE(n->cq, out, GDRFAB_WRITE, NULL);
	POST(n->cq, gdrfab_read(n->ep, back, sizeof back, local_desc(n, back, sizeof back), 0, to.base, to.key, back));
	DONE(n->cq, back, GDRFAB_READ, NULL);
	CHECK_FILLED("written and read back", back, sizeof back, 0, seed);
	barrier(n);
}

static struct remote swap_regions(struct node *n, struct mem *m)
{
	mem_new(n, m, &memkinds[KIND_MEM_ALLOC], 4096);
	mem_register(n, m, 0, 4096, REMOTE_ACCESS, 0);
	mem_publish(n, m);
	return mem_fetch(n);
}

static void await_child(pid_t pid)
{
	int status;
	uint64_t until = test_now_ms() + (uint64_t)test_ms(8000);
	pid_t got;
	while ((got = waitpid(pid, &status, WNOHANG)) == 0) {
		if (test_now_ms() > until)
			test_fail(__FILE__, __LINE__, "the child does not end");
		test_sleep_ms(2);
	}
	CHECK_EQ(got, pid);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		test_child_ended(TEST_SERVER, status);
}

#define ROUNDS 4

static void forks(struct node *n)
{
	struct mem m;
	node_up(n);
	struct remote to = swap_regions(n, &m);
	exchange(n, to, 1);
	for (uint32_t round = 0; round < ROUNDS; round++) {
		pid_t pid = test_fork(TEST_SERVER);
		if (pid == 0) {
			if (round == 0)
				exit(0);
			if (round == 1)
				_exit(0);
			if (round == 2) {
				execlp("true", "true", (char *)NULL);
				_exit(127);
			}
			/* Stays for a while. */
			test_sleep_ms(100);
			exit(0);
		}
		if (round != 3)
			await_child(pid);
		exchange(n, to, 2 + round);
		if (round == 3)
			await_child(pid);
	}
	exchange(n, to, 100);
	mem_end(n, &m);
	node_down(n);
}

static void does_not_notice(struct node *n)
{
	struct mem m;
	node_up(n);
	struct remote to = swap_regions(n, &m);
	exchange(n, to, 1);
	for (uint32_t round = 0; round < ROUNDS; round++)
		exchange(n, to, 2 + round);
	exchange(n, to, 100);
	mem_end(n, &m);
	node_down(n);
}

TEST(children_leave_cleanly)
{
	pair(NULL, forks, does_not_notice, NULL);
}

TEST(children_leave_cleanly_automatic_progress)
{
	struct setup s = {.progress = GDRFAB_PROGRESS_AUTO, .threading = GDRFAB_THREAD_SAFE};
	pair(&s, forks, does_not_notice, NULL);
}

/* --- inherited handles --- */

static void misuses(struct node *n, struct mem *m)
{
	char buf[64];
	void *addr = NULL;
	gdrfab_mr *mr = NULL;
	gdrfab_ep *ep = NULL;
	gdrfab_cq *cq = NULL;
	gdrfab_eq *eq = NULL;
	gdrfab_cntr *cntr = NULL;
	gdrfab_pep *pep = NULL;
	gdrfab_domain *domain = NULL;
	WANT_EQ(gdrfab_mr_reg(n->domain, buf, sizeof buf, REMOTE_ACCESS, 0, 0, 0, NULL, &mr), -EPERM);
	WANT_EQ(gdrfab_mem_alloc(n->domain, GDRFAB_HMEM_SYSTEM, 0, 4096, 0, &addr), -EPERM);
	WANT_EQ(gdrfab_mem_free(n->domain, m->addr), -EPERM);
	WANT_EQ(gdrfab_domain_open(n->fabric, n->info, NULL, &domain), -EPERM);
	WANT_EQ(gdrfab_eq_open(n->fabric, NULL, NULL, &eq), -EPERM);
	WANT_EQ(gdrfab_pep_open(n->fabric, n->info, NULL, &pep), -EPERM);
	WANT_EQ(gdrfab_cq_open(n->domain, NULL, NULL, &cq), -EPERM);
	WANT_EQ(gdrfab_cntr_open(n->domain, NULL, NULL, &cntr), -EPERM);
	WANT_EQ(gdrfab_ep_open(n->domain, n->info, NULL, &ep), -EPERM);
	WANT_EQ(gdrfab_ep_shutdown(n->ep, 0), -EPERM);
	WANT_EQ(gdrfab_mr_close(m->mr), -EPERM);
	WANT_EQ(gdrfab_ep_close(n->ep), -EPERM);
	WANT_EQ(gdrfab_cq_close(n->cq), -EPERM);
	WANT_EQ(gdrfab_eq_close(n->eq), -EPERM);
	WANT_EQ(gdrfab_domain_close(n->domain), -EPERM);
	WANT_EQ(gdrfab_fabric_close(n->fabric), -EPERM);
	CHECK(!mr && !addr && !domain && !eq && !pep && !cq && !cntr && !ep);
	CHECK(gdrfab_last_error()[0] != 0);
}

static void child_misuses(struct node *n)
{
	struct mem m;
	node_up(n);
	struct remote to = swap_regions(n, &m);
	exchange(n, to, 1);
	pid_t pid = test_fork(TEST_SERVER);
	if (pid == 0) {
		misuses(n, &m);
		exit(0);
	}
	await_child(pid);
	exchange(n, to, 2);
	mem_end(n, &m);
	node_down(n);
}

static void child_elsewhere(struct node *n)
{
	struct mem m;
	node_up(n);
	struct remote to = swap_regions(n, &m);
	exchange(n, to, 1);
	exchange(n, to, 2);
	mem_end(n, &m);
	node_down(n);
}

TEST(inherited_handles_are_refused)
{
	pair(NULL, child_misuses, child_elsewhere, NULL);
}

/* --- its own --- */

static void has_a_child_that_connects(struct node *n)
{
	struct mem m;
	node_up(n);
	skip_unless(waits_for_receive(n), "a send does not wait for its receive");
	struct remote to = swap_regions(n, &m);
	exchange(n, to, 1);
	pid_t pid = test_fork(TEST_CLIENT);
	if (pid == 0) {
		struct node own = *n;
		char in[8] = "", out[8] = "child";
		own.info = NULL, own.request = NULL, own.fabric = NULL, own.eq = NULL, own.pep = NULL;
		own.domain = NULL, own.cq = NULL, own.ep = NULL, own.locals = NULL;
		own.fds = test_count_fds();
		node_open(&own);
		own.ep = ep_new(&own, own.info, NULL);
		OK(gdrfab_ep_connect(own.ep, own.info->dest_addr, own.info->dest_addrlen, NULL, 0));
		EVENT(own.eq, GDRFAB_CONNECTED, own.ep, NULL);
		POST(own.cq, gdrfab_recv(own.ep, in, sizeof in, local_desc(&own, in, sizeof in), 0, in));
		POST(own.cq, gdrfab_send(own.ep, out, sizeof out, local_desc(&own, out, sizeof out), 0, out));
		done e;
		for (int left = 2; left > 0; left--)
			CHECK_EQ(cq_next(own.cq, &e, 10000), 1);
		CHECK_EQ(strcmp(in, "hello"), 0);
		node_close(&own);
		exit(0);
	}
	await_child(pid);
	exchange(n, to, 2);
	mem_end(n, &m);
	node_down(n);
}

static void accepts_the_child_too(struct node *n)
{
	struct mem m;
	char in[8] = "", out[8] = "hello";
	node_up(n);
	skip_unless(waits_for_receive(n), "a send does not wait for its receive");
	struct remote to = swap_regions(n, &m);
	exchange(n, to, 1);
	gdrfab_info *request = node_await_request(n);
	gdrfab_ep *ep = ep_new(n, request, NULL);
	gdrfab_freeinfo(request);
	POST(n->cq, gdrfab_recv(ep, in, sizeof in, local_desc(n, in, sizeof in), 0, in));
	OK(gdrfab_ep_accept(ep, NULL, 0));
	EVENT(n->eq, GDRFAB_CONNECTED, ep, NULL);
	POST(n->cq, gdrfab_send(ep, out, sizeof out, local_desc(n, out, sizeof out), 0, out));
	done e;
	for (int left = 2; left > 0; left--)
		CHECK_EQ(cq_next(n->cq, &e, 10000), 1);
	CHECK_EQ(strcmp(in, "child"), 0);
	EVENT(n->eq, GDRFAB_SHUTDOWN, ep, NULL);
	OK(gdrfab_ep_close(ep));
	exchange(n, to, 2);
	mem_end(n, &m);
	node_down(n);
}

TEST(a_child_opens_its_own)
{
	pair(NULL, accepts_the_child_too, has_a_child_that_connects, NULL);
}

/* --- descriptors --- */

static void looks_at_descriptors(struct node *n)
{
	struct mem m;
	node_up(n);
	mem_new(n, &m, &memkinds[KIND_MEM_ALLOC], 4096);
	mem_register(n, &m, 0, 4096, REMOTE_ACCESS, 0);
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;
	CHECK(dir != NULL);
	while ((entry = readdir(dir))) {
		int fd = atoi(entry->d_name);
		if (entry->d_name[0] == '.' || fd <= 2)
			continue;
		char path[64], what[256];
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		ssize_t len = readlink(path, what, sizeof what - 1);
		what[len < 0 ? 0 : len] = 0;
		if (!(fcntl(fd, F_GETFD) & FD_CLOEXEC) && !strncmp(what, "/memfd:gdrfab", 13))
			test_wrong(__FILE__, __LINE__, "%s would be inherited through exec", what);
		else if (!(fcntl(fd, F_GETFD) & FD_CLOEXEC) &&
			 (!strncmp(what, "socket:", 7) || !strncmp(what, "anon_inode:", 11)))
			test_wrong(__FILE__, __LINE__, "%s would be inherited through exec", what);
	}
	closedir(dir);
	barrier(n);
	mem_end(n, &m);
	node_down(n);
}

TEST(exec_inherits_no_descriptor)
{
	struct setup s = {.cq_wait = GDRFAB_WAIT_FD};
	pair(&s, looks_at_descriptors, looks_at_descriptors, NULL);
}

/* A forked child holds copies of every descriptor. The peer must learn of the death all the same. */
static void has_an_heir(struct node *n)
{
	node_up(n);
	pid_t pid = test_fork(TEST_CLIENT);
	if (pid == 0) {
		/* Outlives its parent, which the frame would not let it. */
		prctl(PR_SET_PDEATHSIG, 0);
		close(n->oob);
		for (;;)
			pause();
	}
	pid_t both[2] = {pid, getpid()};
	oob_send(n, both, sizeof both);
	test_sleep_ms(50);
}

static void leaves_an_heir(struct node *n)
{
	has_an_heir(n);
	raise(SIGKILL);
}

/* The process lives on, in a program without this library. */
static void leaves_an_heir_and_executes(struct node *n)
{
	has_an_heir(n);
	execlp("sleep", "sleep", "300", (char *)NULL);
	_exit(127);
}

static void hears_of_the_death(struct node *n)
{
	char in;
	pid_t both[2];
	node_up(n);
	POST(n->cq, gdrfab_recv(n->ep, &in, 1, local_desc(n, &in, 1), 0, &in));
	oob_recv(n, both, sizeof both);
	EVENT(n->eq, GDRFAB_SHUTDOWN, n->ep, NULL);
	FAILED(n->cq, &in, ECONNRESET, GDRFAB_PROV_PEER_GONE, NULL);
	CHECK_EQ(kill(both[0], 0), 0);
	kill(both[0], SIGKILL);
	kill(both[1], SIGKILL);
	node_close(n);
}

TEST(a_death_is_noticed_although_a_child_lives)
{
	skip_unless(!traits()->adapter, "the kernel keeps queue pairs for whoever holds their descriptors");
	struct setup s = {.victim = TEST_CLIENT};
	pair(&s, hears_of_the_death, leaves_an_heir, NULL);
}

TEST(an_exec_is_noticed_although_a_child_lives)
{
	skip_unless(!traits()->adapter, "the kernel keeps queue pairs for whoever holds their descriptors");
	struct setup s = {.victim = TEST_CLIENT};
	pair(&s, hears_of_the_death, leaves_an_heir_and_executes, NULL);
}

TEST(a_closed_listener_s_name_is_free_although_a_child_lives)
{
	struct node n;
	int status, ends[2];
	char byte;
	node_alone(&n, NULL);
	n.side = TEST_SERVER;
	gdrfab_freeinfo(n.info);
	n.info = NULL;
	node_info(&n);
	node_listen(&n);
	CHECK(pipe(ends) == 0);
	pid_t pid = test_fork(TEST_SERVER);
	if (pid == 0) {
		/* The child gives the sockets up before fork() returns in it. */
		CHECK(write(ends[1], "x", 1) == 1);
		for (;;)
			pause();
	}
	CHECK(read(ends[0], &byte, 1) == 1);
	close(ends[0]), close(ends[1]);
	OK(gdrfab_pep_close(n.pep));
	n.pep = NULL;
	node_listen(&n);
	kill(pid, SIGKILL);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	node_close(&n);
}

enum { SIBLINGS = 4, KEYS = 64 };

/* The secret bits of a new domain's keys: without the index in the low bits, and without bit 63. */
static void draw_keys(uint64_t *parts)
{
	static char bytes[64];
	struct node n;
	gdrfab_mr *mr[KEYS];

	node_alone(&n, NULL);
	for (int i = 0; i < KEYS; i++) {
		OK(gdrfab_mr_reg(n.domain, bytes, sizeof bytes, REMOTE_ACCESS, 0, 0, 0, NULL, &mr[i]));
		parts[i] = gdrfab_mr_key(mr[i]) << 1 >> 19;
	}
	for (int i = 0; i < KEYS; i++)
		OK(gdrfab_mr_close(mr[i]));
	node_close(&n);
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* Servers fork their workers: what one of them knows opens nothing of another's. */
TEST(keys_of_forked_siblings_have_nothing_in_common)
{
	static uint64_t parts[SIBLINGS + 2][KEYS], *all = parts[0];
	const size_t count = sizeof parts / sizeof **parts;
	int to_parent[2];

	skip_unless(!traits()->adapter, "the card chooses the keys");
	CHECK_EQ(pipe(to_parent), 0);
	draw_keys(parts[0]);
	for (int i = 1; i <= SIBLINGS; i++) {
		pid_t pid = test_fork(TEST_SERVER);
		if (pid == 0) {
			draw_keys(parts[i]);
			CHECK_EQ(write(to_parent[1], parts[i], sizeof parts[i]), sizeof parts[i]);
			test_child_done();
		}
		await_child(pid);
		CHECK_EQ(read(to_parent[0], parts[i], sizeof parts[i]), sizeof parts[i]);
	}
	draw_keys(parts[SIBLINGS + 1]);
	qsort(all, count, sizeof *all, by_value);
	for (size_t i = 1; i < count; i++)
		CHECK(all[i - 1] != all[i]);
}

/* --- descriptors of large numbers --- */

#define MANY 65600

/* Sockets of the library: that to the other side is the test's own. */
static int sockets_above(int first, const struct node *n)
{
	int found = 0;
	struct stat st;
	for (int fd = first; fd < first + 400; fd++)
		found += fd != n->oob && fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode);
	return found;
}

static void forks_with_many(struct node *n)
{
	node_up(n);
	CHECK(sockets_above(MANY, n) > 0);
	pid_t pid = test_fork(TEST_SERVER);
	if (pid == 0) {
		CHECK_EQ(sockets_above(MANY, n), 0);
		test_child_done();
	}
	await_child(pid);
	struct mem m;
	struct remote to = swap_regions(n, &m);
	exchange(n, to, 1);
	mem_end(n, &m);
	node_down(n);
}

TEST(sockets_of_large_numbers_stay_not_with_children)
{
	struct rlimit limit = {MANY + 1000, MANY + 1000};
	skip_unless(!traits()->adapter, "a connection over verbs has no socket");
	if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
		test_skip("no %d descriptors: %s", MANY + 1000, strerror(errno));
	for (int fd = 100; fd < MANY; fd++)
		if (dup2(2, fd) < 0)
			test_skip("no descriptor %d: %s", fd, strerror(errno));
	/* Those between are taken as well. */
	while (dup(2) < MANY)
		;
	pair(NULL, forks_with_many, forks_with_many, NULL);
}
