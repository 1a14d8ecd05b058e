/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Checks for programs that call functions wrongly: all wrong answers are listed, and the claim fails at its end. */
#ifndef MISUSE_H
#define MISUSE_H

#include "fab.h"

#include <strings.h>

/* True if the text contains the word, in upper or lower case. */
static inline bool names(const char *text, const char *word)
{
	size_t len = strlen(word);
	for (; *text; text++)
		if (strncasecmp(text, word, len) == 0)
			return true;
	return false;
}

static inline void misuse(const char *file, int line, const char *call, long long got, int one, int other,
			  const char *word)
{
	if (got != one && got != other)
		test_wrong(file, line, "%s is %s, not %s%s", call, test_number(got), test_number(one),
			   test_words(got));
	else if (word && !names(gdrfab_last_error(), word))
		test_wrong(file, line, "%s: the words do not name \"%s\": \"%s\"", call, word, gdrfab_last_error());
}

/* The result must be this errno, and the error text must contain `word`, the argument or thing that is wrong. */
#define MISUSE(call, err, word)                                                                                        \
	do {                                                                                                           \
		test_at(__FILE__, __LINE__);                                                                           \
		long long got_ = (long long)(call);                                                                    \
		misuse(__FILE__, __LINE__, #call, got_, err, err, word);                                               \
	} while (0)
#define MISUSE_EITHER(call, one, other, word)                                                                          \
	do {                                                                                                           \
		test_at(__FILE__, __LINE__);                                                                           \
		long long got_ = (long long)(call);                                                                    \
		misuse(__FILE__, __LINE__, #call, got_, one, other, word);                                             \
	} while (0)
#define BAD_FLAGS(call) MISUSE_EITHER(call, -EINVAL, -GDRFAB_EBADFLAGS, "flags")

/* A value to prefill output pointers with, so that a failing call which writes one is caught. */
#define MARKER(type) ((type *)(void *)(uintptr_t)0xabcd1230)

#endif
