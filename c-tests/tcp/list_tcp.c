/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Lists on the wire, sent by a client that was written from docs/tcp-wire.md: valid lists move, a refused list names its block
 * and moves nothing, and a malformed list ends its own connection only.
 */
#include "fab.h"
#include "tcp_siege.h"

#define SOON 5000 /* ms */
#define LIMIT 5000
#define LIST 64
#define BLOCKS_MAX 4096

struct block {
	uint64_t addr, len, key;
};

static void only_tcp(void)
{
	skip_unless(path_known(PATH_SOCKET), "this is about what tcp says on the wire");
}

static int greeted(int version)
{
	struct raw_terms terms;
	int fd = raw_connect(siege->service);
	CHECK(fd >= 0 && raw_greet_as(fd, version, &terms));
	return fd;
}

/* A frame with this many of the blocks behind its count. */
static void says(int fd, int kind, int flags, uint64_t len, uint64_t count, const struct block *blocks, size_t given)
{
	static unsigned char bytes[RAW_HEADER + 8 + BLOCKS_MAX * 24 + 24];
	memset(bytes, 0, RAW_HEADER);
	bytes[0] = (unsigned char)kind, bytes[1] = (unsigned char)(flags | LIST), bytes[3] = 3;
	raw_put(bytes + 8, len, 8);
	raw_put(bytes + RAW_HEADER, count, 8);
	for (size_t i = 0; i < given; i++) {
		unsigned char *at = bytes + RAW_HEADER + 8 + 24 * i;
		raw_put(at, blocks[i].addr, 8), raw_put(at + 8, blocks[i].len, 8), raw_put(at + 16, blocks[i].key, 8);
	}
	raw_send(fd, bytes, RAW_HEADER + 8 + 24 * given);
}

static void ends(const char *what, int version, int kind, int flags, uint64_t len, uint64_t count, const struct block *blocks,
		 size_t given)
{
	int fd = greeted(version);
	says(fd, kind, flags, len, count, blocks, given);
	if (!raw_closed(fd, SOON))
		test_wrong(__FILE__, __LINE__, "%s: the connection is still there", what);
	raw_reset(fd);
}

static void nonsense(void)
{
	static struct block many[BLOCKS_MAX + 1];
	const struct remote *to = &siege->open;
	struct block one = {to->base, 8, to->key}, two[2] = {one, one};
	for (size_t i = 0; i <= BLOCKS_MAX; i++)
		many[i] = one;
	ends("no blocks", 4, RAW_WRITE, 0, 8, 0, &one, 1);
	ends("too many blocks", 4, RAW_READ, 0, 8 * (BLOCKS_MAX + 1), BLOCKS_MAX + 1, many, BLOCKS_MAX + 1);
	ends("blocks beyond any number", 4, RAW_WRITE, RAW_PARTS, 1 << 20, UINT64_MAX, many, 64);
	ends("a list of no bytes", 4, RAW_READ, 0, 0, 1, &one, 1);
	ends("more bytes than its blocks have", 4, RAW_WRITE, 0, 9, 1, &one, 1);
	ends("fewer bytes than its blocks have", 4, RAW_READ, 0, 8, 2, two, 2);
	ends("a list of a message", 4, RAW_SEND, 0, 8, 1, &one, 1);
	ends("a list in version 3", 3, RAW_WRITE, 0, 8, 1, &one, 1);
	two[0].len = UINT64_MAX - 7, two[1].len = 16;
	ends("lengths whose sum overflows", 4, RAW_WRITE, 0, 8, 2, two, 2);
	/* Pieces in the header, besides the list. */
	int fd = greeted(4);
	unsigned char head[RAW_HEADER] = {RAW_WRITE, LIST, 1, 3};
	raw_put(head + 8, 8, 8);
	raw_send(fd, head, sizeof head);
	if (!raw_closed(fd, SOON))
		test_wrong(__FILE__, __LINE__, "a list and pieces: the connection is still there");
	raw_reset(fd);
	/* A list that never arrives whole costs the server no more memory than its bytes. */
	for (int i = 0; i < 64; i++) {
		fd = greeted(4);
		says(fd, RAW_WRITE, RAW_PARTS, 1ull << 40, BLOCKS_MAX, many, 1);
		raw_reset(fd);
	}
}

TEST_WITHIN(100, lists_that_make_no_sense)
{
	only_tcp();
	siege_run(nonsense, LIMIT);
	siege_was_bounded("senseless lists", 16384, 16);
}

/* READs of lists whose answers the client does not receive: four may be unanswered. */
static void takes_no_answers(void)
{
	const struct remote *from = &siege->readable;
	struct block halves[2] = {{from->base, SIEGE_LEN / 2, from->key}, {from->base, SIEGE_LEN / 2, from->key}};
	int fd = greeted(4);
	for (int i = 0; i < 200; i++)
		says(fd, RAW_READ, 0, SIEGE_LEN, 2, halves, 2);
	if (!raw_closed(fd, SOON))
		test_wrong(__FILE__, __LINE__, "200 lists to read: the connection is still there");
	raw_reset(fd);
}

TEST_WITHIN(100, answers_to_lists_are_bounded)
{
	only_tcp();
	siege_run(takes_no_answers, LIMIT);
	siege_was_bounded("lists to read", 16384, 16);
}

static void reads_back(int fd, const struct block *blocks, size_t count, const unsigned char *want, size_t len)
{
	static unsigned char back[RAW_WHOLE_MAX];
	struct raw_frame f;
	says(fd, RAW_READ, 0, len, count, blocks, count);
	CHECK_EQ(raw_next(fd, &f, back, sizeof back, SOON), 1);
	CHECK(f.kind == RAW_ANSWERED && !(f.flags & RAW_FAILED) && f.len == len);
	for (size_t i = 0; i < len; i++)
		if (back[i] != want[i])
			test_fail(__FILE__, __LINE__, "byte %zu of the blocks is %u, not %u", i, back[i], want[i]);
}

static void by_the_document(void)
{
	static unsigned char bytes[3000], other[3000];
	static unsigned char body[16];
	const struct remote *to = &siege->open;
	struct raw_frame f;
	int fd = greeted(4);
	fill(bytes, sizeof bytes, 0, 5);
	fill(other, sizeof other, 0, 6);
	/* Blocks out of order, of one byte, adjoining, empty, and overlapping in a read. */
	struct block blocks[] = {{to->base + 5000, 1000, to->key}, {to->base + 100, 1, to->key}, {to->base + 101, 999, to->key},
				 {to->base, 0, to->key}, {to->base + 20000, 1000, to->key}};
	for (int round = 0; round < 3; round++) {
		says(fd, RAW_WRITE, RAW_PROMPT, sizeof bytes, 5, blocks, 5);
		raw_send(fd, bytes, sizeof bytes);
		reads_back(fd, blocks, 5, bytes, sizeof bytes);
	}
	/* A refused list moves nothing, and its answer names the block and the number of valid bytes; other operations go on. */
	static const struct {
		const char *what;
		uint64_t status, good;
	} wrong[] = {{"out of bounds by one byte", 2, 999}, {"a foreign key", 1, 0}, {"wholly outside", 2, 0}};
	for (size_t i = 0; i < 3; i++) {
		struct block bad[5];
		memcpy(bad, blocks, sizeof bad);
		bad[4].addr = i == 0 ? to->base + SIEGE_LEN - 999 : i == 2 ? to->base + SIEGE_LEN : bad[4].addr;
		bad[4].key = i == 1 ? wrong_key(to->key) : to->key;
		uint64_t want = wrong[i].status | 5 << 16 | wrong[i].good << 32;
		says(fd, RAW_WRITE, RAW_PROMPT, sizeof other, 5, bad, 5);
		raw_send(fd, other, sizeof other);
		CHECK_EQ(raw_next(fd, &f, body, sizeof body, SOON), 1);
		if (f.kind != RAW_REPORT || f.word[1] != want)
			test_fail(__FILE__, __LINE__, "%s: kind %d, status %#llx", wrong[i].what, f.kind, (unsigned long long)f.word[1]);
		says(fd, RAW_READ, 0, sizeof other, 5, bad, 5);
		CHECK_EQ(raw_next(fd, &f, body, sizeof body, SOON), 1);
		if (f.kind != RAW_ANSWERED || !(f.flags & RAW_FAILED) || f.word[0] != want)
			test_fail(__FILE__, __LINE__, "%s, read: kind %d, status %#llx", wrong[i].what, f.kind,
				  (unsigned long long)f.word[0]);
		reads_back(fd, blocks, 5, bytes, sizeof bytes);
	}
	raw_reset(fd);
}

TEST_WITHIN(60, lists_by_the_document)
{
	only_tcp();
	siege_run(by_the_document, LIMIT);
}
