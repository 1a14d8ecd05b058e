/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "mail.hpp"

#include "log.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

/* Posted receives. Further messages wait in the library. */
constexpr int SLOTS = 32;
/* The most notifications, of all agents together, whose parts have not all arrived. */
constexpr size_t PARTIALS_MOST = 1024;

/* A notification on its way out. */
struct Mail::Letter {
	size_t parts;
	int err = 0;
	std::string words;
	Sent sent;
};

struct Mail::Parcel final : Operation {
	Mail *mail;
	PeerPtr peer;
	std::string bytes;
	std::shared_ptr<Letter> letter;

	void ended(const Ending &e) override { mail->sent(this, e); }
};

struct Mail::Slot final : Operation {
	Mail *mail;
	char bytes[wire::MESSAGE];

	void ended(const Ending &e) override { mail->came(this, e); }
};

Mail::Mail(Link &of, const std::string &name, const wire::Agent &agent) : link(of), own_name(name), own(agent) {}

Mail::~Mail() = default;

std::string Mail::begin()
{
	for (int i = 0; i < SLOTS; i++) {
		slots.emplace_back();
		slots.back().mail = this;
		if (link.receive(slots.back().bytes, wire::MESSAGE, &slots.back()) < 0)
			return last_words();
	}
	return {};
}

void Mail::send(const PeerPtr &peer, const std::string &text, Sent sent)
{
	std::string whole = own_name + text;
	if (whole.size() > wire::NOTIFICATION_MOST)
		return sent(EMSGSIZE, "a notification of " + std::to_string(whole.size()) + " bytes");
	size_t parts = std::max<size_t>(1, (whole.size() + wire::PART_MOST - 1) / wire::PART_MOST);
	auto letter = std::make_shared<Letter>();
	letter->parts = parts;
	letter->sent = std::move(sent);
	{
		std::lock_guard<std::mutex> held(lock);
		wire::Part part{peer->info.secret, own.id, ++numbers, whole.size(), 0, static_cast<uint32_t>(own_name.size())};
		for (size_t i = 0; i < parts; i++, part.offset += wire::PART_MOST) {
			auto parcel = std::make_unique<Parcel>();
			parcel->mail = this;
			parcel->peer = peer;
			parcel->letter = letter;
			parcel->bytes = wire::encode(part) + whole.substr(part.offset, wire::PART_MOST);
			waiting[peer].push_back(std::move(parcel));
		}
	}
	flush();
}

void Mail::flush()
{
	std::vector<std::pair<Parcel *, Ending>> failed;
	{
		std::lock_guard<std::mutex> held(lock);
		for (auto at = waiting.begin(); at != waiting.end();) {
			auto &queue = at->second;
			while (!queue.empty()) {
				Parcel *parcel = queue.front().get();
				bool removed = parcel->peer->removed;
				ssize_t rc = removed ? -ECONNRESET : link.send(parcel->bytes, parcel->peer->index, parcel);
				if (rc == -EAGAIN)
					break;
				if (rc < 0)
					failed.push_back({parcel, {static_cast<int>(-rc), 0, removed ? "the agent was removed" : last_words()}});
				posted[parcel] = std::move(queue.front());
				queue.pop_front();
			}
			at = queue.empty() ? waiting.erase(at) : std::next(at);
		}
	}
	for (auto &[parcel, ending] : failed)
		sent(parcel, ending);
}

void Mail::sent(Parcel *parcel, const Ending &e)
{
	std::unique_ptr<Parcel> mine;
	std::shared_ptr<Letter> letter;
	{
		std::lock_guard<std::mutex> held(lock);
		auto at = posted.find(parcel);
		if (at == posted.end())
			return;
		mine = std::move(at->second);
		posted.erase(at);
		letter = mine->letter;
		if (e.err && !letter->err)
			letter->err = e.err, letter->words = e.words;
		if (--letter->parts)
			letter.reset();
	}
	if (letter)
		letter->sent(letter->err, letter->words);
}

void Mail::post(Slot *slot)
{
	if (link.receive(slot->bytes, wire::MESSAGE, slot) < 0)
		logs::say(logs::ERROR, "a receive for notifications could not be posted: " + last_words());
}

void Mail::came(Slot *slot, const Ending &e)
{
	if (e.err == ECANCELED)
		return;
	wire::Part part;
	std::string wrong = e.err ? "a message: " + e.words : wire::decode(slot->bytes, e.len, part);
	if (wrong.empty() && !wire::same(part.secret, own.secret))
		wrong = "a notification from a sender without this agent's metadata";
	try {
		if (wrong.empty())
			join(part, slot->bytes + wire::PART_HEAD, e.len - wire::PART_HEAD);
	} catch (const std::bad_alloc &) {
		wrong = "a part of a notification: no memory";
	}
	if (!wrong.empty() && refused++ < 16)
		logs::say(logs::WARN, "dropped " + wrong);
	post(slot);
}

void Mail::join(const wire::Part &part, const char *bytes, size_t len)
{
	std::lock_guard<std::mutex> held(lock);
	auto deliver = [&](const char *whole) {
		arrived.emplace_back(std::string(whole, part.name_len), std::string(whole + part.name_len, part.total - part.name_len));
	};
	if (len == part.total)
		return deliver(bytes);
	auto key = std::make_pair(part.sender, part.number);
	auto at = partials.find(key);
	if (at == partials.end()) {
		/* The first entry is dropped: the oldest notification of one sender, which has probably died. */
		if (partials.size() >= PARTIALS_MOST)
			partials.erase(partials.begin());
		at = partials.emplace(key, Partial{part.total, 0, {}}).first;
	}
	Partial &p = at->second;
	if (p.total != part.total || !p.parts.try_emplace(part.offset, bytes, len).second)
		return;
	p.have += len;
	if (p.have < p.total)
		return;
	std::string whole;
	whole.reserve(p.total);
	for (auto &[offset, text] : p.parts)
		whole += text;
	deliver(whole.data());
	partials.erase(at);
}

void Mail::keep(const std::string &text)
{
	std::lock_guard<std::mutex> held(lock);
	arrived.emplace_back(own_name, text);
}

void Mail::take(border::Notifications &to)
{
	std::lock_guard<std::mutex> held(lock);
	if (to.empty())
		to.swap(arrived);
	else
		to.insert(to.end(), std::make_move_iterator(arrived.begin()), std::make_move_iterator(arrived.end()));
	arrived.clear();
}

bool Mail::is_empty()
{
	std::lock_guard<std::mutex> held(lock);
	return waiting.empty() && posted.empty();
}

bool Mail::is_held_up()
{
	std::lock_guard<std::mutex> held(lock);
	return !waiting.empty();
}
