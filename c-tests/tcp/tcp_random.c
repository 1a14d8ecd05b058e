/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A client that sends random frames over its rails and streams, almost valid, so that they get far into the server. It loses
 * only its own connection. A good peer goes on, the server does not grow, and its other memory does not change.
 */
#include "fab.h"
#include "tcp_raw_rails.h"

#include <sys/socket.h>

enum { STREAMS = 13, STRIPED = 32, FOR_STREAMS = 2 };

/* A fixed seed: every run is the same. */
static uint64_t state = 0x9e3779b97f4a7c15u;

static uint64_t any(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static uint64_t odd(uint64_t good)
{
	static const uint64_t edges[] = {0, 1, 15, 16, 17, 255, 4095, 4096, SEGMENT, SEGMENT + 1, 65536, 262144, 1u << 24,
					 WINDOW, INT32_MAX, UINT32_MAX, (uint64_t)1 << 40, INT64_MAX, UINT64_MAX};
	switch (any() % 6) {
	case 0:
		return edges[any() % (sizeof edges / sizeof edges[0])];
	case 1:
		return good + any() % 9 - 4;
	case 2:
		return any();
	default:
		return good;
	}
}

/* Makes a frame that is valid, or nearly. */
static size_t a_frame(unsigned char *to, size_t most)
{
	struct raw_frame f;
	memset(&f, 0, sizeof f);
	f.kind = (uint8_t)(any() % 8 ? any() % RAW_KINDS : any());
	f.flags = (uint8_t)(any() % 2 ? RAW_PROMPT : any());
	f.paths = (uint8_t)(any() % 8 ? 3 : any());
	f.done = (uint32_t)(any() % 8 ? 0 : odd(1));
	f.len = any() % 3 ? any() % 200 : odd(any() % 20000);
	bool rma = f.kind == RAW_WRITE || f.kind == RAW_READ;
	f.pieces = (uint8_t)(rma && any() % 8 ? 1 : any() % 10);
	f.words = (int)(rma ? 3 * f.pieces : any() % 5);
	for (int i = 0; i < f.words; i++)
		f.word[i] = i % 3 == 0 ? odd(siege->open.base) : i % 3 == 1 ? odd(f.len) : odd(siege->open.key);
	size_t n = raw_frame(to, &f), body = f.len < most - n ? (size_t)f.len : most - n;
	memset(to + n, (int)any(), body);
	return any() % 16 ? n + body : any() % (n + body + 1);
}

static void drain(int fd)
{
	static unsigned char some[65536];
	while (fd >= 0 && recv(fd, some, sizeof some, MSG_DONTWAIT) > 0)
		;
}

static void rails_at_random(void)
{
	static unsigned char bytes[65536];
	for (int i = 0; i < test_count(150, 20); i++) {
		struct hostile h = rails_open(), other;
		bool two = i % 10 == 0;
		int fd;
		if (two)
			other = rails_connect();
		rails_go_well(&h);
		/* From here on the client's own counters are wrong. */
		for (uint64_t k = any() % 60; k > 0; k--) {
			size_t n = a_frame(bytes, SEGMENT);
			uint64_t from = h.next;
			if (any() % 3 == 0)
				from = any() % 3 ? from + any() % 2000 - 1000 : odd(from);
			int kind = any() % 20 ? DATA : (int)odd(DOWN);
			uint64_t taken = any() % 4 ? 0 : odd(h.taken);
			uint64_t len = kind == DOWN ? 0 : any() % 30 ? n : odd(n);
			if (kind == DOWN)
				from = any() % 3 | (any() % 3) << 32, n = 0;
			rails_segment(h.rail[any() % 2], kind, len, from, taken, bytes, n);
			if (from == h.next)
				h.next += n;
			if (any() % 8 == 0) {
				unsigned char which[5] = {(unsigned char)(any() % 4)};
				raw_put(which + 1, odd(2), 4);
				/* The address is closed if the connection was lost. */
				if ((fd = rails_call(h.door[any() % 2])) >= 0) {
					rails_introduce(fd, FOR_RAILS, two && any() % 2 ? other.token : h.token, which, any() % 8 ? 5 : any() % 5);
					raw_reset(fd);
				}
			}
			drain(h.rail[0]);
			drain(h.rail[1]);
		}
		rails_end(&h);
		if (two)
			rails_end(&other);
	}
}

TEST_WITHIN(120, rails)
{
	rails_siege("rails at random", rails_at_random, 28 * 1024, 60);
}

static void streams_at_random(void)
{
	static unsigned char bytes[65536 + 16];
	for (int i = 0; i < test_count(200, 30); i++) {
		struct raw_meeting m = {.version = 2, .streams = (uint32_t)(any() % 5), .data = "hostile", .len = 7};
		struct raw_frame ready = raw_bare(RAW_READY, 0, 0);
		int fd[5] = {raw_connect(siege->service), -1, -1, -1, -1}, count = 0;
		CHECK(fd[0] >= 0);
		if (raw_meet(fd[0], &m) == 0 && m.body_len >= 12)
			count = (int)raw_get(m.body + 8, 2) & 15;
		char door[16] = "";
		uint64_t token = 0;
		if (count) {
			snprintf(door, sizeof door, "%u", (unsigned)raw_get(m.body + m.body_len - 10, 2));
			token = raw_get(m.body + m.body_len - 8, 8);
		}
		raw_send(fd[0], bytes, raw_frame(bytes, &ready));
		int up = any() % 4 ? count : (int)(any() % (unsigned)(count + 1));
		for (int at = 1; at <= up; at++) {
			struct raw_meeting more = {.version = 2, .purpose = FOR_STREAMS, .token = any() % 16 ? token : odd(token),
						   .data = "hostile", .len = any() % 8 ? 0 : 7};
			fd[at] = raw_connect(door);
			if (fd[at] >= 0)
				raw_meet(fd[at], &more);
		}
		struct raw_frame up_word = raw_bare(STREAMS, 0, any() % 8 ? (uint64_t)count : odd((uint64_t)count));
		if (any() % 8)
			raw_send(fd[0], bytes, raw_frame(bytes, &up_word));
		uint64_t body = 0;
		for (uint64_t k = any() % 40; k > 0; k--) {
			int on = (int)(any() % (unsigned)(count + 1));
			if (on == 0) {
				if (any() % 2) {
					raw_send(fd[0], bytes, a_frame(bytes, 60000));
				} else {
					struct raw_frame f = raw_rma(RAW_WRITE, STRIPED | RAW_PROMPT, odd(siege->open.base), odd(siege->open.key),
								     any() % 4 ? SIEGE_LEN / 2 : odd(262144));
					raw_send(fd[0], bytes, raw_frame(bytes, &f));
					body++;
				}
				if (any() % 3 == 0) {
					raw_put(bytes, odd(4), 8);
					raw_put(bytes + 8, odd(0), 8);
					raw_send(fd[0], bytes, 16);
				}
			} else if (fd[on] >= 0) {
				raw_put(bytes, odd(body), 8);
				raw_put(bytes + 8, odd(any() % 4), 8);
				raw_send(fd[on], bytes, 16 + (any() % 4 ? 65536 : any() % 65536));
			}
			for (int at = 0; at < 5; at++)
				drain(fd[at]);
		}
		for (int at = 0; at < 5; at++)
			if (fd[at] >= 0)
				raw_reset(fd[at]);
	}
}

TEST_WITHIN(120, streams)
{
	skip_unless(path_known(PATH_SOCKET), "this is about what tcp says on the wire");
	setenv("GDRFAB_TCP_STREAMS", "4", 1);
	siege_run(streams_at_random, 5000);
	siege_was_bounded("streams at random", 28 * 1024, 60);
}
