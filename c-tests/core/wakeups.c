/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Wake-ups within a process: threads that produce entries, threads that wait, and threads that read meanwhile. */
#include "wakeups.h"

static const char *const object_names[OBJECTS] = {"cq", "eq", "cntr"};

static void waits_open(struct waits *w, struct node *n)
{
	gdrfab_eq_attr eq_attr = {sizeof eq_attr, 0, 0, GDRFAB_WAIT_FD, 0};
	gdrfab_cntr_attr cntr_attr = {sizeof cntr_attr, 0, GDRFAB_WAIT_FD, 0};
	w->cq = n->cq;
	OK(gdrfab_eq_open(n->fabric, &eq_attr, NULL, &w->eq));
	OK(gdrfab_cntr_open(n->domain, &cntr_attr, NULL, &w->cntr));
	OK(w->object == QUEUE ? gdrfab_cq_fd(w->cq, &w->fd) : w->object == EVENTS ? gdrfab_eq_fd(w->eq, &w->fd)
									   : gdrfab_cntr_fd(w->cntr, &w->fd));
}

static void waits_close(struct waits *w)
{
	OK(gdrfab_eq_close(w->eq));
	OK(gdrfab_cntr_close(w->cntr));
}

/* --- a thread that produces, a thread that waits --- */

struct producer {
	struct waits w;
	long turn; /* atomic; -1: the claim is over */
};

static void *produce(void *arg)
{
	struct producer *p = arg;
	uint64_t random = 88172645463325252ull;
	for (long i = 1, now;; i++) {
		while ((now = __atomic_load_n(&p->turn, __ATOMIC_ACQUIRE)) < i)
			if (now < 0)
				return NULL;
		random ^= random << 13, random ^= random >> 7, random ^= random << 17;
		for (volatile uint64_t j = random % 3000; j > 0; j--)
			;
		switch (p->w.object) {
		case QUEUE: OK(gdrfab_cq_signal(p->w.cq)); break;
		case EVENTS: CHECK_EQ(gdrfab_eq_write(p->w.eq, 77, &i, sizeof i, 0), sizeof i); break;
		default: OK(i % 2 ? gdrfab_cntr_add(p->w.cntr, 1) : gdrfab_cntr_set(p->w.cntr, (uint64_t)i));
		}
	}
}

/* Waits for turn i. */
static void consume(struct producer *p, long i)
{
	uint64_t start = test_now_ms();
	uint32_t event = 0;
	long got = 0;
	done e;
	if (p->w.object == QUEUE && p->w.how == CALL) {
		CHECK_EQ(gdrfab_cq_sread(p->w.cq, &e, 1, test_ms(LONG)), -EAGAIN);
	} else if (p->w.object == QUEUE) {
		/* A signal is no entry: trywait reports it, whether it came before the poll or ended it. */
		do
			CHECK_EQ(gdrfab_cq_read(p->w.cq, &e, 1), -EAGAIN);
		while (!sleep_once(&p->w, "signal", i));
	} else if (p->w.object == EVENTS && p->w.how == CALL) {
		CHECK_EQ(gdrfab_eq_sread(p->w.eq, &event, &got, sizeof got, test_ms(LONG), 0), sizeof got);
		CHECK_EQ(got, i);
	} else if (p->w.object == EVENTS) {
		while (gdrfab_eq_read(p->w.eq, &event, &got, sizeof got, 0) == -EAGAIN)
			sleep_once(&p->w, "event", i);
		CHECK_EQ(got, i);
	} else if (p->w.how == CALL) {
		OK(gdrfab_cntr_wait(p->w.cntr, (uint64_t)i, test_ms(LONG)));
	} else {
		while (gdrfab_cntr_read(p->w.cntr) < (uint64_t)i)
			sleep_once(&p->w, "count", i);
	}
	if (since(start) >= (uint64_t)test_ms(LONG / 2))
		test_fail(__FILE__, __LINE__, "turn %ld took %llu ms", i, (unsigned long long)(since(start)));
}

/* Turn by turn, until the time is over; then the producer ends. */
static void consume_all(struct producer *p)
{
	uint64_t start = test_now_ms();
	for (long i = 1; goes_on(start, i); i++) {
		__atomic_store_n(&p->turn, i, __ATOMIC_RELEASE);
		consume(p, i);
	}
	__atomic_store_n(&p->turn, -1, __ATOMIC_RELEASE);
}

static void of_threads(const void *arg)
{
	int which = (int)(intptr_t)arg;
	struct setup s = setup_of(which / (HOWS * OBJECTS));
	struct producer p = {.w = {.how = which % HOWS, .object = which / HOWS % OBJECTS}};
	struct node n;
	pthread_t thread;
	no_spinning();
	node_alone(&n, &s);
	waits_open(&p.w, &n);
	CHECK_EQ(pthread_create(&thread, NULL, produce, &p), 0);
	consume_all(&p);
	pthread_join(thread, NULL);
	waits_close(&p.w);
	node_close(&n);
}

/* --- several threads wait for one queue: each entry and each signal wakes one of them --- */

TEST(each_signal_wakes_one)
{
	struct setup setup = setup_of(0);
	struct node n;
	struct sleepers s;
	no_spinning();
	node_alone(&n, &setup);
	sleepers_start(&s, n.cq, -EAGAIN);
	/* Sends one signal for each thread, and the next ones after all threads have woken. */
	uint64_t start = test_now_ms();
	for (long sent = 0; goes_on(start, sent); sent += SLEEPERS) {
		for (int i = 0; i < SLEEPERS; i++)
			OK(gdrfab_cq_signal(n.cq));
		sleepers_await(&s, sent + SLEEPERS, LONG);
	}
	sleepers_end(&s);
	node_close(&n);
}

/* --- a thread that reads takes no wake-up from a thread that polls --- */

static void *reads_now_and_then(void *arg)
{
	struct producer *p = arg;
	done e;
	while (__atomic_load_n(&p->turn, __ATOMIC_ACQUIRE) >= 0) {
		CHECK_EQ(gdrfab_cq_read(p->w.cq, &e, 1), -EAGAIN);
		CHECK_EQ(gdrfab_cntr_readerr(p->w.cntr), 0);
	}
	return NULL;
}

TEST(who_reads_leaves_no_poll_asleep)
{
	struct setup s = setup_of(0);
	struct node n;
	struct producer p = {.w = {.how = POLLED, .object = QUEUE}};
	pthread_t reader, signaller;
	no_spinning();
	node_alone(&n, &s);
	waits_open(&p.w, &n);
	CHECK_EQ(pthread_create(&reader, NULL, reads_now_and_then, &p), 0);
	CHECK_EQ(pthread_create(&signaller, NULL, produce, &p), 0);
	consume_all(&p);
	pthread_join(reader, NULL);
	pthread_join(signaller, NULL);
	waits_close(&p.w);
	node_close(&n);
}

TEST_TABLE(table)
{
	char name[64];
	for (int progress = 0; progress < 2; progress++)
		for (int object = 0; object < OBJECTS; object++)
			for (int how = 0; how < HOWS; how++) {
				/* Sleepers allocate nothing: a memory checker sees each kind of progress and of sleep once. */
				if (test_checked() && how != progress)
					continue;
				int which = (progress * OBJECTS + object) * HOWS + how;
				snprintf(name, sizeof name, "%s_%s_%s", object_names[object], how_names[how], progress_names[progress]);
				test_add(name, of_threads, (const void *)(intptr_t)which, 40);
			}
}
