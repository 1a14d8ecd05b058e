/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A library in place of libibverbs that registers dma-bufs with soft-RoCE. rdma-core's provider for soft-RoCE lacks the
 * call, so this library issues the kernel's command itself. GDRFAB_DEBUG=ibverbs=FILE makes gdrfab load this library, which
 * is linked with -libverbs and leaves all other calls to libibverbs. The library can be preloaded as well.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdlib.h>

typedef struct ibv_mr *(*reg_fn)(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int);
/* Private to rdma-core. Newer versions have the eighth argument, which may be NULL; older ones do not read it. */
typedef int (*command_fn)(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int, void *, void *);

__attribute__((visibility("default"))) struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset,
									size_t length, uint64_t iova, int fd,
									int access)
{
	/* Loaded already as a dependency of this library; a dlopen'ed library is not in the scope of RTLD_DEFAULT. */
	void *verbs = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
	if (!verbs) {
		errno = ENOSYS;
		return NULL;
	}
	reg_fn reg;
	command_fn command;
	*(void **)&reg = dlsym(verbs, "ibv_reg_dmabuf_mr");
	*(void **)&command = dlsym(verbs, "ibv_cmd_reg_dmabuf_mr");
	dlclose(verbs);

	errno = EOPNOTSUPP;
	struct ibv_mr *mr = reg ? reg(pd, offset, length, iova, fd, access) : NULL;
	if (mr || errno != EOPNOTSUPP || !command)
		return mr;
	/* rdma-core keeps the kind and the access flags after the public part of the structure. */
	mr = calloc(1, sizeof *mr + 64);
	if (!mr)
		return NULL;
	int err = command(pd, offset, length, iova, fd, access, mr, NULL);
	if (err) {
		free(mr);
		errno = err < 0 ? errno : err;
		return NULL;
	}
	/* Filled in as libibverbs does. */
	mr->context = pd->context;
	mr->pd = pd;
	mr->addr = (void *)(uintptr_t)offset;
	mr->length = length;
	return mr;
}
