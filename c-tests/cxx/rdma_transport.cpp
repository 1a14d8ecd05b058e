// SPDX-License-Identifier: Apache-2.0 OR MIT
// The C++ interface within one process: invalid texts, ranges and arguments are refused, and two transports work, driven by one
// thread or by many. rdma_transport_peers.cpp has two processes.
#include "rdma_transport.h"

#include <poll.h>
#include <thread>

using namespace gdrfab;
using namespace std::chrono_literals;

TEST(texts_that_changed_on_their_way)
{
	std::vector<char> bytes(100);
	RdmaMemory memory(bytes.data(), bytes.size(), -1, memory_options());
	RdmaTransport transport(-1, options());
	const std::string key = memory.remoteKey(), url = transport.bind();
	CHECK(RdmaRemoteBuffer(key).len == bytes.size() && RdmaRemoteBuffer(key).ptr == bytes.data());
	CHECK(detail::Url::parse(url).text() == url);
	for (size_t cut = 0; cut < key.size(); cut++)
		THROWS(std::invalid_argument, "accessKey", RdmaRemoteBuffer(key.substr(0, cut)));
	for (size_t at = 0; at < key.size(); at++) {
		std::string other = key;
		other[at] ^= 1;
		THROWS(std::invalid_argument, "accessKey", RdmaRemoteBuffer{other});
	}
	for (size_t cut = 0; cut < url.size(); cut++)
		THROWS(std::invalid_argument, "peerUrl", transport.connect(url.substr(0, cut)));
	THROWS(std::invalid_argument, "peerUrl", transport.connect(key));
	THROWS(std::invalid_argument, "accessKey", RdmaRemoteBuffer{url});
	// Well made, of nonsense.
	THROWS(std::invalid_argument, "number", RdmaRemoteBuffer(detail::Text("gdrfab-key").add("k", {"x", "1"}).done()));
	THROWS(std::invalid_argument, "contains no keys", RdmaRemoteBuffer(detail::Text("gdrfab-key").add("new", {"1"}).done()));
	THROWS(std::invalid_argument, "range", RdmaRemoteBuffer(detail::Text("gdrfab-key").add("k", {"1", "1"}).add(
						       "at", {"ffffffffffffffff", "2", "0"}).done()));
	THROWS(std::invalid_argument, "no transport", transport.connect(detail::Text("gdrfab-rdma").done()));
	const auto odd = detail::Text("x").add("v", {"a;b,c%d e", ""}).done();
	CHECK(detail::Text::parse("x", "odd", odd)[0].values[0] == "a;b,c%d e");
}

TEST(values_in_parts_of_31_bits)
{
	for (uint64_t value : {uint64_t{0}, uint64_t{1}, uint64_t{0x7fffffff}, uint64_t{0x80000000}, uint64_t{1} << 61,
			       uint64_t{1} << 62, ~uint64_t{0}, uint64_t{0x123456789abcdef0}}) {
		detail::Parts parts;
		uint32_t ahead[2];
		unsigned count = 0;
		uint64_t whole = 0;
		const uint32_t last = detail::Parts::split(value, ahead, count);
		for (int again = 0; again < 2; again++) {
			for (unsigned i = 0; i < count; i++)
				CHECK(!parts.join(ahead[i], whole));
			CHECK(parts.join(last, whole) && whole == value);
		}
		CHECK_EQ(count, value >> 62 ? 2 : value >> 31 ? 1 : 0);
	}
}

TEST(both_sides_choose_alike)
{
	auto url = [](uint64_t id, const char *host, std::vector<std::string> providers, const char *tcp) {
		detail::Url u{id, host, {}};
		for (const std::string &p : providers)
			u.offers.push_back({p, id, p == "tcp" ? tcp : p + "://x"});
		return u;
	};
	auto agree = [](const detail::Url &a, const detail::Url &b, const char *want) {
		std::string why_a, why_b;
		CHECK(detail::choose(a, b, why_a) == want && detail::choose(b, a, why_b) == want && why_a == why_b);
	};
	const char *wide = "tcp://192.0.2.1:7/1", *loop = "tcp://127.0.0.1:7/1";
	agree(url(1, "h", {"shm", "verbs", "tcp"}, wide), url(2, "h", {"shm", "verbs", "tcp"}, wide), "shm");
	agree(url(1, "h", {"shm", "verbs", "tcp"}, wide), url(2, "i", {"shm", "verbs", "tcp"}, wide), "verbs");
	agree(url(1, "h", {"shm", "tcp"}, wide), url(2, "i", {"shm", "verbs", "tcp"}, wide), "tcp");
	agree(url(1, "h", {"tcp", "shm"}, wide), url(2, "h", {"shm", "tcp"}, wide), "tcp");
	agree(url(3, "h", {"tcp", "shm"}, wide), url(2, "h", {"shm", "tcp"}, wide), "shm");
	agree(url(1, "h", {"shm", "tcp"}, loop), url(2, "i", {"shm", "tcp"}, wide), "");
	agree(url(1, "h", {"tcp"}, loop), url(2, "h", {"tcp"}, loop), "tcp");
	agree(url(1, "h", {"shm"}, wide), url(2, "h", {"tcp"}, wide), "");
}

TEST(views_stay_inside)
{
	std::vector<char> bytes(1000);
	RdmaMemory memory(bytes.data(), bytes.size(), -1, memory_options());
	CHECK(memory.length() == 1000 && memory.data() == bytes.data() && memory.getDevice() == -1);
	CHECK(memory.createView().size() == 1000 && memory.createView(0, 0).size() == 0 && memory.createView(1000, 0).size() == 0);
	CHECK(memory.createView(bytes.data() + 10, 20).data() == bytes.data() + 10);
	CHECK(memory.createMutableView(10, 990).data() == bytes.data() + 10);
	CHECK(memory.contains(bytes.data(), 1000) && memory.contains(bytes.data() + 1000, 0));
	CHECK(!memory.contains(bytes.data() + 1, 1000) && !memory.contains(bytes.data() - 1, 1) && !memory.contains(nullptr, 1));
	CHECK(!memory.contains(bytes.data() + 1, SIZE_MAX));
	THROWS(std::out_of_range, "1000", memory.createView(0, 1001));
	THROWS(std::out_of_range, "createView", memory.createView(1001, 0));
	THROWS(std::out_of_range, "createView", memory.createView(1, SIZE_MAX));
	THROWS(std::out_of_range, "createView", memory.createView(-1, 1));
	THROWS(std::out_of_range, "before", memory.createView(bytes.data() - 1, 2));
	THROWS(std::out_of_range, "createMutableView", memory.createMutableView(bytes.data() + 999, 2));
	const RdmaRemoteBuffer whole(memory.remoteKey());
	CHECK(whole.slice(1000, 0).len == 0 && whole.slice(5, 10).ptr == bytes.data() + 5);
	THROWS(std::out_of_range, "slice", whole.slice(1, 1000));
	THROWS(std::out_of_range, "slice", whole.slice(5, 10).slice(5, 6));
	THROWS(std::out_of_range, "inside the peer's", RdmaRemoteBuffer(bytes.data() + 1, 1000, whole.accessKey()));
	THROWS(std::out_of_range, "inside the peer's", RdmaRemoteBuffer(bytes.data() - 1, 1, whole.accessKey()));
	RdmaMemory moved = std::move(memory);
	THROWS(std::logic_error, "moved", memory.createView());
	CHECK(moved.createView().size() == 1000);
}

TEST(arguments_that_make_no_sense)
{
	char byte = 0;
	THROWS(std::invalid_argument, "buf", RdmaMemory(nullptr, 1));
	THROWS(std::invalid_argument, "len", RdmaMemory(&byte, 0));
	THROWS(std::invalid_argument, "address space", RdmaMemory(&byte, SIZE_MAX));
	THROWS(std::invalid_argument, "device", RdmaMemory(&byte, 1, -2));
	THROWS(std::invalid_argument, "accelerator", RdmaMemory(&byte, 1, 0));
	THROWS(std::invalid_argument, "len", RdmaMemory::allocate(0));
	THROWS(RdmaError, "device 63", RdmaMemory::allocate(1, 63));
	THROWS(std::invalid_argument, "device", RdmaTransport(-2));
	THROWS(RdmaError, "device 63", RdmaTransport(63));
	RdmaOptions o;
	o.providers = {"ucx"};
	THROWS(std::invalid_argument, "ucx", RdmaTransport(-1, o));
	o.providers = {};
	THROWS(std::invalid_argument, "providers", RdmaTransport(-1, o));
	o = RdmaOptions();
	o.timeout = 0ms;
	THROWS(std::invalid_argument, "limit", RdmaTransport(-1, o));
	o = RdmaOptions();
	o.authKey = "short";
	THROWS(std::invalid_argument, "authKey", RdmaTransport(-1, o));

	Two two;
	RdmaTransport fresh(-1, options());
	const auto view = two.memory_a->createMutableView();
	CHECK(!fresh.connected() && fresh.path().empty() && fresh.fd() == -1);
	THROWS(std::logic_error, "bind", fresh.connect(two.url_a));
	const std::string own = fresh.bind();
	CHECK(fresh.bind() == own);
	THROWS(std::invalid_argument, "own", fresh.connect(own));
	THROWS(std::logic_error, "connect", fresh.write(view, *two.remote_b));
	THROWS(std::logic_error, "connect", fresh.waitForWrite());
	THROWS(std::logic_error, "once", two.a->connect(two.url_b));
	THROWS(std::invalid_argument, "timeout", two.a->write(view, *two.remote_b, false, 0ms));
	THROWS(std::invalid_argument, "timeout", two.a->read(view, *two.remote_b, -1ms));
	THROWS(std::invalid_argument, "timeout", two.a->waitForWrite(-1ms));
	THROWS(std::out_of_range, "remote buffer", two.a->write(view, two.remote_b->slice(0, view.size() - 1)));
	RdmaRemoteBuffer forged = *two.remote_b;
	forged.len++;
	THROWS(std::out_of_range, "inside the peer's", two.a->write(view, forged));
	const auto other = detail::Text("gdrfab-key").add("k", {"1", "2"}).add("at", {"1000", "100000", "0"}).done();
	THROWS(std::invalid_argument, "not from the process", two.a->write(view, RdmaRemoteBuffer(other)));
	RdmaFuture<RdmaStatus> none;
	THROWS(std::future_error, "", none.get());
	std::optional<RdmaMemory::View> gone;
	{
		RdmaMemory brief(&byte, 1, -1, memory_options());
		gone = brief.createView();
	}
	THROWS(std::invalid_argument, "destroyed", two.a->write(*gone, *two.remote_b));
	CHECK(two.a->write(view, *two.remote_b).get().ok());
}

TEST(one_thread_both_sides)
{
	const int fds = test_count_fds();
	for (bool thread : {true, false}) {
		Two two(thread);
		CHECK(two.a->connected() && two.b->connected());
		CHECK(two.a->path() == provider() && two.a->path(*two.remote_b).find(provider()) == 0);
		CHECK(two.a->explain(*two.remote_b).find("taken") != std::string::npos);
		fill(two.bytes_a.data(), two.bytes_a.size(), 0, 1);
		auto done = two.a->write(two.memory_a->createView(), *two.remote_b, true);
		auto note = two.b->waitForWrite(10s).get();
		GOOD(note.status);
		CHECK(note == RdmaCode::Success && note.value == 1 && note.sequence == 1 && note.length == two.bytes_a.size());
		while (done.wait_for(1ms) != std::future_status::ready)
			two.b->progress();
		GOOD(done.get());
		CHECK(!done.valid());
		CHECK_FILLED("written", two.bytes_b.data(), two.bytes_b.size(), 0, 1);
		std::fill(two.bytes_a.begin(), two.bytes_a.end(), 0);
		auto back = two.a->read(two.memory_a->createMutableView(7, 100), two.remote_b->slice(7, 100), 20s);
		while (!back.ready())
			two.b->progress(), two.a->progress();
		GOOD(back.get());
		CHECK_FILLED("read back", two.bytes_a.data() + 7, 100, 7, 1);
		CHECK(two.bytes_a[6] == 0 && two.bytes_a[107] == 0);
		for (uint64_t value : {uint64_t{0}, ~uint64_t{0}, uint64_t{0xdeadbeef00000000}}) {
			auto tells = two.a->write(two.memory_a->createView(0, 0), *two.remote_b, RdmaNotify::with(value));
			auto told = two.b->waitForWrite(10s);
			/* Without the library's thread the writer's side sends its gathered operations when it is called. */
			while (!told.ready())
				two.b->progress(), two.a->progress();
			CHECK(told.get().value == value);
		}
		CHECK(two.b->waitForWrite(0ms).get() == RdmaCode::Timeout);
		CHECK(two.b->waitForWrite(30ms).get() == RdmaCode::Timeout);
		auto standard = two.a->waitForWrite(30ms);
		CHECK(std::move(standard).toStdFuture().get() == RdmaCode::Timeout);
	}
	if (!traits()->adapter) // whose libraries keep descriptors
		CHECK_EQ(test_count_fds(), fds);
}

TEST(results_of_a_transport_that_ends)
{
	auto two = std::make_unique<Two>();
	auto before = two->a->waitForWrite();
	auto meanwhile = two->a->waitForWrite();
	std::thread waits([&] { CHECK(meanwhile.get() == RdmaCode::Aborted); });
	test_sleep_ms(20);
	two->a->close();
	waits.join();
	CHECK(before.get() == RdmaCode::Aborted);
	CHECK(two->a->waitForWrite().get() == RdmaCode::Aborted);
	CHECK(two->a->write(two->memory_a->createView(), *two->remote_b).get() == RdmaCode::Aborted);
	CHECK(!two->a->connected() && two->a->fd() == -1);
	// And of its peer.
	const auto start = test_now_ms();
	CHECK(two->b->waitForWrite(10s).get() == RdmaCode::Broken);
	CHECK(test_now_ms() - start < 5000 && !two->b->connected());
	CHECK(two->b->write(two->memory_b->createView(), *two->remote_a).get() == RdmaCode::Broken);
	auto later = two->b->waitForWrite();
	two.reset();
	CHECK(later.get() == RdmaCode::Broken);
}

TEST(operations_that_are_late_or_cut_off)
{
	setenv("GDRFAB_FAULT", "delay=60000000:write", 1);
	Two two;
	skip_unless(traits()->survives_failures, "a late operation ends the connection");
	const auto start = test_now_ms();
	const auto status = two.a->write(two.memory_a->createView(), *two.remote_b, true, 50ms).get();
	CHECK(status == RdmaCode::Timeout && status.error() == ETIMEDOUT && !status.what().empty());
	CHECK(test_now_ms() - start < (uint64_t)test_ms(5000) && two.a->connected());
	GOOD(two.a->read(two.memory_a->createMutableView(), *two.remote_b).get());
	std::vector<RdmaFuture<RdmaStatus>> pending;
	for (int i = 0; i < 10; i++)
		pending.push_back(two.a->write(two.memory_a->createView(), *two.remote_b));
	pending.erase(pending.begin()); // nobody asks for this one
	two.a.reset();
	for (auto &p : pending)
		CHECK(p.get() == RdmaCode::Aborted);
}

TEST(a_peer_that_never_connects)
{
	RdmaOptions o = options();
	o.connectTimeout = 300ms;
	RdmaTransport a(-1, o);
	a.bind();
	std::string url;
	{
		RdmaTransport gone(-1, o);
		url = gone.bind();
	}
	const auto start = test_now_ms();
	const auto status = a.connect(url);
	CHECK(!status.ok() && test_now_ms() - start < (uint64_t)test_ms(5000));
	CHECK(a.waitForWrite().get() == RdmaCode::Broken);
	RdmaTransport b(-1, o), silent(-1, o);
	b.bind();
	url = silent.bind();
	GOOD(b.connect(url)); // in this process: the peer's call is to finish it
	CHECK(!b.connected());
	char byte = 0;
	RdmaMemory memory(&byte, 1, -1, memory_options());
	CHECK(!b.write(memory.createView(), RdmaRemoteBuffer(memory.remoteKey()), false, 50ms).get().ok());
}

TEST_WITHIN(60, many_threads_and_many_operations)
{
	Two two;
	const int threads = 4, rounds = test_count(2000, 100);
	const size_t share = two.bytes_a.size() / threads;
	std::vector<std::thread> all;
	std::atomic<int> told{0};
	for (int t = 0; t < threads; t++) {
		all.emplace_back([&, t] {
			RdmaMemory mine(two.bytes_a.data() + t * share, share, -1, memory_options());
			const auto there = two.remote_b->slice(t * share, share);
			std::vector<RdmaFuture<RdmaStatus>> some;
			for (int i = 0; i < rounds; i++) {
				some.push_back(two.a->write(mine.createView(), there, i % 10 == 0));
				if (i % 7 == 0)
					GOOD(two.a->read(mine.createMutableView(), there, 20s).get());
				if (some.size() == 50 || i + 1 == rounds) {
					for (auto &s : some)
						GOOD(s.get());
					some.clear();
				}
			}
		});
		all.emplace_back([&] {
			while (told.fetch_add(1) < threads * ((rounds + 9) / 10))
				GOOD(two.b->waitForWrite(20s).get().status);
		});
	}
	for (auto &t : all)
		t.join();
	CHECK(two.b->waitForWrite(0ms).get() == RdmaCode::Timeout);
	// More than fit under way at once, and then one by one.
	std::vector<RdmaFuture<RdmaStatus>> many;
	for (int i = 0; i < rounds * 2; i++)
		many.push_back(two.a->write(two.memory_a->createView(0, 8), *two.remote_b));
	for (auto &m : many)
		GOOD(m.get());
}

TEST(an_event_loop_of_the_program)
{
	Two two;
	auto note = two.b->waitForWrite(10s);
	std::thread writer([&] {
		for (int i = 0; i < 10; i++) {
			test_sleep_ms(3);
			GOOD(two.a->write(two.memory_a->createView(), *two.remote_b, true).get());
		}
	});
	for (int got = 0; got < 10;) {
		pollfd p = {two.b->fd(), POLLIN, 0};
		CHECK(p.fd >= 0);
		if (two.b->tryWait())
			CHECK(poll(&p, 1, 10000) == 1);
		two.b->progress();
		// The next may be here already, with nothing more to come.
		while (got < 10 && note.ready()) {
			CHECK(note.get().value == static_cast<uint64_t>(++got));
			note = two.b->waitForWrite(10s);
		}
	}
	writer.join();
}

TEST(a_child_leaves_its_parents_transport_alone)
{
	if (getenv("TEST_TIME_SCALE"))
		test_skip("a memory checker finds what the parent's threads held, which the child has not");
	Two two;
	auto note = two.b->waitForWrite();
	pid_t pid = test_fork(TEST_SERVER);
	if (pid == 0) {
		CHECK(two.a->write(two.memory_a->createView(), *two.remote_b, false, 100ms).valid());
		two.a.reset();
		two.b.reset();
		Two own;
		GOOD(own.a->write(own.memory_a->createView(), *own.remote_b).get());
		test_child_done();
	}
	int status = 1;
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK_EQ(status, 0);
	GOOD(two.a->write(two.memory_a->createView(), *two.remote_b, true).get());
	GOOD(note.get().status);
}

TEST(memory_of_an_accelerator)
{
	if (!test_says(getenv("TEST_IFACES"), "cuda"))
		test_skip("TEST_IFACES does not name cuda");
	Two two;
	RdmaMemory device = RdmaMemory::allocate(two.bytes_a.size(), 0, memory_options());
	CHECK(device.getDevice() == 0);
	THROWS(std::invalid_argument, "of device 0", RdmaMemory(device.data(), 10, 1));
	THROWS(std::invalid_argument, "only", RdmaMemory(device.data(), size_t{1} << 40, 0));
	const RdmaRemoteBuffer there(device.remoteKey());
	fill(two.bytes_a.data(), two.bytes_a.size(), 0, 9);
	GOOD(two.a->write(two.memory_a->createView(), there).get());
	GOOD(two.a->read(two.memory_a->createMutableView(), there).get());
	CHECK_FILLED("through the device", two.bytes_a.data(), two.bytes_a.size(), 0, 9);
	GOOD(two.a->write(device.createView(), *two.remote_b).get());
	CHECK_FILLED("from the device", two.bytes_b.data(), two.bytes_b.size(), 0, 9);
	RdmaTransport host(0, options());
	CHECK(!host.bind().empty() && RdmaTransport::supported(0));
}
