/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Whether the NIXL that loads the plugin has the border of border.hpp. Its version number does not tell: it was 1 before
 * and after functions were taken out. The tables of functions in NIXL's own plugins do. */
#pragma once

#include "border.hpp"

#include <string>

namespace border {

/* `caller`: an address in libnixl. Empty if the border is known; else why it is not. */
std::string check(const void *caller);

/* The same of one plugin of NIXL's; 'found' tells whether it has such a table. */
std::string check_file(const std::string &path, bool &found);

/* Whether this looks like the parameters of an engine of this backend. */
bool plausible(const InitParams *init);

} // namespace border
