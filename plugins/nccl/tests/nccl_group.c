/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Grouped receives through gdrfab's plugin for NCCL: a send takes the first free place with its tag, in whatever
 * order the sends of different tags come, and every place reports its own size.
 */
#include "nccl_drive.h"

struct plan {
	const char *name;
	const char *groups; /* a digit for each place is its tag, a comma ends a group; "01,2" */
	size_t rounds;      /* repetitions of that text */
	size_t ahead;       /* the sender takes any of this many next messages, if their tags permit it */
	size_t window;      /* groups in flight; 0: as many as are possible */
	int kind;
	bool late;          /* receives are posted when the sends have been tried for a while */
	size_t largest;
};

/* A message: the k-th message of a tag belongs to the k-th place with that tag. */
struct place {
	int tag;
	size_t group, at, len, room;
};

struct course {
	struct node *n;
	struct link l;
	struct buf b;
	struct place *places;
	size_t count, groups;
};

static size_t length(size_t i, size_t largest)
{
	static const size_t some[] = {64, 70000, 0, 8192, 1, 8193, 200000, 4096, 333};
	size_t len = some[i * 7 % (sizeof some / sizeof some[0])];
	return len < largest ? len : largest;
}

static void course_new(struct node *n, struct course *c)
{
	const struct plan *p = (const struct plan *)n->arg;
	size_t total = 0, max = strlen(p->groups) * p->rounds;
	memset(c, 0, sizeof *c);
	c->n = n;
	c->l = sides_up(n, p->kind, TO_SERVER);
	c->places = (struct place *)calloc(max, sizeof *c->places);
	CHECK(c->places != NULL);
	for (size_t round = 0; round < p->rounds; round++) {
		for (const char *at = p->groups; *at; at++) {
			if (*at == ',') {
				c->groups++;
				continue;
			}
			struct place *place = &c->places[c->count];
			place->tag = *at - '0';
			place->group = c->groups;
			place->at = total;
			place->len = length(c->count, p->largest);
			place->room = place->len + c->count % 3 * 5;
			total += place->room + 3;
			c->count++;
		}
		c->groups++;
	}
	buf_new(n, &c->b, p->kind, total);
	buf_reg(&c->b, n->side == TEST_SERVER ? c->l.recv : c->l.send);
}

static void course_end(struct course *c)
{
	buf_end(&c->b);
	free(c->places);
	sides_down(c->n, &c->l);
}

static void receives(struct node *n)
{
	const struct plan *p = (const struct plan *)n->arg;
	struct course c;
	course_new(n, &c);
	struct op *ops = (struct op *)calloc(c.groups, sizeof *ops);
	CHECK(ops != NULL);
	for (size_t i = 0; i < c.count; i++) {
		struct op *op = &ops[c.places[i].group];
		op->comm = c.l.recv;
		op->hint = c.places[i].group % 2;
		op_add(op, &c.b, c.places[i].at, c.places[i].room, c.places[i].tag);
	}
	size_t window = p->window ? p->window : NCCL_NET_MAX_REQUESTS;
	if (!p->window)
		for (size_t g = 0; g < c.groups && g < window; g++)
			CHECK(op_post(&ops[g]));
	barrier(n);
	if (p->late)
		test_sleep_ms(200);
	ops_run(ops, c.groups, window);
	for (size_t i = 0, place = 0; i < c.count; i++) {
		const struct place *at = &c.places[i];
		place = i > 0 && c.places[i - 1].group == at->group ? place + 1 : 0;
		if ((size_t)ops[at->group].got[place] != at->len)
			test_fail(__FILE__, __LINE__, "place %zu of group %zu got %d bytes, not %zu", place, at->group,
				  ops[at->group].got[place], at->len);
		BUF_CHECK(&c.b, at->at, at->len, (uint32_t)i);
		BUF_BLANK(&c.b, at->at + at->len, at->room - at->len + 3);
	}
	/* Posts the whole group at once. */
	int given[GROUP];
	void *request = (void *)(uintptr_t)0x5a5a;
	memcpy(given, ops[0].got, sizeof given);
	NET(net.flush(c.l.recv, ops[0].n, ops[0].data, given, ops[0].mhandles, &request));
	CHECK(request == NULL);
	free(ops);
	course_end(&c);
}

static void sends(struct node *n)
{
	const struct plan *p = (const struct plan *)n->arg;
	struct course c;
	uint64_t random = 12345;
	course_new(n, &c);
	struct op *ops = (struct op *)calloc(c.count, sizeof *ops);
	bool *taken = (bool *)calloc(c.count, sizeof *taken);
	CHECK(ops && taken);
	for (size_t done = 0, first = 0; done < c.count; done++) {
		size_t i;
		bool may;
		while (taken[first])
			first++;
		/* Messages of one tag keep their order. */
		do {
			i = first + test_random(&random) % p->ahead;
			may = i < c.count && !taken[i];
			for (size_t k = first; may && k < i; k++)
				may = taken[k] || c.places[k].tag != c.places[i].tag;
		} while (!may);
		taken[i] = true;
		const struct place *at = &c.places[i];
		buf_fill(&c.b, at->at, at->len, (uint32_t)i);
		ops[done] = send_op(c.l.send, &c.b, at->at, at->len, at->tag);
	}
	if (!p->late)
		barrier(n);
	else
		for (int i = 0; i < 100; i++) {
			for (size_t k = 0; k < c.count && k < 8; k++) {
				/* A post that is not accepted is tried again in its turn. */
				if (!op_post(&ops[k]))
					break;
			}
			test_sleep_ms(1);
		}
	if (p->late)
		barrier(n);
	ops_run(ops, c.count, (size_t)NCCL_NET_MAX_REQUESTS * GROUP);
	free(ops);
	free(taken);
	course_end(&c);
}

static void grouped(const void *arg)
{
	pair(NULL, receives, sends, arg);
}

/* Groups of more receives than there are places. */
static void wrong_count(TEST_UNUSED const void *arg)
{
	struct node n;
	struct handle h;
	struct buf b;
	net_alone(&n);
	net_open();
	void *listener = listen_at(0, &h), *request = NULL;
	struct link l = link_to_itself(&h, listener);
	NET(net.close_listen(listener));
	buf_new(&n, &b, HOST_MEM, 100);
	buf_reg(&b, l.recv);
	void *data[GROUP + 1], *mhandles[GROUP + 1];
	int tags[GROUP + 1];
	size_t given[GROUP + 1];
	for (int i = 0; i <= GROUP; i++) {
		data[i] = b.at + i * 10;
		mhandles[i] = b.mhandle;
		tags[i] = i;
		given[i] = 10;
	}
	log_forget();
	ncclResult_t result = net_irecv(l.recv, GROUP + 1, data, given, tags, mhandles, &request);
	CHECK(result == ncclInvalidArgument || result == ncclInvalidUsage || result == ncclInternalError);
	CHECK(log_warnings()[0] != 0);
	CHECK(request == NULL);
	message_to_itself(&n, &l, 1000, 1);
	buf_end(&b);
	link_down(&l);
	net_close(&n);
}

/* A size above 0 with data at NULL, and memory that is not registered. */
static void nowhere(TEST_UNUSED const void *arg)
{
	struct node n;
	struct handle h;
	struct buf b;
	net_alone(&n);
	net_open();
	void *listener = listen_at(0, &h), *request = NULL;
	struct link l = link_to_itself(&h, listener);
	NET(net.close_listen(listener));
	buf_new(&n, &b, HOST_MEM, 100);
	buf_reg(&b, l.recv);
	for (size_t len = 1; len <= 1u << 20; len *= 16)
		for (int what = 0; what < 2; what++) {
			void *data[2] = {b.at, what ? NULL : b.at}, *mhandles[2] = {b.mhandle, what ? b.mhandle : NULL};
			int tags[2] = {0, 1};
			size_t sizes[2] = {len < 10 ? len : 10, len};
			NET_FAILS(net_isend(l.send, data[1], len, 0, mhandles[1], &request), ncclInvalidArgument);
			NET_FAILS(net_irecv(l.recv, 1, data + 1, sizes + 1, tags, mhandles + 1, &request), ncclInvalidArgument);
			NET_FAILS(net_irecv(l.recv, 2, data, sizes, tags, mhandles, &request), ncclInvalidArgument);
			CHECK(request == NULL);
		}
	message_to_itself(&n, &l, 1000, 1);
	buf_end(&b);
	link_down(&l);
	net_close(&n);
}

/* --- the claims --- */

TEST_TABLE(nccl_group)
{
	static const struct plan plans[] = {
		{"one_by_one", "0,1,2", 20, 1, 4, HOST_MEM, false, 1 << 20},
		{"of_2", "01", 40, 1, 4, HOST_MEM, false, 1 << 20},
		{"of_2_backwards", "10,01", 30, 4, 4, HOST_MEM, false, 1 << 20},
		{"of_3", "012", 30, 3, 4, HOST_MEM, false, 1 << 20},
		{"of_4", "3201", 30, 4, 4, HOST_MEM, false, 1 << 20},
		{"of_5", "01234", 20, 5, 4, HOST_MEM, false, 1 << 20},
		{"of_6", "512340", 20, 6, 4, HOST_MEM, false, 1 << 20},
		{"of_7", "0123456", 20, 7, 4, HOST_MEM, false, 1 << 20},
		{"of_8", "01234567", 30, 8, 4, HOST_MEM, false, 1 << 20},
		{"of_8_one_at_a_time", "76543210", 10, 8, 1, HOST_MEM, false, 1 << 20},
		{"ahead_of_their_group", "01,23,45,67", 20, 8, 2, HOST_MEM, false, 1 << 20},
		{"ahead_of_their_group_small", "01,23,45,67", 20, 8, 2, HOST_MEM, false, 4096},
		{"same_tag_twice", "0101,11,110", 20, 6, 4, HOST_MEM, false, 1 << 20},
		{"same_tag_eight_times", "00000000", 20, 1, 4, HOST_MEM, false, 1 << 20},
		{"of_any_size", "0,12,012,3333,01234567,7,10", 10, 8, 4, HOST_MEM, false, 1 << 20},
		{"early", "0123,32", 15, 4, 4, HOST_MEM, true, 8000},
		{"early_same_tag", "00,0,000", 15, 2, 4, HOST_MEM, true, 8000},
		{"early_and_large", "0123,32", 15, 4, 4, HOST_MEM, true, 1 << 20},
		{"all_in_flight", "01234567", 32, 8, 0, HOST_MEM, false, 70000},
		{"all_in_flight_twice", "01234567", 64, 8, 0, HOST_MEM, false, 9000},
		{"device", "0123,32,01234567", 8, 6, 4, CUDA_VMM_MEM, false, 1 << 20},
		{"device_same_tag", "0101,11", 8, 4, 4, CUDA_MEM, false, 1 << 20},
	};
	char name[96];
	if (nccl_absent())
		return;
	for (size_t i = 0; i < sizeof plans / sizeof plans[0]; i++) {
		snprintf(name, sizeof name, "group_%s", plans[i].name);
		test_add(name, grouped, &plans[i], 60);
	}
	test_add("group_of_nine", wrong_count, NULL, 40);
	test_add("bytes_nowhere", nowhere, NULL, 40);
}
