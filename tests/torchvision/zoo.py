#!/usr/bin/env python3
r"""Holds what dltrain imports to torchvision's classification models, all of them: `make test-zoo`.

    .ci/deps zoo && .deps/torch/bin/python tests/torchvision/zoo.py [--models A,B] [--table FILE] [--plan] \
        LAUNCHER... DLTRAIN

Every model gets random weights and statistics and is exported by torch.onnx.export in training mode. dltrain must
either say what of it is not supported, in one message, or count the same parameters and give the same loss over the
digits' test images (`--model X.onnx --evaluate`). The bound is that of weights.py. A model that was imported must not
be refused again: IMPORTED has their number, 0 until all 80 have been run once. The table has a line for
each model. With --plan networks are imported and counted, and no loss is computed: minutes in place of an hour.
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import warnings

import torch
import torchvision.models as zoo
from weights import DIGITS, loss_of, test_set

# Image sizes that PyTorch can export: an adaptive pooling only where its windows are alike.
SIZES = {"inception_v3": 299}
# How many are imported at least.
IMPORTED = 0


def size_of(name):
    whole = ("alexnet", "vgg", "vit_", "maxvit", "swin")
    return 224 if name.startswith(whole) else SIZES.get(name, 64)


def build(name):
    auxiliary = {"init_weights": False, "aux_logits": False} if name in ("googlenet", "inception_v3") else {}
    torch.manual_seed(1)
    net = zoo.get_model(name, weights=None, num_classes=10, **auxiliary)
    for key, tensor in net.state_dict().items():
        if key.endswith("running_mean"):
            tensor.normal_(0, 0.1)
        elif key.endswith("running_var"):
            tensor.uniform_(0.5, 1.5)
    return net


def export(net, size, file):
    """The file has the running statistics as this leaves them: an export in training mode runs the model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net.train(), torch.zeros(2, 3, size, size), file, dynamo=False, opset_version=17,
            training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False,
            input_names=["images"], output_names=["logits"],
            dynamic_axes={"images": {0: "N"}, "logits": {0: "N"}})


def refusal(text):
    """The ops that are not supported, each with its first reason."""
    reasons = {}
    for op, reason in re.findall(r"^  .* \((\w+)\): (.*)$", text, re.M):
        reasons.setdefault(op, reason)
    whole = text.strip().splitlines()[-1:] or ["no message"]
    return "; ".join(f"{op}: {reason}" for op, reason in sorted(reasons.items())) or whole[0]


def check(command, name, directory, plan):
    """Whether it was imported, whether that was right, and what the table says."""
    size, file = size_of(name), directory / f"{name}.onnx"
    net = build(name)
    count = sum(parameter.numel() for parameter in net.parameters())
    try:
        export(net, size, file)
    except Exception as error:  # noqa: BLE001: whatever PyTorch's exporter throws
        return False, True, f"PyTorch does not export it: {str(error).splitlines()[0][:80]}"
    flags = [*command, "--model", str(file), "--batch", "4", "--data", str(DIGITS)]
    planned = subprocess.run([*flags, "--dry-run"], capture_output=True, text=True)
    if planned.returncode:
        file.unlink()
        return False, planned.returncode == 3, refusal(planned.stderr)
    counted = re.search(r"([\d,]+) parameters", planned.stdout)
    counted = int(counted.group(1).replace(",", "")) if counted else -1
    if plan:
        file.unlink()
        return True, counted == count, f"{counted:,} parameters (torchvision {count:,})"
    tested = subprocess.run([*flags, "--evaluate"], capture_output=True, text=True)
    file.unlink()
    said = re.search(r"test loss ([\d.]+)", tested.stdout)
    if not said:
        return True, False, refusal(tested.stderr)
    images, labels = test_set(size)
    expected, magnitude = loss_of(net, images, labels)
    depth = sum(1 for module in net.modules() if not list(module.children()))
    bound = 16 * depth * 2**-24 * max(1.0, magnitude)
    error = abs(float(said.group(1)) - expected)
    good = counted == count and error <= bound
    return True, good, f"{counted:,} parameters (torchvision {count:,}), loss off by {error:.1e} (bound {bound:.1e})"


def main():
    command, table = sys.argv[1:], None
    models = [name for name in zoo.list_models(module=zoo)]
    if command[0] == "--models":
        command, models = command[2:], command[1].split(",")
    if command[0] == "--table":
        command, table = command[2:], open(command[1], "w")
    plan = command[0] == "--plan"
    command = command[plan:]
    torch.set_num_threads(1)
    imported, wrong = 0, []
    with tempfile.TemporaryDirectory() as directory:
        for name in models:
            was, good, text = check(command, name, pathlib.Path(directory), plan)
            imported += was
            wrong += [] if good else [name]
            line = f"{name:<20} {'wrong' if not good else 'equal' if was else 'refused':<8} {text}"
            print(line, flush=True)
            print(line, file=table, flush=True) if table else None
    print(f"{len(models)} models: {imported} imported, {len(wrong)} wrong")
    if wrong or (len(models) == 80 and imported < IMPORTED):
        sys.exit(f"wrong: {', '.join(wrong) or 'fewer than were imported before'}")


main()
