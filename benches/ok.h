/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* OK() for the small benchmarks: a call that fails ends the program with its error text. */
#ifndef OK_H
#define OK_H

#include <gdrfab.h>
#include <stdio.h>
#include <stdlib.h>

static inline void fail(const char *what, const char *why)
{
	fprintf(stderr, "%s: %s\n", what, why);
	exit(1);
}

#define OK(call)                                                                                                       \
	do {                                                                                                           \
		if ((call) < 0)                                                                                        \
			fail(#call, gdrfab_last_error());                                                              \
	} while (0)

#endif
