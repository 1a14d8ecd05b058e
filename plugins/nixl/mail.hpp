/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Notifications: cut into parts that travel at once, and joined at the other end. */
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
	/* Called once the notification has left, or cannot: 0 or an errno, with words. */
	using Sent = std::function<void(int err, const std::string &words)>;

	Mail(Link &link, const std::string &own_name, const wire::Agent &own);
	~Mail();
	Mail(const Mail &) = delete;
	Mail &operator=(const Mail &) = delete;

	/* Posts the receives. Empty, or what is wrong. */
	std::string begin();
	/* Called with no lock of Mail's held; `sent` may be called before this returns. */
	void send(const PeerPtr &, const std::string &text, Sent sent);
	/* A notification of this agent to itself. */
	void keep(const std::string &text);
	/* What came, behind what is in `to`. */
	void take(border::Notifications &to);
	/* Sends what had to wait. */
	void flush();
	bool is_empty();
	/* Whether something waits for room. */
	bool is_held_up();

private:
	struct Parcel;
	struct Slot;
	struct Letter;

	void sent(Parcel *, const Ending &);
	void came(Slot *, const Ending &);
	void join(const wire::Part &, const char *bytes, size_t len);
	void post(Slot *);

	/* A notification of which parts are missing. Memory is used for what has come, not for what is said to come. */
	struct Partial {
		uint64_t total, have;
		std::map<uint64_t, std::string> parts; /* by offset */
	};

	Link &link;
	const std::string own_name;
	const wire::Agent own;
	std::mutex lock;
	uint64_t numbers = 0;
	/* Parcels by peer, in order; those that were posted wait for their end. */
	std::map<PeerPtr, std::deque<std::unique_ptr<Parcel>>> waiting;
	std::map<Parcel *, std::unique_ptr<Parcel>> posted;
	std::list<Slot> slots;
	std::map<std::pair<uint64_t, uint64_t>, Partial> partials;
	border::Notifications arrived;
	uint64_t refused = 0;
};
