#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The project's figures beside the peers and the floor, one table per figure, with the bar each has to reach.

  report.py [--quick] [--rounds N] [--reps N] [--only REGEX] [--json FILE] [--strict]

Within a figure the columns run interleaved, A B C A B C ...; a cell is the median of the rounds' medians, with the best
repetition in parentheses. --quick: fewer rounds, and only the sizes that have a bar. --strict: a missed bar is an
error. A run of gdrfab that fails always is."""
import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time

from compare import BUILD, boost, run
from figures import K, M, rows


def output(*argv, **kw):
    try:
        return subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, **kw).stdout
    except OSError:
        return ''


def first(path, pattern='(.*)'):
    try:
        with open(path) as f:
            m = re.search(pattern, f.read(), re.M)
            return m.group(1).strip() if m else ''
    except OSError:
        return ''


def machine():
    kib = int(first('/proc/meminfo', r'^MemTotal:\s+(\d+)') or 0)
    parts = [first('/proc/cpuinfo', r'^model name\s*:\s*(.*)') or platform.machine(),
             'model ' + first('/proc/cpuinfo', r'^model\s*:\s*(.*)'), f'{os.cpu_count()} cores',
             f'{kib / M:.0f} GiB', 'kernel ' + platform.release(),
             'tcp ' + (first('/proc/sys/net/ipv4/tcp_congestion_control') or '?'),
             'shmem huge pages ' + (first('/sys/kernel/mm/transparent_hugepage/shmem_enabled', r'\[(\w+)\]') or '?'),
             f'load {os.getloadavg()[0]:.1f}']
    if 'hypervisor' in first('/proc/cpuinfo', r'^flags\s*:\s*(.*)'):
        parts.insert(3, 'virtual')
    return ', '.join(parts)


def amount(ns, size, rate):
    if rate:
        return size / ns
    return ns / (1e6 if ns >= 1e6 else 1e3 if ns >= 1e4 else 1)


def unit(ns, rate):
    return 'GB/s' if rate else 'ms' if ns >= 1e6 else 'us' if ns >= 1e4 else 'ns'


def cell_text(c, size, rate):
    def number(x):
        return f'{x:.0f}' if x >= 100 else f'{x:.1f}'
    if not c:
        return '-'
    scale = c['median'] if not rate else 1
    best = c['best'] / (c['median'] / amount(scale, size, False)) if not rate else size / c['best']
    return f"{number(amount(c['median'], size, rate))} ({number(best)}) {unit(c['median'], rate)}"


def size_text(n):
    return '' if not n else f'{n} B' if n < K else f'{n // K} KiB' if n < M else f'{n // M} MiB'


def path_text(notes):
    """What the back-end said about its path, and how much of its bytes the peer carried."""
    for line in reversed(notes):
        if line.startswith('#gdrfab bytes '):
            count = {name: int(n) for name, n in re.findall(r'(\w+)=(\d+)', line)}
            helped, total = count['helped'], sum(count[p] for p in ('direct', 'cma', 'staged', 'socket'))
            helped_text = f', {100 * helped / total:.0f} % of the bytes carried by the peer' if total and helped else ''
            name = next((n.split('=', 1)[1] for n in notes if n.startswith('#gdrfab path=')), '?')
            return f'path {name}{helped_text}'
    return None


def measure(row, sizes, rounds, reps, built):
    """{column: {size: {median, best, runs}}}, {column: words about its path}, {column: why it failed}"""
    runs, paths, errors = {}, {}, {}
    for _ in range(rounds):
        for label, col in row.columns.items():
            if not col.needs <= built or label in errors:
                continue
            r = run(*col.command(sizes, reps))
            if r.error:
                errors[label] = r.error
                runs.pop(label, None)
                continue
            best = {}
            for x in r.results:     # of several ways within one run, the fastest
                if col.keep(x) and (x.bytes not in best or x.median < best[x.bytes].median):
                    best[x.bytes] = x
            for n, x in best.items():
                runs.setdefault(label, {}).setdefault(n, []).append(x)
            if path_text(r.notes):
                paths[label] = path_text(r.notes)
    cells = {label: {n: {'median': statistics.median(x.median for x in xs), 'best': min(x.best for x in xs),
                         'runs': [x.median for x in xs]} for n, xs in by_size.items()}
             for label, by_size in runs.items()}
    return cells, paths, errors


def judge(bar, cells):
    """The bar, its ratio, the floor's own ratio where that says more, and a verdict: ok, MISS, or none.

    The ratio is the median of the rounds' ratios: what the machine does to all columns of a round cancels out."""
    def ratios(who, what):
        a, b = cells.get(who, {}).get(bar.size), cells.get(bar.ref, {}).get(bar.size)
        if bar.ref is None:
            return [a['median']] if a else []
        pairs = zip(what(a), what(b)) if a and b else []
        return [y / x if bar.kind == '>=' else x / y for x, y in pairs]

    def middle(xs):
        return statistics.median(xs) if xs else None

    def reached(x):
        return x >= bar.limit if bar.kind == '>=' else x <= bar.limit if bar.kind == '<=' else x < bar.limit
    rounds = ratios(bar.who, lambda c: c['runs'])
    mine = middle(rounds)
    return {**bar._asdict(), 'ratio': mine, 'rounds': [min(rounds), max(rounds)] if rounds else None,
            'best_ratio': middle(ratios(bar.who, lambda c: [c['best']])),
            'floor_ratio': middle(ratios('floor', lambda c: c['runs'])) if bar.ref not in ('floor', None) else None,
            'verdict': 'none' if mine is None else 'ok' if reached(mine) else 'MISS'}


def verdict_text(b, rate):
    what = f"{size_text(b['size'])} {b['who']}: ".lstrip()
    if b['ref'] is None:
        text = f"{what}must be {b['kind']} {amount(b['limit'], 0, False):g} {unit(b['limit'], False)}: "
        return text + ('not measured' if b['verdict'] == 'none' else b['verdict'])
    must = f"{b['kind']} {b['limit']} x {b['ref']}" + (' (rate)' if rate else '')
    if b['verdict'] == 'none':
        return f'{what}must be {must}: not measured'
    own = f" (the floor's own: {b['floor_ratio']:.2f})" if b['verdict'] == 'MISS' and b['floor_ratio'] else ''
    ratio, low, high, best = (f"{r:.{2 if r >= 0.1 else 4}f}" for r in (b['ratio'], *b['rounds'], b['best_ratio']))
    return f"{what}{ratio} (rounds {low} to {high}, of the best {best}), must be {must}: {b['verdict']}{own}"


def show(row, sizes, cells, paths, errors, bars):
    print(f'\n== {row.name}')
    table = [['', *row.columns]]
    for n in sizes:
        table.append([size_text(n), *(cell_text(cells.get(c, {}).get(n), n, row.rate) for c in row.columns)])
    width = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    for line in table:
        print('  ' + '  '.join(text.rjust(w) for text, w in zip(line, width)).rstrip())
    for label, words in paths.items():
        print(f'  {label}: {words}')
    for label, why in errors.items():
        print(f'  {label}: FAILED: {why}')
    for b in bars:
        print('  ' + verdict_text(b, row.rate))
    sys.stdout.flush()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--quick', action='store_true')
    ap.add_argument('--rounds', type=int)
    ap.add_argument('--reps', type=int)
    ap.add_argument('--only', type=re.compile, help='figures whose name matches')
    ap.add_argument('--json', metavar='FILE')
    ap.add_argument('--strict', action='store_true')
    a = ap.parse_args()
    rounds, reps = a.rounds or (3 if a.quick else 9), a.reps or (5 if a.quick else 11)
    if (os.cpu_count() or 1) < 2:
        sys.exit('two cores are needed: the sides are pinned to core 0 and core 1')
    listed = [line.split('\t') for line in output(os.path.join(BUILD, 'rmabench'), '-l').splitlines()]
    if not listed:
        sys.exit('build/rmabench is not there: run make first')
    built = {name: version for name, version, _ in listed}
    titles = {'gdrfab': 'gdrfab', 'ucp': 'UCX', 'ofi': 'libfabric'}
    absent = [t for name, t in titles.items() if name not in built]
    group = output('cat', '/proc/self/autogroup', preexec_fn=boost).strip() or 'no autogroup'
    method = (f'sides pinned to core 0 and 1, interleaved, {rounds} rounds x {reps} repetitions: median (best); '
              f'scheduling {group.split(" ", 1)[-1]}')
    peers = {t: built[name] for name, t in titles.items() if name in built}
    report = {'machine': machine(), 'method': method, 'versions': peers, 'absent': absent, 'figures': []}
    print('machine: ' + report['machine'])
    print('method:  ' + method)
    print('builds:  ' + ', '.join(f'{t} {v}' for t, v in peers.items()) or 'nothing')
    for t in absent:
        print(f'{t} was not installed when this was built: its column stays empty')
    start, broken = time.monotonic(), False
    for row in rows():
        if a.only and not a.only.search(row.name):
            continue
        sizes = [n for n in row.sizes if not a.quick or not row.bars or any(b.size == n for b in row.bars)]
        cells, paths, errors = measure(row, sizes, rounds, reps, set(built))
        bars = [judge(b, cells) for b in row.bars]
        broken |= any('gdrfab' in row.columns[label].needs for label in errors)
        show(row, sizes, cells, paths, errors, bars)
        report['figures'].append({'name': row.name, 'unit': 'ns', 'cells': cells, 'paths': paths, 'errors': errors,
                                  'bars': bars})
    verdicts = [b['verdict'] for f in report['figures'] for b in f['bars']]
    reached, missed, unknown = (verdicts.count(v) for v in ('ok', 'MISS', 'none'))
    print(f'\n{reached} bars reached, {missed} missed, {unknown} not measured; {time.monotonic() - start:.0f} s')
    if a.json:
        with open(a.json, 'w') as f:
            json.dump(report, f, indent=1)
    sys.exit(1 if broken or (a.strict and 'MISS' in verdicts) else 0)


if __name__ == '__main__':
    main()
