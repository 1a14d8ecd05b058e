/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A client with rails that does not keep to docs/tcp-wire.md: it lies about segments, knocks where it has no business, and
 * opens, breaks and starves its rails. What it loses is its own connection, with words for why; a good peer goes on, over
 * rails of its own, and every byte of the server's other memory stays as it is.
 */
#include "fab.h"
#include "siege.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#define SOON 5000 /* ms: by then what broke the protocol is closed */
#define LIMIT 5000
#define HEAD 24
#define SEGMENT 61440u
#define WINDOW ((uint64_t)8 << 20)
#define RAILS "127.0.0.1,127.0.0.2"
#define BODY 16384u /* of a WRITE here */
#define WRITES (RAW_HEADER + 24 + BODY)
enum { DATA, DOWN };
enum { FOR_RAILS = 3, PLACE = 18 };

struct hostile {
	int rail[2]; /* -1: not up */
	unsigned char door[2][PLACE];
	uint64_t token;
	int doors; /* as granted */
	uint64_t next;   /* byte of this side's stream */
	uint64_t taken;  /* of the other */
	unsigned writes, broke;
};

/* --- coming in --- */

static int calls(const unsigned char *place)
{
	static const unsigned char mapped[12] = {[10] = 255, [11] = 255};
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((in_port_t)raw_get(place + 16, 2))};
	int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK_EQ(memcmp(place, mapped, sizeof mapped), 0);
	memcpy(&to.sin_addr, place + 12, 4);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) != 0) {
		close(fd);
		return -1;
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	return fd;
}

static int introduces(int fd, int purpose, uint64_t token, const void *data, size_t len)
{
	struct raw_meeting m = {.version = 5, .purpose = purpose, .token = token, .data = data, .len = len};
	return raw_meet(fd, &m);
}

/* A rail of this number, as the so-manieth; what the door says of it. */
static int joins(const struct hostile *h, int door, uint64_t token, int number, uint32_t generation, int *fd)
{
	unsigned char which[5] = {(unsigned char)number};
	raw_put(which + 1, generation, 4);
	*fd = calls(h->door[door]);
	CHECK(*fd >= 0);
	return introduces(*fd, FOR_RAILS, token, which, sizeof which);
}

static bool segment(int fd, int kind, uint64_t len, uint64_t from, uint64_t taken, const void *bytes, size_t n)
{
	unsigned char whole[HEAD + SEGMENT];
	memset(whole, 0, HEAD);
	raw_put(whole, (uint64_t)kind, 4);
	raw_put(whole + 4, len, 4);
	raw_put(whole + 8, from, 8);
	raw_put(whole + 16, taken, 8);
	memcpy(whole + HEAD, bytes, n);
	return raw_send(fd, whole, HEAD + n);
}

/* The next bytes of the stream over this rail. */
static void says(struct hostile *h, int rail, const void *bytes, size_t n)
{
	segment(h->rail[rail], DATA, n, h->next, h->taken, bytes, n);
	h->next += n;
}

static struct hostile connects(void)
{
	unsigned char ready[RAW_HEADER] = {RAW_READY};
	struct raw_meeting m = {.version = 5, .rails = 2, .data = "hostile", .len = 7};
	struct hostile h;
	memset(&h, 0, sizeof h);
	h.rail[1] = -1;
	h.rail[0] = raw_connect(siege->service);
	h.broke = __atomic_load_n(&siege->broke, __ATOMIC_ACQUIRE);
	CHECK(h.rail[0] >= 0);
	CHECK_EQ(raw_meet(h.rail[0], &m), 0);
	CHECK_EQ(raw_get(m.body + 8, 2), 0);
	h.doors = (int)raw_get(m.body + 10, 2);
	CHECK_EQ(h.doors, 2);
	for (int i = 0; i < 2; i++)
		memcpy(h.door[i], m.body + m.body_len - PLACE * (2 - i), PLACE);
	h.token = raw_get(m.body + m.body_len - 2 * PLACE - 8, 8);
	CHECK(h.token != 0);
	says(&h, 0, ready, sizeof ready);
	return h;
}

static struct hostile opens(void)
{
	struct hostile h = connects();
	CHECK_EQ(joins(&h, 1, h.token, 1, 2, &h.rail[1]), 0);
	return h;
}

static void ends(struct hostile *h)
{
	for (int i = 0; i < 2; i++)
		if (h->rail[i] >= 0)
			raw_reset(h->rail[i]);
}

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
	ends(h);
}

/* --- going well --- */

static void write_frame(unsigned char *to, int flags)
{
	struct raw_frame f = raw_rma(RAW_WRITE, flags, siege->open.base, siege->open.key, BODY);
	memset(to + raw_frame(to, &f), 0x5a, BODY);
}

/* Reads segments until the server has carried out this many writes, each of which it counts once. */
static void await_done(struct hostile *h, unsigned count)
{
	unsigned char head[HEAD], bytes[SEGMENT];
	for (uint32_t done = 0; done != count;) {
		struct pollfd p[2] = {{h->rail[0], POLLIN, 0}, {h->rail[1], POLLIN, 0}};
		if (poll(p, 2, test_ms(SOON)) <= 0)
			test_fail(__FILE__, __LINE__, "%u writes were carried out, not %u", done, count);
		int fd = p[0].revents ? p[0].fd : p[1].fd;
		CHECK_EQ(raw_recv(fd, head, HEAD, SOON), 1);
		uint64_t len = raw_get(head + 4, 4), from = raw_get(head + 8, 8);
		CHECK(raw_get(head, 4) <= DOWN && len <= SEGMENT);
		if (len == 0)
			continue;
		CHECK_EQ(raw_recv(fd, bytes, (size_t)len, SOON), 1);
		h->taken = from + len > h->taken ? from + len : h->taken;
		/* The last of it is a NOTHING. */
		done = (uint32_t)raw_get(bytes + len - RAW_HEADER + 4, 4);
		CHECK(done <= count);
	}
}

static void goes_well(struct hostile *h)
{
	static unsigned char bytes[WRITES];
	for (int rail = 0; rail < 2; rail++) {
		if (h->rail[rail] < 0)
			continue;
		write_frame(bytes, RAW_PROMPT);
		says(h, rail, bytes, WRITES / 2);
		says(h, rail, bytes + WRITES / 2, WRITES - WRITES / 2);
		await_done(h, ++h->writes);
	}
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
		struct hostile h = opens();
		goes_well(&h);
		bool wraps = l->from == UINT64_MAX || l->kind == DOWN;
		segment(h.rail[i % 2], (int)l->kind, l->len, wraps ? l->from : h.next + l->from, 0, some, l->len == 1);
		must_be_broken(&h, l->what, l->why);
	}
	/* Word that it took what nobody sent: of bytes, and of those that may be waiting. */
	for (int i = 0; i < 2; i++) {
		struct hostile h = opens();
		goes_well(&h);
		segment(h.rail[1], DATA, 0, 0, i ? UINT64_MAX : h.taken + WINDOW, some, 0);
		must_be_broken(&h, "bytes taken that were never sent", "bytes which were never sent");
	}
	static const struct {
		uint64_t from, len;
	} cuts[] = {{150, 100}, {50, 100}, {100, 101}, {100, 99}, {101, 99}, {120, 10}, {0, 300}, {199, 2}};
	for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
		struct hostile h = opens();
		goes_well(&h);
		segment(h.rail[1], DATA, 100, h.next + 100, 0, some, 100);
		segment(h.rail[1], DATA, cuts[i].len, h.next + cuts[i].from, 0, some, (size_t)cuts[i].len);
		must_be_broken(&h, "a segment over another", "cut in another way");
	}
	/* Many of one byte, none of them the next. */
	struct hostile h = opens();
	goes_well(&h);
	for (uint64_t i = 0; i < 2049 && segment(h.rail[1], DATA, 1, h.next + 1 + 2 * i, 0, some, 1); i++)
		;
	must_be_broken(&h, "more segments than may be on their way", "beyond what may be on their way");
	/* What is inside of segments is looked at as over one connection. */
	h = opens();
	goes_well(&h);
	memset(some, 0xee, sizeof some);
	says(&h, 1, some, sizeof some);
	must_be_broken(&h, "a frame that makes no sense", "");
}

static void besieged(const char *what, void (*attack)(void), size_t kib, int fds)
{
	const char *node = node_name();
	skip_unless(path_known(PATH_SOCKET), "this is about what tcp says on the wire");
	if (!node || strcmp(node, "127.0.0.1") != 0)
		test_skip("its rails are the loopback's addresses of IPv4");
	setenv("GDRFAB_TCP_RAILS", RAILS, 1);
	siege_run(attack, LIMIT);
	siege_was_bounded(what, kib, fds);
}

TEST_WITHIN(60, lies_about_segments)
{
	besieged("lies", tells_lies, 8192, 60);
}

/* --- what may be: again, late, empty --- */

static void repeats(void)
{
	static unsigned char bytes[WRITES], other[WRITES];
	struct hostile h = opens();
	write_frame(bytes, RAW_PROMPT);
	memset(other, 0xee, sizeof other);
	for (int i = 0; i < 8; i++) {
		/* Twice over either, before and behind the rest of it; the first to come counts. */
		for (int rail = 0; rail < 2; rail++)
			segment(h.rail[rail], DATA, WRITES - 100, h.next + 100, 0, bytes + 100, WRITES - 100);
		segment(h.rail[i % 2], DATA, 100, h.next, 0, bytes, 100);
		await_done(&h, ++h.writes);
		h.next += WRITES;
		for (int rail = 0; rail < 2; rail++)
			segment(h.rail[rail], DATA, WRITES, h.next - WRITES, 0, other, WRITES);
		segment(h.rail[1], DATA, 16, 0, 0, other, 16);
		/* Nothing, from anywhere; what was taken is told late, or never. */
		segment(h.rail[0], DATA, 0, UINT64_MAX, 0, other, 0);
		segment(h.rail[1], DATA, 0, WINDOW * 2, 1, other, 0);
		/* The end of rails as they are not. */
		segment(h.rail[0], DOWN, 0, 1 | (uint64_t)7 << 32, 0, other, 0);
		segment(h.rail[0], DOWN, 0, 7 | (uint64_t)1 << 32, 0, other, 0);
		goes_well(&h);
	}
	/* A rail that is said to be down is, and the other goes on. */
	segment(h.rail[0], DOWN, 0, 1 | (uint64_t)2 << 32, 0, other, 0);
	CHECK(raw_closed(h.rail[1], SOON));
	close(h.rail[1]);
	h.rail[1] = -1;
	goes_well(&h);
	/* And the last one is the end. */
	segment(h.rail[0], DOWN, 0, 0 | (uint64_t)1 << 32, 0, other, 0);
	CHECK(raw_closed(h.rail[0], SOON));
	ends(&h);
}

TEST_WITHIN(60, segments_again_and_empty_ones)
{
	besieged("repeating", repeats, 8192, 60);
}

/* Nothing new, as fast as it goes: the server goes round all the same. */
static void floods_with(bool empty)
{
	static unsigned char some[SEGMENT];
	struct hostile h = opens();
	goes_well(&h);
	unsigned until = __atomic_load_n(&siege->rounds, __ATOMIC_ACQUIRE) + 10;
	uint64_t limit = test_now_ms() + (uint64_t)test_ms(20000);
	int rail = 0;
	while (__atomic_load_n(&siege->rounds, __ATOMIC_ACQUIRE) < until && test_now_ms() < limit) {
		static unsigned char heads[512][HEAD];
		bool good = empty ? raw_send(h.rail[rail], heads, sizeof heads) : segment(h.rail[rail], DATA, 1000, 16, 0, some, 1000);
		CHECK(good);
		rail = !rail;
		/* It is told each time what was taken; what nobody reads must not keep it. */
		while (recv(h.rail[rail], some, sizeof some, MSG_DONTWAIT) > 0)
			;
	}
	if (siege->rounds < until)
		test_wrong(__FILE__, __LINE__, "the good peer has stood still");
	ends(&h);
}

static void floods(void)
{
	floods_with(true);
	floods_with(false);
}

TEST_WITHIN(60, floods_of_nothing_new)
{
	besieged("floods", floods, 8192, 60);
}

/* --- at the doors --- */

static void knocks(void)
{
	struct hostile h = connects(), other = connects();
	unsigned char which[5] = {1, 2};
	int fd;
	/* One bit is not enough, nothing is nothing, and another connection's is another's. */
	for (int i = 0; i < 64; i += 9) {
		CHECK_EQ(joins(&h, i % 2, h.token ^ 1ull << i, 1, 2, &fd), RAW_WRONG_DOOR);
		CHECK(raw_closed(fd, SOON));
		raw_reset(fd);
	}
	CHECK_EQ(joins(&h, 1, 0, 1, 2, &fd), RAW_WRONG_DOOR);
	raw_reset(fd);
	CHECK_EQ(joins(&h, 1, other.token, 1, 2, &fd), RAW_WRONG_DOOR);
	raw_reset(fd);
	ends(&other);
	/* The doors are for rails, and the other one is not. */
	for (int purpose = 0; purpose < 3; purpose++) {
		fd = calls(h.door[purpose % 2]);
		CHECK_EQ(introduces(fd, purpose, h.token, which, sizeof which), RAW_WRONG_DOOR);
		raw_reset(fd);
	}
	fd = raw_connect(siege->service);
	CHECK_EQ(introduces(fd, FOR_RAILS, h.token, which, sizeof which), RAW_WRONG_DOOR);
	raw_reset(fd);
	/* Who does not say which it is, or says one of which there was no word. */
	for (size_t len = 0; len < 5; len++) {
		fd = calls(h.door[1]);
		CHECK_EQ(introduces(fd, FOR_RAILS, h.token, which, len), RAW_REJECTED);
		raw_reset(fd);
	}
	for (int number = 2; number < 256; number = number < 9 ? number + 1 : number * 2 - 1) {
		CHECK_EQ(joins(&h, 1, h.token, number, 2, &fd), RAW_REJECTED);
		CHECK(raw_closed(fd, SOON));
		raw_reset(fd);
	}
	/* The first one is there; in the place of one that is there comes only a later one. */
	CHECK_EQ(joins(&h, 0, h.token, 0, 0, &fd), RAW_REJECTED);
	raw_reset(fd);
	CHECK_EQ(joins(&h, 0, h.token, 0, 1, &fd), RAW_REJECTED);
	raw_reset(fd);
	CHECK_EQ(joins(&h, 1, h.token, 1, 0, &fd), RAW_REJECTED);
	raw_reset(fd);
	CHECK_EQ(joins(&h, 1, h.token, 1, 7, &h.rail[1]), 0);
	test_sleep_ms(100);
	/* The same words once more, as whoever has overheard them would say them. */
	for (int i = 0; i < 3; i++) {
		CHECK_EQ(joins(&h, 1, h.token, 1, 7, &fd), RAW_REJECTED);
		raw_reset(fd);
	}
	goes_well(&h);
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
	ends(&h);
	uint64_t until = test_now_ms() + (uint64_t)test_ms(SOON);
	while ((fd = calls(h.door[0])) >= 0 && test_now_ms() < until) {
		raw_reset(fd);
		test_sleep_ms(5);
	}
	CHECK(fd < 0);
}

TEST_WITHIN(60, the_doors_for_rails)
{
	besieged("doors", knocks, 8192, 60);
}

static void silence(void)
{
	static int fd[200];
	struct hostile h = connects();
	for (int i = 0; i < 200; i++)
		fd[i] = calls(h.door[i % 2]);
	test_sleep_ms(500);
	for (int i = 0; i < 200; i++)
		raw_reset(fd[i]);
	goes_well(&h);
	ends(&h);
}

TEST_WITHIN(60, silent_connections_at_the_doors)
{
	besieged("silent connections", silence, 8192, 16 + 40);
}

/* Opens and closes a rail as fast as it is let in. */
static void flaps(void)
{
	struct hostile h = connects();
	uint64_t first = 0, last = 0;
	unsigned in = 0;
	for (uint32_t i = 2; i < 2 + (uint32_t)test_count(2000, 500); i++) {
		int fd, status = joins(&h, 1, h.token, 1, i, &fd);
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
	goes_well(&h);
	/* The same with one that stays open: it is thrown out for a later one. */
	test_sleep_ms(100);
	CHECK_EQ(joins(&h, 1, h.token, 1, UINT32_MAX - 1, &h.rail[1]), 0);
	test_sleep_ms(100);
	int fd;
	CHECK_EQ(joins(&h, 1, h.token, 1, UINT32_MAX, &fd), 0);
	CHECK(raw_closed(h.rail[1], SOON));
	close(h.rail[1]);
	h.rail[1] = fd;
	goes_well(&h);
	ends(&h);
}

TEST_WITHIN(60, rails_that_come_and_go)
{
	besieged("flapping", flaps, 8192, 60);
	CHECK(siege->notes > 0);
}

/* --- rails that starve --- */

/* As many writes as the window holds, of which the first segment comes by half. */
static void withholds(bool breaks)
{
	size_t count = WINDOW / WRITES, all = count * WRITES;
	unsigned char *bytes = (unsigned char *)malloc(all);
	struct hostile h = opens();
	for (size_t i = 0; i < count; i++)
		write_frame(bytes + i * WRITES, i + 1 == count ? RAW_PROMPT : 0);
	/* Half of the first one. */
	segment(h.rail[0], DATA, SEGMENT, h.next, 0, bytes, SEGMENT / 2);
	for (size_t at = SEGMENT; at < all; at += SEGMENT) {
		size_t n = all - at < SEGMENT ? all - at : SEGMENT;
		CHECK(segment(h.rail[1], DATA, n, h.next + at, 0, bytes + at, n));
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
		segment(h.rail[1], DATA, SEGMENT, h.next, 0, bytes, SEGMENT);
	} else {
		CHECK(raw_send(h.rail[0], bytes + SEGMENT / 2, SEGMENT / 2));
	}
	h.next += all;
	await_done(&h, h.writes += (unsigned)count);
	goes_well(&h);
	free(bytes);
	ends(&h);
}

static void starves(void)
{
	withholds(false);
	withholds(true);
	/* Never to come: one byte more than the window. */
	struct hostile h = opens();
	goes_well(&h);
	static unsigned char some[SEGMENT];
	uint64_t at = h.next + 1;
	while (segment(h.rail[1], DATA, SEGMENT, at, 0, some, SEGMENT))
		at += SEGMENT;
	must_be_broken(&h, "more bytes than may be on their way", "beyond what may be on their way");
	/* Asks, and never says what it took: what waits for that is the window, and no more. */
	h = opens();
	unsigned char bytes[RAW_HEADER + 24];
	struct raw_frame f = raw_rma(RAW_READ, 0, siege->open.base, siege->open.key, SIEGE_LEN / 2);
	for (int i = 0; i < 64; i++)
		says(&h, i % 2, bytes, raw_frame(bytes, &f));
	uint64_t until = test_now_ms() + 500;
	while (test_now_ms() < until)
		for (int i = 0; i < 2; i++)
			while (recv(h.rail[i], some, sizeof some, MSG_DONTWAIT) > 0)
				;
	CHECK(!raw_closed(h.rail[0], 100));
	ends(&h);
}

TEST_WITHIN(90, rails_that_starve)
{
	/* The window of each direction, in buffers that may be a third larger, and what is kept for the next ones. */
	besieged("starving", starves, 28 * 1024, 60);
}
