# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Compares two runs of train.py: equal losses, and no growth in the first that the second has not.

    compare.py A B    the files that --out named; A is on trial, B is the control
"""

import glob
import json
import os
import statistics
import sys

# Changes that are no leak. GPU memory is that of all processes, and libraries allocate it in steps of this size.
ALLOWED = {"fds": 0, "maps": 16, "threads": 0, "rss": 16 << 20, "torch": 0, "gpu": 32 << 20}


def read_losses(path):
    losses, parameters = [], None
    with open(path) as lines:
        for line in lines:
            if line.startswith("# parameters"):
                parameters = line.split()[-1]
            elif line.endswith("\n"):
                step, loss = line.split()
                assert int(step) == len(losses), f"{path}: step {step} where {len(losses)} was expected"
                losses.append(loss)
    return losses, parameters


def losses_equal(a, b):
    (left, left_end), (right, right_end) = read_losses(a), read_losses(b)
    common = min(len(left), len(right))
    if common < 2:
        print(f"FAIL losses: {len(left)} steps of one and {len(right)} of the other: nothing to compare")
        return False
    for step in range(common):
        if left[step] != right[step]:
            equal = sum(x == y for x, y in zip(left, right))
            print(f"FAIL losses: first differ at step {step}: {left[step]} and {right[step]}; {equal} of {common} equal")
            return False
    made = f"{len(left)} and {len(right)} made"
    print(f"ok losses: {common} steps equal to the last digit ({made}), {left[0]} -> {left[common - 1]}")
    if len(left) == len(right) and left_end != right_end:
        print("FAIL parameters: equal losses, but the parameters at the end differ")
        return False
    return True


def growth(path):
    """{name: (median of the second quarter, median of the last, growth)}. The first quarter warms up."""
    with open(path) as lines:
        looks = [json.loads(line) for line in lines if line.endswith("\n")]
    if len(looks) < 8:
        return None
    quarter = len(looks) // 4
    found = {}
    for name in ALLOWED:
        if name in looks[0]:
            early = statistics.median_low(look[name] for look in looks[quarter : 2 * quarter])
            late = statistics.median_low(look[name] for look in looks[-quarter:])
            found[name] = (early, late, late - early)
    return found


def nothing_grew(a, b):
    fine = True
    ranks = sorted(glob.glob(glob.escape(a) + ".rank[0-9]*"))
    for path in ranks:
        tried, control = growth(path), growth(b + path[len(a) :])
        rank = path[len(a) + 1 :]
        if tried is None:
            print(f"FAIL {rank}: fewer than 8 looks at what it holds: too short a run to see growth")
            fine = False
            continue
        for name, (early, late, grown) in tried.items():
            beside = control[name][2] if control else 0
            allowed = ALLOWED[name] + 2 * max(0, beside)
            verdict = "ok" if grown <= allowed else "FAIL"
            fine = fine and verdict == "ok"
            print(f"{verdict} {rank} {name}: {early} -> {late} ({grown:+d}; the control {beside:+d}; allowed {allowed})")
    return fine and bool(ranks)


def main():
    a, b = sys.argv[1:]
    for path in (a, b):
        if not os.path.exists(path):
            sys.exit(f"FAIL losses: there is no {path}: its training did not begin")
    equal, fine = losses_equal(a, b), nothing_grew(a, b)
    sys.exit(not (equal and fine))


if __name__ == "__main__":
    main()
