/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* process_vm_writev / readv against a live peer: time per call and GB/s, on 4 KiB and 2 MiB pages. */
#include "bench.h"
#include <signal.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define REPS 41
static char *local, *remote;

static double calls(pid_t pid, int rd, size_t n, long it)
{
	struct iovec l = { local, n }, r = { remote, n };
	double t = now_ns();

	for (long j = 0; j < it; j++) {
		ssize_t got = rd ? process_vm_readv(pid, &l, 1, &r, 1, 0) : process_vm_writev(pid, &l, 1, &r, 1, 0);

		if (got != (ssize_t)n)
			DIE("process_vm: %zd (%s)", got, strerror(errno));
	}
	return (now_ns() - t) / (double)it;
}

int main(void)
{
	size_t max = 64u << 20;
	double v[REPS], b[REPS];
	char tag[64];

	for (int huge = 0; huge < 2; huge++) {
		pid_t pid;

		remote = mem_anon(max, huge);	/* same address in the child */
		pid = fork();
		if (!pid) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			pin(1);
			memset(remote, 2, max);
			pause();
			_exit(0);
		}
		pin(0);
		local = mem_anon(max, huge);
		usleep(200000);
		for (size_t i = 0; i < NSIZES; i++)
			for (int rd = 0; rd < 2; rd++) {
				size_t n = bench_sizes[i];

				for (int k = 0; k < REPS; k++) {
					v[k] = calls(pid, rd, n, iters_for(n, 64e6, 2, 5000));
					b[k] = (double)n / v[k];
				}
				snprintf(tag, sizeof tag, "%s/%s", rd ? "readv" : "writev", huge ? "2M" : "4K");
				report("cma", tag, n, "ns", v, REPS);
				report("cma", tag, n, "GB/s", b, REPS);
			}
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		munmap(local, max);
		munmap(remote, max);
	}
	return 0;
}
