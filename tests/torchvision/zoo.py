#!/usr/bin/env python3
r"""Holds what dltrain imports to torchvision's classification models, all of them: `make test-zoo`.

    .ci/deps zoo && .deps/torch/bin/python tests/torchvision/zoo.py [--models A,B] [--table FILE] -- COMMAND...

Every model gets random weights and statistics and is exported by torch.onnx.export in training mode. COMMAND runs
`scene_of_networks` of tests/suite/onnx.rs, which imports the file and writes down what it gives. That is compared with
PyTorch: the count of parameters; the scores in evaluation, to 1e-4; in training, without what is drawn at random, the
gradient of every parameter, to 1e-3, and the loss before and after a step of gradient descent, to 1e-4. Scores and
gradients are vectors, and what is compared is the norm of the difference with the norm. Both sides compute in float32.
A gradient that is nothing but rounding (that of a bias before a normalisation, say) may be as far off as ROUNDINGS times
what PyTorch itself is for images that are off by two roundings. For the largest models there is no memory for that:
there the least norm of a gradient is NOTHING times what is usual for as many numbers.

Where a ReLU reads what a rounding puts on this side of 0 or on that, a gradient is off by all that it lets through.
That befalls one batch and not another: a parameter must agree in one of BATCHES batches, where the first does not do. The
table has a line for each model.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import warnings

import numpy as np
import torch
import torchvision.models as zoo
from torchvision.ops import StochasticDepth

LOGITS, GRADIENTS, LOSSES = 1e-4, 1e-3, 1e-4
ROUNDINGS, NOTHING, BATCHES = 16, 1e-3, 4
# Parameters from which gradients are computed once: memory.
LARGE = 400_000_000


def size_of(name):
    """As small as the model and PyTorch's exporter allow: adaptive poolings only where their windows are alike."""
    sizes = {"alexnet": 224, "vgg": 224, "maxvit": 224, "inception": 139, "densenet": 112, "vit_h_14": 56, "vit": 64}
    return next((size for start, size in sizes.items() if name.startswith(start)), 64)


def build(name):
    how = {"num_classes": 10}
    if name in ("googlenet", "inception_v3"):
        how |= {"init_weights": False, "aux_logits": False}
    if name.startswith("vit_"):
        how |= {"image_size": size_of(name)}
    torch.manual_seed(1)
    net = zoo.get_model(name, weights=None, **how)
    with torch.no_grad():
        for parameter in net.parameters():
            # Numbers that are all alike are one tensor to the exporter, and a head of zeros hides what is before it.
            if (parameter == parameter.flatten()[0]).all():
                near_one = abs(parameter.flatten()[0].item() - 1) < 0.5
                size = 0.1 if parameter.dim() == 1 else 0.02
                parameter.uniform_(0.5, 1.5) if near_one else parameter.normal_(0, size)
            if parameter.dim() == 3 and parameter.shape[1:] == (1, 1):
                parameter.uniform_(0.2, 0.5)
        for module in net.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                # Few ReLUs behind it are then so near to 0 that rounding decides whether they pass a gradient.
                module.weight.uniform_(0.8, 1.2), module.bias.uniform_(1, 3)
        for key, tensor in net.named_buffers():
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
            net.train(), torch.zeros(2, 3, size, size), str(file), dynamo=False, opset_version=17,
            training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False,
            input_names=["images"], output_names=["logits"],
            dynamic_axes={"images": {0: "N"}, "logits": {0: "N"}})


def without_randomness(net):
    for module in net.modules():
        if isinstance(module, (torch.nn.Dropout, StochasticDepth)):
            module.p = 0.0
    return net.train()


def gradients(net, images, labels):
    net.zero_grad()
    loss = torch.nn.functional.cross_entropy(without_randomness(net)(images), labels)
    loss.backward()
    return loss, {key: parameter.grad for key, parameter in net.named_parameters()}


def make(name, place, seed=0):
    """Writes the file, a batch, and what PyTorch says of it."""
    size, net = size_of(name), build(name)
    export(net, size, place / "net.onnx")
    count = sum(parameter.numel() for parameter in net.parameters())
    batch = 2 if size > 200 else 4
    torch.manual_seed(1000 + seed)
    images, labels = torch.randn(batch, 3, size, size), torch.arange(batch) % 10
    images.numpy().tofile(place / "images")
    labels.int().numpy().tofile(place / "labels")
    with torch.no_grad():
        net.eval()(images).numpy().tofile(place / "logits")
    # Other images by a rounding each, from where on all roundings are others.
    others = images * (1 + 2**-22 * torch.randint(-1, 2, images.shape))
    rounded = gradients(net, others, labels)[1] if count < LARGE else {}
    loss, found = gradients(net, images, labels)
    sizes, squares = {}, 0.0
    (place / "theirs").mkdir()
    for key, gradient in found.items():
        squares += gradient.double().square().sum().item()
        noise = (rounded[key] - gradient).norm().item() if rounded else 0.0
        sizes[key] = [gradient.double().square().mean().sqrt().item(), noise]
        gradient.numpy().tofile(place / "theirs" / key)
    # A step that takes a twentieth of the loss, where that is a plane.
    rate = np.float32(0.05 * loss.item() / squares)
    (place / "rate").write_text(repr(float(rate)))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter -= float(rate) * parameter.grad
        after = torch.nn.functional.cross_entropy(net(images), labels).item()
    said = {"count": count, "losses": [loss.item(), after], "sizes": sizes, "image": size, "batch": batch}
    (place / "said.json").write_text(json.dumps(said))


def difference(ours, theirs, least=0.0):
    if ours.shape != theirs.shape:
        return float("inf")
    error = np.linalg.norm(ours.astype(np.float64) - theirs)
    error = error / max(np.linalg.norm(theirs.astype(np.float64)), least, 1e-30)
    return float("inf") if np.isnan(error) else float(error)


def compare(place, before):
    """Whether all is as PyTorch says, how far off gradients are at least, and a line about it."""
    said, ours = json.loads((place / "said.json").read_text()), place / "ours"
    if (ours / "refused").exists():
        return False, None, (ours / "refused").read_text().strip().splitlines()
    numbers = lambda path: np.fromfile(path, np.float32)
    count = int((ours / "count").read_text())
    logits = difference(numbers(ours / "logits"), numbers(place / "logits"))
    usual = float(np.median([size for size, _ in said["sizes"].values()]))
    is_rounded = any(noise for _, noise in said["sizes"].values())
    errors = {}
    for key, (_, noise) in said["sizes"].items():
        theirs, path = numbers(place / "theirs" / key), ours / f"gradient {key}"
        least = ROUNDINGS * noise / GRADIENTS if is_rounded else NOTHING * usual * len(theirs) ** 0.5
        error = difference(numbers(path), theirs, least) if path.exists() else float("inf")
        errors[key] = min(error, before.get(key, error))
    worst = max(errors, key=errors.get)
    extra = len(list(ours.glob("gradient *"))) - len(errors)
    losses = max(abs(a - b) / b for a, b in zip(numbers(ours / "losses"), said["losses"]))
    good = count == said["count"] and extra == 0 and logits <= LOGITS and losses <= LOSSES
    other = "" if count == said["count"] else f" (torchvision {said['count']:,})"
    return good, errors, [
        f"{count:>11,} parameters{other}  "
        f"logits {logits:.0e}  gradients {errors[worst]:.0e} ({worst})  losses {losses:.0e}  "
        f"(image {said['image']}, batch {said['batch']})"]


def check(name, command):
    begun, errors = time.time(), {}
    for seed in range(BATCHES):
        with tempfile.TemporaryDirectory() as place:
            good, errors, lines = once(name, seed, command, pathlib.Path(place), errors)
        if not good or max(errors.values()) <= GRADIENTS:
            break
    else:
        good = False
    lines[0] += f"  {seed + 1} batch{'es' if seed else ''}  {time.time() - begun:.0f} s"
    return good, lines


def once(name, seed, command, place, errors):
    """Of one batch."""
    make = [sys.executable, __file__, "--make", name, str(place), str(seed)]
    made = subprocess.run(make, capture_output=True, text=True)
    if made.returncode:
        said = made.stderr.strip().splitlines() or [f"ended with {made.returncode}"]
        return False, None, [f"PyTorch: {said[-1][:150]}"]
    (place / "list").write_text(f"{place}\n")
    environment = {**os.environ, "DLTRAIN_NETWORKS": str(place / "list")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        said = [line for line in (done.stdout + done.stderr).splitlines() if "panicked" in line or "rror" in line]
        return False, None, ["dltrain: " + " ".join(said)[:300]]
    return compare(place, errors)


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--models", default=",".join(zoo.list_models(module=zoo)))
    arguments.add_argument("--table")
    arguments.add_argument("--make", nargs="+")
    arguments.add_argument("command", nargs="*")
    given = arguments.parse_args()
    if given.make:
        name, place, *seed = given.make
        return make(name, pathlib.Path(place), *map(int, seed))
    names, wrong = given.models.split(","), []
    table = open(given.table, "w") if given.table else None
    for name in names:
        good, lines = check(name, given.command)
        wrong += [] if good else [name]
        lines[0] = f"{name:<20} {'equal' if good else 'WRONG':<6} {lines[0]}"
        for line in lines:
            print(line, flush=True)
            print(line, file=table, flush=True) if table else None
    last = f"{len(names)} models: {len(names) - len(wrong)} equal"
    print(last)
    print(last, file=table) if table else None
    if wrong:
        sys.exit(f"wrong: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
