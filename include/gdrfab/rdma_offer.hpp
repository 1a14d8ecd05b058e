// SPDX-License-Identifier: Apache-2.0 OR MIT
// The offers of a transport, which bind() puts into its url, and the choice between both sides' offers. Each side
// chooses alone, from the same two urls, so the rule must give the same answer on both.
#ifndef GDRFAB_RDMA_OFFER_HPP
#define GDRFAB_RDMA_OFFER_HPP

#include "rdma_text.hpp"

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace gdrfab {
namespace detail {

struct Offer {
	std::string provider;
	uint64_t tag = 0; // of the domain; access keys are found by it
	std::string address;
};

struct Url {
	uint64_t id = 0; // of the transport
	std::string host;
	std::vector<Offer> offers; // in the order of preference of that side

	std::string text() const
	{
		Text t("gdrfab-rdma");
		t.add("id", {hex(id)}).add("host", {host});
		for (const Offer &o : offers)
			t.add("o", {o.provider, hex(o.tag), o.address});
		return t.done();
	}
	static Url parse(const std::string &text)
	{
		Url url;
		for (const auto &field : Text::parse("gdrfab-rdma", "peerUrl", text)) {
			if (field.name == "id" && field.values.size() == 1)
				url.id = Text::number("peerUrl", field.values[0]);
			else if (field.name == "host" && field.values.size() == 1)
				url.host = field.values[0];
			else if (field.name == "o" && field.values.size() == 3)
				url.offers.push_back({field.values[0], Text::number("peerUrl", field.values[1]), field.values[2]});
		}
		if (url.id == 0 || url.offers.empty())
			throw std::invalid_argument("peerUrl: names no transport");
		return url;
	}
	const Offer *of(const std::string &provider) const noexcept
	{
		for (const Offer &o : offers)
			if (o.provider == provider)
				return &o;
		return nullptr;
	}
};

// Returns the provider that both sides use, or "" if there is none. `why` gets a line for each provider examined.
//
// The order of preference is that of the side with the smaller number. Any rule would do that is the same on both
// sides.
inline std::string choose(const Url &mine, const Url &peer, std::string &why)
{
	const Url &first = mine.id < peer.id ? mine : peer, &second = mine.id < peer.id ? peer : mine;
	std::string taken;
	auto say = [&](const Offer &o, const std::string &words) { why += o.provider + ": " + words + "\n"; };
	for (const Offer &o : first.offers) {
		const Offer *other = second.of(o.provider);
		auto on_loopback = [](const Offer &a) {
			return a.address.find("://127.") != std::string::npos || a.address.find("://[::1]") != std::string::npos;
		};
		if (!other)
			say(o, "only one side has it");
		else if (o.provider == "shm" && mine.host != peer.host)
			say(o, "the sides are on different hosts, in different network namespaces, or different users");
		else if (o.provider == "tcp" && mine.host != peer.host && (on_loopback(o) || on_loopback(*other)))
			say(o, "a side listens on its loopback, which the other may not share: set RdmaOptions::address or "
			       "GDRFAB_TCP_IFACE");
		else if (!taken.empty())
			say(o, "possible, but " + taken + " comes first");
		else
			say(o, "taken"), taken = o.provider;
	}
	for (const Offer &o : second.offers)
		if (!first.of(o.provider))
			say(o, "only one side has it");
	return taken;
}

// Splits and joins values of notifications, because verbs carries only 32 bits with a write. A value of more than 31
// bits is sent in parts of 31 bits, the highest first. All but the last part have the top bit set, and are sent first,
// with writes of no bytes.
struct Parts {
	static constexpr uint32_t more = 0x80000000u;
	// Fills `parts` with the parts to send first, and returns the last part. With `all`, the value has all its
	// parts, which push out of join() whatever is left there of a value that was given up midway.
	static uint32_t split(uint64_t value, uint32_t parts[2], unsigned &count, bool all = false) noexcept
	{
		count = 0;
		for (int shift : {62, 31})
			if (all || count || value >> shift)
				parts[count++] = more | (static_cast<uint32_t>(value >> shift) & ~more);
		return static_cast<uint32_t>(value) & ~more;
	}
	// Returns true, and sets `value`, when the last part has come.
	bool join(uint32_t part, uint64_t &value) noexcept
	{
		sum_ = sum_ << 31 | (part & ~more);
		if (part & more)
			return false;
		value = sum_;
		sum_ = 0;
		return true;
	}

private:
	uint64_t sum_ = 0;
};

} // namespace detail
} // namespace gdrfab
#endif
