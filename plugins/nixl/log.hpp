/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Lines in NIXL's log: standard error, in the form of NIXL's own lines, from the level of NIXL_LOG_LEVEL on. */
#pragma once

#include <string>

namespace logs {

enum Level { ERROR = 1, WARN, INFO, DEBUG };

void say(Level level, const std::string &words) noexcept;

/* Has the library's lines come this way too, unless GDRFAB_LOG sends them elsewhere. */
void adopt_library() noexcept;

} // namespace logs
