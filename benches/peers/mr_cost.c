/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The cost of a registration, without a connection and without pinning:
 *
 *   mr_cost [-t gdrfab[:heap] | ofi:<provider>] [-s size[,size...]] [-n live] [-r reps]
 *
 * reg+close: registers and closes in turn; reg_only: makes 2000 more regions; both while `live` one-page regions
 * exist. */
#include "bench.h"
#include "mr.h"

static const struct mr_ops *const backends[] = {
#ifdef WITH_GDRFAB
	&mr_gdrfab,
#endif
#ifdef WITH_OFI
	&mr_ofi,
#endif
	NULL
};
static const size_t all[] = { 4096, 65536, 1 << 20, 16 << 20, 256 << 20, 1ul << 30 };
#define MAX_REPS 128
#define BATCH 2000
#define SPAN (1ul << 30)

static void measure(const struct mr_ops *ops, const char *name, char *mem, size_t size, int live, int reps)
{
	static uint64_t key = 1u << 20;
	static void *mr[BATCH];
	double both[MAX_REPS], reg[MAX_REPS], t;
	char tag[64];

	for (int r = -1; r < reps; r++) {
		double x, y;

		t = now_ns();
		for (int j = 0; j < BATCH; j++)
			ops->drop(ops->reg(mem, size, key++));
		x = (now_ns() - t) / BATCH;
		t = now_ns();
		for (int j = 0; j < BATCH; j++)
			mr[j] = ops->reg(mem, size, key++);
		y = (now_ns() - t) / BATCH;
		for (int j = 0; j < BATCH; j++)
			ops->drop(mr[j]);
		if (r >= 0) {
			both[r] = x;
			reg[r] = y;
		}
	}
	snprintf(tag, sizeof tag, "%s/reg+close/live%d", name, live);
	report("mr", tag, size, "ns", both, reps);
	snprintf(tag, sizeof tag, "%s/reg_only/live%d", name, live);
	report("mr", tag, size, "ns", reg, reps);
}

int main(int argc, char **argv)
{
	const char *name = "", *arg = "";
	const struct mr_ops *ops = NULL;
	size_t size[32], nsize = 0;
	int live = 0, reps = 31, c;
	void **pre;
	char *mem;

	while ((c = getopt(argc, argv, "t:s:n:r:")) != -1)
		switch (c) {
		case 't': name = optarg; break;
		case 's':
			for (char *p = strtok(optarg, ","); p && nsize < 32; p = strtok(NULL, ","))
				size[nsize++] = strtoull(p, NULL, 0);
			break;
		case 'n': live = atoi(optarg); break;
		case 'r': reps = atoi(optarg); break;
		default: DIE("usage: see the head of mr_cost.c");
		}
	if (strchr(name, ':'))
		arg = strchr(name, ':') + 1;
	for (int i = 0; backends[i]; i++)
		if (!strncmp(backends[i]->name, name, strcspn(name, ":")))
			ops = backends[i];
	if (!ops || !*name)
		DIE("-t: no back-end '%s' in this build", name);
	if (reps < 1 || reps > MAX_REPS || live < 0 || (size_t)live * 4096 > SPAN)
		DIE("-r or -n out of range");
	for (size_t i = 0; !nsize || i < nsize; i++) {
		if (!nsize) {
			nsize = sizeof all / sizeof *all;
			memcpy(size, all, sizeof all);
		}
		if (size[i] < 1 || size[i] > SPAN)
			DIE("-s: 1 byte to 1 GiB");
	}
	pin(0);
	mem = ops->open(arg, SPAN);
	pre = calloc((size_t)live + 1, sizeof *pre);
	for (int i = 0; i < live; i++)
		pre[i] = ops->reg(mem + 4096ul * (size_t)i, 4096, (uint64_t)i + 1);
	for (size_t i = 0; i < nsize; i++)
		measure(ops, name, mem, size[i], live, reps);
	for (int i = 0; i < live; i++)
		ops->drop(pre[i]);
	free(pre);
	ops->close();
	return 0;
}
