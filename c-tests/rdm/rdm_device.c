/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Messages of device memory between connectionless endpoints: of every kind, at either side, sent before and after the
 * receive is posted. */
#include "fab.h"
#include "fab_rdm.h"
#include "fab_ways.h"

#include <pthread.h>

enum { MOST_BYTES = 1 << 20 };
static const size_t lengths[] = {1, 100, 8192, 8193, 100000, MOST_BYTES};
#define LENGTHS (sizeof lengths / sizeof *lengths)

static struct node node_of(struct self *s)
{
	struct node n;
	memset(&n, 0, sizeof n);
	n.side = s->rank ? TEST_CLIENT : TEST_SERVER;
	n.domain = s->domain;
	n.info = s->info;
	n.drivers = true;
	return n;
}

/* Rank 0 sends each length from its memory into that of rank 1. access: rights of the sender's region. */
static void send_all(struct self *s, struct mem *m, uint64_t access, uint32_t seed)
{
	struct node n = node_of(s);
	mem_register(&n, m, 0, m->len, s->rank ? GDRFAB_RECV : access, 0);
	for (size_t i = 0; i < LENGTHS; i += (size_t)test_count(1, 2)) {
		for (int unexpected = 0; unexpected < 2; unexpected++) {
			size_t len = lengths[i];
			if (s->rank == 0) {
				mem_fill(m, 0, len, 0, seed);
				if (!unexpected)
					meet(s);
				OK(gdrfab_tsend(s->ep, m->addr, len, mem_desc(m), 1, 7, context_of(1)));
				if (unexpected)
					meet(s);
				await(s, 1, NULL);
			} else {
				mem_fill(m, 0, m->len, 0, seed + 1);
				if (unexpected)
					meet(s);
				OK(gdrfab_trecv(s->ep, m->addr, m->len, mem_desc(m), 0, 7, 0, context_of(1)));
				if (!unexpected)
					meet(s);
				CHECK_EQ(await(s, 1, NULL).len, len);
				CHECK_MEM("message", m, 0, len, 0, seed);
				CHECK_MEM("what lies behind", m, len, m->len - len, len, seed + 1);
			}
		}
	}
	mem_unregister(m);
}

static void of_every_kind(struct self *s)
{
	size_t count = device_kinds_list();
	struct node n = node_of(s);
	if (count == 0)
		test_skip("TEST_IFACES names no interface");
	for (size_t k = 0; k < count; k++) {
		struct mem device, host;
		if (kind_spared(device_kinds[k]))
			continue;
		mem_new(&n, &device, device_kinds[k], MOST_BYTES + 64);
		mem_new(&n, &host, &memkinds[KIND_MALLOC], MOST_BYTES + 64);
		send_all(s, &device, GDRFAB_SEND, 1);
		if (!test_count(0, 1))
			send_all(s, &device, GDRFAB_SEND | GDRFAB_REMOTE_READ, 3);
		send_all(s, s->rank ? &host : &device, GDRFAB_SEND, 5);
		send_all(s, s->rank ? &device : &host, GDRFAB_SEND, 7);
		meet(s);
		mem_end(&n, &host);
		mem_end(&n, &device);
	}
}

/* The reported path to a peer's memory, known from the key or asked from the peer: host memory of a driver is host memory. */
static void lends_every_kind(struct node *n)
{
	size_t count = all_ways_list();
	node_up(n);
	node_reach(n);
	for (size_t i = 0; i < count; i++) {
		struct mem m;
		mem_new(n, &m, ways[i].kind, 4096);
		way_register(n, &m, 0, 4096, &ways[i]);
		mem_publish(n, &m);
		barrier(n);
		mem_end(n, &m);
	}
	node_down(n);
}

static void looks_at_every_kind(struct node *n)
{
	size_t count = all_ways_list();
	node_up(n);
	node_reach(n);
	for (size_t i = 0; i < count; i++) {
		struct remote to = mem_fetch(n);
		test_at(__FILE__, __LINE__);
		way_check(n, &ways[i], to);
		barrier(n);
	}
	node_down(n);
}

TEST(each_kind_has_its_path)
{
	struct setup s = {.rdm = true};
	skip_unless(!traits()->adapter, "a card's own lanes have their own claims");
	pair(&s, lends_every_kind, looks_at_every_kind, NULL);
}

/* --- a slow driver, in a copy of an endpoint to itself --- */

struct slow {
	struct self self;
	struct mem device;
	uint64_t word;
	bool atomic;
	int begun, result;
};

static void *copies_to_itself(void *arg)
{
	struct slow *s = (struct slow *)arg;
	uint64_t at = s->device.base, key = s->device.key;
	__atomic_store_n(&s->begun, 1, __ATOMIC_SEQ_CST);
	if (s->atomic)
		s->result = (int)gdrfab_atomic(s->self.ep, &s->word, 1, NULL, 0, at, key, GDRFAB_UINT64, GDRFAB_ATOMIC_WRITE, context_of(1));
	else
		s->result = (int)gdrfab_write(s->self.ep, &s->word, 8, NULL, 0, at, key, context_of(1));
	return NULL;
}

/* Registering other memory does not wait for the copy; closing this region does, for a second at most. */
static void slow_copy(const void *arg)
{
	static struct slow slow, *s = &slow;
	unsigned char name[NAME];
	size_t len = NAME, kinds = device_kinds_list(), k = 0;
	struct node n;
	pthread_t thread;
	char us[24];
	void *mine;
	while (k < kinds && !(device_kinds[k]->opaque && device_kinds[k]->iface == GDRFAB_HMEM_CUDA))
		k++;
	if (k == kinds || getenv("TEST_REAL"))
		test_skip("no fake driver that can be told to take its time");
	s->self.lanes = "shm+tcp", s->self.count = 1, s->word = 7, s->atomic = *(const bool *)arg;
	open_ep(&s->self, NULL);
	OK(gdrfab_ep_getname(s->self.ep, name, &len));
	CHECK_EQ(gdrfab_av_insert(s->self.av, name, 1, NULL, 0, NULL), 1);
	n = node_of(&s->self);
	mem_new(&n, &s->device, device_kinds[k], 4096);
	mem_register(&n, &s->device, 0, 4096, REMOTE_ACCESS, 0);
	uint64_t delay = (uint64_t)test_ms(1500);
	snprintf(us, sizeof us, "%llu", (unsigned long long)delay * 1000);
	setenv("FAKE_DELAY_US", us, 1);
	uint64_t start = test_now_ms();
	CHECK_EQ(pthread_create(&thread, NULL, copies_to_itself, s), 0);
	while (!__atomic_load_n(&s->begun, __ATOMIC_SEQ_CST))
		test_sleep_ms(1);
	test_sleep_ms(200);
	for (int i = 0; i < 20; i++) {
		gdrfab_mr *mr;
		OK(gdrfab_mr_reg(s->self.domain, &mine, sizeof mine, REMOTE_ACCESS, 0, 0, 0, NULL, &mr));
		OK(gdrfab_mr_close(mr));
		test_sleep_ms(5);
	}
	bool before = test_now_ms() - start < delay;
	int closed = gdrfab_mr_close(s->device.mr);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_EQ(s->result, 0);
	await(&s->self, 1, NULL);
	CHECK(before && test_now_ms() - start >= delay);
	CHECK_EITHER(closed, 0, -EBUSY);
	unsetenv("FAKE_DELAY_US");
	if (closed)
		OK(gdrfab_mr_close(s->device.mr));
	s->device.mr = NULL;
	mem_end(&n, &s->device);
	close_ep(&s->self);
}

TEST_TABLE(to_oneself)
{
	static const bool kinds[] = {false, true};
	/* A memory checker learns nothing of seconds in a slow driver: messages_of_device_memory makes the same copies. No adapter takes
	 * part in what an endpoint writes to itself. */
	if (test_checked() || !strcmp(provider(), "verbs"))
		return;
	test_add("a_slow_write_to_oneself_holds_up_no_registration", slow_copy, &kinds[0], 30);
	test_add("a_slow_atomic_to_oneself_holds_up_no_registration", slow_copy, &kinds[1], 30);
}

TEST_TABLE(claims)
{
	static const struct rdm_claim claims[] = {{"messages_of_device_memory", of_every_kind, 2, false}};
	rdm_add(claims, sizeof claims / sizeof *claims);
}
