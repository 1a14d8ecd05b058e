/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Two agents of the backend in one process, without NIXL: over each set of the library's connectionless endpoints,
 * and over the library's first choice. */
#include "backend.hpp"

#include <cstring>

/* Moves a megabyte from a to b. Returns "" or the error. `over`: the path that the log and the counters must report. */
static std::string move(const std::string &set, const char *over)
{
	constexpr size_t BYTES = 1 << 20;
	static char from[BYTES], to[BYTES];
	auto a = open_agent("a", set), b = open_agent("b", set);
	border::Metadata *here = nullptr, *there = nullptr, *known = nullptr;
	border::Request *request = nullptr;
	std::string name, region;
	if (a->failed || b->failed)
		return take_log();
	memset(from, 'x', BYTES), memset(to, 0, BYTES);
	border::BlobDesc mine{}, theirs{};
	mine.addr = reinterpret_cast<uintptr_t>(from), mine.len = BYTES;
	theirs.addr = reinterpret_cast<uintptr_t>(to), theirs.len = BYTES;
	if (a->registerMem(mine, border::DRAM, here) || b->registerMem(theirs, border::DRAM, there) || b->getPublicData(there, theirs.blob) ||
	    b->getConnInfo(name) || a->loadRemoteConnInfo("b", name) || a->loadRemoteMD(theirs, border::DRAM, "b", known))
		return "it does not begin: " + take_log();
	border::MetaList local{nullptr, border::DRAM, {}}, remote{nullptr, border::DRAM, {}};
	border::MetaDesc desc{};
	desc.addr = mine.addr, desc.len = BYTES, desc.metadata = here;
	local.descs.push_back(desc);
	desc.addr = theirs.addr, desc.metadata = known;
	remote.descs.push_back(desc);
	if (a->prepXfer(border::WRITE, local, remote, "b", request, nullptr))
		return "prepXfer: " + take_log();
	border::Status now = a->postXfer(border::WRITE, local, remote, "b", request, nullptr);
	for (uint64_t until = now_ns() + 60000000000u; now == border::IN_PROGRESS && now_ns() < until;)
		now = a->checkXfer(request);
	std::string log = take_log(), wrong;
	if (now != border::SUCCESS || memcmp(from, to, BYTES))
		wrong = "status " + std::to_string(now) + ": " + log;
	else if (log.find(std::string("agent b: over ") + over + ": ") == std::string::npos)
		wrong = "the log does not say that it went over " + std::string(over) + ": " + log;
	a->getSupportedMems();
	if (wrong.empty() && a->params[std::string("peers_") + over] != "1")
		wrong = "the peer is not counted";
	unsigned long counted = 0;
	for (const auto &[key, value] : a->params)
		counted += key.rfind("bytes_", 0) == 0 ? strtoul(value.c_str(), nullptr, 10) : 0;
	if (wrong.empty() && counted != BYTES)
		wrong = std::to_string(counted) + " bytes are counted";
	a->releaseReqH(request);
	a->unloadMD(known);
	a->disconnect("b");
	a->deregisterMem(here), b->deregisterMem(there);
	return wrong;
}

/* Checks a refusal. Returns "" or the error. */
static std::string refused(const std::string &set, const std::string &words)
{
	take_log();
	auto agent = open_agent("a", set);
	std::string log = take_log();
	return agent->failed && log.find("GDRFAB_PROVIDER=" + set + ": ") != std::string::npos && log.find(words) != std::string::npos
		? ""
		: "not refused with \"" + words + "\": " + log;
}

int main()
{
	gdrfab_info *hints = gdrfab_dupinfo(nullptr), *all = nullptr;
	std::string last;
	if (!hints || !begin_log())
		return 1;
	hints->ep_type = GDRFAB_EP_RDM;
	hints->mr_mode = GDRFAB_MR_VIRT_ADDR | GDRFAB_MR_PROV_KEY | GDRFAB_MR_HMEM;
	if (gdrfab_getinfo(GDRFAB_VERSION, nullptr, nullptr, GDRFAB_GETINFO_ALL, hints, &all) < 0) {
		claim("the sets", gdrfab_last_error());
		return 1;
	}
	for (const gdrfab_info *at = all; at; at = at->next) {
		std::string set = at->prov_name;
		/* A set has one candidate for each device. */
		if (set == last)
			continue;
		last = set;
		/* Within a host shm is preferred. */
		std::string over = set.substr(0, set.find('+'));
		if (at->reason_errno)
			claim(set + " is refused in the library's words", refused(set, at->reason));
		else
			claim("a transfer over " + set, move(set, over.c_str()));
	}
	claim("a transfer over what is offered first", move("", "shm"));
	claim("a set that does not exist is refused", refused("shm+pigeon", "\"shm+pigeon\", but over shm+verbs+tcp, shm+tcp, verbs, shm, tcp"));
	gdrfab_freeinfo(all);
	gdrfab_freeinfo(hints);
	return end_of_claims();
}
