# SPDX-License-Identifier: Apache-2.0 OR MIT
"""How long collectives take, and the bandwidth of the algorithm: bytes of the larger buffer over seconds.

Rank 0 appends a JSON line for each operation and size to --out. Operations follow each other on the GPU without waiting in
between, as in training; what is reported is the median of several such batches, by the clock of the slowest rank.
"""

import argparse
import json
import statistics
import time

import torch
import torch.distributed as dist

import common

SIZES = "8K,64K,1M,16M,64M,256M"
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def size_of(word):
    return int(float(word[:-1]) * UNITS[word[-1]]) if word[-1] in UNITS else int(word)


def all_reduce(job, size):
    buffer = torch.zeros(size // 4, device=job.device)
    return lambda: dist.all_reduce(buffer)


def all_gather(job, size):
    whole = torch.zeros(size // 4 // job.world * job.world, device=job.device)
    part = torch.zeros(whole.numel() // job.world, device=job.device)
    return lambda: dist.all_gather_into_tensor(whole, part)


def reduce_scatter(job, size):
    whole = torch.zeros(size // 4 // job.world * job.world, device=job.device)
    part = torch.zeros(whole.numel() // job.world, device=job.device)
    return lambda: dist.reduce_scatter_tensor(part, whole)


def broadcast(job, size):
    buffer = torch.zeros(size // 4, device=job.device)
    return lambda: dist.broadcast(buffer, 0)


def sendrecv(job, size):
    sent, got = torch.zeros(size // 4, device=job.device), torch.zeros(size // 4, device=job.device)
    after, before = (job.rank + 1) % job.world, (job.rank - 1) % job.world

    def both():
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, after), dist.P2POp(dist.irecv, got, before)]):
            work.wait()

    return both


def alltoall(job, size):
    sent = torch.zeros(size // 4 // job.world * job.world, device=job.device)
    got = torch.zeros_like(sent)
    return lambda: dist.all_to_all_single(got, sent)


OPERATIONS = {f.__name__: f for f in [all_reduce, all_gather, reduce_scatter, broadcast, sendrecv, alltoall]}


def batch(job, operation, n):
    """Seconds for n operations, here."""
    if job.device.type != "cuda":
        began = time.perf_counter()
        for _ in range(n):
            operation()
        return time.perf_counter() - began
    began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    began.record()
    for _ in range(n):
        operation()
    ended.record()
    ended.synchronize()
    return began.elapsed_time(ended) / 1e3


def slowest(job, seconds):
    """The largest of everyone's, which is also what everyone must agree upon before choosing how often to repeat."""
    tensor = torch.tensor(seconds, dtype=torch.float64, device=job.device)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return tensor.tolist()


def measure(job, operation, args):
    batch(job, operation, 3)
    common.synchronize(job)
    once = slowest(job, [batch(job, operation, 5) / 5])[0]
    n = max(3, min(2000, int(args.batch_ms / 1e3 / once)))
    times = slowest(job, [batch(job, operation, n) / n for _ in range(args.batches)])
    return n, statistics.median(times), min(times), max(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    common.arguments(parser)
    parser.add_argument("--name", default="default", help="what to call this configuration in the results")
    parser.add_argument("--ops", default="all_reduce", help="of " + ",".join(OPERATIONS))
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--batches", type=int, default=7)
    parser.add_argument("--batch-ms", type=float, default=30)
    parser.add_argument("--out", help="where the results are appended; standard output otherwise")
    args = parser.parse_args()
    job = common.join(args)
    for name in args.ops.split(","):
        for word in args.sizes.split(","):
            size = size_of(word)
            n, median, best, worst = measure(job, OPERATIONS[name](job, size), args)
            if job.rank != 0:
                continue
            line = {"transport": args.name, "op": name, "size": size, "us": round(median * 1e6, 2),
                    "GBps": round(size / median / 1e9, 3), "best_us": round(best * 1e6, 2),
                    "worst_us": round(worst * 1e6, 2), "iterations": n * args.batches}  # fmt: skip
            print(json.dumps(line))
            if args.out:
                with open(args.out, "a") as out:
                    out.write(json.dumps(line) + "\n")
    common.leave(job)


if __name__ == "__main__":
    main()
