/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Lists the offers of a libfabric that is newer than the headers here. It is opened by its path, as by an MPI that
 * brings its own. The first fields of fi_info and of its attributes have kept their layout since 1.17; only those
 * are read.
 *
 *   newer LIBFABRIC FABRIC    the fabrics of gdrfab's infos must all be FABRIC, or rdm:FABRIC
 */
#include <rdma/fabric.h>

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static int failed, passed;

static void claim(int good, const char *name, const char *why)
{
	if (good)
		printf("ok   %s\n", name);
	else
		printf("FAIL %s: %s\n", name, why);
	failed += !good;
	passed += good;
}

int main(int argc, char **argv)
{
	uint32_t (*version)(void);
	int (*getinfo)(uint32_t api, const char *node, const char *service, uint64_t flags, const struct fi_info *hints,
		       struct fi_info **info);
	void (*freeinfo)(struct fi_info *info);
	struct fi_info *(*dupinfo)(const struct fi_info *info);
	struct fi_info *info = NULL, *hints, *copy;
	char fabric[64];
	int messages = 0, connectionless = 0, others = 0, result;
	void *library;

	if (argc != 3) {
		fprintf(stderr, "newer LIBFABRIC FABRIC\n");
		return 2;
	}
	library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		printf("FAIL open: %s\n0 passed, 1 failed, 0 skipped\n", dlerror());
		return 1;
	}
	*(void **)&version = dlsym(library, "fi_version");
	*(void **)&getinfo = dlsym(library, "fi_getinfo");
	*(void **)&freeinfo = dlsym(library, "fi_freeinfo");
	*(void **)&dupinfo = dlsym(library, "fi_dupinfo");
	if (!version || !getinfo || !freeinfo || !dupinfo) {
		printf("FAIL open: not a libfabric\n0 passed, 1 failed, 0 skipped\n");
		return 1;
	}
	printf("     libfabric's API is %u.%u, the headers' %u.%u\n", FI_MAJOR(version()), FI_MINOR(version()),
	       FI_MAJOR_VERSION, FI_MINOR_VERSION);
	claim(FI_VERSION_LT(FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION), version()), "newer_than_the_headers",
	      "it is not");

	/* The offers for its newest API, and for the API of 1.17. */
	result = getinfo(version(), NULL, NULL, 0, NULL, &info);
	claim(result == 0, "getinfo", "fails without hints");
	for (struct fi_info *at = info; at; at = at->next) {
		if (strncmp(at->fabric_attr->prov_name, "gdrfab", 6) != 0)
			continue;
		/* gdrfab's connectionless endpoints have a fabric of their own; ofi_rxm's have the fabric of connected endpoints. */
		bool rdm = at->ep_attr->type == FI_EP_RDM && strcmp(at->fabric_attr->prov_name, "gdrfab") == 0;
		snprintf(fabric, sizeof fabric, "%s%s", rdm ? "rdm:" : "", argv[2]);
		if (strcmp(at->fabric_attr->name, fabric) != 0)
			others++;
		messages += at->ep_attr->type == FI_EP_MSG;
		connectionless += rdm;
		copy = dupinfo(at);
		if (!copy)
			others++;
		else
			freeinfo(copy);
	}
	claim(messages > 0, "offered", "no FI_EP_MSG of gdrfab");
	claim(connectionless > 0, "offered_rdm", "no FI_EP_RDM of gdrfab");
	claim(others == 0, "only_this_fabric", "another fabric, or an info that cannot be copied");
	if (info)
		freeinfo(info);

	hints = dupinfo(NULL);
	claim(hints != NULL, "hints", "fi_dupinfo(NULL) fails");
	if (hints) {
		hints->fabric_attr->prov_name = strdup("gdrfab");
		hints->ep_attr->type = FI_EP_MSG;
		hints->caps = FI_MSG | FI_RMA;
		hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
		result = getinfo(version(), NULL, NULL, 0, hints, &info);
		claim(result == 0, "getinfo_with_hints", "fails");
		if (result == 0)
			freeinfo(info);
		freeinfo(hints);
	}
	dlclose(library);
	printf("%d passed, %d failed, 0 skipped\n", passed, failed);
	return failed > 0;
}
