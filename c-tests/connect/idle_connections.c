/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Many connections on one queue, most of them idle. Progress may skip idle connections, but must not miss data that arrives
 * on one. A lost wake-up shows as a time limit that runs out.
 */
#include "fab.h"

#include <poll.h>
#include <pthread.h>

#define MOST 1000
#define LONG 10000 /* ms: longer than any wait here may last */
#define WORDS 64
#define KEY "what both sides know"

struct plan {
	int count, rounds;
	size_t len;
};

static gdrfab_ep *eps[MOST];
static uint64_t in[MOST];

static int place_of(const void *context)
{
	return (int)((const uint64_t *)context - in);
}

static void open_one(struct node *n, int i)
{
	if (n->side == TEST_SERVER) {
		gdrfab_info *request = node_await_request(n);
		if (!n->domain)
			node_domain(n, request);
		eps[i] = ep_new(n, request, &in[i]);
		OK(gdrfab_ep_accept(eps[i], NULL, 0));
		gdrfab_freeinfo(request);
	} else {
		eps[i] = ep_new(n, n->info, &in[i]);
		OK(gdrfab_ep_connect(eps[i], n->info->dest_addr, n->info->dest_addrlen, NULL, 0));
	}
	EVENT(n->eq, GDRFAB_CONNECTED, eps[i], NULL);
}

static void post(struct node *n, int i)
{
	POST(n->cq, gdrfab_recv(eps[i], &in[i], 8, local_desc(n, &in[i], 8), 0, &in[i]));
}

/* Opens all connections; each has a receive posted. */
static void open_all(struct node *n, int count)
{
	node_open(n);
	if (n->side == TEST_SERVER)
		node_listen(n);
	barrier(n);
	for (int i = 0; i < count; i++) {
		open_one(n, i);
		post(n, i);
	}
	barrier(n);
}

static void close_all(struct node *n, int count)
{
	barrier(n);
	for (int i = 0; i < count; i++)
		if (eps[i])
			OK(gdrfab_ep_close(eps[i]));
	node_close(n);
}

enum { POLLING, SLEEPING, BY_POLL, WAYS };

/* The next entry, by one of the ways to wait; 1 or -GDRFAB_EAVAIL. */
static ssize_t await_entry(struct node *n, done *e, int way)
{
	uint64_t until = test_now_ms() + (uint64_t)test_ms(LONG);
	ssize_t got;
	if (way == SLEEPING) {
		got = gdrfab_cq_sread(n->cq, e, 1, test_ms(LONG));
	} else {
		while ((got = gdrfab_cq_read(n->cq, e, 1)) == -EAGAIN && test_now_ms() < until) {
			int fd = -1;
			if (way == POLLING || gdrfab_cq_trywait(n->cq) == -EAGAIN)
				continue;
			OK(gdrfab_cq_fd(n->cq, &fd));
			struct pollfd p = {fd, POLLIN, 0};
			CHECK_EQ(poll(&p, 1, test_ms(LONG)), 1);
		}
	}
	if (got == -EAGAIN)
		test_fail(__FILE__, __LINE__, "nothing came, waiting in way %d", way);
	return got;
}

static void send_to(struct node *n, int i, uint64_t word)
{
	POST(n->cq, gdrfab_inject(eps[i], &word, 8, 0));
}

/* ---- requests on any connection, in any order, with each way to wait: every request is answered */

static void answers(struct node *n)
{
	const struct plan *plan = (const struct plan *)n->arg;
	struct mem m;
	open_all(n, plan->count);
	mem_new(n, &m, &memkinds[KIND_MEM_ALLOC], plan->len);
	mem_register(n, &m, 0, plan->len, ANY_ACCESS, 0);
	mem_publish(n, &m);
	for (int round = 0; round < plan->rounds; round++) {
		done e;
		CHECK_EQ(await_entry(n, &e, round / 7 % WAYS), 1);
		int i = place_of(e.op_context);
		CHECK(i >= 0 && i < plan->count);
		uint64_t word = in[i];
		CHECK_EQ((int)(word & 0xffff), i);
		post(n, i);
		send_to(n, i, word + ((uint64_t)1 << 32));
	}
	barrier(n);
	CHECK_MEM("what was written last", &m, 0, plan->len, 0, (uint32_t)plan->rounds);
	mem_unregister(&m);
	mem_end(n, &m);
	close_all(n, plan->count);
}

static void asks(struct node *n)
{
	const struct plan *plan = (const struct plan *)n->arg;
	uint64_t random = 5;
	unsigned char *bytes = (unsigned char *)malloc(plan->len);
	CHECK(bytes != NULL);
	open_all(n, plan->count);
	struct remote to = mem_fetch(n);
	for (int round = 0; round < plan->rounds; round++) {
		done e;
		/* Mostly the same few connections, and every other one now and then. */
		int i = (int)(test_random(&random) % (uint64_t)(round % 3 ? 3 : plan->count));
		uint64_t word = (uint64_t)(round + 1) << 16 | (uint64_t)i;
		if (round % 5 == 4)
			test_sleep_ms((int)(test_random(&random) % 3));
		/* Some paths need the target's progress to end a write. */
		fill(bytes, plan->len, 0, (uint32_t)round + 1);
		POST(n->cq, gdrfab_write(eps[i], bytes, plan->len, local_desc(n, bytes, plan->len), 0, to.base, to.key, n));
		CHECK_EQ(await_entry(n, &e, round % WAYS == BY_POLL ? SLEEPING : round % WAYS), 1);
		CHECK(e.op_context == n);
		send_to(n, i, word);
		CHECK_EQ(await_entry(n, &e, SLEEPING), 1);
		CHECK(e.op_context == &in[i]);
		CHECK_EQ((long long)in[i], (long long)(word + ((uint64_t)1 << 32)));
		post(n, i);
	}
	barrier(n);
	free(bytes);
	close_all(n, plan->count);
}

static void ask_any(const struct setup *s, int count, int rounds, size_t len)
{
	struct plan plan = {count, rounds, len};
	pair(s, answers, asks, &plan);
}

static void enough_queues(void)
{
	skip_unless(!traits()->adapter, "not every adapter has queues for so many");
}

TEST_WITHIN(90, any_of_a_hundred)
{
	struct setup s = {.cq_wait = GDRFAB_WAIT_FD};
	ask_any(&s, test_count(100, 12), test_count(400, 50), WORDS);
}

TEST_WITHIN(90, any_of_a_hundred_whose_bytes_are_sealed)
{
	struct setup s = {.cq_wait = GDRFAB_WAIT_FD, .key = {NULL, KEY, KEY}};
	skip_unless(path_known(PATH_SOCKET), "nothing is sealed");
	ask_any(&s, test_count(100, 12), test_count(300, 50), 20000);
}

TEST_WITHIN(90, any_of_many_with_further_streams)
{
	struct setup s = {.cq_wait = GDRFAB_WAIT_FD, .tcp_streams = {0, 2, 2}};
	skip_unless(path_known(PATH_SOCKET), "no further streams");
	ask_any(&s, 12, test_count(150, 30), (size_t)1 << 20);
}

TEST_WITHIN(90, any_of_a_hundred_driven_by_a_thread)
{
	struct setup s = {.cq_wait = GDRFAB_WAIT_FD, .progress = GDRFAB_PROGRESS_AUTO};
	ask_any(&s, test_count(100, 12), test_count(300, 50), WORDS);
}

TEST_WITHIN(240, any_of_a_thousand)
{
	struct setup s = {.cq_wait = GDRFAB_WAIT_FD};
	enough_queues();
	ask_any(&s, test_count(MOST, 20), test_count(400, 50), WORDS);
}

/* ---- deadlines of idle connections */

#define FORTY 40

static void waits_in_vain(struct node *n)
{
	done e;
	node_open(n);
	node_listen(n);
	barrier(n);
	for (int i = 0; i < FORTY; i++) {
		open_one(n, i);
		uint64_t ns = (uint64_t)(50 + 7 * i) * 1000000;
		OK(gdrfab_ep_setopt(eps[i], GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_RECV_DEADLINE, &ns, sizeof ns));
	}
	/* All connections become idle before an operation is posted on one. */
	QUIET(n->cq, 20);
	for (int i = 0; i < FORTY; i++)
		post(n, i);
	bool late[FORTY] = {false};
	for (int k = 0; k < FORTY; k++) {
		struct failure f;
		CHECK_EQ(await_entry(n, &e, k % WAYS), -GDRFAB_EAVAIL);
		cq_failure(__FILE__, __LINE__, n->cq, &f);
		CHECK_EQ(f.entry.err, ETIMEDOUT);
		int i = place_of(f.entry.op_context);
		CHECK(i >= 0 && i < FORTY && !late[i]);
		late[i] = true;
	}
	close_all(n, FORTY);
}

static void says_nothing(struct node *n)
{
	node_open(n);
	barrier(n);
	for (int i = 0; i < FORTY; i++)
		open_one(n, i);
	close_all(n, FORTY);
}

TEST(receives_of_idle_ones_end_in_time)
{
	struct setup s = {.cq_wait = GDRFAB_WAIT_FD};
	enough_queues();
	pair(&s, waits_in_vain, says_nothing, NULL);
}

/* ---- connections are opened and closed, one by one and all at once */

static void stays(struct node *n)
{
	done e;
	open_all(n, FORTY);
	QUIET(n->cq, 20);
	barrier(n);
	for (int round = 0; round < 3; round++) {
		/* Every third peer closes: its receive has an entry, and its connection an event. */
		for (int i = round; i < FORTY; i += 3) {
			struct failure f;
			EVENT(n->eq, GDRFAB_SHUTDOWN, eps[i], NULL);
			CHECK_EQ(await_entry(n, &e, i % WAYS), -GDRFAB_EAVAIL);
			cq_failure(__FILE__, __LINE__, n->cq, &f);
			CHECK(f.entry.op_context == &in[i]);
			OK(gdrfab_ep_close(eps[i]));
			oob_send(n, &i, sizeof i);
		}
		for (int i = round; i < FORTY; i += 3) {
			open_one(n, i);
			post(n, i);
		}
		for (int i = 0; i < FORTY; i++) {
			CHECK_EQ(await_entry(n, &e, i % WAYS), 1);
			CHECK(e.op_context == &in[i]);
			post(n, i);
			send_to(n, i, in[i]);
		}
	}
	barrier(n);
	peer_kill(n);
	bool over[FORTY] = {false};
	for (int k = 0; k < FORTY; k++) {
		struct failure f;
		CHECK_EQ(await_entry(n, &e, k % WAYS), -GDRFAB_EAVAIL);
		cq_failure(__FILE__, __LINE__, n->cq, &f);
		int i = place_of(f.entry.op_context);
		CHECK(i >= 0 && i < FORTY && !over[i]);
		over[i] = true;
		EVENT(n->eq, GDRFAB_SHUTDOWN, NULL, NULL);
	}
	for (int i = 0; i < FORTY; i++)
		OK(gdrfab_ep_close(eps[i]));
	node_close(n);
}

static void comes_and_goes(struct node *n)
{
	done e;
	open_all(n, FORTY);
	barrier(n);
	for (int round = 0; round < 3; round++) {
		for (int i = round; i < FORTY; i += 3) {
			int gone;
			struct failure f;
			OK(gdrfab_ep_close(eps[i]));
			CHECK_EQ(await_entry(n, &e, POLLING), -GDRFAB_EAVAIL);
			cq_failure(__FILE__, __LINE__, n->cq, &f);
			oob_recv(n, &gone, sizeof gone);
			CHECK_EQ(gone, i);
		}
		for (int i = round; i < FORTY; i += 3) {
			open_one(n, i);
			post(n, i);
		}
		for (int i = 0; i < FORTY; i++) {
			send_to(n, i, 1000u + (uint64_t)i);
			CHECK_EQ(await_entry(n, &e, SLEEPING), 1);
			CHECK_EQ((long long)in[i], 1000 + i);
			post(n, i);
		}
	}
	barrier(n);
	for (;;)
		pause();
}

TEST_WITHIN(60, idle_ones_end_and_others_come)
{
	struct setup s = {.cq_wait = GDRFAB_WAIT_FD, .victim = TEST_CLIENT};
	enough_queues();
	pair(&s, stays, comes_and_goes, NULL);
}

/* ---- one thread sleeps on the queue, another one posts on idle connections */

struct posts {
	struct node *n;
	int rounds;
};

static void *posts_all(void *arg)
{
	const struct posts *p = (const struct posts *)arg;
	static uint64_t word = 9;
	for (int round = 0; round < p->rounds; round++) {
		int i = round * 7 % FORTY;
		while (gdrfab_send(eps[i], &word, 8, local_desc(p->n, &word, 8), 0, NULL) == -EAGAIN)
			;
		if (round % 16 == 0)
			test_sleep_ms(1);
	}
	return NULL;
}

static void sleeps_beside(struct node *n)
{
	struct posts p = {n, test_count(2000, 100)};
	pthread_t thread;
	int sent = 0, echoed = 0;
	skip_unless(!getenv("TEST_THREADING"), "two threads, and a promise of one");
	open_all(n, FORTY);
	QUIET(n->cq, 20);
	local_desc(n, in, sizeof in);
	CHECK_EQ(pthread_create(&thread, NULL, posts_all, &p), 0);
	while (sent < p.rounds || echoed < p.rounds) {
		done e;
		CHECK_EQ(await_entry(n, &e, SLEEPING), 1);
		if (!e.op_context) {
			sent++;
			continue;
		}
		echoed++;
		post(n, place_of(e.op_context));
	}
	pthread_join(thread, NULL);
	close_all(n, FORTY);
}

static void echoes(struct node *n)
{
	int rounds = test_count(2000, 100);
	open_all(n, FORTY);
	for (int k = 0; k < rounds; k++) {
		done e;
		CHECK_EQ(await_entry(n, &e, SLEEPING), 1);
		int i = place_of(e.op_context);
		post(n, i);
		POST(n->cq, gdrfab_inject(eps[i], &in[i], 8, 0));
	}
	close_all(n, FORTY);
}

TEST_WITHIN(60, a_thread_posts_while_another_sleeps)
{
	struct setup s = {.cq_size = 8192};
	enough_queues();
	pair(&s, sleeps_beside, echoes, NULL);
}
