/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Many connections of two processes on one completion queue and one event queue, connections both ways at the same
 * time, and the event queue itself. */
#include "fi.h"

union room {
	struct fi_eq_entry entry;
	struct fi_eq_cm_entry cm;
	unsigned char bytes[512];
};

/* The next event of any kind. */
static ssize_t next_event(struct node *n, uint32_t *event, union room *room)
{
	uint64_t until = test_now_ms() + (uint64_t)test_ms(10000);
	ssize_t got;
	while ((got = fi_eq_read(n->eq, event, room, sizeof *room, 0)) == -FI_EAGAIN && test_now_ms() < until)
		drive(n);
	if (got < (ssize_t)sizeof room->cm)
		test_fail(__FILE__, __LINE__, "fi_eq_read is %s instead of an event", test_number(got));
	return got;
}

/* --- hundreds of endpoints --- */

enum { PAIRS = 300, MOST = 512 };

struct slot {
	struct fid_ep *ep;
	uint64_t in, out;
};

static void all_exchange(struct node *n, struct slot *slots, int count)
{
	int sent = 0, came = 0;
	local_desc(n, slots, sizeof *slots * MOST);
	void *desc = local_desc(n, slots, 1);
	for (int i = 0; i < count; i++)
		POST(n->cq, fi_recv(slots[i].ep, &slots[i].in, 8, desc, 0, &slots[i].in));
	barrier(n);
	for (int i = 0; i < count; i++) {
		slots[i].out = (uint64_t)i * 3 + (uint64_t)n->side;
		POST(n->cq, fi_send(slots[i].ep, &slots[i].out, 8, desc, 0, &slots[i].out));
	}
	while (sent < count || came < count) {
		done entry;
		int got = cq_next(n->cq, &entry, 10000);
		CHECK_EQ(got, 1);
		size_t i = (size_t)((char *)entry.op_context - (char *)slots) / sizeof *slots;
		CHECK(i < (size_t)count);
		if (entry.flags & FI_SEND) {
			CHECK(entry.op_context == &slots[i].out);
			sent++;
		} else {
			CHECK(entry.op_context == &slots[i].in);
			came++;
		}
	}
	int other = n->side == TEST_SERVER ? TEST_CLIENT : TEST_SERVER;
	/* The data of the request tells which endpoint of the other side the peer is: the one with the same index. */
	for (int i = 0; i < count; i++)
		CHECK_EQ(slots[i].in, (uint64_t)i * 3 + (uint64_t)other);
}

static void open_many(struct node *n, struct slot *slots, int count)
{
	if (n->side == TEST_CLIENT) {
		/* Several at a time, so that requests queue up. */
		for (int i = 0; i < count; i++) {
			slots[i].ep = ep_new(n, n->info, &slots[i]);
			OK(fi_connect(slots[i].ep, n->info->dest_addr, &i, sizeof i));
			if (i % 16 == 15 || i + 1 == count)
				for (int left = i % 16 + 1; left > 0; left--) {
					union room room;
					uint32_t event;
					next_event(n, &event, &room);
					CHECK_EQ(event, FI_CONNECTED);
				}
		}
		return;
	}
	for (int requests = 0, connected = 0; connected < count;) {
		union room room;
		uint32_t event;
		ssize_t got = next_event(n, &event, &room);
		if (event == FI_CONNREQ) {
			int i = -1;
			CHECK_EQ(got, (ssize_t)(sizeof room.cm + sizeof i));
			memcpy(&i, room.cm.data, sizeof i);
			CHECK(i >= 0 && i < count && !slots[i].ep);
			slots[i].ep = ep_new(n, room.cm.info, &slots[i]);
			fi_freeinfo(room.cm.info);
			OK(fi_accept(slots[i].ep, NULL, 0));
			requests++;
		} else {
			CHECK_EQ(event, FI_CONNECTED);
			connected++;
		}
		CHECK(connected <= requests);
	}
}

static void many(struct node *n)
{
	struct slot *slots = (struct slot *)pages(MOST * sizeof *slots);
	int count = test_count(PAIRS, 40);
	node_open(n);
	open_many(n, slots, count);
	barrier(n);
	for (int round = 0; round < 3; round++)
		all_exchange(n, slots, count);
	barrier(n);
	/* One side closes all; the other gets an event for each. */
	if (n->side == TEST_CLIENT)
		for (int i = 0; i < count; i++)
			CLOSE(slots[i].ep);
	else
		for (int i = 0; i < count; i++) {
			union room room;
			uint32_t event;
			next_event(n, &event, &room);
			CHECK_EQ(event, FI_SHUTDOWN);
			struct slot *s = (struct slot *)room.cm.fid->context;
			CHECK(s->ep && room.cm.fid == &s->ep->fid);
			CLOSE(s->ep);
			s->ep = NULL;
		}
	barrier(n);
	local_forget_all(n);
	free(slots);
	node_down(n);
}

TEST_WITHIN(60, hundreds_of_endpoints)
{
	/* An adapter needs room in the queue for all operations that may be under way. */
	struct setup setup = {.cq_size = 65536, .tx_size = 16, .rx_size = 16};
	pair(&setup, many, many, NULL);
}

/* --- connecting to one another at the same time --- */

static void both_ways(struct node *n)
{
	struct slot slots[2];
	struct fi_info *peer;
	memset(slots, 0, sizeof slots);
	/* Each side has a listener of its own. */
	struct node own;
	node_alone(&own, n->setup);
	oob_send(n, own.addr, sizeof own.addr);
	own.oob = n->oob;
	own.side = n->side;
	unsigned char addr[ADDR_MAX];
	oob_recv(n, addr, sizeof addr);
	struct fi_info *hints = hints_new(n->setup);
	hints->addr_format = own.format;
	hints->dest_addr = malloc(own.addrlen);
	memcpy(hints->dest_addr, addr, own.addrlen);
	hints->dest_addrlen = own.addrlen;
	OK(provider_getinfo(NULL, NULL, 0, hints, &peer));
	for (int round = 0; round < 20; round++) {
		barrier(&own);
		slots[0].ep = ep_new(&own, peer, &slots[0]);
		slots[1].ep = NULL;
		OK(fi_connect(slots[0].ep, peer->dest_addr, "hello", 5));
		for (int connected = 0; connected < 2;) {
			union room room;
			uint32_t event;
			next_event(&own, &event, &room);
			if (event == FI_CONNREQ) {
				CHECK(!slots[1].ep);
				slots[1].ep = ep_new(&own, room.cm.info, &slots[1]);
				fi_freeinfo(room.cm.info);
				OK(fi_accept(slots[1].ep, NULL, 0));
				continue;
			}
			CHECK_EQ(event, FI_CONNECTED);
			connected++;
		}
		/* A message sent on one side's first endpoint arrives at the other side's second. */
		void *desc = local_desc(&own, slots, sizeof slots);
		slots[0].out = 7;
		slots[1].in = 0;
		POST(own.cq, fi_recv(slots[1].ep, &slots[1].in, 8, desc, 0, &slots[1].in));
		barrier(&own);
		POST(own.cq, fi_send(slots[0].ep, &slots[0].out, 8, desc, 0, &slots[0].out));
		for (int i = 0; i < 2; i++) {
			done entry;
			CHECK_EQ(cq_next(own.cq, &entry, 10000), 1);
		}
		CHECK_EQ(slots[1].in, 7);
		barrier(&own);
		CLOSE(slots[0].ep);
		CLOSE(slots[1].ep);
		barrier(&own);
	}
	local_forget_all(&own);
	fi_freeinfo(peer);
	fi_freeinfo(hints);
	node_close(&own);
}

TEST(both_connect)
{
	pair(NULL, both_ways, both_ways, NULL);
}

/* --- hundreds of receives before the connection --- */

static void early(struct node *n)
{
	node_open(n);
	struct fi_info *info = n->side == TEST_SERVER ? await_request(n, n->pep) : n->info;
	struct fid_ep *ep = ep_new(n, info, n);
	size_t size = info->rx_attr->size < MOST ? info->rx_attr->size : MOST;
	uint64_t *in = (uint64_t *)pages(MOST * 8), out = 0;
	void *desc = local_desc(n, in, MOST * 8);
	CHECK(size >= 128);
	for (size_t i = 0; i < size; i++)
		OK(fi_recv(ep, &in[i], 8, desc, 0, &in[i]));
	n->ep = ep;
	if (n->side == TEST_SERVER) {
		OK(fi_accept(ep, NULL, 0));
		fi_freeinfo(info);
	} else {
		OK(fi_connect(ep, n->info->dest_addr, NULL, 0));
	}
	EVENT(n, FI_CONNECTED, ep, NULL);
	size_t theirs;
	oob_send(n, &size, sizeof size);
	oob_recv(n, &theirs, sizeof theirs);
	size_t sent = 0, ended = 0, came = 0;
	while (ended < theirs || came < size) {
		done entry;
		if (sent < theirs && sent < ended + 16) {
			out = 9;
			if (fi_send(ep, &out, 8, local_desc(n, &out, 8), 0, &out) == 0)
				sent++;
		}
		int got = cq_next(n->cq, &entry, 0);
		CHECK(got >= 0);
		if (got && entry.flags & FI_SEND)
			ended++;
		if (got && entry.flags & FI_RECV) {
			CHECK(entry.op_context == &in[came]);
			CHECK_EQ(in[came], 9);
			came++;
		}
	}
	barrier(n);
	local_forget_all(n);
	free(in);
	node_down(n);
}

TEST(receives_before_the_connection)
{
	pair(NULL, early, early, NULL);
}

/* --- events of the program's own --- */

TEST(own_events)
{
	struct node n;
	node_alone(&n, NULL);
	struct fi_eq_entry out = {&n.pep->fid, &n, 4711}, in;
	uint32_t event = 99;
	CHECK_EQ(fi_eq_read(n.eq, &event, &in, sizeof in, 0), -FI_EAGAIN);
	for (uint64_t i = 0; i < 50; i++) {
		out.data = i;
		CHECK_EQ(fi_eq_write(n.eq, FI_NOTIFY, &out, sizeof out, 0), (ssize_t)sizeof out);
	}
	for (uint64_t i = 0; i < 50; i++) {
		/* FI_PEEK leaves the event in the queue. */
		memset(&in, 0, sizeof in);
		CHECK_EQ(fi_eq_read(n.eq, &event, &in, sizeof in, FI_PEEK), (ssize_t)sizeof in);
		CHECK_EQ(in.data, i);
		memset(&in, 0, sizeof in);
		if (i % 2)
			CHECK_EQ(fi_eq_sread(n.eq, &event, &in, sizeof in, -1, 0), (ssize_t)sizeof in);
		else
			CHECK_EQ(fi_eq_read(n.eq, &event, &in, sizeof in, 0), (ssize_t)sizeof in);
		CHECK_EQ(event, FI_NOTIFY);
		CHECK_EQ(in.data, i);
		CHECK(in.fid == &n.pep->fid && in.context == &n);
	}
	CHECK_EQ(fi_eq_read(n.eq, &event, &in, sizeof in, 0), -FI_EAGAIN);
	/* Too small a buffer for the next event. */
	CHECK_EQ(fi_eq_write(n.eq, FI_NOTIFY, &out, sizeof out, 0), (ssize_t)sizeof out);
	if (is_gdrfab())
		CHECK_EQ(fi_eq_read(n.eq, &event, &in, 4, 0), -FI_ETOOSMALL);
	CHECK_EQ(fi_eq_read(n.eq, &event, &in, sizeof in, 0), (ssize_t)sizeof in);
	struct fi_eq_err_entry e;
	memset(&e, 0, sizeof e);
	CHECK_EQ(fi_eq_readerr(n.eq, &e, 0), -FI_EAGAIN);
	node_close(&n);
}

TEST(event_timeouts)
{
	struct node n;
	struct fi_eq_entry in;
	uint32_t event;
	node_alone(&n, NULL);
	for (int ms = 0; ms <= 200; ms += 100) {
		uint64_t before = test_now_ms();
		ssize_t rc = fi_eq_sread(n.eq, &event, &in, sizeof in, ms, 0);
		uint64_t took = test_now_ms() - before;
		CHECK(rc == -FI_EAGAIN || (rc == -FI_ETIMEDOUT && !is_gdrfab()));
		CHECK(took + 10 >= (uint64_t)ms && took < (uint64_t)test_ms(ms + 1000));
	}
	node_close(&n);
}
