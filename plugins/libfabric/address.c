/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Converts between the socket addresses that libfabric's layers use and gdrfab's text. Addresses from applications
 * and peers are checked here and nowhere else: length, family, and the host that they belong to.
 */
#include "provider.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <unistd.h>

#define SHM "shm://"
#define TCP "tcp://"
#define VERBS "verbs://"
#define RDM "rdm://"
#define VERBS_QP "verbs+qp://"
/* Prefix of the shm names that stand for a port. */
#define SHM_PORT SHM "fi-"

/* Prefix of the IPv6 addresses that stand for a host of shm: "gdrfab-" in fd00::/8, which no network routes. The
 * other half identifies the host. */
static const unsigned char shm_prefix[8] = {0xfd, 'g', 'd', 'r', 'f', 'a', 'b', '-'};
static unsigned char shm_host[8];
static pthread_once_t shm_host_once = PTHREAD_ONCE_INIT;

/* A hash: each bit of the result depends on each bit of the argument. */
static uint64_t mix(uint64_t x)
{
	for (int i = 0; i < 3; i++) {
		x ^= x >> 29;
		x *= 0x9e3779b97f4a7c15u;
		x ^= x >> 32;
	}
	return x;
}

/* Computes this host's number from the boot id: only processes under one boot of one kernel share memory. A
 * container has the number of its host. */
static void shm_host_learn(void)
{
	char id[64] = "";
	struct utsname name;
	FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
	uint64_t sum = 1;
	if (file) {
		if (!fgets(id, sizeof id, file))
			id[0] = 0;
		fclose(file);
	}
	/* Without /proc the host's name is used. */
	if (!id[0] && uname(&name) == 0)
		snprintf(id, sizeof id, "%.63s", name.nodename);
	for (const char *at = id; *at && *at != '\n'; at++)
		sum = mix(sum ^ (unsigned char)*at);
	for (int i = 0; i < 8; i++)
		shm_host[i] = (unsigned char)(sum >> (56 - 8 * i));
}

enum shm_place address_shm_place(const struct in6_addr *at)
{
	pthread_once(&shm_host_once, shm_host_learn);
	if (memcmp(at->s6_addr, shm_prefix, 8) != 0)
		return SHM_NOT;
	return memcmp(at->s6_addr + 8, shm_host, 8) == 0 ? SHM_HERE : SHM_ELSEWHERE;
}

/* The port in "shm://fi-<port>"; 0 for any other name. */
static uint16_t shm_port(const char *text)
{
	const char *digits = text + strlen(SHM_PORT);
	char *end;
	unsigned long port;
	if (strncmp(text, SHM_PORT, strlen(SHM_PORT)) != 0 || *digits < '1' || *digits > '9')
		return 0;
	port = strtoul(digits, &end, 10);
	return *end || port > UINT16_MAX ? 0 : (uint16_t)port;
}

static bool begins(const char *text, const char *with)
{
	return strncmp(text, with, strlen(with)) == 0;
}

/* The part after the scheme of an address with a host; NULL for other addresses. */
static const char *host_port(const char *text)
{
	static const char *const schemes[] = {TCP, VERBS, RDM};
	for (size_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++)
		if (begins(text, schemes[i]))
			return text + strlen(schemes[i]);
	return NULL;
}

/* ---- from text to socket addresses */

static void *copied(const void *from, size_t size, size_t *len)
{
	void *to = malloc(size);
	if (to) {
		memcpy(to, from, size);
		*len = size;
	}
	return to;
}

static void *shm_export(const char *text, size_t *len)
{
	struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_port = htons(shm_port(text))};
	pthread_once(&shm_host_once, shm_host_learn);
	memcpy(at.sin6_addr.s6_addr, shm_prefix, 8);
	memcpy(at.sin6_addr.s6_addr + 8, shm_host, 8);
	return copied(&at, sizeof at, len);
}

/* Converts "host:port" or "[v6%scope]:port". Of an endpoint's own name only the part before "/token" counts. A host
 * name is looked up. */
static void *host_export(const char *at, int family, size_t *len)
{
	const struct addrinfo want = {.ai_family = family, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
	struct addrinfo *found;
	char host[ADDRESS_MAX], *port, *end;
	void *made = NULL;
	if (snprintf(host, sizeof host, "%s", at) >= (int)sizeof host)
		return NULL;
	host[strcspn(host, "/")] = 0;
	end = host[0] == '[' ? strchr(host, ']') : strchr(host, ':');
	if (!end)
		return NULL;
	port = host[0] == '[' ? end + 1 : end;
	if (*port != ':')
		return NULL;
	*end = 0;
	if (getaddrinfo(host + (host[0] == '['), port + 1, &want, &found) != 0)
		return NULL;
	if (found->ai_family == AF_INET || found->ai_family == AF_INET6)
		made = copied(found->ai_addr, found->ai_addrlen, len);
	freeaddrinfo(found);
	return made;
}

/* Makes a socket address that is filled up to the length of a name. */
static void *name_export(const char *at, size_t *len)
{
	char *made = calloc(1, GDRFAB_NAME_LEN);
	void *short_one = host_export(at, AF_UNSPEC, len);
	if (made && short_one) {
		memcpy(made, short_one, *len);
		*len = GDRFAB_NAME_LEN;
	} else {
		free(made);
		made = NULL;
	}
	free(short_one);
	return made;
}

void *address_export(const char *text, uint32_t addr_format, size_t *len)
{
	const char *at;
	if (addr_format == FI_ADDR_STR)
		return copied(text, strlen(text) + 1, len);
	if (begins(text, SHM))
		return addr_format == FI_SOCKADDR_IN ? NULL : shm_export(text, len);
	at = host_port(text);
	if (!at)
		return NULL;
	return addr_format == ADDR_NAME ? name_export(at, len) : host_export(at, address_family(addr_format), len);
}

int address_give(const void *made, size_t len, void *addr, size_t *addrlen)
{
	size_t room;
	if (!addrlen)
		return -FI_EINVAL;
	room = *addrlen;
	*addrlen = len;
	if (addr)
		memcpy(addr, made, room < len ? room : len);
	return room < len || !addr ? -FI_ETOOSMALL : 0;
}

/* ---- from socket addresses to text */

int address_family(uint32_t addr_format)
{
	return addr_format == FI_SOCKADDR_IN ? AF_INET : addr_format == FI_SOCKADDR_IN6 ? AF_INET6 : AF_UNSPEC;
}

/* Copied, because an application's pointer need not be aligned. */
static sa_family_t family_of(const void *addr)
{
	sa_family_t family;
	memcpy(&family, (const char *)addr + offsetof(struct sockaddr, sa_family), sizeof family);
	return family;
}

uint32_t address_format(const void *addr, uint32_t addr_format)
{
	if (!addr || addr_format == FI_ADDR_STR || addr_format == ADDR_NAME)
		return addr_format;
	switch (family_of(addr)) {
	case AF_INET:
		return FI_SOCKADDR_IN;
	case AF_INET6:
		return FI_SOCKADDR_IN6;
	default:
		return addr_format == FI_FORMAT_UNSPEC ? FI_ADDR_STR : FI_FORMAT_UNSPEC;
	}
}

static int refuse(enum kind kind, const char *why)
{
	return REFUSE(FI_EINVAL, FI_LOG_FABRIC, "address for %s: %s\n", kind_names[kind], why);
}

static int text_import(enum kind kind, const char *addr, size_t len, char *text)
{
	/* The length need not count the NUL, but nothing beyond it is read. */
	size_t size = strnlen(addr, len && len < ADDRESS_MAX ? len : ADDRESS_MAX);
	bool fits;
	if (size >= ADDRESS_MAX)
		return refuse(kind, "the text is longer than any address, or has no NUL");
	memcpy(text, addr, size);
	text[size] = 0;
	for (size_t i = 0; i < size; i++)
		if ((unsigned char)text[i] <= ' ' || text[i] == 0x7f)
			return refuse(kind, "the text has blanks or control characters");
	switch (kind) {
	case KIND_SHM:
		fits = begins(text, SHM) && text[strlen(SHM)];
		break;
	case KIND_TCP:
		fits = begins(text, TCP);
		break;
	case KIND_RDM:
		fits = begins(text, RDM);
		break;
	default:
		fits = begins(text, VERBS) || begins(text, VERBS_QP);
		break;
	}
	if (!fits)
		return REFUSE(FI_EINVAL, FI_LOG_FABRIC, "address for %s: \"%s\" is not an address of this provider\n", kind_names[kind],
			      text);
	return 0;
}

static const char *scheme_of(enum kind kind)
{
	return kind == KIND_TCP ? TCP : kind == KIND_RDM ? RDM : VERBS;
}

static int in_import(enum kind kind, const struct sockaddr_in *at, char *text)
{
	char host[INET_ADDRSTRLEN];
	if (kind == KIND_SHM)
		return refuse(kind, "an IPv4 address; shm's are IPv6 addresses that stand for this host");
	inet_ntop(AF_INET, &at->sin_addr, host, sizeof host);
	snprintf(text, ADDRESS_MAX, "%s%s:%u", scheme_of(kind), host, ntohs(at->sin_port));
	return 0;
}

static int in6_import(enum kind kind, const struct sockaddr_in6 *at, char *text)
{
	enum shm_place place = address_shm_place(&at->sin6_addr);
	char host[INET6_ADDRSTRLEN], scope[16] = "";
	unsigned port = ntohs(at->sin6_port);
	if (kind == KIND_SHM) {
		if (place == SHM_NOT)
			return refuse(kind, "an IPv6 address that is not a host's");
		if (place == SHM_ELSEWHERE)
			return refuse(kind, "another host's, or this host's before it was booted");
		snprintf(text, ADDRESS_MAX, SHM_PORT "%u", port);
		return 0;
	}
	if (place != SHM_NOT)
		return refuse(kind, "an address of shm");
	inet_ntop(AF_INET6, &at->sin6_addr, host, sizeof host);
	if (at->sin6_scope_id)
		snprintf(scope, sizeof scope, "%%%u", at->sin6_scope_id);
	snprintf(text, ADDRESS_MAX, "%s[%s%s]:%u", scheme_of(kind), host, scope, port);
	return 0;
}

int address_import(enum kind kind, const void *addr, size_t len, uint32_t addr_format, char *text)
{
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
	uint32_t is;
	if (!addr)
		return refuse(kind, "NULL");
	if (len && len < sizeof(sa_family_t))
		return refuse(kind, "too short for an address");
	if (addr_format == ADDR_NAME) {
		addr_format = address_format(addr, FI_SOCKADDR);
		if (addr_format == FI_FORMAT_UNSPEC)
			return refuse(kind, "the name of an endpoint, which only an address vector takes");
	}
	is = address_format(addr, addr_format);
	if (is == FI_ADDR_STR)
		return text_import(kind, addr, len, text);
	if (is == FI_FORMAT_UNSPEC || (address_family(addr_format) && addr_format != is))
		return refuse(kind, "its family is not the one of addr_format");
	if (addr_format != FI_FORMAT_UNSPEC && addr_format != FI_SOCKADDR && addr_format != is)
		return refuse(kind, "addr_format is neither a socket address's nor FI_ADDR_STR");
	if (len && len < (is == FI_SOCKADDR_IN ? sizeof in : sizeof in6))
		return refuse(kind, "shorter than an address of its family");
	if (is == FI_SOCKADDR_IN) {
		memcpy(&in, addr, sizeof in);
		return in_import(kind, &in, text);
	}
	memcpy(&in6, addr, sizeof in6);
	return in6_import(kind, &in6, text);
}
