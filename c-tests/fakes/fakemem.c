/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#define _GNU_SOURCE
#include "fakemem.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/udmabuf.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct fake_block *blocks;
static uint64_t last_id;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

void fake_lock(void)
{
	pthread_mutex_lock(&mutex);
}

void fake_unlock(void)
{
	pthread_mutex_unlock(&mutex);
}

uint64_t fake_reserve(uint64_t len, uint64_t align)
{
	char *at = mmap(NULL, len + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED)
		return 0;
	uint64_t start = ((uint64_t)(uintptr_t)at + align - 1) & ~(align - 1);
	uint64_t before = start - (uint64_t)(uintptr_t)at;
	if (before)
		munmap(at, before);
	if (align - before)
		munmap((void *)(uintptr_t)(start + len), align - before);
	return start;
}

void fake_unreserve(uint64_t va, uint64_t len)
{
	munmap((void *)(uintptr_t)va, len);
}

struct fake_block *fake_map(int fd, uint64_t offset, uint64_t len, uint64_t va, int device, int kind)
{
	struct fake_block *b = calloc(1, sizeof *b);
	if (!b)
		return NULL;
	bool reserved = va != 0;
	b->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	b->alias = b->fd < 0 ? MAP_FAILED : mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, b->fd, (off_t)offset);
	if (!reserved)
		va = fake_reserve(len, 4096);
	if (b->fd < 0 || b->alias == MAP_FAILED || !va) {
		if (b->alias != MAP_FAILED)
			munmap(b->alias, len);
		if (b->fd >= 0)
			close(b->fd);
		free(b);
		return NULL;
	}
	b->va = va;
	b->len = len;
	b->id = ++last_id;
	b->device = device;
	b->kind = kind;
	b->next = blocks;
	blocks = b;
	return b;
}

struct fake_block *fake_new(uint64_t len, uint64_t align, int device, int kind)
{
	int fd = memfd_create("fake-device-memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return NULL;
	uint64_t rounded = (len + 4095) & ~(uint64_t)4095;
	bool sized = ftruncate(fd, (off_t)rounded) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0;
	uint64_t va = !sized ? 0 : fake_reserve(rounded, align < 4096 ? 4096 : align);
	struct fake_block *b = va ? fake_map(fd, 0, rounded, va, device, kind) : NULL;
	if (!b && va)
		fake_unreserve(va, rounded);
	close(fd);
	return b;
}

void fake_delete(struct fake_block *b, bool keep_reserved)
{
	for (struct fake_block **p = &blocks; *p; p = &(*p)->next)
		if (*p == b) {
			*p = b->next;
			break;
		}
	munmap(b->alias, b->len);
	close(b->fd);
	if (!keep_reserved)
		fake_unreserve(b->va, b->len);
	free(b);
}

struct fake_block *fake_find(uint64_t va)
{
	for (struct fake_block *b = blocks; b; b = b->next)
		if (va >= b->va && va - b->va < b->len)
			return b;
	return NULL;
}

/* The alias of `va`, and the number of bytes from there on. */
static char *reach(uint64_t va, uint64_t *run)
{
	struct fake_block *b = fake_find(va);
	if (b) {
		uint64_t left = b->va + b->len - va;
		if (*run > left)
			*run = left;
		return b->alias + (va - b->va);
	}
	for (b = blocks; b; b = b->next)
		if (b->va > va && b->va - va < *run)
			*run = b->va - va;
	return (char *)(uintptr_t)va;
}

bool fake_copy(uint64_t to, uint64_t from, uint64_t len)
{
	bool to_device = fake_find(to) != NULL, from_device = fake_find(from) != NULL;
	while (len) {
		uint64_t run = len;
		char *out = reach(to, &run), *in = reach(from, &run);
		if ((fake_find(to) != NULL) != to_device || (fake_find(from) != NULL) != from_device)
			return false;
		memmove(out, in, run);
		to += run;
		from += run;
		len -= run;
	}
	return true;
}

int fake_udmabuf(int fd, uint64_t offset, uint64_t len)
{
	int maker = open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
	if (maker < 0)
		return -1;
	struct udmabuf_create create = {
		.memfd = (uint32_t)fd, .flags = UDMABUF_FLAGS_CLOEXEC, .offset = offset, .size = len};
	int made = ioctl(maker, UDMABUF_CREATE, &create);
	close(maker);
	return made;
}

int fake_dmabuf(const struct fake_block *b)
{
	int made = fake_udmabuf(b->fd, 0, b->len);
	return made >= 0 ? made : fcntl(b->fd, F_DUPFD_CLOEXEC, 0);
}

int fake_fetch_fd(int pid, int fd)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
	return open(path, O_RDWR | O_CLOEXEC);
}

/* Counts of calls, for functions that a fault names with @n. */
static struct {
	char name[64];
	int calls;
} counts[32];

static int count_call(const char *function)
{
	for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
		if (!counts[i].name[0])
			snprintf(counts[i].name, sizeof counts[i].name, "%s", function);
		if (strcmp(counts[i].name, function) == 0)
			return ++counts[i].calls;
	}
	return 0;
}

static __thread int calls_of_thread;

int fake_calls_of_thread(void)
{
	return calls_of_thread;
}

/* FAKE_HANG=function@FILE: a call that finds FILE removes it, and returns when FILE exists again. */
static void hang(const char *function)
{
	const char *what = getenv("FAKE_HANG");
	size_t len = strlen(function);
	if (!what || strncmp(what, function, len) != 0 || what[len] != '@' || unlink(what + len + 1) != 0)
		return;
	while (access(what + len + 1, F_OK) != 0)
		usleep(1000);
}

int fake_fault(const char *function)
{
	calls_of_thread++;
	hang(function);
	const char *list = getenv("FAKE_FAULT");
	size_t len = strlen(function);
	while (list && *list) {
		if (strncmp(list, function, len) == 0 && list[len] == '=') {
			char *end;
			long code = strtol(list + len + 1, &end, 0);
			if (*end != '@')
				return (int)code;
			return count_call(function) == strtol(end + 1, NULL, 10) ? (int)code : 0;
		}
		list = strchr(list, ',');
		list += list != NULL;
	}
	return 0;
}

int fake_devices(int normally)
{
	const char *text = getenv("FAKE_DEVICES");
	return text ? atoi(text) : normally;
}
