/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What gdrfab adds to the registration of a dma-buf: gdrfab_mr_regattr and gdrfab_mr_close beside ibv_reg_dmabuf_mr and
 * ibv_dereg_mr, of the same udmabuf with the same device and rights, in turns. Prints a table of medians in Markdown; the
 * ratio is the median of the rounds' own ratios, because emulated CPUs are slow and noisy.
 *
 *   GDRFAB_VERBS_LIBRARY=... register [ROUNDS [DEVICE]]
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <gdrfab.h>
#include <infiniband/verbs.h>
#include <linux/udmabuf.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 999 };

static void fail(const char *what, const char *why)
{
	fprintf(stderr, "register: %s: %s\n", what, why);
	exit(1);
}

#define OK(call)                                                                                                       \
	do {                                                                                                           \
		if ((call) < 0)                                                                                        \
			fail(#call, gdrfab_last_error());                                                              \
	} while (0)

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int dmabuf_of(size_t len)
{
	int device = open("/dev/udmabuf", O_RDWR), file = memfd_create("register", MFD_ALLOW_SEALING);
	if (device < 0 || file < 0 || ftruncate(file, (off_t)len) || fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK))
		fail("udmabuf", strerror(errno));
	struct udmabuf_create create = {.memfd = (uint32_t)file, .flags = UDMABUF_FLAGS_CLOEXEC, .size = len};
	int fd = ioctl(device, UDMABUF_CREATE, &create);
	if (fd < 0)
		fail("UDMABUF_CREATE", strerror(errno));
	close(file);
	close(device);
	return fd;
}

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
static __typeof__(&ibv_reg_dmabuf_mr) reg;
static __typeof__(&ibv_dereg_mr) dereg;

static void open_raw(const char *device)
{
	const char *name = getenv("GDRFAB_VERBS_LIBRARY");
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
	reg = CALL(ibv_reg_dmabuf_mr);
	dereg = CALL(ibv_dereg_mr);
}

static uint64_t by_verbs(int fd, size_t len)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	uint64_t start = now();
	struct ibv_mr *mr = reg(pd, 0, len, 0x10000000, fd, access);
	if (!mr)
		fail("ibv_reg_dmabuf_mr", strerror(errno));
	if (dereg(mr))
		fail("ibv_dereg_mr", strerror(errno));
	return now() - start;
}

/* ---- gdrfab */

static gdrfab_domain *domain;

static void open_gdrfab(const char *device)
{
	gdrfab_info *hints = gdrfab_dupinfo(NULL), *list, *info;
	gdrfab_fabric *fabric;
	char name[] = "verbs";
	hints->prov_name = name;
	hints->mr_mode = GDRFAB_MR_LOCAL | GDRFAB_MR_VIRT_ADDR | GDRFAB_MR_PROV_KEY;
	hints->threading = GDRFAB_THREAD_DOMAIN;
	OK(gdrfab_getinfo(gdrfab_version(), NULL, NULL, 0, hints, &list));
	for (info = list; info && device && strncmp(info->domain_name, device, strlen(device)); info = info->next)
		;
	if (!info)
		fail("gdrfab_getinfo", "no such device");
	OK(gdrfab_fabric_open(info, NULL, &fabric));
	OK(gdrfab_domain_open(fabric, info, NULL, &domain));
}

static uint64_t by_gdrfab(int fd, size_t len)
{
	gdrfab_mr_dmabuf dmabuf = {.fd = fd, .len = len, .base_addr = (void *)0x10000000};
	gdrfab_mr_attr attr = {.struct_size = sizeof attr, .dmabuf = &dmabuf, .iov_count = 1, .require = GDRFAB_PATH_DMABUF};
	gdrfab_mr *mr;
	attr.access = GDRFAB_REMOTE_READ | GDRFAB_REMOTE_WRITE | GDRFAB_READ | GDRFAB_WRITE;
	uint64_t start = now();
	OK(gdrfab_mr_regattr(domain, &attr, GDRFAB_MR_DMABUF, &mr));
	OK(gdrfab_mr_close(mr));
	return now() - start;
}

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

int main(int argc, char **argv)
{
	static const size_t sizes[] = {64 << 10, 1 << 20, 16 << 20};
	static double raw[MOST], ours[MOST], ratio[MOST];
	int rounds = argc > 1 ? atoi(argv[1]) : 99;
	const char *device = argc > 2 ? argv[2] : NULL;
	if (rounds < 1 || rounds > MOST)
		fail("ROUNDS", "1 to 999");
	open_raw(device);
	open_gdrfab(device);
	printf("| register and close a dma-buf of | verbs us | gdrfab us | ratio | bar |\n|---|---:|---:|---:|---|\n");
	for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
		int fd = dmabuf_of(sizes[i]);
		by_verbs(fd, sizes[i]);
		by_gdrfab(fd, sizes[i]);
		for (int r = 0; r < rounds; r++) {
			bool first = r % 2 == 0;
			uint64_t a = first ? by_verbs(fd, sizes[i]) : 0;
			uint64_t b = by_gdrfab(fd, sizes[i]);
			a = first ? a : by_verbs(fd, sizes[i]);
			raw[r] = (double)a / 1000;
			ours[r] = (double)b / 1000;
			ratio[r] = (double)b / (double)a;
		}
		printf("| %zu KiB | %.1f | %.1f | %.3f | <= 1.05 |\n", sizes[i] >> 10, median(raw, rounds), median(ours, rounds),
		       median(ratio, rounds));
		fflush(stdout);
		close(fd);
	}
	return 0;
}
