# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A target that dies at each stage of a transfer, or stops and comes back; a third agent is served all the same."""
import os
import signal
import time

from agents import GONE, Memory, claim

MIB = 1 << 20
TIMEOUT = {"GDRFAB_NIXL_TIMEOUT": "5"}


def dies(s, size, op, note, first, active):
    """Role 1 is killed once role 0 has posted this, or before."""
    s.open(params=TIMEOUT, thread=s.role != 1)
    mine = s.register(Memory(size, 1 + s.role))
    pids = s.get(-1) if s.role == 0 else None
    there = s.meet(mine, None if s.role == 0 else (0,))
    if s.role == 1:
        if first:
            assert s.note()[1] == b"first"
        # Without the progress thread, nothing makes progress here.
        time.sleep(60)
    if s.role == 2:
        assert s.note(40) == ("agent0", b"third")
        s.put(0, "end")
        return
    name, addr = there[1]
    if first:
        s.move("WRITE", [(mine.addr, 64)], [(addr, 64)], name, b"first")
    handle = s.handle(op, [(mine.addr, size)], [(addr, size)], name, note)
    if active:
        state = s.post(handle)
    os.kill(pids[1], signal.SIGKILL)
    began = time.monotonic()
    if not active:
        state = s.post(handle)
    state = s.wait(handle) if state == "PROC" else state
    # Transfers that ended before the kill succeeded.
    assert state in GONE or (active and state == "DONE"), state
    assert time.monotonic() - began < 15, "too late"
    mine.put(0, b"k" * size)
    name, addr = there[2]
    s.move("WRITE", [(mine.addr, size)], [(addr, size)], name, b"third")
    assert s.get(2) == "end"
    assert mine.get(0, size) == b"k" * size
    s.release(handle)
    return state


@claim(count=3, killed=(1,))
def a_target_that_dies_before_it_is_reached(s):
    dies(s, MIB, "WRITE", b"n", first=False, active=False)


@claim(count=3, killed=(1,))
def a_target_that_dies_while_it_is_written(s):
    dies(s, 64 * MIB, "WRITE", b"n", first=True, active=True)


@claim(count=3, killed=(1,))
def a_target_that_dies_while_it_is_read(s):
    dies(s, 64 * MIB, "READ", b"n", first=True, active=True)


@claim(count=3, killed=(1,))
def a_target_that_dies_while_it_is_notified(s):
    # More notifications than its receives can take.
    state = dies(s, 4096, "WRITE", b"n" * (32 * MIB), first=True, active=True)
    assert s.role != 0 or state in GONE, state


@claim(over=("tcp",), env={"GDRFAB_NIXL_TIMEOUT": "2"})
def a_handle_is_posted_again_to_a_target_that_came_back(s):
    s.open()
    mine = s.register(Memory(4 * MIB, 1 + s.role))
    pids = s.get(-1) if s.role == 0 else None
    name, there = s.meet(mine)[1 - s.role]
    if s.role == 1:
        assert s.get(0) == "look" and mine.get(0, MIB) == b"\x07" * MIB
        return s.put(0, "end")
    handle = s.handle("WRITE", [(mine.addr, MIB)], [(there, MIB)], name)
    s.do(handle)
    os.kill(pids[1], signal.SIGSTOP)
    state = "DONE"
    while state == "DONE":
        state = s.post(handle)
        state = s.wait(handle) if state == "PROC" else state
    os.kill(pids[1], signal.SIGCONT)
    assert state in GONE, state
    mine.put(0, b"\x07" * MIB)
    for _ in range(20):
        state = s.post(handle)
        state = s.wait(handle) if state == "PROC" else state
        if state == "DONE":
            break
        time.sleep(0.1)
    assert state == "DONE", state
    s.put(1, "look")
    assert s.get(1) == "end"


@claim()
def an_agent_counts_what_it_moves(s):
    s.open()
    mine = s.register(Memory(65536, 1))
    name, there = s.meet(mine)[1 - s.role]
    if s.role == 1:
        return s.get(0)

    def counts():
        params = s.agent.agent.getBackendParams(s.agent.backends["GDRFAB"])[0]
        return {k: int(v) for k, v in params.items() if k.startswith(("bytes_", "peers_"))}

    before = counts()
    assert before and not any(before.values()), before
    for _ in range(3):
        s.move("WRITE", [(mine.addr, 65536)], [(there, 65536)], name)
    after = counts()
    over = os.environ["GDRFAB_PROVIDER"]
    assert after.pop(f"peers_{over}") == 1, after
    assert max(after.values()) == sum(after.values()) == 3 * 65536, after
    s.put(1, "end")


@claim()
def two_backends_share_an_agent(s):
    s.open()
    s.agent.create_backend("UCX")
    mine = s.register(Memory(2 * MIB, 1 + s.role))
    name, there = s.meet(mine)[1 - s.role]
    if s.role == 0:
        for i, backend in enumerate(("GDRFAB", "UCX", "GDRFAB")):
            mine.put(0, bytes([i + 5]) * MIB)
            handle = s.agent.initialize_xfer("WRITE", s.descs([(mine.addr, MIB)]), s.descs([(there, MIB)]), name, b"%d" % i,
                                             backends=[backend])
            s.do(handle)
            assert s.get(1) == "seen"
            s.agent.release_xfer_handle(handle)
    else:
        for i in range(3):
            assert s.note() == ("agent0", b"%d" % i)
            assert mine.get(0, MIB) == bytes([i + 5]) * MIB
            s.put(0, "seen")
