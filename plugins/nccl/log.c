/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Writes to NCCL's log, which prints the lines that NCCL_DEBUG and NCCL_DEBUG_SUBSYS select. */
#include "plugin.h"

#include <stdarg.h>
#include <stdio.h>

static ncclDebugLogger_t logger;

void log_set(ncclDebugLogger_t log)
{
	if (log)
		__atomic_store_n(&logger, log, __ATOMIC_RELEASE);
}

void log_line(ncclDebugLogLevel level, unsigned long subsystem, const char *file, int line, const char *format, ...)
{
	ncclDebugLogger_t log = __atomic_load_n(&logger, __ATOMIC_ACQUIRE);
	char text[2048];
	va_list args;
	if (!log)
		return;
	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	/* The library's explanations have one line for each path; NCCL's log takes a single line. */
	for (char *at = text; *at; at++)
		if (*at == '\n')
			*at = at[1] ? ';' : ' ';
	log(level, subsystem, file, line, "NET/gdrfab : %s", text);
}
