/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Children that make one attempt each: see attempt.h. */
#include "attempt.h"

#include <sys/resource.h>
#include <sys/wait.h>

void attempt_open(struct attempt *a)
{
	memset(a, 0, sizeof *a);
	a->output = tmpfile();
	CHECK(a->output);
}

/* Reads and clears the file. Children share its offset, which goes back to the start for the next child. */
static size_t take_output(struct attempt *a)
{
	fseek(a->output, 0, SEEK_SET);
	size_t used = fread(a->words, 1, sizeof a->words - 1, a->output);
	a->words[used] = 0;
	for (char *c = a->words; *c; c++)
		if (*c == '\n')
			*c = c[1] ? '|' : 0;
	fseek(a->output, 0, SEEK_SET);
	CHECK_EQ(ftruncate(fileno(a->output), 0), 0);
	return strlen(a->words);
}

bool attempt_run(struct attempt *a, void (*body)(const void *arg), const void *arg)
{
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		struct rlimit no_core = {0, 0};
		setrlimit(RLIMIT_CORE, &no_core);
		dup2(fileno(a->output), 1), dup2(fileno(a->output), 2);
		body(arg);
		_exit(0);
	}
	CHECK_EQ(waitpid(child, &a->status, 0), child);
	size_t used = take_output(a);
	if (WIFSIGNALED(a->status))
		snprintf(a->words + used, sizeof a->words - used, "%ssignal %d", used ? "; " : "", WTERMSIG(a->status));
	else if (WEXITSTATUS(a->status) && !used)
		snprintf(a->words, sizeof a->words, "exit status %d", WEXITSTATUS(a->status));
	return a->status == 0 && !*a->words;
}

bool attempt_exited(const struct attempt *a, int status)
{
	return WIFEXITED(a->status) && WEXITSTATUS(a->status) == status;
}

void attempt_close(struct attempt *a)
{
	fclose(a->output);
}
