/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The peer is killed or stopped, at every stage of a connection. This side gets error completions within its deadline and
 * never hangs. Afterwards it closes everything as usual, with no descriptor left and nothing in /dev/shm.
 */
#include "fab.h"

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>

#define DEADLINE 500 /* ms */
#define PATIENCE 4000 /* ms: a hang, if it takes longer */
#define CHUNK ((size_t)1024 * 1024)

enum kind { WRITES, READS, SENDS };

struct fault {
	int signal;
	const struct way *way; /* NULL: messages */
	enum kind kind;
	int round;
};

static const struct fault *fault_of(const struct node *n)
{
	return (const struct fault *)n->arg;
}

static void nothing_in_dev_shm(void)
{
	struct dirent *entry;
	DIR *dir = opendir("/dev/shm");
	if (!dir)
		return;
	while ((entry = readdir(dir)))
		if (strstr(entry->d_name, "gdrfab"))
			test_fail(__FILE__, __LINE__, "/dev/shm/%s was left behind", entry->d_name);
	closedir(dir);
}

static void strike(struct node *n)
{
	if (fault_of(n)->signal == SIGKILL)
		peer_kill(n);
	else
		peer_stop(n);
}

/* Kills or stops the peer from another thread, so that it can happen in the middle of a call. */
struct later {
	struct node *n;
	int ms;
	int struck;
	pthread_t thread;
};

static void *strike_later(void *arg)
{
	struct later *l = (struct later *)arg;
	test_sleep_ms(l->ms);
	kill(l->n->peer, fault_of(l->n)->signal);
	__atomic_store_n(&l->struck, 1, __ATOMIC_RELEASE);
	return NULL;
}

/* Checks the state after the peer's death. A connected endpoint has an event and accepts no more operations; a connectionless
 * endpoint tries to connect again. */
static void is_over(struct node *n, void *buf)
{
	void *desc = local_desc(n, buf, 1);
	struct failure f;
	done e;
	if (!connectionless(n->setup)) {
		EVENT(n->eq, GDRFAB_SHUTDOWN, n->ep, NULL);
		CHECK_EQ(gdrfab_send(n->ep, buf, 1, desc, PEER, NULL), -ESHUTDOWN);
		return;
	}
	POST(n->cq, gdrfab_send(n->ep, buf, 1, desc, PEER, buf));
	CHECK_EQ(cq_next(n->cq, &e, PATIENCE), -1);
	cq_failure(__FILE__, __LINE__, n->cq, &f);
	CHECK_EITHER(f.entry.err, ECONNREFUSED, ECONNRESET);
	CHECK(f.entry.op_context == buf && f.words[0]);
}

/* The survivor's closing steps, the same for all stages. */
static void close_up(struct node *n)
{
	if (fault_of(n)->signal == SIGSTOP)
		peer_kill(n);
	uint64_t start = test_now_ms();
	node_close(n);
	if (test_now_ms() - start > (uint64_t)test_ms(PATIENCE))
		test_fail(__FILE__, __LINE__, "closing took %llu ms", (unsigned long long)(test_now_ms() - start));
	nothing_in_dev_shm();
}

static void run(side_fn survivor, side_fn victim, const struct fault *f, int rounds)
{
	struct setup s = {.victim = TEST_CLIENT, .deadline_ms = (uint64_t)test_ms(DEADLINE)};
	for (int round = 0; round < rounds; round++) {
		struct fault here = *f;
		here.round = round;
		pair(&s, survivor, victim, &here);
	}
}

static void for_ever(struct node *n)
{
	for (;;) {
		done e;
		struct failure f;
		if (gdrfab_cq_sread(n->cq, &e, 1, 1000) == -GDRFAB_EAVAIL)
			cq_failure(__FILE__, __LINE__, n->cq, &f);
	}
}

/* --- between request and accept --- */

static void asks_and_waits(struct node *n)
{
	node_open(n);
	barrier(n);
	n->ep = ep_new(n, n->info, n);
	OK(gdrfab_ep_connect(n->ep, n->info->dest_addr, n->info->dest_addrlen, "x", 1));
	barrier(n);
	for (;;)
		pause();
}

static void is_asked(struct node *n)
{
	node_open(n);
	node_listen(n);
	barrier(n);
	barrier(n);
	/* Before or after the request was read. */
	bool early = fault_of(n)->round % 2;
	if (early)
		strike(n);
	struct event e;
	uint32_t event = 0;
	ssize_t size = gdrfab_eq_sread(n->eq, &event, &e, sizeof e.entry + sizeof e.data, early ? 300 : PATIENCE, 0);
	if (!early)
		strike(n);
	if (size > 0) {
		CHECK_EQ(event, GDRFAB_CONNREQ);
		n->request = e.entry.info;
		node_domain(n, n->request);
		n->ep = ep_new(n, n->request, n);
		uint64_t ns = 500000000;
		OK(gdrfab_ep_setopt(n->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_CONNECT_TIMEOUT, &ns, sizeof ns));
		int rc = gdrfab_ep_accept(n->ep, NULL, 0);
		/* Accepting may fail at once or later, or succeed for a moment: in each case the failure is reported in time. */
		bool told = rc < 0;
		while (!told) {
			size = gdrfab_eq_sread(n->eq, &event, &e, sizeof e.entry + sizeof e.data, test_ms(PATIENCE), 0);
			if (size == -GDRFAB_EAVAIL) {
				struct eq_failure f;
				memset(&f, 0, sizeof f);
				f.entry.struct_size = sizeof f.entry;
				CHECK(gdrfab_eq_readerr(n->eq, &f.entry, 0) > 0);
				CHECK(f.entry.object == n->ep);
				told = true;
				continue;
			}
			if (size < 0)
				test_fail(__FILE__, __LINE__, "no word of the accept: %s", test_number(size));
			CHECK(event == GDRFAB_CONNECTED || event == GDRFAB_SHUTDOWN);
			told = event == GDRFAB_SHUTDOWN || fault_of(n)->signal == SIGSTOP;
		}
	} else {
		CHECK(size == -EAGAIN || size == -GDRFAB_EAVAIL);
	}
	close_up(n);
}

/* --- connected and waiting --- */

static void waits_in_receive(struct node *n)
{
	static char in[64];
	node_up(n);
	node_reach(n);
	if (fault_of(n)->round % 2)
		POST(n->cq, gdrfab_recv(n->ep, in, sizeof in, local_desc(n, in, sizeof in), PEER, in));
	barrier(n);
	for_ever(n);
}

static void waits_too(struct node *n)
{
	static char in[3][64];
	node_up(n);
	node_reach(n);
	bool killed = fault_of(n)->signal == SIGKILL;
	for (int i = 0; i < 3; i++)
		POST(n->cq, gdrfab_recv(n->ep, in[i], sizeof in[i], local_desc(n, in[i], sizeof in[i]), PEER, in[i]));
	barrier(n);
	uint64_t start = test_now_ms();
	strike(n);
	for (int i = 0; i < 3; i++) {
		struct failure f;
		done e;
		CHECK_EQ(cq_next(n->cq, &e, PATIENCE), -1);
		cq_failure(__FILE__, __LINE__, n->cq, &f);
		if (killed)
			CHECK(failure_is(&f.entry, ECONNRESET, GDRFAB_PROV_PEER_GONE));
		else
			CHECK(failure_is(&f.entry, ETIMEDOUT, GDRFAB_PROV_DEADLINE) || (i > 0 && flushed(&f.entry)));
	}
	CHECK(test_now_ms() - start < (uint64_t)test_ms(DEADLINE + PATIENCE));
	if (killed)
		is_over(n, in[0]);
	close_up(n);
}

/* --- in the middle of transfers that this side drives --- */

static void serves(struct node *n)
{
	const struct fault *f = fault_of(n);
	struct mem m;
	unsigned char *in = (unsigned char *)malloc(CHUNK);
	node_up(n);
	skip_unless(f->way || waits_for_receive(n), "a send does not wait for its receive");
	uint64_t none = 0;
	OK(gdrfab_ep_setopt(n->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_DEADLINE, &none, sizeof none));
	OK(gdrfab_ep_setopt(n->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_RECV_DEADLINE, &none, sizeof none));
	if (f->way) {
		mem_new(n, &m, f->way->kind, CHUNK);
		memset(m.addr, 1, CHUNK);
		way_register(n, &m, 0, CHUNK, f->way);
		mem_publish(n, &m);
		barrier(n);
		for_ever(n);
	}
	/* Half of the rounds send a large message for which no receive is ever posted. */
	barrier(n);
	for (;;) {
		done e;
		if (f->round % 2)
			for_ever(n);
		ssize_t rc;
		while ((rc = gdrfab_recv(n->ep, in, CHUNK, local_desc(n, in, CHUNK), PEER, in)) == -EAGAIN)
			gdrfab_cq_read(n->cq, NULL, 0);
		/* The stopped side goes on after the other side's operations have ended. */
		if (rc == -ESHUTDOWN)
			for_ever(n);
		OK(rc);
		while (gdrfab_cq_sread(n->cq, &e, 1, 1000) != 1)
			;
	}
}

static void drives(struct node *n)
{
	const struct fault *f = fault_of(n);
	struct remote to = {0, 0, 0};
	unsigned char *buf = (unsigned char *)malloc(CHUNK);
	memset(buf, 2, CHUNK);
	node_up(n);
	skip_unless(f->way || waits_for_receive(n), "a send does not wait for its receive");
	bool killed = f->signal == SIGKILL;
	if (f->way) {
		to = mem_fetch(n);
		way_check(n, f->way, to);
	}
	bool alone = f->way && one_sided(f->way);
	barrier(n);
	/* A target that polls may do a part of a large copy, and is then stopped in it; a target that sleeps does not. */
	for (uint64_t end = test_now_ms() + 1000; alone && test_process_state(n->peer) != 'S' && test_now_ms() < end;)
		test_sleep_ms(1);
	struct later later = {n, 3 + f->round * 5, 0, 0};
	CHECK_EQ(pthread_create(&later.thread, NULL, strike_later, &later), 0);

	size_t posted = 0, ended = 0, failed = 0, after = 0;
	bool stop = false;
	void *desc = local_desc(n, buf, CHUNK);
	uint64_t start = test_now_ms(), until = start + (uint64_t)test_ms(PATIENCE + DEADLINE);
	while (!stop || ended < posted) {
		while (!stop && posted - ended < 4) {
			ssize_t rc;
			if (f->kind == WRITES)
				rc = gdrfab_write(n->ep, buf, CHUNK, desc, PEER, to.base, to.key, buf);
			else if (f->kind == READS)
				rc = gdrfab_read(n->ep, buf, CHUNK, desc, PEER, to.base, to.key, buf);
			else
				rc = gdrfab_send(n->ep, buf, CHUNK, desc, PEER, buf);
			if (rc == -EAGAIN)
				break;
			if (rc == -ESHUTDOWN) {
				stop = true;
				break;
			}
			OK(rc);
			posted++;
		}
		done e;
		struct failure why;
		int next = cq_next(n->cq, &e, 0);
		if (next == 1) {
			ended++;
			after += (size_t)__atomic_load_n(&later.struck, __ATOMIC_ACQUIRE);
			/* A stopped target does not disturb a one-sided transfer. */
			stop = stop || (!killed && alone && after > 20);
		} else if (next == -1) {
			cq_failure(__FILE__, __LINE__, n->cq, &why);
			ended++;
			failed++;
			stop = true;
			bool timed_out = failure_is(&why.entry, ETIMEDOUT, GDRFAB_PROV_DEADLINE) ||
					 (failed > 1 && flushed(&why.entry));
			/* The kernel frees the regions of a dying process before its queue pairs: an adapter may report the key. */
			bool gone = failure_is(&why.entry, ECONNRESET, GDRFAB_PROV_PEER_GONE) ||
				    (traits()->adapter && (failure_is(&why.entry, EKEYREJECTED, GDRFAB_PROV_KEY) ||
							    failure_is(&why.entry, EREMOTEIO, TOO_LONG))) ||
				    (connectionless(n->setup) && why.entry.err == ECONNREFUSED);
			/* A message without a receive may reach its deadline before the peer is killed. */
			if (killed ? !gone && !(f->kind == SENDS && timed_out) : !timed_out)
				test_fail(__FILE__, __LINE__, "%s, provider code %d, \"%s\"",
					  test_number(-why.entry.err), why.entry.prov_errno, why.words);
		}
		/* The peer may have begun to copy one message, whose buffer stays in use until the peer goes on. */
		bool kept = (f->kind == SENDS || !connectionless(n->setup)) && stop && posted - ended == 1;
		if (!killed && kept && test_now_ms() > until - (uint64_t)test_ms(PATIENCE) / 2)
			peer_continue(n);
		if (test_now_ms() > until)
			test_fail(__FILE__, __LINE__, "%zu of %zu operations never ended (%zu failed)", posted - ended,
				  posted, failed);
	}
	pthread_join(later.thread, NULL);
	if (killed) {
		await_gone(n);
		is_over(n, buf);
	} else if (alone) {
		CHECK_EQ(failed, 0);
	} else {
		CHECK(failed > 0);
	}
	free(buf);
	close_up(n);
}

/* --- in the middle of transfers that the victim drives into this side's memory --- */

static void hammers(struct node *n)
{
	const struct fault *f = fault_of(n);
	unsigned char *buf = (unsigned char *)malloc(CHUNK);
	unsigned char value = 3;
	node_up(n);
	struct remote to = mem_fetch(n);
	way_check(n, f->way, to);
	barrier(n);
	for (;;) {
		done e;
		memset(buf, value++, CHUNK);
		struct failure why;
		if (gdrfab_write(n->ep, buf, CHUNK, local_desc(n, buf, CHUNK), PEER, to.base, to.key, buf) == -ESHUTDOWN)
			for_ever(n);
		if (gdrfab_cq_read(n->cq, &e, 1) == -GDRFAB_EAVAIL)
			cq_failure(__FILE__, __LINE__, n->cq, &why);
	}
}

static void is_hammered(struct node *n)
{
	const struct fault *f = fault_of(n);
	unsigned char *copy = (unsigned char *)malloc(CHUNK);
	struct mem m;
	node_up(n);
	mem_new(n, &m, f->way->kind, CHUNK);
	memset(m.addr, 1, CHUNK);
	way_register(n, &m, 0, CHUNK, f->way);
	mem_publish(n, &m);
	barrier(n);
	uint64_t until = test_now_ms() + 5 + (uint64_t)f->round * 3;
	while (test_now_ms() < until)
		gdrfab_cq_read(n->cq, NULL, 0);
	strike(n);
	/* -EBUSY is right only if the victim was stopped inside a copy. */
	uint64_t start = test_now_ms();
	int rc = gdrfab_mr_close(m.mr);
	CHECK(test_now_ms() - start < (uint64_t)test_ms(PATIENCE));
	if (f->signal == SIGSTOP && rc == -EBUSY) {
		CHECK(gdrfab_last_error()[0] != 0);
		peer_kill(n);
		rc = gdrfab_mr_close(m.mr);
	}
	CHECK_EQ(rc, 0);
	m.mr = NULL;
	memcpy(copy, m.addr, CHUNK);
	if (f->signal == SIGSTOP)
		peer_continue(n);
	until = test_now_ms() + 20;
	while (test_now_ms() < until)
		gdrfab_cq_read(n->cq, NULL, 0);
	CHECK_EQ(memcmp(copy, m.addr, CHUNK), 0);
	mem_end(n, &m);
	if (f->signal == SIGKILL)
		is_over(n, copy);
	free(copy);
	close_up(n);
}

/* --- the claims --- */

static void request_stage(const void *arg)
{
	skip_if_connectionless();
	run(is_asked, asks_and_waits, (const struct fault *)arg, test_count(4, 2));
}

static void waiting_stage(const void *arg)
{
	run(waits_too, waits_in_receive, (const struct fault *)arg, test_count(4, 2));
}

static void driving_stage(const void *arg)
{
	run(drives, serves, (const struct fault *)arg, test_count(6, 2));
}

static void hammered_stage(const void *arg)
{
	/* Each close of a region that a stopped peer uses may take a whole second. */
	const struct fault *f = (const struct fault *)arg;
	run(is_hammered, hammers, f, f->signal == SIGSTOP ? test_count(4, 1) : test_count(8, 2));
}

static const struct fault *fault_new(int signal, const struct way *way, enum kind kind)
{
	static struct fault faults[128];
	static size_t used;
	struct fault *f = &faults[used++];
	f->signal = signal;
	f->way = way;
	f->kind = kind;
	return f;
}

TEST_TABLE(faults)
{
	static const int signals[] = {SIGKILL, SIGSTOP};
	static const char *const verbs[] = {"killed", "stopped"}, *const kinds[] = {"writes", "reads"};
	size_t count = ways_list();
	char name[96];
	for (int s = 0; s < 2; s++) {
		snprintf(name, sizeof name, "%s_after_its_request", verbs[s]);
		test_add(name, request_stage, fault_new(signals[s], NULL, SENDS), 40);
		snprintf(name, sizeof name, "%s_while_both_wait", verbs[s]);
		test_add(name, waiting_stage, fault_new(signals[s], NULL, SENDS), 40);
		snprintf(name, sizeof name, "%s_during_large_sends", verbs[s]);
		test_add(name, driving_stage, fault_new(signals[s], NULL, SENDS), 40);
		for (size_t w = 0; w < count; w++) {
			/* Of a peer that stands still each way learns by the same deadline, and a memory checker waits for it only once. */
			if (!way_leads(w) || (test_checked() && signals[s] == SIGSTOP && w > 0))
				continue;
			for (int k = 0; k < 2; k++) {
				snprintf(name, sizeof name, "%s_during_%s_%s", verbs[s], kinds[k], ways[w].name);
				test_add(name, driving_stage,
					 fault_new(signals[s], &ways[w], k ? READS : WRITES), 40);
			}
			snprintf(name, sizeof name, "%s_while_it_writes_%s", verbs[s], ways[w].name);
			test_add(name, hammered_stage, fault_new(signals[s], &ways[w], WRITES), 40);
		}
	}
}
