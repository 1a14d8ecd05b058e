/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "settings.hpp"

#include <arpa/inet.h>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/stat.h>
#include <unistd.h>

static const char PROVIDER[] = "GDRFAB_PROVIDER", IFACE[] = "GDRFAB_TCP_IFACE", KEY_FILE[] = "GDRFAB_TCP_KEY_FILE",
		  TIMEOUT[] = "GDRFAB_NIXL_TIMEOUT", STREAMS[] = "GDRFAB_TCP_STREAMS";

static std::string from_environment(const char *name)
{
	const char *text = getenv(name);
	return text ? text : "";
}

border::Params settings_offered()
{
	border::Params all;
	for (const char *name : {PROVIDER, IFACE, KEY_FILE, STREAMS})
		all[name] = from_environment(name);
	std::string timeout = from_environment(TIMEOUT);
	all[TIMEOUT] = timeout.empty() ? "20" : timeout;
	return all;
}

/* The IPv4 address of an interface. If `iface` is empty: of the first interface that is up and leads out of this
 * host. */
static std::string address_of(const std::string &iface)
{
	ifaddrs *all = nullptr;
	std::string found;
	if (getifaddrs(&all))
		return found;
	for (ifaddrs *a = all; a && found.empty(); a = a->ifa_next) {
		char text[INET_ADDRSTRLEN];
		if (!a->ifa_addr || a->ifa_addr->sa_family != AF_INET || !(a->ifa_flags & IFF_UP))
			continue;
		if (iface.empty() ? (a->ifa_flags & IFF_LOOPBACK) || !(a->ifa_flags & IFF_RUNNING) : iface != a->ifa_name)
			continue;
		if (inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in *>(a->ifa_addr)->sin_addr, text, sizeof text))
			found = text;
	}
	freeifaddrs(all);
	return found;
}

static std::string read_key(const std::string &path, std::string &key)
{
	char bytes[1026];
	struct stat st;
	int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	std::string wrong;
	if (fd < 0)
		return std::string(KEY_FILE) + ": " + path + ": " + strerror(errno);
	ssize_t n = fstat(fd, &st) || !S_ISREG(st.st_mode) ? -1 : read(fd, bytes, sizeof bytes);
	if (n < 0)
		wrong = "cannot be read";
	else if ((st.st_uid != geteuid() && st.st_uid != 0) || (st.st_mode & 077))
		wrong = "must belong to this user or root, and nobody else may read it (chmod 600)";
	else if (n > 0 && bytes[n - 1] == '\n')
		n--;
	if (wrong.empty() && (n < 16 || n > 1024))
		wrong = "a key must have 16 to 1024 bytes";
	close(fd);
	if (!wrong.empty())
		return std::string(KEY_FILE) + ": " + path + ": " + wrong;
	key.assign(bytes, static_cast<size_t>(n));
	return {};
}

static std::string read_seconds(const std::string &text, uint64_t &ns)
{
	char *end;
	double seconds = strtod(text.c_str(), &end);
	if (*end || !(seconds > 0 && seconds <= 1e6))
		return std::string(TIMEOUT) + "=" + text + ": seconds are expected, more than 0 and up to a million";
	ns = static_cast<uint64_t>(seconds * 1e9);
	return {};
}

static std::string read_streams(const std::string &text, uint32_t &streams)
{
	char *end;
	unsigned long n = strtoul(text.c_str(), &end, 10);
	if (*end || text[0] < '0' || text[0] > '9' || n > 16)
		return std::string(STREAMS) + "=" + text + ": a number is expected, 0 to 16";
	streams = static_cast<uint32_t>(n);
	return {};
}

std::string settings_read(const border::Params &given, Settings &to)
{
	border::Params all = settings_offered();
	for (const auto &[name, value] : given) {
		auto known = all.find(name);
		if (known == all.end() && name.rfind("GDRFAB_", 0) == 0)
			return name + ": not a parameter of this backend; it has " + PROVIDER + ", " + IFACE + ", " + KEY_FILE + ", " + STREAMS + " and " + TIMEOUT;
		if (known != all.end())
			known->second = value;
	}
	to.providers = all[PROVIDER];
	to.address_named = !all[IFACE].empty();
	to.address = address_of(all[IFACE]);
	if (to.address.empty() && !all[IFACE].empty())
		return std::string(IFACE) + "=" + all[IFACE] + ": no interface of this name is up and has an IPv4 address";
	/* If the value is the environment's, the library reads it itself, by its own rules. */
	std::string path = all[KEY_FILE], wrong;
	if (!path.empty() && path != from_environment(KEY_FILE))
		wrong = read_key(path, to.key);
	if (wrong.empty() && !all[STREAMS].empty() && all[STREAMS] != from_environment(STREAMS))
		wrong = read_streams(all[STREAMS], to.streams);
	return wrong.empty() ? read_seconds(all[TIMEOUT], to.timeout_ns) : wrong;
}
