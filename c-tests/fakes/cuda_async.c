/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Streams and events of the fake libcuda. Posted work takes effect later: when the stream is synchronised,
 * when it is queried for the second time, or by a thread of the driver after a while; never before earlier
 * work of the same stream, or before an event that it waits for.
 */
#define _GNU_SOURCE
#include "cuda_stream.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* After this time the driver's own thread runs work that no call has waited for. */
#define LINGER_NS 100000

struct fake_event {
	CUcontext context;
	uint64_t recorded, fired;
	unsigned waiting; /* operations that refer to the event */
	bool destroyed;
	struct fake_event *next;
};

struct fake_stream {
	CUcontext context;
	struct op *head, **tail;
	struct fake_stream *next;
};

static struct fake_stream *streams, *null_stream;
static struct fake_event *events;
static pid_t worker;

static int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static int64_t delay(void)
{
	const char *text = getenv("FAKE_DELAY_US");
	return text ? atoll(text) * 1000 : 0;
}

static void drop_event(CUevent event)
{
	if (!event->destroyed || event->waiting)
		return;
	for (CUevent *p = &events; *p; p = &(*p)->next)
		if (*p == event) {
			*p = event->next;
			free(event);
			return;
		}
}

/* True if the operation at the head can run now; `force`: time does not matter. */
static bool ready(struct op *op, bool force)
{
	if (op->kind == WAIT)
		return op->event->fired >= op->turn;
	return force || op->due <= now();
}

static void run_list(uint64_t list, uint64_t count)
{
	const struct unit *units = (const struct unit *)(uintptr_t)list;
	for (uint64_t i = 0; i < count; i++)
		fake_copy(units[i].to, units[i].from, units[i].len);
}

static bool list_touches(uint64_t list, uint64_t count, uint64_t va, uint64_t len)
{
	const struct unit *units = (const struct unit *)(uintptr_t)list;
	if (list < va + len && va < list + count * sizeof *units)
		return true;
	for (uint64_t i = 0; i < count; i++)
		if ((units[i].to < va + len && va < units[i].to + units[i].len) ||
		    (units[i].from < va + len && va < units[i].from + units[i].len))
			return true;
	return false;
}

static void run(CUstream s)
{
	struct op *op = s->head;
	switch (op->kind) {
	case COPY:
		fake_copy(op->to, op->from, op->len);
		break;
	case FILL: {
		static unsigned char bytes[65536];
		memset(bytes, (int)op->from, sizeof bytes);
		for (uint64_t at = 0; at < op->len; at += sizeof bytes)
			fake_copy(op->to + at, (uint64_t)(uintptr_t)bytes, op->len - at < sizeof bytes ? op->len - at : sizeof bytes);
		break;
	}
	case WRITE32: {
		uint32_t value = (uint32_t)op->from;
		fake_copy(op->to, (uint64_t)(uintptr_t)&value, 4);
		break;
	}
	case LIST:
		run_list(op->from, op->len);
		break;
	case RECORD:
		if (op->event->fired < op->turn)
			op->event->fired = op->turn;
		/* fall through */
	case WAIT:
		op->event->waiting--;
		drop_event(op->event);
		break;
	}
	s->head = op->next;
	if (!s->head)
		s->tail = &s->head;
	free(op);
}

/* Runs operations until `s` (or every stream, if NULL) is empty or none can run. */
static void advance(CUstream s, bool force)
{
	bool moved = true;
	while (moved && (!s || s->head)) {
		moved = false;
		/* The other streams too: `s` may wait for them. */
		for (CUstream one = streams; one; one = one->next)
			while (one->head && ready(one->head, force && (one == s || !s || (s->head && s->head->kind == WAIT)))) {
				run(one);
				moved = true;
			}
	}
}

void cuda_drain(void)
{
	advance(NULL, true);
}

static bool overlap(uint64_t a, uint64_t a_len, uint64_t b, uint64_t b_len)
{
	return a < b + b_len && b < a + a_len;
}

void cuda_must_be_idle(const char *who, uint64_t va, uint64_t len)
{
	for (CUstream s = streams; s; s = s->next)
		for (struct op *op = s->head; op; op = op->next)
			if (op->kind == LIST && list_touches(op->from, op->len, va, len)) {
				fprintf(stderr, "fake libcuda: %s of %#llx while a kernel copies a list\n", who, (unsigned long long)va);
				abort();
			} else if (op->kind == COPY && (overlap(op->to, op->len, va, len) || overlap(op->from, op->len, va, len))) {
				fprintf(stderr, "fake libcuda: %s of %#llx while a copy from %#llx to %#llx is in flight\n", who,
					(unsigned long long)va, (unsigned long long)op->from, (unsigned long long)op->to);
				abort();
			}
}

static void *work(void *unused)
{
	(void)unused;
	fake_lock();
	for (;;) {
		int64_t wait = -1;
		for (CUstream s = streams; s; s = s->next) {
			while (s->head && s->head->posted + LINGER_NS <= now() && ready(s->head, false))
				run(s);
			if (s->head)
				wait = LINGER_NS / 2;
		}
		fake_unlock();
		/* The lock is fakemem's own, without a condition variable: sleeps instead. */
		struct timespec t = {0, wait < 0 ? 1000000 : wait};
		nanosleep(&t, NULL);
		fake_lock();
	}
	return NULL;
}

static bool known(CUstream s)
{
	for (CUstream one = streams; one; one = one->next)
		if (one == s)
			return true;
	return false;
}

static CUstream make(CUcontext context)
{
	CUstream s = calloc(1, sizeof *s);
	if (!s)
		return NULL;
	s->context = context;
	s->tail = &s->head;
	s->next = streams;
	streams = s;
	return s;
}

CUstream cuda_stream_of(CUstream s)
{
	if ((uintptr_t)s > 2)
		return known(s) ? s : NULL;
	if (!null_stream)
		null_stream = make(cuda_current());
	return null_stream;
}

struct op *cuda_post(CUstream s, enum op_kind kind)
{
	struct op *op = calloc(1, sizeof *op);
	if (!op)
		return NULL;
	op->kind = kind;
	op->posted = now();
	struct op *last = s->head;
	while (last && last->next)
		last = last->next;
	int64_t from = last && last->due > op->posted ? last->due : op->posted;
	bool copies = kind == COPY || kind == FILL || kind == LIST;
	op->due = from + (copies ? delay() : 0);
	op->refusals = copies && !delay();
	*s->tail = op;
	s->tail = &op->next;
	if (worker != getpid()) {
		pthread_t thread;
		worker = getpid();
		if (pthread_create(&thread, NULL, work, NULL) == 0)
			pthread_detach(thread);
	}
	return op;
}

/* The work of a query: true if the head may run. A copy that was just posted is never ready at the first query. */
static bool look(CUstream s)
{
	if (s->head && s->head->refusals > 0) {
		s->head->refusals--;
		return false;
	}
	advance(s, false);
	return true;
}

API CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
	ENTER(cuStreamCreate);
	NEED_CONTEXT();
	if (flags > 1)
		return CUDA_ERROR_INVALID_VALUE;
	fake_lock();
	*stream = make(cuda_current());
	fake_unlock();
	return *stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
	(void)priority;
	return cuStreamCreate(stream, flags);
}

API CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
	ENTER(cuStreamGetCtx);
	fake_lock();
	CUstream s = (uintptr_t)stream > 2 && known(stream) ? stream : NULL;
	*context = s ? s->context : cuda_current();
	fake_unlock();
	return s || ((uintptr_t)stream <= 2 && *context) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

API CUresult cuStreamDestroy_v2(CUstream stream)
{
	ENTER(cuStreamDestroy_v2);
	fake_lock();
	bool mine = (uintptr_t)stream > 2 && known(stream);
	if (mine) {
		/* The real driver lets the work end later, which no program can see. */
		advance(stream, true);
		for (CUstream *p = &streams; *p; p = &(*p)->next)
			if (*p == stream) {
				*p = stream->next;
				break;
			}
		free(stream);
	}
	fake_unlock();
	return mine ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

API CUresult cuStreamQuery(CUstream stream)
{
	ENTER(cuStreamQuery);
	fake_lock();
	CUstream s = cuda_stream_of(stream);
	CUresult r = !s ? CUDA_ERROR_INVALID_HANDLE : look(s) && !s->head ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
	fake_unlock();
	return r;
}

/* Waits until `s` is empty, or the event has fired; time passes as it does. */
static void wait_for(CUstream s, CUevent event, uint64_t turn)
{
	for (;;) {
		advance(s, delay() == 0);
		if (s ? !s->head : event->fired >= turn)
			return;
		fake_unlock();
		usleep(20);
		fake_lock();
	}
}

API CUresult cuStreamSynchronize(CUstream stream)
{
	ENTER(cuStreamSynchronize);
	fake_lock();
	CUstream s = cuda_stream_of(stream);
	if (s)
		wait_for(s, NULL, 0);
	fake_unlock();
	return s ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

API CUresult cuCtxSynchronize(void)
{
	ENTER(cuCtxSynchronize);
	NEED_CONTEXT();
	fake_lock();
	cuda_drain();
	fake_unlock();
	return CUDA_SUCCESS;
}

API CUresult cuEventCreate(CUevent *event, unsigned flags)
{
	ENTER(cuEventCreate);
	NEED_CONTEXT();
	if (flags > 7)
		return CUDA_ERROR_INVALID_VALUE;
	CUevent e = calloc(1, sizeof *e);
	if (!e)
		return CUDA_ERROR_OUT_OF_MEMORY;
	e->context = cuda_current();
	fake_lock();
	e->next = events;
	events = e;
	fake_unlock();
	*event = e;
	return CUDA_SUCCESS;
}

static bool event_ok(CUevent event)
{
	for (CUevent e = events; e; e = e->next)
		if (e == event)
			return !e->destroyed;
	return false;
}

API CUresult cuEventDestroy_v2(CUevent event)
{
	ENTER(cuEventDestroy_v2);
	fake_lock();
	bool ok = event_ok(event);
	if (ok) {
		event->destroyed = true;
		drop_event(event);
	}
	fake_unlock();
	return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult on_event(CUstream stream, CUevent event, enum op_kind kind)
{
	fake_lock();
	CUstream s = cuda_stream_of(stream);
	CUresult r = CUDA_ERROR_INVALID_HANDLE;
	/* An event is recorded in its own context, and waited for anywhere. */
	if (s && event_ok(event) && (kind == WAIT || s == null_stream || s->context == event->context)) {
		struct op *op = cuda_post(s, kind);
		r = op ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
		if (op) {
			op->event = event;
			op->turn = kind == RECORD ? ++event->recorded : event->recorded;
			event->waiting++;
		}
	}
	fake_unlock();
	return r;
}

API CUresult cuEventRecord(CUevent event, CUstream stream)
{
	ENTER(cuEventRecord);
	return on_event(stream, event, RECORD);
}

API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
	ENTER(cuStreamWaitEvent);
	return flags ? CUDA_ERROR_INVALID_VALUE : on_event(stream, event, WAIT);
}

API CUresult cuEventQuery(CUevent event)
{
	ENTER(cuEventQuery);
	fake_lock();
	CUresult r = CUDA_ERROR_INVALID_HANDLE;
	if (event_ok(event)) {
		if (event->fired < event->recorded)
			for (CUstream s = streams; s; s = s->next)
				for (struct op *op = s->head; op; op = op->next)
					if (op->kind == RECORD && op->event == event) {
						look(s);
						goto looked;
					}
	looked:
		r = event->fired >= event->recorded ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
	}
	fake_unlock();
	return r;
}

API CUresult cuEventSynchronize(CUevent event)
{
	ENTER(cuEventSynchronize);
	fake_lock();
	bool ok = event_ok(event);
	if (ok)
		wait_for(NULL, event, event->recorded);
	fake_unlock();
	return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUdevice cuda_device_of(CUstream s)
{
	return s == null_stream && cuda_current() ? cuda_current()->device : s->context->device;
}
