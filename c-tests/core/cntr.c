/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Counters: the events that each counts, on both sides of a write, and waiting for a count. */
#include "fab.h"

#include <poll.h>
#include <pthread.h>

#define LONG 8000

static gdrfab_cntr *counter(struct node *n, uint32_t wait)
{
	gdrfab_cntr_attr attr = {sizeof attr, 0, wait, 0};
	gdrfab_cntr *c = NULL;
	OK(gdrfab_cntr_open(n->domain, &attr, NULL, &c));
	CHECK(c != NULL);
	CHECK_EQ(gdrfab_cntr_read(c), 0);
	CHECK_EQ(gdrfab_cntr_readerr(c), 0);
	return c;
}

TEST(set_and_add)
{
	struct node n;
	node_alone(&n, NULL);
	gdrfab_cntr *c = counter(&n, GDRFAB_WAIT_NONE);
	OK(gdrfab_cntr_add(c, 5));
	CHECK_EQ(gdrfab_cntr_read(c), 5);
	OK(gdrfab_cntr_set(c, 1ull << 40));
	CHECK_EQ(gdrfab_cntr_read(c), 1ull << 40);
	OK(gdrfab_cntr_add(c, 2));
	CHECK_EQ(gdrfab_cntr_read(c), (1ull << 40) + 2);
	OK(gdrfab_cntr_adderr(c, 3));
	CHECK_EQ(gdrfab_cntr_readerr(c), 3);
	OK(gdrfab_cntr_seterr(c, 9));
	CHECK_EQ(gdrfab_cntr_readerr(c), 9);
	CHECK_EQ(gdrfab_cntr_read(c), (1ull << 40) + 2);
	OK(gdrfab_cntr_close(c));
	/* Attributes NULL mean the defaults. */
	OK(gdrfab_cntr_open(n.domain, NULL, NULL, &c));
	CHECK_EQ(gdrfab_cntr_read(c), 0);
	OK(gdrfab_cntr_close(c));
	node_close(&n);
}

static void *adds_later(void *arg)
{
	test_sleep_ms(60);
	gdrfab_cntr_add((gdrfab_cntr *)arg, 1);
	return NULL;
}

/* A failure after the wait has begun ends the wait: this thread adds failures until the wait is over. */
struct failing {
	gdrfab_cntr *cntr;
	bool over; /* atomic */
};

static void *fails_later(void *arg)
{
	struct failing *f = (struct failing *)arg;
	do {
		test_sleep_ms(60);
		gdrfab_cntr_adderr(f->cntr, 1);
	} while (!__atomic_load_n(&f->over, __ATOMIC_ACQUIRE));
	return NULL;
}

TEST(wait)
{
	struct node n;
	pthread_t thread;
	node_alone(&n, NULL);
	gdrfab_cntr *c = counter(&n, GDRFAB_WAIT_NONE);
	OK(gdrfab_cntr_wait(c, 0, 0));
	uint64_t start = test_now_ms();
	CHECK_EQ(gdrfab_cntr_wait(c, 1, 0), -ETIMEDOUT);
	CHECK(test_now_ms() - start < (uint64_t)test_ms(1000));
	CHECK_EQ(gdrfab_cntr_wait(c, 1, 100), -ETIMEDOUT);
	CHECK(test_now_ms() - start >= 99);
	CHECK(test_now_ms() - start < (uint64_t)test_ms(3000));
	CHECK_EQ(pthread_create(&thread, NULL, adds_later, c), 0);
	OK(gdrfab_cntr_wait(c, 1, -1));
	pthread_join(thread, NULL);
	OK(gdrfab_cntr_wait(c, 1, 0));
	struct failing failing = {c, false};
	CHECK_EQ(pthread_create(&thread, NULL, fails_later, &failing), 0);
	CHECK_EQ(gdrfab_cntr_wait(c, 100, test_ms(LONG)), -GDRFAB_EAVAIL);
	__atomic_store_n(&failing.over, true, __ATOMIC_RELEASE);
	pthread_join(thread, NULL);
	/* Only a change of the error count ends a wait. */
	CHECK_EQ(gdrfab_cntr_wait(c, 100, 50), -ETIMEDOUT);
	OK(gdrfab_cntr_close(c));
	node_close(&n);
}

TEST(fd)
{
	int fd = -42;
	struct node n;
	node_alone(&n, NULL);
	gdrfab_cntr *c = counter(&n, GDRFAB_WAIT_FD);
	OK(gdrfab_cntr_fd(c, &fd));
	CHECK(fd >= 0);
	struct pollfd p = {fd, POLLIN, 0};
	OK(gdrfab_cntr_trywait(c));
	CHECK_EQ(poll(&p, 1, 30), 0);
	pthread_t thread;
	CHECK_EQ(pthread_create(&thread, NULL, adds_later, c), 0);
	CHECK_EQ(poll(&p, 1, test_ms(LONG)), 1);
	pthread_join(thread, NULL);
	CHECK_EQ(gdrfab_cntr_read(c), 1);
	OK(gdrfab_cntr_close(c));
	c = counter(&n, GDRFAB_WAIT_NONE);
	fd = -42;
	CHECK_EQ(gdrfab_cntr_fd(c, &fd), -ENOSYS);
	CHECK_EQ(fd, -42);
	OK(gdrfab_cntr_close(c));
	node_close(&n);
}

/* --- the counters of an endpoint --- */

enum { SENDS, RECVS, READS, WRITES, REMOTE_WRITES, COUNTERS };
static const uint64_t counts[COUNTERS] = {GDRFAB_SEND, GDRFAB_RECV, GDRFAB_READ, GDRFAB_WRITE, GDRFAB_REMOTE_WRITE};

static void bind_counters(struct node *n, gdrfab_cntr **c)
{
	for (int i = 0; i < COUNTERS; i++) {
		c[i] = counter(n, GDRFAB_WAIT_NONE);
		OK(gdrfab_ep_bind_cntr(n->ep, c[i], counts[i]));
		CHECK_EQ(gdrfab_ep_bind_cntr(n->ep, c[0], counts[i] | counts[0]), -EBUSY);
	}
}

/* A message each way, which no counter counts. */
static void uncounted(struct node *n)
{
	char word[8] = "early";
	for (int side = TEST_SERVER; side <= TEST_CLIENT; side++) {
		bool sends = (int)n->side == side;
		if (!sends)
			POST(n->cq, gdrfab_recv(n->ep, word, 8, local_desc(n, word, 8), 0, word));
		barrier(n);
		if (sends)
			POST(n->cq, gdrfab_send(n->ep, word, 8, local_desc(n, word, 8), 0, word));
		DONE(n->cq, word, sends ? GDRFAB_SEND : GDRFAB_RECV, NULL);
	}
}

/* node_up() with a counter of each kind, bound before the endpoint is enabled or after its first operations. */
static void up_with_counters(struct node *n, gdrfab_cntr **c)
{
	bool late = *(const bool *)n->arg;
	node_open(n);
	if (n->side == TEST_SERVER) {
		node_listen(n);
		barrier(n);
		n->request = node_await_request(n);
		node_domain(n, n->request);
	} else {
		barrier(n);
	}
	OK(gdrfab_ep_open(n->domain, n->request ? n->request : n->info, n, &n->ep));
	OK(gdrfab_ep_bind_cq(n->ep, n->cq, GDRFAB_TRANSMIT | GDRFAB_RECV));
	OK(gdrfab_ep_bind_eq(n->ep, n->eq, 0));
	if (!late)
		bind_counters(n, c);
	OK(gdrfab_ep_enable(n->ep));
	if (n->side == TEST_SERVER)
		OK(gdrfab_ep_accept(n->ep, NULL, 0));
	else
		OK(gdrfab_ep_connect(n->ep, n->info->dest_addr, n->info->dest_addrlen, NULL, 0));
	EVENT(n->eq, GDRFAB_CONNECTED, n->ep, NULL);
	barrier(n);
	if (late) {
		uncounted(n);
		bind_counters(n, c);
		CHECK_EQ(gdrfab_ep_bind_cq(n->ep, n->cq, GDRFAB_TRANSMIT), -GDRFAB_EOPBADSTATE);
		barrier(n);
	}
}

static void expect_counts(gdrfab_cntr **c, uint64_t sends, uint64_t recvs, uint64_t reads, uint64_t writes,
			  uint64_t remote, uint64_t errors)
{
	uint64_t want[COUNTERS] = {sends, recvs, reads, writes, remote}, failed = 0;
	for (int i = 0; i < COUNTERS; i++) {
		/* The wait alone would accept a count that is too high. */
		OK(gdrfab_cntr_wait(c[i], want[i], test_ms(LONG)));
		CHECK_EQ(gdrfab_cntr_read(c[i]), want[i]);
		failed += gdrfab_cntr_readerr(c[i]);
	}
	CHECK_EQ(failed, errors);
}

static void close_counters(struct node *n, gdrfab_cntr **c)
{
	barrier(n);
	CHECK_EQ(gdrfab_cntr_close(c[0]), -EBUSY);
	OK(gdrfab_ep_close(n->ep));
	n->ep = NULL;
	for (int i = 0; i < COUNTERS; i++)
		OK(gdrfab_cntr_close(c[i]));
	node_down(n);
}

static void counted_target(struct node *n)
{
	gdrfab_cntr *c[COUNTERS];
	char in[64];
	struct mem m;
	up_with_counters(n, c);
	for (int i = 0; i < (data_takes_receive(n) ? 5 + 4 : 5); i++)
		POST(n->cq, gdrfab_recv(n->ep, in, sizeof in, local_desc(n, in, sizeof in), 0, in));
	mem_new(n, &m, &memkinds[KIND_MEM_ALLOC], 4096);
	mem_register(n, &m, 0, 4096, REMOTE_ACCESS, 0);
	mem_publish(n, &m);
	barrier(n);
	/* For the target's endpoint only writes with data are events. */
	expect_counts(c, 0, 5, 0, 0, n->info->cq_data_size > 0 ? 4 : 0, 0);
	mem_end(n, &m);
	close_counters(n, c);
}

static void counted_initiator(struct node *n)
{
	gdrfab_cntr *c[COUNTERS];
	char word[8] = "counted";
	up_with_counters(n, c);
	struct remote to = mem_fetch(n);
	void *desc = local_desc(n, word, 8);
	bool data = n->info->cq_data_size > 0;
	for (int i = 0; i < 3; i++) {
		POST(n->cq, gdrfab_send(n->ep, word, 8, local_desc(n, word, 8), 0, word));
		if (data)
			POST(n->cq, gdrfab_writedata(n->ep, word, 8, desc, 1, 0, to.base, to.key, word));
		else
			POST(n->cq, gdrfab_write(n->ep, word, 8, desc, 0, to.base, to.key, word));
		POST(n->cq, gdrfab_read(n->ep, word, 8, local_desc(n, word, 8), 0, to.base, to.key, word));
	}
	POST(n->cq, gdrfab_inject(n->ep, word, 8, 0));
	POST(n->cq, gdrfab_inject(n->ep, word, 8, 0));
	POST(n->cq, gdrfab_inject_write(n->ep, word, 8, 0, to.base, to.key));
	if (data)
		POST(n->cq, gdrfab_inject_writedata(n->ep, word, 8, 1, 0, to.base, to.key));
	else
		POST(n->cq, gdrfab_inject_write(n->ep, word, 8, 0, to.base, to.key));
	POST(n->cq, gdrfab_write(n->ep, word, 8, local_desc(n, word, 8), 0, to.base, to.key, word));
	expect_counts(c, 5, 0, 3, 6, 0, 0);
	/* Errors are counted separately. */
	if (tells_failed_writes(n)) {
		POST(n->cq, gdrfab_write(n->ep, word, 8, local_desc(n, word, 8), 0, to.base, wrong_key(to.key), word));
		uint64_t until = test_now_ms() + (uint64_t)test_ms(LONG);
		while (gdrfab_cntr_readerr(c[WRITES]) == 0 && test_now_ms() < until)
			gdrfab_cntr_read(c[WRITES]);
		expect_counts(c, 5, 0, 3, 6, 0, 1);
		CHECK_EQ(gdrfab_cntr_readerr(c[WRITES]), 1);
	}
	barrier(n);
	close_counters(n, c);
}

TEST(endpoint_counters)
{
	static const bool late = false;
	pair(NULL, counted_target, counted_initiator, &late);
}

TEST(endpoint_counters_bound_later)
{
	static const bool late = true;
	pair(NULL, counted_target, counted_initiator, &late);
}

/* --- the counter of a region: every write into the region counts, by every call and path --- */

static void region_target(struct node *n)
{
	const struct way *way = (const struct way *)n->arg;
	struct mem m;
	node_up(n);
	gdrfab_cntr *c = counter(n, GDRFAB_WAIT_NONE), *untouched = counter(n, GDRFAB_WAIT_NONE);
	mem_new(n, &m, way->kind, 65536);
	memset(m.addr, 0, m.len);
	struct iovec iov = {m.addr, m.len};
	gdrfab_mr_dmabuf dmabuf = {m.fd, 0, 0, m.len, m.addr};
	gdrfab_mr_attr attr;
	memset(&attr, 0, sizeof attr);
	attr.struct_size = sizeof attr;
	attr.iov_count = 1;
	attr.access = REMOTE_ACCESS;
	attr.require = way->path->bit;
	attr.mr_iov = m.kind->file ? NULL : &iov;
	attr.dmabuf = m.kind->file ? &dmabuf : NULL;
	/* A peer learns of the counter when it first looks the region up; files are registered with the counter. */
	uint64_t flags = m.kind->file ? GDRFAB_RMA_EVENT | GDRFAB_MR_DMABUF : 0;
	int rc = gdrfab_mr_regattr(n->domain, &attr, flags, &m.mr);
	if (rc == -EOPNOTSUPP && m.kind->file && way->path->bit == GDRFAB_PATH_CMA)
		test_skip("%s", gdrfab_last_error());
	OK(rc);
	OK(gdrfab_mr_bind_cntr(m.mr, c, GDRFAB_REMOTE_WRITE));
	gdrfab_mr_info info;
	memset(&info, 0, sizeof info);
	info.struct_size = sizeof info;
	OK(gdrfab_mr_query(m.mr, &info));
	struct remote r = {info.key, info.base, info.len};
	oob_send(n, &r, sizeof r);
	/* The bytes of a write are in place when it is counted. */
	for (uint64_t i = 1; i <= 8; i++) {
		OK(gdrfab_cntr_wait(c, i, test_ms(LONG)));
		CHECK_EQ(gdrfab_cntr_read(c), i);
		CHECK_FILLED("counted bytes", m.addr, i == 8 ? 60000 : 64, 0, (uint32_t)i);
		barrier(n);
	}
	/* Of the operations since then only the permitted writes count. */
	barrier(n);
	OK(gdrfab_cntr_wait(c, 108, test_ms(LONG)));
	CHECK_EQ(gdrfab_cntr_read(c), 108);
	CHECK_EQ(gdrfab_cntr_read(untouched), 0);
	CHECK_EQ(gdrfab_cntr_readerr(c), 0);
	CHECK_EQ(gdrfab_cntr_close(c), -EBUSY);
	mem_unregister(&m);
	OK(gdrfab_cntr_close(c));
	OK(gdrfab_cntr_close(untouched));
	mem_end(n, &m);
	node_down(n);
}

static void region_initiator(struct node *n)
{
	const struct way *way = (const struct way *)n->arg;
	static unsigned char buf[60000];
	done entry;
	node_up(n);
	struct remote to = mem_fetch(n);
	way_check(n, way, to);
	void *desc = local_desc(n, buf, sizeof buf);
	for (uint32_t i = 1; i <= 8; i++) {
		size_t len = i == 8 ? sizeof buf : 64;
		fill(buf, len, 0, i);
		if (i % 4 == 1)
			POST(n->cq, gdrfab_inject_write(n->ep, buf, len, 0, to.base, to.key));
		else if (i % 4 == 2)
			POST(n->cq, gdrfab_writedata(n->ep, buf, len, desc, i, 0, to.base, to.key, buf));
		else
			POST(n->cq, gdrfab_write(n->ep, buf, len, desc, 0, to.base, to.key, buf));
		if (i % 4 != 1)
			DONE(n->cq, buf, GDRFAB_WRITE, &entry);
		barrier(n);
	}
	/* A refused write and a read do not count. */
	POST(n->cq, gdrfab_write(n->ep, buf, 64, local_desc(n, buf, 64), 0, to.base + to.len - 1, to.key, buf));
	FAILED(n->cq, buf, ERANGE, GDRFAB_PROV_BOUNDS, NULL);
	POST(n->cq, gdrfab_read(n->ep, buf, 64, local_desc(n, buf, 64), 0, to.base, to.key, buf));
	DONE(n->cq, buf, GDRFAB_READ, NULL);
	barrier(n);
	for (int i = 0; i < 100; i++) {
		POST(n->cq, gdrfab_write(n->ep, buf, 64, local_desc(n, buf, 64), 0, to.base, to.key, buf));
		DONE(n->cq, buf, GDRFAB_WRITE, NULL);
	}
	node_down(n);
}

static void region_counter(const void *arg)
{
	struct setup s = {.caps = GDRFAB_MSG | GDRFAB_RMA | GDRFAB_RMA_EVENT};
	pair(&s, region_target, region_initiator, arg);
}

static void no_region_counter(TEST_UNUSED const void *arg)
{
	struct setup s = {.caps = GDRFAB_RMA | GDRFAB_RMA_EVENT};
	gdrfab_info *hints = hints_new(&s), *info = NULL;
	skip_unless(provider_getinfo(NULL, 0, hints, &info) == 0, "no counters of regions (RMA_EVENT)");
	test_fail(__FILE__, __LINE__, "RMA_EVENT is offered: these claims must be tried");
}

TEST_TABLE(per_way)
{
	/* Only a provider that sees each incoming write can count writes. */
	if (traits()->adapter) {
		test_add("region_counter", no_region_counter, NULL, 20);
		return;
	}
	char name[64];
	size_t count = ways_list();
	for (size_t i = 0; i < count; i++) {
		/* The path decides which side adds to the counter: a memory checker needs one kind of memory for each path. */
		if (test_checked() && !way_leads(i))
			continue;
		snprintf(name, sizeof name, "region_counter_%s", ways[i].name);
		test_add(name, region_counter, &ways[i], 20);
	}
}
