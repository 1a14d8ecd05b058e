/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Atomic operations: every operation on every datatype, by every path, has the result of the C language; concurrent sums are
 * exact; and invalid operations are refused with a text, by the initiator or by the target.
 */
#include "atomic_model.h"
#include "fab.h"
#include "tcp_raw.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum { AT = 64, LEN = 8192 };

/* --- each operation by each way --- */

struct act {
	const char *name;
	int kind;
	uint64_t require;
	bool rdm, self, automatic;
	uint32_t threading;
	const struct memkind *device;
};

static const struct memkind *kind_of(const struct act *a)
{
	return a->device ? a->device : &memkinds[a->kind];
}

static void target(struct node *n)
{
	const struct act *a = (const struct act *)n->arg;
	struct mem m;
	node_up(n);
	mem_new(n, &m, kind_of(a), LEN);
	static const unsigned char zeros[LEN];
	mem_write(&m, 0, zeros, LEN);
	mem_register(n, &m, 0, LEN, REMOTE_ACCESS, a->require);
	mem_publish(n, &m);
	barrier(n);
	mem_end(n, &m);
	node_down(n);
}

static void try_one(struct node *n, uint64_t to_index, struct remote to, uint32_t type, uint32_t op, int seed)
{
	struct trial t = trial_of(type, op, seed);
	unsigned char old[sizeof t.before], now[sizeof t.before], *from = t.before;
	uint64_t at = to.base + AT;
	/* Posts a write, the operation and a read of its result: they are carried out in this order without a wait. */
	POST(n->cq, gdrfab_write(n->ep, from, t.len, NULL, to_index, at, to.key, from));
	memset(old, 0xee, sizeof old);
	if (t.plain)
		POST(n->cq, gdrfab_atomic(n->ep, t.operand, ELEMENTS, NULL, to_index, at, to.key, type, op, old));
	else if (compares(op))
		POST(n->cq, gdrfab_compare_atomic(n->ep, t.operand, ELEMENTS, NULL, t.compare, NULL, old, NULL, to_index, at, to.key,
						  type, op, old));
	else
		POST(n->cq, gdrfab_fetch_atomic(n->ep, op == GDRFAB_ATOMIC_READ ? NULL : t.operand, ELEMENTS, NULL, old, NULL,
						to_index, at, to.key, type, op, old));
	POST(n->cq, gdrfab_read(n->ep, now, t.len, NULL, to_index, at, to.key, now));
	for (int left = 3; left > 0; left--) {
		done entry;
		CHECK_EQ(cq_next(n->cq, &entry, 10000), 1);
		uint64_t kind = entry.op_context == old ? GDRFAB_ATOMIC | (t.plain ? GDRFAB_WRITE : GDRFAB_READ)
				: GDRFAB_RMA | (entry.op_context == from ? GDRFAB_WRITE : GDRFAB_READ);
		CHECK_EQ(entry.flags & (GDRFAB_ATOMIC | GDRFAB_RMA | GDRFAB_READ | GDRFAB_WRITE), kind);
	}
	if (memcmp(now, t.after, t.len) != 0 || (!t.plain && memcmp(old, t.before, t.len) != 0))
		test_fail(__FILE__, __LINE__, "datatype %u, operation %u, seed %d: another result than C's", type, op, seed);
}

static void initiator(struct node *n)
{
	const struct act *a = (const struct act *)n->arg;
	node_up(n);
	CHECK((n->info->caps & GDRFAB_ATOMIC) != 0);
	struct remote to = mem_fetch(n);
	struct mem own;
	uint64_t index = a->rdm ? PEER : 0;
	if (a->self) {
		mem_new(n, &own, &memkinds[a->kind], LEN);
		mem_register(n, &own, 0, LEN, REMOTE_ACCESS, a->require);
		to.key = own.key, to.base = own.base, index = 0;
	}
	for (uint32_t type = GDRFAB_INT8; type <= GDRFAB_DOUBLE; type++) {
		for (uint32_t op = GDRFAB_MIN; op <= GDRFAB_MSWAP; op++) {
			size_t plain = 0, fetch = 0, compare = 0;
			bool defined = is_defined(op, type), swap = compares(op), read = op == GDRFAB_ATOMIC_READ;
			CHECK_EQ(gdrfab_atomicvalid(n->ep, type, op, &plain), defined && !swap && !read ? 0 : -EOPNOTSUPP);
			CHECK_EQ(gdrfab_fetch_atomicvalid(n->ep, type, op, &fetch), defined && !swap ? 0 : -EOPNOTSUPP);
			CHECK_EQ(gdrfab_compare_atomicvalid(n->ep, type, op, &compare), defined && swap ? 0 : -EOPNOTSUPP);
			if (!defined)
				continue;
			CHECK_EQ(swap ? compare : fetch, 1024 / sizes[type]);
			for (int seed = 0; seed < (a->device ? 2 : test_count(8, 2)); seed++)
				try_one(n, index, to, type, op, seed * 7);
		}
	}
	if (a->self)
		mem_end(n, &own);
	barrier(n);
	node_down(n);
}

static void all_operations(const void *arg)
{
	const struct act *a = (const struct act *)arg;
	skip_unless(!traits()->adapter, "has no atomics");
	struct setup s = {.rdm = a->rdm, .caps = GDRFAB_MSG | GDRFAB_RMA | GDRFAB_ATOMIC, .threading = a->threading,
			  .progress = a->automatic ? GDRFAB_PROGRESS_AUTO : 0};
	pair(&s, target, initiator, a);
}

/* --- many initiators at once, one of which is killed --- */

/* The maximum number of elements, and long operations among short ones. */
static void window_initiator(struct node *n)
{
	enum { MANY = 128, ROUNDS = 300 };
	static uint64_t ones[MANY], old[ROUNDS][MANY], word;
	node_up(n);
	struct remote to = mem_fetch(n);
	for (int i = 0; i < MANY; i++)
		ones[i] = 1;
	int rounds = test_count(ROUNDS, 30);
	int entries = 0;
	for (int r = 0; r < rounds; r++) {
		POST(n->cq, gdrfab_fetch_atomic(n->ep, ones, MANY, NULL, old[r], NULL, 0, to.base, to.key, GDRFAB_UINT64, GDRFAB_SUM, old));
		POST(n->cq, gdrfab_inject_atomic(n->ep, ones, 1, 0, to.base + 2048, to.key, GDRFAB_UINT64, GDRFAB_SUM));
		done entry;
		while (cq_next(n->cq, &entry, 0) == 1)
			entries++;
	}
	for (done entry; entries < rounds; entries++)
		CHECK_EQ(cq_next(n->cq, &entry, 10000), 1);
	for (int r = 0; r < rounds; r++)
		for (int i = 0; i < MANY; i++)
			CHECK_EQ(old[r][i], r);
	gdrfab_msg_atomic m = {.struct_size = sizeof m, .result = &word, .count = 1, .rma_addr = to.base + 2048, .key = to.key,
			       .datatype = GDRFAB_UINT64, .op = GDRFAB_ATOMIC_READ, .context = &word, .timeout_ns = 10000000000};
	POST(n->cq, gdrfab_atomicmsg(n->ep, &m, GDRFAB_COMPLETION | GDRFAB_FENCE));
	DONE(n->cq, &word, GDRFAB_ATOMIC | GDRFAB_READ, NULL);
	CHECK_EQ(word, rounds);
	barrier(n);
	node_down(n);
}

static void full_window(const void *arg)
{
	skip_unless(!traits()->adapter, "has no atomics");
	pair(NULL, target, window_initiator, arg);
}

static void killing_target(struct node *n)
{
	const struct act *a = (const struct act *)n->arg;
	struct mem m;
	node_up(n);
	mem_new(n, &m, &memkinds[a->kind], LEN);
	memset(m.addr, 0x11, LEN);
	mem_register(n, &m, 0, LEN, REMOTE_ACCESS, a->require);
	mem_publish(n, &m);
	barrier(n);
	for (uint64_t until = test_now_ms() + 50; test_now_ms() < until;)
		gdrfab_cq_read(n->cq, NULL, 0);
	peer_kill(n);
	await_gone(n);
	for (int i = 0; i < 20; i++)
		gdrfab_cq_read(n->cq, NULL, 0);
	for (size_t i = 0; i < 128; i++) {
		uint64_t value;
		memcpy(&value, m.addr + 8 * i, 8);
		CHECK(value == 0x1111111111111111 || value == 0x2222222222222222);
	}
	mem_end(n, &m);
	node_close(n);
}

static void killed_initiator(struct node *n)
{
	static unsigned char words[2][1024];
	memset(words[0], 0x11, 1024), memset(words[1], 0x22, 1024);
	node_up(n);
	struct remote to = mem_fetch(n);
	barrier(n);
	for (int i = 0;; i++) {
		done entry[16];
		gdrfab_atomic(n->ep, words[i % 2], 128, NULL, 0, to.base, to.key, GDRFAB_UINT64, GDRFAB_ATOMIC_WRITE, NULL);
		gdrfab_cq_read(n->cq, entry, 16);
	}
}

static void killed_in_the_middle(const void *arg)
{
	skip_unless(!traits()->adapter, "has no atomics");
	struct setup s = {.victim = TEST_CLIENT};
	pair(&s, killing_target, killed_initiator, arg);
}

/* --- invalid operations --- */

static void strict_target(struct node *n)
{
	const struct act *a = (const struct act *)n->arg;
	struct mem m[3];
	node_up(n);
	for (int i = 0; i < 3; i++) {
		static const uint64_t rights[] = {REMOTE_ACCESS, GDRFAB_REMOTE_READ, GDRFAB_REMOTE_WRITE};
		mem_new(n, &m[i], &memkinds[a->kind], LEN);
		memset(m[i].addr, 7, LEN);
		mem_register(n, &m[i], 0, LEN, rights[i], a->require);
		mem_publish(n, &m[i]);
	}
	barrier(n);
	CHECK_EQ(m[0].addr[0], 7);
	CHECK_EQ(m[1].addr[0], 7);
	for (int i = 0; i < 3; i++)
		mem_end(n, &m[i]);
	node_down(n);
}

static void strict_initiator(struct node *n)
{
	const struct act *a = (const struct act *)n->arg;
	uint64_t one[2] = {1, 1}, old[2];
	unsigned index = a->rdm ? PEER : 0;
	node_up(n);
	struct remote any = mem_fetch(n), read = mem_fetch(n), write = mem_fetch(n);
#define ADD(buf, count, at, key, type, op, ctx) gdrfab_atomic(n->ep, buf, count, NULL, index, at, key, type, op, ctx)
#define FETCH(at, key, op, ctx) gdrfab_fetch_atomic(n->ep, one, 1, NULL, old, NULL, index, at, key, GDRFAB_UINT64, op, ctx)
	CHECK_EQ(ADD(one, 1, any.base, any.key, 10, GDRFAB_SUM, one), -EINVAL);
	SAYS(gdrfab_last_error(), "datatype");
	CHECK_EQ(ADD(one, 1, any.base, any.key, GDRFAB_UINT64, 19, one), -EINVAL);
	SAYS(gdrfab_last_error(), "op");
	CHECK_EQ(ADD(one, 1, any.base, any.key, GDRFAB_UINT64, GDRFAB_CSWAP, one), -EOPNOTSUPP);
	CHECK_EQ(ADD(one, 1, any.base, any.key, GDRFAB_DOUBLE, GDRFAB_BXOR, one), -EOPNOTSUPP);
	CHECK_EQ(ADD(one, 1, any.base + 4, any.key, GDRFAB_UINT64, GDRFAB_SUM, one), -EINVAL);
	SAYS(gdrfab_last_error(), "multiple");
	CHECK_EQ(ADD(one, 129, any.base, any.key, GDRFAB_UINT64, GDRFAB_SUM, one), -EMSGSIZE);
	CHECK_EQ(ADD(one, (size_t)1 << 32, any.base, any.key, GDRFAB_UINT64, GDRFAB_SUM, one), -EMSGSIZE);
	CHECK_EQ(ADD(NULL, 1, any.base, any.key, GDRFAB_UINT64, GDRFAB_SUM, one), -EINVAL);
	CHECK_EQ(gdrfab_fetch_atomic(n->ep, one, 1, NULL, NULL, NULL, index, any.base, any.key, GDRFAB_UINT64, GDRFAB_SUM, one), -EINVAL);
	CHECK_EQ(gdrfab_atomicvalid(n->ep, 10, GDRFAB_SUM, NULL), -EINVAL);
	CHECK_EQ(gdrfab_atomicvalid(n->ep, GDRFAB_INT8, GDRFAB_SUM, NULL), 0);
	gdrfab_msg_atomic m = {.struct_size = sizeof m, .buf = one, .count = 1, .addr = index, .rma_addr = any.base, .key = any.key,
			       .datatype = GDRFAB_UINT64, .op = GDRFAB_SUM, .context = one};
	CHECK_EQ(gdrfab_atomicmsg(n->ep, &m, GDRFAB_REMOTE_CQ_DATA), -GDRFAB_EBADFLAGS);
	CHECK_EQ(gdrfab_atomicmsg(n->ep, &m, 1), -GDRFAB_EBADFLAGS);
	/* An operation of no elements still checks the key. */
	POST(n->cq, ADD(NULL, 0, any.base, any.key, GDRFAB_UINT64, GDRFAB_SUM, one));
	DONE(n->cq, one, GDRFAB_ATOMIC | GDRFAB_WRITE, NULL);
	struct failure f;
#define REFUSED(call, ctx, code)                                                                                       \
	do {                                                                                                           \
		POST(n->cq, call);                                                                                     \
		CHECK_EQ(cq_next(n->cq, &(done){0}, 10000), -1);                                                       \
		cq_failure(__FILE__, __LINE__, n->cq, &f);                                                             \
		CHECK(f.entry.op_context == (ctx));                                                                    \
		CHECK_EQ(f.entry.prov_errno, code);                                                                    \
		CHECK(f.words[0] != 0);                                                                                \
	} while (0)
	REFUSED(ADD(one, 0, any.base, wrong_key(any.key), GDRFAB_UINT64, GDRFAB_SUM, one), one, GDRFAB_PROV_KEY);
	REFUSED(ADD(one, 1, any.base, wrong_key(any.key), GDRFAB_UINT64, GDRFAB_SUM, one), one, GDRFAB_PROV_KEY);
	REFUSED(FETCH(any.base + LEN, any.key, GDRFAB_SUM, old), old, GDRFAB_PROV_BOUNDS);
	REFUSED(ADD(one, 2, any.base + LEN - 8, any.key, GDRFAB_UINT64, GDRFAB_SUM, one), one, GDRFAB_PROV_BOUNDS);
	REFUSED(ADD(one, 1, read.base, read.key, GDRFAB_UINT64, GDRFAB_SUM, one), one, GDRFAB_PROV_ACCESS);
	REFUSED(FETCH(read.base, read.key, GDRFAB_SUM, old), old, GDRFAB_PROV_ACCESS);
	REFUSED(FETCH(write.base, write.key, GDRFAB_ATOMIC_READ, old), old, GDRFAB_PROV_ACCESS);
	POST(n->cq, FETCH(read.base, read.key, GDRFAB_ATOMIC_READ, old));
	DONE(n->cq, old, GDRFAB_ATOMIC | GDRFAB_READ, NULL);
	CHECK_EQ(old[0], 0x0707070707070707);
	POST(n->cq, ADD(one, 1, write.base, write.key, GDRFAB_UINT64, GDRFAB_SUM, one));
	DONE(n->cq, one, GDRFAB_ATOMIC | GDRFAB_WRITE, NULL);
	barrier(n);
	node_down(n);
}

static void what_is_wrong(const void *arg)
{
	skip_unless(!traits()->adapter, "has no atomics");
	struct setup s = {.rdm = ((const struct act *)arg)->rdm};
	pair(&s, strict_target, strict_initiator, arg);
}

/* Memory whose owner has unmapped it or made it read-only. */
static void gone_target(struct node *n)
{
	struct mem m;
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	node_up(n);
	memset(&m, 0, sizeof m);
	m.kind = &memkinds[KIND_MALLOC], m.len = 2 * page;
	m.addr = (unsigned char *)mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	mem_register(n, &m, 0, 2 * page, REMOTE_ACCESS, 0);
	mem_publish(n, &m);
	OK(mprotect(m.addr, page, PROT_READ));
	OK(munmap(m.addr + page, page));
	barrier(n);
	barrier(n);
	mem_unregister(&m);
	munmap(m.addr, page);
	node_down(n);
}

static void gone_initiator(struct node *n)
{
	uint64_t one[2] = {1, 1}, old[2];
	unsigned index = 0;
	struct failure f;
	node_up(n);
	struct remote to = mem_fetch(n);
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	barrier(n);
	REFUSED(FETCH(to.base, to.key, GDRFAB_SUM, old), old, GDRFAB_PROV_FAULT);
	REFUSED(FETCH(to.base + page, to.key, GDRFAB_ATOMIC_READ, old), old, GDRFAB_PROV_FAULT);
	REFUSED(ADD(one, 2, to.base + page - 8, to.key, GDRFAB_UINT64, GDRFAB_SUM, one), one, GDRFAB_PROV_FAULT);
	POST(n->cq, FETCH(to.base, to.key, GDRFAB_ATOMIC_READ, old));
	DONE(n->cq, old, GDRFAB_ATOMIC | GDRFAB_READ, NULL);
	barrier(n);
	node_down(n);
}

TEST(memory_that_is_gone)
{
	skip_unless(!traits()->adapter, "has no atomics");
	pair(NULL, gone_target, gone_initiator, NULL);
}

/* Atomics of an RDMA device are tested in atomic_card.c. */
static void without(struct node *n)
{
	uint64_t one = 1;
	node_up(n);
	CHECK_EQ(n->info->caps & GDRFAB_ATOMIC, 0);
	CHECK_EQ(gdrfab_atomicvalid(n->ep, GDRFAB_UINT32, GDRFAB_SUM, NULL), -EOPNOTSUPP);
	CHECK_EQ(gdrfab_atomic(n->ep, &one, 1, NULL, 0, 0, 0, GDRFAB_UINT32, GDRFAB_SUM, NULL), -EOPNOTSUPP);
	SAYS(gdrfab_last_error(), "atomic");
	node_down(n);
}

TEST(a_provider_without_says_so)
{
	skip_unless(traits()->adapter, "has atomics");
	pair(NULL, without, without, NULL);
}

/* A peer of an older version does not know the frame: the operation is refused before it is sent. */
TEST(none_for_a_peer_of_an_older_version)
{
	static unsigned char bytes[RAW_INTRO + RAW_BODY_MAX];
	uint64_t one = 1;
	char service[16];
	struct node n;
	skip_unless(strcmp(provider(), "tcp") == 0, "one of its own format");
	skip_unless(!getenv("GDRFAB_TCP_KEY_FILE"), "a key, which no older version knows");
	int fd = raw_listen(service, sizeof service, 8);
	node_alone(&n, NULL);
	gdrfab_freeinfo(n.info);
	snprintf(n.service, sizeof n.service, "%s", service);
	node_info(&n);
	n.ep = ep_new(&n, n.info, NULL);
	OK(gdrfab_ep_connect(n.ep, n.info->dest_addr, n.info->dest_addrlen, NULL, 0));
	int peer = accept(fd, NULL, NULL);
	CHECK(peer >= 0);
	pid_t pid = test_fork(TEST_SERVER);
	if (pid == 0) {
		CHECK_EQ(raw_recv(peer, bytes, RAW_HELLO, 5000), 1);
		raw_hello(bytes, 3);
		CHECK(raw_send(peer, bytes, RAW_HELLO));
		CHECK_EQ(raw_recv(peer, bytes, RAW_INTRO, 5000), 1);
		CHECK_EQ(raw_recv(peer, bytes, (size_t)raw_get(bytes, 4), 5000), 1);
		CHECK(raw_send(peer, bytes, raw_intro(bytes, 16, 65536, "", 0)));
		CHECK(raw_closed(peer, 10000));
		test_child_done();
	}
	close(peer);
	EVENT(n.eq, GDRFAB_CONNECTED, n.ep, NULL);
	CHECK_EQ(gdrfab_atomic(n.ep, &one, 1, NULL, 0, 64, 1, GDRFAB_UINT64, GDRFAB_SUM, NULL), -EOPNOTSUPP);
	CHECK(test_says(gdrfab_last_error(), "protocol version has no"));
	OK(gdrfab_ep_close(n.ep));
	n.ep = NULL;
	node_close(&n);
	int status;
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	test_child_ended(TEST_SERVER, status);
	close(fd);
}

TEST_TABLE(acts)
{
	static const struct act shm[] = {
		{.name = "direct", .kind = KIND_MEM_ALLOC, .require = GDRFAB_PATH_DIRECT},
		{.name = "private", .kind = KIND_MALLOC},
		{.name = "staged", .kind = KIND_MEM_ALLOC, .require = GDRFAB_PATH_STAGED},
		{.name = "unlocked", .kind = KIND_MEM_ALLOC, .threading = GDRFAB_THREAD_DOMAIN},
		{.name = "rdm", .kind = KIND_MEM_ALLOC, .rdm = true},
		{.name = "rdm_private", .kind = KIND_MALLOC, .rdm = true, .threading = GDRFAB_THREAD_DOMAIN},
		{.name = "self", .kind = KIND_MALLOC, .rdm = true, .self = true},
	}, tcp[] = {
		{.name = "socket", .kind = KIND_MEM_ALLOC},
		{.name = "private", .kind = KIND_MALLOC},
		{.name = "auto", .kind = KIND_MALLOC, .automatic = true},
		{.name = "rdm", .kind = KIND_MALLOC, .rdm = true},
	};
	static char names[32][64];
	bool is_shm = path_known(PATH_DIRECT);
	size_t count = is_shm ? sizeof shm / sizeof *shm : sizeof tcp / sizeof *tcp, at = 0;
	for (size_t i = 0; i < count; i++) {
		const struct act *a = is_shm ? &shm[i] : &tcp[i];
		struct {
			const char *name;
			test_fn fn;
		} claims[] = {{"all_operations", all_operations}, {"what_is_wrong", what_is_wrong}, {"full_window", full_window},
			      {"killed_in_the_middle", killed_in_the_middle}};
		for (size_t k = 0; k < 4; k++) {
			if ((k == 1 && a->self) || (k > 1 && (a->rdm || a->threading || a->automatic)))
				continue;
			/* Arguments are checked, and the window is counted, before the kind of memory matters. */
			if (test_checked() && (k == 1 || k == 2) && i > 0 && !a->rdm)
				continue;
			snprintf(names[at], sizeof names[at], "%s_%s", claims[k].name, a->name);
			test_add(names[at++], claims[k].fn, a, 30);
		}
	}
	/* The target's CPU copies its device's memory out and back. */
	static struct act device = {.name = "device"};
	if (device_kinds_list() > 0) {
		device.device = device_kinds[0];
		test_add("all_operations_device", all_operations, &device, 30);
	}
}
