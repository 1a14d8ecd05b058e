/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "nccl_vars.h"

#include <dlfcn.h>

/* The variables that init may set. */
static const char *const ours[] = {"NCCL_PROTO",    "NCCL_TUNER_PLUGIN",	"NCCL_MIN_NCHANNELS",
				   "NCCL_BUFFSIZE", "NCCL_P2P_NET_CHUNKSIZE", "NCCL_NET_GDR_LEVEL"};
enum { OURS = sizeof ours / sizeof ours[0] };

void user_begins(void)
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

void is(const char *name, const char *want)
{
	const char *text = getenv(name);
	if (want ? !text || strcmp(text, want) != 0 : text != NULL)
		test_fail(__FILE__, __LINE__, "%s is %s, not %s; \"%s\"", name, text ? text : "unset", want ? want : "unset",
			  log_all());
}

void none_set(void)
{
	for (size_t i = 0; i < OURS; i++)
		is(ours[i], NULL);
}

void *loaded(void)
{
	void *ctx;
	net_load();
	NET(net_init(&ctx));
	return ctx;
}

void *loaded_over_cuda(void)
{
	struct node n;
	net_alone(&n);
	if (strcmp(provider(), "shm") != 0 || !test_says(getenv("TEST_IFACES"), "cuda"))
		test_skip("no CUDA over shm here");
	cuda_use(device_count(&n, GDRFAB_HMEM_CUDA) - 1);
	return loaded();
}

/* --- the versions --- */

#define T(v) ((const ncclTuner_v##v##_t *)t->table)

ncclResult_t tuner_init(struct tuner *t, int version, size_t ranks, size_t nodes)
{
	char symbol[32];
	ncclNvlDomainInfo_v5_t domains = {1, (int)ranks, (int)ranks};
	double constants[200]; /* more than NCCL's; the tuner must not change them */
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

bool asked_simple;

int ask(struct tuner *t, ncclFunc_t func, size_t bytes, int pipelined, int registered)
{
	float costs[NCCL_TUNER_ALGORITHMS + 2][NCCL_TUNER_PROTOCOLS], before[NCCL_TUNER_ALGORITHMS + 2][NCCL_TUNER_PROTOCOLS];
	int algorithm = -1, protocol = -1, channels[3] = {-77, 0, -77};
	for (int a = 0; a < NCCL_TUNER_ALGORITHMS + 2; a++)
		for (int p = 0; p < NCCL_TUNER_PROTOCOLS; p++)
			costs[a][p] = a % 2 == 0 && p ? 12.5f * (float)(a + p) : -1.0f;
	memcpy(before, costs, sizeof before);
	/* For large sizes of host memory Simple is chosen, unless it is not available. */
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

void tuner_end(struct tuner *t)
{
	switch (t->version) {
	case 2: NET(T(2)->destroy(t->ctx)); break;
	case 3: NET(T(3)->destroy(t->ctx)); break;
	case 4: NET(T(4)->destroy(t->ctx)); break;
	case 5: NET(T(5)->finalize(t->ctx)); break;
	default: NET(T(6)->finalize(t->ctx));
	}
}

void leaves_all_alone(size_t ranks, size_t nodes)
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
