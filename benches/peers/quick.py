#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The main rows of gdrfab in about three minutes, and with --base those of another installed version beside them, in
turns A B, B A, ... so that both see the same noise.

  PREFIX=<installed> quick.py [--base PREFIX] [--rounds N] [--reps N] [--only REGEX] [--no-count] [--json FILE]

A cell is the median over the rounds of each run's median. A ratio is the median of the rounds' ratios of times, above 1:
slower than the base; in parentheses the least and the greatest of them. "slower" stands only where every round says so,
and by more than 3 %. Both versions' benchmark programs are built from here against their own headers."""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time

import compare
from compare import HERE, rmabench, run

K, M = 1 << 10, 1 << 20
SHUT = 1.03
COUNTED = ('send', 'inject', "sender's entry", 'arrival and entry', 'receive', 'look in vain')

# name, back-end as compare.py writes it, rmabench's mode or mr, sizes, whether a rate is shown
ROWS = [
    ('shm put, half round trip', 'gdrfab', 'lat', [8], False),
    ('shm put until complete', 'gdrfab:dc', 'dclat', [8], False),
    ('shm put in a window', 'gdrfab', 'bw', [8], False),
    ('shm get', 'gdrfab', 'getlat', [8], False),
    ('shm send, half round trip', 'gdrfab', 'sendlat', [8, 4 * K], False),
    ('shm send, half round trip, with locks', 'gdrfab:safe', 'sendlat', [8], False),
    ('shm send in a window', 'gdrfab', 'sendrate', [8], False),
    ('shm tagged, half round trip', 'gdrfab:rdm', 'sendlat', [8, 4 * K], False),
    ('shm tagged in a window', 'gdrfab:rdm', 'sendrate', [8], False),
    ('shm put, target idle', '-i gdrfab', 'bw', [64 * K, M], True),
    ('shm get, target idle', '-i gdrfab', 'getbw', [64 * K, M], True),
    ('shm put to malloc memory, target idle', '-i gdrfab:heap,srcheap', 'bw', [64 * K, 64 * M], True),
    ('shm send, both asleep', 'GDRFAB_SPIN_US=0 gdrfab', 'waitlat', [8], False),
    ('tcp put, half round trip', 'gdrfab:tcp', 'lat', [8], False),
    ('tcp send, half round trip', 'gdrfab:tcp', 'sendlat', [8], False),
    ('tcp put', 'gdrfab:tcp', 'bw', [64 * K, M], True),
    ('tcp send, both in poll', 'gdrfab:tcp,fd', 'waitlat', [8], False),
    ('register and close, mem_alloc', 'gdrfab', 'mr', [4 * K], False),
    ('register and close, malloc', 'gdrfab:heap', 'mr', [4 * K], False),
]


class Version:
    """An installed gdrfab, and the benchmark programs that were built against it."""

    def __init__(self, name, prefix):
        self.name, self.prefix = name, os.path.abspath(prefix)
        self.build = os.path.join(HERE, 'build', 'quick', name)
        env = {**os.environ, 'PKG_CONFIG_PATH': '', 'LD_LIBRARY_PATH': ''}
        made = subprocess.run(['make', '-s', '-C', HERE, f'B={self.build}', f'PREFIX={self.prefix}', 'OFI=', 'UCP=',
                               f'{self.build}/rmabench', f'{self.build}/mr_cost'], env=env)
        if made.returncode:
            sys.exit(f'{name}: the benchmark programs cannot be built against {self.prefix}')

    def run(self, spec, mode, sizes, reps):
        """({size: ns}, path), or dies."""
        if mode == 'mr':
            argv, env = ['mr_cost', '-t', spec, '-n', '0', '-s', ','.join(map(str, sizes)), '-r', str(reps)], {}
        else:
            argv, env = rmabench(spec, mode, sizes, reps)
        compare.BUILD = self.build
        r = run(argv, {**env, 'LD_LIBRARY_PATH': os.path.join(self.prefix, 'lib')})
        if r.error:
            sys.exit(f'{self.name}: {" ".join(argv)}: {r.error}')
        got = {x.bytes: x.median for x in r.results if x.unit == 'ns' and (mode != 'mr' or '/reg+close/' in x.case)}
        path = next((n.split('=', 1)[1] for n in r.notes if n.startswith('#gdrfab path=')), '-')
        return got, path

    def count(self):
        """{(threading, step): instructions}; none without valgrind."""
        env = {**os.environ, 'PREFIX': self.prefix, 'BUILD': self.build, 'DEPTHS': '1'}
        env['LD_LIBRARY_PATH'] = os.path.join(self.prefix, 'lib')
        p = subprocess.run([os.path.join(HERE, '..', 'shm', 'count.sh'), '8'], env=env, text=True, stdout=subprocess.PIPE)
        if p.returncode:
            print(p.stdout.strip() or 'count.sh failed')
            return {}
        lines = [[c.strip() for c in line.split('|')[1:-1]] for line in p.stdout.splitlines()[2:]]
        return {(line[1], step): float(n) for line in lines for step, n in zip(COUNTED, line[3:])}


def size_text(n):
    return f'{n} B' if n < K else f'{n // K} KiB' if n < M else f'{n // M} MiB'


def depth(mode, size):
    """Operations in flight: rmabench's windows."""
    return 1 if mode not in ('bw', 'getbw', 'sendrate') else 256 if size <= 4 * K else 16 if size <= M else 4


def value(ns, size, rate):
    return f'{size / ns:.2f} GB/s' if rate else f'{ns:.1f} ns' if ns < 1e4 else f'{ns / 1e3:.1f} us'


def ratio_text(pairs):
    ratios = [new / old for new, old in pairs]
    mark = '  slower' if min(ratios) > SHUT else '  faster' if max(ratios) < 1 / SHUT else ''
    return f'{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}){mark}'


def show(head, table):
    width = [max(len(line[i]) for line in [head, *table]) for i in range(len(head))]
    for line in [head, *table]:
        print('  '.join(text.ljust(w) if i == 0 else text.rjust(w) if i < len(head) - 1 else text
                        for i, (text, w) in enumerate(zip(line, width))).rstrip())
    sys.stdout.flush()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--base', default=os.environ.get('BASE'), help='where the other version is installed')
    ap.add_argument('--rounds', type=int, default=5)
    ap.add_argument('--reps', type=int, default=5)
    ap.add_argument('--only', type=re.compile, help='rows whose name matches')
    ap.add_argument('--no-count', action='store_true', help='no instructions')
    ap.add_argument('--json', metavar='FILE')
    a = ap.parse_args()
    if (os.cpu_count() or 1) < 2:
        sys.exit('two cores are needed: the sides are pinned to core 0 and core 1')
    start = time.monotonic()
    versions = [Version('this', os.environ.get('PREFIX', '/usr/local'))] + ([Version('base', a.base)] if a.base else [])
    rows = [r for r in ROWS if not a.only or a.only.search(r[0])]
    print('; '.join(f'{v.name}: {v.prefix}' for v in versions))
    print(f'{a.rounds} rounds in turns x {a.reps} repetitions, sides pinned to cores 0 and 1, load {os.getloadavg()[0]:.1f}')
    seen, paths = {}, {}
    for turn in range(a.rounds):
        for row in rows:
            name, spec, mode, sizes, _ = row
            for v in versions if turn % 2 == 0 else reversed(versions):
                got, paths[name] = v.run(spec, mode, sizes, a.reps)
                for size, ns in got.items():
                    seen.setdefault((name, size), {}).setdefault(v.name, []).append(ns)
    head = ['row', 'size', 'path', 'depth', 'mode', 'this'] + (['base', 'ratio'] if a.base else [])
    table = []
    for name, spec, mode, sizes, rate in rows:
        for size in sizes:
            of = seen.get((name, size), {})
            line = [name, size_text(size), paths[name], str(depth(mode, size)), mode]
            line += [value(statistics.median(of[v.name]), size, rate) for v in versions]
            table.append(line + ([ratio_text(list(zip(of['this'], of['base'])))] if a.base else []))
    show(head, table)
    counts = {} if a.no_count else {v.name: v.count() for v in versions}
    if all(counts.values()) and counts:
        steps = list(counts['this'])
        print('\ninstructions of one 8-byte message over shm, the caller\'s loop included (benches/shm/count.sh)')
        head = ['step', 'threading', 'this'] + (['base', 'more'] if a.base else [])
        more = [[f"{counts['base'][s]:.0f}", f"{counts['this'][s] - counts['base'][s]:+.0f}"] if a.base else [] for s in steps]
        show(head, [[step, how, f"{counts['this'][how, step]:.0f}", *m] for (how, step), m in zip(steps, more)])
    print(f'{time.monotonic() - start:.0f} s')
    if a.json:
        rounds = [{'row': name, 'bytes': size, 'path': paths[name], 'ns': of} for (name, size), of in seen.items()]
        instructions = {v: {f'{how}, {step}': n for (how, step), n in c.items()} for v, c in counts.items()}
        with open(a.json, 'w') as f:
            json.dump({'rows': rounds, 'instructions': instructions}, f, indent=1)


if __name__ == '__main__':
    main()
