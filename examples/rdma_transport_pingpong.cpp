// SPDX-License-Identifier: Apache-2.0 OR MIT
// Two processes write into each other's memory in turn. Each learns by a notification that the other's bytes are there,
// and to which round they belong.
//
//   c++ -std=c++17 -o rdma_transport_pingpong rdma_transport_pingpong.cpp $(pkg-config --cflags --libs gdrfab) -pthread
//   ./rdma_transport_pingpong [--providers shm,verbs,tcp] [--address HOST] [--device N] [--rounds N] [--bytes N]
//
// The program forks its peer. With --role ping or --role pong it is one side only: it prints its url and its key as
// lines on standard output, and reads the peer's as lines from standard input. It thus runs on two hosts by any means
// that carries four lines of text.
#include <gdrfab/rdma_transport.hpp>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

namespace {

using gdrfab::RdmaNotify;

struct Plan {
	gdrfab::RdmaOptions options;
	std::string role;
	int device = -1;
	size_t rounds = 1000, bytes = 65536;
};

void good(const gdrfab::RdmaStatus &status, const char *what)
{
	if (!status.ok())
		throw std::runtime_error(std::string(what) + ": " + status.what());
}

void tell(FILE *out, const std::string &line)
{
	if (std::fprintf(out, "%s\n", line.c_str()) < 0 || std::fflush(out) != 0)
		throw std::runtime_error("the peer takes no text any more");
}

std::string hear(FILE *in)
{
	std::string line;
	for (int c; (c = std::getc(in)) != '\n'; line += static_cast<char>(c))
		if (c == EOF)
			throw std::runtime_error("the peer said nothing more");
	return line;
}

// Fills the memory with bytes that tell the round. The CPU may not touch device memory, so they are copied there.
void put(const gdrfab::RdmaMemory &memory, unsigned char mark)
{
	const std::string text(memory.length(), static_cast<char>(mark));
	const uint32_t iface = memory.getDevice() < 0 ? static_cast<uint32_t>(GDRFAB_HMEM_SYSTEM) : GDRFAB_HMEM_AUTO;
	if (gdrfab_hmem_copy_to(iface, 0, const_cast<void *>(memory.data()), text.data(), text.size()) != 0)
		throw std::runtime_error(gdrfab_last_error());
}
bool holds(const gdrfab::RdmaMemory &memory, unsigned char mark)
{
	std::string text(memory.length(), '\0');
	const uint32_t iface = memory.getDevice() < 0 ? static_cast<uint32_t>(GDRFAB_HMEM_SYSTEM) : GDRFAB_HMEM_AUTO;
	if (gdrfab_hmem_copy_from(iface, 0, &text[0], memory.data(), text.size()) != 0)
		throw std::runtime_error(gdrfab_last_error());
	return text.find_first_not_of(static_cast<char>(mark)) == std::string::npos;
}

void play(const Plan &plan, bool serves, FILE *in, FILE *out)
{
	gdrfab::RdmaTransport transport(plan.device, plan.options);
	tell(out, transport.bind());
	good(transport.connect(hear(in)), "connect");

	// Outgoing and incoming bytes have buffers of their own: a peer that is ahead must not overwrite bytes that
	// have not been read yet.
	gdrfab::RdmaMemory mine = gdrfab::RdmaMemory::allocate(plan.bytes, plan.device);
	gdrfab::RdmaMemory inbox = gdrfab::RdmaMemory::allocate(plan.bytes, plan.device);
	tell(out, inbox.remoteKey());
	const gdrfab::RdmaRemoteBuffer theirs(hear(in));

	const auto start = std::chrono::steady_clock::now();
	for (uint64_t round = 1; round <= plan.rounds; round++) {
		const auto mark = static_cast<unsigned char>(round);
		for (bool my_turn : {serves, !serves}) {
			if (my_turn) {
				put(mine, mark);
				good(transport.write(mine.createView(), theirs, RdmaNotify::with(round)).get(), "write");
				continue;
			}
			const gdrfab::RdmaNotification note = transport.waitForWrite().get();
			good(note.status, "waitForWrite");
			if (note.value != round || note.length != plan.bytes || !holds(inbox, mark))
				throw std::runtime_error("round " + std::to_string(round) + ": other bytes than the peer's");
		}
	}
	const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
	if (serves)
		std::fprintf(stderr, "%zu rounds of %zu bytes there and back over %s, %.1f us each, filling and checking included\n",
			     plan.rounds, plan.bytes, transport.path(theirs).c_str(),
			     took.count() / static_cast<double>(plan.rounds));
	// The peer may still be reading its last notification: both sides leave when both have said so.
	tell(out, "bye");
	hear(in);
}

int fork_both(const Plan &plan)
{
	int there[2], back[2], status = 1;
	if (pipe(there) < 0 || pipe(back) < 0)
		throw std::runtime_error("pipe");
	// Forks first: a child must not use objects that its parent has opened.
	const pid_t child = fork();
	if (child < 0)
		throw std::runtime_error("fork");
	FILE *in = fdopen(child ? back[0] : there[0], "r"), *out = fdopen(child ? there[1] : back[1], "w");
	close(child ? back[1] : there[1]);
	close(child ? there[0] : back[0]);
	std::string failed;
	try {
		play(plan, child != 0, in, out);
	} catch (const std::exception &e) {
		failed = e.what();
	}
	std::fclose(in);
	std::fclose(out);
	if (child && (waitpid(child, &status, 0) != child || status != 0) && failed.empty())
		failed = "the peer failed";
	if (!failed.empty())
		throw std::runtime_error(failed);
	return 0;
}

Plan parse(int argc, char **argv)
{
	Plan plan;
	for (int i = 1; i < argc; i += 2) {
		const std::string flag = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
		const long number = std::atol(value.c_str());
		if (flag == "--providers" && !value.empty()) {
			plan.options.providers.clear();
			std::istringstream list(value);
			for (std::string name; std::getline(list, name, ',');)
				plan.options.providers.push_back(name);
		} else if (flag == "--address" && !value.empty()) {
			plan.options.address = value;
		} else if (flag == "--role" && (value == "ping" || value == "pong")) {
			plan.role = value;
		} else if (flag == "--device" && !value.empty() && number >= 0) {
			plan.device = static_cast<int>(number);
		} else if (flag == "--rounds" && number > 0) {
			plan.rounds = static_cast<size_t>(number);
		} else if (flag == "--bytes" && number > 0) {
			plan.bytes = static_cast<size_t>(number);
		} else {
			throw std::runtime_error(flag + " " + value + ": not understood; the head of the source has the flags");
		}
	}
	return plan;
}

} // namespace

int main(int argc, char **argv)
try {
	std::signal(SIGPIPE, SIG_IGN); // a dead peer is then an error to report, and does not end this process
	const Plan plan = parse(argc, argv);
	if (plan.role.empty())
		return fork_both(plan);
	play(plan, plan.role == "ping", stdin, stdout);
	return 0;
} catch (const std::exception &e) {
	std::fprintf(stderr, "rdma_transport_pingpong: %s\n", e.what());
	return 1;
}
