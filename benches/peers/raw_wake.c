/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* System calls, and waking a sleeping peer (pipe, eventfd, futex), across cores and on one; half round trip. */
#include "bench.h"
#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define REPS 31
#define ROUNDS 2000
static double v[REPS];
#define TIME(name, n, body) do { \
	for (int r_ = 0; r_ < REPS; r_++) { \
		double t_ = now_ns(); \
		for (long i_ = 0; i_ < (n); i_++) { \
			body; \
		} \
		v[r_] = (now_ns() - t_) / (n); \
	} \
	report("wake", name, 0, "ns", v, REPS); \
} while (0)

enum kind { PIPE, EVENTFD, FUTEX };
static const char *const kind_name[] = { "pipe", "eventfd", "futex" };
static _Atomic uint32_t *word;

static void futex(_Atomic uint32_t *p, int op, uint32_t val)
{
	syscall(SYS_futex, p, op, val, NULL, NULL, 0);
}

static void tell(int fd)
{
	uint64_t x = 1;

	if (write(fd, &x, 8) != 8)
		DIE("write");
}

static void hear(int fd)
{
	uint64_t x;

	if (read(fd, &x, 8) != 8)
		DIE("read");
}

static void futex_tell(_Atomic uint32_t *p, uint32_t seq)
{
	atomic_store(p, seq);
	futex(p, FUTEX_WAKE, 1);
}

static void futex_hear(_Atomic uint32_t *p, uint32_t seq)
{
	uint32_t cur;

	while ((cur = atomic_load(p)) != seq)
		futex(p, FUTEX_WAIT, cur);
}

static void pingpong(enum kind k, int same)
{
	int p[2], q[2], side;
	uint32_t seq = 0;
	char tag[64];

	if (k == PIPE) {
		CHECK(pipe(p));
		CHECK(pipe(q));
	} else if (k == EVENTFD) {
		CHECK(p[0] = p[1] = eventfd(0, 0));
		CHECK(q[0] = q[1] = eventfd(0, 0));
	}
	atomic_store(&word[0], 0);
	atomic_store(&word[64], 0);
	side = fork() == 0;
	if (side)
		prctl(PR_SET_PDEATHSIG, 9);
	pin(side && !same ? 1 : 0);
	for (int r = 0; r < REPS; r++) {
		double t = now_ns();

		for (long i = 0; i < ROUNDS; i++) {
			seq++;
			for (int turn = 0; turn < 2; turn++)
				if (k == FUTEX && turn == side)
					futex_tell(&word[side ? 64 : 0], seq);
				else if (k == FUTEX)
					futex_hear(&word[side ? 0 : 64], seq);
				else if (turn == side)
					tell(side ? q[1] : p[1]);
				else
					hear(side ? p[0] : q[0]);
		}
		v[r] = (now_ns() - t) / (2.0 * ROUNDS);
	}
	if (side)
		_exit(0);
	waitpid(-1, NULL, 0);
	snprintf(tag, sizeof tag, "wake_%s/%s", kind_name[k], same ? "same-core" : "cross-core");
	report("wake", tag, 8, "ns", v, REPS);
}

int main(void)
{
	int sv[2], ep = epoll_create1(0), ev = eventfd(0, EFD_NONBLOCK);
	struct epoll_event e = { .events = EPOLLIN };
	_Atomic uint64_t lk = 0;
	char b[8];

	pin(0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sv));
	CHECK(epoll_ctl(ep, EPOLL_CTL_ADD, sv[0], &e));
	TIME("syscall_getpid", 100000, syscall(SYS_getpid));
	TIME("clock_gettime", 100000, now_ns());
	TIME("recv_eagain_unix", 50000, if (recv(sv[0], b, 8, 0) >= 0) DIE("recv"));
	TIME("epoll_wait0", 50000, epoll_wait(ep, &e, 1, 0));
	TIME("eventfd_write+read", 50000, tell(ev); hear(ev));
	TIME("locked_xadd_local", 1000000, atomic_fetch_add(&lk, 1));
	word = mem_shared(4096);
	for (enum kind k = PIPE; k <= FUTEX; k++)
		for (int same = 0; same < 2; same++)
			pingpong(k, same);
	return 0;
}
