/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The cost that gdrfab adds to a registration: gdrfab_mr_reg (gdrfab_mr_regattr for a dma-buf) and gdrfab_mr_close,
 * beside ibv_reg_mr (ibv_reg_dmabuf_mr) and ibv_dereg_mr of the same memory with the same device and rights, taking
 * turns. All pages are present beforehand. Prints a Markdown table of medians, with the path by which the device
 * reaches the memory. The ratio is the median of the rounds' own ratios, because emulated CPUs are slow and noisy.
 *
 *   LIBIBVERBS=FILE GDRFAB_DEBUG=ibverbs=FILE register [ROUNDS [DEVICE]]
 *
 * A kind of memory that the machine lacks is left out, with a line that says so.
 */
#define _GNU_SOURCE
#include "../ok.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <linux/udmabuf.h>
#include <stdbool.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#undef ibv_reg_mr

enum { MOST = 999 };
static const size_t HUGE_PAGE = 2 << 20;

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- memory */

static gdrfab_domain *domain;

struct memory {
	void *at;
	size_t len;
	/* A dma-buf, or -1. With a dma-buf, `at` is the address by which peers would name its first byte. */
	int fd;
};

/* Makes memory of one kind. Returns NULL, or the reason why the machine cannot. */
typedef const char *maker(struct memory *m);

static const char *of_malloc(struct memory *m)
{
	return posix_memalign(&m->at, 4096, m->len) ? "no memory" : NULL;
}

static void free_malloc(struct memory *m)
{
	free(m->at);
}

static size_t huge(size_t len)
{
	return (len + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
}

static const char *of_hugepages(struct memory *m)
{
	m->at = mmap(NULL, huge(m->len), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	return m->at == MAP_FAILED ? "too few of them are reserved (vm.nr_hugepages)" : NULL;
}

static void free_hugepages(struct memory *m)
{
	munmap(m->at, huge(m->len));
}

static const char *of_mem_alloc(struct memory *m)
{
	OK(gdrfab_mem_alloc(domain, GDRFAB_HMEM_SYSTEM, 0, m->len, 0, &m->at));
	return NULL;
}

static void free_mem_alloc(struct memory *m)
{
	OK(gdrfab_mem_free(domain, m->at));
}

static const char *of_udmabuf(struct memory *m)
{
	int device = open("/dev/udmabuf", O_RDWR), file = memfd_create("register", MFD_ALLOW_SEALING);
	if (device < 0)
		return "there is no /dev/udmabuf";
	if (file < 0 || ftruncate(file, (off_t)m->len) || fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK))
		fail("memfd_create", strerror(errno));
	struct udmabuf_create create = {.memfd = (uint32_t)file, .flags = UDMABUF_FLAGS_CLOEXEC, .size = m->len};
	m->fd = ioctl(device, UDMABUF_CREATE, &create);
	if (m->fd < 0)
		fail("UDMABUF_CREATE", strerror(errno));
	close(file);
	close(device);
	m->at = (void *)0x10000000;
	return NULL;
}

static void free_udmabuf(struct memory *m)
{
	close(m->fd);
}

static const struct kind {
	const char *name;
	maker *make;
	void (*unmake)(struct memory *m);
} kinds[] = {
	{"malloc", of_malloc, free_malloc},
	{"hugepages", of_hugepages, free_hugepages},
	{"gdrfab_mem_alloc", of_mem_alloc, free_mem_alloc},
	{"udmabuf", of_udmabuf, free_udmabuf},
};

/* ---- the bare verbs */

static void *library;

#define CALL(name) ((__typeof__(&name))symbol(#name))
static void *symbol(const char *name)
{
	void *at = dlsym(library, name);
	if (!at)
		fail(name, "no such symbol");
	return at;
}

static struct ibv_pd *pd;
static __typeof__(&ibv_reg_mr) reg;
static __typeof__(&ibv_reg_dmabuf_mr) reg_dmabuf;
static __typeof__(&ibv_dereg_mr) dereg;

static void open_raw(const char *device)
{
	const char *name = getenv("LIBIBVERBS");
	library = dlopen(name ? name : "libibverbs.so.1", RTLD_NOW);
	if (!library)
		fail("libibverbs", dlerror());
	struct ibv_device **list = CALL(ibv_get_device_list)(NULL);
	while (list && *list && device && strcmp((*list)->name, device))
		list++;
	struct ibv_context *context = list && *list ? CALL(ibv_open_device)(*list) : NULL;
	pd = context ? CALL(ibv_alloc_pd)(context) : NULL;
	if (!pd)
		fail("opening a device", "there is none");
	reg = CALL(ibv_reg_mr);
	reg_dmabuf = CALL(ibv_reg_dmabuf_mr);
	dereg = CALL(ibv_dereg_mr);
}

static uint64_t by_verbs(const struct memory *m)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	uint64_t start = now();
	struct ibv_mr *mr = m->fd < 0 ? reg(pd, m->at, m->len, access)
				      : reg_dmabuf(pd, 0, m->len, (uintptr_t)m->at, m->fd, access);
	if (!mr)
		fail("registering by the bare verbs", strerror(errno));
	if (dereg(mr))
		fail("ibv_dereg_mr", strerror(errno));
	return now() - start;
}

/* ---- gdrfab */

static void open_gdrfab(const char *device)
{
	gdrfab_info *hints = gdrfab_dupinfo(NULL), *list, *info;
	gdrfab_fabric *fabric;
	char name[] = "verbs";
	hints->prov_name = name;
	hints->mr_mode = GDRFAB_MR_LOCAL | GDRFAB_MR_VIRT_ADDR | GDRFAB_MR_PROV_KEY;
	hints->threading = GDRFAB_THREAD_DOMAIN;
	OK(gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, 0, hints, &list));
	for (info = list; info && device && strncmp(info->domain_name, device, strlen(device)); info = info->next)
		;
	if (!info)
		fail("gdrfab_getinfo", "no such device");
	OK(gdrfab_fabric_open(info, NULL, &fabric));
	OK(gdrfab_domain_open(fabric, info, NULL, &domain));
}

enum { ACCESS = GDRFAB_REMOTE_READ | GDRFAB_REMOTE_WRITE | GDRFAB_READ | GDRFAB_WRITE };

static gdrfab_mr *registered(const struct memory *m)
{
	gdrfab_mr *mr;
	if (m->fd < 0) {
		OK(gdrfab_mr_reg(domain, m->at, m->len, ACCESS, 0, 0, 0, NULL, &mr));
		return mr;
	}
	gdrfab_mr_dmabuf dmabuf = {.fd = m->fd, .len = m->len, .base_addr = m->at};
	gdrfab_mr_attr attr = {.struct_size = sizeof attr, .dmabuf = &dmabuf, .iov_count = 1, .access = ACCESS};
	OK(gdrfab_mr_regattr(domain, &attr, GDRFAB_MR_DMABUF, &mr));
	return mr;
}

static uint64_t by_gdrfab(const struct memory *m)
{
	uint64_t start = now();
	gdrfab_mr *mr = registered(m);
	OK(gdrfab_mr_close(mr));
	return now() - start;
}

static const char *path_of(const struct memory *m)
{
	gdrfab_mr_info info = {.struct_size = sizeof info};
	gdrfab_mr *mr = registered(m);
	OK(gdrfab_mr_query(mr, &info));
	OK(gdrfab_mr_close(mr));
	switch (info.path) {
	case GDRFAB_PATH_NIC:
		return "nic";
	case GDRFAB_PATH_DMABUF:
		return "dmabuf";
	case GDRFAB_PATH_PEER_MEM:
		return "peer-mem";
	default:
		return "staged";
	}
}

/* ---- the table */

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double median(double *v, int n)
{
	qsort(v, (size_t)n, sizeof *v, ascending);
	return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static const char *size_words(size_t len)
{
	static char words[32];
	bool small = len < 1 << 20;
	snprintf(words, sizeof words, "%zu %s", small ? len >> 10 : len >> 20, small ? "KiB" : "MiB");
	return words;
}

static void row(const struct kind *kind, size_t len, int rounds)
{
	static double raw[MOST], ours[MOST], ratio[MOST];
	struct memory m = {.len = len, .fd = -1};
	const char *missing = kind->make(&m);
	if (missing) {
		fprintf(stderr, "register: no %s of %s: %s\n", kind->name, size_words(len), missing);
		return;
	}
	if (m.fd < 0)
		memset(m.at, 1, len);
	by_verbs(&m);
	const char *path = path_of(&m);
	for (int r = 0; r < rounds; r++) {
		bool first = r % 2 == 0;
		uint64_t a = first ? by_verbs(&m) : 0;
		uint64_t b = by_gdrfab(&m);
		a = first ? a : by_verbs(&m);
		raw[r] = (double)a / 1000;
		ours[r] = (double)b / 1000;
		ratio[r] = (double)b / (double)a;
	}
	double each = median(ratio, rounds);
	printf("| %s | %s | %s | %.1f | %.1f | %.3f | %.3f to %.3f | <= 1.05 |\n", kind->name, size_words(len), path,
	       median(raw, rounds), median(ours, rounds), each, ratio[rounds / 4], ratio[rounds * 3 / 4]);
	fflush(stdout);
	kind->unmake(&m);
}

int main(int argc, char **argv)
{
	static const size_t sizes[] = {4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20};
	int rounds = argc > 1 ? atoi(argv[1]) : 99;
	const char *device = argc > 2 ? argv[2] : NULL;
	if (rounds < 1 || rounds > MOST)
		fail("ROUNDS", "1 to 999");
	open_raw(device);
	open_gdrfab(device);
	printf("| register and close | size | path | verbs us | gdrfab us | ratio | its middle half | bar |\n"
	       "|---|---|---|---:|---:|---:|---|---|\n");
	for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
		for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
			row(&kinds[k], sizes[i], rounds);
	return 0;
}
