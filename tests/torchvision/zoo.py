#!/usr/bin/env python3
r"""Holds what dltrain imports to torchvision's classification models, all of them, and to timm's: `make test-zoo`.

    .ci/deps zoo onnxruntime
    .deps/torch/bin/python tests/torchvision/zoo.py [--models A,timm/B] [--ways X,Y] [--table FILE] -- COMMAND...

Every network of networks.py gets random weights and statistics and is exported in each of its WAYS. COMMAND runs
`scene_of_networks` of tests/suite/onnx.rs, which imports the file and writes down what it gives. That is compared with
PyTorch: the scores in evaluation, to 1e-4; in training, without what is drawn at random, the gradient of every
parameter, to 1e-3, and the loss, to 1e-4. Of a file that was written for training the count of parameters and the loss
after a step of gradient descent are compared, too; in others exporters put normalisations into convolutions, and what
they computed in advance has no counterpart. The trained network is written as a file again, of which ONNX Runtime gives
the scores, to 1e-4. Scores and
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
from torchvision.ops import StochasticDepth

import networks

LOGITS, GRADIENTS, LOSSES = 1e-4, 1e-3, 1e-4
ROUNDINGS, NOTHING, BATCHES = 16, 1e-3, 4
# Parameters from which gradients are computed once: memory.
LARGE = 400_000_000


# A number of channels, with so many bytes of numbers each, is looked up by these.
def key_of(numbers):
    return numbers.size, np.ascontiguousarray(numbers, np.float32).tobytes()


def counterparts(file, net):
    """For each parameter of a file which of PyTorch's it is, and by what each of its outputs was multiplied when the
    exporter put a normalisation into it. What it computed of parameters (biases of normalisations, tables) is none."""
    import onnx

    own = {name: parameter.detach().numpy() for name, parameter in net.named_parameters()}
    by_value = {}
    for name, numbers in own.items():
        by_value.setdefault(key_of(numbers), name)
        if numbers.ndim == 2:
            by_value.setdefault(key_of(numbers.T), name)
    found, left = {}, set(own)
    tensors = [(tensor.name, onnx.numpy_helper.to_array(tensor)) for tensor in onnx.load(str(file)).graph.initializer]
    tensors = [(name, numbers) for name, numbers in tensors if numbers.dtype == np.float32 and numbers.size > 1]
    for name, numbers in tensors:
        one = numbers[:1] if numbers.ndim > 1 and (numbers == numbers[:1]).all() else numbers
        theirs = name if name in own and np.array_equal(own[name], numbers) else by_value.get(key_of(numbers))
        theirs = theirs or by_value.get(key_of(one))
        if theirs in left:
            found[name] = theirs, None
            left.remove(theirs)
    for name, numbers in tensors:
        for theirs in [name] if name in left else sorted(left) if numbers.ndim > 2 and name not in found else []:
            if theirs not in left or own[theirs].shape != numbers.shape or numbers.ndim < 3:
                continue
            rows = [array.reshape(len(numbers), -1).astype(np.float64) for array in (numbers, own[theirs])]
            ratios = (rows[0] * rows[1]).sum(1) / (rows[1] ** 2).sum(1)
            if np.allclose(rows[0], rows[1] * ratios[:, None], rtol=1e-4, atol=1e-6 * np.abs(rows[0]).max()):
                found[name] = theirs, ratios.reshape([-1] + [1] * (numbers.ndim - 1)).astype(np.float32)
                left.remove(theirs)
                break
    return found, {name for name, _ in tensors}


def as_trained(net, way, tensors):
    """Without what is drawn at random; normalisations by the batch where the file has them still."""
    for module in net.modules():
        if isinstance(module, (torch.nn.Dropout, StochasticDepth)):
            module.p = 0.0
        if hasattr(module, "drop_prob"):
            module.drop_prob = 0.0
    net.train(way == "training")
    for name, module in net.named_modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and f"{name}.running_mean" in tensors:
            module.train()
    return net


def gradients(net, images, labels):
    net.zero_grad()
    loss = torch.nn.functional.cross_entropy(net(images), labels)
    loss.backward()
    return loss, {key: parameter.grad for key, parameter in net.named_parameters()}


def make(name, way, place, seed=0):
    """Writes the file, a batch, and what PyTorch says of it."""
    size, net = networks.size_of(name), networks.build(name)
    networks.export(net, name, place / "net.onnx", way)
    count = sum(parameter.numel() for parameter in net.parameters())
    batch = 2 if size > 200 else 4
    torch.manual_seed(1000 + seed)
    images, labels = torch.randn(batch, 3, size, size), torch.arange(batch) % networks.CLASSES
    images.numpy().tofile(place / "images")
    labels.int().numpy().tofile(place / "labels")
    with torch.no_grad():
        net.eval()(images).numpy().tofile(place / "logits")
    found, tensors = counterparts(place / "net.onnx", net)
    as_trained(net, way, tensors)
    # Other images by a rounding each, from where on all roundings are others.
    others = images * (1 + 2**-22 * torch.randint(-1, 2, images.shape))
    statistics = {key: tensor.clone() for key, tensor in net.named_buffers()}
    rounded = gradients(net, others, labels)[1] if count < LARGE else {}
    net.load_state_dict(statistics, strict=False)
    loss, theirs = gradients(net, images, labels)
    sizes, squares = {}, 0.0
    (place / "theirs").mkdir()
    for key, (name, ratios) in found.items():
        if theirs[name] is None:
            continue
        scale = 1.0 if ratios is None else torch.tensor(ratios)
        gradient = theirs[name] / scale
        squares += gradient.double().square().sum().item()
        noise = (rounded[name] / scale - gradient).norm().item() if rounded else 0.0
        sizes[key] = [gradient.double().square().mean().sqrt().item(), noise]
        gradient.numpy().tofile(place / "theirs" / key.replace("/", "~"))
    # A step that takes a twentieth of the loss, where that is a plane.
    rate = np.float32(0.05 * loss.item() / max(squares, 1e-30))
    (place / "rate").write_text(repr(float(rate)))
    losses = [loss.item()]
    # Three losses in all. What the exporter computed in advance of parameters is learned in their place, and from a
    # step on other numbers follow.
    if way == "training":
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= float(rate) * parameter.grad
            losses.append(torch.nn.functional.cross_entropy(net(images), labels).item())
    said = {"count": count, "losses": losses, "sizes": sizes, "image": size, "batch": batch, "whole": way == "training"}
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
        theirs, path = numbers(place / "theirs" / key.replace("/", "~")), ours / f"gradient {key.replace('/', '~')}"
        least = ROUNDINGS * noise / GRADIENTS if is_rounded else NOTHING * usual * len(theirs) ** 0.5
        error = difference(numbers(path), theirs, least) if path.exists() else float("inf")
        errors[key] = min(error, before.get(key, error))
    worst = max(errors, key=errors.get)
    extra = len(list(ours.glob("gradient *"))) - len(errors)
    found = numbers(ours / "losses")
    losses = max(abs(a - b) / b for a, b in zip(found, said["losses"]))
    good = logits <= LOGITS and losses <= LOSSES and (found[1] < found[0] or said["whole"])
    good &= not said["whole"] or count == said["count"] and extra == 0
    other = "" if count == said["count"] else f" (PyTorch {said['count']:,}, {extra} tensors are the exporter's own)"
    again, is_again = written_again(place)
    return good and is_again, errors, [
        f"{count:>11,} parameters{other}  "
        f"logits {logits:.0e}  gradients {errors[worst]:.0e} ({worst})  losses {losses:.0e}  {again}  "
        f"(image {said['image']}, batch {said['batch']})"]


def written_again(place):
    """What ONNX Runtime gives of the file that the trained network became, and whether that is equal."""
    ours, python = place / "ours", pathlib.Path(".deps/onnxruntime/bin/python")
    if (ours / "not again").exists():
        return "not written again: " + (ours / "not again").read_text().strip(), False
    if not python.exists():
        return "not read again", True
    code = """
import sys, numpy as np, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1] + "/ours/again.onnx")
shape = session.get_inputs()[0].shape
images = np.fromfile(sys.argv[1] + "/images", np.float32).reshape(-1, *shape[1:])
session.run(None, {session.get_inputs()[0].name: images})[0].tofile(sys.argv[1] + "/ours/runtime")
"""
    done = subprocess.run([python, "-c", code, str(place)], capture_output=True, text=True)
    if done.returncode:
        return f"ONNX Runtime: {(done.stderr.strip().splitlines() or ['?'])[-1][:150]}", False
    read = difference(*(np.fromfile(ours / name, np.float32) for name in ("runtime", "logits again")))
    return f"again {read:.0e}", read <= LOGITS


def check(name, way, command):
    begun, errors = time.time(), {}
    for seed in range(BATCHES):
        with tempfile.TemporaryDirectory() as place:
            good, errors, lines = once(name, way, seed, command, pathlib.Path(place), errors)
        if not good or max(errors.values()) <= GRADIENTS:
            break
    else:
        good = False
    lines[0] += f"  {seed + 1} batch{'es' if seed else ''}  {time.time() - begun:.0f} s"
    return good, lines


def once(name, way, seed, command, place, errors):
    """Of one batch."""
    make = [sys.executable, __file__, "--make", name, way, str(place), str(seed)]
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
    arguments.add_argument("--models", default=",".join(networks.names()))
    arguments.add_argument("--ways", default=",".join(networks.WAYS))
    arguments.add_argument("--table")
    arguments.add_argument("--make", nargs="+")
    arguments.add_argument("command", nargs="*")
    given = arguments.parse_args()
    if given.make:
        name, way, place, *seed = given.make
        return make(name, way, pathlib.Path(place), *map(int, seed))
    wrong, sums = [], {}
    table = open(given.table, "w") if given.table else None

    def say(line):
        print(line, flush=True)
        print(line, file=table, flush=True) if table else None

    for name in given.models.split(","):
        for way in given.ways.split(","):
            good, lines = check(name, way, given.command)
            wrong += [] if good else [f"{name} {way}"]
            counts = sums.setdefault(way, [0, 0])
            counts[0] += 1
            counts[1] += good
            lines[0] = f"{name:<36} {way:<12} {'equal' if good else 'WRONG':<6} {lines[0]}"
            for line in lines:
                say(line)
    for way, (count, good) in sums.items():
        say(f"{way}: {count} networks, {good} equal")
    if wrong:
        sys.exit(f"wrong: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
