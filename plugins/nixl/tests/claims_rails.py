# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What holds of two agents in network namespaces of their own, with two links between them (GDRFAB_TCP_RAILS).

    claims_rails.py ROOT [RATE]     MB/s over one link of RATE (1gbit) and over two
"""
import ctypes
import os
import subprocess
import sys
import tempfile
import time

import agents
from agents import Memory

MIB = 1 << 20
CLONE_NEWNET = 0x40000000
LINKS = ("rail0", "rail1")
# The second link is used when the first cannot carry everything.
SHAPE = "tbf rate %s burst 128k latency 20ms"
NAME = "two links carry it and either may break"


def ip(*words):
    subprocess.run(("ip",) + words, check=True, stderr=subprocess.STDOUT)


def cannot():
    """Why there are no such namespaces here, or nothing."""
    try:
        make = f"ip link add rail0 type veth peer name rail1 && tc qdisc add dev rail0 root {SHAPE % '1gbit'}"
        tried = subprocess.run(("unshare", "-n", "sh", "-c", make), capture_output=True, text=True)
    except OSError as e:
        return str(e)
    return tried.returncode and (tried.stderr.strip() or "no unshare")


def part(s, rate):
    """Each process goes into a namespace of its own; role 0 makes the links, each its end's address."""
    pids = s.get(-1, drive=False) if s.role == 0 else None
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
    if s.role == 0:
        assert s.get(1, drive=False) == "apart"
        for link in LINKS:
            ip("link", "add", link, "type", "veth", "peer", "name", link, "netns", str(pids[1]))
        s.put(1, "linked")
    else:
        s.put(0, "apart")
        assert s.get(0, drive=False) == "linked"
    ip("link", "set", "lo", "up")
    for i, link in enumerate(LINKS):
        ip("addr", "add", f"10.79.{i}.{s.role + 1}/24", "dev", link)
        ip("link", "set", link, "up")
        subprocess.run(["tc", "qdisc", "add", "dev", link, "root"] + (SHAPE % rate).split(), check=True)
    s.put(1 - s.role, "up")
    assert s.get(1 - s.role, drive=False) == "up"


def carried():
    """Bytes that have left by each link."""
    with open("/proc/thread-self/net/dev") as f:
        lines = dict(line.split(":") for line in f if ":" in line)
    counts = {name.strip(): int(words.split()[8]) for name, words in lines.items()}
    return [counts[link] for link in LINKS]


def parted(s):
    part(s, "200mbit")
    s.open()
    size = 4 * MIB
    mine = s.register(Memory(2 * size, 1 + s.role))
    name, there = s.meet(mine)[1 - s.role]
    if s.role == 1:
        # This agent's own progress thread serves the peer.
        assert s.get(0, timeout=40, drive=False) == "end"
        s.put(0, "end")
        return

    turns = 0

    def move(seconds):
        """There and back, each time other bytes, for so long at least; what left by each link meanwhile."""
        nonlocal turns
        before, until = carried(), time.monotonic() + seconds
        while time.monotonic() < until:
            turns += 1
            data = bytes([turns % 251, turns % 241, turns % 239, 7]) * (size // 4)
            mine.put(0, data)
            mine.put(size, bytes(size))
            s.move("WRITE", [(mine.addr, size)], [(there, size)], name)
            s.move("READ", [(mine.addr + size, size)], [(there, size)], name)
            assert mine.get(size, size) == data, turns
        return [after - b for after, b in zip(carried(), before)]

    def both_carry():
        """A link that was cut comes back within a time of the library's choosing."""
        for _ in range(20):
            sent = move(0.3)
            if min(sent) > sum(sent) // 10:
                return True
        return False

    assert both_carry()
    for link in LINKS:
        handle = s.handle("WRITE", [(mine.addr, size)], [(there, size)], name, b"")
        state = s.post(handle)
        ip("link", "set", link, "down")
        assert state == "DONE" or s.wait(handle) == "DONE"
        s.agent.release_xfer_handle(handle)
        sent = move(0.6)
        assert sent[LINKS.index(link)] < sum(sent) // 10, (link, sent)
        ip("link", "set", link, "up")
        assert both_carry(), link
    s.put(1, "end")
    s.get(1)


RAILS = {"GDRFAB_TCP_IFACE": LINKS[0], "GDRFAB_TCP_RAILS": ",".join(LINKS), "GDRFAB_TCP_RAIL_TIMEOUT_MS": "200"}
WHY_NOT = cannot()
if not WHY_NOT:
    agents.CLAIMS.append((NAME, parted, 2, ("tcp",), RAILS, ()))


# ---- figures


def timed(s):
    part(s, os.environ["RATE"])
    s.open()
    size = 64 * MIB
    mine = s.register(Memory(size, 1 + s.role))
    name, there = s.meet(mine)[1 - s.role]
    if s.role == 0:
        handles = [s.handle("WRITE", [(mine.addr + at, size // 2)], [(there + at, size // 2)], name, b"") for at in (0, size // 2)]
        for handle in handles:
            s.do(handle)
        began, count = time.monotonic(), 0
        while time.monotonic() < began + 5:
            for handle in handles:
                s.post(handle)
            for handle in handles:
                assert s.wait(handle) == "DONE"
            count += 1
        with open(os.environ["RESULT"], "w") as f:
            f.write(str(count * size / 1e6 / (time.monotonic() - began)))
    s.put(1 - s.role, "end")
    s.get(1 - s.role)


def main():
    root, rate = sys.argv[1], (sys.argv[2:] or ["1gbit"])[0]
    one = {"GDRFAB_TCP_IFACE": LINKS[0]}
    for words, env in (("one link", one), ("two links", RAILS), ("one link", one), ("two links", RAILS)):
        with tempfile.NamedTemporaryFile("r") as result:
            wrong = agents.run((NAME, timed, 2, (), {**env, "RATE": rate, "RESULT": result.name}, ()), "tcp", root)
            print(f"{words} of {rate}: {wrong or round(float(result.read()), 1)} MB/s", flush=True)


if __name__ == "__main__":
    main()
