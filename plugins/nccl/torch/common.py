# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What the programs beside this file share: joining the job, and seeing what the process holds.

They are started with the variables that torchrun sets, and know nothing of the transport: the environment chooses it.
"""

import ctypes
import datetime
import faulthandler
import os
import sys
import types

import torch
import torch.distributed as dist


def arguments(parser):
    parser.add_argument("--backend", default="nccl", help="gloo: the programs themselves, tried without a GPU")
    parser.add_argument("--limit", type=int, default=300, help="seconds after which a hang shows its stacks and ends")


def join(args):
    """Joins the job. Returns rank, world, device, backend."""
    # NCCL writes its log with C's stdout, which buffers 4 KiB and loses them when the process is killed for a hang:
    # they are the very lines that would explain the hang.
    libc = ctypes.CDLL(None)
    libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, 1, ctypes.c_size_t(0))
    sys.stdout.reconfigure(line_buffering=True)
    faulthandler.enable()
    faulthandler.dump_traceback_later(args.limit, exit=True)
    local = int(os.environ["LOCAL_RANK"])
    if args.backend == "nccl":
        torch.cuda.set_device(local)
        device = torch.device("cuda", local)
        if os.environ.get("GDRFAB_NCCL_GDR") == "1":
            # A copy to the host on the default stream waits inside the driver, and keeps the plugin out of it.
            torch.cuda.set_stream(torch.cuda.Stream())
    else:
        device = torch.device("cpu")
        torch.set_num_threads(1)
    dist.init_process_group(args.backend, timeout=datetime.timedelta(seconds=min(args.limit, 120)))
    job = types.SimpleNamespace(
        rank=dist.get_rank(), world=dist.get_world_size(), device=device, backend=args.backend, local=local
    )
    if job.rank == 0:
        library = f"{args.backend} {library_version(args.backend)}".rstrip()
        print(f"# torch {torch.__version__}, {library}, {job.world} ranks, {device_name(device)}")
    return job


def library_version(backend):
    return ".".join(str(part) for part in torch.cuda.nccl.version()) if backend == "nccl" else ""


def device_name(device):
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def barrier(job):
    # Without device_ids torch guesses the GPU from the rank, and logs a warning.
    if job.backend == "nccl":
        dist.barrier(device_ids=[job.local])
    else:
        dist.barrier()


def synchronize(job):
    if job.device.type == "cuda":
        torch.cuda.synchronize()


def leave(job, code=0):
    """Ends the process."""
    barrier(job)
    synchronize(job)
    dist.destroy_process_group()
    sys.stdout.flush()
    if job.backend != "nccl":
        # gloo's threads sometimes hang when the interpreter ends. NCCL's end is tested like everything else of NCCL.
        os._exit(code)
    sys.exit(code)


def holdings(job):
    """What a leak would show in: resident memory, descriptors, mappings, threads, device memory of torch and of the GPU."""
    found = {"fds": len(os.listdir("/proc/self/fd"))}
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                found["rss"] = int(line.split()[1]) * 1024
            elif line.startswith("Threads:"):
                found["threads"] = int(line.split()[1])
    with open("/proc/self/maps") as maps:
        found["maps"] = sum(1 for _ in maps)
    if job.device.type == "cuda":
        free, total = torch.cuda.mem_get_info()
        found["torch"] = torch.cuda.memory_allocated()
        # Memory of all processes on this GPU: no counter of a single process contains exported and imported device memory.
        found["gpu"] = total - free
    return found
