/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* An agent whose metadata was loaded. */
#pragma once

#include "wire.hpp"

#include <atomic>
#include <memory>
#include <string>

enum Provider { UNKNOWN, SELF, SHM, VERBS, TCP };

struct Peer {
	std::string agent;
	wire::Agent info;
	uint64_t index;
	bool own;
	/* Metadata unloaded: nothing more is posted. */
	std::atomic<bool> removed{false};
	/* The log has its path. */
	std::atomic<bool> told{false};
	/* By which provider it is reached, once that is known. */
	std::atomic<Provider> provider{UNKNOWN};
	/* When something last came to a good end with it. */
	std::atomic<uint64_t> heard{0};
};
using PeerPtr = std::shared_ptr<Peer>;
