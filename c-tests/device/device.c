/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Device memory in one process: registration checks that the memory is of the named device, leaves no handle or descriptor
 * behind, passes on the driver's errors, and works in processes that fork.
 */
#include "device.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>

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

/* --- the kind of memory --- */

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

	/* With the interface named, and found by the library. */
	for (int asked = 0; asked < 2; asked++) {
		int rc = register_as(&n, m.addr, LEN, asked ? kind->iface : GDRFAB_HMEM_AUTO, m.device, 0, &mr);
		if (rc == -EOPNOTSUPP && traits()->adapter)
			test_skip("%s", gdrfab_last_error());
		CHECK_EQ(rc, 0);
		gdrfab_mr_info info = mr_query(mr);
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
	/* An unaligned part of the memory. */
	OK(register_as(&n, m.addr + 4097, 777, kind->iface, m.device, 0, &mr));
	CHECK_EQ(mr_query(mr).len, 777);
	OK(gdrfab_mr_close(mr));

	refused(&n, host, sizeof host, kind->iface, m.device, "not");
	refused(&n, m.addr, (size_t)1 << 40, kind->iface, m.device, "ends");
	refused(&n, m.addr, LEN, kind->iface, m.device + 40, "device");
	refused(&n, m.addr, 0, kind->iface, m.device, "length");
	/* An interface whose driver recognises its own memory. */
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
	CHECK_EQ(mr_query(mr).iface, GDRFAB_HMEM_SYSTEM);
	OK(gdrfab_mr_close(mr));
	OK(register_as(&n, host, sizeof host, GDRFAB_HMEM_SYSTEM, 0, 0, &mr));
	OK(gdrfab_mr_close(mr));
	mem_end(&n, &m);
	node_close(&n);
}

/* --- no handles and descriptors are left behind --- */

/* The fault that makes the driver refuse to export, with an unknown code. */
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

/* A real driver holds more descriptors than a fake one, and opens them at any time. */
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
		/* Another part each time, so that no cache can help. */
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
		/* Memory that was never exported, so that no cached handle hides the refusal. */
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
	/* Some handles are bytes and need no descriptor. If a descriptor is needed, only the slow path is left. */
	CHECK_EITHER(rc, -EOPNOTSUPP, 0);
	CHECK_EQ(rc == 0, mr != NULL);
	CHECK_EQ(other, 0);
	CHECK_EQ((mr_query(staged).paths & GDRFAB_PATH_IPC) != 0, rc == 0);
	OK(gdrfab_mr_close(staged));
	if (mr)
		OK(gdrfab_mr_close(mr));
	/* With descriptors the fast path is back. */
	OK(register_as(&n, m.addr, LEN, kind->iface, m.device, GDRFAB_PATH_IPC, &mr));
	OK(gdrfab_mr_close(mr));
	CHECK(test_count_fds() <= fds + 4);
	mem_end(&n, &m);
	node_close(&n);
}

/* GDRFAB_HMEM_DRIVER=thread: this thread never calls the driver. */
static void on_a_thread(const void *arg)
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
	set_variable("GDRFAB_HMEM_DRIVER", "thread");
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
	CHECK_EQ(mr_query(mr).paths, GDRFAB_PATH_STAGED);
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

/* Runs this program again with a loader path without fakes. */
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
			/* Without its last letter the directory does not exist. */
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
	/* The fork does not disturb the parent. */
	mem_fill(&m, 0, LEN, 0, 5);
	CHECK_MEM("memory of the parent", &m, 0, LEN, 0, 5);
	mem_end(&n, &m);
	node_close(&n);
}

/* --- the claims --- */

TEST_TABLE(devices)
{
	size_t kinds = device_kinds_list();
	for (size_t k = 0; k < kinds; k++) {
		const struct memkind *kind = device_kinds[k];
		device_claim("is_what_it_is", kind->name, is_what_it_is, kind, 20);
		if (!kind_spared(kind))
			device_claim("leaves_nothing", kind->name, leaves_nothing, kind, 60);
		/* Host memory beside, the fork and the thread are above the vendors' drivers. */
		if (kind->alloc != cuda_kinds[0].alloc && !(test_checked() && k > 0)) {
			device_claim("host_memory_beside", kind->name, host_memory_stays_host_memory, kind, 20);
			device_claim("forked", kind->name, forked, kind, 20);
			if (kind_paths(kind) & GDRFAB_PATH_IPC)
				device_claim("on_a_thread", kind->name, on_a_thread, kind, 20);
		}
		if (kind_paths(kind) & GDRFAB_PATH_IPC) {
			device_claim("no_fds_left", kind->name, no_fds_left, kind, 20);
			device_claim("export_refused", kind->name, export_refused, kind, 20);
		}
	}
}
