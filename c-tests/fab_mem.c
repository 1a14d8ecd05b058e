/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Memory of every kind and the paths to it: the parts of fab.h that are about regions. */
#include "fab.h"

#include <sys/mman.h>
#include <sys/uio.h>

static void malloc_new(TEST_UNUSED struct node *n, struct mem *m)
{
	m->addr = (unsigned char *)malloc(m->len ? m->len : 1);
	CHECK(m->addr != NULL);
}

static void malloc_end(TEST_UNUSED struct node *n, struct mem *m)
{
	free(m->addr);
}

static void mem_alloc_new(struct node *n, struct mem *m)
{
	void *addr = NULL;
	OK(gdrfab_mem_alloc(n->domain, m->len, 0, &addr));
	m->addr = (unsigned char *)addr;
	CHECK(m->addr != NULL);
	CHECK_EQ((uintptr_t)m->addr % (uintptr_t)sysconf(_SC_PAGESIZE), 0);
	for (size_t i = 0; i < m->len; i++)
		if (m->addr[i] != 0)
			test_fail(__FILE__, __LINE__, "gdrfab_mem_alloc gave memory with a byte set at %zu", i);
}

static void mem_alloc_end(struct node *n, struct mem *m)
{
	OK(gdrfab_mem_free(n->domain, m->addr));
}

static void memfd_new(TEST_UNUSED struct node *n, struct mem *m)
{
	m->fd = memfd_create("c-tests", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	CHECK(m->fd >= 0);
	CHECK_EQ(ftruncate(m->fd, (off_t)m->len), 0);
	m->addr = (unsigned char *)mmap(NULL, m->len, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
	CHECK(m->addr != MAP_FAILED);
}

static void memfd_end(TEST_UNUSED struct node *n, struct mem *m)
{
	munmap(m->addr, m->len);
	close(m->fd);
}

/* Another process can map what lies in a file; process_vm_readv and the ring reach everything that has an address. */
const struct memkind memkinds[KINDS] = {
	{"malloc", GDRFAB_PATH_CMA | GDRFAB_PATH_STAGED, malloc_new, malloc_end, false},
	{"mem_alloc", GDRFAB_PATH_DIRECT | GDRFAB_PATH_CMA | GDRFAB_PATH_STAGED, mem_alloc_new, mem_alloc_end, false},
	{"memfd", GDRFAB_PATH_DIRECT | GDRFAB_PATH_CMA | GDRFAB_PATH_STAGED, memfd_new, memfd_end, true},
};

const struct path paths[PATHS] = {
	{"direct", GDRFAB_PATH_DIRECT},
	{"cma", GDRFAB_PATH_CMA},
	{"staged", GDRFAB_PATH_STAGED},
};

struct way ways[PATHS * KINDS];

size_t ways_list(void)
{
	size_t count = 0;
	for (int p = 0; p < PATHS; p++)
		for (int k = 0; k < KINDS; k++) {
			if (!(memkinds[k].paths & paths[p].bit))
				continue;
			struct way *w = &ways[count++];
			w->path = &paths[p];
			w->kind = &memkinds[k];
			snprintf(w->name, sizeof w->name, "%s_%s", w->path->name, w->kind->name);
		}
	return count;
}

void mem_new(struct node *n, struct mem *m, const struct memkind *kind, size_t len)
{
	memset(m, 0, sizeof *m);
	m->kind = kind;
	m->len = len;
	m->fd = -1;
	kind->alloc(n, m);
}

int mem_try_register(struct node *n, struct mem *m, size_t offset, size_t len, uint64_t access, uint64_t require,
		     uint64_t requested_key)
{
	struct iovec iov = {m->addr + offset, len};
	gdrfab_mr_dmabuf dmabuf = {m->fd, 0, offset, len, m->addr};
	gdrfab_mr_attr attr;
	memset(&attr, 0, sizeof attr);
	attr.struct_size = sizeof attr;
	attr.iov_count = 1;
	attr.access = access;
	attr.requested_key = requested_key;
	attr.require = require;
	if (m->kind->dmabuf)
		attr.dmabuf = &dmabuf;
	else
		attr.mr_iov = &iov;
	int result = gdrfab_mr_regattr(n->domain, &attr, m->kind->dmabuf ? GDRFAB_MR_DMABUF : 0, &m->mr);
	if (result != 0)
		return result;
	CHECK(m->mr != NULL);
	gdrfab_mr_info info;
	memset(&info, 0, sizeof info);
	info.struct_size = sizeof info;
	OK(gdrfab_mr_query(m->mr, &info));
	m->key = gdrfab_mr_key(m->mr);
	m->base = info.base;
	m->registered = len;
	CHECK_EQ(info.key, m->key);
	CHECK_EQ(info.len, len);
	return 0;
}

void mem_register(struct node *n, struct mem *m, size_t offset, size_t len, uint64_t access, uint64_t require)
{
	OK(mem_try_register(n, m, offset, len, access, require, 0));
}

void way_register(struct node *n, struct mem *m, size_t offset, size_t len, const struct way *way)
{
	int result = mem_try_register(n, m, offset, len, ANY_ACCESS, way->path->bit, 0);
	/* Of a file descriptor only direct mapping is promised: the caller's own mapping of it is a courtesy. */
	if (result == -EOPNOTSUPP && way->kind->dmabuf && way->path->bit == GDRFAB_PATH_CMA)
		test_skip("%s", gdrfab_last_error());
	CHECK_EQ(result, 0);
}

void mem_unregister(struct mem *m)
{
	OK(gdrfab_mr_close(m->mr));
	m->mr = NULL;
}

void mem_end(struct node *n, struct mem *m)
{
	if (m->mr)
		mem_unregister(m);
	m->kind->release(n, m);
	m->addr = NULL;
}

void mem_publish(struct node *n, const struct mem *m)
{
	struct remote r = {m->key, m->base, m->registered};
	oob_send(n, &r, sizeof r);
}

struct remote mem_fetch(struct node *n)
{
	struct remote r;
	oob_recv(n, &r, sizeof r);
	return r;
}

int cma_refused(struct node *n)
{
	/* Both sides are forks of one image: this byte has the same address over there. */
	static const char there = 'c';
	char here = 0;
	struct iovec local = {&here, 1}, remote = {(void *)(uintptr_t)&there, 1};
	if (process_vm_readv(n->peer, &local, 1, &remote, 1, 0) == 1 && here == 'c')
		return 0;
	return errno ? errno : EIO;
}

void way_check(struct node *n, const struct way *way, uint64_t key)
{
	gdrfab_path_info info;
	memset(&info, 0, sizeof info);
	info.struct_size = sizeof info;
	/* Where a mapping must first be asked for, it is there a moment after the first question. */
	uint64_t until = test_now_ms() + (uint64_t)test_ms(1000);
	do {
		OK(gdrfab_ep_query(n->ep, key, &info));
		if (info.path == way->path->bit)
			return;
		gdrfab_cq_read(n->cq, NULL, 0);
	} while (test_now_ms() < until);
	char words[512] = "";
	gdrfab_ep_explain(n->ep, key, words, sizeof words);
	int refused = way->path->bit == GDRFAB_PATH_CMA ? cma_refused(n) : 0;
	if (refused)
		test_skip("this kernel does not let a process copy another's memory (process_vm_readv: %s)",
			  strerror(refused));
	test_fail(__FILE__, __LINE__,
		  "the path %s is not taken: path 0x%llx of 0x%llx, offered 0x%llx; direct: %s, cma: %s, staged: %s; %s",
		  way->path->name, (unsigned long long)info.path, (unsigned long long)info.paths,
		  (unsigned long long)info.offered, strerror(info.direct_errno), strerror(info.cma_errno),
		  strerror(info.staged_errno), words);
}
