/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A link between two network namespaces that is slow and loses packets, for kernels without netem: a network device in
 * each, and this process in between.
 *
 *   lossy-link NAME NETNS DELAY_MS LOSS_PERMILLE      the device NAME here and in the namespace at NETNS; runs until killed
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

#define SLOTS 8192
#define LARGEST 2048

struct packet {
	uint64_t due;
	size_t len;
	unsigned char bytes[LARGEST];
};

struct direction {
	struct packet *slot;
	unsigned head, tail; /* taken out, put in */
};

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

static uint32_t random_permille(void)
{
	static uint64_t state = 88172645463325252u;
	state ^= state << 13, state ^= state >> 7, state ^= state << 17;
	return (uint32_t)(state >> 33) % 1000;
}

/* What has come: kept until it is due, unless it is lost or the queue is full, as in any router. */
static void take(int fd, struct direction *d, uint64_t delay_us, uint32_t loss)
{
	unsigned char bytes[LARGEST];
	for (;;) {
		ssize_t len = read(fd, bytes, sizeof bytes);
		if (len <= 0)
			return;
		if (random_permille() < loss || d->tail - d->head == SLOTS)
			continue;
		struct packet *p = &d->slot[d->tail++ % SLOTS];
		p->due = now_us() + delay_us;
		p->len = (size_t)len;
		memcpy(p->bytes, bytes, p->len);
	}
}

/* Returns microseconds until the next is due, or -1. */
static int64_t give(int fd, struct direction *d)
{
	while (d->head != d->tail) {
		struct packet *p = &d->slot[d->head % SLOTS];
		uint64_t now = now_us();
		if (p->due > now)
			return (int64_t)(p->due - now);
		/* A device that is down or full loses it. */
		if (write(fd, p->bytes, p->len) < 0 && errno == EINTR)
			continue;
		d->head++;
	}
	return -1;
}

int main(int argc, char **argv)
{
	struct direction there, back;
	if (argc != 5) {
		fprintf(stderr, "usage: lossy-link NAME NETNS DELAY_MS LOSS_PERMILLE\n");
		return 2;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	uint64_t delay_us = strtoull(argv[3], NULL, 10) * 1000;
	uint32_t loss = (uint32_t)strtoul(argv[4], NULL, 10);
	int here = device(argv[1]), netns = open(argv[2], O_RDONLY | O_CLOEXEC);
	if (netns < 0 || setns(netns, CLONE_NEWNET) < 0)
		fail(argv[2]);
	int other = device(argv[1]);
	memset(&there, 0, sizeof there);
	memset(&back, 0, sizeof back);
	there.slot = calloc(SLOTS, sizeof(struct packet));
	back.slot = calloc(SLOTS, sizeof(struct packet));
	if (!there.slot || !back.slot)
		fail("calloc");
	puts("ready");
	fflush(stdout);
	for (;;) {
		take(here, &there, delay_us, loss);
		take(other, &back, delay_us, loss);
		int64_t first = give(other, &there), second = give(here, &back);
		int64_t wait = first < 0 || (second >= 0 && second < first) ? second : first;
		struct timespec limit = {wait / 1000000, wait % 1000000 * 1000};
		struct pollfd both[2] = {{here, POLLIN, 0}, {other, POLLIN, 0}};
		/* A device that is down is no reason to spin. */
		if (ppoll(both, 2, wait < 0 ? NULL : &limit, NULL) > 0 && (both[0].revents | both[1].revents) & ~POLLIN)
			usleep(1000);
	}
}
