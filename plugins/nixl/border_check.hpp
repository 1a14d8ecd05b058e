/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Checks whether the NIXL that loads the plugin has the interface of border.hpp. NIXL's version number does not
 * tell: it was 1 before and after functions were removed. The tables of virtual functions in NIXL's own plugins do. */
#pragma once

#include "border.hpp"

#include <string>

namespace border {

/* `caller`: an address in libnixl. Returns "" if the interface is known, else the reason. */
std::string check(const void *caller);

/* Checks one plugin of NIXL's. `found` tells whether it has a table of an engine. */
std::string check_file(const std::string &path, bool &found);

/* True if `init` looks like the parameters of an engine of this backend. */
bool plausible(const InitParams *init);

} // namespace border
