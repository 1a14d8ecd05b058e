/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The steps from exec to the first completed write. One library per program: loading counts too. */
#ifndef STARTUP_H
#define STARTUP_H
enum { MAIN, GETINFO, DOMAIN, ENDPOINT, CONNECT, FIRST, CLOSE, STEPS };

extern const char startup_name[];
/* t[k] = when step k was over; t[MAIN] is set by the caller */
void startup_child(const char *arg, double t[STEPS]);
#endif
