/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Messages through gdrfab's plugin for NCCL, byte for byte: every kind of memory, sizes at which the protocol
 * changes, many in flight, both ways, from several threads, and early ones.
 */
#include "nccl_drive.h"

#include <pthread.h>

#define KIB ((size_t)1024)
#define MIB (KIB * 1024)

struct kinds {
	int from, to;
};

static const struct kinds *kinds_of(const struct node *n)
{
	return (const struct kinds *)n->arg;
}

static int kind_here(const struct node *n)
{
	return n->side == TEST_SERVER ? kinds_of(n)->to : kinds_of(n)->from;
}

static struct link kind_up(struct node *n, int ways)
{
	return sides_up(n, kind_here(n), ways);
}

/* --- sizes --- */

static const size_t sizes[] = {0,    1,	   2,	 3,	4,     7,   8,		 9,	  63,	   64,	    65,	    1000,
			       4095, 4096, 4097, 8191, 8192, 8193, 65536, 65537, MIB - 1, MIB + 3, 4 * MIB - 1, 4 * MIB};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

/* Offset of a message in its buffer: any address must do. */
static size_t shift(size_t i)
{
	return i % 3 == 0 ? 0 : i * 5 % 61;
}

/* Size of the receive: as large as the message, a little larger, or much larger. */
static size_t room(size_t i)
{
	return sizes[i / 3] + (i % 3 == 0 ? 0 : i % 3 == 1 ? 1 : 10000);
}

static void no_flush(struct op *op)
{
	int given[1] = {op->got[0]};
	void *request = (void *)(uintptr_t)0x5a5a;
	NET(net.flush(op->comm, 1, op->data, given, op->mhandles, &request));
	CHECK(request == NULL);
}

static void sizes_in(struct node *n)
{
	struct link l = kind_up(n, TO_SERVER);
	for (size_t i = 0; i < SIZES * 3; i++) {
		struct buf b;
		buf_new(n, &b, kind_here(n), room(i) + 64);
		buf_reg(&b, l.recv);
		struct op op = recv_op(l.recv, &b, shift(i + 1), room(i), 0);
		op_finish(&op);
		CHECK_EQ(op.got[0], sizes[i / 3]);
		no_flush(&op);
		BUF_ONLY(&b, shift(i + 1), sizes[i / 3], (uint32_t)i);
		buf_end(&b);
	}
	sides_down(n, &l);
}

static void sizes_out(struct node *n)
{
	struct link l = kind_up(n, TO_SERVER);
	for (size_t i = 0; i < SIZES * 3; i++) {
		struct buf b;
		buf_new(n, &b, kind_here(n), sizes[i / 3] + 64);
		buf_reg(&b, l.send);
		buf_fill(&b, shift(i), sizes[i / 3], (uint32_t)i);
		struct op op = send_op(l.send, &b, shift(i), sizes[i / 3], 0);
		op_finish(&op);
		BUF_ONLY(&b, shift(i), sizes[i / 3], (uint32_t)i);
		buf_end(&b);
	}
	sides_down(n, &l);
}

static void every_size(const void *arg)
{
	mixed_memory(((const struct kinds *)arg)->from, ((const struct kinds *)arg)->to);
	pair(NULL, sizes_in, sizes_out, arg);
}

/* --- many --- */

/* A stream of messages of mixed sizes, each in a place of its own. */
struct stream {
	struct buf b;
	struct op *ops;
	size_t *at, *len;
	size_t count;
	uint32_t seed;
};

static size_t mixed(size_t i, size_t largest)
{
	static const size_t some[] = {100, 65536, 8192, 0, 8193, 300000, 1, 4096, 70001, 3};
	size_t size = some[i % (sizeof some / sizeof some[0])];
	return size < largest ? size : largest;
}

static void stream_new(struct node *n, struct stream *s, void *comm, bool send, int kind, size_t count, size_t largest,
		       uint32_t seed)
{
	memset(s, 0, sizeof *s);
	s->count = count;
	s->seed = seed;
	s->ops = (struct op *)calloc(count, sizeof *s->ops);
	s->at = (size_t *)calloc(count, sizeof *s->at);
	s->len = (size_t *)calloc(count, sizeof *s->len);
	CHECK(s->ops && s->at && s->len);
	size_t total = 0;
	for (size_t i = 0; i < count; i++) {
		s->len[i] = mixed(i, largest);
		s->at[i] = total;
		total += s->len[i] + 7;
	}
	buf_new(n, &s->b, kind, total);
	buf_reg(&s->b, comm);
	for (size_t i = 0; i < count; i++) {
		if (send)
			buf_fill(&s->b, s->at[i], s->len[i], seed + (uint32_t)i);
		/* The receive has a little more room, into which no other message goes. */
		s->ops[i] = send ? send_op(comm, &s->b, s->at[i], s->len[i], 3)
				 : recv_op(comm, &s->b, s->at[i], s->len[i] + i % 7, 3);
	}
}

static void stream_end(struct stream *s)
{
	for (size_t i = 0; i < s->count; i++) {
		CHECK(s->ops[i].done);
		CHECK_EQ(s->ops[i].got[0], s->len[i]);
		BUF_CHECK(&s->b, s->at[i], s->len[i], s->seed + (uint32_t)i);
		BUF_BLANK(&s->b, s->at[i] + s->len[i], 7);
	}
	buf_end(&s->b);
	free(s->ops);
	free(s->at);
	free(s->len);
}

#define REQUESTS ((size_t)64)

static void requests(struct node *n)
{
	struct link l = kind_up(n, TO_SERVER);
	bool send = n->side == TEST_CLIENT;
	struct stream s;
	stream_new(n, &s, send ? l.send : l.recv, send, kind_here(n), REQUESTS, MIB, 100);
	if (!send) {
		/* This many receives are accepted at once. */
		for (int i = 0; i < NCCL_NET_MAX_REQUESTS; i++)
			CHECK(op_post(&s.ops[i]));
		barrier(n);
	} else {
		barrier(n);
	}
	ops_run(s.ops, s.count, NCCL_NET_MAX_REQUESTS);
	stream_end(&s);
	sides_down(n, &l);
}

static void sixty_four_requests(const void *arg)
{
	mixed_memory(((const struct kinds *)arg)->from, ((const struct kinds *)arg)->to);
	pair(NULL, requests, requests, arg);
}

/* Both ways at once and to itself, as in a ring in which some ranks are neighbours in one process. */
static void ring(struct node *n)
{
	struct link l = kind_up(n, BOTH_WAYS), self;
	struct handle h;
	void *listener = listen_at(0, &h);
	self = link_to_itself(&h, listener);
	NET(net.close_listen(listener));
	struct stream s[4];
	uint32_t mine = n->side == TEST_SERVER ? 1000 : 2000, theirs = 3000 - mine;
	size_t each = (size_t)test_count(48, 16), count = 0;
	stream_new(n, &s[0], l.recv, false, kind_here(n), each, MIB, theirs);
	stream_new(n, &s[1], l.send, true, kind_here(n), each, MIB, mine);
	stream_new(n, &s[2], self.recv, false, kind_here(n), each, MIB, 5000);
	stream_new(n, &s[3], self.send, true, kind_here(n), each, MIB, 5000);
	struct op *all = (struct op *)calloc(4 * each, sizeof *all);
	CHECK(all != NULL);
	for (size_t i = 0; i < each; i++)
		for (int k = 0; k < 4; k++)
			all[count++] = s[k].ops[i];
	ops_run(all, count, 8);
	for (size_t i = 0; i < count; i++)
		s[i % 4].ops[i / 4] = all[i];
	for (int k = 0; k < 4; k++)
		stream_end(&s[k]);
	free(all);
	link_down(&self);
	sides_down(n, &l);
}

static void in_a_ring(const void *arg)
{
	pair(NULL, ring, ring, arg);
}

/* --- threads --- */

enum { THREADS = 4 };
struct worker {
	pthread_t thread;
	struct node *n;
	struct link l;
	int number;
};

static void *works(void *arg)
{
	struct worker *w = (struct worker *)arg;
	uint32_t base = (uint32_t)w->number * 10000, mine = w->n->side == TEST_SERVER ? 1000 : 2000;
	for (int round = 0; round < test_count(3, 1); round++) {
		struct stream s[2];
		size_t each = REQUESTS;
		stream_new(w->n, &s[0], w->l.recv, false, HOST_MEM, each, 100000, base + 3000 - mine);
		stream_new(w->n, &s[1], w->l.send, true, HOST_MEM, each, 100000, base + mine);
		struct op *all = (struct op *)calloc(2 * each, sizeof *all);
		CHECK(all != NULL);
		for (size_t i = 0; i < 2 * each; i++)
			all[i] = s[i % 2].ops[i / 2];
		ops_run(all, 2 * each, 16);
		for (size_t i = 0; i < 2 * each; i++)
			s[i % 2].ops[i / 2] = all[i];
		stream_end(&s[0]);
		stream_end(&s[1]);
		free(all);
	}
	return NULL;
}

static void threads(struct node *n)
{
	struct worker workers[THREADS];
	net_open();
	for (int i = 0; i < THREADS; i++) {
		workers[i].n = n;
		workers[i].number = i;
		workers[i].l = link_up(n, BOTH_WAYS);
	}
	for (int i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_create(&workers[i].thread, NULL, works, &workers[i]), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(workers[i].thread, NULL);
	barrier(n);
	for (int i = 0; i < THREADS; i++)
		link_down(&workers[i].l);
	net_close(n);
}

static void four_threads(const void *arg)
{
	pair(NULL, threads, threads, arg);
}

/* NCCL registers and connects on one thread while another one moves messages. */
struct beside {
	pthread_t thread;
	struct node *n;
	void *comm;
	int stop;
};

static void *registers(void *arg)
{
	struct beside *r = (struct beside *)arg;
	struct node own;
	net_alone(&own);
	for (int i = 0; !__atomic_load_n(&r->stop, __ATOMIC_ACQUIRE); i++) {
		struct buf b;
		struct handle h;
		buf_new(&own, &b, kind_here(r->n), 100 + 70000 * (size_t)(i % 3));
		buf_reg(&b, r->comm);
		if (i % 8 == 0) {
			void *listener = listen_at(0, &h);
			struct link l = link_to_itself(&h, listener);
			NET(net.close_listen(listener));
			link_down(&l);
		}
		buf_end(&b);
	}
	return NULL;
}

static void registered_beside(struct node *n)
{
	struct link l = kind_up(n, TO_SERVER);
	bool send = n->side == TEST_CLIENT;
	struct beside r = {.n = n, .comm = send ? l.send : l.recv};
	struct stream s;
	stream_new(n, &s, r.comm, send, kind_here(n), (size_t)test_count(400, 60), 100000, 100);
	CHECK_EQ(pthread_create(&r.thread, NULL, registers, &r), 0);
	ops_run(s.ops, s.count, 8);
	/* The other side's connections may still need this side. */
	barrier(n);
	__atomic_store_n(&r.stop, 1, __ATOMIC_RELEASE);
	pthread_join(r.thread, NULL);
	stream_end(&s);
	sides_down(n, &l);
}

static void registration_beside(const void *arg)
{
	pair(NULL, registered_beside, registered_beside, arg);
}

/* --- registrations --- */

/* One communicator's registration serves every other. */
static void shared(struct node *n)
{
	struct link first = kind_up(n, TO_SERVER), second = link_up(n, TO_SERVER);
	bool send = n->side == TEST_CLIENT;
	struct buf b;
	buf_new(n, &b, kind_here(n), 300000);
	buf_reg(&b, send ? first.send : first.recv);
	for (uint32_t i = 0; i < 4; i++) {
		struct link *l = i % 2 ? &first : &second;
		size_t at = i * 70001;
		struct op op;
		if (send) {
			buf_fill(&b, at, 60000, i);
			op = send_op(l->send, &b, at, 60000, 0);
		} else {
			op = recv_op(l->recv, &b, at, 60000, 0);
		}
		op_finish(&op);
		if (!send)
			BUF_CHECK(&b, at, 60000, i);
	}
	/* Registered once more, and in part. The first registration still works when these are gone. */
	struct buf again = b, part = b;
	part.at += 4096;
	part.len = 10000;
	if (!b.by_dmabuf) {
		buf_reg(&again, send ? second.send : second.recv);
		buf_reg(&part, send ? second.send : second.recv);
		buf_dereg(&part);
		buf_dereg(&again);
	}
	struct op op = send ? send_op(second.send, &b, 0, 100000, 0) : recv_op(second.recv, &b, 0, 100000, 0);
	if (send)
		buf_fill(&b, 0, 100000, 9);
	op_finish(&op);
	if (!send)
		BUF_CHECK(&b, 0, 100000, 9);
	buf_end(&b);
	barrier(n);
	link_down(&second);
	sides_down(n, &first);
}

static void registration_shared(const void *arg)
{
	pair(NULL, shared, shared, arg);
}

/* --- the claims --- */

TEST_TABLE(nccl_message)
{
	static const struct kinds ways[] = {{HOST_MEM, HOST_MEM},	  {CUDA_MEM, CUDA_MEM}, {CUDA_VMM_MEM, CUDA_VMM_MEM},
					    {HOST_MEM, CUDA_VMM_MEM}, {CUDA_VMM_MEM, HOST_MEM}, {CUDA_MEM, CUDA_VMM_MEM},
					    {DMABUF_MEM, DMABUF_MEM}};
	static const struct {
		const char *name;
		test_fn fn;
		int seconds;
		bool mixed;
	} claims[] = {
		{"every_size", every_size, 120, true},
		{"sixty_four_requests", sixty_four_requests, 60, true},
		{"ring", in_a_ring, 90, false},
		{"registration_beside", registration_beside, 90, false},
		{"registration_shared", registration_shared, 60, false},
	};
	char name[96];
	if (nccl_absent())
		return;
	for (size_t c = 0; c < sizeof claims / sizeof claims[0]; c++)
		for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++) {
			const char *from = mem_names[ways[w].from], *to = mem_names[ways[w].to];
			if (ways[w].from != ways[w].to && !claims[c].mixed)
				continue;
			if (ways[w].from == ways[w].to)
				snprintf(name, sizeof name, "%s_%s", claims[c].name, from);
			else
				snprintf(name, sizeof name, "%s_%s_to_%s", claims[c].name, from, to);
			test_add(name, claims[c].fn, &ways[w], claims[c].seconds);
		}
	test_add("four_threads", four_threads, NULL, 90);
}
