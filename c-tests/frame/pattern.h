/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Test data: bytes whose value depends on position and seed, and a check that reports the first byte that differs. */
#ifndef PATTERN_H
#define PATTERN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

void fill(void *to, size_t len, size_t position, uint32_t seed);
void check_filled(const char *file, int line, const char *what, const void *at, size_t len, size_t position,
		  uint32_t seed);
#define CHECK_FILLED(what, at, len, position, seed) check_filled(__FILE__, __LINE__, what, at, len, position, seed)

#ifdef __cplusplus
}
#endif
#endif
