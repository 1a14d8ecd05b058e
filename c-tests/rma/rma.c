/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Every RMA call over every path from and to every kind of memory: sizes around the edges of cache lines, pages and
 * rings, unaligned at both ends, scattered over many iovecs, and checked byte for byte on both sides of the target.
 */
#include "rma_calls.h"

#include <strings.h>

#define TARGET_SIZE ((size_t)1536 * 1024)
#define MARGIN ((size_t)8192) /* bytes checked before and behind the target after each operation; all at the end */
#define BASE_SEED 1u

static const size_t sizes[] = {0, 1, 63, 64, 65, 4095, 4096, 4097, 300 * 1024 + 3, 1024 * 1024 + 3};
static const size_t offsets[] = {MARGIN, MARGIN + 1, MARGIN + 4095};

/* The parameters of one claim. */
struct plan {
	const struct way *way;
	const struct memkind *local; /* the initiator's memory */
	const char *variable, *value; /* a setting of the provider, or NULL */
};

static const struct plan *plan_of(const struct node *n)
{
	return (const struct plan *)n->arg;
}

/* --- the target: checks the bytes that the initiator reports as written --- */

enum { VERIFY, END };
struct order {
	uint32_t what, seed;
	size_t offset, len;
	uint64_t announced; /* an entry with remote CQ data comes too */
	uint64_t data;
};

static void check_around(struct mem *m, size_t offset, size_t len, uint32_t seed)
{
	size_t from = offset > MARGIN ? offset - MARGIN : 0;
	size_t end = offset + len, to = end + MARGIN < TARGET_SIZE ? end + MARGIN : TARGET_SIZE;
	CHECK_MEM("before the target bytes", m, from, offset - from, from, BASE_SEED);
	CHECK_MEM("target bytes", m, offset, len, 0, seed);
	CHECK_MEM("after the target bytes", m, end, to - end, end, BASE_SEED);
}

static void obey(struct node *n, struct mem *m)
{
	struct order o;
	char ack = 'k';
	for (;;) {
		oob_recv(n, &o, sizeof o);
		if (o.what == END)
			break;
		if (o.announced) {
			done entry;
			DATA_CAME(n, &entry);
			CHECK_EQ(entry.data, o.data);
			CHECK_EQ(entry.len, o.len);
			data_room(n);
		}
		check_around(m, o.offset, o.len, o.seed);
		mem_fill(m, o.offset, o.len, o.offset, BASE_SEED);
		oob_send(n, &ack, 1);
	}
	CHECK_MEM("the whole target at the end", m, 0, TARGET_SIZE, 0, BASE_SEED);
	QUIET(n->cq, 0);
}

static void target(struct node *n)
{
	const struct way *way = plan_of(n)->way;
	struct mem m;
	node_up(n);
	mem_new(n, &m, way->kind, TARGET_SIZE);
	mem_fill(&m, 0, TARGET_SIZE, 0, BASE_SEED);
	way_register(n, &m, 0, TARGET_SIZE, way);
	data_room(n);
	mem_publish(n, &m);
	obey(n, &m);
	mem_end(n, &m);
	node_down(n);
}

static void order(struct node *n, const struct order *o)
{
	char ack;
	oob_send(n, o, sizeof *o);
	oob_recv(n, &ack, 1);
}

/* --- the initiator --- */

static size_t at_most(size_t value, size_t limit)
{
	return value < limit ? value : limit;
}

/* One transfer into or out of the middle of a local buffer, whose edges must stay as they were. */
static void transfer(struct node *n, struct remote to, struct mem *local, void *desc, size_t call, size_t len,
		     size_t offset, uint32_t seed)
{
	size_t lead = 64 + offset % 7, total = lead + len + 64;
	struct transfer t = {n, to, local, local->addr + lead, lead, len, offset, desc,
			     cq_data(n, 0x1122334455667788u * (seed + 1)), 0, 0};
	t.iov_limit = at_most(n->info->tx_iov_limit, MAX_IOV);
	t.rma_limit = n->info->rma_iov_limit;

	mem_fill(local, 0, total, 0, 2);
	if (!calls[call].reads)
		mem_fill(local, lead, len, 0, seed);
	calls[call].call(&t);
	CHECK_MEM("before the local bytes", local, 0, lead, 0, 2);
	CHECK_MEM("after the local bytes", local, lead + len, 64, lead + len, 2);
	if (calls[call].reads) {
		CHECK_MEM("bytes read", local, lead, len, offset, BASE_SEED);
		return;
	}
	struct order o = {VERIFY, seed, offset, len, calls[call].announces, t.data};
	order(n, &o);
}

/* Checks that all bytes went by the expected path. */
static void check_path(struct node *n)
{
	const struct plan *plan = plan_of(n);
	const struct path *wanted = plan->way->path;
	uint64_t bytes[PATHS];
	path_bytes(n, bytes);
	/* Memory that the CPU reaches goes by the socket; device memory is staged in pinned host memory. */
	if (path_known(PATH_SOCKET)) {
		bool device = plan->local->opaque || plan->way->kind->opaque;
		CHECK_EQ(bytes[PATH_SOCKET] > fenced, !device);
		CHECK_EQ(bytes[PATH_STAGED] > 0, device);
		CHECK_EQ(bytes[PATH_NIC] + bytes[PATH_DIRECT] + bytes[PATH_CMA] + bytes[PATH_IPC], 0);
		return;
	}
	/* An adapter's operations are counted by how it reaches this side's memory. */
	if (!traits()->knows_regions) {
		uint64_t may = kind_paths(plan->local) | GDRFAB_PATH_NIC | GDRFAB_PATH_STAGED, sum = 0;
		for (int p = 0; p < PATHS; p++) {
			sum += bytes[p];
			CHECK(bytes[p] == 0 || (may & paths[p].bit) != 0);
		}
		CHECK(sum > 0 && (bytes[PATH_STAGED] > 0 || wanted->bit != GDRFAB_PATH_STAGED));
		return;
	}
	for (int p = 0; p < PATHS; p++)
		if ((bytes[p] > 0) != (wanted == &paths[p]))
			test_fail(__FILE__, __LINE__, "%llu bytes went the path %s, asked for was %s",
				  (unsigned long long)bytes[p], paths[p].name, wanted->name);
}

static void initiator(struct node *n)
{
	const struct plan *plan = plan_of(n);
	node_up(n);
	CHECK(n->info->tx_iov_limit >= 1);
	CHECK(n->info->rma_iov_limit >= 1);
	struct remote to = mem_fetch(n);
	way_check(n, plan->way, to);

	struct mem local;
	mem_new(n, &local, plan->local, TARGET_SIZE);
	mem_register(n, &local, 0, TARGET_SIZE, GDRFAB_READ | GDRFAB_WRITE, 0);
	uint32_t seed = 10;
	/* The second largest size also takes several pieces, wherever transfers are split. */
	size_t tried = COUNT(sizes) - (size_t)test_count(0, 1);
	for (size_t call = 0; call < COUNT(calls); call++)
		for (size_t s = 0; s < tried; s++)
			for (size_t o = 0; o < (sizes[s] > 65536 ? 1 : COUNT(offsets)); o++) {
				if (calls[call].injects && sizes[s] > n->info->inject_size)
					continue;
				if (calls[call].nameless && plan->local->opaque)
					continue;
				if (calls[call].announces && n->info->cq_data_size == 0)
					continue;
				/* A descriptor is optional for host memory. */
				void *desc = o & 1 ? mem_desc(&local) : mem_needed_desc(n, &local);
				transfer(n, to, &local, desc, call, sizes[s], offsets[(o + s) % 3], seed++);
			}
	check_path(n);
	gdrfab_stats stats;
	memset(&stats, 0, sizeof stats);
	stats.struct_size = sizeof stats;
	OK(gdrfab_ep_stats(n->ep, &stats));
	CHECK_EQ(stats.errors, 0);

	struct order end = {END, 0, 0, 0, 0, 0};
	oob_send(n, &end, sizeof end);
	mem_end(n, &local);
	node_down(n);
}

static void every_call(const void *arg)
{
	const struct plan *plan = (const struct plan *)arg;
	if (plan->variable)
		set_variable(plan->variable, plan->value);
	pair(NULL, target, initiator, arg);
}

/* --- offsets instead of virtual addresses, and requested keys --- */

static void offset_target(struct node *n)
{
	bool given = n->setup->given_keys;
	struct mem m;
	node_up(n);
	const gdrfab_info *info = n->request ? n->request : n->info;
	CHECK_EQ(info->mr_mode & GDRFAB_MR_VIRT_ADDR, 0);
	CHECK_EQ(info->mr_mode & GDRFAB_MR_PROV_KEY, given ? 0 : GDRFAB_MR_PROV_KEY);
	mem_new(n, &m, &memkinds[KIND_MEM_ALLOC], TARGET_SIZE);
	mem_fill(&m, 0, TARGET_SIZE, 0, BASE_SEED);
	OK(mem_try_register(n, &m, 0, TARGET_SIZE, REMOTE_ACCESS, 0, 4711));
	if (given)
		CHECK_EQ(m.key, 4711);
	CHECK_EQ(m.base, 0);
	mem_publish(n, &m);
	obey(n, &m);
	mem_end(n, &m);
	node_down(n);
}

static void offset_initiator(struct node *n)
{
	node_up(n);
	struct remote to = mem_fetch(n);
	struct mem local;
	mem_new(n, &local, &memkinds[KIND_MALLOC], TARGET_SIZE);
	void *desc = mem_needed_desc(n, &local);
	for (size_t s = 0; s < COUNT(sizes); s++) {
		transfer(n, to, &local, desc, CALL_WRITE, sizes[s], MARGIN + 17, 20 + (uint32_t)s);
		transfer(n, to, &local, desc, CALL_READ, sizes[s], MARGIN + 17, 40 + (uint32_t)s);
	}
	struct order end = {END, 0, 0, 0, 0, 0};
	oob_send(n, &end, sizeof end);
	mem_end(n, &local);
	node_down(n);
}

TEST(offset_addressing_and_requested_keys)
{
	struct setup s = {.offsets = true, .given_keys = true};
	pair(&s, offset_target, offset_initiator, NULL);
}

TEST(offset_addressing)
{
	struct setup s = {.offsets = true};
	pair(&s, offset_target, offset_initiator, NULL);
}

/* --- reads of no bytes, in queue slots that writes have used --- */

static void empty_target(struct node *n)
{
	struct mem m;
	node_up(n);
	mem_new(n, &m, &memkinds[KIND_MALLOC], TARGET_SIZE);
	mem_fill(&m, 0, TARGET_SIZE, 0, BASE_SEED);
	mem_register(n, &m, 0, TARGET_SIZE, REMOTE_ACCESS, 0);
	mem_publish(n, &m);
	obey(n, &m);
	mem_end(n, &m);
	node_down(n);
}

static void empty_initiator(struct node *n)
{
	enum { LEN = 40 };
	node_up(n);
	struct remote to = mem_fetch(n);
	struct mem local;
	mem_new(n, &local, &memkinds[KIND_MALLOC], TARGET_SIZE);
	void *desc = mem_needed_desc(n, &local);
	struct transfer t = {n, to, &local, local.addr, 0, LEN, MARGIN, desc, 0, 1, 1};
	mem_fill(&local, 0, TARGET_SIZE, MARGIN, BASE_SEED);
	/* Three in each round: in the end each slot has held each kind. */
	for (size_t round = 0; round < at_most(n->info->tx_size, 512) + 3; round++) {
		POST(n->cq, gdrfab_inject_write(n->ep, t.buf, LEN, PEER, there(&t), to.key));
		t.len = LEN;
		put(&t);
		t.len = 0;
		get(&t);
	}
	CHECK_MEM("what no read was for", &local, 0, TARGET_SIZE, MARGIN, BASE_SEED);
	struct order end = {END, 0, 0, 0, 0, 0};
	oob_send(n, &end, sizeof end);
	mem_end(n, &local);
	node_down(n);
}

TEST(empty_reads_move_nothing)
{
	pair(NULL, empty_target, empty_initiator, NULL);
}

/* --- the claims --- */

/* With a changed setting of the provider, slower or smaller: the results are the same. */
static const struct {
	const char *provider, *variable, *value;
	int path, kind;
} variants[] = {
	{"shm", "GDRFAB_DEBUG", "no-pidfd", PATH_DIRECT, KIND_MEM_ALLOC},
	{"shm", "GDRFAB_DEBUG", "no-pidfd", PATH_DIRECT, KIND_MEMFD},
	{"shm", "GDRFAB_DEBUG", "no-membarrier", PATH_DIRECT, KIND_MEM_ALLOC},
	{"shm", "GDRFAB_DEBUG", "no-membarrier", PATH_STAGED, KIND_MALLOC},
	{"shm", "GDRFAB_DEBUG", "nt-threshold=4096", PATH_DIRECT, KIND_MEM_ALLOC},
	{"shm", "GDRFAB_DEBUG", "no-coop", PATH_DIRECT, KIND_MEM_ALLOC},
	{"shm", "GDRFAB_DEBUG", "coop-min=4096", PATH_DIRECT, KIND_MEM_ALLOC},
	{"shm", "GDRFAB_DEBUG", "coop-min=4096", PATH_CMA, KIND_MALLOC},
	{"shm", "GDRFAB_DEBUG", "ring-slots=256", PATH_STAGED, KIND_MALLOC},
	{"shm", "GDRFAB_SHM_EAGER_MAX", "0", PATH_STAGED, KIND_MALLOC},
	{"tcp", "GDRFAB_TCP_BUFFER", "32768", PATH_SOCKET, KIND_MALLOC},
};

static void add(const struct way *way, const struct memkind *local, const char *variable, const char *value)
{
	static struct plan plans[256];
	static size_t used;
	char name[96];
	if (used == COUNT(plans))
		abort();
	struct plan *plan = &plans[used++];
	plan->way = way;
	plan->local = local;
	plan->variable = variable;
	plan->value = value;
	int len = snprintf(name, sizeof name, "every_call_%s", way->name);
	if (local != &memkinds[KIND_MALLOC])
		len += snprintf(name + len, sizeof name - (size_t)len, "_from_%s", local->name);
	if (variable)
		snprintf(name + len, sizeof name - (size_t)len, "_%s=%s", variable, value);
	test_add(name, every_call, plan, 60);
}

/* From device memory or a dma-buf: to host memory by each way, and to the same kind. */
static bool worth_it(const struct memkind *local, const struct way *way)
{
	if (local->dmabuf) {
		/* Where time is short, one exporter of dma-bufs stands for all. */
		if (test_count(0, 1) && local != &memkinds[KIND_UDMABUF] && way->path->bit != GDRFAB_PATH_NIC)
			return false;
		return way->kind == local || way->kind == &memkinds[KIND_MALLOC];
	}
	if (way->kind->iface == GDRFAB_HMEM_SYSTEM)
		return way->path->bit == GDRFAB_PATH_DIRECT ? way->kind == &memkinds[KIND_MEM_ALLOC]
							    : way->kind == &memkinds[KIND_MALLOC];
	return way->kind == local || (local->iface == way->kind->iface && way->path->bit == GDRFAB_PATH_IPC &&
				      way->kind->alloc == local->alloc && way->kind->flavour == CUDA_SEGMENTS);
}

TEST_TABLE(every_call)
{
	const struct memkind *host = &memkinds[KIND_MALLOC];
	size_t count = all_ways_list(), kinds = device_kinds_list();
	for (size_t i = 0; i < count; i++)
		/* Mapping, pinning and importing device memory differ by vendor: each is tried. */
		if (!way_spared(&ways[i]) || ways[i].path->bit & (GDRFAB_PATH_IPC | GDRFAB_PATH_NIC | GDRFAB_PATH_DMABUF))
			add(&ways[i], host, NULL, NULL);
	for (size_t v = 0; v < COUNT(variants); v++)
		for (size_t i = 0; i < count && strcmp(variants[v].provider, provider()) == 0; i++)
			if (ways[i].path == &paths[variants[v].path] && ways[i].kind == &memkinds[variants[v].kind])
				add(&ways[i], host, variants[v].variable, variants[v].value);
	/* The peer's allocation is mapped by descriptor, with and without the peer sending it. */
	bool fast = test_count(0, 1);
	for (size_t i = 0; i < count; i++)
		if (ways[i].path->bit == GDRFAB_PATH_IPC && !fast)
			add(&ways[i], host, "GDRFAB_DEBUG", "no-pidfd");
	/* GDRFAB_HMEM_DRIVER=thread: only a thread of the library calls drivers. */
	uint32_t last = GDRFAB_HMEM_SYSTEM;
	for (size_t i = 0; i < count; i++)
		if (ways[i].path->bit == GDRFAB_PATH_IPC && ways[i].kind->iface != last && !kind_spared(ways[i].kind)) {
			last = ways[i].kind->iface;
			add(&ways[i], ways[i].kind, "GDRFAB_HMEM_DRIVER", "thread");
		}
	for (int k = EVERYWHERE; k < KINDS && !path_known(PATH_DIRECT); k++)
		for (size_t i = 0; i < count && kind_listed(k); i++)
			if (worth_it(&memkinds[k], &ways[i]))
				add(&ways[i], &memkinds[k], NULL, NULL);
	for (size_t k = 0; k < kinds; k++)
		for (size_t i = 0; i < count; i++)
			/* Two vendors' memory at the initiator is the same to a memory checker. */
			if (device_kinds[k]->opaque && !(test_checked() && k > 0) && !(fast && device_kinds[k]->alloc == cuda_kinds[0].alloc) &&
			    !kind_spared(device_kinds[k]) && worth_it(device_kinds[k], &ways[i]))
				add(&ways[i], device_kinds[k], NULL, NULL);
}
