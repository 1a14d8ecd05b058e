/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Attempts: a claim runs the same body many times, each time in a child of its own and with another failure injected, and
 * reports the attempts that went wrong. The output of a child is collected, so that the report can quote it.
 */
#ifndef ATTEMPT_H
#define ATTEMPT_H

#include "claim.h"

struct attempt {
	FILE *output;
	int status;      /* of the child, as waitpid() gives it */
	char words[600]; /* its output, lines joined by '|'; then its signal, or its exit status if it printed nothing */
};

void attempt_open(struct attempt *a);
/* Runs body(arg), which ends the process, in a child. True: the child ended with status 0 and printed nothing. */
bool attempt_run(struct attempt *a, void (*body)(const void *arg), const void *arg);
/* True if the child ended by itself, with this exit status. */
bool attempt_exited(const struct attempt *a, int status);
void attempt_close(struct attempt *a);

#endif
