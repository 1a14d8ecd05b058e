/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A claim of two processes, with a socket between them for out-of-band messages. */
#ifndef PROCESS_PAIR_H
#define PROCESS_PAIR_H

#include "claim.h"

/* Forks both sides. Each calls run with its end of the socket, and must end with 0; the victim (unless it is TEST_REFEREE)
 * may be killed by SIGKILL instead. */
typedef void (*test_side_fn)(enum test_side side, int oob, const void *arg);
void test_pair(test_side_fn run, enum test_side victim, const void *arg);
/* Sends all bytes, or fails the claim. */
void test_oob_send(int oob, const void *data, size_t len);
/* Receives all bytes, or fails the claim. While nothing has arrived it calls drive(of) again and again; with drive NULL it
 * sleeps. */
typedef void (*test_drive_fn)(void *of);
void test_oob_recv(int oob, void *data, size_t len, test_drive_fn drive, void *of);
/* Called by both sides: each gets the other's process number. */
pid_t test_oob_peer(int oob);
/* Waits until the other side's process has ended; messages that it has sent are dropped. */
void test_await_gone(int oob);
/* Returns once both sides have called it. */
void test_barrier(int oob, test_drive_fn drive, void *of);
/* Enters the network namespace TEST_CLIENT_NETNS, if it is set. Returns TEST_CLIENT_NODE, or NULL. */
const char *test_enter_netns(void);

#endif
