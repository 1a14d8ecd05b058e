/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Protection of regions against peers: an operation inside a region, with the right key and access, is carried out. Any other
 * operation ends with an error at its initiator and changes no byte of the target. A closed region is not accessed.
 */
#include "fab.h"

#include <sys/uio.h>

#define GUARD ((size_t)4096 + 5)
#define LEN ((size_t)70000)
#define TOTAL (2 * GUARD + LEN)
#define SEED 5u

struct grants {
	struct remote both, readable, writable, closed, foreign;
};

/* A region of another domain of the same process: its key is not valid on this connection. */
static struct remote foreign_region(struct node *n, gdrfab_domain **domain, struct mem *m)
{
	gdrfab_domain *mine = n->domain;
	OK(gdrfab_domain_open(n->fabric, n->info, NULL, domain));
	n->domain = *domain;
	mem_new(n, m, &memkinds[KIND_MEM_ALLOC], LEN);
	fill(m->addr, LEN, 0, SEED);
	mem_register(n, m, 0, LEN, REMOTE_ACCESS, 0);
	n->domain = mine;
	struct remote r = {m->key, m->base, m->registered};
	return r;
}

static struct remote grant(struct node *n, struct mem *m, uint64_t access, uint64_t require, gdrfab_mr **mr)
{
	OK(mem_try_register(n, m, GUARD, LEN, access, require, 0));
	*mr = m->mr;
	struct remote r = {m->key, m->base, m->registered};
	m->mr = NULL;
	return r;
}

static void guarded(struct node *n)
{
	const struct way *way = (const struct way *)n->arg;
	struct grants g;
	struct mem m, other;
	gdrfab_mr *mr[4];
	gdrfab_domain *second;
	node_up(n);
	mem_new(n, &m, way->kind, TOTAL);
	fill(m.addr, TOTAL, 0, SEED);
	way_register(n, &m, GUARD, LEN, way);
	mem_unregister(&m);
	g.both = grant(n, &m, REMOTE_ACCESS, way->path->bit, &mr[0]);
	g.readable = grant(n, &m, GDRFAB_REMOTE_READ, way->path->bit, &mr[1]);
	g.writable = grant(n, &m, GDRFAB_REMOTE_WRITE, way->path->bit, &mr[2]);
	g.closed = grant(n, &m, REMOTE_ACCESS, way->path->bit, &mr[3]);
	OK(gdrfab_mr_close(mr[3]));
	g.foreign = foreign_region(n, &second, &other);
	data_room(n);
	oob_send(n, &g, sizeof g);
	follow_recovery(n);
	CHECK_FILLED("the target after refused operations", m.addr, TOTAL, 0, SEED);
	CHECK_FILLED("another domain's memory", other.addr, LEN, 0, SEED);
	QUIET(n->cq, 5);
	barrier(n);
	barrier(n);
	CHECK_FILLED("in front of the region", m.addr, GUARD, 0, SEED);
	CHECK_FILLED("the region after a permitted write", m.addr + GUARD, LEN, 0, SEED + 1);
	CHECK_FILLED("behind the region", m.addr + GUARD + LEN, GUARD, GUARD + LEN, SEED);
	for (int i = 0; i < 3; i++)
		OK(gdrfab_mr_close(mr[i]));
	gdrfab_domain *mine = n->domain;
	n->domain = second;
	mem_end(n, &other);
	n->domain = mine;
	OK(gdrfab_domain_close(second));
	mem_end(n, &m);
	node_down(n);
}

struct refusal {
	struct node *n;
	const char *what;
	uint64_t addr, key;
	size_t len;
	int err, prov;
	bool write_ok, read_ok; /* permitted, so not tried */
};

static unsigned char scratch[2 * LEN];

static void refused(const struct refusal *r, int call, ssize_t rc)
{
	struct failure f;
	const void *context = call == 2 ? NULL : r;
	if (rc != 0)
		test_fail(__FILE__, __LINE__, "%s, call %d: not posted: %s%s", r->what, call, test_number(rc),
			  test_words(rc));
	done entry;
	int next = cq_next(r->n->cq, &entry, 10000);
	if (next != -1)
		test_fail(__FILE__, __LINE__, "%s, call %d, len %zu: %s instead of the error %s", r->what, call, r->len,
			  next == 0 ? "nothing" : "a success", test_number(-r->err));
	cq_failure(__FILE__, __LINE__, r->n->cq, &f);
	bool as_said = failure_is(&f.entry, r->err, r->prov) || (!tells_failed_writes(r->n) && flushed(&f.entry));
	if (!as_said || f.entry.op_context != context || !f.words[0])
		test_wrong(__FILE__, __LINE__,
			   "%s, call %d, len %zu: error %s, provider code %d, context %p, \"%s\"; wanted %s, %d, %p",
			   r->what, call, r->len, test_number(-f.entry.err), f.entry.prov_errno, f.entry.op_context,
			   f.words, test_number(-r->err), r->prov, context);
	if (failure_ends(r->key))
		lead_recovery(r->n);
}

/* If each refusal ends the connection, TEST_FAST tries only one call that writes and one that reads, in turns. */
static bool has_its_turn(const struct refusal *r, int call, int turn)
{
	int writes = turn % 4;
	if (!failure_ends(r->key) || test_count(1, 0))
		return true;
	if ((writes == 1 && r->n->info->cq_data_size == 0) || (writes == 2 && r->len > r->n->info->inject_size))
		writes = 0;
	return call == writes || call == 4 + turn % 2;
}

static void every_call_refused(struct refusal r)
{
	static int turn;
	struct node *n = r.n;
	struct iovec iov = {scratch, r.len};
	void *descs;
	gdrfab_rma_iov remote = {r.addr, r.len, r.key};
	gdrfab_msg_rma msg;
	memset(&msg, 0, sizeof msg);
	msg.struct_size = sizeof msg;
	msg.msg_iov = &iov;
	msg.desc = local_descs(n, &iov, 1, &descs);
	msg.iov_count = 1;
	msg.addr = PEER;
	msg.rma_iov = &remote;
	msg.rma_iov_count = 1;
	msg.context = &r;
	void *desc = local_desc(n, scratch, r.len);
	/* An adapter does not check the key of an operation of no bytes. */
	if (r.len == 0 && traits()->adapter)
		return;
	test_at(__FILE__, __LINE__);
	turn++;
	if (!r.write_ok && tells_failed_writes(n)) {
		if (has_its_turn(&r, 0, turn))
			refused(&r, 0, gdrfab_write(n->ep, scratch, r.len, desc, PEER, r.addr, r.key, &r));
		if (has_its_turn(&r, 1, turn) && n->info->cq_data_size > 0)
			refused(&r, 1, gdrfab_writedata(n->ep, scratch, r.len, desc, 99, PEER, r.addr, r.key, &r));
		if (has_its_turn(&r, 2, turn) && r.len <= n->info->inject_size)
			refused(&r, 2, gdrfab_inject_write(n->ep, scratch, r.len, PEER, r.addr, r.key));
		if (has_its_turn(&r, 3, turn))
			refused(&r, 3, gdrfab_writemsg(n->ep, &msg, GDRFAB_COMPLETION));
	}
	if (!r.read_ok) {
		if (has_its_turn(&r, 4, turn))
			refused(&r, 4, gdrfab_read(n->ep, scratch, r.len, desc, PEER, r.addr, r.key, &r));
		if (has_its_turn(&r, 5, turn))
			refused(&r, 5, gdrfab_readmsg(n->ep, &msg, GDRFAB_COMPLETION));
	}
	CHECK_FILLED("the local buffer of a refused operation", scratch, sizeof scratch, 0, 77);
}

static void asker(struct node *n)
{
	const struct way *way = (const struct way *)n->arg;
	const int key = EKEYREJECTED, range = ERANGE, acc = EACCES;
	struct grants g;
	node_up(n);
	oob_recv(n, &g, sizeof g);
	way_check(n, way, g.both);
	uint64_t base = g.both.base, good = g.both.key;
	fill(scratch, sizeof scratch, 0, 77);
	const struct refusal table[] = {
		{n, "a key that was never given", base, good ^ 1, 8, key, GDRFAB_PROV_KEY, false, false},
		{n, "another key that was never given", base, wrong_key(good), 8, key, GDRFAB_PROV_KEY, false, false},
		{n, "a small number as key", base, 1, 8, key, GDRFAB_PROV_KEY, false, false},
		{n, "key 0", base, 0, 8, key, GDRFAB_PROV_KEY, false, false},
		{n, "a wrong key and no bytes", base, good ^ 1, 0, key, GDRFAB_PROV_KEY, false, false},
		{n, "the key of a closed region", g.closed.base, g.closed.key, 8, key, GDRFAB_PROV_KEY, false, false},
		{n, "the key of a closed region, many bytes", g.closed.base, g.closed.key, LEN, key, GDRFAB_PROV_KEY,
		 false, false},
		{n, "another domain's key", g.foreign.base, g.foreign.key, 8, key, GDRFAB_PROV_KEY, false, false},
		{n, "the byte in front", base - 1, good, 1, range, GDRFAB_PROV_BOUNDS, false, false},
		{n, "one byte too early", base - 1, good, 64, range, GDRFAB_PROV_BOUNDS, false, false},
		{n, "one byte too early, many bytes", base - 1, good, LEN, range, GDRFAB_PROV_BOUNDS, false, false},
		{n, "the byte behind", base + LEN, good, 1, range, GDRFAB_PROV_BOUNDS, false, false},
		{n, "one byte too far", base + LEN - 63, good, 64, range, GDRFAB_PROV_BOUNDS, false, false},
		{n, "one byte too many", base, good, LEN + 1, range, GDRFAB_PROV_BOUNDS, false, false},
		{n, "a whole guard too far", base + GUARD, good, LEN, range, GDRFAB_PROV_BOUNDS, false, false},
		{n, "an end that overflows", UINT64_MAX - 3, good, 8, range, GDRFAB_PROV_BOUNDS, false, false},
		{n, "an end that overflows to the region", UINT64_MAX - 30000, good, LEN, range, GDRFAB_PROV_BOUNDS,
		 false, false},
		{n, "address 0", 0, good, 8, range, GDRFAB_PROV_BOUNDS, false, false},
		{n, "write to a region for reading", base, g.readable.key, 8, acc, GDRFAB_PROV_ACCESS, false, true},
		{n, "write to a region for reading, many bytes", base, g.readable.key, LEN, acc, GDRFAB_PROV_ACCESS,
		 false, true},
		{n, "read of a region for writing", base, g.writable.key, 8, acc, GDRFAB_PROV_ACCESS, true, false},
		{n, "read of a region for writing, many bytes", base, g.writable.key, LEN, acc, GDRFAB_PROV_ACCESS,
		 true, false},
	};
	for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
		every_call_refused(table[i]);

	/* One bad part fails a scattered write as a whole. */
	struct iovec iov = {scratch, 128};
	void *desc;
	gdrfab_rma_iov parts[2] = {{base, 64, good}, {base + LEN - 63, 64, good}};
	gdrfab_msg_rma msg;
	memset(&msg, 0, sizeof msg);
	msg.struct_size = sizeof msg;
	msg.msg_iov = &iov;
	msg.desc = local_descs(n, &iov, 1, &desc);
	msg.iov_count = 1;
	msg.addr = PEER;
	msg.rma_iov = parts;
	msg.rma_iov_count = 2;
	msg.context = &msg;
	if (n->info->rma_iov_limit >= 2) {
		OK(gdrfab_writemsg(n->ep, &msg, GDRFAB_COMPLETION));
		FAILED(n->cq, &msg, ERANGE, GDRFAB_PROV_BOUNDS, NULL);
		lead_recovery(n);
	}
	lead_no_more(n);
	barrier(n);

	/* The connection, or its successor, works as before; the region can be accessed up to its edges. */
	fill(scratch, LEN, 0, SEED + 1);
	POST(n->cq, gdrfab_write(n->ep, scratch, LEN, local_desc(n, scratch, LEN), PEER, base, good, scratch));
	DONE(n->cq, scratch, GDRFAB_WRITE, NULL);
	unsigned char last = 0;
	POST(n->cq, gdrfab_read(n->ep, &last, 1, local_desc(n, &last, 1), PEER, base + LEN - 1, g.readable.key, &last));
	DONE(n->cq, &last, GDRFAB_READ, NULL);
	CHECK_EQ(last, scratch[LEN - 1]);
	POST(n->cq, gdrfab_write(n->ep, &last, 1, local_desc(n, &last, 1), PEER, base + LEN - 1, g.writable.key, &last));
	DONE(n->cq, &last, GDRFAB_WRITE, NULL);
	POST(n->cq, gdrfab_write(n->ep, scratch, 0, local_desc(n, scratch, 0), PEER, base, good, scratch));
	DONE(n->cq, scratch, GDRFAB_WRITE, NULL);
	barrier(n);
	node_down(n);
}

static void misuse_is_refused(const void *arg)
{
	pair(NULL, guarded, asker, arg);
}

/* --- a region of several parts, written and read across their edges --- */

#define PARTS 5
static const char few_parts[] = "regions have fewer parts";
static const size_t part_len[PARTS] = {100, 1, 4096, 63, 5000};
static const size_t part_at[PARTS] = {64, 300, 8192 - 7, 16384, 20000};
#define PARTS_TOTAL ((size_t)100 + 1 + 4096 + 63 + 5000)
#define PARTS_SPACE ((size_t)32768)

/* The expected memory after a write of [offset, offset+len) of the region. */
static void check_parts(const unsigned char *addr, size_t offset, size_t len, uint32_t seed)
{
	unsigned char *want = (unsigned char *)malloc(PARTS_SPACE);
	fill(want, PARTS_SPACE, 0, SEED);
	size_t start = 0;
	for (int p = 0; p < PARTS; p++) {
		for (size_t i = 0; i < part_len[p]; i++)
			if (start + i >= offset && start + i < offset + len)
				fill(want + part_at[p] + i, 1, start + i - offset, seed);
		start += part_len[p];
	}
	for (size_t i = 0; i < PARTS_SPACE; i++)
		if (addr[i] != want[i])
			test_fail(__FILE__, __LINE__, "write of [%zu, +%zu): byte %zu is 0x%02x, not 0x%02x", offset,
				  len, i, addr[i], want[i]);
	free(want);
}

struct span {
	size_t offset, len;
};
static const struct span spans[] = {{0, PARTS_TOTAL}, {0, 100},	 {99, 3},      {100, 1},	   {101, 4096},
				    {50, 5000},	      {4196, 1}, {4190, 2000}, {PARTS_TOTAL - 1, 1}};
#define SPANS (sizeof spans / sizeof spans[0])

static void parts_target(struct node *n)
{
	const struct way *way = (const struct way *)n->arg;
	struct mem m;
	struct iovec iov[PARTS];
	node_up(n);
	skip_unless(n->info->mr_iov_limit >= PARTS || !traits()->adapter, few_parts);
	mem_new(n, &m, way->kind, PARTS_SPACE);
	for (int p = 0; p < PARTS; p++) {
		iov[p].iov_base = m.addr + part_at[p];
		iov[p].iov_len = part_len[p];
	}
	gdrfab_mr_attr attr;
	memset(&attr, 0, sizeof attr);
	attr.struct_size = sizeof attr;
	attr.mr_iov = iov;
	attr.iov_count = PARTS;
	attr.access = REMOTE_ACCESS;
	attr.require = way->path->bit;
	int rc = gdrfab_mr_regattr(n->domain, &attr, 0, &m.mr);
	/* A key of an adapter names one range. */
	if (rc == -EOPNOTSUPP && traits()->adapter)
		test_skip("%s", gdrfab_last_error());
	CHECK_EQ(rc, 0);
	gdrfab_mr_info info;
	memset(&info, 0, sizeof info);
	info.struct_size = sizeof info;
	OK(gdrfab_mr_query(m.mr, &info));
	m.key = info.key;
	m.base = info.base;
	m.registered = info.len;
	CHECK_EQ(info.len, PARTS_TOTAL);
	fill(m.addr, PARTS_SPACE, 0, SEED);
	mem_publish(n, &m);
	for (uint32_t s = 0; s < SPANS; s++) {
		barrier(n);
		check_parts(m.addr, spans[s].offset, spans[s].len, 100 + s);
		fill(m.addr, PARTS_SPACE, 0, SEED);
		barrier(n);
	}
	barrier(n);
	mem_end(n, &m);
	node_down(n);
}

static void parts_initiator(struct node *n)
{
	const struct way *way = (const struct way *)n->arg;
	unsigned char out[PARTS_TOTAL], in[PARTS_TOTAL];
	node_up(n);
	skip_unless(n->info->mr_iov_limit >= PARTS || !traits()->adapter, few_parts);
	struct remote to = mem_fetch(n);
	way_check(n, way, to);
	for (uint32_t s = 0; s < SPANS; s++) {
		uint64_t at = to.base + spans[s].offset;
		size_t len = spans[s].len;
		fill(out, len, 0, 100 + s);
		POST(n->cq, gdrfab_write(n->ep, out, len, local_desc(n, out, len), PEER, at, to.key, out));
		DONE(n->cq, out, GDRFAB_WRITE, NULL);
		memset(in, 0, sizeof in);
		POST(n->cq, gdrfab_read(n->ep, in, len, local_desc(n, in, len), PEER, at, to.key, in));
		DONE(n->cq, in, GDRFAB_READ, NULL);
		CHECK_FILLED("read back", in, len, 0, 100 + s);
		barrier(n);
		barrier(n);
	}
	POST(n->cq, gdrfab_write(n->ep, out, 2, local_desc(n, out, 2), PEER, to.base + PARTS_TOTAL - 1, to.key, out));
	FAILED(n->cq, out, ERANGE, GDRFAB_PROV_BOUNDS, NULL);
	barrier(n);
	node_down(n);
}

static void parts_of_a_region(const void *arg)
{
	pair(NULL, parts_target, parts_initiator, arg);
}

/* --- close while a peer writes as fast as it can --- */

#define FIRE ((size_t)256 * 1024)

static void under_fire(struct node *n)
{
	const struct way *way = (const struct way *)n->arg;
	struct mem m;
	unsigned char *copy = (unsigned char *)malloc(FIRE);
	uint64_t random = 11;
	node_up(n);
	skip_unless(tells_failed_writes(n), "a write has ended well before it is refused");
	mem_new(n, &m, way->kind, FIRE);
	int rounds = test_count(25, 4);
	for (int round = 0; round < rounds; round++) {
		memset(m.addr, 0, FIRE);
		way_register(n, &m, 0, FIRE, way);
		mem_publish(n, &m);
		if (round == 0)
			barrier(n);
		/* Lets the peer come to speed, then closes at a random moment. */
		uint64_t until = test_now_ms() + 2 + test_random(&random) % 8;
		while (test_now_ms() < until)
			gdrfab_cq_read(n->cq, NULL, 0);
		mem_unregister(&m);
		memcpy(copy, m.addr, FIRE);
		until = test_now_ms() + 10;
		while (test_now_ms() < until)
			gdrfab_cq_read(n->cq, NULL, 0);
		for (size_t i = 0; i < FIRE; i++)
			if (copy[i] != m.addr[i])
				test_fail(__FILE__, __LINE__,
					  "round %d: byte %zu changed from 0x%02x to 0x%02x after gdrfab_mr_close",
					  round, i, copy[i], m.addr[i]);
		barrier(n);
		if (failure_ends(m.key))
			recover(n);
	}
	mem_end(n, &m);
	node_down(n);
	free(copy);
}

static void hammer(struct node *n)
{
	const struct way *way = (const struct way *)n->arg;
	unsigned char *data = (unsigned char *)malloc(FIRE);
	node_up(n);
	skip_unless(tells_failed_writes(n), "a write has ended well before it is refused");
	void *desc = local_desc(n, data, FIRE);
	int rounds = test_count(25, 4);
	for (int round = 0; round < rounds; round++) {
		struct remote to = mem_fetch(n);
		if (round == 0) {
			way_check(n, way, to);
			barrier(n);
		}
		bool closed = false;
		size_t pending = 0;
		unsigned char value = 1;
		uint64_t until = test_now_ms() + (uint64_t)test_ms(10000);
		while (!closed || pending > 0) {
			while (!closed && pending < 4) {
				/* The bytes change each time: else a late write would not be visible. */
				memset(data, value++, FIRE);
				ssize_t rc = gdrfab_write(n->ep, data, FIRE, desc, PEER, to.base, to.key, data);
				/* The connection may have ended before the first failure is read. */
				if (rc == -EAGAIN || (rc == -ESHUTDOWN && !traits()->survives_failures && pending > 0))
					break;
				OK(rc);
				pending++;
			}
			done entry;
			struct failure f;
			int next = cq_next(n->cq, &entry, 0);
			if (next == 1) {
				pending--;
			} else if (next == -1) {
				cq_failure(__FILE__, __LINE__, n->cq, &f);
				if (!failure_is(&f.entry, EKEYREJECTED, GDRFAB_PROV_KEY) &&
				    !(closed && flushed(&f.entry)))
					test_fail(__FILE__, __LINE__, "round %d: %s, provider code %d, \"%s\"", round,
						  test_number(-f.entry.err), f.entry.prov_errno, f.words);
				pending--;
				closed = true;
			}
			CHECK(test_now_ms() < until);
		}
		barrier(n);
		if (failure_ends(to.key))
			recover(n);
	}
	node_down(n);
	free(data);
}

static void closed_under_fire(const void *arg)
{
	pair(NULL, under_fire, hammer, arg);
}

TEST_TABLE(per_way)
{
	size_t count = ways_list();
	char name[64];
	for (size_t i = 0; i < count; i++) {
		if (test_count(0, 1) && !way_leads(i))
			continue;
		snprintf(name, sizeof name, "misuse_is_refused_%s", ways[i].name);
		test_add(name, misuse_is_refused, &ways[i], 30);
	}
	for (size_t i = 0; i < count; i++) {
		if (ways[i].kind->file || way_spared(&ways[i]))
			continue;
		snprintf(name, sizeof name, "parts_of_a_region_%s", ways[i].name);
		test_add(name, parts_of_a_region, &ways[i], 20);
	}
	for (size_t i = 0; i < count; i++) {
		if (way_spared(&ways[i]))
			continue;
		snprintf(name, sizeof name, "closed_under_fire_%s", ways[i].name);
		test_add(name, closed_under_fire, &ways[i], 40);
	}
}
