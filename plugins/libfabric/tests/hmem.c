/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Device memory (FI_HMEM): CUDA's, from the fake driver of GDRFAB_FAKES or, with TEST_REAL=1, from a real one. The
 * program allocates it by the driver's calls and names it to the provider by fi_mr_regattr. A CPU load from fake
 * device memory crashes.
 */
#include "fi_rdm.h"

#include <dlfcn.h>

#define SENT (FI_SEND | FI_MSG)
#define RECEIVED (FI_RECV | FI_MSG)
#define LEN ((size_t)1 << 20)

static const struct setup device_setup = {.caps = FI_MSG | FI_RMA | FI_HMEM, .mr_mode = KNOWN_MR_MODES | FI_MR_HMEM};

static int ask(const struct setup *setup, struct fi_info **list)
{
	struct fi_info *hints = hints_new(setup);
	int rc = provider_getinfo(NULL, NULL, 0, hints, list);
	fi_freeinfo(hints);
	return rc;
}

/* --- offers --- */

TEST(offered)
{
	struct setup without_mode = {.caps = device_setup.caps}, plain = {.caps = 0, .mr_mode = device_setup.mr_mode};
	struct fi_info *list;
	skip_unless(is_gdrfab(), "has none here");
	OK(ask(&device_setup, &list));
	for (struct fi_info *i = list; i; i = i->next) {
		CHECK_EQ(i->caps & FI_HMEM, FI_HMEM);
		CHECK_EQ(i->domain_attr->mr_mode & FI_MR_HMEM, FI_MR_HMEM);
	}
	fi_freeinfo(list);
	/* Device memory must be named. */
	CHECK_EQ(ask(&without_mode, &list), -FI_ENODATA);
	/* Without FI_HMEM in the hints it is not offered, and nothing must be named. */
	OK(ask(&plain, &list));
	for (struct fi_info *i = list; i; i = i->next) {
		CHECK_EQ(i->caps & FI_HMEM, 0);
		CHECK_EQ(i->domain_attr->mr_mode & FI_MR_HMEM, 0);
	}
	fi_freeinfo(list);
}

TEST(without_devices)
{
	struct fi_info *list;
	struct setup plain = {.caps = 0};
	skip_unless(is_gdrfab(), "has none here");
	if (!getenv("GDRFAB_FAKES"))
		test_skip("real devices cannot be taken away");
	setenv("FAKE_DEVICES", "0", 1);
	CHECK_EQ(ask(&device_setup, &list), -FI_ENODATA);
	OK(ask(&plain, &list));
	fi_freeinfo(list);
}

/* --- CUDA by its driver --- */

static void *cuda_entry(const char *name)
{
	static void *library;
	if (!library)
		library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library)
		test_skip("libcuda.so.1: %s", dlerror());
	void *entry = dlsym(library, name);
	if (!entry)
		test_skip("libcuda.so.1 has no %s", name);
	return entry;
}

#define CU(name, types, ...)                                                                                           \
	do {                                                                                                           \
		int (*call_) types;                                                                                    \
		*(void **)(void *)&call_ = cuda_entry(#name);                                                          \
		test_at(__FILE__, __LINE__);                                                                           \
		int code_ = call_(__VA_ARGS__);                                                                        \
		if (code_ != 0)                                                                                        \
			test_fail(__FILE__, __LINE__, "%s is %d", #name, code_);                                       \
	} while (0)

static void cuda_up_on(int device)
{
	void *context = NULL;
	CU(cuDevicePrimaryCtxRetain, (void **, int), &context, device);
	CU(cuCtxSetCurrent, (void *), context);
}

static void cuda_up(void)
{
	CU(cuInit, (unsigned), 0);
	cuda_up_on(0);
}

/* If there are two devices, the client has the last. */
static int own_device(const struct node *n)
{
	int count = 0;
	CU(cuInit, (unsigned), 0);
	CU(cuDeviceGetCount, (int *), &count);
	CHECK(count > 0);
	return n->side == TEST_SERVER ? 0 : count - 1;
}

static unsigned char *device_new(size_t len)
{
	uint64_t at = 0;
	CU(cuMemAlloc_v2, (uint64_t *, size_t), &at, len);
	return (unsigned char *)(uintptr_t)at;
}

static void device_end(unsigned char *at)
{
	CU(cuMemFree_v2, (uint64_t), (uint64_t)(uintptr_t)at);
}

static void device_fill(unsigned char *at, size_t len, uint32_t seed)
{
	unsigned char *host = (unsigned char *)pages(len);
	fill(host, len, 0, seed);
	CU(cuMemcpyHtoD_v2, (uint64_t, const void *, size_t), (uint64_t)(uintptr_t)at, host, len);
	/* The call may return before pageable bytes are in place; only the default stream waits for them. */
	CU(cuStreamSynchronize, (void *), NULL);
	free(host);
}

static void device_check(const char *what, const unsigned char *at, size_t len, uint32_t seed)
{
	unsigned char *host = (unsigned char *)pages(len);
	CU(cuMemcpyDtoH_v2, (void *, uint64_t, size_t), host, (uint64_t)(uintptr_t)at, len);
	CHECK_FILLED(what, host, len, 0, seed);
	free(host);
}

static int device_register(struct node *n, unsigned char *at, size_t len, enum fi_hmem_iface iface, int device,
			   uint64_t key, struct fid_mr **mr)
{
	struct iovec iov = {at, len};
	struct fi_mr_attr attr;
	memset(&attr, 0, sizeof attr);
	attr.mr_iov = &iov;
	attr.iov_count = 1;
	attr.access = ANY_ACCESS;
	attr.requested_key = key;
	attr.iface = iface;
	attr.device.cuda = device;
	return fi_mr_regattr(n->domain, &attr, iface == FI_HMEM_CUDA ? FI_HMEM_DEVICE_ONLY : 0, mr);
}

/* --- bytes move --- */

static const size_t sizes[] = {8, 64, 4096, 65537, LEN};
#define SIZES (sizeof sizes / sizeof sizes[0])

/* The kind of the target's and of the initiator's memory: a device's or the host's. */
struct ways {
	bool remote, local;
};

static unsigned char *memory_new(struct node *n, bool device, int number, struct fid_mr **mr)
{
	unsigned char *at = device ? device_new(LEN) : (unsigned char *)pages(LEN);
	OK(device_register(n, at, LEN, device ? FI_HMEM_CUDA : FI_HMEM_SYSTEM, device ? number : 0, 50u + (unsigned)n->side, mr));
	return at;
}

static void memory_fill(bool device, unsigned char *at, size_t len, uint32_t seed)
{
	if (device)
		device_fill(at, len, seed);
	else
		fill(at, len, 0, seed);
}

static void memory_check(bool device, const char *what, unsigned char *at, size_t len, uint32_t seed)
{
	if (device)
		device_check(what, at, len, seed);
	else
		CHECK_FILLED(what, at, len, 0, seed);
}

static void memory_end(bool device, unsigned char *at, struct fid_mr *mr)
{
	CLOSE(mr);
	if (device)
		device_end(at);
	else
		free(at);
}

static void initiator(struct node *n)
{
	const struct ways *w = (const struct ways *)n->arg;
	struct fid_mr *mr = NULL;
	node_up(n);
	cuda_up();
	unsigned char *at = memory_new(n, w->local, 0, &mr), one = 0;
	void *desc = fi_mr_desc(mr);
	struct remote r = mr_fetch(n);
	for (size_t i = 0; i < SIZES; i++) {
		size_t len = sizes[i];
		uint32_t seed = (uint32_t)i * 10;
		/* Writes, then reads the same bytes back. */
		memory_fill(w->local, at, len, seed);
		POST(n->cq, fi_write(n->ep, at, len, desc, 0, r.base, r.key, at));
		DONE(n->cq, at, FI_WRITE | FI_RMA, NULL);
		POST(n->cq, fi_read(n->ep, &one, 1, local_desc(n, &one, 1), 0, r.base, r.key, &one));
		DONE(n->cq, &one, FI_READ | FI_RMA, NULL);
		barrier(n);
		memory_fill(w->local, at, len, 99);
		POST(n->cq, fi_read(n->ep, at, len, desc, 0, r.base, r.key, at));
		DONE(n->cq, at, FI_READ | FI_RMA, NULL);
		memory_check(w->local, "what was read back", at, len, seed);
		/* A message to the server, and one back. */
		memory_fill(w->local, at, len, seed + 1);
		barrier(n);
		POST(n->cq, fi_send(n->ep, at, len, desc, 0, at));
		DONE(n->cq, at, SENT, NULL);
		POST(n->cq, fi_recv(n->ep, at, len, desc, 0, at));
		barrier(n);
		DONE(n->cq, at, RECEIVED, NULL);
		memory_check(w->local, "the message back", at, len, seed + 2);
		/* A write with data. */
		memory_fill(w->local, at, len, seed + 3);
		barrier(n);
		POST(n->cq, fi_writedata(n->ep, at, len, desc, 77, 0, r.base, r.key, at));
		DONE(n->cq, at, FI_WRITE | FI_RMA, NULL);
		barrier(n);
	}
	memory_end(w->local, at, mr);
	node_down(n);
}

static void target(struct node *n)
{
	const struct ways *w = (const struct ways *)n->arg;
	struct fid_mr *mr = NULL;
	done entry;
	node_up(n);
	cuda_up();
	unsigned char *at = memory_new(n, w->remote, 0, &mr);
	void *desc = fi_mr_desc(mr);
	mr_publish(n, mr, at, LEN);
	for (size_t i = 0; i < SIZES; i++) {
		size_t len = sizes[i];
		uint32_t seed = (uint32_t)i * 10;
		barrier(n);
		memory_check(w->remote, "what was written", at, len, seed);
		POST(n->cq, fi_recv(n->ep, at, len, desc, 0, at));
		barrier(n);
		DONE(n->cq, at, RECEIVED, &entry);
		CHECK_EQ(entry.len, len);
		memory_check(w->remote, "the message", at, len, seed + 1);
		memory_fill(w->remote, at, len, seed + 2);
		barrier(n);
		POST(n->cq, fi_send(n->ep, at, len, desc, 0, at));
		DONE(n->cq, at, SENT, NULL);
		data_room(n);
		barrier(n);
		DATA_CAME(n, &entry);
		CHECK_EQ(entry.data, 77);
		memory_check(w->remote, "what was written, when its data came", at, len, seed + 3);
		barrier(n);
	}
	memory_end(w->remote, at, mr);
	node_down(n);
}

static void moves(const void *arg)
{
	skip_unless(is_gdrfab(), "has none here");
	pair(&device_setup, target, initiator, arg);
}

TEST_TABLE(moves)
{
	static const struct ways all[] = {{true, true}, {true, false}, {false, true}, {false, false}};
	test_add("device_to_device", moves, &all[0], 30);
	test_add("host_to_device", moves, &all[1], 30);
	test_add("device_to_host", moves, &all[2], 30);
	test_add("host_to_host", moves, &all[3], 30);
}

/* --- tagged messages of connectionless endpoints --- */

/* Each size from either side, before its receive is posted and after. */
static void tagged(struct node *n)
{
	const struct ways *w = (const struct ways *)n->arg;
	bool device = n->side == TEST_SERVER ? w->remote : w->local;
	struct fi_info *hints = rdm_hints(FI_TAGGED | FI_HMEM);
	struct end own, other;
	struct fid_mr *mr = NULL;
	hints->domain_attr->mr_mode |= FI_MR_HMEM;
	end_open_with(&own, hints, FI_AV_TABLE, 0);
	fi_freeinfo(hints);
	CHECK_EQ(own.info->caps & FI_HMEM, FI_HMEM);
	n->domain = own.domain;
	n->cq = own.cq;
	oob_send(n, own.name, own.namelen);
	oob_recv(n, other.name, own.namelen);
	fi_addr_t peer = end_knows(&own, &other);
	int number = own_device(n);
	cuda_up_on(number);
	unsigned char *at = memory_new(n, device, number, &mr);
	for (uint32_t i = 0; i < 4 * SIZES; i++) {
		size_t len = sizes[i / 4];
		bool sends = i % 2 == (n->side == TEST_CLIENT), early = i % 4 < 2;
		memory_fill(device, at, LEN, sends ? i : 99);
		if (sends ? !early : early)
			barrier(n);
		if (sends)
			POST(own.cq, fi_tsend(own.ep, at, len, fi_mr_desc(mr), peer, i, at));
		else
			POST(own.cq, fi_trecv(own.ep, at, LEN, fi_mr_desc(mr), FI_ADDR_UNSPEC, i, 0, at));
		if (sends ? early : !early)
			barrier(n);
		const struct fi_cq_tagged_entry *entry = end_next(&own, &own, NULL);
		CHECK(entry && entry->op_context == at);
		CHECK_EQ(entry->flags, FI_TAGGED | (sends ? FI_SEND : FI_RECV));
		if (!sends) {
			CHECK(entry->len == len && entry->tag == i);
			memory_check(device, "the message", at, len, i);
		}
		barrier(n);
	}
	memory_end(device, at, mr);
	end_close(&own);
}

static void messages(const void *arg)
{
	skip_unless(is_gdrfab(), "has endpoints of its own kind");
	pair(&device_setup, tagged, tagged, arg);
}

TEST_TABLE(tagged)
{
	static const struct ways all[] = {{true, true}, {true, false}, {false, true}};
	test_add("tagged_device_to_device", messages, &all[0], 30);
	test_add("tagged_host_to_device", messages, &all[1], 30);
	test_add("tagged_device_to_host", messages, &all[2], 30);
}

/* --- refusals --- */

TEST(wrongly_named)
{
	struct node n;
	struct fid_mr *mr = NULL;
	skip_unless(is_gdrfab(), "has none here");
	node_alone(&n, &device_setup);
	cuda_up();
	unsigned char *at = device_new(LEN), *host = (unsigned char *)pages(LEN);
	/* Device memory named as the host's, the host's as the device's, memory of another device or vendor, and a
	 * range beyond its end. */
	CHECK(device_register(&n, at, LEN, FI_HMEM_SYSTEM, 0, 1, &mr) < 0);
	CHECK(device_register(&n, host, LEN, FI_HMEM_CUDA, 0, 1, &mr) < 0);
	CHECK(device_register(&n, at, LEN, FI_HMEM_CUDA, 63, 1, &mr) < 0);
	CHECK(device_register(&n, at, LEN, FI_HMEM_CUDA, -1, 1, &mr) < 0);
	CHECK(device_register(&n, at, LEN, FI_HMEM_SYNAPSEAI, 0, 1, &mr) < 0);
	CHECK(device_register(&n, at, LEN << 8, FI_HMEM_CUDA, 0, 1, &mr) < 0);
	CHECK(mr == NULL);
	OK(device_register(&n, at, LEN, FI_HMEM_CUDA, 0, 1, &mr));
	CLOSE(mr);
	device_end(at);
	free(host);
	node_close(&n);
}

/* Options for the path to device memory: accepted, or refused with the right errno. */
TEST(options)
{
	struct node n;
	int p2p = FI_HMEM_P2P_ENABLED;
	skip_unless(is_gdrfab(), "has none here");
	node_alone(&n, &device_setup);
	struct fid_ep *ep = ep_bare(&n, n.info, NULL);
	OK(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &p2p, sizeof p2p));
	p2p = 77;
	int rc = fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &p2p, sizeof p2p);
	CHECK(rc < 0);
	rc = fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &p2p, 1);
	CHECK(rc < 0);
	/* FI_OPT_CUDA_API_PERMITTED, which older headers lack. If it is false, another process calls CUDA over shm. */
	enum { CUDA_API_PERMITTED = 10 };
	bool permitted = false;
	rc = fi_setopt(&ep->fid, FI_OPT_ENDPOINT, CUDA_API_PERMITTED, &permitted, sizeof permitted);
	CHECK_EQ(rc, strcmp(getenv("TEST_PROVIDER"), "shm") == 0 ? 0 : -FI_EOPNOTSUPP);
	permitted = true;
	OK(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, CUDA_API_PERMITTED, &permitted, sizeof permitted));
	CHECK_EQ(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, CUDA_API_PERMITTED, &permitted, 3), -FI_EINVAL);
	CLOSE(ep);
	node_close(&n);
}
