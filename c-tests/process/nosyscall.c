/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A failed system call ends no process and loses nothing. For each system call that makes or uses a resource, a child (the
 * walker) runs everything that a program does with the library, and the n-th system call of one kind fails with an errno. A
 * seccomp filter hands these calls to a thread that was made before the filter, which answers for the kernel. Each call of
 * the library succeeds, or returns an errno with a text and succeeds when it is repeated, if need be over a new connection.
 * Closes succeed, all bytes arrive, and no descriptor stays open.
 */
#include "claim.h"
#include "attempt.h"
#include "pattern.h"

#include <gdrfab.h>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/* --- the system calls, and the errnos that each may fail with --- */

static const struct kind {
	const char *name;
	int nr;
	int errnos[4];
} kinds[] = {
#define KIND(call, ...) {#call, SYS_##call, {__VA_ARGS__}}
	KIND(socket, EMFILE, ENOBUFS, EPERM, EAFNOSUPPORT),
	KIND(socketpair, EMFILE, ENFILE, EPERM, ENOMEM),
	KIND(accept4, EMFILE, ENOMEM, EINTR, EPERM),
	KIND(bind, EACCES, ENOMEM, EPERM),
	KIND(listen, EADDRINUSE, EPERM),
	KIND(connect, EAGAIN, EPERM, EINTR, EADDRNOTAVAIL),
	KIND(getsockname, ENOBUFS),
	KIND(getsockopt, ENOPROTOOPT, ENOMEM),
	KIND(setsockopt, ENOMEM, EPERM, ENOPROTOOPT),
	/* Not EAGAIN: the kernel returns it only for a full socket, whose packets will wake the reader. */
	KIND(sendmsg, ENOBUFS, ENOMEM, EINTR),
	KIND(recvmsg, ENOMEM, EINTR, EAGAIN),
	KIND(sendto, ENOBUFS, ENOMEM, EINTR, EAGAIN),
	KIND(recvfrom, ENOMEM, EINTR, EAGAIN),
	KIND(memfd_create, EMFILE, ENOMEM, ENOSYS, EPERM),
	KIND(ftruncate, ENOSPC, EFBIG, EINTR, EPERM),
	KIND(fallocate, ENOSPC, EOPNOTSUPP, EINTR, EPERM),
	KIND(mmap, ENOMEM, EAGAIN, EPERM, ENODEV),
	KIND(mremap, ENOMEM),
	KIND(mprotect, ENOMEM, EACCES),
	KIND(madvise, EINVAL, ENOMEM, EAGAIN, EPERM),
	KIND(mincore, EAGAIN, ENOMEM),
	/* Not EACCES and ENOENT: they are lasting facts about the file. Without /proc the host of a process is unknown. */
	KIND(openat, EMFILE, ENFILE, ENOMEM, EINTR),
	KIND(flock, EINTR, ENOLCK),
	KIND(eventfd2, EMFILE, ENOMEM, EPERM),
	KIND(epoll_create1, EMFILE, ENOMEM, EPERM),
	KIND(epoll_ctl, ENOMEM, ENOSPC, EPERM),
	KIND(timerfd_create, EMFILE, ENOMEM, EPERM),
	KIND(timerfd_settime, ENOMEM, EPERM),
	KIND(pidfd_open, EMFILE, ENOSYS, EPERM, ENOMEM),
	KIND(pidfd_getfd, EPERM, EMFILE, ENOSYS),
	KIND(clone, EAGAIN, ENOMEM, EPERM),
	KIND(clone3, EAGAIN, ENOMEM, EPERM),
	/* Not EPERM and ENOSYS: Rust's hash tables then open /dev/urandom, which the process keeps open. */
	KIND(getrandom, EINTR),
	KIND(membarrier, EPERM, ENOSYS, ENOMEM),
	KIND(fcntl, EMFILE, EPERM, EINVAL),
	KIND(dup3, EMFILE, EINTR),
	KIND(process_vm_readv, EPERM, ENOSYS, ENOMEM),
	KIND(process_vm_writev, EPERM, ENOSYS, ENOMEM),
	KIND(pread64, EIO, EINTR, ENOMEM),
	KIND(pwrite64, EIO, EINTR, ENOMEM),
	KIND(prctl, EPERM, EINVAL),
	KIND(sched_setaffinity, EPERM, EINVAL),
	KIND(ppoll, EINTR, ENOMEM),
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* The call that fails, and its errno; kind -1: none fails. */
struct failure {
	int kind;
	long n;
	int err;
};

/* Memory that all processes of a claim share. */
struct page {
	atomic_long calls[KINDS];
	/* The peer's address and region, the messages it has received, and the messages it is asked to send. */
	unsigned char name[GDRFAB_ADDR_MAX], walker[GDRFAB_NAME_LEN];
	uint64_t base, key;
	size_t asked_len;
	atomic_uint ready, named, got, asked, end;
};
static struct page *page;

static struct failure failing;
static atomic_bool armed, struck;
/* Counted are the system calls that this program's thread makes inside a call of the library, and all of other threads. */
static atomic_bool inside;
static pid_t own;
static atomic_int listener = -1;

static int answer(const struct seccomp_notif *asked)
{
	if (!atomic_load(&armed) || ((pid_t)asked->pid == own && !atomic_load(&inside)))
		return 0;
	for (int i = 0; i < KINDS; i++) {
		if (kinds[i].nr != asked->data.nr)
			continue;
		long n = atomic_fetch_add(&page->calls[i], 1) + 1;
		if (i != failing.kind || n != failing.n)
			return 0;
		atomic_store(&struck, true);
		return -failing.err;
	}
	return 0;
}

static void *supervise(void *unused)
{
	(void)unused;
	while (atomic_load(&listener) < 0)
		sched_yield();
	for (;;) {
		struct seccomp_notif asked;
		memset(&asked, 0, sizeof asked);
		if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &asked) != 0)
			continue;
		struct seccomp_notif_resp told = {.id = asked.id, .error = answer(&asked)};
		if (told.error == 0)
			told.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
		ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &told);
	}
	return NULL;
}

/* Installs the filter: from here on the thread made before it answers for the kernel. False, with errno: not supported. */
static bool filtered(void)
{
	struct sock_filter filter[KINDS + 3];
	int len = 0;
	filter[len++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (int i = 0; i < KINDS; i++)
		filter[len++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)kinds[i].nr, (unsigned char)(KINDS - i), 0);
	filter[len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	filter[len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF);
	struct sock_fprog program = {(unsigned short)len, filter};
	pthread_t thread;
	own = (pid_t)syscall(SYS_gettid);
	if (pthread_create(&thread, NULL, supervise, NULL) != 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
		return false;
	int fd = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
	if (fd < 0)
		return false;
	atomic_store(&listener, fd);
	return true;
}

/* --- calls, repeated if they failed --- */

#define BIG 70000
#define SMALL 64
#define REGION (4 * BIG)
#define PATIENCE 8000

struct side {
	gdrfab_info *info;
	gdrfab_fabric *fabric;
	gdrfab_eq *eq;
	gdrfab_domain *domain;
	gdrfab_cq *cq;
	gdrfab_cntr *cntr;
	gdrfab_av *av;
	gdrfab_pep *pep;
	gdrfab_ep *ep;
	gdrfab_mr *mr;
	unsigned char *memory;
	uint64_t peer;
};
static struct side sides[2];
static const char *prov;
static bool rdm, apart;
static const char *doing;
/* The point where the walker continues after its connection has ended. */
static jmp_buf over;
static bool connected, peer_moves;

static void wrong(long rc)
{
	atomic_store(&armed, false);
	fprintf(stdout, "%s is %s%s\n", doing, test_number(rc), rc < 0 ? test_words(rc) : "");
	fflush(stdout);
	_exit(1);
}

static void peer_step(void);

static void drive(void)
{
	atomic_store(&inside, true);
	if (sides[0].cq)
		gdrfab_cq_read(sides[0].cq, NULL, 0);
	if (sides[1].cq && peer_moves)
		gdrfab_cq_read(sides[1].cq, NULL, 0);
	atomic_store(&inside, false);
	if (!apart)
		peer_step();
}

static bool may_have_failed(long rc)
{
	return rc < 0 && atomic_load(&struck) && *gdrfab_last_error();
}

/* For the tries of one step: whether the call is to be repeated. */
struct tries {
	uint64_t until;
	int failed;
};
static bool again(struct tries *t, ssize_t rc)
{
	if (rc >= 0)
		return false;
	if (t->until == 0)
		t->until = test_now_ms() + (uint64_t)test_ms(PATIENCE);
	if (rc == -EAGAIN && test_now_ms() < t->until) {
		drive();
		return true;
	}
	if (!may_have_failed(rc))
		wrong(rc);
	if (t->failed++ == 0)
		return true;
	/* The connection may have failed. */
	if (!connected || peer_moves)
		wrong(rc);
	longjmp(over, 1);
}

#define STEP(call)                                                                                                     \
	do {                                                                                                           \
		struct tries tries_ = {0, 0};                                                                          \
		ssize_t rc_;                                                                                           \
		do {                                                                                                   \
			doing = #call;                                                                                 \
			atomic_store(&inside, true);                                                                   \
			rc_ = (ssize_t)(call);                                                                         \
			atomic_store(&inside, false);                                                                  \
		} while (again(&tries_, rc_));                                                                         \
	} while (0)

/* Makes one call; the caller evaluates its result. */
#define ONE(rc, call) (doing = #call, atomic_store(&inside, true), rc = (ssize_t)(call), atomic_store(&inside, false), rc)

/* Closes an object. -EBUSY is permitted once, if the failure hid whether a region is still in use. */
#define CLOSE(call)                                                                                                    \
	do {                                                                                                           \
		ssize_t rc_;                                                                                           \
		if (ONE(rc_, call) == -EBUSY && may_have_failed(rc_))                                                  \
			(void)ONE(rc_, call);                                                                          \
		if (rc_)                                                                                               \
			wrong(rc_);                                                                                    \
	} while (0)

static void error_taken(struct side *s)
{
	static char words[256];
	gdrfab_cq_err_entry error = {.struct_size = sizeof error, .err_data = words, .err_data_size = sizeof words};
	ssize_t rc;
	*words = 0;
	if (ONE(rc, gdrfab_cq_readerr(s->cq, &error, 0)) < 0)
		wrong(rc);
	if (!atomic_load(&struck) || !error.err) {
		doing = words;
		wrong(-error.err);
	}
}

/* Takes the next entry of the walker's queue. False: the operation failed and is to be posted again. */
static gdrfab_cq_tagged_entry entry;
static bool ended(void)
{
	ssize_t rc;
	for (uint64_t until = test_now_ms() + (uint64_t)test_ms(PATIENCE);;) {
		const char *of = doing;
		if (ONE(rc, gdrfab_cq_read(sides[0].cq, &entry, 1)) == 1)
			return true;
		if (rc == -GDRFAB_EAVAIL) {
			error_taken(&sides[0]);
			return false;
		}
		if (rc != -EAGAIN && !may_have_failed(rc))
			wrong(rc);
		drive();
		doing = of;
		if (test_now_ms() > until)
			wrong(-ETIMEDOUT);
	}
}

/* Posts an operation and waits for its end; repeats it once if it failed. */
#define DO(call)                                                                                                       \
	for (int failed_ = 0;;) {                                                                                      \
		STEP(call);                                                                                            \
		doing = #call;                                                                                         \
		if (ended())                                                                                           \
			break;                                                                                         \
		if (failed_++)                                                                                         \
			longjmp(over, 1);                                                                              \
	}

/* Waits until the counter has reached `value`; it only grows. */
static void await(atomic_uint *what, unsigned value, const char *called)
{
	for (uint64_t until = test_now_ms() + (uint64_t)test_ms(PATIENCE); atomic_load(what) < value;) {
		drive();
		doing = called;
		if (test_now_ms() > until)
			wrong(-ETIMEDOUT);
	}
}

/* --- opening and closing, for both sides --- */

static void open_side(struct side *s, const char *service)
{
	gdrfab_info hints = {.struct_size = sizeof hints, .prov_name = (char *)prov};
	gdrfab_cq_attr attr = {.struct_size = sizeof attr, .format = GDRFAB_CQ_FORMAT_TAGGED, .wait_obj = GDRFAB_WAIT_FD};
	void *memory;
	hints.ep_type = rdm ? GDRFAB_EP_RDM : GDRFAB_EP_MSG;
	hints.mr_mode = GDRFAB_MR_LOCAL | GDRFAB_MR_VIRT_ADDR | GDRFAB_MR_PROV_KEY;
	hints.progress = s == &sides[0] ? GDRFAB_PROGRESS_AUTO : GDRFAB_PROGRESS_MANUAL;
	STEP(gdrfab_getinfo(GDRFAB_VERSION, NULL, service, service ? GDRFAB_SOURCE : 0, &hints, &s->info));
	STEP(gdrfab_fabric_open(s->info, NULL, &s->fabric));
	STEP(gdrfab_eq_open(s->fabric, NULL, NULL, &s->eq));
	STEP(gdrfab_domain_open(s->fabric, s->info, NULL, &s->domain));
	STEP(gdrfab_cq_open(s->domain, &attr, NULL, &s->cq));
	STEP(gdrfab_cntr_open(s->domain, NULL, NULL, &s->cntr));
	STEP(gdrfab_mem_alloc(s->domain, GDRFAB_HMEM_SYSTEM, 0, REGION, 0, &memory));
	s->memory = memory;
	STEP(gdrfab_mr_reg(s->domain, s->memory, REGION, GDRFAB_REMOTE_READ | GDRFAB_REMOTE_WRITE | GDRFAB_READ | GDRFAB_WRITE, 0, 0, 0,
			   NULL, &s->mr));
}

static void open_ep(struct side *s, const gdrfab_info *info)
{
	STEP(gdrfab_ep_open(s->domain, info, NULL, &s->ep));
	STEP(gdrfab_ep_bind_cq(s->ep, s->cq, GDRFAB_TRANSMIT | GDRFAB_RECV));
	STEP(gdrfab_ep_bind_eq(s->ep, s->eq, 0));
	STEP(gdrfab_ep_bind_cntr(s->ep, s->cntr, GDRFAB_WRITE));
	if (rdm) {
		STEP(gdrfab_av_open(s->domain, NULL, NULL, &s->av));
		STEP(gdrfab_ep_bind_av(s->ep, s->av, 0));
	}
	STEP(gdrfab_ep_enable(s->ep));
}

static void close_ep(struct side *s)
{
	if (s->ep)
		CLOSE(gdrfab_ep_close(s->ep));
	s->ep = NULL;
	if (s->av)
		CLOSE(gdrfab_av_close(s->av));
	s->av = NULL;
}

static void close_side(struct side *s)
{
	close_ep(s);
	if (s->pep)
		CLOSE(gdrfab_pep_close(s->pep));
	CLOSE(gdrfab_mr_close(s->mr));
	CLOSE(gdrfab_mem_free(s->domain, s->memory));
	CLOSE(gdrfab_cq_close(s->cq));
	s->cq = NULL;
	CLOSE(gdrfab_cntr_close(s->cntr));
	CLOSE(gdrfab_domain_close(s->domain));
	CLOSE(gdrfab_eq_close(s->eq));
	CLOSE(gdrfab_fabric_close(s->fabric));
	atomic_store(&inside, true);
	gdrfab_freeinfo(s->info);
	atomic_store(&inside, false);
}

/* --- the peer: it listens, accepts, receives, and sends when asked --- */

static bool posted, sending;
static unsigned known, answered, answering;

/* A send whose entry tells whether the peer's receive has ended. */
static ssize_t send_surely(struct side *s, void *from, size_t len, void *context)
{
	void *desc = gdrfab_mr_desc(s->mr);
	struct iovec part = {from, len};
	gdrfab_msg msg = {.struct_size = sizeof msg, .msg_iov = &part, .iov_count = 1, .desc = &desc, .addr = s->peer, .context = context};
	return gdrfab_sendmsg(s->ep, &msg, GDRFAB_DELIVERY_COMPLETE | GDRFAB_COMPLETION);
}

static void peer_open(void)
{
	struct side *p = &sides[1];
	size_t len = sizeof page->name;
	peer_moves = true;
	open_side(p, NULL);
	fill(p->memory, BIG, 0, 2);
	if (rdm) {
		open_ep(p, p->info);
		STEP(gdrfab_ep_getname(p->ep, page->name, &len));
	} else {
		STEP(gdrfab_pep_open(p->fabric, p->info, NULL, &p->pep));
		STEP(gdrfab_pep_bind_eq(p->pep, p->eq, 0));
		STEP(gdrfab_pep_listen(p->pep));
		STEP(gdrfab_pep_getname(p->pep, page->name, &len));
	}
	page->base = p->info->mr_mode & GDRFAB_MR_VIRT_ADDR ? (uintptr_t)p->memory : 0;
	page->key = gdrfab_mr_key(p->mr);
	peer_moves = false;
	atomic_store(&page->ready, 1);
}

/* Accepts the latest connection request; the connection before it is closed. */
static void peer_accept(gdrfab_info *request)
{
	struct side *p = &sides[1];
	ssize_t rc;
	close_ep(p);
	posted = sending = false;
	open_ep(p, request);
	if (ONE(rc, gdrfab_ep_accept(p->ep, NULL, 0)) != 0 && !may_have_failed(rc))
		wrong(rc);
	/* If accepting fails twice, the walker connects again. */
	if (rc != 0 && ONE(rc, gdrfab_ep_accept(p->ep, NULL, 0)) != 0)
		close_ep(p);
	gdrfab_freeinfo(request);
}

static void peer_events(void)
{
	struct side *p = &sides[1];
	gdrfab_eq_cm_entry entry;
	gdrfab_eq_err_entry error = {.struct_size = sizeof error};
	uint32_t event = 0;
	ssize_t rc;
	while (ONE(rc, gdrfab_eq_read(p->eq, &event, &entry, sizeof entry, 0)) != -EAGAIN) {
		if (rc > 0 && event == GDRFAB_CONNREQ)
			peer_accept(entry.info);
		else if (rc == -GDRFAB_EAVAIL)
			gdrfab_eq_readerr(p->eq, &error, 0);
		else if (rc < 0 && !may_have_failed(rc))
			wrong(rc);
	}
}

static void peer_step(void)
{
	struct side *p = &sides[1];
	void *desc = gdrfab_mr_desc(p->mr);
	gdrfab_cq_tagged_entry came;
	ssize_t rc;
	if (peer_moves || !p->cq || !atomic_load(&page->ready))
		return;
	peer_moves = true;
	peer_events();
	if (rdm && known != atomic_load(&page->named)) {
		STEP(gdrfab_av_insert(p->av, page->walker, 1, &p->peer, 0, NULL) - 1);
		known = atomic_load(&page->named);
	}
	if (p->ep && !posted)
		posted = ONE(rc, gdrfab_recv(p->ep, p->memory + 3 * BIG, BIG, desc, GDRFAB_ADDR_UNSPEC, &posted)) == 0;
	unsigned asked = atomic_load(&page->asked);
	if (p->ep && !sending && answered != asked) {
		answering = asked;
		sending = ONE(rc, send_surely(p, p->memory, page->asked_len, &sending)) == 0;
	}
	while (ONE(rc, gdrfab_cq_read(p->cq, &came, 1)) != -EAGAIN) {
		if (rc == 1 && came.op_context == &posted) {
			check_filled(__FILE__, __LINE__, "a message", p->memory + 3 * BIG, came.len, 0, 1);
			posted = false;
			atomic_fetch_add(&page->got, 1);
		} else if (rc == 1 && came.op_context == &sending) {
			sending = false;
			answered = answering;
		} else if (rc == -GDRFAB_EAVAIL) {
			gdrfab_cq_err_entry error = {.struct_size = sizeof error};
			if (ONE(rc, gdrfab_cq_readerr(p->cq, &error, 0)) == 0)
				continue;
			if (error.op_context == &posted)
				posted = false;
			if (error.op_context == &sending)
				sending = false;
		} else if (rc < 0 && !may_have_failed(rc)) {
			wrong(rc);
		}
	}
	peer_moves = false;
}

/* --- the walk --- */

static void discard(struct side *s)
{
	gdrfab_cq_err_entry error = {.struct_size = sizeof error};
	gdrfab_eq_err_entry told = {.struct_size = sizeof told};
	gdrfab_eq_cm_entry event;
	uint32_t which;
	while (gdrfab_cq_readerr(s->cq, &error, 0) > 0 || gdrfab_cq_read(s->cq, &entry, 1) > 0)
		continue;
	while (gdrfab_eq_readerr(s->eq, &told, 0) > 0 || gdrfab_eq_read(s->eq, &which, &event, sizeof event, 0) > 0)
		continue;
}

/* Connects the walker. False: the connection failed. */
static bool meet(void)
{
	struct side *w = &sides[0];
	char text[256];
	size_t len = sizeof page->walker;
	open_ep(w, w->info);
	if (rdm) {
		STEP(gdrfab_ep_getname(w->ep, page->walker, &len));
		STEP(gdrfab_av_insert(w->av, page->name, 1, &w->peer, 0, NULL) - 1);
		STEP(gdrfab_av_straddr(w->av, page->name, text, sizeof text));
		atomic_fetch_add(&page->named, 1);
		return true;
	}
	STEP(gdrfab_ep_connect(w->ep, page->name, strlen((char *)page->name) + 1, NULL, 0));
	for (uint64_t until = test_now_ms() + (uint64_t)test_ms(PATIENCE);;) {
		gdrfab_eq_cm_entry entry;
		uint32_t event = 0;
		ssize_t rc;
		if (ONE(rc, gdrfab_eq_read(w->eq, &event, &entry, sizeof entry, 0)) > 0)
			return event == GDRFAB_CONNECTED;
		if (rc == -GDRFAB_EAVAIL) {
			gdrfab_eq_err_entry error = {.struct_size = sizeof error};
			STEP(gdrfab_eq_readerr(w->eq, &error, 0));
			if (!atomic_load(&struck))
				wrong(-error.err);
			return false;
		}
		if (rc != -EAGAIN && !may_have_failed(rc))
			wrong(rc);
		drive();
		doing = "gdrfab_ep_connect's event";
		if (test_now_ms() > until)
			wrong(-ETIMEDOUT);
	}
}

static void messages(size_t len)
{
	struct side *w = &sides[0];
	unsigned char *to = w->memory + BIG;
	void *desc = gdrfab_mr_desc(w->mr);
	unsigned before = atomic_load(&page->got);
	DO(send_surely(w, w->memory, len, w));
	await(&page->got, before + 1, "the receive of a send");
	page->asked_len = len;
	atomic_fetch_add(&page->asked, 1);
	/* A message that seemed lost is sent again, and may arrive twice: others are skipped by their length. */
	do {
		memset(to, 0, len);
		DO(gdrfab_recv(w->ep, to, BIG, desc, GDRFAB_ADDR_UNSPEC, w));
	} while (entry.len != len);
	CHECK_FILLED("an answer", to, len, 0, 2);
}

static void exchange(void)
{
	struct side *w = &sides[0];
	void *desc = gdrfab_mr_desc(w->mr);
	uint64_t key = page->key, base = page->base + BIG;
	unsigned char *back = w->memory + 2 * BIG;
	static char text[4096];
	gdrfab_path_info path = {.struct_size = sizeof path};
	gdrfab_stats stats = {.struct_size = sizeof stats};
	ssize_t rc;
	fill(w->memory, BIG, 0, 1);
	messages(SMALL);
	messages(BIG);
	for (size_t len = SMALL; len <= BIG; len += BIG - SMALL) {
		DO(gdrfab_write(w->ep, w->memory, len, desc, w->peer, base, key, w));
		memset(back, 0, len);
		DO(gdrfab_read(w->ep, back, len, desc, w->peer, base, key, w));
		CHECK_FILLED("what was written", back, len, 0, 1);
	}
	gdrfab_block blocks[100];
	for (int i = 0; i < 100; i++)
		blocks[i] = (gdrfab_block){w->memory + 16 * i, base + 32 * (uint64_t)i, 16};
	gdrfab_msg_list list = {.struct_size = sizeof list, .blocks = blocks, .count = 100, .desc = &desc, .desc_count = 1, .key = &key,
				.key_count = 1, .addr = w->peer, .context = w};
	DO(gdrfab_writelist(w->ep, &list, 0));
	gdrfab_list *kept;
	STEP(gdrfab_list_open(w->ep, &list, &kept));
	/* Closed at once, because a later failure jumps out of this function. */
	STEP(gdrfab_list_close(kept));
	uint64_t *one = (void *)back;
	*one = 1;
	DO(gdrfab_atomic(w->ep, one, 1, desc, w->peer, base, key, GDRFAB_UINT64, GDRFAB_SUM, w));
	DO(gdrfab_fetch_atomic(w->ep, one, 1, desc, one + 8, desc, w->peer, base, key, GDRFAB_UINT64, GDRFAB_SUM, w));
	STEP(gdrfab_ep_query(w->ep, w->peer, key, &path));
	STEP(gdrfab_ep_explain(w->ep, w->peer, key, text, sizeof text));
	STEP(gdrfab_ep_stats(w->ep, &stats));
	STEP(gdrfab_cq_signal(w->cq));
	if (ONE(rc, gdrfab_cq_sread(w->cq, &entry, 1, 10)) != -EAGAIN && !may_have_failed(rc))
		wrong(rc);
	STEP(gdrfab_cntr_wait(w->cntr, 1, PATIENCE));
}

/* Registers a region of two pieces, and asks about it. */
static void regions(struct side *s)
{
	static char text[4096];
	gdrfab_mr_info told = {.struct_size = sizeof told};
	struct iovec parts[2] = {{s->memory, 64}, {s->memory + 4096, 64}};
	gdrfab_mr *two;
	STEP(gdrfab_tostr(s->info, GDRFAB_TYPE_INFO, text, sizeof text));
	STEP(gdrfab_mr_regv(s->domain, parts, 2, GDRFAB_REMOTE_READ, 0, 0, 0, NULL, &two));
	STEP(gdrfab_mr_query(two, &told));
	STEP(gdrfab_mr_explain(two, text, sizeof text));
	CLOSE(gdrfab_mr_close(two));
}

static void walk(void)
{
	struct side *w = &sides[0];
	open_side(w, NULL);
	regions(w);
	if (setjmp(over)) {
		static int times;
		connected = false;
		doing = "a new connection";
		if (times++)
			wrong(-ENOTCONN);
		peer_moves = false;
	}
	for (int failed = 0;; failed++) {
		close_ep(w);
		discard(w);
		if (meet())
			break;
		doing = "a second connection";
		if (failed)
			wrong(-ENOTCONN);
	}
	connected = true;
	exchange();
	connected = false;
}

static void say_and_die(int signal)
{
	(void)signal;
	dprintf(1, "no end of %s\n", doing);
	_exit(1);
}

/* The peer in a process of its own, in which no call fails. */
static void serve(void)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	atomic_store(&struck, true);
	peer_open();
	while (!atomic_load(&page->end)) {
		peer_step();
		usleep(50);
	}
	close_side(&sides[1]);
	_exit(0);
}

/* Runs the walk. Exits with 0, or prints the reason. */
static void live(void)
{
	pid_t peer = apart ? fork() : 0;
	if (apart && peer == 0)
		serve();
	if (!filtered())
		_exit(TEST_SKIPPED);
	signal(SIGALRM, say_and_die);
	alarm((unsigned)test_ms(2 * PATIENCE) / 1000);
	int files = test_count_fds();
	atomic_store(&armed, true);
	if (apart)
		await(&page->ready, 1, "the peer's start");
	else
		peer_open();
	walk();
	close_side(&sides[0]);
	if (!apart)
		close_side(&sides[1]);
	atomic_store(&armed, false);
	atomic_store(&page->end, 1);
	int status = 0;
	if (apart && (waitpid(peer, &status, 0) != peer || status != 0))
		printf("the peer ended with status %d\n", status);
	/* A thread of the library may still be closing. */
	for (uint64_t until = test_now_ms() + 2000; test_count_fds() != files && test_now_ms() < until;)
		test_sleep_ms(1);
	if (test_count_fds() != files) {
		printf("%d descriptors more than before\n", test_count_fds() - files);
		test_list_fds();
	}
	fflush(stdout);
	_exit(0);
}

/* --- a child for each failure --- */

struct claim {
	char name[64];
	const char *prov;
	bool rdm, apart;
};

static void live_with(const void *failure)
{
	failing = *(const struct failure *)failure;
	live();
}

/* False: it went wrong, and its words say how. */
static bool lives(const struct failure *f, struct attempt *a)
{
	memset(page, 0, sizeof *page);
	bool well = attempt_run(a, live_with, f);
	if (attempt_exited(a, TEST_SKIPPED))
		test_skip("this kernel, or who confines this process, has no seccomp user notification");
	return well;
}

static void each_in_turn(const void *arg)
{
	const struct claim *c = arg;
	struct attempt attempt;
	long counts[KINDS];
	int wrongs = 0;
	if (test_checked())
		test_skip("a checker makes system calls of its own");
	prov = c->prov, rdm = c->rdm, apart = c->apart;
	page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(page != MAP_FAILED);
	attempt_open(&attempt);
	if (!lives(&(struct failure){-1, 0, 0}, &attempt))
		test_fail(__FILE__, __LINE__, "no system call fails: %s", attempt.words);
	for (int i = 0; i < KINDS; i++)
		counts[i] = atomic_load(&page->calls[i]);
	CHECK(counts[0] + counts[1] > 0);
	unsigned turn = 0;
	for (int i = 0; i < KINDS; i++) {
		int ways = 0;
		while (ways < 4 && kinds[i].errnos[ways])
			ways++;
		/* All of the first 30, then growing steps: later calls repeat earlier ones. */
		for (long n = 1; n <= counts[i]; n += n < 30 ? test_count(1, 9) : test_count(n / 8, n)) {
			struct failure f = {i, n, kinds[i].errnos[turn++ % (unsigned)ways]};
			if (lives(&f, &attempt))
				continue;
			test_wrong(__FILE__, __LINE__, "%s number %ld of %ld is %s: %s", kinds[i].name, n, counts[i],
				   strerror(f.err), attempt.words);
			CHECK(++wrongs < 20);
		}
	}
	attempt_close(&attempt);
}

TEST_TABLE(claims)
{
	static struct claim all[8];
	static const char *const provs[] = {"shm", "tcp"};
	const char *only = getenv("TEST_PROVIDER");
	for (int i = 0; i < 8; i++) {
		all[i] = (struct claim){.prov = provs[i / 4], .rdm = i & 1, .apart = i & 2};
		snprintf(all[i].name, sizeof all[i].name, "%s%s_%s", all[i].rdm ? "connectionless_over_" : "", all[i].prov,
			 all[i].apart ? "with_a_peer" : "in_one_process");
		if (!only || !strcmp(only, all[i].prov))
			test_add(all[i].name, each_in_turn, &all[i], 120);
	}
}
