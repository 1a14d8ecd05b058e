/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Wrong data from other agents: metadata, lists, notifications, and parts of notifications that contradict each
 * other. */
#include "backend.hpp"

#include <cstring>
#include <dlfcn.h>
#include <fstream>
#include <malloc.h>
#include <random>

using border::Status;

static std::mt19937_64 any(4711);
/* Makes sending threads slow, from the moment that the message has been sent. */
static std::atomic<bool> slow{false};
static thread_local bool has_sent = false;
constexpr int FILLED = 0x5a;

extern "C" ssize_t gdrfab_send(gdrfab_ep *ep, const void *buf, size_t len, void *desc, uint64_t to, void *context)
{
	static const auto real = reinterpret_cast<decltype(&gdrfab_send)>(dlsym(RTLD_NEXT, "gdrfab_send"));
	has_sent = slow;
	return real(ep, buf, len, desc, to, context);
}
extern "C" int pthread_mutex_lock(pthread_mutex_t *mutex)
{
	static const auto real = reinterpret_cast<decltype(&pthread_mutex_lock)>(dlsym(RTLD_NEXT, "pthread_mutex_lock"));
	if (has_sent) {
		has_sent = false;
		usleep(20000);
	}
	return real(mutex);
}
/* Counts unlocks of a lock in freed memory, which glibc fills with a pattern here. */
static std::atomic<int> freed_locks{0};
extern "C" int pthread_mutex_unlock(pthread_mutex_t *mutex)
{
	static const auto real = reinterpret_cast<decltype(&pthread_mutex_unlock)>(dlsym(RTLD_NEXT, "pthread_mutex_unlock"));
	static const std::vector<char> filled(sizeof(int), FILLED);
	if (slow && memcmp(&mutex->__data.__owner, filled.data(), sizeof(int)) == 0)
		freed_locks++;
	return real(mutex);
}

static std::string garbage(size_t len)
{
	std::string text(len, '\0');
	for (char &c : text)
		c = static_cast<char>(any());
	return text;
}

static long resident_mib()
{
	long pages = 0, skipped;
	std::ifstream("/proc/self/statm") >> skipped >> pages;
	return pages * sysconf(_SC_PAGESIZE) >> 20;
}

/* Two agents that know each other, each with a page; b's page may be written. */
struct Two {
	std::unique_ptr<Gdrfab> a, b = open_agent("b", "shm");
	std::vector<char> here = std::vector<char>(4096, 'x'), there = std::vector<char>(4096, '.');
	border::Metadata *mine = nullptr, *theirs = nullptr, *known = nullptr;
	std::string info_b, region_b, name_a;
	std::string wrong;

	explicit Two(const std::string &name = "a", const std::string &set = "shm") : a(open_agent(name, set)), b(open_agent("b", set)), name_a(name)
	{
		border::BlobDesc desc{};
		std::string info_a;
		desc.len = 4096;
		desc.addr = reinterpret_cast<uintptr_t>(here.data());
		bool good = !a->failed && !b->failed && !a->registerMem(desc, border::DRAM, mine);
		desc.addr = reinterpret_cast<uintptr_t>(there.data());
		good = good && !b->registerMem(desc, border::DRAM, theirs) && !b->getPublicData(theirs, region_b) && !b->getConnInfo(info_b) &&
		       !a->getConnInfo(info_a) && !a->loadRemoteConnInfo("b", info_b) && !b->loadRemoteConnInfo(name, info_a);
		desc.blob = region_b;
		if (!good || a->loadRemoteMD(desc, border::DRAM, "b", known))
			wrong = "it does not begin: " + take_log();
	}
	~Two()
	{
		a->unloadMD(known);
		a->disconnect("b"), b->disconnect(name_a);
		a->deregisterMem(mine), b->deregisterMem(theirs);
	}
	border::MetaDesc local(size_t offset, size_t len)
	{
		border::MetaDesc d{};
		d.addr = reinterpret_cast<uintptr_t>(here.data()) + offset, d.len = len, d.metadata = mine;
		return d;
	}
	border::MetaDesc remote(size_t offset, size_t len)
	{
		border::MetaDesc d{};
		d.addr = reinterpret_cast<uintptr_t>(there.data()) + offset, d.len = len, d.metadata = known;
		return d;
	}
	/* Writes these blocks and returns the status. */
	Status write(const std::vector<border::MetaDesc> &from, const std::vector<border::MetaDesc> &to, const char *note = nullptr)
	{
		border::MetaList l{nullptr, border::DRAM, from}, r{nullptr, border::DRAM, to};
		border::Request *request = nullptr;
		border::Extra extra{};
		extra.has_notification = note != nullptr;
		extra.notification = note ? note : "";
		Status now = a->prepXfer(border::WRITE, l, r, "b", request, nullptr);
		if (now)
			return now;
		now = a->postXfer(border::WRITE, l, r, "b", request, note ? &extra : nullptr);
		for (uint64_t until = now_ns() + 60000000000u; now == border::IN_PROGRESS && now_ns() < until;)
			usleep(slow ? 1000 : 0), now = a->checkXfer(request);
		while (a->releaseReqH(request))
			usleep(100);
		return now;
	}
	/* Checks that everything works as before. */
	std::string works()
	{
		std::fill(there.begin(), there.end(), '.');
		Status now = write({local(0, 4096)}, {remote(0, 4096)});
		return now || there != here ? "a good write ends with " + std::to_string(now) + ": " + take_log() : "";
	}
	std::string untouched(const std::string &what)
	{
		return std::count(there.begin(), there.end(), '.') == 4096 ? "" : what + " has written";
	}
};

static std::string odd_metadata()
{
	Two t;
	wire::Agent agent{};
	wire::Region region{};
	border::Metadata *out = nullptr;
	unsigned count = 0;
	auto load = [&](const std::string &text) {
		border::BlobDesc desc{};
		desc.blob = text;
		std::string name = "odd" + std::to_string(count++);
		bool taken = t.a->loadRemoteConnInfo(name, text) == border::SUCCESS;
		t.a->disconnect(name);
		if (t.a->loadRemoteMD(desc, border::DRAM, "b", out) == border::SUCCESS)
			t.a->unloadMD(out), taken = true;
		return taken;
	};
	if (!t.wrong.empty())
		return t.wrong;
	for (size_t len = 0; len < 300; len++)
		if (load(garbage(len)))
			return "garbage of " + std::to_string(len) + " bytes is taken";
	for (const std::string &good : {t.info_b, t.region_b}) {
		for (size_t len = 0; len < good.size(); len++)
			if (load(good.substr(0, len)) || load(good + garbage(len + 1)))
				return "a text that was cut or lengthened is taken";
		for (size_t i = 0; i < good.size() * 8; i++) {
			std::string other = good;
			other[i / 8] = static_cast<char>(other[i / 8] ^ 1 << i % 8);
			if (load(other))
				return "a text of which a bit has changed is taken";
		}
	}
	load(garbage(1 << 20));
	/* Well-formed metadata with nonsense in it: it names no agent, and no memory. */
	for (int i = 0; i < 300; i++) {
		wire::decode(t.info_b, agent), wire::decode(t.region_b, region);
		for (size_t at = any() % agent.name.size(), n = any() % 49; n > 0; n--)
			agent.name[at++ % agent.name.size()] = static_cast<uint8_t>(any());
		load(wire::encode(agent));
		(i % 3 == 0 ? region.base : i % 3 == 1 ? region.len : region.key) = any();
		region.kind = static_cast<uint32_t>(any());
		border::BlobDesc desc{};
		desc.blob = wire::encode(region);
		if (t.a->loadRemoteMD(desc, border::DRAM, "b", out))
			continue;
		border::MetaDesc to = t.remote(0, 4096);
		to.metadata = out, to.addr = i % 3 == 2 ? to.addr : any();
		if (t.write({t.local(0, 4096)}, {to}) == border::SUCCESS)
			return "a write to nowhere ends well";
		t.a->unloadMD(out);
	}
	std::string wrong = t.untouched("a region of garbage");
	take_log();
	return wrong.empty() ? t.works() : wrong;
}

static std::string odd_lists()
{
	Two t;
	if (!t.wrong.empty())
		return t.wrong;
	auto fails = [&](const std::vector<border::MetaDesc> &l, const std::vector<border::MetaDesc> &r) {
		return t.write(l, r) != border::SUCCESS;
	};
	border::MetaDesc none{};
	bool good = fails({}, {}) && fails({t.local(0, 8)}, {}) && fails({}, {t.remote(0, 8)}) && fails({t.local(0, 8)}, {t.remote(0, 9)}) &&
		    fails({none}, {none}) && fails({none}, {t.remote(0, 0)}) && fails({t.local(0, 0)}, {none});
	for (size_t len : {SIZE_MAX, SIZE_MAX - 4095, SIZE_MAX / 2 + 1, size_t{1} << 40, size_t{4097}}) {
		good = good && fails({t.local(0, len)}, {t.remote(0, len)});
		/* Lengths whose sum overflows to a small number. */
		good = good && fails({t.local(0, len), t.local(0, 0 - len), t.local(0, 8)}, {t.remote(0, len), t.remote(0, 0 - len), t.remote(0, 8)});
	}
	if (!good)
		return "a list that cannot be ends well";
	std::string wrong = t.untouched("a list that cannot be");
	if (!wrong.empty())
		return wrong;
	if (t.write(std::vector<border::MetaDesc>(100000, t.local(5, 0)), std::vector<border::MetaDesc>(100000, t.remote(7, 0))) ||
	    t.write(std::vector<border::MetaDesc>(100000, t.local(5, 1)), std::vector<border::MetaDesc>(100000, t.remote(7, 1))))
		return "a hundred thousand blocks do not pass: " + take_log();
	border::Request *nobody = reinterpret_cast<border::Request *>(t.here.data());
	border::MetaList l{nullptr, border::DRAM, {t.local(0, 8)}}, r{nullptr, border::DRAM, {t.remote(0, 8)}};
	border::Request *request = nullptr;
	if (t.a->checkXfer(nobody) != border::INVALID_PARAM || t.a->postXfer(border::WRITE, l, r, "b", nobody, nullptr) != border::INVALID_PARAM ||
	    t.a->prepXfer(border::WRITE, l, r, "nobody", request, nullptr) != border::NOT_FOUND)
		return "a request or an agent that is none is taken";
	take_log();
	return t.works();
}

/* Sends odd notifications from an agent of that name. Returns "" or the error. */
static std::string odd_notifications(const std::string &name)
{
	Two t(name);
	if (!t.wrong.empty())
		return t.wrong;
	for (size_t len : {0, 1, 2, 8126, 8127, 8128, 8129, 16255, 16256, 16257, 3000000}) {
		std::string text = garbage(len);
		border::Notifications got;
		if (len > 1)
			text[0] = text[len / 2] = '\0';
		if (t.a->genNotif("b", text))
			return "it is not sent: " + take_log();
		for (uint64_t until = now_ns() + 60000000000u; got.empty() && now_ns() < until;)
			t.b->getNotifs(got);
		if (got.size() != 1 || got[0].first != name || got[0].second != text)
			return std::to_string(len) + " bytes do not arrive as they were";
	}
	return "";
}

/* Sends to b like a peer that knows its secret, but does not keep to the format. */
struct Liar final : Operation {
	Link link;
	uint64_t index = 0;
	wire::Agent of{};
	std::atomic<int> sent{0}, ended_ones{0};

	explicit Liar(const std::string &info)
	{
		Settings settings;
		border::Params params;
		params["GDRFAB_PROVIDER"] = "shm";
		settings_read(params, settings);
		wire::decode(info, of);
		if (!link.open(settings).empty() || link.insert(of.name, index) != 1)
			abort();
	}
	~Liar() { link.close(); }
	void ended(const Ending &) override { ended_ones++; }
	void says(uint64_t number, uint64_t total, uint64_t offset, uint32_t name_len, size_t len)
	{
		wire::Part part{of.secret, 1, number, total, offset, name_len};
		std::string bytes = wire::encode(part) + std::string(len, 'y');
		while (link.send(bytes, index, this) == -EAGAIN)
			link.drive();
		sent++;
		for (uint64_t until = now_ns() + 60000000000u; ended_ones < sent && now_ns() < until;)
			link.drive();
	}
};

static std::string lying_parts()
{
	constexpr uint64_t MOST = wire::NOTIFICATION_MOST, PART = wire::PART_MOST;
	Two t;
	if (!t.wrong.empty())
		return t.wrong;
	Liar liar(t.info_b);
	border::Notifications got;
	uint64_t number = 0;
	auto look = [&](size_t want) {
		liar.says(++number, 5, 0, 1, 5); /* a good part, after all the others */
		for (uint64_t until = now_ns() + 60000000000u; now_ns() < until;) {
			t.b->getNotifs(got);
			if (!got.empty() && got.back().second == "yyyy")
				break;
		}
		std::string wrong = got.size() == want + 1 ? "" : std::to_string(got.size()) + " notifications, not " + std::to_string(want + 1);
		got.clear();
		return wrong;
	};
	/* An agent that announces much has sent little. */
	const long before = resident_mib();
	for (int i = 0; i < 3; i++) {
		liar.says(++number, MOST, MOST / PART * PART, 1, MOST % PART);
		liar.says(++number, MOST, MOST - 8, 1, 8);
		liar.says(++number, MOST, MOST - PART, 1, PART);
		liar.says(++number, MOST, MOST, 1, 0);
	}
	std::string wrong = look(0);
	if (wrong.empty() && resident_mib() - before > 200)
		wrong = "twelve messages cost " + std::to_string(resident_mib() - before) + " MiB";
	if (!wrong.empty())
		return wrong;
	/* The same part twice, overlapping parts, parts of different lengths, empty parts, and different totals. */
	number += 10;
	liar.says(number, 2 * PART, 0, 1, PART), liar.says(number, 2 * PART, 0, 1, PART);
	liar.says(++number, 2 * PART, 0, 1, PART), liar.says(number, 2 * PART, 1, 1, PART);
	liar.says(++number, 2 * PART, PART, 1, PART), liar.says(number, 2 * PART, PART, 1, PART);
	liar.says(++number, 3 * PART, 0, 1, PART), liar.says(number, 2 * PART, PART, 1, PART);
	liar.says(++number, 2 * PART, 0, 1, PART), liar.says(number, 3 * PART, PART, 1, PART);
	for (size_t at = 0; at < 20; at++)
		liar.says(number + 1, 20, at, 1, 1), liar.says(number + 2, 20, 0, 1, 0);
	number += 2;
	for (int i = 0; i < 3000; i++)
		liar.says(100000 + static_cast<uint64_t>(i), 2 * PART, 0, 1, PART);
	wrong = look(0);
	if (!wrong.empty())
		return wrong;
	/* Parts may come in any order. */
	liar.says(++number, 2 * PART + 7, 2 * PART, 3, 7), liar.says(number, 2 * PART + 7, 0, 3, PART), liar.says(number, 2 * PART + 7, PART, 3, PART);
	wrong = look(1);
	take_log();
	return wrong.empty() ? t.works() : wrong;
}

/* A notification arrives, and its transfer is released, while the sending thread is still inside the call. */
static std::string released_early()
{
	Two t("a", "tcp");
	if (!t.wrong.empty())
		return t.wrong;
	mallopt(M_PERTURB, FILLED);
	slow = true;
	std::string wrong;
	for (int i = 0; i < 100 && wrong.empty(); i++) {
		border::Notifications got;
		if (t.write({t.local(0, 4096)}, {t.remote(0, 4096)}, "there"))
			wrong = "a write does not end: " + take_log();
		for (uint64_t until = now_ns() + 20000000000u; got.empty() && now_ns() < until;)
			t.b->getNotifs(got);
	}
	slow = false;
	usleep(50000);
	mallopt(M_PERTURB, 0);
	std::string log = take_log();
	if (wrong.empty() && (freed_locks || log.find("progress") != std::string::npos))
		wrong = std::to_string(freed_locks) + " transfers were used after they were freed; " + log;
	return wrong.empty() ? t.works() : wrong;
}

int main()
{
	if (!begin_log())
		return 1;
	claim("metadata of garbage", odd_metadata());
	claim("lists that cannot be", odd_lists());
	claim("notifications of any bytes", odd_notifications("a"));
	claim("notifications of an agent with a long name of any bytes", odd_notifications(garbage(20000)));
	claim("parts of notifications that lie", lying_parts());
	claim("transfers that are released while their notification leaves", released_early());
	return end_of_claims();
}
