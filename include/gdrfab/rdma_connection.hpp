// SPDX-License-Identifier: Apache-2.0 OR MIT
// The connection that a transport and its futures share. This file decides which thread reads the queues, which thread
// sleeps, and how the connection ends.
//
// A waiting thread reads the queues without sleeping and completes the operations that it finds done. One thread reads
// at a time. After a while without results one thread becomes the sleeper and polls the queues' descriptors. The other
// threads sleep until their operation is done or there is no sleeper. Reading disarms the descriptors, so the reading
// thread wakes the sleeper.
//
// The state only advances, and may skip: New, Bound, Connecting, Connected, Broken, Closed.
//
// Lock order, outer first: close_mutex_, mutex_, the pool's mutex.
#ifndef GDRFAB_RDMA_CONNECTION_HPP
#define GDRFAB_RDMA_CONNECTION_HPP

#include "rdma_future.hpp"
#include "rdma_rail.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <poll.h>
#include <string>
#include <sys/epoll.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace gdrfab {
namespace detail {

class Connection {
public:
	enum State { New, Bound, Connecting, Connected, Broken, Closed };

	explicit Connection(std::chrono::microseconds spin) : spin_(spin), pid_(getpid()) {}
	~Connection() { close(); }
	Connection(const Connection &) = delete;
	Connection &operator=(const Connection &) = delete;

	State state() const noexcept { return state_.load(std::memory_order_acquire); }
	Rail &rail() noexcept { return *rail_; }
	OpPool &pool() noexcept { return pool_; }
	bool began() const noexcept { return state() >= Connecting && rail_; }
	std::string provider() const { return rail_->domain->provider; }
	bool closing() const noexcept { return closing_.load(); }

	// Takes the rail that connect() chose and starts the connection.
	void begin(std::unique_ptr<Rail> rail)
	{
		rail_ = std::move(rail);
		narrow_ = rail_->info->cq_data_size < sizeof(uint64_t);
		check("gdrfab_eq_fd", gdrfab_eq_fd(rail_->eq.get(), &eq_fd_));
		check("gdrfab_cq_fd", gdrfab_cq_fd(rail_->cq.get(), &cq_fd_));
		set_state(Connecting);
	}
	void set_state(State state) noexcept { state_.store(state, std::memory_order_release); }

	// Makes close() wait while a thread posts. False: the connection is closing.
	bool enter() noexcept
	{
		inside_.fetch_add(1);
		if (!closing_.load())
			return true;
		leave();
		return false;
	}
	void leave() noexcept
	{
		if (inside_.fetch_sub(1) == 1 && closing_.load())
			wake();
	}

	// The result that every later operation gets.
	RdmaStatus end()
	{
		std::lock_guard<std::mutex> lock(mutex_);
		return end_;
	}
	// Makes an operation that is done already.
	Op *settled(RdmaStatus status)
	{
		Op *op = pool_.take(1);
		op->result = RdmaNotification();
		op->result.status = std::move(status);
		op->done.store(true, std::memory_order_release);
		return op;
	}

	void complete(Op *op, RdmaStatus status)
	{
		op->result.status = std::move(status);
		op->done.store(true, std::memory_order_release);
		pool_.drop(op);
	}

	// Counts pieces of an operation that are done. The first failure becomes the operation's result.
	void pieces_done(Op *op, size_t count, const RdmaStatus &status)
	{
		std::lock_guard<std::mutex> lock(mutex_);
		if (!status.ok() && op->result.status.ok())
			op->result.status = status;
		op->ended += count;
		if (op->ended == op->pieces)
			complete(op, op->result.status);
	}

	// Reads the queues once, without waiting.
	void pump()
	{
		if (!began())
			return;
		armed_.store(false); // the program's own event loop is awake
		look(true);
	}

	// Called when a post found no room. Sleeps after many tries: the peer may free room without any completion
	// here.
	void relieve(unsigned turn)
	{
		look(turn % 16 == 0);
		if (turn > 256)
			std::this_thread::sleep_for(std::chrono::microseconds(50));
	}

	// Waits until done() is true or the time has come. Returns done().
	template <typename Done> bool wait(Done done, Clock::time_point until)
	{
		Clock::time_point calm{};
		for (unsigned turn = 0; !done(); turn++) {
			const bool some = !closing_.load() && look(turn % 16 == 15);
			// Most operations are done already, and reading the clock costs more than reading the queues.
			if (turn % 16 != 15 && !closing_.load())
				continue;
			const auto now = Clock::now();
			if (done() || lost() || now >= until)
				break;
			if (some || calm == Clock::time_point{})
				calm = now + spin_;
			else if (now >= calm)
				nap(done, until), calm = Clock::time_point{};
			if (closing_.load())
				follow(done, until);
		}
		return done();
	}

	Op *wait_for_write(std::chrono::milliseconds limit)
	{
		Op *op = pool_.take(2);
		op->waits_for_write = true;
		op->result = RdmaNotification();
		op->until = after(limit);
		std::lock_guard<std::mutex> lock(mutex_);
		if (!notes_.empty()) {
			op->result = notes_.front();
			notes_.pop_front();
			complete(op, RdmaStatus());
		} else if (!end_.ok()) {
			complete(op, end_);
		} else {
			waiters_.push_back(op);
		}
		return op;
	}
	// Ends a wait for a notification with `status`.
	void withdraw(Op &op, RdmaStatus status)
	{
		std::lock_guard<std::mutex> lock(mutex_);
		if (op.done.load(std::memory_order_acquire))
			return;
		waiters_.remove(&op);
		complete(&op, std::move(status));
	}
	void withdraw_late()
	{
		const auto now = Clock::now();
		std::lock_guard<std::mutex> lock(mutex_);
		for (auto i = waiters_.begin(); i != waiters_.end();) {
			Op *op = *i;
			i = op->until <= now ? waiters_.erase(i) : std::next(i);
			if (op->until <= now)
				complete(op, late());
		}
	}
	static RdmaStatus late()
	{
		return RdmaStatus(RdmaCode::Timeout, ETIMEDOUT, "no notifying write of the peer arrived within the time limit");
	}

	// A descriptor for the program's own event loop.
	int fd()
	{
		std::lock_guard<std::mutex> lock(mutex_);
		if (epoll_ < 0 && began() && !closing_.load()) {
			epoll_ = epoll_create1(EPOLL_CLOEXEC);
			epoll_event e{};
			e.events = EPOLLIN;
			if (epoll_ < 0 || epoll_ctl(epoll_, EPOLL_CTL_ADD, cq_fd_, &e) != 0 ||
			    epoll_ctl(epoll_, EPOLL_CTL_ADD, eq_fd_, &e) != 0)
				throw RdmaError(errno, "fd: epoll: " + std::string(std::strerror(errno)));
		}
		return epoll_;
	}
	bool may_block()
	{
		if (!began() || lost())
			return true;
		if (!take_queues())
			return false;
		const bool quiet = gdrfab_cq_trywait(rail_->cq.get()) == 0 && gdrfab_eq_trywait(rail_->eq.get()) == 0;
		armed_.store(quiet);
		leave_queues();
		return quiet;
	}

	// Ends the connection for this reason.
	void broken(int error, std::string words)
	{
		std::lock_guard<std::mutex> lock(mutex_);
		finish_all(Broken, RdmaStatus(RdmaCode::Broken, error, std::move(words)));
	}
	// No more completions will come: the connection is closed, or its queue can no longer be waited on.
	bool lost() const noexcept { return lost_.load() || state() == Closed; }

	// Operations under way end with Aborted. When close() returns, no buffer is touched any more.
	void close()
	{
		std::lock_guard<std::mutex> only(close_mutex_);
		if (state() == Closed)
			return;
		if (pid_ != getpid()) { // a copy made by fork(): there is nothing to close
			static auto *const parents = new std::list<std::unique_ptr<Rail>>;
			parents->push_back(std::move(rail_));
			set_state(Closed);
			return;
		}
		closing_.store(true);
		if (rail_)
			rouse();
		{
			std::unique_lock<std::mutex> lock(mutex_);
			followers_++;
			changed_.wait(lock, [&] { return inside_.load() == 0 && !sleeper_.load() && take_queues(); });
			followers_--;
		}
		if (rail_) {
			rail_->ep.reset();
			read_completions();
		}
		{
			std::lock_guard<std::mutex> lock(mutex_);
			finish_all(Closed, RdmaStatus(RdmaCode::Aborted, ECANCELED, "this side closed the transport"));
			if (epoll_ >= 0)
				::close(epoll_);
			epoll_ = -1;
		}
		if (rail_) {
			rail_->cq.reset();
			rail_->eq.reset();
		}
		wake();
	}

private:
	bool take_queues() noexcept { return !reading_.load(std::memory_order_relaxed) && !reading_.exchange(true); }
	// The exchange orders the completions made before it ahead of the load of followers_.
	void leave_queues()
	{
		reading_.exchange(false);
		if (followers_.load())
			wake();
	}
	// Reads the queues, unless another thread does. Returns true if it found anything.
	bool look(bool events)
	{
		if (!take_queues())
			return false;
		bool some = read_completions();
		if (events)
			some = read_events() || some;
		if (asleep_.load(std::memory_order_relaxed) || armed_.load(std::memory_order_relaxed))
			if (asleep_.exchange(false) || armed_.exchange(false))
				rouse();
		leave_queues();
		return some;
	}
	void rouse() { gdrfab_eq_write(rail_->eq.get(), GDRFAB_NOTIFY, "", 1, 0); }
	void wake()
	{
		std::lock_guard<std::mutex> lock(mutex_);
		changed_.notify_all();
	}
	// Sleeps until done() is true, there is no sleeper, or the time has come.
	template <typename Done> void follow(Done done, Clock::time_point until)
	{
		std::unique_lock<std::mutex> lock(mutex_);
		followers_++;
		auto something = [&] { return done() || lost() || (!closing_.load() && !sleeper_.load()); };
		if (until == Clock::time_point::max())
			changed_.wait(lock, something);
		else
			changed_.wait_until(lock, until, something);
		followers_--;
	}

	template <typename Done> void nap(Done done, Clock::time_point until)
	{
		if (sleeper_.exchange(true)) {
			follow(done, until);
			return;
		}
		if (!closing_.load() && take_queues()) {
			// -EAGAIN: something has come. Any other error would repeat for ever.
			const int cq_rc = gdrfab_cq_trywait(rail_->cq.get());
			const int rc = cq_rc ? cq_rc : gdrfab_eq_trywait(rail_->eq.get());
			if (rc == 0)
				asleep_.store(true);
			leave_queues();
			if (rc == 0 && !done()) {
				using std::chrono::milliseconds;
				const auto left = std::chrono::duration_cast<milliseconds>(until - Clock::now()).count();
				pollfd fds[2] = {{cq_fd_, POLLIN, 0}, {eq_fd_, POLLIN, 0}};
				poll(fds, 2, static_cast<int>(left < 0 ? 0 : left < 1000 ? left + 1 : 1000));
			} else if (rc != 0 && rc != -EAGAIN) {
				lost_.store(true);
				broken(-rc, failure("waiting", rc));
			}
			asleep_.store(false);
			if (!closing_.load())
				look(true);
		}
		sleeper_.exchange(false);
		if (followers_.load())
			wake();
	}

	// Called by the thread that reads the queues. Returns true if it found anything.
	bool read_completions()
	{
		gdrfab_cq_data_entry entries[16];
		bool any = false;
		for (;;) {
			const ssize_t got = gdrfab_cq_read(rail_->cq.get(), entries, 16);
			if (got == -GDRFAB_EAVAIL) {
				read_error();
				any = true;
				continue;
			}
			if (got <= 0)
				return any;
			any = true;
			for (ssize_t i = 0; i < got; i++) {
				if (entries[i].flags & GDRFAB_REMOTE_CQ_DATA)
					notified(entries[i]);
				else if (entries[i].op_context)
					one_done(static_cast<Op *>(entries[i].op_context), RdmaStatus());
			}
			if (got < 16)
				return true;
		}
	}
	void read_error()
	{
		char words[512] = "";
		gdrfab_cq_err_entry e{};
		e.struct_size = sizeof e;
		e.err_data = words;
		e.err_data_size = sizeof words;
		if (gdrfab_cq_readerr(rail_->cq.get(), &e, 0) != 1 || !e.op_context)
			return;
		const bool aborted = e.err == ECANCELED && closing_.load();
		const RdmaCode code = aborted ? RdmaCode::Aborted : code_of(e.err, e.prov_errno);
		one_done(static_cast<Op *>(e.op_context), RdmaStatus(code, e.err, words[0] ? words : gdrfab_strerror(e.err)));
	}
	void one_done(Op *op, RdmaStatus status)
	{
		(void)op->done.load(std::memory_order_acquire); // sees the operation as its poster left it
		if (op->pieces == 1)
			complete(op, std::move(status));
		else
			pieces_done(op, 1, status);
	}
	void notified(const gdrfab_cq_data_entry &entry)
	{
		uint64_t value = entry.data;
		if (narrow_ && !parts_.join(static_cast<uint32_t>(entry.data), value))
			return;
		std::lock_guard<std::mutex> lock(mutex_);
		RdmaNotification note;
		note.value = value;
		note.sequence = ++sequence_;
		note.length = entry.len;
		if (!waiters_.empty()) {
			Op *op = waiters_.front();
			waiters_.pop_front();
			op->result = note;
			complete(op, RdmaStatus());
		} else if (notes_.size() < most_notes) {
			notes_.push_back(note);
		} else {
			finish_all(Broken, RdmaStatus(RdmaCode::Broken, EOVERFLOW,
						      "the peer notified more than a million times without a waitForWrite() here"));
		}
	}
	// Called by the thread that reads the queues. Returns true if it found anything.
	bool read_events()
	{
		alignas(gdrfab_eq_cm_entry) char event[sizeof(gdrfab_eq_cm_entry) + GDRFAB_CM_DATA_MAX];
		for (bool any = false;; any = true) {
			uint32_t kind = 0;
			const ssize_t got = gdrfab_eq_read(rail_->eq.get(), &kind, event, sizeof event, 0);
			if (got == -GDRFAB_EAVAIL) {
				char words[512] = "";
				gdrfab_eq_err_entry e{};
				e.struct_size = sizeof e;
				e.err_data = words;
				e.err_data_size = sizeof words;
				// GDRFAB_NOTIFY concerns the port; the connection goes on.
				if (gdrfab_eq_readerr(rail_->eq.get(), &e, 0) == 1 && e.data != GDRFAB_NOTIFY) {
					read_completions();
					broken(e.err, words[0] ? words : gdrfab_strerror(e.err));
				}
			} else if (got < 0) {
				return any;
			} else if (kind == GDRFAB_CONNECTED) {
				State expected = Connecting;
				state_.compare_exchange_strong(expected, Connected);
			} else if (kind == GDRFAB_SHUTDOWN) {
				// Data that arrived before the end counts.
				read_completions();
				broken(ECONNRESET, "the peer closed the connection or died");
			}
		}
	}
	// The caller holds mutex_.
	void finish_all(State state, RdmaStatus why)
	{
		if (this->state() >= state)
			return;
		if (end_.ok() || state == Closed)
			end_ = std::move(why);
		for (Op *op : waiters_)
			complete(op, end_);
		waiters_.clear();
		set_state(state);
		changed_.notify_all();
	}

	static constexpr size_t most_notes = 1 << 20;

	const std::chrono::microseconds spin_;
	const pid_t pid_;
	std::atomic<State> state_{New};
	std::unique_ptr<Rail> rail_;
	bool narrow_ = false;
	int eq_fd_ = -1, cq_fd_ = -1, epoll_ = -1;
	OpPool pool_;

	// reading_: a thread reads the queues. sleeper_: a thread sleeps or is about to. asleep_: its descriptors are
	// armed. armed_: the descriptors are armed for the program's own event loop.
	std::atomic<bool> reading_{false}, sleeper_{false}, asleep_{false}, armed_{false}, closing_{false}, lost_{false};
	std::atomic<int> followers_{0}, inside_{0};
	std::mutex close_mutex_, mutex_;
	std::condition_variable changed_;

	// Used by the thread that reads the queues.
	Parts parts_;
	// Protected by mutex_.
	std::list<Op *> waiters_;
	std::deque<RdmaNotification> notes_;
	uint64_t sequence_ = 0;
	RdmaStatus end_;
};

} // namespace detail
} // namespace gdrfab
#endif
