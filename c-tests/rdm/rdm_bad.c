/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Connectionless endpoints at their limits: a million receives, masks that ignore all bits of a tag, removed indexes, and names
 * that are cut off or of another version. For hostile peers see src/rdm/tests/hostile_peer.rs and the fuzzer.
 */
#include "fab_rdm.h"

#include <sys/resource.h>
#include <unistd.h>

#define ANY GDRFAB_ADDR_UNSPEC

static void start(struct self *s)
{
	size_t len = NAME;
	unsigned char name[NAME];
	memset(s, 0, sizeof *s);
	s->lanes = "shm+tcp", s->count = 1;
	open_ep(s, NULL);
	OK(gdrfab_ep_getname(s->ep, name, &len));
	CHECK_EQ(gdrfab_av_insert(s->av, name, 1, NULL, 0, NULL), 1);
}

/* The first, the last and a middle receive are matched, and closing the endpoint ends each of the others with an entry. */
TEST_WITHIN(120, a_million_receives)
{
	static struct self self, *s = &self;
	uint64_t count = (uint64_t)test_count(1000000, 20000), failed = 0;
	uint64_t tags[3] = {0, count / 2, count - 1}, *in = (uint64_t *)calloc(count, sizeof *in);
	char words[256];
	CHECK(in != NULL);
	start(s);
	for (uint64_t i = 0; i < count; i++)
		trecv(s, i % 2 ? 0 : ANY, &in[i], 8, i, 0, 1000 + i);
	for (int i = 0; i < 3; i++) {
		tsend(s, 0, &tags[i], 8, tags[i], 1);
		await(s, 1, NULL);
		CHECK_EQ(await(s, 1000 + tags[i], NULL).tag, tags[i]);
		CHECK_EQ(in[tags[i]], tags[i]);
	}
	OK(gdrfab_cancel(s->ep, context_of(1001)));
	CHECK_EQ(await_failure(s, 1001, words).err, ECANCELED);
	OK(gdrfab_ep_close(s->ep));
	gdrfab_cq_err_entry e = {0};
	for (e.struct_size = sizeof e; gdrfab_cq_readerr(s->cq, &e, 0) == 1; failed++)
		CHECK_EQ(e.err, ECANCELED);
	CHECK_EQ(failed, count - 4);
	OK(gdrfab_av_close(s->av));
	OK(gdrfab_cq_close(s->cq));
	OK(gdrfab_domain_close(s->domain));
	OK(gdrfab_fabric_close(s->fabric));
	gdrfab_freeinfo(s->info);
	free(in);
}

/* The mask ~0 takes any tag, in the order of sending, after receives with more masks than the hash tables hold. */
TEST(all_bits_ignored)
{
	enum { BITS = 64, ANYS = 16 };
	static struct self self, *s = &self;
	uint64_t in[BITS + ANYS];
	start(s);
	for (uint64_t i = 0; i < BITS; i++)
		trecv(s, ANY, &in[i], 8, 1ull << i, ~(1ull << i), 100 + i);
	for (uint64_t i = BITS; i < BITS + ANYS; i++)
		trecv(s, ANY, &in[i], 8, i * 0x123456789, ~0ull, 100 + i);
	for (uint64_t i = BITS; i < BITS + ANYS; i++)
		OK(gdrfab_tinject(s->ep, &i, 8, 0, 0));
	for (uint64_t i = BITS; i-- > 0;)
		OK(gdrfab_tinject(s->ep, &i, 8, 0, 1ull << i));
	for (uint64_t i = 0; i < BITS + ANYS; i++) {
		CHECK_EQ(await(s, 100 + i, NULL).tag, i < BITS ? 1ull << i : 0);
		CHECK_EQ(in[i], i);
	}
	close_ep(s);
}

/* A removed index is invalid. A receive posted for it keeps waiting, can be cancelled, and does not match the next peer with
 * this index. */
static void removed_index(struct self *s)
{
	char in[8] = "", other[8] = "", words[256];
	if (s->rank == 0) {
		uint64_t index = 2, heir = 99;
		trecv(s, 2, in, 8, 5, 0, 1);
		OK(gdrfab_av_remove(s->av, &index, 1, 0));
		CHECK_EQ(gdrfab_trecv(s->ep, in, 8, NULL, 2, 5, 0, NULL), -EINVAL);
		CHECK(strstr(gdrfab_last_error(), "2") != NULL);
		CHECK_EQ(gdrfab_recv(s->ep, in, 8, NULL, 2, NULL), -EINVAL);
		index = 1;
		OK(gdrfab_av_remove(s->av, &index, 1, 0));
		/* The index removed last is given out first: peer 1 has index 1 again, and index 2 too. */
		CHECK_EQ(gdrfab_av_insert(s->av, s->w->names[1], 1, &heir, 0, NULL), 1);
		CHECK_EQ(heir, 1);
		CHECK_EQ(gdrfab_av_insert(s->av, s->w->names[0], 1, &heir, 0, NULL), 1);
		CHECK_EQ(heir, 2);
		tsend(s, 2, "own", 4, 5, 2);
		trecv(s, 2, other, 8, 5, 0, 3);
		await(s, 3, NULL), await(s, 2, NULL);
		CHECK(strcmp(other, "own") == 0 && in[0] == 0);
		OK(gdrfab_cancel(s->ep, context_of(1)));
		CHECK_EQ(await_failure(s, 1, words).err, ECANCELED);
	}
	meet(s);
}

/*
 * A length beyond the maximum message is refused, even if it overflows with the bytes that are sent besides, and so is a length
 * beyond inject_size; the peer goes on.
 */
static void endless_lengths(struct self *s)
{
	char in[8] = "";
	static char longer[8192];
	if (s->rank == 0) {
		tsend(s, 1, "met", 4, 1, 1);
		await(s, 1, NULL);
		for (size_t i = 0; i < 40; i++) {
			size_t len = SIZE_MAX - i;
			CHECK_EQ(gdrfab_send(s->ep, in, len, NULL, 1, NULL), -EMSGSIZE);
			CHECK_EQ(gdrfab_tsend(s->ep, in, len, NULL, 1, 2, NULL), -EMSGSIZE);
			CHECK_EQ(gdrfab_tsenddata(s->ep, in, len, NULL, 3, 1, 2, NULL), -EMSGSIZE);
			CHECK_EQ(gdrfab_inject(s->ep, in, len, 1), -EMSGSIZE);
			CHECK_EQ(gdrfab_tinject(s->ep, in, len, 1, 2), -EMSGSIZE);
			CHECK_EQ(gdrfab_trecv(s->ep, in, len, NULL, 1, 2, 0, NULL), -EMSGSIZE);
		}
		CHECK(s->info->inject_size < sizeof longer);
		for (size_t len = s->info->inject_size + 1; len <= sizeof longer; len += 1000) {
			CHECK_EQ(gdrfab_inject(s->ep, longer, len, 1), -EMSGSIZE);
			CHECK_EQ(gdrfab_tinject(s->ep, longer, len, 1, 2), -EMSGSIZE);
			CHECK_EQ(gdrfab_tinjectdata(s->ep, longer, len, 3, 1, 2), -EMSGSIZE);
		}
		tsend(s, 1, "again", 6, 3, 2);
		await(s, 2, NULL);
	} else {
		trecv(s, 0, in, sizeof in, 1, 0, 1);
		await(s, 1, NULL);
		trecv(s, 0, in, sizeof in, 3, 0, 2);
		await(s, 2, NULL);
		CHECK(strcmp(in, "again") == 0 && s->kept_count == 0);
	}
	meet(s);
}

/* A message to the own endpoint that is almost as long as the memory which this process may still map arrives, with the receive
 * posted after it and before it. */
TEST(to_oneself_without_room_for_a_copy)
{
	enum { LEN = 64 << 20 };
	static struct self self, *s = &self;
	const char *preload = getenv("LD_PRELOAD");
	struct rlimit r;
	unsigned long pages = 0;
	if (preload && strstr(preload, "vgpreload"))
		test_skip("a memory checker maps what it likes");
	start(s);
	char *from = (char *)malloc(LEN), *to = (char *)malloc(LEN);
	CHECK(from && to);
	fill(from, LEN, 0, 3);
	tsend(s, 0, from, 100, 0, 1), trecv(s, 0, to, 100, 0, 0, 2);
	await(s, 1, NULL), await(s, 2, NULL);
	FILE *f = fopen("/proc/self/statm", "r");
	CHECK(f && fscanf(f, "%lu", &pages) == 1);
	fclose(f);
	OK(getrlimit(RLIMIT_AS, &r));
	r.rlim_cur = pages * (rlim_t)sysconf(_SC_PAGESIZE) + LEN / 2;
	OK(setrlimit(RLIMIT_AS, &r));
	for (uint64_t first = 0; first < 2; first++) {
		memset(to, 0, LEN);
		if (first)
			trecv(s, 0, to, LEN, first, 0, 2);
		tsend(s, 0, from, LEN, first, 1);
		if (!first)
			trecv(s, 0, to, LEN, first, 0, 2);
		await(s, 1, NULL);
		CHECK_EQ(await(s, 2, NULL).len, LEN);
		CHECK_FILLED("the message", to, LEN, 0, 3);
	}
	free(from), free(to);
	close_ep(s);
}

/* A name's text with any character missing is refused with a reason, or is another name, never this one. */
TEST(names_cut_off_at_every_length)
{
	static struct self self, *s = &self;
	char text[GDRFAB_ADDR_MAX], again[GDRFAB_ADDR_MAX];
	unsigned char name[NAME], found[NAME];
	size_t len = NAME;
	uint64_t index;
	start(s);
	OK(gdrfab_ep_getname(s->ep, name, &len));
	CHECK(gdrfab_av_straddr(s->av, name, text, sizeof text) > 0);
	for (size_t cut = 0; cut < strlen(text); cut++) {
		memcpy(again, text, cut), again[cut] = 0;
		ssize_t n = gdrfab_av_insertsvc(s->av, NULL, again, &index, 0, NULL);
		if (n == 1) {
			len = NAME;
			OK(gdrfab_av_lookup(s->av, index, found, &len));
			CHECK(memcmp(found, name, NAME) != 0);
			OK(gdrfab_av_remove(s->av, &index, 1, 0));
		} else {
			CHECK(n < 0 && gdrfab_last_error()[0]);
		}
	}
	/* As bytes a name has a fixed length; it begins with a magic number and the version. */
	for (int at = 0; at < 4; at++)
		for (int bit = 0; bit < 8; bit++) {
			memcpy(found, name, NAME);
			found[at] ^= (unsigned char)(1 << bit);
			CHECK_EQ(gdrfab_av_insert(s->av, found, 1, &index, 0, NULL), 0);
			CHECK_EQ(index, GDRFAB_ADDR_NOTAVAIL);
			CHECK(gdrfab_last_error()[0]);
		}
	close_ep(s);
}

TEST_TABLE(claims)
{
	static const struct rdm_claim claims[] = {{"removed_index", removed_index, 3, false}, {"endless_lengths", endless_lengths, 2, false}};
	rdm_add(claims, 2);
}
