/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The GPUs of the fake HSA runtime, and the memory that they can access. */
#include "fakehsa.h"

int hsa_users;

int hsa_gpus(void)
{
	return fake_devices(2);
}

bool hsa_is_gpu(agent_t a)
{
	return a.handle >= GPU && a.handle < GPU + (uint64_t)hsa_gpus();
}

bool hsa_reaches(agent_t a, const struct fake_block *b)
{
	return b->imported || b->kind >> (a.handle - GPU) & 1;
}
