#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Between device memories over loopback tcp, beside the same between host memories: what the copies between a device
and the sockets' buffers cost where they should be hidden behind the wire.

  tcp.py [--perf PROGRAM] [--local KIND] [--remote KIND] [--rounds N] [--strict]

Runs gdrfab-perf in turns; a cell is the median of the rounds, the ratio the median of the rounds' ratios. With one GPU:
--remote cuda:0."""
import argparse
import json
import statistics
import subprocess
import sys

BAR = 0.85      # of host memory, at BAR_SIZE and above
BAR_SIZE = 64 << 20


def rate(perf, test, size, local, remote):
    """GB/s and the path."""
    argv = [perf, test, '--local', '-p', 'tcp', '--json', '-s', str(size), '-d', '4', '-Q', '1', '-D', '1',
            '--local-mem', local, '--remote-mem', remote]
    p = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
    if p.returncode:
        sys.exit(f"{' '.join(argv)}: {p.stderr.strip()}")
    r = json.loads(p.stdout)['results'][0]
    return r['bw_average_mb_s'] / 1e3, r['path']


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--perf', default='gdrfab-perf')
    ap.add_argument('--local', default='cuda:0')
    ap.add_argument('--remote', default='cuda:1')
    ap.add_argument('--rounds', type=int, default=5)
    ap.add_argument('--strict', action='store_true')
    a = ap.parse_args()
    missed = False
    print(f'over loopback tcp, {a.rounds} rounds in turns: host (malloc) to host, {a.local} to and from {a.remote}')
    print('| what | size | host GB/s | device GB/s | device path | ratio | of all rounds | bar |')
    print('|---|---|---:|---:|---|---:|---|---|')
    for test in 'write-bw', 'read-bw':
        for size in 1 << 20, 16 << 20, 64 << 20:
            host, device, path = [], [], ''
            for _ in range(a.rounds):
                host.append(rate(a.perf, test, size, 'malloc', 'malloc')[0])
                got, path = rate(a.perf, test, size, a.local, a.remote)
                device.append(got)
            ratios = [d / h for d, h in zip(device, host)]
            ratio = statistics.median(ratios)
            bar = ''
            if size >= BAR_SIZE:
                missed |= ratio < BAR
                bar = f">= {BAR}: {'ok' if ratio >= BAR else 'MISS'}"
            print(f'| {test} | {size >> 20} MiB | {statistics.median(host):.2f} | {statistics.median(device):.2f} | {path} '
                  f'| {ratio:.3f} | {min(ratios):.3f} to {max(ratios):.3f} | {bar} |', flush=True)
    sys.exit(1 if missed and a.strict else 0)


if __name__ == '__main__':
    main()
