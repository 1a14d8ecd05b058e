/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Both sides in one process, as with ranks that are threads: two domains, or two endpoints of one domain, with device memory.
 * A driver does not open an IPC handle in the process that made it; the ipc path must work without.
 */
#include "fab.h"

#define LEN ((size_t)300000)

/* The first side initiates, the second is the target; both may be the same node. */
struct both {
	struct node nodes[2], *initiator, *target;
	gdrfab_ep *target_ep;
};

static void name_of(gdrfab_ep *ep, char *name, size_t *len)
{
	*len = GDRFAB_ADDR_MAX;
	OK(gdrfab_ep_getname(ep, name, len));
}

/* Waits for an event of both endpoints: each comes only while the other side is driven too. */
static void await_both(struct both *b)
{
	gdrfab_eq *eqs[2] = {b->initiator->eq, b->target->eq};
	uint64_t until = test_now_ms() + (uint64_t)test_ms(10000);
	int connected = 0;
	while (connected < 2) {
		for (int i = 0; i < 2; i++) {
			gdrfab_eq_cm_entry entry;
			uint32_t event = 0;
			ssize_t got = gdrfab_eq_read(eqs[i], &event, &entry, sizeof entry, 0);
			if (got == -EAGAIN)
				continue;
			CHECK_EQ(got, sizeof entry);
			CHECK_EQ(event, GDRFAB_CONNECTED);
			CHECK(entry.object == b->initiator->ep || entry.object == b->target_ep);
			connected++;
		}
		CHECK(test_now_ms() < until);
	}
}

static void both_up(struct both *b, bool one_domain)
{
	char initiator[GDRFAB_ADDR_MAX], target[GDRFAB_ADDR_MAX];
	size_t initiator_len, target_len;
	skip_unless(path_known(PATH_IPC), "it has no ipc path");
	memset(b, 0, sizeof *b);
	b->initiator = &b->nodes[0];
	b->target = one_domain ? b->initiator : &b->nodes[1];
	node_alone(b->initiator, NULL);
	if (!one_domain)
		node_alone(b->target, NULL);
	b->initiator->ep = ep_new(b->initiator, b->initiator->info, NULL);
	b->target_ep = ep_new(b->target, b->target->info, NULL);
	name_of(b->initiator->ep, initiator, &initiator_len);
	name_of(b->target_ep, target, &target_len);
	OK(gdrfab_ep_connect_addr(b->initiator->ep, target, target_len));
	OK(gdrfab_ep_connect_addr(b->target_ep, initiator, initiator_len));
	await_both(b);
}

static void both_down(struct both *b)
{
	/* The sides were opened one after the other: descriptors are counted when both are closed. */
	b->nodes[0].drivers = b->nodes[1].drivers = true;
	OK(gdrfab_ep_close(b->target_ep));
	if (b->target != b->initiator)
		node_close(b->target);
	node_close(b->initiator);
}

/* The device of a side: targets use the first, TEST_CLIENT the last. */
static void memory(struct node *n, struct mem *m, const struct memkind *kind, enum test_side side, uint64_t require)
{
	n->side = side;
	mem_new(n, m, kind, LEN);
	mem_register(n, m, 0, LEN, ANY_ACCESS, require);
}

/* Drives the target too: if the kernel cannot copy the peer's descriptors (pidfd_getfd), the peer must send them. */
static void meanwhile(struct both *b)
{
	uint64_t until = test_now_ms() + (uint64_t)test_ms(10000);
	while (gdrfab_cq_read(b->initiator->cq, NULL, 0) == -EAGAIN && test_now_ms() < until)
		gdrfab_cq_read(b->target->cq, NULL, 0);
}

static void there_and_back(struct both *b, struct mem *local, struct mem *target, uint32_t seed)
{
	void *desc = mem_desc(local);
	done entry;
	mem_fill(local, 0, LEN, 0, seed);
	POST(b->initiator->cq,
	     gdrfab_write(b->initiator->ep, local->addr, LEN, desc, 0, target->base, target->key, &local->key));
	meanwhile(b);
	DONE(b->initiator->cq, &local->key, GDRFAB_WRITE, NULL);
	CHECK_MEM("what was written", target, 0, LEN, 0, seed);

	mem_fill(target, 0, LEN, 0, seed + 1);
	POST(b->initiator->cq,
	     gdrfab_read(b->initiator->ep, local->addr + 100, LEN - 300, desc, 0, target->base + 200, target->key, local));
	meanwhile(b);
	DONE(b->initiator->cq, local, GDRFAB_READ, NULL);
	CHECK_MEM("what was read", local, 100, LEN - 300, 200, seed + 1);
	CHECK_MEM("what lies behind it", local, LEN - 200, 200, LEN - 200, seed);

	mem_fill(local, 0, LEN, 0, seed + 2);
	POST(b->initiator->cq, gdrfab_writedata(b->initiator->ep, local->addr, LEN, desc, seed, 0, target->base, target->key, desc));
	if (b->target == b->initiator) {
		/* Both entries are in one queue, in either order. */
		for (int i = 0; i < 2; i++) {
			int got = 0;
			while ((got = cq_next(b->initiator->cq, &entry, 100)) == 0)
				;
			CHECK_EQ(got, 1);
			if (entry.flags & GDRFAB_REMOTE_WRITE)
				CHECK_EQ(entry.data, seed);
			else
				CHECK(entry.op_context == desc);
		}
	} else {
		meanwhile(b);
	DONE(b->initiator->cq, desc, GDRFAB_WRITE, NULL);
		DATA_CAME(b->target, &entry);
		CHECK_EQ(entry.data, seed);
	}
	CHECK_MEM("what came with data", target, 0, LEN, 0, seed + 2);
}

/* Checks that all bytes went by the ipc path. */
static void check_path(struct both *b, uint64_t want)
{
	uint64_t bytes[PATHS];
	path_bytes(b->initiator, bytes);
	for (int p = 0; p < PATHS; p++)
		CHECK_EQ(bytes[p], p == PATH_IPC ? want : 0);
}

struct claim {
	const struct memkind *kind;
	bool one_domain;
};

static void transfers(const void *arg)
{
	const struct claim *claim = (const struct claim *)arg;
	struct both b;
	struct mem target, local;
	const struct memkind *kinds[] = {&memkinds[KIND_MEM_ALLOC], &cuda_kinds[CUDA_PLAIN], claim->kind};
	both_up(&b, claim->one_domain);
	memory(b.target, &target, claim->kind, TEST_SERVER, GDRFAB_PATH_IPC);
	uint64_t moved = 0;
	for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
		for (int side = TEST_SERVER; side <= TEST_CLIENT; side++) {
			memory(b.initiator, &local, kinds[k], (enum test_side)side, 0);
			there_and_back(&b, &local, &target, (uint32_t)(k * 20 + (size_t)side * 4));
			moved += 3 * LEN - 300;
			check_path(&b, moved);
			mem_end(b.initiator, &local);
		}
	/* The memory still counts as the program's own. */
	gdrfab_hmem_place place;
	memset(&place, 0, sizeof place);
	place.struct_size = sizeof place;
	OK(gdrfab_hmem_detect(target.addr, 1, &place));
	CHECK(place.kind != GDRFAB_HMEM_KIND_IMPORTED);
	mem_end(b.target, &target);
	both_down(&b);
}

/* A message too long for the ring, copied by the receiver's driver. */
static void long_message(const void *arg)
{
	const struct claim *claim = (const struct claim *)arg;
	struct both b;
	struct mem from, to;
	both_up(&b, claim->one_domain);
	memory(b.initiator, &from, claim->kind, TEST_SERVER, 0);
	memory(b.target, &to, claim->kind, TEST_CLIENT, 0);
	mem_fill(&from, 0, LEN, 0, 5);
	OK(gdrfab_recv(b.target_ep, to.addr, LEN, mem_desc(&to), 0, &to));
	POST(b.initiator->cq, gdrfab_send(b.initiator->ep, from.addr, LEN, mem_desc(&from), 0, &from));
	uint64_t until = test_now_ms() + (uint64_t)test_ms(10000);
	for (int left = 2; left > 0;) {
		gdrfab_cq *cqs[2] = {b.initiator->cq, b.target->cq};
		for (int i = 0; i < 2; i++) {
			done entry;
			int got = cq_next(cqs[i], &entry, 0);
			CHECK(got >= 0);
			left -= got;
		}
		CHECK(test_now_ms() < until);
	}
	CHECK_MEM("the message", &to, 0, LEN, 0, 5);
	mem_end(b.initiator, &from);
	mem_end(b.target, &to);
	both_down(&b);
}

/* Within one process freed memory is gone for the peer too, and new memory at the same address must not be touched. */
static void freed_under_a_region(const void *arg)
{
	const struct claim *claim = (const struct claim *)arg;
	struct both b;
	struct mem target, local, again;
	both_up(&b, claim->one_domain);
	memory(b.target, &target, claim->kind, TEST_SERVER, GDRFAB_PATH_IPC);
	memory(b.initiator, &local, &cuda_kinds[CUDA_PLAIN], TEST_CLIENT, 0);
	there_and_back(&b, &local, &target, 1);
	claim->kind->release(b.target, &target);
	again = target;
	again.kind->alloc(b.target, &again);
	mem_fill(&again, 0, LEN, 0, 9);
	for (int i = 0; i < 2; i++) {
		POST(b.initiator->cq,
		     gdrfab_write(b.initiator->ep, local.addr, LEN, mem_desc(&local), 0, target.base, target.key, &local));
		FAILED(b.initiator->cq, &local, EFAULT, GDRFAB_PROV_FAULT, NULL);
	}
	CHECK_MEM("memory allocated later", &again, 0, LEN, 0, 9);
	mem_unregister(&target);
	again.mr = NULL;
	mem_register(b.target, &again, 0, LEN, ANY_ACCESS, GDRFAB_PATH_IPC);
	there_and_back(&b, &local, &again, 20);
	mem_end(b.initiator, &local);
	mem_end(b.target, &again);
	both_down(&b);
}

/* The copying device gets access to the other device's memory (peer access), if the driver permits. */
static void peer_access(const void *arg)
{
	struct both b;
	struct mem target, local;
	gdrfab_hmem_info info;
	bool refused = arg != NULL;
	both_up(&b, false);
	memset(&info, 0, sizeof info);
	info.struct_size = sizeof info;
	if (device_count(b.target, GDRFAB_HMEM_CUDA) < 2)
		test_skip("one device");
	uint32_t last = device_count(b.target, GDRFAB_HMEM_CUDA) - 1;
	OK(gdrfab_hmem_query(GDRFAB_HMEM_CUDA, 0, &info));
	if (refused && !getenv("GDRFAB_FAKES"))
		test_skip("a real driver cannot be told to refuse");
	if (!refused && !(info.peers >> last & 1))
		test_skip("devices 0 and %u do not reach each other", last);
	if (refused)
		setenv("FAKE_FAULT", "cuCtxEnablePeerAccess=711", 1);
	memory(b.target, &target, &cuda_kinds[CUDA_PLAIN], TEST_SERVER, GDRFAB_PATH_IPC);
	memory(b.initiator, &local, &cuda_kinds[CUDA_PLAIN], TEST_CLIENT, 0);
	there_and_back(&b, &local, &target, 1);
	check_path(&b, 3 * LEN - 300);
	if (!refused) {
		void *owner = NULL;
		int (*enable)(void *, unsigned);
		CU(cuDevicePrimaryCtxRetain, (void **, int), &owner, 0);
		cuda_use(last);
		*(void **)(void *)&enable = cuda_entry("cuCtxEnablePeerAccess");
		/* ALREADY_ENABLED */
		CHECK_EQ(enable(owner, 0), 704);
	}
	mem_end(b.initiator, &local);
	mem_end(b.target, &target);
	both_down(&b);
}

TEST_TABLE(of_cuda)
{
	static const struct {
		int kind;
		const char *name;
	} kinds[] = {{CUDA_PLAIN, "plain"}, {CUDA_POOL, "pool"}, {CUDA_VMM, "vmm"}, {CUDA_SEGMENTS, "segments"}};
	static struct claim claims[2 * sizeof kinds / sizeof kinds[0]];
	size_t used = 0;
	char name[64];
	if (device_kinds_list() == 0 || device_kinds[0]->iface != GDRFAB_HMEM_CUDA)
		return;
	for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
		/* All kinds of mappings are the same to a memory checker. */
		if (test_checked() && kinds[k].kind != CUDA_PLAIN && kinds[k].kind != CUDA_SEGMENTS)
			continue;
		for (int one = 0; one < 2; one++) {
			struct claim *claim = &claims[used++];
			const char *domains = one ? "one_domain" : "two_domains";
			claim->kind = &cuda_kinds[kinds[k].kind];
			claim->one_domain = one;
			snprintf(name, sizeof name, "transfers_%s_%s", kinds[k].name, domains);
			test_add(name, transfers, claim, 20);
			/* A message is copied from a single mapping, and several segments are more than one. */
			snprintf(name, sizeof name, "long_message_%s_%s", kinds[k].name, domains);
			test_add(name, long_message, claim, 20);
			if (kinds[k].kind > CUDA_POOL)
				continue;
			snprintf(name, sizeof name, "freed_under_a_region_%s_%s", kinds[k].name, domains);
			test_add(name, freed_under_a_region, claim, 20);
		}
	}
	test_add("peer_access", peer_access, NULL, 20);
	test_add("peer_access_refused", peer_access, &claims[0], 20);
}
