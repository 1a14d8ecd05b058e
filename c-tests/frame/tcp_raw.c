/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A client of plain sockets: see tcp_raw.h. */
#include "tcp_raw.h"
#include "fab_provider.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

void raw_put(unsigned char *to, uint64_t value, int bytes)
{
	for (int i = 0; i < bytes; i++)
		to[i] = (unsigned char)(value >> 8 * i);
}

uint64_t raw_get(const unsigned char *from, int bytes)
{
	uint64_t value = 0;
	for (int i = 0; i < bytes; i++)
		value |= (uint64_t)from[i] << 8 * i;
	return value;
}

static struct addrinfo *resolve(const char *service)
{
	struct addrinfo hints, *found = NULL;
	memset(&hints, 0, sizeof hints);
	hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
	hints.ai_socktype = SOCK_STREAM;
	int rc = getaddrinfo(node_name(), service, &hints, &found);
	if (rc != 0)
		test_fail(__FILE__, __LINE__, "TEST_NODE=%s, port %s: %s", node_name(), service, gai_strerror(rc));
	return found;
}

int raw_connect(const char *service)
{
	struct addrinfo *to = resolve(service);
	int on = 1, fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd >= 0 && connect(fd, to->ai_addr, to->ai_addrlen) != 0) {
		int error = errno;
		close(fd);
		fd = -1;
		errno = error;
	}
	if (fd >= 0)
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	freeaddrinfo(to);
	return fd;
}

int raw_listen(char *service, size_t size, int backlog)
{
	struct addrinfo *at = resolve("0");
	struct sockaddr_storage own;
	socklen_t len = sizeof own;
	int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(fd >= 0);
	CHECK_EQ(bind(fd, at->ai_addr, at->ai_addrlen), 0);
	CHECK_EQ(listen(fd, backlog), 0);
	CHECK_EQ(getsockname(fd, (struct sockaddr *)&own, &len), 0);
	freeaddrinfo(at);
	in_port_t port = own.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&own)->sin6_port
						   : ((struct sockaddr_in *)&own)->sin_port;
	snprintf(service, size, "%u", (unsigned)ntohs(port));
	return fd;
}

void raw_reset(int fd)
{
	struct linger at_once = {1, 0};
	setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
	close(fd);
}

bool raw_send(int fd, const void *data, size_t len)
{
	const char *at = (const char *)data;
	while (len > 0) {
		ssize_t sent = send(fd, at, len, MSG_NOSIGNAL);
		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0)
			return false;
		at += sent;
		len -= (size_t)sent;
	}
	return true;
}

/* Receives at least one byte; 0: the other side has closed; -1: no bytes until the deadline. */
static ssize_t some(int fd, void *data, size_t len, uint64_t until)
{
	for (;;) {
		uint64_t now = test_now_ms();
		struct pollfd p = {fd, POLLIN, 0};
		if (poll(&p, 1, until > now ? (int)(until - now) : 0) == 0)
			return -1;
		ssize_t got = recv(fd, data, len, MSG_DONTWAIT);
		if (got >= 0)
			return got;
		if (errno != EINTR && errno != EAGAIN)
			return 0;
	}
}

int raw_recv(int fd, void *data, size_t len, int ms)
{
	char *at = (char *)data;
	uint64_t until = test_now_ms() + (uint64_t)test_ms(ms);
	while (len > 0) {
		ssize_t got = some(fd, at, len, until);
		if (got <= 0)
			return (int)got;
		at += got;
		len -= (size_t)got;
	}
	return 1;
}

bool raw_closed(int fd, int ms)
{
	char rest[4096];
	uint64_t until = test_now_ms() + (uint64_t)test_ms(ms);
	ssize_t got;
	while ((got = some(fd, rest, sizeof rest, until)) > 0)
		;
	return got == 0;
}

void raw_hello(unsigned char hello[RAW_HELLO], uint64_t seed)
{
	memset(hello, 0, RAW_HELLO);
	memcpy(hello, "GDRFABt", 8);
	raw_put(hello + 8, 1, 2);
	raw_put(hello + 10, 1, 2);
	for (int i = 0; i < 4; i++)
		raw_put(hello + 16 + 8 * i, test_random(&seed), 8);
}

size_t raw_intro(unsigned char *intro, uint32_t window, uint32_t budget, const void *data, size_t len)
{
	static const char own[] = "tcp://127.0.0.1:1";
	unsigned char *body = intro + RAW_INTRO;
	size_t at = 12;
	memset(intro, 0, RAW_INTRO + 12);
	raw_put(body, window, 4);
	raw_put(body + 4, budget, 4);
	raw_put(body + at, sizeof own - 1, 2);
	memcpy(body + at + 2, own, sizeof own - 1);
	at += 2 + sizeof own - 1;
	raw_put(body + at, len, 2);
	if (len > 0)
		memcpy(body + at + 2, data, len);
	at += 2 + len;
	raw_put(intro, at, 4);
	return RAW_INTRO + at;
}

bool raw_greet(int fd, struct raw_terms *terms)
{
	return raw_greet_as(fd, 1, terms);
}

bool raw_greet_as(int fd, int version, struct raw_terms *terms)
{
	unsigned char bytes[RAW_INTRO + RAW_BODY_MAX], answer[RAW_INTRO], ready[RAW_HEADER] = {RAW_READY};
	raw_hello(bytes, (uint64_t)fd + 1);
	raw_put(bytes + 10, (uint64_t)version, 2);
	if (!raw_send(fd, bytes, RAW_HELLO) || raw_recv(fd, bytes, RAW_HELLO, 10000) != 1)
		return false;
	if (memcmp(bytes, "GDRFABt", 8) != 0 || raw_get(bytes + 14, 2) != 0)
		return false;
	size_t len = raw_intro(bytes, 16, 65536, "hostile", 7);
	if (!raw_send(fd, bytes, len) || raw_recv(fd, answer, RAW_INTRO, 10000) != 1)
		return false;
	len = (size_t)raw_get(answer, 4);
	if (len > RAW_BODY_MAX || raw_recv(fd, bytes, len, 10000) != 1)
		return false;
	terms->status = (uint32_t)raw_get(answer + 4, 2);
	terms->window = len >= 8 ? (uint32_t)raw_get(bytes, 4) : 0;
	terms->budget = len >= 8 ? (uint32_t)raw_get(bytes + 4, 4) : 0;
	return terms->status == 0 && raw_send(fd, ready, sizeof ready);
}

int raw_meet(int fd, struct raw_meeting *m)
{
	unsigned char bytes[RAW_INTRO + RAW_BODY_MAX];
	raw_hello(bytes, (uint64_t)fd + 1);
	raw_put(bytes + 10, (uint64_t)m->version, 2);
	bytes[13] = (unsigned char)m->purpose;
	if (!raw_send(fd, bytes, RAW_HELLO) || raw_recv(fd, bytes, RAW_HELLO, 5000) != 1)
		return -1;
	if (raw_get(bytes + 14, 2) != 0)
		return (int)raw_get(bytes + 14, 2);
	CHECK_EQ(raw_get(bytes + 8, 4), (uint64_t)m->version << 16 | (uint64_t)m->version);
	size_t len = raw_intro(bytes, 16, 1 << 20, m->data, m->len);
	size_t more = (m->streams > 0 && m->streams < RAW_LATER ? 10 : 0) + (m->rails > 0 ? 8 + 18 * (size_t)m->rails : 0);
	CHECK(len + more <= sizeof bytes);
	memset(bytes + len, 0, more);
	raw_put(bytes + RAW_INTRO + 8, m->streams, 2);
	raw_put(bytes + RAW_INTRO + 10, m->rails, 2);
	raw_put(bytes, len + more - RAW_INTRO, 4);
	raw_put(bytes + 8, m->token, 8);
	if (!raw_send(fd, bytes, len + more) || raw_recv(fd, bytes, RAW_INTRO, 5000) != 1)
		return -1;
	m->body_len = (size_t)raw_get(bytes, 4);
	if (m->body_len > RAW_BODY_MAX || (m->body_len > 0 && raw_recv(fd, m->body, m->body_len, 5000) != 1))
		return -1;
	return (int)raw_get(bytes + 4, 2);
}

size_t raw_frame(unsigned char *to, const struct raw_frame *f)
{
	to[0] = f->kind, to[1] = f->flags, to[2] = f->pieces, to[3] = f->paths;
	raw_put(to + 4, f->done, 4);
	raw_put(to + 8, f->len, 8);
	for (int i = 0; i < f->words; i++)
		raw_put(to + RAW_HEADER + 8 * i, f->word[i], 8);
	return RAW_HEADER + 8 * (size_t)f->words;
}

static int words_of(const struct raw_frame *f)
{
	int words = (f->flags & RAW_DATA ? 1 : 0) + 3 * f->pieces;
	switch (f->kind) {
	case RAW_SEND:
		return words + (f->flags & RAW_ACK ? 1 : 0);
	case RAW_OFFER:
	case RAW_TAKE:
		return words + 1;
	case RAW_TAKEN:
		return words + 1 + (f->flags & RAW_FAILED ? 1 : 0);
	case RAW_REPORT:
	case RAW_GOT:
	case RAW_MATCHED:
	case RAW_DOOR:
		return words + 2;
	case RAW_ANSWERED:
		return words + (f->flags & RAW_FAILED ? 1 : 0);
	default:
		return words;
	}
}

int raw_next(int fd, struct raw_frame *f, void *body, size_t max, int ms)
{
	for (;;) {
		unsigned char head[RAW_HEADER], word[8];
		int rc = raw_recv(fd, head, sizeof head, ms);
		if (rc != 1)
			return rc;
		memset(f, 0, sizeof *f);
		f->kind = head[0], f->flags = head[1], f->pieces = head[2], f->paths = head[3];
		f->done = (uint32_t)raw_get(head + 4, 4);
		f->len = raw_get(head + 8, 8);
		f->words = words_of(f);
		CHECK(f->kind < RAW_KINDS && f->pieces <= 8 && f->words <= 32);
		for (int i = 0; i < f->words; i++) {
			if ((rc = raw_recv(fd, word, 8, ms)) != 1)
				return rc;
			f->word[i] = raw_get(word, 8);
		}
		bool has_body = f->kind == RAW_WRITE || f->kind == RAW_ANSWERED || f->kind == RAW_SEND || f->kind == RAW_TAKEN;
		if (has_body && f->len > 0) {
			CHECK(!(f->flags & RAW_PARTS) && f->len <= max);
			if ((rc = raw_recv(fd, body, (size_t)f->len, ms)) != 1)
				return rc;
		}
		if (f->kind != RAW_NOTHING && f->kind != RAW_MATCHED)
			return 1;
	}
}

struct raw_frame raw_bare(int kind, int flags, uint64_t len)
{
	struct raw_frame f;
	memset(&f, 0, sizeof f);
	f.kind = (uint8_t)kind;
	f.flags = (uint8_t)flags;
	f.len = len;
	return f;
}

struct raw_frame raw_rma(int kind, int flags, uint64_t addr, uint64_t key, uint64_t len)
{
	struct raw_frame f = raw_bare(kind, flags, len);
	f.pieces = 1;
	f.paths = 3;
	f.word[0] = addr, f.word[1] = len, f.word[2] = key;
	f.words = 3;
	return f;
}
