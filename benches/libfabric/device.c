/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Writes and reads between the device memory of two processes, by gdrfab's own calls and by libfabric's over the
 * provider, taking turns: posts, then polls for the completion. Uses two GPUs if there are two. Exit status 1 if the
 * bytes are wrong, 77 without CUDA.
 *
 *   device [LARGEST [ROUNDS]]    LARGEST in bytes (268435456); FI_PROVIDER_PATH must lead to the provider; run it with
 *                                FI_GDRFAB_PROVIDERS=shm
 */
#include "ends.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum { MOST_ROUNDS = 101 };

typedef unsigned long long dptr;
static struct {
	int (*cuInit)(unsigned);
	int (*cuDeviceGetCount)(int *);
	int (*cuDevicePrimaryCtxRetain)(void **, int);
	int (*cuCtxSetCurrent)(void *);
	int (*cuMemAlloc_v2)(dptr *, size_t);
	int (*cuStreamSynchronize)(void *);
	int (*cuMemcpyHtoD_v2)(dptr, const void *, size_t);
	int (*cuMemcpyDtoH_v2)(void *, dptr, size_t);
} cu;

#define CU(call)                                                                                                       \
	do {                                                                                                           \
		int result_ = (call);                                                                                  \
		if (result_) {                                                                                         \
			fprintf(stderr, "%s: CUDA error %d\n", #call, result_);                                        \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

static void find(void *library, const char *name, void *to)
{
	void *at = dlsym(library, name);

	if (!at) {
		printf("skipped: libcuda.so.1 has no %s\n", name);
		exit(77);
	}
	memcpy(to, &at, sizeof at);
}

/* Opens the driver in this process, on device 0, or on another if there are several and `other`. */
static int device_up(int other)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW), *context;
	int count = 0, device;

	if (!library) {
		printf("skipped: %s\n", dlerror());
		exit(77);
	}
	find(library, "cuInit", &cu.cuInit);
	find(library, "cuDeviceGetCount", &cu.cuDeviceGetCount);
	find(library, "cuDevicePrimaryCtxRetain", &cu.cuDevicePrimaryCtxRetain);
	find(library, "cuCtxSetCurrent", &cu.cuCtxSetCurrent);
	find(library, "cuMemAlloc_v2", &cu.cuMemAlloc_v2);
	find(library, "cuStreamSynchronize", &cu.cuStreamSynchronize);
	find(library, "cuMemcpyHtoD_v2", &cu.cuMemcpyHtoD_v2);
	find(library, "cuMemcpyDtoH_v2", &cu.cuMemcpyDtoH_v2);
	CU(cu.cuInit(0));
	CU(cu.cuDeviceGetCount(&count));
	device = other && count > 1;
	CU(cu.cuDevicePrimaryCtxRetain(&context, device));
	CU(cu.cuCtxSetCurrent(context));
	return device;
}

static void device_memory(struct end *e, int device, size_t len)
{
	dptr at = 0;

	CU(cu.cuMemAlloc_v2(&at, len));
	e->file = -1;
	e->device = device;
	e->memory = (char *)(uintptr_t)at;
	e->len = len;
}

static void fill(const struct end *e, unsigned seed)
{
	unsigned char *host = malloc(e->len);

	for (size_t i = 0; i < e->len; i++)
		host[i] = (unsigned char)((i * 2654435761u >> 13) + seed);
	CU(cu.cuMemcpyHtoD_v2((uintptr_t)e->memory, host, e->len));
	/* The call may return before pageable bytes are in place. */
	CU(cu.cuStreamSynchronize(NULL));
	free(host);
}

/* Checks that the first bytes are those of `seed`. */
static void check(const char *what, const struct end *e, size_t len, unsigned seed)
{
	unsigned char *host = malloc(len);

	CU(cu.cuMemcpyDtoH_v2(host, (uintptr_t)e->memory, len));
	for (size_t i = 0; i < len; i++) {
		if (host[i] != (unsigned char)((i * 2654435761u >> 13) + seed)) {
			fprintf(stderr, "%s: byte %zu of %zu is wrong\n", what, i, len);
			exit(1);
		}
	}
	free(host);
}

/* ---- the target, which moves no bytes */

static void say(int sock, const void *data, size_t len)
{
	if (write(sock, data, len) != (ssize_t)len)
		exit(1);
}

static void hear(int sock, void *data, size_t len)
{
	if (recv(sock, data, len, MSG_WAITALL) != (ssize_t)len)
		exit(1);
}

static void target(int sock, const char *service, size_t largest)
{
	struct end g = {0}, f = {0};
	struct name name = {0};
	int device;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	device = device_up(1);
	device_memory(&g, device, largest);
	device_memory(&f, device, largest);
	g_listen(&g, service);
	f.file = -1;
	f_listen(&f, &name);
	say(sock, &name, sizeof name);
	g_accept(&g);
	g_event(&g, GDRFAB_CONNECTED, NULL, NULL);
	f_accept(&f);
	f_event(&f, FI_CONNECTED, NULL, NULL);
	say(sock, &device, sizeof device);
	for (;;) {
		size_t len;

		/* Written bytes are checked, and then replaced by those to be read. */
		hear(sock, &len, sizeof len);
		check("a write of gdrfab", &g, len, 1);
		check("a write of libfabric", &f, len, 2);
		fill(&g, 3);
		fill(&f, 4);
		say(sock, &len, sizeof len);
	}
}

/* ---- the initiator */

static void g_move(struct end *e, size_t len, int reads)
{
	void *desc = gdrfab_mr_desc(e->gmr);

	if (reads)
		OK(gdrfab_read(e->gep, e->memory, len, desc, 0, e->remote.addr, e->remote.key, NULL));
	else
		OK(gdrfab_write(e->gep, e->memory, len, desc, 0, e->remote.addr, e->remote.key, NULL));
	g_wait(e->gcq);
}

static void f_move(struct end *e, size_t len, int reads)
{
	void *desc = fi_mr_desc(e->fmr);

	if (reads)
		OK(fi_read(e->fep, e->memory, len, desc, 0, e->remote.addr, e->remote.key, NULL));
	else
		OK(fi_write(e->fep, e->memory, len, desc, 0, e->remote.addr, e->remote.key, NULL));
	f_wait(e->fcq);
}

static void row(struct end *g, struct end *f, size_t len, int reads, int rounds)
{
	static double native[MOST_ROUNDS], provider[MOST_ROUNDS], ratio[MOST_ROUNDS];
	int many = len > (64u << 20) ? 5 : len > (1u << 20) ? 20 : 200;
	double n, p;

	g_move(g, len, reads);
	f_move(f, len, reads);
	for (int r = 0; r < rounds; r++) {
		double start = now(), middle, end;

		for (int i = 0; i < many; i++)
			g_move(g, len, reads);
		middle = now();
		for (int i = 0; i < many; i++)
			f_move(f, len, reads);
		end = now();
		native[r] = (middle - start) / many / 1e3;
		provider[r] = (end - middle) / many / 1e3;
		ratio[r] = provider[r] / native[r];
	}
	n = median(native, rounds);
	p = median(provider, rounds);
	printf("| %s | %zu | %.2f | %.2f | %.1f | %.1f | %.3f |\n", reads ? "read" : "write", len, n, p,
	       (double)len / n / 1e3, (double)len / p / 1e3, median(ratio, rounds));
	fflush(stdout);
}

int main(int argc, char **argv)
{
	size_t largest = argc > 1 ? strtoull(argv[1], NULL, 0) : (size_t)256 << 20;
	int rounds = argc > 2 ? atoi(argv[2]) : 9, pair[2], device, there;
	struct end g = {0}, f = {0};
	struct name name;
	gdrfab_path_info path = {.struct_size = sizeof path};
	char words[256], service[64];
	pid_t child;

	if (largest < 8192 || rounds < 1 || rounds > MOST_ROUNDS || socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) {
		fprintf(stderr, "device [LARGEST of 8192 at least [ROUNDS of 1 to %d]]\n", MOST_ROUNDS);
		return 2;
	}
	snprintf(service, sizeof service, "bench-device-%d", (int)getpid());
	/* Before the driver is opened, because it does not survive a fork. */
	child = fork();
	if (child == 0) {
		close(pair[0]);
		target(pair[1], service, largest);
	}
	close(pair[1]);
	device = device_up(0);
	device_memory(&g, device, largest);
	device_memory(&f, device, largest);
	hear(pair[0], &name, sizeof name);
	g_connect(&g, service);
	g_event(&g, GDRFAB_CONNECTED, &g.remote, NULL);
	f_connect(&f, &name);
	f_event(&f, FI_CONNECTED, &f.remote, NULL);
	hear(pair[0], &there, sizeof there);

	printf("cuda:%d to cuda:%d, one operation at a time, medians of %d rounds in turns\n\n", device, there, rounds);
	printf("| what | bytes | gdrfab us | provider us | gdrfab GB/s | provider GB/s | ratio |\n|---|---:|---:|---:|---:|---:|---:|\n");
	for (size_t len = 8192; len <= largest; len = len < (1u << 20) && largest >= (1u << 20) ? (size_t)1 << 20 : len << 8) {
		fill(&g, 1);
		fill(&f, 2);
		row(&g, &f, len, 0, rounds);
		say(pair[0], &len, sizeof len);
		hear(pair[0], &len, sizeof len);
		row(&g, &f, len, 1, rounds);
		check("a read of gdrfab", &g, len, 3);
		check("a read of libfabric", &f, len, 4);
	}
	OK(gdrfab_ep_query(g.gep, 0, g.remote.key, &path));
	OK(gdrfab_tostr(&path.path, GDRFAB_TYPE_PATHS, words, sizeof words));
	printf("\npath of gdrfab's operations: %s; that of the provider's is in its log (FI_LOG_LEVEL=info)\n", words);
	fflush(stdout);
	kill(child, SIGTERM);
	waitpid(child, NULL, 0);
	return 0;
}
