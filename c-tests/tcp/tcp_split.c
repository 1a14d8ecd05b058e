/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A client that sends the bytes of a valid connection one at a time, and in two parts split at every position, beside a good
 * peer as in tcp_hostile.c.
 */
#include "fab.h"
#include "tcp_siege.h"

#define SOON 5000 /* ms: by then an answer is here */
#define LIMIT 5000

struct session {
	unsigned char bytes[2048];
	size_t len, hello_end, intro_end;
};

/* All bytes: HELLO, INTRO, READY, a WRITE, and a READ of the written bytes. */
static void session_new(struct session *s, uint32_t seed)
{
	unsigned char *at = s->bytes;
	const struct remote *to = &siege->open;
	raw_hello(at, seed);
	s->hello_end = RAW_HELLO;
	s->intro_end = RAW_HELLO + raw_intro(at + RAW_HELLO, 16, 65536, "split", 5);
	at += s->intro_end;
	memset(at, 0, RAW_HEADER);
	at += RAW_HEADER;
	struct raw_frame f = raw_rma(RAW_WRITE, RAW_PROMPT, to->base + 8, to->key, 96);
	at += raw_frame(at, &f);
	fill(at, 96, 0, seed);
	at += 96;
	f = raw_rma(RAW_READ, 0, to->base + 8, to->key, 96);
	at += raw_frame(at, &f);
	s->len = (size_t)(at - s->bytes);
}

/* Sends [from, to), split at `cut` if it lies inside; 0: a byte at a time. */
static void dribble(int fd, const struct session *s, size_t from, size_t to, size_t cut)
{
	while (from < to) {
		size_t end = cut == 0 ? from + 1 : from < cut && cut < to ? cut : to;
		CHECK(raw_send(fd, s->bytes + from, end - from));
		from = end;
		/* Long enough for the server to read the first part alone. */
		if (from < to && (cut != 0 || from % 16 == 0))
			test_sleep_ms(cut == 0 ? 1 : 2);
	}
}

static void split_at(size_t cut, uint32_t seed)
{
	struct session s;
	unsigned char answer[RAW_HELLO + RAW_INTRO + RAW_BODY_MAX], body[96];
	struct raw_frame back;
	int fd = raw_connect(siege->service);
	CHECK(fd >= 0);
	session_new(&s, seed);
	dribble(fd, &s, 0, s.hello_end, cut);
	CHECK_EQ(raw_recv(fd, answer, RAW_HELLO, SOON), 1);
	CHECK_EQ(raw_get(answer + 14, 2), 0);
	dribble(fd, &s, s.hello_end, s.intro_end, cut);
	CHECK_EQ(raw_recv(fd, answer, RAW_INTRO, SOON), 1);
	CHECK_EQ(raw_get(answer + 4, 2), 0);
	CHECK(raw_get(answer, 4) <= RAW_BODY_MAX);
	CHECK_EQ(raw_recv(fd, answer, (size_t)raw_get(answer, 4), SOON), 1);
	dribble(fd, &s, s.intro_end, s.len, cut);
	if (raw_next(fd, &back, body, sizeof body, SOON) != 1 || back.kind != RAW_ANSWERED || back.flags != 0 || back.len != 96)
		test_fail(__FILE__, __LINE__, "split at %zu: kind %d, flags %d, length %llu", cut, back.kind, back.flags,
			  (unsigned long long)back.len);
	check_filled(__FILE__, __LINE__, "what was written in pieces", body, sizeof body, 0, seed);
	raw_reset(fd);
}

static void splits(void)
{
	struct session s;
	session_new(&s, 1);
	size_t step = (size_t)test_count(1, 7);
	for (size_t cut = 0; cut < s.len; cut += step)
		split_at(cut, 1000 + (uint32_t)cut);
}

TEST_WITHIN(60, frames_split_at_every_byte)
{
	skip_unless(path_known(PATH_SOCKET), "this is about what tcp says on the wire");
	siege_run(splits, LIMIT);
	siege_was_bounded("split frames", 16384, 16);
}
