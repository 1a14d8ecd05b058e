/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "log.hpp"

#include <gdrfab.h>

#include <cstdio>
#include <cstdlib>
#include <strings.h>
#include <sys/time.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace logs {

static int chosen()
{
	static const struct {
		const char *name;
		int level;
	} names[] = {{"TRACE", DEBUG}, {"DEBUG", DEBUG}, {"INFO", INFO}, {"WARN", WARN}, {"ERROR", ERROR}, {"FATAL", 0}};
	static const int level = [] {
		const char *text = getenv("NIXL_LOG_LEVEL");
		for (const auto &known : names)
			if (text && !strcasecmp(text, known.name))
				return known.level;
		return static_cast<int>(WARN);
	}();
	return level;
}

void say(Level level, const std::string &words) noexcept
{
	timeval now;
	tm parts;
	char line[2048];
	if (level > chosen())
		return;
	gettimeofday(&now, nullptr);
	localtime_r(&now.tv_sec, &parts);
	int n = snprintf(line, sizeof line, "%c%02d%02d %02d:%02d:%02d.%06ld %7ld gdrfab] %s\n", " EWID"[level], parts.tm_mon + 1,
			 parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec, static_cast<long>(now.tv_usec),
			 static_cast<long>(syscall(SYS_gettid)), words.c_str());
	if (n >= static_cast<int>(sizeof line))
		n = sizeof line - 1, line[n - 1] = '\n';
	/* One write, so that lines of several threads do not mix. A line that cannot be written is lost. */
	if (n > 0 && write(STDERR_FILENO, line, static_cast<size_t>(n)) < 0)
		return;
}

static void from_library(void *, int level, const char *message)
{
	say(static_cast<Level>(level < 1 ? 1 : level > 4 ? 4 : level), message);
}

void adopt_library() noexcept
{
	if (!getenv("GDRFAB_LOG"))
		gdrfab_log_set(chosen(), from_library, nullptr);
}

} // namespace logs
