/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A link between two network namespaces that is slow and loses packets, for kernels without netem: a network device
 * in each, and this process in between.
 *
 *   lossy-link NAME NETNS DELAY_MS LOSS_PERMILLE [MBIT]
 *
 * The device NAME is made here and in the namespace at NETNS. Runs until killed. MBIT limits each connection in each
 * direction, as clouds do.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define FLOWS 16
#define SLOTS 4096 /* packets in each queue, a power of two */
#define QUEUE_US 50000
#define LARGEST 2048

struct packet {
	uint64_t due;
	size_t len;
	unsigned char bytes[LARGEST];
};

/* The traffic of one connection in one direction. */
struct flow {
	uint32_t ports;
	uint64_t free_at; /* the time at which the link has carried the packets given to it */
	struct packet *slot;
	unsigned head, tail; /* next packet to take out, and to put in */
};

struct direction {
	struct flow flow[FLOWS];
	unsigned next; /* the flow to replace next */
};

static struct {
	uint64_t delay_us, mbit;
	uint32_t loss; /* per million */
} path;

static void fail(const char *what)
{
	fprintf(stderr, "lossy-link: %s: %s\n", what, strerror(errno));
	exit(1);
}

static uint64_t now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

static int device(const char *name)
{
	struct ifreq request;
	int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		fail("/dev/net/tun");
	memset(&request, 0, sizeof request);
	snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
	request.ifr_flags = IFF_TUN | IFF_NO_PI;
	if (ioctl(fd, TUNSETIFF, &request) < 0)
		fail("TUNSETIFF");
	return fd;
}

static uint32_t random_million(void)
{
	static uint64_t state = 88172645463325252u;
	state ^= state << 13, state ^= state >> 7, state ^= state << 17;
	return (uint32_t)(state >> 33) % 1000000;
}

/* Finds the flow of a packet. If there are too many connections, they replace each other, which loses the replaced
 * one's packets. */
static struct flow *flow_of(struct direction *d, const unsigned char *bytes, size_t len)
{
	uint32_t ports = 0;
	size_t at = bytes[0] >> 4 == 4 ? (size_t)(bytes[0] & 15) * 4 : 40;
	if (path.mbit && len >= at + 4)
		memcpy(&ports, bytes + at, 4);
	for (int i = 0; i < FLOWS; i++)
		if (d->flow[i].ports == ports)
			return &d->flow[i];
	struct flow *f = &d->flow[1 + d->next++ % (FLOWS - 1)];
	f->ports = ports, f->free_at = 0, f->head = f->tail;
	return f;
}

/* Takes arrived packets and keeps them until they are due, unless they are lost or the queue is full, as in any
 * router. */
static void take(int fd, struct direction *d)
{
	unsigned char bytes[LARGEST];
	for (;;) {
		ssize_t len = read(fd, bytes, sizeof bytes);
		if (len <= 0)
			return;
		struct flow *f = flow_of(d, bytes, (size_t)len);
		uint64_t now = now_us(), begin = f->free_at > now ? f->free_at : now;
		if (random_million() < path.loss || f->tail - f->head == SLOTS || begin - now > QUEUE_US)
			continue;
		f->free_at = begin + (path.mbit ? (uint64_t)len * 8 / path.mbit : 0);
		struct packet *p = &f->slot[f->tail++ % SLOTS];
		p->due = f->free_at + path.delay_us;
		p->len = (size_t)len;
		memcpy(p->bytes, bytes, p->len);
	}
}

/* Sends due packets. Returns the microseconds until the next is due, or -1. */
static int64_t give_of(int fd, struct flow *d)
{
	while (d->head != d->tail) {
		struct packet *p = &d->slot[d->head % SLOTS];
		uint64_t now = now_us();
		if (p->due > now)
			return (int64_t)(p->due - now);
		/* A device that is down or full loses the packet. */
		if (write(fd, p->bytes, p->len) < 0 && errno == EINTR)
			continue;
		d->head++;
	}
	return -1;
}

static int64_t give(int fd, struct direction *d)
{
	int64_t first = -1;
	for (int i = 0; i < FLOWS; i++) {
		int64_t due = give_of(fd, &d->flow[i]);
		if (due >= 0 && (first < 0 || due < first))
			first = due;
	}
	return first;
}

int main(int argc, char **argv)
{
	static struct direction there, back;
	if (argc != 5 && argc != 6) {
		fprintf(stderr, "usage: lossy-link NAME NETNS DELAY_MS LOSS_PERMILLE [MBIT]\n");
		return 2;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	path.delay_us = (uint64_t)(strtod(argv[3], NULL) * 1000);
	path.loss = (uint32_t)(strtod(argv[4], NULL) * 1000);
	path.mbit = argc == 6 ? strtoull(argv[5], NULL, 10) : 0;
	int here = device(argv[1]), netns = open(argv[2], O_RDONLY | O_CLOEXEC);
	if (netns < 0 || setns(netns, CLONE_NEWNET) < 0)
		fail(argv[2]);
	int other = device(argv[1]);
	for (int i = 0; i < 2 * FLOWS; i++) {
		struct flow *f = &(i % 2 ? &there : &back)->flow[i / 2];
		f->slot = calloc(SLOTS, sizeof(struct packet));
		if (!f->slot)
			fail("calloc");
	}
	puts("ready");
	fflush(stdout);
	for (;;) {
		take(here, &there);
		take(other, &back);
		int64_t first = give(other, &there), second = give(here, &back);
		int64_t wait = first < 0 || (second >= 0 && second < first) ? second : first;
		struct timespec limit = {wait / 1000000, wait % 1000000 * 1000};
		struct pollfd both[2] = {{here, POLLIN, 0}, {other, POLLIN, 0}};
		/* Sleeps, because a device that is down reports an error at once and would make the loop spin. */
		if (ppoll(both, 2, wait < 0 ? NULL : &limit, NULL) > 0 && (both[0].revents | both[1].revents) & ~POLLIN)
			usleep(1000);
	}
}
