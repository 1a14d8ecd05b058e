/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * RMA from and to several pieces of local memory, registered or not, short and long; and operations of no bytes between
 * others.
 */
#include "fab_data.h"
#include "fab_rdm.h"

#include <stdlib.h>
#include <string.h>

#define LENGTH ((size_t)200000)
enum { PIECES = 3 };

/* Over an RDMA device short pieces are copied and long ones registered. */
static const size_t cuts[][PIECES] = {{1, 100, 7}, {5, 70000, 100000}, {8, 0, 8}};

static void pieces(struct self *s)
{
	unsigned char *mine = (unsigned char *)calloc(2, LENGTH), *out = mine, *in = mine + LENGTH;
	gdrfab_mr *mr = NULL, *own = NULL;
	CHECK(mine != NULL);
	if (s->rank == 0) {
		OK(gdrfab_mr_reg(s->domain, mine, LENGTH, GDRFAB_REMOTE_READ | GDRFAB_REMOTE_WRITE, 0, 0, 0, NULL, &mr));
		put_number(s, 0, (uintptr_t)mine), put_number(s, 1, gdrfab_mr_key(mr));
	} else {
		OK(gdrfab_mr_reg(s->domain, mine, 2 * LENGTH, GDRFAB_READ | GDRFAB_WRITE, 0, 0, 0, NULL, &own));
	}
	meet(s);
	uint64_t addr = get_number(s, 0), key = get_number(s, 1);
	for (size_t c = 0; s->rank == 1 && c < 2 * (sizeof cuts / sizeof *cuts); c++) {
		const size_t *cut = cuts[c / 2];
		struct iovec from[PIECES], to[PIECES];
		void *descs[PIECES], **desc = c % 2 ? descs : NULL;
		size_t at = 0;
		fill(out, LENGTH, 0, (uint32_t)c);
		memset(in, 0, LENGTH);
		for (int i = 0; i < PIECES; at += cut[i++] + 16) {
			from[i].iov_base = out + at, to[i].iov_base = in + at;
			from[i].iov_len = to[i].iov_len = cut[i];
			descs[i] = gdrfab_mr_desc(own);
		}
		OK(gdrfab_writev(s->ep, from, desc, PIECES, 0, addr, key, context_of(1)));
		await(s, 1, NULL);
		OK(gdrfab_write(s->ep, out, 0, NULL, 0, addr, key, context_of(2)));
		OK(gdrfab_read(s->ep, in, 0, NULL, 0, addr, key, context_of(3)));
		OK(gdrfab_readv(s->ep, to, desc, PIECES, 0, addr, key, context_of(4)));
		OK(gdrfab_read(s->ep, in, 0, NULL, 0, addr, key, context_of(5)));
		for (uintptr_t i = 2; i <= 5; i++)
			await(s, i, NULL);
		for (int i = 0; i < PIECES; i++)
			CHECK(memcmp(from[i].iov_base, to[i].iov_base, cut[i]) == 0);
		for (size_t i = 0; i < 16; i++)
			CHECK_EQ(in[cut[0] + i], 0);
	}
	meet(s);
	OK(gdrfab_mr_close(s->rank ? own : mr));
	free(mine);
}

TEST_TABLE(claims)
{
	static const struct rdm_claim claims[] = {{"rma_of_pieces_and_of_nothing", pieces, 2, false}};
	rdm_add_both(claims, 1);
}
