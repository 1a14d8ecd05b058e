/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The frame of the conformance programs. A program is a list of named claims. Each claim runs in a process of its own
 * with a time limit, so that a claim that hangs or crashes does not end the others. A failure prints its place, the
 * expected and the actual value, and the library's text of the error (gdrfab_last_error()). This header knows nothing of
 * the library; the helpers that use the library are in fab.h.
 */
#ifndef CLAIM_H
#define CLAIM_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TEST_SKIPPED 77
#define TEST_UNUSED __attribute__((unused))

typedef void (*test_fn)(const void *arg);

/* Adds a claim. TEST and TEST_WITHIN add one before main() runs; TEST_TABLE is a function that adds claims from a table. */
void test_add(const char *name, test_fn fn, const void *arg, int seconds);

#define TEST_WITHIN(seconds, name)                                                                                     \
	static void test_##name(const void *arg);                                                                      \
	__attribute__((constructor)) static void test_add_##name(void)                                                 \
	{                                                                                                              \
		test_add(#name, test_##name, NULL, seconds);                                                           \
	}                                                                                                              \
	static void test_##name(TEST_UNUSED const void *arg)
#define TEST(name) TEST_WITHIN(20, name)

#define TEST_TABLE(name) __attribute__((constructor)) static void test_table_##name(void)

/* The role of a process in its claim. Every message of the process begins with it. */
enum test_side { TEST_REFEREE, TEST_SERVER, TEST_CLIENT, TEST_SIDES };

/* Forks a child of a claim. It dies with its parent, and its failures count for the claim. */
pid_t test_fork(enum test_side side);
/* Ends a child of test_fork that has done its part. */
__attribute__((noreturn)) void test_child_done(void);
/* Evaluates a child's exit status: the claim fails unless the child ended with 0. */
void test_child_ended(enum test_side side, int status);
/* From here on this process is expected to fail: its failures and skips do not count for the claim. */
void test_mute(void);
/* This process and its children try one part of the claim: if they skip it, only their exit statuses tell, and the claim goes on. */
void test_trial(void);
/* True once some process of this claim has failed or skipped it. */
bool test_decided(void);

__attribute__((noreturn, format(printf, 3, 4))) void test_fail(const char *file, int line, const char *format, ...);
__attribute__((noreturn, format(printf, 1, 2))) void test_skip(const char *format, ...);
/* A failure that lets the claim go on: it fails at its end, with all of them printed. */
__attribute__((format(printf, 3, 4))) void test_wrong(const char *file, int line, const char *format, ...);

/* Records the last line reached, for the report of a hang or a crash. */
void test_at(const char *file, int line);

/* Formats a number for a message, with the errno's name if it looks like an errno. Uses a few static buffers in turn. */
const char *test_number(long long value);
/* ": gdrfab_last_error() text" after a negative result, else "". */
const char *test_words(long long value);

#define CHECK(condition)                                                                                               \
	do {                                                                                                           \
		test_at(__FILE__, __LINE__);                                                                           \
		if (!(condition))                                                                                      \
			test_fail(__FILE__, __LINE__, "not so: %s", #condition);                                       \
	} while (0)

#define CHECK_EQ(got, want)                                                                                            \
	do {                                                                                                           \
		test_at(__FILE__, __LINE__);                                                                           \
		long long got_ = (long long)(got), want_ = (long long)(want);                                          \
		if (got_ != want_)                                                                                     \
			test_fail(__FILE__, __LINE__, "%s is %s, not %s%s", #got, test_number(got_),                   \
				  test_number(want_), test_words(got_));                                               \
	} while (0)

/* Accepts either of two results, where two errnos describe the same misuse equally well. */
#define CHECK_EITHER(got, one, other)                                                                                  \
	do {                                                                                                           \
		test_at(__FILE__, __LINE__);                                                                           \
		long long got_ = (long long)(got), one_ = (long long)(one), other_ = (long long)(other);               \
		if (got_ != one_ && got_ != other_)                                                                    \
			test_fail(__FILE__, __LINE__, "%s is %s, not %s or %s%s", #got, test_number(got_),             \
				  test_number(one_), test_number(other_), test_words(got_));                           \
	} while (0)

#define OK(call)                                                                                                       \
	do {                                                                                                           \
		test_at(__FILE__, __LINE__);                                                                           \
		long long got_ = (long long)(call);                                                                    \
		if (got_ != 0)                                                                                         \
			test_fail(__FILE__, __LINE__, "%s is %s%s", #call, test_number(got_), test_words(got_));       \
	} while (0)

/* A comparison whose failure lets the claim go on. */
#define WANT_EQ(got, want)                                                                                             \
	do {                                                                                                           \
		test_at(__FILE__, __LINE__);                                                                           \
		long long got_ = (long long)(got), want_ = (long long)(want);                                          \
		if (got_ != want_)                                                                                     \
			test_wrong(__FILE__, __LINE__, "%s is %s, not %s%s", #got, test_number(got_),                  \
				   test_number(want_), test_words(got_));                                              \
	} while (0)

/* Returns `fast` with TEST_FAST=1 (memory checkers are slow), else `full`. */
int test_count(int full, int fast);
/* True if a memory checker runs this process: claims that differ only in the vendor of the memory are the same to it. */
bool test_checked(void);
/* A time limit in ms, stretched by TEST_TIME_SCALE. */
int test_ms(int ms);
uint64_t test_now_ms(void);
void test_sleep_ms(int ms);
/* Formats a command and runs it in the shell, as system() does. */
int test_system(const char *command, ...) __attribute__((format(printf, 1, 2)));

/* Open file descriptors of this process. */
int test_count_fds(void);
/* Prints them. */
void test_list_fds(void);
/* True if the text contains the word, in upper or lower case. text may be NULL. */
bool test_says(const char *text, const char *word);

#define SAYS(text, word)                                                                                               \
	do {                                                                                                           \
		if (!test_says(text, word))                                                                            \
			test_fail(__FILE__, __LINE__, "the words are silent about %s: %s", word, text);                \
	} while (0)

/* The state of a process as /proc has it: R, S, T and so on; 'X' if there is no such process. A zombie (Z) counts as over:
 * the machine decides which process reaps it. */
char test_process_state(pid_t pid);
bool test_process_over(pid_t pid);
/* False, with errno, where the kernel, or a memory checker, has no pidfds. */
bool test_has_pidfds(void);

/* A small fast generator: the same seed gives the same run. */
uint64_t test_random(uint64_t *state);

#ifdef __cplusplus
}
#endif
#endif
