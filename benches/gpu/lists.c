/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Lists of blocks at random offsets of two GPUs: by gdrfab between two processes, and by the bare driver through a
 * mapping of the same memory, with one call for each block, one batch call, or one kernel. All take turns; medians,
 * one table. With GDRFAB_CUDA_MAX_CTAS=0 gdrfab uses no kernels, like the batch call.
 *
 *   gpu-lists [markdown file]
 */
#include "pair.h"

enum { ROUNDS = 9, MOST = 1024 };

/* A group of 256 threads for each block; each thread copies 16 bytes a turn. */
static const char kernel_text[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
	".visible .entry blocks(.param .u64 list, .param .u32 count)\n{\n"
	".reg .pred %p; .reg .u32 %i, %n, %g, %t; .reg .u64 %l, %a, %to, %from, %len, %at, %x; .reg .b32 %v<16>;\n"
	"ld.param.u64 %l, [list]; ld.param.u32 %n, [count];\n"
	"mov.u32 %i, %ctaid.x; mov.u32 %g, %nctaid.x; mov.u32 %t, %tid.x;\n"
	"NEXT: setp.ge.u32 %p, %i, %n; @%p ret;\n"
	"mul.wide.u32 %a, %i, 24; add.u64 %a, %l, %a;\n"
	"ld.global.u64 %to, [%a]; ld.global.u64 %from, [%a+8]; ld.global.u64 %len, [%a+16];\n"
	"mul.wide.u32 %at, %t, 16;\n"
	"FOUR: add.u64 %x, %at, 12288; setp.ge.u64 %p, %x, %len; @%p bra ONE; add.u64 %x, %from, %at;\n"
	"ld.global.v4.b32 {%v0, %v1, %v2, %v3}, [%x]; ld.global.v4.b32 {%v4, %v5, %v6, %v7}, [%x+4096];\n"
	"ld.global.v4.b32 {%v8, %v9, %v10, %v11}, [%x+8192]; ld.global.v4.b32 {%v12, %v13, %v14, %v15}, [%x+12288];\n"
	"add.u64 %x, %to, %at;\n"
	"st.global.v4.b32 [%x], {%v0, %v1, %v2, %v3}; st.global.v4.b32 [%x+4096], {%v4, %v5, %v6, %v7};\n"
	"st.global.v4.b32 [%x+8192], {%v8, %v9, %v10, %v11}; st.global.v4.b32 [%x+12288], {%v12, %v13, %v14, %v15};\n"
	"add.u64 %at, %at, 16384; bra FOUR;\n"
	"ONE: setp.ge.u64 %p, %at, %len; @%p bra DONE; add.u64 %x, %from, %at;\n"
	"ld.global.v4.b32 {%v0, %v1, %v2, %v3}, [%x]; add.u64 %x, %to, %at; st.global.v4.b32 [%x], {%v0, %v1, %v2, %v3};\n"
	"add.u64 %at, %at, 4096; bra ONE;\n"
	"DONE: add.u32 %i, %i, %g; bra NEXT;\n}\n";

/* The driver's CUmemcpyAttributes. */
struct batch_attributes {
	unsigned order, from[2], to[2], flags;
};

static struct {
	struct target to;
	dptr mapped, local;
	void *stream, *kernel, *desc;
	size_t count, len;
	size_t here[MOST], there[MOST]; /* places, in blocks */
	gdrfab_block block[MOST];
	gdrfab_list *prepared;
	dptr dst[MOST], src[MOST];
	size_t size[MOST];
	dptr (*units)[3]; /* pinned */
	int reads;
} j;

static void by_loop(void)
{
	for (size_t i = 0; i < j.count; i++)
		CU(cu.cuMemcpyDtoDAsync_v2(j.dst[i], j.src[i], j.len, j.stream));
	CU(cu.cuStreamSynchronize(j.stream));
}

static void by_batch(void)
{
	struct batch_attributes attributes = {1, {0, 0}, {0, 0}, 0};
	size_t first = 0, failed;
	CU(cu.cuMemcpyBatchAsync(j.dst, j.src, j.size, j.count, &attributes, &first, 1, &failed, j.stream));
	CU(cu.cuStreamSynchronize(j.stream));
}

static void by_kernel(void)
{
	unsigned count = (unsigned)j.count;
	void *list = j.units, *parameters[] = {&list, &count};
	/* The list is written each time, because the library has to write it each time too. */
	for (size_t i = 0; i < j.count; i++) {
		j.units[i][0] = j.dst[i];
		j.units[i][1] = j.src[i];
		j.units[i][2] = j.len;
	}
	CU(cu.cuLaunchKernel(j.kernel, count, 1, 1, 256, 1, 1, 0, j.stream, parameters, NULL));
	CU(cu.cuStreamSynchronize(j.stream));
}

static void posted(ssize_t result)
{
	if (result)
		OK(result);
	reap(1);
}

static void by_list(void)
{
	gdrfab_msg_list m;
	memset(&m, 0, sizeof m);
	m.struct_size = sizeof m;
	m.blocks = j.block;
	m.count = j.count;
	m.desc = &j.desc;
	m.desc_count = 1;
	m.key = &j.to.key;
	m.key_count = 1;
	posted(j.reads ? gdrfab_readlist(ep, &m, 0) : gdrfab_writelist(ep, &m, 0));
}

static void by_prepared(void)
{
	posted(gdrfab_list_post(j.prepared, j.reads ? GDRFAB_READ : GDRFAB_WRITE, 0, NULL));
}

static uint64_t chance(void)
{
	static uint64_t x = 88172645463325252u;
	x ^= x << 13;
	x ^= x >> 7;
	return x ^= x << 17;
}

/* Every second offset, in random order, so that no block adjoins another. */
static void places(size_t *at, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		size_t k = chance() % (i + 1);
		at[i] = at[k];
		at[k] = 2 * i;
	}
}

static void lay_out(size_t count, size_t len, int reads)
{
	gdrfab_msg_list m;
	j.count = count;
	j.len = len;
	j.reads = reads;
	places(j.here, count);
	places(j.there, count);
	for (size_t i = 0; i < count; i++) {
		dptr near = j.local + j.here[i] * len, far = j.mapped + j.there[i] * len;
		j.dst[i] = reads ? near : far;
		j.src[i] = reads ? far : near;
		j.size[i] = len;
		j.block[i].buf = (void *)(uintptr_t)near;
		j.block[i].addr = j.to.addr + j.there[i] * len;
		j.block[i].len = len;
	}
	memset(&m, 0, sizeof m);
	m.struct_size = sizeof m;
	m.blocks = j.block;
	m.count = count;
	m.desc = &j.desc;
	m.desc_count = 1;
	m.key = &j.to.key;
	m.key_count = 1;
	OK(gdrfab_list_open(ep, &m, &j.prepared));
}

struct way {
	const char *name;
	void (*run)(void);
	double us[ROUNDS];
};

static void row(size_t count, size_t len, int reads)
{
	struct way ways[] = {
		{"a call a block", by_loop, {0}}, {"batch", cu.cuMemcpyBatchAsync ? by_batch : NULL, {0}}, {"kernel", by_kernel, {0}},
		{"gdrfab", by_list, {0}}, {"prepared", by_prepared, {0}},
	};
	enum { WAYS = sizeof ways / sizeof *ways };
	size_t bytes = count * len;
	int many = bytes > 128 * MIB ? 8 : 30;
	double us[WAYS];
	lay_out(count, len, reads);
	for (int r = -1; r < ROUNDS; r++)
		for (int w = 0; w < WAYS; w++) {
			double start = now_us();
			for (int i = 0; ways[w].run && i < (r < 0 ? 2 : w ? many : many / 4); i++)
				ways[w].run();
			if (r >= 0)
				ways[w].us[r] = (now_us() - start) / (w ? many : many / 4);
		}
	OK(gdrfab_list_close(j.prepared));
	fprintf(table, "| %s | %zu x %zu KiB |", reads ? "read" : "write", count, len >> 10);
	for (int w = 0; w < WAYS; w++) {
		us[w] = ways[w].run ? median(ways[w].us, ROUNDS) : 0;
		if (ways[w].run)
			fprintf(table, " %.1f us, %.1f GB/s |", us[w], (double)bytes / us[w] / 1e3);
		else
			fprintf(table, " - |");
	}
	fprintf(table, " %.2f, %.2f |", us[2] / us[3], us[2] / us[4]);
	if (ways[1].run)
		fprintf(table, " %.2f |\n", us[1] / us[3]);
	else
		fprintf(table, " - |\n");
	fflush(table);
}

static void measure(int device, int other)
{
	static const size_t shapes[][2] = {{1024, 4 << 10}, {1024, 16 << 10}, {1024, 64 << 10}, {1024, 256 << 10}, {512, 1 << 20}};
	void *module, *pinned;
	use_device(device);
	connect_both();
	CU(cu.cuStreamCreate(&j.stream, 1));
	CU(cu.cuModuleLoadData(&module, kernel_text));
	CU(cu.cuModuleGetFunction(&j.kernel, module, "blocks"));
	CU(cu.cuMemHostAlloc(&pinned, sizeof(dptr[MOST][3]), 1));
	j.units = pinned;
	CU(cu.cuMemAlloc_v2(&j.local, exposed));
	CU(cu.cuMemsetD8_v2(j.local, 7, exposed));
	gdrfab_mr *local = reg((void *)(uintptr_t)j.local, exposed);
	j.desc = gdrfab_mr_desc(local);
	j.to = ask('p');
	j.mapped = open_limit(&j.to);
	fprintf(table, "Lists in random places, device %d and device %d, two processes; medians of %d rounds, all in turns. Ratios are "
		       "the time of the one over that of gdrfab.\n\n", device, other, ROUNDS);
	fprintf(table, "| what | blocks | driver: a call a block | one batch call | one kernel | gdrfab | gdrfab, prepared | "
		       "kernel / gdrfab, prepared | batch / gdrfab |\n|---|---|---|---|---|---|---|---|---|\n");
	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
		for (int reads = 1; reads >= 0; reads--)
			row(shapes[i][0], shapes[i][1], reads);
	leave();
	CU(cu.cuIpcCloseMemHandle(j.mapped));
	OK(gdrfab_mr_close(local));
	say("q", 1);
}

int main(int argc, char **argv)
{
	return pair(argc, argv, 1024 * MIB, measure);
}
