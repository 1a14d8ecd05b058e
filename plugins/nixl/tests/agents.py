# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Claims about agents in processes of their own: a clean process forks them, and each loads NIXL itself."""
import ctypes
import importlib
import multiprocessing
import multiprocessing.connection
import os
import sys
import tempfile
import time
import traceback

CLAIMS = []
# The results that NIXL may report for a transfer to a dead peer.
GONE = ("ERR", "nixlRemoteDisconnectError")
PATIENCE = float(os.environ.get("TEST_TIME_SCALE", "1"))


def claim(count=2, over=("shm", "tcp"), env=None, killed=()):
    """A claim of `count` processes. `killed`: roles that need not end well."""

    def add(f):
        CLAIMS.append((f.__name__.replace("_", " "), f, count, over, env or {}, killed))
        return f

    return add


class Memory:
    """Bytes that NIXL may register."""

    def __init__(self, size, fill=0):
        self.size = size
        self.bytes = ctypes.create_string_buffer(size)
        self.addr = ctypes.addressof(self.bytes)
        if fill:
            ctypes.memset(self.addr, fill, size)

    def put(self, at, data):
        ctypes.memmove(self.addr + at, data, len(data))

    def get(self, at, size):
        return ctypes.string_at(self.addr + at, size)


class Self:
    """One process of a claim: its role, its agent, and the way to the others."""

    def __init__(self, role, count, pipes, api):
        self.role, self.count, self.pipes, self.api = role, count, pipes, api
        self.kept = []
        self.notes = []

    def put(self, role, value):
        self.pipes[role][self.role][1].send(value)

    def get(self, role=None, timeout=20, drive=True):
        """The next value that another role has put; progress goes on meanwhile."""
        until = time.monotonic() + timeout * PATIENCE
        while time.monotonic() < until:
            for i, (sender, value) in enumerate(self.kept):
                if role is None or sender == role:
                    del self.kept[i]
                    return value
            senders = {reader: sender for sender, (reader, _) in self.pipes[self.role].items()}
            ready = multiprocessing.connection.wait(senders, timeout=0.002 if drive else 0.2)
            self.kept += ((senders[reader], reader.recv()) for reader in ready)
            if not ready and drive and hasattr(self, "agent"):
                self.look()
        raise AssertionError(f"role {self.role}: nothing came from {role}")

    def open(self, thread=True, params=None, name=None):
        config = self.api.nixl_agent_config(enable_prog_thread=thread, backends=[])
        self.name = name or f"agent{self.role}"
        self.agent = self.api.nixl_agent(self.name, config)
        self.agent.create_backend("GDRFAB", params or {})
        return self.agent

    def register(self, memory):
        memory.handle = self.agent.register_memory([(memory.addr, memory.size, 0, "")], "DRAM")
        return memory

    def meet(self, memory, roles=None):
        """Tells the others metadata and the address of a region, and learns theirs."""
        others = [r for r in (range(self.count) if roles is None else roles) if r != self.role]
        for r in others:
            self.put(r, (self.agent.get_agent_metadata(), memory.addr if memory else 0))
        there = {}
        for r in others:
            metadata, addr = self.get(r)
            name = self.agent.add_remote_agent(metadata)
            there[r] = (name if isinstance(name, str) else name.decode(), addr)
        return there

    def descs(self, blocks):
        return self.agent.get_xfer_descs([(a, n, 0) for a, n in blocks], "DRAM")

    def handle(self, op, local, remote, agent, note=b""):
        return self.agent.initialize_xfer(op, self.descs(local), self.descs(remote), agent, note)

    def look(self):
        for sender, notes in self.agent.get_new_notifs().items():
            sender = sender if isinstance(sender, str) else sender.decode()
            self.notes.extend((sender, note) for note in notes)

    def note(self, timeout=20):
        until = time.monotonic() + timeout * PATIENCE
        while not self.notes:
            assert time.monotonic() < until, "no notification came"
            self.look()
        return self.notes.pop(0)

    def state(self, handle):
        try:
            return self.agent.check_xfer_state(handle)
        except Exception as e:
            return type(e).__name__

    def post(self, handle, note=b""):
        try:
            return self.agent.transfer(handle, note)
        except Exception as e:
            return type(e).__name__

    def wait(self, handle, timeout=20):
        until = time.monotonic() + timeout * PATIENCE
        while (state := self.state(handle)) == "PROC":
            assert time.monotonic() < until, "the transfer does not end"
            self.look()
        return state

    def do(self, handle, note=b""):
        state = self.post(handle, note)
        state = self.wait(handle) if state == "PROC" else state
        assert state == "DONE", state

    def release(self, handle):
        """Of a handle that may be active: asked again while it is refused, and no call waits."""
        until = time.monotonic() + 10 * PATIENCE
        while True:
            began = time.monotonic()
            try:
                return self.agent.release_xfer_handle(handle)
            except Exception:
                assert time.monotonic() < until, "it is never released"
            finally:
                assert time.monotonic() - began < 2 * PATIENCE, "release waits"

    def move(self, *args, **kwargs):
        handle = self.handle(*args, **kwargs)
        self.do(handle)
        self.agent.release_xfer_handle(handle)


def load(root):
    sys.path[:0] = [root, os.path.join(os.path.dirname(__file__), "stand-ins")]
    cache = os.path.join(os.path.dirname(root), f"numpy-py{sys.version_info[0]}{sys.version_info[1]}")
    if os.path.isdir(cache):
        sys.path.insert(0, cache)
    package = next(d for d in sorted(os.listdir(root)) if d in ("nixl_cu12", "nixl_cu13"))
    return importlib.import_module(package + "._api")


def child(f, role, count, pipes, root, env, log):
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(env)
    try:
        f(Self(role, count, pipes, load(root)))
        code = 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run(entry, over, root):
    """One claim over one provider: empty, or what went wrong."""
    name, f, count, _, env, killed = entry
    env = {"GDRFAB_PROVIDER": over, "GDRFAB_TCP_IFACE": "lo", "TEST_ROOT": root, **env}
    fork = multiprocessing.get_context("fork")
    # One pipe for each sender and receiver, so that a sender that is killed while it writes delays no other (-1: this
    # process).
    pipes = [{sender: fork.Pipe(duplex=False) for sender in range(-1, count)} for _ in range(count)]
    with tempfile.TemporaryFile() as log:
        children = [fork.Process(target=child, args=(f, role, count, pipes, root, env, log.fileno())) for role in range(count)]
        for c in children:
            c.start()
        pipes[0][-1][1].send([c.pid for c in children])
        until = time.monotonic() + 50 * PATIENCE
        late = False
        for c in children:
            c.join(max(0.1, until - time.monotonic()))
            late = late or c.is_alive()
        for c in children:
            if c.is_alive():
                c.kill()
                c.join()
        wrong = [r for r, c in enumerate(children) if c.exitcode != 0 and r not in killed]
        if not late and not wrong:
            return ""
        log.seek(0)
        words = log.read().decode(errors="replace")
        return f"{'took too long; ' if late else ''}roles {wrong} ended badly\n{words[-6000:]}"
