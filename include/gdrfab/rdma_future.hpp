// SPDX-License-Identifier: Apache-2.0 OR MIT
// The results of operations. An RdmaFuture drives the connection itself while a thread waits for it. A std::future
// costs an allocation and two locks, and needs another thread to complete it; toStdFuture() makes one.
#ifndef GDRFAB_RDMA_FUTURE_HPP
#define GDRFAB_RDMA_FUTURE_HPP

#include "rdma_status.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>

namespace gdrfab {

// A write of the peer's that was asked to notify.
struct RdmaNotification {
	RdmaStatus status;     // Success, or the reason why there is no notification
	uint64_t value = 0;    // the value that the writer gave, or the number of the write
	uint64_t sequence = 0; // number among the notifying writes of this connection, from 1
	size_t length = 0;     // bytes of that write

	bool ok() const noexcept { return status.ok(); }
	explicit operator bool() const noexcept { return ok(); }
	friend bool operator==(const RdmaNotification &n, RdmaCode code) noexcept { return n.status == code; }
	friend bool operator!=(const RdmaNotification &n, RdmaCode code) noexcept { return n.status != code; }
};

namespace detail {

using Clock = std::chrono::steady_clock;

// The time `limit` from now. A limit of any length does not overflow.
inline Clock::time_point after(std::chrono::milliseconds limit)
{
	const auto now = Clock::now(), end = Clock::time_point::max();
	return std::chrono::duration_cast<std::chrono::milliseconds>(end - now) <= limit ? end : now + limit;
}

// A time limit that starts when a thread first has to wait, because most operations never need the clock.
class Limit {
public:
	explicit Limit(std::chrono::milliseconds whole) noexcept : whole_(whole) {}
	bool running() const noexcept { return running_; }
	Clock::time_point end()
	{
		if (!running_)
			end_ = after(whole_);
		running_ = true;
		return end_;
	}
	// The time left, rounded up; 0: none.
	std::chrono::milliseconds rest()
	{
		const auto left = std::chrono::ceil<std::chrono::milliseconds>(end() - Clock::now());
		return left.count() < 0 ? std::chrono::milliseconds(0) : left;
	}

private:
	const std::chrono::milliseconds whole_;
	bool running_ = false;
	Clock::time_point end_;
};

// An operation. It exists from its call until its future and its completion have both released it.
struct Op {
	std::atomic<bool> done{false};
	std::atomic<uint8_t> owners{0};
	// An operation longer than the provider's limit has several pieces, and one more for the posting thread. The
	// count is fixed before the first piece is posted, because completions read it without a lock.
	size_t pieces = 1;
	// Pieces that are done. Protected by the connection's lock.
	size_t ended = 0;
	bool waits_for_write = false;
	RdmaNotification result;
	Clock::time_point until;
	Op *next = nullptr;
};

// A pool of operations. They are reused, and freed only with the connection.
class OpPool {
public:
	Op *take(uint8_t owners)
	{
		std::lock_guard<std::mutex> lock(mutex_);
		Op *op = free_;
		if (op) {
			free_ = op->next;
		} else {
			all_.emplace_back();
			op = &all_.back();
		}
		op->done.store(false, std::memory_order_relaxed);
		op->owners.store(owners, std::memory_order_relaxed);
		op->pieces = 1;
		op->ended = 0;
		op->waits_for_write = false;
		return op;
	}
	void drop(Op *op)
	{
		// The last owner needs no locked instruction.
		if (op->owners.load(std::memory_order_acquire) != 1 && op->owners.fetch_sub(1, std::memory_order_acq_rel) != 1)
			return;
		if (!op->result.status.ok())
			op->result.status = RdmaStatus();
		std::lock_guard<std::mutex> lock(mutex_);
		op->next = free_;
		free_ = op;
	}

private:
	std::mutex mutex_;
	std::deque<Op> all_;
	Op *free_ = nullptr;
};

class Connection;
void finish(Connection &connection, Op &op);
bool finish_until(Connection &connection, Op &op, Clock::time_point until);
void abandon(Connection &connection, Op &op);

} // namespace detail

// The result of an operation: T is RdmaStatus, or RdmaNotification for waitForWrite(). As with std::future, the result
// is read once, and only one thread waits for it. Unlike there, waiting makes progress, and the future may be
// destroyed: the operation goes on.
template <typename T> class RdmaFuture {
public:
	RdmaFuture() noexcept = default;
	RdmaFuture(std::shared_ptr<detail::Connection> connection, detail::Op *op) noexcept
	    : connection_(std::move(connection)), op_(op)
	{
	}
	RdmaFuture(RdmaFuture &&other) noexcept
	    : connection_(std::move(other.connection_)), op_(std::exchange(other.op_, nullptr))
	{
	}
	RdmaFuture &operator=(RdmaFuture &&other) noexcept
	{
		if (this != &other) {
			forget();
			connection_ = std::move(other.connection_);
			op_ = std::exchange(other.op_, nullptr);
		}
		return *this;
	}
	~RdmaFuture() { forget(); }

	bool valid() const noexcept { return op_ != nullptr; }
	// Makes no progress.
	bool ready() const
	{
		need();
		return op_->done.load(std::memory_order_acquire);
	}
	// Returns within the operation's time limit.
	void wait() const
	{
		if (!ready())
			detail::finish(*connection_, *op_);
	}
	template <typename R, typename P> std::future_status wait_for(std::chrono::duration<R, P> limit) const
	{
		if (ready())
			return std::future_status::ready;
		const auto until = detail::after(std::chrono::duration_cast<std::chrono::milliseconds>(limit));
		return detail::finish_until(*connection_, *op_, until) ? std::future_status::ready : std::future_status::timeout;
	}
	T get()
	{
		wait();
		T result = take();
		forget();
		return result;
	}
	// The std::future is deferred: the thread that waits for it makes the progress, so its wait_for() returns
	// `deferred`.
	std::future<T> toStdFuture() &&
	{
		need();
		return std::async(std::launch::deferred, [own = std::move(*this)]() mutable { return own.get(); });
	}

private:
	void need() const
	{
		if (!op_)
			throw std::future_error(std::future_errc::no_state);
	}
	T take()
	{
		if constexpr (std::is_same_v<T, RdmaNotification>)
			return op_->result;
		else
			return op_->result.status;
	}
	void forget() noexcept
	{
		if (op_) {
			detail::abandon(*connection_, *op_);
			op_ = nullptr;
			connection_.reset();
		}
	}

	std::shared_ptr<detail::Connection> connection_;
	detail::Op *op_ = nullptr;
};

} // namespace gdrfab
#endif
