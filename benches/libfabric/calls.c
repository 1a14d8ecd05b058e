/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The cost that the provider adds to gdrfab's own calls over shm: the same operations by gdrfab_*() and by fi_*(),
 * between the same two processes (and between two endpoints of one thread, where nothing waits), taking turns;
 * medians of many rounds.
 *
 *   calls [ROUNDS]    FI_PROVIDER_PATH must lead to the provider; run it with FI_GDRFAB_PROVIDERS=shm
 */
#include "ends.h"

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

/* Short batches, so that an interruption by other work of the machine spoils only one of them. */
enum { BATCH = 200, MOST_ROUNDS = 10001, BYTES = 4096 };

/* ---- the measured operations; the two functions of a pair differ in the calls alone */

static void g_write(struct end *e)
{
	for (int i = 0; i < BATCH; i++) {
		OK(gdrfab_write(e->gep, e->memory + 128, 8, NULL, 0, e->remote.addr, e->remote.key, NULL));
		g_wait(e->gcq);
	}
}

static void f_write(struct end *e)
{
	for (int i = 0; i < BATCH; i++) {
		OK(fi_write(e->fep, e->memory + 128, 8, NULL, 0, e->remote.addr, e->remote.key, NULL));
		f_wait(e->fcq);
	}
}

/* A message one way and one back; each side reads two entries for its send and its receive. */
static void g_pingpong(struct end *e, int first)
{
	for (int i = 0; i < BATCH; i++) {
		if (first)
			OK(gdrfab_send(e->gep, e->memory + 128, 8, NULL, 0, NULL));
		g_wait(e->gcq);
		if (first)
			g_wait(e->gcq);
		OK(gdrfab_recv(e->gep, e->memory + 64, 8, NULL, 0, NULL));
		if (!first) {
			OK(gdrfab_send(e->gep, e->memory + 128, 8, NULL, 0, NULL));
			g_wait(e->gcq);
		}
	}
}

static void f_pingpong(struct end *e, int first)
{
	for (int i = 0; i < BATCH; i++) {
		if (first)
			OK(fi_send(e->fep, e->memory + 128, 8, NULL, 0, NULL));
		f_wait(e->fcq);
		if (first)
			f_wait(e->fcq);
		OK(fi_recv(e->fep, e->memory + 64, 8, NULL, 0, NULL));
		if (!first) {
			OK(fi_send(e->fep, e->memory + 128, 8, NULL, 0, NULL));
			f_wait(e->fcq);
		}
	}
}

/* Both ends in one thread: send, its completion, the receive's completion, the next receive. Nothing waits for
 * another core. */
static void g_message(struct end *a, struct end *b)
{
	for (int i = 0; i < BATCH; i++) {
		OK(gdrfab_send(a->gep, a->memory + 128, 8, NULL, 0, NULL));
		g_wait(a->gcq);
		g_wait(b->gcq);
		OK(gdrfab_recv(b->gep, b->memory + 64, 8, NULL, 0, NULL));
	}
}

static void f_message(struct end *a, struct end *b)
{
	for (int i = 0; i < BATCH; i++) {
		OK(fi_send(a->fep, a->memory + 128, 8, NULL, 0, NULL));
		f_wait(a->fcq);
		f_wait(b->fcq);
		OK(fi_recv(b->fep, b->memory + 64, 8, NULL, 0, NULL));
	}
}

static void row(const char *what, double *native, double *provider, double *above, int rounds)
{
	double n = median(native, rounds), p = median(provider, rounds), d = median(above, rounds);

	printf("| %s | %.1f | %.1f | %.1f |\n", what, n, p, d);
}

static void pin(int core)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(core, &set);
	if (sched_setaffinity(0, sizeof set, &set))
		perror("sched_setaffinity");
}

/* Memory of a file that both processes map: a write is then a copy by this process, which does not hide the cost of
 * the calls. */
static void mapped_memory(struct end *e)
{
	e->file = memfd_create("calls", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	e->len = BYTES;
	OK(ftruncate(e->file, BYTES));
	e->memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, e->file, 0);
	if (e->memory == MAP_FAILED)
		exit(1);
}

static void other_process(int out, int rounds, const char *service)
{
	struct end g = {0}, f = {0};
	struct name name = {0};

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	pin(1);
	mapped_memory(&g);
	mapped_memory(&f);
	g_listen(&g, service);
	f_listen(&f, &name);
	if (write(out, &name, sizeof name) != (ssize_t)sizeof name)
		exit(1);
	g_accept(&g);
	g_event(&g, GDRFAB_CONNECTED, NULL, NULL);
	f_accept(&f);
	f_event(&f, FI_CONNECTED, NULL, NULL);
	for (int i = 0; i < rounds; i++) {
		g_pingpong(&g, 0);
		f_pingpong(&f, 0);
	}
	/* Until the parent ends this process: writes need no help here. */
	for (;;)
		pause();
}

int main(int argc, char **argv)
{
	static double native[MOST_ROUNDS], provider[MOST_ROUNDS], above[MOST_ROUNDS];
	int rounds = argc > 1 ? atoi(argv[1]) : 1001, ends[2];
	struct end g = {0}, f = {0}, ga = {0}, gb = {0}, fa = {0}, fb = {0};
	struct name name;
	gdrfab_path_info path = {.struct_size = sizeof path};
	char words[256], service[64];
	pid_t child;

	if (rounds < 1 || rounds > MOST_ROUNDS || pipe(ends)) {
		fprintf(stderr, "calls [ROUNDS of 1 to %d]\n", MOST_ROUNDS);
		return 2;
	}
	snprintf(service, sizeof service, "bench-calls-%d", (int)getpid());
	child = fork();
	if (child == 0)
		other_process(ends[1], rounds, service);
	pin(0);
	close(ends[1]);
	if (child < 0 || read(ends[0], &name, sizeof name) != (ssize_t)sizeof name)
		return 1;
	mapped_memory(&g);
	mapped_memory(&f);
	g_connect(&g, service);
	g_event(&g, GDRFAB_CONNECTED, &g.remote, NULL);
	f_connect(&f, &name);
	f_event(&f, FI_CONNECTED, &f.remote, NULL);

	printf("ns, medians of %d rounds of %d; \"above\" is the median of the rounds' differences\n\n", rounds, BATCH);
	printf("| 8 B over shm | gdrfab | libfabric over gdrfab | above |\n|---|---:|---:|---:|\n");
	for (int i = 0; i < rounds; i++) {
		double start = now(), middle, end;

		g_pingpong(&g, 1);
		middle = now();
		f_pingpong(&f, 1);
		end = now();
		native[i] = (middle - start) / BATCH / 2;
		provider[i] = (end - middle) / BATCH / 2;
		above[i] = provider[i] - native[i];
	}
	row("send, half round trip between two processes", native, provider, above, rounds);
	for (int i = 0; i < rounds; i++) {
		double start = now(), middle, end;

		g_write(&g);
		middle = now();
		f_write(&f);
		end = now();
		native[i] = (middle - start) / BATCH;
		provider[i] = (end - middle) / BATCH;
		above[i] = provider[i] - native[i];
	}
	row("write between two processes: post, read its entry", native, provider, above, rounds);

	snprintf(service, sizeof service, "bench-calls-own-%d", (int)getpid());
	mapped_memory(&ga);
	mapped_memory(&gb);
	mapped_memory(&fa);
	mapped_memory(&fb);
	g_listen(&gb, service);
	g_connect(&ga, service);
	g_accept(&gb);
	g_event(&ga, GDRFAB_CONNECTED, &ga.remote, NULL);
	g_event(&gb, GDRFAB_CONNECTED, NULL, NULL);
	f_listen(&fb, &name);
	f_connect(&fa, &name);
	f_accept(&fb);
	f_event(&fa, FI_CONNECTED, &fa.remote, NULL);
	f_event(&fb, FI_CONNECTED, NULL, NULL);
	for (int i = 0; i < rounds; i++) {
		double start = now(), middle, end;

		g_message(&ga, &gb);
		middle = now();
		f_message(&fa, &fb);
		end = now();
		native[i] = (middle - start) / BATCH;
		provider[i] = (end - middle) / BATCH;
		above[i] = provider[i] - native[i];
	}
	row("message in one thread: send, receive, two entries", native, provider, above, rounds);
	for (int i = 0; i < rounds; i++) {
		double start = now(), middle, end;

		g_write(&ga);
		middle = now();
		f_write(&fa);
		end = now();
		native[i] = (middle - start) / BATCH;
		provider[i] = (end - middle) / BATCH;
		above[i] = provider[i] - native[i];
	}
	row("write in one thread: post, read its entry", native, provider, above, rounds);
	OK(gdrfab_ep_query(g.gep, 0, g.remote.key, &path));
	OK(gdrfab_tostr(&path.path, GDRFAB_TYPE_PATHS, words, sizeof words));
	printf("\npath of gdrfab's writes: %s; that of the provider's is in its log (FI_LOG_LEVEL=info)\n", words);
	fflush(stdout);
	fi_close(&f.fep->fid);
	kill(child, SIGTERM);
	waitpid(child, NULL, 0);
	return 0;
}
