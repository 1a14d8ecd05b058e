/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Many RMA transfers at once: a flag that is written after data arrives after it, a stopped target is reached by one-sided
 * paths, a full queue loses nothing, and both sides may write at once.
 */
#include "fab.h"

#define SIZE ((size_t)64 * 1024)

/* --- data, then a flag --- */

struct round {
	uint64_t number, size;
};

static void clear(struct mem *m)
{
	void *zero = calloc(1, m->len);
	mem_write(m, 0, zero, m->len);
	free(zero);
}

static uint64_t flag_of(struct mem *m)
{
	uint64_t value;
	if (!m->kind->opaque)
		return __atomic_load_n((uint64_t *)(void *)(m->addr + SIZE), __ATOMIC_ACQUIRE);
	mem_read(m, SIZE, &value, sizeof value);
	return value;
}

static void flag_target(struct node *n)
{
	const struct way *way = (const struct way *)n->arg;
	bool helps = !one_sided(way);
	struct mem m;
	node_up(n);
	mem_new(n, &m, way->kind, SIZE + 64);
	clear(&m);
	way_register(n, &m, 0, SIZE + 64, way);
	mem_publish(n, &m);
	struct round r;
	for (;;) {
		oob_recv(n, &r, sizeof r);
		if (r.number == 0)
			break;
		/* No library call here on the one-sided paths: the bytes arrive without this process. */
		uint64_t until = test_now_ms() + (uint64_t)test_ms(10000);
		while (flag_of(&m) != r.number) {
			if (helps)
				gdrfab_cq_read(n->cq, NULL, 0);
			if (test_now_ms() > until)
				test_fail(__FILE__, __LINE__, "the flag of round %llu did not arrive",
					  (unsigned long long)r.number);
		}
		CHECK_MEM("data in front of the flag", &m, 0, r.size, 0, (uint32_t)r.number);
		barrier(n);
	}
	mem_end(n, &m);
	node_down(n);
}

static void flag_initiator(struct node *n)
{
	static const size_t sizes[] = {8, 64, 200, 4096, 20000, SIZE};
	const struct way *way = (const struct way *)n->arg;
	node_up(n);
	struct remote to = mem_fetch(n);
	way_check(n, way, to);
	CHECK((n->info->msg_order & GDRFAB_ORDER_WAW) != 0);
	unsigned char *data = (unsigned char *)malloc(SIZE);
	/* Reading device memory is a call of its driver, and slow. */
	uint64_t rounds = (uint64_t)(way->kind->opaque ? test_count(300, 30) : test_count(1200, 60));
	for (uint64_t number = 1; number <= rounds; number++) {
		struct round r = {number, sizes[number % 6]};
		fill(data, r.size, 0, (uint32_t)number);
		oob_send(n, &r, sizeof r);
		POST(n->cq, gdrfab_write(n->ep, data, r.size, local_desc(n, data, r.size), PEER, to.base, to.key, data));
		POST(n->cq, gdrfab_write(n->ep, &number, sizeof number, local_desc(n, &number, sizeof number), PEER,
					 to.base + SIZE, to.key, &number));
		/* The bytes arrive in order; the order of the completions is not defined. */
		done first, second;
		CHECK_EQ(cq_next(n->cq, &first, 10000), 1);
		CHECK_EQ(cq_next(n->cq, &second, 10000), 1);
		CHECK(first.op_context == data ? second.op_context == &number
					       : first.op_context == &number && second.op_context == data);
		barrier(n);
	}
	struct round end = {0, 0};
	oob_send(n, &end, sizeof end);
	free(data);
	node_down(n);
}

static void flag_after_data(const void *arg)
{
	pair(NULL, flag_target, flag_initiator, arg);
}

/* --- a read, and operations posted behind it --- */

/* The target makes no progress before all operations are posted. */
static void behind_a_read_target(struct node *n)
{
	const struct way *way = (const struct way *)n->arg;
	struct mem m;
	char word[8];
	node_up(n);
	mem_new(n, &m, way->kind, SIZE);
	mem_fill(&m, 0, SIZE, 0, 1);
	way_register(n, &m, 0, SIZE, way);
	mem_publish(n, &m);
	POST(n->cq, gdrfab_recv(n->ep, word, sizeof word, local_desc(n, word, sizeof word), GDRFAB_ADDR_UNSPEC, word));
	barrier(n);
	oob_recv(n, word, 1);
	DONE(n->cq, word, GDRFAB_RECV, NULL);
	mem_fill(&m, 0, SIZE, 0, 2);
	barrier(n);
	mem_fill(&m, 0, SIZE, 0, 3);
	barrier(n);
	oob_recv(n, word, 1);
	barrier(n);
	CHECK_MEM("what was written behind the read", &m, 0, SIZE, 0, 4);
	mem_end(n, &m);
	node_down(n);
}

static void behind_a_read_initiator(struct node *n)
{
	const struct way *way = (const struct way *)n->arg;
	static unsigned char in[SIZE], out[SIZE];
	done end;
	node_up(n);
	struct remote to = mem_fetch(n);
	way_check(n, way, to);
	fill(out, SIZE, 0, 4);
	barrier(n);
	for (uint32_t seed = 1; seed <= 3; seed += 2) {
		void *local = local_desc(n, in, SIZE);
		POST(n->cq, gdrfab_read(n->ep, in, SIZE, local, PEER, to.base, to.key, in));
		if (seed == 1)
			POST(n->cq, gdrfab_send(n->ep, out, 8, local_desc(n, out, 8), PEER, out));
		else
			POST(n->cq, gdrfab_write(n->ep, out, SIZE, local_desc(n, out, SIZE), PEER, to.base, to.key, out));
		oob_send(n, "", 1);
		CHECK_EQ(cq_next(n->cq, &end, 10000), 1);
		CHECK_EQ(cq_next(n->cq, &end, 10000), 1);
		CHECK_FILLED(seed == 1 ? "read before a message" : "read before a write", in, SIZE, 0, seed);
		barrier(n);
		if (seed == 1)
			barrier(n);
	}
	node_down(n);
}

static bool keeps_behind_reads(void)
{
	gdrfab_info *hints = gdrfab_dupinfo(NULL), *info = NULL;
	uint64_t order = GDRFAB_ORDER_WAR | GDRFAB_ORDER_SAR;
	bool keeps = provider_getinfo(NULL, 0, hints, &info) == 0 && (info->msg_order & order) == order;
	gdrfab_freeinfo(hints);
	gdrfab_freeinfo(info);
	return keeps;
}

static void behind_a_read(const void *arg)
{
	pair(NULL, behind_a_read_target, behind_a_read_initiator, arg);
}

/* --- a target that is stopped --- */

static void still_target(struct node *n)
{
	const struct way *way = (const struct way *)n->arg;
	struct mem m;
	node_up(n);
	mem_new(n, &m, way->kind, 4 * 1024 * 1024);
	mem_fill(&m, 0, m.len, 0, 1);
	way_register(n, &m, 0, m.len, way);
	mem_publish(n, &m);
	barrier(n);
	/* Stopped and continued in here. */
	n->idle = true;
	barrier(n);
	n->idle = false;
	CHECK_MEM("small write", &m, 0, 64, 0, 2);
	CHECK_MEM("between the writes", &m, 64, 4096 - 64, 64, 1);
	CHECK_MEM("large write", &m, 4096, 1024 * 1024 + 3, 0, 3);
	size_t behind = 4096 + 1024 * 1024 + 3;
	CHECK_MEM("behind the writes", &m, behind, m.len - behind, behind, 1);
	mem_end(n, &m);
	node_down(n);
}

static void still_initiator(struct node *n)
{
	const struct way *way = (const struct way *)n->arg;
	size_t large = 1024 * 1024 + 3;
	node_up(n);
	struct remote to = mem_fetch(n);
	way_check(n, way, to);
	barrier(n);
	unsigned char *buf = (unsigned char *)malloc(large);
	unsigned char *back = (unsigned char *)calloc(1, large);
	/* The first operation may map the memory; even this needs no progress of the target. */
	peer_stop(n);
	fill(buf, 64, 0, 2);
	POST(n->cq, gdrfab_write(n->ep, buf, 64, local_desc(n, buf, 64), PEER, to.base, to.key, buf));
	DONE(n->cq, buf, GDRFAB_WRITE, NULL);
	fill(buf, large, 0, 3);
	POST(n->cq, gdrfab_write(n->ep, buf, large, local_desc(n, buf, large), PEER, to.base + 4096, to.key, buf));
	DONE(n->cq, buf, GDRFAB_WRITE, NULL);
	POST(n->cq, gdrfab_read(n->ep, back, large, local_desc(n, back, large), PEER, to.base + 4096, to.key, back));
	DONE(n->cq, back, GDRFAB_READ, NULL);
	CHECK_FILLED("read back from the stopped process", back, large, 0, 3);
	peer_continue(n);
	barrier(n);
	free(buf);
	free(back);
	node_down(n);
}

static void target_stands_still(const void *arg)
{
	pair(NULL, still_target, still_initiator, arg);
}

/* --- a full queue --- */

#define SLOT 256
#define SLOTS 2048

/* More operations than an endpoint accepts at once. */
static size_t slots_of(const struct node *n)
{
	size_t fewer = n->info->tx_size + n->info->tx_size / 4;
	return test_count(0, 1) && fewer < SLOTS ? fewer : SLOTS;
}

static void window_target(struct node *n)
{
	const struct way *way = (const struct way *)n->arg;
	struct mem m;
	node_up(n);
	size_t slots = slots_of(n);
	mem_new(n, &m, way->kind, (size_t)SLOT * slots);
	clear(&m);
	way_register(n, &m, 0, m.len, way);
	mem_publish(n, &m);
	barrier(n);
	for (size_t i = 0; i < slots; i++)
		CHECK_MEM("slot", &m, i * SLOT, SLOT, 0, (uint32_t)i + 1);
	mem_end(n, &m);
	node_down(n);
}

static void window_initiator(struct node *n)
{
	const struct way *way = (const struct way *)n->arg;
	node_up(n);
	struct remote to = mem_fetch(n);
	way_check(n, way, to);
	size_t slots = slots_of(n);
	unsigned char *data = (unsigned char *)malloc((size_t)SLOT * slots);
	unsigned char *seen = (unsigned char *)calloc(1, slots);
	size_t posted = 0, ended = 0;
	uint64_t until = test_now_ms() + (uint64_t)test_ms(10000);
	for (size_t i = 0; i < slots; i++)
		fill(data + i * SLOT, SLOT, 0, (uint32_t)i + 1);
	while (ended < slots) {
		/* Posts until -EAGAIN, and only then reads completions. */
		for (; posted < slots; posted++) {
			unsigned char *at = data + posted * SLOT;
			void *desc = local_desc(n, data, (size_t)SLOT * slots);
			ssize_t rc = gdrfab_write(n->ep, at, SLOT, desc, PEER, to.base + posted * SLOT, to.key, at);
			if (rc == -EAGAIN)
				break;
			OK(rc);
		}
		done entries[7];
		ssize_t got = gdrfab_cq_read(n->cq, entries, 7);
		if (got == -EAGAIN) {
			CHECK(test_now_ms() < until);
			continue;
		}
		CHECK(got > 0);
		for (ssize_t i = 0; i < got; i++) {
			size_t slot = (size_t)((unsigned char *)entries[i].op_context - data) / SLOT;
			CHECK(slot < posted);
			CHECK_EQ(seen[slot], 0);
			seen[slot] = 1;
			ended++;
		}
	}
	QUIET(n->cq, 5);
	barrier(n);
	free(data);
	free(seen);
	node_down(n);
}

static void full_window(const void *arg)
{
	pair(NULL, window_target, window_initiator, arg);
}

/* --- both sides write and read at once --- */

static void crossing(struct node *n)
{
	const struct way *way = (const struct way *)n->arg;
	size_t len = 512 * 1024 + 5;
	uint32_t mine = n->side, theirs = n->side == TEST_SERVER ? TEST_CLIENT : TEST_SERVER;
	struct mem m;
	node_up(n);
	mem_new(n, &m, way->kind, len);
	mem_fill(&m, 0, len, 0, 100);
	way_register(n, &m, 0, len, way);
	mem_publish(n, &m);
	struct remote to = mem_fetch(n);
	way_check(n, way, to);
	unsigned char *out = (unsigned char *)malloc(len), *in = (unsigned char *)calloc(1, len);
	int rounds = test_count(20, 3);
	for (int round = 0; round < rounds; round++) {
		fill(out, len, 0, mine * 1000 + (uint32_t)round);
		barrier(n);
		POST(n->cq, gdrfab_write(n->ep, out, len, local_desc(n, out, len), PEER, to.base, to.key, out));
		DONE(n->cq, out, GDRFAB_WRITE, NULL);
		POST(n->cq, gdrfab_read(n->ep, in, len, local_desc(n, in, len), PEER, to.base, to.key, in));
		DONE(n->cq, in, GDRFAB_READ, NULL);
		CHECK_FILLED("what this side wrote, read back", in, len, 0, mine * 1000 + (uint32_t)round);
		barrier(n);
		CHECK_MEM("what the other side wrote", &m, 0, len, 0, theirs * 1000 + (uint32_t)round);
		barrier(n);
	}
	mem_end(n, &m);
	free(out);
	free(in);
	node_down(n);
}

static void both_at_once(const void *arg)
{
	struct setup s = {.by_address = true};
	pair(&s, crossing, crossing, arg);
}

TEST_TABLE(per_way)
{
	size_t count = test_count(1, 0) ? all_ways_list() : ways_list();
	char name[64];
	for (size_t i = 0; i < count; i++) {
		if (way_spared(&ways[i]))
			continue;
		snprintf(name, sizeof name, "flag_after_data_%s", ways[i].name);
		test_add(name, flag_after_data, &ways[i], 30);
	}
	for (size_t i = 0; i < count && keeps_behind_reads(); i++) {
		if (way_spared(&ways[i]))
			continue;
		snprintf(name, sizeof name, "behind_a_read_%s", ways[i].name);
		test_add(name, behind_a_read, &ways[i], 30);
	}
	for (size_t i = 0; i < count; i++) {
		if (!one_sided(&ways[i]) || way_spared(&ways[i]))
			continue;
		snprintf(name, sizeof name, "target_stands_still_%s", ways[i].name);
		test_add(name, target_stands_still, &ways[i], 30);
	}
	for (size_t i = 0; i < count; i++) {
		if (test_count(0, 1) && !way_leads(i))
			continue;
		snprintf(name, sizeof name, "full_window_%s", ways[i].name);
		test_add(name, full_window, &ways[i], 30);
		snprintf(name, sizeof name, "both_at_once_%s", ways[i].name);
		test_add(name, both_at_once, &ways[i], 30);
	}
}
