/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A shm peer that knows docs/shm-format.md by heart and uses it against the other side: it frees memory that is in use,
 * offers work without end, and goes on after it has left. All of that may cost the other side a connection; it may cost
 * no fault, and no call may be long. scribble.c does the same without a plan.
 */
#include "fab.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>

/* Of the document: offsets in a segment, in a region table, and in a slot; kinds of ring messages. */
enum {
	SEG_LINES = 8,
	SEG_RETURNED = 64,
	SEG_SLOTS = 1280,
	SEG_RING = 9472,
	SLOTS = 128,
	TABLE_REACH = 8,
	TABLE_FILES = 64,
	TABLE_EXTENTS = 524352,
	TABLE_ENTRIES = 1572928,
	FILES = 4096,
	EXTENTS = 32768,
	REGIONS = 262144,
};
enum { COOP = 5, STAGED_WRITE, STAGED_READ };

static const char no_sharing[] = "two processes share no memory of the library's";

#define AT(base, offset) ((uint64_t *)(void *)((base) + (offset)))

static uint64_t get(const uint64_t *at)
{
	return __atomic_load_n(at, __ATOMIC_SEQ_CST);
}

static void put(uint64_t *at, uint64_t value)
{
	__atomic_store_n(at, value, __ATOMIC_SEQ_CST);
}

/* What the library has mapped writable in this process: segments, of which one is the peer's, and the own table. */
struct view {
	char *segment[8];
	int segments;
	char *table;
	char *peer, *own;
	uint64_t tail, lines; /* of the peer's ring */
};

static void look(struct view *v)
{
	char line[512], perms[8];
	unsigned long from, end;
	FILE *file = fopen("/proc/self/maps", "r");
	CHECK(file != NULL);
	memset(v, 0, sizeof *v);
	while (fgets(line, sizeof line, file)) {
		if (sscanf(line, "%lx-%lx %7s", &from, &end, perms) != 3 || perms[1] != 'w')
			continue;
		if (strstr(line, "memfd:gdrfab-ep") && v->segments < 8)
			v->segment[v->segments++] = (char *)from;
		if (strstr(line, "memfd:gdrfab-table"))
			v->table = (char *)from;
	}
	fclose(file);
	CHECK(v->segments == 2 && v->table);
}

/* Which segment is the peer's: the one in which this side's first message lies. */
static void find_peer(struct node *n, struct view *v)
{
	static char byte;
	POST(n->cq, gdrfab_send(n->ep, &byte, 1, NULL, 0, &byte));
	DONE(n->cq, &byte, GDRFAB_SEND, NULL);
	look(v);
	for (int i = 0; i < 2; i++)
		if ((get(AT(v->segment[i], SEG_RING)) & 0xffffff) == (1 | 1 << 16)) {
			v->peer = v->segment[i];
			v->own = v->segment[1 - i];
		}
	CHECK(v->peer != NULL);
	v->lines = get(AT(v->peer, SEG_LINES));
	v->tail = 1;
}

/* A message without bytes; false if the ring has no room. */
static bool say(struct view *v, int kind, int flags, const uint64_t *words, int count)
{
	uint64_t lines = count > 7 ? 2 : 1;
	if (v->tail + lines - get(AT(v->peer, SEG_RETURNED)) > v->lines)
		return false;
	for (uint64_t k = lines; k-- > 0;) {
		uint64_t at = v->tail + k;
		char *line = v->peer + SEG_RING + at % v->lines * 64;
		for (int i = 0; i < 7 && (int)k * 7 + i < count; i++)
			put(AT(line, 8 + 8 * i), words[k * 7 + i]);
		uint64_t lap = (at / v->lines + 1) & 0xffff;
		put(AT(line, 0), k ? lap : lap | (uint64_t)kind << 16 | (uint64_t)flags << 24 | (uint64_t)count << 32);
	}
	v->tail += lines;
	return true;
}

/* The record of the file of so many bytes in the own table, and all of them. */
static char *record_of(struct view *v, uint64_t size)
{
	for (int i = 0; i < FILES; i++) {
		char *file = v->table + TABLE_FILES + 128 * i;
		if (get(AT(file, 0)) && get(AT(file, 8)) == size)
			return file;
	}
	test_fail(__FILE__, __LINE__, "no file of %llu bytes in the own table", (unsigned long long)size);
}

static void free_records(struct view *v)
{
	for (int i = 0; i < FILES; i++)
		put(AT(v->table, TABLE_FILES + 128 * i), 0);
}

/* --- memory that is freed while it is in use --- */

#define SHARED ((size_t)16 << 20)
#define PART ((size_t)65536)

/* Takes the last chunk of the copy that the other side has begun; the slot. */
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

/* Serves a shared copy's last chunk by freeing the memory and failing. Whether there was one to serve. */
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
	/* Where descriptors cannot be fetched, this side hands its file over. */
	barrier(n);
	n->idle = true;
	char *slot = claim_last(&v);
	if (slot) {
		test_sleep_ms(20); /* the other side has done its part and waits for this one */
		free_records(&v);
		test_sleep_ms(20); /* and looks at the socket, and at what was freed */
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
	gdrfab_ep_explain(n->ep, key, words, sizeof words);
	if (!strstr(words, ": direct\n"))
		test_skip("the peer's memory cannot be mapped here: %s", words);
}

/* One entry, of success or failure, within the deadline. */
static void takes_entry(struct node *n)
{
	done e;
	struct failure f;
	int got = cq_next(n->cq, &e, 5000);
	CHECK(got != 0);
	if (got < 0)
		cq_failure(__FILE__, __LINE__, n->cq, &f);
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
	way_check(n, &direct, to.key);
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

/* Address space above whatever is mapped until it is given back: what is mapped next goes there, and so not to where
 * something was unmapped, which would hide that somebody still goes there. */
static void *hole_new(size_t len)
{
	void *at = mmap(NULL, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(at != MAP_FAILED);
	return at;
}

/* Two files, a region in each and one in both: the first is freed between two operations of the other side. */
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
	oob_recv(n, &word, 1); /* the first file is mapped there */
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
	/* No progress from here to the next operation: it would find the file gone. */
	n->idle = true;
	oob_send(n, &word, 1);
	oob_recv(n, &word, 1);
	munmap(hole, 2 * PART);
	if (one_region) {
		OK(gdrfab_write(n->ep, local, 2 * PART, NULL, 0, both.base, both.key, local));
	} else {
		struct iovec iov = {local, 2 * PART};
		gdrfab_rma_iov far[2] = {{a.base, PART, a.key}, {b.base, PART, b.key}};
		gdrfab_msg_rma msg;
		memset(&msg, 0, sizeof msg);
		msg.struct_size = sizeof msg;
		msg.msg_iov = &iov, msg.iov_count = 1;
		msg.rma_iov = far, msg.rma_iov_count = 2;
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

/* Nothing hostile: one file, which a region to be read and one to be written need mapped in two ways. */
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
	gdrfab_rma_iov far[2] = {{first.base, PART, first.key}, {second.base, PART, second.key}};
	memset(&msg, 0, sizeof msg);
	msg.struct_size = sizeof msg;
	msg.msg_iov = &iov, msg.iov_count = 1;
	msg.rma_iov = far, msg.rma_iov_count = 2;
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

/* --- work without end --- */

#define REGION ((size_t)64 << 20)
#define LONGEST_MS 40 /* of CPU time, in one call */

static double cpu_ms(void)
{
	struct timespec t;
	CHECK_EQ(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t), 0);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* What a call took of this thread's time, whoever else wanted the CPU meanwhile. */
#define TIMED(longest, call)                                                                                           \
	do {                                                                                                           \
		double before_ = cpu_ms();                                                                             \
		(void)(call);                                                                                          \
		double took_ = cpu_ms() - before_;                                                                     \
		if (took_ > *(longest))                                                                                \
			*(longest) = took_;                                                                            \
	} while (0)

static void was_short(double longest)
{
	if (longest > (double)test_ms(LONGEST_MS))
		test_fail(__FILE__, __LINE__, "one call took %.0f ms of CPU time", longest);
}

enum ending { STAYS, BREAKS, LEAVES };

struct attack {
	const char *name;
	void (*run)(struct node *n, struct view *v, struct remote to);
	enum ending ending; /* of the connection, as the victim sees it */
};

/* The victim: a region, and looks at its queues until the other side says that it is over. */
static void endures(struct node *n)
{
	const struct attack *attack = (const struct attack *)n->arg;
	struct mem m;
	static char in[64];
	double longest = 0;
	char over = 0;
	bool told = false, broke = false;
	node_up(n);
	mem_new(n, &m, &memkinds[KIND_MALLOC], REGION);
	memset(m.addr, 7, REGION);
	mem_register(n, &m, 0, REGION, REMOTE_ACCESS, 0);
	POST(n->cq, gdrfab_recv(n->ep, in, sizeof in, NULL, 0, in));
	mem_publish(n, &m);
	uint64_t until = test_now_ms() + (uint64_t)test_ms(10000);
	while (recv(n->oob, &over, 1, MSG_DONTWAIT) != 1 || (attack->ending != STAYS && !told)) {
		done e[16];
		struct event event;
		struct eq_failure f;
		uint32_t kind = UINT32_MAX;
		ssize_t got = -EAGAIN;
		TIMED(&longest, gdrfab_cq_read(n->cq, e, 16));
		TIMED(&longest, got = gdrfab_eq_read(n->eq, &kind, &event, sizeof event.entry + sizeof event.data, 0));
		if (got == -GDRFAB_EAVAIL) {
			memset(&f, 0, sizeof f);
			f.entry.struct_size = sizeof f.entry;
			CHECK(gdrfab_eq_readerr(n->eq, &f.entry, 0) > 0);
			broke = f.entry.prov_errno == GDRFAB_PROV_PEER_BROKE;
		}
		told = told || (got >= 0 && kind == GDRFAB_SHUTDOWN);
		if (test_now_ms() > until)
			test_fail(__FILE__, __LINE__, "no end of it after 10 s");
	}
	was_short(longest);
	CHECK_EQ(told, attack->ending != STAYS);
	CHECK_EQ(broke, attack->ending == BREAKS);
	oob_send(n, "v", 1);
	gdrfab_cq_read(n->cq, NULL, 0);
	double start = cpu_ms();
	OK(gdrfab_ep_close(n->ep));
	n->ep = NULL;
	was_short(cpu_ms() - start);
	mem_end(n, &m);
	node_close(n);
}

static void attacks(struct node *n)
{
	const struct attack *attack = (const struct attack *)n->arg;
	struct view v;
	char word;
	node_up(n);
	struct remote to = mem_fetch(n);
	find_peer(n, &v);
	n->idle = true;
	attack->run(n, &v, to);
	oob_send(n, "o", 1);
	oob_recv(n, &word, 1);
	/* Whatever state the library is in here is this side's own doing. */
	test_child_done();
}

/* An offer of a shared copy, nothing of which is claimed yet. */
static void offer(struct view *v, uint16_t slot, struct remote to, uint64_t len, uint64_t chunk, const void *from, bool read)
{
	char *claim = v->own + SEG_SLOTS + 64 * slot;
	uint64_t generation = 77, chunks = (len + chunk - 1) / chunk;
	uint64_t words[8] = {slot | generation << 16, to.key, to.base, len, chunk, (uintptr_t)from, 0, 0};
	put(AT(claim, 8), generation << 48);
	put(AT(claim, 0), generation << 48 | (chunks & 0xffffff));
	while (!say(v, COOP, read ? 16 : 0, words, 8))
		test_sleep_ms(1);
}

static void offers_bytes(struct node *n, struct view *v, struct remote to)
{
	(void)n;
	char *from = (char *)calloc(1, REGION);
	offer(v, 100, to, ((size_t)16 << 20) - 1, 1, from, false);
	test_sleep_ms(300);
	free(from);
}

static void offers_many(struct node *n, struct view *v, struct remote to)
{
	char *from = (char *)malloc(REGION);
	memset(from, 1, REGION);
	peer_stop(n);
	for (uint16_t i = 0; i < 60; i++)
		offer(v, (uint16_t)(60 + i), to, REGION, 65536, from, i % 2);
	peer_continue(n);
	/* Whatever was claimed is free again. */
	for (uint64_t until = test_now_ms() + 400; test_now_ms() < until;)
		for (int i = 0; i < 60; i++)
			put(AT(v->own, SEG_SLOTS + 64 * (60 + i)), 77ull << 48 | REGION / 65536);
	free(from);
}

static void reads_all(struct node *n, struct view *v, struct remote to)
{
	peer_stop(n);
	for (uint16_t i = 0; i < 100; i++) {
		uint64_t words[5] = {(uint64_t)(20 + i) | 77 << 16, to.key, to.base, REGION, 0};
		CHECK(say(v, STAGED_READ, 0, words, 5));
	}
	peer_continue(n);
	/* What comes is given back unread. */
	uint64_t head = 0;
	for (uint64_t until = test_now_ms() + 400; test_now_ms() < until;)
		for (int i = 0; i < 1000; i++) {
			uint64_t header = get(AT(v->own, SEG_RING + head % v->lines * 64));
			uint64_t words = (header >> 32 & 0xff) + ((header >> 40 & 0xffff) + 7) / 8;
			if ((header & 0xffff) != ((head / v->lines + 1) & 0xffff))
				continue;
			head += words > 7 ? (words + 6) / 7 : 1;
			put(AT(v->own, SEG_RETURNED), head);
		}
}

static int control_socket(void)
{
	for (int fd = 3; fd < 200; fd++) {
		int type = 0;
		socklen_t len = sizeof type;
		struct sockaddr_storage at;
		socklen_t at_len = sizeof at;
		if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) == 0 && type == SOCK_SEQPACKET &&
		    getpeername(fd, (struct sockaddr *)&at, &at_len) == 0)
			return fd;
	}
	test_fail(__FILE__, __LINE__, "no control socket among this process's descriptors");
}

static void leaves_and_writes(struct node *n, struct view *v, struct remote to)
{
	/* Dearer to take than to write. */
	uint64_t words[5] = {5 | 77 << 16, to.key, to.base, 0, 0};
	peer_stop(n);
	while (say(v, STAGED_WRITE, 4, words, 5))
		;
	CHECK_EQ(shutdown(control_socket(), SHUT_RDWR), 0);
	peer_continue(n);
	for (uint64_t until = test_now_ms() + 500, i = 0; i % 1024 || test_now_ms() < until; i++)
		say(v, STAGED_WRITE, 4, words, 5);
}

/* Packets that ask for files, and wakes, as many as the socket takes. */
static void asks(struct node *n, struct view *v, struct remote to)
{
	(void)n, (void)v, (void)to;
	struct {
		uint32_t tag, kind;
		uint64_t file;
	} packet = {0x67647266, 5, 4096};
	int fd = control_socket();
	for (uint64_t until = test_now_ms() + 300, i = 0; i % 64 || test_now_ms() < until; i++) {
		char answer[1024];
		packet.kind = i % 2 ? 5 : 4;
		send(fd, &packet, i % 2 ? 16 : 8, MSG_DONTWAIT | MSG_NOSIGNAL);
		while (recv(fd, answer, sizeof answer, MSG_DONTWAIT) > 0)
			;
	}
}

static const struct attack offers[] = {
	{"a_shared_copy_in_bytes_ends_the_connection", offers_bytes, BREAKS},
	{"shared_copies_without_end_leave_calls_short", offers_many, STAYS},
	{"reads_without_end_leave_calls_short", reads_all, STAYS},
	{"a_peer_that_writes_on_after_leaving_leaves_calls_short", leaves_and_writes, LEAVES},
	{"packets_without_end_leave_calls_short", asks, STAYS},
};

static void endure(const void *arg)
{
	skip_unless(path_known(PATH_DIRECT), no_sharing);
	pair(NULL, endures, attacks, arg);
}

TEST_TABLE(offers)
{
	for (size_t i = 0; i < sizeof offers / sizeof *offers; i++)
		test_add(offers[i].name, endure, &offers[i], 30);
}

/* --- a region table that takes long to read --- */

/* One region becomes of as many extents as there can be, in as many files, most of which are not there; and the table
 * says that it is full. */
static void blows_up(struct node *n)
{
	struct view v;
	struct mem m;
	char word = 0;
	node_up(n);
	mem_new(n, &m, &memkinds[KIND_MEM_ALLOC], REGION);
	mem_register(n, &m, 0, REGION, REMOTE_ACCESS, GDRFAB_PATH_DIRECT);
	look(&v);
	char *entry = v.table + TABLE_ENTRIES + 64 * (m.key & (REGIONS - 1)), *file = record_of(&v, REGION);
	uint64_t fd = get(AT(file, 16));
	for (uint64_t i = 1; i < FILES; i++) {
		char *to = v.table + TABLE_FILES + 128 * i;
		put(AT(to, 8), 4096), put(AT(to, 16), fd), put(AT(to, 24), 0), put(AT(to, 0), 7 * FILES + i);
	}
	for (uint64_t i = 0; i < EXTENTS; i++) {
		char *to = v.table + TABLE_EXTENTS + 32 * i;
		put(AT(to, 0), m.base + REGION / EXTENTS * i), put(AT(to, 8), REGION / EXTENTS);
		put(AT(to, 16), 7 * FILES + i), put(AT(to, 24), 0);
	}
	put(AT(entry, 32), get(AT(entry, 32)) | 1ull << 33), put(AT(entry, 40), 0), put(AT(entry, 56), EXTENTS);
	put(AT(v.table, TABLE_REACH), REGIONS);
	mem_publish(n, &m);
	n->idle = true;
	oob_recv(n, &word, 1);
	test_child_done();
}

static void looks_up(struct node *n)
{
	static char local[64];
	double longest = 0;
	node_up(n);
	struct remote to = mem_fetch(n);
	for (uint64_t i = 0; i < 8; i++) {
		TIMED(&longest, gdrfab_write(n->ep, local, 64, NULL, 0, to.base, i ? to.key + (i << 40) : to.key, local));
		for (int k = 0; k < 8; k++)
			TIMED(&longest, gdrfab_cq_read(n->cq, NULL, 0));
		takes_entry(n);
	}
	oob_send(n, "o", 1);
	await_gone(n);
	was_short(longest);
	OK(gdrfab_ep_close(n->ep));
	n->ep = NULL;
	node_close(n);
}

TEST_WITHIN(30, a_region_of_many_extents_leaves_calls_short)
{
	skip_unless(path_known(PATH_DIRECT), no_sharing);
	/* A memory checker has no pidfd_getfd: 4096 files would be asked for one by one. */
	if (!test_count(1, 0))
		test_skip("TEST_FAST: the time that calls take is another's under a checker");
	pair(NULL, blows_up, looks_up, NULL);
}
