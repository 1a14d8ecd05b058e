/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Notifications. They are cut into parts that are sent at once, and joined by the receiving agent. */
#pragma once

#include "link.hpp"
#include "peer.hpp"

#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>

class Mail {
public:
	/* Called when the notification has been sent, or cannot be: 0, or an errno with its text. */
	using Sent = std::function<void(int err, const std::string &words)>;

	Mail(Link &link, const std::string &own_name, const wire::Agent &own);
	~Mail();
	Mail(const Mail &) = delete;
	Mail &operator=(const Mail &) = delete;

	/* Posts the receives. Returns "" or the reason of the failure. */
	std::string begin();
	/* The caller holds no lock of Mail's. `sent` may be called before this returns. */
	void send(const PeerPtr &, const std::string &text, Sent sent);
	/* Stores a notification of this agent to itself. */
	void keep(const std::string &text);
	/* Appends the notifications that have arrived to `to`. */
	void take(border::Notifications &to);
	/* Sends parts that had to wait. */
	void flush();
	bool is_empty();
	/* True if a part waits for room in the endpoint. */
	bool is_held_up();

private:
	struct Parcel;
	struct Slot;
	struct Letter;

	void sent(Parcel *, const Ending &);
	void came(Slot *, const Ending &);
	void join(const wire::Part &, const char *bytes, size_t len);
	void post(Slot *);

	/* A notification whose parts have not all arrived. Memory is used only for parts that have arrived, not for
	 * the announced total. */
	struct Partial {
		uint64_t total, have;
		std::map<uint64_t, std::string> parts; /* by offset */
	};

	Link &link;
	const std::string own_name;
	const wire::Agent own;
	std::mutex lock;
	uint64_t numbers = 0;
	/* Parcels by peer, in order. Posted parcels are kept until they complete. */
	std::map<PeerPtr, std::deque<std::unique_ptr<Parcel>>> waiting;
	std::map<Parcel *, std::unique_ptr<Parcel>> posted;
	std::list<Slot> slots;
	std::map<std::pair<uint64_t, uint64_t>, Partial> partials;
	border::Notifications arrived;
	uint64_t refused = 0;
};
