/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Long transfers over several TCP connections (GDRFAB_TCP_STREAMS), into memory of every kind: all bytes and all orders are as
 * over one; an operation that ended early does not access its memory any more; and a stream that dies ends the whole
 * connection, with a text that names the stream.
 */
#include "fab.h"
#include "tcp_raw.h"

#include <sys/socket.h>

#define LARGE ((size_t)24 * 1024 * 1024)
#define STRIPE ((size_t)64 * 1024)
#define LONG ((size_t)256 * 1024) /* bodies of this length or more are split over the streams */
#define LATE 400		  /* ms */

struct plan {
	int server, client; /* the setting of each side; 0: not set */
	int both;	    /* the resulting number of streams */
	bool stops;	    /* the peer is stopped meanwhile */
	const struct memkind *to; /* the target's memory; NULL: plain host memory */
};

static void wants(int streams)
{
	char text[16];
	snprintf(text, sizeof text, "%d", streams);
	if (streams > 0)
		setenv("GDRFAB_TCP_STREAMS", text, 1);
	else
		unsetenv("GDRFAB_TCP_STREAMS");
}

static void begin(struct node *n)
{
	const struct plan *p = (const struct plan *)n->arg;
	wants(n->side == TEST_SERVER ? p->server : p->client);
	node_up(n);
}

static bool has_streams(struct node *n, uint64_t key, int count)
{
	char words[2048], want[64];
	snprintf(want, sizeof want, "use %d additional streams", count);
	CHECK(gdrfab_ep_explain(n->ep, 0, key, words, sizeof words) > 0);
	return strstr(words, count > 0 ? want : "of host memory use") != NULL;
}

/* The first long transfer makes the library open the streams: waits until both sides have them. */
static void open_streams(struct node *n, unsigned char *out, struct remote to)
{
	const struct plan *p = (const struct plan *)n->arg;
	uint64_t until = test_now_ms() + (uint64_t)test_ms(p->both > 0 ? 8000 : 300);
	while (!has_streams(n, to.key, p->both) && test_now_ms() < until) {
		POST(n->cq, gdrfab_write(n->ep, out, LONG, NULL, 0, to.base, to.key, out));
		DONE(n->cq, out, GDRFAB_WRITE, NULL);
	}
	CHECK_EQ(has_streams(n, to.key, p->both), p->both > 0);
}

/* --- every byte, in order --- */

static const size_t sizes[] = {LONG - 1, LONG, LONG + 1, LONG + STRIPE - 1, (1u << 20) + 13, (5u << 20) + 7, 8, 3 * LONG, 0, 100000};
#define SIZES (sizeof sizes / sizeof sizes[0])

static void is_used(struct node *n)
{
	const struct plan *p = (const struct plan *)n->arg;
	unsigned char *in = (unsigned char *)calloc(1, LARGE);
	unsigned char last[16] = {0};
	struct mem m;
	done e;
	begin(n);
	mem_new(n, &m, p->to ? p->to : &memkinds[KIND_MALLOC], LARGE);
	mem_register(n, &m, 0, LARGE, REMOTE_ACCESS, 0);
	mem_publish(n, &m);
	barrier(n);
	for (uint32_t round = 0; round < SIZES; round++) {
		/* The notification of a write comes after all its bytes, and after earlier writes. */
		DATA_CAME(n, &e);
		CHECK_EQ(e.data, round);
		CHECK_MEM("written with data", &m, 0, sizes[round], 0, round);
		CHECK_MEM("written in front of it", &m, LARGE - 4096, 4096, 0, round + 100);
		barrier(n);
		/* Two messages, the long one first; in the second round they come before their receives. */
		if (round % 2)
			test_sleep_ms(20);
		POST(n->cq, gdrfab_recv(n->ep, in, LARGE, NULL, 0, in));
		POST(n->cq, gdrfab_recv(n->ep, last, sizeof last, NULL, 0, last));
		DONE(n->cq, in, GDRFAB_RECV, &e);
		CHECK_EQ(e.len, sizes[round]);
		CHECK_FILLED("sent", in, sizes[round], 0, round + 200);
		DONE(n->cq, last, GDRFAB_RECV, &e);
		CHECK_EQ(last[0], round);
		/* The other direction: this side has not asked for the streams, and uses them too. */
		fill(in, sizes[round], 0, round + 300);
		POST(n->cq, gdrfab_send(n->ep, in, sizes[round], NULL, 0, in));
		DONE(n->cq, in, GDRFAB_SEND, NULL);
		barrier(n);
	}
	barrier(n);
	free(in);
	mem_end(n, &m);
	node_down(n);
}

static void uses(struct node *n)
{
	unsigned char *out = (unsigned char *)calloc(1, LARGE), *in = (unsigned char *)calloc(1, LARGE), last[16] = {0};
	unsigned char *front = (unsigned char *)malloc(4096);
	begin(n);
	struct remote to = mem_fetch(n);
	open_streams(n, out, to);
	barrier(n);
	for (uint32_t round = 0; round < SIZES; round++) {
		size_t len = sizes[round];
		fill(out, len, 0, round);
		fill(front, 4096, 0, round + 100);
		POST(n->cq, gdrfab_write(n->ep, front, 4096, NULL, 0, to.base + LARGE - 4096, to.key, front));
		POST(n->cq, gdrfab_writedata(n->ep, out, len, NULL, round, 0, to.base, to.key, out));
		DONE(n->cq, front, GDRFAB_WRITE, NULL);
		DONE(n->cq, out, GDRFAB_WRITE, NULL);
		memset(in, 0, len);
		POST(n->cq, gdrfab_read(n->ep, in, len, NULL, 0, to.base, to.key, in));
		DONE(n->cq, in, GDRFAB_READ, NULL);
		CHECK_FILLED("read back", in, len, 0, round);
		barrier(n);
		fill(out, len, 0, round + 200);
		last[0] = (unsigned char)round;
		POST(n->cq, gdrfab_send(n->ep, out, len, NULL, 0, out));
		POST(n->cq, gdrfab_send(n->ep, last, sizeof last, NULL, 0, last));
		POST(n->cq, gdrfab_recv(n->ep, in, LARGE, NULL, 0, in));
		for (int i = 0; i < 3; i++) {
			done e;
			CHECK_EQ(cq_next(n->cq, &e, 10000), 1);
		}
		CHECK_FILLED("sent back", in, len, 0, round + 300);
		barrier(n);
	}
	barrier(n);
	free(out);
	free(in);
	free(front);
	node_down(n);
}

static void only_tcp(void)
{
	skip_unless(path_known(PATH_SOCKET), "this is about connections of sockets");
}

static void bytes(struct setup s, struct plan p)
{
	only_tcp();
	pair(&s, is_used, uses, &p);
}

TEST_WITHIN(40, over_two)
{
	bytes((struct setup){0}, (struct plan){.server = 2, .client = 2, .both = 2});
}

TEST_WITHIN(40, over_four)
{
	bytes((struct setup){0}, (struct plan){.server = 4, .client = 4, .both = 4});
}

/* Stripes for device memory use the staging slots in any order. */
static void into_device(const void *arg)
{
	bytes((struct setup){0}, *(const struct plan *)arg);
}

TEST_TABLE(devices)
{
	static struct plan plans[DEVICE_KINDS];
	size_t kinds = device_kinds_list();
	for (size_t k = 0; k < kinds; k++) {
		char name[96];
		if (!device_kinds[k]->opaque)
			continue;
		plans[k] = (struct plan){.server = 4, .client = 4, .both = 4, .to = device_kinds[k]};
		snprintf(name, sizeof name, "over_four_into_%s", device_kinds[k]->name);
		test_add(name, into_device, &plans[k], 60);
	}
}

TEST_WITHIN(40, over_as_many_as_both_want)
{
	bytes((struct setup){0}, (struct plan){.server = 16, .client = 3, .both = 3});
}

TEST_WITHIN(40, over_one_if_the_server_wants_no_more)
{
	bytes((struct setup){0}, (struct plan){.server = 1, .client = 4});
}

TEST_WITHIN(40, over_one_if_the_client_wants_no_more)
{
	bytes((struct setup){0}, (struct plan){.server = 4, .client = 0});
}

TEST_WITHIN(40, with_a_thread_that_makes_progress)
{
	bytes((struct setup){.progress = GDRFAB_PROGRESS_AUTO}, (struct plan){.server = 4, .client = 4, .both = 4});
}

/* An endpoint's option overrides the environment. */
TEST_WITHIN(40, as_many_as_the_endpoints_say)
{
	static const struct setup s = {.tcp_streams = {[TEST_SERVER] = 3, [TEST_CLIENT] = 2}};
	struct plan p = {.server = 1, .client = 16, .both = 2};
	only_tcp();
	pair(&s, is_used, uses, &p);
}

TEST_WITHIN(40, none_if_an_endpoint_wants_none)
{
	static const struct setup s = {.tcp_streams = {[TEST_SERVER] = 1, [TEST_CLIENT] = 4}};
	struct plan p = {.server = 4, .client = 4};
	only_tcp();
	pair(&s, is_used, uses, &p);
}

TEST_WITHIN(40, by_exchanged_addresses)
{
	bytes((struct setup){.by_address = true}, (struct plan){.server = 4, .client = 4, .both = 4});
}

TEST_WITHIN(40, with_a_key)
{
	const char *key = "a secret of this test 0123456789";
	bytes((struct setup){.key = {[TEST_SERVER] = key, [TEST_CLIENT] = key}},
	      (struct plan){.server = 4, .client = 4, .both = 4});
}

/* Fault injection (short=): each system call moves only a few bytes. */
TEST_WITHIN(60, in_small_steps)
{
	setenv("GDRFAB_FAULT", "tcp/short=9001", 1);
	bytes((struct setup){0}, (struct plan){.server = 2, .client = 2, .both = 2});
}

/* --- late operations --- */

static void is_late(struct node *n)
{
	struct mem m;
	begin(n);
	mem_new(n, &m, &memkinds[KIND_MALLOC], LARGE);
	mem_register(n, &m, 0, LARGE, REMOTE_ACCESS, 0);
	fill(m.addr, LARGE, 0, 1);
	mem_publish(n, &m);
	barrier(n);
	fill(m.addr, LARGE, 0, 1);
	barrier(n); /* the other side stops this process here */
	barrier(n);
	/* Of a write that ended early, whole stripes may have arrived, but no byte that its memory got later. */
	size_t came = 0;
	for (size_t at = 0; at < LARGE; at += STRIPE) {
		unsigned char first[2][8];
		fill(first[0], 8, at, 1);
		fill(first[1], 8, at, 2);
		bool is_new = memcmp(m.addr + at, first[1], 8) == 0;
		CHECK(is_new || memcmp(m.addr + at, first[0], 8) == 0);
		CHECK_FILLED("a stripe", m.addr + at, STRIPE, at, is_new ? 2 : 1);
		came += is_new;
	}
	CHECK(came < LARGE / STRIPE);
	barrier(n);
	barrier(n);
	CHECK_FILLED("written afterwards", m.addr, LARGE, 0, 3);
	barrier(n);
	mem_end(n, &m);
	node_down(n);
}

static void ends_late(struct node *n, unsigned char *memory)
{
	struct failure f;
	uint64_t start = test_now_ms();
	FAILED(n->cq, memory, ETIMEDOUT, GDRFAB_PROV_DEADLINE, &f);
	CHECK(test_now_ms() - start < (uint64_t)test_ms(LATE + 1500));
}

static void is_in_time(struct node *n)
{
	uint64_t ns = (uint64_t)test_ms(LATE) * 1000000u, none = 0;
	unsigned char *out = (unsigned char *)calloc(1, LARGE), *in = (unsigned char *)calloc(1, LARGE);
	begin(n);
	struct remote to = mem_fetch(n);
	open_streams(n, out, to);
	barrier(n);
	barrier(n);
	peer_stop(n);
	OK(gdrfab_ep_setopt(n->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_DEADLINE, &ns, sizeof ns));
	fill(out, LARGE, 0, 2);
	POST(n->cq, gdrfab_write(n->ep, out, LARGE, NULL, 0, to.base, to.key, out));
	ends_late(n, out);
	/* The buffer is the caller's again. */
	memset(out, 0x5a, LARGE);
	/* The buffer of a cancelled read is the caller's again, too. */
	POST(n->cq, gdrfab_read(n->ep, in, LARGE, NULL, 0, to.base, to.key, in));
	OK(gdrfab_cancel(n->ep, in));
	FAILED(n->cq, in, ECANCELED, GDRFAB_PROV_CANCELED, NULL);
	memset(in, 0x33, LARGE);
	OK(gdrfab_ep_setopt(n->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_DEADLINE, &none, sizeof none));
	peer_continue(n);
	/* A later message shows that the begun stripes have arrived. */
	POST(n->cq, gdrfab_read(n->ep, in, 8, NULL, 0, to.base, to.key, in));
	DONE(n->cq, in, GDRFAB_READ, NULL);
	memset(in, 0x33, 8);
	barrier(n);
	barrier(n);
	/* The connection works as before. */
	fill(out, LARGE, 0, 3);
	POST(n->cq, gdrfab_write(n->ep, out, LARGE, NULL, 0, to.base, to.key, out));
	DONE(n->cq, out, GDRFAB_WRITE, NULL);
	for (size_t i = 0; i < LARGE; i++)
		if (in[i] != 0x33)
			test_fail(__FILE__, __LINE__, "byte %zu of a cancelled read was written", i);
	memset(in, 0, LARGE);
	POST(n->cq, gdrfab_read(n->ep, in, LARGE, NULL, 0, to.base, to.key, in));
	DONE(n->cq, in, GDRFAB_READ, NULL);
	CHECK_FILLED("read afterwards", in, LARGE, 0, 3);
	barrier(n);
	barrier(n);
	free(out);
	free(in);
	node_down(n);
}

TEST_WITHIN(40, late_and_cancelled)
{
	struct plan p = {.server = 4, .client = 4, .both = 4};
	only_tcp();
	pair(NULL, is_late, is_in_time, &p);
}

/* --- a stream dies --- */

/* Shuts down the socket that was opened last: a stream for long bodies. */
static void break_one(void)
{
	int fd, last = -1;
	for (fd = 3; fd < 1024; fd++) {
		struct sockaddr_storage at;
		socklen_t len = sizeof at;
		if (getpeername(fd, (struct sockaddr *)&at, &len) == 0 && at.ss_family != AF_UNIX)
			last = fd;
	}
	CHECK(last >= 0);
	CHECK_EQ(shutdown(last, SHUT_RDWR), 0);
}

static void is_lost(struct node *n, const void *context)
{
	struct failure f;
	FAILED(n->cq, context, ECONNRESET, GDRFAB_PROV_PEER_GONE, &f);
}

static void loses_one(struct node *n)
{
	static char in[64];
	struct mem m;
	begin(n);
	mem_new(n, &m, &memkinds[KIND_MALLOC], LARGE);
	mem_register(n, &m, 0, LARGE, REMOTE_ACCESS, 0);
	mem_publish(n, &m);
	POST(n->cq, gdrfab_recv(n->ep, in, sizeof in, NULL, 0, in));
	barrier(n);
	barrier(n);
	is_lost(n, in);
	EVENT(n->eq, GDRFAB_SHUTDOWN, n->ep, NULL);
	barrier(n);
	mem_end(n, &m);
	node_close(n);
}

static void breaks_one(struct node *n)
{
	const struct plan *p = (const struct plan *)n->arg;
	static char in[64];
	unsigned char *out = (unsigned char *)calloc(1, LARGE);
	struct failure f;
	begin(n);
	struct remote to = mem_fetch(n);
	open_streams(n, out, to);
	barrier(n);
	if (p->stops)
		peer_stop(n);
	POST(n->cq, gdrfab_recv(n->ep, in, sizeof in, NULL, 0, in));
	for (int i = 0; i < 2 && p->stops; i++)
		POST(n->cq, gdrfab_write(n->ep, out, LARGE, NULL, 0, to.base, to.key, out));
	break_one();
	for (int i = 0; i < (p->stops ? 3 : 1); i++) {
		done e;
		CHECK_EQ(cq_next(n->cq, &e, 10000), -1);
		cq_failure(__FILE__, __LINE__, n->cq, &f);
		CHECK_EQ(f.entry.err, ECONNRESET);
		CHECK_EQ(f.entry.prov_errno, GDRFAB_PROV_PEER_GONE);
		/* The peer is stopped, so it cannot have found the failure first and closed the rest. */
		if (p->stops && !test_says(f.words, "stream"))
			test_fail(__FILE__, __LINE__, "the words name no stream: %s", f.words);
		/* Data may still be in the kernel, but the buffer is the caller's. */
		memset(out, 0, LARGE);
	}
	EVENT(n->eq, GDRFAB_SHUTDOWN, n->ep, NULL);
	if (p->stops)
		peer_continue(n);
	barrier(n);
	barrier(n);
	free(out);
	node_close(n);
}

TEST_WITHIN(40, one_dies_in_the_middle)
{
	struct plan p = {.server = 4, .client = 4, .both = 4, .stops = true};
	only_tcp();
	pair(NULL, loses_one, breaks_one, &p);
}

TEST_WITHIN(40, one_dies_while_nothing_moves)
{
	struct plan p = {.server = 4, .client = 4, .both = 4};
	only_tcp();
	pair(NULL, loses_one, breaks_one, &p);
}
