#!/usr/bin/env python3
"""Sums what Nsight Compute measured by kernel: kernels.py NCU.csv..., as `ncu --csv --log-file` writes them, each of
other metrics of the same launches. Where there are two losses among the launches it is of the steps between them, and
of one of these on average; else it ends with 1, and where files have their losses at other launches."""

import collections
import csv
import sys

UNITS = {"nsecond": 1e-9, "ns": 1e-9, "usecond": 1e-6, "us": 1e-6, "msecond": 1e-3, "ms": 1e-3, "second": 1, "s": 1,
         "byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "inst": 1}


def table(path):
    with open(path, errors="replace") as file:
        lines = file.readlines()
    begin = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if begin is None:
        raise SystemExit(f"kernels: no table of ncu's in {path}:\n" + "".join(lines[-5:]))
    return list(csv.DictReader(lines[begin:]))


def losses_of(rows):
    return sorted({int(row["ID"]) for row in rows if row["Kernel Name"].startswith("softmax_cross_entropy_f32")})


def sums(rows, losses):
    """By kernel: launches, seconds, bytes of memory, warps' instructions."""
    steps = max(len(losses) - 1, 1)
    if len(losses) > 1:
        rows = [row for row in rows if losses[0] < int(row["ID"]) <= losses[-1]]
    kernels = collections.defaultdict(lambda: [set(), 0.0, 0.0, 0.0])
    for row in rows:
        kernel = kernels[row["Kernel Name"]]
        columns = {"gpu__time_duration.sum": 1, "dram__bytes.sum": 2, "smsp__inst_executed.sum": 3}
        column = columns.get(row["Metric Name"])
        if column:
            kernel[0].add(row["ID"])
            kernel[column] += float(row["Metric Value"].replace(",", "")) * UNITS.get(row["Metric Unit"], 1) / steps
    return kernels, steps, len(losses) > 1


def main():
    tables = [table(path) for path in sys.argv[1:]]
    losses = losses_of(tables[0])
    for path, rows in zip(sys.argv[1:], tables):
        if losses_of(rows) != losses:
            raise SystemExit(f"kernels: losses at launches {losses_of(rows)} of {path}, {losses} of {sys.argv[1]}")
    kernels, steps, whole_steps = sums([row for rows in tables for row in rows], losses)
    whole = sum(kernel[1] for kernel in kernels.values())
    launches = sum(len(kernel[0]) for kernel in kernels.values())
    what = f"a step, of {steps}" if whole_steps else "not a whole step"
    print(f"{launches / steps:.0f} launches of {len(kernels)} kernels, {1e3 * whole:.3f} ms ({what})")
    print(f"{'ms':>9} {'share':>6} {'launches':>8} {'GB/s':>7} {'Ginst/s':>8}  kernel")
    for name, (ids, seconds, moved, instructions) in sorted(kernels.items(), key=lambda item: -item[1][1]):
        rates = f"{moved / seconds / 1e9:7.0f} {instructions / seconds / 1e9:8.1f}" if seconds else ""
        print(f"{1e3 * seconds:9.3f} {100 * seconds / whole:5.1f}% {len(ids) / steps:8.1f} {rates}  {name[:90]}")
    if not whole_steps:
        raise SystemExit("kernels: there are no two losses among these launches")


if __name__ == "__main__":
    main()
