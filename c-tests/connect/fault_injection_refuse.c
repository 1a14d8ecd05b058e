/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Fault injection (GDRFAB_FAULT): refused registrations, transfers a few bytes at a time, and malformed values.
 */
#include "fault_injection.h"

/* --- registrations that are refused --- */

static void explained(const struct mem *m, const char *word)
{
	char text[4096];
	CHECK(gdrfab_mr_explain(m->mr, text, sizeof text) > 0);
	/* If registration succeeded before it came to this step, the explanation says so. */
	if (!strstr(text, word) && !strstr(text, "not tried"))
		test_fail(__FILE__, __LINE__, "nothing of %s in: %s", word, text);
}

static void refused(const void *arg)
{
	const struct way *way = (const struct way *)arg;
	char word[64];
	struct node n;
	struct mem m;
	gdrfab_mr_info info;
	snprintf(word, sizeof word, "GDRFAB_FAULT=refuse=%s", way->path->name);
	faults("refuse=%s", way->path->name);
	node_alone(&n, NULL);
	mem_new(&n, &m, way->kind, LEN);
	/* If no other path is permitted, registration fails with the reason. */
	CHECK_EQ(mem_try_register(&n, &m, 0, LEN, ANY_ACCESS, way->path->bit, 0), -EIO);
	CHECK(strstr(gdrfab_last_error(), word) != NULL);
	CHECK(m.mr == NULL);
	/* The next best path is used. If there is none, the errno is of the last step, and the text tells all steps. */
	int rc = mem_try_register(&n, &m, 0, LEN, ANY_ACCESS, 0, 0);
	if (rc != 0) {
		CHECK(strstr(gdrfab_last_error(), word) != NULL);
	} else {
		memset(&info, 0, sizeof info);
		info.struct_size = sizeof info;
		OK(gdrfab_mr_query(m.mr, &info));
		CHECK_EQ(info.paths & way->path->bit, 0);
		CHECK(info.paths != 0);
		explained(&m, word);
	}
	mem_end(&n, &m);
	node_close(&n);
}

TEST_TABLE(refusals)
{
	size_t count = all_ways_list();
	char name[96];
	for (size_t w = 0; w < count; w++) {
		if (way_spared(&ways[w]))
			continue;
		snprintf(name, sizeof name, "refused_%s", ways[w].name);
		test_add(name, refused, &ways[w], 20);
	}
}

TEST(nothing_is_left_when_every_step_is_refused)
{
	struct node n;
	struct mem m;
	faults("refuse=direct,refuse=cma,refuse=staged,refuse=ipc,refuse=nic,refuse=dmabuf,refuse=peer-mem,"
	       "refuse=socket");
	node_alone(&n, NULL);
	for (int kind = 0; kind < EVERYWHERE; kind++) {
		mem_new(&n, &m, &memkinds[kind], LEN);
		CHECK_EQ(mem_try_register(&n, &m, 0, LEN, ANY_ACCESS, 0, 0), -EIO);
		CHECK(strstr(gdrfab_last_error(), "GDRFAB_FAULT=refuse=") != NULL);
		mem_end(&n, &m);
	}
	node_close(&n);
}

TEST(the_second_registration_is_refused)
{
	struct node n;
	struct mem m;
	faults("%s/refuse=register:2,%s/refuse=register", provider(), another_provider());
	node_alone(&n, NULL);
	mem_new(&n, &m, &memkinds[KIND_MALLOC], LEN);
	for (int i = 1; i <= 4; i++) {
		int rc = mem_try_register(&n, &m, 0, LEN, ANY_ACCESS, 0, 0);
		CHECK_EQ(rc, i == 2 ? -EIO : 0);
		if (rc == 0)
			mem_unregister(&m);
		else
			CHECK(strstr(gdrfab_last_error(), "GDRFAB_FAULT=refuse=register") != NULL);
	}
	/* The same with gdrfab_mr_reg(). */
	OK(gdrfab_mr_reg(n.domain, m.addr, LEN, ANY_ACCESS, 0, 0, 0, NULL, &m.mr));
	mem_end(&n, &m);
	node_close(&n);
}

TEST(the_plain_call_is_refused_too)
{
	struct node n;
	struct mem m;
	gdrfab_mr *mr = NULL;
	faults("refuse=register");
	node_alone(&n, NULL);
	mem_new(&n, &m, &memkinds[KIND_MALLOC], LEN);
	CHECK_EQ(gdrfab_mr_reg(n.domain, m.addr, LEN, ANY_ACCESS, 0, 0, 0, NULL, &mr), -EIO);
	CHECK(strstr(gdrfab_last_error(), "GDRFAB_FAULT=refuse=register") != NULL);
	CHECK(mr == NULL);
	mem_end(&n, &m);
	node_close(&n);
}

/* Memory that one path refuses is reached by another. */
static void is_written(struct node *n)
{
	struct place p;
	place_up(n, &p);
	barrier(n);
	barrier(n);
	CHECK_MEM("what was written another way", &p.m, 0, 1024, 0, 3);
	place_down(n, &p);
}

static void writes_around(struct node *n)
{
	struct place p;
	uint64_t bytes[PATHS];
	place_up(n, &p);
	mem_fill(&p.m, 0, 1024, 0, 3);
	barrier(n);
	POST(n->cq, post(n, &p, WRITE, 0, 1024));
	DONE(n->cq, p.m.addr, GDRFAB_WRITE, NULL);
	path_bytes(n, bytes);
	CHECK_EQ(bytes[PATH_DIRECT], 0);
	CHECK_EQ(bytes[PATH_CMA] + bytes[PATH_STAGED], 1024);
	barrier(n);
	place_down(n, &p);
}

TEST(what_is_refused_one_way_goes_another)
{
	skip_unless(path_known(PATH_DIRECT), "there is no other way to memory like this");
	faults("refuse=direct");
	pair(NULL, is_written, writes_around, NULL);
}

/* --- few bytes at a time --- */

static const struct {
	int bytes;
	size_t len;
} shorts[] = {{1, 3000}, {7, 20011}, {1000, 65536}, {4095, 1 << 20}, {1 << 30, 1 << 20}};

struct few {
	const struct way *way; /* NULL: messages */
	size_t len;
};

static void few_there(struct node *n)
{
	const struct few *f = (const struct few *)n->arg;
	struct mem m;
	node_up(n);
	mem_new(n, &m, f->way ? f->way->kind : &memkinds[KIND_MALLOC], f->len + 2);
	mem_fill(&m, 0, f->len + 2, 0, 1);
	if (f->way)
		way_register(n, &m, 0, f->len + 2, f->way);
	else
		mem_register(n, &m, 0, f->len + 2, ANY_ACCESS, 0);
	if (f->way) {
		mem_publish(n, &m);
		barrier(n);
		barrier(n);
		CHECK_MEM("the byte before", &m, 0, 1, 0, 1);
		CHECK_MEM("what was written a few bytes at a time", &m, 1, f->len, 0, 2);
		CHECK_MEM("the byte behind", &m, f->len + 1, 1, f->len + 1, 1);
	} else {
		done e;
		for (size_t i = 0; i < 3; i++)
			POST(n->cq, gdrfab_recv(n->ep, m.addr + 1, f->len, mem_desc(&m), 0, &m));
		barrier(n);
		/* A short message may overtake the end of a long one. */
		int empty = 0;
		for (int i = 0; i < 3; i++) {
			DONE(n->cq, &m, GDRFAB_RECV, &e);
			CHECK(e.len == f->len || e.len == 0);
			empty += e.len == 0;
		}
		CHECK_EQ(empty, 1);
		CHECK_MEM("a message that came a few bytes at a time", &m, 1, f->len, 0, 2);
		barrier(n);
	}
	mem_end(n, &m);
	node_down(n);
}

static void few_here(struct node *n)
{
	const struct few *f = (const struct few *)n->arg;
	unsigned char *buf = (unsigned char *)malloc(f->len);
	node_up(n);
	void *desc = local_desc(n, buf, f->len);
	if (f->way) {
		struct remote to = mem_fetch(n);
		way_check(n, f->way, to);
		barrier(n);
		POST(n->cq, gdrfab_read(n->ep, buf, f->len, desc, 0, to.base + 1, to.key, buf));
		DONE(n->cq, buf, GDRFAB_READ, NULL);
		CHECK_FILLED("read a few bytes at a time", buf, f->len, 1, 1);
		fill(buf, f->len, 0, 2);
		POST(n->cq, gdrfab_write(n->ep, buf, f->len, desc, 0, to.base + 1, to.key, buf));
		DONE(n->cq, buf, GDRFAB_WRITE, NULL);
		POST(n->cq, gdrfab_read(n->ep, buf, 0, desc, 0, to.base, to.key, buf));
		DONE(n->cq, buf, GDRFAB_READ, NULL);
		barrier(n);
	} else {
		fill(buf, f->len, 0, 2);
		barrier(n);
		POST(n->cq, gdrfab_send(n->ep, buf, f->len, desc, 0, buf));
		POST(n->cq, gdrfab_send(n->ep, buf, 0, NULL, 0, buf));
		POST(n->cq, gdrfab_send(n->ep, buf, f->len, desc, 0, buf));
		for (int i = 0; i < 3; i++)
			DONE(n->cq, buf, GDRFAB_SEND, NULL);
		barrier(n);
	}
	node_down(n);
	free(buf);
}

static void few_at_a_time(const void *arg)
{
	/* Without another path shm sends long messages in fragments. */
	if (!arg)
		only_staged();
	for (int i = 0; i < test_count(5, 3); i++) {
		struct few f = {(const struct way *)arg, shorts[i].len / (strcmp(provider(), "verbs") ? 1 : 10)};
		faults("short=%d", shorts[i].bytes);
		pair(NULL, few_there, few_here, &f);
	}
}

TEST_TABLE(few)
{
	size_t count = ways_list();
	char name[96];
	test_add("messages_a_few_bytes_at_a_time", few_at_a_time, NULL, 60);
	for (size_t w = 0; w < count; w++) {
		if (!way_leads(w))
			continue;
		snprintf(name, sizeof name, "%s_a_few_bytes_at_a_time", ways[w].path->name);
		test_add(name, few_at_a_time, &ways[w], 60);
	}
}

/* --- malformed values --- */

TEST(what_makes_no_sense_is_told)
{
	gdrfab_info *info = NULL;
	faults("drop=never,refuse=register:1,nobody/drop=1,delay,short=0");
	CHECK_EQ(gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, 0, NULL, &info), -EINVAL);
	CHECK(info == NULL);
	static const char *const words[] = {"GDRFAB_FAULT", "drop=never", "nobody", "\"delay\"", "short=0"};
	for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
		if (!strstr(gdrfab_last_error(), words[i]))
			test_fail(__FILE__, __LINE__, "nothing of %s in: %s", words[i], gdrfab_last_error());
}
