#!/usr/bin/env python3
r"""Holds the ops that dltrain imports to ONNX's own tests of nodes: a part of `make test-zoo`.

    .ci/deps zoo && .deps/torch/bin/python tests/torchvision/nodes.py [--table FILE] -- COMMAND...

Package `onnx` has a network of one op with numbers for each test, or of the ops that spell it out. Here it becomes one
that dltrain takes: the images are all real numbers that the op reads, one after the other, and the scores are its first
output, times a learned 1. COMMAND is that of zoo.py. Where the op is refused so, operands but the first are tensors of
the file, as weights are; then all of them are constants, as what is known before a step. A test passes where one of
these gives ONNX's numbers within the test's own tolerance, and fails where one gives others. All tests of the ops that
`src/model/onnx/layers/mod.rs` and `fold.rs` name are run; the reasons of those that do not pass are listed.
"""
import argparse
import collections
import datetime
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import warnings

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case.node import collect_testcases

SOURCE = pathlib.Path(__file__).resolve().parents[2] / "src/model/onnx"
REALS = (np.float32, np.float16, np.float64)
VARIANTS = ("images", "stored", "known")


def claimed():
    """The ops that become layers, and those that are computed in advance."""
    layers = re.findall(r'^    \("(\w+)",', (SOURCE / "layers/mod.rs").read_text(), re.M)
    folded = re.search(r"FOLDED[^=]*= &\[(.*?)\];", (SOURCE / "fold.rs").read_text(), re.S).group(1)
    return set(layers), set(re.findall(r'"(\w+)"', folded))


def network(case, variant):
    """A network of the test's op, and its images."""
    graph = case.model.graph
    inputs, outputs = case.data_sets[0]
    nodes, initializers, images, at = [], [], [], 0
    given = [value.name for value in graph.input]
    total = sum(x.size for x in inputs if isinstance(x, np.ndarray) and x.dtype in REALS)
    number = lambda name, array: initializers.append(numpy_helper.from_array(np.asarray(array), name))
    for place, (name, array) in enumerate(zip(given, inputs)):
        is_real = array.dtype in REALS
        if is_real and (variant == "images" or (variant == "stored" and place == 0)):
            number(f"{name}.from", np.array([at])), number(f"{name}.to", np.array([at + array.size]))
            number(f"{name}.shape", np.array(array.shape, np.int64)), number(f"{name}.axis", np.array([3]))
            nodes.append(helper.make_node(
                "Slice", ["images.of", f"{name}.from", f"{name}.to", f"{name}.axis"], [f"{name}.part"]))
            nodes.append(helper.make_node("Reshape", [f"{name}.part", f"{name}.shape"], [name]))
            images.append(array.astype(np.float32).ravel())
            at += array.size
        elif variant == "known":
            nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(array))))
        else:
            number(name, array.astype(np.float32) if is_real else array)
    expected = np.asarray(outputs[0])
    for node in graph.node:
        nodes.append(onnx.NodeProto.FromString(node.SerializeToString()))
    initializers.extend(graph.initializer)
    # One number by itself would not be learned.
    width = max(2, expected.size)
    number("row", np.array([1, expected.size])), number("ones", np.ones((1, width), np.float32))
    nodes.append(helper.make_node("Cast", [graph.output[0].name], ["as.reals"], to=TensorProto.FLOAT))
    nodes.append(helper.make_node("Reshape", ["as.reals", "row"], ["in.a.row"]))
    nodes.append(helper.make_node("Mul", ["in.a.row", "ones"], ["scores"]))
    if not images:
        # A network reads its images: these add nothing.
        images = [np.zeros(1, np.float32)]
        number("two", np.array([2, 3]))
        nodes[-1].output[0] = "row.times.ones"
        nodes.append(helper.make_node("Squeeze", ["images.of", "two"], ["nothing"]))
        nodes.append(helper.make_node("Add", ["row.times.ones", "nothing"], ["scores"]))
    images = np.concatenate(images)
    of = helper.make_tensor_value_info("images.of", TensorProto.FLOAT, [1, 1, 1, max(1, images.size)])
    to = helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, width])
    graph = helper.make_graph(nodes, case.name, [of], [to], initializers)
    model = helper.make_model(graph, opset_imports=case.model.opset_import)
    return model, images, np.broadcast_to(expected.astype(np.float32).ravel(), width)


def why_not(case):
    """Why a test is none of what a network that is trained computes; `None` where it is."""
    inputs, outputs = case.data_sets[0]
    arrays = [*inputs, outputs[0]]
    if not all(isinstance(x, np.ndarray) for x in arrays):
        return "sequences, optionals, and types that numpy lacks"
    types = [x.dtype for x in arrays]
    if any(t not in (*REALS, np.int64, np.int32, np.int8, np.uint8, np.bool_) for t in types):
        return "types that are no real numbers, bytes, booleans or integers of 32 or 64 bits"
    if np.asarray(outputs[0]).size == 0 or any(x.size == 0 and x.dtype in REALS for x in inputs):
        return "tensors without elements"
    if np.asarray(outputs[0]).dtype == np.float64 or inputs and inputs[0].dtype == np.float64:
        return "arithmetic in float64"
    if any(attribute.name == "training_mode" and attribute.i for node in case.model.graph.node
           for attribute in node.attribute):
        return "statistics of the batch: the scores are those of evaluation"
    if len(case.data_sets) != 1:
        return "several sets of numbers"
    return None


def verdict(place, case, expected):
    """What dltrain gave: `passed`, `refused` with the reason, or `wrong`."""
    refused = place / "ours/refused"
    if refused.exists():
        lines = [line for line in refused.read_text().splitlines() if line.startswith("  ")]
        line = (lines or refused.read_text().splitlines())[0].strip()
        return "refused", line.split("): ")[-1].split("net.onnx: ")[-1]
    path = place / "ours/logits"
    if not path.exists():
        return "wrong", "it ended without an answer"
    ours = np.fromfile(path, np.float32)
    rtol, atol = case.rtol, case.atol
    if any(x.dtype == np.float16 for x in case.data_sets[0][0]):
        rtol = max(rtol, 1e-2)
    if ours.shape == expected.shape and np.allclose(ours, expected, rtol, max(atol, 1e-6), equal_nan=True):
        return "passed", ""
    error = np.abs(ours - expected).max() if ours.shape == expected.shape else "another shape"
    return "wrong", f"differs by {error}"


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--table")
    arguments.add_argument("--only")
    arguments.add_argument("command", nargs="+")
    given = arguments.parse_args()
    layers, folded = claimed()
    warnings.simplefilter("ignore")
    results, cases = {}, {}
    for case in collect_testcases(None):
        ops = {node.op_type for node in case.model.graph.node}
        of = re.sub(r"_expanded.*", "", case.name)
        if not ops <= layers | folded or (given.only and given.only not in case.name):
            continue
        cases[case.name] = case
        if reason := why_not(case):
            results[case.name] = ("left out", reason)
    for variant in VARIANTS:
        with tempfile.TemporaryDirectory() as directory:
            places = {}
            for name, case in cases.items():
                if results.get(name, ("refused",))[0] != "refused":
                    continue
                place = pathlib.Path(directory) / name
                place.mkdir()
                model, images, expected = network(case, variant)
                (place / "net.onnx").write_bytes(model.SerializeToString())
                images.tofile(place / "images")
                np.zeros(1, np.int32).tofile(place / "labels")
                (place / "rate").write_text("0")
                places[name] = (place, expected)
            listed = pathlib.Path(directory) / "list"
            listed.write_text("".join(f"{place}\n" for place, _ in places.values()))
            done = subprocess.run(given.command, capture_output=True, text=True,
                                  env={**os.environ, "DLTRAIN_NETWORKS": str(listed)})
            if done.returncode:
                print(done.stdout[-2000:], done.stderr[-2000:])
            for name, (place, expected) in places.items():
                what, reason = verdict(place, cases[name], expected)
                if variant != VARIANTS[0] and what != "passed" and results[name][0] == "refused":
                    what, reason = (what, reason) if what == "wrong" else results[name]
                results[name] = (what, reason)
    count = collections.Counter(what for what, _ in results.values())
    lines = [f"{len(results)} tests of {len(layers | folded)} ops: "
             + ", ".join(f"{number} {what}" for what, number in count.most_common())]
    lines.append(f"date:     {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}; onnx {onnx.__version__}")
    reasons = collections.defaultdict(list)
    for name, (what, reason) in sorted(results.items()):
        if what != "passed":
            reasons[f"{what}: {reason}"].append(name.removeprefix("test_"))
    for reason, names in sorted(reasons.items(), key=lambda item: (item[0].split(":")[0], -len(item[1]))):
        lines.append(f"{reason}\n    {', '.join(names)}")
    print("\n".join(lines))
    if given.table:
        pathlib.Path(given.table).write_text("\n".join(lines) + "\n")
    if count["wrong"]:
        sys.exit("some are wrong")


main()
