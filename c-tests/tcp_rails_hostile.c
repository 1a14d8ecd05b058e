/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A client with rails that does not keep to docs/tcp-wire.md: it lies about segments, knocks where it has no business, and
 * opens, breaks and starves its rails. What it loses is its own connection, with words for why; a good peer goes on, over
 * rails of its own, and every byte of the server's other memory stays as it is.
 */
#include "fab.h"
#include "raw_rails.h"

#include <sys/socket.h>

#define SOON 5000 /* ms: by then what broke the protocol is closed */

/* The server has ended it, and says why to whom it belongs. */
static void must_be_broken(struct hostile *h, const char *what, const char *why)
{
	uint64_t until = test_now_ms() + (uint64_t)test_ms(SOON);
	if (!raw_closed(h->rail[0], SOON))
		test_wrong(__FILE__, __LINE__, "%s: the connection is still there", what);
	while (__atomic_load_n(&siege->broke, __ATOMIC_ACQUIRE) == h->broke && test_now_ms() < until)
		test_sleep_ms(1);
	if (siege->broke != h->broke + 1 || !test_says(siege->words, why))
		test_wrong(__FILE__, __LINE__, "%s: %u ends, and the words are \"%s\"", what, siege->broke - h->broke, siege->words);
	rails_end(h);
}

/* --- lies about segments --- */

struct lie {
	const char *what;
	uint64_t kind, len, from; /* from: behind what was said, but for DOWN */
	const char *why;
};

static const struct lie lies[] = {
	{"a segment of one byte too many", DATA, SEGMENT + 1, 0, "longer than it may be"},
	{"a segment of 2 GiB", DATA, INT32_MAX, 0, "longer than it may be"},
	{"a segment of 4 GiB", DATA, UINT32_MAX, 0, "longer than it may be"},
	{"a segment behind all numbers", DATA, 1, UINT64_MAX, "longer than it may be"},
	{"a segment one byte behind the window", DATA, 1, WINDOW, "beyond what may be on their way"},
	{"a segment far ahead", DATA, 1, (uint64_t)1 << 62, "beyond what may be on their way"},
	{"a kind to come", 2, 0, 0, "a kind that does not exist"},
	{"bytes that are zero", 1 << 8, 1, 0, "a kind that does not exist"},
	{"more of them", 1u << 31, 1, 0, "a kind that does not exist"},
	{"the end of a rail beyond all rails", DOWN, 0, 8, "a kind that does not exist"},
	{"the end of a rail, with bytes", DOWN, 1, 0, "a kind that does not exist"},
};

static void tells_lies(void)
{
	static unsigned char some[1024];
	for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
		const struct lie *l = &lies[i];
		struct hostile h = rails_open();
		rails_go_well(&h);
		bool wraps = l->from == UINT64_MAX || l->kind == DOWN;
		rails_segment(h.rail[i % 2], (int)l->kind, l->len, wraps ? l->from : h.next + l->from, 0, some, l->len == 1);
		must_be_broken(&h, l->what, l->why);
	}
	/* Word that it took what nobody sent: of bytes, and of those that may be waiting. */
	for (int i = 0; i < 2; i++) {
		struct hostile h = rails_open();
		rails_go_well(&h);
		rails_segment(h.rail[1], DATA, 0, 0, i ? UINT64_MAX : h.taken + WINDOW, some, 0);
		must_be_broken(&h, "bytes taken that were never sent", "bytes which were never sent");
	}
	static const struct {
		uint64_t from, len;
	} cuts[] = {{150, 100}, {50, 100}, {100, 101}, {100, 99}, {101, 99}, {120, 10}, {0, 300}, {199, 2}};
	for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
		struct hostile h = rails_open();
		rails_go_well(&h);
		rails_segment(h.rail[1], DATA, 100, h.next + 100, 0, some, 100);
		rails_segment(h.rail[1], DATA, cuts[i].len, h.next + cuts[i].from, 0, some, (size_t)cuts[i].len);
		must_be_broken(&h, "a segment over another", "cut in another way");
	}
	/* Many of one byte, none of them the next. */
	struct hostile h = rails_open();
	rails_go_well(&h);
	for (uint64_t i = 0; i < 2049 && rails_segment(h.rail[1], DATA, 1, h.next + 1 + 2 * i, 0, some, 1); i++)
		;
	must_be_broken(&h, "more segments than may be on their way", "beyond what may be on their way");
	/* What is inside of segments is looked at as over one connection. */
	h = rails_open();
	rails_go_well(&h);
	memset(some, 0xee, sizeof some);
	rails_say(&h, 1, some, sizeof some);
	must_be_broken(&h, "a frame that makes no sense", "");
}

TEST_WITHIN(60, lies_about_segments)
{
	rails_siege("lies", tells_lies, 8192, 60);
}

/* --- what may be: again, late, empty --- */

static void repeats(void)
{
	static unsigned char bytes[WRITES], other[WRITES];
	struct hostile h = rails_open();
	rails_write_frame(bytes, RAW_PROMPT);
	memset(other, 0xee, sizeof other);
	for (int i = 0; i < 8; i++) {
		/* Twice over either, before and behind the rest of it; the first to come counts. */
		for (int rail = 0; rail < 2; rail++)
			rails_segment(h.rail[rail], DATA, WRITES - 100, h.next + 100, 0, bytes + 100, WRITES - 100);
		rails_segment(h.rail[i % 2], DATA, 100, h.next, 0, bytes, 100);
		rails_await_done(&h, ++h.writes);
		h.next += WRITES;
		for (int rail = 0; rail < 2; rail++)
			rails_segment(h.rail[rail], DATA, WRITES, h.next - WRITES, 0, other, WRITES);
		rails_segment(h.rail[1], DATA, 16, 0, 0, other, 16);
		/* Nothing, from anywhere; what was taken is told late, or never. */
		rails_segment(h.rail[0], DATA, 0, UINT64_MAX, 0, other, 0);
		rails_segment(h.rail[1], DATA, 0, WINDOW * 2, 1, other, 0);
		/* The end of rails as they are not. */
		rails_segment(h.rail[0], DOWN, 0, 1 | (uint64_t)7 << 32, 0, other, 0);
		rails_segment(h.rail[0], DOWN, 0, 7 | (uint64_t)1 << 32, 0, other, 0);
		rails_go_well(&h);
	}
	/* A rail that is said to be down is, and the other goes on. */
	rails_segment(h.rail[0], DOWN, 0, 1 | (uint64_t)2 << 32, 0, other, 0);
	CHECK(raw_closed(h.rail[1], SOON));
	close(h.rail[1]);
	h.rail[1] = -1;
	rails_go_well(&h);
	/* And the last one is the end. */
	rails_segment(h.rail[0], DOWN, 0, 0 | (uint64_t)1 << 32, 0, other, 0);
	CHECK(raw_closed(h.rail[0], SOON));
	rails_end(&h);
}

TEST_WITHIN(60, segments_again_and_empty_ones)
{
	rails_siege("repeating", repeats, 8192, 60);
}

/* Nothing new, as fast as it goes: the server goes round all the same. */
static void floods_with(bool empty)
{
	static unsigned char some[SEGMENT];
	struct hostile h = rails_open();
	rails_go_well(&h);
	unsigned until = __atomic_load_n(&siege->rounds, __ATOMIC_ACQUIRE) + 10;
	uint64_t limit = test_now_ms() + (uint64_t)test_ms(20000);
	int rail = 0;
	while (__atomic_load_n(&siege->rounds, __ATOMIC_ACQUIRE) < until && test_now_ms() < limit) {
		static unsigned char heads[512][HEAD];
		bool good = empty ? raw_send(h.rail[rail], heads, sizeof heads) : rails_segment(h.rail[rail], DATA, 1000, 16, 0, some, 1000);
		CHECK(good);
		rail = !rail;
		/* It is told each time what was taken; what nobody reads must not keep it. */
		while (recv(h.rail[rail], some, sizeof some, MSG_DONTWAIT) > 0)
			;
	}
	if (siege->rounds < until)
		test_wrong(__FILE__, __LINE__, "the good peer has stood still");
	rails_end(&h);
}

static void floods(void)
{
	floods_with(true);
	floods_with(false);
}

TEST_WITHIN(60, floods_of_nothing_new)
{
	rails_siege("floods", floods, 8192, 60);
}

/* --- at the doors --- */

static void knocks(void)
{
	struct hostile h = rails_connect(), other = rails_connect();
	unsigned char which[5] = {1, 2};
	int fd;
	/* One bit is not enough, nothing is nothing, and another connection's is another's. */
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
	/* The doors are for rails, and the other one is not. */
	for (int purpose = 0; purpose < 3; purpose++) {
		fd = rails_call(h.door[purpose % 2]);
		CHECK_EQ(rails_introduce(fd, purpose, h.token, which, sizeof which), RAW_WRONG_DOOR);
		raw_reset(fd);
	}
	fd = raw_connect(siege->service);
	CHECK_EQ(rails_introduce(fd, FOR_RAILS, h.token, which, sizeof which), RAW_WRONG_DOOR);
	raw_reset(fd);
	/* Who does not say which it is, or says one of which there was no word. */
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
	/* The first one is there; in the place of one that is there comes only a later one. */
	CHECK_EQ(rails_join(&h, 0, h.token, 0, 0, &fd), RAW_REJECTED);
	raw_reset(fd);
	CHECK_EQ(rails_join(&h, 0, h.token, 0, 1, &fd), RAW_REJECTED);
	raw_reset(fd);
	CHECK_EQ(rails_join(&h, 1, h.token, 1, 0, &fd), RAW_REJECTED);
	raw_reset(fd);
	CHECK_EQ(rails_join(&h, 1, h.token, 1, 7, &h.rail[1]), 0);
	test_sleep_ms(100);
	/* The same words once more, as whoever has overheard them would say them. */
	for (int i = 0; i < 3; i++) {
		CHECK_EQ(rails_join(&h, 1, h.token, 1, 7, &fd), RAW_REJECTED);
		raw_reset(fd);
	}
	rails_go_well(&h);
	/* One too many introductions, of rails that cannot be. */
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
	/* As many as there are addresses, and no streams beside them. */
	struct raw_meeting m = {.version = 5, .rails = 8, .streams = 4};
	fd = raw_connect(siege->service);
	CHECK_EQ(raw_meet(fd, &m), 0);
	CHECK_EQ(raw_get(m.body + 8, 2), 0);
	CHECK_EQ(raw_get(m.body + 10, 2), 2);
	raw_reset(fd);
	/* They are gone with the connection. */
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
	rails_siege("silent connections", silence, 8192, 16 + 40);
}

/* Opens and closes a rail as fast as it is let in. */
static void flaps(void)
{
	struct hostile h = rails_connect();
	uint64_t first = 0, last = 0;
	unsigned in = 0;
	for (uint32_t i = 2; i < 2 + (uint32_t)test_count(2000, 500); i++) {
		int fd, status = rails_join(&h, 1, h.token, 1, i, &fd);
		if (status == 0) {
			last = test_now_ms();
			first = in++ == 0 ? last : first;
		} else {
			CHECK_EQ(status, RAW_REJECTED);
		}
		raw_reset(fd);
	}
	CHECK(in > 0);
	/* None within 50 ms of the one before, however fast this machine is. */
	if (last - first + 60 < (in - 1) * 50ull)
		test_wrong(__FILE__, __LINE__, "%u rails were let in within %u ms", in, (unsigned)(last - first));
	rails_go_well(&h);
	/* The same with one that stays open: it is thrown out for a later one. */
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

/* --- rails that starve --- */

/* As many writes as the window holds, of which the first segment comes by half. */
static void withholds(bool breaks)
{
	size_t count = WINDOW / WRITES, all = count * WRITES;
	unsigned char *bytes = (unsigned char *)malloc(all);
	struct hostile h = rails_open();
	for (size_t i = 0; i < count; i++)
		rails_write_frame(bytes + i * WRITES, i + 1 == count ? RAW_PROMPT : 0);
	/* Half of the first one. */
	rails_segment(h.rail[0], DATA, SEGMENT, h.next, 0, bytes, SEGMENT / 2);
	for (size_t at = SEGMENT; at < all; at += SEGMENT) {
		size_t n = all - at < SEGMENT ? all - at : SEGMENT;
		CHECK(rails_segment(h.rail[1], DATA, n, h.next + at, 0, bytes + at, n));
	}
	/* The good peer goes on. */
	unsigned until = __atomic_load_n(&siege->rounds, __ATOMIC_ACQUIRE) + 10;
	uint64_t limit = test_now_ms() + (uint64_t)test_ms(20000);
	while (__atomic_load_n(&siege->rounds, __ATOMIC_ACQUIRE) < until && test_now_ms() < limit)
		test_sleep_ms(5);
	CHECK(siege->rounds >= until);
	if (breaks) {
		raw_reset(h.rail[0]);
		h.rail[0] = -1;
		rails_segment(h.rail[1], DATA, SEGMENT, h.next, 0, bytes, SEGMENT);
	} else {
		CHECK(raw_send(h.rail[0], bytes + SEGMENT / 2, SEGMENT / 2));
	}
	h.next += all;
	rails_await_done(&h, h.writes += (unsigned)count);
	rails_go_well(&h);
	free(bytes);
	rails_end(&h);
}

static void starves(void)
{
	withholds(false);
	withholds(true);
	/* Never to come: one byte more than the window. */
	struct hostile h = rails_open();
	rails_go_well(&h);
	static unsigned char some[SEGMENT];
	uint64_t at = h.next + 1;
	while (rails_segment(h.rail[1], DATA, SEGMENT, at, 0, some, SEGMENT))
		at += SEGMENT;
	must_be_broken(&h, "more bytes than may be on their way", "beyond what may be on their way");
	/* Asks, and never says what it took: what waits for that is the window, and no more. */
	h = rails_open();
	unsigned char bytes[RAW_HEADER + 24];
	struct raw_frame f = raw_rma(RAW_READ, 0, siege->open.base, siege->open.key, SIEGE_LEN / 2);
	for (int i = 0; i < 64; i++)
		rails_say(&h, i % 2, bytes, raw_frame(bytes, &f));
	uint64_t until = test_now_ms() + 500;
	while (test_now_ms() < until)
		for (int i = 0; i < 2; i++)
			while (recv(h.rail[i], some, sizeof some, MSG_DONTWAIT) > 0)
				;
	CHECK(!raw_closed(h.rail[0], 100));
	rails_end(&h);
}

TEST_WITHIN(90, rails_that_starve)
{
	/* The window of each direction, in buffers that may be a third larger, and what is kept for the next ones. */
	rails_siege("starving", starves, 28 * 1024, 60);
}
