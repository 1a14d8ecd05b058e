/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Connectionless endpoints of two processes: messages of all kinds, and RMA. */
#include "fab_rdm.h"

static void messages_of_all_lengths(struct self *s)
{
	static const size_t lens[] = {0, 1, 8, 100, 4096, 8127, 8128, 8129, 65536, 1 << 20, 16 << 20};
	for (size_t k = 0; k < sizeof lens / sizeof *lens; k++) {
		size_t len = lens[k];
		/* Set before: memcheck does not see the writes of another process. */
		char *buf = (char *)malloc(len + 1), *to = (char *)calloc(len + 1, 1);
		int peer = 1 - s->rank, first = (int)(k & 1);
		uint64_t from = 99;
		fill(buf, len, 0, (uint32_t)(k + 1) * (uint32_t)(s->rank + 1));
		if (first)
			trecv(s, (uint64_t)peer, to, len, k, 0, 1);
		tsend(s, peer, buf, len, k, 2);
		if (!first) {
			/* The message may have arrived by then. */
			meet(s);
			trecv(s, (uint64_t)peer, to, len, k, 0, 1);
		}
		gdrfab_cq_tagged_entry got = await(s, 1, &from);
		CHECK_EQ(got.flags, GDRFAB_RECV | GDRFAB_TAGGED);
		CHECK_EQ(got.len, len);
		CHECK_EQ(got.tag, k);
		CHECK_EQ(from, peer);
		CHECK_FILLED("the message", to, len, 0, (uint32_t)(k + 1) * (uint32_t)(peer + 1));
		await(s, 2, NULL);
		free(buf), free(to);
		meet(s);
	}
}

/* A lane reuses its area for message bytes, and the area grows meanwhile. */
static void streams_of_several_lengths(struct self *s)
{
	enum { COUNT = 1300, POSTED = 4 };
	static const size_t lens[] = {57, 600, 1024, 4096};
	static char buf[POSTED][4096];
	for (uint32_t i = 0; i < 4 * COUNT + POSTED; i++) {
		char *at = buf[i % POSTED];
		size_t len = lens[i / COUNT % 4];
		if (s->rank == 0 && i < 4 * COUNT) {
			fill(at, len, 0, i);
			tsend(s, 1, at, len, 7, 2);
			await(s, 2, NULL);
		} else if (s->rank == 1 && i >= POSTED) {
			size_t came = await(s, 3 + i % POSTED, NULL).len;
			CHECK_EQ(came, lens[(i - POSTED) / COUNT]);
			CHECK_FILLED("the message", at, came, 0, i - POSTED);
		}
		if (s->rank == 1 && i < 4 * COUNT)
			trecv(s, 0, at, len, 7, 0, 3 + i % POSTED);
	}
	meet(s);
}

static void order_masks_and_truncation(struct self *s)
{
	enum { COUNT = 1000 };
	static uint64_t word[COUNT];
	uint64_t from = 99;
	if (s->rank == 0) {
		for (uint64_t i = 0; i < COUNT; i++) {
			word[i] = i;
			tsend(s, 1, &word[i], sizeof *word, i << 32 | 5, 1);
		}
		for (int i = 0; i < COUNT; i++)
			await(s, 1, NULL);
		tsend(s, 1, "a longer message", 16, 7, 2);
		await(s, 2, NULL);
		OK(gdrfab_tinjectdata(s->ep, "data", 4, 1234567, 1, 8));
		/* Messages without tags are matched separately. */
		OK(gdrfab_inject(s->ep, "plain", 5, 1));
		meet(s);
		return;
	}
	for (uintptr_t i = 0; i < COUNT; i++)
		trecv(s, GDRFAB_ADDR_UNSPEC, &word[i], sizeof *word, 5, ~0xffffffffull, 100 + i);
	for (uintptr_t i = 0; i < COUNT; i++) {
		gdrfab_cq_tagged_entry got = await(s, 100 + i, &from);
		CHECK_EQ(got.tag, (uint64_t)i << 32 | 5);
		CHECK_EQ(word[i], i);
		CHECK_EQ(from, 0);
	}
	char small[4], words[256], plain[8];
	trecv(s, 0, small, 4, 7, 0, 1);
	gdrfab_cq_err_entry lost = await_failure(s, 1, words);
	CHECK_EQ(lost.err, GDRFAB_ETRUNC);
	CHECK_EQ(lost.len, 4);
	CHECK_EQ(lost.olen, 12);
	CHECK(memcmp(small, "a lo", 4) == 0);
	OK(gdrfab_recv(s->ep, plain, 8, NULL, GDRFAB_ADDR_UNSPEC, context_of(2)));
	CHECK_EQ(await(s, 2, NULL).len, 5);
	CHECK(memcmp(plain, "plain", 5) == 0);
	trecv(s, GDRFAB_ADDR_UNSPEC, small, 4, 0, ~0ull, 3);
	gdrfab_cq_tagged_entry got = await(s, 3, NULL);
	CHECK_EQ(got.data, 1234567);
	CHECK(got.flags & GDRFAB_REMOTE_CQ_DATA);
	/* A cancelled receive, and a receive from an unused index. */
	trecv(s, 0, small, 4, 9, 0, 4);
	OK(gdrfab_cancel(s->ep, context_of(4)));
	CHECK_EQ(await_failure(s, 4, words).err, ECANCELED);
	if (!s->connected) {
		CHECK_EQ(gdrfab_trecv(s->ep, small, 4, NULL, 77, 0, 0, NULL), -EINVAL);
		CHECK_EQ(gdrfab_tsend(s->ep, small, 4, NULL, 77, 0, NULL), -EINVAL);
	}
	meet(s);
}

static void peek(struct self *s, uint64_t tag, uint64_t how, uintptr_t context, void *buf, size_t len)
{
	struct iovec iov = {buf, len};
	gdrfab_msg_tagged msg = {0};
	msg.struct_size = sizeof msg, msg.msg_iov = &iov, msg.iov_count = 1, msg.addr = GDRFAB_ADDR_UNSPEC, msg.tag = tag;
	msg.context = context_of(context);
	OK(gdrfab_trecvmsg(s->ep, &msg, how));
}

static void peek_claim_and_discard(struct self *s)
{
	enum { LONG = 100000 };
	static char buf[LONG];
	char words[256];
	if (s->rank == 0) {
		fill(buf, LONG, 0, 7);
		tsend(s, 1, "first", 5, 3, 1);
		tsend(s, 1, buf, LONG, 3, 2);
		tsend(s, 1, "third", 5, 3, 3);
		meet(s);
		for (uintptr_t i = 1; i <= 3; i++)
			await(s, i, NULL);
		return;
	}
	peek(s, 4, GDRFAB_PEEK, 1, NULL, 0);
	CHECK_EQ(await_failure(s, 1, words).err, ENOMSG);
	/* Waits for the third, which comes after the others. */
	tsend(s, 1, "self", 4, 5, 50);
	trecv(s, 1, words, 8, 5, 0, 51);
	await(s, 50, NULL), await(s, 51, NULL);
	meet(s);
	do {
		peek(s, 3, GDRFAB_PEEK, 2, NULL, 0);
		s->lost_count = 0;
	} while (!has_come(s, 2));
	CHECK_EQ(await(s, 2, NULL).len, 5);
	peek(s, 3, GDRFAB_PEEK | GDRFAB_DISCARD, 3, NULL, 0);
	CHECK_EQ(await(s, 3, NULL).len, 5);
	do {
		peek(s, 3, GDRFAB_PEEK | GDRFAB_CLAIM, 4, NULL, 0);
		s->lost_count = 0;
	} while (!has_come(s, 4));
	CHECK_EQ(await(s, 4, NULL).len, LONG);
	char third[5];
	trecv(s, 0, third, 5, 3, 0, 5);
	await(s, 5, NULL);
	CHECK(memcmp(third, "third", 5) == 0);
	peek(s, 3, GDRFAB_CLAIM, 4, buf, LONG);
	CHECK_EQ(await(s, 4, NULL).len, LONG);
	CHECK_FILLED("the claimed message", buf, LONG, 0, 7);
}

static void one_key_for_all_lanes(struct self *s)
{
	enum { SIZE = 1 << 20 };
	char *mem = (char *)malloc(SIZE);
	gdrfab_mr *mr = NULL;
	uint64_t all = GDRFAB_READ | GDRFAB_WRITE | GDRFAB_REMOTE_READ | GDRFAB_REMOTE_WRITE;
	OK(gdrfab_mr_reg(s->domain, mem, SIZE, all, 0, 0, 0, NULL, &mr));
	if (s->rank == 1) {
		memset(mem, 0, SIZE);
		put_number(s, 0, gdrfab_mr_key(mr)), put_number(s, 1, (uintptr_t)mem);
		meet(s);
		char word[4];
		trecv(s, 0, word, 4, 1, 0, 1);
		await(s, 1, NULL);
		CHECK_FILLED("written memory", mem, SIZE, 0, 5);
		meet(s);
	} else {
		fill(mem, SIZE, 0, 5);
		meet(s);
		uint64_t key = get_number(s, 0), addr = get_number(s, 1);
		OK(gdrfab_write(s->ep, mem, SIZE, gdrfab_mr_desc(mr), 1, addr, key, context_of(1)));
		tsend(s, 1, "done", 4, 1, 2);
		await(s, 1, NULL), await(s, 2, NULL);
		memset(mem, 0, SIZE);
		OK(gdrfab_read(s->ep, mem, 1000, NULL, 1, addr + 5, key, context_of(3)));
		await(s, 3, NULL);
		CHECK_FILLED("read memory", mem, 1000, 5, 5);
		char words[256];
		OK(gdrfab_write(s->ep, mem, 8, NULL, 1, addr, key + 1, context_of(4)));
		CHECK_EQ(await_failure(s, 4, words).prov_errno, GDRFAB_PROV_KEY);
		meet(s);
	}
	OK(gdrfab_mr_close(mr));
	free(mem);
}

/* Writes or reads until the target has copied a part, if `shared`; else so often that it would have. */
static void copy_until_helped(struct self *s, bool read, char *mem, size_t len, bool shared)
{
	gdrfab_stats stats = {0};
	uint64_t key = get_number(s, 0), addr = get_number(s, 1), until = test_now_ms() + (uint64_t)test_ms(WAIT_MS);
	stats.struct_size = sizeof stats;
	OK(gdrfab_ep_stats(s->ep, &stats));
	uint64_t before = stats.bytes_helped;
	for (int i = 0; shared ? stats.bytes_helped == before : i < test_count(10, 2); i++) {
		CHECK(test_now_ms() < until);
		fill(mem, len, 0, (uint32_t)i);
		OK(gdrfab_write(s->ep, mem, len, NULL, 1, addr, key, context_of(1)));
		await(s, 1, NULL);
		if (read) {
			memset(mem, 0, len);
			OK(gdrfab_read(s->ep, mem, len, NULL, 1, addr, key, context_of(1)));
			await(s, 1, NULL);
			CHECK_FILLED("what was read", mem, len, 0, (uint32_t)i);
		}
		OK(gdrfab_ep_stats(s->ep, &stats));
	}
	CHECK(shared || stats.bytes_helped == before);
}

/* Shared copies with a polling and with a sleeping target, as GDRFAB_OPT_COOP permits or forbids. */
static void the_target_carries_a_part_of_large_copies(struct self *s)
{
	enum { SIZE = 4 << 20, TURN = 2 };
	char *mem = (char *)calloc(SIZE, 1);
	gdrfab_mr *mr = NULL;
	gdrfab_cq_tagged_entry entry;
	uint32_t coop = 7;
	size_t len = sizeof coop;
	OK(gdrfab_ep_getopt(s->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_COOP, &coop, &len));
	CHECK_EQ(coop, strstr(s->lanes, "shm") != NULL);
	bool may = coop;
	OK(gdrfab_mr_reg(s->domain, mem, SIZE, GDRFAB_REMOTE_READ | GDRFAB_REMOTE_WRITE, 0, 0, 0, NULL, &mr));
	if (s->rank == 1) {
		char word[4];
		put_number(s, 0, gdrfab_mr_key(mr)), put_number(s, 1, (uintptr_t)mem);
		trecv(s, 0, word, sizeof word, 1, 0, 5);
		meet(s);
		while (get_number(s, TURN) < 2)
			drive(s);
		CHECK_EQ(gdrfab_cq_sread(s->cq, &entry, 1, test_ms(4 * WAIT_MS)), 1);
		CHECK(entry.op_context == context_of(5));
		meet(s);
	} else {
		gdrfab_stats stats = {0};
		stats.struct_size = sizeof stats;
		meet(s);
		coop = 0;
		OK(gdrfab_ep_setopt(s->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_COOP, &coop, sizeof coop));
		copy_until_helped(s, false, mem, SIZE, false);
		OK(gdrfab_ep_stats(s->ep, &stats));
		bool shared = may && stats.by_path[GDRFAB_PATH_INDEX(GDRFAB_PATH_CMA)].bytes > 0;
		coop = 2;
		CHECK_EQ(gdrfab_ep_setopt(s->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_COOP, &coop, sizeof coop), may ? 0 : -EOPNOTSUPP);
		for (uint64_t turn = 0; turn < 4; turn++) {
			copy_until_helped(s, turn & 1, mem, SIZE, shared);
			put_number(s, TURN, turn + 1);
		}
		tsend(s, 1, "wake", 4, 1, 2);
		await(s, 2, NULL);
		meet(s);
	}
	OK(gdrfab_mr_close(mr));
	free(mem);
}

static void writes_with_data_tell_their_source(struct self *s)
{
	uint64_t word = 7, from = 99;
	gdrfab_mr *mr = NULL;
	if (s->rank == 1) {
		OK(gdrfab_mr_reg(s->domain, &word, sizeof word, GDRFAB_REMOTE_WRITE, 0, 0, 0, NULL, &mr));
		put_number(s, 0, gdrfab_mr_key(mr)), put_number(s, 1, (uintptr_t)&word);
		meet(s);
		gdrfab_cq_tagged_entry got = await(s, 0, &from);
		CHECK_EQ(got.flags, GDRFAB_REMOTE_WRITE | GDRFAB_RMA | GDRFAB_REMOTE_CQ_DATA);
		CHECK_EQ(got.data, 5);
		CHECK_EQ(from, 0);
		CHECK_EQ(word, 8);
		meet(s);
		OK(gdrfab_mr_close(mr));
		return;
	}
	meet(s);
	word = 8;
	OK(gdrfab_writedata(s->ep, &word, sizeof word, NULL, 5, 1, get_number(s, 1), get_number(s, 0), context_of(1)));
	await(s, 1, NULL);
	meet(s);
}

static void rma_to_oneself(struct self *s)
{
	enum { SIZE = 3 << 20 };
	char *mem = (char *)malloc(SIZE), *own = (char *)malloc(SIZE), words[256];
	struct iovec pieces[2] = {{mem, 1000}, {mem + 5000, SIZE - 5000}};
	gdrfab_mr_attr attr = {0};
	gdrfab_mr *mr = NULL, *readable = NULL;
	gdrfab_cntr *cntr = NULL;
	uint64_t self = (uint64_t)s->rank, from = 99;
	attr.struct_size = sizeof attr, attr.mr_iov = pieces, attr.iov_count = 2;
	attr.access = GDRFAB_REMOTE_READ | GDRFAB_REMOTE_WRITE;
	OK(gdrfab_mr_regattr(s->domain, &attr, GDRFAB_RMA_EVENT, &mr));
	OK(gdrfab_cntr_open(s->domain, NULL, NULL, &cntr));
	OK(gdrfab_mr_bind_cntr(mr, cntr, GDRFAB_REMOTE_WRITE));
	OK(gdrfab_mr_reg(s->domain, own, SIZE, GDRFAB_REMOTE_READ, 0, 0, 0, NULL, &readable));
	uint64_t addr = (uintptr_t)mem, key = gdrfab_mr_key(mr), len = SIZE - 4000;
	fill(own, SIZE, 0, 3);
	OK(gdrfab_writedata(s->ep, own, len, NULL, 9, self, addr, key, context_of(1)));
	CHECK_EQ(await(s, 1, NULL).flags, GDRFAB_RMA | GDRFAB_WRITE);
	gdrfab_cq_tagged_entry told = await(s, 0, &from);
	CHECK_EQ(told.data, 9);
	CHECK_EQ(told.len, len);
	CHECK_EQ(from, self);
	CHECK_EQ(gdrfab_cntr_read(cntr), 1);
	CHECK_FILLED("the first piece", mem, 1000, 0, 3);
	CHECK_FILLED("the second piece", mem + 5000, SIZE - 5000, 1000, 3);
	OK(gdrfab_inject_write(s->ep, "injected", 8, self, addr + 996, key));
	CHECK(memcmp(mem + 996, "inje", 4) == 0 && memcmp(mem + 5000, "cted", 4) == 0);
	CHECK_EQ(gdrfab_cntr_read(cntr), 2);
	memset(own, 0, SIZE);
	OK(gdrfab_read(s->ep, own, len - 2000, NULL, self, addr + 2000, key, context_of(2)));
	await(s, 2, NULL);
	CHECK_FILLED("what was read", own, len - 2000, 2000, 3);
	/* Key, bounds and access rights are checked as for a peer. */
	OK(gdrfab_write(s->ep, own, 8, NULL, self, addr, key + 1, context_of(3)));
	CHECK_EQ(await_failure(s, 3, words).prov_errno, GDRFAB_PROV_KEY);
	OK(gdrfab_write(s->ep, own, 8, NULL, self, addr + len - 7, key, context_of(4)));
	CHECK_EQ(await_failure(s, 4, words).err, ERANGE);
	OK(gdrfab_read(s->ep, own, 8, NULL, self, addr - 1, key, context_of(5)));
	CHECK_EQ(await_failure(s, 5, words).prov_errno, GDRFAB_PROV_BOUNDS);
	OK(gdrfab_write(s->ep, own, 8, NULL, self, (uintptr_t)own, gdrfab_mr_key(readable), context_of(6)));
	CHECK_EQ(await_failure(s, 6, words).err, EACCES);
	gdrfab_path_info info = {0};
	info.struct_size = sizeof info;
	OK(gdrfab_ep_query(s->ep, self, key, &info));
	CHECK_EQ(info.path, GDRFAB_PATH_DIRECT);
	OK(gdrfab_mr_close(mr));
	OK(gdrfab_read(s->ep, own, 8, NULL, self, addr, key, context_of(7)));
	CHECK_EQ(await_failure(s, 7, words).prov_errno, GDRFAB_PROV_KEY);
	OK(gdrfab_mr_close(readable));
	OK(gdrfab_cntr_close(cntr));
	free(mem), free(own);
}

static void paths_are_told_by_peer(struct self *s)
{
	static char mem[100], text[2048];
	char word[4];
	gdrfab_mr *mr = NULL;
	gdrfab_path_info info = {0};
	uint64_t next = (uint64_t)((s->rank + 1) % s->count);
	info.struct_size = sizeof info;
	OK(gdrfab_mr_reg(s->domain, mem, sizeof mem, GDRFAB_REMOTE_READ, 0, 0, 0, NULL, &mr));
	put_number(s, s->rank, gdrfab_mr_key(mr));
	CHECK_EQ(gdrfab_ep_query(s->ep, next, gdrfab_mr_key(mr), &info), -ENOTCONN);
	CHECK_EQ(gdrfab_ep_query(s->ep, 77, gdrfab_mr_key(mr), &info), -EINVAL);
	meet(s);
	for (int to = 0; to < s->count; to++)
		if (to != s->rank) {
			tsend(s, to, "hello", 4, 1, 1);
			trecv(s, (uint64_t)to, word, 4, 1, 0, 2);
			await(s, 1, NULL), await(s, 2, NULL);
		}
	OK(gdrfab_ep_query(s->ep, next, get_number(s, (int)next), &info));
	CHECK(info.path != 0 && (info.paths & info.path));
	CHECK(strcmp(s->lanes, "tcp") != 0 || info.path == GDRFAB_PATH_SOCKET);
	ssize_t len = gdrfab_ep_explain(s->ep, next, get_number(s, (int)next), text, sizeof text);
	CHECK(len > 0 && strstr(text, s->two_hosts ? "over verbs" : strncmp(s->lanes, "shm", 3) ? s->lanes : "over shm"));
	CHECK_EQ(gdrfab_ep_query(s->ep, GDRFAB_ADDR_UNSPEC, get_number(s, (int)next), &info), -EINVAL);
	meet(s);
	OK(gdrfab_mr_close(mr));
}

/* A late send, as on connected endpoints: the receiver never gets the message, and later ones arrive. */
static void what_was_offered_can_be_cancelled(struct self *s)
{
	enum { LONG = 100000 };
	char *buf = (char *)calloc(1, LONG), words[256];
	if (s->rank == 0) {
		tsend(s, 1, "first", 5, 1, 1);
		await(s, 1, NULL);
		tsend(s, 1, buf, LONG, 2, 2);
		meet(s);
		CHECK_EQ(gdrfab_cancel(s->ep, context_of(2)), 0);
		CHECK_EQ(await_failure(s, 2, words).err, ECANCELED);
		CHECK_EQ(gdrfab_cancel(s->ep, context_of(2)), -ENOENT);
		tsend(s, 1, buf, LONG / 2, 2, 3);
		meet(s);
		await(s, 3, NULL);
	} else {
		trecv(s, 0, buf, 5, 1, 0, 1);
		await(s, 1, NULL);
		meet(s);
		meet(s);
		trecv(s, 0, buf, LONG, 2, 0, 2);
		CHECK_EQ(await(s, 2, NULL).len, LONG / 2);
	}
	meet(s);
	free(buf);
}

/* Injected messages beyond the peer's grant arrive too, even if the endpoint is closed right after. */
static void what_was_injected_arrives(struct self *s)
{
	enum { COUNT = 1000 };
	char text[48];
	if (s->rank == 0) {
		for (uint64_t i = 0; i < COUNT; i++) {
			fill(text, sizeof text, 0, (uint32_t)i);
			while (gdrfab_tinject(s->ep, text, sizeof text, 1, i) == -EAGAIN)
				drive(s);
		}
		return;
	}
	for (uint64_t i = 0; i < COUNT; i++) {
		trecv(s, 0, text, sizeof text, i, 0, 1);
		await(s, 1, NULL);
		CHECK_FILLED("the message", text, sizeof text, 0, (uint32_t)i);
	}
}

static void a_bare_address_is_enough(struct self *s)
{
	char text[GDRFAB_ADDR_MAX];
	if (s->rank == 0) {
		CHECK(gdrfab_av_straddr(s->av, s->w->names[1], text, sizeof text) > 0);
		*strchr(text + strlen("rdm://"), '/') = 0;
		uint64_t index = 0;
		CHECK_EQ(gdrfab_av_insertsvc(s->av, NULL, text, &index, 0, NULL), 1);
		CHECK_EQ(index, 2);
		tsend(s, 2, "bare", 4, 1, 1);
		await(s, 1, NULL);
	} else {
		uint64_t from = 99;
		trecv(s, GDRFAB_ADDR_UNSPEC, text, 4, 1, 0, 1);
		await(s, 1, &from);
		CHECK_EQ(from, 0);
	}
}

/* The listening address alone is no name, and a name with other random bits is refused. */
static void whole_names_only(struct self *s)
{
	uint32_t on = 1;
	char text[GDRFAB_ADDR_MAX], words[256];
	uint64_t index = 0;
	if (s->rank == 1)
		OK(gdrfab_ep_setopt(s->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_WHOLE_NAME, &on, sizeof on));
	meet(s);
	if (s->rank == 0) {
		tsend(s, 1, "whole", 5, 1, 1);
		await(s, 1, NULL);
	} else if (s->rank == 1) {
		trecv(s, GDRFAB_ADDR_UNSPEC, text, 5, 1, 0, 1);
		await(s, 1, NULL);
		CHECK(memcmp(text, "whole", 5) == 0);
	} else {
		CHECK(gdrfab_av_straddr(s->av, s->w->names[1], text, sizeof text) > 0);
		char *nonce = strchr(text + strlen("rdm://"), '/') + 1;
		*nonce = *nonce == '1' ? '2' : '1';
		CHECK_EQ(gdrfab_av_insertsvc(s->av, NULL, text, &index, 0, NULL), 1);
		tsend(s, (int)index, "other", 5, 1, 1);
		CHECK_EQ(await_failure(s, 1, words).err, ECONNREFUSED);
		nonce[-1] = 0;
		CHECK_EQ(gdrfab_av_insertsvc(s->av, NULL, text, &index, 0, NULL), 1);
		tsend(s, (int)index, "bare", 5, 1, 2);
		CHECK_EQ(await_failure(s, 2, words).err, ECONNREFUSED);
		CHECK(test_says(words, "whole name"));
	}
	meet(s);
}

TEST_TABLE(claims)
{
	static const struct rdm_claim both[] = {
		{"one_key_for_all_lanes", one_key_for_all_lanes, 2, false},
		{"messages_of_all_lengths", messages_of_all_lengths, 2, false},
		{"streams_of_several_lengths", streams_of_several_lengths, 2, false},
		{"order_masks_and_truncation", order_masks_and_truncation, 2, false},
		{"the_target_carries_a_part_of_large_copies", the_target_carries_a_part_of_large_copies, 2, false},
		{"writes_with_data_tell_their_source", writes_with_data_tell_their_source, 2, false},
		{"what_was_offered_can_be_cancelled", what_was_offered_can_be_cancelled, 2, false},
		{"what_was_injected_arrives", what_was_injected_arrives, 2, false},
	};
	/* Claims of more than two processes, or of messages to the own endpoint. */
	static const struct rdm_claim connectionless[] = {
		{"paths_are_told_by_peer", paths_are_told_by_peer, 3, false},
		{"peek_claim_and_discard", peek_claim_and_discard, 2, false},
		{"rma_to_oneself", rma_to_oneself, 2, false},
		{"a_bare_address_is_enough", a_bare_address_is_enough, 2, false},
		{"whole_names_only", whole_names_only, 3, false},
	};
	/* Closing waits for injected messages: on a busy machine longer than usual. */
	setenv("GDRFAB_SHM_CLOSE_MS", "15000", 0);
	rdm_add_both(both, sizeof both / sizeof *both);
	rdm_add(connectionless, sizeof connectionless / sizeof *connectionless);
}
