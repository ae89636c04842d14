#!/usr/bin/env python3
"""Writes the handwritten digits of this directory, in the IDX format of MNIST.

    python3 -m venv /tmp/digits && /tmp/digits/bin/pip install scikit-learn
    /tmp/digits/bin/python data/digits/make_digits.py

Every version of scikit-learn, NumPy and Python gives the same bytes: nothing here draws random
numbers. Images are ordered by a hash of their index, and the first fifth of each class is for testing.
"""

import hashlib
import pathlib
import struct
import sys

from sklearn.datasets import load_digits

TEST_IMAGES = 360


def shuffled(indices, salt):
    """The indices in an order that has nothing to do with the writers, and is always the same."""
    return sorted(indices, key=lambda index: hashlib.sha256(b"dltrain %s %d" % (salt, index)).digest())


def split(labels):
    """Indices for training and for testing, each class in both as often as in the whole set."""
    classes = sorted(set(labels))
    members = {c: shuffled((i for i, label in enumerate(labels) if label == c), b"digits") for c in classes}
    share = {c: len(members[c]) * TEST_IMAGES / len(labels) for c in classes}
    count = {c: int(share[c]) for c in classes}
    # What rounding down left over goes to the classes that lost most by it (largest remainder).
    by_loss = sorted(classes, key=lambda c: (count[c] - share[c], c))
    for c in by_loss[: TEST_IMAGES - sum(count.values())]:
        count[c] += 1
    test = shuffled((i for c in classes for i in members[c][: count[c]]), b"order")
    train = shuffled((i for c in classes for i in members[c][count[c] :]), b"order")
    return train, test


def write(directory, name, images, labels):
    """One pair of IDX files: big-endian header (magic, extents), then one byte a value."""
    header = struct.pack(">4I", 0x00000803, len(images), 8, 8)
    pixels = bytes((int(value) * 255 + 8) // 16 for image in images for row in image for value in row)
    (directory / f"{name}-images-idx3-ubyte").write_bytes(header + pixels)
    header = struct.pack(">2I", 0x00000801, len(labels))
    (directory / f"{name}-labels-idx1-ubyte").write_bytes(header + bytes(labels))


def main():
    directory = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent
    digits = load_digits()
    labels = [int(label) for label in digits.target]
    for name, indices in zip(("train", "t10k"), split(labels)):
        write(directory, name, [digits.images[i] for i in indices], [labels[i] for i in indices])


if __name__ == "__main__":
    main()
