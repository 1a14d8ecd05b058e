/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Connections and requests for the claims about the NCCL plugin. Each wait ends with a message instead of hanging. */
#include "nccl_drive.h"

#include <sched.h>
#include <sys/socket.h>
#include <time.h>

#define PATIENCE 30000 /* ms after which a wait counts as a hang; above GDRFAB_NCCL_TIMEOUT's default */

/* --- connections --- */

void *listen_at(int dev, struct handle *h)
{
	struct {
		struct handle h;
		unsigned char after[64];
	} at;
	void *listener = NULL;
	memset(&at, 0x5a, sizeof at);
	NET(net_listen(net.ctx, dev, &at.h, &listener));
	CHECK(listener != NULL);
	for (size_t i = 0; i < sizeof at.after; i++)
		CHECK_EQ(at.after[i], 0x5a);
	*h = at.h;
	return listener;
}

void *connect_to(int dev, struct handle *h)
{
	void *comm = NULL;
	uint64_t until = test_now_ms() + (uint64_t)test_ms(PATIENCE);
	for (;;) {
		NET(net_connect(net.ctx, dev, h, &comm));
		if (comm)
			return comm;
		if (test_now_ms() > until)
			test_fail(__FILE__, __LINE__, "no connection; it said \"%s\"", log_warnings());
		test_sleep_ms(1);
	}
}

void *accept_from(void *listener)
{
	void *comm = NULL;
	uint64_t until = test_now_ms() + (uint64_t)test_ms(PATIENCE);
	for (;;) {
		NET(net_accept(listener, &comm));
		if (comm)
			return comm;
		if (test_now_ms() > until)
			test_fail(__FILE__, __LINE__, "nobody has connected; it said \"%s\"", log_warnings());
		test_sleep_ms(1);
	}
}

static void one_way(struct node *n, struct link *l, enum test_side receiver)
{
	struct handle h;
	if (n->side == receiver) {
		void *listener = listen_at(0, &h);
		oob_send(n, &h, sizeof h);
		l->recv = accept_from(listener);
		/* As in NCCL, the connection outlives its listener. */
		NET(net.close_listen(listener));
	} else {
		oob_recv(n, &h, sizeof h);
		l->send = connect_to(0, &h);
	}
}

struct link link_up(struct node *n, int ways)
{
	struct link l = {NULL, NULL};
	if (ways & TO_SERVER)
		one_way(n, &l, TEST_SERVER);
	if (ways & TO_CLIENT)
		one_way(n, &l, TEST_CLIENT);
	return l;
}

void link_down(struct link *l)
{
	if (l->send)
		NET(net.close_send(l->send));
	if (l->recv)
		NET(net.close_recv(l->recv));
	l->send = l->recv = NULL;
}

struct link sides_up(struct node *n, int kind, int ways)
{
	net_open_with(n, kind);
	return link_up(n, ways);
}

void sides_down(struct node *n, struct link *l)
{
	barrier(n);
	link_down(l);
	net_close(n);
}

void net_alone(struct node *n)
{
	memset(n, 0, sizeof *n);
	n->side = TEST_CLIENT;
	n->oob = -1;
}

struct link link_to_itself(struct handle *h, void *listener)
{
	struct link l = {NULL, NULL};
	uint64_t until = test_now_ms() + (uint64_t)test_ms(PATIENCE);
	while (!l.send || !l.recv) {
		if (!l.send)
			NET(net_connect(net.ctx, 0, h, &l.send));
		if (!l.recv)
			NET(net_accept(listener, &l.recv));
		if (test_now_ms() > until)
			test_fail(__FILE__, __LINE__, "no connection to itself; it said \"%s\"", log_warnings());
	}
	return l;
}

void timeout_is(const char *seconds)
{
	setenv("GDRFAB_NCCL_TIMEOUT", seconds, 1);
}

/* --- requests --- */

void op_add(struct op *group, struct buf *b, size_t offset, size_t size, int tag)
{
	int i = group->n++;
	CHECK(i < GROUP && offset + size <= b->len);
	group->data[i] = b->at + offset;
	group->sizes[i] = size;
	group->tags[i] = tag;
	group->mhandles[i] = b->mhandle;
}

struct op send_op(void *comm, struct buf *b, size_t offset, size_t size, int tag)
{
	struct op op;
	memset(&op, 0, sizeof op);
	op.comm = comm;
	op.send = true;
	op_add(&op, b, offset, size, tag);
	return op;
}

struct op recv_op(void *comm, struct buf *b, size_t offset, size_t size, int tag)
{
	struct op op = send_op(comm, b, offset, size, tag);
	op.send = false;
	return op;
}

static ncclResult_t post(struct op *op)
{
	ncclResult_t result;
	void *data[GROUP], *mhandles[GROUP];
	size_t sizes[GROUP];
	int tags[GROUP];
	if (op->send)
		return net_isend(op->comm, op->data[0], op->sizes[0], op->tags[0], op->mhandles[0], &op->request);
	/* NCCL passes arrays on its stack, which are gone afterwards; so these are overwritten. */
	memcpy(data, op->data, sizeof data);
	memcpy(mhandles, op->mhandles, sizeof mhandles);
	memcpy(sizes, op->sizes, sizeof sizes);
	memcpy(tags, op->tags, sizeof tags);
	op->request = op->hint ? (void *)(uintptr_t)NCCL_NET_OPTIONAL_RECV_COMPLETION : NULL;
	result = net_irecv(op->comm, op->n, data, sizes, tags, mhandles, &op->request);
	memset(data, 0x5a, sizeof data);
	memset(mhandles, 0x5a, sizeof mhandles);
	memset(tags, 0x5a, sizeof tags);
	return result;
}

bool op_post(struct op *op)
{
	if (op->request || op->done)
		return true;
	NET(post(op));
	CHECK(op->request != (void *)(uintptr_t)NCCL_NET_OPTIONAL_RECV_COMPLETION);
	return op->request != NULL;
}

/* Tests a request once; the sizes that it reports must fit the post. */
static ncclResult_t look(struct op *op)
{
	int flag = 0, sizes[GROUP + 1];
	for (int i = 0; i <= GROUP; i++)
		sizes[i] = -77;
	ncclResult_t result = net.test(op->request, &flag, sizes);
	if (result != ncclSuccess || !flag)
		return result;
	op->done = true;
	op->request = NULL;
	for (int i = 0; i < op->n; i++) {
		op->got[i] = sizes[i];
		if (sizes[i] < 0 || (size_t)sizes[i] > op->sizes[i])
			test_fail(__FILE__, __LINE__, "test reports %d bytes of %zu", sizes[i], op->sizes[i]);
	}
	for (int i = op->n; i <= GROUP; i++)
		CHECK_EQ(sizes[i], -77);
	if (op->send)
		CHECK_EQ(op->got[0], op->sizes[0]);
	return result;
}

bool op_done(struct op *op)
{
	if (!op->done && op->request)
		NET(look(op));
	return op->done;
}

static void never(const struct op *op, size_t which, size_t count)
{
	test_fail(__FILE__, __LINE__, "%s %zu of %zu, %zu bytes with tag %d, %s; it said \"%s\"",
		  op->send ? "send" : "receive", which, count, op->sizes[0], op->tags[0],
		  op->request ? "never ends" : "is never taken", log_warnings());
}

/* NCCL's thread yields as well when nothing moves. */
static void give_way(unsigned *idle)
{
	struct timespec t = {0, 50000};
	if (++*idle < 200)
		sched_yield();
	else
		nanosleep(&t, NULL);
}

void op_push(struct op *op)
{
	unsigned idle = 0;
	uint64_t until = test_now_ms() + (uint64_t)test_ms(PATIENCE);
	while (!op_post(op)) {
		if (test_now_ms() > until)
			never(op, 0, 1);
		give_way(&idle);
	}
}

void op_wait(struct op *op)
{
	unsigned idle = 0;
	uint64_t until = test_now_ms() + (uint64_t)test_ms(PATIENCE);
	while (!op_done(op)) {
		if (test_now_ms() > until)
			never(op, 0, 1);
		give_way(&idle);
	}
}

void op_finish(struct op *op)
{
	op_push(op);
	op_wait(op);
}

/* True if it may be posted now, given the state of the others. */
static bool is_next(const struct op *ops, size_t count, size_t i, size_t window)
{
	size_t under_way = 0;
	for (size_t k = 0; k < count; k++) {
		if (ops[k].comm != ops[i].comm)
			continue;
		bool waits = !ops[k].request && !ops[k].done;
		if (k < i && waits && (!ops[i].send || ops[k].tags[0] == ops[i].tags[0]))
			return false;
		under_way += ops[k].request != NULL;
	}
	return under_way < window;
}

void ops_run(struct op *ops, size_t count, size_t window)
{
	size_t first = 0;
	unsigned idle = 0;
	uint64_t last = test_now_ms();
	while (first < count) {
		bool moved = false;
		for (size_t i = first; i < count; i++) {
			if (ops[i].done)
				continue;
			if (ops[i].request)
				moved = op_done(&ops[i]) || moved;
			else if (is_next(ops + first, count - first, i - first, window))
				moved = op_post(&ops[i]) || moved;
		}
		while (first < count && ops[first].done)
			first++;
		if (moved) {
			idle = 0;
			last = test_now_ms();
			continue;
		}
		if (test_now_ms() - last > (uint64_t)test_ms(PATIENCE))
			never(&ops[first], first, count);
		give_way(&idle);
	}
}

ncclResult_t op_step(struct op *op)
{
	if (op->done)
		return ncclSuccess;
	return op->request ? look(op) : post(op);
}

void network_error(const char *file, int line, ncclResult_t result)
{
	if (result != ncclRemoteError && result != ncclSystemError)
		test_fail(file, line, "it ended with %s; it said \"%s\"", nccl_word(result), log_warnings());
	if (!log_warnings()[0])
		test_fail(file, line, "it ended with %s, and nothing was said", nccl_word(result));
}

bool op_ends(const char *file, int line, struct op *op, int ms)
{
	unsigned idle = 0;
	uint64_t start = test_now_ms(), until = start + (uint64_t)test_ms(ms);
	ncclResult_t result = ncclSuccess;
	test_at(file, line);
	while (result == ncclSuccess) {
		result = op_step(op);
		if (op->done)
			return true;
		if (test_now_ms() > until)
			test_fail(file, line, "a %s goes on after %llu ms; it said \"%s\"", op->send ? "send" : "receive",
				  (unsigned long long)(test_now_ms() - start), log_warnings());
		give_way(&idle);
	}
	network_error(file, line, result);
	return false;
}

void op_fails(const char *file, int line, struct op *op, int ms)
{
	if (op_ends(file, line, op, ms))
		test_fail(file, line, "a %s of %d bytes ended well", op->send ? "send" : "receive", op->got[0]);
}

void barrier_beside(struct node *n, struct op *op)
{
	char word = 'b';
	ssize_t got;
	oob_send(n, &word, 1);
	while ((got = recv(n->oob, &word, 1, MSG_DONTWAIT)) < 0 && (errno == EAGAIN || errno == EINTR)) {
		if (op->request)
			look(op);
		test_sleep_ms(1);
	}
	CHECK(got == 1 && word == 'b');
}

/* --- whole messages --- */

static void message_begin(struct node *n, struct buf *b, struct op *op, void *comm, bool send, size_t len, uint32_t seed)
{
	buf_new(n, b, HOST_MEM, len);
	buf_reg(b, comm);
	if (send)
		buf_fill(b, 0, len, seed);
	*op = send ? send_op(comm, b, 0, len, 1) : recv_op(comm, b, 0, len, 1);
}

static void message_end(struct buf *b, struct op *op, size_t len, uint32_t seed)
{
	CHECK_EQ(op->got[0], len);
	BUF_ONLY(b, 0, len, seed);
	buf_end(b);
}

void message_out(struct node *n, void *comm, size_t len, uint32_t seed)
{
	struct buf b;
	struct op op;
	message_begin(n, &b, &op, comm, true, len, seed);
	op_finish(&op);
	message_end(&b, &op, len, seed);
}

void message_in(struct node *n, void *comm, size_t len, uint32_t seed)
{
	struct buf b;
	struct op op;
	message_begin(n, &b, &op, comm, false, len, seed);
	op_finish(&op);
	message_end(&b, &op, len, seed);
}

void message_to_itself(struct node *n, struct link *l, size_t len, uint32_t seed)
{
	struct buf b[2];
	struct op ops[2];
	message_begin(n, &b[0], &ops[0], l->recv, false, len, seed);
	message_begin(n, &b[1], &ops[1], l->send, true, len, seed);
	ops_run(ops, 2, 1);
	message_end(&b[0], &ops[0], len, seed);
	message_end(&b[1], &ops[1], len, seed);
}
