/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A failed allocation ends no process. For each n, a child runs everything that a program does with the library, with two
 * endpoints of one process, and the library's n-th allocation fails: alone, or with all later ones until a call has reported
 * it. Each call succeeds, or returns -ENOMEM with a text and succeeds when it is repeated with memory. Closes always succeed,
 * and all bytes arrive.
 */
#include "claim.h"
#include "attempt.h"
#include "pattern.h"

#include <gdrfab.h>

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>

/* --- the allocator that fails --- */

enum { ONE, ALL_BEHIND };
static atomic_bool armed;
static atomic_long made;
static long failing;
static int how;
/* Counted are the allocations that this program's thread makes inside a call of the library, and all of other threads. */
static __thread bool own, inside;

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

static bool fails(void)
{
	if (!atomic_load(&armed) || (own && !inside))
		return false;
	long n = atomic_fetch_add(&made, 1) + 1;
	if (how == ONE ? n != failing : n < failing)
		return false;
	errno = ENOMEM;
	return true;
}

void *malloc(size_t size)
{
	return fails() ? NULL : __libc_malloc(size);
}
void *calloc(size_t count, size_t size)
{
	return fails() ? NULL : __libc_calloc(count, size);
}
void *realloc(void *at, size_t size)
{
	return fails() ? NULL : __libc_realloc(at, size);
}
void *aligned_alloc(size_t align, size_t size)
{
	return fails() ? NULL : __libc_memalign(align, size);
}
int posix_memalign(void **at, size_t align, size_t size)
{
	void *got = fails() ? NULL : __libc_memalign(align, size);
	if (!got)
		return ENOMEM;
	*at = got;
	return 0;
}
void *mmap(void *at, size_t len, int prot, int flags, int fd, off_t offset)
{
	if (fails())
		return MAP_FAILED;
	return (void *)syscall(SYS_mmap, at, len, prot, flags, fd, offset);
}
void *mmap64(void *at, size_t len, int prot, int flags, int fd, off_t offset)
{
	return mmap(at, len, prot, flags, fd, offset);
}

/* --- calls, repeated if they found no memory --- */

#define BIG 70000
#define SMALL 64
#define REGION (4 * BIG)

struct side {
	gdrfab_info *info;
	gdrfab_fabric *fabric;
	gdrfab_eq *eq;
	gdrfab_domain *domain;
	gdrfab_cq *cq;
	gdrfab_cntr *cntr;
	gdrfab_av *av;
	gdrfab_ep *ep;
	gdrfab_mr *mr;
	unsigned char *memory;
	uint64_t peer;
};
static struct side sides[2];
static const char *doing;

static void wrong(long rc)
{
	atomic_store(&armed, false);
	fprintf(stdout, "%s is %s%s: %s\n", doing, test_number(rc), rc < 0 ? test_words(rc) : "", gdrfab_last_error());
	fflush(stdout);
	_exit(1);
}

static void drive(void)
{
	inside = true;
	for (int i = 0; i < 2; i++)
		if (sides[i].cq)
			gdrfab_cq_read(sides[i].cq, NULL, 0);
	inside = false;
}

/* True if the call is to be repeated. */
static bool again(ssize_t rc)
{
	static uint64_t until;
	if (rc == -EAGAIN && until == 0)
		until = test_now_ms() + (uint64_t)test_ms(8000);
	if (rc == -EAGAIN && test_now_ms() < until) {
		drive();
		return true;
	}
	until = 0;
	if (rc == -ENOMEM) {
		if (!atomic_load(&armed) || !*gdrfab_last_error())
			wrong(rc);
		/* From here on there is memory again. */
		atomic_store(&armed, false);
		return true;
	}
	if (rc < 0)
		wrong(rc);
	return false;
}

#define STEP(call)                                                                                                     \
	do {                                                                                                           \
		ssize_t rc_;                                                                                           \
		do {                                                                                                   \
			doing = #call;                                                                                 \
			inside = true;                                                                                 \
			rc_ = (ssize_t)(call);                                                                         \
			inside = false;                                                                                \
		} while (again(rc_));                                                                                  \
	} while (0)

/* A close frees memory, so it must not fail for want of memory. */
#define CLOSE(call)                                                                                                    \
	do {                                                                                                           \
		doing = #call;                                                                                         \
		inside = true;                                                                                         \
		int rc_ = (int)(call);                                                                                 \
		inside = false;                                                                                        \
		if (rc_)                                                                                               \
			wrong(rc_);                                                                                    \
	} while (0)

/* Takes the next entry of a queue. False: the operation failed for want of memory and is to be posted again. */
static bool ended(struct side *s)
{
	gdrfab_cq_tagged_entry entry;
	gdrfab_cq_err_entry error = {.struct_size = sizeof error};
	char words[256];
	ssize_t rc;
	for (uint64_t until = test_now_ms() + (uint64_t)test_ms(8000);;) {
		doing = "gdrfab_cq_read";
		inside = true;
		rc = gdrfab_cq_read(s->cq, &entry, 1);
		inside = false;
		if (rc == 1)
			return true;
		if (rc == -GDRFAB_EAVAIL) {
			error.err_data = words, error.err_data_size = sizeof words;
			STEP(gdrfab_cq_readerr(s->cq, &error, 0));
			/* The peer, in this same process, may have had no memory for the connection. */
			if (error.err != ENOMEM && error.err != ECONNREFUSED && error.err != ECANCELED) {
				doing = words;
				wrong(-error.err);
			}
			atomic_store(&armed, false);
			return false;
		}
		if (rc != -EAGAIN)
			again(rc);
		drive();
		if (test_now_ms() > until)
			wrong(-ETIMEDOUT);
	}
}

/* Posts an operation and waits for its end; repeats it if it failed for want of memory. */
#define DO(s, call)                                                                                                    \
	do {                                                                                                           \
		STEP(call);                                                                                            \
	} while (doing = #call, !ended(s))

static gdrfab_info *hints_of(const char *prov, bool rdm)
{
	gdrfab_info *hints = calloc(1, sizeof *hints);
	hints->struct_size = sizeof *hints;
	hints->prov_name = (char *)prov;
	hints->ep_type = rdm ? GDRFAB_EP_RDM : GDRFAB_EP_MSG;
	hints->mr_mode = GDRFAB_MR_LOCAL | GDRFAB_MR_VIRT_ADDR | GDRFAB_MR_PROV_KEY;
	hints->progress = sides[0].info ? GDRFAB_PROGRESS_MANUAL : GDRFAB_PROGRESS_AUTO;
	return hints;
}

static void open_ep(struct side *s, bool rdm)
{
	STEP(gdrfab_ep_open(s->domain, s->info, NULL, &s->ep));
	STEP(gdrfab_ep_bind_cq(s->ep, s->cq, GDRFAB_TRANSMIT | GDRFAB_RECV));
	STEP(gdrfab_ep_bind_eq(s->ep, s->eq, 0));
	STEP(gdrfab_ep_bind_cntr(s->ep, s->cntr, GDRFAB_WRITE));
	if (rdm) {
		STEP(gdrfab_av_open(s->domain, NULL, NULL, &s->av));
		STEP(gdrfab_ep_bind_av(s->ep, s->av, 0));
	}
	STEP(gdrfab_ep_enable(s->ep));
}

static void open_side(struct side *s, const char *prov, bool rdm)
{
	const gdrfab_info *hints = hints_of(prov, rdm);
	gdrfab_cq_attr attr = {.struct_size = sizeof attr, .format = GDRFAB_CQ_FORMAT_TAGGED, .wait_obj = GDRFAB_WAIT_FD};
	gdrfab_mr *two;
	gdrfab_mr_info told = {.struct_size = sizeof told};
	void *memory;
	static char text[4096];
	STEP(gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, 0, hints, &s->info));
	STEP(gdrfab_tostr(s->info, GDRFAB_TYPE_INFO, text, sizeof text));
	STEP(gdrfab_fabric_open(s->info, NULL, &s->fabric));
	STEP(gdrfab_eq_open(s->fabric, NULL, NULL, &s->eq));
	STEP(gdrfab_domain_open(s->fabric, s->info, NULL, &s->domain));
	STEP(gdrfab_cq_open(s->domain, &attr, NULL, &s->cq));
	STEP(gdrfab_cntr_open(s->domain, NULL, NULL, &s->cntr));
	STEP(gdrfab_mem_alloc(s->domain, GDRFAB_HMEM_SYSTEM, 0, REGION, 0, &memory));
	s->memory = memory;
	STEP(gdrfab_mr_reg(s->domain, s->memory, REGION, GDRFAB_REMOTE_READ | GDRFAB_REMOTE_WRITE | GDRFAB_READ | GDRFAB_WRITE, 0, 0, 0,
			   NULL, &s->mr));
	struct iovec parts[2] = {{s->memory, 64}, {s->memory + 4096, 64}};
	STEP(gdrfab_mr_regv(s->domain, parts, 2, GDRFAB_REMOTE_READ, 0, 0, 0, NULL, &two));
	STEP(gdrfab_mr_query(two, &told));
	STEP(gdrfab_mr_explain(two, text, sizeof text));
	CLOSE(gdrfab_mr_close(two));
	open_ep(s, rdm);
}

static bool meet(bool rdm)
{
	char names[2][GDRFAB_ADDR_MAX], text[256];
	size_t len[2] = {GDRFAB_ADDR_MAX, GDRFAB_ADDR_MAX};
	for (int i = 0; i < 2; i++)
		STEP(gdrfab_ep_getname(sides[i].ep, names[i], &len[i]));
	for (int i = 0; i < 2 && rdm; i++) {
		STEP(gdrfab_av_insert(sides[i].av, names[!i], 1, &sides[i].peer, 0, NULL) == 1 ? 0 : -ENOMEM);
		STEP(gdrfab_av_straddr(sides[i].av, names[!i], text, sizeof text));
	}
	for (int i = 0; i < 2 && !rdm; i++)
		STEP(gdrfab_ep_connect_addr(sides[i].ep, names[!i], len[!i]));
	uint64_t until = test_now_ms() + (uint64_t)test_ms(8000);
	for (int connected = 0; !rdm && connected < 2;) {
		for (int i = 0; i < 2 && connected < 2; i++) {
			gdrfab_eq_cm_entry entry;
			uint32_t event = 0;
			doing = "gdrfab_eq_read";
			inside = true;
			ssize_t rc = gdrfab_eq_read(sides[i].eq, &event, &entry, sizeof entry, 0);
			inside = false;
			/* One side had no memory: the other side is rejected, or finds it gone. */
			if (rc == -GDRFAB_EAVAIL || (rc > 0 && event != GDRFAB_CONNECTED))
				return false;
			if (rc != -EAGAIN)
				again(rc > 0 ? 0 : rc);
			connected += rc > 0;
		}
		if (test_now_ms() > until)
			wrong(-ETIMEDOUT);
	}
	return true;
}

/* Opens both endpoints again, with memory, and connects them. */
static void meet_again(void)
{
	if (!atomic_load(&armed) && how == ALL_BEHIND)
		wrong(-ENOTCONN);
	atomic_store(&armed, false);
	for (int i = 0; i < 2; i++) {
		struct side *s = &sides[i];
		gdrfab_eq_err_entry error = {.struct_size = sizeof error};
		gdrfab_eq_cm_entry entry;
		uint32_t event;
		CLOSE(gdrfab_ep_close(s->ep));
		while (gdrfab_eq_readerr(s->eq, &error, 0) > 0 || gdrfab_eq_read(s->eq, &event, &entry, sizeof entry, 0) > 0)
			continue;
		open_ep(s, false);
	}
	if (!meet(false))
		wrong(-ENOTCONN);
}

/* A message from the first side to the second, with the receive posted first or last. */
static void message(struct side *a, struct side *b, size_t len, bool tagged, bool first)
{
	unsigned char *from = a->memory, *to = b->memory + BIG;
	void *here = gdrfab_mr_desc(a->mr), *there = gdrfab_mr_desc(b->mr);
	memset(to, 0, len);
	for (bool more = true; more;) {
		more = false;
		for (int turn = 0; turn < 2; turn++) {
			if ((turn == 0) == first) {
				if (tagged)
					STEP(gdrfab_trecv(b->ep, to, BIG, there, GDRFAB_ADDR_UNSPEC, 7, 0, to));
				else
					STEP(gdrfab_recv(b->ep, to, BIG, there, GDRFAB_ADDR_UNSPEC, to));
			} else if (tagged) {
				STEP(gdrfab_tsend(a->ep, from, len, here, a->peer, 7, from));
			} else {
				STEP(gdrfab_send(a->ep, from, len, here, a->peer, from));
			}
		}
		bool sent = ended(a);
		/* A message that failed for want of memory is sent again, with a new receive. */
		if (!sent)
			STEP(gdrfab_cancel(b->ep, to));
		more = !ended(b) || !sent;
	}
	if (memcmp(from, to, len))
		wrong(-EILSEQ);
}

static void exchange(bool rdm, bool atomics)
{
	struct side *a = &sides[0], *b = &sides[1];
	void *desc = gdrfab_mr_desc(a->mr);
	uint64_t key = gdrfab_mr_key(b->mr), base = a->info->mr_mode & GDRFAB_MR_VIRT_ADDR ? (uintptr_t)b->memory : 0;
	unsigned char *there = b->memory;
	static char text[4096];
	gdrfab_path_info path = {.struct_size = sizeof path};
	gdrfab_stats stats = {.struct_size = sizeof stats};
	fill(a->memory, BIG, 0, 1);
	for (int i = 0; i < 2; i++) {
		message(a, b, SMALL, false, i);
		message(a, b, BIG, false, i);
		if (rdm)
			message(a, b, SMALL, true, i), message(a, b, BIG, true, i);
	}
	DO(a, gdrfab_write(a->ep, a->memory, BIG, desc, a->peer, base, key, a));
	if (memcmp(a->memory, there, BIG))
		wrong(-EILSEQ);
	struct iovec parts[2] = {{a->memory, 100}, {a->memory + 200, 100}};
	void *descs[2] = {desc, desc};
	DO(a, gdrfab_writev(a->ep, parts, descs, 2, a->peer, base + BIG, key, a));
	STEP(gdrfab_inject_write(a->ep, a->memory, SMALL, a->peer, base + 2 * BIG, key));
	DO(a, gdrfab_read(a->ep, a->memory + BIG, BIG, desc, a->peer, base, key, a));
	if (memcmp(a->memory, a->memory + BIG, BIG))
		wrong(-EILSEQ);
	gdrfab_block blocks[300];
	for (int i = 0; i < 300; i++)
		blocks[i] = (gdrfab_block){a->memory + 16 * i, base + 2 * BIG + 32 * (uint64_t)i, 16};
	gdrfab_msg_list list = {.struct_size = sizeof list, .blocks = blocks, .count = 300, .desc = descs, .desc_count = 1, .key = &key,
				.key_count = 1, .addr = a->peer, .context = a};
	DO(a, gdrfab_writelist(a->ep, &list, 0));
	gdrfab_list *kept;
	STEP(gdrfab_list_open(a->ep, &list, &kept));
	DO(a, gdrfab_list_post(kept, GDRFAB_WRITE, 0, a));
	CLOSE(gdrfab_list_close(kept));
	for (int i = 0; i < 300; i++)
		if (memcmp(a->memory + 16 * i, there + 2 * BIG + 32 * i, 16))
			wrong(-EILSEQ);
	if (atomics) {
		uint64_t *one = (void *)(a->memory + 3 * BIG), *old = one + 8;
		*one = 1;
		DO(a, gdrfab_atomic(a->ep, one, 1, desc, a->peer, base + 3 * BIG, key, GDRFAB_UINT64, GDRFAB_SUM, a));
		DO(a, gdrfab_fetch_atomic(a->ep, one, 1, desc, old, desc, a->peer, base + 3 * BIG, key, GDRFAB_UINT64, GDRFAB_SUM, a));
	}
	STEP(gdrfab_ep_query(a->ep, a->peer, key, &path));
	STEP(gdrfab_ep_explain(a->ep, a->peer, key, text, sizeof text));
	STEP(gdrfab_ep_stats(a->ep, &stats));
	inside = true;
	for (int rc = -1; rc != 0 && rc != -EAGAIN;)
		if ((rc = gdrfab_cq_trywait(b->cq)) == -ENOMEM)
			atomic_store(&armed, false);
	inside = false;
	STEP(gdrfab_cq_signal(b->cq));
	gdrfab_cq_tagged_entry entry;
	do {
		doing = "gdrfab_cq_sread";
		inside = true;
		ssize_t rc = gdrfab_cq_sread(b->cq, &entry, 1, 10);
		inside = false;
		if (rc != -ENOMEM)
			break;
		atomic_store(&armed, false);
	} while (true);
	STEP(gdrfab_cntr_wait(a->cntr, 1, 1000));
	STEP(gdrfab_recv(b->ep, b->memory, SMALL, gdrfab_mr_desc(b->mr), GDRFAB_ADDR_UNSPEC, b));
}

static void close_side(struct side *s)
{
	CLOSE(gdrfab_ep_close(s->ep));
	if (s->av)
		CLOSE(gdrfab_av_close(s->av));
	CLOSE(gdrfab_mr_close(s->mr));
	CLOSE(gdrfab_mem_free(s->domain, s->memory));
	CLOSE(gdrfab_cq_close(s->cq));
	s->cq = NULL;
	CLOSE(gdrfab_cntr_close(s->cntr));
	CLOSE(gdrfab_domain_close(s->domain));
	CLOSE(gdrfab_eq_close(s->eq));
	CLOSE(gdrfab_fabric_close(s->fabric));
	inside = true;
	gdrfab_freeinfo(s->info);
	inside = false;
}

/* --- a child for each n --- */

struct claim {
	char name[64];
	const char *prov;
	bool rdm;
	int mode;
};

/* Exits 0 if the allocation that fails was made, or NONE_LEFT if there are not so many. */
enum { NONE_LEFT = 2 };
static void live(const void *arg)
{
	const struct claim *c = arg;
	own = true;
	how = c->mode;
	alarm((unsigned)test_ms(15000) / 1000);
	atomic_store(&armed, true);
	for (int i = 0; i < 2; i++)
		open_side(&sides[i], c->prov, c->rdm);
	if (!meet(c->rdm))
		meet_again();
	exchange(c->rdm, true);
	for (int i = 0; i < 2; i++)
		close_side(&sides[i]);
	bool reached = atomic_load(&made) >= failing;
	atomic_store(&armed, false);
	_exit(reached ? 0 : NONE_LEFT);
}

static void each_in_turn(const void *arg)
{
	const struct claim *c = arg;
	struct attempt attempt;
	long n = 1, wrongs = 0;
	if (test_checked())
		test_skip("a checker has an allocator of its own");
	attempt_open(&attempt);
	/* With TEST_FAST only every seventh allocation after the first. */
	for (long step = 1;; n += step) {
		failing = n;
		bool well = attempt_run(&attempt, live, c);
		if (attempt_exited(&attempt, NONE_LEFT))
			break;
		if (!well)
			test_wrong(__FILE__, __LINE__, "allocation %ld fails: %s", n, attempt.words), wrongs++;
		CHECK(wrongs < 20);
		step = test_count(1, 7);
	}
	CHECK(n > 200);
	attempt_close(&attempt);
}

TEST_TABLE(claims)
{
	static const struct {
		const char *name, *prov;
		bool rdm;
	} over[] = {{"shm", "shm", false}, {"tcp", "tcp", false}, {"rdm_over_shm", "shm", true}, {"rdm_over_tcp", "tcp", true}};
	static struct claim all[8];
	const char *only = getenv("TEST_PROVIDER");
	for (int i = 0; i < 8; i++) {
		all[i] = (struct claim){.prov = over[i / 2].prov, .rdm = over[i / 2].rdm, .mode = i % 2 ? ALL_BEHIND : ONE};
		snprintf(all[i].name, sizeof all[i].name, "%s_when_%s_fails", over[i / 2].name, i % 2 ? "all_from_the_nth" : "the_nth_allocation");
		if (!only || !strcmp(only, all[i].prov))
			test_add(all[i].name, each_in_turn, &all[i], 120);
	}
}
