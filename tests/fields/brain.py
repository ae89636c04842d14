#!/usr/bin/env python3
"""Finds tissues in a brain by unet3d, on tiles of a real volume, and counts Dice's share of each class anew.

Usage: brain.py DLTRAIN PACKAGES [LAUNCHER...]    (make test-fields)

PACKAGES has PyPI's nilearn, in which lie the MNI template (ICBM 152, 2009; 197 × 233 × 189) and maps of grey and
white matter. The network sees the template alone, and learns from a part of the left half; it is tested on tiles of
the right one. What is asked: the run's Dice by class is that of the classes that `predict` writes, and its mean is
above that of one class for all points.
"""
import gzip
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np

EDGE, EPOCHS = 32, 6
NAMES = "mni_icbm152_{}_tal_nlin_sym_09a_converted.nii.gz"


def volume(path):
    """The numbers of a NIfTI-1 file."""
    data = gzip.decompress(path.read_bytes())
    axes = struct.unpack("<8h", data[40:56])
    kind, = struct.unpack("<h", data[70:72])
    start, slope, shift = struct.unpack("<3f", data[108:120])
    kind = {2: "u1", 4: "<i2", 8: "<i4", 16: "<f4", 64: "<f8", 256: "i1", 512: "<u2"}[kind]
    numbers = np.frombuffer(data, kind, np.prod(axes[1:1 + axes[0]]), int(start))
    return numbers.reshape(axes[1:1 + axes[0]], order="F").astype("f4") * (slope or 1) + shift


def tissues(directory):
    """The template, and 0 for neither, 1 for grey, 2 for white matter."""
    template, grey, white = (volume(directory / NAMES.format(name)) for name in ("t1", "gm", "wm"))
    neither = np.full_like(grey, 0.5 * max(grey.max(), white.max()))
    return template, np.argmax([neither, grey, white], 0).astype("i1")


def write(path, template, classes):
    with h5py.File(path, "w") as file:
        for name, array in (("t1", template), ("tissue", classes)):
            file.create_dataset(name, data=array, chunks=(EDGE,) * 3, compression="gzip")


def dice(found, classes):
    return [2 * np.sum((found == k) & (classes == k)) / (np.sum(found == k) + np.sum(classes == k)) for k in range(3)]


def tiles(array):
    counts = [extent // EDGE for extent in array.shape]
    array = array[tuple(slice(0, EDGE * count) for count in counts)]
    array = array.reshape(counts[0], EDGE, counts[1], EDGE, counts[2], EDGE)
    return array.transpose(0, 2, 4, 1, 3, 5).reshape(-1, EDGE, EDGE, EDGE)


def main(program, packages, directory, launcher):
    template, classes = tissues(next(Path(packages).glob("**/nilearn/datasets/data")))
    middle = template.shape[0] // 2
    halves = {"left": slice(middle - 2 * EDGE, middle), "right": slice(middle, middle + 2 * EDGE)}
    for name, half in halves.items():
        part = np.s_[half, 40:40 + 4 * EDGE, 60:60 + 2 * EDGE]
        write(directory / f"{name}.h5", template[part], classes[part])
    ranks = 2 if launcher else 1
    place = [f"[d/{EDGE},h/{EDGE},w/{EDGE}]"] * 2
    views = ["--input", f"t1{place[0]}:standard", "--target", f"tissue{place[1]}", "--loss", "cross-entropy"]
    run = lambda words: subprocess.run([str(word) for word in [*launcher, program, *words]], check=True, text=True,
                                       stdout=subprocess.PIPE).stdout
    weights, output = directory / "w.safetensors", directory / "out.h5"
    left, right = directory / "left.h5", directory / "right.h5"
    said = run(["--model", "unet3d", "--classes", 3, "--data", left, "--test-data", right, *views, "--metric", "iou",
                "--batch", 2 // ranks, "--sync-bn", "--optimizer", "adam", "--lr", 0.001,
                "--epochs", EPOCHS, "--device", "cpu", "--threads", 2 // ranks, "--save-weights", weights,
                "--results", directory / "run.h5"])
    last = [line for line in said.splitlines() if "Dice by class" in line][-1].split("Dice by class")[1]
    ours = [float(word.strip(" ,")) for word in last.replace(":", " ").split()[1::2]]
    run(["predict", "--model", "unet3d", "--classes", 3, "--init-from", weights, *views[:2], "--loss", "cross-entropy",
         "-o", output, right])
    with h5py.File(output) as predicted, h5py.File(right) as wanted:
        found, classes = predicted["class"][...], tiles(wanted["tissue"][...])
    counted, alone = dice(found, classes), [dice(np.full_like(classes, k), classes)[k] for k in range(3)]
    # The run says four digits.
    apart = max(abs(a - b) for a, b in zip(ours, counted))
    bad = apart > 1e-4 or not sum(counted) > max(alone)
    shares = lambda numbers: ", ".join(f"{number:.4f}" for number in numbers)
    print(f"unet3d on {len(classes)} tiles of a brain after {EPOCHS} epochs: Dice of neither, grey and white matter "
          f"{shares(counted)} (one class for all: {shares(alone)}), the run's within {apart:.0e}"
          f"{' WRONG' if bad else ''}")
    return int(bad)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as there:
        sys.exit(main(sys.argv[1], sys.argv[2], Path(there), sys.argv[3:]))
