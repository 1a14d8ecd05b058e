/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A peer that executes another program: its process number stays the same, but its addresses now are memory of the new
 * program. Operations posted before or after the exec end with an error, and neither read nor write the new memory.
 */
#include "fab.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

#define AT ((void *)0x600000000000)
#define LEN ((size_t)8 << 20)
#define LONG ((size_t)128 << 20)
#define SEED 5u
#define PLAN "TEST_EXEC_PLAN"
enum { NEW = 0x55 };

/* --- the new program --- */

static void tell_all(int fd, const void *what, size_t len)
{
	if (write(fd, what, len) != (ssize_t)len)
		_exit(3);
}

/* Maps memory of its own at the same address, and reports how many of its bytes were changed. */
__attribute__((constructor)) static void after_exec(void)
{
	const char *plan = getenv(PLAN);
	int oob;
	size_t len;
	char go;
	if (!plan)
		return;
	if (sscanf(plan, "%d %zu", &oob, &len) != 2)
		_exit(3);
	unsigned char *at = (unsigned char *)mmap(AT, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	if (at == MAP_FAILED)
		_exit(3);
	memset(at, NEW, len);
	tell_all(oob, "n", 1);
	if (read(oob, &go, 1) != 1)
		_exit(3);
	uint64_t changed = 0;
	for (size_t i = 0; i < len; i++)
		changed += at[i] != NEW;
	tell_all(oob, &changed, sizeof changed);
	_exit(0);
}

__attribute__((noreturn)) static void become_another(struct node *n, size_t len)
{
	char plan[64], self[4096] = "";
	/* By its name: valgrind answers readlink() for the program, but would execute itself for the link. */
	CHECK(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
	snprintf(plan, sizeof plan, "%d %zu", n->oob, len);
	setenv(PLAN, plan, 1);
	fcntl(n->oob, F_SETFD, 0);
	execl(self, "after_exec", (char *)NULL);
	test_fail(__FILE__, __LINE__, "execl: %s", strerror(errno));
}

static void memory_is_its_own(struct node *n)
{
	uint64_t changed;
	oob_send(n, "c", 1);
	oob_recv(n, &changed, sizeof changed);
	CHECK_EQ(changed, 0);
}

/* Maps memory at the address that the new program will use too. */
static void *mapped_at(size_t len)
{
	void *at = mmap(AT, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	CHECK(at != MAP_FAILED);
	return at;
}

static void only_processes(void)
{
	skip_if_connectionless();
	skip_unless(!traits()->adapter, "an adapter copies, whatever its owner executes");
}

/* --- operations posted after the exec --- */

enum what { WRITE, LARGE_WRITE, WRITEDATA, INJECT, READ, LARGE_READ, WRITELIST, READLIST, ADD, SEND, RECV, WHATS };
static const char *const names[WHATS] = {"write",     "large_write", "writedata", "inject", "read", "large_read",
					 "writelist", "readlist",    "add",       "send",   "recv"};
struct plan {
	enum what what;
	bool mapped; /* memory that peers map */
};

static void peer(struct node *n)
{
	const struct plan *plan = (const struct plan *)n->arg;
	unsigned char *at;
	char go;
	only_processes();
	node_up(n);
	if (plan->mapped)
		OK(gdrfab_mem_alloc(n->domain, GDRFAB_HMEM_SYSTEM, 0, LEN, 0, (void **)&at));
	else
		at = (unsigned char *)mapped_at(LEN);
	fill(at, LEN, 0, SEED);
	gdrfab_mr *mr = host_publish(n, at, LEN, ANY_ACCESS);
	barrier(n);
	if (plan->what == RECV)
		POST(n->cq, gdrfab_send(n->ep, at, (size_t)1 << 20, gdrfab_mr_desc(mr), PEER, at));
	n->idle = true;
	oob_recv(n, &go, 1);
	become_another(n, LEN);
}

static ssize_t post(struct node *n, enum what what, unsigned char *mine, void *desc, const struct remote *to)
{
	static gdrfab_block blocks[2];
	static gdrfab_msg_list list;
	uint64_t one = 1;
	blocks[0] = (gdrfab_block){mine, to->base, 4096};
	blocks[1] = (gdrfab_block){mine + 8192, to->base + 8192, 4096};
	list = (gdrfab_msg_list){.struct_size = sizeof list, .blocks = blocks, .count = 2, .key = &to->key, .key_count = 1, .addr = PEER, .context = mine};
	if (desc) {
		static void *descs[1];
		descs[0] = desc;
		list.desc = descs;
		list.desc_count = 1;
	}
	switch (what) {
	case WRITE:
		return gdrfab_write(n->ep, mine, 65536, desc, PEER, to->base, to->key, mine);
	case LARGE_WRITE:
		return gdrfab_write(n->ep, mine, LEN, desc, PEER, to->base, to->key, mine);
	case WRITEDATA:
		return gdrfab_writedata(n->ep, mine, 65536, desc, 9, PEER, to->base, to->key, mine);
	case INJECT:
		return gdrfab_inject_write(n->ep, mine, 64, PEER, to->base, to->key);
	case READ:
		return gdrfab_read(n->ep, mine, 65536, desc, PEER, to->base, to->key, mine);
	case LARGE_READ:
		return gdrfab_read(n->ep, mine, LEN, desc, PEER, to->base, to->key, mine);
	case WRITELIST:
		return gdrfab_writelist(n->ep, &list, 0);
	case READLIST:
		return gdrfab_readlist(n->ep, &list, 0);
	case ADD:
		return gdrfab_atomic(n->ep, &one, 1, NULL, PEER, to->base, to->key, GDRFAB_UINT64, GDRFAB_SUM, mine);
	case SEND:
		return gdrfab_send(n->ep, mine, (size_t)1 << 20, desc, PEER, mine);
	default:
		return gdrfab_recv(n->ep, mine, (size_t)1 << 20, desc, GDRFAB_ADDR_UNSPEC, mine);
	}
}

static void initiator(struct node *n)
{
	const struct plan *plan = (const struct plan *)n->arg;
	done e;
	char new;
	gdrfab_mr *mr;
	only_processes();
	node_up(n);
	struct remote to = mem_fetch(n);
	unsigned char *mine = (unsigned char *)calloc(1, LEN);
	OK(gdrfab_mr_reg(n->domain, mine, LEN, ANY_ACCESS, 0, 0, 0, NULL, &mr));
	void *desc = gdrfab_mr_desc(mr);
	POST(n->cq, gdrfab_read(n->ep, mine, 4096, desc, PEER, to.base, to.key, mine));
	DONE(n->cq, mine, GDRFAB_READ, NULL);
	CHECK_FILLED("before", mine, 4096, 0, SEED);
	memset(mine, 0, 4096);
	barrier(n);
	/* No progress here until the exec has happened. */
	n->idle = true;
	oob_send(n, "x", 1);
	oob_recv(n, &new, 1);
	ssize_t rc = post(n, plan->what, mine, desc, &to);
	if (rc != 0) {
		CHECK_EQ(rc, -ESHUTDOWN);
	} else {
		int got = cq_next(n->cq, &e, plan->mapped && plan->what == INJECT ? 100 : 10000);
		/* A file that is mapped here outlives its owner: writes and reads may still succeed. */
		if (got < 0) {
			struct failure f;
			cq_failure(__FILE__, __LINE__, n->cq, &f);
			CHECK_EQ(f.entry.err, ECONNRESET);
			CHECK_EQ(f.entry.prov_errno, GDRFAB_PROV_PEER_GONE);
		} else if (!plan->mapped || plan->what == SEND) {
			test_fail(__FILE__, __LINE__, "%s", got ? "the operation ended well" : "the operation does not end");
		}
	}
	/* Over tcp a part of the message was sent before the exec, and may contain this byte. */
	for (size_t i = 0; i < LEN && !plan->mapped && !(plan->what == RECV && traits()->numbered); i++)
		if (mine[i] == NEW)
			test_fail(__FILE__, __LINE__, "a byte of the new program was read");
	/* From then on every post is refused. */
	uint64_t until = test_now_ms() + (uint64_t)test_ms(10000);
	while ((rc = gdrfab_write(n->ep, mine, 8, desc, PEER, to.base, to.key, mine)) != -ESHUTDOWN) {
		CHECK(test_now_ms() < until);
		gdrfab_cq_read(n->cq, NULL, 0);
		struct failure f;
		if (gdrfab_cq_read(n->cq, &e, 1) == -GDRFAB_EAVAIL)
			cq_failure(__FILE__, __LINE__, n->cq, &f);
	}
	memory_is_its_own(n);
	OK(gdrfab_mr_close(mr));
	node_close(n);
	free(mine);
}

static void after(const void *arg)
{
	struct setup setup = {.caps = GDRFAB_MSG | GDRFAB_RMA | GDRFAB_ATOMIC};
	pair(&setup, peer, initiator, arg);
}

TEST_TABLE(per_operation)
{
	static struct plan plans[WHATS][2];
	static char claims[WHATS][2][64];
	for (int what = 0; what < WHATS; what++)
		for (int mapped = 0; mapped < 2; mapped++) {
			plans[what][mapped] = (struct plan){(enum what)what, mapped};
			snprintf(claims[what][mapped], 64, "%s_after_exec%s", names[what], mapped ? "_mapped" : "");
			test_add(claims[what][mapped], after, &plans[what][mapped], 30);
		}
}

/* --- operations under way during the exec --- */

static void awaits_first_byte(struct node *n)
{
	only_processes();
	skip_unless(path_known(PATH_CMA), "nothing copies into memory of a process that does not take part");
	node_up(n);
	volatile unsigned char *at = (unsigned char *)mapped_at(LONG);
	memset((void *)(uintptr_t)at, 0, LONG);
	host_publish(n, (void *)(uintptr_t)at, LONG, REMOTE_ACCESS);
	while (!*at)
		;
	become_another(n, LONG);
}

static void writes_long(struct node *n)
{
	char new;
	done e;
	only_processes();
	skip_unless(path_known(PATH_CMA), "nothing copies into memory of a process that does not take part");
	node_up(n);
	skip_if_cma_refused(n);
	struct remote to = mem_fetch(n);
	unsigned char *mine = (unsigned char *)malloc(LONG);
	memset(mine, 1, LONG);
	OK(gdrfab_write(n->ep, mine, LONG, NULL, PEER, to.base, to.key, mine));
	n->idle = true;
	oob_recv(n, &new, 1);
	/* The write may succeed if the copy was complete before: each copy by the kernel ends in the memory that it began in. */
	int got = cq_next(n->cq, &e, 10000);
	CHECK(got != 0);
	if (got < 0) {
		struct failure f;
		cq_failure(__FILE__, __LINE__, n->cq, &f);
		CHECK_EQ(f.entry.prov_errno, GDRFAB_PROV_PEER_GONE);
	}
	memory_is_its_own(n);
	node_close(n);
	free(mine);
}

TEST_WITHIN(60, exec_amid_a_long_write)
{
	pair(NULL, awaits_first_byte, writes_long, NULL);
}

/* The process that executes has posted a read: its peer must not help with that read after the exec. */

static void *reads_long(void *arg)
{
	struct node *n = (struct node *)arg;
	struct remote from = mem_fetch(n);
	gdrfab_read(n->ep, AT, LONG, NULL, PEER, from.base, from.key, AT);
	return NULL;
}

static void reads_and_execs(struct node *n)
{
	pthread_t thread;
	only_processes();
	skip_unless(path_known(PATH_CMA), "nothing copies into memory of a process that does not take part");
	node_up(n);
	volatile unsigned char *at = (unsigned char *)mapped_at(LONG);
	n->idle = true;
	CHECK_EQ(pthread_create(&thread, NULL, reads_long, n), 0);
	while (!*at)
		;
	become_another(n, LONG);
}

static void would_help(struct node *n)
{
	char new;
	only_processes();
	skip_unless(path_known(PATH_CMA), "nothing copies into memory of a process that does not take part");
	node_up(n);
	skip_if_cma_refused(n);
	unsigned char *at = (unsigned char *)malloc(LONG);
	memset(at, 1, LONG);
	n->idle = true;
	gdrfab_mr *mr = host_publish(n, at, LONG, REMOTE_ACCESS);
	oob_recv(n, &new, 1);
	for (uint64_t until = test_now_ms() + 200; test_now_ms() < until;)
		gdrfab_cq_read(n->cq, NULL, 0);
	memory_is_its_own(n);
	OK(gdrfab_mr_close(mr));
	node_close(n);
	free(at);
}

TEST_WITHIN(60, no_help_for_what_was_begun_before_exec)
{
	pair(NULL, reads_and_execs, would_help, NULL);
}

/* --- a process whose first thread has ended is not dead --- */

static void *lives_on(void *arg)
{
	struct node *n = (struct node *)arg;
	static unsigned char at[65536];
	char path[64], state = 0;
	snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)getpid());
	for (uint64_t until = test_now_ms() + (uint64_t)test_ms(5000); state != 'Z';) {
		FILE *f = fopen(path, "r");
		CHECK(f && test_now_ms() < until);
		CHECK_EQ(fscanf(f, "%*d %*s %c", &state), 1);
		fclose(f);
	}
	fill(at, sizeof at, 0, SEED);
	host_publish(n, at, sizeof at, ANY_ACCESS);
	barrier(n);
	CHECK_FILLED("written", at, sizeof at, 0, SEED + 1);
	/* Ends here: descriptors of a process without its first thread cannot be counted. */
	test_child_done();
}

static void first_thread_ends(struct node *n)
{
	pthread_t thread;
	only_processes();
	node_up(n);
	CHECK_EQ(pthread_create(&thread, NULL, lives_on, n), 0);
	pthread_exit(NULL);
}

static void goes_on(struct node *n)
{
	only_processes();
	node_up(n);
	struct remote to = mem_fetch(n);
	unsigned char *mine = (unsigned char *)calloc(1, 65536);
	POST(n->cq, gdrfab_read(n->ep, mine, 65536, local_desc(n, mine, 65536), PEER, to.base, to.key, mine));
	DONE(n->cq, mine, GDRFAB_READ, NULL);
	CHECK_FILLED("read", mine, 65536, 0, SEED);
	fill(mine, 65536, 0, SEED + 1);
	POST(n->cq, gdrfab_write(n->ep, mine, 65536, local_desc(n, mine, 65536), PEER, to.base, to.key, mine));
	DONE(n->cq, mine, GDRFAB_WRITE, NULL);
	barrier(n);
	node_close(n);
	free(mine);
}

TEST(a_first_thread_that_ends_is_no_death)
{
	pair(NULL, first_thread_ends, goes_on, NULL);
}
