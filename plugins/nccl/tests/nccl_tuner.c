/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What init sets of NCCL's variables, and the tuner that narrows the channels: never over what a user has set, the same on all
 * ranks, nothing written but the answer. Each version of the tuner interface is called as NCCL calls it.
 */
#include "nccl_drive.h"

#include "../nccl_tuner.h"

#include <dlfcn.h>

enum { OLDEST_TUNER = 2, NEWEST_TUNER = 6, WIDE = 16 };

/* What a user forbids, so that everything goes through the plugin; a launcher may say anything. */
static const char *const ours[] = {"NCCL_PROTO",    "NCCL_TUNER_PLUGIN",	"NCCL_MIN_NCHANNELS",
				   "NCCL_BUFFSIZE", "NCCL_P2P_NET_CHUNKSIZE", "NCCL_NET_GDR_LEVEL"};
enum { OURS = sizeof ours / sizeof ours[0] };

static void user_begins(void)
{
	static const char *const others[] = {"NCCL_MAX_NCHANNELS", "NCCL_MIN_NRINGS", "NCCL_MAX_NRINGS", "NCCL_MIN_CTAS",
					     "NCCL_MAX_CTAS", "NCCL_P2P_LEVEL", "GDRFAB_NCCL_TUNE", "GDRFAB_NCCL_GDR"};
	for (size_t i = 0; i < OURS; i++)
		unsetenv(ours[i]);
	for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
		unsetenv(others[i]);
	setenv("GDRFAB_NCCL_PROVIDERS", "shm", 1);
	setenv("GDRFAB_NCCL_THREADS", "0", 1);
	setenv("NCCL_P2P_DISABLE", "1", 1);
	setenv("NCCL_SHM_DISABLE", "1", 1);
}

static void is(const char *name, const char *want)
{
	const char *text = getenv(name);
	if (want ? !text || strcmp(text, want) != 0 : text != NULL)
		test_fail(__FILE__, __LINE__, "%s is %s, not %s; \"%s\"", name, text ? text : "unset", want ? want : "unset",
			  log_all());
}

static void none_set(void)
{
	for (size_t i = 0; i < OURS; i++)
		is(ours[i], NULL);
}

/* Before version 9, NCCL may be one that looks for no tuner here. */
static bool widens(void)
{
	return net.version >= 9;
}

/* --- the versions --- */

struct tuner {
	int version;
	const void *table;
	void *ctx;
};

#define T(v) ((const ncclTuner_v##v##_t *)t->table)

static ncclResult_t tuner_init(struct tuner *t, int version, size_t ranks, size_t nodes)
{
	char symbol[32];
	ncclNvlDomainInfo_v5_t domains = {1, (int)ranks, (int)ranks};
	double constants[200]; /* more than NCCL's; nothing of it is ours */
	memset(constants, 0x5a, sizeof constants);
	ncclTunerConstants_v5_t *model = (ncclTunerConstants_v5_t *)(void *)constants;
	t->version = version;
	snprintf(symbol, sizeof symbol, "ncclTunerPlugin_v%d", version);
	t->table = dlsym(net.library, symbol);
	if (!t->table)
		test_fail(__FILE__, __LINE__, "the plugin has no %s", symbol);
	t->ctx = &domains; /* must be written */
	ncclResult_t result;
	switch (version) {
	case 2: result = T(2)->init(ranks, nodes, NULL, &t->ctx); break;
	case 3: result = T(3)->init(ranks, nodes, NULL, &t->ctx); break;
	case 4: result = T(4)->init(ranks, nodes, NULL, &t->ctx); break;
	case 5: result = T(5)->init(&t->ctx, ranks, ranks, nodes, NULL, &domains, model); break;
	default: result = T(6)->init(&t->ctx, ranks, ranks, nodes, NULL, &domains, model);
	}
	CHECK(t->ctx != &domains);
	for (size_t i = 0; i < sizeof constants; i++)
		CHECK_EQ(((unsigned char *)constants)[i], 0x5a);
	return result;
}

static bool asked_simple;

/* A communicator of NCCL's: its table, with what it ignores at -1, is followed by what is not the tuner's. Gives nChannels, 0
 * if that was left to NCCL. */
static int ask(struct tuner *t, ncclFunc_t func, size_t bytes, int pipelined, int registered)
{
	float costs[NCCL_TUNER_ALGORITHMS + 2][NCCL_TUNER_PROTOCOLS], before[NCCL_TUNER_ALGORITHMS + 2][NCCL_TUNER_PROTOCOLS];
	int algorithm = -1, protocol = -1, channels[3] = {-77, 0, -77};
	for (int a = 0; a < NCCL_TUNER_ALGORITHMS + 2; a++)
		for (int p = 0; p < NCCL_TUNER_PROTOCOLS; p++)
			costs[a][p] = a % 2 == 0 && p ? 12.5f * (float)(a + p) : -1.0f;
	memcpy(before, costs, sizeof before);
	/* Through the host, large ones go by Simple, unless that is not to be had. */
	float *simple = &costs[1 + NCCL_TUNER_RING][NCCL_TUNER_SIMPLE], had = *simple;
	float **table = (float **)(void *)costs[1];
	enum { A = NCCL_TUNER_ALGORITHMS, P = NCCL_TUNER_PROTOCOLS };
	switch (t->version) {
	case 2: NET(T(2)->getCollInfo(t->ctx, func, bytes, 0, 0, pipelined, &algorithm, &protocol, &channels[1])); break;
	case 3: NET(T(3)->getCollInfo(t->ctx, func, bytes, pipelined, table, A, P, &channels[1])); break;
	case 4: NET(T(4)->getCollInfo(t->ctx, func, bytes, pipelined, table, A, P, registered, &channels[1])); break;
	case 5: NET(T(5)->getCollInfo(t->ctx, func, bytes, pipelined, table, A, P, registered, &channels[1])); break;
	default: NET(T(6)->getCollInfo(t->ctx, func, bytes, pipelined, table, A, P, registered, &channels[1]));
	}
	asked_simple = *simple != had;
	CHECK(*simple == had || *simple == 0);
	*simple = had;
	CHECK_EQ(memcmp(before, costs, sizeof before), 0);
	CHECK(algorithm == -1 && protocol == -1);
	CHECK(channels[0] == -77 && channels[2] == -77);
	CHECK(channels[1] >= 0 && channels[1] <= WIDE);
	return channels[1];
}

static void tuner_end(struct tuner *t)
{
	switch (t->version) {
	case 2: NET(T(2)->destroy(t->ctx)); break;
	case 3: NET(T(3)->destroy(t->ctx)); break;
	case 4: NET(T(4)->destroy(t->ctx)); break;
	case 5: NET(T(5)->finalize(t->ctx)); break;
	default: NET(T(6)->finalize(t->ctx));
	}
}

/* Whatever it is asked, NCCL chooses. */
static void leaves_all_alone(size_t ranks, size_t nodes)
{
	for (int version = OLDEST_TUNER; version <= NEWEST_TUNER; version++) {
		struct tuner t;
		NET(tuner_init(&t, version, ranks, nodes));
		for (int func = ncclFuncBroadcast; func <= ncclFuncAllReduce; func++)
			for (size_t bytes = 1; bytes <= (size_t)1 << 32; bytes *= 4)
				CHECK_EQ(ask(&t, (ncclFunc_t)func, bytes, 1, 0), 0);
		tuner_end(&t);
	}
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
	/* The next communicator's: nothing new, but what was taken away comes back, and what was changed stays. */
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
	/* What was set stays readable. */
	CHECK_EQ(dlclose(net.library), 0);
	is("NCCL_PROTO", "^LL");
}

static void *loaded(void)
{
	void *ctx;
	net_load();
	NET(net_init(&ctx));
	return ctx;
}

/* Only where memory of GPUs is really offered; see net_open_with() for what that takes. */
static void over_cuda(void **ctx)
{
	struct node n;
	net_alone(&n);
	if (strcmp(provider(), "shm") != 0 || !test_says(getenv("TEST_IFACES"), "cuda"))
		test_skip("no CUDA over shm here");
	cuda_use(device_count(&n, GDRFAB_HMEM_CUDA) - 1);
	*ctx = loaded();
}

static void sets_the_level(TEST_UNUSED const void *arg)
{
	struct props p;
	void *ctx;
	user_begins();
	over_cuda(&ctx);
	NET(net_props(0, &p));
	CHECK(p.ptr_support & NCCL_PTR_CUDA);
	is("NCCL_NET_GDR_LEVEL", "SYS");
	told("NCCL_NET_GDR_LEVEL");
	/* A device for each channel, none of them another's, and no less than one together. */
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

/* What is not tuned is offered once. */
static void one_device(TEST_UNUSED const void *arg)
{
	void *ctx;
	user_begins();
	setenv("GDRFAB_NCCL_TUNE", "0", 1);
	over_cuda(&ctx);
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

/* name=value, and whether then the protocol, and the width, are still set. */
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

/* What is sent, by which settings of the user; how wide communicators then are, and what was measured. */
static const struct sent {
	const char *name, *providers, *gdr, *threads, *channels, *buffer, *chunk;
	int wide, devices;
	size_t most; /* measured */
	const struct row *rows;
	size_t count;
} sents[] = {
	{"gpus", "shm", NULL, "0", "16", "16777216", "1048576", 16, 0, 256 << 20, of_gpus, sizeof of_gpus / sizeof *of_gpus},
	{"host", "shm", "0", "2", "16", "2097152", NULL, 16, 2, 8 << 20, of_host, sizeof of_host / sizeof *of_host},
	{"tcp", "tcp", NULL, "4", "8", NULL, "524288", 8, 4, 256 << 20, of_tcp, sizeof of_tcp / sizeof *of_tcp},
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

/* With helpers, memory of the host takes wide communicators too, and any protocol. */
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
	/* One thread cannot share. Before version 11 nothing is finalized, and the first settings stay. */
	if (sent->devices && net.version >= 11) {
		struct sent one = *sent;
		one.threads = "1";
		CHECK_EQ(dlclose(net.library), 0);
		ctx = sent_begins(&one);
		none_set();
		NET(net_finalize(ctx));
	}
}

/* Of the rows of this size; and no channel has less than NCCL would give it. */
static int fastest(const struct sent *sent, const struct row *of)
{
	const struct row *best = of;
	int shares = (int)(of->bytes / 32768);
	for (const struct row *row = sent->rows; row < sent->rows + sent->count; row++)
		if (row->func == of->func && row->ranks == of->ranks && row->bytes == of->bytes && row->us < best->us)
			best = row;
	return best->channels <= shares ? best->channels : shares ? shares : 1;
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
		/* Two ranks, of which one has registered its buffer. */
		struct tuner one, other;
		NET(tuner_init(&one, version, 2, 2));
		NET(tuner_init(&other, version, 2, 2));
		for (int func = ncclFuncBroadcast; func <= ncclFuncAllReduce; func++)
			for (size_t bytes = 1; bytes <= (size_t)1 << 40; bytes = bytes * 3 / 2 + 1)
				CHECK_EQ(ask(&one, (ncclFunc_t)func, bytes, 1, 0), ask(&other, (ncclFunc_t)func, bytes, 1, 1));
		/* What was measured: few for the small, all for the large, and at each size what was fastest there. */
		CHECK_EQ(ask(&one, ncclFuncAllReduce, 8192, 1, 0), 1);
		CHECK(ask(&one, ncclFuncAllReduce, 262144, 1, 0) <= 4);
		CHECK_EQ(ask(&one, ncclFuncAllReduce, sent->most, 1, 0), sent->wide);
		for (const struct row *row = sent->rows; row < sent->rows + sent->count; row++)
			if (row->ranks == 2)
				CHECK_EQ(ask(&one, row->func, row->bytes, 1, 0), fastest(sent, row));
		for (size_t bytes = 8192; bytes <= sent->most; bytes += bytes / 8)
			CHECK(ask(&one, ncclFuncAllReduce, bytes, 1, 0) >= 1);
		ask(&one, ncclFuncAllReduce, 65536, 1, 0);
		CHECK(!asked_simple);
		ask(&one, ncclFuncAllReduce, 1 << 20, 1, 0);
		CHECK_EQ(asked_simple, sent->devices && version > 2);
		/* And what was not. */
		CHECK_EQ(ask(&one, ncclFuncAllReduce, 4096, 1, 0), 0);
		CHECK_EQ(ask(&one, ncclFuncAllReduce, 2 * sent->most, 1, 0), 0);
		CHECK_EQ(ask(&one, ncclFuncAllReduce, 262144, 2, 0), 0);
		CHECK_EQ(ask(&one, ncclFuncReduce, 262144, 1, 0), 0);
		CHECK_EQ(ask(&one, (ncclFunc_t)99, 262144, 1, 0), 0);
		tuner_end(&one);
		tuner_end(&other);
	}
	leaves_all_alone(3, 3);
	leaves_all_alone(2, 1);
	NET(net_finalize(ctx));
}

/* NCCL_TUNER_PLUGIN may name this file where another net is used. */
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
