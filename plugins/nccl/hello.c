/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "hello.h"

#include "proof.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

/* Bytes of eager messages that may be under way over tcp. */
enum { TCP_EARLY = 32768 };

static uint64_t proof_of(const struct hello *hello, const uint64_t secret[2])
{
	uint64_t words[offsetof(struct hello, proof) / 8];
	memcpy(words, hello, sizeof words);
	return siphash(secret, words, sizeof words / 8);
}

struct hello hello_of(const struct comm *comm, const uint64_t secret[2], uint64_t nonce)
{
	struct hello hello = {.magic = MAGIC, .eager_max = (uint32_t)comm->eager_max};
	hello.answers = !comm->sends;
	hello.addr = (uintptr_t)comm->board;
	hello.key = gdrfab_mr_key(comm->board_region);
	hello.nonce = nonce;
	hello.proof = proof_of(&hello, secret);
	return hello;
}

/* The proofs are compared as single 64-bit words, so the time does not depend on the position of a difference. */
bool hello_is_proven(const struct hello *hello, const uint64_t secret[2], bool answers)
{
	return hello->answers == answers && hello->proof == proof_of(hello, secret);
}

bool hello_read(struct hello *hello, const void *data, size_t size)
{
	if (size < sizeof *hello)
		return false;
	memcpy(hello, data, sizeof *hello);
	return hello->magic == MAGIC;
}

void comm_join(struct comm *comm, const struct hello *hello)
{
	comm->peer_addr = hello->addr;
	comm->peer_key = hello->key;
	comm->peer_eager_room = room_of(hello->eager_max);
	if (hello->eager_max < comm->eager_max)
		comm->eager_max = hello->eager_max;
	comm->early_limit = SIZE_MAX;
	if (comm->device->ways[comm->way]->kind != KIND_TCP)
		return;
	/* NCCL at the other side may not call for minutes, and the kernel there buffers a limited number of bytes
	 * meanwhile. */
	comm->early_limit = TCP_EARLY;
	if (comm->eager_max > TCP_EARLY)
		comm->eager_max = TCP_EARLY;
}

int event_of(struct comm *comm, void *data, size_t *size, char *words, size_t words_size)
{
	struct {
		gdrfab_eq_cm_entry entry;
		unsigned char data[GDRFAB_CM_DATA_MAX];
	} event;
	uint32_t kind;
	ssize_t got = gdrfab_eq_read(comm->eq, &kind, &event, sizeof event, 0);
	if (got == -EAGAIN)
		return 0;
	if (got == -GDRFAB_EAVAIL) {
		char text[256], own[GDRFAB_CM_DATA_MAX] = "";
		gdrfab_eq_err_entry error = {.struct_size = sizeof error, .err_data = own, .err_data_size = sizeof own - 1};
		gdrfab_eq_readerr(comm->eq, &error, 0);
		if (error.data == GDRFAB_NOTIFY) {
			INFO("the connection goes on: %s", own);
			return 0;
		}
		/* The library's own words, unless the peer rejected the request: then the data is the peer's, which
		 * may be any program. */
		const char *said = *own && error.prov_errno != GDRFAB_PROV_REJECTED ? own : NULL;
		const char *why = gdrfab_eq_strerror(comm->eq, error.prov_errno, said, text, sizeof text);
		snprintf(words, words_size, "%s", said || error.prov_errno ? why : gdrfab_strerror(error.err));
		return error.err ? -error.err : -EIO;
	}
	if (got < 0) {
		snprintf(words, words_size, "%s", gdrfab_last_error());
		return (int)got;
	}
	if (kind == GDRFAB_NOTIFY && (size_t)got > sizeof event.entry)
		INFO("the connection goes on: %.*s", (int)((size_t)got - sizeof event.entry), (const char *)event.data);
	if (data && (size_t)got > sizeof event.entry) {
		*size = (size_t)got - sizeof event.entry;
		memcpy(data, event.data, *size);
	} else if (size) {
		*size = 0;
	}
	return (int)kind;
}

bool draw(void *to, size_t size)
{
	return getrandom(to, size, 0) == (ssize_t)size;
}
