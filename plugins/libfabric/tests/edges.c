/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Edge cases: operations without bytes, small queues, two queues, and cancelled receives. */
#include "fi.h"

#define SENT (FI_SEND | FI_MSG)
#define RECEIVED (FI_RECV | FI_MSG)
#define WRITTEN (FI_WRITE | FI_RMA)

/* --- no bytes --- */

static void nothing_from(struct node *n)
{
	struct iovec iov = {NULL, 0};
	char here;
	struct fi_msg msg = {&iov, NULL, 0, 0, &here, 0};
	node_up(n);
	struct remote r = mr_fetch(n);
	barrier(n);
	POST(n->cq, fi_send(n->ep, NULL, 0, NULL, 0, &here));
	DONE(n->cq, &here, SENT, NULL);
	POST(n->cq, fi_inject(n->ep, NULL, 0, 0));
	POST(n->cq, fi_senddata(n->ep, NULL, 0, NULL, 3, 0, &here));
	DONE(n->cq, &here, SENT, NULL);
	POST(n->cq, fi_sendmsg(n->ep, &msg, FI_COMPLETION));
	DONE(n->cq, &here, SENT, NULL);
	barrier(n);
	/* A write without bytes still notifies. */
	POST(n->cq, fi_writedata(n->ep, NULL, 0, NULL, 4, 0, r.base, r.key, &here));
	DONE(n->cq, &here, WRITTEN, NULL);
	barrier(n);
	POST(n->cq, fi_write(n->ep, NULL, 0, NULL, 0, r.base, r.key, &here));
	DONE(n->cq, &here, WRITTEN, NULL);
	POST(n->cq, fi_read(n->ep, NULL, 0, NULL, 0, r.base, r.key, &here));
	DONE(n->cq, &here, FI_READ | FI_RMA, NULL);
	node_down(n);
}

static void nothing_to(struct node *n)
{
	unsigned char *at = (unsigned char *)pages(4096);
	done entry;
	node_up(n);
	memset(at, 0x5a, 4096);
	struct fid_mr *mr = mr_new(n, at, 4096, FI_REMOTE_READ | FI_REMOTE_WRITE);
	mr_publish(n, mr, at, 4096);
	POST(n->cq, fi_recv(n->ep, NULL, 0, NULL, 0, at));
	for (int i = 1; i < 4; i++)
		POST(n->cq, fi_recv(n->ep, at, 16, local_desc(n, at, 16), 0, at + i));
	barrier(n);
	for (int i = 0; i < 4; i++) {
		DONE(n->cq, at + i, RECEIVED | (i == 2 ? FI_REMOTE_CQ_DATA : 0), &entry);
		CHECK_EQ(entry.len, 0);
		if (i == 2)
			CHECK_EQ(entry.data, 3);
	}
	data_room(n);
	barrier(n);
	DATA_CAME(n, &entry);
	CHECK_EQ(entry.data, 4);
	barrier(n);
	for (size_t i = 0; i < 4096; i++)
		CHECK_EQ(at[i], 0x5a);
	QUIET(n->cq, 20);
	barrier(n);
	local_forget_all(n);
	CLOSE(mr);
	node_close(n);
	free(at);
}

TEST(no_bytes)
{
	pair(NULL, nothing_to, nothing_from, NULL);
}

/* --- a completion queue smaller than the number of operations under way --- */

enum { MANY = 300 };

static void hasty(struct node *n)
{
	char at[8] = "1234567";
	uint64_t until = test_now_ms() + (uint64_t)test_ms(15000);
	node_up(n);
	void *desc = local_desc(n, at, 8);
	int posted = 0, ended = 0;
	barrier(n);
	/* Posts as many as are accepted without reading the queue, and the rest as there is room. No completion may
	 * be lost. */
	while (ended < MANY) {
		while (posted < MANY && fi_send(n->ep, at, 8, desc, 0, at) == 0)
			posted++;
		done entry;
		if (ended == posted) {
			CHECK(test_now_ms() < until);
			drive(n);
			continue;
		}
		CHECK_EQ(cq_next(n->cq, &entry, 10000), 1);
		CHECK_EQ(entry.flags, SENT);
		ended++;
	}
	barrier(n);
	QUIET(n->cq, 20);
	node_down(n);
}

static void lazy(struct node *n)
{
	char at[8];
	node_up(n);
	void *desc = local_desc(n, at, 8);
	int posted = 0, came = 0;
	while (posted < MANY && fi_recv(n->ep, at, 8, desc, 0, at) == 0)
		posted++;
	CHECK(posted > 0);
	barrier(n);
	test_sleep_ms(100);
	while (came < MANY) {
		done entry;
		while (posted < MANY && fi_recv(n->ep, at, 8, desc, 0, at) == 0)
			posted++;
		CHECK_EQ(cq_next(n->cq, &entry, 10000), 1);
		CHECK_EQ(entry.flags, RECEIVED);
		came++;
	}
	barrier(n);
	QUIET(n->cq, 20);
	node_down(n);
}

TEST(small_completion_queue)
{
	struct setup setup = {.cq_size = 8};
	pair(&setup, lazy, hasty, NULL);
}

/* --- cancelled receives --- */

static void taking_back(struct node *n)
{
	unsigned char at[5][8];
	struct failure f;
	done entry;
	node_up(n);
	local_desc(n, at, sizeof at);
	for (int i = 0; i < 5; i++)
		POST(n->cq, fi_recv(n->ep, at[i], 8, local_desc(n, at[i], 8), 0, at[i]));
	ssize_t rc = fi_cancel(&n->ep->fid, at[2]);
	skip_unless(rc != -FI_ENOSYS && rc != -FI_EOPNOTSUPP, "takes nothing back");
	CHECK_EQ(rc, 0);
	FAILED(n->cq, at[2], FI_ECANCELED, &f);
	CHECK_EQ(f.entry.flags & FI_RECV, FI_RECV);
	/* Only once. */
	rc = fi_cancel(&n->ep->fid, at[2]);
	CHECK(rc == -FI_ENOENT || (rc == 0 && !is_gdrfab()));
	QUIET(n->cq, 20);
	barrier(n);
	for (int i = 0; i < 5; i++)
		if (i != 2) {
			DONE(n->cq, at[i], RECEIVED, &entry);
			CHECK_EQ(memcmp(at[i], "1234567", 8), 0);
		}
	node_down(n);
}

static void sending(struct node *n)
{
	char at[8] = "1234567";
	node_up(n);
	barrier(n);
	for (int i = 0; i < 4; i++) {
		POST(n->cq, fi_send(n->ep, at, 8, local_desc(n, at, 8), 0, at));
		DONE(n->cq, at, SENT, NULL);
	}
	node_down(n);
}

TEST(receives_taken_back)
{
	pair(NULL, taking_back, sending, NULL);
}

/* --- one queue for sends, another for receives --- */

static void two_queues(struct node *n)
{
	unsigned char in[8], out[8];
	done entry;
	node_open(n);
	struct fid_cq *receives = cq_new(n, FI_CQ_FORMAT_MSG, 0, FI_WAIT_NONE);
	struct fi_info *info = n->side == TEST_SERVER ? await_request(n, n->pep) : n->info;
	n->ep = ep_bare(n, info, n);
	OK(fi_ep_bind(n->ep, &n->eq->fid, 0));
	OK(fi_ep_bind(n->ep, &n->cq->fid, FI_TRANSMIT));
	OK(fi_ep_bind(n->ep, &receives->fid, FI_RECV));
	OK(fi_enable(n->ep));
	if (n->side == TEST_SERVER) {
		OK(fi_accept(n->ep, NULL, 0));
		fi_freeinfo(info);
	} else {
		OK(fi_connect(n->ep, n->info->dest_addr, NULL, 0));
	}
	EVENT(n, FI_CONNECTED, n->ep, NULL);
	for (int i = 0; i < 50; i++) {
		struct fi_cq_msg_entry came;
		ssize_t got = -FI_EAGAIN;
		fill(out, 8, 0, (uint32_t)i);
		POST(receives, fi_recv(n->ep, in, 8, local_desc(n, in, 8), 0, in));
		barrier(n);
		POST(n->cq, fi_send(n->ep, out, 8, local_desc(n, out, 8), 0, out));
		uint64_t until = test_now_ms() + (uint64_t)test_ms(10000);
		while (got == -FI_EAGAIN && test_now_ms() < until)
			got = fi_cq_read(receives, &came, 1);
		CHECK_EQ(got, 1);
		CHECK_EQ(came.flags, RECEIVED);
		CHECK_EQ(came.len, 8);
		CHECK(came.op_context == in);
		CHECK_FILLED("what came", in, 8, 0, (uint32_t)i);
		DONE(n->cq, out, SENT, &entry);
	}
	barrier(n);
	CLOSE(n->ep);
	n->ep = NULL;
	CLOSE(receives);
	node_down(n);
}

TEST(a_queue_for_each_direction)
{
	pair(NULL, two_queues, two_queues, NULL);
}

/* --- the end of a connection, for a program that reads only the event queue --- */

static void leaving(struct node *n)
{
	node_up(n);
	barrier(n);
	CLOSE(n->ep);
	n->ep = NULL;
	node_down(n);
}

static void watching(struct node *n)
{
	node_up(n);
	struct fid_cq *cq = n->cq;
	barrier(n);
	n->cq = NULL;
	EVENT(n, FI_SHUTDOWN, n->ep, NULL);
	n->cq = cq;
	node_down(n);
}

TEST(end_without_the_completion_queue)
{
	skip_unless(is_gdrfab(), "looks at connections where it looks for completions");
	pair(NULL, leaving, watching, NULL);
}
