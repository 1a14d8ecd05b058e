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
	/* The metadata was unloaded: nothing more is posted. */
	std::atomic<bool> removed{false};
	/* The path to the peer has been logged. */
	std::atomic<bool> told{false};
	/* The provider that reaches the peer, once it is known. */
	std::atomic<Provider> provider{UNKNOWN};
	/* The last time that an operation with this peer succeeded. */
	std::atomic<uint64_t> heard{0};
};
using PeerPtr = std::shared_ptr<Peer>;
