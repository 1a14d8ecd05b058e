// SPDX-License-Identifier: Apache-2.0 OR MIT
// The C++ interface on a provider with short operations and short texts, which the functions below emulate: the result of an
// operation of several pieces when some fail, in every order of completion, and the limits that a caller's time-out sets.
#include "rdma_transport.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <dlfcn.h>
#include <functional>
#include <mutex>
#include <numeric>
#include <thread>

using namespace gdrfab;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

constexpr size_t PIECE = 1000;

// Replacements for calls of the data path.
struct Fake {
	std::mutex mutex;
	bool small = false, narrow = false; // of endpoints that are made now
	std::atomic<bool> on{false};
	size_t posts = 0;
	std::function<ssize_t(size_t post)> answer; // of the nth post
	bool forward = false;			    // posts that the answer takes reach the real queue
	std::vector<void *> posted;
	std::deque<std::pair<void *, int>> done; // operation, errno or 0
	bool at_once = false;			 // done when posted, by the poster's errnos
	uint64_t last_timeout = 0;
} fake;
thread_local std::vector<int> errnos;
thread_local size_t mine;

void reset(std::function<ssize_t(size_t)> answer)
{
	std::lock_guard<std::mutex> lock(fake.mutex);
	fake.posts = 0;
	fake.answer = std::move(answer);
	fake.posted.clear();
	fake.done.clear();
	fake.on = true;
}

template <typename F> F real(const char *name)
{
	F f = reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
	if (!f)
		abort();
	return f;
}
#define REAL(name) real<decltype(&name)>(#name)

// True: the post is answered here, with `rc`.
bool posted(void *context, ssize_t &rc)
{
	if (!fake.on)
		return false;
	std::lock_guard<std::mutex> lock(fake.mutex);
	rc = fake.answer ? fake.answer(fake.posts) : 0;
	fake.posts++;
	if (rc == 0 && fake.forward)
		return false;
	if (rc == 0) {
		fake.posted.push_back(context);
		if (fake.at_once && context)
			fake.done.emplace_back(context, mine < errnos.size() ? errnos[mine] : 0);
		mine++;
	}
	return true;
}

} // namespace

extern "C" {

struct gdrfab_info *gdrfab_dupinfo(const struct gdrfab_info *info)
{
	gdrfab_info *copy = REAL(gdrfab_dupinfo)(info);
	if (info && copy && fake.small)
		copy->max_msg_size = PIECE;
	if (info && copy && fake.narrow)
		copy->cq_data_size = 4;
	return copy;
}
ssize_t gdrfab_write(struct gdrfab_ep *ep, const void *buf, size_t len, void *desc, uint64_t dest, uint64_t addr,
		     uint64_t key, void *context)
{
	ssize_t rc;
	return posted(context, rc) ? rc : REAL(gdrfab_write)(ep, buf, len, desc, dest, addr, key, context);
}
ssize_t gdrfab_writedata(struct gdrfab_ep *ep, const void *buf, size_t len, void *desc, uint64_t data, uint64_t dest,
			 uint64_t addr, uint64_t key, void *context)
{
	ssize_t rc;
	return posted(context, rc) ? rc : REAL(gdrfab_writedata)(ep, buf, len, desc, data, dest, addr, key, context);
}
ssize_t gdrfab_read(struct gdrfab_ep *ep, void *buf, size_t len, void *desc, uint64_t dest, uint64_t addr, uint64_t key,
		    void *context)
{
	ssize_t rc;
	return posted(context, rc) ? rc : REAL(gdrfab_read)(ep, buf, len, desc, dest, addr, key, context);
}
ssize_t gdrfab_writemsg(struct gdrfab_ep *ep, const struct gdrfab_msg_rma *msg, uint64_t flags)
{
	ssize_t rc;
	fake.last_timeout = msg->timeout_ns;
	return posted(msg->context, rc) ? rc : REAL(gdrfab_writemsg)(ep, msg, flags);
}
ssize_t gdrfab_readmsg(struct gdrfab_ep *ep, const struct gdrfab_msg_rma *msg, uint64_t flags)
{
	ssize_t rc;
	fake.last_timeout = msg->timeout_ns;
	return posted(msg->context, rc) ? rc : REAL(gdrfab_readmsg)(ep, msg, flags);
}
ssize_t gdrfab_cq_read(struct gdrfab_cq *cq, void *buf, size_t count)
{
	if (!fake.on || fake.forward)
		return REAL(gdrfab_cq_read)(cq, buf, count);
	std::lock_guard<std::mutex> lock(fake.mutex);
	if (fake.done.empty())
		return -EAGAIN;
	if (fake.done.front().second)
		return -GDRFAB_EAVAIL;
	auto *to = static_cast<gdrfab_cq_data_entry *>(buf);
	size_t n = 0;
	for (; n < count && !fake.done.empty() && !fake.done.front().second; n++) {
		to[n] = gdrfab_cq_data_entry();
		to[n].op_context = fake.done.front().first;
		fake.done.pop_front();
	}
	return static_cast<ssize_t>(n);
}
ssize_t gdrfab_cq_readerr(struct gdrfab_cq *cq, struct gdrfab_cq_err_entry *entry, uint64_t flags)
{
	if (!fake.on || fake.forward)
		return REAL(gdrfab_cq_readerr)(cq, entry, flags);
	std::lock_guard<std::mutex> lock(fake.mutex);
	if (fake.done.empty() || !fake.done.front().second)
		return -EAGAIN;
	entry->op_context = fake.done.front().first;
	entry->err = fake.done.front().second;
	entry->prov_errno = 0;
	fake.done.pop_front();
	return 1;
}

} // extern "C"

namespace {

// Errnos that a transport survives, one for each piece and one for a post that is refused.
const int of_piece[] = {EACCES, EFAULT, EINVAL, EIO, ENOSPC};
constexpr int of_post = EOPNOTSUPP;

// A transport whose operations have pieces of 1000 bytes.
struct Small : Two {
	explicit Small(bool thread = true) : Two((fake.small = true, thread)) {}
};

} // namespace

// {pieces} x {which of them fail} x {which post is refused} x {every order in which they complete}
TEST(pieces_that_fail_in_every_order)
{
	Small two;
	size_t cases = 0;
	for (size_t pieces = 1; pieces <= 4; pieces++)
		for (unsigned failing = 0; failing < 1u << pieces; failing++)
			for (size_t refused = 0; refused <= pieces; refused++) {
				std::vector<size_t> order(refused);
				std::iota(order.begin(), order.end(), 0);
				do {
					const bool reads = cases % 2;
					reset([&](size_t n) -> ssize_t { return n == refused ? -of_post : 0; });
					auto future = reads ? two.a->read(two.memory_a->createMutableView(0, pieces * PIECE), *two.remote_b)
							    : two.a->write(two.memory_a->createView(0, pieces * PIECE), *two.remote_b,
									   cases % 3 == 0);
					int expected = refused < pieces ? of_post : 0;
					CHECK_EQ(fake.posted.size(), refused);
					for (size_t i : order) {
						CHECK(!future.ready());
						const int err = failing & 1u << i ? of_piece[i] : 0;
						expected = expected ? expected : err;
						{
							std::lock_guard<std::mutex> lock(fake.mutex);
							fake.done.emplace_back(fake.posted[i], err);
						}
						two.a->progress();
					}
					CHECK(future.ready());
					const RdmaStatus status = future.get();
					if (status.error() != expected || status.ok() != (expected == 0))
						test_fail(__FILE__, __LINE__, "%zu pieces, failing %x, post %zu refused: %s, errno %d, not %d",
							  pieces, failing, refused, status.what().c_str(), status.error(), expected);
					cases++;
				} while (std::next_permutation(order.begin(), order.end()));
			}
	fake.on = false;
	CHECK(cases > 500);
}

// Several threads post, and several complete what they post at the same time.
TEST_WITHIN(40, pieces_that_complete_while_others_are_posted)
{
	Small two;
	const int rounds = getenv("TEST_FAST") ? 300 : 5000;
	fake.at_once = true;
	reset({});
	std::atomic<bool> stop{false};
	auto complete = [&] {
		while (!stop)
			two.a->progress();
	};
	auto post = [&](unsigned seed) {
		for (int round = 0; round < rounds; round++) {
			const size_t pieces = 1 + rand_r(&seed) % 5;
			errnos.assign(pieces, 0);
			mine = 0;
			if (rand_r(&seed) % 2)
				errnos[rand_r(&seed) % pieces] = of_piece[0];
			const bool fails = std::count(errnos.begin(), errnos.end(), 0) != static_cast<long>(pieces);
			auto view = two.memory_a->createView(0, pieces * PIECE);
			auto future = two.a->write(view, *two.remote_b, round % 7 == 0);
			if (round % 5 == 0)
				continue; // nobody wants to know
			const RdmaStatus status = future.get();
			if (status.ok() == fails)
				test_fail(__FILE__, __LINE__, "of %zu pieces %s failed: %s", pieces, fails ? "one" : "none",
					  status.what().c_str());
		}
	};
	std::thread completing[2] = {std::thread(complete), std::thread(complete)};
	std::thread posting[2] = {std::thread(post, 1), std::thread(post, 2)};
	for (auto &t : posting)
		t.join();
	stop = true;
	for (auto &t : completing)
		t.join();
	fake.on = false;
}

TEST(moved_from_objects_say_so)
{
	Two two;
	auto view = two.memory_a->createView();
	auto target = two.memory_a->createMutableView();
	RdmaRemoteBuffer remote = *two.remote_b;
	auto future = two.a->write(view, remote);
	const auto taken_view = std::move(view);
	const auto taken_target = std::move(target);
	const RdmaRemoteBuffer taken = std::move(remote);
	auto taken_future = std::move(future);
	RdmaMemory gone = RdmaMemory(two.bytes_a.data(), 100, -1, memory_options());
	const RdmaMemory taken_memory = std::move(gone);
	THROWS(std::logic_error, "moved from", two.a->write(view, *two.remote_b));
	THROWS(std::logic_error, "moved from", two.a->read(target, *two.remote_b));
	THROWS(std::logic_error, "moved from", two.a->write(taken_view, remote));
	THROWS(std::logic_error, "moved from", two.a->read(taken_target, remote));
	THROWS(std::logic_error, "moved from", two.a->path(remote));
	THROWS(std::logic_error, "moved from", two.a->explain(remote));
	THROWS(std::logic_error, "moved from", remote.slice(0, 1));
	THROWS(std::logic_error, "moved from", remote.accessKey());
	THROWS(std::logic_error, "moved from", gone.createView());
	THROWS(std::logic_error, "moved from", gone.createMutableView(0, 1));
	THROWS(std::logic_error, "moved from", gone.remoteKey());
	THROWS(std::logic_error, "moved from", gone.explain());
	THROWS(std::logic_error, "moved from", gone.contains(nullptr, 0));
	THROWS(std::future_error, "", future.get());
	THROWS(std::future_error, "", future.wait_for(1ms));
	GOOD(taken_future.get());
	GOOD(two.a->write(taken_view, taken).get());
	GOOD(two.a->read(taken_target, taken).get());
}

// {write, notifying write, of small and of wide values, read} x {one piece, three} x {from which post on there is no room} x
// {a time limit of the operation's, the transport's}
TEST(no_wait_is_longer_than_the_callers_time)
{
	fake.narrow = true;
	Small two;
	const auto limit = 40ms;
	RdmaOptions short_ones = options();
	short_ones.timeout = limit;
	RdmaTransport c(-1, short_ones), d(-1, options());
	const std::string url_c = c.bind(), url_d = d.bind();
	GOOD(c.connect(url_d));
	GOOD(d.connect(url_c));
	RdmaMemory there(two.bytes_b.data(), two.bytes_b.size(), -1, memory_options());
	const RdmaRemoteBuffer remote(there.remoteKey());
	const RdmaNotify kinds[] = {false, RdmaNotify::with(1), RdmaNotify::with(1ull << 40), RdmaNotify::with(~0ull), false};
	for (size_t kind = 0; kind < 5; kind++)
		for (size_t pieces = 1; pieces <= 3; pieces += 2)
			for (size_t room = 0; room < 3; room++)
				for (bool own : {true, false}) {
					RdmaTransport &t = own ? *two.a : c;
					const RdmaRemoteBuffer &to = own ? *two.remote_b : remote;
					const RdmaTransport::Timeout time = own ? RdmaTransport::Timeout(limit) : std::nullopt;
					const size_t calls = pieces + (kind == 2 ? 1 : kind == 3 ? 2 : 0);
					if (room >= calls)
						continue;
					reset([&](size_t n) -> ssize_t { return n < room ? 0 : -EAGAIN; });
					const auto before = Clock::now();
					auto future = kind == 4 ? t.read(two.memory_a->createMutableView(0, pieces * PIECE), to, time)
								: t.write(two.memory_a->createView(0, pieces * PIECE), to, kinds[kind], time);
					const auto took = Clock::now() - before;
					CHECK(took >= limit - 5ms);
					CHECK(took < limit * test_ms(20));
					{
						std::lock_guard<std::mutex> lock(fake.mutex);
						for (void *op : fake.posted)
							if (op)
								fake.done.emplace_back(op, 0);
					}
					const RdmaStatus status = future.get();
					if (status.code() != RdmaCode::Timeout)
						test_fail(__FILE__, __LINE__, "kind %zu, %zu pieces, room for %zu: %s", kind, pieces, room,
							  status.what().c_str());
				}
	// Room comes late: the operation has what is left.
	auto later = Clock::now() + 200ms;
	reset([&](size_t) -> ssize_t { return Clock::now() < later ? -EAGAIN : 0; });
	auto future = two.a->write(two.memory_a->createView(0, 10), *two.remote_b, false, 400ms);
	CHECK(fake.last_timeout <= 300000000);
	{
		std::lock_guard<std::mutex> lock(fake.mutex);
		fake.done.emplace_back(fake.posted.back(), 0);
	}
	GOOD(future.get());
	fake.on = false;
}

// A value of which some parts went out is forgotten by both sides.
TEST(a_value_given_up_midway_changes_no_other)
{
	fake.narrow = true;
	Two two;
	fake.forward = true;
	const uint64_t values[] = {3, 1ull << 33, ~0ull};
	for (size_t room = 0; room < 3; room++)
		for (uint64_t value : values) {
			reset([&](size_t n) -> ssize_t { return n < room ? 0 : -EAGAIN; });
			auto view = two.memory_a->createView(0, 10);
			const RdmaStatus late = two.a->write(view, *two.remote_b, RdmaNotify::with(0xdeadbeefdeadbeef), 20ms).get();
			CHECK(late == RdmaCode::Timeout);
			fake.on = false;
			for (int again = 0; again < 2; again++) {
				GOOD(two.a->write(view, *two.remote_b, RdmaNotify::with(value)).get());
				const RdmaNotification note = two.b->waitForWrite(5s).get();
				GOOD(note.status);
				if (note.value != value)
					test_fail(__FILE__, __LINE__, "after %zu parts: %llx came instead of %llx", room,
						  (unsigned long long)note.value, (unsigned long long)value);
			}
		}
}
