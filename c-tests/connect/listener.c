/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Closing a passive endpoint while other threads and peers use it: after the close its name is free, waiting clients are
 * refused, and no event names it any more.
 */
#include "fab.h"

#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

enum state { NOTHING, SLEEPER, POLLER, UNREAD, UNANSWERED, HALF_GREETED, SLEEPER_HALF_GREETED, DESCRIPTOR, STATES };
static const char *const names[STATES] = {
	"of_nobody",	  "while_a_thread_sleeps",	     "while_a_thread_polls", "with_a_request_unread", "with_a_request_unanswered",
	"half_greeted", "half_greeted_while_a_thread_sleeps", "whose_descriptor_is_waited_on",
};

static bool sleeps(enum state state)
{
	return state == SLEEPER || state == SLEEPER_HALF_GREETED;
}

/* A thread that reads events meanwhile; it also handles the events of the next passive endpoint. */
struct watcher {
	struct node *n;
	enum state state;
	const void *closed; /* context of the closed endpoint: the address of its handle may be used again */
	bool stop;
	pthread_t thread;
};

static void *watch(void *arg)
{
	struct watcher *w = (struct watcher *)arg;
	uint32_t kind;
	struct event e;
	for (;;) {
		memset(&e, 0, sizeof e);
		ssize_t n = sleeps(w->state) ? gdrfab_eq_sread(w->n->eq, &kind, &e, sizeof e.entry + sizeof e.data, 20000, 0)
					     : gdrfab_eq_read(w->n->eq, &kind, &e, sizeof e.entry + sizeof e.data, 0);
		if (n == -EAGAIN && !__atomic_load_n(&w->stop, __ATOMIC_ACQUIRE))
			continue;
		if (n < 0)
			return NULL;
		if (kind == GDRFAB_NOTIFY)
			return NULL;
		if (e.entry.context == w->closed)
			test_fail(__FILE__, __LINE__, "event %u names the closed passive endpoint, info %p", kind,
				  (void *)e.entry.info);
		CHECK_EQ(kind, GDRFAB_CONNREQ);
		CHECK(e.entry.info != NULL);
		OK(gdrfab_pep_reject(w->n->pep, e.entry.info->handle, "later", 5));
		gdrfab_freeinfo(e.entry.info);
	}
}

/* A client that connects and sends nothing. */
static int silent(const struct node *n)
{
	int fd = -1;
	if (traits()->numbered) {
		struct addrinfo hints, *at = NULL;
		memset(&hints, 0, sizeof hints);
		hints.ai_socktype = SOCK_STREAM;
		CHECK_EQ(getaddrinfo(node_name(), n->service, &hints, &at), 0);
		fd = socket(at->ai_family, SOCK_STREAM, 0);
		CHECK_EQ(connect(fd, at->ai_addr, at->ai_addrlen), 0);
		freeaddrinfo(at);
	} else {
		struct sockaddr_un at;
		memset(&at, 0, sizeof at);
		at.sun_family = AF_UNIX;
		int len = snprintf(at.sun_path + 1, sizeof at.sun_path - 1, "gdrfab/%s", n->service);
		fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
		CHECK_EQ(connect(fd, (struct sockaddr *)&at, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)len)), 0);
	}
	return fd;
}

static char marks[16];

static void listen_again(struct node *n, int round)
{
	OK(gdrfab_pep_open(n->fabric, n->info, &marks[round], &n->pep));
	OK(gdrfab_pep_bind_eq(n->pep, n->eq, 0));
	OK(gdrfab_pep_listen(n->pep));
}

static void listener(struct node *n, struct node *same)
{
	memset(n, 0, sizeof *n);
	n->side = TEST_SERVER;
	n->setup = same->setup;
	n->oob = -1;
	memcpy(n->service, same->service, sizeof n->service);
	node_info(n);
	gdrfab_eq_attr attr;
	memset(&attr, 0, sizeof attr);
	attr.struct_size = sizeof attr;
	attr.wait_obj = GDRFAB_WAIT_FD;
	OK(gdrfab_fabric_open(n->info, NULL, &n->fabric));
	OK(gdrfab_eq_open(n->fabric, &attr, NULL, &n->eq));
	node_domain(n, n->info);
	listen_again(n, 0);
}

/* Waits for the result of the client's connect; drives the server's queue meanwhile. */
static int outcome(struct node *client, struct node *server, int ms)
{
	uint32_t kind;
	struct event e;
	struct eq_failure f;
	for (uint64_t until = test_now_ms() + (uint64_t)test_ms(ms); test_now_ms() < until;) {
		if (server && !server->idle)
			gdrfab_eq_read(server->eq, &kind, NULL, 0, GDRFAB_PEEK);
		ssize_t n = gdrfab_eq_sread(client->eq, &kind, &e, sizeof e.entry + sizeof e.data, 5, 0);
		if (n == -EAGAIN)
			continue;
		if (n >= 0)
			return kind == GDRFAB_CONNECTED ? 0 : -1;
		CHECK_EQ(n, -GDRFAB_EAVAIL);
		memset(&f, 0, sizeof f);
		f.entry.struct_size = sizeof f.entry;
		CHECK_EQ(gdrfab_eq_readerr(client->eq, &f.entry, 0), 1);
		return f.entry.err;
	}
	return ETIMEDOUT;
}

static void call(struct node *client)
{
	client->ep = ep_new(client, client->info, NULL);
	OK(gdrfab_ep_connect(client->ep, client->info->dest_addr, client->info->dest_addrlen, NULL, 0));
}

static void hang_up(struct node *client)
{
	OK(gdrfab_ep_close(client->ep));
	client->ep = NULL;
}

static void closed_is_closed(const void *arg)
{
	enum state state = (enum state)((const char *const *)arg - names);
	struct node client, n;
	struct event e;
	int quiet = -1, fd = -1;
	bool threaded = sleeps(state) || state == POLLER;
	bool half = state == HALF_GREETED || state == SLEEPER_HALF_GREETED;
	skip_unless(!half || !traits()->adapter, "nothing is greeted by halves");
	node_alone(&client, NULL);
	listener(&n, &client);
	for (int round = 0; round < test_count(8, 3); round++) {
		struct watcher w;
		memset(&w, 0, sizeof w);
		w.n = &n;
		w.state = state;
		w.closed = &marks[round];
		if (half)
			quiet = silent(&client);
		if (state == UNREAD || state == UNANSWERED) {
			uint32_t kind;
			call(&client);
			while (gdrfab_eq_read(n.eq, &kind, NULL, 0, GDRFAB_PEEK) < 0)
				gdrfab_eq_sread(client.eq, &kind, NULL, 0, 1, GDRFAB_PEEK);
			CHECK_EQ(kind, GDRFAB_CONNREQ);
		}
		if (state == UNANSWERED)
			EVENT(n.eq, GDRFAB_CONNREQ, n.pep, &e);
		if (threaded) {
			CHECK_EQ(pthread_create(&w.thread, NULL, watch, &w), 0);
			test_sleep_ms(10 + 7 * round);
		}
		if (state == DESCRIPTOR) {
			OK(gdrfab_eq_fd(n.eq, &fd));
			while (gdrfab_eq_trywait(n.eq) != 0)
				continue;
		}
		OK(gdrfab_pep_close(n.pep));
		/* The wait set does not contain its descriptor any more. */
		if (state == DESCRIPTOR && !traits()->adapter) {
			struct pollfd one = {fd, POLLIN, 0};
			uint32_t kind;
			while (gdrfab_eq_trywait(n.eq) != 0)
				CHECK_EQ(gdrfab_eq_read(n.eq, &kind, NULL, 0, GDRFAB_PEEK), -EAGAIN);
			call(&client);
			CHECK_EQ(outcome(&client, NULL, 5000), ECONNREFUSED);
			hang_up(&client);
			CHECK_EQ(poll(&one, 1, 5), 0);
		}
		if (state == UNREAD || state == UNANSWERED) {
			CHECK_EQ(outcome(&client, NULL, 5000), ECONNREFUSED);
			hang_up(&client);
		}
		if (state == UNANSWERED) {
			gdrfab_ep *late = NULL;
			CHECK_EQ(gdrfab_ep_open(n.domain, e.entry.info, NULL, &late), -EINVAL);
			gdrfab_freeinfo(e.entry.info);
		}
		/* The name is free at once: a new endpoint takes it. */
		listen_again(&n, round + 1);
		if (half)
			close(quiet);
		/* Clients reach the new endpoint from now on. */
		call(&client);
		if (threaded) {
			CHECK_EQ(outcome(&client, NULL, 5000), ECONNREFUSED);
			__atomic_store_n(&w.stop, true, __ATOMIC_RELEASE);
			CHECK(gdrfab_eq_write(n.eq, GDRFAB_NOTIFY, "", 0, 0) == 0);
			CHECK_EQ(pthread_join(w.thread, NULL), 0);
			uint32_t kind;
			gdrfab_eq_read(n.eq, &kind, &e, sizeof e.entry + sizeof e.data, 0);
		} else {
			uint32_t kind;
			while (gdrfab_eq_read(n.eq, &kind, NULL, 0, GDRFAB_PEEK) < 0)
				gdrfab_eq_sread(client.eq, &kind, NULL, 0, 1, GDRFAB_PEEK);
			EVENT(n.eq, GDRFAB_CONNREQ, n.pep, &e);
			CHECK(e.entry.info != NULL);
			OK(gdrfab_pep_reject(n.pep, e.entry.info->handle, NULL, 0));
			gdrfab_freeinfo(e.entry.info);
			CHECK_EQ(outcome(&client, NULL, 5000), ECONNREFUSED);
		}
		hang_up(&client);
	}
	OK(gdrfab_pep_close(n.pep));
	OK(gdrfab_cq_close(n.cq));
	OK(gdrfab_domain_close(n.domain));
	OK(gdrfab_eq_close(n.eq));
	OK(gdrfab_fabric_close(n.fabric));
	gdrfab_freeinfo(n.info);
	node_close(&client);
}

TEST_TABLE(per_state)
{
	static char claims[STATES][80];
	for (int i = 0; i < STATES; i++) {
		snprintf(claims[i], sizeof claims[i], "a_closed_listener_%s", names[i]);
		test_add(claims[i], closed_is_closed, &names[i], 30);
	}
}
