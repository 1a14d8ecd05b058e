/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The formats that agents exchange: connection info and regions, carried in NIXL's metadata, and the parts of
 * notifications. Nothing of it is trusted: decoding checks length, version and checksum, and reports what is wrong. */
#pragma once

#include <gdrfab.h>

#include <array>
#include <cstdint>
#include <string>

namespace wire {

using Secret = std::array<uint8_t, 16>;
using Name = std::array<uint8_t, GDRFAB_NAME_LEN>;

/* Connection info of an agent. An agent that knows the secret may send it notifications. The keys of its regions are
 * as secret. */
struct Agent {
	Secret secret;
	uint64_t id;
	Name name;
};

struct Region {
	uint64_t base, len, key;
	uint32_t kind;
};

/* The header of each part of a notification: the part's place in it. All parts but the last have PART_MOST bytes. A
 * notification consists of the sender's name and the text. */
struct Part {
	Secret secret;
	uint64_t sender, number;
	uint64_t total, offset;
	uint32_t name_len;
};

constexpr size_t MESSAGE = 8192, PART_HEAD = 64, PART_MOST = MESSAGE - PART_HEAD;
/* The most bytes of one notification. Both sides refuse a longer one. */
constexpr uint64_t NOTIFICATION_MOST = uint64_t(1) << 30;

std::string encode(const Agent &);
std::string encode(const Region &);
std::string encode(const Part &);

/* These return "" or the reason of the failure. */
std::string decode(const std::string &text, Agent &);
std::string decode(const std::string &text, Region &);
std::string decode(const char *bytes, size_t len, Part &);

/* Compares two secrets. The time does not depend on their values. */
bool same(const Secret &, const Secret &);

bool draw(void *to, size_t len);

} // namespace wire
