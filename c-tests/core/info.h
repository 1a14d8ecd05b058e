/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The service that the programs about discovery ask for. */
#ifndef INFO_H
#define INFO_H

#include "fab.h"

static inline const char *service(void)
{
	return traits()->numbered ? "18515" : "c-tests-info";
}

static inline gdrfab_info *get(const gdrfab_info *hints, uint64_t flags)
{
	gdrfab_info *info = NULL;
	OK(gdrfab_getinfo(GDRFAB_VERSION, node_name(), service(), flags, hints, &info));
	CHECK(info != NULL);
	return info;
}

#endif
