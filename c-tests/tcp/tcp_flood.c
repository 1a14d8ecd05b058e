/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Floods of connections that send nothing or only fragments of a handshake: the cost of pending connections is bounded, and
 * proper clients are served meanwhile.
 */
#include "fab.h"
#include "tcp_siege.h"

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#define FLOOD 5000
#define PENDING 64 /* of a listener: GDRFAB_DEBUG=tcp-pending=N */
#define LIMIT 15000 /* ms for a new connection in the middle of it */

static void only_tcp(void)
{
	skip_unless(path_known(PATH_SOCKET), "this is about what tcp says on the wire");
}

static int held[FLOOD];

/* Raises the limit of descriptors, so that few waves of connections are enough. */
static int wave(void)
{
	struct rlimit limit;
	CHECK_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
	limit.rlim_cur = limit.rlim_max;
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
	rlim_t free_ones = limit.rlim_max > 64 ? limit.rlim_max - 64 : 1;
	return free_ones < FLOOD ? (int)free_ones : FLOOD;
}

static void let_go(int count)
{
	for (int i = 0; i < count; i++)
		if (held[i] >= 0)
			raw_reset(held[i]);
}

/* Connects without waiting: if the listener's queue is full, the connection hangs in the kernel. */
static int comes(void)
{
	struct sockaddr_storage at;
	socklen_t len;
	static int family;
	static struct sockaddr_storage to;
	static socklen_t to_len;
	if (!family) {
		int fd = raw_connect(siege->service);
		CHECK(fd >= 0);
		to_len = sizeof to;
		CHECK_EQ(getpeername(fd, (struct sockaddr *)&to, &to_len), 0);
		len = sizeof at;
		CHECK_EQ(getsockname(fd, (struct sockaddr *)&at, &len), 0);
		family = at.ss_family;
		raw_reset(fd);
	}
	int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&to, to_len) != 0 && errno != EINPROGRESS) {
		close(fd);
		return -1;
	}
	return fd;
}

/* A third of the clients sends nothing, a third half a HELLO, a third a byte now and then until it is closed. */
static void floods(void)
{
	unsigned char hello[RAW_HELLO];
	int each = wave(), total = test_count(FLOOD, 1000), came = 0;
	raw_hello(hello, 9);
	for (int done = 0; done < total; done += each) {
		int count = total - done < each ? total - done : each;
		for (int i = 0; i < count; i++) {
			held[i] = comes();
			came += held[i] >= 0;
			if (held[i] >= 0 && i % 3 == 1)
				send(held[i], hello, (size_t)i % RAW_HELLO, MSG_NOSIGNAL | MSG_DONTWAIT);
			if (i % 100 == 0)
				test_sleep_ms(1);
		}
		uint64_t until = test_now_ms() + (uint64_t)test_ms(3000);
		for (size_t turn = 0; test_now_ms() < until; turn++) {
			for (int i = 2; i < count; i += 3)
				if (held[i] >= 0)
					send(held[i], hello + turn % RAW_HELLO, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
			test_sleep_ms(100);
		}
		let_go(count);
	}
	if (came < total - total / 10)
		test_wrong(__FILE__, __LINE__, "only %d of %d connections came about", came, total);
}

TEST_WITHIN(90, five_thousand_connections)
{
	only_tcp();
	siege_run(floods, LIMIT);
	siege_was_bounded("5,000 pending connections", 8192, 64 + 16);
	/* A write within a few milliseconds did not wait for pending connections. */
	CHECK(siege->slowest_ms < (unsigned)test_ms(2000));
}

/* As many pending connections as a listener keeps, none silent for long enough to be closed early: proper clients wait until
 * the time for a handshake is over, and no longer. */
static void keep_talking(void)
{
	static size_t said[PENDING];
	unsigned char hello[RAW_HELLO];
	uint64_t until = test_now_ms() + (uint64_t)test_ms(test_count(12000, 6000));
	raw_hello(hello, 9);
	for (int i = 0; i < PENDING; i++)
		held[i] = -1;
	while (test_now_ms() < until) {
		for (int i = 0; i < PENDING; i++) {
			if (held[i] >= 0 && send(held[i], hello + said[i]++ % RAW_HELLO, 1, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
				continue;
			if (held[i] >= 0)
				raw_reset(held[i]);
			held[i] = comes();
			said[i] = 0;
		}
		test_sleep_ms(40);
	}
	let_go(PENDING);
}

TEST_WITHIN(60, pending_connections_that_keep_talking)
{
	only_tcp();
	set_variable("GDRFAB_DEBUG", "tcp-greeting-ms=2000");
	siege_run(keep_talking, LIMIT);
	siege_was_bounded("pending connections that keep talking", 8192, PENDING + 16);
	CHECK(siege->slowest_ms < (unsigned)test_ms(2000));
}

/* Clients that finish the handshake and then send nothing, or half a frame: they may stay silent. */
static void stands_around(void)
{
	unsigned char bytes[RAW_HEADER + 32 * 8] = {0};
	struct raw_frame f;
	memset(&f, 0, sizeof f);
	f.kind = RAW_WRITE;
	f.pieces = 1;
	f.paths = 3;
	f.len = RAW_WHOLE_MAX;
	f.words = 3;
	f.word[0] = siege->open.base, f.word[1] = f.len, f.word[2] = siege->open.key;
	size_t len = raw_frame(bytes, &f) + 64;
	int count = test_count(200, 50);
	for (int i = 0; i < count; i++) {
		held[i] = siege_greeted();
		CHECK(raw_send(held[i], bytes, (size_t)i % len));
	}
	test_sleep_ms(1000);
	/* No client has broken the protocol, so none is closed, and half a frame may be completed. */
	for (int i = 0; i < count; i++) {
		char byte;
		ssize_t got = recv(held[i], &byte, 1, MSG_DONTWAIT);
		if (got == 0 || (got < 0 && errno != EAGAIN))
			test_fail(__FILE__, __LINE__, "connection %d, %zu bytes into a frame, was closed", i, (size_t)i % len);
		if (got > 0)
			CHECK(byte == RAW_NOTHING || byte == RAW_MATCHED);
	}
	let_go(count);
	test_sleep_ms(300);
}

TEST_WITHIN(60, half_frames_and_silence)
{
	only_tcp();
	siege_run(stands_around, LIMIT);
	siege_was_bounded("half frames", 65536, 200 + 16);
	CHECK(siege->slowest_ms < (unsigned)test_ms(2000));
}

/* A handshake that does not end is closed some time after its beginning (GDRFAB_DEBUG=tcp-greeting-ms=N). */
static void never_ends(void)
{
	unsigned char hello[RAW_HELLO];
	raw_hello(hello, 9);
	for (int stage = 0; stage < 3; stage++) {
		int fd = raw_connect(siege->service);
		uint64_t start = test_now_ms();
		CHECK(fd >= 0);
		if (stage > 0)
			raw_send(fd, hello, stage == 1 ? 63 : 64);
		if (stage == 2)
			CHECK_EQ(raw_recv(fd, hello, RAW_HELLO, 5000), 1);
		bool closed = raw_closed(fd, 5000);
		if (!closed || test_now_ms() - start < 400)
			test_wrong(__FILE__, __LINE__, "stage %d: %s after %llu ms", stage, closed ? "closed" : "still there",
				   (unsigned long long)(test_now_ms() - start));
		raw_reset(fd);
	}
	/* A byte every 100 ms does not extend the time. */
	int fd = raw_connect(siege->service);
	CHECK(fd >= 0);
	for (int i = 0; i < 20; i++) {
		send(fd, hello + i, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
		test_sleep_ms(100);
	}
	CHECK(raw_closed(fd, 1000));
	raw_reset(fd);
}

TEST_WITHIN(40, a_greeting_has_a_time_limit)
{
	only_tcp();
	set_variable("GDRFAB_DEBUG", "tcp-greeting-ms=500");
	siege_run(never_ends, LIMIT);
}
