/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Registered memory of gdrfab's plugin for NCCL. Its source is included here with the library's calls replaced, to
 * check which region a communicator gets and where a dma-buf's region begins: a machine without a card and a GPU
 * would not show it.
 */
#include "claim.h"

#include "../memory.c"

#include <stdarg.h>

#define REGIONS 64
struct gdrfab_mr {
	gdrfab_domain *domain;
	gdrfab_mr_attr attr;
	gdrfab_mr_dmabuf file;
	const void *base;
	bool open;
};
static struct gdrfab_mr made[REGIONS];
static int made_count, held, warned;

int gdrfab_mr_regattr(gdrfab_domain *domain, const gdrfab_mr_attr *attr, uint64_t flags, gdrfab_mr **out)
{
	struct gdrfab_mr *mr = &made[__atomic_fetch_add(&made_count, 1, __ATOMIC_RELAXED)];
	*mr = (struct gdrfab_mr){.domain = domain, .attr = *attr, .base = attr->mr_iov->iov_base, .open = true};
	if (flags & GDRFAB_MR_DMABUF)
		mr->file = *attr->dmabuf;
	*out = mr;
	return 0;
}
int gdrfab_mr_close(gdrfab_mr *mr)
{
	CHECK(mr->open);
	mr->open = false;
	return 0;
}
int gdrfab_mr_query(gdrfab_mr *mr, gdrfab_mr_info *info)
{
	(void)mr, (void)info;
	return -ENOSYS;
}
int gdrfab_hmem_detect(const void *ptr, size_t len, gdrfab_hmem_place *place)
{
	(void)ptr, (void)len, (void)place;
	return -ENOSYS;
}
const char *gdrfab_last_error(void)
{
	return "";
}
void log_line(ncclDebugLogLevel level, unsigned long subsystem, const char *file, int line, const char *format, ...)
{
	(void)subsystem, (void)file, (void)line, (void)format;
	warned += level == NCCL_LOG_WARN;
}
static bool prefers_own;
bool tune_prefers_own_buffers(void)
{
	return prefers_own;
}
void inventory_hold(struct inventory *it)
{
	(void)it;
	held++;
}
void inventory_drop(struct inventory *it)
{
	(void)it;
	held--;
}

/* Two cards, with shm as the first way of both devices, as on one host. */
static struct inventory one, two;
static char domains[3];

static void furnish(struct inventory *it)
{
	static gdrfab_info info = {.mr_mode = GDRFAB_MR_VIRT_ADDR, .domain_name = (char *)(uintptr_t)"card"};
	static const enum kind kinds[3] = {KIND_SHM, KIND_VERBS, KIND_VERBS};
	for (int i = 0; i < 3; i++)
		it->ways[i] = (struct way){.of = it, .number = i, .kind = kinds[i], .info = &info,
					   .domain = (gdrfab_domain *)(void *)&domains[i]};
	for (int i = 0; i < 2; i++)
		it->devices[i] = (struct device){.of = it, .ways = {&it->ways[0], &it->ways[1 + i]}, .ways_count = 2};
}

static struct comm comm_of(struct inventory *it, int device, int way)
{
	return (struct comm){.device = &it->devices[device], .way = way};
}

/* {registered by each of four communicators} x {used with each of them, in every order of first use} */
TEST(every_communicator_gets_its_domains_region)
{
	static char bytes[4096];
	furnish(&one);
	struct comm comms[4] = {comm_of(&one, 0, 0), comm_of(&one, 0, 1), comm_of(&one, 1, 0), comm_of(&one, 1, 1)};
	for (int owner = 0; owner < 4; owner++)
		for (int first = 0; first < 4; first++) {
			struct memory *memory;
			made_count = 0;
			CHECK(memory_register(&comms[owner], bytes, sizeof bytes, NCCL_PTR_HOST, &memory) == ncclSuccess);
			CHECK_EQ(held, 1);
			for (int i = 0; i < 8; i++) {
				const struct comm *comm = &comms[(first + i) % 4];
				struct gdrfab_mr *mr = memory_region(memory, comm);
				CHECK(mr != NULL);
				CHECK(mr->domain == comm->device->ways[comm->way]->domain);
			}
			/* One region for each domain. */
			CHECK_EQ(made_count, 3);
			CHECK(memory_release(memory) == ncclSuccess);
			for (int i = 0; i < made_count; i++)
				CHECK(!made[i].open);
			CHECK_EQ(held, 0);
		}
}

TEST(memory_of_another_init_is_refused)
{
	static char bytes[4096];
	struct memory *memory;
	furnish(&one);
	furnish(&two);
	struct comm mine = comm_of(&one, 0, 1), other = comm_of(&two, 0, 1);
	CHECK(memory_register(&mine, bytes, sizeof bytes, NCCL_PTR_HOST, &memory) == ncclSuccess);
	CHECK(memory_region(memory, &other) == NULL);
	CHECK_EQ(warned, 1);
	CHECK(memory_release(memory) == ncclSuccess);
}

/* The library's region is base_addr + offset; NCCL's memory is `data` at any offset of its file. */
TEST(a_dmabuf_with_an_offset_begins_at_its_memory)
{
	static char bytes[65536];
	furnish(&one);
	struct comm card = comm_of(&one, 0, 1), without = comm_of(&one, 0, 0);
	for (uint64_t offset = 0; offset < 1u << 30; offset = offset * 3 + 4096) {
		struct memory *memory;
		made_count = 0;
		CHECK(memory_register_dmabuf(&card, bytes, sizeof bytes, NCCL_PTR_CUDA, offset, 7, &memory) == ncclSuccess);
		CHECK_EQ(made[0].file.fd, 7);
		CHECK_EQ(made[0].file.offset, offset);
		CHECK_EQ(made[0].file.len, sizeof bytes);
		CHECK((uintptr_t)made[0].file.base_addr + made[0].file.offset == (uintptr_t)bytes);
		/* Without a card the memory is registered by its address. */
		CHECK(memory_region(memory, &without) == &made[1]);
		CHECK(made[1].attr.dmabuf == NULL && made[1].base == bytes);
		CHECK(memory_release(memory) == ncclSuccess);
	}
}

/* {collectives, send and receive} x {tuned, not}: the memory that NCCL registers first is its own, later memory is a
 * user's. */
TEST(collectives_go_by_nccls_own_buffers)
{
	static char bytes[4096];
	enum { SIZE = sizeof bytes };
	furnish(&one);
	for (int collective = 0; collective < 2; collective++)
		for (int tuned = 0; tuned < 2; tuned++) {
			struct comm comm = comm_of(&one, 0, 0);
			struct memory *own[3], *users;
			int count = 0;
			made_count = 0;
			prefers_own = tuned;
			for (int type = NCCL_PTR_HOST; collective && type <= NCCL_PTR_CUDA; type++)
				CHECK(memory_register(&comm, bytes, SIZE, type, &own[count++]) == ncclSuccess);
			CHECK(memory_register(&comm, bytes, SIZE, NCCL_PTR_CUDA, &own[count++]) == ncclSuccess);
			for (int turn = 0; turn < 4; turn++) {
				ncclResult_t result =
					turn % 2 ? memory_register_dmabuf(&comm, bytes, SIZE, NCCL_PTR_CUDA, 0, 7, &users)
						 : memory_register(&comm, bytes, SIZE, NCCL_PTR_CUDA, &users);
				CHECK((result != ncclSuccess) == (collective && tuned));
				CHECK(result != ncclSuccess || memory_release(users) == ncclSuccess);
			}
			while (count)
				CHECK(memory_release(own[--count]) == ncclSuccess);
			CHECK_EQ(held, 0);
		}
}
