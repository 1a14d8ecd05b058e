/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The end of a transfer gives memory back to its owner. After gdrfab_mr_close() has returned 0, no peer writes the memory or
 * reads bytes stored there later; after an operation's entry has come, its buffer is not accessed. This holds however the
 * connection ends, and whether the peer runs, is stopped inside a copy, or dies. Each claim is one kind of end, tried with
 * all ways of moving bytes at once, so that the busy scheduler interrupts processes at random points.
 */
#include "fab.h"

#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define LEN ((size_t)8 << 20)
#define STEP ((size_t)64 << 10)
#define MINE 0x11  /* the owner's bytes while the region is open */
#define THEIRS 0x22 /* the bytes that the peer writes */
#define AGAIN 0xaa /* the owner's bytes after the end */

enum ending { EP_CLOSE, SHUTDOWN, RESET, DEADLINE, STOP, KILL, ENDINGS };
static const char *const ending_words[ENDINGS] = {"ep_close", "shutdown", "reset", "deadline", "stop", "kill"};
/* SHARED: so long that a polling target copies a part. */
enum op { WRITE, READ, SHARED, OPS };
static const char *const op_words[OPS] = {"write", "read", "shared copy"};

struct trial {
	enum ending ending;
	enum op op;
	const struct way *way;
};

/* Checks that all bytes have this value and keep it. */
static void stays(const struct trial *t, struct mem *m, unsigned char byte, const char *since)
{
	static unsigned char seen[LEN];
	for (int look = 0; look < 3; look++) {
		long changed = 0;
		test_sleep_ms(test_count(333, 60));
		mem_read(m, 0, seen, LEN);
		for (size_t i = 0; i < LEN; i++)
			changed += seen[i] != byte;
		if (changed)
			test_fail(__FILE__, __LINE__, "%s, %s, %s: %ld bytes changed after %s",
				  ending_words[t->ending], op_words[t->op], t->way->name, changed, since);
	}
}

/* Sets the bytes from the end backwards: a copy that still runs forwards writes over bytes that are set already. */
static void set(struct mem *m, int byte)
{
	static unsigned char bytes[STEP];
	memset(bytes, byte, STEP);
	for (size_t at = LEN; at > 0; at -= STEP)
		mem_write(m, at - STEP, bytes, STEP);
}

/* --- a region and its owner --- */

/* The other side may already have seen that the connection has ended. */
static void tell(struct node *n)
{
	char over = 'x';
	if (send(n->oob, &over, 1, MSG_NOSIGNAL) < 0)
		CHECK(errno == EPIPE || errno == ECONNRESET);
}

static void owner(struct node *n)
{
	const struct trial *t = (const struct trial *)n->arg;
	struct mem m;
	bool polls = t->op == SHARED || !one_sided(t->way);
	uint64_t seed = (uint64_t)getpid();
	node_up(n);
	mem_new(n, &m, t->way->kind, LEN);
	set(&m, MINE);
	way_register(n, &m, 0, LEN, t->way);
	mem_publish(n, &m);
	char ready;
	oob_recv(n, &ready, 1);
	uint64_t until = test_now_ms() + 5 + test_random(&seed) % 30;
	while (test_now_ms() < until)
		if (polls)
			gdrfab_cq_read(n->cq, NULL, 0);
		else
			sched_yield();
	switch (t->ending) {
	case EP_CLOSE:
		OK(gdrfab_ep_close(n->ep));
		n->ep = NULL;
		break;
	case SHUTDOWN: {
		int rc = gdrfab_ep_shutdown(n->ep, 0);
		CHECK_EITHER(rc, 0, -ESHUTDOWN);
		break;
	}
	case RESET:
		tell(n);
		break;
	case DEADLINE:
		test_sleep_ms(60);
		break;
	case STOP:
		peer_stop(n);
		if (test_random(&seed) % 2) {
			OK(gdrfab_ep_close(n->ep));
			n->ep = NULL;
		}
		break;
	default:
		peer_kill(n);
	}
	int rc;
	bool resumed = false;
	uint64_t late = test_now_ms() + (uint64_t)test_ms(10000);
	while ((rc = gdrfab_mr_close(m.mr)) == -EBUSY && test_now_ms() < late) {
		/* The text names the process or the device that still uses the memory. */
		CHECK(test_says(gdrfab_last_error(), "process") || test_says(gdrfab_last_error(), "device"));
		if (t->ending == STOP && !resumed)
			peer_continue(n);
		resumed = true;
	}
	CHECK_EQ(rc, 0);
	m.mr = NULL;
	set(&m, AGAIN);
	if (t->ending == STOP && !resumed)
		peer_continue(n);
	if (t->ending != KILL && t->ending != RESET)
		tell(n);
	stays(t, &m, AGAIN, "gdrfab_mr_close() returned 0");
	mem_end(n, &m);
	node_close(n);
}

/* Writes or reads until it is told to stop or an operation fails; a read never returns the owner's later bytes. */
static void uses(struct node *n, const struct trial *t, struct mem *m, struct remote *to)
{
	static unsigned char seen[LEN];
	uint64_t seed = (uint64_t)getpid();
	bool reads = t->op == READ || (t->op == SHARED && seed % 2);
	for (;;) {
		char told;
		if (recv(n->oob, &told, 1, MSG_DONTWAIT) == 1)
			return;
		/* Mostly long transfers, so that the end comes in the middle of one. */
		static const size_t sizes[] = {8, 200000, LEN, LEN};
		size_t len = t->op == SHARED ? LEN : sizes[test_random(&seed) % 4];
		size_t at = len == LEN ? 0 : test_random(&seed) % (LEN - len);
		void *desc = mem_needed_desc(n, m);
		ssize_t rc = reads ? gdrfab_read(n->ep, m->addr, len, desc, 0, to->base + at, to->key, NULL) :
				     gdrfab_write(n->ep, m->addr, len, desc, 0, to->base + at, to->key, NULL);
		if (rc == -EAGAIN)
			gdrfab_cq_read(n->cq, NULL, 0);
		else if (rc != 0)
			return;
		else {
			done entry;
			int next = 0;
			while ((next = cq_next(n->cq, &entry, 50)) == 0)
				if (recv(n->oob, &told, 1, MSG_DONTWAIT) == 1)
					return;
			if (next != 1)
				return;
			if (reads)
				mem_read(m, 0, seen, len);
			/* A byte of each page, so that most of the time goes into copies. */
			for (size_t i = 0; reads && i < len; i += 4096)
				if (seen[i] == AGAIN)
					test_fail(__FILE__, __LINE__,
						  "%s, %s, %s: a read got what was put there after the close",
						  ending_words[t->ending], op_words[t->op], t->way->name);
		}
	}
}

static struct remote initiator_new(struct node *n, struct mem *m, unsigned char value)
{
	const struct trial *t = (const struct trial *)n->arg;
	node_up(n);
	mem_new(n, m, t->way->kind, LEN);
	set(m, value);
	mem_register(n, m, 0, LEN, ANY_ACCESS, 0);
	struct remote to = mem_fetch(n);
	way_check(n, t->way, to);
	oob_send(n, "r", 1);
	return to;
}

static void initiator_end(struct node *n, struct mem *m)
{
	uint64_t until = test_now_ms() + (uint64_t)test_ms(10000);
	int rc = 0;
	while (n->ep && (rc = gdrfab_ep_close(n->ep)) == -EBUSY && test_now_ms() < until)
		;
	CHECK_EQ(rc, 0);
	n->ep = NULL;
	mem_end(n, m);
	node_close(n);
}

static void user(struct node *n)
{
	const struct trial *t = (const struct trial *)n->arg;
	struct mem m;
	struct remote to = initiator_new(n, &m, THEIRS);
	uses(n, t, &m, &to);
	/* The entry of an operation under way may be delayed until the peer goes on. */
	initiator_end(n, &m);
}

/* --- the buffer of an operation, on the side that posted it --- */

/* Delays the peer's part of a copy between claiming a chunk and its system call, as the scheduler could. */
static volatile int hold_ms;

static void hold(void)
{
	int ms = __atomic_exchange_n(&hold_ms, 0, __ATOMIC_SEQ_CST);
	if (ms)
		usleep((useconds_t)ms * 1000);
}

ssize_t process_vm_writev(pid_t pid, const struct iovec *l, unsigned long nl, const struct iovec *r, unsigned long nr,
			  unsigned long flags)
{
	hold();
	return syscall(SYS_process_vm_writev, pid, l, nl, r, nr, flags);
}

ssize_t process_vm_readv(pid_t pid, const struct iovec *l, unsigned long nl, const struct iovec *r, unsigned long nr,
			 unsigned long flags)
{
	hold();
	return syscall(SYS_process_vm_readv, pid, l, nl, r, nr, flags);
}

/* Helps with the other side's operation late; a message that arrives whole must be the one that was sent. */
static void helps(struct node *n)
{
	const struct trial *t = (const struct trial *)n->arg;
	static unsigned char seen[LEN];
	struct mem m;
	node_up(n);
	mem_new(n, &m, t->way->kind, LEN);
	set(&m, THEIRS);
	way_register(n, &m, 0, LEN, t->way);
	mem_publish(n, &m);
	if (t->op == SHARED)
		OK(gdrfab_recv(n->ep, m.addr, LEN, mem_needed_desc(n, &m), 0, NULL));
	char told;
	oob_recv(n, &told, 1);
	hold_ms = t->ending == DEADLINE ? 400 : 150;
	uint64_t until = test_now_ms() + (uint64_t)test_ms(10000);
	while (recv(n->oob, &told, 1, MSG_DONTWAIT) < 0 && test_now_ms() < until) {
		done entry;
		if (gdrfab_cq_read(n->cq, &entry, 1) != 1)
			continue;
		mem_read(&m, 0, seen, LEN);
		for (size_t i = 0; t->op == SHARED && i < LEN; i++)
			if (seen[i] != MINE)
				test_fail(__FILE__, __LINE__, "%s: the message has what was put there after the send's entry",
					  ending_words[t->ending]);
	}
	hold_ms = 0;
	OK(gdrfab_ep_close(n->ep));
	n->ep = NULL;
	mem_end(n, &m);
	node_close(n);
}

/* Reads, or sends a long message: the buffer is its own again with the entry. */
static void posts(struct node *n)
{
	const struct trial *t = (const struct trial *)n->arg;
	struct mem m;
	struct remote to = initiator_new(n, &m, MINE);
	void *desc = mem_needed_desc(n, &m);
	if (t->op == SHARED)
		POST(n->cq, gdrfab_send(n->ep, m.addr, LEN, desc, 0, NULL));
	else
		POST(n->cq, gdrfab_read(n->ep, m.addr, LEN, desc, 0, to.base, to.key, NULL));
	test_sleep_ms(20);
	int rc = -EBUSY;
	bool closes = t->ending == EP_CLOSE || t->ending == STOP;
	if (t->ending == SHUTDOWN)
		OK(gdrfab_ep_shutdown(n->ep, 0));
	if (t->ending == RESET && (rc = gdrfab_cancel(n->ep, NULL)) != 0)
		CHECK_EITHER(rc, -ENOENT, -EOPNOTSUPP);
	if (t->ending == STOP)
		peer_stop(n);
	if (t->ending == KILL)
		peer_kill(n);
	uint64_t begin = test_now_ms();
	bool resumed = t->ending != STOP;
	done entry;
	ssize_t got;
	while ((got = gdrfab_cq_read(n->cq, &entry, 1)) == -EAGAIN) {
		if (closes && n->ep) {
			rc = gdrfab_ep_close(n->ep);
			CHECK_EITHER(rc, 0, -EBUSY);
			if (rc == 0)
				n->ep = NULL;
		}
		if (!resumed && test_now_ms() > begin + 250) {
			peer_continue(n);
			resumed = true;
		}
		CHECK(test_now_ms() < begin + (uint64_t)test_ms(10000));
	}
	CHECK(got == 1 || got == -GDRFAB_EAVAIL);
	set(&m, AGAIN);
	if (!resumed)
		peer_continue(n);
	if (t->ending != KILL)
		tell(n);
	stays(t, &m, AGAIN, "the operation's entry");
	initiator_end(n, &m);
}

/* Runs every way of moving bytes with every operation, each in two processes of its own, all at once. */
static void try_all(enum ending ending, side_fn server, side_fn client, enum test_side victim)
{
	struct setup setup = {.deadline_ms = ending == DEADLINE ? 2 : 0, .victim = ending == KILL ? victim : TEST_REFEREE};
	setenv("GDRFAB_SHM_CLOSE_MS", "100", 1);
	size_t count = all_ways_list(), began = 0, tried = 0;
	pid_t pid[PATHS * OPS];
	uint64_t seen = 0;
	for (size_t w = 0; w < count; w++) {
		/* One kind of memory for each path. */
		if (seen & ways[w].path->bit)
			continue;
		seen |= ways[w].path->bit;
		for (int op = 0; op < OPS; op++) {
			if (op != (int)(w + (size_t)ending) % OPS && !test_count(1, 0))
				continue;
			struct trial trial = {ending, (enum op)op, &ways[w]};
			pid[began] = test_fork(TEST_REFEREE);
			if (pid[began++] == 0) {
				test_trial();
				pair(&setup, server, client, &trial);
				_exit(0);
			}
		}
	}
	CHECK(began > 0);
	for (size_t i = 0; i < began; i++) {
		int status;
		CHECK_EQ(waitpid(pid[i], &status, 0), pid[i]);
		if (WIFEXITED(status) && WEXITSTATUS(status) == TEST_SKIPPED)
			continue;
		test_child_ended(TEST_REFEREE, status);
		tried++;
	}
	if (tried == 0)
		test_skip("no way of moving bytes can be had here");
}

static void closed_region(const void *arg)
{
	try_all(*(const enum ending *)arg, owner, user, TEST_CLIENT);
}

static void ended_operation(const void *arg)
{
	try_all(*(const enum ending *)arg, helps, posts, TEST_SERVER);
}

TEST_TABLE(endings)
{
	static enum ending which[ENDINGS];
	static char region[ENDINGS][64], operation[ENDINGS][64];
	for (int e = 0; e < ENDINGS; e++) {
		which[e] = (enum ending)e;
		snprintf(region[e], sizeof region[e], "closed_region_after_%s", ending_words[e]);
		test_add(region[e], closed_region, &which[e], 60);
		snprintf(operation[e], sizeof operation[e], "ended_operation_after_%s", ending_words[e]);
		test_add(operation[e], ended_operation, &which[e], 60);
	}
}
