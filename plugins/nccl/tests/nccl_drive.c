/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* One set of functions over all versions of NCCL's net interface, and helpers that the claims about the plugin
 * share. */
#include "nccl_drive.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/resource.h>

static void skip(TEST_UNUSED const void *arg)
{
	test_skip("TEST_NCCL_PLUGIN names no plugin");
}

bool nccl_absent(void)
{
	const char *path = getenv("TEST_NCCL_PLUGIN");
	bool absent = !path || !*path;
	if (absent)
		test_add("plugin", skip, NULL, 20);
	return absent;
}

int nccl_version(void)
{
	const char *text = getenv("TEST_NCCL_ABI");
	int version = text && *text ? atoi(text) : 11;
	if (version < OLDEST || version > NEWEST) {
		fprintf(stderr, "TEST_NCCL_ABI=%s: versions %d to %d are known\n", text, OLDEST, NEWEST);
		exit(1);
	}
	return version;
}

/* --- the plugin's log --- */

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static struct lines {
	char text[16384];
	size_t used;
} warnings, everything;

static void keep(struct lines *to, const char *text)
{
	size_t left = sizeof to->text - to->used;
	int len = snprintf(to->text + to->used, left, "%s%s", to->used ? " | " : "", text);
	to->used += len < 0 ? 0 : (size_t)len < left ? (size_t)len : left - 1;
}

__attribute__((format(printf, 5, 6))) static void logger(ncclDebugLogLevel level, unsigned long flags, const char *file,
							 int line, const char *format, ...)
{
	char text[2000];
	va_list args;
	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	if (getenv("TEST_NCCL_LOG"))
		fprintf(stderr, "     %d: level %d, subsystem %lu, %s:%d: %s\n", (int)getpid(), (int)level, flags,
			file ? file : "?", line, text);
	pthread_mutex_lock(&log_lock);
	keep(&everything, text);
	if (level == NCCL_LOG_WARN)
		keep(&warnings, text);
	pthread_mutex_unlock(&log_lock);
}

static const char *read_lines(const struct lines *from)
{
	static __thread char copy[sizeof from->text];
	pthread_mutex_lock(&log_lock);
	memcpy(copy, from->text, from->used + 1);
	pthread_mutex_unlock(&log_lock);
	return copy;
}

const char *log_warnings(void)
{
	return read_lines(&warnings);
}

const char *log_all(void)
{
	return read_lines(&everything);
}

void log_forget(void)
{
	pthread_mutex_lock(&log_lock);
	warnings.used = everything.used = 0;
	warnings.text[0] = everything.text[0] = 0;
	pthread_mutex_unlock(&log_lock);
}

const char *nccl_word(int result)
{
	static const char *const words[] = {"ncclSuccess",	 "ncclUnhandledCudaError", "ncclSystemError",
					    "ncclInternalError", "ncclInvalidArgument",	   "ncclInvalidUsage",
					    "ncclRemoteError"};
	static __thread char other[32];
	if (result >= 0 && (size_t)result < sizeof words / sizeof words[0])
		return words[result];
	snprintf(other, sizeof other, "result %d", result);
	return other;
}

/* --- versions --- */

struct net net;
bool net_unhurried;

#define V(version) ((const ncclNet_v##version##_t *)net.table)

/* Functions that have the same types in every version are copied; the others are called through a switch. */
#define SAME(version)                                                                                                  \
	do {                                                                                                           \
		const ncclNet_v##version##_t *t = V(version);                                                          \
		net.name = t->name;                                                                                    \
		net.count = t->devices;                                                                                \
		net.accept = t->accept;                                                                                \
		net.reg = t->regMr;                                                                                    \
		net.reg_dmabuf = t->regMrDmaBuf;                                                                       \
		net.dereg = t->deregMr;                                                                                \
		net.flush = t->iflush;                                                                                 \
		net.test = t->test;                                                                                    \
		net.close_send = t->closeSend;                                                                         \
		net.close_recv = t->closeRecv;                                                                         \
		net.close_listen = t->closeListen;                                                                     \
		/* No device offload. */                                                             \
		CHECK(t->init && t->getProperties && t->listen && t->connect && t->isend && t->irecv);                 \
	} while (0)

void net_load(void)
{
	char symbol[32];
	memset(&net, 0, sizeof net);
	net.version = nccl_version();
	net.fds = test_count_fds();
	net.library = dlopen(getenv("TEST_NCCL_PLUGIN"), RTLD_NOW | RTLD_LOCAL);
	if (!net.library)
		test_fail(__FILE__, __LINE__, "TEST_NCCL_PLUGIN: %s", dlerror());
	snprintf(symbol, sizeof symbol, "ncclNetPlugin_v%d", net.version);
	net.table = dlsym(net.library, symbol);
	if (!net.table)
		test_fail(__FILE__, __LINE__, "the plugin has no %s", symbol);
	switch (net.version) {
	case 8: SAME(8); break;
	case 9: SAME(9); break;
	case 10: SAME(10); break;
	case 11: SAME(11); break;
	default: SAME(12);
	}
	CHECK(net.count && net.accept && net.reg && net.dereg && net.flush && net.test);
	CHECK(net.close_send && net.close_recv && net.close_listen);
	if (net.version >= 11)
		CHECK(net.version == 11 ? V(11)->finalize != NULL : V(12)->finalize != NULL);
}

ncclResult_t net_init(void **ctx)
{
	static uint64_t last = 0xc0ffee;
	uint64_t communicator = __atomic_fetch_add(&last, 1, __ATOMIC_RELAXED);
	ncclNetCommConfig_t config = {NCCL_NET_ID_UNDEF};
	*ctx = NULL;
	switch (net.version) {
	case 8: return V(8)->init(logger);
	case 9: return V(9)->init(logger);
	case 10: return V(10)->init(logger, NULL);
	case 11: return V(11)->init(ctx, communicator, &config, logger, NULL);
	default: return V(12)->init(ctx, communicator, &config, logger, NULL);
	}
}

ncclResult_t net_finalize(void *ctx)
{
	if (net.version < 11)
		return ncclSuccess;
	return net.version == 11 ? V(11)->finalize(ctx) : V(12)->finalize(ctx);
}

void net_open(void)
{
	setenv("GDRFAB_NCCL_PROVIDERS", provider(), 0);
	/* Over shm another process copies memory of GPUs, if NCCL does without LL; over tcp this process must be
	 * allowed to. */
	if (strcmp(provider(), "shm") != 0)
		setenv("GDRFAB_NCCL_GDR", "1", 0);
	setenv("NCCL_PROTO", "^LL", 0);
	net_load();
	NET(net_init(&net.ctx));
	NET(net.count(&net.devices));
	CHECK(net.devices > 0);
}

void net_close(const struct node *n)
{
	NET(net_finalize(net.ctx));
	CHECK_EQ(dlclose(net.library), 0);
	/* Before version 11 nothing tells a plugin that it is no longer needed, and drivers keep descriptors. */
	if (net.version < 11 || n->drivers || traits()->adapter || getenv("TEST_REAL"))
		return;
	if (test_count_fds() != net.fds)
		test_list_fds();
	CHECK_EQ(test_count_fds(), net.fds);
}

#define COMMON(p, from)                                                                                                \
	do {                                                                                                           \
		(p)->name = (from).name;                                                                               \
		(p)->pci_path = (from).pciPath;                                                                        \
		(p)->guid = (from).guid;                                                                               \
		(p)->ptr_support = (from).ptrSupport;                                                                  \
		(p)->reg_is_global = (from).regIsGlobal;                                                               \
		(p)->speed = (from).speed;                                                                             \
		(p)->port = (from).port;                                                                               \
		(p)->latency = (double)(from).latency;                                                                 \
		(p)->max_comms = (from).maxComms;                                                                      \
		(p)->max_recvs = (from).maxRecvs;                                                                      \
		(p)->device_type = (from).netDeviceType;                                                               \
		(p)->device_version = (from).netDeviceVersion;                                                         \
	} while (0)
#define SINCE_9(p, from)                                                                                               \
	do {                                                                                                           \
		COMMON(p, from);                                                                                       \
		(p)->force_flush = (from).forceFlush;                                                                  \
		(p)->ndevs = (from).vProps.ndevs;                                                                      \
		(p)->first_dev = (from).vProps.devs[0];                                                                \
		(p)->max_p2p = (long long)(from).maxP2pBytes;                                                          \
		(p)->max_coll = (long long)(from).maxCollBytes;                                                        \
	} while (0)

ncclResult_t net_props(int dev, struct props *p)
{
	union {
		ncclNetProperties_v8_t v8;
		ncclNetProperties_v9_t v9;
		ncclNetProperties_v11_t v11;
		ncclNetProperties_v12_t v12;
		unsigned char bytes[256];
	} at;
	static const struct props none = {.force_flush = -1, .ndevs = -1, .first_dev = -1, .max_p2p = -1, .max_coll = -1,
					  .max_multi = -1, .rail = -1, .plane = -1};
	size_t size = net.version == 8	 ? sizeof at.v8
		      : net.version < 11 ? sizeof at.v9
		      : net.version < 12 ? sizeof at.v11
					 : sizeof at.v12;
	ncclResult_t result;
	*p = none;
	/* The pattern shows fields that the plugin did not set, and writes beyond its version's struct. */
	memset(&at, 0x5a, sizeof at);
	switch (net.version) {
	case 8: result = V(8)->getProperties(dev, &at.v8); break;
	case 9: result = V(9)->getProperties(dev, &at.v9); break;
	case 10: result = V(10)->getProperties(dev, &at.v9); break;
	case 11: result = V(11)->getProperties(dev, &at.v11); break;
	default: result = V(12)->getProperties(dev, &at.v12);
	}
	for (size_t i = size; i < sizeof at; i++)
		CHECK_EQ(at.bytes[i], 0x5a);
	if (result != ncclSuccess)
		return result;
	if (net.version == 8) {
		COMMON(p, at.v8);
	} else if (net.version < 11) {
		SINCE_9(p, at.v9);
	} else if (net.version == 11) {
		SINCE_9(p, at.v11);
		p->max_multi = at.v11.maxMultiRequestSize;
	} else {
		SINCE_9(p, at.v12);
		p->max_multi = at.v12.maxMultiRequestSize;
		p->rail = at.v12.railId;
		p->plane = at.v12.planeId;
	}
	return result;
}

ncclResult_t net_listen(void *ctx, int dev, void *handle, void **listener)
{
	switch (net.version) {
	case 8: return V(8)->listen(dev, handle, listener);
	case 9: return V(9)->listen(dev, handle, listener);
	case 10: return V(10)->listen(dev, handle, listener);
	case 11: return V(11)->listen(ctx, dev, handle, listener);
	default: return V(12)->listen(ctx, dev, handle, listener);
	}
}

/* The start of a call: the time, how often its thread had slept, and its CPU time. */
struct call {
	uint64_t ms, sleeps, cpu_ms;
};

static struct call call_now(void)
{
	struct rusage u;
	CHECK_EQ(getrusage(RUSAGE_THREAD, &u), 0);
	return (struct call){test_now_ms(), (uint64_t)u.ru_nvcsw,
			     (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000 +
				     (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1000};
}

/* A call that returns within this time did not wait. Nor did one that a busy machine suspended: it neither slept nor
 * used the CPU. Locks may make it sleep a few times. */
static void in_no_time(const char *what, struct call start)
{
	static int slow;
	struct call now = call_now();
	uint64_t took = now.ms - start.ms, spun = now.cpu_ms - start.cpu_ms;
	if (net_unhurried)
		return;
	if (now.sleeps == start.sleeps)
		took = spun;
	if (took > (uint64_t)test_ms(500) ||
	    (took > (uint64_t)test_ms(50) && __atomic_add_fetch(&slow, 1, __ATOMIC_RELAXED) > 3))
		test_fail(__FILE__, __LINE__, "a call of %s took %llu ms, and must not wait", what,
			  (unsigned long long)took);
}

ncclResult_t net_connect(void *ctx, int dev, void *handle, void **comm)
{
	ncclNetDeviceHandle_t *device = NULL;
	ncclNetCommConfig_t config = {NCCL_NET_ID_UNDEF};
	struct call start = call_now();
	ncclResult_t result;
	*comm = NULL;
	switch (net.version) {
	case 8: result = V(8)->connect(dev, handle, comm, &device); break;
	case 9: result = V(9)->connect(dev, handle, comm, &device); break;
	case 10: result = V(10)->connect(dev, &config, handle, comm, &device); break;
	case 11: result = V(11)->connect(ctx, dev, handle, comm, &device); break;
	default: result = V(12)->connect(ctx, dev, handle, comm, &device);
	}
	in_no_time("connect", start);
	CHECK(device == NULL);
	return result;
}

ncclResult_t net_accept(void *listener, void **comm)
{
	ncclNetDeviceHandle_t *device = NULL;
	struct call start = call_now();
	*comm = NULL;
	ncclResult_t result = net.accept(listener, comm, &device);
	in_no_time("accept", start);
	CHECK(device == NULL);
	return result;
}

ncclResult_t net_isend(void *comm, const void *data, size_t size, int tag, void *mhandle, void **request)
{
	void *at = (void *)(uintptr_t)data;
	struct call start = call_now();
	ncclResult_t result;
	*request = NULL;
	switch (net.version) {
	case 8: result = V(8)->isend(comm, at, (int)size, tag, mhandle, request); break;
	case 9: result = V(9)->isend(comm, at, size, tag, mhandle, request); break;
	case 10: result = V(10)->isend(comm, at, size, tag, mhandle, NULL, request); break;
	case 11: result = V(11)->isend(comm, at, size, tag, mhandle, NULL, request); break;
	default: result = V(12)->isend(comm, at, size, tag, mhandle, NULL, request);
	}
	in_no_time("isend", start);
	return result;
}

ncclResult_t net_irecv(void *comm, int n, void **data, const size_t *sizes, int *tags, void **mhandles, void **request)
{
	/* After the call the caller's arrays may change, so they are overwritten. */
	int ints[GROUP + 1];
	size_t own[GROUP + 1];
	void *profile[GROUP + 1] = {NULL};
	struct call start = call_now();
	ncclResult_t result;
	for (int i = 0; i < n && i <= GROUP; i++) {
		ints[i] = (int)sizes[i];
		own[i] = sizes[i];
	}
	switch (net.version) {
	case 8: result = V(8)->irecv(comm, n, data, ints, tags, mhandles, request); break;
	case 9: result = V(9)->irecv(comm, n, data, own, tags, mhandles, request); break;
	case 10: result = V(10)->irecv(comm, n, data, own, tags, mhandles, profile, request); break;
	case 11: result = V(11)->irecv(comm, n, data, own, tags, mhandles, profile, request); break;
	default: result = V(12)->irecv(comm, n, data, own, tags, mhandles, profile, request);
	}
	in_no_time("irecv", start);
	return result;
}
