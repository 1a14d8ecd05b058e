#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""run.py [--claim TEXT] ROOT...: the claims with each unpacked wheel, in whose plugins folder the plugin lies."""
import argparse
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import agents
import claims  # noqa: F401: fills the list
import claims_bad  # noqa: F401


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--claim", default="")
    parser.add_argument("--over", default="")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("roots", nargs="+")
    args = parser.parse_args()
    todo = [(entry, over, root) for root in args.roots for entry in agents.CLAIMS for over in entry[3]
            if args.claim in entry[0] and args.over in over]
    failed = 0

    def one(job):
        began = time.monotonic()
        return job, agents.run(*job), time.monotonic() - began

    with ThreadPoolExecutor(args.jobs) as pool:
        for (entry, over, root), wrong, took in pool.map(one, todo):
            failed += bool(wrong)
            where = f"{os.path.basename(root)}: {entry[0]} over {over} ({took:.1f} s)"
            print(f"FAIL {where}: {wrong}" if wrong else f"ok   {where}", flush=True)
    done = len(todo)
    print(f"{done - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed or not done else 0


if __name__ == "__main__":
    sys.exit(main())
