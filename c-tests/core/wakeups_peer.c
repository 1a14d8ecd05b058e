/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Wake-ups by a peer, while other threads post to, bind or connect the endpoint that a thread waits for. */
#include "wakeups.h"

#include <fcntl.h>
#include <sys/resource.h>

/* --- one thread waits, another one posts and then leaves the endpoint to it --- */

enum { BURST = 64, LARGE = 48 << 10 };

struct poster {
	struct node *n;
	char *bytes;
	void *desc;
	int count;
};

static void *posts(void *arg)
{
	struct poster *p = arg;
	for (int i = 0; i < p->count; i++) {
		ssize_t rc;
		/* Some are sent at once, some wait for the peer, and some wait to be sent together with others. */
		size_t len = i % 4 == 0 ? LARGE : 16;
		while ((rc = gdrfab_send(p->n->ep, p->bytes, len, p->desc, 0, NULL)) == -EAGAIN)
			test_sleep_ms(1);
		OK(rc);
	}
	return NULL;
}

static void next_entry(struct node *n, const struct waits *w, int ms, long turn)
{
	uint64_t start = test_now_ms();
	ssize_t rc;
	done e;
	if (w->how == CALL) {
		CHECK_EQ(gdrfab_cq_sread(n->cq, &e, 1, test_ms(LONG)), 1);
	} else {
		while ((rc = gdrfab_cq_read(n->cq, &e, 1)) == -EAGAIN)
			sleep_once(w, "entry", turn);
		CHECK_EQ(rc, 1);
	}
	if (since(start) >= (uint64_t)test_ms(ms))
		came_late("entry %ld came after %llu ms", turn, (unsigned long long)(since(start)));
}

static void leaves_to_sleeper(struct node *n)
{
	struct waits w = {.how = (enum how)(intptr_t)n->arg, .object = QUEUE};
	char *bytes = calloc(1, LARGE);
	pthread_t thread;
	node_up(n);
	w.cq = n->cq;
	OK(gdrfab_cq_fd(n->cq, &w.fd));
	void *desc = local_desc(n, bytes, LARGE);
	n->idle = true;
	for (int round = 0; round < test_count(3, 2); round++) {
		struct poster p = {n, bytes, desc, BURST};
		barrier(n);
		CHECK_EQ(pthread_create(&thread, NULL, posts, &p), 0);
		/* The peer receives the first after a while, and is slow then; 700 ms are far more than it delays. */
		for (int i = 0; i < BURST; i++)
			next_entry(n, &w, 700, i);
		pthread_join(thread, NULL);
	}
	n->idle = false;
	barrier(n);
	free(bytes);
	node_down(n);
}

static void receives_slowly(struct node *n)
{
	char *bytes = calloc(BURST, LARGE);
	node_up(n);
	for (int round = 0; round < test_count(3, 2); round++) {
		for (int i = 0; i < BURST; i++) {
			char *at = bytes + (size_t)i * LARGE;
			POST(n->cq, gdrfab_recv(n->ep, at, LARGE, local_desc(n, at, LARGE), 0, at));
		}
		barrier(n);
		test_sleep_ms(100);
		for (int i = 0; i < BURST; i++) {
			DONE(n->cq, bytes + (size_t)i * LARGE, GDRFAB_RECV, NULL);
			if (i % 16 == 0)
				test_sleep_ms(10);
		}
	}
	barrier(n);
	local_forget_all(n);
	free(bytes);
	node_down(n);
}

static void of_a_poster(const void *arg)
{
	int which = (int)(intptr_t)arg;
	struct setup s = setup_of(which / HOWS);
	no_spinning();
	pair_in_time(&s, leaves_to_sleeper, receives_slowly, (const void *)(intptr_t)(which % HOWS));
}

/* --- several threads wait for one queue, and the peer fills it --- */

static void shares_a_queue(struct node *n)
{
	static char in[16];
	struct sleepers s;
	char go = 1;
	node_up(n);
	void *desc = local_desc(n, in, sizeof in);
	n->idle = true;
	sleepers_start(&s, n->cq, 1);
	uint64_t start = test_now_ms();
	for (long i = 0; goes_on(start, i); i++) {
		OK(gdrfab_recv(n->ep, in, sizeof in, desc, 0, NULL));
		oob_send(n, &go, 1);
		sleepers_await(&s, i + 1, 500);
	}
	go = 0;
	oob_send(n, &go, 1);
	sleepers_end(&s);
	n->idle = false;
	barrier(n);
	node_down(n);
}

static void sends_when_asked(struct node *n)
{
	char out[16] = "", go;
	node_up(n);
	void *desc = local_desc(n, out, sizeof out);
	while (oob_recv(n, &go, 1), go) {
		POST(n->cq, gdrfab_send(n->ep, out, sizeof out, desc, 0, NULL));
		DONE(n->cq, NULL, GDRFAB_SEND, NULL);
	}
	barrier(n);
	node_down(n);
}

static void of_several(const void *arg)
{
	struct setup s = setup_of((int)(intptr_t)arg / HOWS);
	no_spinning();
	pair(&s, shares_a_queue, sends_when_asked, NULL);
}

/* --- entries that had no room in the queue --- */

enum { SMALL = 8, MANY = 48 };

static void lets_it_fill(struct node *n)
{
	static char in[MANY][16];
	struct waits w = {.how = (enum how)(intptr_t)n->arg, .object = QUEUE};
	node_up(n);
	w.cq = n->cq;
	OK(gdrfab_cq_fd(n->cq, &w.fd));
	for (int i = 0; i < MANY; i++)
		POST(n->cq, gdrfab_recv(n->ep, in[i], 16, local_desc(n, in[i], 16), 0, NULL));
	n->idle = true;
	barrier(n);
	test_sleep_ms(300);
	for (int i = 0; i < MANY; i++)
		next_entry(n, &w, 700, i);
	n->idle = false;
	barrier(n);
	node_down(n);
}

static void sends_many(struct node *n)
{
	static char out[16];
	node_up(n);
	barrier(n);
	for (int i = 0; i < MANY; i++) {
		POST(n->cq, gdrfab_send(n->ep, out, sizeof out, local_desc(n, out, sizeof out), 0, NULL));
		DONE(n->cq, NULL, GDRFAB_SEND, NULL);
	}
	barrier(n);
	node_down(n);
}

static void of_a_full_queue(const void *arg)
{
	int which = (int)(intptr_t)arg;
	struct setup s = setup_of(which / HOWS);
	s.cq_size = SMALL;
	no_spinning();
	pair_in_time(&s, lets_it_fill, sends_many, (const void *)(intptr_t)(which % HOWS));
}

/* --- a deadline that another thread's operation brings --- */

static void *posts_late_receive(void *arg)
{
	struct node *n = arg;
	static char in;
	test_sleep_ms(150);
	OK(gdrfab_recv(n->ep, &in, 1, local_desc(n, &in, 1), 0, &in));
	return NULL;
}

static void sleeps_into_a_deadline(struct node *n)
{
	struct waits w = {.how = (enum how)(intptr_t)n->arg, .object = QUEUE};
	pthread_t thread;
	ssize_t rc;
	done e;
	struct failure f;
	uint64_t ns = 200ull * 1000000;
	node_up(n);
	w.cq = n->cq;
	OK(gdrfab_cq_fd(n->cq, &w.fd));
	OK(gdrfab_ep_setopt(n->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_RECV_DEADLINE, &ns, sizeof ns));
	n->idle = true;
	barrier(n);
	CHECK_EQ(pthread_create(&thread, NULL, posts_late_receive, n), 0);
	uint64_t start = test_now_ms();
	if (w.how == CALL)
		rc = gdrfab_cq_sread(n->cq, &e, 1, test_ms(LONG));
	else
		while ((rc = gdrfab_cq_read(n->cq, &e, 1)) == -EAGAIN)
			sleep_once(&w, "deadline", 0);
	CHECK_EQ(rc, -GDRFAB_EAVAIL);
	/* The deadline must end the sleep after 350 ms; a sleeper without one wakes only after a second. */
	if (since(start) >= (uint64_t)test_ms(850))
		came_late("the deadline came after %llu ms", (unsigned long long)(since(start)));
	cq_failure(__FILE__, __LINE__, n->cq, &f);
	CHECK_EQ(f.entry.err, ETIMEDOUT);
	pthread_join(thread, NULL);
	n->idle = false;
	barrier(n);
	node_close(n);
}

static void says_nothing(struct node *n)
{
	node_up(n);
	barrier(n);
	barrier(n);
	node_close(n);
}

static void of_a_deadline(const void *arg)
{
	int which = (int)(intptr_t)arg;
	struct setup s = setup_of(which / HOWS);
	no_spinning();
	pair_in_time(&s, sleeps_into_a_deadline, says_nothing, (const void *)(intptr_t)(which % HOWS));
}

/* --- an endpoint that another thread binds and connects while this one sleeps --- */

struct opener {
	struct node *n;
	gdrfab_ep *ep;
};

static void *connects(void *arg)
{
	struct opener *o = arg;
	struct node *n = o->n;
	test_sleep_ms(150);
	o->ep = ep_new(n, n->info, NULL);
	OK(gdrfab_ep_connect(o->ep, n->info->dest_addr, n->info->dest_addrlen, NULL, 0));
	return NULL;
}

static void sleeps_while_connecting(struct node *n)
{
	struct waits w = {.how = (enum how)(intptr_t)n->arg, .object = EVENTS};
	gdrfab_eq_attr attr = {sizeof attr, 0, 0, GDRFAB_WAIT_FD, 0};
	struct opener o = {n, NULL};
	struct event e;
	uint32_t kind = 0;
	pthread_t thread;
	ssize_t rc;
	node_open(n);
	OK(gdrfab_eq_close(n->eq));
	OK(gdrfab_eq_open(n->fabric, &attr, NULL, &n->eq));
	w.eq = n->eq;
	OK(gdrfab_eq_fd(n->eq, &w.fd));
	barrier(n);
	n->idle = true;
	CHECK_EQ(pthread_create(&thread, NULL, connects, &o), 0);
	uint64_t start = test_now_ms();
	if (w.how == CALL)
		rc = gdrfab_eq_sread(n->eq, &kind, &e, sizeof e, test_ms(LONG), 0);
	else
		while ((rc = gdrfab_eq_read(n->eq, &kind, &e, sizeof e, 0)) == -EAGAIN)
			sleep_once(&w, "event", 0);
	CHECK(rc > 0);
	CHECK_EQ(kind, GDRFAB_CONNECTED);
	if (since(start) >= (uint64_t)test_ms(850))
		came_late("the connection came after %llu ms", (unsigned long long)(since(start)));
	pthread_join(thread, NULL);
	n->idle = false;
	barrier(n);
	OK(gdrfab_ep_close(o.ep));
	node_close(n);
}

static void is_called(struct node *n)
{
	node_open(n);
	node_listen(n);
	barrier(n);
	n->request = node_await_request(n);
	node_domain(n, n->request);
	n->ep = ep_new(n, n->request, n);
	OK(gdrfab_ep_accept(n->ep, NULL, 0));
	EVENT(n->eq, GDRFAB_CONNECTED, n->ep, NULL);
	barrier(n);
	node_close(n);
}

static void of_a_connection(const void *arg)
{
	int which = (int)(intptr_t)arg;
	struct setup s = setup_of(which / HOWS);
	no_spinning();
	pair_in_time(&s, is_called, sleeps_while_connecting, (const void *)(intptr_t)(which % HOWS));
}

/* --- preparing to wait opens nothing --- */

static void prepares_without_descriptors(struct node *n)
{
	gdrfab_cntr_attr attr = {sizeof attr, 0, GDRFAB_WAIT_FD, 0};
	gdrfab_eq_attr eq_attr = {sizeof eq_attr, 0, 0, GDRFAB_WAIT_FD, 0};
	struct rlimit none, before;
	gdrfab_cntr *c;
	gdrfab_eq *eq;
	char in;
	uint64_t ns = 100ull * 1000000;
	node_up(n);
	OK(gdrfab_cntr_open(n->domain, &attr, NULL, &c));
	OK(gdrfab_eq_open(n->fabric, &eq_attr, NULL, &eq));
	barrier(n);
	/* With an operation that has a deadline, for which a timer would be needed. */
	OK(gdrfab_ep_setopt(n->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_RECV_DEADLINE, &ns, sizeof ns));
	POST(n->cq, gdrfab_recv(n->ep, &in, 1, local_desc(n, &in, 1), 0, &in));
	CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
	none = before;
	none.rlim_cur = 0;
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
	CHECK_EQ(fcntl(0, F_DUPFD, 0), -1);
	int cq_rc = gdrfab_cq_trywait(n->cq), eq_rc = gdrfab_eq_trywait(eq), cntr_rc = gdrfab_cntr_trywait(c), fd = -1;
	OK(gdrfab_cq_fd(n->cq, &fd));
	struct pollfd p = {fd, POLLIN, 0};
	/* poll(2) takes no more descriptors than the limit. */
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
	CHECK_EITHER(cq_rc, 0, -EAGAIN);
	CHECK_EQ(eq_rc, 0);
	CHECK_EITHER(cntr_rc, 0, -EAGAIN);
	if (cq_rc == 0)
		CHECK_EQ(poll(&p, 1, test_ms(LONG)), 1);
	FAILED(n->cq, &in, ETIMEDOUT, GDRFAB_PROV_DEADLINE, NULL);
	OK(gdrfab_eq_close(eq));
	OK(gdrfab_cntr_close(c));
	barrier(n);
	node_close(n);
}

TEST(trywait_opens_nothing)
{
	struct setup s = {.cq_wait = GDRFAB_WAIT_FD};
	pair(&s, prepares_without_descriptors, says_nothing, NULL);
}

TEST_TABLE(table)
{
	static const struct { const char *name; test_fn fn; } claims[] = {
		{"a_poster_leaves_the_rest", of_a_poster},
		{"a_full_queue", of_a_full_queue},
		{"a_deadline_of_another_thread", of_a_deadline},
		{"a_connection_of_another_thread", of_a_connection},
	};
	char name[64];
	for (int progress = 0; progress < 2; progress++) {
		snprintf(name, sizeof name, "messages_wake_one_of_several_%s", progress_names[progress]);
		test_add(name, of_several, (const void *)(intptr_t)(progress * HOWS), 40);
		for (int how = 0; how < HOWS; how++)
			for (size_t i = 0; i < sizeof claims / sizeof claims[0]; i++) {
				/* As in wakeups. */
				if (test_checked() && how != progress)
					continue;
				snprintf(name, sizeof name, "%s_%s_%s", claims[i].name, how_names[how], progress_names[progress]);
				test_add(name, claims[i].fn, (const void *)(intptr_t)(progress * HOWS + how), 40);
			}
	}
}
