// SPDX-License-Identifier: Apache-2.0 OR MIT
// RdmaTransport: write into and read from a peer's memory, of host or accelerator, with what both sides have: shm on
// one host, RDMA cards, or tcp. For programs in C++17 that know torchcomms' class of this name; it needs gdrfab.h alone.
//
//   gdrfab::RdmaTransport transport;                   // -1: host memory; n: accelerator n
//   std::string mine = transport.bind();               // give it to the peer, by whatever means there are
//   transport.connect(theirs);                         // both sides call it, each with the other's url
//   gdrfab::RdmaMemory memory(bytes, length);          // registered
//   gdrfab::RdmaRemoteBuffer remote(theirRemoteKey);   // made of the peer's memory.remoteKey()
//   gdrfab::RdmaStatus done = transport.write(memory.createView(), remote, true).get();
//
// docs/rdma-transport.md tells what is true after each result, and what may be called from which thread.
#ifndef GDRFAB_RDMA_TRANSPORT_HPP
#define GDRFAB_RDMA_TRANSPORT_HPP

#include "rdma_wait.hpp"
#include "rdma_memory.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace gdrfab {

struct RdmaOptions {
	// Those that may be used, in order of preference. shm connects processes of one host only.
	std::vector<std::string> providers{"shm", "verbs", "tcp"};
	// A thread of the library's serves the peer (shm's staged transfers, everything of tcp) while this program does
	// something else. Without it, that happens inside waits and progress() alone.
	bool progressThread = true;
	// Operations under way at once; 0: the provider's own number. More wait inside write() and read().
	size_t depth = 0;
	// For operations without their own.
	std::chrono::milliseconds timeout{30000};
	std::chrono::milliseconds connectTimeout{10000};
	// tcp: the address of this host by which the peer reaches it; "": GDRFAB_TCP_IFACE, else the loopback.
	std::string address;
	// tcp: a secret that both sides have, 16 to 1024 bytes; "": GDRFAB_TCP_KEY_FILE, if there is one.
	std::string authKey;
	// How long a wait polls before it sleeps.
	std::chrono::microseconds spin{50};
};

// Whether a write tells the peer's waitForWrite(), and what. true: the number of the write among the notifying ones, from 1.
struct RdmaNotify {
	RdmaNotify(bool on = false) noexcept : on(on) {}
	static RdmaNotify with(uint64_t value) noexcept
	{
		RdmaNotify n(true);
		n.value = value;
		return n;
	}
	bool on;
	std::optional<uint64_t> value;
};

class RdmaTransport {
public:
	using Timeout = std::optional<std::chrono::milliseconds>;

	// device: the accelerator whose nearest RDMA card is used; -1: any. No context is made on it.
	explicit RdmaTransport(int device = -1, RdmaOptions options = {});
	// Ends what is under way with Aborted; afterwards no buffer is touched. Futures stay valid.
	~RdmaTransport() { close(); }
	RdmaTransport(const RdmaTransport &) = delete;
	RdmaTransport &operator=(const RdmaTransport &) = delete;

	// Whether any provider can be used here, with an accelerator if one is named. `why`, if given, gets the reasons.
	static bool supported(int device = -1, std::string *why = nullptr);

	// Text for the peer's connect(). Throws RdmaError if no provider can be used. Again: the same text.
	std::string bind();
	// Connects to the transport whose bind() gave peerUrl, which connects to this one; in any order, within
	// RdmaOptions::connectTimeout. If the peer is in this process and has not called connect() yet, returns at once, and
	// the peer's call finishes both. Throws std::invalid_argument for what is no url. A transport connects once.
	RdmaStatus connect(const std::string &peerUrl);
	bool connected();

	// Writes the view to the beginning of the buffer. Throws std::out_of_range if it does not fit, std::invalid_argument
	// for a key of another process; everything else is the future's. The view's bytes stay as they are until then.
	// Waits for room, within the time limit, where too much is under way.
	RdmaFuture<RdmaStatus> write(const RdmaMemory::View &view, const RdmaRemoteBuffer &remote, RdmaNotify notify = {},
				     Timeout timeout = {})
	{
		return operation(view, remote, true, notify, timeout);
	}
	// Fills the view from the beginning of the buffer. As write().
	RdmaFuture<RdmaStatus> read(const RdmaMemory::MutableView &view, const RdmaRemoteBuffer &remote, Timeout timeout = {})
	{
		return operation(view, remote, false, false, timeout);
	}
	// The next write of the peer's that notifies; several waits get them in the order of their calls. 0 ms only looks.
	RdmaFuture<RdmaNotification> waitForWrite(Timeout timeout = {});

	// For a program without the library's thread, or with an event loop of its own: completes what can be completed now.
	void progress();
	// Readable when progress() may have something to do. Before each poll of it, tryWait() has to say true. -1 before
	// connect(), and after close().
	int fd() { return connection_->fd(); }
	bool tryWait() { return connection_->may_block(); }

	// "shm", "verbs" or "tcp"; "" before connect().
	std::string path() const;
	// The provider and the library's path to a peer's buffer: "shm/cma".
	std::string path(const RdmaRemoteBuffer &remote);
	// Why this provider, and with a buffer why this path, in words.
	std::string explain() const;
	std::string explain(const RdmaRemoteBuffer &remote);

	// As the destructor.
	void close();

private:
	// The transports of this process by the numbers in their urls.
	struct Registry {
		std::mutex mutex;
		std::map<uint64_t, std::weak_ptr<detail::Connection>> by_id;
		static Registry &here()
		{
			static Registry *const it = new Registry;
			return *it;
		}
		std::shared_ptr<detail::Connection> find(uint64_t id)
		{
			std::lock_guard<std::mutex> lock(mutex);
			auto found = by_id.find(id);
			return found == by_id.end() ? nullptr : found->second.lock();
		}
	};

	RdmaFuture<RdmaStatus> operation(const RdmaMemory::View &view, const RdmaRemoteBuffer &remote, bool writes,
					 RdmaNotify notify, Timeout timeout);
	// What one call of the library transfers: an operation, or a part of one.
	struct Piece {
		void *desc;
		const unsigned char *at;
		size_t len;
		uint64_t addr, key;
		bool writes, notify;
		uint64_t data;
	};
	ssize_t post(detail::Op *op, const Piece &piece, Timeout timeout);
	ssize_t post_in_parts(detail::Op *op, Piece &piece, detail::Limit &limit, Timeout timeout);
	template <typename Post> ssize_t when_room(detail::Limit &limit, Timeout timeout, Post post);
	RdmaFuture<RdmaStatus> settled(RdmaStatus status)
	{
		return RdmaFuture<RdmaStatus>(connection_, connection_->settled(std::move(status)));
	}
	RdmaStatus await_connected(detail::Connection &peer_or_self, std::chrono::milliseconds limit);
	void need_begun(const char *what) const;

	const int device_;
	const RdmaOptions options_;
	const std::shared_ptr<detail::Connection> connection_;
	mutable std::mutex mutex_;
	// Under mutex_. The connection's state follows later, and bind() must not take it back.
	bool closed_ = false;
	// Under mutex_ until connect() has chosen.
	std::vector<std::unique_ptr<detail::Rail>> rails_;
	detail::Url url_;
	std::string refused_, chosen_why_;
	uint64_t peer_tag_ = 0;
	// Notifying writes go one at a time, so that their numbers and parts arrive in order.
	std::timed_mutex notify_mutex_;
	// Under notify_mutex_; atomic for ThreadSanitizer, which does not see every way of taking a std::timed_mutex.
	std::atomic<uint64_t> notified_{0};
	// Under notify_mutex_: parts of a value were sent, but not its last.
	std::atomic<bool> half_told_{false};
};

} // namespace gdrfab

#include "rdma_transport_inline.hpp"
#endif
