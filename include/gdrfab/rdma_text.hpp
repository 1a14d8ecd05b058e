// SPDX-License-Identifier: Apache-2.0 OR MIT
// The text format of urls and access keys, which a program carries between processes by its own means. Text that was
// cut, mixed up or mistyped on the way is reported as an error here, and does not become a write to a wrong address.
#ifndef GDRFAB_RDMA_TEXT_HPP
#define GDRFAB_RDMA_TEXT_HPP

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <fcntl.h>
#include <stdexcept>
#include <string>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

namespace gdrfab {
namespace detail {

inline std::string hex(uint64_t value)
{
	char text[17];
	std::snprintf(text, sizeof text, "%" PRIx64, value);
	return text;
}

inline uint64_t fnv(const std::string &text) noexcept
{
	uint64_t h = 0xcbf29ce484222325u;
	for (unsigned char c : text)
		h = (h ^ c) * 0x100000001b3u;
	return h;
}

inline uint64_t random_number()
{
	uint64_t value = 0;
	if (getrandom(&value, sizeof value, 0) != static_cast<ssize_t>(sizeof value))
		throw std::runtime_error("getrandom: no random bytes");
	return value;
}

// Equal in two processes that shm can connect: the same kernel, the same network namespace (shm's sockets have abstract
// names) and the same user (others are turned away).
inline std::string host_token()
{
	std::string seed;
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		char text[64];
		ssize_t got = read(fd, text, sizeof text);
		if (got > 0)
			seed.assign(text, static_cast<size_t>(got));
		close(fd);
	}
	struct stat net;
	if (stat("/proc/self/ns/net", &net) == 0)
		seed += std::to_string(net.st_ino);
	return hex(fnv(seed + "/" + std::to_string(geteuid())));
}

// The format: `kind:1;name=value;name=value;<checksum>`. Names may repeat. ';', ',' and '%' in values are escaped.
class Text {
public:
	explicit Text(const char *kind) : text_(std::string(kind) + ":1;") {}

	Text &add(const char *name, const std::vector<std::string> &values)
	{
		text_ += std::string(name) + "=";
		for (size_t i = 0; i < values.size(); i++)
			text_ += (i ? "," : "") + escaped(values[i]);
		text_ += ";";
		return *this;
	}
	std::string done() const { return text_ + hex(fnv(text_)); }

	struct Field {
		std::string name;
		std::vector<std::string> values;
	};
	// Parses the result of done(). `argument` is the name of the caller's argument in the exception's text.
	static std::vector<Field> parse(const char *kind, const char *argument, const std::string &text)
	{
		auto bad = [&](const char *why) {
			return std::invalid_argument(std::string(argument) + ": " + why + ": \"" + text.substr(0, 60) + "\"");
		};
		const std::string start = std::string(kind) + ":";
		if (text.compare(0, start.size(), start) != 0)
			throw bad("is not text of this kind");
		if (text.compare(0, start.size() + 2, start + "1;") != 0)
			throw bad("has an unknown version");
		const size_t end = text.rfind(';') + 1;
		if (text.substr(end) != hex(fnv(text.substr(0, end))))
			throw bad("cut short or changed on its way (the checksum is wrong)");
		std::vector<Field> fields;
		for (size_t at = start.size() + 2; at < end;) {
			const size_t equals = text.find('=', at), next = text.find(';', at);
			if (equals >= next)
				throw bad("a field without '='");
			Field field{text.substr(at, equals - at), {std::string()}};
			for (size_t i = equals + 1; i < next; i++) {
				if (text[i] == ',') {
					field.values.emplace_back();
				} else if (text[i] == '%') {
					if (next - i < 3)
						throw bad("a broken escape");
					field.values.back() += static_cast<char>(number(argument, text.substr(i + 1, 2)));
					i += 2;
				} else {
					field.values.back() += text[i];
				}
			}
			fields.push_back(std::move(field));
			at = next + 1;
		}
		return fields;
	}
	static uint64_t number(const char *argument, const std::string &digits)
	{
		if (digits.empty() || digits.size() > 16 || digits.find_first_not_of("0123456789abcdef") != std::string::npos)
			throw std::invalid_argument(std::string(argument) + ": \"" + digits.substr(0, 20) + "\" is not a number");
		return std::stoull(digits, nullptr, 16);
	}

private:
	static std::string escaped(const std::string &value)
	{
		std::string out;
		for (unsigned char c : value) {
			if (c == ';' || c == ',' || c == '%' || c <= ' ' || c >= 0x7f) {
				char text[4];
				std::snprintf(text, sizeof text, "%%%02x", c);
				out += text;
			} else {
				out += static_cast<char>(c);
			}
		}
		return out;
	}

	std::string text_;
};

} // namespace detail
} // namespace gdrfab
#endif
