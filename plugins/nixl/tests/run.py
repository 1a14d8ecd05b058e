#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""run.py [--claim TEXT] ROOT...: the claims with each unpacked wheel, in whose plugins folder the plugin lies."""
import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import agents
import claims  # noqa: F401: fills the list
import claims_bad  # noqa: F401
import claims_end  # noqa: F401
import claims_rails


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--claim", default="")
    parser.add_argument("--over", default="")
    parser.add_argument("--alone", action="store_true", help="one claim, by its whole name, in this process")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("roots", nargs="+")
    args = parser.parse_args()
    if args.alone:
        entry = next(e for e in agents.CLAIMS if e[0] == args.claim)
        wrong = agents.run(entry, args.over, args.roots[0])
        print(wrong)
        return 1 if wrong else 0
    todo = [(entry, over, root) for root in args.roots for entry in agents.CLAIMS for over in entry[3]
            if args.claim in entry[0] and args.over in over]
    failed = skipped = 0
    if claims_rails.WHY_NOT and args.claim in claims_rails.NAME:
        print(f"skip {claims_rails.NAME}: {claims_rails.WHY_NOT}")
        skipped = 1

    def one(job):
        """In a process of its own, because only one thread may fork and await children."""
        (name, *_), over, root = job
        began = time.monotonic()
        program = [sys.executable, __file__, "--alone", "--claim", name, "--over", over, root]
        ended = subprocess.run(program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        return job, ended.returncode and (ended.stdout or "died"), time.monotonic() - began

    with ThreadPoolExecutor(args.jobs) as pool:
        for (entry, over, root), wrong, took in pool.map(one, todo):
            failed += bool(wrong)
            where = f"{os.path.basename(root)}: {entry[0]} over {over} ({took:.1f} s)"
            print(f"FAIL {where}: {wrong}" if wrong else f"ok   {where}", flush=True)
    done = len(todo)
    print(f"{done - failed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not done + skipped else 0


if __name__ == "__main__":
    sys.exit(main())
