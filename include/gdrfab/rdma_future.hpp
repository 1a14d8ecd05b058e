// SPDX-License-Identifier: Apache-2.0 OR MIT
// What an operation returns. A std::future costs an allocation and two locks, and needs another thread to complete it. An
// RdmaFuture drives the connection itself while a thread waits for it. toStdFuture() converts it.
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

// A peer's write that was asked to notify.
struct RdmaNotification {
	RdmaStatus status;     // Success, or why there is none
	uint64_t value = 0;    // what the writer gave, or the number of the write
	uint64_t sequence = 0; // number among the notifying writes of this connection, from 1
	size_t length = 0;     // bytes of that write

	bool ok() const noexcept { return status.ok(); }
	explicit operator bool() const noexcept { return ok(); }
	friend bool operator==(const RdmaNotification &n, RdmaCode code) noexcept { return n.status == code; }
	friend bool operator!=(const RdmaNotification &n, RdmaCode code) noexcept { return n.status != code; }
};

namespace detail {

using Clock = std::chrono::steady_clock;

// Later than now by a duration of any length, without overflow.
inline Clock::time_point after(std::chrono::milliseconds limit)
{
	const auto now = Clock::now(), end = Clock::time_point::max();
	return std::chrono::duration_cast<std::chrono::milliseconds>(end - now) <= limit ? end : now + limit;
}

// A time limit that starts when a thread first has to wait: most operations never read the clock.
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
	// What is left, rounded up; 0: nothing.
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

// An operation, from its call until its future and its completion have both released it.
struct Op {
	std::atomic<bool> done{false};
	std::atomic<uint8_t> owners{0};
	// An operation longer than the provider's longest has several pieces, and one more for the thread that posts. Fixed before
	// the first is posted: completions look at it without a lock.
	size_t pieces = 1;
	// Pieces that are done, under the connection's lock.
	size_t ended = 0;
	bool waits_for_write = false;
	RdmaNotification result;
	Clock::time_point until;
	Op *next = nullptr;
};

// Operations are reused; none is freed before the connection.
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

// The result of an operation: T is RdmaStatus, or RdmaNotification of waitForWrite(). As std::future it is read once, and by
// one thread; unlike it, its wait makes progress, and it may be thrown away: the operation goes on.
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
	// Ends within the operation's time limit.
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
	// Deferred: the thread that waits makes the progress, so wait_for() returns `deferred`.
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
