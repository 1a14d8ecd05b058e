/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A request of NIXL's: a list of blocks and one peer, posted any number of times. It owns what it uses, because NIXL may
 * unload the peer's metadata while it is under way. */
#pragma once

#include "border.hpp"
#include "link.hpp"
#include "mail.hpp"

#include <mutex>
#include <string>

class Transfer final : public border::Request, public Operation, public std::enable_shared_from_this<Transfer> {
public:
	/* `device`: either side is device memory, where lists go to the driver whole. */
	Transfer(Link &link, Mail &mail, PeerPtr peer, bool write, Blocks blocks, bool device);

	/* Begins. `notify`: what the peer is told once it sees the data, or null. */
	border::Status begin(const std::string *notify, uint64_t now);
	/* Posts the next parts, one at most if `one`. True: there are more, for which it is to be called again. */
	bool advance(bool one);
	/* Ends it if nothing has moved for that long. */
	void look_at_clock(uint64_t now, uint64_t timeout_ns);
	void cancel(border::Status why);

	border::Status status();
	/* Of one of the regions that it goes to. */
	uint64_t key() const { return all.keys[0]; }
	/* Whether nothing of it is in the library any more. */
	bool is_over();

	void ended(const Ending &) override;

	const PeerPtr peer;

private:
	void fail(std::unique_lock<std::mutex> &, border::Status why, const std::string &words);
	void settle(std::unique_lock<std::mutex> &);
	void notified(uint64_t round, int err, const std::string &words);
	size_t part_from(size_t first) const;

	Link &link;
	Mail &mail;
	const bool write, device;
	const Blocks all;

	std::mutex lock;
	border::Status result = border::NOT_POSTED;
	border::Status why = border::SUCCESS;
	bool active = false, posting = false, notifying = false, has_notification = false;
	std::string notification;
	size_t next = 0;
	unsigned outstanding = 0;
	uint64_t moved = 0;
	/* Which notification is awaited: one that was given up may still leave. */
	uint64_t round = 0;
};

uint64_t now_ns();
