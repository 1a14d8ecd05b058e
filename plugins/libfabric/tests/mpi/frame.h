/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The frame of the MPI programs. They prove that an unmodified MPI over the provider does what the standard
 * promises, so they call MPI alone, and every value that arrives is compared with one computed here. All ranks run a
 * claim together; a claim that hangs ends the job with its name.
 */
#ifndef MPI_FRAME_H
#define MPI_FRAME_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Claims that need threads run in a job of their own: Open MPI 4.1 has no windows with threads. */
enum claim_needs { NEEDS_NOTHING, NEEDS_THREADS };

void claim_add(const char *name, void (*run)(void), enum claim_needs needs);

#define CLAIM_OF(needs, name)                                                                                          \
	static void claim_##name(void);                                                                                \
	__attribute__((constructor)) static void add_##name(void)                                                      \
	{                                                                                                              \
		claim_add(#name, claim_##name, needs);                                                                 \
	}                                                                                                              \
	static void claim_##name(void)
#define CLAIM(name) CLAIM_OF(NEEDS_NOTHING, name)

/* This process and its job. `world` is a duplicate of MPI_COMM_WORLD that the frame itself does not use. */
extern int rank, ranks;
extern MPI_Comm world;

/* The number to use: `full`, or `fast` with TEST_FAST=1. */
int count_of(int full, int fast);

/* Reports a failure of this rank, from any thread. The claim continues: if one rank left, the others would wait. */
__attribute__((format(printf, 3, 4))) void wrong(const char *file, int line, const char *format, ...);
/* Collective: the claim counts as skipped, if nothing fails. */
void skip(const char *reason);

#define CHECK(condition, ...)                                                                                          \
	do {                                                                                                           \
		if (!(condition))                                                                                      \
			wrong(__FILE__, __LINE__, __VA_ARGS__);                                                        \
	} while (0)

/* Bytes that tell their writer, purpose and offset, so that a message at the wrong place is noticed. */
void fill(void *bytes, size_t n, uint32_t who, uint32_t what);
/* Reports the first difference, and returns whether all bytes are as fill() left them. */
bool same(const void *bytes, size_t n, uint32_t who, uint32_t what, const char *file, int line);
#define SAME(bytes, n, who, what) same(bytes, n, who, what, __FILE__, __LINE__)

/* Zeroed memory; ends the job if there is none. */
void *room(size_t n);

/* Message sizes around the limits of the layers below: inject, ofi_rxm's buffers (16 KiB), segments (128 KiB). */
extern const int sizes[];
extern const int size_count;
/* The number of sizes to use: with TEST_FAST without the largest. */
int sizes_used(void);

/* Checks the status of a receive: source, tag, and number of bytes. */
void check_status(MPI_Status *status, int source, int tag, int bytes, const char *file, int line);
#define STATUS(status, source, tag, bytes) check_status(status, source, tag, bytes, __FILE__, __LINE__)

#endif
