/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Preloaded into an example: the process ends instead of making its LEAVE_AT-th call of the library. LEAVE_AS:
 * `killed` by SIGKILL, or `closed`, with its endpoint closed first. If the example forks, LEAVE_WHO says which side
 * ends: parent or child.
 *
 * The file LEAVE_LOG gets "left NAME", the call that was not made; "asked" once a connection was requested; and
 * "ended STATUS" when the process returns or exits. names.h has LEAVE_NAME(name) for each exported function.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* No exported function has more arguments. Each is a number or an address, which registers and stack carry alike. */
#define MOST long a, long b, long c, long d, long e, long f, long g, long h, long i, long j, long k, long l, long m, long n
typedef long function(MOST);

static pid_t first;
static atomic_long calls, endpoint;

static const char *word(const char *name)
{
	const char *value = getenv(name);
	return value ? value : "";
}

static void note(const char *format, const char *text, int number)
{
	char line[128];
	int len = snprintf(line, sizeof line, format, text, number);
	int fd = open(word("LEAVE_LOG"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
	if (fd >= 0 && write(fd, line, (size_t)len) != len)
		perror("LEAVE_LOG");
	close(fd);
}

static void at_end(int status, void *unused)
{
	(void)unused;
	note("ended%s %d\n", "", status);
}

__attribute__((constructor)) static void begin(void)
{
	first = getpid();
	on_exit(at_end, NULL);
}

static void step(const char *name, long argument)
{
	const char *side = word("LEAVE_WHO");
	if (*side && strcmp(side, getpid() == first ? "parent" : "child") != 0)
		return;
	if (strcmp(name, "gdrfab_ep_enable") == 0)
		endpoint = argument;
	if (++calls == atol(word("LEAVE_AT"))) {
		note("left %s\n", name, 0);
		if (strcmp(word("LEAVE_AS"), "closed") == 0) {
			function *end = (function *)dlsym(RTLD_NEXT, "gdrfab_ep_close");
			if (endpoint)
				end(endpoint, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
			_exit(0);
		}
		raise(SIGKILL);
	}
	if (strcmp(name, "gdrfab_ep_close") == 0)
		endpoint = 0;
	if (strncmp(name, "gdrfab_ep_connect", 17) == 0)
		note("asked\n", "", 0);
}

#define LEAVE_NAME(name) \
	long name(MOST); \
	long name(MOST) \
	{ \
		function *real = (function *)dlsym(RTLD_NEXT, #name); \
		step(#name, a); \
		return real(a, b, c, d, e, f, g, h, i, j, k, l, m, n); \
	}
#include "names.h"
