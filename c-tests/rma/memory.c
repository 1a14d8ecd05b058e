/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Memory regions as seen by their owner: keys, addresses, paths offered and refused, file descriptors, allocation. */
#include "fab.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/uio.h>

#define MANY 1000

TEST(keys_differ_and_cannot_be_guessed)
{
	static gdrfab_mr *mr[MANY];
	static char buf[4096];
	struct node n;
	node_alone(&n, NULL);
	for (int i = 0; i < MANY; i++)
		OK(gdrfab_mr_reg(n.domain, buf, sizeof buf, REMOTE_ACCESS, 0, 1, 0, NULL, &mr[i]));
	int same_step = 0, same_high = 0;
	for (int i = 0; i < MANY; i++)
		for (int j = 0; j < i; j++)
			CHECK(gdrfab_mr_key(mr[i]) != gdrfab_mr_key(mr[j]));
	for (int i = 2; i < MANY; i++) {
		uint64_t a = gdrfab_mr_key(mr[i - 2]), b = gdrfab_mr_key(mr[i - 1]), c = gdrfab_mr_key(mr[i]);
		same_step += c - b == b - a;
		same_high += c >> 32 == b >> 32;
	}
	/* A peer that knows one key must not be able to compute the next. Hardware makes no such promise. */
	if (!traits()->adapter) {
		CHECK(same_step < MANY / 100);
		CHECK(same_high < MANY / 100);
	}
	for (int i = 0; i < MANY; i++)
		OK(gdrfab_mr_close(mr[i]));
	node_close(&n);
}

TEST(requested_keys)
{
	static const uint64_t keys[] = {0, 1, 42, 1ull << 32, 1ull << 63};
	static char buf[64];
	struct setup s = {.offsets = true, .given_keys = true};
	gdrfab_mr *mr[5], *marker = (gdrfab_mr *)(void *)buf, *other = marker;
	struct node n;
	node_alone(&n, &s);
	for (int i = 0; i < 5; i++) {
		OK(gdrfab_mr_reg(n.domain, buf, sizeof buf, REMOTE_ACCESS, 0, keys[i], 0, NULL, &mr[i]));
		CHECK_EQ(gdrfab_mr_key(mr[i]), keys[i]);
	}
	for (int i = 0; i < 5; i++)
		CHECK_EQ(gdrfab_mr_reg(n.domain, buf, sizeof buf, REMOTE_ACCESS, 0, keys[i], 0, NULL, &other),
			 -GDRFAB_ENOKEY);
	CHECK(other == marker);
	CHECK(gdrfab_last_error()[0] != 0);
	for (int i = 0; i < 5; i++)
		OK(gdrfab_mr_close(mr[i]));
	/* A key is free again when its region is closed. */
	OK(gdrfab_mr_reg(n.domain, buf, sizeof buf, REMOTE_ACCESS, 0, 42, 0, NULL, &other));
	CHECK_EQ(gdrfab_mr_key(other), 42);
	OK(gdrfab_mr_close(other));
	node_close(&n);
}

TEST(remote_addresses)
{
	static char buf[8192];
	gdrfab_mr *mr;
	struct node n;
	node_alone(&n, NULL);
	OK(gdrfab_mr_reg(n.domain, buf + 3, 4000, REMOTE_ACCESS, 0, 0, 0, NULL, &mr));
	CHECK_EQ(mr_query(mr).base, (uintptr_t)(buf + 3));
	CHECK_EQ(mr_query(mr).len, 4000);
	CHECK_EQ(mr_query(mr).access, REMOTE_ACCESS);
	CHECK_EQ(mr_query(mr).iface, GDRFAB_HMEM_SYSTEM);
	CHECK_EQ(mr_query(mr).iov_count, 1);
	OK(gdrfab_mr_close(mr));
	node_close(&n);
}

static uint64_t base_of(struct node *n, char *at, uint64_t offset)
{
	gdrfab_mr *mr;
	OK(gdrfab_mr_reg(n->domain, at, 4000, REMOTE_ACCESS, offset, 1, 0, NULL, &mr));
	uint64_t base = mr_query(mr).base;
	OK(gdrfab_mr_close(mr));
	return base;
}

TEST(remote_addresses_by_offset)
{
	static char buf[8192] __attribute__((aligned(4096)));
	struct setup s = {.offsets = true};
	struct node n;
	node_alone(&n, &s);
	CHECK_EQ(base_of(&n, buf, 0), 0);
	CHECK_EQ(base_of(&n, buf, 0x10000), 0x10000);
	CHECK_EQ(base_of(&n, buf + 3, 3), 3);
	/* An adapter maps pages: the offset within one is the same on both sides. */
	if (traits()->adapter) {
		gdrfab_mr *mr = NULL;
		CHECK_EQ(gdrfab_mr_reg(n.domain, buf + 3, 4000, REMOTE_ACCESS, 0, 1, 0, NULL, &mr), -EINVAL);
		CHECK(mr == NULL);
		CHECK(test_says(gdrfab_last_error(), "offset"));
	} else {
		CHECK_EQ(base_of(&n, buf + 3, 0), 0);
		CHECK_EQ(base_of(&n, buf + 3, 0x10000), 0x10000);
	}
	node_close(&n);
}

TEST(regions_of_several_parts)
{
	static char buf[8192];
	struct iovec iov[3] = {{buf, 10}, {buf + 100, 1}, {buf + 4096, 4096}};
	gdrfab_mr *mr;
	struct node n;
	node_alone(&n, NULL);
	skip_unless(n.info->mr_iov_limit >= 3 || !traits()->adapter, "regions have fewer than three parts");
	CHECK(n.info->mr_iov_limit >= 3);
	int rc = gdrfab_mr_regv(n.domain, iov, 3, REMOTE_ACCESS, 0, 0, 0, NULL, &mr);
	/* A key that names one range cannot give peers a region of several; local operations can use it. */
	if (rc == -EOPNOTSUPP && traits()->adapter) {
		CHECK(gdrfab_last_error()[0] != 0);
		rc = gdrfab_mr_regv(n.domain, iov, 3, GDRFAB_READ | GDRFAB_WRITE, 0, 0, 0, NULL, &mr);
	}
	CHECK_EQ(rc, 0);
	CHECK_EQ(mr_query(mr).len, 10 + 1 + 4096);
	CHECK_EQ(mr_query(mr).iov_count, 3);
	OK(gdrfab_mr_close(mr));
	node_close(&n);
}

/* Each kind of memory offers its paths, and the explanation gives the reason against the others. */
static void offers(const void *arg)
{
	const struct memkind *kind = (const struct memkind *)arg;
	char words[2048], cut[16];
	struct mem m;
	struct node n;
	node_alone(&n, NULL);
	mem_new(&n, &m, kind, 65536);
	int result = mem_try_register(&n, &m, 0, 65536, REMOTE_ACCESS, 0, 0);
	if (result == -EOPNOTSUPP && kind_paths(kind) == kind_maybe(kind))
		test_skip("%s", gdrfab_last_error());
	CHECK_EQ(result, 0);
	gdrfab_mr_info info = mr_query(m.mr);
	CHECK_EQ(info.paths & ~kind_paths(kind), 0);
	if (path_known(PATH_DIRECT)) {
		uint64_t sure = (GDRFAB_PATH_DIRECT | GDRFAB_PATH_IPC) & ~kind_maybe(kind);
		CHECK((info.paths & GDRFAB_PATH_STAGED) != 0);
		CHECK_EQ(info.paths & sure, kind->paths & sure);
	}
	/* The best path is the fastest of the offered ones; staging through host memory is the last. */
	uint64_t fast = info.paths & ~(GDRFAB_PATH_DIRECT | GDRFAB_PATH_CMA | GDRFAB_PATH_STAGED);
	CHECK_EQ(info.path, fast ? fast & -fast : info.paths & -info.paths);

	ssize_t len = gdrfab_mr_explain(m.mr, words, sizeof words);
	CHECK(len > 0);
	CHECK((size_t)len < sizeof words);
	CHECK_EQ(strlen(words), len);
	for (int p = 0; p < PATHS && traits()->knows_regions; p++)
		if (path_known(p) && !test_says(words, paths[p].name))
			test_fail(__FILE__, __LINE__, "the explanation is silent about %s: %s", paths[p].name, words);
	CHECK_EQ(gdrfab_mr_explain(m.mr, NULL, 0), len);
	memset(cut, 'x', sizeof cut);
	CHECK_EQ(gdrfab_mr_explain(m.mr, cut, 8), len);
	CHECK_EQ(cut[7], 0);
	CHECK_EQ(memcmp(cut, words, 7), 0);
	CHECK_EQ(cut[8], 'x');
	mem_unregister(&m);

	for (int p = 0; p < PATHS; p++) {
		if (!path_known(p))
			continue;
		m.mr = NULL;
		int rc = mem_try_register(&n, &m, 0, 65536, REMOTE_ACCESS, paths[p].bit, 0);
		/* Where paths are tried in turn, those after the first possible one are offered only if required. */
		bool later = traits()->adapter && rc == 0 && (kind_maybe(kind) & paths[p].bit);
		if (later || (kind_paths(kind) & info.paths & paths[p].bit)) {
			CHECK_EQ(rc, 0);
			CHECK_EQ(mr_query(m.mr).paths, paths[p].bit);
			CHECK_EQ(mr_query(m.mr).path, paths[p].bit);
			mem_unregister(&m);
		} else {
			/* If a driver was asked, the errno may be the driver's own. */
			CHECK(rc == -EOPNOTSUPP || (rc < 0 && kind->opaque && traits()->adapter));
			CHECK(m.mr == NULL);
			if (!gdrfab_last_error()[0] ||
			    (traits()->knows_regions && !test_says(gdrfab_last_error(), paths[p].name)))
				test_fail(__FILE__, __LINE__, "the words do not name %s: %s", paths[p].name,
					  gdrfab_last_error());
		}
	}
	mem_end(&n, &m);
	node_close(&n);
}

TEST(forbidden_paths)
{
	struct mem m;
	struct node n;
	skip_unless(path_known(PATH_DIRECT), "host memory has one path, and nothing is left without it");
	node_alone(&n, NULL);
	mem_new(&n, &m, &memkinds[KIND_MEM_ALLOC], 4096);
	struct iovec iov = {m.addr, m.len};
	gdrfab_mr_attr attr;
	memset(&attr, 0, sizeof attr);
	attr.struct_size = sizeof attr;
	attr.mr_iov = &iov;
	attr.iov_count = 1;
	attr.access = REMOTE_ACCESS;
	attr.forbid = GDRFAB_PATH_DIRECT;
	OK(gdrfab_mr_regattr(n.domain, &attr, 0, &m.mr));
	CHECK_EQ(mr_query(m.mr).paths & GDRFAB_PATH_DIRECT, 0);
	mem_unregister(&m);
	attr.forbid = GDRFAB_PATH_DIRECT | GDRFAB_PATH_CMA;
	OK(gdrfab_mr_regattr(n.domain, &attr, 0, &m.mr));
	CHECK_EQ(mr_query(m.mr).paths, GDRFAB_PATH_STAGED);
	mem_unregister(&m);
	attr.require = GDRFAB_PATH_DIRECT;
	CHECK_EITHER(gdrfab_mr_regattr(n.domain, &attr, 0, &m.mr), -EOPNOTSUPP, -EINVAL);
	attr.require = 0;
	attr.forbid = GDRFAB_PATH_DIRECT | GDRFAB_PATH_CMA | GDRFAB_PATH_STAGED;
	CHECK_EITHER(gdrfab_mr_regattr(n.domain, &attr, 0, &m.mr), -EOPNOTSUPP, -EINVAL);
	CHECK(m.mr == NULL);
	mem_end(&n, &m);
	node_close(&n);
}

static int register_fd(struct node *n, int fd, uint64_t offset, size_t len, void *base, uint64_t access,
		       uint64_t require, gdrfab_mr **mr)
{
	gdrfab_mr_dmabuf dmabuf = {fd, 0, offset, len, base};
	gdrfab_mr_attr attr;
	memset(&attr, 0, sizeof attr);
	attr.struct_size = sizeof attr;
	attr.dmabuf = &dmabuf;
	attr.iov_count = 1;
	attr.access = access;
	attr.require = require;
	return gdrfab_mr_regattr(n->domain, &attr, GDRFAB_MR_DMABUF, mr);
}

TEST(bad_file_descriptors)
{
	struct mem m;
	struct node n;
	int ends[2];
	gdrfab_mr *mr = NULL;
	node_alone(&n, NULL);
	mem_new(&n, &m, &memkinds[KIND_MEMFD], 8192);
	CHECK_EQ(pipe(ends), 0);
	int fds = test_count_fds();

	CHECK_EITHER(register_fd(&n, -1, 0, 8192, m.addr, REMOTE_ACCESS, 0, &mr), -EBADF, -EINVAL);
	CHECK_EQ(register_fd(&n, 9999, 0, 8192, m.addr, REMOTE_ACCESS, 0, &mr), -EBADF);
	CHECK(register_fd(&n, ends[0], 0, 8192, NULL, REMOTE_ACCESS, 0, &mr) < 0);
	CHECK(gdrfab_last_error()[0] != 0);
	CHECK_EITHER(register_fd(&n, m.fd, 0, 8193, m.addr, REMOTE_ACCESS, 0, &mr), -EINVAL, -ERANGE);
	CHECK_EITHER(register_fd(&n, m.fd, 4096, 4097, m.addr, REMOTE_ACCESS, 0, &mr), -EINVAL, -ERANGE);
	CHECK_EITHER(register_fd(&n, m.fd, 8192, 1, m.addr, REMOTE_ACCESS, 0, &mr), -EINVAL, -ERANGE);
	CHECK_EITHER(register_fd(&n, m.fd, UINT64_MAX - 100, 4096, m.addr, REMOTE_ACCESS, 0, &mr), -EINVAL, -ERANGE);
	CHECK_EITHER(register_fd(&n, m.fd, 4096, SIZE_MAX, m.addr, REMOTE_ACCESS, 0, &mr), -EINVAL, -ERANGE);
	CHECK(mr == NULL);
	CHECK_EQ(test_count_fds(), fds);

	/* A range within the file is accepted, page-aligned or not; the descriptor stays the caller's. */
	OK(register_fd(&n, m.fd, 4096, 4096, m.addr, REMOTE_ACCESS, 0, &mr));
	CHECK_EQ(mr_query(mr).base, (uintptr_t)m.addr + 4096);
	CHECK_EQ(mr_query(mr).len, 4096);
	OK(gdrfab_mr_close(mr));
	OK(register_fd(&n, m.fd, 17, 100, m.addr, REMOTE_ACCESS, 0, &mr));
	OK(gdrfab_mr_close(mr));
	CHECK_EQ(test_count_fds(), fds);
	CHECK(fcntl(m.fd, F_GETFD) >= 0);
	close(ends[0]);
	close(ends[1]);
	mem_end(&n, &m);
	node_close(&n);
}

TEST(bad_dma_bufs)
{
	struct mem m;
	struct node n;
	gdrfab_mr *mr = NULL;
	node_alone(&n, NULL);
	mem_new(&n, &m, &memkinds[KIND_UDMABUF], 8192);
	int fds = test_count_fds();

	/* The text is gdrfab's, whether the driver or gdrfab finds the error. */
	static const struct { uint64_t offset; size_t len; } beyond[] = {{0, 8193}, {4096, 4097}, {8192, 1}, {UINT64_MAX - 4095, 8192}};
	for (size_t i = 0; i < sizeof beyond / sizeof beyond[0]; i++) {
		CHECK_EQ(register_fd(&n, m.fd, beyond[i].offset, beyond[i].len, NULL, REMOTE_ACCESS, 0, &mr), -EINVAL);
		if (!test_says(gdrfab_last_error(), "offset"))
			test_fail(__FILE__, __LINE__, "no word of the offset: %s", gdrfab_last_error());
	}
	CHECK(mr == NULL);
	CHECK_EQ(test_count_fds(), fds);

	OK(register_fd(&n, m.fd, 4096, 4096, m.addr, REMOTE_ACCESS, 0, &mr));
	CHECK_EQ(mr_query(mr).base, (uintptr_t)m.addr + 4096);
	OK(gdrfab_mr_close(mr));
	mem_end(&n, &m);
	node_close(&n);
}

TEST(unsealable_file_falls_back_with_words)
{
	char words[2048];
	gdrfab_mr *mr = NULL;
	struct node n;
	skip_unless(path_known(PATH_DIRECT), "no peer maps the file");
	node_alone(&n, NULL);
	/* Without MFD_ALLOW_SEALING its owner could shrink it under a peer that has it mapped. */
	int fd = memfd_create("c-tests-unsealable", MFD_CLOEXEC);
	CHECK(fd >= 0);
	CHECK_EQ(ftruncate(fd, 8192), 0);
	void *addr = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(addr != MAP_FAILED);
	OK(register_fd(&n, fd, 0, 8192, addr, REMOTE_ACCESS, 0, &mr));
	CHECK_EQ(mr_query(mr).paths & GDRFAB_PATH_DIRECT, 0);
	CHECK(gdrfab_mr_explain(mr, words, sizeof words) > 0);
	if (!test_says(words, "seal"))
		test_fail(__FILE__, __LINE__, "the explanation does not speak of seals: %s", words);
	OK(gdrfab_mr_close(mr));
	mr = NULL;
	CHECK_EQ(register_fd(&n, fd, 0, 8192, addr, REMOTE_ACCESS, GDRFAB_PATH_DIRECT, &mr), -EOPNOTSUPP);
	CHECK(mr == NULL);
	munmap(addr, 8192);
	close(fd);
	node_close(&n);
}

static void limit_fds(rlim_t count)
{
	struct rlimit limit;
	CHECK_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
	limit.rlim_cur = count;
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

TEST_WITHIN(60, register_and_close_with_few_fds)
{
	limit_fds(64);
	struct node n;
	node_alone(&n, NULL);
	for (int k = 0; k < KINDS; k++) {
		struct mem m;
		/* The kinds that exist everywhere, and udmabuf, which has a descriptor, if this machine has it. */
		bool there = kind_listed(k) && k == KIND_UDMABUF && access("/dev/udmabuf", R_OK | W_OK) == 0;
		if (k >= EVERYWHERE && !there)
			continue;
		mem_new(&n, &m, &memkinds[k], 16384);
		int fds = test_count_fds(), rounds = test_count(k == KIND_MEMFD ? 20000 : 100000, 2000);
		for (int i = 0; i < rounds; i++) {
			int rc = mem_try_register(&n, &m, 0, 16384, REMOTE_ACCESS, 0, 0);
			if (rc != 0)
				test_fail(__FILE__, __LINE__, "registration %d of %s memory: %s%s", i, m.kind->name,
					  test_number(rc), test_words(rc));
			mem_unregister(&m);
		}
		CHECK_EQ(test_count_fds(), fds);
		mem_end(&n, &m);
	}
	node_close(&n);
}

TEST_WITHIN(60, ten_thousand_live_regions)
{
	static gdrfab_mr *mr[10000];
	static char buf[10000 * 16];
	uint64_t random = 7;
	struct node n;
	node_alone(&n, NULL);
	int count = test_count(10000, 500);
	if (traits()->adapter && n.info->mr_cnt < (size_t)count)
		count = (int)n.info->mr_cnt;
	CHECK(n.info->mr_cnt >= (size_t)count);
	for (int i = 0; i < count; i++)
		OK(gdrfab_mr_reg(n.domain, buf + i * 16, 16, REMOTE_ACCESS, 0, 0, 0, NULL, &mr[i]));
	CHECK_EQ(gdrfab_domain_close(n.domain), -EBUSY);
	for (int left = count; left > 0; left--) {
		int i = (int)(test_random(&random) % (uint64_t)left);
		OK(gdrfab_mr_close(mr[i]));
		mr[i] = mr[left - 1];
	}
	node_close(&n);
}

TEST(no_fds_left)
{
	gdrfab_mr *mr = NULL;
	struct mem m;
	struct node n;
	node_alone(&n, NULL);
	mem_new(&n, &m, &memkinds[KIND_MEMFD], 8192);
	int taken[64], count = 0, fds = test_count_fds();
	limit_fds(64);
	while ((taken[count] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
		count++;
	int rc = register_fd(&n, m.fd, 0, 8192, m.addr, REMOTE_ACCESS, kind_paths(m.kind) & -kind_paths(m.kind), &mr);
	void *addr = NULL;
	int alloc = gdrfab_mem_alloc(n.domain, GDRFAB_HMEM_SYSTEM, 0, 1024 * 1024, 0, &addr);
	gdrfab_fabric *fabric = NULL;
	gdrfab_eq *eq = NULL;
	int fabric_rc = gdrfab_fabric_open(n.info, NULL, &fabric);
	gdrfab_eq_attr attr = {sizeof attr, 0, 0, GDRFAB_WAIT_FD, 0};
	int eq_rc = gdrfab_eq_open(n.fabric, &attr, NULL, &eq);
	while (count > 0)
		close(taken[--count]);

	/* Each call that needs a descriptor fails with a reason, and leaves nothing half done. */
	CHECK_EITHER(rc, -EMFILE, 0);
	CHECK_EITHER(alloc, -EMFILE, 0);
	CHECK_EITHER(fabric_rc, -EMFILE, 0);
	CHECK_EITHER(eq_rc, -EMFILE, 0);
	CHECK_EQ(rc == 0, mr != NULL);
	CHECK_EQ(alloc == 0, addr != NULL);
	if (mr)
		OK(gdrfab_mr_close(mr));
	if (addr)
		OK(gdrfab_mem_free(n.domain, addr));
	if (eq)
		OK(gdrfab_eq_close(eq));
	if (fabric)
		OK(gdrfab_fabric_close(fabric));
	CHECK_EQ(test_count_fds(), fds);
	mem_end(&n, &m);
	node_close(&n);
}

TEST(allocated_memory)
{
	static const size_t sizes[] = {1, 4095, 4096, 4097, 1 << 20, 64 << 20};
	char other[64];
	gdrfab_mr *first, *second;
	void *addr[6], *none = other;
	struct node n;
	node_alone(&n, NULL);
	for (int i = 0; i < 6; i++) {
		OK(gdrfab_mem_alloc(n.domain, GDRFAB_HMEM_SYSTEM, 0, sizes[i], 0, &addr[i]));
		CHECK_EQ((uintptr_t)addr[i] % (uintptr_t)sysconf(_SC_PAGESIZE), 0);
		CHECK_EQ(((char *)addr[i])[0] | ((char *)addr[i])[sizes[i] - 1], 0);
		memset(addr[i], 0xff, sizes[i] > 4096 ? 4096 : sizes[i]);
	}
	CHECK_EQ(gdrfab_mem_alloc(n.domain, GDRFAB_HMEM_SYSTEM, 0, 0, 0, &none), -EINVAL);
	CHECK_EITHER(gdrfab_mem_alloc(n.domain, GDRFAB_HMEM_SYSTEM, 0, (size_t)1 << 60, 0, &none), -ENOMEM, -EINVAL);
	CHECK_EITHER(gdrfab_mem_alloc(n.domain, GDRFAB_HMEM_SYSTEM, 0, SIZE_MAX, 0, &none), -ENOMEM, -EINVAL);
	CHECK(none == other);
	CHECK_EQ(gdrfab_mem_free(n.domain, other), -EINVAL);
	CHECK_EQ(gdrfab_mem_free(n.domain, (char *)addr[4] + 4096), -EINVAL);
	CHECK_EQ(gdrfab_mem_free(n.domain, NULL), -EINVAL);

	/* Two regions lie in the allocation, one in a part of it: it cannot be freed until both are closed. */
	OK(gdrfab_mr_reg(n.domain, addr[4], 1 << 20, REMOTE_ACCESS, 0, 0, 0, NULL, &first));
	OK(gdrfab_mr_reg(n.domain, (char *)addr[4] + 5000, 100, REMOTE_ACCESS, 0, 0, 0, NULL, &second));
	CHECK_EQ(mr_query(second).path, best_path());
	CHECK_EQ(gdrfab_mem_free(n.domain, addr[4]), -EBUSY);
	OK(gdrfab_mr_close(first));
	CHECK_EQ(gdrfab_mem_free(n.domain, addr[4]), -EBUSY);
	OK(gdrfab_mr_close(second));
	for (int i = 0; i < 6; i++)
		OK(gdrfab_mem_free(n.domain, addr[i]));
	CHECK_EQ(gdrfab_mem_free(n.domain, addr[0]), -EINVAL);
	node_close(&n);
}

TEST_TABLE(kinds)
{
	char name[64];
	for (int k = 0; k < KINDS; k++) {
		if (!kind_listed(k))
			continue;
		snprintf(name, sizeof name, "paths_offered_by_%s", memkinds[k].name);
		test_add(name, offers, &memkinds[k], 20);
	}
	size_t devices = device_kinds_list();
	for (size_t k = 0; k < devices; k++) {
		snprintf(name, sizeof name, "paths_offered_by_%s", device_kinds[k]->name);
		test_add(name, offers, device_kinds[k], 20);
	}
}
