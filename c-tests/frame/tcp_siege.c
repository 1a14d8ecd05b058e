/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A tcp listener under attack: see tcp_siege.h. */
#include "tcp_siege.h"
#include "pattern.h"
#include "fab_mem.h"
#include "fab_node.h"
#include "fab_provider.h"
#include "fab_wait.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define GUARD ((size_t)65536)
#define GUESTS 512
#define GOOD "good" /* private data of the good peer's connections */
#define DEADLINE 5000

struct siege *siege;

static struct siege *shared(void)
{
	void *at = mmap(NULL, sizeof *siege, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(at != MAP_FAILED);
	return (struct siege *)at;
}

static size_t rss_kib(void)
{
	unsigned long pages = 0;
	FILE *file = fopen("/proc/self/statm", "r");
	if (!file || fscanf(file, "%*u %lu", &pages) != 1)
		test_fail(__FILE__, __LINE__, "/proc/self/statm: %s", strerror(errno));
	fclose(file);
	return pages * (size_t)sysconf(_SC_PAGESIZE) / 1024;
}

/* --- the server --- */

struct guests {
	gdrfab_ep *ep[GUESTS];
	int count;
};

static void let_in(struct node *n, struct guests *g, const struct event *e)
{
	gdrfab_info *request = e->entry.info;
	bool good = e->data_len >= 4 && memcmp(e->data, GOOD, 4) == 0;
	if (g->count == GUESTS - 16 && !good) {
		OK(gdrfab_pep_reject(n->pep, request->handle, NULL, 0));
		siege->turned_down++;
	} else {
		CHECK(g->count < GUESTS);
		gdrfab_ep *ep = ep_new(n, request, NULL);
		int rc = gdrfab_ep_accept(ep, NULL, 0);
		/* The client may have closed by now. */
		if (rc == 0)
			g->ep[g->count++] = ep;
		else
			OK(gdrfab_ep_close(ep));
		siege->taken++;
	}
	gdrfab_freeinfo(request);
}

static void show_out(struct node *n, struct guests *g, const void *object)
{
	if (object == n->ep)
		test_fail(__FILE__, __LINE__, "the good connection was lost");
	for (int i = 0; i < g->count; i++)
		if (g->ep[i] == object) {
			OK(gdrfab_ep_close(g->ep[i]));
			g->ep[i] = g->ep[--g->count];
			siege->gone++;
			return;
		}
}

static void look_at_events(struct node *n, struct guests *g)
{
	struct eq_failure f;
	struct event e;
	uint32_t event;
	int got;
	while ((got = eq_next(n->eq, &event, &e, &f)) != 0) {
		if (got < 0 && f.entry.data == GDRFAB_NOTIFY) {
			siege->notes++;
		} else if (got < 0) {
			if (f.entry.err == EPROTO) {
				snprintf(siege->words, sizeof siege->words, "%s", (const char *)f.data);
				__atomic_add_fetch(&siege->broke, 1, __ATOMIC_RELEASE);
			}
			show_out(n, g, f.entry.object);
		} else if (event == GDRFAB_CONNREQ) {
			let_in(n, g, &e);
		} else if (event == GDRFAB_SHUTDOWN) {
			show_out(n, g, e.entry.object);
		}
	}
}

/* Connects to the hostile listener. */
static void call(struct node *n, struct guests *g)
{
	char address[128];
	CHECK(g->count < GUESTS);
	gdrfab_ep *ep = g->ep[g->count++] = ep_new(n, n->info, NULL);
	int len = snprintf(address, sizeof address, "tcp://%s:%s", node_name(), siege->calls);
	OK(gdrfab_ep_connect(ep, address, (size_t)len + 1, NULL, 0));
}

static void measure(void)
{
	size_t rss = rss_kib();
	int fds = test_count_fds();
	siege->rss_most = rss > siege->rss_most ? rss : siege->rss_most;
	siege->fds_most = fds > siege->fds_most ? fds : siege->fds_most;
}

static void serves(struct node *n)
{
	static struct guests g;
	static unsigned char in[64];
	struct mem open, readable, closed;
	unsigned char *secret = (unsigned char *)malloc(4096);
	uint64_t next = 0;
	unsigned called = 0;
	node_open(n);
	node_listen(n);
	snprintf(siege->service, sizeof siege->service, "%s", n->service);
	barrier(n);
	node_accept(n);
	mem_new(n, &open, &memkinds[KIND_MALLOC], SIEGE_LEN + 2 * GUARD);
	mem_new(n, &readable, &memkinds[KIND_MALLOC], SIEGE_LEN);
	mem_new(n, &closed, &memkinds[KIND_MALLOC], SIEGE_LEN);
	fill(open.addr, open.len, 0, SIEGE_SEED);
	fill(readable.addr, readable.len, 0, SIEGE_SEED + 1);
	fill(closed.addr, closed.len, 0, SIEGE_SEED + 2);
	fill(secret, 4096, 0, SIEGE_SEED + 3);
	mem_register(n, &open, GUARD, SIEGE_LEN, REMOTE_ACCESS, 0);
	mem_register(n, &readable, 0, SIEGE_LEN, GDRFAB_REMOTE_READ, 0);
	mem_register(n, &closed, 0, SIEGE_LEN, REMOTE_ACCESS, 0);
	siege->open = (struct remote){open.key, open.base, SIEGE_LEN};
	siege->readable = (struct remote){readable.key, readable.base, SIEGE_LEN};
	siege->closed = (struct remote){closed.key, closed.base, SIEGE_LEN};
	siege->secret = (uintptr_t)secret;
	mem_unregister(&closed);
	POST(n->cq, gdrfab_recv(n->ep, in, sizeof in, NULL, 0, in));
	siege->rss_begin = siege->rss_most = rss_kib();
	siege->fds_begin = siege->fds_most = test_count_fds();
	barrier(n);
	/* The good peer sends a byte when the attack is over: the hostile client has ended by then. */
	char word = 0;
	for (unsigned turn = 0; recv(n->oob, &word, 1, MSG_DONTWAIT) < 0; turn++) {
		done e;
		ssize_t got = gdrfab_cq_sread(n->cq, &e, 1, 1);
		if (got == 1 && (e.flags & GDRFAB_RECV)) {
			CHECK(e.op_context == in);
			CHECK_EQ(e.len, sizeof in);
			CHECK_FILLED("a message of the good peer", in, sizeof in, 0, (uint32_t)next++);
			POST(n->cq, gdrfab_recv(n->ep, in, sizeof in, NULL, 0, in));
		} else if (got == -GDRFAB_EAVAIL) {
			struct failure f;
			cq_failure(__FILE__, __LINE__, n->cq, &f);
			if (f.entry.op_context == in)
				test_fail(__FILE__, __LINE__, "the good peer's receive: %s, \"%s\"",
					  test_number(-f.entry.err), f.words);
		} else if (got != 1) {
			CHECK_EQ(got, -EAGAIN);
		}
		look_at_events(n, &g);
		for (; called != __atomic_load_n(&siege->asked, __ATOMIC_ACQUIRE); called++)
			call(n, &g);
		if (turn % 8 == 0)
			measure();
	}
	CHECK_FILLED("in front of the region", open.addr, GUARD, 0, SIEGE_SEED);
	CHECK_FILLED("behind the region", open.addr + GUARD + SIEGE_LEN, GUARD, GUARD + SIEGE_LEN, SIEGE_SEED);
	CHECK_FILLED("a region to be read only", readable.addr, readable.len, 0, SIEGE_SEED + 1);
	CHECK_FILLED("memory of a closed region", closed.addr, closed.len, 0, SIEGE_SEED + 2);
	CHECK_FILLED("memory that is no region", secret, 4096, 0, SIEGE_SEED + 3);
	while (g.count > 0)
		show_out(n, &g, g.ep[0]);
	barrier(n);
	mem_end(n, &closed);
	mem_end(n, &readable);
	mem_end(n, &open);
	free(secret);
	node_close(n);
}

/* --- the good peer --- */

static unsigned ms_since(uint64_t start)
{
	return (unsigned)(test_now_ms() - start);
}

/* A write, a read, and with `talks` a message, in the good peer's half of the region. */
static void round_trip(struct node *n, gdrfab_ep *ep, struct remote to, unsigned round, bool talks)
{
	static const size_t sizes[] = {8, 4096, 65536, 100000};
	static unsigned char out[100000], in[100000], word[64];
	size_t len = sizes[round % 4];
	uint64_t at = to.base + SIEGE_LEN / 2;
	fill(out, len, 0, round);
	memset(in, 0, len);
	POST(n->cq, gdrfab_write(ep, out, len, NULL, 0, at, to.key, out));
	DONE(n->cq, out, GDRFAB_WRITE, NULL);
	POST(n->cq, gdrfab_read(ep, in, len, NULL, 0, at, to.key, in));
	DONE(n->cq, in, GDRFAB_READ, NULL);
	CHECK_FILLED("read back by the good peer", in, len, 0, round);
	if (!talks)
		return;
	fill(word, sizeof word, 0, round);
	POST(n->cq, gdrfab_send(ep, word, sizeof word, NULL, 0, word));
	DONE(n->cq, word, GDRFAB_SEND, NULL);
}

/* Opens a second connection and uses it once. */
static void connects_anew(struct node *n, struct remote to, int limit_ms)
{
	uint64_t start = test_now_ms(), ns = (uint64_t)test_ms(limit_ms) * 1000000u;
	gdrfab_ep *ep = ep_new(n, n->info, NULL);
	uint32_t event = UINT32_MAX;
	struct event e;
	ssize_t size = -EAGAIN;
	OK(gdrfab_ep_setopt(ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_CONNECT_TIMEOUT, &ns, sizeof ns));
	OK(gdrfab_ep_connect(ep, n->info->dest_addr, n->info->dest_addrlen, GOOD, 4));
	/* The first connection must work meanwhile. */
	for (unsigned round = 0; size == -EAGAIN && ms_since(start) < (unsigned)test_ms(limit_ms) + 1000; round++) {
		round_trip(n, n->ep, to, round, false);
		size = gdrfab_eq_sread(n->eq, &event, &e, sizeof e.entry + sizeof e.data, 5, 0);
	}
	if (size < 0 || event != GDRFAB_CONNECTED)
		test_fail(__FILE__, __LINE__, "no new connection after %u ms: %s", ms_since(start), test_number(size));
	unsigned took = ms_since(start);
	siege->slowest_connection_ms = took > siege->slowest_connection_ms ? took : siege->slowest_connection_ms;
	round_trip(n, ep, to, 2, false);
	OK(gdrfab_ep_close(ep));
	siege->connections++;
}

struct plan {
	void (*attack)(void);
	int limit_ms;
};

/* Forks the hostile process. Called before this process has opened any object of the library. */
static pid_t unleash(struct node *n, void (*attack)(void))
{
	pid_t pid = test_fork(TEST_REFEREE);
	if (pid == 0) {
		close(n->oob);
		while (!__atomic_load_n(&siege->ready, __ATOMIC_ACQUIRE))
			test_sleep_ms(2);
		attack();
		test_child_done();
	}
	return pid;
}

static void uses(struct node *n)
{
	const struct plan *plan = (const struct plan *)n->arg;
	int status;
	unsigned round = 0;
	pid_t attacker = unleash(n, plan->attack);
	node_open(n);
	barrier(n);
	n->ep = ep_new(n, n->info, n);
	OK(gdrfab_ep_connect(n->ep, n->info->dest_addr, n->info->dest_addrlen, GOOD, 4));
	EVENT(n->eq, GDRFAB_CONNECTED, n->ep, NULL);
	barrier(n);
	/* The server's size counts from here: it has by now served the good peer and one further connection. */
	for (; round < 8; round++)
		round_trip(n, n->ep, siege->open, round, true);
	connects_anew(n, siege->open, plan->limit_ms);
	siege->rss_begin = siege->rss_most;
	__atomic_store_n(&siege->ready, 1, __ATOMIC_RELEASE);
	while (waitpid(attacker, &status, WNOHANG) == 0) {
		uint64_t start = test_now_ms();
		round_trip(n, n->ep, siege->open, round, true);
		__atomic_store_n(&siege->rounds, round, __ATOMIC_RELEASE);
		siege->slowest_ms = ms_since(start) > siege->slowest_ms ? ms_since(start) : siege->slowest_ms;
		if (round++ % 64 == 3)
			connects_anew(n, siege->open, plan->limit_ms);
		test_sleep_ms(1);
	}
	test_child_ended(TEST_REFEREE, status);
	siege->rounds = round;
	oob_send(n, "e", 1);
	barrier(n);
	node_close(n);
}

/* --- all three --- */

void siege_run(void (*attack)(void), int limit_ms)
{
	struct setup s = {.deadline_ms = (uint64_t)test_ms(DEADLINE), .cq_size = 8192};
	struct plan plan = {attack, limit_ms};
	siege = shared();
	pair(&s, serves, uses, &plan);
	CHECK(siege->rounds > 0);
	CHECK(siege->connections > 0);
}

int siege_greeted(void)
{
	struct raw_terms terms;
	int fd = raw_connect(siege->service);
	if (fd < 0 || !raw_greet(fd, &terms))
		test_fail(__FILE__, __LINE__, "the listener does not take a connection in order: %s", strerror(errno));
	return fd;
}

static bool under_checker(void)
{
	char line[512];
	bool found = false;
	FILE *file = fopen("/proc/self/maps", "r");
	while (file && !found && fgets(line, sizeof line, file))
		found = strstr(line, "vgpreload") != NULL;
	if (file)
		fclose(file);
	return found;
}

static int rails_of_the_environment(void)
{
	const char *at = getenv("GDRFAB_TCP_RAILS");
	int count = at && *at;
	for (; count && (at = strchr(at, ',')); at++)
		count++;
	return count;
}

void siege_was_bounded(const char *what, size_t kib, int fds)
{
	size_t grown = siege->rss_most - siege->rss_begin;
	int more = siege->fds_most - siege->fds_begin;
	fds += SIEGE_RAIL * rails_of_the_environment();
	fprintf(stderr,
		"     %s: the server grew by %zu KiB (of %zu) and %d descriptors; %d taken, %d turned down;"
		" %u good rounds, the slowest %u ms; %u new connections, the slowest %u ms\n",
		what, grown, siege->rss_begin, more, siege->taken, siege->turned_down, siege->rounds, siege->slowest_ms,
		siege->connections, siege->slowest_connection_ms);
	/* A memory checker keeps freed memory, so its process grows. */
	if (grown > kib && !under_checker())
		test_wrong(__FILE__, __LINE__, "%s: the server grew by %zu KiB, more than %zu", what, grown, kib);
	if (more > fds)
		test_wrong(__FILE__, __LINE__, "%s: the server had %d more descriptors, more than %d", what, more, fds);
}
