/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Buffers of the claims about the NCCL plugin: of each kind of memory, with guards on both sides. */
#include "nccl_drive.h"

#define BLANK 0xb1a4cu

const char *const mem_names[MEM_KINDS] = {"host", "cuda", "cuda_vmm", "dmabuf"};

void mixed_memory(int from, int to)
{
	if (from != HOST_MEM && to == HOST_MEM)
		setenv("GDRFAB_NCCL_GDR", "1", 1);
}

void net_open_with(struct node *n, int kind)
{
	struct props p;
	bool device = kind != HOST_MEM;
	if (device) {
		if (!test_says(getenv("TEST_IFACES"), "cuda"))
			test_skip("TEST_IFACES does not name cuda");
		/* PyTorch has made the context of its device by then, too. */
		uint32_t devices = device_count(n, GDRFAB_HMEM_CUDA);
		cuda_use(n->side == TEST_SERVER ? 0 : devices - 1);
	}
	net_open();
	NET(net_props(0, &p));
	CHECK(p.ptr_support & NCCL_PTR_HOST);
	/* shm and tcp offer it if there is a driver, at least by staged copies. */
	if (device && !(p.ptr_support & NCCL_PTR_CUDA))
		test_fail(__FILE__, __LINE__, "the device does not take CUDA memory: \"%s\"", log_all());
	if (kind == DMABUF_MEM && !net.reg_dmabuf)
		test_skip("the plugin takes no dma-bufs");
}

void buf_new(struct node *n, struct buf *b, int kind, size_t len)
{
	static const struct memkind *const kinds[MEM_KINDS] = {
		[HOST_MEM] = &memkinds[KIND_MALLOC],
		[CUDA_MEM] = &cuda_kinds[CUDA_PLAIN],
		[CUDA_VMM_MEM] = &cuda_kinds[CUDA_VMM],
		[DMABUF_MEM] = &cuda_kinds[CUDA_VMM],
	};
	memset(b, 0, sizeof *b);
	b->n = n;
	b->len = len;
	b->by_dmabuf = kind == DMABUF_MEM;
	/* Whole pages, as NCCL's are, and one before and behind. */
	mem_new(n, &b->mem, kinds[kind], (len + GUARD - 1) / GUARD * GUARD + 2 * GUARD);
	b->at = b->mem.addr + GUARD;
	buf_blank(b);
}

void buf_reg(struct buf *b, void *comm)
{
	int type = b->mem.kind->iface == GDRFAB_HMEM_CUDA ? NCCL_PTR_CUDA : NCCL_PTR_HOST;
	b->comm = comm;
	if (!b->by_dmabuf) {
		NET(net.reg(comm, b->at, b->len, type, &b->mhandle));
	} else {
		int fd = -1;
		size_t size = b->mem.len - 2 * GUARD;
		cuda_use(b->mem.device);
		CU(cuMemGetHandleForAddressRange, (int *, uint64_t, size_t, int, unsigned long long), &fd,
		   (uint64_t)(uintptr_t)b->at, size, 1, 0);
		NET(net.reg_dmabuf(comm, b->at, size, type, 0, fd, &b->mhandle));
		/* The descriptor is the caller's; the plugin only borrows it. */
		CHECK_EQ(close(fd), 0);
	}
	CHECK(b->mhandle != NULL);
}

void buf_dereg(struct buf *b)
{
	NET(net.dereg(b->comm, b->mhandle));
	b->mhandle = NULL;
}

void buf_end(struct buf *b)
{
	if (b->mhandle)
		buf_dereg(b);
	mem_end(b->n, &b->mem);
}

void buf_fill(struct buf *b, size_t offset, size_t len, uint32_t seed)
{
	CHECK(offset + len <= b->len);
	mem_fill(&b->mem, GUARD + offset, len, 0, seed);
}

void buf_blank(struct buf *b)
{
	mem_fill(&b->mem, 0, b->mem.len, 0, BLANK);
}

void buf_check(const char *file, int line, struct buf *b, size_t offset, size_t len, uint32_t seed)
{
	mem_check(file, line, "the message", &b->mem, GUARD + offset, len, 0, seed);
}

void buf_check_blank(const char *file, int line, struct buf *b, size_t offset, size_t len)
{
	mem_check(file, line, "memory beside a message", &b->mem, GUARD + offset, len, GUARD + offset, BLANK);
}

void buf_check_only(const char *file, int line, struct buf *b, size_t offset, size_t len, uint32_t seed)
{
	size_t from = GUARD + offset, to = from + len;
	buf_check(file, line, b, offset, len, seed);
	mem_check(file, line, "memory before the message", &b->mem, 0, from, 0, BLANK);
	mem_check(file, line, "memory behind the message", &b->mem, to, b->mem.len - to, to, BLANK);
}
