/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Paths, the kinds of memory that offer them, and the lists of ways: see fab_ways.h. */
#include "fab_ways.h"
#include "fab_node.h"
#include "fab_mem.h"
#include "fab_provider.h"
#include "fab_wait.h"

#include <sys/uio.h>

bool kind_listed(int kind)
{
	/* Only an adapter treats dma-bufs specially. For others a dma-buf is a file to map, and one exporter is enough. */
	return kind < EVERYWHERE || traits()->adapter ||
	       (kind == KIND_UDMABUF && access("/dev/udmabuf", R_OK | W_OK) == 0);
}

uint64_t kind_paths(const struct memkind *kind)
{
	if (traits()->paths & GDRFAB_PATH_DIRECT)
		return kind->paths;
	if (traits()->paths & GDRFAB_PATH_SOCKET)
		return kind->opaque ? GDRFAB_PATH_STAGED : GDRFAB_PATH_SOCKET;
	/* An adapter may be able to pin the pages of a mapped dma-buf (GDRFAB_PATH_PEER_MEM). */
	if (kind->dmabuf)
		return GDRFAB_PATH_DMABUF | GDRFAB_PATH_PEER_MEM | GDRFAB_PATH_STAGED;
	return (kind->opaque ? GDRFAB_PATH_DMABUF : GDRFAB_PATH_NIC) | GDRFAB_PATH_STAGED;
}

uint64_t kind_maybe(const struct memkind *kind)
{
	/* Only ordinary host memory is promised: the drivers decide which other memory an adapter reaches. */
	if (traits()->adapter)
		return kind_paths(kind) & ~GDRFAB_PATH_NIC;
	return kind->maybe & traits()->paths;
}

const struct path paths[PATHS] = {
	[PATH_DIRECT] = {"direct", GDRFAB_PATH_DIRECT},
	[PATH_CMA] = {"cma", GDRFAB_PATH_CMA},
	[PATH_STAGED] = {"staged", GDRFAB_PATH_STAGED},
	[PATH_IPC] = {"ipc", GDRFAB_PATH_IPC},
	[PATH_NIC] = {"nic", GDRFAB_PATH_NIC},
	[PATH_DMABUF] = {"dmabuf", GDRFAB_PATH_DMABUF},
	[PATH_PEER_MEM] = {"peer-mem", GDRFAB_PATH_PEER_MEM},
	[PATH_SOCKET] = {"socket", GDRFAB_PATH_SOCKET},
};

bool path_known(int path)
{
	return (traits()->paths & paths[path].bit) != 0;
}

void path_bytes(struct node *n, uint64_t bytes[PATHS])
{
	gdrfab_stats s;
	memset(&s, 0, sizeof s);
	s.struct_size = sizeof s;
	OK(gdrfab_ep_stats(n->ep, &s));
	for (int p = 0; p < PATHS; p++)
		bytes[p] = s.by_path[p].bytes;
}

bool one_sided(const struct way *way)
{
	return !(way->path->bit & (GDRFAB_PATH_STAGED | GDRFAB_PATH_SOCKET));
}

struct way ways[PATHS * (KINDS + DEVICE_KINDS)];

static size_t add_ways(size_t count, int path, const struct memkind *kind)
{
	if (!path_known(path) || !(kind_paths(kind) & paths[path].bit))
		return count;
	struct way *w = &ways[count];
	w->path = &paths[path];
	w->kind = kind;
	snprintf(w->name, sizeof w->name, "%s_%s", w->path->name, w->kind->name);
	return count + 1;
}

size_t ways_list(void)
{
	size_t count = 0;
	for (int p = 0; p < PATHS; p++)
		for (int k = 0; k < KINDS; k++)
			if (kind_listed(k))
				count = add_ways(count, p, &memkinds[k]);
	return count;
}

bool way_leads(size_t i)
{
	return i == 0 || ways[i].path != ways[i - 1].path;
}

size_t all_ways_list(void)
{
	size_t count = ways_list(), kinds = device_kinds_list();
	for (size_t k = 0; k < kinds; k++)
		for (int p = 0; p < PATHS; p++)
			count = add_ways(count, p, device_kinds[k]);
	return count;
}

static bool slow(void)
{
	return test_count(0, 1) && (test_checked() || !strcmp(provider(), "verbs"));
}

bool kind_spared(const struct memkind *kind)
{
	return slow() && kind->opaque && kind != device_kinds[0] && kind->iface != GDRFAB_HMEM_SYNAPSEAI;
}

bool way_spared(const struct way *way)
{
	if (way->kind->opaque)
		return kind_spared(way->kind);
	/* Adapters import dma-bufs of some exporters and not of others: each has its claims. */
	if (!slow() || way == ways || way->path->bit == GDRFAB_PATH_DMABUF)
		return false;
	return way[-1].path == way->path && !way[-1].kind->dmabuf == !way->kind->dmabuf;
}

void way_register(struct node *n, struct mem *m, size_t offset, size_t len, const struct way *way)
{
	int result = mem_try_register(n, m, offset, len, ANY_ACCESS, way->path->bit, 0);
	/* If a driver was asked, the errno may be the driver's own. */
	bool refused = result == -EOPNOTSUPP || (result < 0 && way->kind->opaque && traits()->adapter);
	/* The provider has no staged transfers over iWARP, and registers there only memory that has an address. */
	bool hasty = refused && !by_address_too(n) && (way->kind->file || way->path->bit == GDRFAB_PATH_STAGED);
	if (hasty || (refused && (kind_maybe(way->kind) & way->path->bit)))
		test_skip("%s", gdrfab_last_error());
	CHECK_EQ(result, 0);
}

int cma_refused(struct node *n)
{
	/* Both sides are forks of one image: this byte has the same address in the peer. */
	static const char there = 'c';
	char here = 0;
	struct iovec local = {&here, 1}, remote = {(void *)(uintptr_t)&there, 1};
	if (process_vm_readv(n->peer, &local, 1, &remote, 1, 0) == 1 && here == 'c')
		return 0;
	return errno ? errno : EIO;
}

void skip_if_cma_refused(struct node *n)
{
	int refused = cma_refused(n);
	if (refused)
		test_skip("process_vm_readv of the other side is refused: %s", strerror(refused));
}

void way_check(struct node *n, const struct way *way, struct remote to)
{
	gdrfab_path_info info;
	uint64_t key = to.key;
	/* A connectionless endpoint has no path to show until it has reached the peer: an empty read does this. */
	if (connectionless(n->setup)) {
		struct iovec iov = {&info, 0};
		gdrfab_rma_iov remote = {to.base, 0, key};
		gdrfab_msg_rma read = {.struct_size = sizeof read, .msg_iov = &iov, .iov_count = 1, .addr = PEER, .rma_iov = &remote,
				       .rma_iov_count = 1, .context = &info, .timeout_ns = UINT64_MAX};
		POST(n->cq, gdrfab_readmsg(n->ep, &read, GDRFAB_COMPLETION));
		DONE(n->cq, &info, GDRFAB_READ, NULL);
	}
	memset(&info, 0, sizeof info);
	info.struct_size = sizeof info;
	/* An adapter cannot ask its peer about a region: the form of the key alone tells whether an adapter reaches it. */
	if (!traits()->knows_regions) {
		OK(gdrfab_ep_query(n->ep, PEER, key, &info));
		/* The path for host memory on this side. */
		uint64_t other = path_known(PATH_SOCKET) ? GDRFAB_PATH_SOCKET : GDRFAB_PATH_NIC;
		CHECK_EQ(info.path, way->path->bit == GDRFAB_PATH_STAGED ? GDRFAB_PATH_STAGED : other);
		CHECK_EQ(info.paths, info.path);
		return;
	}
	/* The first query may make the library ask the peer for a mapping, which arrives a moment later. */
	uint64_t until = test_now_ms() + (uint64_t)test_ms(1000);
	do {
		OK(gdrfab_ep_query(n->ep, PEER, key, &info));
		if (info.path == way->path->bit)
			return;
		gdrfab_cq_read(n->cq, NULL, 0);
	} while (test_now_ms() < until);
	char words[512] = "";
	gdrfab_ep_explain(n->ep, PEER, key, words, sizeof words);
	int refused = way->path->bit == GDRFAB_PATH_CMA ? cma_refused(n) : 0;
	if (refused)
		test_skip("this kernel does not let a process copy another's memory (process_vm_readv: %s)",
			  strerror(refused));
	test_fail(__FILE__, __LINE__,
		  "the path %s is not taken: path 0x%llx of 0x%llx, offered 0x%llx; direct: %s, cma: %s, staged: %s, ipc: %s; %s",
		  way->path->name, (unsigned long long)info.path, (unsigned long long)info.paths,
		  (unsigned long long)info.offered, strerror(info.reasons[PATH_DIRECT]), strerror(info.reasons[PATH_CMA]),
		  strerror(info.reasons[PATH_STAGED]), strerror(info.reasons[PATH_IPC]), words);
}

int rail_query(gdrfab_ep *ep, uint64_t peer, uint32_t number, gdrfab_rail_info *rail)
{
	gdrfab_rail_info rails[16] = {0};
	gdrfab_path_info info = {.struct_size = sizeof info, .rails = rails, .rails_max = 16};
	int rc = gdrfab_ep_query(ep, peer, GDRFAB_KEY_MESSAGES, &info);
	if (rc < 0)
		return rc;
	CHECK(number < 16 && info.rails_count <= 16);
	*rail = rails[number];
	return (int)info.rails_count;
}

void copier_up(struct node *n)
{
	gdrfab_ep *ep = NULL;
	uint32_t off = 0;
	set_variable("GDRFAB_HMEM_DRIVER", "process");
	node_open(n);
	OK(gdrfab_ep_open(n->domain, n->info, NULL, &ep));
	OK(gdrfab_ep_setopt(ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_DRIVER_CALLS, &off, sizeof off));
	OK(gdrfab_ep_close(ep));
	node_meet(n);
}

pid_t copier_of(struct node *n, uint64_t key)
{
	char words[4096];
	CHECK(gdrfab_ep_explain(n->ep, 0, key, words, sizeof words) > 0);
	const char *at = strstr(words, "calls no driver: process ");
	if (!at)
		test_fail(__FILE__, __LINE__, "no process is named: %s", words);
	return (pid_t)atoi(at + strlen("calls no driver: process "));
}
