// SPDX-License-Identifier: Apache-2.0 OR MIT
// One thread closes memory or a transport while another uses it. The last claim is for the sanitizers.
#include "rdma_transport.h"

#include <atomic>
#include <thread>

using namespace gdrfab;
using namespace std::chrono_literals;

namespace {

std::shared_ptr<detail::Domain> open_domain(bool thread)
{
	std::string why;
	detail::DomainRequest request;
	request.provider = provider();
	request.thread = thread;
	auto domain = detail::Domains::here().open(request, why);
	skip_unless(domain != nullptr, why.c_str());
	return domain;
}

size_t registrations(detail::Region &region)
{
	size_t count = 0;
	region.each([&](const detail::Registration &) { count++; });
	return count;
}

} // namespace

TEST_WITHIN(60, memory_that_is_gone_is_registered_nowhere)
{
	const auto first = open_domain(true), second = open_domain(false);
	std::vector<char> bytes(4096);
	for (int round = 0; round < test_count(40, 8); round++) {
		detail::Region region(bytes.data(), bytes.size(), -1, memory_options());
		region.in(first);
		std::atomic<bool> used{false}, ends{false};
		std::thread user, owner;
		// Both threads come to the lock while this one holds it.
		region.each([&](const detail::Registration &) {
			owner = std::thread([&] {
				ends = true;
				CHECK(region.close());
			});
			user = std::thread([&] {
				used = true;
				try {
					region.in(second);
				} catch (const std::invalid_argument &) {
				}
			});
			while (!used || !ends)
				std::this_thread::yield();
			test_sleep_ms(2);
		});
		user.join();
		owner.join();
		CHECK_EQ(registrations(region), 0);
		THROWS(std::invalid_argument, "destroyed", region.in(second));
	}
}

TEST_WITHIN(60, memory_that_goes_while_threads_use_it)
{
	const auto first = open_domain(true), second = open_domain(false);
	std::vector<char> bytes(4096);
	for (int round = 0; round < test_count(300, 50); round++) {
		detail::Region region(bytes.data(), bytes.size(), -1, memory_options());
		void *const desc = region.in(first);
		std::atomic<int> looks{0};
		std::vector<std::thread> users;
		for (int t = 0; t < 2; t++)
			users.emplace_back([&] {
				try {
					for (;; looks++) {
						CHECK(region.in(first) == desc);
						region.in(second);
					}
				} catch (const std::invalid_argument &) {
				}
			});
		while (looks < 50)
			std::this_thread::yield();
		CHECK(region.close());
		for (auto &user : users)
			user.join();
		CHECK_EQ(registrations(region), 0);
	}
}

TEST_WITHIN(60, a_transport_that_is_closed_while_it_binds)
{
	open_domain(true);
	for (int round = 0; round < test_count(200, 20); round++) {
		RdmaTransport transport(-1, options());
		std::atomic<int> ready{0};
		auto together = [&] {
			for (ready++; ready < 2;)
				;
		};
		std::thread binds([&] {
			together();
			try {
				transport.bind();
			} catch (const std::logic_error &) {
			}
		});
		together();
		transport.close();
		binds.join();
		THROWS(std::logic_error, "closed", transport.bind());
		CHECK(!transport.connected());
	}
}

TEST_WITHIN(60, a_transport_that_ends_under_all_its_calls)
{
	for (int round = 0; round < test_count(20, 4); round++) {
		Two two(round % 2 == 0);
		std::atomic<bool> over{false};
		std::vector<std::thread> all;
		for (int t = 0; t < 2; t++) {
			all.emplace_back([&] {
				while (!over) {
					RdmaMemory brief(two.bytes_a.data(), 5000, -1, memory_options());
					two.a->write(brief.createView(), *two.remote_b, true, 10s).get();
					auto thrown_away = two.a->read(brief.createMutableView(), *two.remote_b);
					thrown_away.wait_for(1s);
					RdmaMemory moved = std::move(brief);
					brief = std::move(moved);
				}
			});
			all.emplace_back([&] {
				while (!over)
					two.b->waitForWrite(1ms).get();
			});
		}
		all.emplace_back([&] {
			while (!over) {
				two.a->explain(*two.remote_b);
				two.a->path(*two.remote_b);
				two.b->tryWait();
				two.b->fd();
				two.b->progress();
			}
		});
		test_sleep_ms(20);
		std::thread other([&] { two.b->close(); });
		two.a->close();
		other.join();
		test_sleep_ms(1);
		over = true;
		for (auto &thread : all)
			thread.join();
		CHECK(two.a->write(two.memory_a->createView(), *two.remote_b).get() == RdmaCode::Aborted);
	}
}

TEST_WITHIN(60, words_while_a_transport_connects)
{
	for (int round = 0; round < test_count(30, 5); round++) {
		RdmaTransport a(-1, options()), b(-1, options());
		std::atomic<bool> over{false};
		std::thread asks([&] {
			while (!over) {
				a.explain();
				a.path();
				a.connected();
			}
		});
		a.bind();
		const std::string url = b.bind();
		std::thread connects([&] { GOOD(b.connect(a.bind())); });
		GOOD(a.connect(url));
		connects.join();
		over = true;
		asks.join();
		CHECK(a.connected() && b.connected());
	}
}
