#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Prefill and decode as two processes: decode reads the blocks of a paged KV cache from prefill, through NIXL over gdrfab.

python3 nixl_prefill.py    needs a wheel of NIXL in which the plugin is installed: docs/nixl.md
"""
import multiprocessing
import time

import numpy as np

LAYERS, PAGES, PAGE = 4, 256, 16 * 1024


def agent_of(name):
    try:
        from nixl_cu13._api import nixl_agent, nixl_agent_config
    except ImportError:
        from nixl_cu12._api import nixl_agent, nixl_agent_config
    return nixl_agent(name, nixl_agent_config(backends=["GDRFAB"]))


def cache_of(agent, fill):
    cache = np.full((LAYERS, PAGES, PAGE), fill, dtype=np.uint8)
    agent.register_memory([(cache.ctypes.data, cache.nbytes, 0, "")], "DRAM")
    return cache


def pages(base, which):
    """Where each of these pages lies, in every layer."""
    return [(base + (layer * PAGES + page) * PAGE, PAGE, 0) for layer in range(LAYERS) for page in which]


def prefill(pipe):
    agent = agent_of("prefill")
    cache = cache_of(agent, 0)
    used = list(range(3, 99, 3))
    for page in used:
        cache[:, page] = page
    pipe.send((agent.get_agent_metadata(), cache.ctypes.data, used))
    while b"request 1" not in agent.get_new_notifs().get("decode", []):
        time.sleep(0.001)  # until then the pages belong to decode


def decode(pipe):
    agent = agent_of("decode")
    cache = cache_of(agent, 255)
    metadata, base, used = pipe.recv()
    name = agent.add_remote_agent(metadata)
    mine = list(range(len(used)))
    local = agent.get_xfer_descs(pages(cache.ctypes.data, mine), "DRAM")
    remote = agent.get_xfer_descs(pages(base, used), "DRAM")
    handle = agent.initialize_xfer("READ", local, remote, name, b"request 1")
    state = agent.transfer(handle)
    while state == "PROC":
        state = agent.check_xfer_state(handle)
    assert state == "DONE", state
    assert all((cache[:, m] == u).all() for m, u in zip(mine, used))
    agent.release_xfer_handle(handle)
    print(f"{len(used)} pages of {LAYERS} layers, {PAGE} bytes each: read and right")


if __name__ == "__main__":
    here, there = multiprocessing.Pipe()
    other = multiprocessing.get_context("spawn").Process(target=prefill, args=(there,))
    other.start()
    decode(here)
    other.join()
