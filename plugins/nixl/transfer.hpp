/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A NIXL request: a list of blocks and one peer, posted any number of times. It owns all that it uses, because NIXL
 * may unload the peer's metadata while the request is under way. */
#pragma once

#include "border.hpp"
#include "link.hpp"
#include "mail.hpp"

#include <mutex>
#include <string>

class Transfer final : public border::Request, public Operation, public std::enable_shared_from_this<Transfer> {
public:
	/* `device`: one side is device memory. Its driver is then given the list whole. */
	Transfer(Link &link, Mail &mail, PeerPtr peer, bool write, Blocks blocks, bool device);

	/* Starts the transfer. `notify`: the notification that the peer gets once it sees the data, or null. */
	border::Status begin(const std::string *notify, uint64_t now);
	/* Posts the next parts, at most one if `one`. True: there are more, and the caller must call again. */
	bool advance(bool one);
	/* Ends the transfer if nothing has moved for `timeout_ns`. */
	void look_at_clock(uint64_t now, uint64_t timeout_ns);
	void cancel(border::Status why);

	border::Status status();
	/* The key of one of the peer's regions. */
	uint64_t key() const { return all.keys[0]; }
	/* True if no operation of it is in the library any more. */
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
	/* Number of the notification that is awaited: one that was given up may still be sent. */
	uint64_t round = 0;
};

uint64_t now_ns();
