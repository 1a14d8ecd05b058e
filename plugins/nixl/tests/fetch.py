#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Unpacks wheels of NIXL for this Python from PyPI into the cache, and numpy if Python lacks it.

fetch.py [PACKAGE==VERSION...]: by default one. Of a wheel, only what the tests load is kept.
"""
import hashlib
import importlib.util
import io
import os
import platform
import re
import shutil
import sys
import urllib.parse
import urllib.request
import zipfile

CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "gdrfab-nixl")
DEFAULT = ["nixl-cu13==1.5.1"]
# Another project's kernels, and clients of stores of objects: half of the bytes, which no test loads.
LEFT_OUT = ("nixl_ep", "libucx_perftest", "libaws", "libazure", "libplugin_OBJ", "libplugin_AZURE", "libplugin_GPUNETIO", ".scripts/")


def get(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read()


def wheel_of(package, version):
    """Address and SHA-256 of the wheel for this Python, as the index has them."""
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    index = f"https://pypi.org/simple/{package}/"
    for link, digest in re.findall(r'href="([^"#]*)#sha256=([0-9a-f]{64})"', get(index).decode()):
        name = link.rsplit("/", 1)[-1]
        if f"-{version}-{tag}-{tag}-" in name and "manylinux" in name and platform.machine() in name:
            return name, urllib.parse.urljoin(index, link), digest
    raise RuntimeError(f"{package} {version} has no wheel for {tag} on {platform.machine()}")


def unpack(package, version, to):
    name, url, digest = wheel_of(package, version)
    print(f"fetching {name} from PyPI to {to}", flush=True)
    data = get(url)
    if hashlib.sha256(data).hexdigest() != digest:
        raise RuntimeError(f"{name} is damaged")
    new = f"{to}.new.{os.getpid()}"
    shutil.rmtree(new, ignore_errors=True)
    with zipfile.ZipFile(io.BytesIO(data)) as z:
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
    except Exception as e:  # no network, or no such wheel: whoever needs it goes without
        print(f"note: {e}", file=sys.stderr)
        sys.exit(1)
