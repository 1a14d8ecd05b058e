/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A hostile client that breaks the protocol of docs/tcp-wire.md: at most it loses its own connection. Meanwhile a good peer
 * writes, reads, sends and opens connections; all its bytes and the rest of the server's memory are checked.
 */
#include "fab.h"
#include "tcp_siege.h"

#include <sys/socket.h>

#define SOON 5000 /* ms: by then a connection that broke the protocol is closed */
#define LIMIT 5000

static void only_tcp(void)
{
	skip_unless(path_known(PATH_SOCKET), "this is about what tcp says on the wire");
}

/* --- before there is a connection --- */

struct greeting {
	const char *what;
	int at, bytes; /* the changed field, counted from the start of HELLO; INTRO and its body follow */
	uint64_t value;
	int status; /* expected in CHALLENGE or ANSWER; 0: closed, with or without a status */
};

static const struct greeting greetings[] = {
	{"another magic", 0, 8, 0x1122334455667788u, 0},
	{"a magic that ends otherwise", 7, 1, 1, 0},
	{"no version", 8, 4, 0, RAW_VERSION},
	{"versions to come", 8, 4, 0x00090008, RAW_VERSION},
	{"versions the wrong way round", 8, 4, 0x00000001, 0},
	{"all flags", 12, 1, 255, 0},
	{"a key that nobody has", 12, 1, 1, RAW_KEY_NEEDED},
	{"a purpose that does not exist", 13, 1, 7, RAW_WRONG_DOOR},
	{"an endpoint's purpose at a listener", 13, 1, 1, RAW_WRONG_DOOR},
	{"a body that is one byte too long", 64, 4, RAW_BODY_MAX + 1, 0},
	{"a body of 4 GiB", 64, 4, UINT32_MAX, 0},
	{"a body of half that", 64, 4, INT32_MAX, 0},
	{"no body at all", 64, 4, 0, 0},
	{"a body that ends in its first field", 64, 4, 3, 0},
	{"a body that ends before its data", 64, 4, 14, 0},
	{"a token where none is", 72, 8, 4711, RAW_WRONG_DOOR},
	{"an address longer than the body", 64 + 48 + 12, 2, 65535, 0},
	{"an address longer than addresses are", 64 + 48 + 12, 2, 256, 0},
	{"an address that is no text", 64 + 48 + 14, 8, 0xfffefdfcfbfaf9f8u, 0},
	{"data longer than the body", 64 + 48 + 14 + 17, 2, 65535, 0},
	{"data longer than data is", 64 + 48 + 14 + 17, 2, 257, 0},
	{"data shorter than the body", 64 + 48 + 14 + 17, 2, 1, 0},
};

static void greets(const struct greeting *g)
{
	unsigned char bytes[RAW_HELLO + RAW_INTRO + RAW_BODY_MAX], answer[RAW_HELLO];
	int fd = raw_connect(siege->service);
	CHECK(fd >= 0);
	raw_hello(bytes, 5);
	size_t len = RAW_HELLO + raw_intro(bytes + RAW_HELLO, 16, 65536, "hostile", 7);
	raw_put(bytes + g->at, g->value, g->bytes);
	bool in_hello = g->at < RAW_HELLO;
	/* The server judges a HELLO when it is complete; INTRO is sent after the CHALLENGE. */
	if (!raw_send(fd, bytes, RAW_HELLO))
		goto closed;
	int got = raw_recv(fd, answer, RAW_HELLO, SOON);
	int status = got == 1 ? (int)raw_get(answer + 14, 2) : -1;
	if (in_hello) {
		if (g->status && status != g->status)
			test_wrong(__FILE__, __LINE__, "%s: status %d (%d), not %d", g->what, status, got, g->status);
		if (got == 1 && status == 0)
			test_wrong(__FILE__, __LINE__, "%s: the listener goes on", g->what);
	} else {
		CHECK_EQ(got, 1);
		CHECK_EQ(status, 0);
		if (!raw_send(fd, bytes + RAW_HELLO, len - RAW_HELLO))
			goto closed;
		got = raw_recv(fd, answer, RAW_INTRO, SOON);
		status = got == 1 ? (int)raw_get(answer + 4, 2) : -1;
		if (g->status && got == 1 && status != g->status)
			test_wrong(__FILE__, __LINE__, "%s: status %d, not %d", g->what, status, g->status);
		if (got == 1 && status == 0)
			test_wrong(__FILE__, __LINE__, "%s: the listener takes it", g->what);
	}
	if (!raw_closed(fd, SOON))
		test_wrong(__FILE__, __LINE__, "%s: the connection is still there", g->what);
closed:
	raw_reset(fd);
}

static void greets_wrongly(void)
{
	uint64_t random = 3;
	for (size_t i = 0; i < sizeof greetings / sizeof greetings[0]; i++)
		greets(&greetings[i]);
	/* Proofs to a server without a key, and random bytes. */
	for (int i = 0; i < test_count(100, 20); i++) {
		unsigned char bytes[4096];
		int fd = raw_connect(siege->service);
		CHECK(fd >= 0);
		for (size_t k = 0; k < sizeof bytes; k += 8)
			raw_put(bytes + k, test_random(&random), 8);
		if (i % 2)
			raw_hello(bytes, random);
		raw_send(fd, bytes, (size_t)(test_random(&random) % sizeof bytes) + 1);
		if (i % 4 < 2)
			shutdown(fd, SHUT_WR);
		if (i % 4 == 0 && !raw_closed(fd, SOON))
			test_wrong(__FILE__, __LINE__, "garbage %d: the connection is still there", i);
		raw_reset(fd);
	}
}

TEST_WITHIN(60, greetings_that_make_no_sense)
{
	only_tcp();
	siege_run(greets_wrongly, LIMIT);
	siege_was_bounded("wrong greetings", 4096, 120);
}

/* --- malformed frames: each ends its connection --- */

static struct raw_frame with_words(int kind, int flags, uint64_t len, uint64_t first, uint64_t second, int words)
{
	struct raw_frame f = raw_bare(kind, flags, len);
	f.word[0] = first, f.word[1] = second;
	f.words = words;
	return f;
}

static void says(const char *what, int number, const struct raw_frame *frames, int count, size_t body)
{
	static unsigned char bytes[1024], filler[65536];
	int fd = siege_greeted();
	for (int i = 0; i < count; i++) {
		size_t len = raw_frame(bytes, &frames[i]);
		raw_send(fd, bytes, len);
	}
	for (size_t left = body; left > 0;) {
		size_t piece = left < sizeof filler ? left : sizeof filler;
		if (!raw_send(fd, filler, piece))
			break;
		left -= piece;
	}
	if (!raw_closed(fd, SOON))
		test_wrong(__FILE__, __LINE__, "%s (%d): the connection is still there", what, number);
	raw_reset(fd);
}

static void says_one(const char *what, int number, struct raw_frame f)
{
	says(what, number, &f, 1, 0);
}

static void unknown_kinds_and_flags(void)
{
	for (int kind = RAW_KINDS; kind < 256; kind += kind < 16 ? 1 : 47)
		says_one("a kind that does not exist", kind, raw_bare(kind, 0, 0));
	says_one("a kind that does not exist", 255, raw_bare(255, 0, 0));
	for (int kind = RAW_READY; kind < RAW_KINDS; kind++)
		for (int flag = 5; flag < 8; flag++)
			says_one("a flag that does not exist", kind, raw_bare(kind, 1 << flag, 0));
	says_one("READY twice", 0, raw_bare(RAW_READY, 0, 0));
}

/* A length beyond its bound in every field that has one. */
static void lengths(void)
{
	static const uint64_t giant[] = {(1ull << 40) + 1, 1ull << 48, 1ull << 63, UINT64_MAX};
	const struct remote *to = &siege->open;
	for (int i = 0; i < 4; i++) {
		says_one("a WRITE", i, raw_rma(RAW_WRITE, RAW_PARTS, to->base, to->key, giant[i]));
		says_one("a READ", i, raw_rma(RAW_READ, 0, to->base, to->key, giant[i]));
		says_one("a SEND", i, raw_bare(RAW_SEND, RAW_PARTS, giant[i]));
		says_one("an OFFER", i, with_words(RAW_OFFER, 0, giant[i], 1, 0, 1));
		says_one("a TAKE", i, with_words(RAW_TAKE, 0, giant[i], 1, 0, 1));
		says_one("a TAKEN", i, with_words(RAW_TAKEN, RAW_PARTS, giant[i], 1, 0, 1));
		says_one("an ANSWERED", i, raw_bare(RAW_ANSWERED, RAW_PARTS, giant[i]));
		says_one("a NOTHING", i, raw_bare(RAW_NOTHING, 0, giant[i]));
		says_one("a BYE", i, raw_bare(RAW_BYE, 0, giant[i]));
	}
	says_one("a WRITE too long for one body", 0, raw_rma(RAW_WRITE, 0, to->base, to->key, RAW_WHOLE_MAX + 1));
	says_one("parts of nothing", 0, raw_rma(RAW_WRITE, RAW_PARTS, to->base, to->key, 0));
	says_one("a SEND too long for one body", 0, raw_bare(RAW_SEND, 0, RAW_WHOLE_MAX + 1));
	/* Pieces: none, too many, with a wrong sum of lengths, and with a sum that overflows to the right value. */
	struct raw_frame f = raw_rma(RAW_WRITE, 0, to->base, to->key, 8);
	f.pieces = 0;
	says_one("a WRITE of no pieces", 0, f);
	f.pieces = 9;
	f.words = 27;
	says_one("a WRITE of too many pieces", 9, f);
	f.pieces = 255;
	says_one("a WRITE of too many pieces", 255, f);
	f = raw_rma(RAW_WRITE, 0, to->base, to->key, 8);
	f.word[1] = 9;
	says_one("a piece longer than its frame", 9, f);
	f.word[1] = UINT64_MAX;
	says_one("a piece longer than its frame", -1, f);
	f = raw_rma(RAW_READ, 0, to->base, to->key, 8);
	f.pieces = 2;
	f.words = 6;
	f.word[1] = UINT64_MAX - 7;
	f.word[3] = to->base, f.word[4] = 16, f.word[5] = to->key;
	says_one("pieces whose sum overflows", 2, f);
	f = raw_rma(RAW_WRITE, 0, to->base, to->key, 8);
	f.paths = 4;
	says_one("a path that does not exist", 4, f);
	f = raw_bare(RAW_SEND, 0, 8);
	f.pieces = 1;
	says_one("a SEND of pieces", 1, f);
}

static struct raw_frame raw_atomic(uint64_t what, int flags, uint64_t len)
{
	struct raw_frame f = with_words(RAW_ATOMIC, flags, len, what, siege->open.base, 3);
	f.word[2] = siege->open.key, f.paths = 1;
	return f;
}

/* An atomic operation: the numbers of operation, datatype and form, and a count, from which the operands' length follows. */
static void atomics(void)
{
	const uint64_t sum = 2 | 7 << 8, fetch = 1 << 16, one = 1ull << 32;
	static const uint64_t wrong[] = {19, 2 | 10 << 8, 2 | 3 << 16, 12, 10, 6 | 9 << 8, 1ull << 24, 1ull << 48, UINT64_MAX};
	for (int i = 0; i < 9; i++)
		says_one("an operation that does not exist", i, raw_atomic(wrong[i] | one, 0, 8));
	says_one("an operation of too many elements", 129, raw_atomic(sum | 129 * one, 0, 129 * 8));
	says_one("operands that are too short", 8, raw_atomic(sum | 2 * one, 0, 8));
	says_one("operands that are too long", 16, raw_atomic(sum | one, 0, 16));
	says_one("operands beyond any length", 0, raw_atomic(sum | one, 0, UINT64_MAX));
	says_one("parts of operands", 8, raw_atomic(sum | one, RAW_PARTS, 8));
	says_one("a fetching operation that is to be acknowledged", 4, raw_atomic(sum | fetch | one, 4, 8));
	struct raw_frame f = raw_atomic(sum | one, 0, 8);
	f.paths = 4;
	says_one("a path of an operation that does not exist", 4, f);
}

/* Answers without a request, and counts of messages that were not sent. */
static void out_of_nothing(void)
{
	says_one("ANSWERED without a READ", 0, raw_bare(RAW_ANSWERED, 0, 8));
	says_one("ANSWERED without a READ", 1, with_words(RAW_ANSWERED, RAW_FAILED, 0, 1, 0, 1));
	says_one("TAKE of no offer", 0, with_words(RAW_TAKE, 0, 8, 77, 0, 1));
	says_one("TAKEN that nobody took", 0, with_words(RAW_TAKEN, 0, 8, 77, 0, 1));
	says_one("GOT of no message", 0, with_words(RAW_GOT, 0, 0, 77, 0, 2));
	says_one("REPORT of no write", 0, with_words(RAW_REPORT, 0, 0, 1, 1, 2));
	says_one("REPORT of no write", 1, with_words(RAW_REPORT, 0, 0, UINT64_MAX, 1, 2));
	says_one("more MATCHED than sent", 0, with_words(RAW_MATCHED, 0, 0, 1, 0, 2));
	says_one("more MATCHED than sent", 1, with_words(RAW_MATCHED, 0, 0, 0, 1, 2));
	says_one("more MATCHED than sent", 2, with_words(RAW_MATCHED, 0, 0, UINT64_MAX, UINT64_MAX, 2));
	struct raw_frame f = raw_bare(RAW_NOTHING, 0, 0);
	f.done = 1;
	says_one("done of no write", 1, f);
	f.done = UINT32_MAX;
	says_one("done of no write", -1, f);
	struct raw_frame two[2] = {raw_bare(RAW_BYE, 0, 0), raw_bare(RAW_NOTHING, 0, 0)};
	says("something behind BYE", 0, two, 2, 0);
}

/* More messages and more bytes than the receiver has granted. */
static void beyond_the_budget(void)
{
	struct raw_terms terms;
	static unsigned char bytes[RAW_HEADER + 8], body[RAW_WHOLE_MAX];
	for (int large = 0; large < 2; large++) {
		int fd = raw_connect(siege->service);
		CHECK(fd >= 0 && raw_greet(fd, &terms));
		CHECK(terms.window > 0 && terms.budget > 0);
		struct raw_frame f = raw_bare(RAW_SEND, 0, large ? sizeof body : 1);
		size_t len = raw_frame(bytes, &f);
		uint64_t most = (uint64_t)terms.window + terms.budget / (large ? sizeof body : 1) + 2, sent = 0;
		while (sent < most && raw_send(fd, bytes, len) && raw_send(fd, body, large ? sizeof body : 1))
			sent++;
		if (!raw_closed(fd, SOON))
			test_wrong(__FILE__, __LINE__, "%llu messages of %zu bytes, window %u, budget %u: the connection"
				   " is still there", (unsigned long long)sent, large ? sizeof body : (size_t)1,
				   terms.window, terms.budget);
		raw_reset(fd);
	}
	struct raw_frame f = raw_bare(RAW_SEND, RAW_PARTS, (uint64_t)terms.budget + RAW_PART);
	says("one message beyond the budget", 1, &f, 1, 1 << 20);
}

/* Frames before READY. raw_greet() sends READY, so the handshake is done here. */
static void not_ready(void)
{
	unsigned char bytes[RAW_INTRO + RAW_BODY_MAX], answer[RAW_BODY_MAX];
	int fd = raw_connect(siege->service);
	CHECK(fd >= 0);
	raw_hello(bytes, 8);
	CHECK(raw_send(fd, bytes, RAW_HELLO) && raw_recv(fd, answer, RAW_HELLO, SOON) == 1);
	CHECK(raw_send(fd, bytes, raw_intro(bytes, 16, 65536, NULL, 0)) && raw_recv(fd, answer, RAW_INTRO, SOON) == 1);
	CHECK_EQ(raw_recv(fd, answer, (size_t)raw_get(answer, 4), SOON), 1);
	struct raw_frame f = raw_rma(RAW_READ, 0, siege->open.base, siege->open.key, 8);
	raw_send(fd, bytes, raw_frame(bytes, &f));
	if (!raw_closed(fd, SOON))
		test_wrong(__FILE__, __LINE__, "a READ instead of READY: the connection is still there");
	raw_reset(fd);
}

static void breaks_the_protocol(void)
{
	unknown_kinds_and_flags();
	lengths();
	atomics();
	out_of_nothing();
	beyond_the_budget();
	not_ready();
}

TEST_WITHIN(100, frames_that_make_no_sense)
{
	only_tcp();
	siege_run(breaks_the_protocol, LIMIT);
	siege_was_bounded("senseless frames", 16384, 16);
}

/* --- requests that are refused: the connection goes on --- */

static void reads_well(int fd, const char *what)
{
	unsigned char bytes[256], body[64];
	struct raw_frame f = raw_rma(RAW_READ, 0, siege->readable.base + 100, siege->readable.key, sizeof body), back;
	if (!raw_send(fd, bytes, raw_frame(bytes, &f)) || raw_next(fd, &back, body, sizeof body, SOON) != 1)
		test_fail(__FILE__, __LINE__, "after %s: the connection is gone", what);
	if (back.kind != RAW_ANSWERED || (back.flags & RAW_FAILED) || back.len != sizeof body)
		test_fail(__FILE__, __LINE__, "after %s: kind %d, flags %d, length %llu", what, back.kind, back.flags,
			  (unsigned long long)back.len);
	CHECK_FILLED("an answer to the raw client", body, sizeof body, 100, SIEGE_SEED + 1);
}

static void refused_read(int fd, const char *what, struct raw_frame f, uint64_t status)
{
	unsigned char bytes[512], body[64];
	struct raw_frame back;
	CHECK(raw_send(fd, bytes, raw_frame(bytes, &f)));
	int rc = raw_next(fd, &back, body, sizeof body, SOON);
	if (rc != 1)
		test_fail(__FILE__, __LINE__, "a read of %s: %s", what, rc == 0 ? "the connection is gone" : "no answer");
	if (back.kind != RAW_ANSWERED || !(back.flags & RAW_FAILED) || back.len != 0 || back.word[0] != status)
		test_wrong(__FILE__, __LINE__, "a read of %s: kind %d, flags %d, length %llu, status %llu, not %llu", what,
			   back.kind, back.flags, (unsigned long long)back.len, (unsigned long long)back.word[0],
			   (unsigned long long)status);
	reads_well(fd, what);
}

static void refused_write(int fd, const char *what, struct raw_frame f, uint64_t sequence, uint64_t status)
{
	static unsigned char bytes[512], body[RAW_WHOLE_MAX];
	struct raw_frame back;
	f.flags |= RAW_PROMPT;
	CHECK(f.len <= sizeof body);
	CHECK(raw_send(fd, bytes, raw_frame(bytes, &f)) && raw_send(fd, body, (size_t)f.len));
	int rc = raw_next(fd, &back, body, sizeof body, SOON);
	if (rc != 1)
		test_fail(__FILE__, __LINE__, "a write to %s: %s", what, rc == 0 ? "the connection is gone" : "no report");
	if (back.kind != RAW_REPORT || back.word[0] != sequence || back.word[1] != status)
		test_wrong(__FILE__, __LINE__, "a write to %s: kind %d, sequence %llu, status %llu, not %llu, %llu", what,
			   back.kind, (unsigned long long)back.word[0], (unsigned long long)back.word[1],
			   (unsigned long long)sequence, (unsigned long long)status);
	reads_well(fd, what);
}

static void asks_for_too_much(void)
{
	const struct remote *r = &siege->readable, *w = &siege->open, *c = &siege->closed;
	const struct {
		const char *what;
		uint64_t addr, key, len;
		uint64_t read, write; /* expected status */
	} requests[] = {
		{"memory that is no region", siege->secret, w->key, 64, 2, 2},
		{"memory that is no region, with key 0", siege->secret, 0, 64, 1, 1},
		{"a key that names nothing", w->base, ~w->key, 64, 1, 1},
		{"the key of a closed region", c->base, c->key, 64, 1, 1},
		{"the byte in front", w->base - 1, w->key, 1, 2, 2},
		{"the byte behind", w->base + w->len, w->key, 1, 2, 2},
		{"one byte too far", w->base + w->len - 63, w->key, 64, 2, 2},
		{"address 0", 0, w->key, 8, 2, 2},
		{"an end that overflows", UINT64_MAX - 3, w->key, 8, 2, 2},
		{"an end that overflows to the region", UINT64_MAX - 4096, w->key, 16384, 2, 2},
		{"a region to be read only", r->base, r->key, 64, 0, 3},
	};
	uint64_t sequence = 0;
	int fd = siege_greeted();
	reads_well(fd, "nothing");
	for (size_t i = 0; i < sizeof requests / sizeof requests[0]; i++) {
		if (requests[i].read)
			refused_read(fd, requests[i].what, raw_rma(RAW_READ, 0, requests[i].addr, requests[i].key, requests[i].len),
				     requests[i].read);
		refused_write(fd, requests[i].what, raw_rma(RAW_WRITE, 0, requests[i].addr, requests[i].key, requests[i].len),
			      ++sequence, requests[i].write);
	}
	/* A read of the maximum length, from a region that does not exist. */
	refused_read(fd, "2^40 bytes", raw_rma(RAW_READ, 0, w->base, w->key, 1ull << 40), 2);
	/* One bad piece of two fails both. */
	struct raw_frame f = raw_rma(RAW_WRITE, 0, w->base, w->key, 8);
	f.pieces = 2;
	f.words = 6;
	f.len = 16;
	f.word[3] = w->base + w->len, f.word[4] = 8, f.word[5] = w->key;
	refused_write(fd, "a second piece behind the region", f, ++sequence, 2);
	/* No permitted path: the flag permits only device memory. */
	f = raw_rma(RAW_WRITE, 0, w->base, w->key, 8);
	f.paths = 2;
	refused_write(fd, "host memory as memory of a device", f, ++sequence, 4);
	raw_reset(fd);
	/* A body that is begun and not completed. */
	unsigned char bytes[512];
	fd = siege_greeted();
	f = raw_rma(RAW_WRITE, RAW_PARTS, w->base, w->key, w->len / 2);
	raw_send(fd, bytes, raw_frame(bytes, &f));
	raw_reset(fd);
}

TEST_WITHIN(60, requests_that_are_refused)
{
	only_tcp();
	siege_run(asks_for_too_much, LIMIT);
	siege_was_bounded("refused requests", 16384, 16);
}

/* --- requests without end whose answers are not received: at most the connection is lost, and no memory is kept --- */

static void asks_without_listening(const char *what, struct raw_frame f)
{
	static unsigned char many[64 * 1024];
	size_t len = raw_frame(many, &f), count = sizeof many / len, sent = 0;
	int fd = siege_greeted();
	for (size_t i = 1; i < count; i++)
		memcpy(many + i * len, many, len);
	/* Sends until the socket is closed, or accepts nothing for 1.5 s, which is enough for a slow server. Under a memory checker, 16
	 * MiB of small requests already fill every queue of the server. */
	uint64_t until = test_now_ms() + 1500;
	size_t at = 0;
	while (test_now_ms() < until && sent < (size_t)(test_checked() ? 16 : 256) << 20) {
		ssize_t n = send(fd, many + at, count * len - at, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n < 0 && errno != EAGAIN)
			break;
		if (n < 0) {
			test_sleep_ms(1);
			continue;
		}
		until = test_now_ms() + 1500;
		sent += (size_t)n;
		at = (at + (size_t)n) % (count * len);
	}
	fprintf(stderr, "     %s: %zu KiB were taken\n", what, sent / 1024);
	raw_reset(fd);
}

static void never_listens(void)
{
	const struct remote *r = &siege->readable, *w = &siege->open;
	struct raw_frame prompt = raw_rma(RAW_WRITE, RAW_PROMPT, w->base, w->key, 0);
	asks_without_listening("READs that are refused", raw_rma(RAW_READ, 0, w->base, ~w->key, 64));
	asks_without_listening("READs of little", raw_rma(RAW_READ, 0, r->base, r->key, 64));
	asks_without_listening("READs of much", raw_rma(RAW_READ, 0, r->base, r->key, r->len));
	asks_without_listening("WRITEs that are refused", raw_rma(RAW_WRITE, RAW_PROMPT, w->base, ~w->key, 0));
	asks_without_listening("WRITEs that want an answer each", prompt);
}

TEST_WITHIN(90, answers_that_nobody_takes)
{
	only_tcp();
	siege_run(never_listens, LIMIT);
	siege_was_bounded("answers that nobody takes", 32768, 16);
}
