/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Waits for completions and for events, with a time limit; a failure names the entry that came instead. */
#include "fi.h"

#include <rdma/fi_eq.h>
#include <sched.h>

static const char *flags_text(uint64_t flags)
{
	static __thread char text[3][256];
	static __thread unsigned next;
	char *to = text[next++ % 3];
	if (!fi_tostr_r(to, sizeof text[0], &flags, FI_TYPE_CQ_EVENT_FLAGS))
		to[0] = 0;
	size_t used = strlen(to);
	snprintf(to + used, sizeof text[0] - used, " (0x%llx)", (unsigned long long)flags);
	return to;
}

static void breathe(int *turn)
{
	if (++*turn < 2000)
		sched_yield();
	else
		usleep(50);
}

int cq_next(struct fid_cq *cq, done *entry, int ms)
{
	uint64_t until = test_now_ms() + (uint64_t)test_ms(ms);
	for (int turn = 0;;) {
		memset(entry, 0, sizeof *entry);
		ssize_t got = fi_cq_read(cq, entry, 1);
		if (got == 1)
			return 1;
		if (got == -FI_EAVAIL)
			return -1;
		if (got != -FI_EAGAIN)
			test_fail(__FILE__, __LINE__, "fi_cq_read is %s", test_number(got));
		if (test_now_ms() >= until)
			return 0;
		breathe(&turn);
	}
}

void cq_failure(const char *file, int line, struct fid_cq *cq, struct failure *f)
{
	test_at(file, line);
	memset(f, 0, sizeof *f);
	ssize_t got = fi_cq_readerr(cq, &f->entry, 0);
	if (got != 1)
		test_fail(file, line, "fi_cq_readerr is %s, not 1", test_number(got));
	/* Read at once, because err_data is valid only until the next read. */
	const char *text =
		fi_cq_strerror(cq, f->entry.prov_errno, f->entry.err_data, f->words, sizeof f->words);
	if (!text)
		test_fail(file, line, "fi_cq_strerror gives no text");
	if (text != f->words)
		snprintf(f->words, sizeof f->words, "%s", text);
}

static __attribute__((noreturn)) void failed_instead(const char *file, int line, struct fid_cq *cq)
{
	struct failure f;
	cq_failure(file, line, cq, &f);
	test_fail(file, line, "the operation with context %p failed: %s, prov_errno %d (\"%s\"), flags %s",
		  f.entry.op_context, test_number(-f.entry.err), f.entry.prov_errno, f.words,
		  flags_text(f.entry.flags));
}

void expect_done(const char *file, int line, struct fid_cq *cq, const void *context, uint64_t flags, done *entry)
{
	done local;
	if (!entry)
		entry = &local;
	test_at(file, line);
	int came = cq_next(cq, entry, 10000);
	if (came == 0)
		test_fail(file, line, "no completion within 10 s; wanted %s", flags_text(flags));
	if (came < 0)
		failed_instead(file, line, cq);
	if (entry->op_context != context)
		test_fail(file, line, "a completion with context %p, not %p; flags %s, not %s", entry->op_context,
			  context, flags_text(entry->flags), flags_text(flags));
	if (entry->flags != flags)
		test_fail(file, line, "a completion with flags %s, not %s", flags_text(entry->flags),
			  flags_text(flags));
}

void expect_failed(const char *file, int line, struct fid_cq *cq, const void *context, int err, struct failure *f)
{
	struct failure local;
	done entry;
	if (!f)
		f = &local;
	test_at(file, line);
	int came = cq_next(cq, &entry, 10000);
	if (came == 0)
		test_fail(file, line, "no failure within 10 s; wanted %s", test_number(-err));
	if (came > 0)
		test_fail(file, line, "the operation with context %p succeeded (%s, %zu bytes); wanted %s",
			  entry.op_context, flags_text(entry.flags), entry.len, test_number(-err));
	cq_failure(file, line, cq, f);
	if (f->entry.op_context != context)
		test_fail(file, line, "a failure (%s, \"%s\") with context %p, not %p", test_number(-f->entry.err),
			  f->words, f->entry.op_context, context);
	if (f->entry.err <= 0 || (err && f->entry.err != err))
		test_fail(file, line, "the failure is %s (\"%s\"), not %s", test_number(-f->entry.err), f->words,
			  test_number(-err));
}

void expect_quiet(const char *file, int line, struct fid_cq *cq, int ms)
{
	done entry;
	test_at(file, line);
	int came = cq_next(cq, &entry, ms);
	if (came < 0)
		failed_instead(file, line, cq);
	if (came > 0)
		test_fail(file, line, "a completion that nobody asked for: context %p, flags %s, %zu bytes",
			  entry.op_context, flags_text(entry.flags), entry.len);
}

/* --- events --- */

union event_room {
	struct fi_eq_cm_entry cm;
	struct fi_eq_entry entry;
	unsigned char bytes[sizeof(struct fi_eq_cm_entry) + DATA_MAX];
};

static void read_eq_failure(const char *file, int line, struct fid_eq *eq, struct eq_failure *f)
{
	memset(f, 0, sizeof *f);
	f->entry.err_data = f->data;
	f->entry.err_data_size = sizeof f->data;
	ssize_t got = fi_eq_readerr(eq, &f->entry, 0);
	if (got != (ssize_t)sizeof f->entry)
		test_fail(file, line, "fi_eq_readerr is %s, not %zu", test_number(got), sizeof f->entry);
	if (f->entry.err_data_size > sizeof f->data)
		test_fail(file, line, "fi_eq_readerr gives %zu bytes of data for %zu", f->entry.err_data_size,
			  sizeof f->data);
	if (f->entry.err_data && f->entry.err_data != f->data)
		memcpy(f->data, f->entry.err_data, f->entry.err_data_size);
	const char *text =
		fi_eq_strerror(eq, f->entry.prov_errno, f->entry.err_data, f->words, sizeof f->words);
	if (text && text != f->words)
		snprintf(f->words, sizeof f->words, "%s", text);
}

/* Returns the bytes read, -FI_EAVAIL, or 0 if nothing came within ms. Polls, because not every event queue has a
 * wait object. */
static ssize_t eq_next(struct node *n, uint32_t *event, union event_room *room, int ms)
{
	uint64_t until = test_now_ms() + (uint64_t)test_ms(ms);
	for (int turn = 0;;) {
		memset(room, 0, sizeof *room);
		ssize_t got = fi_eq_read(n->eq, event, room, sizeof *room, 0);
		if (got > 0 || got == -FI_EAVAIL)
			return got;
		if (got != -FI_EAGAIN)
			test_fail(__FILE__, __LINE__, "fi_eq_read is %s", test_number(got));
		if (test_now_ms() >= until)
			return 0;
		if (n->cq)
			fi_cq_read(n->cq, NULL, 0);
		breathe(&turn);
	}
}

void expect_event(const char *file, int line, struct node *n, uint32_t event, const void *fid, struct event *out)
{
	union event_room room;
	struct eq_failure f;
	uint32_t came = ~0u;
	test_at(file, line);
	ssize_t got = eq_next(n, &came, &room, 10000);
	if (got == 0)
		test_fail(file, line, "no event within 10 s; wanted %s", fi_tostr(&event, FI_TYPE_EQ_EVENT));
	if (got == -FI_EAVAIL) {
		read_eq_failure(file, line, n->eq, &f);
		test_fail(file, line, "an error event instead of %s: %s, prov_errno %d (\"%s\")",
			  fi_tostr(&event, FI_TYPE_EQ_EVENT), test_number(-f.entry.err), f.entry.prov_errno, f.words);
	}
	if (came != event)
		test_fail(file, line, "event %u, not %u (%s)", came, event, fi_tostr(&event, FI_TYPE_EQ_EVENT));
	if ((const void *)room.cm.fid != fid)
		test_fail(file, line, "%s of another object (%p, not %p)", fi_tostr(&event, FI_TYPE_EQ_EVENT),
			  (void *)room.cm.fid, fid);
	if ((size_t)got < sizeof room.cm)
		test_fail(file, line, "an event of %zd bytes", got);
	if (!out)
		return;
	memset(out, 0, sizeof *out);
	out->info = room.cm.info;
	out->data_len = (size_t)got - sizeof room.cm;
	memcpy(out->data, room.cm.data, out->data_len);
}

void expect_eq_failure(const char *file, int line, struct node *n, const void *fid, int err, int ms,
		       struct eq_failure *out)
{
	union event_room room;
	struct eq_failure local;
	uint32_t came = ~0u;
	test_at(file, line);
	if (!out)
		out = &local;
	ssize_t got = eq_next(n, &came, &room, ms);
	if (got == 0)
		test_fail(file, line, "no error event within %d ms; wanted %s", ms, test_number(-err));
	if (got > 0)
		test_fail(file, line, "event %u instead of an error; wanted %s", came, test_number(-err));
	/* The event stays in the queue until it is read. */
	got = fi_eq_read(n->eq, &came, &room, sizeof room, 0);
	if (got != -FI_EAVAIL)
		test_fail(file, line, "fi_eq_read before fi_eq_readerr is %s, not -FI_EAVAIL", test_number(got));
	read_eq_failure(file, line, n->eq, out);
	if ((const void *)out->entry.fid != fid)
		test_fail(file, line, "an error (%s) of another object", test_number(-out->entry.err));
	if (out->entry.err != err)
		test_fail(file, line, "the error is %s (\"%s\"), not %s", test_number(-out->entry.err), out->words,
			  test_number(-err));
}

void expect_no_event(const char *file, int line, struct node *n, int ms)
{
	union event_room room;
	struct eq_failure f;
	uint32_t came = ~0u;
	test_at(file, line);
	ssize_t got = eq_next(n, &came, &room, ms);
	if (got > 0)
		test_fail(file, line, "event %u that nobody expects", came);
	if (got < 0) {
		read_eq_failure(file, line, n->eq, &f);
		test_fail(file, line, "an error event that nobody expects: %s (\"%s\")", test_number(-f.entry.err),
			  f.words);
	}
}
