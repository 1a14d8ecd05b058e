/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Hostile use of streams: pending connections at the address for further streams, and a client whose stripes break
 * docs/tcp-wire.md. The client loses only its own connection, while a good peer goes on and the server's other memory does not
 * change.
 */
#include "fab.h"
#include "tcp_siege.h"
#include "process_pair.h"

#include <sys/socket.h>

#define SOON 5000 /* ms: by then what broke the protocol is closed */
#define LIMIT 5000
#define STRIPE ((size_t)64 * 1024)
#define BODY ((size_t)256 * 1024) /* the shortest body that goes in stripes */
#define STRIPES ((int)(BODY / STRIPE))
enum { STREAMS = 13, STRIPED = 32, FOR_STREAMS = 2 };

struct hostile {
	int first, more[4];
	char door[16];
	uint64_t token;
	int streams; /* as granted */
};

static int introduces(int fd, int purpose, uint64_t token, uint32_t streams, struct hostile *h)
{
	struct raw_meeting m = {.version = 2, .purpose = purpose, .token = token, .streams = streams, .data = "hostile", .len = 7};
	int status = raw_meet(fd, &m);
	if (h && status == 0 && m.body_len >= 12) {
		h->streams = (int)raw_get(m.body + 8, 4);
		if (h->streams > 0) {
			snprintf(h->door, sizeof h->door, "%u", (unsigned)raw_get(m.body + m.body_len - 10, 2));
			h->token = raw_get(m.body + m.body_len - 8, 8);
		}
	}
	return status;
}

static void says(int fd, int kind, int flags, uint64_t len)
{
	unsigned char bytes[RAW_HEADER];
	struct raw_frame f;
	memset(&f, 0, sizeof f);
	f.kind = (uint8_t)kind, f.flags = (uint8_t)flags, f.len = len;
	raw_send(fd, bytes, raw_frame(bytes, &f));
}

static struct hostile connects(uint32_t streams)
{
	struct hostile h;
	memset(&h, 0, sizeof h);
	h.first = raw_connect(siege->service);
	CHECK(h.first >= 0);
	CHECK_EQ(introduces(h.first, 0, 0, streams, &h), 0);
	says(h.first, RAW_READY, 0, 0);
	return h;
}

static int attaches(const struct hostile *h, uint64_t token, int *fd)
{
	*fd = raw_connect(h->door);
	CHECK(*fd >= 0);
	return introduces(*fd, FOR_STREAMS, token, 0, NULL);
}

/* Makes a connection with all its streams. */
static struct hostile opens(void)
{
	struct hostile h = connects(3);
	CHECK_EQ(h.streams, 3);
	for (int i = 0; i < h.streams; i++)
		CHECK_EQ(attaches(&h, h.token, &h.more[i]), 0);
	says(h.first, STREAMS, 0, (uint64_t)h.streams);
	return h;
}

static void ends(struct hostile *h)
{
	raw_reset(h->first);
	for (int i = 0; i < h->streams; i++)
		raw_reset(h->more[i]);
}

static void must_be_closed(struct hostile *h, const char *what)
{
	if (!raw_closed(h->first, SOON))
		test_wrong(__FILE__, __LINE__, "%s: the connection is still there", what);
	ends(h);
}

/* --- the address for streams (the "door" in docs/tcp-wire.md) --- */

static void knocks(void)
{
	struct hostile h = connects(3);
	int fd[3], other, status;
	CHECK_EQ(h.streams, 3);
	CHECK(h.token != 0);
	/* Wrong tokens: one bit wrong, and zero. */
	for (int i = 0; i < 64; i += 9) {
		CHECK_EQ(attaches(&h, h.token ^ 1ull << i, &other), RAW_WRONG_DOOR);
		CHECK(raw_closed(other, SOON));
		raw_reset(other);
	}
	CHECK_EQ(attaches(&h, 0, &other), RAW_WRONG_DOOR);
	raw_reset(other);
	/* This address is for streams only, and the passive endpoint's address is not for streams. */
	other = raw_connect(h.door);
	CHECK_EQ(introduces(other, 0, 0, 0, NULL), RAW_WRONG_DOOR);
	raw_reset(other);
	other = raw_connect(siege->service);
	CHECK_EQ(introduces(other, FOR_STREAMS, h.token, 0, NULL), RAW_WRONG_DOOR);
	raw_reset(other);
	/* No more streams than were granted. */
	for (int i = 0; i < 3; i++)
		CHECK_EQ(attaches(&h, h.token, &fd[i]), 0);
	CHECK_EQ(attaches(&h, h.token, &other), RAW_REJECTED);
	raw_reset(other);
	/* A stream that closes before the client's STREAMS frame makes room for another. */
	raw_reset(fd[0]);
	for (int i = 0; i < 100; i++) {
		test_sleep_ms(20);
		status = attaches(&h, h.token, &fd[0]);
		if (status == 0)
			break;
		raw_reset(fd[0]);
	}
	CHECK_EQ(status, 0);
	says(h.first, STREAMS, 0, 3);
	/* After the STREAMS frame the address is closed. */
	uint64_t until = test_now_ms() + (uint64_t)test_ms(SOON);
	while ((other = raw_connect(h.door)) >= 0 && test_now_ms() < until) {
		raw_reset(other);
		test_sleep_ms(5);
	}
	CHECK(other < 0);
	for (int i = 0; i < 3; i++)
		h.more[i] = fd[i];
	ends(&h);
	/* It is also closed when the connection has ended. */
	h = connects(2);
	raw_reset(h.first);
	until = test_now_ms() + (uint64_t)test_ms(SOON);
	while ((other = raw_connect(h.door)) >= 0 && test_now_ms() < until) {
		raw_reset(other);
		test_sleep_ms(5);
	}
	CHECK(other < 0);
	/* No more streams than the listener wants. */
	h = connects(16);
	CHECK_EQ(h.streams, 4);
	raw_reset(h.first);
	h = connects(0);
	CHECK_EQ(h.streams, 0);
	raw_reset(h.first);
	other = raw_connect(siege->service);
	CHECK_EQ(introduces(other, 0, 0, 17, NULL), -1);
	raw_reset(other);
}

/* --- a client that asks for the address later --- */

static void asks(int fd, uint64_t count)
{
	unsigned char bytes[RAW_HEADER + 16];
	memset(bytes, 0, sizeof bytes);
	bytes[0] = RAW_DOOR;
	raw_put(bytes + 8, count, 8);
	raw_send(fd, bytes, sizeof bytes);
}

static struct hostile connects_for_later(int granted)
{
	struct raw_meeting m = {.version = 7, .streams = 16 | RAW_LATER, .data = "hostile", .len = 7};
	struct hostile h;
	memset(&h, 0, sizeof h);
	h.first = raw_connect(siege->service);
	CHECK(h.first >= 0);
	CHECK_EQ(raw_meet(h.first, &m), 0);
	CHECK_EQ(raw_get(m.body + 8, 2), granted > 0 ? (uint64_t)granted | RAW_LATER : 0);
	says(h.first, RAW_READY, 0, 0);
	return h;
}

static bool has_door(const struct hostile *h)
{
	int fd = raw_connect(h->door);
	if (fd >= 0)
		raw_reset(fd);
	return fd >= 0;
}

static void must_be_shut(const struct hostile *h)
{
	uint64_t until = test_now_ms() + (uint64_t)test_ms(3 * SOON);
	while (has_door(h)) {
		CHECK(test_now_ms() < until);
		test_sleep_ms(20);
	}
}

/* Within a host no streams were agreed on: asking for them breaks the protocol. */
static void asks_here(void)
{
	struct hostile h = connects_for_later(0);
	asks(h.first, 1);
	must_be_closed(&h, "a door that was not agreed on");
}

/* However often the client asks, one address is opened, for the time that connecting may take. */
static void asks_endlessly(void)
{
	unsigned char bytes[RAW_HEADER + 16];
	test_enter_netns();
	for (int give_up = 0; give_up < 2; give_up++) {
		struct hostile h = connects_for_later(4);
		for (int i = 0; i < 5000; i++)
			asks(h.first, 1 + (uint64_t)i % 4);
		CHECK_EQ(raw_recv(h.first, bytes, sizeof bytes, SOON), 1);
		CHECK_EQ(bytes[0], RAW_DOOR);
		CHECK_EQ(raw_get(bytes + 8, 8), 1);
		snprintf(h.door, sizeof h.door, "%u", (unsigned)raw_get(bytes + 16, 8));
		CHECK(has_door(&h));
		if (give_up)
			asks(h.first, 0);
		must_be_shut(&h);
		asks(h.first, 4);
		CHECK_EQ(raw_recv(h.first, bytes, 1, 300), -1);
		says(h.first, STREAMS, 0, 1);
		must_be_closed(&h, "streams behind a door that is shut");
	}
}

static void besieged(const char *what, void (*attack)(void), int fds)
{
	skip_unless(path_known(PATH_SOCKET), "this is about what tcp says on the wire");
	setenv("GDRFAB_TCP_STREAMS", "4", 1);
	siege_run(attack, LIMIT);
	siege_was_bounded(what, 4096, fds);
}

TEST_WITHIN(60, the_door_for_streams)
{
	besieged("a door", knocks, 40);
}

/* Many clients that send nothing. */
static void silence(void)
{
	static int fd[600];
	struct hostile h = connects(2);
	int count = test_count(600, 300);
	for (int i = 0; i < count; i++)
		fd[i] = raw_connect(h.door);
	test_sleep_ms(300);
	for (int i = 0; i < count; i++)
		raw_reset(fd[i]);
	raw_reset(h.first);
}

TEST_WITHIN(60, silent_connections_at_the_door)
{
	besieged("silent connections", silence, 64 + 40);
}

/* --- frames about streams that do not exist --- */

static void lies(void)
{
	struct hostile h = connects(0);
	says(h.first, STREAMS, 0, 1);
	must_be_closed(&h, "streams that were not agreed on");
	h = connects(2);
	h.streams = 0;
	says(h.first, STREAMS, 0, 2);
	must_be_closed(&h, "streams that did not come");
	h = connects(2);
	h.streams = 1;
	CHECK_EQ(attaches(&h, h.token, &h.more[0]), 0);
	says(h.first, STREAMS, 0, 2);
	must_be_closed(&h, "more streams than came");
	h = opens();
	says(h.first, STREAMS, 0, 3);
	must_be_closed(&h, "streams twice");
	h = connects(2);
	h.streams = 0;
	says(h.first, RAW_SEND, STRIPED, BODY);
	must_be_closed(&h, "stripes without streams");
	h = opens();
	says(h.first, RAW_SEND, STRIPED, BODY - 1);
	must_be_closed(&h, "a short body in stripes");
	h = opens();
	says(h.first, RAW_SEND, STRIPED | RAW_PARTS, BODY);
	must_be_closed(&h, "stripes and parts");
}

TEST_WITHIN(60, words_of_streams)
{
	besieged("words", lies, 40);
}

/* --- stripes --- */

static void writes(struct hostile *h)
{
	unsigned char bytes[RAW_HEADER + 24];
	struct raw_frame f;
	memset(&f, 0, sizeof f);
	f.kind = RAW_WRITE, f.flags = STRIPED | RAW_PROMPT, f.len = BODY, f.pieces = 1, f.paths = 3, f.words = 3;
	f.word[0] = siege->open.base, f.word[1] = BODY, f.word[2] = siege->open.key;
	CHECK(raw_send(h->first, bytes, raw_frame(bytes, &f)));
}

static void two_words(int fd, uint64_t first, uint64_t second)
{
	unsigned char bytes[16];
	raw_put(bytes, first, 8);
	raw_put(bytes + 8, second, 8);
	raw_send(fd, bytes, sizeof bytes);
}

/* Sends a stripe of the body with this number, or only its first bytes. */
static void stripe(int fd, uint64_t number, uint64_t index, size_t len)
{
	static unsigned char bytes[64 * 1024];
	two_words(fd, number, index);
	raw_send(fd, bytes, len);
}

static void goes_well(struct hostile *h, uint64_t number)
{
	unsigned char bytes[RAW_HEADER];
	writes(h);
	for (int i = STRIPES; i-- > 0;)
		stripe(h->more[i % h->streams], number, (uint64_t)i, STRIPE);
	two_words(h->first, (uint64_t)STRIPES, 0);
	/* The server answers at once. */
	CHECK_EQ(raw_recv(h->first, bytes, sizeof bytes, SOON), 1);
	if (bytes[0] == RAW_REPORT) {
		/* A stripe of the previous body, which was given up. */
		CHECK_EQ(raw_recv(h->first, bytes, sizeof bytes, SOON), 1);
		CHECK_EQ(raw_get(bytes, 8), number - 1);
		CHECK_EQ(raw_get(bytes + 8, 8), 9);
		do
			CHECK_EQ(raw_recv(h->first, bytes, sizeof bytes, SOON), 1);
		while (raw_get(bytes + 4, 4) != number);
	}
	CHECK_EQ(bytes[0], RAW_NOTHING);
	CHECK_EQ(raw_get(bytes + 4, 4), number);
}

static void stripes(void)
{
	struct hostile h = opens();
	goes_well(&h, 1);
	goes_well(&h, 2);
	stripe(h.more[0], 2, 0, STRIPE);
	writes(&h);
	must_be_closed(&h, "a stripe of a body that has ended");
	h = opens();
	writes(&h);
	stripe(h.more[0], 1, (uint64_t)STRIPES, STRIPE);
	must_be_closed(&h, "a stripe behind its body");
	h = opens();
	writes(&h);
	stripe(h.more[0], 1, UINT64_MAX, STRIPE);
	must_be_closed(&h, "a stripe far behind its body");
	h = opens();
	writes(&h);
	stripe(h.more[0], 1, 1, STRIPE);
	stripe(h.more[1], 1, 1, STRIPE);
	must_be_closed(&h, "a stripe twice");
	h = opens();
	writes(&h);
	stripe(h.more[0], 1, 2, STRIPE);
	stripe(h.more[0], 1, 2, 1);
	must_be_closed(&h, "a stripe twice on one stream");
	h = opens();
	writes(&h);
	two_words(h.first, (uint64_t)STRIPES + 1, 0);
	must_be_closed(&h, "more stripes than the body has");
	h = opens();
	writes(&h);
	two_words(h.first, 1, 0);
	must_be_closed(&h, "fewer stripes than the body has, and all is well");
	h = opens();
	writes(&h);
	stripe(h.more[0], 1, 3, STRIPE);
	test_sleep_ms(50);
	two_words(h.first, 2, 9);
	must_be_closed(&h, "fewer stripes than have come");
	/* The body is given up: both its stripes arrive, and the connection works as before. */
	h = opens();
	writes(&h);
	two_words(h.first, 2, 9);
	stripe(h.more[0], 1, 1, STRIPE);
	stripe(h.more[1], 1, 0, STRIPE);
	goes_well(&h, 2);
	ends(&h);
}

TEST_WITHIN(60, stripes_that_make_no_sense)
{
	besieged("stripes", stripes, 60);
}

/* --- streams that stall, or die --- */

static void stalls(void)
{
	struct hostile h = opens();
	writes(&h);
	stripe(h.more[0], 1, 0, STRIPE / 2);
	shutdown(h.more[0], SHUT_WR);
	must_be_closed(&h, "a stream that ends in a stripe");
	h = opens();
	shutdown(h.more[2], SHUT_WR);
	must_be_closed(&h, "a stream that ends");
	h = opens();
	writes(&h);
	raw_reset(h.more[1]);
	h.more[1] = dup(h.more[0]);
	must_be_closed(&h, "a stream that is reset");
	/* Bytes without a body on a stream that then ends: the server must be able to sleep all the same. */
	h = opens();
	stripe(h.more[0], 77, 0, STRIPE / 2);
	shutdown(h.more[0], SHUT_WR);
	must_be_closed(&h, "a stream that ends behind bytes for no body");
	/* The first connection ends, and the streams are silent. */
	h = opens();
	writes(&h);
	stripe(h.more[0], 1, 0, STRIPE / 2);
	shutdown(h.first, SHUT_WR);
	must_be_closed(&h, "streams that go on without the first");
	/* Silent streams are permitted; the end of the first connection ends them all. */
	h = opens();
	writes(&h);
	stripe(h.more[0], 1, 0, STRIPE / 2);
	test_sleep_ms(500);
	ends(&h);
}

TEST_WITHIN(60, streams_that_stall_or_die)
{
	besieged("stalling", stalls, 60);
}

TEST_WITHIN(60, a_door_that_is_asked_for)
{
	skip_unless(path_known(PATH_SOCKET), "this is about what tcp says on the wire");
	unsetenv("GDRFAB_TCP_STREAMS");
	set_variable("GDRFAB_DEBUG", "tcp-greeting-ms=2500");
	siege_run(getenv("TEST_CLIENT_NETNS") ? asks_endlessly : asks_here, LIMIT);
	siege_was_bounded("asking", 4096, 12);
}
