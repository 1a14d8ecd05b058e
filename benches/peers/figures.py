# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Which figures there are, what they are measured with, and the bar that each has to reach. report.py measures and
judges; whoever adds a figure adds it here."""
import atexit
import functools
import os
import tempfile
from collections import namedtuple

from compare import rmabench

K, M = 1 << 10, 1 << 20
IDLE = "target idle (the peers' polls: they may need it)"
POSIX = 'UCX_TLS=posix,self '           # its fastest for mapped memory: with CMA it copies slower from 4 KiB on
CMA = 'UCX_TLS=posix,cma,self '

# command: (sizes, reps) -> (argv, env); keep: does this result belong to the figure?
Column = namedtuple('Column', 'needs command keep')
# At this size column `who` is compared with column `ref`; kind '<=' or '<' bounds the ratio of times, '>=' that of rates.
# Without a ref the limit is in nanoseconds.
Bar = namedtuple('Bar', 'size kind limit ref who', defaults=(None, 'gdrfab'))
Row = namedtuple('Row', 'name sizes columns bars rate', defaults=(False,))


@functools.cache
def key_file():
    """A key of its own, of which nobody else may read."""
    fd, path = tempfile.mkstemp(prefix='gdrfab-bench-key')
    os.write(fd, os.urandom(32))
    os.close(fd)
    atexit.register(os.unlink, path)
    return path


def rma(mode, unit='ns', **specs):
    def column(spec):
        name = spec.split()[-1].split(':')[0]
        return Column({name}, lambda sizes, reps: rmabench(spec, mode, sizes, reps), lambda r: r.unit == unit)
    return {label.replace('_', ' '): column(spec) for label, spec in specs.items()}


def coop(*cases):
    """The bare two-core copy; the fastest of the ways named."""
    return {'floor': Column(set(), lambda sizes, reps: (
        ['raw_coop', '-s', ','.join(map(str, sizes)), '-r', str(reps)], {}),
        lambda r: r.unit == 'ns' and r.case in cases)}


def sock(mode, case):
    """Sockets driven by hand; of several ways the fastest."""
    return {'floor': Column(set(), lambda sizes, reps: (
        ['raw_sock', '-m', mode, '-s', ','.join(map(str, sizes)), '-r', str(reps)], {}),
        lambda r: r.unit == 'ns' and r.case.startswith(case))}


def reg(live, **specs):
    def column(spec):
        return Column({spec.split(':')[0]}, lambda sizes, reps: (
            ['mr_cost', '-t', spec, '-n', str(live), '-s', ','.join(map(str, sizes)), '-r', str(reps)], {}),
            lambda r: '/reg+close/' in r.case)
    return {label.replace('_', ' '): column(spec) for label, spec in specs.items()}


def startup(provider, what, **names):
    def column(name):
        return Column({name}, lambda sizes, reps: ([f'startup_{name}', provider, str(max(reps, 9))], {}),
                      lambda r: r.case.endswith(what))
    return {label: column(name) for label, name in names.items()}


def shm():
    two_core = coop('memcpy/2core', 'nt/2core')
    yield Row('put, half round trip', [8, 64, K, 4 * K],
              rma('lat', floor='memfd', gdrfab='gdrfab', UCX=POSIX + 'ucp', libfabric='ofi:shm,inject'),
              [Bar(8, '<=', 1.08, 'floor'), Bar(8, '<', 1, 'UCX')])
    yield Row('put until complete at the initiator', [8, 4 * K],
              rma('dclat', floor='memfd', gdrfab='gdrfab:dc', UCX=POSIX + 'ucp', libfabric='ofi:shm,dc'),
              [Bar(8, '<=', 0.65, 'UCX')])
    yield Row('put in a window, per put', [8, 64],
              rma('bw', floor='memfd', gdrfab='gdrfab', UCX=POSIX + 'ucp', libfabric='ofi:shm,inject'),
              [Bar(8, '<=', 0.5, 'UCX')])
    yield Row('get', [8, 64, K, 4 * K],
              rma('getlat', floor='memfd', gdrfab='gdrfab', UCX=POSIX + 'ucp', libfabric='ofi:shm'),
              [Bar(8, '<=', 0.1, 'UCX'), Bar(4 * K, '<=', 1.3, 'floor')])
    yield Row('fetch-and-add of 8 bytes; floor = lock xadd to the mapping', [8],
              rma('faddlat', floor='memfd', gdrfab='gdrfab', UCX=POSIX + 'ucp'),
              [Bar(8, '<=', 40), Bar(8, '<=', 1, 'UCX')])
    yield Row('send/recv, half round trip; heap = buffers in private memory', [8, 64, K, 4 * K, 64 * K, M],
              rma('sendlat', floor='memfd', gdrfab='gdrfab', gdrfab_heap='gdrfab:srcheap', UCX=CMA + 'ucp',
                  libfabric='ofi:shm,inject'),
              [Bar(8, '<=', 0.9, 'UCX'), Bar(8, '<=', 0.5, 'libfabric'),
               Bar(4 * K, '<=', 0.75, 'UCX'), Bar(4 * K, '<=', 0.75, 'UCX', 'gdrfab heap')])
    yield Row('tagged message of a connectionless endpoint, half round trip', [8, K, 4 * K, 64 * K, M],
              rma('sendlat', gdrfab_connected='gdrfab', gdrfab='gdrfab:rdm', UCX=POSIX + 'ucp', libfabric='ofi:shm,inject'),
              [Bar(8, '<=', 1.2, 'gdrfab connected'), *(Bar(size, '<=', 1, 'UCX') for size in [8, K, 4 * K, 64 * K, M])])
    yield Row('the same, rate, per message', [8, 4 * K],
              rma('sendrate', gdrfab_connected='gdrfab', gdrfab='gdrfab:rdm', UCX=POSIX + 'ucp', libfabric='ofi:shm,inject'),
              [Bar(8, '<=', 1, 'UCX')])
    yield Row('send rate, per message; heap = buffers in private memory', [8, 4 * K, 64 * K, M],
              rma('sendrate', floor='memfd', gdrfab='gdrfab', gdrfab_heap='gdrfab:srcheap', UCX=CMA + 'ucp',
                  libfabric='ofi:shm,inject'),
              [Bar(8, '<=', 0.7, 'UCX')])
    for verb, mode in ('put', 'bw'), ('get', 'getbw'):
        yield Row(f'{verb} bandwidth, {IDLE}', [64 * K, M],
                  rma(mode, floor='-i memfd', gdrfab='-i gdrfab', UCX=POSIX + 'ucp', libfabric='ofi:shm'),
                  [Bar(n, '>=', x, ref) for n in (64 * K, M) for x, ref in ((0.95, 'floor'), (1, 'UCX'))], True)
        yield Row(f'{verb} bandwidth, {IDLE}, non-temporal floor', [64 * M],
                  rma(mode, floor='-i memfd:nt', gdrfab='-i gdrfab', UCX=POSIX + 'ucp', libfabric='ofi:shm'),
                  [Bar(64 * M, '>=', 0.95, 'floor'), Bar(64 * M, '>=', 1.25, 'UCX')], True)
        yield Row(f'{verb} bandwidth, target polling; floor = bare copy by two cores', [M, 64 * M],
                  {**two_core, **rma(mode, gdrfab='gdrfab', gdrfab_nocoop='gdrfab:nocoop', UCX=POSIX + 'ucp',
                                     libfabric='ofi:shm')},
                  [Bar(M, '>=', 2, 'UCX'), Bar(64 * M, '>=', 1.8, 'UCX')], True)
    for verb in 'read', 'write':
        yield Row(f'{verb} of a list of 1024 blocks in random places, mapped memory, {IDLE}', [8 * K, 16 * M],
                  rma(f'{verb}list', floor='-i memfd', gdrfab='-i gdrfab'), [Bar(8 * K, '<=', 1024 * 6)])
        yield Row(f'{verb} of a list of 1024 blocks, private memory, target idle; floor = one process_vm_{verb}v',
                  [4 * M, 16 * M, 64 * M], rma(f'{verb}list', floor='-i cma', gdrfab='-i gdrfab:heap,srcheap'),
                  [Bar(16 * M, '>=', 0.95, 'floor')], True)
    yield Row('put to private memory, half round trip', [8, 4 * K],
              rma('lat', floor='cma', gdrfab='gdrfab:heap,srcheap', UCX=CMA + 'ucp:heap', libfabric='ofi:shm'),
              [Bar(8, '<=', 1.1, 'floor')])
    yield Row(f'put bandwidth to private memory, {IDLE}', [64 * K, 64 * M],
              rma('bw', floor='-i cma', gdrfab='-i gdrfab:heap,srcheap', UCX=CMA + 'ucp:heap', libfabric='ofi:shm'),
              [Bar(64 * K, '>=', 0.97, 'floor'), Bar(64 * M, '>=', 0.97, 'floor')], True)
    yield Row('put bandwidth to private memory, target polling; floor = CMA from both sides', [M, 64 * M],
              {**coop('cma/2core'), **rma('bw', gdrfab='gdrfab:heap,srcheap', one_side='gdrfab:heap,srcheap,nocoop',
                                          UCX=CMA + 'ucp:heap', libfabric='ofi:shm')},
              [Bar(M, '>=', 2, 'one side'), Bar(64 * M, '>=', 2, 'one side')], True)
    for live in 0, 10000:
        yield Row(f'register + close, {live} live; heap = private memory', [4 * K, 1024 * M],
                  reg(live, gdrfab='gdrfab', gdrfab_heap='gdrfab:heap', libfabric='ofi:shm'),
                  [Bar(n, '<=', 0.6, 'libfabric', who) for n in (4 * K, 1024 * M) for who in ('gdrfab', 'gdrfab heap')])
    yield Row('exec to first put completed', [0],
              startup('shm', '/exec_to_first_put', gdrfab='gdrfab', libfabric='ofi'),
              [Bar(0, '<=', 1, 'libfabric')])
    yield Row('main to first put completed', [0],
              startup('shm', '/main_to_first_put', gdrfab='gdrfab', libfabric='ofi'), [])


def tcp():
    """Over 127.0.0.1; the floor is raw_sock."""
    def columns(mode, mine='gdrfab:tcp', libfabric='ofi:tcp'):
        return rma(mode, gdrfab=mine, UCX='UCX_TLS=tcp,self UCX_NET_DEVICES=lo ucp', libfabric=libfabric)

    peers = 'UCX', 'libfabric'
    close = [Bar(8, '<=', 1.06, 'floor'), *(Bar(8, '<', 1, peer) for peer in peers)]
    yield Row('tcp: put, half round trip', [8, 64, K, 4 * K, 64 * K],
              {**sock('lat', 'tcp/'), **columns('lat')}, close)
    yield Row('tcp: send/recv, half round trip', [8, 64, K, 4 * K, 64 * K],
              {**sock('lat', 'tcp/'), **columns('sendlat')}, close)
    trips = 'floor = two one-way trips'
    yield Row(f'tcp: get; {trips}', [8, K, 4 * K], {**sock('back', 'tcp/'), **columns('getlat')}, close)
    yield Row(f'tcp: put until delivered; {trips}', [8, K, 4 * K],
              {**sock('there', 'tcp/'), **columns('dclat', 'gdrfab:tcp,dc', 'ofi:tcp,dc')}, close)
    framed = 'floor = framed bytes, many to a send'
    yield Row(f'tcp: put in a window, per put; {framed}', [8, 64, K],
              {**sock('small', 'tcp/'), **columns('bw')}, [Bar(8, '<=', 0.06, 'libfabric')])
    yield Row(f'tcp: send rate, per message; {framed}', [8, 64, K],
              {**sock('small', 'tcp/'), **columns('sendrate')}, [])
    sizes, best = [64 * K, M, 16 * M, 64 * M], 'floor = the best of several piece and buffer sizes'
    yield Row(f'tcp: put bandwidth; {best}', sizes, {**sock('stream', 'tcp/'), **columns('bw')},
              [Bar(64 * K, '>=', 1, 'libfabric'), *(Bar(n, '>=', 1.6, p) for n in (16 * M, 64 * M) for p in peers)], True)
    yield Row('tcp: get bandwidth', sizes, {**rma('bw', gdrfab_put='gdrfab:tcp'), **columns('getbw')},
              [Bar(n, '>=', 0.95, 'gdrfab put') for n in sizes], True)
    for verb, plain in ('read', 'getbw'), ('write', 'bw'):
        yield Row(f'tcp: {verb} of a list of 1024 blocks in random places; as one = one operation of all its bytes',
                  [4 * M, 16 * M, 64 * M], {**rma(plain, as_one='gdrfab:tcp'), **rma(f'{verb}list', gdrfab='gdrfab:tcp')},
                  [Bar(16 * M, '>=', 0.9, 'as one')], True)
    yield Row('tcp: tagged message of a connectionless endpoint, half round trip', [8, K, 64 * K],
              columns('sendlat', 'gdrfab:tcp,rdm', 'ofi:tcp;ofi_rxm'), [Bar(8, '<=', 0.9, peer) for peer in peers])
    yield Row('tcp: fetch-and-add of 8 bytes', [8],
              {**rma('getlat', get='gdrfab:tcp'), **rma('faddlat', gdrfab='gdrfab:tcp')}, [Bar(8, '<=', 1.1, 'get')])
    sealed = f'GDRFAB_TCP_KEY_FILE={key_file()} '
    yield Row('tcp, sealed: put, half round trip', [8, 64 * K],
              rma('lat', open='gdrfab:tcp', gdrfab=sealed + 'gdrfab:tcp'), [Bar(8, '<=', 1.15, 'open')])
    yield Row('tcp, sealed: put bandwidth; streams = over two further sockets', [M, 64 * M],
              rma('bw', open='gdrfab:tcp', gdrfab=sealed + 'gdrfab:tcp', streams=sealed + 'GDRFAB_TCP_STREAMS=2 gdrfab:tcp'),
              [Bar(64 * M, '>=', 0.45, 'open')], True)
    yield Row('tcp: exec to first put completed', [0],
              startup('tcp', '/exec_to_first_put', gdrfab='gdrfab', libfabric='ofi'),
              [Bar(0, '<=', 3e6), Bar(0, '<', 1, 'libfabric')])
    yield Row('tcp: send/recv with both sides in a blocking wait, half round trip; asleep = no spinning before', [8],
              {**sock('lat', 'tcp/'), **rma('waitlat', gdrfab='gdrfab:tcp', asleep='GDRFAB_SPIN_US=0 gdrfab:tcp',
                                            descriptor='gdrfab:tcp,fd')},
              [Bar(8, '<=', 1.5, 'floor')])
    yield Row('tcp: CPU time of one second of waiting in vain', [0],
              rma('idle', 'ns/s', gdrfab='gdrfab:tcp', descriptor='gdrfab:tcp,fd', auto='gdrfab:tcp,auto'),
              [Bar(0, '<=', 1e6, who=who) for who in ('gdrfab', 'descriptor', 'auto')])


def rows():
    yield from shm()
    yield from tcp()
