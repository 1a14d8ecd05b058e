/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * NCCL's variables that init sets, and the tuner that reduces the channels. They never override a user's setting,
 * they are the same on all ranks, and nothing but the answer is written. Each version of the tuner interface is
 * called as NCCL calls it.
 */
#include "nccl_vars.h"

#include <dlfcn.h>

/* An NCCL that uses version 8 may be one that does not look for a tuner here. */
static bool widens(void)
{
	return net.version >= 9;
}

/* --- the variables --- */

static void told(const char *name)
{
	char line[64];
	snprintf(line, sizeof line, "%s=%s is set: ", name, getenv(name));
	if (!test_says(log_all(), line))
		test_fail(__FILE__, __LINE__, "the log does not say \"%s\": \"%s\"", line, log_all());
}

static void sets_what_it_takes(TEST_UNUSED const void *arg)
{
	void *first, *second;
	user_begins();
	net_load();
	log_forget();
	NET(net_init(&first));
	is("NCCL_PROTO", "^LL");
	told("NCCL_PROTO");
	if (widens()) {
		is("NCCL_MIN_NCHANNELS", "16");
		is("NCCL_BUFFSIZE", "16777216");
		CHECK(getenv("NCCL_TUNER_PLUGIN") && access(getenv("NCCL_TUNER_PLUGIN"), R_OK) == 0);
		void *again = dlopen(getenv("NCCL_TUNER_PLUGIN"), RTLD_NOW | RTLD_LOCAL);
		CHECK(again == net.library);
		CHECK_EQ(dlclose(again), 0);
		told("NCCL_MIN_NCHANNELS");
		told("NCCL_BUFFSIZE");
		is("NCCL_P2P_NET_CHUNKSIZE", "1048576");
		told("NCCL_P2P_NET_CHUNKSIZE");
	} else {
		is("NCCL_MIN_NCHANNELS", NULL);
		is("NCCL_BUFFSIZE", NULL);
		is("NCCL_P2P_NET_CHUNKSIZE", NULL);
		is("NCCL_TUNER_PLUGIN", NULL);
	}
	/* The init of the next communicator sets nothing new, but a removed variable comes back and a changed one
	 * stays. */
	log_forget();
	NET(net_init(&second));
	if (test_says(log_all(), " is set: "))
		test_fail(__FILE__, __LINE__, "set twice: \"%s\"", log_all());
	NET(net_finalize(second));
	unsetenv("NCCL_PROTO");
	if (widens())
		setenv("NCCL_BUFFSIZE", "8388608", 1);
	NET(net_init(&second));
	is("NCCL_PROTO", "^LL");
	told("NCCL_PROTO");
	is("NCCL_BUFFSIZE", widens() ? "8388608" : NULL);
	NET(net_finalize(second));
	NET(net_finalize(first));
	/* The strings stay readable after the library is closed. */
	CHECK_EQ(dlclose(net.library), 0);
	is("NCCL_PROTO", "^LL");
}

static void sets_the_level(TEST_UNUSED const void *arg)
{
	struct props p;
	void *ctx;
	user_begins();
	ctx = loaded_over_cuda();
	NET(net_props(0, &p));
	CHECK(p.ptr_support & NCCL_PTR_CUDA);
	is("NCCL_NET_GDR_LEVEL", "SYS");
	told("NCCL_NET_GDR_LEVEL");
	/* One device for each channel, no two alike, and together no slower than one. */
	NET(net.count(&net.devices));
	CHECK_EQ(net.devices, widens() ? WIDE : 1);
	for (int a = 0, speed = 0; a < net.devices; a++) {
		struct props other;
		NET(net_props(a, &p));
		speed += p.speed;
		CHECK(p.ptr_support & NCCL_PTR_CUDA);
		CHECK(a + 1 < net.devices || speed >= 384000);
		for (int b = 0; b < a; b++) {
			NET(net_props(b, &other));
			CHECK(p.guid != other.guid && strcmp(p.name, other.name) != 0);
		}
	}
	NET(net_finalize(ctx));
}

/* Without tuning the device is offered once. */
static void one_device(TEST_UNUSED const void *arg)
{
	void *ctx;
	user_begins();
	setenv("GDRFAB_NCCL_TUNE", "0", 1);
	ctx = loaded_over_cuda();
	NET(net.count(&net.devices));
	CHECK_EQ(net.devices, 1);
	NET(net_finalize(ctx));
}

static void level_without_gpus(TEST_UNUSED const void *arg)
{
	void *ctx;
	user_begins();
	ctx = loaded();
	is("NCCL_NET_GDR_LEVEL", NULL);
	NET(net_finalize(ctx));
}

/* A user's setting, and whether init then still sets the protocol and the width. */
static const struct own {
	const char *name, *value;
	bool protocol, width, narrows;
} owns[] = {
	{"NCCL_PROTO", "Simple", false, true, true},
	{"NCCL_PROTO", "LL,Simple", false, false, false},
	{"NCCL_PROTO", "", false, false, false},
	{"NCCL_MIN_NCHANNELS", "2", true, false, false},
	{"NCCL_MIN_NCHANNELS", "16", true, false, true},
	{"NCCL_MAX_NCHANNELS", "8", true, false, false},
	{"NCCL_MAX_CTAS", "8", true, false, false},
	{"NCCL_MIN_CTAS", "8", true, false, false},
	{"NCCL_TUNER_PLUGIN", "none", true, false, false},
	{"NCCL_BUFFSIZE", "1048576", true, true, true},
	{"NCCL_NET_GDR_LEVEL", "PIX", true, true, true},
	{"NCCL_P2P_DISABLE", "0", false, false, false},
	{"NCCL_SHM_DISABLE", "0", false, false, false},
	{"GDRFAB_NCCL_TUNE", "0", false, false, false},
	{"GDRFAB_NCCL_TUNE", "1", true, true, true},
	{"GDRFAB_NCCL_GDR", "0", false, false, false},
	{"GDRFAB_NCCL_PROVIDERS", "tcp", false, false, false},
};

static void user_wins(const void *arg)
{
	const struct own *own = (const struct own *)arg;
	struct tuner t;
	void *ctx;
	user_begins();
	setenv(own->name, own->value, 1);
	ctx = loaded();
	is(own->name, own->value);
	if (strcmp(own->name, "NCCL_PROTO") != 0)
		is("NCCL_PROTO", own->protocol ? "^LL" : NULL);
	bool width = own->width && widens();
	if (strcmp(own->name, "NCCL_MIN_NCHANNELS") != 0)
		is("NCCL_MIN_NCHANNELS", width ? "16" : NULL);
	if (strcmp(own->name, "NCCL_TUNER_PLUGIN") != 0)
		CHECK_EQ(getenv("NCCL_TUNER_PLUGIN") != NULL, width);
	if (!own->protocol && !own->width && strcmp(own->name, "NCCL_PROTO") != 0)
		none_set();
	if (own->narrows && widens()) {
		NET(tuner_init(&t, 5, 2, 2));
		CHECK(ask(&t, ncclFuncAllReduce, 262144, 1, 0) > 0);
		tuner_end(&t);
	} else {
		leaves_all_alone(2, 2);
	}
	NET(net_finalize(ctx));
}

static void not_a_switch(TEST_UNUSED const void *arg)
{
	static const char *const values[] = {"2", "yes", "01", "-1"};
	void *ctx;
	for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
		user_begins();
		setenv("GDRFAB_NCCL_TUNE", values[i], 1);
		net_load();
		NET_FAILS(net_init(&ctx), ncclInvalidUsage);
		if (!test_says(log_warnings(), "GDRFAB_NCCL_TUNE"))
			test_fail(__FILE__, __LINE__, "it said \"%s\"", log_warnings());
		none_set();
		CHECK_EQ(dlclose(net.library), 0);
	}
}

/* --- the tuner --- */

struct row {
	ncclFunc_t func;
	size_t ranks, bytes;
	int channels;
	double us;
};

static const struct row of_gpus[] = {
#include "../tuner_table.h"
}, of_host[] = {
#include "../tuner_table_host.h"
}, of_tcp[] = {
#include "../tuner_table_tcp.h"
};

/* The user's settings, the resulting width of communicators, and the sizes that were measured. */
static const struct sent {
	const char *name, *providers, *gdr, *threads, *channels, *buffer, *chunk;
	int wide, devices;
	size_t ranks, most; /* a number of ranks measured besides two; the largest size measured */
	const struct row *rows;
	size_t count;
} sents[] = {
	{"gpus", "shm", NULL, "0", "16", "16777216", "1048576", 16, 0, 4, 256 << 20, of_gpus, sizeof of_gpus / sizeof *of_gpus},
	{"host", "shm", "0", "2", "16", "2097152", NULL, 16, 2, 2, 8 << 20, of_host, sizeof of_host / sizeof *of_host},
	{"tcp", "tcp", NULL, "4", "8", NULL, "524288", 8, 4, 2, 256 << 20, of_tcp, sizeof of_tcp / sizeof *of_tcp},
};

static void *sent_begins(const struct sent *sent)
{
	user_begins();
	setenv("GDRFAB_NCCL_PROVIDERS", sent->providers, 1);
	setenv("GDRFAB_NCCL_THREADS", sent->threads, 1);
	if (sent->gdr)
		setenv("GDRFAB_NCCL_GDR", sent->gdr, 1);
	return loaded();
}

/* With helpers, host memory gets wide communicators too, with any protocol. */
static void widens_for(const void *arg)
{
	const struct sent *sent = (const struct sent *)arg;
	void *ctx = sent_begins(sent);
	is("NCCL_MIN_NCHANNELS", widens() ? sent->channels : NULL);
	is("NCCL_BUFFSIZE", widens() ? sent->buffer : NULL);
	is("NCCL_P2P_NET_CHUNKSIZE", widens() ? sent->chunk : NULL);
	is("NCCL_PROTO", sent->devices ? NULL : "^LL");
	CHECK_EQ(getenv("NCCL_TUNER_PLUGIN") != NULL, widens());
	NET(net.count(&net.devices));
	CHECK_EQ(net.devices, sent->devices && widens() ? sent->devices : net.devices);
	NET(net_finalize(ctx));
	/* One thread cannot share. Before version 11 there is no finalize, and the first settings stay. */
	if (sent->devices && net.version >= 11) {
		struct sent one = *sent;
		one.threads = "1";
		CHECK_EQ(dlclose(net.library), 0);
		ctx = sent_begins(&one);
		none_set();
		NET(net_finalize(ctx));
	}
}

/* The fastest of the rows of this size. No channel gets less than NCCL's own least share. */
static int fastest(const struct sent *sent, const struct row *of)
{
	const struct row *best = of;
	int shares = (int)(of->bytes / 32768);
	for (const struct row *row = sent->rows; row < sent->rows + sent->count; row++)
		if (row->func == of->func && row->ranks == of->ranks && row->bytes == of->bytes && row->us < best->us)
			best = row;
	return best->channels <= shares ? best->channels : shares ? shares : 1;
}

/* A communicator of `ranks` ranks gets the answers measured for `of` ranks. */
static void as_measured(const struct sent *sent, int version, size_t ranks, size_t of)
{
	struct tuner t;
	size_t rows[ncclFuncAllReduce + 1] = {0};
	NET(tuner_init(&t, version, ranks, ranks));
	for (const struct row *row = sent->rows; row < sent->rows + sent->count; row++) {
		if (row->ranks != of)
			continue;
		rows[row->func]++;
		CHECK_EQ(ask(&t, row->func, row->bytes, 1, 0), fastest(sent, row));
	}
	CHECK(rows[ncclFuncAllReduce] && rows[ncclFuncAllGather] && rows[ncclFuncReduceScatter] && rows[ncclFuncBroadcast]);
	tuner_end(&t);
}

static void narrows(const void *arg)
{
	const struct sent *sent = (const struct sent *)arg;
	void *ctx = sent_begins(sent);
	if (!widens()) {
		leaves_all_alone(2, 2);
		NET(net_finalize(ctx));
		return;
	}
	for (int version = OLDEST_TUNER; version <= NEWEST_TUNER; version++) {
		/* Two ranks, only one of which has registered its buffer. */
		struct tuner one, other;
		NET(tuner_init(&one, version, 2, 2));
		NET(tuner_init(&other, version, 2, 2));
		for (int func = ncclFuncBroadcast; func <= ncclFuncAllReduce; func++)
			for (size_t bytes = 1; bytes <= (size_t)1 << 40; bytes = bytes * 3 / 2 + 1)
				CHECK_EQ(ask(&one, (ncclFunc_t)func, bytes, 1, 0), ask(&other, (ncclFunc_t)func, bytes, 1, 1));
		/* The measured answers: few channels for small sizes, all for large ones, and at each size the
		 * fastest number. */
		CHECK_EQ(ask(&one, ncclFuncAllReduce, 8192, 1, 0), 1);
		CHECK(ask(&one, ncclFuncAllReduce, 262144, 1, 0) <= 4);
		CHECK_EQ(ask(&one, ncclFuncAllReduce, sent->most, 1, 0), sent->wide);
		as_measured(sent, version, 2, 2);
		as_measured(sent, version, sent->ranks, sent->ranks);
		/* The nearest number of ranks stands for one that was not measured. */
		as_measured(sent, version, 3, sent->ranks);
		as_measured(sent, version, 8, sent->ranks);
		as_measured(sent, version, 1000, sent->ranks);
		for (size_t bytes = 8192; bytes <= sent->most; bytes += bytes / 8)
			CHECK(ask(&one, ncclFuncAllReduce, bytes, 1, 0) >= 1);
		ask(&one, ncclFuncAllReduce, 65536, 1, 0);
		CHECK(!asked_simple);
		ask(&one, ncclFuncAllReduce, 1 << 20, 1, 0);
		CHECK_EQ(asked_simple, sent->devices && version > 2);
		/* Sizes and calls outside the measured range. */
		CHECK_EQ(ask(&one, ncclFuncAllReduce, 4096, 1, 0), 0);
		CHECK_EQ(ask(&one, ncclFuncAllReduce, 2 * sent->most, 1, 0), 0);
		CHECK_EQ(ask(&one, ncclFuncAllReduce, 262144, 2, 0), 0);
		CHECK_EQ(ask(&one, ncclFuncReduce, 262144, 1, 0), 0);
		CHECK_EQ(ask(&one, (ncclFunc_t)99, 262144, 1, 0), 0);
		tuner_end(&one);
		tuner_end(&other);
	}
	leaves_all_alone(1, 1);
	leaves_all_alone(2, 1);
	NET(net_finalize(ctx));
}

/* NCCL_TUNER_PLUGIN may name this file where another net plugin is used. */
static void tuner_alone(TEST_UNUSED const void *arg)
{
	user_begins();
	net_load();
	leaves_all_alone(2, 2);
}

TEST_TABLE(nccl_tuner)
{
	if (nccl_absent())
		return;
	test_add("sets_what_it_takes", sets_what_it_takes, NULL, 20);
	test_add("sets_the_level", sets_the_level, NULL, 20);
	test_add("one_device", one_device, NULL, 20);
	test_add("level_without_gpus", level_without_gpus, NULL, 20);
	static char names[sizeof owns / sizeof owns[0]][80];
	for (size_t i = 0; i < sizeof owns / sizeof owns[0]; i++) {
		snprintf(names[i], sizeof names[i], "%s=%s", owns[i].name, owns[i].value);
		test_add(names[i], user_wins, &owns[i], 20);
	}
	test_add("not_a_switch", not_a_switch, NULL, 20);
	static char widens_names[3][40], narrows_names[3][40];
	for (size_t i = 0; i < sizeof sents / sizeof sents[0]; i++) {
		snprintf(widens_names[i], sizeof widens_names[i], "widens_for_%s", sents[i].name);
		snprintf(narrows_names[i], sizeof narrows_names[i], "narrows_for_%s", sents[i].name);
		test_add(widens_names[i], widens_for, &sents[i], 20);
		test_add(narrows_names[i], narrows, &sents[i], 20);
	}
	test_add("alone", tuner_alone, NULL, 20);
}
