/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Shared by the programs about wake-ups. No wake-up is lost: a thread that waits for a completion queue, an event queue or a
 * counter, in a call or by poll() on the descriptor, learns of events before, during and after the moment in which it goes
 * to sleep. A lost wake-up shows as a wait of LONG.
 */
#ifndef WAKEUPS_H
#define WAKEUPS_H

#include "fab.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>

#define LONG 6000 /* ms: longer than any wait here may last */

enum how { CALL, POLLED, HOWS };
static const char *const how_names[] = {"call", "poll"};
static const char *const progress_names[] = {"manual", "auto"};
enum object { QUEUE, EVENTS, COUNTER, OBJECTS };

/* The objects that a thread waits for. */
struct waits {
	enum how how;
	enum object object;
	gdrfab_cq *cq;
	gdrfab_eq *eq;
	gdrfab_cntr *cntr;
	int fd;
};

static inline uint64_t since(uint64_t start)
{
	return test_now_ms() - start;
}

static inline struct setup setup_of(int progress)
{
	struct setup s = {.cq_wait = GDRFAB_WAIT_FD, .threading = GDRFAB_THREAD_SAFE};
	s.progress = progress ? GDRFAB_PROGRESS_AUTO : GDRFAB_PROGRESS_MANUAL;
	return s;
}

/* Sleeps without spinning first, so that many events come in the moment of going to sleep. */
static inline void no_spinning(void)
{
	setenv("GDRFAB_SPIN_US", "0", 1);
}

/* Polls once, after the queue was read empty. True: the queue is to be read again. */
static inline bool sleep_once(const struct waits *w, const char *when, long turn)
{
	int rc = w->object == QUEUE ? gdrfab_cq_trywait(w->cq) : w->object == EVENTS ? gdrfab_eq_trywait(w->eq)
										     : gdrfab_cntr_trywait(w->cntr);
	struct pollfd p = {w->fd, POLLIN, 0};
	if (rc == -EAGAIN)
		return true;
	OK(rc);
	if (poll(&p, 1, test_ms(LONG)) == 0)
		test_fail(__FILE__, __LINE__, "%s %ld: a wake-up was lost", when, turn);
	return false;
}

/* The claims run for a fixed time: the number of turns depends on the machine. */
static inline bool goes_on(uint64_t start, long turn)
{
	return turn <= test_count(50000, 50) && since(start) < 250;
}

/* Several threads that wait for one queue. */
enum { SLEEPERS = 3 };
struct sleepers {
	gdrfab_cq *cq;
	pthread_t threads[SLEEPERS];
	ssize_t wakes; /* what wakes them: 1, an entry; -EAGAIN, a signal */
	long woken;    /* atomic */
	bool over;     /* atomic */
};

static inline void *sleeps_in_turn(void *arg)
{
	struct sleepers *s = (struct sleepers *)arg;
	done e;
	while (!__atomic_load_n(&s->over, __ATOMIC_ACQUIRE)) {
		uint64_t start = test_now_ms();
		ssize_t rc = gdrfab_cq_sread(s->cq, &e, 1, test_ms(LONG));
		if (rc == -EAGAIN && since(start) >= (uint64_t)test_ms(LONG / 2))
			test_fail(__FILE__, __LINE__, "a wake-up was lost");
		if (rc != -EAGAIN)
			CHECK_EQ(rc, 1);
		if (rc == s->wakes)
			__atomic_fetch_add(&s->woken, 1, __ATOMIC_ACQ_REL);
	}
	return NULL;
}

static inline void sleepers_start(struct sleepers *s, gdrfab_cq *cq, ssize_t wakes)
{
	memset(s, 0, sizeof *s);
	s->cq = cq;
	s->wakes = wakes;
	for (int i = 0; i < SLEEPERS; i++)
		CHECK_EQ(pthread_create(&s->threads[i], NULL, sleeps_in_turn, s), 0);
}

/* Waits until so many threads have woken. If this thread did not run for a while, only 20 ms of that time count: the woken
 * threads may not have run either. */
static inline void sleepers_await(struct sleepers *s, long count, int ms)
{
	uint64_t waited = 0, before = test_now_ms();
	while (__atomic_load_n(&s->woken, __ATOMIC_ACQUIRE) < count) {
		uint64_t now = test_now_ms(), passed = now - before;
		waited += passed < 20 ? passed : 20;
		before = now;
		if (waited >= (uint64_t)test_ms(ms))
			test_fail(__FILE__, __LINE__, "number %ld woke nobody", count);
		sched_yield();
	}
}

static inline void sleepers_end(struct sleepers *s)
{
	__atomic_store_n(&s->over, true, __ATOMIC_RELEASE);
	for (int i = 0; i < SLEEPERS; i++)
		OK(gdrfab_cq_signal(s->cq));
	for (int i = 0; i < SLEEPERS; i++)
		pthread_join(s->threads[i], NULL);
}

#endif
