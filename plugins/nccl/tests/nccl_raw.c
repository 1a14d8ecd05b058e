/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "nccl_raw.h"

#include "../proof.h"

void hello_prove(struct hello *hello, const struct handle *h)
{
	uint64_t secret[2], words[5];
	memcpy(secret, h->bytes + HANDLE_SECRET, sizeof secret);
	memcpy(words, hello, sizeof words);
	hello->proof = siphash(secret, words, 5);
}

struct hello hello_for(const struct handle *h, bool answers, uint64_t addr, uint64_t key)
{
	static uint64_t nonce = 1;
	struct hello hello = {MAGIC, 8192, answers, addr, key, nonce++, 0};
	hello_prove(&hello, h);
	return hello;
}

bool knock(struct node *n, const struct handle *h, const void *hello, size_t size, struct hello *answer)
{
	const char *address = h->bytes + HANDLE_ADDRESS;
	struct event in;
	uint32_t kind;
	ssize_t got;
	n->ep = ep_new(n, n->info, NULL);
	OK(gdrfab_ep_connect(n->ep, address, strlen(address) + 1, hello, size));
	memset(&in, 0, sizeof in);
	got = gdrfab_eq_sread(n->eq, &kind, &in, sizeof in.entry + sizeof in.data, test_ms(5000), 0);
	if (got == -GDRFAB_EAVAIL) {
		gdrfab_eq_err_entry e = {.struct_size = sizeof e};
		CHECK(gdrfab_eq_readerr(n->eq, &e, 0) > 0);
		CHECK_EQ(e.prov_errno, GDRFAB_PROV_REJECTED);
		OK(gdrfab_ep_close(n->ep));
		n->ep = NULL;
		return false;
	}
	CHECK(got >= (ssize_t)(sizeof in.entry + sizeof *answer));
	CHECK_EQ(kind, GDRFAB_CONNECTED);
	memcpy(answer, in.data, sizeof *answer);
	CHECK_EQ(answer->magic, MAGIC);
	return true;
}
