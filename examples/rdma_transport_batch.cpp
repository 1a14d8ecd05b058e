// SPDX-License-Identifier: Apache-2.0 OR MIT
// A sender writes a table of blocks to a receiver: it posts all of them at once, each to its place, and asks for the
// results afterwards. The last write notifies, with the number of blocks. Since writes take effect in the order of
// their calls, the receiver then has all of them. The receiver checks them, and reads one block back from the sender.
//
//   c++ -std=c++17 -o rdma_transport_batch rdma_transport_batch.cpp $(pkg-config --cflags --libs gdrfab) -pthread
//   ./rdma_transport_batch [provider [blocks]]
#include <gdrfab/rdma_transport.hpp>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace {

using Status = gdrfab::RdmaFuture<gdrfab::RdmaStatus>;

constexpr size_t BLOCK = 16384;

void good(const gdrfab::RdmaStatus &status, const char *what)
{
	if (!status.ok())
		throw std::runtime_error(std::string(what) + ": " + status.what());
}

// Urls and keys are exchanged over a pipe here; any means that carries text will do.
void tell(int out, const std::string &text)
{
	const size_t len = text.size();
	if (write(out, &len, sizeof len) != sizeof len || write(out, text.data(), len) != static_cast<ssize_t>(len))
		throw std::runtime_error("the peer is gone");
}
std::string hear(int in)
{
	size_t len = 0;
	if (read(in, &len, sizeof len) != sizeof len || len > 65536)
		throw std::runtime_error("the peer is gone");
	std::string text(len, '\0');
	if (read(in, &text[0], len) != static_cast<ssize_t>(len))
		throw std::runtime_error("the peer is gone");
	return text;
}

void sender(gdrfab::RdmaTransport &transport, size_t blocks, int in, int out)
{
	std::vector<unsigned char> table(blocks * BLOCK);
	for (size_t b = 0; b < blocks; b++)
		std::memset(&table[b * BLOCK], static_cast<int>(b % 251), BLOCK);
	gdrfab::RdmaMemory memory(table.data(), table.size());
	tell(out, memory.remoteKey());
	const gdrfab::RdmaRemoteBuffer place(hear(in));

	const auto start = std::chrono::steady_clock::now();
	std::vector<Status> results;
	for (size_t b = 0; b < blocks; b++) {
		const auto notify = b + 1 < blocks ? gdrfab::RdmaNotify() : gdrfab::RdmaNotify::with(blocks);
		results.push_back(transport.write(memory.createView(b * BLOCK, BLOCK), place.slice(b * BLOCK, BLOCK), notify));
	}
	for (Status &result : results)
		good(result.get(), "write");
	const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
	std::printf("sender: %zu blocks of %zu bytes over %s, %.2f GB/s\n", blocks, BLOCK, transport.path(place).c_str(),
		    static_cast<double>(table.size()) / took.count() / 1e3);
	if (hear(in) != "through")
		throw std::runtime_error("the receiver is not content");
}

void receiver(gdrfab::RdmaTransport &transport, size_t blocks, int in, int out)
{
	gdrfab::RdmaMemory memory = gdrfab::RdmaMemory::allocate(blocks * BLOCK);
	const auto *table = static_cast<const unsigned char *>(memory.data());
	const gdrfab::RdmaRemoteBuffer original(hear(in));
	tell(out, memory.remoteKey());
	const gdrfab::RdmaNotification all = transport.waitForWrite().get();
	good(all.status, "waitForWrite");
	bool right = all.value == blocks;
	for (size_t b = 0; b < blocks; b++)
		right = right && table[b * BLOCK] == b % 251 && table[(b + 1) * BLOCK - 1] == b % 251;

	std::vector<unsigned char> one(BLOCK);
	gdrfab::RdmaMemory check(one.data(), one.size());
	good(transport.read(check.createMutableView(), original.slice((blocks - 1) * BLOCK, BLOCK)).get(), "read");
	right = right && std::memcmp(one.data(), table + (blocks - 1) * BLOCK, BLOCK) == 0;
	std::printf("receiver: %s\n", right ? "every block is in its place" : "wrong bytes");
	tell(out, right ? "through" : "wrong");
}

} // namespace

int main(int argc, char **argv)
{
	const size_t blocks = argc > 2 ? std::strtoull(argv[2], nullptr, 0) : 1000;
	std::signal(SIGPIPE, SIG_IGN); // a dead peer is then an error to report, and does not end this process
	int there[2], back[2], status = 1;
	if (blocks == 0 || pipe(there) < 0 || pipe(back) < 0)
		return 1;
	// Forks first: a child must not use objects that its parent has opened.
	const pid_t child = fork();
	if (child < 0)
		return 1;
	const int in = child ? back[0] : there[0], out = child ? there[1] : back[1];
	close(child ? back[1] : there[1]);
	close(child ? there[0] : back[0]);
	int failed = 0;
	try {
		gdrfab::RdmaOptions options;
		if (argc > 1)
			options.providers = {argv[1]};
		gdrfab::RdmaTransport transport(-1, options);
		tell(out, transport.bind());
		good(transport.connect(hear(in)), "connect");
		child ? sender(transport, blocks, in, out) : receiver(transport, blocks, in, out);
	} catch (const std::exception &e) {
		std::fprintf(stderr, "rdma_transport_batch: %s\n", e.what());
		failed = 1;
	}
	close(in);
	close(out);
	if (child && (waitpid(child, &status, 0) != child || status != 0) && !failed) {
		std::fprintf(stderr, "rdma_transport_batch: the receiver did not end as it should\n");
		failed = 1;
	}
	return failed;
}
