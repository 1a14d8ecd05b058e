/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The memory of one side: allocates it on an accelerator, exports, registers, fills and compares it. */
#define _POSIX_C_SOURCE 200809L
#include "pingpong.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

bool memory_named(struct side *s, const char *name)
{
	static const struct { const char *name; uint32_t iface; } known[] = {
		{"host", GDRFAB_HMEM_SYSTEM}, {"gaudi", GDRFAB_HMEM_SYNAPSEAI}, {"cuda", GDRFAB_HMEM_CUDA},
		{"rocr", GDRFAB_HMEM_ROCR}, {"ze", GDRFAB_HMEM_ZE},
	};
	size_t len = strcspn(name, ":");
	char *end = NULL;
	unsigned long number = name[len] ? strtoul(name + len + 1, &end, 10) : 0;
	for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
		bool here = strlen(known[i].name) == len && memcmp(known[i].name, name, len) == 0;
		bool numbered = name[len] && name[len + 1] >= '0' && name[len + 1] <= '9' && !*end && number < 256;
		/* "host" alone has no number. */
		if (!here || (known[i].iface == GDRFAB_HMEM_SYSTEM ? name[len] != 0 : !numbered))
			continue;
		s->mem = name;
		s->iface = known[i].iface;
		s->device = (uint32_t)number;
		return true;
	}
	return false;
}

/* Acquires a Gaudi, which serves a single process. Without SynapseAI gdrfab allocates by hl-thunk; then nothing on
 * this host can copy the memory, so it could be neither filled nor compared here. */
static bool acquire_gaudi(struct side *s)
{
	int (*initialize)(void), (*acquire)(uint32_t *, uint32_t);
	if (!(s->synapse = dlopen("libSynapse.so", RTLD_NOW | RTLD_GLOBAL)))
		return say("%s", dlerror());
	*(void **)(void *)&initialize = dlsym(s->synapse, "synInitialize");
	*(void **)(void *)&acquire = dlsym(s->synapse, "synDeviceAcquireByModuleId");
	int rc = !initialize || !acquire ? -1 : initialize();
	if (rc != 0 || (rc = acquire(&s->acquired, s->device)) != 0) {
		dlclose(s->synapse);
		s->synapse = NULL;
		return say("SynapseAI gives no device %u: status %d", s->device, rc);
	}
	s->device = s->acquired; /* the number that SynapseAI has for it in this process */
	return true;
}

void prepare_device(struct side *s)
{
	gdrfab_hmem_info about;
	memset(&about, 0, sizeof about);
	about.struct_size = sizeof about;
	if (s->iface == GDRFAB_HMEM_SYNAPSEAI)
		acquire_gaudi(s);
	/* To ask for a card near to an absent device would be an error. */
	s->near = s->iface != GDRFAB_HMEM_SYSTEM && gdrfab_hmem_query(s->iface, s->device, &about) == 0;
}

void release_gaudi(struct side *s)
{
	int (*release)(uint32_t), (*destroy)(void);
	if (!s->synapse)
		return;
	*(void **)(void *)&release = dlsym(s->synapse, "synDeviceRelease");
	*(void **)(void *)&destroy = dlsym(s->synapse, "synDestroy");
	if (release)
		release(s->acquired);
	if (destroy)
		destroy();
	dlclose(s->synapse);
	s->synapse = NULL;
}

static bool register_dmabuf(struct side *s, gdrfab_mr_attr *attr)
{
	gdrfab_mr_dmabuf dmabuf;
	if (gdrfab_hmem_export_dmabuf(s->memory, PARTS * s->size, 0, &dmabuf) < 0)
		return say("no dma-buf: %s", gdrfab_last_error());
	printf("dma-buf: %zu bytes from %llu on, for the device's address %p\n", dmabuf.len,
	       (unsigned long long)dmabuf.offset, (void *)s->memory);
	bool taken = (s->info->paths & GDRFAB_PATH_DMABUF) != 0;
	if (!taken)
		printf("dma-buf: %s has no cards that take it, so the region is registered by its address\n",
		       s->info->prov_name);
	/* base_addr is chosen so that the region's first byte has its address on the device. */
	attr->dmabuf = &dmabuf;
	if (taken && gdrfab_mr_regattr(s->domain, attr, GDRFAB_MR_DMABUF, &s->mr) < 0)
		taken = say("the dma-buf cannot be registered: %s", gdrfab_last_error());
	close(dmabuf.fd);
	attr->dmabuf = NULL;
	return taken;
}

static bool register_memory(struct side *s)
{
	struct iovec iov = {s->memory, PARTS * s->size};
	char words[1024];
	gdrfab_mr_attr attr;
	memset(&attr, 0, sizeof attr);
	attr.struct_size = sizeof attr;
	attr.iov_count = 1;
	attr.access = GDRFAB_SEND | GDRFAB_RECV | GDRFAB_READ | GDRFAB_WRITE | GDRFAB_REMOTE_READ |
		      GDRFAB_REMOTE_WRITE;
	attr.requested_key = 1;
	attr.iface = s->iface;
	attr.device = s->device;
	if (s->iface == GDRFAB_HMEM_SYSTEM || !register_dmabuf(s, &attr)) {
		attr.mr_iov = &iov;
		if (!CALL(gdrfab_mr_regattr(s->domain, &attr, 0, &s->mr)))
			return false;
	}
	s->region.struct_size = sizeof s->region;
	if (!CALL(gdrfab_mr_query(s->mr, &s->region)) || !CALL(gdrfab_mr_explain(s->mr, words, sizeof words)))
		return false;
	printf("%s at %p: %s", s->mem, (void *)s->memory, words);
	return true;
}

static bool copy(struct side *s, int part, bool to_device)
{
	void *there = at(s, part);
	return to_device ? CALL(gdrfab_hmem_copy_to(s->iface, s->device, there, s->scratch, s->size))
			 : CALL(gdrfab_hmem_copy_from(s->iface, s->device, s->scratch, there, s->size));
}

void free_memory(struct side *s)
{
	if (s->mr)
		gdrfab_mr_close(s->mr);
	if (s->memory)
		gdrfab_mem_free(s->domain, s->memory);
	s->mr = NULL;
	s->memory = NULL;
}

static bool try_memory(struct side *s)
{
	void *addr = NULL;
	memset(s->scratch, 0, s->size);
	if (!CALL(gdrfab_mem_alloc(s->domain, s->iface, s->device, PARTS * s->size, 0, &addr)))
		return false;
	s->memory = addr;
	for (int part = 0; part < PARTS; part++)
		if (!copy(s, part, true))
			return false;
	return register_memory(s);
}

/* Allocates the requested memory or, if it is not available, host memory, and prints which. */
bool take_memory(struct side *s)
{
	if (!(s->scratch = malloc(s->size)))
		return say("no memory for %zu bytes", s->size);
	if (try_memory(s))
		return true;
	free_memory(s);
	if (s->iface == GDRFAB_HMEM_SYSTEM)
		return false;
	printf("%s cannot be used here, see above: host memory in its place\n", s->mem);
	s->mem = "host";
	s->iface = GDRFAB_HMEM_SYSTEM;
	s->device = 0;
	return try_memory(s);
}

/* Bytes that do not occur by chance: different for each side, round and offset. */
static unsigned char byte_of(bool first, int round, size_t at)
{
	uint64_t x = ((uint64_t)at + 1) * 0x9e3779b97f4a7c15u + (uint64_t)round * 2 + first;
	return (unsigned char)(x * 0xbf58476d1ce4e5b9u >> 56);
}

bool fill(struct side *s, int part, int round)
{
	for (size_t i = 0; i < s->size; i++)
		s->scratch[i] = byte_of(s->first, round, i);
	return copy(s, part, true);
}

/* True if a part holds the bytes that the peer filled in in this round. */
bool verify(struct side *s, int part, int round, const char *what)
{
	memset(s->scratch, 0, s->size);
	if (!copy(s, part, false))
		return false;
	for (size_t i = 0; i < s->size; i++)
		if (s->scratch[i] != byte_of(!s->first, round, i))
			return say("%s: wrong from byte %zu on", what, i);
	if (round < ROUNDS || round >= s->rounds)
		printf("%s: %zu bytes verified\n", what, s->size);
	return true;
}

