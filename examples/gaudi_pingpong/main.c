/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The Gaudi demo. Two processes, each with memory of an accelerator (or of the host if there is none, which is
 * printed), send their memory to each other three times, write into the other's by RMA, read from it, and compare
 * every byte.
 *
 * Where the provider has cards that take dma-bufs, the memory is exported as a dma-buf and registered with the
 * device's own address as the region's address (the verbs' iova). Otherwise the library gets only the address, and
 * the vendor's driver copies. Each side sends the other the data that it needs in one line of text over a TCP
 * socket.
 *
 *   cc -o gaudi_pingpong *.c $(pkg-config --cflags --libs gdrfab) -ldl
 *   ./gaudi_pingpong listen 7000 --mem gaudi:0 --provider verbs
 *   ./gaudi_pingpong connect HOST:7000 --mem cuda:0 --provider verbs        (on the other host)
 */
#define _POSIX_C_SOURCE 200809L
#include "pingpong.h"

#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

bool say(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	fputs("gaudi_pingpong: ", stderr);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	va_end(args);
	return false;
}

/* --- the socket --- */

/* Resolves "host:port", "[::1]:port" or, for listening, "port" alone. */
static bool resolve(const char *text, bool listens, struct addrinfo **found)
{
	char host[256] = "";
	const char *colon = strrchr(text, ':'), *port = colon ? colon + 1 : text;
	size_t len = colon ? (size_t)(colon - text) : 0;
	struct addrinfo hints;
	if (len >= sizeof host || (!listens && len == 0))
		return say("%s: must be HOST:PORT", text);
	if (len >= 2 && text[0] == '[' && text[len - 1] == ']')
		memcpy(host, text + 1, len - 2);
	else
		memcpy(host, text, len);
	memset(&hints, 0, sizeof hints);
	hints.ai_family = len ? AF_UNSPEC : AF_INET;
	hints.ai_socktype = SOCK_STREAM;
	hints.ai_flags = listens ? AI_PASSIVE : 0;
	int rc = getaddrinfo(len ? host : NULL, port, &hints, found);
	return rc == 0 || say("%s: %s", text, gai_strerror(rc));
}

static bool open_socket(struct side *s, const char *text)
{
	struct addrinfo *where = NULL;
	struct sockaddr_storage here;
	socklen_t len = sizeof here;
	char port[16] = "";
	int one = 1;
	if (!resolve(text, s->first, &where))
		return false;
	int fd = socket(where->ai_family, SOCK_STREAM, 0);
	if (fd >= 0 && s->first)
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	bool good = fd >= 0 && (s->first ? bind(fd, where->ai_addr, where->ai_addrlen) == 0 && listen(fd, 1) == 0
					 : connect(fd, where->ai_addr, where->ai_addrlen) == 0);
	freeaddrinfo(where);
	if (good && s->first) {
		getsockname(fd, (struct sockaddr *)&here, &len);
		getnameinfo((struct sockaddr *)&here, len, NULL, 0, port, sizeof port, NI_NUMERICSERV);
		printf("listening on port %s\n", port);
			s->sock = accept(fd, NULL, NULL); /* waits without a limit; one peer is enough */
		good = s->sock >= 0;
	}
	if (!good)
		perror(text);
	if (!good || !s->first)
		s->sock = fd;
	else
		close(fd);
	return good;
}

/* Finds this side's address on the route to the peer, and whether both are on one host. */
static bool name_socket(struct side *s, char *mine, size_t size, bool *one_host)
{
	struct sockaddr_storage addr;
	socklen_t len = sizeof addr;
	char theirs[256];
	if (getsockname(s->sock, (struct sockaddr *)&addr, &len) < 0 ||
	    getnameinfo((struct sockaddr *)&addr, len, mine, (socklen_t)size, NULL, 0, NI_NUMERICHOST) != 0)
		return say("the socket has no address");
	len = sizeof addr;
	if (getpeername(s->sock, (struct sockaddr *)&addr, &len) < 0 ||
	    getnameinfo((struct sockaddr *)&addr, len, theirs, sizeof theirs, NULL, 0, NI_NUMERICHOST) != 0)
		return say("the peer is gone");
	*one_host = strcmp(mine, theirs) == 0;
	return true;
}

/* Exchanges the data that each side needs of the other: address and key of its region, and address of its endpoint.
 * As text, so that byte orders do not matter. */
static bool exchange(struct side *s)
{
	char line[sizeof s->line], provider[16] = "", mine[GDRFAB_ADDR_MAX];
	unsigned long long size = 0;
	size_t len = sizeof mine;
	if (!CALL(gdrfab_ep_getname(s->ep, mine, &len)))
		return false;
	snprintf(line, sizeof line, "pingpong %s %zu %s %llx %llx %s\n", s->info->prov_name, s->size, s->mem,
		 (unsigned long long)s->region.base, (unsigned long long)s->region.key, mine);
	if (!tell(s, line) || !hear(s, line, "exchanging addresses"))
		return false;
	if (sscanf(line, "pingpong %15s %llu %31s %llx %llx %255s", provider, &size, s->peer_mem, &s->peer_base,
		   &s->peer_key, s->peer_ep) != 6)
		return say("the peer is no gaudi_pingpong: it says \"%.40s\"", line);
	if (strcmp(provider, s->info->prov_name) != 0)
		return say("--provider: %s here, %s there", s->info->prov_name, provider);
	return size == s->size || say("--size: %zu here, %llu there", s->size, size);
}

/* Forbids the path through a mapping: over shm a vendor's driver copies into a mapping of the peer's memory, but no
 * driver can map another vendor's memory. */
static void forbid_mapping(struct side *s)
{
	uint64_t path = GDRFAB_PATH_IPC;
	size_t kind = strcspn(s->mem, ":");
	bool devices = s->iface != GDRFAB_HMEM_SYSTEM && strcmp(s->peer_mem, "host") != 0;
	if (devices && strncmp(s->mem, s->peer_mem, kind + 1) != 0)
		gdrfab_ep_setopt(s->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_FORBID_PATH, &path, sizeof path);
}

/* --- the steps --- */

static bool send_part(struct side *s)
{
	return CALL(gdrfab_send(s->ep, at(s, OUT), s->size, gdrfab_mr_desc(s->mr), 0, &s->sent)) &&
	       await(s, &s->sent, "sending");
}

/* Posts the next receive before the peer is given a reason to send. */
static bool receive_part(struct side *s, int round, const char *what)
{
	return await(s, &s->received, what) && verify(s, IN, round, what) && post_receive(s);
}

static bool ping_pong(struct side *s)
{
	for (int round = 0; round < s->rounds; round++) {
		if (!fill(s, OUT, round) || (s->first && !send_part(s)) || !receive_part(s, round, "message") ||
		    (!s->first && !send_part(s)))
			return false;
	}
	return true;
}

/* The message after the write tells the peer that the bytes have arrived. */
static bool write_part(struct side *s)
{
	return CALL(gdrfab_write(s->ep, at(s, OUT), s->size, gdrfab_mr_desc(s->mr), 0,
				 s->peer_base + TARGET * s->size, s->peer_key, &s->written)) &&
	       await(s, &s->written, "RMA write") && send_part(s);
}

static bool writes(struct side *s)
{
	return fill(s, OUT, s->rounds) && (!s->first || write_part(s)) &&
	       receive_part(s, s->rounds, "message behind the write") &&
	       verify(s, TARGET, s->rounds, "RMA write by the peer") && (s->first || write_part(s));
}

/* Devices and cards refuse reads more often than other operations; the reason is then the result. */
static bool read_part(struct side *s, bool *refused)
{
	memset(s->scratch, 0, s->size);
	if (!CALL(gdrfab_read(s->ep, at(s, BACK), s->size, gdrfab_mr_desc(s->mr), 0, s->peer_base + OUT * s->size,
			      s->peer_key, &s->read_back)))
		return false;
	if (await(s, &s->read_back, "RMA read"))
		return verify(s, BACK, s->rounds, "RMA read");
	*refused = s->error != 0 && refusal(s->error);
	if (*refused)
		printf("RMA read of the peer's %s refused: %s: %s\n", s->peer_mem, gdrfab_strerror(s->error), s->words);
	return *refused;
}

/* One after the other, because over RDMA cards a refused operation ends the connection. The socket carries the
 * result, and tells that the memory is no longer needed. */
static bool reads(struct side *s, bool *refused)
{
	char line[sizeof s->line];
	if (!s->first && !hear(s, line, "the peer's read"))
		return false;
	if (!s->first && strcmp(line, "read refused") == 0) {
		*refused = true;
		printf("RMA read refused to the peer, see there\n");
	} else if (!read_part(s, refused)) {
		return false;
	}
	if (!tell(s, *refused ? "read refused\n" : "read ok\n"))
		return false;
	if (s->first && !hear(s, line, "the peer's read"))
		return false;
	*refused = *refused || strcmp(line, "read refused") == 0;
	return true;
}

static bool run(struct side *s, const char *where)
{
	char mine[256], words[1024];
	bool one_host = false, refused = false;
	if (!open_socket(s, where) || !name_socket(s, mine, sizeof mine, &one_host))
		return false;
	if (!s->provider)
		s->provider = one_host ? "shm" : "tcp";
	prepare_device(s);
	/* tcp needs the address of the socket; the other providers need none. */
	if (!open_fabric(s, strcmp(s->provider, "tcp") == 0 ? mine : NULL) || !take_memory(s) || !post_receive(s) ||
	    !exchange(s))
		return false;
	forbid_mapping(s);
	if (!connect_fabric(s))
		return false;
	if (gdrfab_ep_explain(s->ep, 0, s->peer_key, words, sizeof words) >= 0)
		printf("to the peer's %s: %s", s->peer_mem, words);
	if (!ping_pong(s) || !writes(s) || !reads(s, &refused))
		return false;
	printf("good over %s, %s here, %s there: %d messages each way, RMA write%s\n", s->info->prov_name, s->mem,
	       s->peer_mem, s->rounds, refused ? "; RMA read refused" : " and RMA read");
	return true;
}

/* Reads a number; 0 if the text is none. */
static unsigned long number_of(const char *text)
{
	char *end;
	unsigned long number = strtoul(text, &end, 10);
	return text[0] >= '0' && text[0] <= '9' && !*end ? number : 0;
}

static int usage(void)
{
	fputs("usage: gaudi_pingpong listen [HOST:]PORT | connect HOST:PORT\n"
	      "       [--mem gaudi:N|cuda:N|rocr:N|ze:N|host] [--provider shm|tcp|verbs] [--size BYTES] [--rounds N]\n"
	      "--mem: gaudi:0; --provider: shm on one host, tcp between two; --size: of a message, 65536;\n"
	      "--rounds: of messages, 3\n",
	      stderr);
	return 2;
}

int main(int argc, char **argv)
{
	struct side s;
	memset(&s, 0, sizeof s);
	s.sock = -1;
	s.size = 65536;
	s.rounds = ROUNDS;
	setvbuf(stdout, NULL, _IOLBF, 0); /* each line is printed when it is true, to a file too */
	memory_named(&s, "gaudi:0");
	if (argc < 3 || argc % 2 == 0 || (strcmp(argv[1], "listen") != 0 && strcmp(argv[1], "connect") != 0))
		return usage();
	s.first = strcmp(argv[1], "listen") == 0;
	for (int i = 3; i < argc; i += 2) {
		unsigned long number = number_of(argv[i + 1]);
		if (strcmp(argv[i], "--mem") == 0 && memory_named(&s, argv[i + 1]))
			continue;
		if (strcmp(argv[i], "--provider") == 0) {
			s.provider = argv[i + 1];
			continue;
		}
		if (strcmp(argv[i], "--size") == 0 && number > 0 && number <= 1u << 28) {
			s.size = number;
			continue;
		}
		if (strcmp(argv[i], "--rounds") == 0 && number > 0 && number <= 1u << 30) {
			s.rounds = (int)number;
			continue;
		}
		say("%s %s: not understood", argv[i], argv[i + 1]);
		return usage();
	}
	bool good = run(&s, argv[2]);
	close_fabric(&s);
	release_gaudi(&s);
	free(s.scratch);
	if (s.sock >= 0)
		close(s.sock);
	return good ? 0 : 1;
}
