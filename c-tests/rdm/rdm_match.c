/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Matching: the receive that gets a message, messages longer than their receive, and peeked, claimed and dropped messages. */
#include "fab_rdm.h"

#define ANY GDRFAB_ADDR_UNSPEC
#define ALL (~0ull)

/* Takes the oldest entry. */
static gdrfab_cq_tagged_entry first_entry(struct self *s)
{
	for (uint64_t until = test_now_ms() + (uint64_t)test_ms(WAIT_MS); s->kept_count == 0; drive(s))
		if (test_now_ms() > until || s->lost_count)
			test_fail(__FILE__, __LINE__, "no entry%s%s", s->lost_count ? ", but a failure: " : "",
				  s->lost_count ? s->lost[0].words : "");
	gdrfab_cq_tagged_entry entry = s->kept[0].entry;
	memmove(s->kept, s->kept + 1, (size_t)--s->kept_count * sizeof *s->kept);
	return entry;
}

static void tagged_and_untagged_do_not_mix(struct self *s)
{
	char a[16] = "", b[16] = "", left[] = "se", right[] = "vera";
	struct iovec in[2] = {{a, 3}, {b, sizeof b}}, out[2] = {{left, 2}, {right, 4}};
	if (s->rank == 0) {
		OK(gdrfab_recv(s->ep, a, sizeof a, NULL, ANY, context_of(1)));
		trecv(s, ANY, b, sizeof b, 0, ALL, 2);
		meet(s);
		gdrfab_cq_tagged_entry plain = await(s, 1, NULL), tagged = await(s, 2, NULL);
		CHECK_EQ(plain.flags & (GDRFAB_MSG | GDRFAB_TAGGED | GDRFAB_RECV), GDRFAB_MSG | GDRFAB_RECV);
		CHECK_EQ(tagged.flags & (GDRFAB_MSG | GDRFAB_TAGGED | GDRFAB_RECV), GDRFAB_TAGGED | GDRFAB_RECV);
		CHECK(tagged.tag == 5 && memcmp(a, "plain", 5) == 0 && memcmp(b, "tagged", 6) == 0);
		OK(gdrfab_trecvv(s->ep, in, NULL, 2, 1, 6, 0, context_of(3)));
		meet(s);
		CHECK_EQ(await(s, 3, NULL).len, 6);
		CHECK(memcmp(a, "sev", 3) == 0 && memcmp(b, "era", 3) == 0);
	} else {
		meet(s);
		OK(gdrfab_tinject(s->ep, "tagged", 6, 0, 5));
		OK(gdrfab_inject(s->ep, "plain", 5, 0));
		meet(s);
		OK(gdrfab_tsendv(s->ep, out, NULL, 2, 0, 6, context_of(1)));
		await(s, 1, NULL);
	}
}

/* Messages of a sender match in their order, each with the oldest matching receive. */
static void sources_masks_and_order(struct self *s)
{
	enum { EACH = 200 };
	uint32_t in[4] = {99, 99, 99, 99}, seen[MOST] = {0};
	static const uint64_t tags[] = {5, 1, 1};
	uint64_t from;
	if (s->rank != 0) {
		for (uint32_t i = 0; i < EACH; i++)
			OK(gdrfab_tinject(s->ep, &i, 4, 0, 0xab00 + i % 256));
		meet(s), meet(s);
		for (uint32_t i = 0; s->rank == 1 && i < 3; i++)
			OK(gdrfab_tinject(s->ep, &i, 4, 0, tags[i]));
		return;
	}
	meet(s);
	for (uint32_t i = 0; i < EACH; i++) {
		trecv(s, 1, in, 4, 0xab00, 0xff, 1);
		CHECK_EQ(await(s, 1, &from).tag, 0xab00 + i % 256);
		CHECK(from == 1 && in[0] == i);
	}
	for (int i = 0; i < (s->count - 2) * EACH; i++) {
		trecv(s, ANY, in, 4, 0, ALL, 1);
		uint64_t tag = await(s, 1, &from).tag;
		CHECK(from > 1 && from < (uint64_t)s->count);
		CHECK_EQ(in[0], seen[from]++);
		CHECK_EQ(tag, 0xab00 + in[0] % 256);
	}
	trecv(s, 1, &in[0], 4, 1, 0, 1);
	trecv(s, ANY, &in[1], 4, 0, ALL, 2);
	trecv(s, 1, &in[2], 4, 0, ALL, 3);
	meet(s);
	for (uintptr_t i = 1; i <= 3; i++)
		await(s, i, NULL);
	CHECK(in[0] == 1 && in[1] == 0 && in[2] == 2);
}

static void thousands_of_receives(struct self *s)
{
	enum { COUNT = 4000 };
	static uint32_t in[COUNT];
	ssize_t rc;
	for (uint32_t i = 0; i < COUNT; i++)
		trecv(s, i % 3 ? (uint64_t)(1 - s->rank) : ANY, &in[i], 4, i, 0, i);
	meet(s);
	for (uint32_t i = COUNT; i-- > 0;) {
		while ((rc = gdrfab_tinject(s->ep, &i, 4, (uint64_t)(1 - s->rank), i)) == -EAGAIN)
			drive(s);
		OK(rc);
	}
	for (int i = 0; i < COUNT; i++) {
		gdrfab_cq_tagged_entry got = first_entry(s);
		CHECK(got.tag < COUNT && got.op_context == context_of(got.tag) && in[got.tag] == got.tag);
	}
}

static void cut_off_at_every_size(struct self *s)
{
	static const size_t lens[] = {9, 1000, 65536, 4 << 20};
	static unsigned char buf[4 << 20];
	char words[256];
	for (int k = 0; k < 8; k++) {
		size_t len = lens[k / 2], room = len / 2;
		bool early = k % 2;
		if (s->rank == 0) {
			memset(buf, 0xaa, len);
			if (early)
				trecv(s, ANY, buf, room, 44, 0, 1);
			meet(s);
			if (!early)
				trecv(s, ANY, buf, room, 44, 0, 1);
			gdrfab_cq_err_entry e = await_failure(s, 1, words);
			CHECK(e.err == GDRFAB_ETRUNC && e.prov_errno == GDRFAB_PROV_TRUNC && e.tag == 44 && e.src_addr == 1);
			CHECK_EQ(e.len, room);
			CHECK_EQ(e.olen, len - room);
			CHECK_FILLED("what fits", buf, room, 0, 5);
			for (size_t i = room; i < len; i++)
				CHECK(buf[i] == 0xaa);
		} else {
			fill(buf, len, 0, 5);
			if (early)
				meet(s);
			tsend(s, 0, buf, len, 44, 1);
			if (!early)
				meet(s);
			await(s, 1, NULL);
		}
		meet(s);
	}
}

static uint64_t unexpected(struct self *s)
{
	gdrfab_stats stats = {.struct_size = sizeof stats};
	OK(gdrfab_ep_stats(s->ep, &stats));
	return stats.unexpected;
}

/* A program that posts a batch of receives and reads until the queue is empty: early messages are not copied unless the next
 * receives fail to come, and later messages do not wait behind them. */
static void windows_of_receives(struct self *s)
{
	enum { WINDOW = 16, WINDOWS = 20, ALONE = 1000 };
	uint32_t in[WINDOW], last = 0;
	int *sent = &s->w->met[2000];
	if (s->rank != 0) {
		meet(s);
		for (uint32_t i = 0; i < WINDOW * WINDOWS; i++)
			OK(gdrfab_tinject(s->ep, &i, 4, 0, 3));
		OK(gdrfab_tinject(s->ep, &last, 4, 0, 4));
		__atomic_store_n(sent, 1, __ATOMIC_SEQ_CST);
		meet(s);
		return;
	}
	trecv(s, ANY, &last, 4, 4, 0, ALONE);
	for (uint32_t w = 0; w < WINDOWS - 1; w++) {
		for (uint32_t i = 0; i < WINDOW; i++)
			trecv(s, ANY, &in[i], 4, 3, 0, i + 1);
		if (w == 0)
			meet(s);
		/* No progress here before all messages were sent. */
		for (uint64_t until = test_now_ms() + (uint64_t)test_ms(WAIT_MS); !__atomic_load_n(sent, __ATOMIC_SEQ_CST); usleep(100))
			CHECK(test_now_ms() < until);
		for (uint32_t i = 0; i < WINDOW; i++) {
			await(s, i + 1, NULL);
			CHECK_EQ(in[i], w * WINDOW + i);
		}
	}
	CHECK_EQ(unexpected(s), 0);
	await(s, ALONE, NULL);
	CHECK_EQ(unexpected(s), WINDOW);
	for (uint32_t i = 0; i < WINDOW; i++)
		trecv(s, ANY, &in[i], 4, 3, 0, i + 1);
	for (uint32_t i = 0; i < WINDOW; i++) {
		await(s, i + 1, NULL);
		CHECK_EQ(in[i], (WINDOWS - 1) * WINDOW + i);
	}
	meet(s);
}

static void cancelled_receives(struct self *s)
{
	char a[8] = "", b[8] = "", words[256];
	if (s->rank == 0) {
		trecv(s, ANY, a, 8, 1, 0, 1);
		trecv(s, ANY, b, 8, 1, 0, 2);
		OK(gdrfab_recv(s->ep, b, 8, NULL, ANY, context_of(3)));
		OK(gdrfab_cancel(s->ep, context_of(1)));
		CHECK_EQ(await_failure(s, 1, words).err, ECANCELED);
		OK(gdrfab_cancel(s->ep, context_of(3)));
		CHECK_EQ(await_failure(s, 3, words).err, ECANCELED);
		CHECK_EQ(gdrfab_cancel(s->ep, context_of(1)), -ENOENT);
		CHECK_EQ(gdrfab_cancel(s->ep, context_of(77)), -ENOENT);
		meet(s);
		await(s, 2, NULL);
		CHECK(memcmp(b, "message", 7) == 0 && a[0] == 0);
		CHECK_EQ(gdrfab_cancel(s->ep, context_of(2)), -ENOENT);
	} else {
		meet(s);
		OK(gdrfab_tinject(s->ep, "message", 8, 0, 1));
	}
}

static ssize_t look(struct self *s, uint64_t flags, uintptr_t context, void *buf, size_t len)
{
	struct iovec iov = {buf, len};
	gdrfab_msg_tagged msg = {0};
	msg.struct_size = sizeof msg, msg.msg_iov = buf ? &iov : NULL, msg.iov_count = buf ? 1 : 0;
	msg.addr = ANY, msg.tag = 9, msg.context = context_of(context);
	return gdrfab_trecvmsg(s->ep, &msg, flags);
}

/* Five messages: two are received, one claimed and received, and two dropped, one at the peek and one by its claim. */
static void claims_of_length(struct self *s, size_t len)
{
	unsigned char *buf = (unsigned char *)calloc(len, 1), *out[5];
	uint64_t from = 99;
	if (s->rank == 1) {
		for (uint32_t i = 0; i < 5; i++) {
			out[i] = (unsigned char *)malloc(len);
			fill(out[i], len, 0, i + 1);
			OK(gdrfab_tsenddata(s->ep, out[i], len, NULL, i + 1, 0, 9, context_of(i)));
		}
		meet(s);
		for (uintptr_t i = 0; i < 5; i++) {
			await(s, i, NULL);
			free(out[i]);
		}
		free(buf);
		meet(s);
		return;
	}
	meet(s);
	do {
		OK(look(s, GDRFAB_PEEK, 10, NULL, 0));
		s->lost_count = 0;
	} while (!has_come(s, 10));
	for (int i = 0; i < 2; i++) {
		/* Another peek finds the same message. */
		gdrfab_cq_tagged_entry e = await(s, 10, &from);
		CHECK(e.len == len && e.tag == 9 && from == 1 && (e.flags & GDRFAB_REMOTE_CQ_DATA) && e.data == 1);
		if (i == 0)
			OK(look(s, GDRFAB_PEEK, 10, NULL, 0));
	}
	OK(look(s, GDRFAB_PEEK | GDRFAB_CLAIM, 11, NULL, 0));
	CHECK_EQ(await(s, 11, NULL).data, 1);
	trecv(s, ANY, buf, len, 9, 0, 12);
	CHECK_EQ(await(s, 12, NULL).data, 2);
	CHECK_FILLED("the second", buf, len, 0, 2);
	OK(look(s, GDRFAB_CLAIM, 11, buf, len));
	gdrfab_cq_tagged_entry e = await(s, 11, &from);
	CHECK(e.data == 1 && e.len == len && from == 1);
	CHECK_FILLED("the first", buf, len, 0, 1);
	CHECK_EQ(look(s, GDRFAB_CLAIM, 11, buf, len), -EINVAL);
	do {
		OK(look(s, GDRFAB_PEEK | GDRFAB_DISCARD, 13, NULL, 0));
		s->lost_count = 0;
	} while (!has_come(s, 13));
	CHECK_EQ(await(s, 13, NULL).data, 3);
	do {
		OK(look(s, GDRFAB_PEEK | GDRFAB_CLAIM, 14, NULL, 0));
		s->lost_count = 0;
	} while (!has_come(s, 14));
	CHECK_EQ(await(s, 14, NULL).data, 4);
	OK(look(s, GDRFAB_CLAIM | GDRFAB_DISCARD, 14, NULL, 0));
	await(s, 14, NULL);
	trecv(s, ANY, buf, len, 9, 0, 15);
	CHECK_EQ(await(s, 15, NULL).data, 5);
	CHECK_FILLED("the fifth", buf, len, 0, 5);
	free(buf);
	meet(s);
}

static void peek_claim_and_discard_of_all_lengths(struct self *s)
{
	claims_of_length(s, 8);
	claims_of_length(s, 100000);
	claims_of_length(s, 2 << 20);
}

static void one_receive_for_several(struct self *s)
{
	enum { COUNT = 50, ROOM = 4096 };
	static unsigned char in[2][ROOM], out[COUNT][100];
	if (s->rank == 1) {
		meet(s);
		for (uint32_t i = 0; i < COUNT; i++) {
			fill(out[i], 50 + i, 0, i);
			OK(gdrfab_send(s->ep, out[i], 50 + i, NULL, 0, context_of(i)));
		}
		for (uintptr_t i = 0; i < COUNT; i++)
			await(s, i, NULL);
		return;
	}
	size_t least = 200, len = sizeof least, end = 0, buf = 0, came = 0;
	OK(gdrfab_ep_setopt(s->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_MIN_MULTI_RECV, &least, sizeof least));
	least = 0;
	OK(gdrfab_ep_getopt(s->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_MIN_MULTI_RECV, &least, &len));
	CHECK_EQ(least, 200);
	for (int i = 0; i < 2; i++) {
		struct iovec iov = {in[i], ROOM};
		gdrfab_msg msg = {0};
		msg.struct_size = sizeof msg, msg.msg_iov = &iov, msg.iov_count = 1, msg.addr = ANY, msg.context = in[i];
		OK(gdrfab_recvmsg(s->ep, &msg, GDRFAB_MULTI_RECV));
	}
	meet(s);
	/* 50 messages of 50 to 99 bytes fill the first buffer almost, and use no byte of the second. */
	while (came < COUNT) {
		gdrfab_cq_tagged_entry e = first_entry(s);
		CHECK(e.op_context == in[buf]);
		if (e.len > 0) {
			CHECK(e.buf == in[buf] + end && e.len == 50 + came);
			CHECK_FILLED("a message", in[buf] + end, e.len, 0, (uint32_t)came);
			end += e.len, came++;
		}
		if (e.flags & GDRFAB_MULTI_RECV) {
			CHECK(ROOM - end < 200);
			end = 0, buf++;
		}
	}
}

/* Messages into posted receives: with lengths around the room in a ring's line, and longer ones. */
static void data_comes_along(struct self *s)
{
	static const size_t lens[] = {0, 8, 32, 33, 40, 1000, 6000, 100000};
	enum { COUNT = sizeof lens / sizeof *lens };
	unsigned char *bytes[COUNT];
	for (uintptr_t i = 0; i < COUNT; i++) {
		bytes[i] = (unsigned char *)calloc(lens[i] + 1, 1);
		if (s->rank == 1)
			trecv(s, 0, bytes[i], lens[i], i, 0, i);
	}
	meet(s);
	for (uintptr_t i = 0; i < COUNT; i++) {
		uint64_t data = UINT64_MAX - i;
		if (s->rank == 1) {
			gdrfab_cq_tagged_entry e = await(s, i, NULL);
			CHECK(e.data == data && e.tag == i && e.len == lens[i]);
			CHECK_EQ(e.flags, GDRFAB_RECV | GDRFAB_TAGGED | GDRFAB_REMOTE_CQ_DATA);
			CHECK_FILLED("the message", bytes[i], lens[i], 0, (uint32_t)i);
			continue;
		}
		fill(bytes[i], lens[i], 0, (uint32_t)i);
		if (i % 2 && lens[i] <= s->info->inject_size) {
			OK(gdrfab_tinjectdata(s->ep, bytes[i], lens[i], data, 1, i));
			continue;
		}
		OK(gdrfab_tsenddata(s->ep, bytes[i], lens[i], NULL, data, 1, i, context_of(i)));
		CHECK_EQ(await(s, i, NULL).flags, GDRFAB_SEND | GDRFAB_TAGGED);
	}
	meet(s);
	for (int i = 0; i < COUNT; i++)
		free(bytes[i]);
}

TEST_TABLE(claims)
{
	static const struct rdm_claim both[] = {
		{"tagged_and_untagged_do_not_mix", tagged_and_untagged_do_not_mix, 2, false},
		{"thousands_of_receives", thousands_of_receives, 2, false},
		{"cut_off_at_every_size", cut_off_at_every_size, 2, false},
		{"windows_of_receives", windows_of_receives, 2, false},
		{"cancelled_receives", cancelled_receives, 2, false},
		{"data_comes_along", data_comes_along, 2, false},
		{"peek_claim_and_discard_of_all_lengths", peek_claim_and_discard_of_all_lengths, 2, false},
		{"one_receive_for_several", one_receive_for_several, 2, false},
	};
	/* Claims of more than two processes, or of messages to the own endpoint. */
	static const struct rdm_claim connectionless[] = {
		{"sources_masks_and_order", sources_masks_and_order, 4, false},
	};
	/* The endpoint matches above its lanes: a memory checker needs one. */
	if (test_checked())
		rdm_add(both, sizeof both / sizeof *both);
	else
		rdm_add_both(both, sizeof both / sizeof *both);
	rdm_add(connectionless, sizeof connectionless / sizeof *connectionless);
}

/* --- without a peer --- */

static void start(struct self *s)
{
	memset(s, 0, sizeof *s);
	s->lanes = "shm+tcp", s->count = 1;
	open_ep(s, NULL);
}

TEST(names_and_oneself)
{
	static struct self self, *s = &self;
	unsigned char name[NAME + 8];
	char text[GDRFAB_ADDR_MAX], in[64], out[64];
	uint64_t own = 0, from;
	start(s);
	for (size_t room = 0; room < NAME; room++) {
		size_t len = room;
		CHECK_EQ(gdrfab_ep_getname(s->ep, room ? name : NULL, &len), -GDRFAB_ETOOSMALL);
		CHECK_EQ(len, NAME);
	}
	size_t len = sizeof name;
	OK(gdrfab_ep_getname(s->ep, name, &len));
	CHECK_EQ(len, NAME);
	CHECK(gdrfab_av_straddr(s->av, name, text, sizeof text) > 0);
	SAYS(text, "rdm://");
	CHECK_EQ(gdrfab_av_close(s->av), -EBUSY);
	SAYS(gdrfab_last_error(), "av");
	CHECK_EQ(gdrfab_av_insert(s->av, name, 1, &own, 0, NULL), 1);
	for (int early = 0; early < 2; early++) {
		fill(out, sizeof out, 0, (uint32_t)early);
		if (early)
			trecv(s, ANY, in, sizeof in, 7, 0, 1);
		tsend(s, 0, out, sizeof out, 7, 2);
		if (!early)
			trecv(s, ANY, in, sizeof in, 7, 0, 1);
		CHECK_EQ(await(s, 1, &from).len, sizeof in);
		CHECK_EQ(from, own);
		await(s, 2, NULL);
		CHECK_FILLED("own message", in, sizeof in, 0, (uint32_t)early);
	}
	static const uint64_t nobody[] = {1, ANY, 1ull << 40};
	for (int i = 0; i < 3; i++)
		CHECK_EQ(gdrfab_tsend(s->ep, out, 1, NULL, nobody[i], 7, NULL), -EINVAL);
	OK(gdrfab_av_remove(s->av, &own, 1, 0));
	CHECK_EQ(gdrfab_tsend(s->ep, out, 1, NULL, own, 7, NULL), -EINVAL);
	close_ep(s);
}

/* No process listens at the address: an error with a reason, soon; and a close while a receive still waits. */
TEST(nobody_there)
{
	static struct self self, *s = &self;
	char out[8] = "", words[256];
	uint64_t index;
	start(s);
	CHECK_EQ(gdrfab_av_insertsvc(s->av, "127.0.0.1", "1", &index, 0, NULL), 1);
	uint64_t before = test_now_ms();
	tsend(s, (int)index, out, 8, 0, 1);
	gdrfab_cq_err_entry e = await_failure(s, 1, words);
	CHECK(e.err != 0 && words[0]);
	CHECK(test_now_ms() - before < (uint64_t)test_ms(5000));
	trecv(s, ANY, out, 8, 0, 0, 2);
	close_ep(s);
}
