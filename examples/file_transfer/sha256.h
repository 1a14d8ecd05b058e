/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* SHA-256 (FIPS 180-4), so that the example needs no library but gdrfab. Both sides name a file by its hash. */
#ifndef FILE_TRANSFER_SHA256_H
#define FILE_TRANSFER_SHA256_H

#include <stddef.h>
#include <stdint.h>

struct sha256 {
	uint32_t state[8];
	uint64_t len; /* bytes so far */
	unsigned char block[64];
};

void sha256_begin(struct sha256 *s);
void sha256_add(struct sha256 *s, const void *bytes, size_t len);
void sha256_end(struct sha256 *s, unsigned char hash[32]);

#endif
