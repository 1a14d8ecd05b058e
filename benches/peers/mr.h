/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The interface that mr_cost measures: registering and closing, one call each. */
#ifndef MR_H
#define MR_H
#include <stddef.h>
#include <stdint.h>

struct mr_ops {
	const char *name;
	/* opens a domain; returns `bytes` of memory that need not be touched */
	char *(*open)(const char *arg, size_t bytes);
	void *(*reg)(char *mem, size_t len, uint64_t key);
	void (*drop)(void *mr);
	void (*close)(void);
};
extern const struct mr_ops mr_gdrfab, mr_ofi;
#endif
