/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Bandwidth of the plugin for NCCL: `nccl serve NODE PORT`, and `nccl write NODE PORT BYTES SECONDS`, which prints
 * MB/s (10^6) of host memory through CHANNELS (4) communicators, each with two messages under way. PLUGIN names the
 * file. rails.sh runs this program over shaped links.
 */
#define _GNU_SOURCE
#include "../../plugins/nccl/nccl_net.h"
#include "../ok.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <ifaddrs.h>
#include <stdarg.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 32, DEPTH = 2 };

static const ncclNet_v8_t *net;

#define NET(call)                                                                                                      \
	do {                                                                                                           \
		if ((call) != ncclSuccess)                                                                             \
			fail(#call, "its words are above");                                                   \
	} while (0)

static void say(ncclDebugLogLevel level, unsigned long flags, const char *file, int line, const char *format, ...)
{
	va_list arguments;
	(void)flags, (void)file, (void)line;
	va_start(arguments, format);
	if (level == NCCL_LOG_WARN && vfprintf(stderr, format, arguments) > 0)
		fputc('\n', stderr);
	va_end(arguments);
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Like NCCL's bootstrap: a socket that carries handles. */
static int meet(const char *node, const char *port, bool serves)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
	int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0), came;
	inet_pton(AF_INET, node, &at.sin_addr);
	if (!serves) {
		for (int tries = 0; connect(fd, (struct sockaddr *)&at, sizeof at); tries++) {
			if (tries == 50)
				fail(node, "nobody serves");
			usleep(100000);
		}
		return fd;
	}
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(fd, (struct sockaddr *)&at, sizeof at) || listen(fd, 1) || (came = accept(fd, NULL, NULL)) < 0)
		fail(node, "cannot listen");
	return came;
}

/* The plugin takes an interface by its name to listen on. */
static void name_interface(const char *node)
{
	struct in_addr want;
	struct ifaddrs *list;
	inet_pton(AF_INET, node, &want);
	getifaddrs(&list);
	for (struct ifaddrs *i = list; i; i = i->ifa_next)
		if (i->ifa_addr && i->ifa_addr->sa_family == AF_INET &&
		    ((struct sockaddr_in *)(void *)i->ifa_addr)->sin_addr.s_addr == want.s_addr)
			setenv("GDRFAB_TCP_IFACE", i->ifa_name, 1);
	freeifaddrs(list);
}

static void post(bool serves, void *comm, char *data, int bytes, void *region, void **request)
{
	int tag = 0;
	void *at = data;
	if (serves)
		NET(net->irecv(comm, 1, &at, &bytes, &tag, &region, request));
	else
		NET(net->isend(comm, data, bytes, tag, region, request));
}

int main(int argc, char **argv)
{
	bool serves = argc > 1 && strcmp(argv[1], "serve") == 0;
	const char *file = getenv("PLUGIN"), *wanted = getenv("CHANNELS");
	int channels = wanted ? atoi(wanted) : 4, bytes = 0, devices;
	void *comms[MOST] = {0}, *regions[MOST], *requests[MOST][DEPTH] = {{0}}, *library;
	if (!file || argc != (serves ? 4 : 6) || channels < 1 || channels > MOST)
		fail("usage", "PLUGIN=FILE [CHANNELS=N] nccl serve NODE PORT | nccl write NODE PORT BYTES SECONDS");
	setenv("GDRFAB_NCCL_PROVIDERS", "tcp", 1);
	name_interface(argv[2]);
	library = dlopen(file, RTLD_NOW);
	if (!library || !(net = dlsym(library, "ncclNetPlugin_v8")))
		fail(file, dlerror());
	NET(net->init(say));
	NET(net->devices(&devices));
	int fd = meet(argv[2], argv[3], serves);
	/* The client tells the server the length of messages. */
	if (!serves)
		bytes = atoi(argv[4]);
	if (serves ? recv(fd, &bytes, sizeof bytes, MSG_WAITALL) != sizeof bytes : send(fd, &bytes, sizeof bytes, 0) != sizeof bytes)
		fail(argv[2], "no size");
	char *memory = calloc((size_t)channels * DEPTH, (size_t)bytes);
	for (int i = 0; i < channels; i++) {
		char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
		void *listener = NULL;
		if (serves) {
			NET(net->listen(0, handle, &listener));
			send(fd, handle, sizeof handle, 0);
		} else if (recv(fd, handle, sizeof handle, MSG_WAITALL) != sizeof handle) {
			fail(argv[2], "no handle");
		}
		while (!comms[i]) {
			ncclNetDeviceHandle_t *unused = NULL;
			if (serves)
				NET(net->accept(listener, &comms[i], &unused));
			else
				NET(net->connect(0, handle, &comms[i], &unused));
		}
		if (serves)
			NET(net->closeListen(listener));
		NET(net->regMr(comms[i], memory + (size_t)i * DEPTH * (size_t)bytes, (size_t)DEPTH * (size_t)bytes, NCCL_PTR_HOST, &regions[i]));
	}
	double begin = now(), end = serves ? 1e18 : begin + atof(argv[5]);
	size_t ended = 0;
	char over;
	for (int turn = 0; now() < end; turn++) {
		for (int i = 0; i < channels; i++) {
			for (int k = 0; k < DEPTH; k++) {
				int done = 0, size;
				if (!requests[i][k])
					post(serves, comms[i], memory + (size_t)(i * DEPTH + k) * (size_t)bytes, bytes, regions[i], &requests[i][k]);
				else
					NET(net->test(requests[i][k], &done, &size));
				if (done)
					requests[i][k] = NULL, ended++;
			}
		}
		if (serves && turn % 1024 == 0 && recv(fd, &over, 1, MSG_DONTWAIT) == 0)
			return 0;
	}
	printf("%.1f\n", (double)ended * bytes / (now() - begin) / 1e6);
	return 0;
}
