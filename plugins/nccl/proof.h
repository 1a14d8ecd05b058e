/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * SipHash-2-4 (Aumasson and Bernstein, 2012): a keyed hash. A connecting rank proves with it that it knows the
 * listener's secret; the proof does not reveal the secret.
 */
#ifndef GDRFAB_NCCL_PROOF_H
#define GDRFAB_NCCL_PROOF_H

#include <stddef.h>
#include <stdint.h>

static inline uint64_t siphash_turn(uint64_t x, int bits)
{
	return x << bits | x >> (64 - bits);
}

static inline void siphash_rounds(uint64_t v[4], int count)
{
	for (; count > 0; count--) {
		v[0] += v[1], v[1] = siphash_turn(v[1], 13) ^ v[0], v[0] = siphash_turn(v[0], 32);
		v[2] += v[3], v[3] = siphash_turn(v[3], 16) ^ v[2];
		v[0] += v[3], v[3] = siphash_turn(v[3], 21) ^ v[0];
		v[2] += v[1], v[1] = siphash_turn(v[1], 17) ^ v[2], v[2] = siphash_turn(v[2], 32);
	}
}

/* Hashes a message of whole 64-bit words. Both sides have the same byte order. */
static inline uint64_t siphash(const uint64_t key[2], const uint64_t *words, size_t count)
{
	uint64_t v[4] = {key[0] ^ 0x736f6d6570736575, key[1] ^ 0x646f72616e646f6d, key[0] ^ 0x6c7967656e657261,
			 key[1] ^ 0x7465646279746573};
	for (size_t i = 0; i <= count; i++) {
		/* The word after the message is its length in bytes. */
		uint64_t word = i < count ? words[i] : (uint64_t)count * 8 << 56;
		v[3] ^= word;
		siphash_rounds(v, 2);
		v[0] ^= word;
	}
	v[2] ^= 0xff;
	siphash_rounds(v, 4);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}

#endif
