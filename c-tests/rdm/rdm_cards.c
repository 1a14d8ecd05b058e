/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Two connectionless endpoints of one process on two RDMA devices: each uses its own device, for messages of every length, RMA
 * and atomic operations. When one device goes away, the other endpoint works as before.
 */
#include "fab_rdm.h"

#include <unistd.h>

#define LONG ((size_t)1 << 20)
enum { CARDS = 2, LENS = 3, RECEIVED = 10, SENT = 20, WRITTEN = 30, READ, ADDED, ALL };

static const size_t lens[LENS] = {8, 6000, 300000};

/* The state of one endpoint; its counterpart is an endpoint of the other process. */
struct card {
	struct self s;
	gdrfab_mr *mr;
	uint64_t addr, key; /* of the counterpart's region */
	unsigned char *memory;
	uint64_t before;
};

/* The removed device; used by the first process of the claim. */
#define AWAY "/tmp/gdrfab-device-%d"

/* Brings the device back for the next claim. */
static void is_back(void)
{
	char path[64];
	snprintf(path, sizeof path, AWAY, (int)getpid());
	for (uint64_t until = test_now_ms() + (uint64_t)test_ms(WAIT_MS); access(path, F_OK) == 0; test_sleep_ms(10))
		CHECK(test_now_ms() < until);
}

/* Packets that the device has sent, as soft-RoCE counts them. */
static long sent_by(const struct self *s)
{
	char path[128];
	long count = -1;
	snprintf(path, sizeof path, "/sys/class/infiniband/%.*s/ports/1/hw_counters/sent_pkts",
		 (int)strcspn(s->info->domain_name, ":"), s->info->domain_name);
	FILE *f = fopen(path, "r");
	if (f && fscanf(f, "%ld", &count) != 1)
		count = -1;
	if (f)
		fclose(f);
	return count;
}

/* As open_ep(), with the other device. */
static void open_other(struct card *c, const struct self *first)
{
	gdrfab_info hints = {0}, *list, *at;
	gdrfab_cq_attr attr = {0};
	struct self *s = &c->s;
	s->lanes = first->lanes, s->w = first->w, s->rank = first->rank, s->count = first->count;
	hints.struct_size = sizeof hints, hints.prov_name = (char *)s->lanes, hints.ep_type = GDRFAB_EP_RDM;
	hints.caps = first->info->caps, hints.mr_mode = GDRFAB_MR_VIRT_ADDR | GDRFAB_MR_PROV_KEY;
	OK(gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, 0, &hints, &list));
	for (at = list; at && strcmp(at->domain_name, first->info->domain_name) == 0; at = at->next)
		;
	if (!at) {
		gdrfab_freeinfo(list);
		test_skip("one RDMA device alone");
	}
	s->info = gdrfab_dupinfo(at);
	gdrfab_freeinfo(list);
	OK(gdrfab_fabric_open(s->info, NULL, &s->fabric));
	OK(gdrfab_domain_open(s->fabric, s->info, NULL, &s->domain));
	attr.struct_size = sizeof attr, attr.size = 100, attr.format = GDRFAB_CQ_FORMAT_TAGGED;
	OK(gdrfab_cq_open(s->domain, &attr, NULL, &s->cq));
	OK(gdrfab_av_open(s->domain, NULL, NULL, &s->av));
	OK(gdrfab_ep_open(s->domain, s->info, NULL, &s->ep));
	OK(gdrfab_ep_bind_cq(s->ep, s->cq, GDRFAB_TRANSMIT | GDRFAB_RECV));
	OK(gdrfab_ep_bind_av(s->ep, s->av, 0));
	OK(gdrfab_ep_enable(s->ep));
}

/* As meet(), driving both endpoints. */
static void meet_both(struct card *cards[CARDS])
{
	struct self *s = &cards[0]->s;
	int *here = &s->w->met[1024 + s->meetings++];
	__atomic_fetch_add(here, 1, __ATOMIC_SEQ_CST);
	for (uint64_t until = test_now_ms() + (uint64_t)test_ms(WAIT_MS); __atomic_load_n(here, __ATOMIC_SEQ_CST) < s->count;) {
		CHECK(test_now_ms() < until);
		for (int i = 0; i < CARDS; i++)
			drive(&cards[i]->s);
	}
}

/* Posts all operations with the counterpart at once; their bytes depend on device, rank and round. */
static void begin(struct card *c, int card, uint32_t round)
{
	struct self *s = &c->s;
	static const uint64_t one = 1;
	uint64_t peer = (uint64_t)!s->rank;
	uint32_t seed = round * 100 + (uint32_t)card * 10 + (uint32_t)s->rank;
	unsigned char *in = c->memory + LONG, *out = in + LONG;
	memset(in, 0, LONG);
	for (size_t i = 0, at = 0; i < LENS; at += lens[i++]) {
		trecv(s, peer, in + at, lens[i], round * LENS + i, 0, RECEIVED + i);
		fill(out + at, lens[i], 0, seed);
		tsend(s, (int)peer, out + at, lens[i], round * LENS + i, SENT + i);
	}
	fill(out + LONG, LONG - 8, 0, seed);
	OK(gdrfab_write(s->ep, out + LONG, LONG - 8, gdrfab_mr_desc(c->mr), peer, c->addr, c->key, context_of(WRITTEN)));
	OK(gdrfab_read(s->ep, out + 2 * LONG, LONG - 8, gdrfab_mr_desc(c->mr), peer, c->addr, c->key, context_of(READ)));
	OK(gdrfab_fetch_atomic(s->ep, &one, 1, NULL, &c->before, NULL, peer, c->addr + LONG - 8, c->key, GDRFAB_UINT64, GDRFAB_SUM,
			       context_of(ADDED)));
}

/* True if all entries of the round have come. */
static bool is_over(struct card *c)
{
	for (uintptr_t i = 0; i < LENS; i++)
		if (!has_come(&c->s, RECEIVED + i) || !has_come(&c->s, SENT + i))
			return false;
	for (uintptr_t i = WRITTEN; i < ALL; i++)
		if (!has_come(&c->s, i))
			return false;
	return true;
}

static void check(struct card *c, int card, uint32_t round, uint64_t added)
{
	uint32_t mine = round * 100 + (uint32_t)card * 10 + (uint32_t)c->s.rank, theirs = mine ^ 1;
	unsigned char *in = c->memory + LONG;
	for (size_t i = 0, at = 0; i < LENS; at += lens[i++]) {
		CHECK_EQ(await(&c->s, RECEIVED + i, NULL).len, lens[i]);
		await(&c->s, SENT + i, NULL);
		CHECK_FILLED("a message", in + at, lens[i], 0, theirs);
	}
	for (uintptr_t i = WRITTEN; i < ALL; i++)
		await(&c->s, i, NULL);
	CHECK_FILLED("read back", c->memory + 4 * LONG, LONG - 8, 0, mine);
	CHECK_EQ(c->before, added);
}

static void await_over(struct card *cards[], int count)
{
	for (uint64_t until = test_now_ms() + (uint64_t)test_ms(WAIT_MS);;) {
		int over = 0;
		for (int i = 0; i < count; i++) {
			over += is_over(cards[i]);
			for (int k = 0; k < cards[i]->s.lost_count; k++)
				test_fail(__FILE__, __LINE__, "card %d: %s", i, cards[i]->s.lost[k].words);
		}
		if (over == count)
			return;
		CHECK(test_now_ms() < until);
	}
}

/* Removes the second device: waiting and later operations there fail with a reason. Returns the rounds made by the first. */
static uint64_t loses_second(struct card *cards[CARDS], uint64_t added)
{
	enum { ROUND = 500, ROUNDS = 3, TAG = 9999 };
	struct self *s = &cards[0]->s, *lost = &cards[1]->s;
	char words[256], device[32], byte = 'x';
	trecv(lost, (uint64_t)!s->rank, cards[1]->memory, 8, TAG, 0, RECEIVED);
	meet_both(cards);
	/* The kernel removes the device when no process has it open any more; then it can come back. */
	snprintf(device, sizeof device, "%.*s", (int)strcspn(lost->info->domain_name, ":"), lost->info->domain_name);
	if (s->rank == 0)
		CHECK_EQ(test_system("n=$(cat /sys/class/infiniband/%s/ports/1/gid_attrs/ndevs/0); touch " AWAY
				 "; { rdma link delete %s; rdma link add %s type rxe netdev $n; rm " AWAY "; } 2>/dev/null &",
				 device, (int)getppid(), device, device, (int)getppid()), 0);
	CHECK_EQ(await_failure(lost, RECEIVED, words).err != 0, 1);
	CHECK(words[0] != 0);
	ssize_t sent = gdrfab_tsend(lost->ep, &byte, 1, NULL, (uint64_t)!s->rank, TAG, context_of(SENT));
	CHECK(sent == 0 || gdrfab_last_error()[0] != 0);
	for (uint32_t round = ROUND; round < ROUND + ROUNDS; round++, added++) {
		begin(cards[0], 0, round);
		await_over(cards, 1);
		check(cards[0], 0, round, added);
	}
	if (sent == 0) {
		CHECK_EQ(await_failure(lost, SENT, words).err != 0, 1);
		CHECK(words[0] != 0);
	}
	meet_both(cards);
	return ROUNDS;
}

static void two_cards(struct self *s)
{
	static struct card first, second;
	struct card *cards[CARDS] = {&first, &second};
	uint64_t added = 0, peer = (uint64_t)!s->rank, all = GDRFAB_READ | GDRFAB_WRITE | GDRFAB_REMOTE_READ | GDRFAB_REMOTE_WRITE;
	const char *may = getenv("TEST_BREAK");
	long sent[CARDS];
	size_t len = NAME;
	if (strcmp(s->lanes, "verbs") != 0)
		test_skip("RDMA devices alone");
	first.s = *s;
	open_other(&second, s);
	CHECK(strcmp(first.s.info->domain_name, second.s.info->domain_name) != 0);
	OK(gdrfab_ep_getname(second.s.ep, s->w->names[2 + s->rank], &len));
	for (int i = 0; i < CARDS; i++) {
		struct card *c = cards[i];
		CHECK((c->memory = (unsigned char *)calloc(5, LONG)) != NULL);
		OK(gdrfab_mr_reg(c->s.domain, c->memory, 5 * LONG, all, 0, 7, 0, NULL, &c->mr));
		put_number(s, 4 * i + 2 * s->rank, gdrfab_mr_key(c->mr));
		put_number(s, 4 * i + 2 * s->rank + 1, c->s.info->mr_mode & GDRFAB_MR_VIRT_ADDR ? (uint64_t)(uintptr_t)c->memory : 0);
		sent[i] = sent_by(&c->s);
	}
	meet_both(cards);
	CHECK_EQ(gdrfab_av_insert(second.s.av, s->w->names + 2, 2, NULL, 0, NULL), 2);
	for (int i = 0; i < CARDS; i++) {
		cards[i]->key = get_number(s, 4 * i + 2 * (int)peer);
		cards[i]->addr = get_number(s, 4 * i + 2 * (int)peer + 1);
	}
	for (uint32_t round = 0; round < (uint32_t)test_count(20, 4); round++, added++) {
		for (int i = 0; i < CARDS; i++)
			begin(cards[i], i, round);
		await_over(cards, CARDS);
		for (int i = 0; i < CARDS; i++)
			check(cards[i], i, round, added);
		meet_both(cards);
	}
	for (int i = 0; i < CARDS; i++)
		CHECK(sent[i] < 0 || sent_by(&cards[i]->s) > sent[i] + 100);
	if (may && strcmp(may, "1") == 0)
		added += loses_second(cards, added);
	for (int i = 0; i < CARDS; i++)
		OK(gdrfab_mr_close(cards[i]->mr));
	close_ep(&second.s);
	for (int i = 0; i < CARDS; i++)
		free(cards[i]->memory);
	*s = first.s;
}

TEST_TABLE(claims)
{
	static const struct rdm_claim claims[] = {{"two_endpoints_on_two_cards", two_cards, 2, false}};
	rdm_after = is_back;
	/* The counters of a new device begin at 0. */
	rdm_meets_none = rdm_cards_alone = true;
	rdm_add(claims, sizeof claims / sizeof *claims);
}
