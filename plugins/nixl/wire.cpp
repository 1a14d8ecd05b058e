/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "wire.hpp"

#include <algorithm>
#include <cstring>
#include <sys/random.h>

namespace wire {

constexpr uint32_t VERSION = 1;
constexpr char AGENT[] = "gdrfabNA", REGION[] = "gdrfabNR", PART[] = "gdrfabNP";
constexpr size_t HEAD = 12;

/* FNV-1a: protects against damage, not against forgery. */
static uint32_t sum(const char *bytes, size_t len)
{
	uint32_t h = 2166136261u;
	for (size_t i = 0; i < len; i++)
		h = (h ^ static_cast<uint8_t>(bytes[i])) * 16777619u;
	return h;
}

template <class T> static void put(std::string &to, const T &value)
{
	to.append(reinterpret_cast<const char *>(&value), sizeof value);
}

template <class T> static void take(const char *&from, T &value)
{
	memcpy(&value, from, sizeof value);
	from += sizeof value;
}

static std::string head(const char *kind)
{
	std::string out(kind, 8);
	put(out, VERSION);
	return out;
}

static std::string sealed(std::string text)
{
	put(text, sum(text.data(), text.size()));
	return text;
}

static std::string look(const char *bytes, size_t len, const char *kind, size_t body, const char *what)
{
	uint32_t version, told;
	if (len < HEAD || memcmp(bytes, kind, 8))
		return std::string(what) + ": " + std::to_string(len) + " bytes that are not gdrfab's";
	memcpy(&version, bytes + 8, sizeof version);
	if (version != VERSION)
		return std::string(what) + ": of version " + std::to_string(version) + ", and this plugin has " + std::to_string(VERSION);
	if (len != HEAD + body + sizeof told)
		return std::string(what) + ": " + std::to_string(len) + " bytes instead of " + std::to_string(HEAD + body + sizeof told);
	memcpy(&told, bytes + HEAD + body, sizeof told);
	return told == sum(bytes, HEAD + body) ? std::string() : std::string(what) + ": damaged";
}

std::string encode(const Agent &a)
{
	std::string out = head(AGENT);
	put(out, a.secret), put(out, a.id), put(out, a.name);
	return sealed(out);
}

std::string decode(const std::string &text, Agent &a)
{
	std::string wrong = look(text.data(), text.size(), AGENT, sizeof a.secret + sizeof a.id + sizeof a.name, "connection info");
	if (!wrong.empty())
		return wrong;
	const char *from = text.data() + HEAD;
	take(from, a.secret), take(from, a.id), take(from, a.name);
	return {};
}

std::string encode(const Region &r)
{
	std::string out = head(REGION);
	put(out, r.base), put(out, r.len), put(out, r.key), put(out, r.kind);
	return sealed(out);
}

std::string decode(const std::string &text, Region &r)
{
	std::string wrong = look(text.data(), text.size(), REGION, 3 * sizeof r.base + sizeof r.kind, "region");
	if (!wrong.empty())
		return wrong;
	const char *from = text.data() + HEAD;
	take(from, r.base), take(from, r.len), take(from, r.key), take(from, r.kind);
	return {};
}

std::string encode(const Part &p)
{
	std::string out = head(PART);
	put(out, p.secret), put(out, p.sender), put(out, p.number), put(out, p.total), put(out, p.offset), put(out, p.name_len);
	out.resize(PART_HEAD);
	return out;
}

static_assert(HEAD + sizeof(Secret) + 4 * 8 + 4 == PART_HEAD);

std::string decode(const char *bytes, size_t len, Part &p)
{
	uint32_t version;
	if (len < PART_HEAD || len > MESSAGE || memcmp(bytes, PART, 8))
		return "a message of " + std::to_string(len) + " bytes that is not of this plugin";
	memcpy(&version, bytes + 8, sizeof version);
	if (version != VERSION)
		return "a message of version " + std::to_string(version);
	const char *from = bytes + HEAD;
	take(from, p.secret), take(from, p.sender), take(from, p.number), take(from, p.total), take(from, p.offset), take(from, p.name_len);
	if (p.total > NOTIFICATION_MOST)
		return "a notification of " + std::to_string(p.total) + " bytes, " + std::to_string(NOTIFICATION_MOST) + " at most";
	if (p.name_len > p.total || p.offset > p.total || len - PART_HEAD > p.total - p.offset)
		return "a part of a notification outside its length";
	if (p.offset % PART_MOST || len - PART_HEAD != std::min<uint64_t>(PART_MOST, p.total - p.offset))
		return "a part of a notification with a wrong offset";
	return {};
}

bool same(const Secret &a, const Secret &b)
{
	uint8_t differ = 0;
	for (size_t i = 0; i < a.size(); i++)
		differ = static_cast<uint8_t>(differ | (a[i] ^ b[i]));
	return differ == 0;
}

bool draw(void *to, size_t len)
{
	return getrandom(to, len, 0) == static_cast<ssize_t>(len);
}

} // namespace wire
