/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A claim of two processes, with a socket between them on which they talk out of band. */
#ifndef PROCESS_PAIR_H
#define PROCESS_PAIR_H

#include "claim.h"

/* Both sides call run, each with its end of the socket, and end well; but the victim, if not TEST_REFEREE, may be killed. */
typedef void (*test_side_fn)(enum test_side side, int oob, const void *arg);
void test_pair(test_side_fn run, enum test_side victim, const void *arg);
/* All of it, or the claim fails. */
void test_oob_send(int oob, const void *data, size_t len);
/* The same; while nothing is there, drive(of) is called over and over. NULL: it sleeps until something is. */
typedef void (*test_drive_fn)(void *of);
void test_oob_recv(int oob, void *data, size_t len, test_drive_fn drive, void *of);
/* Both sides are here. */
void test_barrier(int oob, test_drive_fn drive, void *of);
/* Enters the network namespace TEST_CLIENT_NETNS, if there is one; then TEST_CLIENT_NODE, or NULL. */
const char *test_enter_netns(void);

#endif
