# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs many jobs of one process per GPU, importing torch once.

Importing torch takes longer than most measurements do, and torchrun imports it three times for a job of two. This parent
imports it, never touches a GPU, and forks the ranks of each job with the variables that torchrun would set.

Each line of --jobs is a job: name, settings NAME=VALUE separated by blanks, program and its arguments; tabs in between.
The log of a job is <--logs>/<name>.log.
"""

import argparse
import contextlib
import ctypes
import os
import random
import runpy
import signal
import socket
import sys
import time
import traceback

import torch
import torch.distributed  # noqa: F401  (for the children)


def free_port():
    """One that the kernel gives nobody who asks for any: the ranks of the last job still hold some of those."""
    while True:
        port = random.randrange(20000, 28000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port


def child(rank, ranks, port, settings, command, log):
    """Becomes one rank. Does not return."""
    code = 1
    try:
        # If the parent is killed for taking too long, the ranks end as well. 1 is PR_SET_PDEATHSIG.
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
        fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)
        os.environ.update(settings)
        os.environ.update(
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), LOCAL_RANK=str(rank),
            WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks),
        )  # fmt: skip
        sys.argv = command
        sys.path.insert(0, os.path.dirname(os.path.abspath(command[0])))
        runpy.run_path(command[0], run_name="__main__")
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        # The parent's own clean-up must not run here, but NCCL's buffered output of C's stdout must be written.
        sys.stdout.flush()
        sys.stderr.flush()
        ctypes.CDLL(None).fflush(None)
        os._exit(code)


def run(ranks, settings, command, log, limit, grace):
    """Runs one job. Returns what went wrong, or None."""
    port = free_port()
    alive = {}
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            child(rank, ranks, port, settings, command, log)
        alive[pid] = rank
    began, died, wrong = time.monotonic(), None, []
    deadline = began + limit
    while alive:
        pid, status = os.waitpid(-1, os.WNOHANG)
        now = time.monotonic()
        if pid in alive:
            rank = alive.pop(pid)
            if status != 0:
                # Report the time that each of the other ranks took to notice.
                after = f"at {now - began:.1f} s" if died is None else f"{now - died:.1f} s later"
                wrong.append(f"rank {rank} ended with {os.waitstatus_to_exitcode(status)} {after}")
                if died is None:
                    died, deadline = now, min(deadline, now + grace)
        elif now > deadline:
            for each, rank in alive.items():
                os.kill(each, signal.SIGKILL)
                os.waitpid(each, 0)
                wrong.append(f"rank {rank} had not ended after {now - (died or began):.0f} s")
            alive = {}
        else:
            time.sleep(0.02)
    return ", ".join(wrong) or None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", required=True)
    parser.add_argument("--logs", required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--job-limit", type=float, default=90, help="seconds that a job may take")
    parser.add_argument("--grace", type=float, default=10, help="seconds that the others have once a rank has died")
    parser.add_argument("--budget", type=float, default=540, help="no job is begun after so many seconds")
    args = parser.parse_args()
    began, failed = time.monotonic(), 0
    torch.set_num_threads(1)  # Threads would not survive the fork.
    with open(args.jobs) as jobs:
        lines = [line.rstrip("\n").split("\t") for line in jobs if line.strip()]
    for at, (name, settings, command) in enumerate(lines):
        since = time.monotonic()
        if since - began > args.budget:
            print(f"no time left for {name} and what follows: {len(lines) - at} of {len(lines)} jobs were not run")
            failed += 1
            break
        pairs = dict(pair.split("=", 1) for pair in settings.split())
        log = os.path.join(args.logs, name.replace("/", "_") + ".log")
        wrong = run(args.ranks, pairs, command.split(), log, args.job_limit, args.grace)
        failed += wrong is not None
        print(f"{name}: {wrong or 'ok'}, {time.monotonic() - since:.1f} s", flush=True)
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
