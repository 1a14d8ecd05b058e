/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Threads: eight on one endpoint, eight with an endpoint each in one domain, registration during traffic, and automatic
 * progress, which serves a target that never calls the library.
 */
#include "fab.h"

#include <pthread.h>
#include <sched.h>

#define THREADS 8
#define SLOT 1024

static const char hasty[] = "a send does not wait for its receive";

static void run_threads(void *(*fn)(void *), void *args, size_t size)
{
	pthread_t thread[THREADS];
	for (int i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_create(&thread[i], NULL, fn, (char *)args + (size_t)i * size), 0);
	for (int i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_join(thread[i], NULL), 0);
}

/* --- one endpoint, one queue: the thread that reads an entry marks its operation as done --- */

struct shared {
	struct node *n;
	struct remote to;
	int number, rounds;
};

/* An operation in flight; its address is the context. */
struct flight {
	int ended;
};

static void reap(struct node *n)
{
	done entries[4];
	ssize_t got = gdrfab_cq_read(n->cq, entries, 4);
	if (got == -GDRFAB_EAVAIL) {
		struct failure f;
		memset(&f, 0, sizeof f);
		f.entry.struct_size = sizeof f.entry;
		f.entry.err_data = f.words;
		f.entry.err_data_size = sizeof f.words - 1;
		/* Another thread may have taken the entry. */
		if (gdrfab_cq_readerr(n->cq, &f.entry, 0) == 1)
			test_fail(__FILE__, __LINE__, "%s: %s", test_number(-f.entry.err), f.words);
		return;
	}
	if (got == -EAGAIN) {
		sched_yield();
		return;
	}
	CHECK(got > 0);
	for (ssize_t i = 0; i < got; i++) {
		struct flight *f = (struct flight *)entries[i].op_context;
		CHECK(f != NULL);
		CHECK_EQ(__atomic_fetch_add(&f->ended, 1, __ATOMIC_ACQ_REL), 0);
	}
}

#define FLY(n, f, call)                                                                                                \
	do {                                                                                                           \
		ssize_t rc_;                                                                                           \
		uint64_t until_ = test_now_ms() + (uint64_t)test_ms(15000);                                            \
		__atomic_store_n(&(f)->ended, 0, __ATOMIC_RELEASE);                                                    \
		while ((rc_ = (call)) == -EAGAIN && test_now_ms() < until_)                                            \
			reap(n);                                                                                       \
		OK(rc_);                                                                                               \
	} while (0)

static void land(struct node *n, struct flight *f, const char *what)
{
	uint64_t until = test_now_ms() + (uint64_t)test_ms(15000);
	while (!__atomic_load_n(&f->ended, __ATOMIC_ACQUIRE)) {
		reap(n);
		if (test_now_ms() > until)
			test_fail(__FILE__, __LINE__, "a %s did not end", what);
	}
}

static void *writes_own_slot(void *arg)
{
	struct shared *s = (struct shared *)arg;
	struct node *n = s->n;
	unsigned char out[SLOT], back[SLOT];
	struct flight f;
	uint64_t at = s->to.base + (uint64_t)s->number * SLOT;
	for (int i = 0; i < s->rounds; i++) {
		size_t len = 1 + (size_t)(i * 37 % SLOT);
		fill(out, len, 0, (uint32_t)(s->number * 10000 + i));
		FLY(n, &f, gdrfab_write(n->ep, out, len, local_desc(n, out, len), PEER, at, s->to.key, &f));
		land(n, &f, "write");
		FLY(n, &f, gdrfab_read(n->ep, back, len, local_desc(n, back, len), PEER, at, s->to.key, &f));
		land(n, &f, "read");
		CHECK_FILLED("read back by the thread that wrote", back, len, 0, (uint32_t)(s->number * 10000 + i));
	}
	fill(out, SLOT, 0, (uint32_t)s->number);
	FLY(n, &f, gdrfab_write(n->ep, out, SLOT, local_desc(n, out, SLOT), PEER, at, s->to.key, &f));
	land(n, &f, "write");
	return NULL;
}

static void slots_target(struct node *n)
{
	const struct way *way = (const struct way *)n->arg;
	struct mem m;
	node_up(n);
	mem_new(n, &m, way->kind, (size_t)THREADS * SLOT);
	memset(m.addr, 0, m.len);
	way_register(n, &m, 0, m.len, way);
	mem_publish(n, &m);
	barrier(n);
	for (uint32_t i = 0; i < THREADS; i++)
		CHECK_FILLED("a thread's slot", m.addr + i * SLOT, SLOT, 0, i);
	mem_end(n, &m);
	node_down(n);
}

static void slots_initiator(struct node *n)
{
	const struct way *way = (const struct way *)n->arg;
	struct shared s[THREADS];
	node_up(n);
	struct remote to = mem_fetch(n);
	way_check(n, way, to);
	for (int i = 0; i < THREADS; i++) {
		s[i].n = n;
		s[i].to = to;
		s[i].number = i;
		s[i].rounds = test_count(1000, 30);
	}
	run_threads(writes_own_slot, s, sizeof s[0]);
	barrier(n);
	node_down(n);
}

static const struct setup safe = {.threading = GDRFAB_THREAD_SAFE};

static void write_on_one_endpoint(const void *arg)
{
	pair(&safe, slots_target, slots_initiator, arg);
}

/* --- messages on one endpoint: each arrives once, whole --- */

struct letter {
	uint32_t thread, number;
	unsigned char body[248];
};

static void *sends_letters(void *arg)
{
	struct shared *s = (struct shared *)arg;
	struct letter l;
	struct flight f;
	for (int i = 0; i < s->rounds; i++) {
		l.thread = (uint32_t)s->number;
		l.number = (uint32_t)i;
		fill(l.body, sizeof l.body, 0, l.thread * 100000 + l.number);
		FLY(s->n, &f, gdrfab_send(s->n->ep, &l, sizeof l, local_desc(s->n, &l, sizeof l), PEER, &f));
		land(s->n, &f, "send");
	}
	return NULL;
}

static unsigned char arrived[THREADS][2000];

static void *receives_letters(void *arg)
{
	struct shared *s = (struct shared *)arg;
	struct letter l;
	struct flight f;
	for (int i = 0; i < s->rounds; i++) {
		FLY(s->n, &f, gdrfab_recv(s->n->ep, &l, sizeof l, local_desc(s->n, &l, sizeof l), PEER, &f));
		land(s->n, &f, "receive");
		CHECK(l.thread < THREADS && l.number < (uint32_t)s->rounds);
		CHECK_FILLED("a letter", l.body, sizeof l.body, 0, l.thread * 100000 + l.number);
		CHECK_EQ(__atomic_fetch_add(&arrived[l.thread][l.number], 1, __ATOMIC_ACQ_REL), 0);
	}
	return NULL;
}

static void letters(struct node *n)
{
	struct shared s[THREADS];
	node_up(n);
	skip_unless(waits_for_receive(n), hasty);
	for (int i = 0; i < THREADS; i++) {
		s[i].n = n;
		s[i].number = i;
		s[i].rounds = test_count(1500, 50);
	}
	run_threads(n->side == TEST_CLIENT ? sends_letters : receives_letters, s, sizeof s[0]);
	node_down(n);
}

TEST_WITHIN(60, messages_on_one_endpoint)
{
	pair(&safe, letters, letters, NULL);
}

TEST_WITHIN(60, messages_on_one_endpoint_automatic_progress)
{
	struct setup s = {.threading = GDRFAB_THREAD_SAFE, .progress = GDRFAB_PROGRESS_AUTO};
	pair(&s, letters, letters, NULL);
}

/* --- all of it at once, from both sides --- */

static void *plays_a_part(void *arg)
{
	struct shared *s = (struct shared *)arg;
	if (s->number < 2)
		return sends_letters(s);
	return s->number < 4 ? receives_letters(s) : writes_own_slot(s);
}

static void everything(struct node *n)
{
	struct shared s[THREADS];
	struct mem m;
	node_up(n);
	skip_unless(waits_for_receive(n), hasty);
	mem_new(n, &m, &memkinds[KIND_MALLOC], (size_t)THREADS * SLOT);
	memset(m.addr, 0, m.len);
	mem_register(n, &m, 0, m.len, ANY_ACCESS, 0);
	mem_publish(n, &m);
	struct remote to = mem_fetch(n);
	for (int i = 0; i < THREADS; i++)
		s[i] = (struct shared){n, to, i, test_count(1000, 30)};
	run_threads(plays_a_part, s, sizeof s[0]);
	barrier(n);
	for (int i = 0; i < 2; i++)
		for (int k = 0; k < s[i].rounds; k++)
			CHECK_EQ(arrived[i][k], 1);
	for (uint32_t i = 4; i < THREADS; i++)
		CHECK_FILLED("a thread's slot", m.addr + i * SLOT, SLOT, 0, i);
	barrier(n);
	mem_end(n, &m);
	node_down(n);
}

TEST_WITHIN(60, messages_and_rma_on_one_endpoint)
{
	pair(&safe, everything, everything, NULL);
}

/* --- an endpoint and a queue for each thread --- */

struct own {
	struct node *n;
	gdrfab_cq *cq;
	gdrfab_av *av;
	gdrfab_ep *ep;
	int number;
};

static void *plays_ping_pong(void *arg)
{
	struct own *o = (struct own *)arg;
	int rounds = test_count(600, 30);
	bool first = o->n->side == TEST_CLIENT;
	unsigned char in[3000], out[3000];
	for (int i = 0; i < rounds; i++) {
		size_t len = (size_t)(i * 71 % 3000);
		done e;
		fill(out, len, 0, (uint32_t)(o->number * 1000 + i));
		POST(o->cq, gdrfab_recv(o->ep, in, sizeof in, local_desc(o->n, in, sizeof in), PEER, in));
		if (first)
			POST(o->cq, gdrfab_send(o->ep, out, len, local_desc(o->n, out, len), PEER, out));
		for (int left = first ? 2 : 1; left > 0; left--)
			CHECK_EQ(cq_next(o->cq, &e, 15000), 1);
		CHECK_FILLED("ping or pong", in, len, 0, (uint32_t)(o->number * 1000 + i));
		if (!first) {
			POST(o->cq, gdrfab_send(o->ep, out, len, local_desc(o->n, out, len), PEER, out));
			CHECK_EQ(cq_next(o->cq, &e, 15000), 1);
		}
		/* Registers memory while others transfer. */
		gdrfab_mr *mr = NULL;
		OK(gdrfab_mr_reg(o->n->domain, in, sizeof in, REMOTE_ACCESS, 0, 0, 0, NULL, &mr));
		OK(gdrfab_mr_close(mr));
	}
	return NULL;
}

static void endpoint_each(struct node *n)
{
	static struct own o[THREADS];
	node_open(n);
	skip_unless(waits_for_receive(n), hasty);
	gdrfab_cq *common = n->cq;
	for (int i = 0; i < THREADS; i++) {
		o[i].n = n;
		o[i].number = i;
		o[i].cq = n->cq = cq_new(n, GDRFAB_CQ_FORMAT_DATA, 64, 0);
		node_meet(n);
		o[i].ep = n->ep;
		o[i].av = n->av;
		n->ep = NULL, n->av = NULL;
	}
	n->cq = common;
	barrier(n);
	run_threads(plays_ping_pong, o, sizeof o[0]);
	barrier(n);
	for (int i = 0; i < THREADS; i++) {
		OK(gdrfab_ep_close(o[i].ep));
		if (o[i].av)
			OK(gdrfab_av_close(o[i].av));
		OK(gdrfab_cq_close(o[i].cq));
	}
	node_down(n);
}

TEST_WITHIN(60, endpoint_for_each_thread)
{
	struct setup s = {.threading = GDRFAB_THREAD_SAFE, .by_address = true};
	pair(&s, endpoint_each, endpoint_each, NULL);
}

/* --- automatic progress: the target is in a system call of its own --- */

#define PLENTY ((size_t)2 * 1024 * 1024 + 7)

static void idle_target(struct node *n)
{
	struct mem m;
	unsigned char *in = (unsigned char *)malloc(PLENTY);
	node_up(n);
	mem_new(n, &m, &memkinds[KIND_MALLOC], PLENTY);
	memset(m.addr, 0, PLENTY);
	memset(in, 0, PLENTY);
	/* Uses a path that needs the target's progress, if one is always available. */
	mem_register(n, &m, 0, PLENTY, REMOTE_ACCESS, kind_paths(m.kind) & ~kind_maybe(m.kind) & GDRFAB_PATH_STAGED);
	POST(n->cq, gdrfab_recv(n->ep, in, PLENTY, local_desc(n, in, PLENTY), PEER, in));
	mem_publish(n, &m);
	n->idle = true;
	barrier(n);
	/* Reading the completion also orders the other thread's stores before this thread's loads. */
	done e;
	DONE(n->cq, in, GDRFAB_RECV, &e);
	CHECK_EQ(e.len, PLENTY);
	CHECK_FILLED("written without the target's help", m.addr, PLENTY, 0, 1);
	CHECK_FILLED("received without the target's help", in, PLENTY, 0, 2);
	mem_end(n, &m);
	free(in);
	node_down(n);
}

static void busy_initiator(struct node *n)
{
	unsigned char *out = (unsigned char *)malloc(PLENTY), *back = (unsigned char *)calloc(1, PLENTY);
	node_up(n);
	struct remote to = mem_fetch(n);
	fill(out, PLENTY, 0, 1);
	POST(n->cq, gdrfab_write(n->ep, out, PLENTY, local_desc(n, out, PLENTY), PEER, to.base, to.key, out));
	DONE(n->cq, out, GDRFAB_WRITE, NULL);
	POST(n->cq, gdrfab_read(n->ep, back, PLENTY, local_desc(n, back, PLENTY), PEER, to.base, to.key, back));
	DONE(n->cq, back, GDRFAB_READ, NULL);
	CHECK_FILLED("read without the target's help", back, PLENTY, 0, 1);
	fill(out, PLENTY, 0, 2);
	POST(n->cq, gdrfab_send(n->ep, out, PLENTY, local_desc(n, out, PLENTY), PEER, out));
	DONE(n->cq, out, GDRFAB_SEND, NULL);
	barrier(n);
	free(out);
	free(back);
	node_down(n);
}

TEST(automatic_progress_serves_an_idle_target)
{
	struct setup s = {.threading = GDRFAB_THREAD_SAFE, .progress = GDRFAB_PROGRESS_AUTO};
	pair(&s, idle_target, busy_initiator, NULL);
}

/* --- one thread sleeps for an operation that another posts --- */

struct sleeping {
	struct node *n;
	int wanted, got;
};

static void *sleeps(void *arg)
{
	struct sleeping *s = (struct sleeping *)arg;
	while (s->got < s->wanted) {
		done e[4];
		ssize_t got = gdrfab_cq_sread(s->n->cq, e, 4, test_ms(8000));
		if (got <= 0)
			test_fail(__FILE__, __LINE__, "after %d completions: %s", s->got, test_number(got));
		s->got += (int)got;
	}
	return NULL;
}

static void posts_while_another_sleeps(struct node *n)
{
	static unsigned char in[64];
	char word = 'w';
	pthread_t thread;
	int rounds = test_count(400, 30);
	node_up(n);
	skip_unless(waits_for_receive(n), hasty);
	struct sleeping s = {n, 2 * rounds, 0};
	CHECK_EQ(pthread_create(&thread, NULL, sleeps, &s), 0);
	uint64_t until = test_now_ms() + (uint64_t)test_ms(15000);
	for (int i = 0; i < rounds; i++) {
		void *to = local_desc(n, in, sizeof in), *from = local_desc(n, &word, 1);
		ssize_t rc;
		while ((rc = gdrfab_recv(n->ep, in, sizeof in, to, PEER, NULL)) == -EAGAIN && test_now_ms() < until)
			sched_yield();
		OK(rc);
		while ((rc = gdrfab_send(n->ep, &word, 1, from, PEER, NULL)) == -EAGAIN && test_now_ms() < until)
			sched_yield();
		OK(rc);
		if (i % 16 == 0)
			test_sleep_ms(1);
	}
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_EQ(s.got, s.wanted);
	node_down(n);
}

TEST_WITHIN(40, one_posts_another_sleeps)
{
	pair(&safe, posts_while_another_sleeps, posts_while_another_sleeps, NULL);
}

TEST_TABLE(per_way)
{
	char name[64];
	size_t count = ways_list();
	for (size_t i = 0; i < count; i++) {
		if (test_count(0, 1) && !way_leads(i))
			continue;
		snprintf(name, sizeof name, "writes_on_one_endpoint_%s", ways[i].name);
		test_add(name, write_on_one_endpoint, &ways[i], 60);
	}
}
