/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Host memory in dma-bufs, from three exporters of the kernel: udmabuf over a memory file, the system heap, and the
 * virtual graphics driver vgem. The structs of vgem are written out here, so that no graphics header is needed.
 */
#include "fab_dmabuf.h"

#include <fcntl.h>
#include <linux/dma-buf.h>
#include <linux/dma-heap.h>
#include <linux/udmabuf.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

static size_t pages(size_t len)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	return len ? (len + page - 1) / page * page : page;
}

static int open_or_skip(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		test_skip("%s: %s", path, strerror(errno));
	return fd;
}

/* Maps the dma-buf and fills it with zeros. */
static void take(struct mem *m, int fd)
{
	if (fd < 0)
		test_fail(__FILE__, __LINE__, "no dma-buf of %s: %s", m->kind->name, strerror(errno));
	m->fd = fd;
	m->reserved = pages(m->len);
	m->addr = (unsigned char *)mmap(NULL, m->reserved, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (m->addr == MAP_FAILED)
		test_fail(__FILE__, __LINE__, "a dma-buf of %s cannot be mapped: %s", m->kind->name, strerror(errno));
	dmabuf_access(m, true);
	memset(m->addr, 0, m->reserved);
	dmabuf_access(m, false);
}

void udmabuf_new(TEST_UNUSED struct node *n, struct mem *m)
{
	int device = open_or_skip("/dev/udmabuf");
	int file = memfd_create("c-tests-udmabuf", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	CHECK(file >= 0);
	CHECK_EQ(ftruncate(file, (off_t)pages(m->len)), 0);
	CHECK_EQ(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	struct udmabuf_create create;
	memset(&create, 0, sizeof create);
	create.memfd = (uint32_t)file;
	create.flags = UDMABUF_FLAGS_CLOEXEC;
	create.size = pages(m->len);
	take(m, ioctl(device, UDMABUF_CREATE, &create));
	close(file);
	close(device);
}

void heap_new(TEST_UNUSED struct node *n, struct mem *m)
{
	int device = open_or_skip("/dev/dma_heap/system");
	struct dma_heap_allocation_data allocation;
	memset(&allocation, 0, sizeof allocation);
	allocation.len = pages(m->len);
	allocation.fd_flags = O_RDWR | O_CLOEXEC;
	int rc = ioctl(device, DMA_HEAP_IOCTL_ALLOC, &allocation);
	take(m, rc < 0 ? rc : (int)allocation.fd);
	close(device);
}

/* --- vgem --- */

struct drm_name {
	int major, minor, patch;
	size_t name_len;
	char *name;
	size_t date_len;
	char *date;
	size_t desc_len;
	char *desc;
};
struct drm_dumb {
	uint32_t height, width, bpp, flags, handle, pitch;
	uint64_t size;
};
struct drm_prime {
	uint32_t handle, flags;
	int32_t fd;
};
#define DRM_VERSION _IOWR('d', 0x00, struct drm_name)
#define DRM_PRIME_EXPORT _IOWR('d', 0x2d, struct drm_prime)
#define DRM_DUMB_CREATE _IOWR('d', 0xb2, struct drm_dumb)

static int vgem_open(void)
{
	for (int card = 0; card < 8; card++) {
		char path[64], name[16] = "";
		snprintf(path, sizeof path, "/dev/dri/card%d", card);
		int fd = open(path, O_RDWR | O_CLOEXEC);
		struct drm_name version;
		memset(&version, 0, sizeof version);
		version.name = name;
		version.name_len = sizeof name - 1;
		if (fd >= 0 && ioctl(fd, DRM_VERSION, &version) == 0 && strcmp(name, "vgem") == 0)
			return fd;
		if (fd >= 0)
			close(fd);
	}
	test_skip("no graphics device of the driver vgem");
}

void vgem_new(TEST_UNUSED struct node *n, struct mem *m)
{
	int card = vgem_open();
	struct drm_dumb dumb;
	memset(&dumb, 0, sizeof dumb);
	/* Each line of the dumb buffer is one page long. */
	dumb.width = (uint32_t)sysconf(_SC_PAGESIZE) / 4;
	dumb.bpp = 32;
	dumb.height = (uint32_t)(pages(m->len) / (size_t)sysconf(_SC_PAGESIZE));
	CHECK_EQ(ioctl(card, DRM_DUMB_CREATE, &dumb), 0);
	CHECK(dumb.size >= pages(m->len));
	struct drm_prime export = {dumb.handle, O_CLOEXEC | O_RDWR, -1};
	int rc = ioctl(card, DRM_PRIME_EXPORT, &export);
	take(m, rc < 0 ? rc : export.fd);
	close(card);
}

void dmabuf_end(TEST_UNUSED struct node *n, struct mem *m)
{
	munmap(m->addr, m->reserved);
	close(m->fd);
}

void dmabuf_access(const struct mem *m, bool begins)
{
	if (!m->kind->dmabuf)
		return;
	struct dma_buf_sync sync = {DMA_BUF_SYNC_RW | (begins ? DMA_BUF_SYNC_START : DMA_BUF_SYNC_END)};
	while (ioctl(m->fd, DMA_BUF_IOCTL_SYNC, &sync) < 0)
		if (errno != EINTR && errno != EAGAIN)
			test_fail(__FILE__, __LINE__, "DMA_BUF_IOCTL_SYNC of %s: %s", m->kind->name, strerror(errno));
}
