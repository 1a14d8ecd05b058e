/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Helpers of the programs that drive the backend without NIXL: agents, their log, and verdicts. */
#pragma once

#include "../engine.hpp"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <unistd.h>

inline int passed, failed;
inline FILE *said; /* the log */

inline void claim(const std::string &name, const std::string &wrong)
{
	printf(wrong.empty() ? "ok   nixl: %s\n" : "FAIL nixl: %s: %s\n", name.c_str(), wrong.c_str());
	(wrong.empty() ? passed : failed)++;
}

inline bool begin_log()
{
	setenv("NIXL_LOG_LEVEL", "INFO", 1);
	said = tmpfile();
	return said && dup2(fileno(said), STDERR_FILENO) >= 0;
}

/* The log's text since the last call. */
inline std::string take_log()
{
	std::string text;
	char piece[4096];
	rewind(said);
	for (size_t n; (n = fread(piece, 1, sizeof piece, said)) > 0;)
		text.append(piece, n);
	if (ftruncate(fileno(said), 0))
		abort();
	return text;
}

inline std::unique_ptr<Gdrfab> open_agent(const std::string &name, const std::string &set)
{
	border::Params params;
	if (!set.empty())
		params["GDRFAB_PROVIDER"] = set;
	border::InitParams init{name, border::BACKEND, &params, true, 0, 0, false};
	return std::make_unique<Gdrfab>(init);
}

inline int end_of_claims()
{
	printf("%d passed, %d failed, 0 skipped\n", passed, failed);
	return failed ? 1 : 0;
}
