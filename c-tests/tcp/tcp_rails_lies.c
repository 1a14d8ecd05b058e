/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A peer with rails that sends wrong segments, repeats segments, and leaves rails without data: as a client of the library's
 * server, and as a server that the library connects to. It loses only its own connection, with a reason; a good peer goes on,
 * over rails of its own, and no other byte of the server's memory changes.
 */
#include "fab.h"
#include "tcp_raw_rails.h"

#include <sys/socket.h>

#define SOON 5000 /* ms: by then what broke the protocol is closed */

/* --- wrong segments --- */

struct lie {
	const char *what;
	uint64_t kind, len, from; /* from: relative to the bytes sent so far, except for DOWN */
	const char *why;
};

static const struct lie lies[] = {
	{"a segment of one byte too many", DATA, SEGMENT + 1, 0, "exceeds its maximum length"},
	{"a segment of 2 GiB", DATA, INT32_MAX, 0, "exceeds its maximum length"},
	{"a segment of 4 GiB", DATA, UINT32_MAX, 0, "exceeds its maximum length"},
	{"a segment behind all numbers", DATA, 1, UINT64_MAX, "exceeds its maximum length"},
	{"a segment one byte behind the window", DATA, 1, WINDOW, "beyond the reorder window"},
	{"a segment far ahead", DATA, 1, (uint64_t)1 << 62, "beyond the reorder window"},
	{"a kind to come", 2, 0, 0, "an unknown kind"},
	{"bytes that are zero", 1 << 8, 1, 0, "an unknown kind"},
	{"more of them", 1u << 31, 1, 0, "an unknown kind"},
	{"the end of a rail beyond all rails", DOWN, 0, 8, "an unknown kind"},
	{"the end of a rail, with bytes", DOWN, 1, 0, "an unknown kind"},
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
		rails_broken(&h, l->what, l->why);
	}
	/* Acknowledges bytes that were not sent, alone and beyond the window. */
	for (int i = 0; i < 2; i++) {
		struct hostile h = rails_open();
		rails_go_well(&h);
		rails_segment(h.rail[1], DATA, 0, 0, i ? UINT64_MAX : h.taken + WINDOW, some, 0);
		rails_broken(&h, "bytes taken that were never sent", "bytes that this side never sent");
	}
	static const struct {
		uint64_t from, len;
	} cuts[] = {{150, 100}, {50, 100}, {100, 101}, {100, 99}, {101, 99}, {120, 10}, {0, 300}, {199, 2}};
	for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
		struct hostile h = rails_open();
		rails_go_well(&h);
		rails_segment(h.rail[1], DATA, 100, h.next + 100, 0, some, 100);
		rails_segment(h.rail[1], DATA, cuts[i].len, h.next + cuts[i].from, 0, some, (size_t)cuts[i].len);
		rails_broken(&h, "a segment over another", "overlaps an earlier one");
	}
	/* Many segments of one byte, none of which is the next in order. */
	struct hostile h = rails_open();
	rails_go_well(&h);
	for (uint64_t i = 0; i < 2049 && rails_segment(h.rail[1], DATA, 1, h.next + 1 + 2 * i, 0, some, 1); i++)
		;
	rails_broken(&h, "more segments than may be on their way", "beyond the reorder window");
	/* Frames inside of segments are checked as over a connection without rails. */
	h = rails_open();
	rails_go_well(&h);
	memset(some, 0xee, sizeof some);
	rails_say(&h, 1, some, sizeof some);
	rails_broken(&h, "a frame that makes no sense", "");
}

TEST_WITHIN(60, lies_about_segments)
{
	rails_siege("lies", tells_lies, 8192, 60);
}

TEST_WITHIN(60, lies_about_segments_of_who_is_called)
{
	rails_siege_back("lies", tells_lies, 2, 8192, 60);
}

/* --- permitted: repeated, late and empty segments --- */

static void repeats(void)
{
	static unsigned char bytes[WRITES], other[WRITES];
	struct hostile h = rails_open();
	rails_write_frame(bytes, RAW_PROMPT);
	memset(other, 0xee, sizeof other);
	for (int i = 0; i < 8; i++) {
		/* Twice over both rails, before and behind the rest; the first to arrive counts. */
		for (int rail = 0; rail < 2; rail++)
			rails_segment(h.rail[rail], DATA, WRITES - 100, h.next + 100, 0, bytes + 100, WRITES - 100);
		rails_segment(h.rail[i % 2], DATA, 100, h.next, 0, bytes, 100);
		rails_await_done(&h, ++h.writes);
		h.next += WRITES;
		for (int rail = 0; rail < 2; rail++)
			rails_segment(h.rail[rail], DATA, WRITES, h.next - WRITES, 0, other, WRITES);
		rails_segment(h.rail[1], DATA, 16, 0, 0, other, 16);
		/* Empty segments with any position; acknowledgements come late or never. */
		rails_segment(h.rail[0], DATA, 0, UINT64_MAX, 0, other, 0);
		rails_segment(h.rail[1], DATA, 0, WINDOW * 2, 1, other, 0);
		/* DOWN for rails that do not exist or are not connected. */
		rails_segment(h.rail[0], DOWN, 0, 1 | (uint64_t)7 << 32, 0, other, 0);
		rails_segment(h.rail[0], DOWN, 0, 7 | (uint64_t)1 << 32, 0, other, 0);
		rails_go_well(&h);
	}
	/* DOWN ends its rail, and the other goes on. */
	rails_segment(h.rail[0], DOWN, 0, 1 | (uint64_t)2 << 32, 0, other, 0);
	CHECK(raw_closed(h.rail[1], SOON));
	close(h.rail[1]);
	h.rail[1] = -1;
	rails_go_well(&h);
	/* DOWN for the last rail ends the connection. */
	rails_segment(h.rail[0], DOWN, 0, 0 | (uint64_t)1 << 32, 0, other, 0);
	CHECK(raw_closed(h.rail[0], SOON));
	rails_end(&h);
}

TEST_WITHIN(60, segments_again_and_empty_ones)
{
	rails_siege("repeating", repeats, 8192, 60);
}

TEST_WITHIN(60, segments_again_and_empty_ones_of_who_is_called)
{
	rails_siege_back("repeating", repeats, 2, 8192, 60);
}

/* Sends empty segments as fast as possible: the server serves other connections all the same. */
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
		/* The server acknowledges each; acknowledgements that are not read must not block it. */
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

TEST_WITHIN(60, floods_of_nothing_new_of_who_is_called)
{
	rails_siege_back("floods", floods, 2, 8192, 60);
}

/* --- rails without data --- */

/* Sends as many writes as the window holds, but only half of the first segment. */
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
	/* One byte more than the window, with a gap that is never filled. */
	struct hostile h = rails_open();
	rails_go_well(&h);
	static unsigned char some[SEGMENT];
	uint64_t at = h.next + 1;
	while (rails_segment(h.rail[1], DATA, SEGMENT, at, 0, some, SEGMENT))
		at += SEGMENT;
	rails_broken(&h, "more bytes than may be on their way", "beyond the reorder window");
	/* Requests data and never acknowledges it: the server keeps at most the window. */
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
	/* The window of each direction, in buffers that may be a third larger, and buffers kept for later segments. */
	rails_siege("starving", starves, 28 * 1024, 60);
}

TEST_WITHIN(90, rails_that_starve_of_who_is_called)
{
	rails_siege_back("starving", starves, 2, 28 * 1024, 60);
}
