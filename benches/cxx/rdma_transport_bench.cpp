// SPDX-License-Identifier: Apache-2.0 OR MIT
// torchcomms' RdmaTransport benchmark with gdrfab's class: one operation at a time, write().get() and read().get(), and
// registering and deregistering 8 KiB. With --overhead: the cost that the C++ layer adds to the C functions, with the
// same connection settings in the same run.
//
//   c++ -std=c++17 -O2 -o rdma_transport_bench rdma_transport_bench.cpp $(pkg-config --cflags --libs gdrfab) -pthread
//   ./rdma_transport_bench [--mem host|malloc|cuda:A,B] [--two] [--providers tcp] [--max BYTES] [--overhead]
#include <gdrfab/rdma_transport.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <sys/wait.h>
#include <unistd.h>

using namespace gdrfab;
using Clock = std::chrono::steady_clock;

namespace {

struct Plan {
	bool plain = false, two = false, overhead = false;
	int local = -1, remote = -1; // devices
	size_t most = size_t{256} << 20;
	RdmaOptions options;
};

double since(Clock::time_point start)
{
	return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// The median time of one call of `work` in microseconds; each sample is `batch` calls.
double median(double seconds, int batch, const std::function<void()> &work)
{
	for (int i = 0; i < batch; i++)
		work();
	std::vector<double> samples;
	const auto start = Clock::now();
	while (samples.size() < 5 || (since(start) < seconds * 1e6 && samples.size() < 20000)) {
		const auto t = Clock::now();
		for (int i = 0; i < batch; i++)
			work();
		samples.push_back(since(t) / batch);
	}
	std::nth_element(samples.begin(), samples.begin() + static_cast<long>(samples.size() / 2), samples.end());
	return samples[samples.size() / 2];
}

[[noreturn]] void fail(const std::string &words)
{
	std::fprintf(stderr, "rdma_transport_bench: %s\n", words.c_str());
	std::exit(1);
}
void need(const RdmaStatus &status, const char *what)
{
	if (!status.ok())
		fail(std::string(what) + ": " + status.what());
}

struct Buffer {
	std::vector<char> own;
	std::optional<RdmaMemory> memory;
	Buffer(const Plan &plan, int device, size_t len)
	{
		if (device < 0 && plan.plain) {
			own.assign(len, 'x');
			memory.emplace(own.data(), len);
		} else {
			memory.emplace(RdmaMemory::allocate(len, device));
			if (device < 0)
				std::memset(const_cast<void *>(memory->data()), 'x', len);
		}
	}
};

void table(const Plan &plan, RdmaTransport &transport, const std::string &remote_key)
{
	const RdmaRemoteBuffer whole(remote_key);
	Buffer buffer(plan, plan.local, plan.most);
	std::printf("%-8s %12s %12s %10s  %s\n", "op", "bytes", "median us", "GB/s", "path");
	for (bool writes : {true, false}) {
		for (size_t len : {size_t{8} << 10, size_t{64} << 10, size_t{1} << 20, size_t{8} << 20, size_t{32} << 20, size_t{256} << 20}) {
			if (len > plan.most)
				break;
			const auto view = buffer.memory->createMutableView(0, len);
			const RdmaRemoteBuffer remote = whole.slice(0, len);
			const double us = median(1, 1, [&] {
				need((writes ? transport.write(view, remote) : transport.read(view, remote)).get(), "an operation");
			});
			std::printf("%-8s %12zu %12.2f %10.2f  %s\n", writes ? "write" : "read", len, us,
				    static_cast<double>(len) / us / 1e3, transport.path(remote).c_str());
		}
	}
	Buffer small(plan, plan.local, 8192);
	const void *at = small.memory->data();
	const double us = median(0.5, 1, [&] { RdmaMemory registered(at, 8192, plan.local); });
	std::printf("%-8s %12d %12.2f %10s  %s\n", "register", 8192, us, "-", "and deregister");
}

// The C functions between two endpoints of one domain, set up like the transport's.
double bare(bool writes, size_t len, char *local, char *remote)
{
	std::string why;
	detail::DomainRequest request;
	request.provider = "shm";
	auto domain = detail::Domains::here().open(request, why);
	if (!domain)
		fail(why);
	detail::Rail a(domain, detail::InfoPtr(gdrfab_dupinfo(domain->info.get())), 0, std::chrono::seconds(30));
	detail::Rail b(domain, detail::InfoPtr(gdrfab_dupinfo(domain->info.get())), 0, std::chrono::seconds(30));
	gdrfab_mr *mr = nullptr, *to = nullptr;
	const uint64_t access = GDRFAB_READ | GDRFAB_WRITE | GDRFAB_REMOTE_READ | GDRFAB_REMOTE_WRITE;
	detail::check("connect", gdrfab_ep_connect_addr(a.ep.get(), b.offer.address.c_str(), b.offer.address.size() + 1));
	detail::check("connect", gdrfab_ep_connect_addr(b.ep.get(), a.offer.address.c_str(), a.offer.address.size() + 1));
	for (gdrfab_eq *eq : {a.eq.get(), b.eq.get()}) {
		char event[sizeof(gdrfab_eq_cm_entry) + GDRFAB_CM_DATA_MAX];
		uint32_t kind = 0;
		detail::check("connect", gdrfab_eq_sread(eq, &kind, event, sizeof event, 5000, 0));
	}
	detail::check("register", gdrfab_mr_reg(domain->domain.get(), local, len, access, 0, 0, 0, nullptr, &mr));
	detail::check("register", gdrfab_mr_reg(domain->domain.get(), remote, len, access, 0, 0, 0, nullptr, &to));
	void *desc = gdrfab_mr_desc(mr);
	const uint64_t key = gdrfab_mr_key(to), at = reinterpret_cast<uintptr_t>(remote);
	const double us = median(1, 200, [&] {
		const ssize_t rc = writes ? gdrfab_write(a.ep.get(), local, len, desc, 0, at, key, &a)
					  : gdrfab_read(a.ep.get(), local, len, desc, 0, at, key, &a);
		detail::check("post", rc);
		gdrfab_cq_data_entry done;
		ssize_t got;
		do
			got = gdrfab_cq_read(a.cq.get(), &done, 1);
		while (got == -EAGAIN);
		detail::check("gdrfab_cq_read", got);
	});
	gdrfab_mr_close(mr);
	gdrfab_mr_close(to);
	return us;
}

void overhead()
{
	RdmaTransport a, b;
	const std::string url_a = a.bind(), url_b = b.bind();
	need(a.connect(url_b), "connect");
	need(b.connect(url_a), "connect");
	std::printf("%-6s %6s %10s %10s %10s %10s %10s %10s\n", "op", "bytes", "C us", "C++ us", "added us", "timeout", "std::fut",
		    "notify");
	for (bool writes : {true, false}) {
		for (size_t len : {size_t{8}, size_t{256}, size_t{4096}}) {
			RdmaMemory local = RdmaMemory::allocate(len), remote = RdmaMemory::allocate(len);
			const RdmaRemoteBuffer to(remote.remoteKey());
			const auto view = local.createMutableView();
			const auto post = [&](RdmaTransport::Timeout t) { return writes ? a.write(view, to, false, t) : a.read(view, to, t); };
			char *here = static_cast<char *>(view.data()), *there = static_cast<char *>(remote.createMutableView().data());
			const double c = bare(writes, len, here, there);
			const double cxx = median(1, 200, [&] { need(post({}).get(), "an operation"); });
			const double limit = median(1, 200, [&] { need(post(std::chrono::seconds(5)).get(), "an operation"); });
			const double standard = median(1, 200, [&] { need(post({}).toStdFuture().get(), "an operation"); });
			const double notify = !writes ? 0 : median(1, 200, [&] {
				need(a.write(view, to, true).get(), "a write");
				need(b.waitForWrite().get().status, "a notification");
			});
			std::printf("%-6s %6zu %10.3f %10.3f %10.3f %10.3f %10.3f %10.3f\n", writes ? "write" : "read", len, c, cxx, cxx - c,
				    limit, standard, notify);
		}
	}
}

std::string exchange(int out, int in, const std::string &mine)
{
	char theirs[4096] = "", own[4096] = "";
	std::snprintf(own, sizeof own, "%s", mine.c_str());
	if (write(out, own, sizeof own) != static_cast<ssize_t>(sizeof own))
		fail("the other process is gone");
	for (size_t got = 0; got < sizeof theirs;) {
		const ssize_t n = read(in, theirs + got, sizeof theirs - got);
		if (n <= 0)
			fail("the other process is gone");
		got += static_cast<size_t>(n);
	}
	return theirs;
}

void one_process(const Plan &plan)
{
	RdmaTransport a(plan.local, plan.options), b(plan.remote, plan.options);
	const std::string url_a = a.bind(), url_b = b.bind();
	need(a.connect(url_b), "connect");
	need(b.connect(url_a), "connect");
	Buffer target(plan, plan.remote, plan.most);
	table(plan, a, target.memory->remoteKey());
}

int two_processes(const Plan &plan)
{
	int there[2], back[2], status = 1;
	if (pipe(there) < 0 || pipe(back) < 0)
		fail("pipe");
	const pid_t child = fork();
	if (child < 0)
		fail("fork");
	const int out = child ? there[1] : back[1], in = child ? back[0] : there[0];
	close(child ? there[0] : back[0]);
	close(child ? back[1] : there[1]);
	RdmaTransport transport(child ? plan.local : plan.remote, plan.options);
	const std::string url = exchange(out, in, transport.bind());
	need(transport.connect(url), "connect");
	if (child) {
		table(plan, transport, exchange(out, in, ""));
		exchange(out, in, "done");
		return waitpid(child, &status, 0) == child && status == 0 ? 0 : 1;
	}
	Buffer target(plan, plan.remote, plan.most);
	exchange(out, in, target.memory->remoteKey());
	exchange(out, in, "");
	return 0;
}

} // namespace

int main(int argc, char **argv)
try {
	Plan plan;
	for (int i = 1; i < argc; i++) {
		const std::string flag = argv[i];
		const char *value = i + 1 < argc ? argv[i + 1] : "";
		if (flag == "--two") {
			plan.two = true;
		} else if (flag == "--overhead") {
			plan.overhead = true;
		} else if (flag == "--providers" && *value) {
			plan.options.providers = {value};
			i++;
		} else if (flag == "--max" && std::atol(value) > 0) {
			plan.most = static_cast<size_t>(std::atol(value));
			i++;
		} else if (flag == "--mem" && (!std::strcmp(value, "host") || !std::strcmp(value, "malloc"))) {
			plan.plain = !std::strcmp(value, "malloc");
			i++;
		} else if (flag == "--mem" && std::sscanf(value, "cuda:%d,%d", &plan.local, &plan.remote) == 2) {
			i++;
		} else {
			std::fprintf(stderr, "usage: %s [--mem host|malloc|cuda:A,B] [--two] [--providers shm|verbs|tcp] [--max BYTES] "
					     "[--overhead]\n", argv[0]);
			return 2;
		}
	}
	if (plan.overhead) {
		overhead();
		return 0;
	}
	std::printf("gdrfab %s, one operation at a time, %s, %s\n", gdrfab_version_string(),
		    plan.two ? "two processes" : "one process",
		    plan.local >= 0 ? "device memory" : plan.plain ? "host memory of malloc" : "host memory of RdmaMemory::allocate()");
	std::fflush(stdout);
	if (plan.two)
		return two_processes(plan);
	one_process(plan);
	return 0;
} catch (const std::exception &e) {
	fail(e.what());
}
