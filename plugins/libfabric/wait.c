/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Wait objects of queues and counters: gdrfab's descriptors. */
#include "provider.h"

int wait_object(enum fi_wait_obj wanted, uint32_t *wait_obj)
{
	switch (wanted) {
	case FI_WAIT_NONE:
	case FI_WAIT_UNSPEC: /* gdrfab's waiting calls need no wait object */
		*wait_obj = GDRFAB_WAIT_NONE;
		return 0;
	case FI_WAIT_FD:
		*wait_obj = GDRFAB_WAIT_FD;
		return 0;
	default:
		return REFUSE(FI_ENOSYS, FI_LOG_FABRIC, "wait_obj: %d, must be FI_WAIT_NONE, FI_WAIT_UNSPEC or FI_WAIT_FD\n",
			      (int)wanted);
	}
}

int wait_control(int command, void *arg, int fd)
{
	switch (command) {
	case FI_GETWAIT:
		if (!arg)
			return -FI_EINVAL;
		if (fd < 0)
			return told(fd, FI_LOG_FABRIC, "FI_GETWAIT");
		*(int *)arg = fd;
		return 0;
	case FI_GETWAITOBJ:
		if (!arg)
			return -FI_EINVAL;
		*(enum fi_wait_obj *)arg = fd < 0 ? FI_WAIT_NONE : FI_WAIT_FD;
		return 0;
	default:
		return -FI_ENOSYS;
	}
}
