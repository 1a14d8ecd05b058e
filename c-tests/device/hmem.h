/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Helpers of the programs about gdrfab_hmem_*: a vendor's driver, queries, and memory on its devices. */
#ifndef HMEM_H
#define HMEM_H

#include "misuse.h"

#include <sys/wait.h>

#define PIECE 100000

struct vendor {
	uint32_t iface;
	const char *name;
	void (*prepare)(void); /* initialises a runtime that needs it from the application */
};

static inline int query(uint32_t iface, uint32_t device, gdrfab_hmem_info *info)
{
	memset(info, 0x5a, sizeof *info);
	info->struct_size = sizeof *info;
	return gdrfab_hmem_query(iface, device, info);
}

static inline gdrfab_hmem_place detect(const void *ptr, size_t len)
{
	gdrfab_hmem_place place;
	memset(&place, 0x5a, sizeof place);
	place.struct_size = sizeof place;
	OK(gdrfab_hmem_detect(ptr, len, &place));
	CHECK_EQ(place.struct_size, sizeof place);
	CHECK_EQ(place.reserved, 0);
	return place;
}

/* Opens the vendor's driver, or skips the claim; returns the number of devices. */
static inline uint32_t use(const struct vendor *v)
{
	gdrfab_hmem_info info;
	if (v->prepare)
		v->prepare();
	int result = query(v->iface, UINT32_MAX, &info);
	if (result != 0)
		test_skip("%s", gdrfab_last_error());
	CHECK_EQ(info.iface, v->iface);
	CHECK_EQ(info.device, UINT32_MAX);
	CHECK(info.devices > 0);
	return info.devices;
}

static inline unsigned char *alloc_on(struct node *n, const struct vendor *v, uint32_t device, size_t len)
{
	void *at = NULL;
	int result = gdrfab_mem_alloc(n->domain, v->iface, device, len, 0, &at);
	if (result == -EOPNOTSUPP)
		test_skip("%s", gdrfab_last_error());
	CHECK_EQ(result, 0);
	CHECK(at != NULL);
	return (unsigned char *)at;
}

#endif
