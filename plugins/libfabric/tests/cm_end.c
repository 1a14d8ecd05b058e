/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The end of connections: the events on both sides, and the receives that are still posted. */
#include "fi.h"

#include <signal.h>

#define POSTED 100

static unsigned char room[POSTED][16];

static void post_all(struct node *n)
{
	local_desc(n, room, sizeof room);
	for (size_t i = 0; i < POSTED; i++)
		POST(n->cq, fi_recv(n->ep, room[i], 16, local_desc(n, room[i], 16), 0, room[i]));
}

/* Each posted receive is reported once as cancelled, in order. */
static void take_back(struct node *n)
{
	struct failure f;
	for (size_t i = 0; i < POSTED; i++) {
		FAILED(n->cq, room[i], FI_ECANCELED, &f);
		CHECK_EQ(f.entry.flags & FI_RECV, FI_RECV);
		CHECK_EQ(f.entry.len, 0);
	}
	QUIET(n->cq, 20);
}

enum how { BY_SHUTDOWN, BY_CLOSE, BY_DEATH, BY_EXIT };

/* The side that ends the connection. */
static void ender(struct node *n)
{
	enum how how = *(const enum how *)n->arg;
	node_up(n);
	post_all(n);
	barrier(n);
	switch (how) {
	case BY_SHUTDOWN:
		OK(fi_shutdown(n->ep, 0));
		if (is_gdrfab())
			take_back(n);
		break;
	case BY_CLOSE: {
		struct failure f;
		done entry;
		CLOSE(n->ep);
		n->ep = NULL;
		/* Receives are reported before the close has returned: nothing comes later. */
		size_t back = 0;
		for (;;) {
			ssize_t got = fi_cq_read(n->cq, &entry, 1);
			if (got == -FI_EAGAIN)
				break;
			CHECK_EQ(got, -FI_EAVAIL);
			cq_failure(__FILE__, __LINE__, n->cq, &f);
			CHECK_EQ(f.entry.err, FI_ECANCELED);
			CHECK(f.entry.op_context == room[back]);
			back++;
		}
		/* All of them or none: libfabric lets a provider drop them. */
		CHECK(back == POSTED || back == 0);
		if (is_gdrfab())
			CHECK_EQ(back, POSTED);
		QUIET(n->cq, 50);
		break;
	}
	case BY_DEATH: raise(SIGKILL); break;
	case BY_EXIT: _exit(0);
	}
	barrier(n);
	/* The side that shuts down gets the event as well, and only once. */
	if (how == BY_SHUTDOWN)
		EVENT(n, FI_SHUTDOWN, n->ep, NULL);
	EQ_QUIET(n, 20);
	node_down(n);
}

static void ended(struct node *n)
{
	enum how how = *(const enum how *)n->arg;
	char byte = 'x';
	node_up(n);
	post_all(n);
	barrier(n);
	EVENT(n, FI_SHUTDOWN, n->ep, NULL);
	if (is_gdrfab())
		take_back(n);
	/* One event, not two; and the endpoint can no longer be used. */
	EQ_QUIET(n, 50);
	if (is_gdrfab()) {
		ssize_t rc = fi_send(n->ep, &byte, 1, local_desc(n, &byte, 1), 0, NULL);
		CHECK(rc < 0 && rc != -FI_EAGAIN);
		rc = fi_recv(n->ep, &byte, 1, local_desc(n, &byte, 1), 0, NULL);
		CHECK(rc < 0 && rc != -FI_EAGAIN);
	}
	if (how == BY_SHUTDOWN || how == BY_CLOSE) {
		barrier(n);
		CLOSE(n->ep);
		n->ep = NULL;
		EQ_QUIET(n, 0);
		node_down(n);
	} else {
		node_close(n);
	}
}

static const enum how hows[] = {BY_SHUTDOWN, BY_CLOSE, BY_DEATH, BY_EXIT};

static void end_claim(const void *arg)
{
	struct setup setup = {.victim = *(const enum how *)arg == BY_DEATH ? TEST_SERVER : TEST_REFEREE};
	pair(&setup, ender, ended, arg);
}

static void end_of_client_claim(const void *arg)
{
	struct setup setup = {.victim = *(const enum how *)arg == BY_DEATH ? TEST_CLIENT : TEST_REFEREE};
	pair(&setup, ended, ender, arg);
}

TEST_TABLE(ends)
{
	test_add("server_shuts_down", end_claim, &hows[0], 20);
	test_add("server_closes", end_claim, &hows[1], 20);
	test_add("server_is_killed", end_claim, &hows[2], 20);
	test_add("server_exits", end_claim, &hows[3], 20);
	test_add("client_shuts_down", end_of_client_claim, &hows[0], 20);
	test_add("client_closes", end_of_client_claim, &hows[1], 20);
	test_add("client_is_killed", end_of_client_claim, &hows[2], 20);
	test_add("client_exits", end_of_client_claim, &hows[3], 20);
}

/* --- messages sent before the end arrive --- */

static void last_words(struct node *n)
{
	unsigned char *at = (unsigned char *)pages(POSTED * 16);
	node_up(n);
	fill(at, POSTED * 16, 0, 1);
	barrier(n);
	for (size_t i = 0; i < POSTED; i++)
		POST(n->cq, fi_send(n->ep, at + 16 * i, 16, local_desc(n, at, POSTED * 16), 0, at + 16 * i));
	for (size_t i = 0; i < POSTED; i++)
		DONE(n->cq, at + 16 * i, FI_SEND | FI_MSG, NULL);
	OK(fi_shutdown(n->ep, 0));
	node_down(n);
	free(at);
}

static void last_listener(struct node *n)
{
	node_up(n);
	post_all(n);
	barrier(n);
	for (size_t i = 0; i < POSTED; i++)
		DONE(n->cq, room[i], FI_RECV | FI_MSG, NULL);
	EVENT(n, FI_SHUTDOWN, n->ep, NULL);
	CHECK_FILLED("what was sent last", room, sizeof room, 0, 1);
	node_down(n);
}

TEST(messages_before_the_end)
{
	pair(NULL, last_listener, last_words, NULL);
}

/* --- both at once --- */

static void shuts_down_too(struct node *n)
{
	for (int i = 0; i < 20; i++) {
		bool first = i % 2 == (n->side == TEST_SERVER);
		if (i == 0)
			node_up(n);
		else
			n->ep = node_connect(n, n);
		barrier(n);
		/* At once, or one side after the event of the other. */
		if (i % 4 > 1 && !first)
			EVENT(n, FI_SHUTDOWN, n->ep, NULL);
		int rc = fi_shutdown(n->ep, 0);
		CHECK(rc == 0 || rc == -FI_ESHUTDOWN || rc == -FI_ENOTCONN);
		if (i % 4 <= 1 || first)
			EVENT(n, FI_SHUTDOWN, n->ep, NULL);
		barrier(n);
		EQ_QUIET(n, 5);
		/* Events of an endpoint that were not read go with it. */
		CLOSE(n->ep);
		n->ep = NULL;
		EQ_QUIET(n, 0);
		barrier(n);
	}
	node_down(n);
}

TEST(both_shut_down)
{
	pair(NULL, shuts_down_too, shuts_down_too, NULL);
}

static void shuts_down_and_closes(struct node *n)
{
	for (int i = 0; i < 5; i++) {
		if (i == 0)
			node_up(n);
		else
			n->ep = node_connect(n, n);
		barrier(n);
		fi_shutdown(n->ep, 0);
		CLOSE(n->ep);
		n->ep = NULL;
		EQ_QUIET(n, 5);
		barrier(n);
	}
	node_down(n);
}

TEST(an_end_that_nobody_reads)
{
	pair(NULL, shuts_down_and_closes, shuts_down_and_closes, NULL);
}

/* --- receives of an endpoint that never was connected --- */

TEST(closed_before_connected)
{
	struct node n;
	node_alone(&n, NULL);
	n.ep = ep_new(&n, n.info, &n);
	post_all(&n);
	CLOSE(n.ep);
	n.ep = NULL;
	if (is_gdrfab())
		take_back(&n);
	node_close(&n);
}

/* --- sends that nobody receives, when it ends --- */

static void unreceived_sender(struct node *n)
{
	size_t len = 4 << 20;
	unsigned char *at = (unsigned char *)pages(len);
	done entry;
	node_up(n);
	size_t posted = 0, back = 0;
	void *desc = local_desc(n, at, len);
	while (posted < 4 && fi_send(n->ep, at, len, desc, 0, at + posted) == 0)
		posted++;
	CHECK(posted > 0);
	barrier(n);
	EVENT(n, FI_SHUTDOWN, n->ep, NULL);
	CLOSE(n->ep);
	n->ep = NULL;
	/* By the time its endpoint is closed each send has ended, with or without an error. */
	for (;;) {
		ssize_t got = fi_cq_read(n->cq, &entry, 1);
		struct failure f;
		if (got == -FI_EAGAIN)
			break;
		if (got == -FI_EAVAIL) {
			cq_failure(__FILE__, __LINE__, n->cq, &f);
			entry.op_context = f.entry.op_context;
			CHECK(f.entry.err > 0);
		} else {
			CHECK_EQ(got, 1);
		}
		CHECK(entry.op_context == at + back);
		back++;
	}
	if (is_gdrfab())
		CHECK_EQ(back, posted);
	local_forget_all(n);
	free(at);
	node_down(n);
}

static void unreceiving(struct node *n)
{
	node_up(n);
	barrier(n);
	CLOSE(n->ep);
	n->ep = NULL;
	node_down(n);
}

TEST(sends_that_nobody_receives)
{
	pair(NULL, unreceiving, unreceived_sender, NULL);
}
