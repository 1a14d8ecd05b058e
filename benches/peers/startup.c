/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* From exec to the first completed RMA write within one process, step by step.
 *   startup_<library> [argument] [reps]      the parent executes itself anew each time */
#include "bench.h"
#include "startup.h"
#include <sys/wait.h>

#define MAX_REPS 128
static const char *const step[] = { "exec_to_main", "getinfo", "fabric+domain", "queues+endpoint", "connect",
	"register+first_put", "close" };

static void child(const char *arg, double t0)
{
	double t[STEPS], v[STEPS];

	t[MAIN] = now_ns();
	startup_child(arg, t);
	v[MAIN] = t[MAIN] - t0;
	for (int k = 1; k < STEPS; k++)
		v[k] = t[k] - t[k - 1];
	if (write(3, v, sizeof v) != sizeof v)
		DIE("pipe");
	exit(0);
}

static void once(const char *self, const char *arg, double v[STEPS])
{
	int p[2], status;
	char now[64];
	ssize_t n;

	CHECK(pipe(p));
	if (!fork()) {
		CHECK(dup2(p[1], 3));
		snprintf(now, sizeof now, "%.0f", now_ns());
		execl("/proc/self/exe", self, "-child", arg, now, (char *)NULL);
		_exit(1);
	}
	close(p[1]);
	n = read(p[0], v, STEPS * sizeof *v);
	close(p[0]);
	if (wait(&status) < 0 || status || n != (ssize_t)(STEPS * sizeof *v))
		DIE("the measured process failed");
}

int main(int argc, char **argv)
{
	const char *arg = argc > 1 ? argv[1] : "shm";
	int reps = argc > 2 ? atoi(argv[2]) : 21;
	static double s[STEPS][MAX_REPS];
	double total[MAX_REPS], own[MAX_REPS], v[STEPS];
	char tag[96];

	if (argc == 4 && !strcmp(argv[1], "-child"))
		child(argv[2], atof(argv[3]));
	if (reps < 1 || reps > MAX_REPS)
		DIE("1 to %d repetitions", MAX_REPS);
	for (int r = -1; r < reps; r++) {	/* one to warm the page cache */
		once(argv[0], arg, v);
		if (r < 0)
			continue;
		total[r] = 0;
		for (int k = 0; k < STEPS; k++) {
			s[k][r] = v[k];
			if (k < CLOSE)
				total[r] += v[k];
		}
		own[r] = total[r] - v[MAIN];
	}
	for (int k = 0; k < STEPS; k++) {
		snprintf(tag, sizeof tag, "%s/%s", startup_name, step[k]);
		report("startup", tag, 0, "ns", s[k], reps);
	}
	snprintf(tag, sizeof tag, "%s/exec_to_first_put", startup_name);
	report("startup", tag, 0, "ns", total, reps);
	snprintf(tag, sizeof tag, "%s/main_to_first_put", startup_name);
	report("startup", tag, 0, "ns", own, reps);
	return 0;
}
