/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* gdrfab_mr_regattr + gdrfab_mr_close for mr_cost; memory by gdrfab_mem_alloc, or private memory with option heap */
#include "bench.h"
#include "mr.h"
#include <gdrfab.h>
#include "../older.h"

#define OK(x) do { \
	long r_ = (long)(x); \
	if (r_ < 0) \
		DIE("%s -> %s: %s", #x, gdrfab_strerror((int)r_), gdrfab_last_error()); \
} while (0)
static gdrfab_info *info;
static gdrfab_fabric *fabric;
static gdrfab_domain *domain;
static void *mem;
static int heap;

static char *g_open(const char *arg, size_t bytes)
{
	gdrfab_info h = { .struct_size = sizeof h };

	h.caps = GDRFAB_MSG | GDRFAB_RMA;
	h.mr_mode = GDRFAB_MR_VIRT_ADDR | GDRFAB_MR_PROV_KEY;
	h.threading = GDRFAB_THREAD_DOMAIN;
	h.prov_name = (char[]){ "shm" };
	OK(gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, 0, &h, &info));
	OK(gdrfab_fabric_open(info, NULL, &fabric));
	OK(gdrfab_domain_open(fabric, info, NULL, &domain));
	heap = !strcmp(arg, "heap");
	if (heap) {
		mem = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (mem == MAP_FAILED)
			DIE("mmap");
	} else {
		OK(gdrfab_mem_alloc(domain, GDRFAB_HMEM_SYSTEM, 0, bytes, 0, &mem));
	}
	return mem;
}

static void *g_reg(char *at, size_t len, uint64_t key)
{
	struct iovec v = { at, len };
	gdrfab_mr_attr a = { .struct_size = sizeof a, .mr_iov = &v, .iov_count = 1, .requested_key = key,
		.access = GDRFAB_READ | GDRFAB_WRITE | GDRFAB_REMOTE_READ | GDRFAB_REMOTE_WRITE };
	gdrfab_mr *mr;

	OK(gdrfab_mr_regattr(domain, &a, 0, &mr));
	return mr;
}

static void g_drop(void *mr)
{
	OK(gdrfab_mr_close(mr));
}

static void g_close(void)
{
	if (!heap)
		OK(gdrfab_mem_free(domain, mem));
	OK(gdrfab_domain_close(domain));
	OK(gdrfab_fabric_close(fabric));
	gdrfab_freeinfo(info);
}

const struct mr_ops mr_gdrfab = { "gdrfab", g_open, g_reg, g_drop, g_close };
