#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Side-by-side run of several back-ends of rmabench, interleaved A B C A B C ... so that all see the same noise.
Prints, per size, each back-end's median and best, and the ratio of medians to the first.

  compare.py [-m lat] [-n rounds] [-s size[,size...]] [-r reps] back-end [back-end...]
  back-end = [ENV=VAL ...] [-i] name[:options]        quote it:  "UCX_TLS=posix,self ucp"

Every run is a session of its own at autogroup nice -20, where that is permitted: plain nice does nothing against
other sessions while kernel.sched_autogroup_enabled=1."""
import collections
import getopt
import os
import signal
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.path.join(HERE, 'build')
TIMEOUT = 120

Result = collections.namedtuple('Result', 'case bytes unit median best')
Run = collections.namedtuple('Run', 'results notes error')


def boost():
    os.setsid()
    try:
        with open('/proc/self/autogroup', 'w') as f:
            f.write('-20')
        os.nice(-20)
    except OSError:
        pass    # not permitted: a noisier run, which the report's method line shows


def run(argv, env=None):
    """One program of build/, boosted. Its RES lines, its '#' lines on stderr, and why it failed or None."""
    env = {**os.environ, 'TP_VERBOSE': '1', **(env or {})}
    p = subprocess.Popen([os.path.join(BUILD, argv[0]), *argv[1:]], env=env, preexec_fn=boost, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        out, err = p.communicate(timeout=TIMEOUT)
        why = None if p.returncode == 0 else f'exit status {p.returncode}'
    except subprocess.TimeoutExpired:
        os.killpg(p.pid, signal.SIGKILL)
        out, err = p.communicate()
        why = f'no end after {TIMEOUT} s'
    notes = [line for line in err.splitlines() if line.startswith('#')]
    words = [line for line in err.splitlines() if line and not line.startswith('#')]
    results = []
    for line in out.splitlines():
        f = line.split(',')
        if f[0] == 'RES':
            results.append(Result(f[2], int(f[3]), f[4], float(f[5]), float(f[6])))
    # both sides often say the same
    return Run(results, notes, why and ': '.join([why, *dict.fromkeys(words[-2:])])[:400])


def rmabench(spec, mode, sizes=None, reps=11):
    """Command line and environment for a back-end as written above."""
    words = spec.split()
    env = dict(w.split('=', 1) for w in words[:-1] if '=' in w)
    flags = [w for w in words[:-1] if '=' not in w]
    argv = ['rmabench', '-t', words[-1], '-m', mode, '-r', str(reps), *flags]
    if sizes and any(sizes):
        argv += ['-s', ','.join(str(s) for s in sizes)]
    return argv, env


def main():
    opts, specs = getopt.getopt(sys.argv[1:], 'm:n:s:r:')
    opts = dict(opts)
    if not specs:
        sys.exit(__doc__)
    mode, rounds, reps = opts.get('-m', 'lat'), int(opts.get('-n', 5)), int(opts.get('-r', 11))
    sizes = opts['-s'].split(',') if '-s' in opts else None
    seen = collections.defaultdict(lambda: collections.defaultdict(list))
    for _ in range(rounds):
        for spec in specs:
            r = run(*rmabench(spec, mode, sizes, reps))
            if r.error:
                print(f'{spec}: {r.error}', file=sys.stderr)
            for x in r.results:
                if x.unit == 'ns':
                    seen[x.bytes][spec].append(x)
    print(f'# {mode}, ns, {rounds} rounds x {reps} repetitions: median (best) [ratio to first]')
    print('\t'.join(['bytes', *specs]))
    for n in sorted(seen):
        med = {s: statistics.median(x.median for x in v) for s, v in seen[n].items()}
        row = [str(n)]
        for s in specs:
            if s not in med:
                row.append('-')
                continue
            ratio = f' [{med[s] / med[specs[0]]:.2f}]' if specs[0] in med else ''
            row.append(f'{med[s]:.0f} ({min(x.best for x in seen[n][s]):.0f}){ratio}')
        print('\t'.join(row))


if __name__ == '__main__':
    main()
