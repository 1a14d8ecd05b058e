// SPDX-License-Identifier: Apache-2.0 OR MIT
// The C++ interface between two processes: bytes, notifications, refusals by the target, and peers that die or are stopped.
#include "rdma_transport.h"

#include <csignal>
#include <functional>

using namespace gdrfab;
using namespace std::chrono_literals;

namespace {

void send_text(node *n, const std::string &text)
{
	const uint64_t len = text.size();
	oob_send(n, &len, sizeof len);
	oob_send(n, text.data(), text.size());
}

std::string receive_text(node *n)
{
	uint64_t len = 0;
	oob_recv(n, &len, sizeof len);
	std::string text(len, '\0');
	oob_recv(n, &text[0], len);
	return text;
}

// A connected transport, memory, and the other side's buffer.
struct Side {
	Side(node *n, size_t len, bool thread = true) : bytes(len), transport(-1, options(thread))
	{
		std::string why;
		detail::DomainRequest request;
		request.provider = provider();
		skip_unless(detail::candidates(request, "", why) != nullptr, why.c_str());
		send_text(n, transport.bind());
		GOOD(transport.connect(receive_text(n)));
		CHECK(transport.connected());
		memory.emplace(bytes.data(), bytes.size(), -1, memory_options());
		send_text(n, memory->remoteKey());
		remote.emplace(receive_text(n));
	}
	std::vector<char> bytes;
	RdmaTransport transport;
	std::optional<RdmaMemory> memory;
	std::optional<RdmaRemoteBuffer> remote;
};

void guarded(node *n, const std::function<void(node *)> &side)
{
	try {
		side(n);
	} catch (const std::exception &e) {
		test_fail(__FILE__, __LINE__, "an exception: %s", e.what());
	}
}

constexpr size_t LEN = 3000000;

void serves_pingpong(node *n)
{
	guarded(n, [](node *n) {
		Side s(n, LEN);
		for (unsigned i = 1; i <= 20; i++) {
			const auto note = s.transport.waitForWrite(15s).get();
			GOOD(note.status);
			CHECK(note.sequence == i && note.length == LEN - i);
			CHECK(note.value == (i % 2 ? i : 0xfeedbeef00000000 + i));
			CHECK_FILLED("what came", s.bytes.data(), LEN - i, 0, i);
			fill(s.bytes.data(), LEN, 0, 100 + i);
			GOOD(s.transport.write(s.memory->createView(0, LEN - i), *s.remote, true).get());
		}
		barrier(n);
	});
}

void asks_pingpong(node *n)
{
	guarded(n, [](node *n) {
		Side s(n, LEN);
		for (unsigned i = 1; i <= 20; i++) {
			fill(s.bytes.data(), LEN, 0, i);
			const auto notify = i % 2 ? RdmaNotify(true) : RdmaNotify::with(0xfeedbeef00000000 + i);
			auto done = s.transport.write(s.memory->createView(0, LEN - i), *s.remote, notify, 15s);
			GOOD(done.get());
			GOOD(s.transport.waitForWrite(15s).get().status);
			CHECK_FILLED("what came back", s.bytes.data(), LEN - i, 0, 100 + i);
		}
		barrier(n);
	});
}

// The peer is busy elsewhere: one-sided operations complete by its library's thread.
void computes(node *n)
{
	guarded(n, [](node *n) {
		Side s(n, LEN);
		fill(s.bytes.data(), LEN, 0, 5);
		barrier(n);
		barrier(n);
	});
}
void reads_meanwhile(node *n)
{
	guarded(n, [](node *n) {
		Side s(n, LEN);
		barrier(n);
		GOOD(s.transport.read(s.memory->createMutableView(), *s.remote, 15s).get());
		CHECK_FILLED("read", s.bytes.data(), LEN, 0, 5);
		barrier(n);
	});
}

void withdraws(node *n)
{
	guarded(n, [](node *n) {
		Side s(n, LEN);
		RdmaMemoryOptions o = memory_options();
		o.access = GDRFAB_REMOTE_READ;
		std::vector<char> other(1000, 'o');
		RdmaMemory to_read(other.data(), other.size(), -1, o);
		send_text(n, to_read.remoteKey());
		s.memory.reset();
		barrier(n);
		barrier(n);
		CHECK(s.transport.waitForWrite(0ms).get() != RdmaCode::Success);
	});
}
void is_refused(node *n)
{
	guarded(n, [](node *n) {
		Side s(n, LEN);
		const RdmaRemoteBuffer to_read(receive_text(n));
		barrier(n);
		const auto part = s.memory->createMutableView(0, 1000);
		const auto closed = s.transport.write(part, *s.remote, true).get();
		CHECK(closed == RdmaCode::Failed && closed.error() == EKEYREJECTED && closed.what().size() > 10);
		if (traits()->survives_failures) {
			CHECK(s.transport.read(part, *s.remote).get() == RdmaCode::Failed);
			CHECK(s.transport.write(part, to_read, true).get() == RdmaCode::Failed);
			GOOD(s.transport.read(part, to_read).get());
			CHECK(s.transport.connected() && s.bytes[999] == 'o');
		}
		barrier(n);
	});
}

void dies(node *n)
{
	guarded(n, [](node *n) {
		Side s(n, LEN);
		barrier(n);
		GOOD(s.transport.waitForWrite().get().status);
		raise(SIGKILL);
	});
}
void outlives(node *n)
{
	guarded(n, [](node *n) {
		Side s(n, LEN);
		barrier(n);
		auto waits = s.transport.waitForWrite(60s);
		const auto start = test_now_ms();
		GOOD(s.transport.write(s.memory->createView(0, 10), *s.remote, true).get());
		for (int i = 0;; i++) {
			const auto status = s.transport.write(s.memory->createView(), *s.remote, i % 2 == 0, 20s).get();
			if (!status.ok()) {
				if (status != RdmaCode::Broken && status != RdmaCode::Failed)
					test_fail(__FILE__, __LINE__, "%s after %d writes: %s", name(status.code()), i,
						  status.what().c_str());
				break;
			}
			CHECK(test_now_ms() - start < (uint64_t)test_ms(15000));
		}
		CHECK(waits.get() == RdmaCode::Broken);
		CHECK(!s.transport.connected());
		CHECK(s.transport.read(s.memory->createMutableView(), *s.remote).get() == RdmaCode::Broken);
		CHECK(s.transport.waitForWrite().get() == RdmaCode::Broken);
		CHECK(test_now_ms() - start < (uint64_t)test_ms(15000));
	});
}

void stops(node *n)
{
	guarded(n, [](node *n) {
		Side s(n, LEN);
		barrier(n);
		raise(SIGSTOP);
		barrier(n);
	});
}
void waits_for_the_stopped(node *n)
{
	guarded(n, [](node *n) {
		Side s(n, LEN);
		barrier(n);
		test_sleep_ms(100);
		const auto start = test_now_ms();
		CHECK(s.transport.waitForWrite(200ms).get() == RdmaCode::Timeout);
		// Each write ends in its time, whether its path needs the peer or not.
		for (int i = 0; i < 3; i++)
			CHECK(s.transport.write(s.memory->createView(), *s.remote, true, 300ms).get() != RdmaCode::Aborted);
		CHECK(test_now_ms() - start < (uint64_t)test_ms(8000));
		s.memory.reset();
		kill(n->peer, SIGCONT);
		barrier(n);
	});
}

void stages(node *n)
{
	only_staged();
	serves_pingpong(n);
}
void stages_too(node *n)
{
	only_staged();
	asks_pingpong(n);
}

} // namespace

TEST_WITHIN(60, pingpong_with_values)
{
	pair(nullptr, serves_pingpong, asks_pingpong, nullptr);
}

TEST_WITHIN(60, pingpong_staged)
{
	skip_unless(traits()->knows_regions, "it stages by itself where it has to");
	pair(nullptr, stages, stages_too, nullptr);
}

TEST(a_busy_peer_is_read)
{
	pair(nullptr, computes, reads_meanwhile, nullptr);
}

TEST(what_the_target_refuses)
{
	pair(nullptr, withdraws, is_refused, nullptr);
}

TEST_WITHIN(40, a_killed_peer_ends_every_wait)
{
	// Soft-RoCE takes 7 repeats for repeats without end, and a dying peer's goodbye can be lost: then only these tell.
	setenv("GDRFAB_VERBS_RETRIES", "6", 0);
	setenv("GDRFAB_VERBS_TIMEOUT", "17", 0);
	static const setup victim = [] {
		setup s = {};
		s.victim = TEST_SERVER;
		return s;
	}();
	pair(&victim, dies, outlives, nullptr);
}

TEST_WITHIN(40, a_stopped_peer_costs_the_time_limit)
{
	pair(nullptr, stops, waits_for_the_stopped, nullptr);
}
