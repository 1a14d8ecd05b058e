/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Error entries of a completion queue: each operation has one, with a text, and it blocks the queue until it is read. */
#include "fab.h"

static const char hasty_writes[] = "a write has ended well before it is refused";

static void error_target(struct node *n)
{
	struct mem m;
	node_up(n);
	skip_unless(tells_failed_writes(n), hasty_writes);
	mem_new(n, &m, &memkinds[KIND_MEM_ALLOC], 4096);
	mem_register(n, &m, 0, 4096, REMOTE_ACCESS, 0);
	mem_publish(n, &m);
	follow_recovery(n);
	mem_end(n, &m);
	node_down(n);
}

static void error_reader(struct node *n)
{
	char word[8] = "word", words[200], cut[8], text[200];
	node_up(n);
	skip_unless(tells_failed_writes(n), hasty_writes);
	struct remote to = mem_fetch(n);
	gdrfab_cq_err_entry e;
	memset(&e, 0, sizeof e);
	e.struct_size = sizeof e;
	CHECK_EQ(gdrfab_cq_readerr(n->cq, &e, 0), -EAGAIN);

	for (int round = 0; round < 3; round++) {
		OK(gdrfab_write(n->ep, word, 8, local_desc(n, word, 8), 0, to.base + 4090, to.key, word));
		done unread;
		CHECK_EQ(cq_next(n->cq, &unread, 10000), -1);
		/* The error blocks the queue until it is read. */
		CHECK_EQ(gdrfab_cq_read(n->cq, &unread, 1), -GDRFAB_EAVAIL);
		CHECK_EQ(gdrfab_cq_sread(n->cq, &unread, 1, 0), -GDRFAB_EAVAIL);
		CHECK_EITHER(gdrfab_cq_read(n->cq, NULL, 0), -GDRFAB_EAVAIL, 0);
		if (traits()->survives_failures)
			POST(n->cq, gdrfab_write(n->ep, word, 8, local_desc(n, word, 8), 0, to.base, to.key, NULL));
		CHECK_EQ(gdrfab_cq_read(n->cq, &unread, 1), -GDRFAB_EAVAIL);
		memset(&e, 0, sizeof e);
		memset(words, 'x', sizeof words);
		memset(cut, 'x', sizeof cut);
		e.struct_size = sizeof e;
		e.err_data = round == 0 ? words : round == 1 ? cut : NULL;
		e.err_data_size = round == 0 ? sizeof words : round == 1 ? 5 : 0;
		CHECK_EQ(gdrfab_cq_readerr(n->cq, &e, 0), 1);
		CHECK(e.op_context == word);
		CHECK(failure_is(&e, ERANGE, GDRFAB_PROV_BOUNDS));
		CHECK_EQ(e.flags & (GDRFAB_WRITE | GDRFAB_RMA), GDRFAB_WRITE | GDRFAB_RMA);
		if (round == 0) {
			CHECK(e.err_data == words);
			CHECK(e.err_data_size > 1 && e.err_data_size <= sizeof words);
			CHECK_EQ(words[e.err_data_size - 1], 0);
			CHECK_EQ(strlen(words), e.err_data_size - 1);
			if (e.err_data_size < sizeof words)
				CHECK_EQ(words[e.err_data_size], 'x');
		} else if (round == 1) {
			CHECK_EQ(e.err_data_size, 5);
			CHECK_EQ(cut[4], 0);
			CHECK_EQ(cut[5], 'x');
		} else {
			CHECK_EQ(e.err_data_size, 0);
		}
		const char *said = gdrfab_cq_strerror(n->cq, e.prov_errno, e.err_data, text, sizeof text);
		CHECK(said && *said);
		CHECK_EQ(strlen(text) < sizeof text, 1);
		if (traits()->survives_failures)
			DONE(n->cq, NULL, GDRFAB_WRITE, NULL);
		lead_recovery(n);
	}
	CHECK(gdrfab_cq_strerror(n->cq, 123456, NULL, text, sizeof text) != NULL);
	CHECK(gdrfab_cq_strerror(n->cq, GDRFAB_PROV_KEY, NULL, NULL, 0) != NULL);
	/* Errors between successes: each operation ends once, with its own result. */
	static char many[10];
	unsigned ended = 0;
	bool survives = traits()->survives_failures;
	for (int i = 0; i < 10; i++) {
		uint64_t key = i % 2 ? wrong_key(to.key) : to.key;
		ssize_t rc = gdrfab_write(n->ep, word, 8, local_desc(n, word, 8), 0, to.base, key, &many[i]);
		/* The first operation has failed already. */
		if (rc == -ESHUTDOWN && !survives && i > 1) {
			ended = ~0u << i;
			break;
		}
		OK(rc);
	}
	while ((ended & 1023) != 1023) {
		done entry;
		struct failure f;
		int next = cq_next(n->cq, &entry, 10000);
		CHECK(next != 0);
		if (next == -1)
			cq_failure(__FILE__, __LINE__, n->cq, &f);
		ptrdiff_t which = (char *)(next == 1 ? entry.op_context : f.entry.op_context) - many;
		CHECK(which >= 0 && which < 10);
		CHECK_EQ(ended >> which & 1, 0);
		if (next == -1)
			CHECK(which == 1 || (survives ? which % 2 : flushed(&f.entry)));
		else
			CHECK(survives ? which % 2 == 0 : which == 0);
		ended |= 1u << which;
	}
	lead_no_more(n);
	node_down(n);
}

TEST(error_entries)
{
	pair(NULL, error_target, error_reader, NULL);
}
