/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Test data: see pattern.h. */
#include "pattern.h"
#include "claim.h"

/* Works on eight bytes at once: emulated and instrumented CPUs spend most of their time here. */
static uint64_t pattern_word(size_t index, uint32_t seed)
{
	uint64_t x = (index + seed * 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
	return x ^ x >> 29;
}

static unsigned char pattern(size_t position, uint32_t seed)
{
	unsigned char bytes[8];
	uint64_t word = pattern_word(position / 8, seed);
	memcpy(bytes, &word, 8);
	return bytes[position % 8];
}

void fill(void *to, size_t len, size_t position, uint32_t seed)
{
	unsigned char *bytes = (unsigned char *)to;
	size_t i = 0;
	for (; i < len && (position + i) % 8; i++)
		bytes[i] = pattern(position + i, seed);
	for (; len - i >= 8; i += 8) {
		uint64_t word = pattern_word((position + i) / 8, seed);
		memcpy(bytes + i, &word, 8);
	}
	for (; i < len; i++)
		bytes[i] = pattern(position + i, seed);
}

void check_filled(const char *file, int line, const char *what, const void *at, size_t len, size_t position,
		  uint32_t seed)
{
	const unsigned char *bytes = (const unsigned char *)at;
	size_t bad = 0, first = 0;
	test_at(file, line);
	for (size_t i = 0; i < len;) {
		if ((position + i) % 8 == 0 && len - i >= 8) {
			uint64_t want = pattern_word((position + i) / 8, seed), got;
			memcpy(&got, bytes + i, 8);
			if (got == want) {
				i += 8;
				continue;
			}
		}
		if (bytes[i] != pattern(position + i, seed) && bad++ == 0)
			first = i;
		i++;
	}
	if (bad)
		test_fail(file, line, "%s: %zu of %zu bytes differ, the first at %zu: 0x%02x, not 0x%02x (seed %u)",
			  what, bad, len, first, bytes[first], pattern(position + first, seed), seed);
}
