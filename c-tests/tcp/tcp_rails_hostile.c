/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Hostile use of rails: a client that connects to the addresses for rails with wrong tokens, and opens and breaks its rails; and
 * a server that gives wrong addresses, or misbehaves when rails connect to them. The cost is bounded in memory, descriptors and
 * connection attempts; a good peer goes on, over rails of its own.
 */
#include "fab.h"
#include "tcp_raw_rails.h"

#include <sys/socket.h>

#define SOON 5000 /* ms: by then what broke the protocol is closed */

/* --- the addresses for rails ("doors" in the code) --- */

static void knocks(void)
{
	struct hostile h = rails_connect(), other = rails_connect();
	unsigned char which[5] = {1, 2};
	int fd;
	/* Wrong tokens: one bit wrong, zero, and the token of another connection. */
	for (int i = 0; i < 64; i += 9) {
		CHECK_EQ(rails_join(&h, i % 2, h.token ^ 1ull << i, 1, 2, &fd), RAW_WRONG_DOOR);
		CHECK(raw_closed(fd, SOON));
		raw_reset(fd);
	}
	CHECK_EQ(rails_join(&h, 1, 0, 1, 2, &fd), RAW_WRONG_DOOR);
	raw_reset(fd);
	CHECK_EQ(rails_join(&h, 1, other.token, 1, 2, &fd), RAW_WRONG_DOOR);
	raw_reset(fd);
	rails_end(&other);
	/* The addresses are for rails only, and the passive endpoint's address is not for rails. */
	for (int purpose = 0; purpose < 3; purpose++) {
		fd = rails_call(h.door[purpose % 2]);
		CHECK_EQ(rails_introduce(fd, purpose, h.token, which, sizeof which), RAW_WRONG_DOOR);
		raw_reset(fd);
	}
	fd = raw_connect(siege->service);
	CHECK_EQ(rails_introduce(fd, FOR_RAILS, h.token, which, sizeof which), RAW_WRONG_DOOR);
	raw_reset(fd);
	/* Rails without a number, or with a number that was not agreed on. */
	for (size_t len = 0; len < 5; len++) {
		fd = rails_call(h.door[1]);
		CHECK_EQ(rails_introduce(fd, FOR_RAILS, h.token, which, len), RAW_REJECTED);
		raw_reset(fd);
	}
	for (int number = 2; number < 256; number = number < 9 ? number + 1 : number * 2 - 1) {
		CHECK_EQ(rails_join(&h, 1, h.token, number, 2, &fd), RAW_REJECTED);
		CHECK(raw_closed(fd, SOON));
		raw_reset(fd);
	}
	/* The first rail is connected; only a rail of a later generation may replace it. */
	CHECK_EQ(rails_join(&h, 0, h.token, 0, 0, &fd), RAW_REJECTED);
	raw_reset(fd);
	CHECK_EQ(rails_join(&h, 0, h.token, 0, 1, &fd), RAW_REJECTED);
	raw_reset(fd);
	CHECK_EQ(rails_join(&h, 1, h.token, 1, 0, &fd), RAW_REJECTED);
	raw_reset(fd);
	CHECK_EQ(rails_join(&h, 1, h.token, 1, 7, &h.rail[1]), 0);
	test_sleep_ms(100);
	/* The same introduction again, as an eavesdropper could send it. */
	for (int i = 0; i < 3; i++) {
		CHECK_EQ(rails_join(&h, 1, h.token, 1, 7, &fd), RAW_REJECTED);
		raw_reset(fd);
	}
	rails_go_well(&h);
	/* One introduction more than rails are possible. */
	static const struct {
		int version;
		uint32_t rails, streams;
	} wants[] = {{5, 9, 0}, {5, 40, 0}, {4, 2, 0}, {1, 1, 0}};
	for (size_t i = 0; i < sizeof wants / sizeof wants[0]; i++) {
		struct raw_meeting m = {.version = wants[i].version, .rails = wants[i].rails};
		fd = raw_connect(siege->service);
		CHECK_EQ(raw_meet(fd, &m), -1);
		raw_reset(fd);
	}
	/* As many rails as addresses, and no streams besides. */
	struct raw_meeting m = {.version = 5, .rails = 8, .streams = 4};
	fd = raw_connect(siege->service);
	CHECK_EQ(raw_meet(fd, &m), 0);
	CHECK_EQ(raw_get(m.body + 8, 2), 0);
	CHECK_EQ(raw_get(m.body + 10, 2), 2);
	raw_reset(fd);
	/* The addresses are closed with the connection. */
	rails_end(&h);
	uint64_t until = test_now_ms() + (uint64_t)test_ms(SOON);
	while ((fd = rails_call(h.door[0])) >= 0 && test_now_ms() < until) {
		raw_reset(fd);
		test_sleep_ms(5);
	}
	CHECK(fd < 0);
}

TEST_WITHIN(60, the_doors_for_rails)
{
	rails_siege("doors", knocks, 8192, 60);
}

static void silence(void)
{
	static int fd[200];
	struct hostile h = rails_connect();
	for (int i = 0; i < 200; i++)
		fd[i] = rails_call(h.door[i % 2]);
	test_sleep_ms(500);
	for (int i = 0; i < 200; i++)
		raw_reset(fd[i]);
	rails_go_well(&h);
	rails_end(&h);
}

TEST_WITHIN(60, silent_connections_at_the_doors)
{
	/* Besides the silent connections, one more of the good peer, with two rails. */
	rails_siege("silent connections", silence, 8192, 16 + 40 + 5 * 2);
}

/* Opens and closes a rail as fast as the server accepts it. */
static void flaps(void)
{
	struct hostile h = rails_connect();
	uint64_t first = 0, last = 0;
	unsigned in = 0;
	for (uint32_t i = 2; i < 2 + (uint32_t)test_count(2000, 500); i++) {
		uint64_t before = test_now_ms();
		int fd, status = rails_join(&h, 1, h.token, 1, i, &fd);
		if (status == 0) {
			last = test_now_ms();
			first = in++ == 0 ? before : first;
		} else {
			CHECK_EQ(status, RAW_REJECTED);
		}
		raw_reset(fd);
	}
	CHECK(in > 0);
	/* The server accepts a rail again after 50 ms at the earliest. */
	if (last - first < (in - 1) * 50ull)
		test_wrong(__FILE__, __LINE__, "%u rails were let in within %u ms", in, (unsigned)(last - first));
	rails_go_well(&h);
	/* The same with rails that stay open: each is replaced by the next. */
	test_sleep_ms(100);
	CHECK_EQ(rails_join(&h, 1, h.token, 1, UINT32_MAX - 1, &h.rail[1]), 0);
	test_sleep_ms(100);
	int fd;
	CHECK_EQ(rails_join(&h, 1, h.token, 1, UINT32_MAX, &fd), 0);
	CHECK(raw_closed(h.rail[1], SOON));
	close(h.rail[1]);
	h.rail[1] = fd;
	rails_go_well(&h);
	rails_end(&h);
}

TEST_WITHIN(60, rails_that_come_and_go)
{
	rails_siege("flapping", flaps, 8192, 60);
	CHECK(siege->notes > 0);
}


/* --- the server connects to a hostile listener --- */

#define RAILS 8
/*
 * Descriptors beyond those of the start: the rails of the good peer's first connection; for its next connection a socket and a
 * listener (three descriptors) for each rail; and for hostile ones two rounds of attempts, besides sockets being closed.
 */
#define MANY (RAILS + 5 * RAILS + 3 * RAILS)

/* Makes the server connect, and answers with these addresses for rails; the first is the address that it has connected to. */
static struct hostile grants(uint32_t rails, unsigned char (*places)[PLACE], size_t count)
{
	unsigned char body[2 * RAW_BODY_MAX];
	struct raw_meeting m;
	struct hostile h;
	memset(&h, 0, sizeof h);
	h.rail[1] = -1;
	h.broke = __atomic_load_n(&siege->broke, __ATOMIC_ACQUIRE);
	h.rail[0] = rails_ask(&m);
	CHECK_EQ(m.rails, RAILS);
	rails_answer(h.rail[0], body, rails_terms(body, rails, 0x1234, places, count));
	return h;
}

static unsigned good_rounds(void)
{
	return __atomic_load_n(&siege->rounds, __ATOMIC_ACQUIRE);
}

/* Checks that the good peer has made progress since then, or does so soon (a busy machine may run others first). */
static void goes_on_since(unsigned rounds, uint64_t start)
{
	uint64_t until = test_now_ms() + (uint64_t)test_ms(SOON);
	while (good_rounds() <= rounds && test_now_ms() < until)
		test_sleep_ms(5);
	if (good_rounds() <= rounds)
		test_wrong(__FILE__, __LINE__, "the good peer has stood still for %u ms", (unsigned)(test_now_ms() - start));
}

/* The good peer goes on meanwhile. */
static void pass(int ms)
{
	unsigned rounds = good_rounds();
	uint64_t start = test_now_ms();
	test_sleep_ms(ms);
	goes_on_since(rounds, start);
}

static void addresses(void)
{
	unsigned none, own = (unsigned)atoi(siege->service);
	/* Addresses without a listener. */
	close(rails_door(&none));
	const struct {
		uint32_t ip;
		unsigned port;
	} to[] = {{0x7f000001, none}, {0x7f000001, own}, {0, none}, {0, own}, {0xffffffff, none}, {0x7fffffff, own},
		  {0xe0000001, none}, {0xc0000201, none}, {0x7f000002, 0}, {0x7f000002, 65535}};
	for (size_t i = 0; i < sizeof to / sizeof to[0]; i++) {
		unsigned char places[RAILS][PLACE];
		for (size_t at = 0; at < RAILS; at++)
			rails_place(places[at], to[i].ip, to[i].port);
		struct hostile h = grants(RAILS, places, RAILS);
		rails_go_well(&h);
		pass(150);
		rails_go_well(&h);
		rails_end(&h);
	}
	CHECK_EQ(siege->broke, 0);
}

TEST_WITHIN(60, addresses_that_lead_nowhere)
{
	rails_siege_back("addresses", addresses, RAILS, 8192, MANY);
}

static void too_many(void)
{
	static unsigned char places[60][PLACE];
	static const struct {
		uint32_t rails;
		size_t count;
		const char *why;
	} says[] = {{9, 9, "more streams or rails than the protocol"},
		    {10000, 50, "more streams or rails than the protocol"},
		    {65535, 0, "more streams or rails than the protocol"},
		    {8, 60, "too long"},
		    {8, 9, "unexpected bytes"},
		    {8, 7, "ends too early"},
		    {1, 0, "ends too early"},
		    {9, 60, "too long"}};
	for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
		rails_place(places[i], 0x7f000001, 1);
	for (size_t i = 0; i < sizeof says / sizeof says[0]; i++) {
		struct hostile h = grants(says[i].rails, places, says[i].count);
		rails_broken(&h, "an answer with rails that cannot be", says[i].why);
	}
}

TEST_WITHIN(60, more_addresses_than_there_can_be)
{
	rails_siege_back("too many addresses", too_many, RAILS, 8192, MANY);
}

/* Behaviours of the hostile listener for rails. */
enum manner { HANGS_UP, SILENT, NONSENSE, ANOTHER_PURPOSE, REFUSES, LETS_IN, MANNERS };

/* Behaves so to a rail that has connected; returns the socket if it stays open. */
static int receive(int fd, enum manner manner)
{
	unsigned char bytes[RAW_HELLO], body[RAW_BODY_MAX];
	struct raw_meeting m;
	switch (manner) {
	case NONSENSE:
		memset(bytes, 0xee, sizeof bytes);
		raw_send(fd, bytes, sizeof bytes);
		break;
	case ANOTHER_PURPOSE:
		raw_hello(bytes, 1);
		raw_put(bytes + 8, 5, 2);
		raw_put(bytes + 10, 5, 2);
		raw_send(fd, bytes, sizeof bytes);
		break;
	case REFUSES:
		raw_hello(bytes, 1);
		raw_put(bytes + 14, RAW_BUSY, 2);
		raw_send(fd, bytes, sizeof bytes);
		break;
	case LETS_IN:
		if (rails_hear(fd, &m) && m.purpose == FOR_RAILS)
			rails_answer(fd, body, rails_terms(body, 0, 0, NULL, 0));
		break;
	case SILENT:
		return fd;
	default:
		break;
	}
	raw_reset(fd);
	return -1;
}

/* The server reconnects a lost rail at once, and then with pauses of at least 100 ms. */
static void calls(void)
{
	unsigned port;
	int door = rails_door(&port);
	for (int manner = MANNERS - 1; manner >= 0; manner -= test_count(1, 2)) {
		unsigned char places[RAILS][PLACE];
		int held[64], count = 0, open = 0;
		uint64_t begin = test_now_ms(), start, now;
		for (uint32_t at = 0; at < RAILS; at++)
			rails_place(places[at], 0x7f000001 + at, port);
		struct hostile h = grants(RAILS, places, RAILS);
		rails_go_well(&h);
		unsigned rounds = good_rounds();
		/* Each rail connects; on a busy machine this may take longer. */
		for (start = now = test_now_ms(); now < start + (count < RAILS - 1 ? (uint64_t)test_ms(SOON) : 400u);
		     now = test_now_ms()) {
			int fd = rails_called(door, 5);
			if (fd < 0)
				continue;
			count++;
			if ((fd = receive(fd, (enum manner)manner)) >= 0 && open < 64)
				held[open++] = fd;
		}
		int ms = (int)(now - begin);
		fprintf(stderr, "     manner %d: %d calls in %d ms\n", manner, count, ms);
		if (count < RAILS - 1 || count > (RAILS - 1) * (2 + ms / 100))
			test_wrong(__FILE__, __LINE__, "manner %d: %d calls in %d ms", manner, count, ms);
		goes_on_since(rounds, start);
		rails_go_well(&h);
		/* Ending the connection ends its attempts. */
		rails_end(&h);
		for (int i = 0; i < open; i++) {
			CHECK(raw_closed(held[i], SOON));
			close(held[i]);
		}
		for (int fd; (fd = rails_called(door, 100)) >= 0;)
			close(fd);
	}
	CHECK_EQ(siege->broke, 0);
	close(door);
}

TEST_WITHIN(60, calls_that_are_treated_badly)
{
	rails_siege_back("calls", calls, RAILS, 8192, MANY);
	/* Losses of accepted rails: some, and not more than attempts. */
	CHECK(siege->notes > 0 && siege->notes <= RAILS * 12);
}

/* Requests data over all rails and receives none of it. */
static void never_reads(void)
{
	unsigned char bytes[RAW_HEADER + 24];
	struct raw_frame f = raw_rma(RAW_READ, 0, siege->open.base, siege->open.key, SIEGE_LEN / 2);
	struct hostile h = rails_open();
	rails_go_well(&h);
	for (int i = 0; i < 256; i++)
		rails_say(&h, i % 2, bytes, raw_frame(bytes, &f));
	pass(500);
	rails_end(&h);
}

TEST_WITHIN(60, who_reads_nothing)
{
	rails_siege("reading nothing", never_reads, 28 * 1024, 60);
}

TEST_WITHIN(60, who_is_called_and_reads_nothing)
{
	rails_siege_back("reading nothing", never_reads, 2, 28 * 1024, 60);
}
