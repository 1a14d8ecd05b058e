/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A hostile shm peer that frees memory while the other side uses it. The other side may lose the connection, but must not
 * fault. shm_endless.c is about work without end; shm_random.c writes random bytes.
 */
#include "shm_peer.h"

#include <sys/mman.h>

/* --- memory that is freed while it is in use --- */

#define SHARED ((size_t)16 << 20)
#define PART ((size_t)65536)

/* Claims the last chunk of the copy that the other side has begun; returns its slot. */
static char *claim_last(struct view *v)
{
	uint64_t until = test_now_ms() + (uint64_t)test_ms(5000);
	while (test_now_ms() < until)
		for (int i = 0; i < v->segments * 4; i++) {
			char *slot = v->segment[i / 4] + SEG_SLOTS + 64 * (i % 4);
			uint64_t now = get(AT(slot, 0)), front = now >> 24 & 0xffffff, back = now & 0xffffff;
			if (now >> 48 && front < back && back > 1 &&
			    __atomic_compare_exchange_n(AT(slot, 0), &now, (now & ~0xffffffull) | (back - 1),
							false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
				return slot;
		}
	return NULL;
}

/* Answers the last chunk of a shared copy by freeing the memory and reporting failure. False: there was no such copy. */
static void frees_shared(struct node *n)
{
	struct view v;
	struct mem m;
	char over = 0;
	node_up(n);
	mem_new(n, &m, &memkinds[KIND_MEM_ALLOC], SHARED);
	mem_register(n, &m, 0, SHARED, REMOTE_ACCESS, GDRFAB_PATH_DIRECT);
	mem_publish(n, &m);
	look(&v);
	/* If the other side cannot fetch descriptors, this side sends its file. */
	barrier(n);
	n->idle = true;
	char *slot = claim_last(&v);
	if (slot) {
		test_sleep_ms(20); /* by now the other side has copied its part and waits */
		free_records(&v);
		test_sleep_ms(20); /* by now it has looked at the socket and at the freed memory */
		put(AT(slot, 8), (get(AT(slot, 0)) >> 48) << 48 | 5ull << 32 | 1);
	}
	oob_send(n, slot ? "y" : "n", 1);
	oob_recv(n, &over, 1);
	mem_end(n, &m);
	node_down(n);
}

static void skip_without_direct(struct node *n, uint64_t key)
{
	char words[2048] = "";
	gdrfab_ep_explain(n->ep, 0, key, words, sizeof words);
	if (!strstr(words, ": direct\n"))
		test_skip("the peer's memory cannot be mapped here: %s", words);
}

static void shares(struct node *n)
{
	bool writes = *(const bool *)n->arg;
	char served = 0;
	node_up(n);
	struct remote to = mem_fetch(n);
	unsigned char *local = (unsigned char *)malloc(SHARED);
	CHECK(local != NULL);
	memset(local, 1, SHARED);
	struct way direct = {&paths[PATH_DIRECT], &memkinds[KIND_MEM_ALLOC], "direct"};
	way_check(n, &direct, to);
	barrier(n);
	if (writes)
		POST(n->cq, gdrfab_write(n->ep, local, SHARED, NULL, 0, to.base, to.key, local));
	else
		POST(n->cq, gdrfab_read(n->ep, local, SHARED, NULL, 0, to.base, to.key, local));
	takes_entry(n);
	oob_recv(n, &served, 1);
	oob_send(n, "o", 1);
	if (served != 'y')
		test_skip("the copy was over before the peer had a chunk of it");
	free(local);
	node_down(n);
}

static void frees_in_shared_copy(const void *arg)
{
	skip_unless(path_known(PATH_DIRECT), no_sharing);
	pair(NULL, frees_shared, shares, arg);
}

/* Reserves address space and frees it again: later mappings go there, and not to addresses that were just unmapped, where
 * they would hide a late access. */
static void *hole_new(size_t len)
{
	void *at = mmap(NULL, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(at != MAP_FAILED);
	return at;
}

/* Two files, with a region in each and one in both. The first file is freed between two operations of the other side. */
static void frees_between(struct node *n)
{
	struct view v;
	struct mem a, b;
	struct remote both;
	gdrfab_mr *mr;
	char word = 0;
	node_up(n);
	mem_new(n, &a, &memkinds[KIND_MEM_ALLOC], PART);
	mem_new(n, &b, &memkinds[KIND_MEM_ALLOC], 2 * PART);
	mem_register(n, &a, 0, PART, REMOTE_ACCESS, GDRFAB_PATH_DIRECT);
	mem_register(n, &b, 0, PART, REMOTE_ACCESS, GDRFAB_PATH_DIRECT);
	struct iovec iov[2] = {{a.addr, PART}, {b.addr, PART}};
	OK(gdrfab_mr_regv(n->domain, iov, 2, REMOTE_ACCESS, 0, 0, 0, NULL, &mr));
	both = (struct remote){gdrfab_mr_key(mr), (uintptr_t)a.addr, 2 * PART};
	mem_publish(n, &a);
	mem_publish(n, &b);
	oob_send(n, &both, sizeof both);
	look(&v);
	n->idle = true;
	oob_recv(n, &word, 1); /* the other side has mapped the first file */
	put(AT(record_of(&v, PART), 0), 0);
	oob_send(n, &word, 1);
	oob_recv(n, &word, 1);
	OK(gdrfab_mr_close(mr));
	mem_end(n, &a);
	mem_end(n, &b);
	node_down(n);
}

static void uses_two(struct node *n)
{
	bool one_region = *(const bool *)n->arg;
	static unsigned char local[2 * PART];
	struct remote a, b, both;
	char word = 'w';
	void *hole = hole_new(2 * PART);
	node_up(n);
	a = mem_fetch(n);
	b = mem_fetch(n);
	oob_recv(n, &both, sizeof both);
	skip_without_direct(n, a.key);
	POST(n->cq, gdrfab_write(n->ep, local, 64, NULL, 0, a.base, a.key, local));
	DONE(n->cq, local, GDRFAB_WRITE, NULL);
	/* No progress until the next operation: it would find out that the file is gone. */
	n->idle = true;
	oob_send(n, &word, 1);
	oob_recv(n, &word, 1);
	munmap(hole, 2 * PART);
	if (one_region) {
		OK(gdrfab_write(n->ep, local, 2 * PART, NULL, 0, both.base, both.key, local));
	} else {
		struct iovec iov = {local, 2 * PART};
		gdrfab_rma_iov remote[2] = {{a.base, PART, a.key}, {b.base, PART, b.key}};
		gdrfab_msg_rma msg;
		memset(&msg, 0, sizeof msg);
		msg.struct_size = sizeof msg;
		msg.msg_iov = &iov, msg.iov_count = 1;
		msg.rma_iov = remote, msg.rma_iov_count = 2;
		msg.context = local;
		OK(gdrfab_writemsg(n->ep, &msg, GDRFAB_COMPLETION));
	}
	takes_entry(n);
	oob_send(n, &word, 1);
	n->idle = false;
	node_down(n);
}

static void frees_between_operations(const void *arg)
{
	skip_unless(path_known(PATH_DIRECT), no_sharing);
	pair(NULL, frees_between, uses_two, arg);
}

/* No attack: a readable and a writable region in one file, which needs two mappings. */
static void registers_both_ways(struct node *n)
{
	struct mem m;
	gdrfab_mr *mr;
	node_up(n);
	mem_new(n, &m, &memkinds[KIND_MEM_ALLOC], 2 * PART);
	mem_fill(&m, 0, 2 * PART, 0, 3);
	mem_register(n, &m, 0, PART, GDRFAB_REMOTE_READ, GDRFAB_PATH_DIRECT);
	OK(gdrfab_mr_reg(n->domain, m.addr + PART, PART, REMOTE_ACCESS, 0, 0, 0, NULL, &mr));
	struct remote second = {gdrfab_mr_key(mr), (uintptr_t)m.addr + PART, PART};
	mem_publish(n, &m);
	oob_send(n, &second, sizeof second);
	barrier(n);
	OK(gdrfab_mr_close(mr));
	mem_end(n, &m);
	node_down(n);
}

static void reads_both(struct node *n)
{
	static unsigned char local[2 * PART];
	struct iovec iov = {local, 2 * PART};
	struct remote second;
	gdrfab_msg_rma msg;
	void *hole = hole_new(2 * PART);
	node_up(n);
	struct remote first = mem_fetch(n);
	oob_recv(n, &second, sizeof second);
	POST(n->cq, gdrfab_read(n->ep, local, PART, NULL, 0, first.base, first.key, local));
	DONE(n->cq, local, GDRFAB_READ, NULL);
	munmap(hole, 2 * PART);
	gdrfab_rma_iov remote[2] = {{first.base, PART, first.key}, {second.base, PART, second.key}};
	memset(&msg, 0, sizeof msg);
	msg.struct_size = sizeof msg;
	msg.msg_iov = &iov, msg.iov_count = 1;
	msg.rma_iov = remote, msg.rma_iov_count = 2;
	msg.context = local;
	POST(n->cq, gdrfab_readmsg(n->ep, &msg, GDRFAB_COMPLETION));
	DONE(n->cq, local, GDRFAB_READ, NULL);
	CHECK_FILLED("what was read", local, 2 * PART, 0, 3);
	barrier(n);
	node_down(n);
}

TEST(one_operation_reads_regions_of_different_rights_in_one_file)
{
	skip_unless(path_known(PATH_DIRECT), no_sharing);
	pair(NULL, registers_both_ways, reads_both, NULL);
}

TEST_TABLE(frees)
{
	static const bool yes = true, no = false;
	test_add("memory_freed_in_a_shared_write_costs_no_fault", frees_in_shared_copy, &yes, 20);
	test_add("memory_freed_in_a_shared_read_costs_no_fault", frees_in_shared_copy, &no, 20);
	test_add("memory_freed_between_the_keys_of_an_operation_costs_no_fault", frees_between_operations, &no, 20);
	test_add("memory_freed_between_the_files_of_a_region_costs_no_fault", frees_between_operations, &yes, 20);
}
