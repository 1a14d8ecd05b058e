#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Unpacks wheels of NIXL for this Python into the cache, and numpy if Python lacks it. pip fetches them.

fetch.py [PACKAGE==VERSION...]: by default one. Of a wheel, only what the tests load is kept.
"""
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile

CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "gdrfab-nixl")
DEFAULT = ["nixl-cu13==1.5.1"]
# Kernels of another project, and clients of object stores: half of the bytes, and no test loads them.
LEFT_OUT = ("nixl_ep", "libucx_perftest", "libaws", "libazure", "libplugin_OBJ", "libplugin_AZURE", "libplugin_GPUNETIO", ".scripts/")


def unpack(package, version, to):
    """pip picks the wheel for this Python and checks it."""
    print(f"fetching {package} {version} with pip to {to}", flush=True)
    with tempfile.TemporaryDirectory() as wheels:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", wheels, f"{package}=={version}"]
        got = subprocess.run(pip, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if got.returncode != 0:
            raise RuntimeError(f"pip has no {package} {version}: {got.stderr.strip()[-300:]}")
        new = f"{to}.new.{os.getpid()}"
        shutil.rmtree(new, ignore_errors=True)
        with zipfile.ZipFile(os.path.join(wheels, os.listdir(wheels)[0])) as z:
            z.extractall(new, [n for n in z.namelist() if not any(part in n for part in LEFT_OUT)])
    shutil.rmtree(to, ignore_errors=True)
    os.rename(new, to)


def main():
    os.makedirs(CACHE, exist_ok=True)
    wanted = [(spec.split("==")[0], spec.split("==")[1], None) for spec in sys.argv[1:] or DEFAULT]
    if importlib.util.find_spec("numpy") is None:
        newest = "2.2.6" if sys.version_info[:2] < (3, 13) else "2.3.5"
        wanted.append(("numpy", newest, f"numpy-py{sys.version_info[0]}{sys.version_info[1]}"))
    for package, version, folder in wanted:
        to = os.path.join(CACHE, folder or f"{package}-{version}")
        if not os.path.isdir(to):
            unpack(package, version, to)


if __name__ == "__main__":
    try:
        main()
    except Exception as e:  # no pip, no network or no such wheel: the tests that need NIXL are skipped
        print(f"note: {e}", file=sys.stderr)
        sys.exit(1)
