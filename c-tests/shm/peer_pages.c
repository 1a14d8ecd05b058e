/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Memory of a peer that cross-memory attach (process_vm_*) cannot copy: pages that never come (userfaultfd; a file on a dead
 * server behaves so), memory that the kernel copies for no other process (memfd_secret), and a peer that may not be traced
 * any more. In the first case the operation ends by its deadline and no other operation suffers; in the other cases the
 * library uses another path.
 */
#include "fab.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define LEN ((size_t)8 << 20)
#define MESSAGE ((size_t)1 << 20)
#define SEED 7u

#ifndef SYS_memfd_secret
#define SYS_memfd_secret 447
#endif

/* The reason why cross-memory attach fails: a region, the peer, or this process itself. */
enum loss { SECRET, UNTRACEABLE, FORBIDDEN, NO_CALL, LOSSES };
static const char *const loss_names[LOSSES] = {"secret_memory", "a_peer_that_is_not_traceable", "a_call_that_is_forbidden",
					       "a_call_that_is_gone"};

static void only_where_the_kernel_copies(void)
{
	skip_unless(path_known(PATH_CMA), "the kernel copies nothing for other processes");
}

static void *fresh(size_t len)
{
	void *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(at != MAP_FAILED);
	return at;
}

static void *secret(size_t len)
{
	int fd = (int)syscall(SYS_memfd_secret, 0);
	if (fd < 0)
		test_skip("memfd_secret: %s", strerror(errno));
	CHECK_EQ(ftruncate(fd, (off_t)len), 0);
	void *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		test_skip("memory of memfd_secret: %s", strerror(errno));
	close(fd);
	return at;
}

/* Gives up root, whose CAP_SYS_PTRACE may trace every process. */
static void be_nobody_special(void)
{
	if (geteuid() != 0)
		return;
	if (setgid(1000) != 0 || setuid(1000) != 0)
		test_skip("this process stays privileged: %s", strerror(errno));
	prctl(PR_SET_DUMPABLE, 1);
}

/* From here on process_vm_readv() and process_vm_writev() fail with err. */
static void forbid(int err)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)err),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
	CHECK_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
		test_skip("PR_SET_SECCOMP: %s", strerror(errno));
}

static void path_is_lost(struct node *n, const struct remote *to, enum loss loss)
{
	static const int errnos[LOSSES] = {EFAULT, EPERM, EPERM, ENOSYS};
	gdrfab_path_info info;
	memset(&info, 0, sizeof info);
	info.struct_size = sizeof info;
	OK(gdrfab_ep_query(n->ep, 0, to->key, &info));
	CHECK_EQ(info.path, GDRFAB_PATH_STAGED);
	CHECK_EQ(info.reasons[PATH_CMA], errnos[loss]);
}

/* --- a path that is lost --- */

static void owner(struct node *n)
{
	enum loss loss = *(const enum loss *)n->arg;
	only_where_the_kernel_copies();
	if (loss == UNTRACEABLE)
		be_nobody_special();
	node_up(n);
	unsigned char *at = (unsigned char *)(loss == SECRET ? secret(LEN) : fresh(LEN)), *in = (unsigned char *)fresh(MESSAGE);
	memset(at, 0, LEN);
	gdrfab_mr *mr = host_publish(n, at, LEN, ANY_ACCESS);
	barrier(n);
	if (loss == UNTRACEABLE)
		CHECK_EQ(prctl(PR_SET_DUMPABLE, 0), 0);
	barrier(n);
	/* The peer's operations run until its next barrier, by its own progress or by this side's. */
	barrier(n);
	POST(n->cq, gdrfab_recv(n->ep, in, MESSAGE, NULL, GDRFAB_ADDR_UNSPEC, in));
	meet_if_hasty(n);
	for (int left = 1; left > 0;) {
		done e;
		CHECK_EQ(cq_next(n->cq, &e, 10000), 1);
		left -= e.op_context == in;
	}
	CHECK_FILLED("a message to here", in, MESSAGE, 0, SEED + 1);
	fill(at, MESSAGE, 0, SEED + 2);
	POST(n->cq, gdrfab_send(n->ep, at, MESSAGE, NULL, PEER, at));
	DONE(n->cq, at, GDRFAB_SEND, NULL);
	barrier(n);
	OK(gdrfab_mr_close(mr));
	node_close(n);
}

static void both_ways(struct node *n, const struct remote *to, unsigned char *mine, size_t len, uint32_t seed)
{
	fill(mine, len, 0, seed);
	POST(n->cq, gdrfab_write(n->ep, mine, len, NULL, PEER, to->base, to->key, mine));
	DONE(n->cq, mine, GDRFAB_WRITE, NULL);
	memset(mine, 0, len);
	POST(n->cq, gdrfab_read(n->ep, mine, len, NULL, PEER, to->base, to->key, mine));
	DONE(n->cq, mine, GDRFAB_READ, NULL);
	CHECK_FILLED("written and read back", mine, len, 0, seed);
}

static void lists(struct node *n, const struct remote *to, unsigned char *mine, uint32_t seed)
{
	gdrfab_block blocks[100];
	gdrfab_msg_list list = {.struct_size = sizeof list, .blocks = blocks, .count = 100, .key = &to->key, .key_count = 1, .addr = PEER, .context = mine};
	for (int i = 0; i < 100; i++)
		blocks[i] = (gdrfab_block){mine + i * 8192, to->base + (uint64_t)i * 12288, 5000};
	fill(mine, 100 * 8192, 0, seed);
	POST(n->cq, gdrfab_writelist(n->ep, &list, 0));
	DONE(n->cq, mine, GDRFAB_WRITE, NULL);
	memset(mine, 0, 100 * 8192);
	POST(n->cq, gdrfab_readlist(n->ep, &list, 0));
	DONE(n->cq, mine, GDRFAB_READ, NULL);
	for (size_t i = 0; i < 100; i++)
		CHECK_FILLED("a block", mine + i * 8192, 5000, i * 8192, seed);
}

static void user(struct node *n)
{
	enum loss loss = *(const enum loss *)n->arg;
	uint64_t one = 1, old = 9;
	done e;
	only_where_the_kernel_copies();
	if (loss == UNTRACEABLE)
		be_nobody_special();
	node_up(n);
	skip_if_cma_refused(n);
	struct remote to = mem_fetch(n);
	unsigned char *mine = (unsigned char *)fresh(LEN);
	if (loss != SECRET)
		both_ways(n, &to, mine, 65536, SEED);
	barrier(n);
	barrier(n);
	if (loss == FORBIDDEN || loss == NO_CALL)
		forbid(loss == FORBIDDEN ? EPERM : ENOSYS);
	both_ways(n, &to, mine, 8, SEED + 3);
	path_is_lost(n, &to, loss);
	both_ways(n, &to, mine, 65536, SEED + 4);
	both_ways(n, &to, mine, LEN, SEED + 5);
	lists(n, &to, mine, SEED + 6);
	fill(mine, 64, 0, SEED + 7);
	POST(n->cq, gdrfab_inject_write(n->ep, mine, 64, PEER, to.base, to.key));
	POST(n->cq, gdrfab_read(n->ep, mine + 64, 64, NULL, PEER, to.base, to.key, mine));
	DONE(n->cq, mine, GDRFAB_READ, NULL);
	CHECK_FILLED("injected", mine + 64, 64, 0, SEED + 7);
	memset(mine, 0, 8);
	POST(n->cq, gdrfab_write(n->ep, mine, 8, NULL, PEER, to.base, to.key, mine));
	DONE(n->cq, mine, GDRFAB_WRITE, NULL);
	/* If /proc is closed to the peer, a child that shares its memory carries the atomics out; a memory checker gives such a
	 * child a copy instead. */
	for (uint64_t i = 0; i < 3 && !test_checked(); i++) {
		POST(n->cq, gdrfab_fetch_atomic(n->ep, &one, 1, NULL, &old, NULL, PEER, to.base, to.key, GDRFAB_UINT64, GDRFAB_SUM, &one));
		DONE(n->cq, &one, 0, NULL);
		CHECK_EQ(old, i);
	}
	barrier(n);
	unsigned char *out = (unsigned char *)(loss == SECRET ? secret(MESSAGE) : fresh(MESSAGE)), *in = mine;
	fill(out, MESSAGE, 0, SEED + 1);
	POST(n->cq, gdrfab_recv(n->ep, in, MESSAGE, NULL, GDRFAB_ADDR_UNSPEC, in));
	meet_if_hasty(n);
	POST(n->cq, gdrfab_send(n->ep, out, MESSAGE, NULL, PEER, out));
	for (int left = 2; left > 0; left--)
		CHECK_EQ(cq_next(n->cq, &e, 10000), 1);
	CHECK_FILLED("a message from there", in, MESSAGE, 0, SEED + 2);
	barrier(n);
	node_close(n);
}

/* Each kind of operation as the first after the loss, in a connection of its own, so that it finds the loss itself. */
enum first { LIST, LARGE, MESSAGES, FIRSTS };
static const char *const first_names[FIRSTS] = {"list", "large", "message"};
struct meeting {
	enum loss loss;
	enum first first;
};

static void first_owner(struct node *n)
{
	const struct meeting *m = (const struct meeting *)n->arg;
	only_where_the_kernel_copies();
	if (m->loss == UNTRACEABLE)
		be_nobody_special();
	node_up(n);
	unsigned char *at = (unsigned char *)(m->loss == SECRET ? secret(LEN) : fresh(LEN));
	fill(at, LEN, 0, SEED);
	gdrfab_mr *mr = host_publish(n, at, LEN, ANY_ACCESS);
	barrier(n);
	if (m->loss == UNTRACEABLE)
		CHECK_EQ(prctl(PR_SET_DUMPABLE, 0), 0);
	barrier(n);
	if (m->first == MESSAGES) {
		POST(n->cq, gdrfab_send(n->ep, at, MESSAGE, NULL, PEER, at));
		DONE(n->cq, at, GDRFAB_SEND, NULL);
	}
	barrier(n);
	OK(gdrfab_mr_close(mr));
	node_close(n);
}

static void first_user(struct node *n)
{
	const struct meeting *m = (const struct meeting *)n->arg;
	only_where_the_kernel_copies();
	if (m->loss == UNTRACEABLE)
		be_nobody_special();
	node_up(n);
	skip_if_cma_refused(n);
	struct remote to = mem_fetch(n);
	unsigned char *mine = (unsigned char *)fresh(LEN);
	if (m->loss != SECRET) {
		POST(n->cq, gdrfab_read(n->ep, mine, LEN, NULL, PEER, to.base, to.key, mine));
		DONE(n->cq, mine, GDRFAB_READ, NULL);
	}
	barrier(n);
	barrier(n);
	if (m->loss == FORBIDDEN || m->loss == NO_CALL)
		forbid(m->loss == FORBIDDEN ? EPERM : ENOSYS);
	switch (m->first) {
	case LIST:
		lists(n, &to, mine, SEED + 6);
		break;
	case LARGE:
		both_ways(n, &to, mine, LEN, SEED + 5);
		break;
	default:
		memset(mine, 0, MESSAGE);
		POST(n->cq, gdrfab_recv(n->ep, mine, MESSAGE, NULL, GDRFAB_ADDR_UNSPEC, mine));
		DONE(n->cq, mine, GDRFAB_RECV, NULL);
		CHECK_FILLED("a message", mine, MESSAGE, 0, SEED);
	}
	barrier(n);
	node_close(n);
}

static void lost_path(const void *arg)
{
	struct setup setup = {.caps = GDRFAB_MSG | GDRFAB_RMA | GDRFAB_ATOMIC};
	pair(&setup, owner, user, arg);
}

static void met_first(const void *arg)
{
	pair(NULL, first_owner, first_user, arg);
}

TEST_TABLE(per_loss)
{
	static enum loss losses[LOSSES];
	static struct meeting meetings[LOSSES][FIRSTS];
	static char names[LOSSES][FIRSTS + 1][96];
	for (int l = 0; l < LOSSES; l++) {
		losses[l] = (enum loss)l;
		snprintf(names[l][FIRSTS], 96, "%s_costs_a_path", loss_names[l]);
		test_add(names[l][FIRSTS], lost_path, &losses[l], 40);
		for (int f = 0; f < FIRSTS; f++) {
			/* Each loss has the same errno: a memory checker meets each by another operation. */
			if (test_checked() && f != l % FIRSTS)
				continue;
			meetings[l][f] = (struct meeting){(enum loss)l, (enum first)f};
			snprintf(names[l][f], 96, "%s_met_by_a_%s", loss_names[l], first_names[f]);
			test_add(names[l][f], met_first, &meetings[l][f], 40);
		}
	}
}

/* --- pages that never come --- */

enum touch { WRITE_INTO, READ_FROM, LIST_INTO, RECEIVE, TOUCHES };
static const char *const touch_names[TOUCHES] = {"a_write_into", "a_read_from", "a_list_into", "a_message_out_of"};

static void *pages_that_never_come(size_t len)
{
	void *at = fresh(len);
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
	if (fd < 0)
		test_skip("userfaultfd: %s", strerror(errno));
	struct uffdio_api api = {.api = UFFD_API};
	struct uffdio_register range = {.range = {(uint64_t)(uintptr_t)at, len}, .mode = UFFDIO_REGISTER_MODE_MISSING};
	CHECK_EQ(ioctl(fd, UFFDIO_API, &api), 0);
	CHECK_EQ(ioctl(fd, UFFDIO_REGISTER, &range), 0);
	return at;
}

static void odd_owner(struct node *n)
{
	enum touch touch = *(const enum touch *)n->arg;
	char over;
	only_where_the_kernel_copies();
	node_up(n);
	unsigned char *never = (unsigned char *)pages_that_never_come(LEN), *at = (unsigned char *)fresh(LEN);
	fill(at, LEN, 0, SEED);
	host_publish(n, never, LEN, ANY_ACCESS);
	host_publish(n, at, LEN, ANY_ACCESS);
	if (touch == RECEIVE)
		POST(n->cq, gdrfab_send(n->ep, never, MESSAGE, NULL, PEER, never));
	barrier(n);
	oob_recv(n, &over, 1);
	/* The end of this process releases threads that wait in the kernel for one of its pages. */
	_exit(0);
}

#define SOON 300 /* ms */

static void patient_user(struct node *n)
{
	enum touch touch = *(const enum touch *)n->arg;
	only_where_the_kernel_copies();
	node_up(n);
	skip_if_cma_refused(n);
	struct remote to[2];
	for (int i = 0; i < 2; i++)
		to[i] = mem_fetch(n);
	unsigned char *mine = (unsigned char *)fresh(LEN);
	barrier(n);
	uint64_t ns = (uint64_t)SOON * 1000000u, start = test_now_ms();
	gdrfab_block block = {mine, to[0].base + 4096, 9000};
	gdrfab_msg_list list = {.struct_size = sizeof list, .blocks = &block, .count = 1, .key = &to[0].key, .key_count = 1, .addr = PEER, .context = mine, .timeout_ns = ns};
	OK(gdrfab_ep_setopt(n->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_DEADLINE, &ns, sizeof ns));
	OK(gdrfab_ep_setopt(n->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_RECV_DEADLINE, &ns, sizeof ns));
	switch (touch) {
	case WRITE_INTO:
		POST(n->cq, gdrfab_write(n->ep, mine, MESSAGE, NULL, PEER, to[0].base, to[0].key, mine));
		break;
	case READ_FROM:
		POST(n->cq, gdrfab_read(n->ep, mine, 8, NULL, PEER, to[0].base, to[0].key, mine));
		break;
	case LIST_INTO:
		POST(n->cq, gdrfab_writelist(n->ep, &list, 0));
		break;
	default:
		POST(n->cq, gdrfab_recv(n->ep, mine, MESSAGE, NULL, GDRFAB_ADDR_UNSPEC, mine));
	}
	CHECK(test_now_ms() - start < (uint64_t)test_ms(2000));
	FAILED(n->cq, mine, ETIMEDOUT, GDRFAB_PROV_DEADLINE, NULL);
	CHECK(test_now_ms() - start < SOON + (uint64_t)test_ms(5000));
	/* Other memory of the peer is reached as before. */
	ns = (uint64_t)test_ms(10000) * 1000000u;
	OK(gdrfab_ep_setopt(n->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_DEADLINE, &ns, sizeof ns));
	test_sleep_ms(150);
	POST(n->cq, gdrfab_read(n->ep, mine, LEN, NULL, PEER, to[1].base, to[1].key, mine));
	DONE(n->cq, mine, GDRFAB_READ, NULL);
	CHECK_FILLED("memory whose pages are there", mine, LEN, 0, SEED);
	/* Closing does not wait for the pages either. */
	start = test_now_ms();
	node_close(n);
	CHECK(test_now_ms() - start < (uint64_t)test_ms(5000));
	oob_send(n, "o", 1);
}

static void never_comes(const void *arg)
{
	pair(NULL, odd_owner, patient_user, arg);
}

TEST_TABLE(per_touch)
{
	static enum touch touches[TOUCHES];
	static char names[TOUCHES][64];
	for (int t = 0; t < TOUCHES; t++) {
		touches[t] = (enum touch)t;
		snprintf(names[t], 64, "%s_pages_that_never_come", touch_names[t]);
		test_add(names[t], never_comes, &touches[t], 40);
	}
}

/* --- pages that the kernel makes at the first access --- */

static void late_owner(struct node *n)
{
	node_up(n);
	unsigned char *at = (unsigned char *)fresh(LEN);
	at[5000] = 1;
	gdrfab_mr *mr = host_publish(n, at, LEN, ANY_ACCESS);
	barrier(n);
	CHECK_FILLED("written", at + 4096, 4096, 0, SEED);
	CHECK_FILLED("written", at + 100000, LEN - 100000, 0, SEED + 1);
	CHECK_EQ(at[0], 0);
	OK(gdrfab_mr_close(mr));
	node_down(n);
}

static void early_user(struct node *n)
{
	node_up(n);
	struct remote to = mem_fetch(n);
	unsigned char *mine = (unsigned char *)fresh(LEN);
	memset(mine, 1, 16);
	POST(n->cq, gdrfab_read(n->ep, mine, 16, local_desc(n, mine, LEN), PEER, to.base + 20000, to.key, mine));
	DONE(n->cq, mine, GDRFAB_READ, NULL);
	CHECK(mine[0] == 0 && mine[15] == 0);
	fill(mine, 4096, 0, SEED);
	POST(n->cq, gdrfab_write(n->ep, mine, 4096, local_desc(n, mine, LEN), PEER, to.base + 4096, to.key, mine));
	DONE(n->cq, mine, GDRFAB_WRITE, NULL);
	fill(mine, LEN - 100000, 0, SEED + 1);
	POST(n->cq, gdrfab_write(n->ep, mine, LEN - 100000, local_desc(n, mine, LEN), PEER, to.base + 100000, to.key, mine));
	DONE(n->cq, mine, GDRFAB_WRITE, NULL);
	barrier(n);
	node_down(n);
}

TEST(memory_that_was_never_touched)
{
	pair(NULL, late_owner, early_user, NULL);
}
