/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Completion queues: formats of entries, limits, selective completion. */
#include "fab.h"

/* The other side of most claims: sends count messages of 1, 2, 3 ... bytes when told to. */
static void sends_on_demand(struct node *n)
{
	static unsigned char buf[4096];
	int count;
	/* This side uses its own format, whichever the other side tests. */
	struct setup mine = *n->setup;
	mine.cq_format = 0;
	mine.tx_op_flags = GDRFAB_COMPLETION; /* done when sent: the other side does not progress meanwhile */
	n->setup = &mine;
	node_up(n);
	for (;;) {
		oob_recv(n, &count, sizeof count);
		if (count == 0)
			break;
		for (int i = 1; i <= count; i++) {
			POST(n->cq, gdrfab_send(n->ep, buf, (size_t)i, local_desc(n, buf, (size_t)i), 0, buf));
			DONE(n->cq, buf, GDRFAB_SEND, NULL);
		}
		oob_send(n, &count, sizeof count);
	}
	node_down(n);
}

static void demand(struct node *n, int count)
{
	oob_send(n, &count, sizeof count);
	if (count)
		oob_recv(n, &count, sizeof count);
}

/* --- formats --- */

static size_t entry_size(uint32_t format)
{
	return format == GDRFAB_CQ_FORMAT_TAGGED ? sizeof(gdrfab_cq_tagged_entry)
	       : format == GDRFAB_CQ_FORMAT_DATA ? sizeof(gdrfab_cq_data_entry)
	       : format == GDRFAB_CQ_FORMAT_MSG ? sizeof(gdrfab_cq_msg_entry)
						: sizeof(gdrfab_cq_entry);
}

static ssize_t read_some(gdrfab_cq *cq, void *buf, size_t count)
{
	uint64_t until = test_now_ms() + (uint64_t)test_ms(10000);
	ssize_t got;
	while ((got = gdrfab_cq_read(cq, buf, count)) == -EAGAIN && test_now_ms() < until)
		;
	return got;
}

static void format_reader(struct node *n)
{
	uint32_t format = n->setup->cq_format;
	size_t size = entry_size(format);
	static unsigned char in[8][16];
	unsigned char raw[8 * sizeof(gdrfab_cq_tagged_entry) + 64];
	uint64_t src[8];
	node_up(n);
	for (int i = 0; i < 8; i++)
		POST(n->cq, gdrfab_recv(n->ep, in[i], sizeof in[i], local_desc(n, in[i], sizeof in[i]), 0, in[i]));
	demand(n, 8);
	/* Read in parts: 3 by read, the rest by readfrom and sreadfrom. No call writes behind the entries it was asked for. */
	size_t seen = 0;
	while (seen < 8) {
		memset(raw, 0xaa, sizeof raw);
		memset(src, 0, sizeof src);
		bool from = seen >= 3;
		size_t ask = from ? (seen < 6 ? 6 : 8) - seen : 3 - seen;
		ssize_t got = !from	? read_some(n->cq, raw, ask)
			      : seen >= 6 ? gdrfab_cq_sreadfrom(n->cq, raw, ask, src, test_ms(10000))
					  : gdrfab_cq_readfrom(n->cq, raw, ask, src);
		if (got == -EAGAIN)
			continue;
		CHECK(got > 0 && (size_t)got <= ask);
		for (ssize_t i = 0; i < got; i++, seen++) {
			gdrfab_cq_tagged_entry e;
			memset(&e, 0, sizeof e);
			memcpy(&e, raw + (size_t)i * size, size);
			CHECK(e.op_context == in[seen]);
			if (format != GDRFAB_CQ_FORMAT_CONTEXT) {
				CHECK_EQ(e.flags & (GDRFAB_RECV | GDRFAB_MSG), GDRFAB_RECV | GDRFAB_MSG);
				CHECK_EQ(e.len, seen + 1);
			}
			CHECK_EQ(e.tag, 0);
			if (from)
				CHECK_EQ(src[i], GDRFAB_ADDR_NOTAVAIL);
		}
		for (size_t i = (size_t)got * size; i < sizeof raw; i++)
			CHECK_EQ(raw[i], 0xaa);
		for (size_t i = (size_t)got; i < 8; i++)
			CHECK_EQ(src[i], 0);
	}
	CHECK_EQ(gdrfab_cq_read(n->cq, raw, 1), -EAGAIN);
	demand(n, 0);
	node_down(n);
}

static void formats(const void *arg)
{
	struct setup s = {.cq_format = *(const uint32_t *)arg};
	pair(&s, format_reader, sends_on_demand, NULL);
}

/* --- a read of no entries consumes nothing --- */

static void looks_only(struct node *n)
{
	unsigned char in[4];
	node_up(n);
	POST(n->cq, gdrfab_recv(n->ep, in, sizeof in, local_desc(n, in, sizeof in), 0, in));
	demand(n, 1);
	for (int i = 0; i < 100; i++) {
		ssize_t rc = gdrfab_cq_read(n->cq, NULL, 0);
		CHECK_EITHER(rc, 0, -EAGAIN);
	}
	DONE(n->cq, in, GDRFAB_RECV, NULL);
	QUIET(n->cq, 5);
	demand(n, 0);
	node_down(n);
}

TEST(count_zero_consumes_nothing)
{
	pair(NULL, looks_only, sends_on_demand, NULL);
}

/* --- a tiny queue --- */

static void tiny_sender(struct node *n)
{
	uint32_t total = (uint32_t)test_count(2000, 100), posted = 0, ended = 0, most = 0;
	static uint32_t value[4096];
	uint64_t until = test_now_ms() + (uint64_t)test_ms(15000);
	node_up(n);
	skip_unless(waits_for_receive(n), "a send does not wait for its receive");
	void *desc = local_desc(n, value, sizeof value);
	while (ended < total) {
		for (; posted < total; posted++) {
			value[posted] = posted;
			ssize_t rc = gdrfab_send(n->ep, &value[posted], 4, desc, 0, &value[posted]);
			if (rc == -EAGAIN)
				break;
			OK(rc);
		}
		most = posted - ended > most ? posted - ended : most;
		done entry;
		int next = cq_next(n->cq, &entry, 0);
		CHECK(next >= 0);
		if (next == 1) {
			CHECK((entry.flags & GDRFAB_SEND) != 0);
			ended++;
		}
		CHECK(test_now_ms() < until);
	}
	/* Posts without reading, up to the queue's capacity; 64 covers a size that was rounded up. */
	CHECK(most <= 64);
	node_down(n);
}

static void tiny_receiver(struct node *n)
{
	uint32_t total = (uint32_t)test_count(2000, 100), posted = 0, ended = 0;
	static uint32_t value[4096];
	uint64_t until = test_now_ms() + (uint64_t)test_ms(15000);
	node_up(n);
	skip_unless(waits_for_receive(n), "a send does not wait for its receive");
	void *desc = local_desc(n, value, sizeof value);
	while (ended < total) {
		for (; posted < total; posted++) {
			ssize_t rc = gdrfab_recv(n->ep, &value[posted], 4, desc, 0, &value[posted]);
			if (rc == -EAGAIN)
				break;
			OK(rc);
		}
		/* Now and then this side does not read for a while. */
		if (ended % 500 == 100)
			test_sleep_ms(2);
		done entry;
		int next = cq_next(n->cq, &entry, 0);
		CHECK(next >= 0);
		if (next == 1) {
			/* The n-th receive holds the n-th message. */
			uint32_t *at = (uint32_t *)entry.op_context;
			CHECK(at >= value && at < value + posted);
			CHECK_EQ(*at, at - value);
			*at = UINT32_MAX;
			ended++;
		}
		CHECK(test_now_ms() < until);
	}
	node_down(n);
}

TEST(tiny_queue_loses_nothing)
{
	struct setup s = {.cq_size = 4};
	pair(&s, tiny_receiver, tiny_sender, NULL);
}

static void announced_target(struct node *n)
{
	struct mem m;
	node_up(n);
	skip_unless(n->info->cq_data_size > 0, "no data goes with writes");
	mem_new(n, &m, &memkinds[KIND_MEM_ALLOC], 4096);
	mem_register(n, &m, 0, 4096, REMOTE_ACCESS, 0);
	/* If writes with data consume receives, two are posted in advance, fewer than the queue has room for. */
	data_room(n);
	data_room(n);
	mem_publish(n, &m);
	/* The writes arrive while this side does not read. */
	test_sleep_ms(20);
	uint64_t total = (uint64_t)test_count(1000, 100);
	for (uint64_t i = 0; i < total; i++) {
		done entry;
		DATA_CAME(n, &entry);
		CHECK_EQ(entry.data, i);
		CHECK_EQ(entry.len, 8);
		data_room(n);
	}
	QUIET(n->cq, 5);
	mem_end(n, &m);
	node_down(n);
}

static void announcer(struct node *n)
{
	node_up(n);
	skip_unless(n->info->cq_data_size > 0, "no data goes with writes");
	struct remote to = mem_fetch(n);
	uint64_t total = (uint64_t)test_count(1000, 100), word = 7, posted = 0, ended = 0;
	void *desc = local_desc(n, &word, 8);
	while (ended < total) {
		while (posted < total) {
			ssize_t rc = gdrfab_writedata(n->ep, &word, 8, desc, posted, 0, to.base, to.key, &word);
			if (rc == -EAGAIN)
				break;
			OK(rc);
			posted++;
		}
		done entry;
		int next = cq_next(n->cq, &entry, 0);
		CHECK(next >= 0);
		ended += (uint64_t)next;
	}
	node_down(n);
}

TEST(announcements_wait_for_room)
{
	struct setup s = {.cq_size = 4};
	pair(&s, announced_target, announcer, NULL);
}

/* A side that receives no messages posts no receives, and still gets the entries of writes with data. */
TEST(announcements_without_messages)
{
	struct setup s = {.cq_size = 64, .caps = GDRFAB_RMA};
	pair(&s, announced_target, announcer, NULL);
}

/* --- selective completion --- */

static void silent_target(struct node *n)
{
	struct mem m;
	static unsigned char in[32][64];
	node_up(n);
	for (int i = 0; i < 32; i++)
		POST(n->cq, gdrfab_recv(n->ep, in[i], sizeof in[i], local_desc(n, in[i], sizeof in[i]), 0, in[i]));
	mem_new(n, &m, &memkinds[KIND_MEM_ALLOC], 4096);
	mem_register(n, &m, 0, 4096, REMOTE_ACCESS, 0);
	mem_publish(n, &m);
	barrier(n);
	mem_end(n, &m);
	node_down(n);
}

static void silent_initiator(struct node *n)
{
	unsigned char buf[64] = {0};
	struct iovec iov = {buf, sizeof buf};
	void *desc;
	node_open(n);
	OK(gdrfab_ep_open(n->domain, n->info, n, &n->ep));
	OK(gdrfab_ep_bind_cq(n->ep, n->cq, GDRFAB_TRANSMIT | GDRFAB_SELECTIVE_COMPLETION));
	OK(gdrfab_ep_bind_cq(n->ep, n->cq, GDRFAB_RECV));
	OK(gdrfab_ep_bind_eq(n->ep, n->eq, 0));
	OK(gdrfab_ep_enable(n->ep));
	barrier(n);
	OK(gdrfab_ep_connect(n->ep, n->info->dest_addr, n->info->dest_addrlen, NULL, 0));
	EVENT(n->eq, GDRFAB_CONNECTED, n->ep, NULL);
	barrier(n);
	struct remote to = mem_fetch(n);

	for (int i = 0; i < 10; i++) {
		POST(n->cq, gdrfab_send(n->ep, buf, 64, local_desc(n, buf, 64), 0, buf));
		POST(n->cq, gdrfab_write(n->ep, buf, 64, local_desc(n, buf, 64), 0, to.base, to.key, buf));
		POST(n->cq, gdrfab_read(n->ep, buf, 64, local_desc(n, buf, 64), 0, to.base, to.key, buf));
		POST(n->cq, gdrfab_inject(n->ep, buf, 64, 0));
	}
	gdrfab_rma_iov remote = {to.base, sizeof buf, to.key};
	gdrfab_msg_rma rma;
	memset(&rma, 0, sizeof rma);
	rma.struct_size = sizeof rma;
	rma.msg_iov = &iov;
	rma.desc = local_descs(n, &iov, 1, &desc);
	rma.iov_count = 1;
	rma.rma_iov = &remote;
	rma.rma_iov_count = 1;
	rma.context = &rma;
	POST(n->cq, gdrfab_writemsg(n->ep, &rma, 0));
	POST(n->cq, gdrfab_writemsg(n->ep, &rma, GDRFAB_COMPLETION | GDRFAB_FENCE));
	DONE(n->cq, &rma, GDRFAB_WRITE, NULL);
	gdrfab_msg msg;
	memset(&msg, 0, sizeof msg);
	msg.struct_size = sizeof msg;
	msg.msg_iov = &iov;
	msg.desc = rma.desc;
	msg.iov_count = 1;
	msg.context = &msg;
	POST(n->cq, gdrfab_sendmsg(n->ep, &msg, GDRFAB_COMPLETION));
	DONE(n->cq, &msg, GDRFAB_SEND, NULL);
	/* Errors have an entry even where successes have none. */
	if (tells_failed_writes(n)) {
		void *all = local_desc(n, buf, 64);
		POST(n->cq, gdrfab_write(n->ep, buf, 64, all, 0, to.base, wrong_key(to.key), buf));
		FAILED(n->cq, buf, EKEYREJECTED, GDRFAB_PROV_KEY, NULL);
	}
	QUIET(n->cq, 20);
	barrier(n);
	node_down(n);
}

TEST(selective_completion)
{
	struct setup s = {.tx_op_flags = traits()->delivery ? traits()->delivery : GDRFAB_TRANSMIT_COMPLETE};
	pair(&s, silent_target, silent_initiator, NULL);
}

/* --- GDRFAB_INJECT for calls without flags: the buffer can be reused before the peer has received anything --- */

static void injects_by_default(struct node *n)
{
	node_up(n);
	struct remote to = mem_fetch(n);
	meet_if_hasty(n);
	char word[16] = "", huge[65536] = "";
	void *desc = local_desc(n, huge, sizeof huge);
	CHECK_EQ(gdrfab_send(n->ep, huge, n->info->inject_size + 1, desc, GDRFAB_ADDR_UNSPEC, huge), -EMSGSIZE);
	for (int i = 0; i < 3; i++) {
		snprintf(word, sizeof word, "word %d", i);
		POST(n->cq, gdrfab_send(n->ep, word, sizeof word, NULL, GDRFAB_ADDR_UNSPEC, huge));
		snprintf(word, sizeof word, "written %d", i);
		POST(n->cq, gdrfab_write(n->ep, word, sizeof word, NULL, 0, to.base + 16 * (uint64_t)i, to.key, huge));
		memset(word, 'x', sizeof word);
	}
	barrier(n);
	for (int i = 0; i < 6; i++) {
		done entry;
		CHECK_EQ(cq_next(n->cq, &entry, 10000), 1);
	}
	/* A read cannot be injected. */
	POST(n->cq, gdrfab_read(n->ep, huge, sizeof huge / 2, desc, 0, to.base, to.key, huge));
	DONE(n->cq, huge, GDRFAB_READ | GDRFAB_RMA, NULL);
	CHECK_EQ(strcmp(huge + 32, "written 2"), 0);
	barrier(n);
	node_down(n);
}

static void hears_late(struct node *n)
{
	struct mem m;
	char in[3][16], want[16];
	node_up(n);
	mem_new(n, &m, &memkinds[KIND_MEM_ALLOC], 65536);
	mem_register(n, &m, 0, 65536, GDRFAB_REMOTE_READ | GDRFAB_REMOTE_WRITE, 0);
	mem_publish(n, &m);
	bool late = waits_for_receive(n);
	if (late)
		barrier(n);
	for (int i = 0; i < 3; i++)
		POST(n->cq, gdrfab_recv(n->ep, in[i], sizeof in[i], local_desc(n, in[i], sizeof in[i]), 0, in[i]));
	if (!late) {
		meet_if_hasty(n);
		barrier(n);
	}
	for (int i = 0; i < 3; i++) {
		DONE(n->cq, in[i], GDRFAB_RECV | GDRFAB_MSG, NULL);
		snprintf(want, sizeof want, "word %d", i);
		CHECK_EQ(strcmp(in[i], want), 0);
	}
	barrier(n);
	local_forget_all(n);
	mem_end(n, &m);
	node_down(n);
}

TEST(injected_by_default)
{
	struct setup s = {.tx_op_flags = GDRFAB_INJECT | GDRFAB_COMPLETION};
	pair(&s, hears_late, injects_by_default, NULL);
}

/* --- one queue for each direction --- */

static void two_queues(struct node *n)
{
	char in, out = 'o';
	node_open(n);
	if (n->side == TEST_SERVER) {
		node_listen(n);
		barrier(n);
		n->request = node_await_request(n);
		node_domain(n, n->request);
	} else {
		barrier(n);
	}
	gdrfab_cq *tx = cq_new(n, GDRFAB_CQ_FORMAT_DATA, 16, 0);
	OK(gdrfab_ep_open(n->domain, n->request ? n->request : n->info, n, &n->ep));
	OK(gdrfab_ep_bind_cq(n->ep, tx, GDRFAB_TRANSMIT));
	OK(gdrfab_ep_bind_cq(n->ep, n->cq, GDRFAB_RECV));
	OK(gdrfab_ep_bind_eq(n->ep, n->eq, 0));
	OK(gdrfab_ep_enable(n->ep));
	if (n->side == TEST_SERVER)
		OK(gdrfab_ep_accept(n->ep, NULL, 0));
	else
		OK(gdrfab_ep_connect(n->ep, n->info->dest_addr, n->info->dest_addrlen, NULL, 0));
	EVENT(n->eq, GDRFAB_CONNECTED, n->ep, NULL);
	POST(n->cq, gdrfab_recv(n->ep, &in, 1, local_desc(n, &in, 1), 0, &in));
	meet_if_hasty(n);
	POST(tx, gdrfab_send(n->ep, &out, 1, local_desc(n, &out, 1), 0, &out));
	DONE(tx, &out, GDRFAB_SEND, NULL);
	DONE(n->cq, &in, GDRFAB_RECV, NULL);
	QUIET(tx, 5);
	barrier(n);
	CHECK_EQ(gdrfab_cq_close(tx), -EBUSY);
	OK(gdrfab_ep_close(n->ep));
	n->ep = NULL;
	OK(gdrfab_cq_close(tx));
	node_down(n);
}

TEST(a_queue_for_each_direction)
{
	pair(NULL, two_queues, two_queues, NULL);
}

TEST_TABLE(formats)
{
	static const uint32_t format[] = {GDRFAB_CQ_FORMAT_CONTEXT, GDRFAB_CQ_FORMAT_MSG, GDRFAB_CQ_FORMAT_DATA, GDRFAB_CQ_FORMAT_TAGGED};
	test_add("format_context", formats, &format[0], 20);
	test_add("format_msg", formats, &format[1], 20);
	test_add("format_data", formats, &format[2], 20);
	test_add("format_tagged", formats, &format[3], 20);
}
