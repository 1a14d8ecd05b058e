/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Event queues. gdrfab puts its own events and the caller's into one queue, and before it reports that a connection
 * broke it reports the reason. libfabric's clients expect only the break, so the reason goes to the log. */
#include "provider.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Marks an event that the application wrote; gdrfab's own events have small numbers. */
#define WRITTEN (1u << 30)
/* Marks the end of the next endpoint in the `ended` list, which this side shut down. libfabric reports a shutdown to
 * both sides, gdrfab to the other side only. */
#define ENDED (1u << 31)

static int eq_close(struct fid *fid)
{
	enter(((struct eq *)fid)->lib);
	struct eq *q = (struct eq *)fid;
	int result = told(gdrfab_eq_close(q->it), FI_LOG_EQ, "closing an event queue");
	if (result < 0)
		return result;
	pthread_mutex_destroy(&q->lock);
	free(q);
	return 0;
}

static int eq_control(struct fid *fid, int command, void *arg)
{
	enter(((struct eq *)fid)->lib);
	int fd = -1, result = gdrfab_eq_fd(((struct eq *)fid)->it, &fd);
	return wait_control(command, arg, result < 0 ? result : fd);
}

/* Takes the next error entry. False: there is none, or it only explains the event behind it. */
static bool take_error(struct eq *q)
{
	unsigned char data[sizeof q->words];
	q->error = (gdrfab_eq_err_entry){.struct_size = sizeof q->error, .err_data = data, .err_data_size = sizeof data};
	if (gdrfab_eq_readerr(q->it, &q->error, 0) != 1)
		return false;
	bool rejected = q->error.prov_errno == GDRFAB_PROV_REJECTED;
	if (rejected) {
		if (q->error.err_data_size > sizeof q->error_data)
			q->error.err_data_size = sizeof q->error_data;
		memcpy(q->error_data, data, q->error.err_data_size);
		gdrfab_eq_strerror(q->it, q->error.prov_errno, NULL, q->words, sizeof q->words);
	} else {
		/* The data is gdrfab's text, not private data of a peer. */
		memcpy(q->words, data, q->error.err_data_size);
		q->words[sizeof q->words - 1] = '\0';
		q->error.err_data_size = 0;
	}
	q->error.err_data = NULL;
	INFO(FI_LOG_EQ, "%s: %s\n", q->error.data == GDRFAB_CONNECTED ? "connecting failed" : "connection", q->words);
	q->failed = q->error.data == GDRFAB_CONNECTED;
	return q->failed;
}

/* The next entry of gdrfab's queue. */
union next {
	struct {
		gdrfab_eq_cm_entry cm;
		unsigned char data[GDRFAB_CM_DATA_MAX];
	} connection;
	unsigned char written[WRITTEN_MAX];
};

/* Puts a connection event of n bytes into `held`, as an entry of libfabric's. */
static int hold_connection(struct eq *q, uint32_t event, const union next *from, size_t n)
{
	const gdrfab_eq_cm_entry *cm = &from->connection.cm;
	struct fi_eq_cm_entry to = {.fid = cm->context};
	if (event == GDRFAB_CONNREQ) {
		struct pep *pep = cm->context;
		struct connreq *request = connreq_make(pep, cm->info);
		to.info = request ? connreq_info(pep, request) : NULL;
		if (!to.info) {
			/* A request that cannot be reported cannot be answered, so it is dropped. */
			if (request)
				gdrfab_freeinfo(connreq_take(pep->fabric, pep, &request->fid));
			return -FI_ENOMEM;
		}
	}
	memcpy(q->held, &to, sizeof to);
	memcpy(q->held + sizeof to, from->connection.data, n - sizeof *cm);
	q->held_len = sizeof to + n - sizeof *cm;
	q->held_least = sizeof to;
	q->held_is_connection = true;
	return 0;
}

static void hold_end(struct eq *q)
{
	struct ep *e = q->ended;
	struct fi_eq_cm_entry to = {0};
	/* The endpoint was closed meanwhile. */
	if (!e)
		return;
	q->ended = e->next_ended;
	to.fid = &e->ep.fid;
	memcpy(q->held, &to, sizeof to);
	q->held_len = q->held_least = sizeof to;
	q->held_is_connection = q->holds = true;
}

/* Fills `held` with the next event, if it is empty. The caller holds the lock. */
static ssize_t fetch(struct eq *q)
{
	while (!q->failed && !q->holds) {
		union next from;
		uint32_t what = 0;
		ssize_t n = gdrfab_eq_read(q->it, &what, &from, sizeof from, 0);
		if (n == -FI_EAVAIL) {
			take_error(q);
		} else if (n < 0) {
			return n;
		} else if (what & WRITTEN) {
			memcpy(q->held, from.written, (size_t)n);
			q->held_len = q->held_least = (size_t)n;
			q->held_is_connection = false;
			q->holds = true;
		} else if (what == ENDED) {
			hold_end(q);
		} else if (what == GDRFAB_CONNREQ || what == GDRFAB_CONNECTED || what == GDRFAB_SHUTDOWN) {
			int result = hold_connection(q, what, &from, (size_t)n);
			if (result < 0)
				return result;
			q->holds = true;
		} else {
			INFO(FI_LOG_EQ, "a port is active again\n"); /* libfabric has no such event */
		}
		q->held_event = what == ENDED ? FI_SHUTDOWN : what & ~WRITTEN;
	}
	return q->failed ? -FI_EAVAIL : 0;
}

static ssize_t eq_read(struct fid_eq *eq, uint32_t *event, void *buf, size_t len, uint64_t flags)
{
	enter(((struct eq *)eq)->lib);
	struct eq *q = (struct eq *)eq;
	ssize_t n;
	if (flags & ~FI_PEEK)
		return -FI_EBADFLAGS;
	if (!event || (!buf && len))
		return -FI_EINVAL;
	pthread_mutex_lock(&q->lock);
	n = fetch(q);
	if (n == 0 && len < q->held_least)
		n = -FI_ETOOSMALL;
	if (n == 0) {
		/* Private data is cut to the room that the caller has. */
		n = (ssize_t)(q->held_len < len ? q->held_len : len);
		memcpy(buf, q->held, (size_t)n);
		*event = q->held_event;
		q->holds = flags & FI_PEEK;
	}
	pthread_mutex_unlock(&q->lock);
	return n;
}

static int64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static ssize_t eq_sread(struct fid_eq *eq, uint32_t *event, void *buf, size_t len, int timeout, uint64_t flags)
{
	enter(((struct eq *)eq)->lib);
	struct eq *q = (struct eq *)eq;
	int64_t end = now_ms() + timeout;
	for (;;) {
		ssize_t n = eq_read(eq, event, buf, len, flags);
		if (n != -FI_EAGAIN)
			return n;
		int left = timeout;
		if (timeout >= 0) {
			int64_t rest = end - now_ms();
			if (rest <= 0)
				return -FI_EAGAIN;
			left = (int)rest;
		}
		/* Waits without the lock, so that others can read meanwhile. */
		uint32_t what;
		n = gdrfab_eq_sread(q->it, &what, NULL, 0, left, GDRFAB_PEEK);
		if (n < 0 && n != -FI_EAVAIL && n != -FI_EAGAIN)
			return n;
	}
}

static ssize_t eq_readerr(struct fid_eq *eq, struct fi_eq_err_entry *to, uint64_t flags)
{
	enter(((struct eq *)eq)->lib);
	struct eq *q = (struct eq *)eq;
	if (!to)
		return -FI_EINVAL;
	if (flags)
		return -FI_EBADFLAGS;
	pthread_mutex_lock(&q->lock);
	fetch(q);
	if (!q->failed) {
		pthread_mutex_unlock(&q->lock);
		return -FI_EAGAIN;
	}
	q->failed = false;
	to->fid = q->error.context;
	to->context = to->fid->context;
	to->data = 0;
	to->err = q->error.err;
	to->prov_errno = q->error.prov_errno;
	memcpy(q->given, q->error_data, q->error.err_data_size);
	if (q->old) {
		to->err_data = q->error.err_data_size ? q->given : NULL;
	} else if (to->err_data && to->err_data_size) {
		if (to->err_data_size > q->error.err_data_size)
			to->err_data_size = q->error.err_data_size;
		memcpy(to->err_data, q->given, to->err_data_size);
	} else {
		to->err_data = q->error.err_data_size ? q->given : NULL;
		to->err_data_size = q->error.err_data_size;
	}
	pthread_mutex_unlock(&q->lock);
	return q->old ? (ssize_t)offsetof(struct fi_eq_err_entry, err_data_size) : (ssize_t)sizeof *to;
}

static ssize_t eq_write(struct fid_eq *eq, uint32_t event, const void *buf, size_t len, uint64_t flags)
{
	enter(((struct eq *)eq)->lib);
	if (event & (WRITTEN | ENDED))
		return REFUSE(FI_EINVAL, FI_LOG_EQ, "fi_eq_write: event: %#x is reserved for the provider\n", event);
	return gdrfab_eq_write(((struct eq *)eq)->it, event | WRITTEN, buf, len, flags);
}

static const char *eq_strerror(struct fid_eq *eq, int prov_errno, const void *err_data, char *buf, size_t len)
{
	struct eq *q = (struct eq *)eq;
	(void)err_data; /* private data of a peer, not text */
	return gdrfab_eq_strerror(q->it, prov_errno, prov_errno == q->error.prov_errno ? q->words : NULL, buf, len);
}

void eq_tell_end(struct eq *q, struct ep *ep)
{
	struct ep **at = &q->ended;
	pthread_mutex_lock(&q->lock);
	while (*at)
		at = &(*at)->next_ended;
	ep->next_ended = NULL;
	*at = ep;
	pthread_mutex_unlock(&q->lock);
	if (gdrfab_eq_write(q->it, ENDED, NULL, 0, 0) < 0)
		told(-FI_EOTHER, FI_LOG_EQ, "reporting this side's shutdown");
}

void eq_forget(struct eq *q, const struct fid *fid)
{
	struct fi_eq_cm_entry entry;
	pthread_mutex_lock(&q->lock);
	for (struct ep **at = &q->ended; *at; at = &(*at)->next_ended)
		if (&(*at)->ep.fid == fid) {
			*at = (*at)->next_ended;
			break;
		}
	if (q->failed && q->error.context == fid)
		q->failed = false;
	memcpy(&entry, q->held, sizeof entry);
	if (q->holds && q->held_is_connection && entry.fid == fid) {
		if (entry.info)
			caller->freeinfo(entry.info);
		q->holds = false;
	}
	pthread_mutex_unlock(&q->lock);
}

static struct fi_ops fid_ops = {
	.size = sizeof fid_ops,
	.close = eq_close,
	.bind = no_bind,
	.control = eq_control,
	NO_FID_EXTRAS,
};

static struct fi_ops_eq ops = {
	.size = sizeof ops,
	.read = eq_read,
	.readerr = eq_readerr,
	.write = eq_write,
	.sread = eq_sread,
	.strerror = eq_strerror,
};

int eq_open(struct fid_fabric *fabric, struct fi_eq_attr *attr, struct fid_eq **eq, void *context)
{
	enter(((struct fabric *)fabric)->lib);
	gdrfab_eq_attr to = {.struct_size = sizeof to};
	struct eq *q;
	int result = attr ? wait_object(attr->wait_obj, &to.wait_obj) : 0;
	if (result < 0)
		return result;
	/* Other providers use a descriptor for FI_WAIT_UNSPEC, and clients rely on that. */
	if (attr && attr->wait_obj == FI_WAIT_UNSPEC)
		to.wait_obj = GDRFAB_WAIT_FD;
	if (attr && attr->flags & ~(FI_WRITE | FI_AFFINITY))
		return REFUSE(FI_EBADFLAGS, FI_LOG_EQ, "fi_eq_open: attr->flags: %#llx\n", (unsigned long long)attr->flags);
	q = calloc(1, sizeof *q);
	if (!q)
		return -FI_ENOMEM;
	to.size = attr ? attr->size : 0;
	result = told(gdrfab_eq_open(((struct fabric *)fabric)->it, &to, NULL, &q->it), FI_LOG_EQ, "opening an event queue");
	if (result < 0) {
		free(q);
		return result;
	}
	pthread_mutex_init(&q->lock, NULL);
	q->lib = caller;
	q->old = FI_VERSION_LT(fabric->api_version, FI_VERSION(1, 5));
	q->eq.fid.fclass = FI_CLASS_EQ;
	q->eq.fid.context = context;
	q->eq.fid.ops = &fid_ops;
	q->eq.ops = &ops;
	*eq = &q->eq;
	return 0;
}
