/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The expected result of each atomic operation on each datatype, computed by the C language. */
#ifndef ATOMIC_MODEL_H
#define ATOMIC_MODEL_H

#include <gdrfab.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static const size_t sizes[] = {1, 1, 2, 2, 4, 4, 8, 8, 4, 8};
static bool compares(uint32_t op) { return op >= GDRFAB_CSWAP; }

#define MODEL_OF(name, type, BITS)                                                                                     \
	static void name(uint32_t op, void *at, const void *operand, const void *comparand)                            \
	{                                                                                                              \
		type t, b, c;                                                                                          \
		memcpy(&t, at, sizeof t), memcpy(&b, operand, sizeof b), memcpy(&c, comparand, sizeof c);              \
		switch (op) {                                                                                          \
		case GDRFAB_MIN: t = b < t ? b : t; break;                                                             \
		case GDRFAB_MAX: t = b > t ? b : t; break;                                                             \
		case GDRFAB_SUM: t = (type)(t + b); break;                                                             \
		case GDRFAB_PROD: t = (type)(t * b); break;                                                            \
		case GDRFAB_LOR: t = (type)(t || b); break;                                                            \
		case GDRFAB_LAND: t = (type)(t && b); break;                                                           \
		case GDRFAB_LXOR: t = (type)(!t != !b); break;                                                         \
		case GDRFAB_ATOMIC_READ: break;                                                                        \
		case GDRFAB_ATOMIC_WRITE: t = b; break;                                                                \
		case GDRFAB_CSWAP: t = c == t ? b : t; break;                                                          \
		case GDRFAB_CSWAP_NE: t = c != t ? b : t; break;                                                       \
		case GDRFAB_CSWAP_LE: t = c <= t ? b : t; break;                                                       \
		case GDRFAB_CSWAP_LT: t = c < t ? b : t; break;                                                        \
		case GDRFAB_CSWAP_GE: t = c >= t ? b : t; break;                                                       \
		case GDRFAB_CSWAP_GT: t = c > t ? b : t; break;                                                        \
		BITS(type)                                                                                             \
		}                                                                                                      \
		memcpy(at, &t, sizeof t);                                                                              \
	}
#define BITWISE(type)                                                                                                  \
	case GDRFAB_BOR: t = (type)(t | b); break;                                                                     \
	case GDRFAB_BAND: t = (type)(t & b); break;                                                                    \
	case GDRFAB_BXOR: t = (type)(t ^ b); break;                                                                    \
	case GDRFAB_MSWAP: t = (type)((b & c) | (t & ~c)); break;
#define NO_BITS(type)

MODEL_OF(model_i8, int8_t, BITWISE)
MODEL_OF(model_u8, uint8_t, BITWISE)
MODEL_OF(model_i16, int16_t, BITWISE)
MODEL_OF(model_u16, uint16_t, BITWISE)
MODEL_OF(model_i32, int32_t, BITWISE)
MODEL_OF(model_u32, uint32_t, BITWISE)
MODEL_OF(model_i64, int64_t, BITWISE)
MODEL_OF(model_u64, uint64_t, BITWISE)
MODEL_OF(model_float, float, NO_BITS)
MODEL_OF(model_double, double, NO_BITS)

static void (*const models[])(uint32_t, void *, const void *, const void *) = {
	model_i8, model_u8, model_i16, model_u16, model_i32, model_u32, model_i64, model_u64, model_float, model_double,
};

/* Small numbers, so that no signed sum or product overflows; some are 0, negative and equal. */
static void number(uint32_t type, void *to, int seed)
{
	static const int some[] = {0, 1, 3, -2, 7, 5, -5, 2};
	int value = some[(unsigned)seed % 8];
	float f = (float)value + 0.5F * (float)(value != 0);
	double d = (double)f;
	int64_t i = value;
	if (type == GDRFAB_FLOAT)
		memcpy(to, &f, 4);
	else if (type == GDRFAB_DOUBLE)
		memcpy(to, &d, 8);
	else
		memcpy(to, &i, sizes[type]);
}

static bool is_defined(uint32_t op, uint32_t type)
{
	bool bits = op == GDRFAB_BOR || op == GDRFAB_BAND || op == GDRFAB_BXOR || op == GDRFAB_MSWAP;
	return !(bits && type >= GDRFAB_FLOAT);
}

/* One operation on a few elements: the target before and after it, its operands, and whether it is posted as the call that
 * fetches nothing. */
enum { ELEMENTS = 3 };
struct trial {
	unsigned char before[ELEMENTS * 8], operand[ELEMENTS * 8], compare[ELEMENTS * 8], after[ELEMENTS * 8];
	size_t len;
	bool plain;
};

static struct trial trial_of(uint32_t type, uint32_t op, int seed)
{
	size_t size = sizes[type];
	struct trial t = {.len = ELEMENTS * size, .plain = !compares(op) && op != GDRFAB_ATOMIC_READ && seed % 2};
	for (size_t i = 0; i < ELEMENTS; i++) {
		number(type, t.before + i * size, seed + (int)i);
		number(type, t.operand + i * size, seed / 8 + (int)(i * 3));
		number(type, t.compare + i * size, i == 1 ? seed + 1 : seed + 2);
	}
	memcpy(t.after, t.before, t.len);
	for (size_t i = 0; i < ELEMENTS; i++)
		models[type](op, t.after + i * size, t.operand + i * size, t.compare + i * size);
	return t;
}

#endif
