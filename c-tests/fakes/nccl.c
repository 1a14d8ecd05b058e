/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Of NCCL its version alone, which FAKE_NCCL says; without that it does not tell. */
#include <stdlib.h>

__attribute__((visibility("default"))) int ncclGetVersion(int *version);
int ncclGetVersion(int *version)
{
	const char *own = getenv("FAKE_NCCL");
	*version = own ? atoi(own) : -1;
	return own ? 0 : 3;
}
