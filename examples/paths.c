/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Prints the paths that each kind of memory offers to peers, and the text of a refusal. No connection is needed for
 * that.
 *
 *   cc -o paths paths.c $(pkg-config --cflags --libs gdrfab)
 *   ./paths
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memfd_create */
#endif
#include <gdrfab.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define OK(call) do { if ((call) < 0) { fprintf(stderr, "%s: %s\n", #call, gdrfab_last_error()); exit(1); } } while (0)
#define SIZE ((size_t)1 << 20)

static void tell(gdrfab_domain *domain, const char *what, gdrfab_mr_attr *attr, uint64_t flags)
{
	char words[2048];
	gdrfab_mr *mr;
	attr->struct_size = sizeof *attr;
	attr->iov_count = 1;
	attr->access = GDRFAB_REMOTE_READ | GDRFAB_REMOTE_WRITE;
	printf("%s\n", what);
	if (gdrfab_mr_regattr(domain, attr, flags, &mr) < 0) {
		printf("  refused: %s\n", gdrfab_last_error());
		return;
	}
	OK(gdrfab_mr_explain(mr, words, sizeof words));
	printf("  %s", words);
	OK(gdrfab_mr_close(mr));
}

int main(void)
{
	gdrfab_info *info;
	gdrfab_fabric *fabric;
	gdrfab_domain *domain;
	void *allocated;
	int fd = memfd_create("paths", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0 || ftruncate(fd, (off_t)SIZE) < 0)
		return 1;

	OK(gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, 0, NULL, &info));
	OK(gdrfab_fabric_open(info, NULL, &fabric));
	OK(gdrfab_domain_open(fabric, info, NULL, &domain));
	OK(gdrfab_mem_alloc(domain, GDRFAB_HMEM_SYSTEM, 0, SIZE, 0, &allocated));

	struct iovec made = {allocated, SIZE}, plain = {malloc(SIZE), SIZE};
	gdrfab_mr_dmabuf file = {fd, 0, 0, SIZE, NULL};
	gdrfab_mr_attr attr;
	memset(&attr, 0, sizeof attr);
	attr.mr_iov = &made;
	tell(domain, "memory of gdrfab_mem_alloc", &attr, 0);
	attr.mr_iov = &plain;
	tell(domain, "memory of malloc", &attr, 0);
	attr.require = GDRFAB_PATH_DIRECT;
	tell(domain, "memory of malloc, where only the direct path will do", &attr, 0);
	memset(&attr, 0, sizeof attr);
	attr.dmabuf = &file;
	tell(domain, "a file descriptor that can be mapped", &attr, GDRFAB_MR_DMABUF);

	free(plain.iov_base);
	close(fd);
	OK(gdrfab_mem_free(domain, allocated));
	OK(gdrfab_domain_close(domain));
	OK(gdrfab_fabric_close(fabric));
	gdrfab_freeinfo(info);
	return 0;
}
