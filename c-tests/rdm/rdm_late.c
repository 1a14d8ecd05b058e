/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A late receiver: a hundred thousand messages of eight pieces wait at their sender, and all arrive in order. Meanwhile the
 * sender's program can register all regions that domain_attr promises it. The same with these regions registered before.
 */
#include "fab_rdm.h"

#include <stdlib.h>

enum { PIECES = 8, AT_ONCE = 1000 };

static char room[PIECES][4096];

/* Waits for entries of this side's operations, all successful. */
static int ended(struct self *s)
{
	gdrfab_cq_tagged_entry e[16];
	ssize_t n = gdrfab_cq_read(s->cq, e, 16);
	if (n == -GDRFAB_EAVAIL) {
		char words[256] = "";
		gdrfab_cq_err_entry x = {.struct_size = sizeof x, .err_data = words, .err_data_size = sizeof words - 1};
		CHECK_EQ(gdrfab_cq_readerr(s->cq, &x, 0), 1);
		test_fail(__FILE__, __LINE__, "an operation failed: %d %s", x.err, words);
	}
	CHECK(n > 0 || n == -EAGAIN);
	return n > 0 ? (int)n : 0;
}

/* Posts the messages from `first` on; the number of a message is its tag. */
static void post_all(struct self *s, int to, int first, int last, size_t len, int *done)
{
	struct iovec iov[PIECES];
	for (int k = 0; k < PIECES; k++)
		iov[k].iov_base = room[k], iov[k].iov_len = len;
	for (int i = first; i < last; i++) {
		OK(gdrfab_tsendv(s->ep, iov, NULL, PIECES, (uint64_t)to, (uint64_t)i, NULL));
		if (i % 64 == 0)
			*done += ended(s);
	}
}

static void send_all(struct self *s, int count, int done)
{
	uint64_t until = test_now_ms() + (uint64_t)test_ms(50000);
	while (done < count && test_now_ms() < until)
		done += ended(s);
	CHECK_EQ(done, count);
}

/* Receives `count` messages of any tag: the n-th receive gets the n-th message. Entries may come in any order. */
static void receive_all(struct self *s, int count, size_t len)
{
	char *in = (char *)malloc(PIECES * len);
	gdrfab_cq_tagged_entry e;
	CHECK(in != NULL);
	for (int posted = 0, came = 0; came < count;) {
		for (; posted < count && posted - came < AT_ONCE; posted++)
			OK(gdrfab_trecv(s->ep, in, PIECES * len, NULL, GDRFAB_ADDR_UNSPEC, 0, ~0ull, context_of((uintptr_t)posted)));
		ssize_t n = gdrfab_cq_read(s->cq, &e, 1);
		CHECK(n == 1 || n == -EAGAIN);
		if (n == 1) {
			CHECK_EQ(e.len, PIECES * len);
			CHECK(context_of((uintptr_t)e.tag) == e.op_context);
			came++;
		}
	}
	free(in);
}

static void waits_at_its_sender(struct self *s)
{
	int count = test_count(100000, 3000), done = 0;
	if (s->rank == 0) {
		gdrfab_mr *mr;
		tsend(s, 1, "here", 4, 0, 1);
		await(s, 1, NULL);
		post_all(s, 1, 0, count, 8, &done);
		for (int i = 0; i < 100; i++)
			done += ended(s);
		/* The receiver is late; this side continues posting. */
		OK(gdrfab_mr_reg(s->domain, room, sizeof room, GDRFAB_REMOTE_WRITE, 0, 0, 0, NULL, &mr));
		OK(gdrfab_mr_close(mr));
		put_number(s, 1, 1);
		send_all(s, count, done);
	} else {
		char word[8];
		trecv(s, 0, word, 8, 0, 0, 1);
		await(s, 1, NULL);
		while (!get_number(s, 1))
			gdrfab_cq_read(s->cq, NULL, 0);
		receive_all(s, count, 8);
	}
	meet(s);
}

/* The program holds all regions that it may have: messages that cannot be sent at once need further ones. */
static void beside_all_regions(struct self *s)
{
	enum { COUNT = 3000, LONG = 2000 };
	size_t most = test_count(0, 1) ? 2000 : s->info->mr_cnt < 300000 ? s->info->mr_cnt : 300000;
	int done = 0;
	if (s->rank == 0) {
		gdrfab_mr **mrs = (gdrfab_mr **)calloc(most, sizeof(gdrfab_mr *)), *more = NULL;
		CHECK(mrs != NULL);
		for (size_t i = 0; i < most; i++)
			OK(gdrfab_mr_reg(s->domain, room, 64, GDRFAB_REMOTE_READ, 0, i, 0, NULL, &mrs[i]));
		if (most == s->info->mr_cnt)
			CHECK_EQ(gdrfab_mr_reg(s->domain, room, 64, GDRFAB_REMOTE_READ, 0, most, 0, NULL, &more), -ENOSPC);
		post_all(s, 1, 0, COUNT, LONG, &done);
		put_number(s, 1, 1);
		send_all(s, COUNT, done);
		for (size_t i = 0; i < most; i++)
			OK(gdrfab_mr_close(mrs[i]));
		free(mrs);
	} else {
		while (!get_number(s, 1))
			gdrfab_cq_read(s->cq, NULL, 0);
		receive_all(s, COUNT, LONG);
	}
	meet(s);
}

/* Late peers do not delay a peer that is not late. */
static void beside_others_that_are_late(struct self *s)
{
	enum { COUNT = 8000, LONG = 2000, LAST = 3, PROMPT = 50 };
	int count = test_count(COUNT, 500), done = 0;
	if (s->rank == 0) {
		for (int to = 1; to < LAST; to++)
			post_all(s, to, 0, count, LONG, &done);
		for (int i = 0; i < PROMPT; i++) {
			int before = done;
			post_all(s, LAST, i, i + 1, LONG, &done);
			while (done == before)
				done += ended(s);
		}
		put_number(s, 1, 1);
		send_all(s, 2 * count + PROMPT, done);
	} else if (s->rank == LAST) {
		receive_all(s, PROMPT, LONG);
	} else {
		while (!get_number(s, 1))
			gdrfab_cq_read(s->cq, NULL, 0);
		receive_all(s, count, LONG);
	}
	meet(s);
}

TEST_TABLE(claims)
{
	static const struct rdm_claim both[] = {{"waits_at_its_sender", waits_at_its_sender, 2, false},
						{"beside_all_regions", beside_all_regions, 2, false}};
	static const struct rdm_claim bare[] = {{"beside_others_that_are_late", beside_others_that_are_late, 4, false}};
	/* The sender keeps late messages above its lanes: a memory checker needs one. */
	if (test_checked())
		rdm_add(both, sizeof both / sizeof *both);
	else
		rdm_add_both(both, sizeof both / sizeof *both);
	rdm_add(bare, sizeof bare / sizeof *bare);
}
