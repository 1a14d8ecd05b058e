#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Lists between two processes that hold GPU memory (or host memory), each block compared, backends in turns.

gpu.py ROOT [--backends "GDRFAB UCX"] [--mem "VRAM DRAM"] [--rounds N] [--reps N] [--most MIB]

ROOT is an unpacked wheel in whose plugins folder the plugin lies. Needs torch. The second process takes the second GPU
if there is one. --most leaves out lists of more. Prints for each row the median of all posts in microseconds and GB/s, and UCX's time
over GDRFAB's; then how long the first transfer took after the metadata, and the posting call of the longest list.
"""
import argparse
import multiprocessing
import os
import random
import statistics
import sys
import time

import agents

KIB, MIB = 1 << 10, 1 << 20
ROWS = [(1024, 4 * KIB), (1024, 16 * KIB), (1024, 64 * KIB), (1024, 256 * KIB), (512, MIB), (32, 16 * MIB)]
LONGEST = (100_000, 4 * KIB)  # of host memory
POOL = 768 * MIB
SEEDS = (11, 22)


class Side:
    """An agent with two regions: what others read and what they write."""

    def __init__(self, role, backend, mem, root):
        import torch

        self.torch, self.mem = torch, mem
        gpu = role % torch.cuda.device_count() if mem == "VRAM" else 0
        self.where = f"cuda:{gpu}" if mem == "VRAM" else "cpu"
        self.gpu = gpu
        if mem == "VRAM":
            torch.cuda.set_device(gpu)
        api = agents.load(root)
        self.agent = api.nixl_agent(f"agent{role}", api.nixl_agent_config(enable_prog_thread=True, backends=[]))
        self.agent.create_backend(backend, {})
        self.source, self.target = self.drawn(SEEDS[role]), torch.zeros(POOL, dtype=torch.uint8, device=self.where)
        self.theirs = self.drawn(SEEDS[1 - role])
        self.settle()
        for t in (self.source, self.target):
            self.agent.register_memory([(t.data_ptr(), POOL, gpu, "")], mem)

    def drawn(self, seed):
        draw = self.torch.Generator(device=self.where)
        draw.manual_seed(seed)
        return self.torch.randint(0, 256, (POOL,), dtype=self.torch.uint8, device=self.where, generator=draw)

    def settle(self):
        if self.mem == "VRAM":
            self.torch.cuda.synchronize()

    def descs(self, base, gpu, size, slots):
        return self.agent.get_xfer_descs([(base + slot * size, size, gpu) for slot in slots], self.mem)

    def check(self, size, here, there):
        """What came into the target is what the other's source holds; then it is wiped."""
        rows, pick = POOL // size, self.torch.tensor
        got = self.target[: rows * size].view(rows, size)[pick(here, device=self.where)]
        want = self.theirs[: rows * size].view(rows, size)[pick(there, device=self.where)]
        same = bool(self.torch.equal(got, want))
        self.target.zero_()
        self.settle()
        return same


def serve(pipe, *how):
    side = Side(1, *how)
    pipe.send((side.agent.get_agent_metadata(), side.source.data_ptr(), side.target.data_ptr(), side.gpu))
    side.agent.add_remote_agent(pipe.recv())
    while (asked := pipe.recv()) is not None:
        pipe.send(side.check(*asked))


def transfer(agent, handle):
    """Seconds until it has ended, and of the call that posts it."""
    began = time.perf_counter()
    state = agent.transfer(handle)
    posted = time.perf_counter()
    while state == "PROC":
        state = agent.check_xfer_state(handle)
    assert state == "DONE", state
    return time.perf_counter() - began, posted - began


def lead(pipe, reps, most, *how):
    side = Side(0, *how)
    metadata, source, target, gpu = pipe.recv()
    name = side.agent.add_remote_agent(metadata)
    pipe.send(side.agent.get_agent_metadata())
    # One block alone first, which makes the agents connect.
    handle = side.agent.initialize_xfer("READ", side.descs(side.target.data_ptr(), side.gpu, 4 * KIB, [0]),
                                        side.descs(source, gpu, 4 * KIB, [0]), name, b"")
    first, _ = transfer(side.agent, handle)
    side.agent.release_xfer_handle(handle)
    yield 1, 4 * KIB, "first", side.check(4 * KIB, [0], [0]), [first], []
    rows = ROWS + ([LONGEST] if side.mem == "DRAM" else [])
    for count, size in (row for row in rows if row[0] * row[1] <= most * MIB):
        here, there = (random.Random(seed).sample(range(POOL // size), count) for seed in (count, size))
        for op, own, other in (("READ", side.target, source), ("WRITE", side.source, target)):
            handle = side.agent.initialize_xfer(op, side.descs(own.data_ptr(), side.gpu, size, here),
                                                side.descs(other, gpu, size, there), name, b"")
            took, posts = zip(*(transfer(side.agent, handle) for _ in range(reps + 3)))
            if op == "READ":
                same = side.check(size, here, there)
            else:
                pipe.send((size, there, here))
                same = pipe.recv()
            side.agent.release_xfer_handle(handle)
            yield count, size, op, same, took[3:], posts[3:]
    pipe.send(None)


def leader(pipe, results, *how):
    results.put(list(lead(pipe, *how)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    for name, default in (("backends", "GDRFAB UCX"), ("mem", "VRAM DRAM")):
        parser.add_argument(f"--{name}", default=default)
    for name, default in (("rounds", 2), ("reps", 15), ("most", 512)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    failed = 0
    for mem in args.mem.split():
        took = {}
        for _ in range(args.rounds):
            for backend in args.backends.split():
                a, b = spawn.Pipe()
                results = spawn.Queue()
                how = (backend, mem, args.root)
                pair = [spawn.Process(target=serve, args=(b, *how)),
                        spawn.Process(target=leader, args=(a, results, args.reps, args.most, *how))]
                for p in pair:
                    p.start()
                try:
                    rows = results.get(timeout=120)
                except Exception:
                    rows = []
                    print(f"FAIL {backend} {mem}: no result")
                    failed += 1
                for p in pair:
                    p.join(10)
                    p.kill()
                for count, size, op, same, times, posts in rows:
                    failed += not same
                    if not same:
                        print(f"FAIL {backend} {mem} {op} {count} x {size}: other bytes")
                    took.setdefault((count, size, op), {}).setdefault(backend, []).extend(times)
                    if (count, size) == LONGEST:
                        took.setdefault((count, size, f"post of {op}"), {}).setdefault(backend, []).extend(posts)
        for (count, size, op), by in took.items():
            moves = op in ("READ", "WRITE")
            cells = [f"{b} {statistics.median(t) * 1e6:8.0f} us" + moves * f" {count * size / statistics.median(t) / 1e9:6.1f} GB/s"
                     for b, t in by.items()]
            if len(by) == 2:
                first, second = (statistics.median(t) for t in by.values())
                cells.append(f"{second / first:5.1f} times")
            print(f"{mem} {op:5} {count:4} x {size // KIB:5} KiB  " + "  ".join(cells), flush=True)
    print("every byte compared" if not failed else f"{failed} FAILED")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
