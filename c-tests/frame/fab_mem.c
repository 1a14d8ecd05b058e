/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Memory of every kind, and its registration. The CPU cannot access device memory: its bytes are written and checked in
 * host memory, and gdrfab_hmem_copy_*() copies them over.
 */
#include "fab_mem.h"
#include "pattern.h"
#include "fab_cuda.h"
#include "fab_dmabuf.h"
#include "fab_local.h"
#include "fab_node.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/uio.h>

static void malloc_new(TEST_UNUSED struct node *n, struct mem *m)
{
	m->addr = (unsigned char *)malloc(m->len ? m->len : 1);
	CHECK(m->addr != NULL);
}

static void malloc_end(TEST_UNUSED struct node *n, struct mem *m)
{
	free(m->addr);
}

static void mem_alloc_new(struct node *n, struct mem *m)
{
	void *addr = NULL;
	OK(gdrfab_mem_alloc(n->domain, GDRFAB_HMEM_SYSTEM, 0, m->len, 0, &addr));
	m->addr = (unsigned char *)addr;
	CHECK(m->addr != NULL);
	CHECK_EQ((uintptr_t)m->addr % (uintptr_t)sysconf(_SC_PAGESIZE), 0);
	for (size_t i = 0; i < m->len; i++)
		if (m->addr[i] != 0)
			test_fail(__FILE__, __LINE__, "gdrfab_mem_alloc gave memory with a byte set at %zu", i);
}

static void mem_alloc_end(struct node *n, struct mem *m)
{
	OK(gdrfab_mem_free(n->domain, m->addr));
}

static void memfd_new(TEST_UNUSED struct node *n, struct mem *m)
{
	m->fd = memfd_create("c-tests", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	CHECK(m->fd >= 0);
	CHECK_EQ(ftruncate(m->fd, (off_t)m->len), 0);
	m->addr = (unsigned char *)mmap(NULL, m->len, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
	CHECK(m->addr != MAP_FAILED);
}

static void memfd_end(TEST_UNUSED struct node *n, struct mem *m)
{
	munmap(m->addr, m->len);
	close(m->fd);
}

/* The paths of all host memory: process_vm_readv() and staging reach everything that has an address. Memory of a file can
 * also be mapped by the peer (GDRFAB_PATH_DIRECT). */
#define ANY_HOST (GDRFAB_PATH_CMA | GDRFAB_PATH_STAGED)
/* A mapping of a dma-buf has no pages that process_vm_readv() could find. */
#define DMABUF_KIND(text, make)                                                                                        \
	{                                                                                                              \
		.name = text, .paths = GDRFAB_PATH_DIRECT | GDRFAB_PATH_STAGED, .alloc = make, .release = dmabuf_end,  \
		.file = true, .dmabuf = true                                                                           \
	}
const struct memkind memkinds[KINDS] = {
	[KIND_MALLOC] = {.name = "malloc", .paths = ANY_HOST, .alloc = malloc_new, .release = malloc_end},
	[KIND_MEM_ALLOC] =
		{.name = "mem_alloc",
		 .paths = GDRFAB_PATH_DIRECT | ANY_HOST,
		 .alloc = mem_alloc_new,
		 .release = mem_alloc_end},
	/* Registered by descriptor, only direct mapping is promised; copying through the owner's mapping is not. */
	[KIND_MEMFD] =
		{.name = "memfd",
		 .paths = GDRFAB_PATH_DIRECT | ANY_HOST,
		 .alloc = memfd_new,
		 .release = memfd_end,
		 .file = true,
		 .maybe = GDRFAB_PATH_CMA},
	[KIND_UDMABUF] = DMABUF_KIND("udmabuf", udmabuf_new),
	[KIND_HEAP] = DMABUF_KIND("dma_heap", heap_new),
	[KIND_VGEM] = DMABUF_KIND("vgem", vgem_new),
};

/* --- device memory --- */

/* Some runtimes must be initialised by the application before the library can use them. */
static void *entry(const char *library, const char *name)
{
	void *handle = dlopen(library, RTLD_NOW);
	void *found = handle ? dlsym(handle, name) : NULL;
	if (!found)
		test_skip("TEST_IFACES names an interface, but there is no %s of %s", name, library);
	return found;
}

static void initialise(const struct node *n, uint32_t iface)
{
	static bool done[GDRFAB_HMEM_SYNAPSEAI + 1];
	if (done[iface])
		return;
	done[iface] = true;
	if (iface == GDRFAB_HMEM_NEURON) {
		int (*init)(int, const char *, const char *);
		*(void **)(void *)&init = entry("libnrt.so.1", "nrt_init");
		CHECK_EQ(init(1, "", ""), 0);
	}
	if (iface == GDRFAB_HMEM_SYNAPSEAI) {
		int (*init)(void), (*acquire)(uint32_t *, uint32_t);
		uint32_t device;
		*(void **)(void *)&init = entry("libSynapse.so", "synInitialize");
		*(void **)(void *)&acquire = entry("libSynapse.so", "synDeviceAcquireByModuleId");
		CHECK_EQ(init(), 0);
		/* A device serves one process: each side acquires its own, and its number is 0 in the process. */
		CHECK_EQ(acquire(&device, n->side == TEST_SERVER ? 0 : 1), 0);
	}
}

uint32_t device_count(struct node *n, uint32_t iface)
{
	initialise(n, iface);
	gdrfab_hmem_info info;
	memset(&info, 0, sizeof info);
	info.struct_size = sizeof info;
	n->drivers = true;
	int result = gdrfab_hmem_query(iface, UINT32_MAX, &info);
	if (result != 0)
		test_fail(__FILE__, __LINE__, "TEST_IFACES names an interface that cannot be used: %s",
			  gdrfab_last_error());
	CHECK(info.devices > 0);
	return iface == GDRFAB_HMEM_SYNAPSEAI ? 1 : info.devices;
}

static void device_new(struct node *n, struct mem *m)
{
	void *addr = NULL;
	OK(gdrfab_mem_alloc(n->domain, m->kind->iface, m->device, m->len, 0, &addr));
	m->addr = (unsigned char *)addr;
	CHECK(m->addr != NULL);
}

#define DEVICE_KIND(text, number, ways)                                                                                \
	{                                                                                                              \
		.name = text "_alloc", .paths = ways, .alloc = device_new, .release = mem_alloc_end, .iface = number,  \
		.opaque = true                                                                                         \
	}
#define MAPPED (GDRFAB_PATH_IPC | GDRFAB_PATH_STAGED)

static const struct {
	const char *iface;
	struct memkind kind;
} of_interface[] = {
	{"cuda", DEVICE_KIND("cuda", GDRFAB_HMEM_CUDA, MAPPED)},
	{"rocr", DEVICE_KIND("rocr", GDRFAB_HMEM_ROCR, MAPPED)},
	{"ze", DEVICE_KIND("ze", GDRFAB_HMEM_ZE, MAPPED)},
	{"neuron", DEVICE_KIND("neuron", GDRFAB_HMEM_NEURON, GDRFAB_PATH_STAGED)},
	{"synapseai", DEVICE_KIND("synapseai", GDRFAB_HMEM_SYNAPSEAI, GDRFAB_PATH_STAGED)},
};

const struct memkind *device_kinds[DEVICE_KINDS];

static bool is_listed(const char *list, const char *word)
{
	size_t len = strlen(word);
	while (list && *list) {
		if (strncmp(list, word, len) == 0 && (list[len] == 0 || list[len] == ','))
			return true;
		list = strchr(list, ',');
		list += list != NULL;
	}
	return false;
}

size_t device_kinds_list(void)
{
	/* With TEST_FAST these kinds are left out: they take the same code as the others. */
	static const int same[] = {[CUDA_PRIVATE_POOL] = 1, [CUDA_VMM] = 1, [CUDA_MANAGED] = 1, [CUDA_HOST] = 1};
	const char *list = getenv("TEST_IFACES");
	bool fast = test_count(0, 1);
	size_t count = 0;
	for (size_t i = 0; i < sizeof of_interface / sizeof of_interface[0]; i++) {
		if (!is_listed(list, of_interface[i].iface))
			continue;
		device_kinds[count++] = &of_interface[i].kind;
		for (size_t k = 0; k < CUDA_KINDS && of_interface[i].kind.iface == GDRFAB_HMEM_CUDA; k++)
			if (!fast || !same[k])
				device_kinds[count++] = &cuda_kinds[k];
	}
	return count;
}

/* --- memory and its bytes --- */

void mem_new(struct node *n, struct mem *m, const struct memkind *kind, size_t len)
{
	memset(m, 0, sizeof *m);
	m->kind = kind;
	m->len = len;
	m->fd = -1;
	/* The server takes the first device and the client the last, so that two devices are used if there are two. */
	if (kind->iface != GDRFAB_HMEM_SYSTEM) {
		uint32_t devices = device_count(n, kind->iface);
		m->device = n->side == TEST_SERVER ? 0 : devices - 1;
	}
	kind->alloc(n, m);
}

void mem_write(struct mem *m, size_t offset, const void *from, size_t len)
{
	CHECK(offset <= m->len && len <= m->len - offset);
	if (m->kind->opaque) {
		OK(gdrfab_hmem_copy_to(m->kind->iface, m->device, m->addr + offset, from, len));
		return;
	}
	dmabuf_access(m, true);
	memcpy(m->addr + offset, from, len);
	dmabuf_access(m, false);
}

void mem_read(struct mem *m, size_t offset, void *to, size_t len)
{
	CHECK(offset <= m->len && len <= m->len - offset);
	if (m->kind->opaque) {
		OK(gdrfab_hmem_copy_from(m->kind->iface, m->device, to, m->addr + offset, len));
		return;
	}
	dmabuf_access(m, true);
	memcpy(to, m->addr + offset, len);
	dmabuf_access(m, false);
}

void mem_fill(struct mem *m, size_t offset, size_t len, size_t position, uint32_t seed)
{
	if (len == 0)
		return;
	unsigned char *shadow = m->kind->opaque ? (unsigned char *)malloc(len) : m->addr + offset;
	CHECK(shadow != NULL);
	dmabuf_access(m, true);
	fill(shadow, len, position, seed);
	dmabuf_access(m, false);
	if (m->kind->opaque) {
		mem_write(m, offset, shadow, len);
		free(shadow);
	}
}

void mem_check(const char *file, int line, const char *what, struct mem *m, size_t offset, size_t len, size_t position,
	       uint32_t seed)
{
	if (len == 0)
		return;
	unsigned char *shadow = m->kind->opaque ? (unsigned char *)malloc(len) : m->addr + offset;
	CHECK(shadow != NULL);
	if (m->kind->opaque)
		mem_read(m, offset, shadow, len);
	dmabuf_access(m, true);
	check_filled(file, line, what, shadow, len, position, seed);
	dmabuf_access(m, false);
	if (m->kind->opaque)
		free(shadow);
}

void *mem_desc(const struct mem *m)
{
	return m->mr ? gdrfab_mr_desc(m->mr) : NULL;
}

void *mem_needed_desc(struct node *n, const struct mem *m)
{
	if (m->kind->iface == GDRFAB_HMEM_SYSTEM && !local_needed(n))
		return NULL;
	return m->mr ? mem_desc(m) : local_desc(n, m->addr, m->len);
}

int mem_try_register(struct node *n, struct mem *m, size_t offset, size_t len, uint64_t access, uint64_t require,
		     uint64_t requested_key)
{
	struct iovec iov = {m->addr + offset, len};
	gdrfab_mr_dmabuf dmabuf = {m->fd, 0, offset, len, m->addr};
	gdrfab_mr_attr attr;
	memset(&attr, 0, sizeof attr);
	attr.struct_size = sizeof attr;
	attr.iov_count = 1;
	attr.access = access;
	attr.requested_key = requested_key;
	attr.require = require;
	attr.iface = m->kind->iface;
	attr.device = m->device;
	if (m->kind->file)
		attr.dmabuf = &dmabuf;
	else
		attr.mr_iov = &iov;
	int result = gdrfab_mr_regattr(n->domain, &attr, m->kind->file ? GDRFAB_MR_DMABUF : 0, &m->mr);
	if (result != 0)
		return result;
	CHECK(m->mr != NULL);
	gdrfab_mr_info info;
	memset(&info, 0, sizeof info);
	info.struct_size = sizeof info;
	OK(gdrfab_mr_query(m->mr, &info));
	m->key = gdrfab_mr_key(m->mr);
	m->base = info.base;
	m->registered = len;
	CHECK_EQ(info.key, m->key);
	CHECK_EQ(info.len, len);
	return 0;
}

void mem_register(struct node *n, struct mem *m, size_t offset, size_t len, uint64_t access, uint64_t require)
{
	OK(mem_try_register(n, m, offset, len, access, require, 0));
}

void mem_unregister(struct mem *m)
{
	OK(gdrfab_mr_close(m->mr));
	m->mr = NULL;
}

void mem_end(struct node *n, struct mem *m)
{
	if (m->mr)
		mem_unregister(m);
	local_forget(n, m->addr, m->len);
	m->kind->release(n, m);
	m->addr = NULL;
}

void mem_publish(struct node *n, const struct mem *m)
{
	struct remote r = {m->key, m->base, m->registered};
	oob_send(n, &r, sizeof r);
}

struct remote mem_fetch(struct node *n)
{
	struct remote r;
	oob_recv(n, &r, sizeof r);
	return r;
}

gdrfab_mr *host_publish(struct node *n, void *at, size_t len, uint64_t access)
{
	gdrfab_mr *mr;
	OK(gdrfab_mr_reg(n->domain, at, len, access, 0, 0, 0, NULL, &mr));
	struct remote r = {gdrfab_mr_key(mr), (uint64_t)(uintptr_t)at, len};
	oob_send(n, &r, sizeof r);
	return mr;
}

gdrfab_mr_info mr_query(gdrfab_mr *mr)
{
	gdrfab_mr_info info;
	memset(&info, 0, sizeof info);
	info.struct_size = sizeof info;
	OK(gdrfab_mr_query(mr, &info));
	return info;
}
