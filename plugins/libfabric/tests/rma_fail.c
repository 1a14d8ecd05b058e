/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Accesses that the target must refuse: the operation fails with a reason, and the memory is unchanged. */
#include "fi.h"

#define LEN 8192

/* The region that the target offers, and the access to it. */
enum wrong { KEY, CLOSED, BEYOND, BEFORE, NO_WRITE, NO_READ, OVERFLOW, WRONGS };
static const char *const wrong_name[WRONGS] = {
	"wrong_key",	   "closed_region",  "beyond_its_end",	 "before_its_start",
	"write_forbidden", "read_forbidden", "address_overflow",
};

static struct remote bend(enum wrong wrong, struct remote r)
{
	switch (wrong) {
	case KEY: r.key ^= 0x5a5a00; break;
	case BEYOND: r.base += LEN - 4; break;
	case BEFORE: r.base -= 4; break;
	case OVERFLOW: r.base = UINT64_MAX - 3; break;
	default: break;
	}
	return r;
}

static void reconnect(struct node *n)
{
	barrier(n);
	CLOSE(n->ep);
	barrier(n);
	uint32_t event;
	struct fi_eq_cm_entry room;
	/* The end of the old connection may or may not have been noticed. */
	while (fi_eq_read(n->eq, &event, &room, sizeof room, 0) > 0)
		CHECK_EQ(event, FI_SHUTDOWN);
	barrier(n);
	n->ep = node_connect(n, n);
}

static void check_words(struct node *n, const struct failure *f, const void *context)
{
	char text[256] = "";
	CHECK(f->entry.op_context == context);
	if (!is_gdrfab())
		return;
	CHECK(f->words[0] != 0);
	/* Without the entry's data there is a text as well. */
	const char *plain = fi_cq_strerror(n->cq, f->entry.prov_errno, NULL, text, sizeof text);
	CHECK(plain && *plain);
	/* The text is cut to the buffer. */
	memset(text, 0x5a, sizeof text);
	fi_cq_strerror(n->cq, f->entry.prov_errno, NULL, text, 8);
	CHECK(memchr(text, 0, 8) != NULL);
	CHECK_EQ(text[8], 0x5a);
}

static void prober(struct node *n)
{
	enum wrong wrong = *(const enum wrong *)n->arg;
	unsigned char at[64];
	struct failure f;
	node_up(n);
	void *desc = local_desc(n, at, sizeof at);
	for (int reads = 0; reads < 2; reads++) {
		struct remote r = mr_fetch(n);
		barrier(n);
		if ((wrong == NO_WRITE && reads) || (wrong == NO_READ && !reads))
			continue;
		struct remote bad = bend(wrong, r);
		memset(at, 0x77, sizeof at);
		if (reads)
			POST(n->cq, fi_read(n->ep, at, 64, desc, 0, bad.base, bad.key, &at[1]));
		else
			POST(n->cq, fi_write(n->ep, at, 64, desc, 0, bad.base, bad.key, &at[1]));
		FAILED(n->cq, &at[1], 0, &f);
		if (is_gdrfab())
			CHECK_EQ(f.entry.flags & (FI_READ | FI_WRITE | FI_RMA), (reads ? FI_READ : FI_WRITE) | FI_RMA);
		check_words(n, &f, &at[1]);
		for (size_t i = 0; i < sizeof at; i++)
			CHECK_EQ(at[i], 0x77);
		barrier(n);
		if (!survives_failures()) {
			reconnect(n);
			continue;
		}
		/* The connection works as before. */
		POST(n->cq, fi_send(n->ep, at, 8, desc, 0, at));
		DONE(n->cq, at, FI_SEND | FI_MSG, NULL);
		barrier(n);
	}
	node_down(n);
}

static void guarded(struct node *n)
{
	enum wrong wrong = *(const enum wrong *)n->arg;
	unsigned char *at = (unsigned char *)pages(3 * LEN), note[8];
	struct fid_mr *mr;
	node_up(n);
	for (int reads = 0; reads < 2; reads++) {
		uint64_t access = wrong == NO_WRITE ? FI_REMOTE_READ
				  : wrong == NO_READ ? FI_REMOTE_WRITE
						     : FI_REMOTE_READ | FI_REMOTE_WRITE;
		memset(at, 0x5a, 3 * LEN);
		/* The neighbouring memory allows all access. */
		mr = mr_new(n, at + LEN, LEN, access);
		mr_publish(n, mr, at + LEN, LEN);
		if (wrong == CLOSED)
			CLOSE(mr);
		if (survives_failures())
			POST(n->cq, fi_recv(n->ep, note, 8, local_desc(n, note, 8), 0, note));
		barrier(n);
		if ((wrong == NO_WRITE && reads) || (wrong == NO_READ && !reads)) {
			CLOSE(mr);
			continue;
		}
		barrier(n);
		for (size_t i = 0; i < 3 * LEN; i++)
			CHECK_EQ(at[i], 0x5a);
		if (survives_failures()) {
			DONE(n->cq, note, FI_RECV | FI_MSG, NULL);
			barrier(n);
		} else {
			reconnect(n);
		}
		if (wrong != CLOSED)
			CLOSE(mr);
	}
	/* Operations that are still posted belong to the closing endpoint. */
	barrier(n);
	CLOSE(n->ep);
	n->ep = NULL;
	node_close(n);
	free(at);
}

static void wrong_claim(const void *arg)
{
	skip_unless(is_gdrfab(), "a refused access ends both sides at once");
	pair(NULL, guarded, prober, arg);
}

TEST_TABLE(wrongs)
{
	static const enum wrong all[WRONGS] = {KEY, CLOSED, BEYOND, BEFORE, NO_WRITE, NO_READ, OVERFLOW};
	for (size_t i = 0; i < WRONGS; i++)
		test_add(wrong_name[i], wrong_claim, &all[i], 20);
}

/* --- the contents of the error entry --- */

/* err_data in both forms: the provider's memory, valid until the next read; or copied into the caller's buffer,
 * never beyond it. */
static void reader_of_errors(struct node *n)
{
	unsigned char at[64] = {0}, room[512];
	struct fi_cq_err_entry e;
	done entry;
	node_up(n);
	void *desc = local_desc(n, at, sizeof at);
	struct remote r = mr_fetch(n);
	size_t sizes[] = {0, sizeof room, 5};
	for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
		POST(n->cq, fi_write(n->ep, at, 64, desc, 0, r.base, r.key ^ 0xff00, &at[i]));
		CHECK_EQ(cq_next(n->cq, &entry, 10000), -1);
		/* Until the error is read, nothing else can be read. */
		CHECK_EQ(fi_cq_read(n->cq, &entry, 1), -FI_EAVAIL);
		memset(&e, 0, sizeof e);
		memset(room, 0x5a, sizeof room);
		if (sizes[i])
			e.err_data = room;
		e.err_data_size = sizes[i];
		CHECK_EQ(fi_cq_readerr(n->cq, &e, 0), 1);
		CHECK(e.op_context == &at[i]);
		CHECK(e.err > 0);
		CHECK_EQ(e.flags, FI_WRITE | FI_RMA);
		if (sizes[i]) {
			CHECK(e.err_data == room);
			CHECK(e.err_data_size <= sizes[i]);
			for (size_t b = e.err_data_size; b < sizeof room; b++)
				CHECK_EQ(room[b], 0x5a);
		} else {
			CHECK(e.err_data_size == 0 || e.err_data != NULL);
		}
		if (i == 0 && e.err_data_size == 0)
			break;
		CHECK(e.err_data_size > 0 && e.err_data_size <= n->info->domain_attr->max_err_data);
		/* The data is text, or strerror converts it. */
		char text[512] = "";
		const char *words = fi_cq_strerror(n->cq, e.prov_errno, e.err_data, text, sizeof text);
		CHECK(words && *words);
		if (!survives_failures())
			break;
	}
	/* No error is read twice. */
	memset(&e, 0, sizeof e);
	CHECK_EQ(fi_cq_readerr(n->cq, &e, 0), -FI_EAGAIN);
	node_down(n);
}

static void refusing(struct node *n)
{
	unsigned char *at = (unsigned char *)pages(4096);
	node_up(n);
	struct fid_mr *mr = mr_new(n, at, 4096, FI_REMOTE_READ | FI_REMOTE_WRITE);
	mr_publish(n, mr, at, 4096);
	barrier(n);
	CLOSE(mr);
	node_close(n);
	free(at);
}

TEST(error_data)
{
	skip_unless(is_gdrfab(), "gives no data of errors");
	pair(NULL, refusing, reader_of_errors, NULL);
}

/* Failures and successes come in the order of posting, each with its own context. */
static void mixed(struct node *n)
{
	unsigned char at[64] = {0};
	struct failure f;
	node_up(n);
	void *desc = local_desc(n, at, sizeof at);
	struct remote r = mr_fetch(n);
	skip_unless(survives_failures(), "a refused access ends the connection");
	for (int i = 0; i < 60; i++)
		POST(n->cq, fi_write(n->ep, &at[i], 1, desc, 0, r.base + (size_t)i,
				     i % 3 == 1 ? r.key ^ 0xff00 : r.key, &at[i]));
	for (int i = 0; i < 60; i++) {
		if (i % 3 == 1) {
			FAILED(n->cq, &at[i], 0, &f);
			check_words(n, &f, &at[i]);
		} else {
			DONE(n->cq, &at[i], FI_WRITE | FI_RMA, NULL);
		}
	}
	node_down(n);
}

TEST(among_others)
{
	skip_unless(is_gdrfab() && survives_failures(), "a refused access ends the connection");
	pair(NULL, refusing, mixed, NULL);
}
