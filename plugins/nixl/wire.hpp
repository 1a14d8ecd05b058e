/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What agents tell each other: connection info and regions, as NIXL's metadata carries them, and the messages that carry
 * notifications. Nothing of it is trusted: decoding checks length, version and a sum, and says what is wrong. */
#pragma once

#include <gdrfab.h>

#include <array>
#include <cstdint>
#include <string>

namespace wire {

using Secret = std::array<uint8_t, 16>;
using Name = std::array<uint8_t, GDRFAB_NAME_LEN>;

/* Of an agent. Who knows the secret may notify it; its regions' keys are as secret. */
struct Agent {
	Secret secret;
	uint64_t id;
	Name name;
};

struct Region {
	uint64_t base, len, key;
	uint32_t kind;
};

/* In front of each part of a notification: where the part belongs. All parts but the last have PART_MOST bytes. What is notified is the sender's name, then the text. */
struct Part {
	Secret secret;
	uint64_t sender, number;
	uint64_t total, offset;
	uint32_t name_len;
};

constexpr size_t MESSAGE = 8192, PART_HEAD = 64, PART_MOST = MESSAGE - PART_HEAD;
/* Of one notification; a longer one is refused on both sides. */
constexpr uint64_t NOTIFICATION_MOST = uint64_t(1) << 30;

std::string encode(const Agent &);
std::string encode(const Region &);
std::string encode(const Part &);

/* Empty, or what is wrong. */
std::string decode(const std::string &text, Agent &);
std::string decode(const std::string &text, Region &);
std::string decode(const char *bytes, size_t len, Part &);

/* Whether two secrets are the same, in the time that any two take. */
bool same(const Secret &, const Secret &);

bool draw(void *to, size_t len);

} // namespace wire
