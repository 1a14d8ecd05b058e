/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Every atomic operation on every datatype, between connectionless endpoints over each set of lanes, carried out by the peer's
 * CPU, over RDMA devices too. For operations on the own process and each path of shm see atomic.c. */
#include "atomic_model.h"
#include "fab_rdm.h"

enum { OPS = GDRFAB_MSWAP + 1, EACH = 64 };

/* All operations on a datatype at once: writes, the operations on the written values, and reads, without a wait. */
static int try_all_on(struct self *s, uint32_t type, int seed)
{
	uint64_t base = get_number(s, 0), key = get_number(s, 1);
	static struct trial trials[OPS];
	static unsigned char old[OPS][ELEMENTS * 8], now[OPS][ELEMENTS * 8];
	int tried = 0;
	for (uint32_t op = 0; op < OPS; op++) {
		if (!is_defined(op, type))
			continue;
		trials[op] = trial_of(type, op, seed);
		OK(gdrfab_write(s->ep, trials[op].before, trials[op].len, NULL, 0, base + EACH * op, key, context_of(3 * op)));
	}
	for (uint32_t op = 0; op < OPS; op++) {
		const struct trial *t = &trials[op];
		const void *operand = op == GDRFAB_ATOMIC_READ ? NULL : t->operand;
		uint64_t at = base + EACH * op;
		void *context = context_of(3 * op + 1);
		if (!is_defined(op, type))
			continue;
		if (t->plain)
			OK(gdrfab_atomic(s->ep, operand, ELEMENTS, NULL, 0, at, key, type, op, context));
		else if (compares(op))
			OK(gdrfab_compare_atomic(s->ep, operand, ELEMENTS, NULL, t->compare, NULL, old[op], NULL, 0, at, key, type, op,
						 context));
		else
			OK(gdrfab_fetch_atomic(s->ep, operand, ELEMENTS, NULL, old[op], NULL, 0, at, key, type, op, context));
	}
	for (uint32_t op = 0; op < OPS; op++)
		if (is_defined(op, type))
			OK(gdrfab_read(s->ep, now[op], trials[op].len, NULL, 0, base + EACH * op, key, context_of(3 * op + 2)));
	for (uint32_t op = 0; op < OPS; op++) {
		const struct trial *t = &trials[op];
		if (!is_defined(op, type))
			continue;
		for (uintptr_t k = 0; k < 3; k++)
			await(s, 3 * op + k, NULL);
		if (memcmp(now[op], t->after, t->len) != 0 || (!t->plain && memcmp(old[op], t->before, t->len) != 0))
			test_fail(__FILE__, __LINE__, "datatype %u, operation %u, seed %d: another result than C's", type, op, seed);
		tried++;
	}
	return tried;
}

static void every_operation_on_every_type(struct self *s)
{
	static unsigned char words[OPS * EACH];
	gdrfab_mr *mr = NULL;
	int tried = 0;
	if (s->rank == 0) {
		OK(gdrfab_mr_reg(s->domain, words, sizeof words, GDRFAB_REMOTE_READ | GDRFAB_REMOTE_WRITE, 0, 0, 0, NULL, &mr));
		put_number(s, 0, (uintptr_t)words);
		put_number(s, 1, gdrfab_mr_key(mr));
	}
	meet(s);
	for (uint32_t type = GDRFAB_INT8; s->rank && type <= GDRFAB_DOUBLE; type++)
		for (int seed = 0; seed < 2; seed++)
			tried += try_all_on(s, type, seed * 7);
	meet(s);
	if (s->rank)
		CHECK_EQ(tried, 2 * (10 * 19 - 2 * 4));
	else
		OK(gdrfab_mr_close(mr));
}

TEST_TABLE(claims)
{
	static const struct rdm_claim claims[] = {{"every_operation_on_every_type", every_operation_on_every_type, 2, false}};
	/* Over an RDMA device only with this lane alone: it takes seconds in the virtual machine. */
	rdm_cards_alone = true;
	rdm_add(claims, 1);
}
