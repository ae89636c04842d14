#!/usr/bin/env python3
"""Has `dltrain inspect` read files that others wrote, and compares every array with what h5py reads.

Usage: read.py DLTRAIN DIRECTORY...    (make test-fields: Met Office files of iris-sample-data, 332 of CMIP6 of
       esmvaltool-sample-data)

Range, mean, deviation and the number of missing numbers are compared to five digits of the largest; of few integers how often each is
there. A classic netCDF file must be refused by name.
"""
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import h5py
import numpy as np


# What netCDF's library writes where nobody did, unless the array says another number (none for bytes).
NC_FILL = {"f4": 9.9692099683868690e36, "f8": 9.9692099683868690e36, "i2": -32767, "i4": -2147483647,
           "i8": -9223372036854775806, "u2": 65535, "u4": 4294967295, "u8": 18446744073709551614}


def expected(data):
    """The numbers of an array as netCDF's conventions have them, or None where they are none."""
    if data.dtype.kind not in "iuf" or data.dtype.itemsize > 8:
        return None
    raw = data[()]
    numbers = np.asarray(raw, dtype="f8")
    if data.chunks and data.id.get_num_chunks() < np.prod([-(-a // b) for a, b in zip(data.shape, data.chunks)]):
        written = np.zeros(data.shape, bool)
        for at in range(data.id.get_num_chunks()):
            first = data.id.get_chunk_info(at).chunk_offset
            written[tuple(slice(at, at + along) for at, along in zip(first, data.chunks))] = True
        numbers = np.where(written, numbers, np.nan)
    own = NC_FILL.get(f"{data.dtype.kind}{data.dtype.itemsize}") if "_NCProperties" in data.file.attrs else None
    for name in ("_FillValue", "missing_value"):
        value = data.attrs.get(name, own if name == "_FillValue" else None)
        if value is not None and np.asarray(value).dtype.kind in "iuf":
            numbers = np.where(numbers.astype("f4") == np.float32(np.ravel(value)[0]), np.nan, numbers)
    packing = (("scale_factor", 1), ("add_offset", 0))
    scale, offset = (np.ravel(data.attrs.get(name, plain))[0] for name, plain in packing)
    return (numbers * scale + offset).astype("f4").astype("f8")


def arrays(path):
    found = {}
    with h5py.File(path) as file:
        def add(name, item):
            if isinstance(item, h5py.Dataset) and item.shape is not None and item.size:
                numbers = expected(item)
                if numbers is not None:
                    found[name] = (item.dtype.kind in "iu" and "scale_factor" not in item.attrs, numbers)
        file.visititems(add)
    return found


def printed(dltrain, path):
    """What inspect prints of each array, by name."""
    done = subprocess.run([dltrain, "inspect", "--all", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    heads = [at for at, line in enumerate(lines) if re.match(r"  \S.*  (\d|one number)", line)]
    numbers = {lines[at].split("  ")[1]: lines[at + 1].strip() for at in heads if lines[at + 1].startswith("      ")}
    return numbers | {lines[at].split("  ")[1]: "never written" for at in heads if "; never written" in lines[at]}


def wrong(line, integers, numbers):
    """What is wrong with a line, or nothing."""
    if line == "never written":
        return None if len(np.unique(numbers)) == 1 else "was written"
    if line.startswith("all "):
        same = len(np.unique(numbers[~np.isnan(numbers)])) == 1
        # Six digits are printed.
        least = np.nanmin(numbers)
        same = same and abs(float(line.split()[1].rstrip(";")) - least) <= 1e-5 * abs(least)
        return None if same else f"{line}, and there are others"
    finite = numbers[np.isfinite(numbers)]
    missing = re.search(r"([\d,]+) missing or NaN", line)
    missing = int(missing[1].replace(",", "")) if missing else 0
    if missing != np.isnan(numbers).sum():
        return f"{missing} missing, not {np.isnan(numbers).sum()}"
    if finite.size == 0:
        return None if line.startswith("no number") else "numbers where there are none"
    if " … " not in line:
        shares = Counter(finite.tolist())
        found = {int(label): float(share) for label, share in re.findall(r"(-?\d+) ([\d.]+) %", line)}
        same = integers and set(found) == set(shares) and all(
            abs(found[label] - 100 * count / finite.size) < 1e-4 for label, count in shares.items())
        return None if same else f"{found}, not {shares}"
    low, high, mean, deviation = (float(n) for n in re.search(
        r"(\S+) … (\S+), mean (\S+), deviation (\S+?)(;|$)", line).groups()[:4])
    near = 1e-5 * np.abs(finite).max()
    theirs = [finite.min(), finite.max(), finite.mean(), finite.std()]
    same = all(abs(a - b) <= near for a, b in zip([low, high, mean, deviation], theirs))
    return None if same else f"{line}, not {theirs}"


def main():
    dltrain, *directories = sys.argv[1:]
    files = arrays_read = refused = failed = 0
    for path in sorted(path for directory in directories for path in Path(directory).rglob("*.nc")):
        if path.open("rb").read(4) != b"\x89HDF":
            done = subprocess.run([dltrain, "inspect", path], capture_output=True, text=True)
            assert done.returncode == 3 and "a classic netCDF file" in done.stderr, (path, done)
            refused += 1
            continue
        lines, theirs = printed(dltrain, path), arrays(path)
        files += 1
        for name, (integers, numbers) in theirs.items():
            what = wrong(lines[name], integers, numbers) if name in lines else "not there"
            if what:
                print(f"{path.name} {name}: {what}")
                failed += 1
            arrays_read += 1
    print(f"{files} files, {arrays_read} arrays, {failed} of them wrong; {refused} classic files refused by name")
    sys.exit(1 if failed or not files else 0)


main()
