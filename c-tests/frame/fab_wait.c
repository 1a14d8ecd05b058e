/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Waits for completions and events: see fab_wait.h. */
#include "fab_wait.h"
#include "fab_local.h"
#include "fab_provider.h"

#include <sched.h>

int cq_next(gdrfab_cq *cq, done *entry, int ms)
{
	uint64_t until = test_now_ms() + (uint64_t)test_ms(ms);
	for (;;) {
		ssize_t got = gdrfab_cq_read(cq, entry, 1);
		if (got == 1)
			return 1;
		if (got == -GDRFAB_EAVAIL)
			return -1;
		if (got != -EAGAIN)
			test_fail(__FILE__, __LINE__, "gdrfab_cq_read is %s%s", test_number(got), test_words(got));
		if (test_now_ms() >= until)
			return 0;
		sched_yield();
	}
}

void cq_failure(const char *file, int line, gdrfab_cq *cq, struct failure *f)
{
	memset(f, 0, sizeof *f);
	f->entry.struct_size = sizeof f->entry;
	f->entry.err_data = f->words;
	f->entry.err_data_size = sizeof f->words;
	ssize_t got = gdrfab_cq_readerr(cq, &f->entry, 0);
	if (got != 1)
		test_fail(file, line, "gdrfab_cq_readerr is %s%s", test_number(got), test_words(got));
	f->words[sizeof f->words - 1] = 0;
}

void expect_done(const char *file, int line, gdrfab_cq *cq, const void *context, uint64_t flags, done *entry)
{
	done local;
	struct failure f;
	if (!entry)
		entry = &local;
	test_at(file, line);
	switch (cq_next(cq, entry, 10000)) {
	case 0:
		test_fail(file, line, "no completion within %d ms", test_ms(10000));
	case -1:
		cq_failure(file, line, cq, &f);
		test_fail(file, line, "an error instead of a completion: %s, provider code %d, \"%s\"",
			  test_number(-f.entry.err), f.entry.prov_errno, f.words);
	}
	if (entry->op_context != context)
		test_fail(file, line, "the completion's context is %p, not %p (flags 0x%llx)", entry->op_context,
			  context, (unsigned long long)entry->flags);
	if ((entry->flags & flags) != flags)
		test_fail(file, line, "the completion's flags are 0x%llx, without all of 0x%llx",
			  (unsigned long long)entry->flags, (unsigned long long)flags);
}

void expect_failed(const char *file, int line, gdrfab_cq *cq, const void *context, int err, int prov,
		   struct failure *f)
{
	struct failure local;
	done entry;
	if (!f)
		f = &local;
	test_at(file, line);
	switch (cq_next(cq, &entry, 10000)) {
	case 0:
		test_fail(file, line, "no error entry within %d ms", test_ms(10000));
	case 1:
		test_fail(file, line, "a success (context %p, flags 0x%llx, len %zu) instead of the error %s",
			  entry.op_context, (unsigned long long)entry.flags, entry.len, test_number(-err));
	}
	cq_failure(file, line, cq, f);
	if (!failure_is(&f->entry, err, prov))
		test_fail(file, line, "the error is %s, provider code %d, \"%s\"; not %s, %d",
			  test_number(-f->entry.err), f->entry.prov_errno, f->words, test_number(-err), prov);
	if (f->entry.op_context != context)
		test_fail(file, line, "the error entry's context is %p, not %p", f->entry.op_context, context);
	if (!f->words[0])
		test_fail(file, line, "the error entry (%s) came without words", test_number(-err));
}

int expect_given_up(const char *file, int line, gdrfab_cq *cq, int lists, int err, size_t blocks)
{
	int failed = 0;
	for (int came = 0; came < lists; came++) {
		struct failure f;
		done entry;
		int got = cq_next(cq, &entry, 5000);
		if (got == 0)
			test_fail(file, line, "%d of %d lists that were given up have ended", came, lists);
		if (got > 0)
			continue;
		cq_failure(file, line, cq, &f);
		if (f.entry.err != err || f.entry.block >= blocks)
			test_fail(file, line, "a list that was given up ends with %s at block %zu: %s",
				  test_number(-f.entry.err), f.entry.block, f.words);
		failed++;
	}
	return failed;
}

bool data_takes_receive(const struct node *n)
{
#ifdef GDRFAB_RX_CQ_DATA
	return (n->info->mode & GDRFAB_RX_CQ_DATA) != 0;
#else
	(void)n;
	return false;
#endif
}

void data_room(struct node *n)
{
	if (data_takes_receive(n))
		POST(n->cq, gdrfab_recv(n->ep, NULL, 0, NULL, PEER, n));
}

void expect_data(const char *file, int line, struct node *n, done *entry)
{
	uint64_t flags = GDRFAB_REMOTE_WRITE | GDRFAB_RMA | GDRFAB_REMOTE_CQ_DATA;
	expect_done(file, line, n->cq, data_takes_receive(n) ? n : NULL, flags, entry);
}

uint64_t cq_data(const struct node *n, uint64_t value)
{
	return n->info->cq_data_size < sizeof value ? value & ((1ull << 8 * n->info->cq_data_size) - 1) : value;
}

void expect_quiet(const char *file, int line, gdrfab_cq *cq, int ms)
{
	done entry;
	struct failure f;
	test_at(file, line);
	switch (cq_next(cq, &entry, ms)) {
	case 1:
		test_fail(file, line, "an unexpected completion: context %p, flags 0x%llx, len %zu", entry.op_context,
			  (unsigned long long)entry.flags, entry.len);
	case -1:
		cq_failure(file, line, cq, &f);
		test_fail(file, line, "an unexpected error entry: %s, \"%s\"", test_number(-f.entry.err), f.words);
	}
}

int eq_next(gdrfab_eq *eq, uint32_t *event, struct event *e, struct eq_failure *f)
{
	memset(e, 0, sizeof *e);
	*event = UINT32_MAX;
	ssize_t size = gdrfab_eq_read(eq, event, e, sizeof e->entry + sizeof e->data, 0);
	if (size == -EAGAIN)
		return 0;
	if (size == -GDRFAB_EAVAIL) {
		memset(f, 0, sizeof *f);
		f->entry.struct_size = sizeof f->entry;
		f->entry.err_data = f->data;
		f->entry.err_data_size = sizeof f->data - 1;
		CHECK(gdrfab_eq_readerr(eq, &f->entry, 0) > 0);
		return -1;
	}
	if (size < (ssize_t)sizeof e->entry)
		test_fail(__FILE__, __LINE__, "gdrfab_eq_read is %s%s", test_number(size), test_words(size));
	e->data_len = (size_t)size - sizeof e->entry;
	return 1;
}

void text_both_ways(struct node *n, const char *text)
{
	char out[64] = "", in[64] = "";
	done e;
	CHECK(strlen(text) < sizeof out);
	memcpy(out, text, strlen(text));
	POST(n->cq, gdrfab_recv(n->ep, in, sizeof in, local_desc(n, in, sizeof in), 0, in));
	POST(n->cq, gdrfab_send(n->ep, out, sizeof out, local_desc(n, out, sizeof out), 0, out));
	for (int i = 0; i < 2; i++)
		CHECK_EQ(cq_next(n->cq, &e, 10000), 1);
	CHECK_EQ(strcmp(in, out), 0);
}

int rail_rounds(int usual)
{
	const char *text = getenv("TEST_RAIL_ROUNDS");
	return text && *text ? atoi(text) : usual;
}

void rails_told(struct node *n, struct rail_news *news, const char *words)
{
	struct eq_failure f;
	struct event e;
	uint32_t event;
	int got;
	while ((got = eq_next(n->eq, &event, &e, &f)) != 0) {
		CHECK_EQ(got < 0 ? f.entry.data : event, GDRFAB_NOTIFY);
		if (got > 0) {
			news->back++;
			continue;
		}
		CHECK(f.entry.object == n->ep && f.entry.err != 0);
		CHECK(test_says((const char *)f.data, words));
		news->lost++;
	}
}

void expect_event(const char *file, int line, gdrfab_eq *eq, uint32_t event, const void *object, struct event *out)
{
	struct event local;
	uint32_t got = UINT32_MAX;
	if (!out)
		out = &local;
	memset(out, 0, sizeof *out);
	test_at(file, line);
	ssize_t size;
	while ((size = gdrfab_eq_sread(eq, &got, out, sizeof out->entry + sizeof out->data, test_ms(10000), 0)) < 0) {
		if (size == -EINTR)
			continue;
		if (size != -GDRFAB_EAVAIL)
			break;
		struct eq_failure f;
		memset(&f, 0, sizeof f);
		f.entry.struct_size = sizeof f.entry;
		f.entry.err_data = f.data;
		f.entry.err_data_size = sizeof f.data - 1;
		gdrfab_eq_readerr(eq, &f.entry, 0);
		/* A peer that dies loses its rails one after the other: such reports may precede GDRFAB_SHUTDOWN. */
		if (event != GDRFAB_SHUTDOWN || f.entry.data != GDRFAB_NOTIFY)
			test_fail(file, line, "an error instead of event %u: %s, provider code %d, \"%s\"", event,
				  test_number(-f.entry.err), f.entry.prov_errno, (const char *)f.data);
	}
	if (size < 0)
		test_fail(file, line, "no event %u: gdrfab_eq_sread is %s%s", event, test_number(size),
			  test_words(size));
	if (got != event)
		test_fail(file, line, "event %u, not %u", got, event);
	if ((size_t)size < sizeof out->entry)
		test_fail(file, line, "event %u is only %zd bytes", event, size);
	out->data_len = (size_t)size - sizeof out->entry;
	if (object && out->entry.object != object)
		test_fail(file, line, "event %u is about %p, not %p", event, out->entry.object, object);
}

void expect_eq_failure(const char *file, int line, gdrfab_eq *eq, const void *object, int err, int ms,
		       struct eq_failure *out)
{
	struct eq_failure local;
	struct event unwanted;
	uint32_t event = UINT32_MAX;
	if (!out)
		out = &local;
	test_at(file, line);
	ssize_t size;
	do
		size = gdrfab_eq_sread(eq, &event, &unwanted, sizeof unwanted.entry + sizeof unwanted.data, test_ms(ms), 0);
	while (size == -EINTR);
	if (size >= 0)
		test_fail(file, line, "event %u instead of the error %s", event, test_number(-err));
	if (size != -GDRFAB_EAVAIL)
		test_fail(file, line, "no error event: gdrfab_eq_sread is %s%s", test_number(size), test_words(size));
	memset(out, 0, sizeof *out);
	out->entry.struct_size = sizeof out->entry;
	out->entry.err_data = out->data;
	out->entry.err_data_size = sizeof out->data;
	size = gdrfab_eq_readerr(eq, &out->entry, 0);
	if (size <= 0)
		test_fail(file, line, "gdrfab_eq_readerr is %s%s", test_number(size), test_words(size));
	if (out->entry.err != err)
		test_fail(file, line, "the error event is %s, provider code %d, not %s", test_number(-out->entry.err),
			  out->entry.prov_errno, test_number(-err));
	if (object && out->entry.object != object)
		test_fail(file, line, "the error event is about %p, not %p", out->entry.object, object);
}
