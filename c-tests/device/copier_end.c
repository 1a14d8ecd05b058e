/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The process that copies device memory for another (the copier), at each stage of a copy: it is stopped or killed, the
 * endpoint is closed, or the owner of the endpoint dies. Closing takes bounded time, and afterwards the memory is not accessed.
 */
#include "fab.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LEN ((size_t)65536)
#define WRITES 6
#define DELAY_MS 100
/* Half a second for each of several waits, and more for a busy machine. */
#define CLOSE_MS 5000

enum stage { IDLE, POSTED, FLYING, UNKNOWN, STAGES };
static const char *const stages[] = {"idle", "posted", "flying", "unmapped"};
enum blow { NOTHING, STOP, KILL, BLOWS };
static const char *const blows[] = {"nothing", "stop", "kill"};
/* The connection's end, or the initiator's. */
enum end { CLOSE, DIE, ENDS };
static const char *const ends[] = {"close", "die"};

struct act {
	enum stage stage;
	enum blow blow;
	enum end end;
	bool read;
};

static const struct memkind *kind_used(void)
{
	size_t count = device_kinds_list();
	for (size_t k = 0; k < count; k++)
		if (device_kinds[k]->iface == GDRFAB_HMEM_CUDA && device_kinds[k]->opaque && device_kinds[k]->paths & GDRFAB_PATH_IPC)
			return device_kinds[k];
	test_skip("CUDA's fake alone has copies that take their time");
}

static void prepare(void)
{
	skip_unless(path_known(PATH_IPC), "it has no ipc path");
	if (!getenv("GDRFAB_FAKES"))
		test_skip("a real driver cannot be told to be slow");
	setenv("GDRFAB_SHM_CLOSE_MS", "100", 1);
}

static void memory(struct node *n, struct mem *m, uint32_t seed)
{
	mem_new(n, m, kind_used(), LEN);
	mem_register(n, m, 0, LEN, ANY_ACCESS, 0);
	mem_fill(m, 0, LEN, 0, seed);
}

/* Checks that the bytes do not change any more. */
static void check_left_alone(struct mem *m)
{
	mem_fill(m, 0, LEN, 0, 77);
	test_sleep_ms(2 * DELAY_MS);
	CHECK_MEM("memory after it was given back", m, 0, LEN, 0, 77);
}

static void close_region(struct mem *m)
{
	uint64_t until = test_now_ms() + (uint64_t)test_ms(CLOSE_MS);
	int rc;
	while ((rc = gdrfab_mr_close(m->mr)) == -EBUSY && test_now_ms() < until)
		;
	CHECK_EQ(rc, 0);
	m->mr = NULL;
}

/* --- the target --- */

static void target(struct node *n)
{
	const struct act *act = (const struct act *)n->arg;
	struct mem m;
	pid_t pid;
	prepare();
	node_up(n);
	memory(n, &m, 1);
	mem_publish(n, &m);
	barrier(n);
	oob_recv(n, &pid, sizeof pid);
	if (act->end == DIE) {
		/* No progress here, which would report the end of the connection. */
		await_gone(n);
		uint64_t since = test_now_ms();
		close_region(&m);
		/* Without pidfds (under a memory checker) this side does not learn of the copier's end, which comes a moment later. */
		bool told = test_has_pidfds();
		if (told && (act->stage == POSTED || act->stage == FLYING))
			CHECK(test_process_over(pid));
		while (!test_process_over(pid) && test_now_ms() < since + (uint64_t)test_ms(CLOSE_MS))
			test_sleep_ms(1);
		CHECK(test_process_over(pid));
	} else {
		barrier(n);
		close_region(&m);
	}
	check_left_alone(&m);
	mem_end(n, &m);
	if (act->end == DIE)
		node_close(n);
	else
		node_down(n);
}

/* --- the initiator, which has the copier --- */

static void initiator(struct node *n)
{
	const struct act *act = (const struct act *)n->arg;
	struct mem m, fresh;
	int posted = 0;
	char delay[32];
	prepare();
	snprintf(delay, sizeof delay, "%d", DELAY_MS * 1000);
	if (act->stage == FLYING)
		setenv("FAKE_DELAY_US", delay, 1);
	copier_up(n);
	memory(n, &m, 2);
	mem_new(n, &fresh, kind_used(), LEN);
	mem_register(n, &fresh, 0, LEN, ANY_ACCESS, 0);
	struct remote to = mem_fetch(n);
	pid_t pid = copier_of(n, to.key);
	POST(n->cq, gdrfab_write(n->ep, m.addr, LEN, mem_desc(&m), 0, to.base, to.key, &m));
	DONE(n->cq, &m, GDRFAB_WRITE, NULL);
	barrier(n);

	if (act->blow == STOP && act->stage != FLYING) {
		CHECK_EQ(kill(pid, SIGSTOP), 0);
		while (test_process_state(pid) != 'T')
			test_sleep_ms(1);
	}
	struct mem *from = act->stage == UNKNOWN ? &fresh : &m;
	uint64_t since = test_now_ms();
	for (int i = 0; act->stage != IDLE && i < (act->stage == UNKNOWN ? 1 : WRITES); i++) {
		ssize_t rc = act->read ? gdrfab_read(n->ep, from->addr, LEN, mem_desc(from), 0, to.base, to.key, from)
				       : gdrfab_write(n->ep, from->addr, LEN, mem_desc(from), 0, to.base, to.key, from);
		CHECK_EQ(rc, 0);
		posted++;
	}
	if (act->stage == FLYING)
		test_sleep_ms(DELAY_MS / 2);
	if (act->blow == STOP && act->stage == FLYING)
		CHECK_EQ(kill(pid, SIGSTOP), 0);
	if (act->blow == KILL)
		CHECK_EQ(kill(pid, SIGKILL), 0);
	oob_send(n, &pid, sizeof pid);
	if (act->end == DIE)
		raise(SIGKILL);

	int rc;
	/* Closing waits for copies that are under way. */
	while ((rc = gdrfab_ep_close(n->ep)) == -EBUSY && test_now_ms() < since + (uint64_t)test_ms(CLOSE_MS))
		SAYS(gdrfab_last_error(), "gdrfab-copier");
	CHECK_EQ(rc, 0);
	n->ep = NULL;
	uint64_t took = test_now_ms() - since;
	if (took > (uint64_t)test_ms(CLOSE_MS))
		test_fail(__FILE__, __LINE__, "ep_close took %llu ms", (unsigned long long)took);
	if (act->blow == STOP || act->blow == KILL)
		CHECK(test_process_over(pid) || (act->stage == IDLE && act->blow == KILL));
	else
		CHECK(!test_process_over(pid));
	kill(pid, SIGCONT);
	for (int i = 0; i < posted; i++) {
		done entry;
		struct failure f;
		int got = cq_next(n->cq, &entry, 0);
		CHECK(got != 0);
		if (got < 0)
			cq_failure(__FILE__, __LINE__, n->cq, &f);
	}
	barrier(n);
	close_region(&m);
	close_region(&fresh);
	check_left_alone(from);
	mem_end(n, &fresh);
	mem_end(n, &m);
	n->drivers = true;
	node_down(n);
}

static void it_ends(const void *arg)
{
	struct setup setup = {.victim = ((const struct act *)arg)->end == DIE ? TEST_CLIENT : TEST_REFEREE};
	pair(&setup, target, initiator, arg);
}

/* --- children of the owner that live on --- */

enum { BY_FORK, BY_CLONE };

static void heirs_witness(struct node *n)
{
	struct mem m;
	pid_t pid;
	prepare();
	node_up(n);
	memory(n, &m, 1);
	mem_publish(n, &m);
	oob_recv(n, &pid, sizeof pid);
	uint64_t until = test_now_ms() + (uint64_t)test_ms(CLOSE_MS);
	while (!test_process_over(pid) && test_now_ms() < until)
		test_sleep_ms(5);
	CHECK(test_process_over(pid));
	mem_end(n, &m);
	node_close(n);
}

static void heirs_owner(struct node *n)
{
	prepare();
	copier_up(n);
	struct remote to = mem_fetch(n);
	pid_t pid = copier_of(n, to.key);
	pid_t child = *(const int *)n->arg == BY_FORK ? fork() : (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	if (child == 0) {
		alarm((unsigned)test_ms(2 * CLOSE_MS) / 1000);
		for (;;)
			pause();
	}
	CHECK(child > 0);
	oob_send(n, &pid, sizeof pid);
	raise(SIGKILL);
}

static void with_children(const void *arg)
{
	struct setup setup = {.victim = TEST_CLIENT};
	/* Without pidfds its end shows only by its socket, which a child of clone() keeps open: such a child runs no fork handler. */
	if (*(const int *)arg == BY_CLONE && !test_has_pidfds())
		test_skip("pidfd_open: %s", strerror(errno));
	pair(&setup, heirs_witness, heirs_owner, arg);
}

/* --- descriptors that the copier inherits --- */

/* Makes close_range() fail, as in a kernel before 5.9. */
static void without_close_range(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 436, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof code / sizeof code[0], code};
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		test_skip("this kernel takes no filter of system calls");
	CHECK(syscall(436, 900, 901, 0) == -1 && errno == ENOSYS);
}

static void inherits_owner(struct node *n)
{
	char path[64], file[256];
	prepare();
	CHECK_EQ(dup2(n->oob, 200), 200);
	if (*(const bool *)n->arg)
		without_close_range();
	copier_up(n);
	struct remote to = mem_fetch(n);
	pid_t pid = copier_of(n, to.key);
	snprintf(path, sizeof path, "/proc/%d/fd/200", (int)pid);
	CHECK(readlink(path, file, sizeof file) == -1 && errno == ENOENT);
	close(200);
	barrier(n);
	n->drivers = true;
	node_down(n);
}

static void inherits_peer(struct node *n)
{
	struct mem m;
	prepare();
	node_up(n);
	memory(n, &m, 1);
	mem_publish(n, &m);
	barrier(n);
	mem_end(n, &m);
	node_down(n);
}

static void it_inherits_nothing(const void *arg)
{
	pair(NULL, inherits_peer, inherits_owner, arg);
}

TEST_TABLE(ends)
{
	static const int ways[] = {BY_FORK, BY_CLONE};
	static const bool filtered[] = {false, true};
	static struct act acts[ENDS * BLOWS * STAGES * 2];
	static char names[ENDS * BLOWS * STAGES * 2][64];
	size_t count = 0;
	for (int end = 0; end < ENDS; end++)
		for (int blow = 0; blow < BLOWS; blow++)
			for (int stage = 0; stage < STAGES; stage++)
				for (int read = 0; read < 2; read++) {
					/* For a killed process the middle stages add nothing. */
					if (read && (stage == IDLE || stage == UNKNOWN || end == DIE))
						continue;
					if (end == DIE && stage == UNKNOWN)
						continue;
					/* A memory checker runs each stage once: with a copier that goes on while reads are posted or nothing is, and
					 * else with one that is killed. One that stands still differs by the wait alone. */
					if (test_checked() && ((stage == POSTED && !read) || (stage == FLYING && read) ||
							       blow != (stage == IDLE || stage == POSTED ? NOTHING : KILL)))
						continue;
					acts[count] = (struct act){(enum stage)stage, (enum blow)blow, (enum end)end, read};
					snprintf(names[count], sizeof names[count], "%s_%s_%s%s", ends[end], blows[blow], stages[stage],
						 stage == IDLE || stage == UNKNOWN ? "" : read ? "_read" : "_write");
					test_add(names[count], it_ends, &acts[count], 40);
					count++;
				}
	test_add("a_child_lives_on", with_children, &ways[0], 40);
	test_add("a_child_of_clone_lives_on", with_children, &ways[1], 40);
	test_add("it_inherits_nothing", it_inherits_nothing, &filtered[0], 40);
	test_add("it_inherits_nothing_on_old_kernels", it_inherits_nothing, &filtered[1], 40);
}
