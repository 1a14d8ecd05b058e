/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Writes lines in the form of NIXL's own log to standard error, from the level in NIXL_LOG_LEVEL on. */
#pragma once

#include <string>

namespace logs {

enum Level { ERROR = 1, WARN, INFO, DEBUG };

void say(Level level, const std::string &words) noexcept;

/* Sends the library's log lines here too, unless GDRFAB_LOG sends them elsewhere. */
void adopt_library() noexcept;

} // namespace logs
