// SPDX-License-Identifier: Apache-2.0 OR MIT
// RdmaTransport: writes into and reads from a peer's memory, in the host or on an accelerator, through a provider that
// both sides have: shm within one host, RDMA cards, or tcp. For C++17 programs that know torchcomms' class of this
// name. It needs only gdrfab.h.
//
//   gdrfab::RdmaTransport transport;                   // -1: host memory; n: accelerator n
//   std::string mine = transport.bind();               // send it to the peer by the program's own means
//   transport.connect(theirs);                         // both sides call it, each with the other's url
//   gdrfab::RdmaMemory memory(bytes, length);          // registered
//   gdrfab::RdmaRemoteBuffer remote(theirRemoteKey);   // from the peer's memory.remoteKey()
//   gdrfab::RdmaStatus done = transport.write(memory.createView(), remote, true).get();
//
// docs/rdma-transport.md has the state after each result, and the rules for threads.
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
	// The providers that may be used, in order of preference. shm only connects processes of one host.
	std::vector<std::string> providers{"shm", "verbs", "tcp"};
	// A thread of the library serves the peer (shm's staged transfers, all of tcp) while this program does other
	// work. Without it, only waits and progress() serve the peer.
	bool progressThread = true;
	// Operations under way at once; 0: the provider's own number. Further ones wait inside write() and read().
	size_t depth = 0;
	// The time limit of operations without one of their own.
	std::chrono::milliseconds timeout{30000};
	std::chrono::milliseconds connectTimeout{10000};
	// tcp: the address of this host by which the peer reaches it; "": GDRFAB_TCP_IFACE, else the loopback.
	std::string address;
	// tcp: a secret that both sides have, 16 to 1024 bytes; "": the one of GDRFAB_TCP_KEY_FILE, if set.
	std::string authKey;
	// The time that a wait polls before it sleeps.
	std::chrono::microseconds spin{50};
};

// Makes a write notify the peer's waitForWrite(), with a value. `true`: the value is the number of the write among
// the notifying ones, from 1.
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

	// device: the accelerator whose nearest RDMA card is used; -1: any card. Creates no context on the accelerator.
	explicit RdmaTransport(int device = -1, RdmaOptions options = {});
	// Ends operations under way with Aborted. Afterwards no buffer is touched; futures stay valid.
	~RdmaTransport() { close(); }
	RdmaTransport(const RdmaTransport &) = delete;
	RdmaTransport &operator=(const RdmaTransport &) = delete;

	// True if any provider can be used here, with an accelerator if one is named. `why`, if given, gets the
	// reasons.
	static bool supported(int device = -1, std::string *why = nullptr);

	// Returns the text for the peer's connect(). Throws RdmaError if no provider can be used. Further calls return
	// the same text.
	std::string bind();
	// Connects to the transport whose bind() returned peerUrl, and which connects to this one, in any order and
	// within RdmaOptions::connectTimeout. If the peer is in this process and has not called connect() yet, this
	// call returns at once, and the peer's call finishes both. Throws std::invalid_argument if peerUrl is no url. A
	// transport connects once.
	RdmaStatus connect(const std::string &peerUrl);
	bool connected();

	// Writes the view's bytes to the beginning of the buffer. Throws std::out_of_range if they do not fit, and
	// std::invalid_argument for a key of another process; all other errors are in the future. The view's bytes must
	// not change until the future is done. If too many operations are under way, the call waits for room, within
	// the time limit.
	RdmaFuture<RdmaStatus> write(const RdmaMemory::View &view, const RdmaRemoteBuffer &remote, RdmaNotify notify = {},
				     Timeout timeout = {})
	{
		return operation(view, remote, true, notify, timeout);
	}
	// Fills the view from the beginning of the buffer. Errors and waits are those of write().
	RdmaFuture<RdmaStatus> read(const RdmaMemory::MutableView &view, const RdmaRemoteBuffer &remote, Timeout timeout = {})
	{
		return operation(view, remote, false, false, timeout);
	}
	// Waits for the peer's next write that notifies. Several waits get such writes in the order of their calls.
	// A limit of 0 ms does not wait.
	RdmaFuture<RdmaNotification> waitForWrite(Timeout timeout = {});

	// Completes the operations that can be completed now. For a program without the library's thread, or with its
	// own event loop.
	void progress();
	// A descriptor that is readable when progress() may have something to do. Before each poll, tryWait() must have
	// returned true. -1 before connect() and after close().
	int fd() { return connection_->fd(); }
	bool tryWait() { return connection_->may_block(); }

	// "shm", "verbs" or "tcp"; "" before connect().
	std::string path() const;
	// The provider and the library's path to a peer's buffer, such as "shm/cma".
	std::string path(const RdmaRemoteBuffer &remote);
	// Text that gives the reason for the provider and, with a buffer, for the path.
	std::string explain() const;
	std::string explain(const RdmaRemoteBuffer &remote);

	// Does the same as the destructor.
	void close();

private:
	// The transports of this process, by the numbers in their urls.
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
	// The transfer of one call of the library: an operation, or a part of one.
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
	// Protected by mutex_. Set before the connection's state, so that bind() does not set that state back.
	bool closed_ = false;
	// Protected by mutex_ until connect() has chosen a rail.
	std::vector<std::unique_ptr<detail::Rail>> rails_;
	detail::Url url_;
	std::string refused_, chosen_why_;
	uint64_t peer_tag_ = 0;
	// Held by a notifying write, so that numbers and parts arrive in order.
	std::timed_mutex notify_mutex_;
	// Protected by notify_mutex_. Atomic only because ThreadSanitizer does not see every way of taking a
	// std::timed_mutex.
	std::atomic<uint64_t> notified_{0};
	// Protected by notify_mutex_. True if parts of a value were sent, but not its last.
	std::atomic<bool> half_told_{false};
};

} // namespace gdrfab

#include "rdma_transport_inline.hpp"
#endif
