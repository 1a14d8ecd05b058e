/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What is special about device memory: that it must be what the caller says, that it can be freed under a region, that
 * another process's driver copies in and out of it while calls return, and that drivers fail in ways of their own.
 */
#include "fab.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define LEN ((size_t)300000)

#define SAYS(text, word)                                                                                               \
	do {                                                                                                           \
		if (!test_says(text, word))                                                                            \
			test_fail(__FILE__, __LINE__, "the words are silent about %s: %s", word, text);                \
	} while (0)

/* A driver's code, as its vendor writes it. */
static void says_code(int line, const char *text, unsigned code)
{
	char decimal[16], hex[16];
	snprintf(decimal, sizeof decimal, "%u", code);
	snprintf(hex, sizeof hex, "%x", code);
	if (!test_says(text, decimal) && !test_says(text, hex))
		test_fail(__FILE__, line, "the words are silent about the driver's code %s: %s", decimal, text);
}
#define SAYS_CODE(text, code) says_code(__LINE__, text, code)

static void fakes_only(void)
{
	if (!getenv("GDRFAB_FAKES"))
		test_skip("a real driver cannot be told to fail");
}

static gdrfab_mr_info query(gdrfab_mr *mr)
{
	gdrfab_mr_info info;
	memset(&info, 0, sizeof info);
	info.struct_size = sizeof info;
	OK(gdrfab_mr_query(mr, &info));
	return info;
}

static int register_as(struct node *n, const void *at, size_t len, uint32_t iface, uint64_t device, uint64_t require,
		       gdrfab_mr **mr)
{
	struct iovec iov = {(void *)(uintptr_t)at, len};
	gdrfab_mr_attr attr;
	memset(&attr, 0, sizeof attr);
	attr.struct_size = sizeof attr;
	attr.mr_iov = &iov;
	attr.iov_count = 1;
	attr.access = ANY_ACCESS;
	attr.iface = iface;
	attr.device = device;
	attr.require = require;
	return gdrfab_mr_regattr(n->domain, &attr, 0, mr);
}

/* --- what memory is --- */

static void refused(struct node *n, const void *at, size_t len, uint32_t iface, uint64_t device, const char *word)
{
	gdrfab_mr *mr = NULL;
	int fds = test_count_fds();
	CHECK_EQ(register_as(n, at, len, iface, device, 0, &mr), -EINVAL);
	SAYS(gdrfab_last_error(), word);
	CHECK(mr == NULL);
	CHECK_EQ(test_count_fds(), fds);
}

static void is_what_it_is(const void *arg)
{
	const struct memkind *kind = (const struct memkind *)arg;
	static char host[4096];
	char words[4096];
	gdrfab_mr *mr;
	struct mem m;
	struct node n;
	node_alone(&n, NULL);
	mem_new(&n, &m, kind, LEN);

	/* Asked for by name, and found by itself. */
	for (int asked = 0; asked < 2; asked++) {
		int rc = register_as(&n, m.addr, LEN, asked ? kind->iface : GDRFAB_HMEM_AUTO, m.device, 0, &mr);
		if (rc == -EOPNOTSUPP && traits()->adapter)
			test_skip("%s", gdrfab_last_error());
		CHECK_EQ(rc, 0);
		gdrfab_mr_info info = query(mr);
		CHECK_EQ(info.iface, kind->opaque ? kind->iface : GDRFAB_HMEM_SYSTEM);
		CHECK_EQ(info.device, kind->opaque ? m.device : 0);
		CHECK_EQ(info.base, (uintptr_t)m.addr);
		CHECK_EQ(info.len, LEN);
		CHECK_EQ(info.paths & ~kind_paths(kind), 0);
		CHECK_EQ(~info.paths & kind_paths(kind) & ~kind_maybe(kind), 0);
		if (kind_paths(kind) & GDRFAB_PATH_IPC)
			CHECK_EQ(info.path, GDRFAB_PATH_IPC);
		if (kind->iface == GDRFAB_HMEM_CUDA && kind->flavour == CUDA_SEGMENTS &&
		    (path_known(PATH_IPC) || path_known(PATH_SOCKET)))
			CHECK(info.iov_count > 1);
		else
			CHECK_EQ(info.iov_count, 1);
		CHECK(gdrfab_mr_explain(mr, words, sizeof words) > 0);
		for (int p = 0; p < PATHS; p++)
			if (path_known(p))
				SAYS(words, paths[p].name);
		OK(gdrfab_mr_close(mr));
	}
	/* A part, unaligned. */
	OK(register_as(&n, m.addr + 4097, 777, kind->iface, m.device, 0, &mr));
	CHECK_EQ(query(mr).len, 777);
	OK(gdrfab_mr_close(mr));

	refused(&n, host, sizeof host, kind->iface, m.device, "not");
	refused(&n, m.addr, (size_t)1 << 40, kind->iface, m.device, "ends");
	refused(&n, m.addr, LEN, kind->iface, m.device + 40, "device");
	refused(&n, m.addr, 0, kind->iface, m.device, "length");
	/* Whose driver knows its own memory. */
	if (kind->opaque && (kind->paths & GDRFAB_PATH_IPC) && !traits()->adapter)
		refused(&n, m.addr, LEN, GDRFAB_HMEM_SYSTEM, 0, "not host memory");
	for (size_t i = 0; i < device_kinds_list(); i++)
		if (device_kinds[i]->iface != kind->iface) {
			device_count(&n, device_kinds[i]->iface);
			refused(&n, m.addr, LEN, device_kinds[i]->iface, 0, "not");
		}
	mem_end(&n, &m);
	node_close(&n);
}

static void host_memory_stays_host_memory(const void *arg)
{
	const struct memkind *kind = (const struct memkind *)arg;
	static char host[4096];
	gdrfab_mr *mr;
	struct mem m;
	struct node n;
	node_alone(&n, NULL);
	mem_new(&n, &m, kind, LEN);
	OK(register_as(&n, host, sizeof host, GDRFAB_HMEM_AUTO, 0, 0, &mr));
	CHECK_EQ(query(mr).iface, GDRFAB_HMEM_SYSTEM);
	OK(gdrfab_mr_close(mr));
	OK(register_as(&n, host, sizeof host, GDRFAB_HMEM_SYSTEM, 0, 0, &mr));
	OK(gdrfab_mr_close(mr));
	mem_end(&n, &m);
	node_close(&n);
}

/* --- nothing is left behind --- */

/* What makes the driver refuse to export, with a code that is none of its own. */
static const char *export_fault(uint32_t iface)
{
	switch (iface) {
	case GDRFAB_HMEM_CUDA:
		return "cuIpcGetMemHandle=4711,cuMemExportToShareableHandle=4711,cuMemPoolExportToShareableHandle=4711,"
		       "cuMemPoolExportPointer=4711";
	case GDRFAB_HMEM_ROCR:
		return "hsa_amd_ipc_memory_create=4711";
	default:
		return "zeMemGetIpcHandle=4711";
	}
}

/* A real driver holds more descriptors than a fake one, and asks for them when it likes. */
static void limit_fds(void)
{
	struct rlimit limit;
	CHECK_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
	limit.rlim_cur = getenv("GDRFAB_FAKES") ? 64 : (rlim_t)test_count_fds() + 64;
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static void register_often(struct node *n, struct mem *m, int rounds)
{
	for (int i = 0; i < rounds; i++) {
		/* Another part each time, so that nothing can be found ready. */
		int rc = mem_try_register(n, m, (size_t)i % 100, LEN - 100, REMOTE_ACCESS, 0, 0);
		if (rc == -EOPNOTSUPP && traits()->adapter)
			test_skip("%s", gdrfab_last_error());
		if (rc != 0)
			test_fail(__FILE__, __LINE__, "registration %d: %s%s", i, test_number(rc), test_words(rc));
		mem_unregister(m);
	}
}

static void leaves_nothing(const void *arg)
{
	const struct memkind *kind = (const struct memkind *)arg;
	struct mem m;
	struct node n;
	node_alone(&n, NULL);
	mem_new(&n, &m, kind, LEN);
	register_often(&n, &m, 10);
	limit_fds();
	int fds = test_count_fds();
	register_often(&n, &m, test_count(getenv("TEST_REAL") ? 10000 : 100000, 2000));
	CHECK_EQ(test_count_fds(), fds);
	if (getenv("GDRFAB_FAKES")) {
		/* Memory that was never exported, so that a refusal is not covered up by an earlier answer. */
		struct mem other;
		setenv("FAKE_FAULT", export_fault(kind->iface), 1);
		mem_new(&n, &other, kind, LEN);
		fds = test_count_fds();
		register_often(&n, &other, test_count(10000, 1000));
		CHECK_EQ(test_count_fds(), fds);
		mem_end(&n, &other);
	}
	mem_end(&n, &m);
	node_close(&n);
}

static void no_fds_left(const void *arg)
{
	const struct memkind *kind = (const struct memkind *)arg;
	struct mem m;
	struct node n;
	gdrfab_mr *mr = NULL, *staged = NULL;
	if (getenv("TEST_REAL") && strstr(kind->name, "pool"))
		test_skip("CUDA 13.0 breaks a pool whose export finds no descriptor free: 999 from then on, and an abort at its end");
	node_alone(&n, NULL);
	mem_new(&n, &m, kind, LEN);
	static int taken[1024];
	int count = 0, fds = test_count_fds();
	limit_fds();
	while (count < 1023 && (taken[count] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
		count++;
	int rc = register_as(&n, m.addr, LEN, kind->iface, m.device, GDRFAB_PATH_IPC, &mr);
	int other = register_as(&n, m.addr, LEN, kind->iface, m.device, 0, &staged);
	while (count > 0)
		close(taken[--count]);
	/* Some handles are bytes and need no descriptor. Where one is needed, what is left is the slow path. */
	CHECK_EITHER(rc, -EOPNOTSUPP, 0);
	CHECK_EQ(rc == 0, mr != NULL);
	CHECK_EQ(other, 0);
	CHECK_EQ((query(staged).paths & GDRFAB_PATH_IPC) != 0, rc == 0);
	OK(gdrfab_mr_close(staged));
	if (mr)
		OK(gdrfab_mr_close(mr));
	/* And with descriptors at hand it is as fast as ever. */
	OK(register_as(&n, m.addr, LEN, kind->iface, m.device, GDRFAB_PATH_IPC, &mr));
	OK(gdrfab_mr_close(mr));
	CHECK(test_count_fds() <= fds + 4);
	mem_end(&n, &m);
	node_close(&n);
}

/* GDRFAB_HMEM_THREAD=1: this thread never enters the driver. */
static void apart(const void *arg)
{
	static const char *const libraries[] = {
		[GDRFAB_HMEM_CUDA] = "libcuda.so.1",
		[GDRFAB_HMEM_ROCR] = "libhsa-runtime64.so.1",
		[GDRFAB_HMEM_ZE] = "libze_loader.so.1",
	};
	const struct memkind *kind = (const struct memkind *)arg;
	char bytes[64] = "there and back", back[64];
	gdrfab_mr *mr = NULL;
	gdrfab_hmem_place place;
	struct node n;
	struct mem m;
	if (!getenv("GDRFAB_FAKES"))
		test_skip("only a fake counts who enters it");
	setenv("GDRFAB_HMEM_THREAD", "1", 1);
	node_alone(&n, NULL);
	mem_new(&n, &m, kind, LEN);
	OK(register_as(&n, m.addr, LEN, GDRFAB_HMEM_AUTO, 0, 0, &mr));
	OK(gdrfab_hmem_copy_to(kind->iface, m.device, m.addr, bytes, sizeof bytes));
	OK(gdrfab_hmem_copy_from(kind->iface, m.device, back, m.addr, sizeof back));
	CHECK(memcmp(bytes, back, sizeof back) == 0);
	memset(&place, 0, sizeof place);
	place.struct_size = sizeof place;
	OK(gdrfab_hmem_detect(m.addr, 0, &place));
	CHECK_EQ(place.iface, kind->iface);
	OK(gdrfab_mr_close(mr));
	mem_end(&n, &m);
	int (*calls)(void) = NULL;
	void *library = dlopen(libraries[kind->iface], RTLD_NOW | RTLD_NOLOAD);
	CHECK(library != NULL);
	*(void **)&calls = dlsym(library, "fake_calls_of_thread");
	CHECK(calls != NULL);
	CHECK_EQ(calls(), 0);
	node_close(&n);
}

/* --- drivers that refuse and fail --- */

static void export_refused(const void *arg)
{
	const struct memkind *kind = (const struct memkind *)arg;
	char words[4096];
	gdrfab_mr *mr = NULL;
	struct mem m;
	struct node n;
	fakes_only();
	setenv("FAKE_FAULT", export_fault(kind->iface), 1);
	node_alone(&n, NULL);
	mem_new(&n, &m, kind, LEN);
	OK(register_as(&n, m.addr, LEN, kind->iface, m.device, 0, &mr));
	CHECK_EQ(query(mr).paths, GDRFAB_PATH_STAGED);
	CHECK(gdrfab_mr_explain(mr, words, sizeof words) > 0);
	SAYS_CODE(words, 4711);
	OK(gdrfab_mr_close(mr));
	mr = NULL;
	CHECK_EQ(register_as(&n, m.addr, LEN, kind->iface, m.device, GDRFAB_PATH_IPC, &mr), -EOPNOTSUPP);
	SAYS_CODE(gdrfab_last_error(), 4711);
	CHECK(mr == NULL);
	mem_end(&n, &m);
	node_close(&n);
}

TEST(ruled_out_by_the_environment)
{
	static char host[4096];
	gdrfab_mr *mr = NULL;
	struct node n;
	setenv("GDRFAB_HMEM", "none", 1);
	node_alone(&n, NULL);
	for (uint32_t iface = GDRFAB_HMEM_CUDA; iface <= GDRFAB_HMEM_SYNAPSEAI; iface++) {
		CHECK_EQ(register_as(&n, host, sizeof host, iface, 0, 0, &mr), -ENOSYS);
		SAYS(gdrfab_last_error(), "GDRFAB_HMEM");
	}
	CHECK(mr == NULL);
	OK(register_as(&n, host, sizeof host, GDRFAB_HMEM_AUTO, 0, 0, &mr));
	OK(gdrfab_mr_close(mr));
	node_close(&n);
}

/* This program anew where the loader finds no fake. */
TEST(no_driver_at_all)
{
	static char host[4096];
	gdrfab_mr *mr = NULL;
	struct node n;
	const char *fakes = getenv("GDRFAB_FAKES");
	if (fakes) {
		char *path = getenv("LD_LIBRARY_PATH"), *at = path ? strstr(path, fakes) : NULL;
		char self[4096] = "";
		CHECK(at != NULL);
		/* Asked for by name: under a memory checker the link itself leads to the checker. */
		CHECK(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
		pid_t pid = fork();
		if (pid == 0) {
			/* A letter less, and the folder is none. */
			at[strlen(fakes) - 1] = '-';
			unsetenv("GDRFAB_FAKES");
			setenv("TEST_IFACES", "", 1);
			int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
			dup2(null, 1);
			execl(self, "device", "no_driver_at_all", (char *)NULL);
			_exit(98);
		}
		int status = 0;
		CHECK_EQ(waitpid(pid, &status, 0), pid);
		if (WIFEXITED(status) && WEXITSTATUS(status) == TEST_SKIPPED)
			test_skip("this machine has drivers of its own");
		CHECK(WIFEXITED(status));
		CHECK_EQ(WEXITSTATUS(status), 0);
		return;
	}
	node_alone(&n, NULL);
	for (uint32_t iface = GDRFAB_HMEM_CUDA; iface <= GDRFAB_HMEM_SYNAPSEAI; iface++) {
		int rc = register_as(&n, host, sizeof host, iface, 0, 0, &mr);
		if (rc == -EINVAL)
			test_skip("this machine has drivers of its own");
		CHECK_EITHER(rc, -ENOSYS, -ENODEV);
		if (rc == -ENOSYS)
			SAYS(gdrfab_last_error(), ".so");
	}
	CHECK(mr == NULL);
	node_close(&n);
}

/* --- a process that forks --- */

static void forked(const void *arg)
{
	const struct memkind *kind = (const struct memkind *)arg;
	gdrfab_hmem_info info;
	struct mem m;
	struct node n;
	node_alone(&n, NULL);
	mem_new(&n, &m, kind, LEN);
	pid_t pid = fork();
	if (pid == 0) {
		char byte = 0;
		gdrfab_mr *mr = NULL;
		memset(&info, 0, sizeof info);
		info.struct_size = sizeof info;
		CHECK_EQ(gdrfab_hmem_query(kind->iface, 0, &info), -EPERM);
		SAYS(gdrfab_last_error(), "fork");
		CHECK_EQ(gdrfab_hmem_copy_from(kind->iface, m.device, &byte, m.addr, 1), -EPERM);
		CHECK_EQ(register_as(&n, m.addr, LEN, kind->iface, m.device, 0, &mr), -EPERM);
		_exit(0);
	}
	int status = 0;
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	/* The parent goes on as if nothing had been. */
	mem_fill(&m, 0, LEN, 0, 5);
	CHECK_MEM("memory of the parent", &m, 0, LEN, 0, 5);
	mem_end(&n, &m);
	node_close(&n);
}

/* --- two processes --- */

static const struct way *way_of(const struct node *n)
{
	return (const struct way *)n->arg;
}

static void target_new(struct node *n, struct mem *m, uint32_t seed)
{
	node_up(n);
	mem_new(n, m, way_of(n)->kind, LEN);
	mem_fill(m, 0, LEN, 0, seed);
	way_register(n, m, 0, LEN, way_of(n));
	mem_publish(n, m);
}

static struct remote initiator_new(struct node *n)
{
	node_up(n);
	struct remote to = mem_fetch(n);
	way_check(n, way_of(n), to.key);
	return to;
}

/* Freed and allocated again while a region says that it is there. */
static void frees_under_region(struct node *n)
{
	struct mem m, local;
	target_new(n, &m, 1);
	barrier(n);
	/* The peer has used it. */
	barrier(n);
	m.kind->release(n, &m);
	struct mem again = m;
	again.kind->alloc(n, &again);
	mem_fill(&again, 0, LEN, 0, 2);
	barrier(n);
	/* The peer has tried to use it; nothing of that is in the new allocation. */
	barrier(n);
	CHECK_MEM("memory allocated later", &again, 0, LEN, 0, 2);

	/* As a local buffer as well. */
	struct remote to = mem_fetch(n);
	ssize_t rc = gdrfab_write(n->ep, m.addr, 4096, mem_desc(&m), 0, to.base, to.key, &m);
	if (rc == 0)
		FAILED(n->cq, &m, EFAULT, GDRFAB_PROV_FAULT, NULL);
	else
		CHECK_EQ(rc, -EFAULT);
	rc = gdrfab_read(n->ep, m.addr, 4096, mem_desc(&m), 0, to.base, to.key, &m);
	if (rc == 0)
		FAILED(n->cq, &m, EFAULT, GDRFAB_PROV_FAULT, NULL);
	else
		CHECK_EQ(rc, -EFAULT);
	CHECK_MEM("memory allocated later", &again, 0, LEN, 0, 2);
	barrier(n);
	OK(gdrfab_mr_close(m.mr));
	again.mr = NULL;
	mem_register(n, &again, 0, LEN, ANY_ACCESS, 0);
	/* Registered anew it is as good as any. */
	mem_new(n, &local, &memkinds[KIND_MALLOC], LEN);
	POST(n->cq, gdrfab_write(n->ep, again.addr, LEN, mem_desc(&again), 0, to.base, to.key, &again));
	DONE(n->cq, &again, GDRFAB_WRITE, NULL);
	mem_end(n, &local);
	mem_end(n, &again);
	node_down(n);
}

static void uses_freed(struct node *n)
{
	unsigned char *buf = (unsigned char *)malloc(LEN);
	struct remote to = initiator_new(n);
	bool staged = way_of(n)->path->bit == GDRFAB_PATH_STAGED;
	struct mem here;
	fill(buf, LEN, 0, 3);
	barrier(n);
	POST(n->cq, gdrfab_read(n->ep, buf, LEN, local_desc(n, buf, LEN), 0, to.base, to.key, buf));
	DONE(n->cq, buf, GDRFAB_READ, NULL);
	CHECK_FILLED("memory before it was freed", buf, LEN, 0, 1);
	barrier(n);
	barrier(n);
	/* A mapping keeps the old memory alive, and reaches that; the target's own copies find out. */
	fill(buf, LEN, 0, 3);
	POST(n->cq, gdrfab_write(n->ep, buf, LEN, local_desc(n, buf, LEN), 0, to.base, to.key, buf));
	if (staged)
		FAILED(n->cq, buf, EFAULT, GDRFAB_PROV_FAULT, NULL);
	else
		DONE(n->cq, buf, GDRFAB_WRITE, NULL);
	memset(buf, 0, LEN);
	POST(n->cq, gdrfab_read(n->ep, buf, LEN, local_desc(n, buf, LEN), 0, to.base, to.key, buf));
	if (staged)
		FAILED(n->cq, buf, EFAULT, GDRFAB_PROV_FAULT, NULL);
	else
		DONE(n->cq, buf, GDRFAB_READ, NULL);
	if (!staged)
		CHECK_FILLED("the old memory", buf, LEN, 0, 3);
	barrier(n);
	mem_new(n, &here, &memkinds[KIND_MEM_ALLOC], LEN);
	memset(here.addr, 0x77, LEN);
	mem_register(n, &here, 0, LEN, REMOTE_ACCESS, 0);
	mem_publish(n, &here);
	barrier(n);
	barrier(n);
	mem_end(n, &here);
	free(buf);
	node_close(n);
}

static void frees_and_closes(struct node *n)
{
	frees_under_region(n);
}

static void freed_under_a_region(const void *arg)
{
	pair(NULL, frees_and_closes, uses_freed, arg);
}

/* A region is closed while the peer's driver copies into it. */
#define POSTS 4

static void closes_under_copies(struct node *n)
{
	struct mem m;
	char word;
	target_new(n, &m, 1);
	barrier(n);
	/* The copies go on without this side's help. */
	n->idle = true;
	oob_recv(n, &word, 1);
	n->idle = false;
	mem_unregister(&m);
	/* All that had begun has ended, and its bytes are here. */
	CHECK_MEM("what was on its way", &m, 0, LEN, 0, 9);
	mem_fill(&m, 0, LEN, 0, 1);
	barrier(n);
	barrier(n);
	CHECK_MEM("a closed region", &m, 0, LEN, 0, 1);
	mem_end(n, &m);
	node_down(n);
}

static void copies_slowly(struct node *n)
{
	unsigned char *buf = (unsigned char *)malloc(LEN);
	struct remote to = initiator_new(n);
	fill(buf, LEN, 0, 9);
	POST(n->cq, gdrfab_write(n->ep, buf, 1, local_desc(n, buf, 1), 0, to.base, to.key, buf));
	DONE(n->cq, buf, GDRFAB_WRITE, NULL);
	barrier(n);
	setenv("FAKE_DELAY_US", "50000", 1);
	for (int i = 0; i < POSTS; i++)
		POST(n->cq, gdrfab_write(n->ep, buf, LEN, local_desc(n, buf, LEN), 0, to.base, to.key, buf));
	oob_send(n, "p", 1);
	for (int i = 0; i < POSTS; i++)
		DONE(n->cq, buf, GDRFAB_WRITE, NULL);
	barrier(n);
	unsetenv("FAKE_DELAY_US");
	POST(n->cq, gdrfab_write(n->ep, buf, LEN, local_desc(n, buf, LEN), 0, to.base, to.key, buf));
	FAILED(n->cq, buf, EKEYREJECTED, GDRFAB_PROV_KEY, NULL);
	barrier(n);
	free(buf);
	node_down(n);
}

static void closed_under_copies(const void *arg)
{
	pair(NULL, closes_under_copies, copies_slowly, arg);
}

/* The notification of a write never overtakes its data. */
static void is_told(struct node *n)
{
	struct mem m;
	done entry;
	target_new(n, &m, 1);
	/* Where the bytes are put in place by this side, it is this side's driver that is slow. */
	if (!one_sided(way_of(n)))
		setenv("FAKE_DELAY_US", "20000", 1);
	for (uint32_t round = 0; round < 6; round++) {
		DATA_CAME(n, &entry);
		CHECK_EQ(entry.data, round);
		CHECK_MEM("what was announced", &m, 0, LEN, 0, 20 + round);
		barrier(n);
	}
	mem_end(n, &m);
	node_down(n);
}

static void tells(struct node *n)
{
	unsigned char *buf = (unsigned char *)malloc(LEN);
	struct remote to = initiator_new(n);
	setenv("FAKE_DELAY_US", "20000", 1);
	for (uint32_t round = 0; round < 6; round++) {
		fill(buf, LEN, 0, 20 + round);
		POST(n->cq, gdrfab_writedata(n->ep, buf, LEN, local_desc(n, buf, LEN), round, 0, to.base, to.key, buf));
		DONE(n->cq, buf, GDRFAB_WRITE, NULL);
		barrier(n);
	}
	free(buf);
	node_down(n);
}

static void told_after_the_data(const void *arg)
{
	pair(NULL, is_told, tells, arg);
}

/* One side is killed while a mapping of the other's memory is open, and copies are in flight. */
static void survives(struct node *n)
{
	struct mem m;
	target_new(n, &m, 1);
	barrier(n);
	barrier(n);
	peer_kill(n);
	OK(gdrfab_mr_close(m.mr));
	m.mr = NULL;
	mem_fill(&m, 0, LEN, 0, 4);
	CHECK_MEM("memory that a dead process had mapped", &m, 0, LEN, 0, 4);
	EVENT(n->eq, GDRFAB_SHUTDOWN, n->ep, NULL);
	mem_end(n, &m);
	node_close(n);
}

static void dies_with_handles(struct node *n)
{
	static unsigned char buf[LEN];
	struct remote to = initiator_new(n);
	barrier(n);
	POST(n->cq, gdrfab_write(n->ep, buf, LEN, local_desc(n, buf, LEN), 0, to.base, to.key, buf));
	DONE(n->cq, buf, GDRFAB_WRITE, NULL);
	setenv("FAKE_DELAY_US", "1000000", 1);
	POST(n->cq, gdrfab_write(n->ep, buf, LEN, local_desc(n, buf, LEN), 0, to.base, to.key, buf));
	barrier(n);
	for (;;)
		gdrfab_cq_read(n->cq, NULL, 0);
}

static void initiator_killed(const void *arg)
{
	struct setup s = {.victim = TEST_CLIENT};
	pair(&s, survives, dies_with_handles, arg);
}

static void dies_with_memory(struct node *n)
{
	struct mem m;
	target_new(n, &m, 1);
	barrier(n);
	for (;;)
		gdrfab_cq_read(n->cq, NULL, 0);
}

static void survives_target(struct node *n)
{
	unsigned char *buf = (unsigned char *)malloc(LEN);
	struct remote to = initiator_new(n);
	memset(buf, 6, LEN);
	barrier(n);
	POST(n->cq, gdrfab_write(n->ep, buf, LEN, local_desc(n, buf, LEN), 0, to.base, to.key, buf));
	DONE(n->cq, buf, GDRFAB_WRITE, NULL);
	setenv("FAKE_DELAY_US", "20000", 1);
	for (int i = 0; i < POSTS; i++)
		POST(n->cq, gdrfab_write(n->ep, buf, LEN, local_desc(n, buf, LEN), 0, to.base, to.key, buf));
	peer_kill(n);
	for (int i = 0; i < POSTS; i++) {
		done entry;
		struct failure f;
		int next = cq_next(n->cq, &entry, 10000);
		CHECK(next != 0);
		if (next > 0)
			continue;
		cq_failure(__FILE__, __LINE__, n->cq, &f);
		CHECK_EQ(f.entry.err, ECONNRESET);
	}
	EVENT(n->eq, GDRFAB_SHUTDOWN, n->ep, NULL);
	free(buf);
	node_close(n);
}

static void target_killed(const void *arg)
{
	struct setup s = {.victim = TEST_SERVER};
	pair(&s, dies_with_memory, survives_target, arg);
}

/* A code that no header names reaches the caller as a number. */
static const char *copy_fault(uint32_t iface)
{
	switch (iface) {
	case GDRFAB_HMEM_CUDA:
		return "cuMemcpyHtoDAsync_v2=12345";
	case GDRFAB_HMEM_ROCR:
		/* The second for memory that is not pinned. */
		return "hsa_amd_memory_async_copy=12345,hsa_memory_copy=12345";
	default:
		return "zeCommandListAppendMemoryCopy=12345";
	}
}

static void waits(struct node *n)
{
	struct mem m;
	target_new(n, &m, 1);
	barrier(n);
	mem_end(n, &m);
	node_down(n);
}

static void fails_to_copy(struct node *n)
{
	unsigned char *buf = (unsigned char *)malloc(LEN);
	struct remote to = initiator_new(n);
	struct failure f;
	POST(n->cq, gdrfab_write(n->ep, buf, LEN, local_desc(n, buf, LEN), 0, to.base, to.key, buf));
	DONE(n->cq, buf, GDRFAB_WRITE, NULL);
	setenv("FAKE_FAULT", copy_fault(way_of(n)->kind->iface), 1);
	POST(n->cq, gdrfab_write(n->ep, buf, LEN, local_desc(n, buf, LEN), 0, to.base, to.key, buf));
	FAILED(n->cq, buf, EIO, GDRFAB_PROV_FAULT, &f);
	SAYS_CODE(f.words, 12345);
	/* Asked how far it is, the driver fails. */
	if (way_of(n)->kind->iface == GDRFAB_HMEM_CUDA) {
		setenv("FAKE_FAULT", "cuStreamQuery=12346,cuEventQuery=12346", 1);
		for (int i = 0; i < POSTS; i++)
			POST(n->cq, gdrfab_write(n->ep, buf, LEN, local_desc(n, buf, LEN), 0, to.base, to.key, buf));
		for (int i = 0; i < POSTS; i++) {
			FAILED(n->cq, buf, EIO, GDRFAB_PROV_FAULT, &f);
			SAYS_CODE(f.words, 12346);
		}
	}
	/* And when it is well again, so is the endpoint. */
	unsetenv("FAKE_FAULT");
	POST(n->cq, gdrfab_write(n->ep, buf, LEN, local_desc(n, buf, LEN), 0, to.base, to.key, buf));
	DONE(n->cq, buf, GDRFAB_WRITE, NULL);
	barrier(n);
	free(buf);
	node_down(n);
}

static void unknown_codes(const void *arg)
{
	fakes_only();
	pair(NULL, waits, fails_to_copy, arg);
}

/* Where the other side's driver copies: it fails there, and is told here. */
static void target_fails(struct node *n)
{
	struct mem m;
	target_new(n, &m, 1);
	barrier(n);
	setenv("FAKE_FAULT", copy_fault(way_of(n)->kind->iface), 1);
	barrier(n);
	barrier(n);
	unsetenv("FAKE_FAULT");
	barrier(n);
	barrier(n);
	CHECK_MEM("what came when the driver was well", &m, 0, LEN, 0, 12);
	mem_end(n, &m);
	node_down(n);
}

static void hears_of_it(struct node *n)
{
	unsigned char *buf = (unsigned char *)malloc(LEN);
	struct remote to = initiator_new(n);
	struct failure f;
	done e;
	fill(buf, LEN, 0, 12);
	POST(n->cq, gdrfab_write(n->ep, buf, LEN, local_desc(n, buf, LEN), 0, to.base, to.key, buf));
	DONE(n->cq, buf, GDRFAB_WRITE, NULL);
	barrier(n);
	barrier(n);
	for (int i = 0; i < POSTS; i++)
		POST(n->cq, gdrfab_write(n->ep, buf, LEN, local_desc(n, buf, LEN), 0, to.base, to.key, buf));
	for (int i = 0; i < POSTS; i++) {
		CHECK_EQ(cq_next(n->cq, &e, 10000), -1);
		cq_failure(__FILE__, __LINE__, n->cq, &f);
		CHECK_EITHER(f.entry.err, EFAULT, EIO);
		CHECK_EQ(f.entry.prov_errno, GDRFAB_PROV_FAULT);
		CHECK(f.words[0] != 0);
	}
	barrier(n);
	barrier(n);
	POST(n->cq, gdrfab_write(n->ep, buf, LEN, local_desc(n, buf, LEN), 0, to.base, to.key, buf));
	DONE(n->cq, buf, GDRFAB_WRITE, NULL);
	barrier(n);
	free(buf);
	node_down(n);
}

static void target_driver_fails(const void *arg)
{
	fakes_only();
	pair(NULL, target_fails, hears_of_it, arg);
}

/* Where the peer's memory cannot be mapped, its bytes still arrive. */
static void cannot_import(struct node *n)
{
	unsigned char *buf = (unsigned char *)malloc(LEN);
	char words[2048];
	uint64_t bytes[PATHS];
	setenv("FAKE_FAULT",
	       "cuIpcOpenMemHandle_v2=12345,cuMemImportFromShareableHandle=12345,cuMemPoolImportFromShareableHandle=12345,"
	       "hsa_amd_ipc_memory_attach=12345,zeMemOpenIpcHandle=12345",
	       1);
	node_up(n);
	struct remote to = mem_fetch(n);
	fill(buf, LEN, 0, 8);
	POST(n->cq, gdrfab_write(n->ep, buf, LEN, local_desc(n, buf, LEN), 0, to.base, to.key, buf));
	DONE(n->cq, buf, GDRFAB_WRITE, NULL);
	path_bytes(n, bytes);
	CHECK_EQ(bytes[PATH_STAGED], LEN);
	CHECK(gdrfab_ep_explain(n->ep, to.key, words, sizeof words) > 0);
	SAYS_CODE(words, 12345);
	uint64_t only = GDRFAB_PATH_IPC;
	OK(gdrfab_ep_setopt(n->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_REQUIRE_PATH, &only, sizeof only));
	POST(n->cq, gdrfab_write(n->ep, buf, LEN, local_desc(n, buf, LEN), 0, to.base, to.key, buf));
	FAILED(n->cq, buf, EOPNOTSUPP, GDRFAB_PROV_PATH, NULL);
	barrier(n);
	free(buf);
	node_down(n);
}

static void offers_all(struct node *n)
{
	struct mem m;
	node_up(n);
	mem_new(n, &m, way_of(n)->kind, LEN);
	mem_register(n, &m, 0, LEN, REMOTE_ACCESS, 0);
	mem_publish(n, &m);
	barrier(n);
	CHECK_MEM("what came without a mapping", &m, 0, LEN, 0, 8);
	mem_end(n, &m);
	node_down(n);
}

static void import_refused(const void *arg)
{
	fakes_only();
	pair(NULL, offers_all, cannot_import, arg);
}

/* --- CUDA alone --- */

static void *context(void)
{
	void *now = NULL;
	CU(cuCtxGetCurrent, (void **), &now);
	return now;
}

#define SAME_CONTEXT(before) CHECK(context() == (before))

static void keeps_context(struct node *n, void *current)
{
	struct mem m, local;
	char byte = 1;
	node_up(n);
	SAME_CONTEXT(current);
	mem_new(n, &m, device_kinds[0], LEN);
	SAME_CONTEXT(current);
	mem_fill(&m, 0, LEN, 0, 1);
	SAME_CONTEXT(current);
	mem_register(n, &m, 0, LEN, ANY_ACCESS, 0);
	SAME_CONTEXT(current);
	mem_publish(n, &m);
	struct remote to = mem_fetch(n);
	mem_new(n, &local, &memkinds[KIND_MALLOC], LEN);
	POST(n->cq, gdrfab_write(n->ep, local.addr, LEN, local_desc(n, local.addr, LEN), 0, to.base, to.key, &local));
	SAME_CONTEXT(current);
	DONE(n->cq, &local, GDRFAB_WRITE, NULL);
	SAME_CONTEXT(current);
	POST(n->cq, gdrfab_read(n->ep, &byte, 1, local_desc(n, &byte, 1), 0, to.base, to.key, &byte));
	DONE(n->cq, &byte, GDRFAB_READ, NULL);
	SAME_CONTEXT(current);
	barrier(n);
	SAME_CONTEXT(current);
	mem_end(n, &local);
	mem_unregister(&m);
	SAME_CONTEXT(current);
	mem_end(n, &m);
	SAME_CONTEXT(current);
	node_down(n);
	SAME_CONTEXT(current);
}

static void without_context(struct node *n)
{
	CU(cuInit, (unsigned), 0);
	keeps_context(n, NULL);
}

static void with_context(struct node *n)
{
	int devices = 0;
	CU(cuInit, (unsigned), 0);
	CU(cuDeviceGetCount, (int *), &devices);
	/* Not the one that the memory is of. */
	cuda_use(n->side == TEST_SERVER ? (uint32_t)devices - 1 : 0);
	keeps_context(n, context());
}

static void context_is_left_alone(const void *arg)
{
	struct setup s = {.by_address = true};
	bool with = arg != NULL;
	pair(&s, with ? with_context : without_context, with ? with_context : without_context, NULL);
}

/* A write begins when what the caller's stream holds is over. */
static void is_filled(struct node *n)
{
	struct mem m;
	target_new(n, &m, 1);
	barrier(n);
	CHECK_MEM("what the stream made", &m, 0, LEN, 0, 31);
	mem_end(n, &m);
	node_down(n);
}

static void fills_by_stream(struct node *n)
{
	unsigned char *made = (unsigned char *)malloc(LEN);
	void *stream = NULL;
	struct mem m;
	struct remote to = initiator_new(n);
	mem_new(n, &m, &cuda_kinds[CUDA_PLAIN], LEN);
	mem_fill(&m, 0, LEN, 0, 30);
	mem_register(n, &m, 0, LEN, ANY_ACCESS, 0);
	fill(made, LEN, 0, 31);
	cuda_use(m.device);
	CU(cuStreamCreate, (void **, unsigned), &stream, 1);
	uint64_t value = (uint64_t)(uintptr_t)stream;
	OK(gdrfab_ep_setopt(n->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_STREAM, &value, sizeof value));
	setenv("FAKE_DELAY_US", "100000", 1);
	CU(cuMemcpyHtoDAsync_v2, (uint64_t, const void *, size_t, void *), (uint64_t)(uintptr_t)m.addr, made, LEN, stream);
	unsetenv("FAKE_DELAY_US");
	POST(n->cq, gdrfab_write(n->ep, m.addr, LEN, mem_desc(&m), 0, to.base, to.key, &m));
	DONE(n->cq, &m, GDRFAB_WRITE, NULL);
	CU(cuStreamDestroy_v2, (void *), stream);
	value = 0;
	OK(gdrfab_ep_setopt(n->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_STREAM, &value, sizeof value));
	barrier(n);
	mem_end(n, &m);
	free(made);
	node_down(n);
}

static void after_the_callers_stream(const void *arg)
{
	pair(NULL, is_filled, fills_by_stream, arg);
}

/* Host memory goes to a peer's device by one that this process uses: a context on the peer's would take turns with its
 * kernels. */
static void writes_by_own_device(struct node *n)
{
	static unsigned char bytes[LEN];
	gdrfab_hmem_info far = {.struct_size = sizeof far};
	int devices = 0;
	CU(cuInit, (unsigned), 0);
	CU(cuDeviceGetCount, (int *), &devices);
	if (devices < 2)
		test_skip("one device");
	cuda_use((uint32_t)devices - 1);
	node_up(n);
	struct remote to = mem_fetch(n);
	fill(bytes, LEN, 0, 31);
	POST(n->cq, gdrfab_write(n->ep, bytes, LEN, NULL, 0, to.base, to.key, bytes));
	DONE(n->cq, bytes, GDRFAB_WRITE, NULL);
	OK(gdrfab_hmem_query(GDRFAB_HMEM_CUDA, 0, &far));
	CHECK_EQ(far.active, 0);
	barrier(n);
	node_down(n);
}

static void by_own_device(const void *arg)
{
	pair(NULL, is_filled, writes_by_own_device, arg);
}

/* --- memory of one vendor here and of another there --- */

struct two {
	struct way way;
	const struct memkind *near;
};

static void other_vendor(struct node *n)
{
	const struct two *two = (const struct two *)n->arg;
	struct failure f;
	struct mem m;
	node_up(n);
	struct remote to = mem_fetch(n);
	mem_new(n, &m, two->near, LEN);
	mem_fill(&m, 0, LEN, 0, 8);
	mem_register(n, &m, 0, LEN, ANY_ACCESS, 0);
	POST(n->cq, gdrfab_write(n->ep, m.addr, LEN, mem_desc(&m), 0, to.base, to.key, &m));
	FAILED(n->cq, &m, EOPNOTSUPP, GDRFAB_PROV_PATH, &f);
	uint64_t not = GDRFAB_PATH_IPC;
	OK(gdrfab_ep_setopt(n->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_FORBID_PATH, &not, sizeof not));
	POST(n->cq, gdrfab_write(n->ep, m.addr, LEN, mem_desc(&m), 0, to.base, to.key, &m));
	DONE(n->cq, &m, GDRFAB_WRITE, NULL);
	barrier(n);
	mem_end(n, &m);
	node_down(n);
}

static void two_vendors(const void *arg)
{
	pair(NULL, offers_all, other_vendor, arg);
}

/* --- the claims --- */

static void add(const char *what, const char *name, test_fn fn, const void *arg, int seconds)
{
	char text[96];
	snprintf(text, sizeof text, "%s_%s", what, name);
	test_add(text, fn, arg, seconds);
}

TEST_TABLE(devices)
{
	static struct two two;
	size_t kinds = device_kinds_list();
	for (size_t k = 0; k < kinds; k++) {
		const struct memkind *kind = device_kinds[k];
		add("is_what_it_is", kind->name, is_what_it_is, kind, 20);
		add("leaves_nothing", kind->name, leaves_nothing, kind, 60);
		if (kind->alloc != cuda_kinds[0].alloc) {
			add("host_memory_beside", kind->name, host_memory_stays_host_memory, kind, 20);
			add("forked", kind->name, forked, kind, 20);
			if (kind_paths(kind) & GDRFAB_PATH_IPC)
				add("apart", kind->name, apart, kind, 20);
		}
		if (kind_paths(kind) & GDRFAB_PATH_IPC) {
			add("no_fds_left", kind->name, no_fds_left, kind, 20);
			add("export_refused", kind->name, export_refused, kind, 20);
		}
		if (!two.near && kind->iface != device_kinds[0]->iface &&
		    (kind_paths(device_kinds[0]) & GDRFAB_PATH_IPC)) {
			two.way.kind = device_kinds[0];
			two.near = kind;
			test_add("two_vendors", two_vendors, &two, 20);
		}
	}
	size_t count = all_ways_list();
	for (size_t w = 0; w < count; w++) {
		const struct way *way = &ways[w];
		bool ipc = way->path->bit == GDRFAB_PATH_IPC, cuda = way->kind->iface == GDRFAB_HMEM_CUDA;
		if (test_count(0, 1) && way->kind != device_kinds[0] && way->kind->alloc == cuda_kinds[0].alloc)
			continue;
		bool by_driver = way->kind->alloc == cuda_kinds[0].alloc && way->kind->opaque;
		if (by_driver && !traits()->adapter && way->kind->flavour != CUDA_MANAGED)
			add("freed_under_a_region", way->name, freed_under_a_region, way, 20);
		/* Where there is nothing else, staging carries all that is about devices. */
		if (!ipc && !(path_known(PATH_SOCKET) && way->kind->opaque))
			continue;
		add("initiator_killed", way->name, initiator_killed, way, 20);
		add("target_killed", way->name, target_killed, way, 20);
		add("told_after_the_data", way->name, told_after_the_data, way, 20);
		if (!ipc && (way->kind->paths & GDRFAB_PATH_IPC))
			add("target_driver_fails", way->name, target_driver_fails, way, 20);
		if (!ipc)
			continue;
		add("unknown_codes", way->name, unknown_codes, way, 20);
		add("import_refused", way->name, import_refused, way, 20);
		if (cuda)
			add("closed_under_copies", way->name, closed_under_copies, way, 20);
		if (cuda)
			add("by_own_device", way->name, by_own_device, way, 20);
	}
	for (size_t w = 0; w < count && kinds && device_kinds[0]->iface == GDRFAB_HMEM_CUDA; w++)
		if ((ways[w].kind == &cuda_kinds[CUDA_PLAIN] && ways[w].path->bit == GDRFAB_PATH_IPC) ||
		    ways[w].path->bit == GDRFAB_PATH_DIRECT || ways[w].path->bit == GDRFAB_PATH_SOCKET)
			add("after_the_callers_stream", ways[w].name, after_the_callers_stream, &ways[w], 20);
	if (kinds && device_kinds[0]->iface == GDRFAB_HMEM_CUDA) {
		test_add("context_is_left_alone", context_is_left_alone, &two, 20);
		test_add("no_context_is_left_behind", context_is_left_alone, NULL, 20);
	}
}
