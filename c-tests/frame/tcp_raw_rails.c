/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A hostile peer with rails: see tcp_raw_rails.h. */
#include "tcp_raw_rails.h"
#include "fab_node.h"
#include "fab_provider.h"
#include "fab_ways.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#define SOON 5000
#define LIMIT 5000

/* True if the server connects to this side; then the two sockets that listen: for connections, and for rails on every
 * address. */
static bool is_called;
static int listening = -1, doors = -1;
static unsigned door_port;

int rails_call(const unsigned char *place)
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

int rails_introduce(int fd, int purpose, uint64_t token, const void *data, size_t len)
{
	struct raw_meeting m = {.version = 5, .purpose = purpose, .token = token, .data = data, .len = len};
	return raw_meet(fd, &m);
}

int rails_join(const struct hostile *h, int door, uint64_t token, int number, uint32_t generation, int *fd)
{
	unsigned char which[5] = {(unsigned char)number};
	raw_put(which + 1, generation, 4);
	*fd = rails_call(h->door[door]);
	CHECK(*fd >= 0);
	return rails_introduce(*fd, FOR_RAILS, token, which, sizeof which);
}

bool rails_segment(int fd, int kind, uint64_t len, uint64_t from, uint64_t taken, const void *bytes, size_t n)
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

void rails_say(struct hostile *h, int rail, const void *bytes, size_t n)
{
	rails_segment(h->rail[rail], DATA, n, h->next, h->taken, bytes, n);
	h->next += n;
}

/* --- the server connects to this side --- */

int rails_called(int at, int ms)
{
	struct pollfd p = {at, POLLIN, 0};
	return poll(&p, 1, test_ms(ms)) == 1 ? accept4(at, NULL, NULL, SOCK_CLOEXEC) : -1;
}

bool rails_hear(int fd, struct raw_meeting *m)
{
	unsigned char bytes[RAW_HELLO], head[RAW_INTRO];
	if (raw_recv(fd, bytes, sizeof bytes, SOON) != 1 || memcmp(bytes, "GDRFABt", 8) != 0)
		return false;
	CHECK(raw_get(bytes + 10, 2) >= 5);
	m->version = 5, m->purpose = bytes[13];
	raw_hello(bytes, (uint64_t)fd + 1);
	raw_put(bytes + 8, 5, 2);
	raw_put(bytes + 10, 5, 2);
	bytes[13] = (unsigned char)m->purpose;
	if (!raw_send(fd, bytes, sizeof bytes) || raw_recv(fd, head, sizeof head, SOON) != 1)
		return false;
	m->body_len = (size_t)raw_get(head, 4), m->token = raw_get(head + 8, 8);
	CHECK(m->body_len <= RAW_BODY_MAX);
	if (raw_recv(fd, m->body, m->body_len, SOON) != 1)
		return false;
	m->streams = (uint32_t)raw_get(m->body + 8, 2), m->rails = (uint32_t)raw_get(m->body + 10, 2);
	size_t own = (size_t)raw_get(m->body + 12, 2);
	m->len = (size_t)raw_get(m->body + 14 + own, 2), m->data = m->body + 16 + own;
	return true;
}

bool rails_answer(int fd, const void *body, size_t len)
{
	unsigned char bytes[RAW_INTRO + 2 * RAW_BODY_MAX];
	memset(bytes, 0, RAW_INTRO);
	raw_put(bytes, len, 4);
	memcpy(bytes + RAW_INTRO, body, len);
	return raw_send(fd, bytes, RAW_INTRO + len);
}

void rails_place(unsigned char *place, uint32_t ip, unsigned port)
{
	memset(place, 0, PLACE);
	place[10] = place[11] = 255;
	for (int i = 0; i < 4; i++)
		place[12 + i] = (unsigned char)(ip >> (24 - 8 * i));
	raw_put(place + 16, port, 2);
}

size_t rails_terms(unsigned char *body, uint32_t rails, uint64_t token, unsigned char (*places)[PLACE], size_t count)
{
	memset(body, 0, 24);
	raw_put(body, 16, 4);
	raw_put(body + 4, 1 << 20, 4);
	raw_put(body + 10, rails, 2);
	if (rails == 0)
		return 16;
	raw_put(body + 16, token, 8);
	memcpy(body + 24, places, count * PLACE);
	return 24 + count * PLACE;
}

int rails_door(unsigned *port)
{
	struct sockaddr_in at = {.sin_family = AF_INET};
	socklen_t len = sizeof at;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK_EQ(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
	CHECK_EQ(listen(fd, 64), 0);
	CHECK_EQ(getsockname(fd, (struct sockaddr *)&at, &len), 0);
	*port = ntohs(at.sin_port);
	return fd;
}

int rails_ask(struct raw_meeting *m)
{
	int on = 1, fd;
	if (listening < 0) {
		listening = raw_listen(siege->calls, sizeof siege->calls, 64);
		doors = rails_door(&door_port);
	}
	__atomic_add_fetch(&siege->asked, 1, __ATOMIC_RELEASE);
	fd = rails_called(listening, SOON);
	if (fd < 0)
		test_fail(__FILE__, __LINE__, "the server does not call");
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	CHECK(rails_hear(fd, m));
	CHECK(m->purpose == 0 && m->token == 0);
	return fd;
}

/* Accepts the rail `number` of this connection. Rails of earlier connections are reset. */
static int rail_in(const struct hostile *h, int number)
{
	for (;;) {
		unsigned char none[RAW_BODY_MAX];
		struct raw_meeting m;
		int on = 1, fd = rails_called(doors, SOON);
		CHECK(fd >= 0);
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
		if (!rails_hear(fd, &m) || m.purpose != FOR_RAILS || m.token != h->token) {
			raw_reset(fd);
			continue;
		}
		CHECK_EQ(m.len, 5);
		CHECK_EQ(*(const unsigned char *)m.data, number);
		CHECK(raw_get((const unsigned char *)m.data + 1, 4) == 2);
		CHECK(rails_answer(fd, none, rails_terms(none, 0, 0, NULL, 0)));
		return fd;
	}
}

static struct hostile rails_answers(void)
{
	static uint64_t tokens;
	unsigned char body[RAW_BODY_MAX];
	struct raw_meeting m;
	struct hostile h;
	memset(&h, 0, sizeof h);
	h.rail[1] = -1;
	h.broke = __atomic_load_n(&siege->broke, __ATOMIC_ACQUIRE);
	h.rail[0] = rails_ask(&m);
	CHECK_EQ(m.rails, 2);
	h.doors = 2, h.token = ++tokens << 32;
	for (int i = 0; i < 2; i++)
		rails_place(h.door[i], 0x7f000001u + (uint32_t)i, door_port);
	CHECK(rails_answer(h.rail[0], body, rails_terms(body, 2, h.token, h.door, 2)));
	return h;
}

/* --- either side connects --- */

struct hostile rails_connect(void)
{
	if (is_called)
		return rails_answers();
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
	rails_say(&h, 0, ready, sizeof ready);
	return h;
}

struct hostile rails_open(void)
{
	struct hostile h = rails_connect();
	if (is_called)
		h.rail[1] = rail_in(&h, 1);
	else
		CHECK_EQ(rails_join(&h, 1, h.token, 1, 2, &h.rail[1]), 0);
	return h;
}

void rails_end(struct hostile *h)
{
	for (int i = 0; i < 2; i++)
		if (h->rail[i] >= 0)
			raw_reset(h->rail[i]);
}

void rails_broken(struct hostile *h, const char *what, const char *why)
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

void rails_write_frame(unsigned char *to, int flags)
{
	struct raw_frame f = raw_rma(RAW_WRITE, flags, siege->open.base, siege->open.key, BODY);
	memset(to + raw_frame(to, &f), 0x5a, BODY);
}

void rails_await_done(struct hostile *h, unsigned count)
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
		/* The last frame of a segment is a NOTHING here, whose field `done` counts the writes. */
		done = (uint32_t)raw_get(bytes + len - RAW_HEADER + 4, 4);
		CHECK(done <= count);
	}
}

void rails_go_well(struct hostile *h)
{
	static unsigned char bytes[WRITES];
	for (int rail = 0; rail < 2; rail++) {
		if (h->rail[rail] < 0)
			continue;
		rails_write_frame(bytes, RAW_PROMPT);
		rails_say(h, rail, bytes, WRITES / 2);
		rails_say(h, rail, bytes + WRITES / 2, WRITES - WRITES / 2);
		rails_await_done(h, ++h->writes);
	}
}

static void run(const char *what, void (*attack)(void), int rails, size_t kib, int fds)
{
	const char *node = node_name();
	char words[128];
	size_t len = 0;
	skip_unless(path_known(PATH_SOCKET), "this is about what tcp says on the wire");
	if (!node || strcmp(node, "127.0.0.1") != 0)
		test_skip("its rails are the loopback's addresses of IPv4");
	for (int i = 1; i <= rails; i++)
		len += (size_t)snprintf(words + len, sizeof words - len, "%s127.0.0.%d", i > 1 ? "," : "", i);
	setenv("GDRFAB_TCP_RAILS", words, 1);
	siege_run(attack, LIMIT);
	siege_was_bounded(what, kib, fds - SIEGE_RAIL * rails);
}

void rails_siege(const char *what, void (*attack)(void), size_t kib, int fds)
{
	run(what, attack, 2, kib, fds);
}

void rails_siege_back(const char *what, void (*attack)(void), int rails, size_t kib, int fds)
{
	is_called = true;
	run(what, attack, rails, kib, fds);
}
