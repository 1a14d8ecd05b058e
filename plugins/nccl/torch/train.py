# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Trains a small transformer with DistributedDataParallel, the same way each time.

--out FILE gets a line "step loss" for each step, the loss with all its digits; FILE.rank<N> gets what each process holds,
as JSON lines, every few seconds. With two ranks a sum of gradients has one result whichever way it travelled, so the losses of
two transports are equal to the last bit; compare.py compares them.
"""

import argparse
import hashlib
import json
import os
import signal
import subprocess
import time

# Before CUDA is initialised: without it cuBLAS may choose another order of summation from run to run.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import common  # noqa: E402

VOCABULARY = 128


class Block(nn.Module):
    def __init__(self, width, heads, length):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.grow, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("future", torch.full((length, length), float("-inf")).triu(1), persistent=False)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.before(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        # Written out, because some fused kernels add in another order each time.
        weights = (q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5 + self.future).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.shrink(functional.gelu(self.grow(self.between(x))))


class Model(nn.Module):
    def __init__(self, width, layers, length):
        super().__init__()
        self.entry = nn.Linear(VOCABULARY, width, bias=False)
        self.place = nn.Parameter(torch.randn(length, width) * 0.02)
        self.blocks = nn.Sequential(*[Block(width, 8, length) for _ in range(layers)])
        self.norm, self.exit = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)
        self.register_buffer("words", torch.arange(VOCABULARY), persistent=False)

    def forward(self, words):
        """The mean loss of guessing each next word."""
        # Products with one-hot vectors instead of indices: their gradients are deterministic on every device.
        exact = (words.unsqueeze(-1) == self.words).to(self.place.dtype)
        x = self.entry(exact[:, :-1]) + self.place
        guess = self.exit(self.norm(self.blocks(x))).log_softmax(-1)
        return -(guess * exact[:, 1:]).sum(-1).mean()


def sample(step, rank, world, batch, length):
    """Sequences that count in steps of their own with some noise: learnable, and another batch at each step and rank."""
    source = torch.Generator().manual_seed(step * world + rank)
    start = torch.randint(VOCABULARY, (batch, 1), generator=source)
    stride = torch.randint(1, 8, (batch, 1), generator=source)
    words = (start + stride * torch.arange(length + 1)) % VOCABULARY
    noise = torch.rand(words.shape, generator=source) < 0.02
    return torch.where(noise, torch.randint(VOCABULARY, words.shape, generator=source), words)


def digest(model):
    found = hashlib.sha256()
    for parameter in model.parameters():
        found.update(repr(parameter.detach().double().sum().item()).encode())
        found.update(repr(parameter.detach().double().abs().max().item()).encode())
    return found.hexdigest()


def agree(model, world):
    """Whether all ranks have the same parameters."""
    found = [None] * world
    dist.all_gather_object(found, digest(model))
    return found[0], len(set(found)) == 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    common.arguments(parser)
    parser.add_argument("--seconds", type=float, help="stop after so long")
    parser.add_argument("--steps", type=int, help="stop after so many steps")
    parser.add_argument("--out", required=True)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--every", type=float, default=5, help="seconds from one look at what the process holds to the next")
    parser.add_argument("--die", type=int, help="the last rank kills itself at this step, without a word")
    parser.add_argument("--stop", type=int, help="the last rank stops at this step, and goes on after --still seconds")
    parser.add_argument("--still", type=float, default=5)
    args = parser.parse_args()
    if args.seconds is None and args.steps is None:
        parser.error("either --seconds or --steps")
    args.limit = max(args.limit, int((args.seconds or 0) + 120))
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(1)
    job = common.join(args)
    model = Model(args.width, args.layers, args.length).to(job.device)
    # Small buckets: several all_reduces are under way while the gradients are still being computed.
    ddp = nn.parallel.DistributedDataParallel(
        model, device_ids=[job.local] if job.device.type == "cuda" else None, bucket_cap_mb=4
    )
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=5e-4)
    if job.rank == 0:
        count = sum(parameter.numel() for parameter in model.parameters())
        print(f"# {count} parameters, {count * 4 / 2**20:.1f} MiB of gradients per step")
    losses = open(args.out, "w", buffering=1) if job.rank == 0 else None
    looks = open(f"{args.out}.rank{job.rank}", "w", buffering=1)
    began = time.monotonic()
    looked = printed = began - 1e9
    step, first = 0, None
    while True:
        words = sample(step, job.rank, job.world, args.batch, args.length).to(job.device)
        loss = ddp(words)
        optimizer.zero_grad(set_to_none=True)
        if step == args.die and job.rank == job.world - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if step == args.stop and job.rank == job.world - 1:
            me = os.getpid()
            subprocess.Popen(["sh", "-c", f"kill -STOP {me}; sleep {args.still}; kill -CONT {me}"])
        loss.backward()
        optimizer.step()
        now = time.monotonic()
        # Rank 0's clock decides for all when to stop; its decision is sent with the loss.
        over = job.rank == 0 and args.seconds is not None and now - began >= args.seconds
        shared = torch.stack([loss.detach().double(), loss.new_tensor(float(over), dtype=torch.float64)])
        dist.all_reduce(shared)
        mean, over = shared.tolist()
        mean /= job.world
        first = mean if first is None else first
        if losses:
            losses.write(f"{step} {mean!r}\n")
        step += 1
        if now - looked >= args.every:
            looked = now
            held = dict(step=step, seconds=round(now - began, 1), **common.holdings(job))
            looks.write(json.dumps(held) + "\n")
            if now - printed >= 30:
                printed = now
                print(f"rank {job.rank}: loss {mean:.6f}, " + ", ".join(f"{name} {value}" for name, value in held.items()))
        if over or step == args.steps:
            break
    seconds = time.monotonic() - began
    looks.write(json.dumps(dict(step=step, seconds=round(seconds, 1), **common.holdings(job))) + "\n")
    parameters, equal = agree(model, job.world)
    if losses:
        losses.write(f"# parameters {parameters}\n")
        print(f"{step} steps, {seconds:.1f} s, {seconds / step * 1e3:.2f} ms a step, loss {first:.6f} -> {mean:.6f}")
    # Too few steps teach nothing.
    if step >= 300 and not mean < first:
        raise SystemExit(f"rank {job.rank}: the loss did not fall: {first} -> {mean}")
    if not equal:
        raise SystemExit(f"rank {job.rank}: the ranks' parameters differ")
    common.leave(job)


if __name__ == "__main__":
    main()
