/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Messages: every call, sizes from nothing to 8 MiB, scattered at both ends, received late or early or too short; from
 * and to memory of devices as well. Their order is msg_order.c's.
 */
#include "msg.h"

#include <sys/uio.h>

#define LARGEST ((size_t)8 * 1024 * 1024)
#define EDGE ((size_t)64)
#define EDGE_SEED 9u

static const size_t sizes[] = {0,    1,	    63,	   64,	  65,	 4095,		 4096,
			       4097, 16384, 65536, 65537, 70000, 1024 * 1024 + 3, LARGEST};
#define SIZES (sizeof sizes / sizeof sizes[0])

/* The kinds of memory that messages come from and go to. */
struct buffers {
	const struct memkind *from, *to;
	bool described; /* host memory is registered too, and its descriptor is passed */
};
static const struct buffers plain = {&memkinds[KIND_MALLOC], &memkinds[KIND_MALLOC], false};

static const struct buffers *buffers_of(const struct node *n)
{
	return n->arg ? (const struct buffers *)n->arg : &plain;
}

static void buffer_new(struct node *n, struct mem *m, const struct memkind *kind, size_t len)
{
	mem_new(n, m, kind, len);
	if (kind->opaque || buffers_of(n)->described || local_needed(n))
		mem_register(n, m, 0, len, GDRFAB_SEND | GDRFAB_RECV, 0);
}

/* A part of a buffer. */
struct part {
	struct mem *mem;
	size_t offset, len;
};

static unsigned char *start(struct part p)
{
	return p.mem->addr + p.offset;
}

/* A receive buffer between two edges that must stay as they are. */
static void edges_set(struct mem *m, size_t len)
{
	mem_fill(m, 0, EDGE + len + EDGE, 0, EDGE_SEED);
}

static void edges_check(struct mem *m, size_t len)
{
	CHECK_MEM("in front of the receive buffer", m, 0, EDGE, 0, EDGE_SEED);
	CHECK_MEM("behind the receive buffer", m, EDGE + len, EDGE, EDGE + len, EDGE_SEED);
}

/* --- each call once per size; the receiver posts before or after the message is sent --- */

enum call { SEND, SENDV, SENDDATA, SENDMSG, SENDMSG_DATA, SENDMSG_INJECT, INJECT, INJECTDATA, CALLS };

static bool carries_data(enum call call)
{
	return call == SENDDATA || call == SENDMSG_DATA || call == INJECTDATA;
}

struct message {
	gdrfab_msg msg;
	struct iovec iov[5];
	void *desc[5];
};

static void in_pieces(struct message *m, struct part p, size_t limit)
{
	size_t count = limit < 5 ? limit : 5, from = 0;
	memset(&m->msg, 0, sizeof m->msg);
	m->msg.struct_size = sizeof m->msg;
	m->msg.msg_iov = m->iov;
	m->msg.desc = mem_desc(p.mem) ? m->desc : NULL;
	m->msg.iov_count = count;
	m->msg.addr = PEER;
	m->msg.context = start(p);
	for (size_t i = 0; i < count; i++) {
		size_t piece = i + 1 == count ? p.len - from : i == 1 ? 0 : (p.len - from) / 3;
		m->iov[i].iov_base = start(p) + from;
		m->iov[i].iov_len = piece;
		m->desc[i] = mem_desc(p.mem);
		from += piece;
	}
}

static void send_by(struct node *n, enum call call, struct part p, uint64_t data)
{
	unsigned char *buf = start(p);
	void *desc = mem_desc(p.mem);
	struct message m;
	in_pieces(&m, p, n->info->tx_iov_limit);
	data = cq_data(n, data);
	m.msg.data = data;
	switch (call) {
	case SEND:
		POST(n->cq, gdrfab_send(n->ep, buf, p.len, desc, PEER, buf));
		break;
	case SENDV:
		POST(n->cq, gdrfab_sendv(n->ep, m.iov, m.msg.desc, m.msg.iov_count, PEER, buf));
		break;
	case SENDDATA:
		POST(n->cq, gdrfab_senddata(n->ep, buf, p.len, desc, data, PEER, buf));
		break;
	case SENDMSG:
		POST(n->cq, gdrfab_sendmsg(n->ep, &m.msg, GDRFAB_COMPLETION));
		break;
	case SENDMSG_DATA:
		POST(n->cq, gdrfab_sendmsg(n->ep, &m.msg, GDRFAB_COMPLETION | GDRFAB_REMOTE_CQ_DATA));
		break;
	case SENDMSG_INJECT:
		POST(n->cq, gdrfab_sendmsg(n->ep, &m.msg, GDRFAB_COMPLETION | GDRFAB_INJECT));
		mem_fill(p.mem, p.offset, p.len, 0, 99);
		break;
	case INJECT:
		POST(n->cq, gdrfab_inject(n->ep, buf, p.len, PEER));
		memset(buf, 0xee, p.len);
		return;
	default:
		POST(n->cq, gdrfab_injectdata(n->ep, buf, p.len, data, PEER));
		memset(buf, 0xee, p.len);
		return;
	}
	done entry;
	DONE(n->cq, buf, SENT, &entry);
}

static void recv_by(struct node *n, unsigned way, struct part p)
{
	unsigned char *buf = start(p);
	struct message m;
	in_pieces(&m, p, n->info->rx_iov_limit);
	if (way == 0)
		POST(n->cq, gdrfab_recv(n->ep, buf, p.len, mem_desc(p.mem), GDRFAB_ADDR_UNSPEC, buf));
	else if (way == 1)
		POST(n->cq, gdrfab_recvv(n->ep, m.iov, m.msg.desc, m.msg.iov_count, GDRFAB_ADDR_UNSPEC, buf));
	else
		POST(n->cq, gdrfab_recvmsg(n->ep, &m.msg, GDRFAB_COMPLETION));
}

static uint64_t data_of(size_t size, unsigned call)
{
	return 0xfedcba9876543210u ^ (uint64_t)size << 8 ^ call;
}

static bool goes_early(const struct node *n, unsigned call, size_t s)
{
	return (call + s) % 2 && waits_for_receive(n);
}

/* True if a call is tried, the same on both sides: an inject call takes no descriptor, and so no device memory. */
static bool possible(const struct node *n, unsigned call, size_t len)
{
	const struct buffers *b = buffers_of(n);
	if (carries_data((enum call)call) && n->info->cq_data_size == 0)
		return false;
	/* With TEST_FAST the longest message is sent only between host memory. */
	if (len == LARGEST && test_count(0, 1) && (b->from->opaque || b->to->opaque))
		return false;
	if (call != SENDMSG_INJECT && call != INJECT && call != INJECTDATA)
		return true;
	return len <= n->info->inject_size && (call == SENDMSG_INJECT || !b->from->opaque);
}

static void call_sender(struct node *n)
{
	struct mem m;
	node_up(n);
	buffer_new(n, &m, buffers_of(n)->from, LARGEST + 1);
	CHECK(n->info->inject_size >= 64);
	CHECK(n->info->max_msg_size >= LARGEST);
	oob_send(n, &n->info->inject_size, sizeof n->info->inject_size);
	for (unsigned call = 0; call < CALLS; call++)
		for (size_t s = 0; s < SIZES; s++) {
			if (!possible(n, call, sizes[s]))
				continue;
			bool early = goes_early(n, call, s);
			struct part p = {&m, 0, sizes[s]};
			mem_fill(&m, 0, sizes[s], 0, (uint32_t)(call * 100 + s));
			if (!early)
				barrier(n);
			send_by(n, (enum call)call, p, data_of(s, call));
			barrier(n);
		}
	QUIET(n->cq, 5);
	mem_end(n, &m);
	node_down(n);
}

static void call_receiver(struct node *n)
{
	struct mem m;
	size_t theirs;
	node_up(n);
	buffer_new(n, &m, buffers_of(n)->to, LARGEST + 2 * EDGE);
	oob_recv(n, &theirs, sizeof theirs);
	CHECK_EQ(theirs, n->info->inject_size);
	for (unsigned call = 0; call < CALLS; call++)
		for (size_t s = 0; s < SIZES; s++) {
			if (!possible(n, call, sizes[s]))
				continue;
			bool early = goes_early(n, call, s);
			size_t len = sizes[s];
			struct part p = {&m, EDGE, len};
			edges_set(&m, len);
			if (early) {
				/* Unexpected: the message is sent before its receive is posted. */
				uint64_t until = test_now_ms() + 1;
				while (test_now_ms() < until)
					gdrfab_cq_read(n->cq, NULL, 0);
			}
			recv_by(n, (unsigned)((call + s) % 3), p);
			if (!early)
				barrier(n);
			done entry;
			bool data = carries_data((enum call)call);
			DONE(n->cq, start(p), RECEIVED | (data ? GDRFAB_REMOTE_CQ_DATA : 0), &entry);
			CHECK_EQ(entry.len, len);
			CHECK_EQ(entry.flags & GDRFAB_REMOTE_CQ_DATA, data ? GDRFAB_REMOTE_CQ_DATA : 0);
			if (data)
				CHECK_EQ(entry.data, cq_data(n, data_of(s, call)));
			CHECK_MEM("the message", &m, EDGE, len, 0, (uint32_t)(call * 100 + s));
			edges_check(&m, len);
			barrier(n);
		}
	mem_end(n, &m);
	node_down(n);
}

TEST_WITHIN(40, every_call_and_size)
{
	pair(NULL, call_receiver, call_sender, NULL);
}

TEST_WITHIN(40, every_call_and_size_by_address)
{
	struct setup s = {.by_address = true};
	pair(&s, call_sender, call_receiver, NULL);
}

/* --- longer than the receive --- */

static void long_sender(struct node *n)
{
	struct mem m;
	node_up(n);
	buffer_new(n, &m, buffers_of(n)->from, LARGEST);
	mem_fill(&m, 0, LARGEST, 0, 3);
	for (size_t s = 0; s < SIZES; s++) {
		if (sizes[s] < 2)
			continue;
		meet_if_hasty(n);
		if (traits()->survives_failures) {
			send_by(n, SEND, (struct part){&m, 0, sizes[s]}, 0);
		} else {
			POST(n->cq, gdrfab_send(n->ep, m.addr, sizes[s], mem_desc(&m), PEER, &m));
			struct failure f;
			done entry;
			int came = cq_next(n->cq, &entry, 10000);
			/* If the send succeeds before the refusal, the end of the connection reports it. */
			CHECK(came == -1 || (came == 1 && !tells_failed_writes(n)));
			if (came == -1)
				cq_failure(__FILE__, __LINE__, n->cq, &f);
			/* The end of the connection may come before the adapter's answer. */
			if (came == -1 && tells_failed_writes(n) && !failure_is(&f.entry, EREMOTEIO, TOO_LONG) && !flushed(&f.entry))
				test_fail(__FILE__, __LINE__, "%s, provider code %d, \"%s\"",
					  test_number(-f.entry.err), f.entry.prov_errno, f.words);
		}
		barrier(n);
		recover(n);
	}
	meet_if_hasty(n);
	send_by(n, SEND, (struct part){&m, 0, 10}, 0);
	mem_end(n, &m);
	node_down(n);
}

static void short_receiver(struct node *n)
{
	struct mem m;
	struct failure f;
	node_up(n);
	buffer_new(n, &m, buffers_of(n)->to, LARGEST + 2 * EDGE);
	for (size_t s = 0; s < SIZES; s++) {
		if (sizes[s] < 2)
			continue;
		size_t len = s % 3 == 0 ? sizes[s] - 1 : s % 3 == 1 ? sizes[s] / 2 : 0;
		struct part p = {&m, EDGE, len};
		edges_set(&m, len);
		recv_by(n, (unsigned)(s % 2), p);
		meet_if_hasty(n);
		FAILED(n->cq, start(p), GDRFAB_ETRUNC, GDRFAB_PROV_TRUNC, &f);
		CHECK_EQ(f.entry.flags & GDRFAB_RECV, GDRFAB_RECV);
		/* An adapter does not report the length of a refused message. */
		if (traits()->survives_failures) {
			CHECK_EQ(f.entry.len, len);
			CHECK_EQ(f.entry.olen, sizes[s] - len);
			CHECK_EQ(f.entry.flags & RECEIVED, RECEIVED);
			CHECK_MEM("what fitted", &m, EDGE, len, 0, 3);
		}
		edges_check(&m, len);
		barrier(n);
		recover(n);
	}
	/* The next message is received as usual, over a new connection if the failure ended the first. */
	struct part p = {&m, 0, 10};
	recv_by(n, 0, p);
	meet_if_hasty(n);
	done entry;
	DONE(n->cq, start(p), RECEIVED, &entry);
	CHECK_EQ(entry.len, 10);
	mem_end(n, &m);
	node_down(n);
}

TEST(too_long_for_the_receive)
{
	pair(NULL, short_receiver, long_sender, NULL);
}

/* --- an injected message needs no further call of the sender --- */

static void injects_and_rests(struct node *n)
{
	node_up(n);
	node_reach(n);
	for (int i = 0; i < test_count(200, 20); i++) {
		char word[8] = "word", all;
		barrier(n);
		for (int k = 0; k < 3; k++)
			POST(n->cq, gdrfab_inject(n->ep, word, sizeof word, PEER));
		/* Sleeps outside of the library. */
		if (read(n->oob, &all, 1) != 1)
			test_fail(__FILE__, __LINE__, "the other side has not said that it has them");
	}
	node_down(n);
}

static void hears_who_rests(struct node *n)
{
	node_up(n);
	node_reach(n);
	for (int i = 0; i < test_count(200, 20); i++) {
		char in[3][8];
		for (int k = 0; k < 3; k++)
			POST(n->cq, gdrfab_recv(n->ep, in[k], sizeof in[k], local_desc(n, in[k], sizeof in[k]), PEER, in[k]));
		barrier(n);
		for (int k = 0; k < 3; k++) {
			done entry;
			if (cq_next(n->cq, &entry, 10000) != 1 || entry.op_context != in[k])
				test_fail(__FILE__, __LINE__, "round %d: message %d has not come", i, k);
			CHECK(strcmp(in[k], "word") == 0);
		}
		oob_send(n, "", 1);
		local_forget_all(n);
	}
	node_down(n);
}

TEST(injected_without_another_call)
{
	pair(NULL, hears_who_rests, injects_and_rests, NULL);
}

/* The same for a write, the first to memory whose file the peer must send. */
static void writes_and_rests(struct node *n)
{
	char word[8] = "word", all;
	node_up(n);
	node_reach(n);
	struct remote to = mem_fetch(n);
	POST(n->cq, gdrfab_inject_write(n->ep, word, sizeof word, PEER, to.base, to.key));
	if (read(n->oob, &all, 1) != 1)
		test_fail(__FILE__, __LINE__, "the other side has not said that it has it");
	node_down(n);
}

static void sees_who_rests(struct node *n)
{
	struct mem m;
	char word[8] = "";
	node_up(n);
	node_reach(n);
	mem_new(n, &m, &memkinds[KIND_MEM_ALLOC], 4096);
	mem_register(n, &m, 0, 4096, GDRFAB_REMOTE_WRITE, 0);
	mem_publish(n, &m);
	uint64_t until = test_now_ms() + (uint64_t)test_ms(10000);
	while (strcmp(word, "word") != 0 && test_now_ms() < until) {
		gdrfab_cq_read(n->cq, NULL, 0);
		mem_read(&m, 0, word, sizeof word);
	}
	CHECK(strcmp(word, "word") == 0);
	oob_send(n, "", 1);
	mem_end(n, &m);
	node_down(n);
}

TEST(injected_write_without_another_call)
{
	pair(NULL, sees_who_rests, writes_and_rests, NULL);
}

TEST(injected_write_without_another_call_nor_pidfd)
{
	if (getenv("TEST_RDM"))
		test_skip("a connectionless endpoint keeps what cannot leave yet");
	set_variable("GDRFAB_DEBUG", "no-pidfd");
	pair(NULL, sees_who_rests, writes_and_rests, NULL);
}

/* --- other settings of the provider --- */

static void with_setting(const void *arg)
{
	const struct variant *v = (const struct variant *)arg;
	set_variable(v->variable, v->value);
	pair(NULL, call_receiver, call_sender, v->arg);
}

TEST_TABLE(settings)
{
	add_with_settings("every_call_and_size", with_setting);
}

/* --- memory of devices --- */

static void every_call(const void *arg)
{
	pair(NULL, call_receiver, call_sender, arg);
}

static void too_long(const void *arg)
{
	pair(NULL, short_receiver, long_sender, arg);
}

static void add(const struct memkind *from, const struct memkind *to, bool described)
{
	static struct buffers list[5 * DEVICE_KINDS];
	static struct variant staged[5 * DEVICE_KINDS];
	static size_t used;
	struct buffers *b = &list[used];
	char name[96];
	b->from = from;
	b->to = to;
	b->described = described;
	snprintf(name, sizeof name, "every_call_and_size_%s_to_%s", from->name, to->name);
	test_add(name, every_call, b, 40);
	snprintf(name, sizeof name, "too_long_for_the_receive_%s_to_%s", from->name, to->name);
	if (test_count(1, 0) || from == to)
		test_add(name, too_long, b, 40);
	/* Staging works with the memory of every vendor. */
	if (from == to && from->alloc != cuda_kinds[0].alloc && test_count(1, 0) && path_known(PATH_DIRECT)) {
		struct variant v = {"GDRFAB_PATHS", "staged,socket", b};
		staged[used] = v;
		snprintf(name, sizeof name, "every_call_and_size_%s_to_%s_staged", from->name, to->name);
		test_add(name, with_setting, &staged[used], 40);
	}
	used++;
}

TEST_TABLE(devices)
{
	size_t kinds = device_kinds_list();
	for (size_t k = 0; k < kinds; k++) {
		const struct memkind *kind = device_kinds[k];
		if (!kind->opaque || kind_spared(kind))
			continue;
		if (test_count(1, 0) || kind->alloc != cuda_kinds[0].alloc)
			add(kind, kind, false);
		/* With host memory at the other side one kind for each vendor is enough. */
		if (kind->alloc == cuda_kinds[0].alloc)
			continue;
		add(&memkinds[KIND_MALLOC], kind, false);
		if (test_count(0, 1))
			continue;
		add(kind, &memkinds[KIND_MALLOC], false);
		add(&memkinds[KIND_MEM_ALLOC], kind, true);
	}
}
