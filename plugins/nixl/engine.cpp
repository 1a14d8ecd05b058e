/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "engine.hpp"

#include "log.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

using border::Status;

/* Interval in ms at which the progress thread looks at the clock: while transfers are under way, and otherwise. */
constexpr int BUSY_MS = 50, IDLE_MS = 1000;
/* Time for which an agent that ends continues to send notifications that it has accepted. */
constexpr uint64_t LINGER_NS = 1000000000u;

namespace {

struct LocalRegion final : border::Metadata {
	gdrfab_mr *mr = nullptr;
	wire::Region told{};
};

struct RemoteRegion final : border::Metadata {
	wire::Region told{};
};

/* Blocks all signals while a thread is started, which inherits the mask, so that the program's signals are not
 * delivered to it. Signals that an instruction raises stay unblocked: a blocked one would end the process. */
class SignalsBlocked {
public:
	SignalsBlocked()
	{
		sigset_t all;
		sigfillset(&all);
		for (int of_instructions : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS})
			sigdelset(&all, of_instructions);
		pthread_sigmask(SIG_BLOCK, &all, &before);
	}
	~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
	SignalsBlocked(const SignalsBlocked &) = delete;
	SignalsBlocked &operator=(const SignalsBlocked &) = delete;

private:
	sigset_t before;
};

/* Runs a call's body so that no exception leaves the plugin. */
template <class F> Status hold(const char *call, F body) noexcept
{
	try {
		return body();
	} catch (const std::exception &e) {
		logs::say(logs::ERROR, std::string(call) + ": " + e.what());
	} catch (...) {
		logs::say(logs::ERROR, call);
	}
	return border::FAILED;
}

} // namespace

struct Gdrfab::State {
	State(const std::string &agent, const wire::Agent &own) : mail(link, agent, own), info(own) {}

	PeerPtr find(const std::string &agent)
	{
		std::lock_guard<std::mutex> held(lock);
		auto at = peers.find(agent);
		return at == peers.end() ? nullptr : at->second;
	}
	std::vector<std::shared_ptr<Transfer>> all()
	{
		std::lock_guard<std::mutex> held(lock);
		std::vector<std::shared_ptr<Transfer>> out;
		for (auto &[key, transfer] : transfers)
			out.push_back(transfer);
		return out;
	}
	std::shared_ptr<Transfer> find(border::Request *request)
	{
		std::lock_guard<std::mutex> held(lock);
		auto at = transfers.find(request);
		return at == transfers.end() ? nullptr : at->second;
	}
	bool drive();
	void look_at_clock();
	void run();
	Status status_of(const std::shared_ptr<Transfer> &);
	/* Reports the bytes moved, and the number of peers by provider. */
	void count(border::Params &);
	Status add(const std::string &agent, const std::string &text, bool own);

	/* `link` comes first, as the members after it use it. ~Gdrfab closes it before any of them is destroyed. */
	Link link;
	Mail mail;
	const wire::Agent info;
	Settings settings;
	std::mutex lock;
	std::map<std::string, PeerPtr> peers;
	std::map<border::Request *, std::shared_ptr<Transfer>> transfers;
	/* Transfers with parts that are still to be posted. */
	std::vector<std::shared_ptr<Transfer>> unfinished;
	std::atomic<unsigned> waiting{0};
	std::atomic<uint64_t> looked{0};
	std::atomic<bool> stop{false};
	bool threaded = false;
	std::thread thread;
};

bool Gdrfab::State::drive()
{
	bool any = link.drive();
	mail.flush();
	if (waiting) {
		std::vector<std::shared_ptr<Transfer>> mine;
		{
			std::lock_guard<std::mutex> held(lock);
			mine.swap(unfinished);
			waiting = 0;
		}
		for (auto &transfer : mine)
			if (transfer->advance(true)) {
				std::lock_guard<std::mutex> held(lock);
				unfinished.push_back(transfer);
				waiting = 1;
			}
	}
	look_at_clock();
	return any;
}

void Gdrfab::State::look_at_clock()
{
	uint64_t now = now_ns(), last = looked;
	if (now - last < BUSY_MS * 1000000u || !looked.compare_exchange_strong(last, now))
		return;
	for (auto &transfer : all())
		transfer->look_at_clock(now, settings.timeout_ns);
}

void Gdrfab::State::run()
{
	while (!stop) {
		bool held_up = waiting || mail.is_held_up(), idle = !held_up;
		if (!held_up)
			for (auto &transfer : all())
				idle = idle && transfer->is_over();
		if (!drive() || !held_up)
			link.wait(held_up ? 1 : idle ? IDLE_MS : BUSY_MS);
	}
}

/* The transfer's status. The first success with a peer logs the path to it. */
Status Gdrfab::State::status_of(const std::shared_ptr<Transfer> &transfer)
{
	Status now = transfer->status();
	const PeerPtr &peer = transfer->peer;
	if (now == border::SUCCESS && !peer->told.exchange(true)) {
		std::string path = link.path_to(peer->index, transfer->key());
		auto over = [&](const char *name) { return path.rfind(std::string("over ") + name, 0) == 0; };
		peer->provider = peer->own ? SELF : over("shm") ? SHM : over("verbs") ? VERBS : over("tcp") ? TCP : UNKNOWN;
		logs::say(logs::INFO, "agent " + peer->agent + ": " + path);
	}
	return now;
}

void Gdrfab::State::count(border::Params &to)
{
	size_t by[] = {0, 0, 0, 0, 0};
	link.count(to);
	std::lock_guard<std::mutex> held(lock);
	for (auto &[agent, peer] : peers)
		by[peer->provider]++;
	to["peers_shm"] = std::to_string(by[SHM]);
	to["peers_verbs"] = std::to_string(by[VERBS]);
	to["peers_tcp"] = std::to_string(by[TCP]);
}

Status Gdrfab::State::add(const std::string &agent, const std::string &text, bool own)
{
	auto peer = std::make_shared<Peer>();
	std::string wrong = wire::decode(text, peer->info);
	if (!wrong.empty()) {
		logs::say(logs::ERROR, "agent " + agent + ": " + wrong);
		return border::MISMATCH;
	}
	peer->agent = agent;
	peer->own = own;
	{
		std::lock_guard<std::mutex> held(lock);
		auto at = peers.find(agent);
		if (at != peers.end())
			return wire::encode(at->second->info) == text ? border::SUCCESS : border::NOT_ALLOWED;
	}
	if (link.insert(peer->info.name, peer->index) != 1) {
		logs::say(logs::ERROR, "agent " + agent + ": " + last_words());
		return border::MISMATCH;
	}
	std::lock_guard<std::mutex> held(lock);
	peers[agent] = peer;
	return border::SUCCESS;
}

Gdrfab::Gdrfab(const border::InitParams &init) : Engine(init)
{
	wire::Agent own{};
	Settings settings;
	std::string wrong = settings_read(params, settings);
	if (wrong.empty() && (!wire::draw(&own.secret, sizeof own.secret) || !wire::draw(&own.id, sizeof own.id)))
		wrong = std::string("no randomness: ") + strerror(errno);
	state = std::make_unique<State>(agent, own);
	state->settings = settings;
	if (wrong.empty())
		wrong = state->link.open(settings);
	if (wrong.empty())
		wrong = state->mail.begin();
	if (!wrong.empty()) {
		logs::say(logs::ERROR, wrong);
		failed = true;
		return;
	}
	state->threaded = init.progress_thread;
	/* A failure for want of memory does not end the thread. */
	if (state->threaded) {
		SignalsBlocked inherited;
		state->thread = std::thread([this] {
			while (!state->stop)
				hold("progress", [this] {
					state->run();
					return border::SUCCESS;
				});
		});
	}
}

Gdrfab::~Gdrfab()
{
	for (uint64_t until = now_ns() + LINGER_NS; !failed && !state->mail.is_empty() && now_ns() < until;)
		state->threaded ? state->link.wait(1) : (void)state->drive();
	state->stop = true;
	if (state->thread.joinable()) {
		state->link.wake();
		state->thread.join();
	}
	/* If a peer is stopped inside a copy, the state must stay until the process ends. */
	if (!state->link.close())
		state.release();
}

border::Kinds Gdrfab::getSupportedMems() const
{
	hold("getSupportedMems", [&] {
		state->count(params);
		return border::SUCCESS;
	});
	return {border::DRAM, border::VRAM};
}

Status Gdrfab::registerMem(const border::BlobDesc &desc, const border::Kind &kind, border::Metadata *&out)
{
	return hold("registerMem", [&] {
		if (kind != border::DRAM && kind != border::VRAM)
			return border::NOT_SUPPORTED;
		auto region = std::make_unique<LocalRegion>();
		int rc = state->link.open_region(reinterpret_cast<void *>(desc.addr), desc.len, kind == border::VRAM, &region->mr);
		if (rc < 0) {
			logs::say(logs::ERROR, "registration of " + std::to_string(desc.len) + " bytes: " + last_words());
			return rc == -EINVAL ? border::INVALID_PARAM : border::FAILED;
		}
		region->told = {desc.addr, desc.len, gdrfab_mr_key(region->mr), static_cast<uint32_t>(kind)};
		out = region.release();
		return border::SUCCESS;
	});
}

Status Gdrfab::deregisterMem(border::Metadata *metadata)
{
	return hold("deregisterMem", [&] {
		auto *region = dynamic_cast<LocalRegion *>(metadata);
		if (!region)
			return border::INVALID_PARAM;
		int rc = gdrfab_mr_close(region->mr);
		if (rc < 0) {
			logs::say(logs::ERROR, "deregistration: " + last_words());
			return border::FAILED;
		}
		delete region;
		return border::SUCCESS;
	});
}

/* Connecting happens at the first transfer. The endpoint knows its own name like any other. */
Status Gdrfab::connect(const std::string &remote)
{
	return hold("connect", [&] {
		if (remote != agent)
			return state->find(remote) ? border::SUCCESS : border::NOT_FOUND;
		std::string text;
		getConnInfo(text);
		return state->add(agent, text, true);
	});
}

Status Gdrfab::disconnect(const std::string &remote)
{
	return hold("disconnect", [&] {
		PeerPtr peer = state->find(remote);
		if (!peer)
			return border::NOT_FOUND;
		peer->removed = true;
		{
			std::lock_guard<std::mutex> held(state->lock);
			state->peers.erase(remote);
		}
		for (auto &transfer : state->all())
			if (transfer->peer == peer)
				transfer->cancel(border::REMOTE_DISCONNECT);
		state->link.remove(peer->index);
		return border::SUCCESS;
	});
}

Status Gdrfab::unloadMD(border::Metadata *metadata)
{
	delete dynamic_cast<RemoteRegion *>(metadata);
	return border::SUCCESS;
}

Status Gdrfab::prepXfer(const border::Direction &direction, const border::MetaList &local, const border::MetaList &remote,
			const std::string &name, border::Request *&handle, const border::Extra *) const
{
	return hold("prepXfer", [&] {
		PeerPtr peer = state->find(name);
		size_t count = local.descs.size();
		Blocks b;
		if (!peer)
			return border::NOT_FOUND;
		if (!count || count != remote.descs.size())
			return border::INVALID_PARAM;
		b.blocks.reserve(count);
		bool one_here = true, one_there = true;
		for (size_t i = 0; i < count; i++) {
			const border::MetaDesc &here = local.descs[i], &there = remote.descs[i];
			if (here.len != there.len || !here.metadata || !there.metadata)
				return border::INVALID_PARAM;
			one_here = one_here && here.metadata == local.descs[0].metadata;
			one_there = one_there && there.metadata == remote.descs[0].metadata;
			b.blocks.push_back({reinterpret_cast<void *>(here.addr), there.addr, here.len});
		}
		for (size_t i = 0; i < (one_here ? 1 : count); i++)
			b.descs.push_back(gdrfab_mr_desc(static_cast<LocalRegion *>(local.descs[i].metadata)->mr));
		for (size_t i = 0; i < (one_there ? 1 : count); i++)
			b.keys.push_back(static_cast<RemoteRegion *>(remote.descs[i].metadata)->told.key);
		bool device = local.kind == border::VRAM || remote.kind == border::VRAM;
		auto made = std::make_shared<Transfer>(state->link, state->mail, peer, direction == border::WRITE, std::move(b), device);
		std::lock_guard<std::mutex> held(state->lock);
		state->transfers[made.get()] = made;
		handle = made.get();
		return border::SUCCESS;
	});
}

Status Gdrfab::postXfer(const border::Direction &, const border::MetaList &, const border::MetaList &, const std::string &,
			border::Request *&handle, const border::Extra *extra) const
{
	return hold("postXfer", [&] {
		auto transfer = state->find(handle);
		if (!transfer)
			return border::INVALID_PARAM;
		Status began = transfer->begin(extra && extra->has_notification ? &extra->notification : nullptr, now_ns());
		if (began != border::IN_PROGRESS)
			return began;
		if (transfer->advance(true)) {
			{
				std::lock_guard<std::mutex> held(state->lock);
				state->unfinished.push_back(transfer);
				state->waiting = 1;
			}
			if (state->threaded)
				state->link.wake();
		}
		/* A copy that was made within the call has its completion already. */
		if (transfer->status() == border::IN_PROGRESS)
			state->link.drive();
		return state->status_of(transfer);
	});
}

Status Gdrfab::checkXfer(border::Request *handle) const
{
	return hold("checkXfer", [&] {
		auto transfer = state->find(handle);
		if (!transfer)
			return border::INVALID_PARAM;
		if (transfer->status() == border::IN_PROGRESS)
			state->drive();
		return state->status_of(transfer);
	});
}

Status Gdrfab::releaseReqH(border::Request *handle) const
{
	return hold("releaseReqH", [&] {
		auto transfer = state->find(handle);
		if (!transfer)
			return border::SUCCESS;
		transfer->cancel(border::CANCELED);
		if (!transfer->is_over())
			state->drive();
		if (!transfer->is_over())
			return border::NOT_ALLOWED;
		std::lock_guard<std::mutex> held(state->lock);
		state->transfers.erase(handle);
		return border::SUCCESS;
	});
}

Status Gdrfab::getPublicData(const border::Metadata *metadata, std::string &text) const
{
	return hold("getPublicData", [&] {
		text = wire::encode(static_cast<const LocalRegion *>(metadata)->told);
		return border::SUCCESS;
	});
}

Status Gdrfab::getConnInfo(std::string &text) const
{
	return hold("getConnInfo", [&] {
		wire::Agent own = state->info;
		own.name = state->link.name();
		text = wire::encode(own);
		return border::SUCCESS;
	});
}

Status Gdrfab::loadRemoteConnInfo(const std::string &remote, const std::string &text)
{
	return hold("loadRemoteConnInfo", [&] { return state->add(remote, text, false); });
}

Status Gdrfab::loadRemoteMD(const border::BlobDesc &desc, const border::Kind &, const std::string &remote, border::Metadata *&out)
{
	return hold("loadRemoteMD", [&] {
		auto region = std::make_unique<RemoteRegion>();
		std::string wrong = wire::decode(desc.blob, region->told);
		if (!wrong.empty()) {
			logs::say(logs::ERROR, "agent " + remote + ": " + wrong);
			return border::MISMATCH;
		}
		out = region.release();
		return border::SUCCESS;
	});
}

Status Gdrfab::loadLocalMD(border::Metadata *local, border::Metadata *&out)
{
	return hold("loadLocalMD", [&] {
		auto region = std::make_unique<RemoteRegion>();
		region->told = static_cast<LocalRegion *>(local)->told;
		out = region.release();
		return border::SUCCESS;
	});
}

Status Gdrfab::getNotifs(border::Notifications &to)
{
	return hold("getNotifs", [&] {
		state->drive();
		state->mail.take(to);
		return border::SUCCESS;
	});
}

Status Gdrfab::genNotif(const std::string &remote, const std::string &text) const
{
	return hold("genNotif", [&] {
		PeerPtr peer = state->find(remote);
		if (!peer)
			return border::NOT_FOUND;
		if (peer->own) {
			state->mail.keep(text);
			return border::SUCCESS;
		}
		if (text.size() > wire::NOTIFICATION_MOST - agent.size())
			return border::INVALID_PARAM;
		state->mail.send(peer, text, [remote](int err, const std::string &words) {
			if (err)
				logs::say(logs::WARN, "a notification to " + remote + ": " + words);
		});
		if (state->threaded && state->mail.is_held_up())
			state->link.wake();
		return border::SUCCESS;
	});
}
