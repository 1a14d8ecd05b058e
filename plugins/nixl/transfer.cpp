/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "transfer.hpp"

#include "log.hpp"

#include <algorithm>
#include <cerrno>
#include <ctime>

/* Size of a part of a list in host memory: its copies may happen within the call that posts it, so it is limited. */
constexpr size_t PART_BLOCKS = 16384, PART_BYTES = size_t(16) << 20;
/* Parts of one transfer that are under way at once. */
constexpr unsigned PARTS_AT_ONCE = 4;

uint64_t now_ns()
{
	timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}

/* Errors that mean that the peer, or the route to it, is gone. */
static bool is_gone(int err)
{
	switch (err) {
	case ECONNRESET:
	case ECONNREFUSED:
	case ECONNABORTED:
	case EHOSTUNREACH:
	case ENETUNREACH:
	case ETIMEDOUT:
	case ESHUTDOWN:
	case ENOTCONN:
	case EPIPE:
	case EPROTO:
	case EACCES:
		return true;
	default:
		return false;
	}
}

Transfer::Transfer(Link &l, Mail &m, PeerPtr p, bool w, Blocks b, bool d)
    : peer(std::move(p)), link(l), mail(m), write(w), device(d), all(std::move(b))
{
}

border::Status Transfer::begin(const std::string *notify, uint64_t now)
{
	std::lock_guard<std::mutex> held(lock);
	if (active)
		return border::REPOST_ACTIVE;
	active = true;
	result = border::IN_PROGRESS;
	why = border::SUCCESS;
	next = 0;
	moved = now;
	has_notification = notify != nullptr;
	notification = notify ? *notify : std::string();
	return border::IN_PROGRESS;
}

size_t Transfer::part_from(size_t first) const
{
	size_t most = std::min(all.blocks.size(), first + link.list_limit());
	if (device)
		return most;
	size_t bytes = 0, end = first;
	most = std::min(most, first + PART_BLOCKS);
	while (end < most && (end == first || bytes + all.blocks[end].len <= PART_BYTES))
		bytes += all.blocks[end++].len;
	return end;
}

bool Transfer::advance(bool one)
{
	std::unique_lock<std::mutex> held(lock);
	while (active && !posting && !why && next < all.blocks.size() && outstanding < PARTS_AT_ONCE) {
		if (peer->removed) {
			fail(held, border::REMOTE_DISCONNECT, "it was removed");
			return false;
		}
		size_t first = next, end = part_from(first);
		posting = true, next = end, outstanding++;
		held.unlock();
		ssize_t rc = link.post(write, all, first, end - first, peer->index, this);
		std::string words = rc < 0 && rc != -EAGAIN ? last_words() : std::string();
		held.lock();
		posting = false;
		if (rc < 0)
			outstanding--;
		if (rc == -EAGAIN && !why) {
			next = first;
			break;
		}
		if (rc < 0)
			fail(held, is_gone(static_cast<int>(-rc)) ? border::REMOTE_DISCONNECT : border::FAILED, words);
		else if (why)
			link.cancel(this);
		if (one)
			break;
	}
	settle(held);
	return active && !why && next < all.blocks.size();
}

/* The caller holds the lock, and still holds it afterwards. */
void Transfer::fail(std::unique_lock<std::mutex> &held, border::Status reason, const std::string &words)
{
	if (!active || why)
		return;
	why = reason;
	if (reason != border::CANCELED)
		logs::say(logs::WARN, std::string(write ? "write to " : "read from ") + peer->agent + ": " + words);
	/* Parts under way are cancelled. A notification belongs to Mail and may still be sent. */
	link.cancel(this);
	notifying = false;
	settle(held);
}

/* The caller holds the lock, and still holds it afterwards; it is released while a notification is sent. */
void Transfer::settle(std::unique_lock<std::mutex> &held)
{
	if (!active || posting || outstanding || notifying || (!why && next < all.blocks.size()))
		return;
	if (why || !has_notification) {
		active = false;
		result = why;
		return;
	}
	has_notification = false;
	if (peer->own) {
		mail.keep(notification);
		active = false;
		result = border::SUCCESS;
		return;
	}
	notifying = true;
	uint64_t of = ++round;
	held.unlock();
	std::weak_ptr<Transfer> self = weak_from_this();
	mail.send(peer, notification, [self, of](int err, const std::string &words) {
		if (auto transfer = self.lock())
			transfer->notified(of, err, words);
	});
	held.lock();
}

void Transfer::notified(uint64_t of, int err, const std::string &words)
{
	std::unique_lock<std::mutex> held(lock);
	if (!notifying || of != round)
		return;
	notifying = false;
	moved = now_ns();
	if (err)
		fail(held, is_gone(err) ? border::REMOTE_DISCONNECT : border::FAILED, "its notification: " + words);
	settle(held);
}

void Transfer::ended(const Ending &e)
{
	/* Keeps the object: another thread may release it as soon as its notification has been sent. */
	std::shared_ptr<Transfer> self = shared_from_this();
	std::unique_lock<std::mutex> held(lock);
	outstanding--;
	if (e.err)
		fail(held, is_gone(e.err) ? border::REMOTE_DISCONNECT : border::FAILED, e.words);
	else
		peer->heard = moved = now_ns();
	settle(held);
}

void Transfer::look_at_clock(uint64_t now, uint64_t timeout_ns)
{
	std::unique_lock<std::mutex> held(lock);
	uint64_t last = std::max<uint64_t>(moved, peer->heard);
	if (active && !why && now > last && now - last > timeout_ns)
		fail(held, border::REMOTE_DISCONNECT, "no data has moved for " + std::to_string(timeout_ns / 1000000) + " ms");
}

void Transfer::cancel(border::Status reason)
{
	std::unique_lock<std::mutex> held(lock);
	fail(held, reason, "it was removed");
}

border::Status Transfer::status()
{
	std::lock_guard<std::mutex> held(lock);
	return result;
}

bool Transfer::is_over()
{
	std::lock_guard<std::mutex> held(lock);
	return !posting && !outstanding && !notifying;
}
