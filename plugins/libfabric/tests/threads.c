/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* FI_THREAD_SAFE: threads post to one endpoint and read one queue while others open and close objects. */
#include "fi.h"

#include <pthread.h>

#define SENT (FI_SEND | FI_MSG)
#define RECEIVED (FI_RECV | FI_MSG)

enum { THREADS = 4, EACH = 3000, MOST = 64 };

/* A message holds its sending thread and its number among that thread's messages. */
struct message {
	uint32_t thread, number;
	uint64_t check;
};

struct shared {
	struct node *n;
	struct message *out; /* per thread, MOST of them */
	struct message *in;
	int each;
	uint64_t total;
	uint64_t sent, came;
	uint32_t next[THREADS]; /* numbers expected from each thread of the other side */
	struct remote to;
	uint64_t written;
	bool over;
};

struct worker {
	struct shared *s;
	uint32_t thread;
};

static uint64_t check_of(uint32_t thread, uint32_t number)
{
	return (uint64_t)thread * 1000003 + number * 7919u + 13;
}

static void take(struct shared *s, const done *e)
{
	struct node *n = s->n;
	if (e->flags & FI_RECV) {
		struct message *m = (struct message *)e->op_context;
		CHECK_EQ(e->flags, RECEIVED);
		CHECK_EQ(e->len, sizeof *m);
		CHECK(m->thread < THREADS);
		CHECK_EQ(m->check, check_of(m->thread, m->number));
		__atomic_fetch_add(&s->next[m->thread], 1, __ATOMIC_RELAXED);
		if (__atomic_add_fetch(&s->came, 1, __ATOMIC_RELAXED) + THREADS * MOST <= s->total)
			POST(n->cq, fi_recv(n->ep, m, sizeof *m, local_desc(n, m, sizeof *m), 0, m));
		return;
	}
	CHECK(e->flags == SENT || e->flags == (FI_RMA | FI_WRITE));
	/* The buffer belongs to its thread again. */
	if (e->flags == SENT)
		__atomic_fetch_add(&s->sent, 1, __ATOMIC_RELAXED);
	else
		__atomic_fetch_add(&s->written, 1, __ATOMIC_RELAXED);
	__atomic_store_n(&((struct message *)e->op_context)->check, 0, __ATOMIC_RELEASE);
}

static void take_some(struct shared *s)
{
	done e[8];
	ssize_t got = fi_cq_read(s->n->cq, e, 8);
	if (got == -FI_EAVAIL) {
		struct failure f;
		/* Another thread may have taken the entry. */
		memset(&f, 0, sizeof f);
		if (fi_cq_readerr(s->n->cq, &f.entry, 0) == 1)
			test_fail(__FILE__, __LINE__, "an operation failed: %s, flags 0x%llx",
				  test_number(-f.entry.err), (unsigned long long)f.entry.flags);
		return;
	}
	if (got != -FI_EAGAIN && got < 0)
		test_fail(__FILE__, __LINE__, "fi_cq_read is %s", test_number(got));
	for (ssize_t i = 0; i < got; i++)
		take(s, &e[i]);
}

static void *work(void *arg)
{
	struct worker *w = (struct worker *)arg;
	struct shared *s = w->s;
	struct node *n = s->n;
	struct message *mine = s->out + w->thread * MOST;
	for (uint32_t i = 0; i < (uint32_t)s->each; i++) {
		struct message *m = &mine[i % MOST];
		while (__atomic_load_n(&m->check, __ATOMIC_ACQUIRE) != 0)
			take_some(s);
		*m = (struct message){w->thread, i, check_of(w->thread, i)};
		void *desc = local_desc(n, m, sizeof *m);
		for (;;) {
			ssize_t rc;
			if (i % 4 == 3 && n->info->tx_attr->inject_size >= sizeof *m)
				rc = fi_inject(n->ep, m, sizeof *m, 0);
			else
				rc = fi_send(n->ep, m, sizeof *m, desc, 0, m);
			if (rc == 0)
				break;
			if (rc != -FI_EAGAIN)
				test_fail(__FILE__, __LINE__, "a send is %s", test_number(rc));
			take_some(s);
		}
		if (i % 4 == 3) {
			m->check = 0;
			__atomic_fetch_add(&s->sent, 1, __ATOMIC_RELAXED);
		}
		take_some(s);
	}
	while (__atomic_load_n(&s->came, __ATOMIC_RELAXED) < s->total ||
	       __atomic_load_n(&s->sent, __ATOMIC_RELAXED) < s->total)
		take_some(s);
	return NULL;
}

static void *disturb(void *arg)
{
	struct shared *s = (struct shared *)arg;
	unsigned char *at = (unsigned char *)pages(4096);
	while (!__atomic_load_n(&s->over, __ATOMIC_ACQUIRE)) {
		struct fid_mr *mr = NULL;
		/* The other threads register too, and none may disturb another. */
		OK(fi_mr_reg(s->n->domain, at, 4096, FI_REMOTE_WRITE | FI_SEND, 0, 1u << 20, 0, &mr, NULL));
		CLOSE(mr);
		struct fid_ep *ep = ep_new(s->n, s->n->info, NULL);
		CLOSE(ep);
		struct fid_cq *cq = cq_new(s->n, FI_CQ_FORMAT_DATA, 0, FI_WAIT_NONE);
		CLOSE(cq);
		usleep(200);
	}
	free(at);
	return NULL;
}

static void threaded(struct node *n)
{
	struct shared s;
	struct worker w[THREADS];
	pthread_t thread[THREADS], other;
	memset(&s, 0, sizeof s);
	node_up(n);
	CHECK_EQ(n->info->domain_attr->threading, FI_THREAD_SAFE);
	s.n = n;
	s.each = test_count(EACH, 150);
	s.total = (uint64_t)s.each * THREADS;
	size_t size = THREADS * MOST * sizeof(struct message);
	s.out = (struct message *)pages(size);
	s.in = (struct message *)pages(size);
	local_desc(n, s.out, size);
	local_desc(n, s.in, size);
	size_t room = s.total < THREADS * MOST ? s.total : THREADS * MOST;
	for (size_t i = 0; i < room; i++)
		POST(n->cq, fi_recv(n->ep, &s.in[i], sizeof s.in[i], local_desc(n, s.in, size), 0, &s.in[i]));
	barrier(n);
	CHECK_EQ(pthread_create(&other, NULL, disturb, &s), 0);
	for (uint32_t t = 0; t < THREADS; t++) {
		w[t] = (struct worker){&s, t};
		CHECK_EQ(pthread_create(&thread[t], NULL, work, &w[t]), 0);
	}
	for (int t = 0; t < THREADS; t++)
		pthread_join(thread[t], NULL);
	__atomic_store_n(&s.over, true, __ATOMIC_RELEASE);
	pthread_join(other, NULL);
	CHECK_EQ(s.came, s.total);
	for (int t = 0; t < THREADS; t++)
		CHECK_EQ(s.next[t], s.each);
	barrier(n);
	QUIET(n->cq, 0);
	local_forget_all(n);
	free(s.out);
	free(s.in);
	node_down(n);
}

TEST_WITHIN(60, one_endpoint)
{
	struct setup setup = {.threading = FI_THREAD_SAFE, .cq_size = 4096};
	pair(&setup, threaded, threaded, NULL);
}

/* --- a thread for each endpoint, one queue each, in one domain --- */

enum { TALKS = 600 };

struct talk {
	struct node *n;
	struct fid_cq *cq;
	struct fid_ep *ep;
	struct remote to;
	int index, rounds, *ended;
	bool *over;
};

static void *talk(void *arg)
{
	struct talk *t = (struct talk *)arg;
	struct node *n = t->n;
	uint64_t *at = (uint64_t *)pages(4096);
	void *desc = local_desc(n, at, 4096);
	for (int i = 0; i < t->rounds; i++) {
		int left = 3;
		at[0] = (uint64_t)i * THREADS + (uint64_t)t->index;
		POST(t->cq, fi_recv(t->ep, &at[1], 8, desc, 0, &at[1]));
		POST(t->cq, fi_send(t->ep, &at[0], 8, desc, 0, &at[0]));
		POST(t->cq, fi_write(t->ep, &at[0], 8, desc, 0, t->to.base + 64u * (unsigned)t->index, t->to.key,
				     &at[2]));
		while (left > 0) {
			done e;
			int got = cq_next(t->cq, &e, 10000);
			CHECK_EQ(got, 1);
			CHECK(e.op_context == &at[e.flags & FI_RECV ? 1 : e.flags & FI_RMA ? 2 : 0]);
			left--;
		}
		CHECK_EQ(at[1], at[0]);
	}
	/* The other side may still need this side's progress. */
	__atomic_fetch_add(t->ended, 1, __ATOMIC_RELEASE);
	while (!__atomic_load_n(t->over, __ATOMIC_ACQUIRE))
		fi_cq_read(t->cq, NULL, 0);
	local_forget(n, at, 4096);
	free(at);
	return NULL;
}

static void talkers(struct node *n)
{
	struct talk t[THREADS];
	int ended = 0;
	bool over = false;
	pthread_t thread[THREADS];
	uint64_t *target = (uint64_t *)pages(4096);
	node_open(n);
	struct fid_cq *own = n->cq;
	struct fid_mr *mr = mr_new(n, target, 4096, FI_REMOTE_WRITE | FI_REMOTE_READ);
	mr_publish(n, mr, target, 4096);
	struct remote to = mr_fetch(n);
	for (int i = 0; i < THREADS; i++) {
		t[i] = (struct talk){n, cq_new(n, FI_CQ_FORMAT_DATA, 0, FI_WAIT_NONE), NULL, to, i,
				     test_count(TALKS, 50), &ended, &over};
		n->cq = t[i].cq;
		t[i].ep = node_connect(n, &t[i]);
		n->cq = own;
	}
	barrier(n);
	for (int i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_create(&thread[i], NULL, talk, &t[i]), 0);
	while (__atomic_load_n(&ended, __ATOMIC_ACQUIRE) < THREADS)
		usleep(1000);
	barrier(n);
	__atomic_store_n(&over, true, __ATOMIC_RELEASE);
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	for (int i = 0; i < THREADS; i++)
		CHECK_EQ(target[8 * i], (uint64_t)(t[i].rounds - 1) * THREADS + (uint64_t)i);
	for (int i = 0; i < THREADS; i++) {
		CLOSE(t[i].ep);
		CLOSE(t[i].cq);
	}
	CLOSE(mr);
	node_down(n);
	free(target);
}

TEST_WITHIN(60, an_endpoint_each)
{
	struct setup setup = {.threading = FI_THREAD_SAFE};
	pair(&setup, talkers, talkers, NULL);
}
