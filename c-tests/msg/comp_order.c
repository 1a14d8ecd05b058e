/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The order of entries. Receives complete in the order of the messages, long or short. With gdrfab_info.comp_order
 * GDRFAB_ORDER_STRICT an endpoint's own operations complete in the order of posting. Middleware relies on both.
 */
#include "fab.h"

enum { MESSAGES = 64, LONG = 1 << 20 };

static size_t length(size_t i)
{
	switch (i % 4) {
	case 0:
		return LONG + i;
	case 1:
		return 8;
	case 2:
		return 20000 + i;
	default:
		return 300;
	}
}

static size_t offset(size_t i)
{
	size_t sum = 0;
	while (i > 0)
		sum += length(--i);
	return sum;
}

/* --- arrivals --- */

static void receives(struct node *n)
{
	unsigned char *all = malloc(offset(MESSAGES));
	done e;
	node_up(n);
	void *desc = local_desc(n, all, offset(MESSAGES));
	for (size_t i = 0; i < MESSAGES; i++)
		POST(n->cq, gdrfab_recv(n->ep, all + offset(i), length(i), desc, 0, all + offset(i)));
	barrier(n);
	for (size_t i = 0; i < MESSAGES; i++) {
		DONE(n->cq, all + offset(i), GDRFAB_RECV, &e);
		CHECK_EQ(e.len, length(i));
		CHECK_FILLED("a message", all + offset(i), length(i), 0, (uint32_t)i);
	}
	local_forget_all(n);
	free(all);
	node_down(n);
}

static void sends(struct node *n)
{
	unsigned char *all = malloc(offset(MESSAGES));
	done e;
	node_up(n);
	void *desc = local_desc(n, all, offset(MESSAGES));
	for (size_t i = 0; i < MESSAGES; i++)
		fill(all + offset(i), length(i), 0, (uint32_t)i);
	barrier(n);
	size_t ended = 0;
	for (size_t i = 0; i < MESSAGES; i++)
		POST(n->cq, gdrfab_send(n->ep, all + offset(i), length(i), desc, 0, all + offset(i)));
	for (; ended < MESSAGES; ended++) {
		CHECK_EQ(cq_next(n->cq, &e, 10000), 1);
		CHECK(n->setup->comp_order == 0 || e.op_context == all + offset(ended));
	}
	local_forget_all(n);
	free(all);
	node_down(n);
}

/* --- a write with data behind a long message --- */

enum { ROUNDS = 16 };

static void is_told(struct node *n)
{
	struct mem m;
	unsigned char *to = malloc(LONG);
	done e;
	node_up(n);
	mem_new(n, &m, &memkinds[KIND_MALLOC], 64);
	mem_register(n, &m, 0, 64, GDRFAB_REMOTE_WRITE, 0);
	mem_publish(n, &m);
	void *desc = local_desc(n, to, LONG);
	for (uint32_t i = 0; i < ROUNDS; i++) {
		POST(n->cq, gdrfab_recv(n->ep, to, LONG, desc, 0, to));
		data_room(n);
		barrier(n);
		DONE(n->cq, to, GDRFAB_RECV, &e);
		CHECK_FILLED("a message", to, LONG, 0, i);
		DATA_CAME(n, &e);
		CHECK_EQ(e.data, i);
		barrier(n);
	}
	mem_end(n, &m);
	local_forget_all(n);
	free(to);
	node_down(n);
}

static void tells(struct node *n)
{
	unsigned char *from = malloc(LONG), word[8] = {0};
	node_up(n);
	struct remote to = mem_fetch(n);
	void *desc = local_desc(n, from, LONG), *word_desc = local_desc(n, word, sizeof word);
	for (uint32_t i = 0; i < ROUNDS; i++) {
		done e;
		fill(from, LONG, 0, i);
		barrier(n);
		POST(n->cq, gdrfab_send(n->ep, from, LONG, desc, 0, from));
		POST(n->cq, gdrfab_writedata(n->ep, word, sizeof word, word_desc, i, 0, to.base, to.key, word));
		CHECK_EQ(cq_next(n->cq, &e, 10000), 1);
		CHECK_EQ(cq_next(n->cq, &e, 10000), 1);
		barrier(n);
	}
	local_forget_all(n);
	free(from);
	node_down(n);
}

/* --- all operations that an endpoint initiates --- */

enum { OPS = 8, FAILS = 6 };

static void stands(struct node *n)
{
	struct mem m;
	unsigned char *to = malloc(LONG), small[2][300];
	node_up(n);
	mem_new(n, &m, &memkinds[KIND_MALLOC], 2 * LONG);
	mem_register(n, &m, 0, 2 * LONG, GDRFAB_REMOTE_WRITE | GDRFAB_REMOTE_READ, 0);
	mem_publish(n, &m);
	void *desc = local_desc(n, to, LONG), *small_desc = local_desc(n, small, sizeof small);
	barrier(n);
	/* The short messages are done long before the first message is received. */
	test_sleep_ms(30);
	POST(n->cq, gdrfab_recv(n->ep, to, LONG, desc, 0, to));
	DONE(n->cq, to, GDRFAB_RECV, NULL);
	for (int i = 0; i < 2; i++) {
		POST(n->cq, gdrfab_recv(n->ep, small[i], sizeof small[i], small_desc, 0, small[i]));
		DONE(n->cq, small[i], GDRFAB_RECV, NULL);
	}
	barrier(n);
	mem_end(n, &m);
	local_forget_all(n);
	free(to);
	node_down(n);
}

static void initiates(struct node *n)
{
	struct mem m;
	node_up(n);
	skip_unless(traits()->survives_failures, "a failure ends the connection");
	struct remote to = mem_fetch(n);
	mem_new(n, &m, &memkinds[KIND_MALLOC], 2 * LONG);
	mem_register(n, &m, 0, 2 * LONG, GDRFAB_READ | GDRFAB_WRITE | GDRFAB_SEND | GDRFAB_RECV, 0);
	void *desc = mem_desc(&m);
	unsigned char *b = m.addr;
	memset(b, 1, 2 * LONG);
	barrier(n);
	POST(n->cq, gdrfab_send(n->ep, b, LONG, desc, 0, b));
	POST(n->cq, gdrfab_send(n->ep, b + 1, 8, desc, 0, b + 1));
	POST(n->cq, gdrfab_write(n->ep, b + 2, LONG, desc, 0, to.base, to.key, b + 2));
	POST(n->cq, gdrfab_write(n->ep, b + 3, 8, desc, 0, to.base, to.key, b + 3));
	POST(n->cq, gdrfab_read(n->ep, b + LONG, 8, desc, 0, to.base, to.key, b + 4));
	POST(n->cq, gdrfab_send(n->ep, b + 5, 300, desc, 0, b + 5));
	POST(n->cq, gdrfab_write(n->ep, b + FAILS, 8, desc, 0, to.base + 2 * LONG, to.key, b + FAILS));
	POST(n->cq, gdrfab_write(n->ep, b + 7, 8, desc, 0, to.base, to.key, b + 7));
	for (int i = 0; i < OPS; i++) {
		static const uint64_t kinds[OPS] = {GDRFAB_SEND,  GDRFAB_SEND, GDRFAB_WRITE, GDRFAB_WRITE,
						    GDRFAB_READ, GDRFAB_SEND, GDRFAB_WRITE, GDRFAB_WRITE};
		if (i == FAILS)
			FAILED(n->cq, b + i, ERANGE, GDRFAB_PROV_BOUNDS, NULL);
		else
			DONE(n->cq, b + i, kinds[i], NULL);
	}
	barrier(n);
	mem_end(n, &m);
	node_down(n);
}

/* --- each by every path, and by staging alone, which moves fragment by fragment --- */

struct order {
	const char *name, *staged_name;
	side_fn server, client;
	struct setup setup;
	bool staged;
};

static void in_order(const void *arg)
{
	const struct order *o = (const struct order *)arg;
	if (o->staged) {
		skip_unless(strcmp(provider(), "shm") == 0, "there are no fragments");
		only_staged();
	}
	pair(&o->setup, o->server, o->client, NULL);
}

TEST_TABLE(orders)
{
	static const struct order orders[] = {
		{"messages_arrive_in_order", "messages_arrive_in_order_fragment_by_fragment", receives, sends, {0}, false},
		{"messages_leave_in_order", "messages_leave_in_order_fragment_by_fragment", receives, sends,
		 {.comp_order = GDRFAB_ORDER_STRICT}, false},
		{"data_comes_behind_the_message_before_it", "data_comes_behind_the_message_before_it_fragment_by_fragment", is_told, tells,
		 {0}, false},
		{"what_an_endpoint_initiates_ends_in_order", "what_an_endpoint_initiates_ends_in_order_staged", stands, initiates,
		 {.comp_order = GDRFAB_ORDER_STRICT}, false},
	};
	enum { ORDERS = sizeof orders / sizeof orders[0] };
	static struct order staged[ORDERS];
	for (size_t i = 0; i < ORDERS; i++) {
		staged[i] = orders[i];
		staged[i].staged = true;
		test_add(orders[i].name, in_order, &orders[i], 20);
		test_add(orders[i].staged_name, in_order, &staged[i], 20);
	}
}
