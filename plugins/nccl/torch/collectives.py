# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Every operation of torch.distributed that NCCL carries, over many sizes and element types.

Each result is compared with one computed locally, bit by bit: the values are small integers, whose sums and products are
exact in every element type. All results go into one sha256 besides, so that two transports can be compared with each other:
the last line of rank 0 is the same for both or one of them is wrong.
"""

import argparse
import ctypes
import hashlib
import time

import torch
import torch.distributed as dist

import common

DTYPES = ["float32", "float16", "bfloat16", "float64", "int32", "int64", "uint8", "int8"]
# Odd sizes, and sizes just below and above the boundaries between NCCL's protocols and slices.
SIZES = [1, 2, 3, 5, 17, 255, 1023, 1025, 4099, 65537, 262147, 1048579]
# From here on an operation with one chunk per rank splits the elements instead of taking as many per chunk.
SPLIT_FROM = 8192


class Case:
    """One element type and one size."""

    def __init__(self, job, dtype, n, salt):
        self.rank, self.world, self.device, self.dtype, self.salt = job.rank, job.world, job.device, dtype, salt
        self.n = n
        self.chunk = n if n < SPLIT_FROM else n // job.world

    def values(self, rank, n=None, lane=0, factors=False):
        """What this rank contributes: different at each place, so that a chunk at a wrong place is seen."""
        n = self.n if n is None else n
        places = torch.arange(n, dtype=torch.int32, device=self.device)
        places += rank * 7919 + (self.salt * 31 + lane) * 104729
        places *= 40503
        places >>= 11
        if factors:
            return ((places & 1) + 1).to(self.dtype)
        places &= 15
        if self.dtype != torch.uint8:
            places -= 7
        return places.to(self.dtype)

    def empty(self, n):
        # Not zeros, which some expected value might be: an element that never arrives must differ.
        return torch.full((n,), 99, dtype=self.dtype, device=self.device)


def fold(parts, op):
    result = parts[0].clone()
    for part in parts[1:]:
        if op == "max":
            result = torch.maximum(result, part)
        elif op == "min":
            result = torch.minimum(result, part)
        elif op == "prod":
            result *= part
        else:
            result += part
    return result / len(parts) if op == "avg" else result


def reductions(c):
    ops = ["sum", "max", "min", "prod"]
    # Halves and quarters of small integers are exact, thirds are not.
    if c.dtype.is_floating_point and c.world & (c.world - 1) == 0:
        ops.append("avg")
    return ops


def reduce_op(name):
    return getattr(dist.ReduceOp, "PRODUCT" if name == "prod" else name.upper())


def all_reduce(c):
    for op in reductions(c):
        parts = [c.values(rank, factors=op == "prod") for rank in range(c.world)]
        got = parts[c.rank].clone()
        dist.all_reduce(got, reduce_op(op))
        yield op, got, fold(parts, op)


def reduce(c):
    for root in range(c.world):
        parts = [c.values(rank, lane=root) for rank in range(c.world)]
        got = parts[c.rank].clone()
        dist.reduce(got, root)
        # Nothing is promised about the contents of the other ranks' buffers afterwards.
        if c.rank == root:
            yield f"to {root}", got, fold(parts, "sum")


def broadcast(c):
    for root in range(c.world):
        got = c.values(root, lane=root) if c.rank == root else c.empty(c.n)
        dist.broadcast(got, root)
        yield f"from {root}", got, c.values(root, lane=root)


def all_gather(c):
    got = [c.empty(c.chunk) for _ in range(c.world)]
    dist.all_gather(got, c.values(c.rank, c.chunk))
    yield "", torch.cat(got), torch.cat([c.values(rank, c.chunk) for rank in range(c.world)])


def all_gather_into_tensor(c):
    got = c.empty(c.chunk * c.world)
    dist.all_gather_into_tensor(got, c.values(c.rank, c.chunk))
    yield "", got, torch.cat([c.values(rank, c.chunk) for rank in range(c.world)])


def reduce_scatter_tensor(c):
    for op in reductions(c):
        factors = op == "prod"
        got = c.empty(c.chunk)
        dist.reduce_scatter_tensor(got, c.values(c.rank, c.chunk * c.world, factors=factors), reduce_op(op))
        parts = [c.values(rank, c.chunk * c.world, factors=factors).chunk(c.world)[c.rank] for rank in range(c.world)]
        yield op, got, fold(parts, op)


def reduce_scatter(c):
    got = c.empty(c.chunk)
    dist.reduce_scatter(got, [c.values(c.rank, c.chunk, lane=to) for to in range(c.world)])
    yield "", got, fold([c.values(rank, c.chunk, lane=c.rank) for rank in range(c.world)], "sum")


def all_to_all_single(c):
    got = c.empty(c.chunk * c.world)
    dist.all_to_all_single(got, torch.cat([c.values(c.rank, c.chunk, lane=to) for to in range(c.world)]))
    yield "even", got, torch.cat([c.values(rank, c.chunk, lane=c.rank) for rank in range(c.world)])

    def share(sender, receiver):  # Some of them are nothing at all.
        return c.chunk * ((sender + 2 * receiver) % 3) // 2

    gives = [share(c.rank, to) for to in range(c.world)]
    takes = [share(rank, c.rank) for rank in range(c.world)]
    got = c.empty(sum(takes))
    dist.all_to_all_single(got, torch.cat([c.values(c.rank, n, lane=to) for to, n in enumerate(gives)]), takes, gives)
    yield "uneven", got, torch.cat([c.values(rank, n, lane=c.rank) for rank, n in enumerate(takes)])


def all_to_all(c):
    got = [c.empty(c.chunk) for _ in range(c.world)]
    dist.all_to_all(got, [c.values(c.rank, c.chunk, lane=to) for to in range(c.world)])
    yield "", torch.cat(got), torch.cat([c.values(rank, c.chunk, lane=c.rank) for rank in range(c.world)])


def gather(c):
    for root in range(c.world):
        got = [c.empty(c.chunk) for _ in range(c.world)] if c.rank == root else None
        dist.gather(c.values(c.rank, c.chunk, lane=root), got, root)
        if c.rank == root:
            yield f"to {root}", torch.cat(got), torch.cat([c.values(r, c.chunk, lane=root) for r in range(c.world)])


def scatter(c):
    for root in range(c.world):
        got = c.empty(c.chunk)
        parts = [c.values(root, c.chunk, lane=to) for to in range(c.world)]
        dist.scatter(got, parts if c.rank == root else None, root)
        yield f"from {root}", got, parts[c.rank]


def send_recv(c):
    for sender in range(c.world):
        for receiver in range(c.world):
            if sender == receiver or c.rank not in (sender, receiver):
                continue
            sent = c.values(sender, lane=receiver)
            if c.rank == sender:
                dist.send(sent, receiver)
            else:
                got = c.empty(c.n)
                dist.recv(got, sender)
                yield f"{sender} to {receiver}", got, sent


def isend_irecv(c):
    for peer in range(c.world):
        if peer == c.rank:
            continue
        sent, got = c.values(c.rank, lane=peer), c.empty(c.n)
        # NCCL runs the two one after the other, so both ranks of a pair must take them in the same order.
        if c.rank < peer:
            requests = [dist.isend(sent, peer), dist.irecv(got, peer)]
        else:
            requests = [dist.irecv(got, peer), dist.isend(sent, peer)]
        for request in requests:
            request.wait()
        yield f"with {peer}", got, c.values(peer, lane=c.rank)


def batch_isend_irecv(c):
    after, before = (c.rank + 1) % c.world, (c.rank - 1) % c.world
    sent, got = [c.values(c.rank, lane=i) for i in range(3)], [c.empty(c.n) for _ in range(3)]
    batch = [dist.P2POp(dist.isend, tensor, after) for tensor in sent]
    batch += [dist.P2POp(dist.irecv, tensor, before) for tensor in got]
    for request in dist.batch_isend_irecv(batch):
        request.wait()
    yield "ring", torch.cat(got), torch.cat([c.values(before, lane=i) for i in range(3)])


def many_at_once(c, groups):
    """Operations of several communicators that nobody has waited for yet."""
    sent = [[c.values(rank, max(1, c.n >> i), lane=i) for rank in range(c.world)] for i in range(12)]
    got = [parts[c.rank].clone() for parts in sent]
    works = [dist.all_reduce(tensor, group=groups[i % len(groups)], async_op=True) for i, tensor in enumerate(got)]
    for work in works:
        work.wait()
    yield "all_reduce", torch.cat(got), torch.cat([fold(parts, "sum") for parts in sent])


OPERATIONS = [
    all_reduce, reduce, broadcast, all_gather, all_gather_into_tensor, reduce_scatter, reduce_scatter_tensor,
    all_to_all_single, all_to_all, gather, scatter, send_recv, isend_irecv, batch_isend_irecv,
]  # fmt: skip


class Tally:
    def __init__(self, job):
        self.job, self.checks, self.failures, self.skipped = job, 0, 0, set()
        self.digest = hashlib.sha256()

    def check(self, name, got, want):
        self.checks += 1
        host = got.contiguous().cpu()
        size = host.numel() * host.element_size()
        if size:
            self.digest.update(memoryview((ctypes.c_char * size).from_address(host.data_ptr())))
        if got.dtype == want.dtype and torch.equal(got, want):
            return
        self.failures += 1
        if self.failures <= 20:
            print(f"FAIL rank {self.job.rank}: {name}: {difference(got, want)}")

    def run(self, name, cases):
        try:
            for part, got, want in cases:
                self.check(f"{name} {part}", got, want)
        except (RuntimeError, NotImplementedError, ValueError) as error:
            # Only NCCL is tested. gloo lacks some operations for some types.
            if self.job.backend == "nccl":
                raise
            self.skipped.add(f"{name.split()[0]} ({str(error).splitlines()[0][:60]})")


def difference(got, want):
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
    wrong = (got != want).nonzero().flatten()
    at = int(wrong[0])
    values = f"{got[at].item()}, expected {want[at].item()}"
    return f"{len(wrong)} of {len(got)} elements wrong, first at {at}: {values}, last at {int(wrong[-1])}"


def comings_and_goings(job, tally, rounds):
    """Communicators made and closed while others live. Returns the descriptors open after each round."""
    fds = []
    for i in range(rounds):
        group = dist.new_group(list(range(job.world)))
        case = Case(job, torch.float32, 100003, i)
        parts = [case.values(rank) for rank in range(job.world)]
        got = parts[job.rank].clone()
        dist.all_reduce(got, group=group)
        tally.check("a communicator of its own", got, fold(parts, "sum"))
        common.synchronize(job)
        dist.destroy_process_group(group)
        fds.append(common.holdings(job)["fds"])
    return fds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    common.arguments(parser)
    parser.add_argument("--max-mib", type=float, default=64, help="the largest size; 64 by default")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--rounds", type=int, default=5, help="communicators made and closed one after the other")
    parser.add_argument("--smoke", action="store_true", help="one all_reduce and one message, for the log of the path")
    args = parser.parse_args()
    job = common.join(args)
    tally = Tally(job)
    began = time.monotonic()
    if args.smoke:
        case = Case(job, torch.float32, 1 << 20, 0)
        for operation in [all_reduce, batch_isend_irecv]:
            tally.run(operation.__name__, operation(case))
    else:
        groups = [dist.new_group(list(range(job.world))) for _ in range(2)] + [None]
        for name in args.dtypes.split(","):
            dtype, since = getattr(torch, name), time.monotonic()
            largest = int(args.max_mib * (1 << 20)) // torch.empty(0, dtype=dtype).element_size()
            for salt, n in enumerate([n for n in SIZES if n < largest] + [largest]):
                case = Case(job, dtype, n, salt)
                for operation in OPERATIONS:
                    tally.run(f"{operation.__name__} {name} {n}", operation(case))
                tally.run(f"many_at_once {name} {n}", many_at_once(case, groups))
                common.barrier(job)
            if job.rank == 0:
                print(f"# {name}: {tally.checks} checks of rank 0 so far, {time.monotonic() - since:.1f} s")
        fds = comings_and_goings(job, tally, args.rounds)
        print(f"# rank {job.rank}: descriptors after each of {args.rounds} more communicators: {fds}")
    seconds = time.monotonic() - began
    everyone = [None] * job.world
    dist.all_gather_object(everyone, (tally.checks, tally.failures, tally.digest.hexdigest()))
    failures = sum(part[1] for part in everyone)
    if job.rank == 0:
        for skipped in sorted(tally.skipped):
            print(f"# skipped: {skipped}")
        print(f"{sum(part[0] for part in everyone)} checks, {failures} failed, {seconds:.1f} s")
        print("sha256 " + hashlib.sha256("".join(part[2] for part in everyone).encode()).hexdigest())
    common.leave(job, int(failures != 0))


if __name__ == "__main__":
    main()
