/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Atomics through libfabric: every call gives the right result on connectionless and on connected endpoints; the
 * queries report exactly the calls that work; and unsupported calls are refused without effect.
 */
#include "fi_rdm.h"

#include <rdma/fi_atomic.h>

#define ATOMIC_CAPS (FI_MSG | FI_RMA | FI_ATOMIC)
#define WROTE (FI_ATOMIC | FI_WRITE)
#define FETCHED (FI_ATOMIC | FI_READ)
enum { WORDS = 16 };

/* Two endpoints of this process; the first operates on memory of the second. */
struct duo {
	struct end a, b;
	fi_addr_t to;
	struct fid_mr *mr;
	uint64_t at[WORDS], base, key;
};

static void duo_open(struct duo *d, uint64_t cq_flags)
{
	struct fi_info *hints = rdm_hints(ATOMIC_CAPS);
	memset(d, 0, sizeof *d);
	end_open_with(&d->a, hints, FI_AV_TABLE, cq_flags);
	end_open_with(&d->b, hints, FI_AV_TABLE, 0);
	fi_freeinfo(hints);
	d->to = end_knows(&d->a, &d->b);
	OK(fi_mr_reg(d->b.domain, d->at, sizeof d->at, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 1, 0, &d->mr, NULL));
	d->base = (uint64_t)(uintptr_t)d->at;
	d->key = fi_mr_key(d->mr);
}

static void duo_close(struct duo *d)
{
	CLOSE(d->mr);
	end_close(&d->a);
	end_close(&d->b);
}

static void ended(struct duo *d, const void *context, uint64_t flags)
{
	struct fi_cq_tagged_entry *e = end_next(&d->a, &d->b, NULL);
	CHECK(e != NULL);
	CHECK(e->op_context == context);
	CHECK_EQ(e->flags, flags);
}

#define AT(i) (d.base + 8 * (i)), d.key, FI_UINT64

TEST(every_call)
{
	struct duo d;
	uint64_t one = 1, was[2] = {9, 9}, c = 5;
	uint64_t values[3] = {10, 0, 20};
	struct fi_ioc pieces[] = {{&values[0], 1}, {&values[2], 1}}, single = {&one, 1}, comp = {&c, 1};
	struct fi_ioc got = {was, 1}, got_two[] = {{&was[0], 1}, {&was[1], 1}};
	struct fi_rma_ioc target;
	struct fi_msg_atomic m;
	duo_open(&d, 0);
	memset(&m, 0, sizeof m);
	target = (struct fi_rma_ioc){d.base, 1, d.key};
	m.msg_iov = &single, m.iov_count = 1, m.addr = d.to, m.rma_iov = &target, m.rma_iov_count = 1;
	m.datatype = FI_UINT64, m.op = FI_SUM, m.context = &m;
	OK(fi_atomic(d.a.ep, &one, 1, NULL, d.to, AT(0), FI_SUM, &one));
	ended(&d, &one, WROTE);
	CHECK_EQ(d.at[0], 1);
	OK(fi_atomicv(d.a.ep, pieces, NULL, 2, d.to, AT(0), FI_SUM, pieces));
	ended(&d, pieces, WROTE);
	CHECK(d.at[0] == 11 && d.at[1] == 20);
	OK(fi_atomicmsg(d.a.ep, &m, FI_COMPLETION | FI_INJECT));
	ended(&d, &m, WROTE);
	CHECK_EQ(d.at[0], 12);
	OK(fi_inject_atomic(d.a.ep, &one, 1, d.to, AT(0), FI_SUM));
	/* Fetching operations follow in order. */
	OK(fi_fetch_atomic(d.a.ep, &one, 1, NULL, was, NULL, d.to, AT(0), FI_SUM, was));
	ended(&d, was, FETCHED);
	CHECK(was[0] == 13 && d.at[0] == 14);
	OK(fi_fetch_atomicv(d.a.ep, pieces, NULL, 2, got_two, NULL, 2, d.to, AT(0), FI_SUM, was));
	ended(&d, was, FETCHED);
	CHECK(was[0] == 14 && was[1] == 20 && d.at[0] == 24 && d.at[1] == 40);
	OK(fi_fetch_atomicmsg(d.a.ep, &m, &got, NULL, 1, FI_COMPLETION));
	ended(&d, &m, FETCHED);
	CHECK(was[0] == 24 && d.at[0] == 25);
	/* FI_ATOMIC_READ takes no operands. */
	m.msg_iov = NULL, m.iov_count = 0, m.op = FI_ATOMIC_READ;
	OK(fi_fetch_atomicmsg(d.a.ep, &m, &got, NULL, 1, FI_COMPLETION));
	ended(&d, &m, FETCHED);
	CHECK_EQ(was[0], 25);
	OK(fi_fetch_atomic(d.a.ep, NULL, 2, NULL, was, NULL, d.to, AT(0), FI_ATOMIC_READ, was));
	ended(&d, was, FETCHED);
	CHECK(was[0] == 25 && was[1] == 40);
	OK(fi_compare_atomic(d.a.ep, &one, 1, NULL, &c, NULL, was, NULL, d.to, AT(0), FI_CSWAP, &c));
	ended(&d, &c, FETCHED);
	CHECK(was[0] == 25 && d.at[0] == 25);
	c = 25;
	OK(fi_compare_atomicv(d.a.ep, &single, NULL, 1, &comp, NULL, 1, &got, NULL, 1, d.to, AT(0), FI_CSWAP, &c));
	ended(&d, &c, FETCHED);
	CHECK(was[0] == 25 && d.at[0] == 1);
	m.msg_iov = &single, m.iov_count = 1, m.op = FI_MSWAP;
	c = 2;
	OK(fi_compare_atomicmsg(d.a.ep, &m, &comp, NULL, 1, &got, NULL, 1, FI_COMPLETION));
	ended(&d, &m, FETCHED);
	CHECK(was[0] == 1 && d.at[0] == 1);
	duo_close(&d);
}

/* Pieces: result pieces must be contiguous, the counts must match, and the target has one piece. */
TEST(pieces_that_do_not_fit)
{
	struct duo d;
	uint64_t one[200] = {1}, was[4] = {0};
	struct fi_ioc pair_of[] = {{&one[0], 1}, {&one[1], 1}}, pieces[] = {{&was[0], 1}, {&was[2], 1}};
	struct fi_ioc many[] = {{one, 100}, {one, 100}}, none[] = {{one, 1}, {NULL, 1}}, got = {was, 1};
	struct fi_ioc huge[] = {{one, 1}, {one, SIZE_MAX}};
	struct fi_rma_ioc target[2];
	struct fi_msg_atomic m;
	duo_open(&d, 0);
	memset(&m, 0, sizeof m);
	target[0] = target[1] = (struct fi_rma_ioc){d.base, 1, d.key};
	m.msg_iov = pair_of, m.iov_count = 1, m.addr = d.to, m.rma_iov = target, m.rma_iov_count = 2;
	m.datatype = FI_UINT64, m.op = FI_SUM;
	CHECK_EQ(fi_fetch_atomicv(d.a.ep, pair_of, NULL, 2, pieces, NULL, 2, d.to, AT(0), FI_SUM, NULL), -FI_EOPNOTSUPP);
	CHECK_EQ(fi_fetch_atomicv(d.a.ep, pair_of, NULL, 2, &got, NULL, 1, d.to, AT(0), FI_SUM, NULL), -FI_EINVAL);
	CHECK_EQ(fi_fetch_atomicv(d.a.ep, pair_of, NULL, 2, NULL, NULL, 0, d.to, AT(0), FI_SUM, NULL), -FI_EINVAL);
	CHECK_EQ(fi_compare_atomicv(d.a.ep, pair_of, NULL, 1, pair_of, NULL, 2, &got, NULL, 1, d.to, AT(0), FI_CSWAP, NULL), -FI_EINVAL);
	CHECK_EQ(fi_atomicv(d.a.ep, many, NULL, 2, d.to, AT(0), FI_SUM, NULL), -FI_EMSGSIZE);
	CHECK_EQ(fi_atomicv(d.a.ep, huge, NULL, 2, d.to, AT(0), FI_SUM, NULL), -FI_EMSGSIZE);
	CHECK_EQ(fi_atomicv(d.a.ep, none, NULL, 2, d.to, AT(0), FI_SUM, NULL), -FI_EINVAL);
	CHECK_EQ(fi_atomicv(d.a.ep, NULL, NULL, 1, d.to, AT(0), FI_SUM, NULL), -FI_EINVAL);
	CHECK_EQ(fi_atomicmsg(d.a.ep, &m, 0), -FI_EINVAL);
	m.rma_iov_count = 1;
	target[0].count = 2;
	CHECK_EQ(fi_atomicmsg(d.a.ep, &m, 0), -FI_EINVAL);
	CHECK_EQ(fi_fetch_atomicmsg(d.a.ep, &m, NULL, NULL, 1, 0), -FI_EINVAL);
	for (int i = 0; i < WORDS; i++)
		CHECK_EQ(d.at[i], 0);
	duo_close(&d);
}

TEST(what_is_wrong_is_refused)
{
	struct duo d;
	uint64_t one = 1, was = 0;
	duo_open(&d, 0);
	CHECK_EQ(fi_atomic(d.a.ep, &one, 1, NULL, d.to, d.base + 4, d.key, FI_UINT64, FI_SUM, NULL), -FI_EINVAL);
	CHECK_EQ(fi_atomic(d.a.ep, &one, 129, NULL, d.to, AT(0), FI_SUM, NULL), -FI_EMSGSIZE);
	CHECK_EQ(fi_atomic(d.a.ep, NULL, 1, NULL, d.to, AT(0), FI_SUM, NULL), -FI_EINVAL);
	CHECK_EQ(fi_atomic(d.a.ep, &one, 1, NULL, 77, AT(0), FI_SUM, NULL), -FI_EINVAL);
	CHECK_EQ(fi_atomic(d.a.ep, &one, 1, NULL, d.to, AT(0), FI_ATOMIC_READ, NULL), -FI_EOPNOTSUPP);
	CHECK_EQ(fi_atomic(d.a.ep, &one, 1, NULL, d.to, AT(0), FI_CSWAP, NULL), -FI_EOPNOTSUPP);
	CHECK_EQ(fi_atomic(d.a.ep, &one, 1, NULL, d.to, AT(0), (enum fi_op)99, NULL), -FI_EOPNOTSUPP);
	CHECK_EQ(fi_atomic(d.a.ep, &one, 1, NULL, d.to, d.base, d.key, FI_FLOAT_COMPLEX, FI_SUM, NULL), -FI_EOPNOTSUPP);
	CHECK_EQ(fi_inject_atomic(d.a.ep, &one, 1, d.to, d.base, d.key, FI_DOUBLE, FI_BXOR), -FI_EOPNOTSUPP);
	/* The target detects a wrong key. */
	OK(fi_fetch_atomic(d.a.ep, &one, 1, NULL, &was, NULL, d.to, d.base, d.key ^ 0xff00, FI_UINT64, FI_SUM, &was));
	CHECK(end_next(&d.a, &d.b, NULL) == NULL);
	struct fi_cq_err_entry entry;
	memset(&entry, 0, sizeof entry);
	CHECK_EQ(fi_cq_readerr(d.a.cq, &entry, 0), 1);
	CHECK(entry.op_context == &was && entry.err != 0);
	CHECK_EQ(entry.flags, FETCHED);
	CHECK_EQ(d.at[0], 0);
	duo_close(&d);
}

/* ---- queries */

/* The combinations that fi_atomic(3) defines for these datatypes. */
static bool defined(int form, enum fi_datatype type, enum fi_op op)
{
	bool bits = op == FI_BOR || op == FI_BAND || op == FI_BXOR || op == FI_MSWAP;
	if (type > FI_DOUBLE || (bits && type >= FI_FLOAT))
		return false;
	if (form == 2)
		return op >= FI_CSWAP && op <= FI_MSWAP;
	return op < FI_ATOMIC_READ || op == FI_ATOMIC_WRITE || (op == FI_ATOMIC_READ && form == 1);
}

TEST(queries_are_exact)
{
	static const uint64_t flags[] = {0, FI_FETCH_ATOMIC, FI_COMPARE_ATOMIC};
	static const size_t size[] = {1, 1, 2, 2, 4, 4, 8, 8, 4, 8};
	struct duo d;
	struct fi_atomic_attr attr;
	uint64_t operand[1] = {1}, c[1] = {1}, was[1];
	duo_open(&d, 0);
	for (int form = 0; form < 3; form++)
		for (int t = 0; t < FI_DATATYPE_LAST + 4; t++)
			for (int o = 0; o < FI_MSWAP + 4; o++) {
				enum fi_datatype type = (enum fi_datatype)t;
				enum fi_op op = (enum fi_op)o;
				int want = defined(form, type, op) ? 0 : -FI_EOPNOTSUPP;
				size_t count = 0;
				memset(&attr, 0, sizeof attr);
				CHECK_EQ(fi_query_atomic(d.a.domain, type, op, &attr, flags[form]), want);
				CHECK_EQ(fi_query_atomic(d.a.domain, type, op, NULL, flags[form]), want);
				CHECK_EQ(form == 0   ? fi_atomicvalid(d.a.ep, type, op, &count)
					 : form == 1 ? fi_fetch_atomicvalid(d.a.ep, type, op, &count)
						     : fi_compare_atomicvalid(d.a.ep, type, op, &count),
					 want);
				CHECK_EQ(count, attr.count);
				if (want == 0)
					CHECK(attr.size == size[t] && count == 1024 / size[t]);
				/* The calls agree with the query. */
				ssize_t did = form == 0 ? fi_atomic(d.a.ep, operand, 1, NULL, d.to, d.base, d.key, type, op, c)
					: form == 1
					? fi_fetch_atomic(d.a.ep, operand, 1, NULL, was, NULL, d.to, d.base, d.key, type, op, c)
					: fi_compare_atomic(d.a.ep, operand, 1, NULL, c, NULL, was, NULL, d.to, d.base, d.key, type, op, c);
				CHECK_EQ(did, want);
				if (want == 0)
					ended(&d, c, form ? FETCHED : WROTE);
			}
	CHECK_EQ(fi_query_atomic(d.a.domain, FI_UINT64, FI_CSWAP, &attr, FI_FETCH_ATOMIC | FI_COMPARE_ATOMIC), -FI_EBADFLAGS);
	CHECK_EQ(fi_query_atomic(d.a.domain, FI_UINT64, FI_SUM, &attr, FI_TAGGED), -FI_EBADFLAGS);
	duo_close(&d);
}

/* ---- completions */

/* Counters count atomics as writes and reads; without FI_COMPLETION there is no entry. */
TEST(counted)
{
	struct duo d;
	struct fid_cntr *cntr[2];
	struct fid_ep *ep;
	struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP};
	uint64_t one = 1, was = 0;
	duo_open(&d, 0);
	OK(fi_endpoint(d.a.domain, d.a.info, &ep, NULL));
	OK(fi_ep_bind(ep, &d.a.cq->fid, FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION));
	OK(fi_ep_bind(ep, &d.a.av->fid, 0));
	for (int i = 0; i < 2; i++) {
		OK(fi_cntr_open(d.a.domain, &attr, &cntr[i], NULL));
		OK(fi_ep_bind(ep, &cntr[i]->fid, i ? FI_WRITE : FI_READ));
	}
	OK(fi_enable(ep));
	for (int i = 0; i < 5; i++)
		OK(fi_atomic(ep, &one, 1, NULL, d.to, AT(0), FI_SUM, NULL));
	for (int i = 0; i < 3; i++)
		OK(fi_fetch_atomic(ep, &one, 1, NULL, &was, NULL, d.to, AT(0), FI_SUM, NULL));
	for (uint64_t until = test_now_ms() + (uint64_t)test_ms(10000); test_now_ms() < until;) {
		CHECK_EQ(fi_cq_read(d.a.cq, NULL, 0), -FI_EAGAIN);
		fi_cq_read(d.b.cq, NULL, 0);
		if (fi_cntr_read(cntr[0]) == 3 && fi_cntr_read(cntr[1]) == 5)
			break;
	}
	CHECK_EQ(fi_cntr_read(cntr[0]), 3);
	CHECK_EQ(fi_cntr_read(cntr[1]), 5);
	CHECK(was == 7 && d.at[0] == 8);
	CLOSE(ep);
	CLOSE(cntr[0]);
	CLOSE(cntr[1]);
	duo_close(&d);
}

/* ---- connected endpoints */

enum { ROUNDS = 500 };

/* Both sides add to the server's word and to the client's; no addition may be lost. */
static void adds(struct node *n)
{
	uint64_t *at = (uint64_t *)pages(4096), one = 1, was = 0, rounds = (uint64_t)test_count(ROUNDS, 50);
	node_up(n);
	struct fid_mr *mr = mr_new(n, at, 4096, FI_REMOTE_READ | FI_REMOTE_WRITE);
	struct fi_atomic_attr attr;
	mr_publish(n, mr, at, 4096);
	struct remote r = mr_fetch(n);
	OK(fi_query_atomic(n->domain, FI_UINT64, FI_SUM, &attr, FI_FETCH_ATOMIC));
	for (uint64_t i = 0; i < rounds; i++) {
		POST(n->cq, fi_fetch_atomic(n->ep, &one, 1, NULL, &was, NULL, 0, r.base, r.key, FI_UINT64, FI_SUM, &was));
		DONE(n->cq, &was, FETCHED, NULL);
		CHECK_EQ(was, 2 * i);
		POST(n->cq, fi_inject_atomic(n->ep, &one, 1, 0, r.base, r.key, FI_UINT64, FI_SUM));
	}
	POST(n->cq, fi_fetch_atomic(n->ep, NULL, 1, NULL, &was, NULL, 0, r.base, r.key, FI_UINT64, FI_ATOMIC_READ, &was));
	DONE(n->cq, &was, FETCHED, NULL);
	CHECK_EQ(was, 2 * rounds);
	barrier(n);
	CHECK_EQ(at[0], 2 * rounds);
	CLOSE(mr);
	node_down(n);
	free(at);
}

TEST(of_connected_endpoints)
{
	static const struct setup setup = {.caps = ATOMIC_CAPS};
	skip_unless(is_gdrfab() && !is_carried_by("verbs"), "has no atomics");
	pair(&setup, adds, adds, NULL);
}

/* Not connected yet: an errno, and nothing remains queued. */
TEST(before_there_is_a_peer)
{
	struct node n;
	static const struct setup setup = {.caps = ATOMIC_CAPS};
	uint64_t one = 1;
	skip_unless(is_gdrfab() && !is_carried_by("verbs"), "has no atomics");
	node_alone(&n, &setup);
	n.ep = ep_new(&n, n.info, &n);
	CHECK(fi_atomic(n.ep, &one, 1, NULL, 0, 0, 1, FI_UINT64, FI_SUM, NULL) < 0);
	CHECK(fi_inject_atomic(n.ep, &one, 1, 0, 0, 1, FI_UINT64, FI_SUM) < 0);
	node_close(&n);
}
