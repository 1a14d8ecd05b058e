/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Connectionless endpoints whose lane has rails (GDRFAB_OPT_RAILS), which are lost and return one after the other: tagged
 * messages, writes, reads and atomic operations arrive once and in order.
 */
#include "fab_rdm.h"
#include "fab_ways.h"
#include "process_pair.h"

#define LONG ((size_t)1 << 20)
#define COUNTERS LONG
#define ALL (LONG + 4096)
#define RAILS "127.0.0.1,127.0.0.2"

static const size_t lens[] = {8, 3000, 70000, 700001};
enum { SIZES = 4, RECEIVED = 10, SENT = 20, WRITTEN, READ, FETCHED, ADDED };

struct place {
	uint64_t addr, key;
};

static void on_rails(struct self *s)
{
	char now[64] = "";
	size_t len = sizeof now;
	OK(gdrfab_ep_setopt(s->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_RAILS, RAILS, sizeof RAILS));
	OK(gdrfab_ep_getopt(s->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_RAILS, now, &len));
	CHECK(len == sizeof RAILS && strcmp(now, RAILS) == 0);
}

/* Posts all operations with the peer at once; the peer does the same. */
static void round_of(struct self *s, struct place peer, uint32_t round)
{
	static unsigned char in[SIZES][700001], out[SIZES][700001], written[LONG], read[LONG];
	uint64_t to = (uint64_t)!s->rank, one = 1, before = UINT64_MAX;
	uint32_t seed = round * 100 + (uint32_t)s->rank * 10, theirs = round * 100 + (uint32_t)to * 10;
	for (int i = 0; i < SIZES; i++)
		trecv(s, to, in[i], lens[i], round, 0, RECEIVED + (uintptr_t)i);
	fill(written, LONG, 0, seed + 9);
	OK(gdrfab_write(s->ep, written, LONG, NULL, to, peer.addr, peer.key, context_of(WRITTEN)));
	for (int i = 0; i < SIZES; i++) {
		fill(out[i], lens[i], 0, seed + (uint32_t)i);
		tsend(s, (int)to, out[i], lens[i], round, SENT * 2 + (uintptr_t)i);
	}
	OK(gdrfab_fetch_atomic(s->ep, &one, 1, NULL, &before, NULL, to, peer.addr + COUNTERS, peer.key, GDRFAB_UINT64, GDRFAB_SUM,
			       context_of(FETCHED)));
	OK(gdrfab_atomic(s->ep, &one, 1, NULL, to, peer.addr + COUNTERS + 8, peer.key, GDRFAB_UINT64, GDRFAB_SUM, context_of(ADDED)));
	await(s, WRITTEN, NULL);
	OK(gdrfab_read(s->ep, read, LONG, NULL, to, peer.addr, peer.key, context_of(READ)));
	await(s, READ, NULL);
	CHECK_FILLED("read back", read, LONG, 0, seed + 9);
	await(s, FETCHED, NULL);
	await(s, ADDED, NULL);
	CHECK_EQ(before, round);
	for (int i = 0; i < SIZES; i++) {
		/* Messages of one tag arrive in the order of their sends. */
		CHECK_EQ(await(s, RECEIVED + (uintptr_t)i, NULL).len, lens[i]);
		CHECK_FILLED("a message", in[i], lens[i], 0, theirs + (uint32_t)i);
		await(s, SENT * 2 + (uintptr_t)i, NULL);
	}
}

static void drive_for(struct self *s, int ms)
{
	for (uint64_t until = test_now_ms() + (uint64_t)ms; test_now_ms() < until; drive(s))
		;
}

static void check_rails(struct self *s)
{
	gdrfab_rail_info rail;
	gdrfab_stats stats = {.struct_size = sizeof stats};
	char words[4096];
	uint64_t lost = 0, bytes = 0;
	/* In the end each rail is up again. */
	for (uint32_t i = 0; i < 2; i++) {
		uint64_t until = test_now_ms() + (uint64_t)test_ms(10000);
		do {
			drive(s);
			CHECK_EQ(rail_query(s->ep, (uint64_t)!s->rank, i, &rail), 2);
			CHECK(test_now_ms() < until);
		} while (!rail.up);
		bytes += rail.bytes_out;
		lost += rail.losses;
	}
	CHECK(bytes > LONG);
	CHECK(lost > 0);
	OK(gdrfab_ep_stats(s->ep, &stats));
	CHECK_EQ(stats.rails_lost, lost);
	CHECK(gdrfab_ep_explain(s->ep, (uint64_t)!s->rank, 0, words, sizeof words) > 0);
	SAYS(words, "  rail 1, 127.0.0.");
	fprintf(stderr, "     rank %d: %u rails lost\n", s->rank, (unsigned)lost);
}

static void side(enum test_side side, int oob, const void *arg)
{
	static struct self s;
	static unsigned char region[ALL];
	const char *const *fault = (const char *const *)arg;
	unsigned char names[2][NAME];
	struct place own, peer;
	uint64_t counters[2];
	size_t len = NAME;
	gdrfab_mr *mr = NULL;
	uint32_t rounds = (uint32_t)test_count(16, 8);
	s.lanes = "tcp", s.rank = side == TEST_CLIENT, s.count = 2;
	if (fault[s.rank])
		setenv("GDRFAB_FAULT", fault[s.rank], 1);
	rdm_bind = on_rails;
	open_ep(&s, NULL);
	OK(gdrfab_ep_getname(s.ep, names[s.rank], &len));
	test_oob_send(oob, names[s.rank], NAME);
	test_oob_recv(oob, names[!s.rank], NAME, NULL, NULL);
	CHECK_EQ(gdrfab_av_insert(s.av, names, 2, NULL, 0, NULL), 2);
	OK(gdrfab_mr_reg(s.domain, region, ALL, GDRFAB_REMOTE_READ | GDRFAB_REMOTE_WRITE, 0, 0, 0, NULL, &mr));
	own = (struct place){(uintptr_t)region, gdrfab_mr_key(mr)};
	test_oob_send(oob, &own, sizeof own);
	test_oob_recv(oob, &peer, sizeof peer, NULL, NULL);
	for (uint32_t round = 0; round < rounds; round++) {
		round_of(&s, peer, round);
		/* Fault injection loses a rail only if another has been up for a while. */
		drive_for(&s, round == 0 ? 400 : 30);
	}
	test_barrier(oob, (test_drive_fn)drive, &s);
	drive_for(&s, 100);
	CHECK_EQ(s.kept_count, 0);
	CHECK_EQ(s.lost_count, 0);
	memcpy(counters, region + COUNTERS, sizeof counters);
	CHECK(counters[0] == rounds && counters[1] == rounds);
	CHECK_FILLED("written by the peer", region, LONG, 0, (rounds - 1) * 100 + (uint32_t)!s.rank * 10 + 9);
	check_rails(&s);
	test_barrier(oob, (test_drive_fn)drive, &s);
	OK(gdrfab_mr_close(mr));
	close_ep(&s);
}

static void run(const void *arg)
{
	test_pair(side, TEST_REFEREE, arg);
}

TEST_TABLE(rails)
{
	static const char *const first[2] = {"tcp/rail=13:0,tcp/rail=7:1"}, *const second[2] = {NULL, "tcp/rail=11"};
	test_add("broken_by_one", run, first, 60);
	test_add("broken_by_the_other", run, second, 60);
}
