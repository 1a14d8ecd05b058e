/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Parameters of a backend, by the names of the library's variables; what is not given comes from the environment. */
#pragma once

#include "border.hpp"

#include <cstdint>
#include <string>

struct Settings {
	std::string providers;    /* a set of the library's; empty: what it offers first */
	std::string address;      /* where to listen; empty: as the library does */
	bool address_named = false; /* by its interface; else a card's goes before it */
	std::string key;          /* tcp's key; empty: as the library does */
	uint32_t streams = 0;     /* of tcp, for long transfers; 0: as the library does */
	uint64_t timeout_ns = 20000000000ull;
};

/* The parameters with what they are now. */
border::Params settings_offered();

/* Empty, or what is wrong. */
std::string settings_read(const border::Params &given, Settings &to);
