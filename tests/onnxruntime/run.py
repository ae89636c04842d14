#!/usr/bin/env python3
"""Runs ONNX files by ONNX Runtime: each NAME.onnx of a directory on the images beside it, against the logits beside it:
equal to 1e-5 of the largest, or to what NAME.bound says.

    .ci/deps onnxruntime && .deps/onnxruntime/bin/python tests/onnxruntime/run.py DIRECTORY

tests/suite/export.rs writes them. The same file must give the same logits for all images at once and for the first alone.
"""
import pathlib
import sys

import numpy
import onnxruntime


def worst(path):
    """The largest difference, as a share of the largest logit."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    [given], [output] = session.get_inputs(), session.get_outputs()
    if (given.shape[0], output.shape[0], output.name) != ("N", "N", "logits"):
        sys.exit(f"{path}: {given} gives {output}")
    images = numpy.fromfile(path.with_suffix(".images"), "f4").reshape(-1, *given.shape[1:])
    logits = numpy.fromfile(path.with_suffix(".logits"), "f4").reshape(len(images), *output.shape[1:])
    difference = 0.0
    for count in (len(images), 1):
        [theirs] = session.run(None, {given.name: images[:count]})
        difference = max(difference, numpy.abs(theirs - logits[:count]).max() / numpy.abs(logits).max())
    return difference


def main():
    paths = sorted(pathlib.Path(sys.argv[1]).glob("*.onnx"))
    good = bool(paths)
    for path in paths:
        difference = worst(path)
        bound = path.with_suffix(".bound")
        is_good = bool(difference <= (float(bound.read_text()) if bound.exists() else 1e-5))
        good &= is_good
        print(f"{path.stem}: {difference:.1e}{'' if is_good else ' WRONG'}")
    sys.exit(0 if good else 1)


main()
