/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Many connectionless endpoints: processes that all exchange messages with all, and one process that knows many peers and uses
 * some. The usual numbers are small; TEST_RDM_PROCESSES, TEST_RDM_ACTIVE and TEST_RDM_KNOWN choose others.
 */
#include "claim.h"

#include <gdrfab.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define NAME GDRFAB_NAME_LEN
enum { MOST = 1024, ROUNDS = 4, LIMIT_MS = 300000 };

struct world {
	int met[8];
	unsigned char names[MOST][NAME];
};

static struct world *shared(void)
{
	void *at = mmap(NULL, sizeof(struct world), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(at != MAP_FAILED);
	return (struct world *)at;
}

static int asked(const char *variable, int usual)
{
	const char *text = getenv(variable);
	int n = text ? atoi(text) : usual;
	CHECK(n >= 2 && n <= 1000000);
	return n;
}

struct side {
	gdrfab_info *info;
	gdrfab_fabric *fabric;
	gdrfab_domain *domain;
	gdrfab_cq *cq;
	gdrfab_av *av;
};

static void open_side(struct side *s, const char *lanes)
{
	gdrfab_cq_attr attr = {0};
	gdrfab_info hints = {0};
	memset(s, 0, sizeof *s);
	hints.struct_size = sizeof hints, hints.ep_type = GDRFAB_EP_RDM, hints.prov_name = (char *)lanes;
	hints.caps = GDRFAB_MSG | GDRFAB_TAGGED | GDRFAB_DIRECTED_RECV | GDRFAB_SOURCE;
	hints.mr_mode = GDRFAB_MR_VIRT_ADDR | GDRFAB_MR_PROV_KEY;
	OK(gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, 0, &hints, &s->info));
	OK(gdrfab_fabric_open(s->info, NULL, &s->fabric));
	OK(gdrfab_domain_open(s->fabric, s->info, NULL, &s->domain));
	attr.struct_size = sizeof attr, attr.size = 100, attr.format = GDRFAB_CQ_FORMAT_TAGGED;
	OK(gdrfab_cq_open(s->domain, &attr, NULL, &s->cq));
	OK(gdrfab_av_open(s->domain, NULL, NULL, &s->av));
}

static gdrfab_ep *open_ep(struct side *s, unsigned char *name)
{
	gdrfab_ep *ep = NULL;
	size_t len = NAME;
	OK(gdrfab_ep_open(s->domain, s->info, NULL, &ep));
	OK(gdrfab_ep_bind_cq(ep, s->cq, GDRFAB_TRANSMIT | GDRFAB_RECV));
	OK(gdrfab_ep_bind_av(ep, s->av, 0));
	/* With more processes than cores, being slow is no error. */
	uint64_t patience = (uint64_t)test_ms(LIMIT_MS) * 1000000;
	OK(gdrfab_ep_setopt(ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_CONNECT_TIMEOUT, &patience, sizeof patience));
	OK(gdrfab_ep_enable(ep));
	OK(gdrfab_ep_getname(ep, name, &len));
	return ep;
}

static void close_side(struct side *s)
{
	OK(gdrfab_av_close(s->av));
	OK(gdrfab_cq_close(s->cq));
	OK(gdrfab_domain_close(s->domain));
	OK(gdrfab_fabric_close(s->fabric));
	gdrfab_freeinfo(s->info);
}

/* Takes an entry if there is one; an error entry fails the claim. */
static bool take(struct side *s, gdrfab_cq_tagged_entry *entry, uint64_t *from)
{
	ssize_t n = gdrfab_cq_readfrom(s->cq, entry, 1, from);
	if (n == -GDRFAB_EAVAIL) {
		char words[256] = "";
		gdrfab_cq_err_entry e;
		memset(&e, 0, sizeof e);
		e.struct_size = sizeof e, e.err_data = words, e.err_data_size = sizeof words;
		gdrfab_cq_readerr(s->cq, &e, 0);
		test_fail(__FILE__, __LINE__, "an operation failed: %s", words);
	}
	CHECK(n == 1 || n == -EAGAIN);
	return n == 1;
}

/* With more processes than cores, an idle process yields the CPU. */
static void meet(struct side *s, struct world *w, int which, int count)
{
	gdrfab_cq_tagged_entry entry;
	uint64_t from, until = test_now_ms() + (uint64_t)test_ms(LIMIT_MS);
	__atomic_fetch_add(&w->met[which], 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&w->met[which], __ATOMIC_SEQ_CST) < count) {
		if (take(s, &entry, &from))
			test_fail(__FILE__, __LINE__, "an entry of no operation");
		CHECK(test_now_ms() < until);
		sched_yield();
	}
}

static void all_to_all(struct world *w, int rank, int count, const char *lanes)
{
	static uint64_t out[MOST][ROUNDS], in[MOST][ROUNDS];
	static int seen[MOST];
	struct side s;
	open_side(&s, lanes);
	gdrfab_ep *ep = open_ep(&s, w->names[rank]);
	meet(&s, w, 0, count);
	CHECK_EQ(gdrfab_av_insert(s.av, w->names, (size_t)count, NULL, 0, NULL), count);
	for (int k = 0; k < count; k++)
		for (int r = 0; r < ROUNDS; r++)
			OK(gdrfab_trecv(ep, &in[k][r], 8, NULL, (uint64_t)k, (uint64_t)r, 0, &in[k][r]));
	/* Each rank begins with another peer, all at once. */
	for (int r = 0; r < ROUNDS; r++)
		for (int i = 0; i < count; i++) {
			int k = (rank + i) % count;
			out[k][r] = (uint64_t)rank << 32 | (uint64_t)k << 8 | (uint64_t)r;
			OK(gdrfab_tsend(ep, &out[k][r], 8, NULL, (uint64_t)k, (uint64_t)r, NULL));
		}
	int left = 2 * count * ROUNDS;
	for (uint64_t until = test_now_ms() + (uint64_t)test_ms(LIMIT_MS); left > 0;) {
		gdrfab_cq_tagged_entry entry;
		uint64_t from = 0;
		if (!take(&s, &entry, &from)) {
			CHECK(test_now_ms() < until);
			sched_yield();
			continue;
		}
		left--;
		if (entry.flags & GDRFAB_RECV) {
			CHECK(from < (uint64_t)count && entry.len == 8 && entry.tag < ROUNDS);
			CHECK_EQ(in[from][entry.tag], from << 32 | (uint64_t)rank << 8 | entry.tag);
			seen[from]++;
		}
	}
	for (int k = 0; k < count; k++)
		CHECK_EQ(seen[k], ROUNDS);
	meet(&s, w, 1, count);
	OK(gdrfab_ep_close(ep));
	close_side(&s);
	test_child_done();
}

static void run_all_to_all(const void *arg)
{
	const char *lanes = (const char *)arg;
	int count = asked("TEST_RDM_PROCESSES", test_count(128, 4)), status;
	struct world *w = shared();
	uint64_t began = test_now_ms();
	CHECK(count <= MOST);
	for (int rank = 0; rank < count; rank++)
		if (test_fork(rank ? TEST_CLIENT : TEST_SERVER) == 0)
			all_to_all(w, rank, count, lanes);
	while (wait(&status) > 0)
		test_child_ended(TEST_CLIENT, status);
	printf("     %d processes, %d messages: %llu ms\n", count, count * count * ROUNDS,
	       (unsigned long long)(test_now_ms() - began));
}

/* Resident memory without pages of files: the kernel maps 64 KiB of the library's code at each page fault in it. */
static size_t rss_kib(void)
{
	char line[256];
	size_t kib = 0;
	FILE *f = fopen("/proc/self/status", "r");
	CHECK(f != NULL);
	while (fgets(line, sizeof line, f))
		if (strncmp(line, "RssAnon:", 8) == 0 || strncmp(line, "RssShmem:", 9) == 0)
			kib += strtoul(strchr(line, ':') + 1, NULL, 10);
	fclose(f);
	return kib;
}

/* The endpoints of the peers' process: every other one only answers, the rest connect and send at once. */
static bool calls(int i)
{
	return i % 2 != 0;
}

static void many_endpoints(struct world *w, int count)
{
	static gdrfab_ep *eps[MOST];
	static uint64_t word[MOST];
	struct side s;
	open_side(&s, "shm");
	for (int i = 0; i < count; i++) {
		eps[i] = open_ep(&s, w->names[1 + i]);
		word[i] = (uint64_t)i;
		if (!calls(i))
			OK(gdrfab_trecv(eps[i], &word[i], 8, NULL, GDRFAB_ADDR_UNSPEC, 1, 0, &word[i]));
	}
	meet(&s, w, 0, 2);
	CHECK_EQ(gdrfab_av_insert(s.av, w->names[0], 1, NULL, 0, NULL), 1);
	int left = 0;
	for (int i = 0; i < count; i++) {
		left += calls(i) ? 1 : 2;
		if (calls(i))
			OK(gdrfab_tsend(eps[i], &word[i], 8, NULL, 0, 2, NULL));
	}
	for (uint64_t until = test_now_ms() + (uint64_t)test_ms(LIMIT_MS); left > 0;) {
		gdrfab_cq_tagged_entry entry;
		uint64_t from = 0;
		if (!take(&s, &entry, &from)) {
			CHECK(test_now_ms() < until);
			sched_yield();
			continue;
		}
		left--;
		if (entry.flags & GDRFAB_RECV) {
			size_t i = (size_t)((uint64_t *)entry.op_context - word);
			CHECK_EQ(from, 0);
			OK(gdrfab_tsend(eps[i], &word[i], 8, NULL, 0, 2, NULL));
		}
	}
	meet(&s, w, 1, 2);
	for (int i = 0; i < count; i++)
		OK(gdrfab_ep_close(eps[i]));
	close_side(&s);
	test_child_done();
}

TEST_WITHIN(300, many_known_and_some_active)
{
	int active = asked("TEST_RDM_ACTIVE", test_count(1000, 10)), known = asked("TEST_RDM_KNOWN", 10000), status;
	static uint64_t out[MOST], in[MOST];
	struct world *w = shared();
	struct rlimit files = {0, 0};
	struct side s;
	CHECK(active < MOST && active <= known);
	CHECK(getrlimit(RLIMIT_NOFILE, &files) == 0);
	files.rlim_cur = files.rlim_max;
	CHECK(setrlimit(RLIMIT_NOFILE, &files) == 0);
	if (test_fork(TEST_CLIENT) == 0)
		many_endpoints(w, active);
	open_side(&s, "shm+tcp");
	gdrfab_ep *ep = open_ep(&s, w->names[0]);
	meet(&s, w, 0, 2);
	size_t first = rss_kib();
	/* Most of the known peers are never used. */
	CHECK_EQ(gdrfab_av_insert(s.av, w->names[1], (size_t)active, NULL, 0, NULL), active);
	for (int i = active; i < known; i++) {
		char port[8];
		snprintf(port, sizeof port, "%d", 1 + i % 60000);
		CHECK_EQ(gdrfab_av_insertsvc(s.av, "192.0.2.1", port, NULL, 0, NULL), 1);
	}
	size_t inserted = rss_kib();
	int fds = test_count_fds(), left = 0;
	for (int i = 0; i < active; i++) {
		out[i] = (uint64_t)i, in[i] = ~0ull;
		left += calls(i) ? 1 : 2;
		OK(gdrfab_trecv(ep, &in[i], 8, NULL, (uint64_t)i, 2, 0, NULL));
		if (!calls(i))
			OK(gdrfab_tsend(ep, &out[i], 8, NULL, (uint64_t)i, 1, NULL));
	}
	for (uint64_t until = test_now_ms() + (uint64_t)test_ms(LIMIT_MS); left > 0;) {
		gdrfab_cq_tagged_entry entry;
		uint64_t from;
		if (take(&s, &entry, &from))
			left--;
		else
			sched_yield();
		CHECK(test_now_ms() < until);
	}
	for (int i = 0; i < active; i++)
		CHECK_EQ(in[i], i);
	size_t all = rss_kib();
	int now = test_count_fds();
	double each = (double)(all - inserted) / active;
	printf("     %d names: %zu KiB; %d active peers: %zu KiB (%.1f each), %d descriptors; in all %zu KiB, %d descriptors\n", known,
	       inserted - first, active, all - inserted, each, now - fds, all, now);
	fflush(stdout);
	/* A memory checker's own memory makes the measure useless. */
	if (!test_count(0, 1)) {
		CHECK(all < 512 * 1024 && now <= 4096);
		CHECK(each <= 64);
		CHECK((inserted - first) * 1024 <= (size_t)known * 64 + 256 * 1024);
		CHECK(now - fds <= 3 * active);
	}
	meet(&s, w, 1, 2);
	OK(gdrfab_ep_close(ep));
	close_side(&s);
	while (wait(&status) > 0)
		test_child_ended(TEST_CLIENT, status);
}

TEST_TABLE(all)
{
	test_add("all_to_all over shm+tcp", run_all_to_all, "shm+tcp", 300);
	test_add("all_to_all over tcp", run_all_to_all, "tcp", 300);
}
