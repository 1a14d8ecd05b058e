/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Decisions that all ranks must make alike, whatever their processes are given: bound to CPUs, without a launcher,
 * or with an old NCCL. This program itself provides the number of a host's CPUs and the speed of its networks.
 */
#include "nccl_vars.h"

#include <dlfcn.h>
#include <sched.h>
#include <sys/wait.h>

enum { LONG = 1 << 20 };

static long cpus;	  /* 0: as many as there are */
static const char *speed; /* of each network interface, in Mbit/s; NULL: its own */

long sysconf(int name)
{
	static long (*next)(int name);
	if (!next)
		*(void **)(void *)&next = dlsym(RTLD_NEXT, "sysconf");
	return cpus && name == _SC_NPROCESSORS_CONF ? cpus : next(name);
}

FILE *fopen(const char *path, const char *mode)
{
	static FILE *(*next)(const char *path, const char *mode);
	size_t length = strlen(path);
	if (!next)
		*(void **)(void *)&next = dlsym(RTLD_NEXT, "fopen");
	bool wire = speed && strncmp(path, "/sys/class/net/", 15) == 0 && strcmp(path + length - 6, "/speed") == 0;
	return wire ? fmemopen((void *)(uintptr_t)speed, strlen(speed), mode) : next(path, mode);
}

static bool is_new; /* this process's NCCL is a new one, although it uses the oldest interface */

static bool widens(void)
{
	return net.version >= 9 || is_new;
}

static int count_devices(void)
{
	int count;
	NET(net.count(&count));
	return count;
}

/* --- bound to CPUs --- */

static void bind_to_one(void)
{
	cpu_set_t own, one;
	int cpu = 0;
	CHECK_EQ(sched_getaffinity(0, sizeof own, &own), 0);
	while (!CPU_ISSET(cpu, &own))
		cpu++;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	CHECK_EQ(sched_setaffinity(0, sizeof one, &one), 0);
}

static const struct host {
	const char *name, *providers, *ranks; /* ranks on the host; NULL: no launcher says */
	long cpus;
	const char *channels; /* NULL: too few CPUs */
	int devices;
} hosts[] = {
	{"shm_64_cpus", "shm", NULL, 64, "16", 4},	{"shm_64_cpus_2_ranks", "shm", "2", 64, "16", 8},
	{"shm_2_cpus", "shm", NULL, 2, NULL, 1},	{"shm_64_cpus_32_ranks", "shm", "32", 64, NULL, 1},
	{"tcp_64_cpus", "tcp", NULL, 64, "8", 4},	{"tcp_2_cpus", "tcp", NULL, 2, NULL, 1},
};

static void rank_of(const struct host *host, bool bound)
{
	struct node n;
	struct handle h;
	char said[80];
	user_begins();
	unsetenv("GDRFAB_NCCL_THREADS");
	setenv("GDRFAB_NCCL_GDR", "0", 1);
	setenv("GDRFAB_NCCL_PROVIDERS", host->providers, 1);
	if (host->ranks)
		setenv("LOCAL_WORLD_SIZE", host->ranks, 1);
	cpus = host->cpus;
	if (bound)
		bind_to_one();
	net_alone(&n);
	net.ctx = loaded();
	bool wide = host->channels && widens();
	is("NCCL_MIN_NCHANNELS", wide ? host->channels : NULL);
	CHECK_EQ(getenv("NCCL_TUNER_PLUGIN") != NULL, wide);
	CHECK_EQ(count_devices(), wide ? host->devices : 1);
	/* NCCL's thread has the one CPU, and moves the data that the helpers of other ranks would. */
	snprintf(said, sizeof said, "0 threads for long messages, not %d", host->devices);
	if (bound && host->channels && !test_says(log_all(), said))
		test_fail(__FILE__, __LINE__, "the log does not say \"%s\": \"%s\"", said, log_all());
	void *listener = listen_at(0, &h);
	struct link l = link_to_itself(&h, listener);
	message_to_itself(&n, &l, LONG, 1);
	NET(net.close_listen(listener));
	link_down(&l);
}

static void bound(const void *arg)
{
	for (int one = 0; one < 2; one++) {
		int status = 0;
		pid_t pid = test_fork(TEST_CLIENT);
		if (pid == 0) {
			rank_of((const struct host *)arg, one);
			test_child_done();
		}
		CHECK_EQ(waitpid(pid, &status, 0), pid);
		test_child_ended(TEST_CLIENT, status);
	}
}

/* --- no launcher says where the ranks are --- */

/* shm is offered this many times, at equal speed, and nothing else is as fast. NCCL counts devices with the same
 * guid as one. */
static void shm_leads(int times)
{
	int count = count_devices(), each = 0;
	for (int a = 0; a < count; a++) {
		struct props p, other;
		NET(net_props(a, &p));
		bool shm = strncmp(p.name, "shm", 3) == 0;
		if (!shm && !test_says(p.name, "tcp"))
			test_skip("cards are here, which NCCL is to use");
		CHECK_EQ(shm, a < times);
		each = a ? each : p.speed;
		if (times > 1)
			CHECK(shm ? p.speed == each : p.speed > 0 && p.speed < each);
		for (int b = 0; b < a; b++) {
			NET(net_props(b, &other));
			CHECK(p.guid != other.guid && strcmp(p.name, other.name) != 0);
		}
	}
	CHECK(count > times);
	if (times > 1)
		CHECK(each * times >= 384000);
}

static void without_a_launcher(const void *arg)
{
	struct node n;
	struct handle h;
	bool gpus = arg != NULL;
	user_begins();
	unsetenv("GDRFAB_NCCL_PROVIDERS");
	setenv("GDRFAB_NCCL_THREADS", "4", 1);
	if (!gpus)
		setenv("GDRFAB_NCCL_GDR", "0", 1);
	speed = "400000";
	net_alone(&n);
	net.ctx = gpus ? loaded_over_cuda() : loaded();
	shm_leads(!widens() ? 1 : gpus ? WIDE : 4);
	/* Within the host, any of these devices works over shm. */
	for (int dev = 0, count = count_devices(); dev < count; dev++) {
		log_forget();
		void *listener = listen_at(dev, &h);
		struct link l = link_to_itself(&h, listener);
		message_to_itself(&n, &l, 70000, 1);
		CHECK(test_says(log_all(), "shm"));
		NET(net.close_listen(listener));
		link_down(&l);
	}
}

/* If tcp comes first, shm stays a single device. */
static void tcp_first(TEST_UNUSED const void *arg)
{
	user_begins();
	setenv("GDRFAB_NCCL_PROVIDERS", "tcp,shm", 1);
	setenv("GDRFAB_NCCL_THREADS", "4", 1);
	loaded();
	CHECK_EQ(count_devices(), 2);
}

/* --- versions of NCCL --- */

/* An NCCL with global symbols, or, as PyTorch loads it, with local ones. */
static const struct nccl {
	const char *version;
	int mode;
	bool is_new;
} nccls[] = {
	{NULL, RTLD_GLOBAL, false},	{"22005", RTLD_GLOBAL, false}, {"22005", RTLD_LOCAL, false}, {"22100", RTLD_GLOBAL, true},
	{"22105", RTLD_LOCAL, true},	{"22203", RTLD_GLOBAL, true},  {"22203", RTLD_LOCAL, true},
};

static void by_version(const void *arg)
{
	const struct nccl *nccl = (const struct nccl *)arg;
	unsetenv("FAKE_NCCL");
	if (nccl->version)
		setenv("FAKE_NCCL", nccl->version, 1);
	CHECK(dlopen("libnccl.so.2", RTLD_NOW | nccl->mode) != NULL);
	is_new = nccl->is_new;
	user_begins();
	loaded();
	is("NCCL_PROTO", "^LL");
	is("NCCL_MIN_NCHANNELS", widens() ? "16" : NULL);
	is("NCCL_BUFFSIZE", widens() ? "16777216" : NULL);
	CHECK_EQ(getenv("NCCL_TUNER_PLUGIN") != NULL, widens());
	for (int version = OLDEST_TUNER; widens() && version <= NEWEST_TUNER; version++) {
		struct tuner t;
		NET(tuner_init(&t, version, 2, 2));
		CHECK(ask(&t, ncclFuncAllReduce, 262144, 1, 0) > 0);
		tuner_end(&t);
	}
	if (!widens())
		leaves_all_alone(2, 2);
}

TEST_TABLE(nccl_ranks)
{
	static const int yes = 1;
	if (nccl_absent())
		return;
	static char names[sizeof hosts / sizeof hosts[0]][80];
	for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++) {
		snprintf(names[i], sizeof names[i], "bound_%s", hosts[i].name);
		test_add(names[i], bound, &hosts[i], 40);
	}
	test_add("without_a_launcher", without_a_launcher, NULL, 40);
	test_add("without_a_launcher_gpus", without_a_launcher, &yes, 40);
	test_add("tcp_first", tcp_first, NULL, 20);
	static char by_names[sizeof nccls / sizeof nccls[0]][40];
	for (size_t i = 0; i < sizeof nccls / sizeof nccls[0]; i++) {
		snprintf(by_names[i], sizeof by_names[i], "nccl_%s%s", nccls[i].version ? nccls[i].version : "that_does_not_tell",
			 nccls[i].mode == RTLD_LOCAL ? "_as_pytorch" : "");
		test_add(by_names[i], by_version, &nccls[i], 20);
	}
}
