/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Protection domains and regions of the fake libibverbs, with the kernel's checks and errnos. */
#define _GNU_SOURCE
#include "fakeverbs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#define PAGE 4096u

API struct ibv_pd *ibv_alloc_pd(struct ibv_context *c)
{
	FAULT_NULL(ibv_alloc_pd);
	struct ibv_pd *pd = calloc(1, sizeof *pd);
	if (!pd)
		return NULL;
	pd->context = c;
	object_made();
	return pd;
}

API int ibv_dealloc_pd(struct ibv_pd *pd)
{
	FAKE_FAULT(ibv_dealloc_pd);
	free(pd);
	object_gone();
	return 0;
}

static struct ibv_mr *region(struct ibv_pd *pd, void *addr, size_t len)
{
	static uint32_t key = 0x100;
	struct ibv_mr *mr = calloc(1, sizeof *mr);
	if (!mr)
		return NULL;
	mr->context = pd->context;
	mr->pd = pd;
	mr->addr = addr;
	mr->length = len;
	mr->lkey = mr->rkey = __atomic_add_fetch(&key, 0x100, __ATOMIC_RELAXED);
	object_made();
	return mr;
}

/* True if pages can be pinned, by the first and the last byte: device memory and holes cannot. */
static bool present(const char *addr, size_t len)
{
	char bytes[2];
	char *first = (char *)(uintptr_t)addr;
	struct iovec to = {bytes, 2}, from[2] = {{first, 1}, {first + len - 1, 1}};
	return len == 0 || process_vm_readv(getpid(), &to, 1, from, 2, 0) == 2;
}

static struct ibv_mr *pinned(struct ibv_pd *pd, void *addr, size_t len, unsigned int access)
{
	/* Remote write and atomics need local write. */
	if ((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) && !(access & IBV_ACCESS_LOCAL_WRITE)) {
		errno = EINVAL;
		return NULL;
	}
	/* As with the vendor's peer-memory module loaded. */
	if (!present(addr, len) && !getenv("FAKE_IBVERBS_PEER_MEM")) {
		errno = EFAULT;
		return NULL;
	}
	return region(pd, addr, len);
}

API struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t len, int access)
{
	FAULT_NULL(ibv_reg_mr);
	return pinned(pd, addr, len, (unsigned)access);
}

#ifndef FAKE_OLD
API struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t len, uint64_t iova, unsigned int access)
{
	FAULT_NULL(ibv_reg_mr_iova2);
	if (((uintptr_t)addr ^ iova) % PAGE) {
		errno = EINVAL;
		return NULL;
	}
	return pinned(pd, addr, len, access);
}

/* The checks that the kernel makes first. If a fake driver cannot make real dma-bufs, its memory files stand for them. */
static int is_dmabuf(int fd)
{
	char link[64], name[64] = "";
	struct statfs about;

	if (fstatfs(fd, &about) == 0 && about.f_type == 0x444d4142)
		return 1;
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	return readlink(link, name, sizeof name - 1) > 0 && strncmp(name, "/memfd:fake-", 12) == 0;
}

API struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t len, uint64_t iova, int fd, int access)
{
	const char *can = getenv("FAKE_IBVERBS_DMABUF");
	(void)access;
	FAULT_NULL(ibv_reg_dmabuf_mr);
	off_t size = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
	if (can && strcmp(can, "0") == 0)
		errno = EOPNOTSUPP;
	else if (size < 0)
		errno = EBADF;
	else if (!is_dmabuf(fd) || (offset ^ iova) % PAGE || offset + len < offset || offset + len > (uint64_t)size)
		errno = EINVAL;
	else
		return region(pd, NULL, len);
	return NULL;
}
#endif

API int ibv_dereg_mr(struct ibv_mr *mr)
{
	FAKE_FAULT(ibv_dereg_mr);
	free(mr);
	object_gone();
	return 0;
}
