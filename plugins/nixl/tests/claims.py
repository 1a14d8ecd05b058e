# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What holds of two agents and more."""
import os
import signal
import time

from agents import GONE, Memory, claim

MIB = 1 << 20


def moves(s, thread):
    s.open(thread=thread)
    size = 24 * MIB
    mine = s.register(Memory(size, 1 + s.role))
    name, there = s.meet(mine)[1 - s.role]
    if s.role == 0:
        for n, at in ((1, 5), (4096, 64), (MIB + 3, 4099), (20 * MIB, MIB)):
            mine.put(at, bytes([n % 251 + 2]) * n)
            s.move("WRITE", [(mine.addr + at, n)], [(there + at, n)], name, b"wrote %d %d" % (n, at))
            assert s.get(1) == "seen"
        s.put(1, "read")
        blocks = [(i * 8192, 4096) for i in range(500)]
        s.move("READ", [(mine.addr + a, n) for a, n in blocks], [(there + a, n) for a, n in reversed(blocks)], name, b"have read")
        for a, n in blocks:
            start = blocks[-1][0] - a
            assert mine.get(a, n) == bytes([start // 8192 % 256]) * n, a
    else:
        for _ in range(4):
            who, note = s.note()
            n, at = map(int, note.split()[1:])
            # When the notification is there, the data is too.
            assert mine.get(at, n) == bytes([n % 251 + 2]) * n
            assert who == "agent0", who
            for i in range(500):
                mine.put(i * 8192, bytes([i % 256]) * 8192)
            s.put(0, "seen")
        assert s.get(0) == "read"
        assert s.note() == ("agent0", b"have read")
    s.put(1 - s.role, "end")
    s.get(1 - s.role)


@claim()
def reads_and_writes_and_what_is_notified_is_there(s):
    moves(s, True)


@claim()
def without_a_progress_thread(s):
    moves(s, False)


@claim()
def handles_are_posted_again_and_prepared_lists_serve_many(s):
    s.open()
    count, size = 64, 4096
    mine = s.register(Memory(count * size, 7 if s.role == 0 else 0))
    name, there = s.meet(mine)[1 - s.role]
    if s.role == 0:
        handle = s.handle("WRITE", [(mine.addr, size)], [(there, size)], name, b"first")
        for i in range(1000):
            s.do(handle, b"%d" % i)
        s.agent.release_xfer_handle(handle)
        local = s.agent.prep_xfer_dlist("NIXL_INIT_AGENT", s.descs([(mine.addr + i * size, size) for i in range(count)]))
        remote = s.agent.prep_xfer_dlist(name, s.descs([(there + i * size, size) for i in range(count)]))
        for i in range(0, count, 4):
            which = [i, i + 2]
            handle = s.agent.make_prepped_xfer("WRITE", local, which, remote, which, b"made")
            s.do(handle)
            s.agent.release_xfer_handle(handle)
        s.put(1, "end")
        s.get(1)
    else:
        notes = [s.note()[1] for _ in range(1000 + count // 4)]
        # NIXL promises no order.
        assert sorted(notes) == sorted([b"%d" % i for i in range(1000)] + [b"made"] * (count // 4))
        assert s.get(0) == "end"
        for i in range(count):
            assert mine.get(i * size, size) == (b"\x07" if i % 2 == 0 else b"\0") * size, i
        s.put(0, "end")


@claim()
def notifications_of_any_length_without_data_and_to_self(s):
    s.open(thread=s.role == 0)
    mine = s.register(Memory(4096))
    name, _ = s.meet(mine)[1 - s.role]
    texts = [b"", b"x", b"y" * 8000, b"z" * 8200, bytes(range(256)) * 400, b"long" * 700000] + [b"%d" % i for i in range(300)]
    for text in texts:
        s.agent.send_notif(name, text)
    s.agent.send_notif(s.name, b"to myself")
    got = [s.note() for _ in range(len(texts) + 1)]
    assert (s.name, b"to myself") in got
    assert sorted(t for n, t in got if n == name) == sorted(texts)
    s.put(1 - s.role, "end")
    s.get(1 - s.role)


@claim(count=1)
def an_agent_is_its_own_peer(s):
    s.open()
    mine = s.register(Memory(2 * MIB, 3))
    mine.put(0, b"q" * MIB)
    s.move("WRITE", [(mine.addr, MIB)], [(mine.addr + MIB, MIB)], s.name, b"done")
    assert mine.get(MIB, MIB) == b"q" * MIB
    assert s.note() == (s.name, b"done")


@claim(killed=(1,))
def a_target_that_is_killed(s):
    s.open(params={"GDRFAB_NIXL_TIMEOUT": "5"})
    mine = s.register(Memory(MIB, 1))
    pids = s.get(-1) if s.role == 0 else None
    name, there = s.meet(mine)[1 - s.role]
    if s.role == 1:
        time.sleep(60)
    handle = s.handle("WRITE", [(mine.addr, MIB)], [(there, MIB)], name, b"n")
    s.do(handle)
    os.kill(pids[1], signal.SIGKILL)
    began = time.monotonic()
    for _ in range(100000):
        state = s.post(handle)
        state = s.wait(handle) if state == "PROC" else state
        if state != "DONE":
            break
    assert state in GONE, state
    assert time.monotonic() - began < 15
    s.agent.release_xfer_handle(handle)


@claim(count=3, killed=(1,))
def an_agent_that_comes_back_is_reached_again(s):
    mine = Memory(MIB, 9)
    if s.role == 2:
        s.get(0, drive=False)
    pids = s.get(-1, drive=False) if s.role == 0 else None
    s.open(name="one" if s.role == 0 else "other")
    s.register(mine)
    if s.role > 0:
        name, _ = s.meet(mine, (0,))[0]
        if s.role == 1:
            time.sleep(60)
        assert s.note() == ("one", b"2") and mine.get(0, MIB) == b"\x09" * MIB
        s.put(0, "end")
        return
    name, there = s.meet(mine, (1,))[1]
    s.move("WRITE", [(mine.addr, MIB)], [(there, MIB)], name, b"1")
    os.kill(pids[1], signal.SIGKILL)
    s.agent.remove_remote_agent(name)
    s.put(2, "go")
    name, there = s.meet(mine, (2,))[2]
    s.move("WRITE", [(mine.addr, MIB)], [(there, MIB)], name, b"2")
    assert s.get(2) == "end"


@claim(over=("tcp",), env={"GDRFAB_NIXL_TIMEOUT": "2"})
def a_target_that_stops_is_given_up_in_time(s):
    s.open()
    mine = s.register(Memory(4 * MIB, 1))
    pids = s.get(-1) if s.role == 0 else None
    name, there = s.meet(mine)[1 - s.role]
    if s.role == 0:
        handle = s.handle("WRITE", [(mine.addr, MIB)], [(there, MIB)], name)
        s.do(handle)
        os.kill(pids[1], signal.SIGSTOP)
        state = "DONE"
        # A thread of the target may still be working for a moment.
        while state == "DONE":
            began = time.monotonic()
            state = s.post(handle)
            state = s.wait(handle) if state == "PROC" else state
        took = time.monotonic() - began
        os.kill(pids[1], signal.SIGCONT)
        assert state in GONE and 1 < took < 15, (state, took)
        s.put(1, "end")
    else:
        s.get(0)


@claim()
def a_hundred_thousand_blocks(s):
    count, size = 100000, 512
    s.open()
    mine = s.register(Memory(count * size * 2, 5 if s.role == 0 else 0))
    name, there = s.meet(mine)[1 - s.role]
    if s.role == 0:
        handle = s.handle("WRITE", [(mine.addr + i * 2 * size, size) for i in range(count)],
                          [(there + i * 2 * size, size) for i in range(count)], name, b"all")
        s.do(handle)
        s.agent.release_xfer_handle(handle)
        s.get(1)
    else:
        s.note()
        assert mine.get(0, count * size * 2) == (b"\x05" * size + b"\0" * size) * count
        s.put(0, "end")


@claim()
def an_active_request_is_released(s):
    s.open(thread=s.role == 0)
    size = 256 * MIB
    mine = s.register(Memory(size, 1))
    name, there = s.meet(mine)[1 - s.role]
    if s.role == 0:
        for _ in range(3):
            handle = s.handle("READ", [(mine.addr, size)], [(there, size)], name)
            s.post(handle)
            s.release(handle)
            mine.put(0, b"k" * 4096)
        s.put(1, "end")
        s.get(1)
        assert mine.get(0, 4096) == b"k" * 4096
    else:
        s.get(0)
        s.put(0, "end")


@claim()
def an_agent_is_removed_while_a_transfer_is_under_way(s):
    s.open()
    size = 64 * MIB
    mine = s.register(Memory(size, 1))
    name, there = s.meet(mine)[1 - s.role]
    if s.role == 0:
        handle = s.handle("READ", [(mine.addr, size)], [(there, size)], name)
        s.post(handle)
        s.agent.remove_remote_agent(name)
        until = time.monotonic() + 10
        while s.state(handle) == "PROC":
            assert time.monotonic() < until
        # A copy that was begun may still be running.
        s.release(handle)
        s.put(1, "end")
    else:
        s.get(0)


@claim(count=10)
def ten_agents_all_to_all(s):
    s.open()
    size = 65536
    mine = s.register(Memory(size * (s.count + 1), 1 + s.role))
    there = s.meet(mine)
    handles = [s.handle("WRITE", [(mine.addr + size * s.count, size)], [(addr + size * s.role, size)], name, b"all")
               for name, addr in there.values()]
    for h in handles:
        s.post(h)
    for h in handles:
        assert s.wait(h) == "DONE"
    notes = sorted(s.note()[0] for _ in there)
    assert notes == sorted(name for name, _ in there.values())
    for r in there:
        assert mine.get(size * r, size) == bytes([1 + r]) * size, r
    for r in there:
        s.put(r, "end")
    for r in there:
        s.get(r)
