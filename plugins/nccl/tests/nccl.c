/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The exports of gdrfab's plugin for NCCL, its description of devices, connecting, and that nothing is left of
 * closed connections. Messages are tested in nccl_message and nccl_group, peers that go away in nccl_fault.
 */
#include "nccl_drive.h"

#include "../nccl_tuner.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* --- exports of the file --- */

static void one_symbol(const char *name, const Elf64_Sym *symbol, bool seen[NEWEST + 1])
{
	static const char start[] = "ncclNetPlugin_v", tuner[] = "ncclTunerPlugin_v";
	if (strncmp(name, tuner, sizeof tuner - 1) == 0) {
		int version = atoi(name + sizeof tuner - 1);
		CHECK(version >= 2 && version <= 6);
		CHECK_EQ(ELF64_ST_TYPE(symbol->st_info), STT_OBJECT);
		CHECK_EQ(symbol->st_size, version == 6 ? sizeof(ncclTuner_v6_t) : sizeof(ncclTuner_v5_t));
		return;
	}
	if (strncmp(name, start, sizeof start - 1) != 0)
		test_fail(__FILE__, __LINE__, "the plugin exports %s", name);
	int version = atoi(name + sizeof start - 1);
	CHECK(version >= OLDEST && version <= NEWEST);
	CHECK_EQ(ELF64_ST_TYPE(symbol->st_info), STT_OBJECT);
	static const size_t sizes[] = {sizeof(ncclNet_v8_t), sizeof(ncclNet_v9_t), sizeof(ncclNet_v10_t),
				       sizeof(ncclNet_v11_t), sizeof(ncclNet_v12_t)};
	CHECK_EQ(symbol->st_size, sizes[version - OLDEST]);
	CHECK(!seen[version]);
	seen[version] = true;
}

static void exports(TEST_UNUSED const void *arg)
{
	bool seen[NEWEST + 1] = {false};
	int fd = open(getenv("TEST_NCCL_PLUGIN"), O_RDONLY | O_CLOEXEC);
	struct stat st;
	CHECK(fd >= 0);
	CHECK_EQ(fstat(fd, &st), 0);
	const char *file = (const char *)mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	CHECK(file != (const char *)MAP_FAILED);
	const Elf64_Ehdr *head = (const Elf64_Ehdr *)(const void *)file;
	const Elf64_Shdr *sections = (const Elf64_Shdr *)(const void *)(file + head->e_shoff);
	for (int s = 0; s < head->e_shnum; s++) {
		if (sections[s].sh_type != SHT_DYNSYM)
			continue;
		const Elf64_Sym *symbols = (const Elf64_Sym *)(const void *)(file + sections[s].sh_offset);
		const char *names = file + sections[sections[s].sh_link].sh_offset;
		for (size_t i = 0; i < sections[s].sh_size / sizeof *symbols; i++)
			if (symbols[i].st_shndx != SHN_UNDEF && ELF64_ST_BIND(symbols[i].st_info) != STB_LOCAL)
				one_symbol(names + symbols[i].st_name, &symbols[i], seen);
	}
	for (int version = OLDEST; version <= NEWEST; version++)
		if (!seen[version])
			test_fail(__FILE__, __LINE__, "the plugin has no version %d", version);
	close(fd);
}

/* --- devices --- */

static void properties(TEST_UNUSED const void *arg)
{
	net_open();
	CHECK_EQ(strcmp(net.name, "gdrfab"), 0);
	for (int dev = 0; dev < net.devices; dev++) {
		struct props p;
		NET(net_props(dev, &p));
		CHECK(p.name != NULL && p.name[0]);
		if (!test_says(p.name, provider()))
			test_fail(__FILE__, __LINE__, "the device of %s is called %s", provider(), p.name);
		if (p.pci_path && access(p.pci_path, F_OK) != 0)
			test_fail(__FILE__, __LINE__, "pciPath %s: %s", p.pci_path, strerror(errno));
		CHECK(p.speed > 0);
		CHECK(p.latency >= 0 && p.latency < 1e6);
		CHECK(p.max_comms >= 64);
		CHECK(p.port >= 0);
		CHECK_EQ(p.max_recvs, GROUP);
		CHECK_EQ(p.reg_is_global, 1);
		CHECK(p.ptr_support & NCCL_PTR_HOST);
		CHECK_EQ(p.ptr_support & ~(NCCL_PTR_HOST | NCCL_PTR_CUDA | NCCL_PTR_DMABUF), 0);
		/* Over sockets and within a host a flush has nothing to wait for. */
		CHECK(p.force_flush <= 0);
		CHECK_EQ(p.device_type, NCCL_NET_DEVICE_HOST);
		CHECK_EQ(p.device_version, NCCL_NET_DEVICE_INVALID_VERSION);
		if (net.version >= 9) {
			CHECK_EQ(p.ndevs, 1);
			CHECK_EQ(p.first_dev, dev);
			CHECK(p.max_p2p >= 1 << 30 && p.max_p2p <= (long long)NCCL_MAX_NET_SIZE_BYTES);
			CHECK(p.max_coll >= 0 && p.max_coll <= (long long)NCCL_MAX_NET_SIZE_BYTES);
		}
		if (net.version >= 11)
			CHECK(p.max_multi >= 0 && p.max_multi <= 1);
		CHECK_EQ(p.rail, NCCL_NET_ID_UNDEF);
		CHECK_EQ(p.plane, NCCL_NET_ID_UNDEF);
		/* A second call gives the same values, and no two devices have the same guid. */
		struct props again;
		NET(net_props(dev, &again));
		CHECK_EQ(again.guid, p.guid);
		for (int other = 0; other < dev; other++) {
			NET(net_props(other, &again));
			CHECK(again.guid != p.guid);
		}
	}
	struct props none;
	NET_FAILS(net_props(-1, &none), ncclInvalidArgument);
	NET_FAILS(net_props(net.devices, &none), ncclInvalidArgument);
}

/* CUDA memory that the driver has to copy is offered to a process that uses a device and allows copies, in this
 * process or in another (""), and to no other process. */
static const struct use {
	bool used;
	const char *allowed, *protocols;
	bool elsewhere; /* these protocols leave out LL, which another process cannot copy */
} of_device[] = {{true, "1", "", false},	 {false, "1", "", false},	{true, "0", "^LL", true},
		 {true, "", "^LL", true},	 {false, "", "^LL", true},	{true, "", "Simple", true},
		 {true, "", "LL128,simple", true}, {true, "", "^ll128,ll", true}, {true, "", "", false},
		 {true, "", "LL,Simple", false}, {true, "", "^LL128", false},	{true, "", "allreduce:^LL", false}};

static void device_memory(const void *arg)
{
	struct node n;
	struct props p;
	const struct use *use = arg;
	bool used = use->used;
	setenv("GDRFAB_NCCL_GDR", use->allowed, 1);
	setenv("NCCL_PROTO", use->protocols, 1);
	net_alone(&n);
	if (!test_says(getenv("TEST_IFACES"), "cuda"))
		test_skip("TEST_IFACES does not name cuda");
	if (used)
		cuda_use(device_count(&n, GDRFAB_HMEM_CUDA) - 1);
	net_open();
	NET(net_props(0, &p));
	bool may = *use->allowed == '1' || (!*use->allowed && use->elsewhere && strcmp(provider(), "shm") == 0);
	CHECK_EQ((p.ptr_support & NCCL_PTR_CUDA) != 0, used && may);
}

/* Checks the names of the devices of a choice, such as "shm,tcp". */
static void devices_are(const char *want)
{
	char names[512] = "";
	int count = 0;
	NET(net.count(&count));
	for (int dev = 0; dev < count; dev++) {
		struct props p;
		NET(net_props(dev, &p));
		const char *name = test_says(p.name, "shm") ? "shm" : test_says(p.name, "tcp") ? "tcp" : p.name;
		size_t used = strlen(names);
		snprintf(names + used, sizeof names - used, "%s%s", used ? "," : "", name);
	}
	if (strcmp(names, want) != 0)
		test_fail(__FILE__, __LINE__, "the devices are %s, not %s", names, want);
}

struct choice {
	const char *name, *providers, *world, *local, *want;
};
static const struct choice choices[] = {
	{"named_one", "tcp", NULL, NULL, "tcp"},
	{"named_in_order", "shm,tcp", NULL, NULL, "shm,tcp"},
	{"named_the_other_way", "tcp,shm", NULL, NULL, "tcp,shm"},
	{"of_one_host", NULL, "2", "2", "shm"},
	{"of_several_hosts", NULL, "4", "2", "tcp"},
	{"without_a_launcher", NULL, NULL, NULL, "shm,tcp"},
};

static void choose(const void *arg)
{
	const struct choice *c = (const struct choice *)arg;
	void *ctx;
	for (int launcher = 0; launcher < (c->world ? 2 : 1); launcher++) {
		unsetenv("GDRFAB_NCCL_PROVIDERS");
		unsetenv("WORLD_SIZE"), unsetenv("LOCAL_WORLD_SIZE");
		unsetenv("OMPI_COMM_WORLD_SIZE"), unsetenv("OMPI_COMM_WORLD_LOCAL_SIZE");
		if (c->providers)
			setenv("GDRFAB_NCCL_PROVIDERS", c->providers, 1);
		if (c->world) {
			setenv(launcher ? "OMPI_COMM_WORLD_SIZE" : "WORLD_SIZE", c->world, 1);
			setenv(launcher ? "OMPI_COMM_WORLD_LOCAL_SIZE" : "LOCAL_WORLD_SIZE", c->local, 1);
		}
		pid_t pid = test_fork(TEST_CLIENT);
		if (pid == 0) {
			net_load();
			NET(net_init(&ctx));
			devices_are(c->want);
			test_child_done();
		}
		int status = 0;
		CHECK_EQ(waitpid(pid, &status, 0), pid);
		test_child_ended(TEST_CLIENT, status);
	}
}

/* Without a device NCCL goes on to the next plugin, and the log has the reason. */
static void no_device(TEST_UNUSED const void *arg)
{
	void *ctx;
	int count = 0;
	setenv("GDRFAB_NCCL_PROVIDERS", "carrier-pigeon", 1);
	net_load();
	log_forget();
	if (net_init(&ctx) == ncclSuccess)
		CHECK(net.count(&count) != ncclSuccess || count == 0);
	if (!test_says(log_all(), "carrier-pigeon"))
		test_fail(__FILE__, __LINE__, "nothing is said of a provider that is none: \"%s\"", log_all());
}

/* --- once for each communicator, or once for all --- */

static void begin_twice(TEST_UNUSED const void *arg)
{
	struct node n;
	struct link l;
	struct handle h;
	void *first, *second, *third;
	net_alone(&n);
	net_open();
	first = net.ctx;
	NET(net_init(&second));
	for (int round = 0; round < 3; round++) {
		if (net.version >= 11)
			CHECK(first != NULL && second != NULL);
		/* Objects made with one context outlive the end of the other. */
		net.ctx = first;
		void *listener = listen_at(0, &h);
		net.ctx = second;
		l = link_to_itself(&h, listener);
		message_to_itself(&n, &l, 70000, 5);
		NET(net.close_listen(listener));
		link_down(&l);
		NET(net_finalize(first));
		listener = listen_at(0, &h);
		NET(net.close_listen(listener));
		NET(net_init(&third));
		first = second;
		second = third;
	}
	NET(net_finalize(first));
	net.ctx = second;
	n.drivers = true;
	net_close(&n);
	/* Another init, from nothing. */
	net_open();
	void *listener = listen_at(0, &h);
	NET(net.close_listen(listener));
	net_close(&n);
}

/* --- the claims --- */

TEST_TABLE(nccl)
{
	if (nccl_absent())
		return;
	test_add("exports", exports, NULL, 20);
	test_add("properties", properties, NULL, 20);
	static char names[sizeof of_device / sizeof of_device[0]][80];
	for (size_t i = 0; i < sizeof of_device / sizeof of_device[0]; i++) {
		const struct use *use = &of_device[i];
		snprintf(names[i], sizeof names[i], "device_memory%s_%s_%s", use->used ? "" : "_not_in_use",
			 *use->allowed == '1' ? "here" : *use->allowed ? "forbidden" : "elsewhere", use->protocols);
		test_add(names[i], device_memory, use, 20);
	}
	for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++) {
		static char names[sizeof choices / sizeof choices[0]][64];
		snprintf(names[i], sizeof names[i], "providers_%s", choices[i].name);
		test_add(names[i], choose, &choices[i], 20);
	}
	test_add("no_such_provider", no_device, NULL, 20);
	test_add("begun_twice", begin_twice, NULL, 30);
}
