/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The fabric of one side, and waiting for completions, for the peer's lines and for its end, all by one poll. */
#define _POSIX_C_SOURCE 200809L
#include "pingpong.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <time.h>

static long long now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (long long)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

bool open_fabric(struct side *s, const char *node)
{
	gdrfab_info *hints = gdrfab_dupinfo(NULL);
	gdrfab_eq_attr events;
	gdrfab_cq_attr attr;
	uint64_t deadline = (uint64_t)LIMIT_MS * 1000000;
	memset(&events, 0, sizeof events);
	events.struct_size = sizeof events;
	events.wait_obj = GDRFAB_WAIT_FD;
	memset(&attr, 0, sizeof attr);
	attr.struct_size = sizeof attr;
	attr.wait_obj = GDRFAB_WAIT_FD;
	if (!hints)
		return say("%s", gdrfab_last_error());
	hints->caps = GDRFAB_MSG | GDRFAB_RMA | (s->iface != GDRFAB_HMEM_SYSTEM ? GDRFAB_HMEM : 0);
	hints->ep_type = GDRFAB_EP_MSG;
	hints->mr_mode = GDRFAB_MR_LOCAL | GDRFAB_MR_VIRT_ADDR | GDRFAB_MR_PROV_KEY | GDRFAB_MR_HMEM;
	hints->msg_order = GDRFAB_ORDER_SAW; /* a message tells that the write before it has arrived */
	if (s->near) { /* of several cards, the one nearest to the accelerator */
		hints->near_iface = s->iface;
		hints->near_device = s->device;
	}
	hints->prov_name = (char *)(uintptr_t)s->provider;
	int rc = gdrfab_getinfo(GDRFAB_VERSION, node, NULL, node ? GDRFAB_SOURCE : 0, hints, &s->info);
	hints->prov_name = NULL; /* the string is not the library's to free */
	gdrfab_freeinfo(hints);
	return (rc == 0 || say("no provider: %s", gdrfab_last_error())) &&
	       CALL(gdrfab_fabric_open(s->info, NULL, &s->fabric)) &&
	       CALL(gdrfab_eq_open(s->fabric, &events, NULL, &s->eq)) && CALL(gdrfab_eq_fd(s->eq, &s->eq_fd)) &&
	       CALL(gdrfab_domain_open(s->fabric, s->info, NULL, &s->domain)) &&
	       CALL(gdrfab_cq_open(s->domain, &attr, NULL, &s->cq)) && CALL(gdrfab_cq_fd(s->cq, &s->cq_fd)) &&
	       CALL(gdrfab_ep_open(s->domain, s->info, NULL, &s->ep)) &&
	       CALL(gdrfab_ep_bind_cq(s->ep, s->cq, GDRFAB_TRANSMIT | GDRFAB_RECV)) &&
	       CALL(gdrfab_ep_bind_eq(s->ep, s->eq, 0)) &&
	       CALL(gdrfab_ep_setopt(s->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_CONNECT_TIMEOUT, &deadline,
				     sizeof deadline)) &&
	       CALL(gdrfab_ep_enable(s->ep));
}

bool post_receive(struct side *s)
{
	return CALL(gdrfab_recv(s->ep, at(s, IN), s->size, gdrfab_mr_desc(s->mr), 0, &s->received));
}

bool connect_fabric(struct side *s)
{
	return CALL(gdrfab_ep_connect_addr(s->ep, s->peer_ep, strlen(s->peer_ep) + 1)) &&
	       await(s, &s->connected, "connecting");
}

bool refusal(int error)
{
	return error == EKEYREJECTED || error == EACCES || error == EOPNOTSUPP || error == ENOSYS || error == EFAULT ||
	       error == EIO || error == EREMOTEIO;
}

/* Closes in the reverse order of opening. Once the endpoint is closed, no peer reaches the memory. */
void close_fabric(struct side *s)
{
	if (s->ep)
		gdrfab_ep_close(s->ep);
	free_memory(s);
	if (s->cq)
		gdrfab_cq_close(s->cq);
	if (s->domain && gdrfab_domain_close(s->domain) < 0)
		say("gdrfab_domain_close: %s", gdrfab_last_error());
	if (s->eq)
		gdrfab_eq_close(s->eq);
	if (s->fabric && gdrfab_fabric_close(s->fabric) < 0)
		say("gdrfab_fabric_close: %s", gdrfab_last_error());
	gdrfab_freeinfo(s->info);
}

/* --- waiting --- */

static void take_completions(struct side *s)
{
	gdrfab_cq_entry done;
	uint32_t kind;
	gdrfab_eq_cm_entry event;
	ssize_t got;
	while ((got = gdrfab_cq_read(s->cq, &done, 1)) != -EAGAIN) {
		gdrfab_cq_err_entry e;
		memset(&e, 0, sizeof e);
		e.struct_size = sizeof e;
		if (got == -GDRFAB_EAVAIL && !s->error) {
			e.err_data = s->words;
			e.err_data_size = sizeof s->words;
		}
		if (got == -GDRFAB_EAVAIL && gdrfab_cq_readerr(s->cq, &e, 0) == 1) {
			s->error = s->error ? s->error : e.err;
			done.op_context = e.op_context;
		} else if (got != 1) {
			s->error = EIO;
			break;
		}
		*(bool *)done.op_context = true;
	}
	got = gdrfab_eq_read(s->eq, &kind, &event, sizeof event, 0);
	if (got == -GDRFAB_EAVAIL) {
		gdrfab_eq_err_entry e;
		memset(&e, 0, sizeof e);
		e.struct_size = sizeof e;
		e.err_data = s->why;
		e.err_data_size = sizeof s->why - 1;
		gdrfab_eq_readerr(s->eq, &e, 0);
		s->ended = s->ended || e.data != GDRFAB_NOTIFY;
	} else if (got >= 0) {
		s->connected = s->connected || kind == GDRFAB_CONNECTED;
		s->ended = s->ended || kind == GDRFAB_SHUTDOWN;
	}
}

/* Sleeps until the queues or the socket may have something, and reads the queues. Reading them also makes the
 * progress that the peer's operations need from this side. */
static bool turn(struct side *s, long long until, const char *what)
{
	struct pollfd fds[3] = {{s->sock, POLLIN, 0}, {s->eq_fd, POLLIN, 0}, {s->cq_fd, POLLIN, 0}};
	long long left = until - now_ms();
	if (left <= 0)
		return say("%s: nothing came for %d s", what, LIMIT_MS / 1000);
	if (!s->cq) {
		poll(fds, 1, (int)left);
		return true;
	}
	if (gdrfab_eq_trywait(s->eq) == 0 && gdrfab_cq_trywait(s->cq) == 0)
		poll(fds, 3, (int)left);
	take_completions(s);
	return true;
}

/* Reads from the socket. A dead peer is noticed here at the latest. */
static bool take_line(struct side *s, const char *what)
{
	while (s->line_len < sizeof s->line - 1 && !memchr(s->line, '\n', s->line_len)) {
		ssize_t got = recv(s->sock, s->line + s->line_len, sizeof s->line - 1 - s->line_len, MSG_DONTWAIT);
		if (got < 0 && (errno == EAGAIN || errno == EINTR))
			return true;
		if (got <= 0)
			return say("%s: the other side is gone", what);
		s->line_len += (size_t)got;
	}
	return memchr(s->line, '\n', s->line_len) || say("%s: an endless line", what);
}

/* Copies the peer's next line, without its end, to `out` (of sizeof s->line). */
bool hear(struct side *s, char *out, const char *what)
{
	long long until = now_ms() + LIMIT_MS;
	char *end;
	while (take_line(s, what) && !(end = memchr(s->line, '\n', s->line_len)))
		if (!turn(s, until, what))
			return false;
	if (!(end = memchr(s->line, '\n', s->line_len)))
		return false;
	size_t len = (size_t)(end - s->line);
	memcpy(out, s->line, len);
	out[len] = 0;
	s->line_len -= len + 1;
	memmove(s->line, end + 1, s->line_len);
	return true;
}

bool tell(struct side *s, const char *line)
{
	size_t len = strlen(line);
	return send(s->sock, line, len, MSG_NOSIGNAL) == (ssize_t)len || say("the other side is gone");
}

/* Waits for a completion, which sets `flag`. The end of the socket means the end of the peer, too. */
bool await(struct side *s, bool *flag, const char *what)
{
	long long until = now_ms() + LIMIT_MS;
	while (!*flag) {
		if (s->error || s->ended)
			break;
		if (!take_line(s, what) || !turn(s, until, what))
			return false;
	}
	if (s->error)
		return say("%s: %s: %s", what, gdrfab_strerror(s->error), s->words);
	if (!*flag)
		return say("%s: the connection ended%s%s", what, s->why[0] ? ": " : "", s->why);
	*flag = false;
	return true;
}
