/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The parameters of a backend. They have the names of the library's variables; a parameter that is not given comes
 * from the environment. */
#pragma once

#include "border.hpp"

#include <cstdint>
#include <string>

struct Settings {
	std::string providers;    /* a set of the library's providers; empty: the library's first choice */
	std::string address;      /* where to listen; empty: the library chooses */
	bool address_named = false; /* the user named the address by its interface; otherwise a card's address is
	                             * preferred */
	std::string key;          /* tcp's key; empty: the library's own setting */
	uint32_t streams = 0;     /* tcp's streams for long transfers; 0: the library's own setting */
	uint64_t timeout_ns = 20000000000ull;
};

/* The parameters with their current values. */
border::Params settings_offered();

/* Returns "" or the reason of the failure. */
std::string settings_read(const border::Params &given, Settings &to);
