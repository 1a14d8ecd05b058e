/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A hostile shm peer that offers work without end, continues after it has left, or shows a region table that takes long to
 * read. The other side may lose the connection, but none of its calls may be long.
 */
#include "shm_peer.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* --- work without end --- */

#define REGION ((size_t)64 << 20)
#define LONGEST_MS 40 /* of CPU time, in one call */

static double cpu_ms(void)
{
	struct timespec t;
	CHECK_EQ(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t), 0);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* The CPU time that a call took, independent of other processes on the CPU. */
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
		came_late("one call took %.0f ms of CPU time", longest);
}

enum ending { STAYS, BREAKS, LEAVES };

struct attack {
	const char *name;
	void (*run)(struct node *n, struct view *v, struct remote to);
	enum ending ending; /* of the connection, as the victim sees it */
};

/* The victim: registers a region and reads its queues until the other side ends the claim. */
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
	/* Ends without closing: this side has corrupted the state of its own library. */
	test_child_done();
}

/* Offers a shared copy, of which no chunk is claimed yet. */
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
	/* All claimed chunks are free again. */
	for (uint64_t until = test_now_ms() + 400; test_now_ms() < until;)
		for (int i = 0; i < 60; i++)
			put(AT(v->own, SEG_SLOTS + 64 * (60 + i)), 77ull << 48 | REGION / 65536);
	free(from);
}

/* A run of a list, in the memory of the side that offers it. */
struct row {
	uint64_t buf, addr, len, key;
};

static void offer_list(struct view *v, uint16_t slot, const struct row *rows, uint64_t count, uint64_t per, bool read)
{
	char *claim = v->own + SEG_SLOTS + 64 * slot;
	uint64_t generation = 77, chunks = per ? (count + per - 1) / per : 1;
	uint64_t words[4] = {slot | generation << 16, (uintptr_t)rows, count, per};
	put(AT(claim, 8), generation << 48);
	put(AT(claim, 0), generation << 48 | (chunks & 0xffffff));
	while (!say(v, COOP_LIST, read ? 16 : 0, words, 4))
		test_sleep_ms(1);
}

static void offers_no_list(struct node *n, struct view *v, struct remote to)
{
	static const struct row row;
	(void)n, (void)to;
	offer_list(v, 100, &row, 1, 1025, false);
	test_sleep_ms(300);
}

/* Waits for the helper's report of the offer in a slot. */
static uint64_t report_of(struct view *v, uint16_t slot)
{
	uint64_t word = 0;
	for (uint64_t until = test_now_ms() + (uint64_t)test_ms(5000); (uint32_t)(word >> 32 & 0xffff) == 0 && (uint32_t)word == 0;) {
		if (test_now_ms() > until)
			test_fail(__FILE__, __LINE__, "no report of the offer in slot %d", slot);
		word = get(AT(v->own, SEG_SLOTS + 64 * slot + 8));
	}
	return word;
}

/* Rows that name missing memory or memory of the other side, and chunks of impossible size: each is refused. */
static void offers_lies(struct node *n, struct view *v, struct remote to)
{
	enum { ROWS = 1024 };
	static struct row rows[ROWS], *gone = (struct row *)4096;
	static char mine[4096];
	uint16_t slot = 20;
	(void)n;
	for (int lie = 0; lie < 9; lie++)
		for (int read = 0; read < 2; read++, slot++) {
			uint64_t count = lie < 7 ? 1 : ROWS;
			for (uint64_t i = 0; i < count; i++)
				rows[i] = (struct row){(uintptr_t)mine, to.base, sizeof mine, to.key};
			switch (lie) {
			case 1: rows[0].key++; break;
			case 2: rows[0].addr = to.base + REGION - sizeof mine + 1; break;
			case 3: rows[0].addr = UINT64_MAX - 100; break;
			case 4: rows[0].len = UINT64_MAX; break;
			case 5: rows[0].len = ((uint64_t)2 << 20) + 1; break;
			case 6: rows[0].buf = 4096; break;
			case 7:
				for (uint64_t i = 0; i < count; i++)
					rows[i].key += i;
				break;
			case 8:
				for (uint64_t i = 0; i < count; i++)
					rows[i].len = (uint64_t)2 << 20;
				break;
			default: break;
			}
			offer_list(v, slot, lie ? rows : gone, count, ROWS, read);
			uint64_t word = report_of(v, slot);
			if ((word >> 32 & 0xffff) == 0 || (uint32_t)word != 0)
				test_fail(__FILE__, __LINE__, "lie %d: reported as %#llx", lie, (unsigned long long)word);
		}
	/* A valid offer is served. */
	rows[0] = (struct row){(uintptr_t)mine, to.base, sizeof mine, to.key};
	offer_list(v, slot, rows, 1, 1, true);
	CHECK_EQ(report_of(v, slot), (77ull << 48 | 1));
	CHECK(mine[0] == 7 && mine[sizeof mine - 1] == 7);
}

static void reads_all(struct node *n, struct view *v, struct remote to)
{
	peer_stop(n);
	for (uint16_t i = 0; i < 100; i++) {
		uint64_t words[5] = {(uint64_t)(20 + i) | 77 << 16, to.key, to.base, REGION, 0};
		CHECK(say(v, STAGED_READ, 0, words, 5));
	}
	peer_continue(n);
	/* Arriving messages are consumed without reading them. */
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
	/* Messages that cost the receiver more than the sender. */
	uint64_t words[5] = {5 | 77 << 16, to.key, to.base, 0, 0};
	peer_stop(n);
	while (say(v, STAGED_WRITE, 4, words, 5))
		;
	CHECK_EQ(shutdown(control_socket(), SHUT_RDWR), 0);
	peer_continue(n);
	for (uint64_t until = test_now_ms() + 500, i = 0; i % 1024 || test_now_ms() < until; i++)
		say(v, STAGED_WRITE, 4, words, 5);
}

/* Sends packets that ask for files, and wake-ups, until the socket is full. */
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
	{"a_shared_list_of_too_long_chunks_ends_the_connection", offers_no_list, BREAKS},
	{"shared_lists_that_lie_are_refused", offers_lies, STAYS},
	{"shared_copies_without_end_leave_calls_short", offers_many, STAYS},
	{"reads_without_end_leave_calls_short", reads_all, STAYS},
	{"a_peer_that_writes_on_after_leaving_leaves_calls_short", leaves_and_writes, LEAVES},
	{"packets_without_end_leave_calls_short", asks, STAYS},
};

static void endure(const void *arg)
{
	skip_unless(path_known(PATH_DIRECT), no_sharing);
	pair_in_time(NULL, endures, attacks, arg);
}

TEST_TABLE(offers)
{
	for (size_t i = 0; i < sizeof offers / sizeof *offers; i++)
		test_add(offers[i].name, endure, &offers[i], 30);
}

/* --- a region table that takes long to read --- */

/* Rewrites the table: one region with the maximum of extents, in as many files, most of which do not exist; and the table
 * claims to be full. */
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

/* The CPU time that this machine's kernel takes to open as many files as a table names: no lookup can be cheaper. */
static double bare_files_ms(void)
{
	static char *maps[FILES];
	struct stat st;
	int file = memfd_create("bare", MFD_CLOEXEC);
	CHECK(file >= 0 && ftruncate(file, 4096) == 0);
	double start = cpu_ms();
	for (int i = 0; i < FILES; i++) {
		int fd = dup(file);
		CHECK(fd >= 0 && fstat(fd, &st) == 0);
		maps[i] = (char *)mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		CHECK(maps[i] != MAP_FAILED);
		close(fd);
	}
	double took = cpu_ms() - start;
	for (int i = 0; i < FILES; i++)
		munmap(maps[i], 4096);
	close(file);
	return took;
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
	was_short(longest - 2 * bare_files_ms());
	OK(gdrfab_ep_close(n->ep));
	n->ep = NULL;
	node_close(n);
}

TEST_WITHIN(30, a_region_of_many_extents_leaves_calls_short)
{
	skip_unless(path_known(PATH_DIRECT), no_sharing);
	/* A memory checker lacks pidfd_getfd(): each of 4096 files would be requested by a packet. */
	if (!test_count(1, 0))
		test_skip("TEST_FAST: the time that calls take is another's under a checker");
	pair_in_time(NULL, blows_up, looks_up, NULL);
}
