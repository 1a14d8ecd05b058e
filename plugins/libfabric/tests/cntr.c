/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Counters of an endpoint's operations: the operations that they count, failures in a count of their own, and waits
 * for a threshold. */
#include "fi.h"

#include <poll.h>
#include <pthread.h>

static struct fid_cntr *cntr_new(struct node *n, enum fi_wait_obj wait)
{
	struct fi_cntr_attr attr;
	struct fid_cntr *cntr = NULL;
	memset(&attr, 0, sizeof attr);
	attr.wait_obj = wait;
	OK(fi_cntr_open(n->domain, &attr, &cntr, n));
	CHECK(cntr->fid.fclass == FI_CLASS_CNTR && cntr->fid.context == n);
	return cntr;
}

static void await(struct node *n, struct fid_cntr *cntr, uint64_t value)
{
	uint64_t until = test_now_ms() + (uint64_t)test_ms(5000);
	while (fi_cntr_read(cntr) < value && test_now_ms() < until)
		drive(n);
	CHECK_EQ(fi_cntr_read(cntr), value);
}

/* --- set, add, and waits --- */

TEST(values)
{
	struct node n;
	skip_unless(is_gdrfab(), "has no counters");
	node_alone(&n, NULL);
	struct fid_cntr *cntr = cntr_new(&n, FI_WAIT_UNSPEC);
	CHECK_EQ(fi_cntr_read(cntr), 0);
	CHECK_EQ(fi_cntr_readerr(cntr), 0);
	OK(fi_cntr_add(cntr, 5));
	OK(fi_cntr_add(cntr, 6));
	CHECK_EQ(fi_cntr_read(cntr), 11);
	OK(fi_cntr_set(cntr, 3));
	CHECK_EQ(fi_cntr_read(cntr), 3);
	OK(fi_cntr_wait(cntr, 3, 0));
	OK(fi_cntr_wait(cntr, 2, -1));
	uint64_t before = test_now_ms();
	int rc = fi_cntr_wait(cntr, 4, 100);
	CHECK(rc == -FI_ETIMEDOUT || rc == -FI_EAGAIN);
	CHECK(test_now_ms() - before >= 90);
	OK(fi_cntr_adderr(cntr, 2));
	CHECK_EQ(fi_cntr_readerr(cntr), 2);
	OK(fi_cntr_seterr(cntr, 1));
	CHECK_EQ(fi_cntr_readerr(cntr), 1);
	OK(fi_cntr_set(cntr, 0));
	CLOSE(cntr);
	node_close(&n);
}

static void *adder(void *arg)
{
	test_sleep_ms(100);
	OK(fi_cntr_add((struct fid_cntr *)arg, 1));
	return NULL;
}

/* Adds failures until the wait is over, because only a failure after its beginning ends a wait. */
struct failing {
	struct fid_cntr *cntr;
	bool over; /* atomic */
};

static void *failer(void *arg)
{
	struct failing *f = (struct failing *)arg;
	do {
		test_sleep_ms(60);
		OK(fi_cntr_adderr(f->cntr, 1));
	} while (!__atomic_load_n(&f->over, __ATOMIC_ACQUIRE));
	return NULL;
}

/* A failure ends a wait as well, with an errno. */
TEST(a_failure_ends_a_wait)
{
	struct node n;
	pthread_t thread;
	skip_unless(is_gdrfab(), "has no counters");
	node_alone(&n, NULL);
	struct fid_cntr *cntr = cntr_new(&n, FI_WAIT_UNSPEC);
	struct failing failing = {cntr, false};
	CHECK_EQ(pthread_create(&thread, NULL, failer, &failing), 0);
	CHECK_EQ(fi_cntr_wait(cntr, 5, test_ms(5000)), -FI_EAVAIL);
	__atomic_store_n(&failing.over, true, __ATOMIC_RELEASE);
	pthread_join(thread, NULL);
	CLOSE(cntr);
	node_close(&n);
}

TEST(an_addition_ends_a_wait)
{
	struct node n;
	pthread_t thread;
	skip_unless(is_gdrfab(), "has no counters");
	node_alone(&n, NULL);
	struct fid_cntr *cntr = cntr_new(&n, FI_WAIT_UNSPEC);
	for (uint64_t i = 1; i <= 5; i++) {
		CHECK_EQ(pthread_create(&thread, NULL, adder, cntr), 0);
		OK(fi_cntr_wait(cntr, i, i % 2 ? -1 : test_ms(5000)));
		CHECK_EQ(fi_cntr_read(cntr), i);
		pthread_join(thread, NULL);
	}
	CLOSE(cntr);
	node_close(&n);
}

/* --- of an endpoint --- */

enum { SENDS, RECVS, READS, WRITES, KINDS };
static const uint64_t kind_flag[KINDS] = {FI_SEND, FI_RECV, FI_READ, FI_WRITE};

static void bind_counters(struct node *n, struct fid_ep *ep, struct fid_cntr **cntr, enum fi_wait_obj wait)
{
	for (int k = 0; k < KINDS; k++) {
		cntr[k] = cntr_new(n, wait);
		OK(fi_ep_bind(ep, &cntr[k]->fid, kind_flag[k]));
	}
}

static struct fid_ep *counted_connect(struct node *n, struct fid_cntr **cntr, enum fi_wait_obj wait, uint64_t cq_flags, bool late)
{
	struct fi_info *info = n->side == TEST_SERVER ? await_request(n, n->pep) : n->info;
	struct fid_ep *ep = ep_bare(n, info, n);
	OK(fi_ep_bind(ep, &n->eq->fid, 0));
	OK(fi_ep_bind(ep, &n->cq->fid, FI_TRANSMIT | FI_RECV | cq_flags));
	if (!late)
		bind_counters(n, ep, cntr, wait);
	OK(fi_enable(ep));
	if (n->side == TEST_SERVER) {
		OK(fi_accept(ep, NULL, 0));
		fi_freeinfo(info);
	} else {
		OK(fi_connect(ep, n->info->dest_addr, NULL, 0));
	}
	EVENT(n, FI_CONNECTED, ep, NULL);
	if (late)
		bind_counters(n, ep, cntr, wait);
	return ep;
}

/* A different number of operations of each kind. The completion queue gets no entries; the counters count all of
 * them, injects too. */
static void counted(struct node *n)
{
	struct fid_cntr *cntr[KINDS];
	uint64_t *at = (uint64_t *)pages(4096), in[32], out = 1;
	struct remote r;
	node_open(n);
	n->ep = counted_connect(n, cntr, FI_WAIT_NONE, FI_SELECTIVE_COMPLETION, *(const bool *)n->arg);
	struct fid_mr *mr = mr_new(n, at, 4096, FI_REMOTE_READ | FI_REMOTE_WRITE);
	mr_publish(n, mr, at, 4096);
	r = mr_fetch(n);
	void *in_desc = local_desc(n, in, sizeof in), *desc = local_desc(n, &out, 8);
	uint64_t sends = n->side == TEST_SERVER ? 3 : 7, recvs = 10 - sends;
	for (uint64_t i = 0; i < recvs + 2; i++)
		POST(n->cq, fi_recv(n->ep, &in[i], 8, in_desc, 0, &in[i]));
	barrier(n);
	for (uint64_t i = 0; i < sends; i++)
		POST(n->cq, fi_send(n->ep, &out, 8, desc, 0, &out));
	POST(n->cq, fi_inject(n->ep, &out, 8, 0));
	for (int i = 0; i < 5; i++)
		POST(n->cq, fi_write(n->ep, &out, 8, desc, 0, r.base, r.key, &out));
	POST(n->cq, fi_inject_write(n->ep, &out, 8, 0, r.base, r.key));
	for (int i = 0; i < 4; i++)
		POST(n->cq, fi_read(n->ep, &out, 8, desc, 0, r.base, r.key, &out));
	await(n, cntr[SENDS], sends + 1);
	await(n, cntr[WRITES], 6);
	await(n, cntr[READS], 4);
	await(n, cntr[RECVS], recvs + 1);
	barrier(n);
	for (int k = 0; k < KINDS; k++) {
		CHECK_EQ(fi_cntr_readerr(cntr[k]), 0);
		/* In use, so it cannot be closed. */
		CHECK_EQ(fi_close(&cntr[k]->fid), -FI_EBUSY);
	}
	QUIET(n->cq, 20);
	barrier(n);
	/* A failure has a count of its own. It may end the connection. */
	if (n->side == TEST_CLIENT) {
		struct failure f;
		POST(n->cq, fi_write(n->ep, &out, 8, desc, 0, r.base, r.key ^ 0xff00, &out));
		FAILED(n->cq, &out, 0, &f);
		uint64_t until = test_now_ms() + (uint64_t)test_ms(5000);
		while (fi_cntr_readerr(cntr[WRITES]) == 0 && test_now_ms() < until)
			drive(n);
		CHECK_EQ(fi_cntr_readerr(cntr[WRITES]), 1);
		CHECK_EQ(fi_cntr_read(cntr[WRITES]), 6);
	}
	barrier(n);
	CLOSE(n->ep);
	n->ep = NULL;
	for (int k = 0; k < KINDS; k++)
		CLOSE(cntr[k]);
	CLOSE(mr);
	/* The receive that was left was reported when the endpoint closed. */
	barrier(n);
	node_close(n);
	free(at);
}

static void of_an_endpoint(const void *late)
{
	skip_unless(is_gdrfab(), "has no counters");
	pair(NULL, counted, counted, late);
}

TEST_TABLE(of_endpoints)
{
	static const bool late[] = {false, true};
	test_add("of_an_endpoint", of_an_endpoint, &late[0], 20);
	test_add("of_an_endpoint_that_was_enabled_before", of_an_endpoint, &late[1], 20);
}

/* --- asleep until a counter moves --- */

enum { ROUNDS = 2000 };

static void sleeper(struct node *n)
{
	bool by_fd = *(const bool *)n->arg;
	struct fid_cntr *cntr[KINDS];
	uint64_t in = 0, out = 0;
	int rounds = test_count(ROUNDS, 100), fd = -1;
	node_open(n);
	n->ep = counted_connect(n, cntr, by_fd ? FI_WAIT_FD : FI_WAIT_UNSPEC, FI_SELECTIVE_COMPLETION, false);
	void *in_desc = local_desc(n, &in, 8), *desc = local_desc(n, &out, 8);
	if (by_fd)
		OK(fi_control(&cntr[RECVS]->fid, FI_GETWAIT, &fd));
	for (int i = 0; i < rounds; i++) {
		bool mine = (i & 1) == (n->side == TEST_CLIENT);
		uint64_t value = (uint64_t)i / 2 + 1;
		if (!mine)
			POST(n->cq, fi_recv(n->ep, &in, 8, in_desc, 0, &in));
		barrier(n);
		if (mine) {
			out = (uint64_t)i;
			POST(n->cq, fi_send(n->ep, &out, 8, desc, 0, &out));
			continue;
		}
		if (!by_fd) {
			OK(fi_cntr_wait(cntr[RECVS], value, test_ms(8000)));
		} else {
			struct fid *fids[] = {&cntr[RECVS]->fid};
			while (fi_cntr_read(cntr[RECVS]) < value) {
				int rc = fi_trywait(n->fabric, fids, 1);
				if (rc == -FI_EAGAIN)
					continue;
				CHECK_EQ(rc, 0);
				struct pollfd p = {fd, POLLIN, 0};
				CHECK(poll(&p, 1, test_ms(8000)) == 1);
			}
		}
		CHECK_EQ(fi_cntr_read(cntr[RECVS]), value);
		CHECK_EQ(in, i);
	}
	barrier(n);
	CLOSE(n->ep);
	n->ep = NULL;
	for (int k = 0; k < KINDS; k++)
		CLOSE(cntr[k]);
	node_down(n);
}

TEST_WITHIN(40, asleep)
{
	static const bool no = false;
	skip_unless(is_gdrfab(), "has no counters");
	pair(NULL, sleeper, sleeper, &no);
}

TEST_WITHIN(40, asleep_in_poll)
{
	static const bool yes = true;
	skip_unless(is_gdrfab(), "has no counters");
	pair(NULL, sleeper, sleeper, &yes);
}
