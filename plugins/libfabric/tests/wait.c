/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Sleeping until something comes: with a timeout, until a signal, and by file descriptors that a program polls
 * itself. */
#include "fi.h"

#include <poll.h>
#include <pthread.h>

#define SENT (FI_SEND | FI_MSG)
#define RECEIVED (FI_RECV | FI_MSG)

static const struct setup sleeping = {.cq_wait = FI_WAIT_UNSPEC, .eq_wait = FI_WAIT_UNSPEC};
static const struct setup by_fd = {.cq_wait = FI_WAIT_FD, .eq_wait = FI_WAIT_FD};

static bool timed_out(ssize_t rc)
{
	return rc == -FI_EAGAIN || (rc == -FI_ETIMEDOUT && !is_gdrfab());
}

/* --- timeouts --- */

TEST(timeouts)
{
	struct node n;
	done entry;
	fi_addr_t from;
	node_alone(&n, &sleeping);
	for (int ms = 0; ms <= 200; ms += 100)
		for (int way = 0; way < 2; way++) {
			uint64_t before = test_now_ms();
			ssize_t rc = way ? fi_cq_sreadfrom(n.cq, &entry, 1, &from, NULL, ms)
					 : fi_cq_sread(n.cq, &entry, 1, NULL, ms);
			uint64_t took = test_now_ms() - before;
			if (!timed_out(rc))
				test_fail(__FILE__, __LINE__, "a wait of %d ms: %s", ms, test_number(rc));
			if (took + 10 < (uint64_t)ms || took > (uint64_t)test_ms(ms + 1000))
				test_fail(__FILE__, __LINE__, "a wait of %d ms took %d", ms, (int)took);
		}
	node_close(&n);
}

/* --- a signal ends a wait --- */

static void *signaller(void *arg)
{
	struct node *n = (struct node *)arg;
	test_sleep_ms(100);
	OK(fi_cq_signal(n->cq));
	return NULL;
}

TEST(signal)
{
	struct node n;
	done entry;
	pthread_t thread;
	node_alone(&n, &sleeping);
	for (int i = 0; i < 5; i++) {
		uint64_t before = test_now_ms();
		CHECK_EQ(pthread_create(&thread, NULL, signaller, &n), 0);
		ssize_t rc = fi_cq_sread(n.cq, &entry, 1, NULL, i % 2 ? -1 : test_ms(10000));
		uint64_t took = test_now_ms() - before;
		/* Nothing may end the wait before the signal. */
		pthread_join(thread, NULL);
		if (rc != -FI_EAGAIN && rc != 0 && rc != -FI_EINTR && rc != -FI_ECANCELED)
			test_fail(__FILE__, __LINE__, "a wait that was signalled: %s", test_number(rc));
		CHECK(took >= 90 && took < (uint64_t)test_ms(3000));
	}
	node_close(&n);
}

/* --- no lost wake-ups: one message at a time, each found by sleeping --- */

typedef void (*sleep_fn)(struct node *n, done *entry);

static void sleep_in_sread(struct node *n, done *entry)
{
	ssize_t rc = fi_cq_sread(n->cq, entry, 1, NULL, test_ms(10000));
	if (rc == -FI_EINTR)
		return;
	if (rc != 1)
		test_fail(__FILE__, __LINE__, "fi_cq_sread is %s", test_number(rc));
}

static int wait_fd(struct fid *fid)
{
	int fd = -1;
	OK(fi_control(fid, FI_GETWAIT, &fd));
	CHECK(fd >= 0);
	return fd;
}

static void sleep_in_poll(struct node *n, done *entry)
{
	struct fid *fids[] = {&n->cq->fid};
	uint64_t until = test_now_ms() + (uint64_t)test_ms(10000);
	while (test_now_ms() < until) {
		ssize_t rc = fi_cq_read(n->cq, entry, 1);
		if (rc == 1)
			return;
		CHECK_EQ(rc, -FI_EAGAIN);
		rc = fi_trywait(n->fabric, fids, 1);
		if (rc == -FI_EAGAIN)
			continue;
		CHECK_EQ(rc, 0);
		struct pollfd p = {wait_fd(&n->cq->fid), POLLIN, 0};
		/* Far longer than any message takes: a lost wake-up makes the claim end late. */
		int ready = poll(&p, 1, test_ms(8000));
		if (ready == 0)
			test_fail(__FILE__, __LINE__, "nothing woke this process");
	}
	test_fail(__FILE__, __LINE__, "no completion within 10 s");
}

struct pings {
	const struct setup *setup;
	sleep_fn sleep;
	int count;
	bool rma; /* pings by writes with data */
};

static void ping(struct node *n)
{
	const struct pings *p = (const struct pings *)n->arg;
	uint64_t seed = (uint64_t)n->side, in, out;
	uint64_t *target = (uint64_t *)pages(4096);
	node_up(n);
	struct fid_mr *mr = mr_new(n, target, 4096, FI_REMOTE_READ | FI_REMOTE_WRITE);
	mr_publish(n, mr, target, 4096);
	struct remote r = mr_fetch(n);
	void *in_desc = local_desc(n, &in, sizeof in), *out_desc = local_desc(n, &out, sizeof out);
	int count = test_count(p->count, p->count / 20);
	barrier(n);
	for (int i = 0; i < count; i++) {
		done entry;
		bool mine = (i & 1) == (n->side == TEST_CLIENT);
		uint64_t step = (uint64_t)i + 1;
		if (!mine) {
			memset(&entry, 0, sizeof entry);
			if (p->rma)
				data_room(n);
			else
				POST(n->cq, fi_recv(n->ep, &in, 8, in_desc, 0, &in));
		}
		barrier(n);
		if (mine) {
			/* Sometimes the other side is fast asleep. */
			if (test_random(&seed) % 64 == 0)
				usleep(2000);
			out = step;
			if (p->rma)
				POST(n->cq, fi_writedata(n->ep, &out, 8, out_desc, step & 0xffff, 0, r.base, r.key,
							 &out));
			else
				POST(n->cq, fi_send(n->ep, &out, 8, out_desc, 0, &out));
		}
		do
			p->sleep(n, &entry);
		while (!entry.flags);
		if (mine) {
			CHECK_EQ(entry.flags, p->rma ? FI_WRITE | FI_RMA : SENT);
			CHECK(entry.op_context == &out);
		} else if (p->rma) {
			CHECK(entry.flags & FI_REMOTE_CQ_DATA);
			CHECK_EQ(entry.data, step & 0xffff);
			CHECK_EQ(target[0], step);
		} else {
			CHECK_EQ(entry.flags, RECEIVED);
			CHECK_EQ(in, step);
		}
	}
	barrier(n);
	CLOSE(mr);
	node_down(n);
	free(target);
}

static const struct pings all_pings[] = {
	{&sleeping, sleep_in_sread, 4000, false},
	{&sleeping, sleep_in_sread, 2000, true},
	{&by_fd, sleep_in_poll, 4000, false},
	{&by_fd, sleep_in_poll, 2000, true},
};

static void ping_claim(const void *arg)
{
	const struct pings *p = (const struct pings *)arg;
	pair(p->setup, ping, ping, p);
}

TEST_TABLE(pings)
{
	test_add("messages_while_asleep", ping_claim, &all_pings[0], 40);
	test_add("writes_while_asleep", ping_claim, &all_pings[1], 40);
	test_add("messages_while_polling", ping_claim, &all_pings[2], 40);
	test_add("writes_while_polling", ping_claim, &all_pings[3], 40);
}

/* --- the event queue's descriptor --- */

static ssize_t event_by_poll(struct node *n, uint32_t *event, void *room, size_t len)
{
	struct fid *fids[] = {&n->eq->fid, n->cq ? &n->cq->fid : NULL};
	uint64_t until = test_now_ms() + (uint64_t)test_ms(10000);
	while (test_now_ms() < until) {
		ssize_t rc = fi_eq_read(n->eq, event, room, len, 0);
		if (rc != -FI_EAGAIN)
			return rc;
		drive(n);
		rc = fi_trywait(n->fabric, fids, n->cq ? 2 : 1);
		if (rc == -FI_EAGAIN)
			continue;
		CHECK_EQ(rc, 0);
		struct pollfd p[2] = {{wait_fd(&n->eq->fid), POLLIN, 0}, {-1, POLLIN, 0}};
		if (n->cq)
			p[1].fd = wait_fd(&n->cq->fid);
		if (poll(p, 2, test_ms(8000)) == 0)
			test_fail(__FILE__, __LINE__, "no event woke this process");
	}
	return -FI_EAGAIN;
}

static void connecting(struct node *n)
{
	union {
		struct fi_eq_cm_entry entry;
		unsigned char bytes[256];
	} room;
	uint32_t event;
	node_open(n);
	for (int i = 0; i < 20; i++) {
		struct fid_ep *ep;
		barrier(n);
		if (n->side == TEST_SERVER) {
			CHECK(event_by_poll(n, &event, &room, sizeof room) > 0);
			CHECK_EQ(event, FI_CONNREQ);
			ep = ep_new(n, room.entry.info, n);
			fi_freeinfo(room.entry.info);
			OK(fi_accept(ep, NULL, 0));
		} else {
			test_sleep_ms(i % 3 * 5);
			ep = ep_new(n, n->info, n);
			OK(fi_connect(ep, n->info->dest_addr, NULL, 0));
		}
		CHECK(event_by_poll(n, &event, &room, sizeof room) > 0);
		CHECK_EQ(event, FI_CONNECTED);
		barrier(n);
		/* One side leaves by itself, and its end wakes the other. */
		if ((i & 1) == (n->side == TEST_SERVER)) {
			test_sleep_ms(i % 3 * 5);
			CLOSE(ep);
		} else {
			CHECK(event_by_poll(n, &event, &room, sizeof room) > 0);
			CHECK_EQ(event, FI_SHUTDOWN);
			CHECK(room.entry.fid == &ep->fid);
			CLOSE(ep);
		}
	}
	node_down(n);
}

TEST(events_while_polling)
{
	pair(&by_fd, connecting, connecting, NULL);
}

/* fi_eq_sread() is woken by an event of another thread. */
static void *late_writer(void *arg)
{
	struct node *n = (struct node *)arg;
	struct fi_eq_entry entry = {&n->eq->fid, NULL, 77};
	test_sleep_ms(100);
	CHECK_EQ(fi_eq_write(n->eq, FI_NOTIFY, &entry, sizeof entry, 0), (ssize_t)sizeof entry);
	return NULL;
}

TEST(event_wakes_a_sleeper)
{
	struct node n;
	struct fi_eq_entry in;
	uint32_t event;
	pthread_t thread;
	node_alone(&n, &sleeping);
	uint64_t before = test_now_ms();
	CHECK_EQ(pthread_create(&thread, NULL, late_writer, &n), 0);
	CHECK_EQ(fi_eq_sread(n.eq, &event, &in, sizeof in, -1, 0), (ssize_t)sizeof in);
	CHECK(test_now_ms() - before < (uint64_t)test_ms(3000));
	CHECK_EQ(in.data, 77);
	pthread_join(thread, NULL);
	node_close(&n);
}

/* --- queues without a wait object --- */

TEST(no_wait_object)
{
	struct setup setup = {.cq_wait = FI_WAIT_NONE};
	struct node n;
	done entry;
	int fd = -1;
	node_alone(&n, &setup);
	CHECK(fi_control(&n.cq->fid, FI_GETWAIT, &fd) < 0);
	ssize_t rc = fi_cq_sread(n.cq, &entry, 1, NULL, 0);
	CHECK(rc < 0);
	node_close(&n);
	/* A wait set and a condition variable are not offered, and refused. */
	if (is_gdrfab()) {
		struct fi_cq_attr attr;
		struct fid_cq *cq = NULL;
		node_alone(&n, NULL);
		memset(&attr, 0, sizeof attr);
		attr.format = FI_CQ_FORMAT_DATA;
		attr.wait_obj = FI_WAIT_SET;
		CHECK(fi_cq_open(n.domain, &attr, &cq, NULL) < 0 && !cq);
		attr.wait_obj = FI_WAIT_MUTEX_COND;
		CHECK(fi_cq_open(n.domain, &attr, &cq, NULL) < 0 && !cq);
		node_close(&n);
	}
}
