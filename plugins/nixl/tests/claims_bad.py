# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What nobody should give: damaged metadata, parameters that cannot be, a NIXL of another border."""
import glob
import os
import shutil
import struct
import subprocess
import sys
import tempfile

from agents import GONE, Memory, claim

MARK = b"gdrfabNA"


def refused(call):
    try:
        call()
    except Exception as e:
        return type(e).__name__
    return None


def fnv(data):
    h = 2166136261
    for byte in data:
        h = (h ^ byte) * 16777619 & 0xFFFFFFFF
    return h


@claim(over=("shm",))
def damaged_metadata_is_an_error_and_others_are_served(s):
    s.open()
    mine = s.register(Memory(65536, 4))
    if s.role == 1:
        s.put(0, s.agent.get_agent_metadata())
    else:
        metadata = s.get(1)
        at = metadata.index(MARK)
        for cut in list(range(0, len(metadata), 7)) + [len(metadata) - 1]:
            assert refused(lambda: s.agent.add_remote_agent(metadata[:cut])), cut
        # The plugin's own part, with its length unchanged: a change of any byte must be noticed.
        for i in range(at, at + 88):
            bad = metadata[:i] + bytes([metadata[i] ^ 0x41]) + metadata[i + 1:]
            assert refused(lambda: s.agent.add_remote_agent(bad)), i
        region = metadata.index(b"gdrfabNR")
        bad = metadata[:region + 20] + b"\xff" + metadata[region + 21:]
        refused(lambda: s.agent.add_remote_agent(bad))
        refused(lambda: s.agent.remove_remote_agent("agent1"))
    name, there = s.meet(mine)[1 - s.role]
    if s.role == 0:
        s.move("WRITE", [(mine.addr, 65536)], [(there, 65536)], name, b"fine")
        s.get(1)
    else:
        assert s.note() == ("agent0", b"fine")
        s.put(0, "end")


@claim()
def only_who_has_the_metadata_notifies(s):
    s.open()
    mine = s.register(Memory(4096))
    if s.role == 1:
        s.put(0, s.agent.get_agent_metadata())
        s.get(0)
        assert s.note() == ("agent0", b"with the secret")
        s.put(0, "end")
        return
    metadata = s.get(1)
    at = metadata.index(MARK)
    body = bytearray(metadata[at:at + 84])
    body[14] ^= 1
    forged = metadata[:at] + bytes(body) + struct.pack("<I", fnv(body)) + metadata[at + 88:]
    name = s.agent.add_remote_agent(forged)
    s.agent.send_notif(name, b"without")
    s.agent.remove_remote_agent(name)
    name = s.agent.add_remote_agent(metadata)
    s.agent.send_notif(name, b"with the secret")
    s.put(1, "sent")
    assert s.get(1) == "end"


def renamed(metadata, nonce):
    """Metadata with other random bits in the agent's name."""
    at = metadata.index(MARK)
    body = bytearray(metadata[at:at + 84])
    body[60:68] = bytes(8) if nonce is None else bytes(b ^ nonce for b in body[60:68])
    return metadata[:at] + bytes(body) + struct.pack("<I", fnv(body)) + metadata[at + 88:]


@claim(count=3)
def only_who_has_the_metadata_connects(s):
    s.open()
    mine = s.register(Memory(4096, 1 + s.role))
    if s.role == 0:
        for r in (1, 2):
            s.put(r, (s.agent.get_agent_metadata(), mine.addr))
        for r in (1, 2):
            assert s.get(r) == "end"
        assert mine.get(0, 4096) == b"\x02" * 4096
        return
    metadata, there = s.get(0)
    # In one metadata the name is another, in the other only the address at which the agent listens.
    name = s.agent.add_remote_agent(renamed(metadata, 1 if s.role == 1 else None))
    handle = s.handle("WRITE", [(mine.addr, 4096)], [(there, 4096)], name)
    state = s.post(handle)
    state = s.wait(handle) if state == "PROC" else state
    assert state in GONE, state
    s.release(handle)
    if s.role == 1:
        s.agent.remove_remote_agent(name)
        name = s.agent.add_remote_agent(metadata)
        s.move("WRITE", [(mine.addr, 4096)], [(there, 4096)], name)
    s.put(0, "end")


@claim(count=1, over=("tcp",))
def parameters_that_cannot_be(s):
    with tempfile.TemporaryDirectory() as folder:
        open_to_all, good = os.path.join(folder, "open"), os.path.join(folder, "good")
        for path, mode in ((open_to_all, 0o644), (good, 0o600)):
            with open(path, "wb") as f:
                f.write(b"k" * 32)
            os.chmod(path, mode)
        for i, params in enumerate(({"GDRFAB_PROVIDER": "carrier pigeon"}, {"GDRFAB_TCP_IFACE": "nosuch0"}, {"GDRFAB_NIXL_TIMEOUT": "soon"},
                                    {"GDRFAB_NIXL_TIMEOUT": "-1"}, {"GDRFAB_TCP_KEY_FILE": folder + "/none"}, {"GDRFAB_NO_SUCH": "1"},
                                    {"GDRFAB_TCP_STREAMS": "17"}, {"GDRFAB_TCP_STREAMS": "two"}, {"GDRFAB_TCP_STREAMS": "2", "GDRFAB_PROVIDER": "shm"},
                                    {"GDRFAB_TCP_KEY_FILE": open_to_all})):
            assert refused(lambda: s.open(params=params, name=f"bad{i}")), params
        s.open(params={"GDRFAB_TCP_KEY_FILE": good}, name="good")
    assert set(s.agent.get_plugin_params("GDRFAB")) == {"GDRFAB_PROVIDER", "GDRFAB_TCP_IFACE", "GDRFAB_TCP_KEY_FILE", "GDRFAB_TCP_STREAMS", "GDRFAB_NIXL_TIMEOUT"}


@claim(count=1, over=("shm",))
def a_nixl_of_another_border_is_refused(s):
    root = os.environ["TEST_ROOT"]
    with tempfile.TemporaryDirectory(dir=os.path.dirname(root)) as folder:
        other = os.path.join(folder, "nixl")
        shutil.copytree(root, other, copy_function=os.link, symlinks=True)
        ucx = glob.glob(other + "/.nixl*.libs/plugins/libplugin_UCX.so")[0]
        for path in glob.glob(os.path.dirname(ucx) + "/libplugin_*.so"):
            if path != ucx and not path.endswith("GDRFAB.so"):
                os.unlink(path)
        with open(ucx, "rb") as f:
            data = f.read()
        table = struct.pack("<Q", 232)
        os.unlink(ucx)
        with open(ucx, "wb") as f:
            f.write(data.replace(table, struct.pack("<Q", 240)))
        os.symlink(os.path.join(os.path.dirname(root), numpy_folder()), os.path.join(folder, numpy_folder()))
        code = ("import sys; sys.path.insert(0, %r); import agents; api = agents.load(%r)\n"
                "a = api.nixl_agent('a', api.nixl_agent_config(backends=[])); a.create_backend('GDRFAB')")
        program = [sys.executable, "-c", code % (os.path.dirname(__file__), other)]
        ended = subprocess.run(program, capture_output=True, timeout=30)
        assert ended.returncode == 1 and b"has 28 functions, not 27" in ended.stderr, ended.stderr


def numpy_folder():
    return f"numpy-py{sys.version_info[0]}{sys.version_info[1]}"


@claim(env={"NIXL_LOG_LEVEL": "INFO"})
def the_log_has_one_line_of_each_peer_with_its_path(s):
    s.open()
    mine = s.register(Memory(65536))
    name, there = s.meet(mine)[1 - s.role]
    if s.role == 0:
        with tempfile.TemporaryFile() as log:
            was = os.dup(2)
            os.dup2(log.fileno(), 2)
            for _ in range(3):
                s.move("WRITE", [(mine.addr, 65536)], [(there, 65536)], name)
            os.dup2(was, 2)
            log.seek(0)
            lines = [line for line in log.read().decode().splitlines() if "agent agent1: " in line]
        paths = ["over tcp: socket"] if os.environ["GDRFAB_PROVIDER"] == "tcp" else ["over shm: cma", "over shm: staged"]
        assert len(lines) == 1 and any(p in lines[0] for p in paths), lines
        s.put(1, "end")
    else:
        s.get(0)
