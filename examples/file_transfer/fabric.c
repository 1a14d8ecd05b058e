/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The fabric of file_transfer: opening, connecting, messages, waiting without spinning, closing. This file knows
 * nothing of files.
 */
#define _POSIX_C_SOURCE 200809L
#include "transfer.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

/* Private data of the connection request: another program is rejected before it gets an endpoint. */
static const char GREETING[] = "file_transfer 1";

#define CALL(call) \
	((call) < 0 ? say("%.*s: %s", (int)strcspn(#call, "("), #call, gdrfab_last_error()) : true)

/* Finds a candidate: names the features that this program needs, and the requirements of providers that it meets
 * (mr_mode). */
static bool find(struct fabric *f, const char *provider, const char *addr, uint64_t flags)
{
	/* An address names its provider: "tcp://...". */
	char scheme[16] = "";
	const char *colon = addr ? strstr(addr, "://") : NULL;
	if (addr && (!colon || colon == addr || (size_t)(colon - addr) >= sizeof scheme))
		return say("address %s: must be shm://name, tcp://host:port or verbs://host:port", addr);
	if (colon)
		memcpy(scheme, addr, (size_t)(colon - addr));
	if (colon && provider && strcmp(provider, scheme) != 0)
		return say("--provider %s does not listen at %s", provider, addr);
	gdrfab_info *hints = gdrfab_dupinfo(NULL);
	if (!hints)
		return say("%s", gdrfab_last_error());
	hints->caps = GDRFAB_MSG | GDRFAB_RMA;
	hints->ep_type = GDRFAB_EP_MSG;
	hints->mr_mode = GDRFAB_MR_LOCAL | GDRFAB_MR_VIRT_ADDR | GDRFAB_MR_PROV_KEY;
	hints->msg_order = GDRFAB_ORDER_SAW; /* a message never overtakes the write before it */
	hints->prov_name = colon ? scheme : (char *)(uintptr_t)provider;
	int rc = gdrfab_getinfo(GDRFAB_VERSION, NULL, addr, flags, hints, &f->info);
	hints->prov_name = NULL; /* the string is not the library's to free */
	gdrfab_freeinfo(hints);
	return rc == 0 || say("nothing fits: %s", gdrfab_last_error());
}

static bool open_fabric(struct fabric *f)
{
	gdrfab_eq_attr attr;
	memset(&attr, 0, sizeof attr);
	attr.struct_size = sizeof attr;
	attr.wait_obj = GDRFAB_WAIT_FD;
	return CALL(gdrfab_fabric_open(f->info, NULL, &f->fabric)) &&
	       CALL(gdrfab_eq_open(f->fabric, &attr, NULL, &f->eq)) && CALL(gdrfab_eq_fd(f->eq, &f->eq_fd));
}

static int post_receive(struct fabric *f, unsigned index)
{
	struct message *m = &f->messages[index];
	f->receives[index].kind = RECEIVE;
	f->receives[index].index = index;
	return fabric_posted(
		f, gdrfab_recv(f->ep, m, sizeof *m, gdrfab_mr_desc(f->mr), 0, &f->receives[index]), "gdrfab_recv");
}

/* Opens domain, completion queue and endpoint, with the messages' memory registered and all receives posted: a
 * message that arrives before its receive would make an RDMA card wait or give up. */
static bool open_endpoint(struct fabric *f, gdrfab_info *from)
{
	gdrfab_cq_attr attr;
	void *memory = NULL;
	const size_t bytes = 2 * MESSAGES * sizeof(struct message);
	uint64_t limit_ns = (uint64_t)f->limit_ms * 1000000;
	memset(&attr, 0, sizeof attr);
	attr.struct_size = sizeof attr;
	attr.format = GDRFAB_CQ_FORMAT_DATA;
	attr.wait_obj = GDRFAB_WAIT_FD;
	if (!CALL(gdrfab_domain_open(f->fabric, from, NULL, &f->domain)) ||
	    !CALL(gdrfab_cq_open(f->domain, &attr, NULL, &f->cq)) || !CALL(gdrfab_cq_fd(f->cq, &f->cq_fd)) ||
	    !CALL(gdrfab_ep_open(f->domain, from, NULL, &f->ep)) ||
	    !CALL(gdrfab_ep_bind_cq(f->ep, f->cq, GDRFAB_TRANSMIT | GDRFAB_RECV)) ||
	    !CALL(gdrfab_ep_bind_eq(f->ep, f->eq, 0)) ||
	    !CALL(gdrfab_ep_setopt(f->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_CONNECT_TIMEOUT, &limit_ns,
				   sizeof limit_ns)) ||
	    !CALL(gdrfab_ep_enable(f->ep)) || !CALL(gdrfab_mem_alloc(f->domain, GDRFAB_HMEM_SYSTEM, 0, bytes, 0, &memory)))
		return false;
	f->messages = memory;
	if (!CALL(gdrfab_mr_reg(f->domain, memory, bytes, GDRFAB_SEND | GDRFAB_RECV, 0, 1, 0, NULL, &f->mr)))
		return false;
	for (unsigned i = 0; i < MESSAGES; i++)
		if (post_receive(f, i) != 1)
			return false;
	return true;
}

/* --- waiting --- */

/* Sleeps until one of the queues may have something. Calls trywait first, because entries that came before it wake
 * nobody. */
static bool sleep_until(struct fabric *f, long long until)
{
	struct pollfd fds[2] = {{f->eq_fd, POLLIN, 0}, {f->cq_fd, POLLIN, 0}};
	nfds_t count = f->cq ? 2 : 1;
	int rc = gdrfab_eq_trywait(f->eq);
	if (rc == 0 && f->cq)
		rc = gdrfab_cq_trywait(f->cq);
	if (rc == -EAGAIN)
		return true;
	if (rc < 0)
		return say("trywait: %s", gdrfab_last_error());
	long long left = until < 0 ? -1 : until - now_ms();
	if (interrupted)
		return say("interrupted");
	if (until >= 0 && left <= 0)
		return say("no sign of the peer for %g s: given up", f->limit_ms / 1000.0);
	if (poll(fds, count, (int)left) < 0 && errno != EINTR)
		return say("poll: %s", strerror(errno));
	return true;
}

struct connection {
	gdrfab_eq_cm_entry entry;
	unsigned char data[GDRFAB_CM_DATA_MAX];
};

/* Removes control characters, because the peer's text is printed to a terminal, which obeys them. */
static void printable(char *text)
{
	for (; *text; text++)
		if (*text < ' ' || *text > '~')
			*text = '?';
}

/* Reads an error entry of the event queue and converts it to text. */
static void read_eq_error(struct fabric *f, uint64_t *about, char *words, size_t len)
{
	char data[GDRFAB_CM_DATA_MAX] = "";
	gdrfab_eq_err_entry e;
	memset(&e, 0, sizeof e);
	e.struct_size = sizeof e;
	e.err_data = data;
	e.err_data_size = sizeof data - 1;
	if (gdrfab_eq_readerr(f->eq, &e, 0) != 1)
		e.data = GDRFAB_SHUTDOWN;
	*about = e.data;
	printable(data);
	snprintf(words, len, "%s%s%s", gdrfab_strerror(e.err), data[0] ? ": " : "", data);
}

/* Reads an event of the connection. Returns its kind, -1 if there is none, or -2 after an error. */
static int connection_event(struct fabric *f, struct connection *c, size_t *data_len)
{
	uint32_t kind = 0;
	uint64_t about = 0;
	char words[sizeof f->why];
	ssize_t got = gdrfab_eq_read(f->eq, &kind, c, sizeof *c, 0);
	if (got == -EAGAIN)
		return -1;
	if (got == -GDRFAB_EAVAIL) {
		read_eq_error(f, &about, words, sizeof words);
		if (about == GDRFAB_NOTIFY || about == GDRFAB_CONNREQ) {
			/* A port went down, and the connection lives until its retries are used up; or no caller can
			 * be accepted now. */
			say("%s", words);
			return GDRFAB_NOTIFY;
		}
		if (about == GDRFAB_SHUTDOWN) {
			f->ended = true;
			memcpy(f->why, words, sizeof f->why);
			return GDRFAB_SHUTDOWN;
		}
		say("cannot connect: %s", words);
		return -2;
	}
	if (got < 0) {
		say("gdrfab_eq_read: %s", gdrfab_last_error());
		return -2;
	}
	if (kind == GDRFAB_SHUTDOWN)
		f->ended = true;
	*data_len = (size_t)got > sizeof c->entry ? (size_t)got - sizeof c->entry : 0;
	return (int)kind;
}

static bool wait_event(struct fabric *f, uint32_t wanted, struct connection *c, size_t *data_len, bool for_ever)
{
	long long until = for_ever ? -1 : now_ms() + f->limit_ms;
	for (;;) {
		int kind = connection_event(f, c, data_len);
		if (kind == (int)wanted)
			return true;
		if (kind == GDRFAB_CONNREQ)
			gdrfab_freeinfo(c->entry.info); /* closing the passive endpoint rejects the request */
		if (kind == GDRFAB_SHUTDOWN)
			fabric_say_ended(f);
		if (kind == -2 || kind == GDRFAB_SHUTDOWN || (kind == -1 && !sleep_until(f, until)))
			return false;
	}
}

/* --- connecting --- */

bool fabric_listen(struct fabric *f, const char *provider, const char *addr)
{
	char at[GDRFAB_ADDR_MAX];
	size_t len = sizeof at;
	if (!find(f, provider, addr, GDRFAB_SOURCE) || !open_fabric(f) ||
	    !CALL(gdrfab_pep_open(f->fabric, f->info, NULL, &f->pep)) ||
	    !CALL(gdrfab_pep_bind_eq(f->pep, f->eq, 0)) || !CALL(gdrfab_pep_listen(f->pep)) ||
	    !CALL(gdrfab_pep_getname(f->pep, at, &len)))
		return false;
	printf("listening at %s\n", at);
	return fflush(stdout) == 0 || say("stdout: %s", strerror(errno));
}

bool fabric_accept(struct fabric *f)
{
	struct connection c;
	size_t len = 0;
	for (;;) {
		if (!wait_event(f, GDRFAB_CONNREQ, &c, &len, true))
			return false;
		if (len >= sizeof GREETING && memcmp(c.data, GREETING, sizeof GREETING) == 0)
			break;
		say("another program was turned away");
		gdrfab_pep_reject(f->pep, c.entry.info->handle, "not file_transfer", sizeof "not file_transfer");
		gdrfab_freeinfo(c.entry.info);
	}
	bool open = open_endpoint(f, c.entry.info);
	gdrfab_freeinfo(c.entry.info);
	if (!open || !CALL(gdrfab_ep_accept(f->ep, NULL, 0)))
		return false;
	bool connected = wait_event(f, GDRFAB_CONNECTED, &c, &len, false);
	gdrfab_pep_close(f->pep); /* one sender is enough: others are rejected from here on */
	f->pep = NULL;
	return connected;
}

bool fabric_connect(struct fabric *f, const char *addr)
{
	struct connection c;
	size_t len = 0;
	return find(f, NULL, addr, 0) && open_fabric(f) && open_endpoint(f, f->info) &&
	       CALL(gdrfab_ep_connect(f->ep, f->info->dest_addr, f->info->dest_addrlen, GREETING, sizeof GREETING)) &&
	       wait_event(f, GDRFAB_CONNECTED, &c, &len, false);
}

/* --- work and its completions --- */

uint64_t wire(uint64_t number)
{
	unsigned char bytes[8];
	for (unsigned i = 0; i < 8; i++)
		bytes[i] = (unsigned char)(number >> (56 - 8 * i));
	memcpy(&number, bytes, sizeof number);
	return number;
}

static void message_swap(struct message *m)
{
	uint64_t *numbers[] = {&m->kind, &m->id, &m->len, &m->addr, &m->key, &m->slots, &m->count};
	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
		*numbers[i] = wire(*numbers[i]);
}

int fabric_posted(struct fabric *f, ssize_t rc, const char *what)
{
	if (rc == -ESHUTDOWN)
		f->ended = true; /* the next step reports it, after the completions that came before */
	if (rc == -EAGAIN || rc == -ESHUTDOWN)
		return 0;
	if (rc == 0)
		return 1;
	say("%s: %s", what, gdrfab_last_error());
	return -1;
}

int fabric_send(struct fabric *f, const struct message *m)
{
	unsigned i = 0;
	while (i < MESSAGES && f->sends[i].busy)
		i++;
	if (i == MESSAGES)
		return 0;
	struct message *out = &f->messages[MESSAGES + i];
	*out = *m;
	message_swap(out);
	f->sends[i].kind = SEND;
	f->sends[i].index = i;
	int rc = fabric_posted(f, gdrfab_send(f->ep, out, sizeof *out, gdrfab_mr_desc(f->mr), 0, &f->sends[i]),
			       "gdrfab_send");
	f->sends[i].busy = rc == 1;
	return rc;
}

/* True if the connection ends, after the other side has refused an operation or not answered. A process that dies
 * loses its regions before its connections, so a refusal may be the first sign of a dead peer that an RDMA card
 * sees. */
static bool end_follows(struct fabric *f)
{
	struct pollfd events = {f->eq_fd, POLLIN, 0};
	struct connection c;
	size_t len;
	for (long long until = now_ms() + 1000; !f->ended && now_ms() < until;) {
		int kind = connection_event(f, &c, &len);
		if (kind == -2)
			return false;
		if (kind == GDRFAB_CONNREQ)
			gdrfab_freeinfo(c.entry.info);
		if (kind == -1)
			poll(&events, 1, 10);
	}
	return f->ended;
}

/* Handles a work request that failed. If the connection failed, all outstanding requests fail, and the connection's
 * end is reported instead. */
static bool read_cq_error(struct fabric *f)
{
	static const char *const names[] = {"a receive", "a send", "a write", "a write"};
	char words[sizeof f->why] = "";
	gdrfab_cq_err_entry e;
	memset(&e, 0, sizeof e);
	e.struct_size = sizeof e;
	e.err_data = words;
	e.err_data_size = sizeof words;
	if (gdrfab_cq_readerr(f->cq, &e, 0) != 1)
		return true;
	const struct work *work = e.op_context;
	bool over = e.err == ECONNRESET || e.err == ECANCELED;
	if (!over && !((e.err == EREMOTEIO || e.err == EKEYREJECTED || e.err == ETIMEDOUT) && end_follows(f)))
		return say("%s failed: %s: %s", work ? names[work->kind] : "work", gdrfab_strerror(e.err), words);
	if (!f->ended || !over)
		memcpy(f->why, words, sizeof f->why);
	f->ended = true;
	return true;
}

static enum step completed(struct fabric *f, const gdrfab_cq_data_entry *done, struct event *event)
{
	struct work *work = done->op_context;
	work->busy = false;
	event->index = work->index;
	switch (work->kind) {
	case RECEIVE:
		if (done->len != sizeof(struct message)) {
			say("a message of %zu bytes: not this protocol", done->len);
			return STEP_FAILED;
		}
		event->message = f->messages[work->index];
		message_swap(&event->message);
		event->message.text[sizeof event->message.text - 1] = 0;
		printable(event->message.text);
		return post_receive(f, work->index) < 0 ? STEP_FAILED : STEP_MESSAGE;
	case SEND:
		return STEP_SENT;
	case WRITE:
		return STEP_WRITTEN;
	default:
		return STEP_NOTHING;
	}
}

enum step fabric_step(struct fabric *f, struct event *event, bool wait)
{
	long long until = now_ms() + f->limit_ms;
	for (;;) {
		gdrfab_cq_data_entry done;
		struct connection c;
		size_t len;
		bool was_ended = f->ended;
		ssize_t got = gdrfab_cq_read(f->cq, &done, 1);
		if (got == 1)
			return completed(f, &done, event);
		if (got == -GDRFAB_EAVAIL) {
			if (!read_cq_error(f))
				return STEP_FAILED;
			continue;
		}
		if (got != -EAGAIN) {
			say("gdrfab_cq_read: %s", gdrfab_last_error());
			return STEP_FAILED;
		}
		/* The queue was empty after the end was known: nothing more can come. */
		if (was_ended)
			return STEP_ENDED;
		int kind = connection_event(f, &c, &len);
		if (kind == GDRFAB_CONNREQ)
			gdrfab_freeinfo(c.entry.info);
		if (kind == -2)
			return STEP_FAILED;
		if (kind >= 0 || f->ended)
			continue;
		if (!wait)
			return STEP_NOTHING;
		if (!sleep_until(f, until))
			return STEP_FAILED;
	}
}

bool fabric_expect(struct fabric *f, uint64_t kind, uint64_t id, struct message *out)
{
	struct event event;
	enum step step;
	do
		step = fabric_step(f, &event, true);
	while (step == STEP_NOTHING || step == STEP_SENT);
	if (step == STEP_ENDED)
		fabric_say_ended(f);
	if (step != STEP_MESSAGE)
		return false;
	*out = event.message;
	if (out->kind == VERDICT && kind != VERDICT)
		return say("the receiver says: %s", out->text);
	if (out->kind != kind || (id != 0 && out->id != id))
		return say("message %llu where %llu was due: not this protocol", (unsigned long long)out->kind,
			   (unsigned long long)kind);
	return true;
}

void fabric_say_ended(const struct fabric *f)
{
	say("the peer is gone before the transfer was over%s%s", f->why[0] ? ": " : "", f->why);
}

void fabric_close(struct fabric *f)
{
	if (f->ep)
		gdrfab_ep_close(f->ep);
	if (f->mr)
		gdrfab_mr_close(f->mr);
	if (f->messages)
		gdrfab_mem_free(f->domain, f->messages);
	if (f->cq)
		gdrfab_cq_close(f->cq);
	if (f->domain && gdrfab_domain_close(f->domain) < 0)
		say("gdrfab_domain_close: %s", gdrfab_last_error());
	if (f->pep)
		gdrfab_pep_close(f->pep);
	if (f->eq)
		gdrfab_eq_close(f->eq);
	if (f->fabric && gdrfab_fabric_close(f->fabric) < 0)
		say("gdrfab_fabric_close: %s", gdrfab_last_error());
	gdrfab_freeinfo(f->info);
}
