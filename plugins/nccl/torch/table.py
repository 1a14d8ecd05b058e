# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A Markdown table of what bench.py wrote: medians over the rounds.

    table.py by-transport FILE   sizes down, transports across, and the first transport over each other
    table.py by-setting FILE     settings down, sizes across, the best of each column in bold
    table.py tuner FILE RANKS    rows for plugins/nccl/tuner_table.h; each transport is called by its number of channels
"""

import json
import statistics
import sys


def read(path):
    """{operation: {transport: {size: [us of each round]}}}, in the order of the file."""
    found = {}
    with open(path) as lines:
        for line in lines:
            got = json.loads(line)
            found.setdefault(got["op"], {}).setdefault(got["transport"], {}).setdefault(got["size"], []).append(got["us"])
    return found


def size_word(size):
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size / scale:g} {unit}"
    return f"{size} B"


def cell(size, us):
    """Latency says more of the small ones, bandwidth of the large."""
    if size < 1 << 20:
        return f"{us:.1f} us"
    rate = size / us / 1e3
    return f"{rate:.3g} GB/s ({us:.0f} us)" if rate < 100 else f"{rate:.0f} GB/s ({us:.0f} us)"


def row(cells):
    print("| " + " | ".join(cells) + " |")


def sizes_of(transports):
    return sorted({size for sizes in transports.values() for size in sizes})


def by_transport(op, transports):
    names = list(transports)
    row([op] + names + [f"{names[0]} over {name}" for name in names[1:]])
    row(["---"] + ["---:"] * (2 * len(names) - 1))
    for size in sizes_of(transports):
        us = {name: statistics.median(sizes[size]) for name, sizes in transports.items() if size in sizes}
        cells = [cell(size, us[name]) if name in us else "-" for name in names]
        ratios = [f"{us[name] / us[names[0]]:.2f}" if name in us and names[0] in us else "-" for name in names[1:]]
        row([size_word(size)] + cells + ratios)
    spread = [max(rounds) / min(rounds) for sizes in transports.values() for rounds in sizes.values() if len(rounds) > 1]
    if spread:
        print(f"\nMedians. Slowest over fastest round: {statistics.median(spread):.2f} typically, {max(spread):.2f} at most.")


def by_setting(op, transports):
    sizes = sizes_of(transports)
    us = {name: {size: statistics.median(rounds) for size, rounds in got.items()} for name, got in transports.items()}
    best = {size: min(got[size] for got in us.values() if size in got) for size in sizes}
    row([op] + [size_word(size) for size in sizes])
    row(["---"] + ["---:"] * len(sizes))
    for name, got in us.items():
        cells = []
        for size in sizes:
            word = cell(size, got[size]).split(" (")[0] if size in got else "-"
            cells.append(f"**{word}**" if got.get(size) == best[size] else word)
        row([name] + cells)


FUNCTIONS = {"all_reduce": "AllReduce", "all_gather": "AllGather", "reduce_scatter": "ReduceScatter", "broadcast": "Broadcast"}


def tuner(op, transports, ranks):
    for size in sizes_of(transports):
        for channels in sorted(transports, key=int):
            if op in FUNCTIONS and size in transports[channels]:
                us = statistics.median(transports[channels][size])
                print(f"{{ncclFunc{FUNCTIONS[op]}, {ranks}, {size}, {int(channels)}, {us:.2f}}},")


def main():
    if sys.argv[1] == "tuner":
        for op, transports in read(sys.argv[2]).items():
            tuner(op, transports, int(sys.argv[3]))
        return
    shape = {"by-transport": by_transport, "by-setting": by_setting}[sys.argv[1]]
    for op, transports in read(sys.argv[2]).items():
        print()
        shape(op, transports)


if __name__ == "__main__":
    main()
