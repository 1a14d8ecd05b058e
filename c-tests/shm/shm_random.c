/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A shm peer that writes random values to random places of all writable shared mappings of the library in its process, while
 * traffic runs; thousands of seeds, with one connection each. The other side (the victim) may see errors and lose the
 * connection. It must not crash, hang, write outside of its buffers, or leak anything.
 *
 * SCRIBBLE_SEEDS sets the number of seeds, SCRIBBLE_FIRST the first one.
 */
#include "fab.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define EDGE ((size_t)64)
#define BUF ((size_t)40000)
#define EDGE_SEED 4u

/* Counts of the attackers for the referee. Not a mapping of the library, so the attackers do not write into it. */
struct board {
	uint64_t seed;
	uint64_t connected, mappings, victim_done;
};
static struct board *board;

/* --- the victim: accepts every connection, and uses a little of everything on it --- */

struct victim {
	struct node n;
	struct mem m;
	unsigned char *in, *out;
	uint64_t random;
	gdrfab_info *next; /* a request that came while another was served */
};

static void post_receives(struct victim *v)
{
	for (int i = 0; i < 4; i++)
		if (gdrfab_recv(v->n.ep, v->in + EDGE, BUF, NULL, 0, v->in) != 0)
			break;
}

static void post_something(struct victim *v, struct remote to)
{
	size_t len = test_random(&v->random) % BUF;
	gdrfab_ep *ep = v->n.ep;
	switch (test_random(&v->random) % 6) {
	case 0:
		gdrfab_send(ep, v->out, len % 64, NULL, 0, v->out);
		break;
	case 1:
		gdrfab_send(ep, v->out, len, NULL, 0, v->out);
		break;
	case 2:
		gdrfab_write(ep, v->out, len, NULL, 0, to.base, to.key, v->out);
		break;
	case 3:
		gdrfab_read(ep, v->in + EDGE, len, NULL, 0, to.base, to.key, v->out);
		break;
	case 4:
		gdrfab_writedata(ep, v->out, len % 100, NULL, len, 0, to.base, to.key, v->out);
		break;
	default:
		gdrfab_inject(ep, v->out, len % 64, 0);
	}
}

static void check_edges(struct victim *v)
{
	CHECK_FILLED("in front of a buffer", v->in, EDGE, 0, EDGE_SEED);
	CHECK_FILLED("behind a buffer", v->in + EDGE + BUF, EDGE, EDGE + BUF, EDGE_SEED);
	CHECK_FILLED("in front of the region", v->m.addr, EDGE, 0, EDGE_SEED);
	CHECK_FILLED("behind the region", v->m.addr + v->m.len - EDGE, EDGE, v->m.len - EDGE, EDGE_SEED);
	CHECK_FILLED("what is only sent from", v->out, BUF, 0, 6);
}

/* Reads until the queue is empty; true if the peer's first message, with its address and key, has come. */
static void drain(struct victim *v, struct remote *to)
{
	done e;
	struct failure f;
	for (int i = 0; i < 2000; i++) {
		ssize_t got = gdrfab_cq_read(v->n.cq, &e, 1);
		if (got == -GDRFAB_EAVAIL) {
			cq_failure(__FILE__, __LINE__, v->n.cq, &f);
			continue;
		}
		if (got != 1)
			return;
		if ((e.flags & GDRFAB_RECV) && e.len == sizeof *to && to->key == 0)
			memcpy(to, v->in + EDGE, sizeof *to);
		if (e.flags & GDRFAB_RECV) {
			CHECK(e.len <= BUF);
			gdrfab_recv(v->n.ep, v->in + EDGE, BUF, NULL, 0, v->in);
		}
	}
}

static bool next_event(struct victim *v, uint32_t *event, struct event *e, int ms)
{
	ssize_t size = gdrfab_eq_sread(v->n.eq, event, e, sizeof e->entry + sizeof e->data, ms, 0);
	if (size == -GDRFAB_EAVAIL) {
		struct eq_failure f;
		memset(&f, 0, sizeof f);
		f.entry.struct_size = sizeof f.entry;
		gdrfab_eq_readerr(v->n.eq, &f.entry, 0);
		*event = UINT32_MAX;
		e->entry.object = f.entry.object;
		return true;
	}
	CHECK(size >= 0 || size == -EAGAIN || size == -EINTR);
	return size >= 0;
}

static void serve_one(struct victim *v, gdrfab_info *request)
{
	struct event e;
	uint32_t event;
	struct remote to = {0, 0, 0};
	uint64_t until = test_now_ms() + (uint64_t)test_ms(8);
	v->n.ep = ep_new(&v->n, request, NULL);
	gdrfab_freeinfo(request);
	post_receives(v);
	bool open = gdrfab_ep_accept(v->n.ep, &v->m.key, sizeof v->m.key) == 0;
	while (open && test_now_ms() < until) {
		while (next_event(v, &event, &e, 0)) {
			if (event == GDRFAB_CONNREQ && !v->next) {
				v->next = e.entry.info;
			} else if (event == GDRFAB_CONNREQ) {
				gdrfab_pep_reject(v->n.pep, e.entry.info->handle, NULL, 0);
				gdrfab_freeinfo(e.entry.info);
			} else if (e.entry.object == v->n.ep && event != GDRFAB_CONNECTED) {
				open = false;
			}
		}
		for (int i = 0; open && i < 4; i++)
			post_something(v, to);
		drain(v, &to);
		sched_yield();
	}
	uint64_t start = test_now_ms();
	int rc;
	/* Goes on while the peer's ring seems to have room or the peer does not run; at most two seconds. */
	while ((rc = gdrfab_ep_close(v->n.ep)) == -EBUSY && test_now_ms() - start <= (uint64_t)test_ms(3000))
		drain(v, &to);
	OK(rc);
	v->n.ep = NULL;
	drain(v, &to);
	if (test_now_ms() - start > (uint64_t)test_ms(3000))
		test_fail(__FILE__, __LINE__, "seed %llu: closing took %llu ms", (unsigned long long)board->seed,
			  (unsigned long long)(test_now_ms() - start));
	check_edges(v);
	fill(v->m.addr + EDGE, BUF, 0, 5);
}

static void victim_side(struct victim *v, int oob)
{
	static const struct setup defaults;
	char word;
	memset(v, 0, sizeof *v);
	v->n.side = TEST_SERVER;
	v->n.setup = &defaults;
	v->n.oob = oob;
	v->random = 1;
	snprintf(v->n.service, sizeof v->n.service, "c-tests-scribble-%d", (int)getppid());
	v->n.fds = test_count_fds();
	node_open(&v->n);
	node_listen(&v->n);
	node_domain(&v->n, v->n.info);
	v->in = (unsigned char *)malloc(BUF + 2 * EDGE);
	v->out = (unsigned char *)malloc(BUF);
	mem_new(&v->n, &v->m, &memkinds[KIND_MALLOC], BUF + 2 * EDGE);
	fill(v->in, BUF + 2 * EDGE, 0, EDGE_SEED);
	fill(v->out, BUF, 0, 6);
	fill(v->m.addr, v->m.len, 0, EDGE_SEED);
	mem_register(&v->n, &v->m, EDGE, BUF, REMOTE_ACCESS, 0);
	oob_send(&v->n, "r", 1);
	/* Runs until the referee closes its end. */
	while (recv(oob, &word, 1, MSG_DONTWAIT) != 0) {
		struct event e;
		uint32_t event = 0;
		gdrfab_info *request = v->next;
		v->next = NULL;
		if (!request && next_event(v, &event, &e, 5) && event == GDRFAB_CONNREQ)
			request = e.entry.info;
		if (request)
			serve_one(v, request);
	}
	gdrfab_freeinfo(v->next);
	mem_end(&v->n, &v->m);
	free(v->in);
	free(v->out);
	node_close(&v->n);
	board->victim_done = 1;
}

/* --- the attacker --- */

struct mapping {
	unsigned char *at;
	size_t len;
};

static size_t find_mappings(struct mapping *to, size_t limit)
{
	char line[512], perms[8];
	unsigned long from, end;
	size_t count = 0;
	FILE *file = fopen("/proc/self/maps", "r");
	CHECK(file != NULL);
	while (count < limit && fgets(line, sizeof line, file))
		if (strstr(line, "memfd:gdrfab") && sscanf(line, "%lx-%lx %7s", &from, &end, perms) == 3 &&
		    perms[1] == 'w' && perms[3] == 's') {
			to[count].at = (unsigned char *)from;
			to[count++].len = end - from;
		}
	fclose(file);
	return count;
}

static void scribble(const struct mapping *maps, size_t count, uint64_t *random)
{
	const struct mapping *m = &maps[test_random(random) % count];
	unsigned mode = (unsigned)(test_random(random) % 7);
	size_t times = 1 + test_random(random) % 64, head = m->len < 8192 ? m->len : 8192;
	uint64_t word;
	for (size_t i = 0; i < times; i++) {
		/* Most writes go to the front of a mapping, where indices and headers usually are. */
		size_t range = test_random(random) % 4 ? head : m->len;
		size_t at = test_random(random) % (range - 8);
		switch (mode) {
		case 0:
			m->at[at] ^= (unsigned char)(1u << test_random(random) % 8);
			break;
		case 1:
			m->at[at] = (unsigned char)test_random(random);
			break;
		case 2:
			word = test_random(random);
			memcpy(m->at + at / 8 * 8, &word, 8);
			break;
		case 3: /* a little more or less, like an index that has run ahead */
			memcpy(&word, m->at + at / 8 * 8, 8);
			word += test_random(random) % 2 ? 1 + test_random(random) % 64 : (uint64_t)-1;
			memcpy(m->at + at / 8 * 8, &word, 8);
			break;
		case 4: /* lengths that are too large */
			word = test_random(random) % 2 ? UINT32_MAX : UINT64_MAX - test_random(random) % 4096;
			memcpy(m->at + at / 4 * 4, &word, 4);
			break;
		case 5: /* a line that is valid at another place; mappings are whole pages */
			memmove(m->at + at / 64 * 64, m->at + test_random(random) % range / 64 * 64, 64);
			break;
		default:
			memset(m->at + at, test_random(random) % 2 ? 0xff : 0, (m->len - at) % 4096);
		}
	}
}

static void attack(struct node *n, uint64_t seed)
{
	static unsigned char in[BUF], out[BUF];
	struct mapping maps[64];
	struct event e;
	uint32_t event = 0;
	uint64_t random = seed * 7919 + 1, key = 0;
	n->ep = ep_new(n, n->info, NULL);
	if (gdrfab_ep_connect(n->ep, n->info->dest_addr, n->info->dest_addrlen, NULL, 0) == 0 &&
	    gdrfab_eq_sread(n->eq, &event, &e, sizeof e.entry + sizeof e.data, 400, 0) > 0 &&
	    event == GDRFAB_CONNECTED) {
		__atomic_fetch_add(&board->connected, 1, __ATOMIC_RELAXED);
		memcpy(&key, e.data, sizeof key);
		size_t count = find_mappings(maps, 64);
		board->mappings = count > board->mappings ? count : board->mappings;
		struct mem m;
		mem_new(n, &m, &memkinds[seed % 2 ? KIND_MALLOC : KIND_MEM_ALLOC], BUF);
		mem_register(n, &m, 0, BUF, REMOTE_ACCESS, 0);
		struct remote mine = {m.key, m.base, m.registered};
		for (int i = 0; i < 4; i++)
			gdrfab_recv(n->ep, in, BUF, NULL, 0, in);
		gdrfab_inject(n->ep, &mine, sizeof mine, 0);
		for (int turn = 0; turn < 6; turn++) {
			done entry;
			if (count)
				scribble(maps, count, &random);
			gdrfab_send(n->ep, out, test_random(&random) % BUF, NULL, 0, out);
			gdrfab_write(n->ep, out, test_random(&random) % 4096, NULL, 0, 0, key, out);
			for (int i = 0; i < 20; i++)
				if (gdrfab_cq_read(n->cq, &entry, 1) == -EAGAIN)
					sched_yield();
		}
		/* Some attackers leave without closing. */
		if (seed % 16 == 0)
			_exit(0);
		gdrfab_mr_close(m.mr);
		gdrfab_ep_close(n->ep);
		gdrfab_mem_free(n->domain, seed % 2 ? NULL : m.addr);
		if (seed % 2)
			free(m.addr);
	} else {
		/* An attacker that has overwritten its own identification is refused: a new process starts. */
		_exit(0);
	}
	n->ep = NULL;
	/* The other entries do not matter. */
	done entry;
	struct failure f;
	ssize_t got;
	while ((got = gdrfab_cq_read(n->cq, &entry, 1)) == 1 || got == -GDRFAB_EAVAIL)
		if (got != 1)
			cq_failure(__FILE__, __LINE__, n->cq, &f);
	while ((got = gdrfab_eq_read(n->eq, &event, &e, sizeof e.entry + sizeof e.data, 0)) != -EAGAIN) {
		struct eq_failure broken;
		memset(&broken, 0, sizeof broken);
		broken.entry.struct_size = sizeof broken.entry;
		if (got < 0 && gdrfab_eq_readerr(n->eq, &broken.entry, 0) <= 0)
			break;
	}
}

/* An attacker: tries seeds from board->seed on, until they end or it has damaged itself. */
static void attacker_side(uint64_t end)
{
	struct node n;
	memset(&n, 0, sizeof n);
	static const struct setup defaults;
	/* An attacker's crashes and failures do not count. */
	test_mute();
	n.side = TEST_CLIENT;
	n.setup = &defaults;
	n.oob = -1;
	snprintf(n.service, sizeof n.service, "c-tests-scribble-%d", (int)getppid());
	node_open(&n);
	for (int batch = 0; batch < 40 && board->seed < end; batch++) {
		alarm(2);
		attack(&n, board->seed++);
	}
	_exit(0);
}

/* --- the referee --- */

static uint64_t env_number(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);
	return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

static const char no_sharing[] = "two processes share no memory of the library's";

TEST_WITHIN(150, a_lying_peer_costs_a_connection_at_most)
{
	skip_unless(path_known(PATH_DIRECT), no_sharing);
	uint64_t first = env_number("SCRIBBLE_FIRST", 1);
	uint64_t seeds = env_number("SCRIBBLE_SEEDS", (uint64_t)test_count(3000, 100));
	static struct victim v;
	int ends[2], status, crashed = 0;
	char word;
	board = (struct board *)mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(board != MAP_FAILED);
	board->seed = first;
	/* A close waits this long for copies that an overwritten word reports as under way; with thousands of seeds this adds up. */
	setenv("GDRFAB_SHM_CLOSE_MS", "10", 1);
	CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
	pid_t victim = test_fork(TEST_SERVER);
	if (victim == 0) {
		close(ends[1]);
		victim_side(&v, ends[0]);
		test_child_done();
	}
	close(ends[0]);
	CHECK_EQ(recv(ends[1], &word, 1, 0), 1);
	while (board->seed < first + seeds) {
		uint64_t from = board->seed;
		pid_t attacker = test_fork(TEST_CLIENT);
		if (attacker == 0) {
			close(ends[1]);
			attacker_side(first + seeds);
		}
		waitpid(attacker, &status, 0);
		crashed += WIFSIGNALED(status);
		board->seed += board->seed == from;
		if (waitpid(victim, &status, WNOHANG) == victim) {
			test_wrong(__FILE__, __LINE__, "the victim ended between seeds %llu and %llu",
				   (unsigned long long)from, (unsigned long long)board->seed);
			test_child_ended(TEST_SERVER, status);
			return;
		}
	}
	close(ends[1]);
	waitpid(victim, &status, 0);
	test_child_ended(TEST_SERVER, status);
	CHECK_EQ(board->victim_done, 1);
	/* If one of these is zero, nothing was tested. */
	CHECK(board->mappings > 0);
	if (board->connected < seeds / 3)
		test_fail(__FILE__, __LINE__, "only %llu of %llu seeds got a connection (%d attackers crashed)",
			  (unsigned long long)board->connected, (unsigned long long)seeds, crashed);
}

/* --- the segments themselves --- */

static int try_segment(int fd)
{
	int seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0 || !(seals & F_SEAL_SHRINK))
		test_wrong(__FILE__, __LINE__, "a shared segment is not sealed against shrinking");
	else if (ftruncate(fd, 0) == 0)
		test_wrong(__FILE__, __LINE__, "a shared segment could be cut off under the peer");
	return 1;
}

static void tries_to_shrink(struct node *n)
{
	char path[96], what[128];
	struct mapping maps[64];
	int tried = 0;
	node_up(n);
	for (int fd = 3; fd < 200; fd++) {
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		ssize_t len = readlink(path, what, sizeof what - 1);
		if (len > 0 && !strncmp(what, "/memfd:gdrfab", 13))
			tried += try_segment(fd);
	}
	/* A mapped file can be opened again through /proc, with permission. */
	size_t count = find_mappings(maps, 64);
	CHECK(count > 0);
	for (size_t i = 0; i < count; i++) {
		snprintf(path, sizeof path, "/proc/self/map_files/%lx-%lx", (unsigned long)maps[i].at,
			 (unsigned long)(maps[i].at + maps[i].len));
		int fd = open(path, O_RDWR | O_CLOEXEC);
		if (fd < 0)
			continue;
		tried += try_segment(fd);
		close(fd);
	}
	barrier(n);
	if (!tried)
		test_skip("no descriptor of a segment is left open, and /proc/self/map_files needs privileges");
	node_down(n);
}

TEST(shared_segments_cannot_shrink)
{
	skip_unless(path_known(PATH_DIRECT), no_sharing);
	pair(NULL, tries_to_shrink, tries_to_shrink, NULL);
}
