/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* For the programs about misuse: each call is tried, and all that answer wrongly are listed at the end. */
#ifndef MISUSE_H
#define MISUSE_H

#include "fab.h"

#include <strings.h>

/* In words that follow "argument: ..." or name it in some other way. */
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

/* The result is this errno, and the words name the argument (or whatever is wrong). */
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

/* A pointer that outputs are prefilled with: whoever writes it on failure is caught. */
#define MARKER(type) ((type *)(void *)(uintptr_t)0xabcd1230)

#endif
