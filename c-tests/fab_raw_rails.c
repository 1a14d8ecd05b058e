/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A hostile client with rails: see raw_rails.h. */
#include "raw_rails.h"
#include "fab_node.h"
#include "fab_provider.h"
#include "fab_ways.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#define SOON 5000
#define LIMIT 5000
#define RAILS "127.0.0.1,127.0.0.2"

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

struct hostile rails_connect(void)
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
	rails_say(&h, 0, ready, sizeof ready);
	return h;
}

struct hostile rails_open(void)
{
	struct hostile h = rails_connect();
	CHECK_EQ(rails_join(&h, 1, h.token, 1, 2, &h.rail[1]), 0);
	return h;
}

void rails_end(struct hostile *h)
{
	for (int i = 0; i < 2; i++)
		if (h->rail[i] >= 0)
			raw_reset(h->rail[i]);
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
		/* The last of it is a NOTHING. */
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

void rails_siege(const char *what, void (*attack)(void), size_t kib, int fds)
{
	const char *node = node_name();
	skip_unless(path_known(PATH_SOCKET), "this is about what tcp says on the wire");
	if (!node || strcmp(node, "127.0.0.1") != 0)
		test_skip("its rails are the loopback's addresses of IPv4");
	setenv("GDRFAB_TCP_RAILS", RAILS, 1);
	siege_run(attack, LIMIT);
	siege_was_bounded(what, kib, fds);
}
