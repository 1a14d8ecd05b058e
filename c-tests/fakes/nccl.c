/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A fake of NCCL with its version function alone: FAKE_NCCL is the version; without it the call fails. */
#include <stdlib.h>

__attribute__((visibility("default"))) int ncclGetVersion(int *version);
int ncclGetVersion(int *version)
{
	const char *own = getenv("FAKE_NCCL");
	*version = own ? atoi(own) : -1;
	return own ? 0 : 3;
}
