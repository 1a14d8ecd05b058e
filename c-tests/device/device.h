/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Helpers of the programs about device memory: both sides of the way under test, and the expected text of a driver's failure. */
#ifndef DEVICE_H
#define DEVICE_H

#include "fab.h"

#define LEN ((size_t)300000)
#define POSTS 4 /* operations under way at once */

/* The text of a driver's code, as its vendor writes it. */
static inline void says_code(int line, const char *text, unsigned code)
{
	char decimal[16], hex[16];
	snprintf(decimal, sizeof decimal, "%u", code);
	snprintf(hex, sizeof hex, "%x", code);
	if (!test_says(text, decimal) && !test_says(text, hex))
		test_fail(__FILE__, line, "the words are silent about the driver's code %s: %s", decimal, text);
}
#define SAYS_CODE(text, code) says_code(__LINE__, text, code)

static inline void fakes_only(void)
{
	if (!getenv("GDRFAB_FAKES"))
		test_skip("a real driver cannot be told to fail");
}

static inline const struct way *way_of(const struct node *n)
{
	return (const struct way *)n->arg;
}

/* With TEST_FAST one kind of CUDA memory stands for all. */
static inline bool left_out(const struct way *way)
{
	return test_count(0, 1) && way->kind != device_kinds[0] && way->kind->alloc == cuda_kinds[0].alloc;
}

static inline void target_new(struct node *n, struct mem *m, uint32_t seed)
{
	node_up(n);
	mem_new(n, m, way_of(n)->kind, LEN);
	mem_fill(m, 0, LEN, 0, seed);
	way_register(n, m, 0, LEN, way_of(n));
	mem_publish(n, m);
}

static inline struct remote initiator_new(struct node *n)
{
	node_up(n);
	struct remote to = mem_fetch(n);
	way_check(n, way_of(n), to);
	return to;
}

/* Both sides end together. */
static inline void initiator_end(struct node *n, unsigned char *buf)
{
	barrier(n);
	free(buf);
	node_down(n);
}

static inline void post_write(struct node *n, unsigned char *buf, struct remote to)
{
	POST(n->cq, gdrfab_write(n->ep, buf, LEN, local_desc(n, buf, LEN), 0, to.base, to.key, buf));
}

static inline void writes(struct node *n, unsigned char *buf, struct remote to)
{
	post_write(n, buf, to);
	DONE(n->cq, buf, GDRFAB_WRITE, NULL);
}

static inline void device_claim(const char *what, const char *name, test_fn fn, const void *arg, int seconds)
{
	char text[96];
	snprintf(text, sizeof text, "%s_%s", what, name);
	test_add(text, fn, arg, seconds);
}

#endif
