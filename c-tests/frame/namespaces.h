/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Namespaces for one side of a claim, as a container would give them. */
#ifndef NAMESPACES_H
#define NAMESPACES_H

#include "claim.h"

/* Enters new namespaces, named by the words "user", "net", "ipc", "mount", "pid"; NULL or "": none. With "mount" the
 * directory TEST_VOLUME stays shared. The claim is skipped if a namespace cannot be made. With "pid" the call returns in
 * a child; the calling process waits for this child and ends with its status. */
void test_enter_namespaces(const char *words);

#endif
