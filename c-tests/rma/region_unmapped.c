/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Registered memory whose owner has protected or unmapped its pages. A peer's operation on it fails with EFAULT, whatever its
 * size, and neither the owner nor any other operation is harmed.
 */
#include "fab.h"

#include <sys/mman.h>

#define SPAN ((size_t)16 << 20)
#define GOOD ((size_t)1 << 20)
#define SEED 3u

static const size_t sizes[] = {1, 2, 7, 8, 64, 4096, 4097, 9000, 16384, 65536, GOOD, SPAN};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

enum damage { FORBIDDEN, READ_ONLY, UNMAPPED, LAST_PAGE, LAST_PAGE_UNMAPPED };
static const struct loss {
	const char *name;
	enum damage damage;
} losses[] = {{"forbidden", FORBIDDEN},
	      {"read_only", READ_ONLY},
	      {"unmapped", UNMAPPED},
	      {"last_page_forbidden", LAST_PAGE},
	      {"last_page_unmapped", LAST_PAGE_UNMAPPED}};
enum { LOSSES = sizeof losses / sizeof losses[0] };

/* The usual path; copies by the owner alone; large copies that the owner joins, from memory that it maps. */
enum reach { USUAL, STAGED, JOINED, REACHES };
static const char *const reach_names[REACHES] = {"", "_staged", "_joined"};
struct trial {
	const struct loss *loss;
	enum reach reach;
};

static void only_where_pages_matter(struct node *n, enum reach reach)
{
	skip_unless(!traits()->adapter, "an adapter reaches pages that it has pinned, whatever their owner does");
	if (reach == STAGED)
		return;
	if (path_known(PATH_CMA))
		skip_if_cma_refused(n);
}

static void lose(unsigned char *at, enum damage damage)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	switch (damage) {
	case FORBIDDEN:
		CHECK_EQ(mprotect(at, SPAN, PROT_NONE), 0);
		break;
	case READ_ONLY:
		CHECK_EQ(mprotect(at, SPAN, PROT_READ), 0);
		break;
	case UNMAPPED:
		CHECK_EQ(munmap(at, SPAN), 0);
		break;
	case LAST_PAGE:
		CHECK_EQ(mprotect(at + SPAN - page, page, PROT_NONE), 0);
		break;
	case LAST_PAGE_UNMAPPED:
		CHECK_EQ(munmap(at + SPAN - page, page), 0);
		break;
	}
}

/* Pages in a part of the address space that the kernel gives to no other mapping: in a gap that it leaves, this process's mapping
 * of the peer's memory could come to lie, and the region would have pages again. */
static void *pages(size_t len)
{
	static uintptr_t next = (uintptr_t)1 << 43;
	void *hint = (void *)next;
	next += 2 * SPAN;
	void *at = mmap(hint, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(at != MAP_FAILED);
	return at;
}

static struct remote grant(struct node *n, void *at, size_t len, enum reach reach, gdrfab_mr **mr)
{
	struct iovec iov = {at, len};
	gdrfab_mr_attr attr;
	gdrfab_mr_info info;
	memset(&attr, 0, sizeof attr);
	attr.struct_size = sizeof attr;
	attr.mr_iov = &iov;
	attr.iov_count = 1;
	attr.access = REMOTE_ACCESS;
	attr.require = reach == STAGED ? GDRFAB_PATH_STAGED : 0;
	memset(&info, 0, sizeof info);
	info.struct_size = sizeof info;
	OK(gdrfab_mr_regattr(n->domain, &attr, 0, mr));
	OK(gdrfab_mr_query(*mr, &info));
	struct remote r = {info.key, info.base, info.len};
	return r;
}

static void owner(struct node *n)
{
	const struct trial *t = (const struct trial *)n->arg;
	const struct loss *loss = t->loss;
	struct remote given[2];
	gdrfab_mr *bad, *fine;
	node_up(n);
	only_where_pages_matter(n, t->reach);
	unsigned char *lost = (unsigned char *)pages(SPAN), *good = (unsigned char *)pages(GOOD);
	fill(lost, SPAN, 0, SEED);
	given[0] = grant(n, lost, SPAN, t->reach, &bad);
	given[1] = grant(n, good, GOOD, t->reach, &fine);
	lose(lost, loss->damage);
	oob_send(n, given, sizeof given);
	barrier(n);
	/* No write with data has arrived, and the other memory is unchanged. */
	QUIET(n->cq, 5);
	if (loss->damage == READ_ONLY)
		CHECK_FILLED("memory that may only be read", lost, SPAN, 0, SEED);
	OK(gdrfab_mr_close(bad));
	OK(gdrfab_mr_close(fine));
	barrier(n);
	node_down(n);
	munmap(lost, SPAN);
	munmap(good, GOOD);
}

/* An address from which `len` bytes reach into the missing pages. */
static uint64_t address(const struct remote *r, size_t len, enum damage damage)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), border = SPAN - page - len / 2;
	if (damage != LAST_PAGE && damage != LAST_PAGE_UNMAPPED)
		return r->base;
	return r->base + (border + len <= SPAN ? border : SPAN - len);
}

static void one_by_one(struct node *n, const struct remote given[2], enum damage damage, unsigned char *local, void *desc)
{
	for (int i = 0; i < test_count(SIZES, SIZES - 1); i++) {
		size_t len = sizes[i], well = len < GOOD ? len : GOOD;
		uint64_t at = address(&given[0], len, damage), key = given[0].key;
		test_at(__FILE__, __LINE__);
		POST(n->cq, gdrfab_read(n->ep, local, len, desc, PEER, at, key, local));
		if (damage == READ_ONLY) {
			DONE(n->cq, local, GDRFAB_READ, NULL);
			CHECK_FILLED("memory that may still be read", local, len, 0, SEED);
		} else {
			FAILED(n->cq, local, EFAULT, GDRFAB_PROV_FAULT, NULL);
		}
		POST(n->cq, gdrfab_write(n->ep, local, len, desc, PEER, at, key, local + 1));
		FAILED(n->cq, local + 1, EFAULT, GDRFAB_PROV_FAULT, NULL);
		POST(n->cq, gdrfab_writedata(n->ep, local, len, desc, 9, PEER, at, key, local + 2));
		FAILED(n->cq, local + 2, EFAULT, GDRFAB_PROV_FAULT, NULL);
		/* The next operation, on other memory. */
		fill(local, well, 0, 100 + (uint32_t)i);
		POST(n->cq, gdrfab_write(n->ep, local, well, desc, PEER, given[1].base, given[1].key, local));
		DONE(n->cq, local, GDRFAB_WRITE, NULL);
		memset(local, 0, well);
		POST(n->cq, gdrfab_read(n->ep, local, well, desc, PEER, given[1].base, given[1].key, local));
		DONE(n->cq, local, GDRFAB_READ, NULL);
		CHECK_FILLED("what went elsewhere", local, well, 0, 100 + (uint32_t)i);
	}
}

/* Many operations at once, of which every third fails: the others succeed. */
static void among_others(struct node *n, const struct remote given[2], enum damage damage, unsigned char *local)
{
	enum { MANY = 60, ROOM = 65536 };
	static const size_t lens[] = {8, 9000, 64, 16000, 4096, 40000};
	for (int write = damage == READ_ONLY; write < 2; write++) {
		int state[MANY] = {0}, posted = 0, ended = 0;
		fill(local, (size_t)MANY * ROOM, 0, SEED);
		while (ended < MANY) {
			done entry;
			struct failure f;
			while (posted < MANY) {
				bool lost = posted % 3 == 1;
				size_t len = lens[posted % 6];
				unsigned char *mine = local + (size_t)posted * ROOM;
				uint64_t to = lost ? address(&given[0], len, damage) : given[1].base, key = given[lost ? 0 : 1].key;
				ssize_t rc = write ? gdrfab_write(n->ep, mine, len, NULL, PEER, to, key, &state[posted])
						   : gdrfab_read(n->ep, mine, len, NULL, PEER, to, key, &state[posted]);
				if (rc == -EAGAIN)
					break;
				OK(rc);
				posted++;
			}
			int next = cq_next(n->cq, &entry, 10000);
			CHECK(next != 0);
			if (next < 0) {
				cq_failure(__FILE__, __LINE__, n->cq, &f);
				CHECK_EQ(f.entry.err, EFAULT);
				CHECK_EQ(f.entry.prov_errno, GDRFAB_PROV_FAULT);
			}
			int *which = (int *)(next < 0 ? f.entry.op_context : entry.op_context);
			CHECK(which >= state && which < state + MANY && *which == 0);
			*which = next;
			ended++;
		}
		for (int i = 0; i < MANY; i++)
			if (state[i] != (i % 3 == 1 ? -1 : 1))
				test_fail(__FILE__, __LINE__, "%s %d of %d, %zu bytes, %s", write ? "write" : "read", i, MANY,
					  lens[i % 6], state[i] == 1 ? "went well" : "failed for another's memory");
	}
}

static void peer(struct node *n)
{
	const struct trial *t = (const struct trial *)n->arg;
	struct remote given[2];
	gdrfab_mr *mr = NULL;
	void *shared = NULL;
	node_up(n);
	only_where_pages_matter(n, t->reach);
	oob_recv(n, given, sizeof given);
	unsigned char *local = (unsigned char *)pages(SPAN);
	if (t->reach == JOINED) {
		OK(gdrfab_mem_alloc(n->domain, GDRFAB_HMEM_SYSTEM, 0, SPAN, 0, &shared));
		OK(gdrfab_mr_reg(n->domain, shared, SPAN, GDRFAB_READ | GDRFAB_WRITE, 0, 0, 0, NULL, &mr));
		one_by_one(n, given, t->loss->damage, (unsigned char *)shared, gdrfab_mr_desc(mr));
	} else {
		one_by_one(n, given, t->loss->damage, local, NULL);
		among_others(n, given, t->loss->damage, local);
	}
	barrier(n);
	if (shared) {
		OK(gdrfab_mr_close(mr));
		OK(gdrfab_mem_free(n->domain, shared));
	}
	barrier(n);
	node_down(n);
	munmap(local, SPAN);
}

static void lost_pages(const void *arg)
{
	pair(NULL, owner, peer, arg);
}

TEST_TABLE(per_loss)
{
	static char names[LOSSES][REACHES][64];
	static struct trial trials[LOSSES][REACHES];
	for (size_t i = 0; i < LOSSES; i++)
		for (int r = USUAL; r < (path_known(PATH_CMA) ? REACHES : USUAL + 1); r++) {
			/* The kernel answers EFAULT to each loss: a memory checker sees all of them by the usual reach, and the last by each. */
			if (test_checked() && r != USUAL && i + 1 < LOSSES)
				continue;
			trials[i][r] = (struct trial){&losses[i], (enum reach)r};
			snprintf(names[i][r], sizeof names[i][r], "memory_%s_costs_the_peer_an_error%s", losses[i].name,
				 reach_names[r]);
			test_add(names[i][r], lost_pages, &trials[i][r], 40);
		}
}

/* --- memory of gdrfab_mem_alloc(), which tcp and shm reach by a mapping of their own --- */

static void forbidding_owner(struct node *n)
{
	struct remote given;
	gdrfab_mr *mr;
	void *at;
	node_up(n);
	skip_unless(!traits()->adapter, "an adapter reaches pages that it has pinned, whatever their owner does");
	OK(gdrfab_mem_alloc(n->domain, GDRFAB_HMEM_SYSTEM, 0, SPAN, 0, &at));
	given = grant(n, at, SPAN, *(const enum reach *)n->arg, &mr);
	fill(at, SPAN, 0, SEED);
	CHECK_EQ(mprotect(at, SPAN, PROT_NONE), 0);
	oob_send(n, &given, sizeof given);
	barrier(n);
	CHECK_EQ(mprotect(at, SPAN, PROT_READ | PROT_WRITE), 0);
	CHECK_FILLED("what was written meanwhile", at, SPAN, 0, SEED + 1);
	OK(gdrfab_mr_close(mr));
	OK(gdrfab_mem_free(n->domain, at));
	barrier(n);
	node_down(n);
}

static void undisturbed_peer(struct node *n)
{
	struct remote given;
	void *at;
	gdrfab_mr *mr;
	node_up(n);
	skip_unless(!traits()->adapter, "an adapter reaches pages that it has pinned, whatever their owner does");
	OK(gdrfab_mem_alloc(n->domain, GDRFAB_HMEM_SYSTEM, 0, SPAN, 0, &at));
	OK(gdrfab_mr_reg(n->domain, at, SPAN, GDRFAB_READ | GDRFAB_WRITE, 0, 0, 0, NULL, &mr));
	unsigned char *local = (unsigned char *)at;
	void *desc = *(const enum reach *)n->arg == JOINED ? gdrfab_mr_desc(mr) : NULL;
	oob_recv(n, &given, sizeof given);
	for (int i = 0; i < SIZES; i++) {
		POST(n->cq, gdrfab_read(n->ep, local, sizes[i], desc, PEER, given.base, given.key, local));
		DONE(n->cq, local, GDRFAB_READ, NULL);
		CHECK_FILLED("what the owner may not read", local, sizes[i], 0, i == 0 ? SEED : SEED + 1);
		fill(local, SPAN, 0, SEED + 1);
		POST(n->cq, gdrfab_write(n->ep, local, SPAN, desc, PEER, given.base, given.key, local));
		DONE(n->cq, local, GDRFAB_WRITE, NULL);
	}
	barrier(n);
	OK(gdrfab_mr_close(mr));
	OK(gdrfab_mem_free(n->domain, at));
	barrier(n);
	node_down(n);
}

static void stays_reachable(const void *arg)
{
	pair(NULL, forbidding_owner, undisturbed_peer, arg);
}

TEST_TABLE(per_reach)
{
	static const enum reach reaches[REACHES] = {USUAL, STAGED, JOINED};
	static char names[REACHES][64];
	for (int r = USUAL; r < (path_known(PATH_CMA) ? REACHES : USUAL + 1); r++) {
		snprintf(names[r], sizeof names[r], "memory_of_mem_alloc_stays_reachable%s", reach_names[r]);
		test_add(names[r], stays_reachable, &reaches[r], 40);
	}
}

/* --- the initiator's own memory --- */

struct message {
	size_t len;
	bool rdm;
};

static void only_where_the_kernel_reads(struct node *n)
{
	bool read = path_known(PATH_SOCKET) || (connectionless(n->setup) && !traits()->adapter);
	skip_unless(read, "this is about bytes that the kernel gathers for a socket, or that a connectionless receiver reads");
}

static void hopeful(struct node *n)
{
	const struct message *m = (const struct message *)n->arg;
	bool rdm = connectionless(n->setup);
	unsigned char *buf = (unsigned char *)malloc(2 * GOOD);
	node_up(n);
	only_where_the_kernel_reads(n);
	for (int i = 0; i < 1 + rdm; i++)
		POST(n->cq, gdrfab_recv(n->ep, buf, 2 * GOOD, NULL, PEER, buf));
	barrier(n);
	/* The connection may end or not: no message may arrive. */
	for (int i = 0; i < 1 + rdm; i++) {
		done entry;
		struct failure f;
		CHECK_EQ(cq_next(n->cq, &entry, 5000), -1);
		cq_failure(__FILE__, __LINE__, n->cq, &f);
		CHECK_EITHER(f.entry.err, m->len > 16384 || rdm ? EFAULT : ECONNRESET, rdm ? EFAULT : ECONNRESET);
	}
	barrier(n);
	node_down(n);
	free(buf);
}

static void empty_handed(struct node *n)
{
	const struct message *m = (const struct message *)n->arg;
	struct failure f;
	node_up(n);
	only_where_the_kernel_reads(n);
	unsigned char *at = (unsigned char *)pages(GOOD), *good = (unsigned char *)pages(GOOD);
	CHECK_EQ(mprotect(at, GOOD, PROT_NONE), 0);
	barrier(n);
	POST(n->cq, gdrfab_send(n->ep, at, m->len, NULL, PEER, at));
	FAILED(n->cq, at, EFAULT, GDRFAB_PROV_FAULT, &f);
	/* The receiver copies the message, and cannot tell which side's memory is missing. */
	if (connectionless(n->setup)) {
		struct iovec iov[2] = {{good, GOOD}, {at + 100, m->len - 100}};
		SAYS(f.words, "buf: ");
		POST(n->cq, gdrfab_sendv(n->ep, iov, NULL, 2, PEER, good));
		FAILED(n->cq, good, EFAULT, GDRFAB_PROV_FAULT, &f);
		SAYS(f.words, "iov[1]: ");
	}
	barrier(n);
	node_down(n);
	munmap(at, GOOD);
	munmap(good, GOOD);
}

static void nothing_is_sent_for_it(const void *arg)
{
	struct setup s = {.rdm = ((const struct message *)arg)->rdm};
	pair(&s, hopeful, empty_handed, arg);
}

/* The receiver's buffer is unmapped: the sender learns that its own memory was not the reason. */
static void absent_minded(struct node *n)
{
	node_up(n);
	only_where_pages_matter(n, USUAL);
	unsigned char *at = (unsigned char *)pages(GOOD);
	CHECK_EQ(mprotect(at, GOOD, PROT_NONE), 0);
	POST(n->cq, gdrfab_recv(n->ep, at, GOOD, NULL, PEER, at));
	barrier(n);
	FAILED(n->cq, at, EFAULT, GDRFAB_PROV_FAULT, NULL);
	barrier(n);
	node_down(n);
	munmap(at, GOOD);
}

static void innocent(struct node *n)
{
	node_up(n);
	only_where_pages_matter(n, USUAL);
	unsigned char *at = (unsigned char *)pages(GOOD);
	barrier(n);
	POST(n->cq, gdrfab_send(n->ep, at, GOOD, NULL, PEER, at));
	FAILED(n->cq, at, EIO, GDRFAB_PROV_FAULT, NULL);
	barrier(n);
	node_down(n);
	munmap(at, GOOD);
}

static void lost_by_its_receiver(const void *arg)
{
	struct setup s = {.rdm = true};
	pair(&s, absent_minded, innocent, arg);
}

TEST_TABLE(per_message)
{
	static const struct message messages[] = {{9000, false}, {100000, false}, {GOOD, false}, {9000, true}, {GOOD, true}};
	enum { MESSAGES = sizeof messages / sizeof messages[0] };
	static char names[MESSAGES][80];
	for (size_t i = 0; i < MESSAGES; i++) {
		const struct message *m = &messages[i];
		snprintf(names[i], sizeof names[i], "a_message_of_forbidden_memory_is_none_%zu%s", m->len, m->rdm ? "_connectionless" : "");
		test_add(names[i], nothing_is_sent_for_it, m, 20);
	}
	if (path_known(PATH_CMA))
		test_add("the_sender_hears_of_a_receiver_without_memory", lost_by_its_receiver, NULL, 20);
}
