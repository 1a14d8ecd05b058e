// SPDX-License-Identifier: Apache-2.0 OR MIT
// A range of a peer's memory, described by text from the peer. Its bounds are checked before anything is posted.
#ifndef GDRFAB_RDMA_REMOTE_HPP
#define GDRFAB_RDMA_REMOTE_HPP

#include "rdma_text.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace gdrfab {

namespace detail {

inline std::string range_words(const char *what, uint64_t offset, uint64_t len, uint64_t whole)
{
	return std::string(what) + ": " + std::to_string(len) + " bytes from " + std::to_string(offset) + " are not inside " +
	       std::to_string(whole) + " bytes";
}

} // namespace detail

// A range of a peer's memory, made from the peer's remoteKey(). The fields may be changed; operations check them.
struct RdmaRemoteBuffer {
	void *ptr = nullptr; // an address in the peer's process
	size_t len = 0;

	// Covers the whole memory of the key.
	explicit RdmaRemoteBuffer(const std::string &accessKey) : key_(parse(accessKey))
	{
		ptr = reinterpret_cast<void *>(key_->base);
		len = key_->len;
	}
	RdmaRemoteBuffer(void *at, size_t bytes, const std::string &accessKey) : ptr(at), len(bytes), key_(parse(accessKey))
	{
		check_range();
	}
	// Bytes [offset, offset + bytes) of this buffer.
	RdmaRemoteBuffer slice(size_t offset, size_t bytes) const
	{
		key();
		if (offset > len || bytes > len - offset)
			throw std::out_of_range(detail::range_words("slice", offset, bytes, len));
		RdmaRemoteBuffer part = *this;
		part.ptr = static_cast<char *>(ptr) + offset;
		part.len = bytes;
		return part;
	}
	const std::string &accessKey() const { return key().text; }

private:
	friend class RdmaTransport;
	struct Key {
		std::string text;
		uintptr_t base = 0;
		size_t len = 0;
		uint64_t access = 0;
		std::vector<std::pair<uint64_t, uint64_t>> keys; // tag of a domain, key in that domain
	};

	static std::shared_ptr<const Key> parse(const std::string &text)
	{
		auto key = std::make_shared<Key>();
		key->text = text;
		bool placed = false;
		auto number = [](const std::string &digits) { return detail::Text::number("accessKey", digits); };
		for (const auto &field : detail::Text::parse("gdrfab-key", "accessKey", text)) {
			if (field.name == "k" && field.values.size() == 2) {
				key->keys.emplace_back(number(field.values[0]), number(field.values[1]));
			} else if (field.name == "at" && field.values.size() == 3) {
				key->base = number(field.values[0]);
				key->len = number(field.values[1]);
				key->access = number(field.values[2]);
				placed = true;
			}
		}
		if (!placed || key->keys.empty() || key->len > UINTPTR_MAX - key->base)
			throw std::invalid_argument("accessKey: contains no keys, or no range");
		return key;
	}
	const Key &key() const
	{
		if (!key_)
			throw std::logic_error("RdmaRemoteBuffer: it was moved from");
		return *key_;
	}
	void check_range() const
	{
		const Key &k = key();
		const uintptr_t at = reinterpret_cast<uintptr_t>(ptr);
		if (at < k.base || at - k.base > k.len || len > k.len - (at - k.base))
			throw std::out_of_range("RdmaRemoteBuffer: " + std::to_string(len) + " bytes at 0x" + detail::hex(at) +
						" are not inside the peer's " + std::to_string(k.len) + " bytes at 0x" +
						detail::hex(k.base));
	}
	// The key for a domain of the peer; null: there is none.
	const uint64_t *key_in(uint64_t tag) const
	{
		for (const auto &k : key().keys)
			if (k.first == tag)
				return &k.second;
		return nullptr;
	}

	std::shared_ptr<const Key> key_;
};

} // namespace gdrfab
#endif
