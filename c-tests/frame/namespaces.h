/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A side of a claim as if it ran in a container of its own. */
#ifndef NAMESPACES_H
#define NAMESPACES_H

#include "claim.h"

/* Enters new namespaces, of the words "user", "net", "ipc", "mount", "pid"; NULL or "": none. "mount" leaves the directory
 * TEST_VOLUME in common. The claim is skipped where one cannot be made. Returns in a child if "pid" is among them: the
 * process itself ends as that child does. */
void test_enter_namespaces(const char *words);

#endif
