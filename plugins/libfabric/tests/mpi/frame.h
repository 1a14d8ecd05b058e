/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The frame of the MPI programs. What they prove is that an unmodified MPI over the provider gives what the standard
 * promises, so they use MPI alone, and every value that arrives is compared with one that is computed here. All ranks
 * run a claim together; one that hangs ends the job with its name.
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

/* Who needs threads gets them only in a job of its own: Open MPI 4.1 has no windows then. */
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

/* TEST_FAST=1 asks for the second of two counts. */
int count_of(int full, int fast);

/* A failure of this rank. The claim goes on: a rank that left it would only make the others wait. From any thread. */
__attribute__((format(printf, 3, 4))) void wrong(const char *file, int line, const char *format, ...);
/* Collective: the claim counts as skipped, if nothing fails. */
void skip(const char *reason);

#define CHECK(condition, ...)                                                                                          \
	do {                                                                                                           \
		if (!(condition))                                                                                      \
			wrong(__FILE__, __LINE__, __VA_ARGS__);                                                        \
	} while (0)

/* Bytes that tell who wrote them, to which purpose, and where: a message in the wrong place is seen as one. */
void fill(void *bytes, size_t n, uint32_t who, uint32_t what);
/* Says what differs first, and returns whether all is as fill() left it. */
bool same(const void *bytes, size_t n, uint32_t who, uint32_t what, const char *file, int line);
#define SAME(bytes, n, who, what) same(bytes, n, who, what, __FILE__, __LINE__)

/* Zeroed memory, or the end of the job. */
void *room(size_t n);

/* Sizes of messages around the borders of what lies below: inject, ofi_rxm's buffers (16 KiB), segments (128 KiB). */
extern const int sizes[];
extern const int size_count;
/* How many of them to use: without the largest with TEST_FAST. */
int sizes_used(void);

/* Status of a receive: from whom, which tag, how many bytes. */
void check_status(MPI_Status *status, int source, int tag, int bytes, const char *file, int line);
#define STATUS(status, source, tag, bytes) check_status(status, source, tag, bytes, __FILE__, __LINE__)

#endif
