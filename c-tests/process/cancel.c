/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * pthread_cancel() of a thread inside the library, and pthread_exit() in a signal handler that interrupts its sleep: a thread
 * in a wait ends there, a thread in another call ends after the call, and the objects stay usable.
 */
#include "fab.h"

#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>

enum call { CQ_SREAD, CQ_SREADFROM, EQ_SREAD, EQ_SREAD_PEEK, CNTR_WAIT, CALLS };
static const char *const call_names[CALLS] = {"cq_sread", "cq_sreadfrom", "eq_sread", "eq_sread_peek", "cntr_wait"};

struct waiter {
	struct node *n;
	gdrfab_cntr *cntr;
	enum call call;
	int timeout_ms;
	pid_t tid; /* atomic */
};

/* Waits again and again, like a progress thread of a program. */
static void *waits(void *arg)
{
	struct waiter *w = arg;
	done e;
	uint32_t event;
	struct event of;
	uint64_t from;

	__atomic_store_n(&w->tid, gettid(), __ATOMIC_RELEASE);
	for (;;)
		switch (w->call) {
		case CQ_SREAD:
			gdrfab_cq_sread(w->n->cq, &e, 1, w->timeout_ms);
			break;
		case CQ_SREADFROM:
			gdrfab_cq_sreadfrom(w->n->cq, &e, 1, &from, w->timeout_ms);
			break;
		case EQ_SREAD:
			gdrfab_eq_sread(w->n->eq, &event, &of, sizeof of, w->timeout_ms, 0);
			break;
		case EQ_SREAD_PEEK:
			gdrfab_eq_sread(w->n->eq, &event, NULL, 0, w->timeout_ms, GDRFAB_PEEK);
			break;
		default:
			gdrfab_cntr_wait(w->cntr, 5, w->timeout_ms);
		}
	return NULL;
}

static void leaves(int signal)
{
	(void)signal;
	pthread_exit(NULL);
}

static void message(struct node *n)
{
	char out = 'x', in = 0;
	done e;
	POST(n->cq, gdrfab_recv(n->ep, &in, 1, local_desc(n, &in, 1), 0, &in));
	meet_if_hasty(n);
	POST(n->cq, gdrfab_send(n->ep, &out, 1, local_desc(n, &out, 1), PEER, &out));
	for (int left = 2; left > 0; left--)
		CHECK_EQ(cq_next(n->cq, &e, 10000), 1);
	CHECK_EQ(in, 'x');
	barrier(n);
}

/*
 * A thread that waits for a lock, or for its turn under a memory checker, sleeps as well: the number of its system call tells
 * the library's sleep apart. Where /proc shows no numbers, the state has to do.
 */
static bool sleeps_in_a_wait(pid_t tid)
{
	char path[64], line[256] = "";
	snprintf(path, sizeof path, "/proc/self/task/%d/syscall", tid);
	FILE *file = tid ? fopen(path, "r") : NULL;
	bool numbers = file;
	if (tid && !file) {
		snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
		file = fopen(path, "r");
	}
	if (file && !fgets(line, sizeof line, file))
		line[0] = 0;
	if (file)
		fclose(file);
	char *end = strrchr(line, ')');
	return numbers ? strtol(line, NULL, 10) == SYS_ppoll : end && end[2] == 'S';
}

static void end_one(struct waiter *w, bool by_signal)
{
	pthread_t thread;
	void *result;

	__atomic_store_n(&w->tid, 0, __ATOMIC_RELAXED);
	CHECK_EQ(pthread_create(&thread, NULL, waits, w), 0);
	test_sleep_ms(60);
	/* A handler may leave a call by pthread_exit() only where the thread sleeps. */
	while (by_signal && !sleeps_in_a_wait(__atomic_load_n(&w->tid, __ATOMIC_ACQUIRE)))
		test_sleep_ms(5);
	CHECK_EQ(by_signal ? pthread_kill(thread, SIGUSR1) : pthread_cancel(thread), 0);
	CHECK_EQ(pthread_join(thread, &result), 0);
	CHECK(by_signal || result == PTHREAD_CANCELED);
}

static void loses_threads(struct node *n)
{
	struct waiter w = {.n = n};
	node_up(n);
	OK(gdrfab_cntr_open(n->domain, NULL, NULL, &w.cntr));
	signal(SIGUSR1, leaves);
	int fds = 0;
	for (int by_signal = 0; by_signal < 2; by_signal++)
		for (w.call = 0; w.call < CALLS; w.call++) {
			static const int timeouts[] = {-1, 20000, 3};
			/* With 3 ms the thread may be anywhere in the call: not for a handler, which may leave only a sleep. */
			for (size_t i = 0; i < (by_signal ? 2 : 3); i++) {
				w.timeout_ms = timeouts[i];
				end_one(&w, by_signal);
			}
			message(n);
			/* The next wait uses the same descriptors. */
			if (fds && test_count_fds() > fds)
				test_fail(__FILE__, __LINE__, "%s leaves %d descriptors", call_names[w.call], test_count_fds() - fds);
			if (w.call == CALLS - 1)
				fds = test_count_fds();
		}
	OK(gdrfab_cntr_close(w.cntr));
	node_down(n);
}

TEST_WITHIN(60, a_thread_that_waits_may_be_ended)
{
	pair(NULL, loses_threads, loses_threads, NULL);
}

TEST_WITHIN(60, and_where_a_thread_of_the_library_drives)
{
	static const struct setup setup = {.progress = GDRFAB_PROGRESS_AUTO, .threading = GDRFAB_THREAD_SAFE};
	pair(&setup, loses_threads, loses_threads, NULL);
}

/* ---- calls that do not wait */

static void enable(void)
{
	int before;
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before);
}

static long long disable(long long result)
{
	int before;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	return result;
}

/* Makes one call of the library while a request to cancel this thread is pending. */
#define PENDING(call) disable((enable(), (long long)(call)))

static void *goes_on(void *arg)
{
	struct node *n = arg;
	static char out[70000], in[70000];
	gdrfab_mr *mr;
	void *at;
	int off;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &off);
	pthread_cancel(pthread_self());
	OK(gdrfab_log_set(4, NULL, NULL));
	for (int round = 0; round < 20; round++) {
		size_t len = round % 2 ? sizeof out : 8;
		OK(PENDING(gdrfab_recv(n->ep, in, sizeof in, NULL, 0, in)));
		while (PENDING(gdrfab_send(n->ep, out, len, NULL, PEER, out)) == -EAGAIN)
			;
		done e;
		for (int left = 2; left > 0;) {
			long long got = PENDING(gdrfab_cq_read(n->cq, &e, 1));
			CHECK(got == 1 || got == -EAGAIN);
			left -= got == 1;
		}
		OK(PENDING(gdrfab_mem_alloc(n->domain, GDRFAB_HMEM_SYSTEM, 0, 65536, 0, &at)));
		OK(PENDING(gdrfab_mr_reg(n->domain, at, 65536, GDRFAB_REMOTE_WRITE, 0, 0, 0, NULL, &mr)));
		OK(PENDING(gdrfab_mr_close(mr)));
		OK(PENDING(gdrfab_mem_free(n->domain, at)));
		gdrfab_info *info;
		CHECK(PENDING(gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, ~0ull, NULL, &info)) < 0);
		barrier(n);
	}
	return n;
}

static void connects_and_moves(struct node *n)
{
	pthread_t thread;
	void *result;
	node_up(n);
	skip_unless(!local_needed(n), "local buffers are regions");
	CHECK_EQ(pthread_create(&thread, NULL, goes_on, n), 0);
	CHECK_EQ(pthread_join(thread, &result), 0);
	CHECK(result == n);
	OK(gdrfab_log_set(0, NULL, NULL));
	node_down(n);
}

TEST_WITHIN(60, a_call_that_does_not_wait_is_no_cancellation_point)
{
	CHECK(freopen("/dev/null", "w", stderr) != NULL);
	pair(NULL, connects_and_moves, connects_and_moves, NULL);
}

/* ---- a connection that ends in a read of the queue, which closes its sockets */

static void *reads_on(void *arg)
{
	struct node *n = arg;
	uint32_t event;
	struct event of;
	done e;
	int off;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &off);
	pthread_cancel(pthread_self());
	for (uint64_t until = test_now_ms() + (uint64_t)test_ms(10000); test_now_ms() < until;) {
		PENDING(gdrfab_cq_read(n->cq, &e, 1));
		if (PENDING(gdrfab_eq_read(n->eq, &event, &of, sizeof of, 0)) > 0 && event == GDRFAB_SHUTDOWN)
			return n;
	}
	return NULL;
}

static void sees_the_end(struct node *n)
{
	pthread_t thread;
	void *result;
	node_up(n);
	barrier(n);
	if (n->side == TEST_SERVER) {
		OK(gdrfab_ep_shutdown(n->ep, 0));
	} else {
		CHECK_EQ(pthread_create(&thread, NULL, reads_on, n), 0);
		CHECK_EQ(pthread_join(thread, &result), 0);
		CHECK(result == n);
	}
	node_down(n);
}

TEST(a_connection_ends_where_a_thread_is_to_be_cancelled)
{
	skip_if_connectionless();
	pair(NULL, sees_the_end, sees_the_end, NULL);
}
