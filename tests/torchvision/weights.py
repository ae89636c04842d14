#!/usr/bin/env python3
"""Holds dltrain's weights to torchvision's models, both ways: `make test-torchvision`.

    .ci/deps torch && .deps/torch/bin/python tests/torchvision/weights.py [--models A,B] LAUNCHER... DLTRAIN

Every model of torchvision's gets random weights and statistics and is saved; dltrain must give the same loss over the
test images of the digits (`--init-from --evaluate`). Then dltrain trains two steps and saves; torchvision must load
that strictly and give the loss that dltrain gave. The loss is the mean over the test images of a continuous function of
the logits. The bound is as in tests/suite/models.rs: 16 roundings of 2^-24 a layer, relative to the size of the logits.
"""
import pathlib
import subprocess
import sys
import tempfile

import numpy
import torch
import torchvision.models as zoo
from safetensors.torch import load_file, save_file

DIGITS = pathlib.Path(__file__).resolve().parents[2] / "data" / "digits"
# Image sizes as small as a model allows.
SIZES = {"alexnet": 64, "googlenet": 64, "inception_v3": 299, "densenet121": 64, "vit_b_16": 224}
MODELS = (["alexnet", "googlenet", "inception_v3", "densenet121", "mobilenet_v2", "squeezenet1_1",
           "mobilenet_v3_large", "efficientnet_b0", "regnet_y_400mf", "resnext50_32x4d", "wide_resnet50_2", "shufflenet_v2_x1_0", "convnext_tiny", "vit_b_16",
           "swin_t"]
          + [f"resnet{n}" for n in (18, 34, 50, 101, 152)] + [f"vgg{n}{bn}" for n in (11, 13, 16, 19) for bn in ("", "_bn")])


def idx(name, header):
    return numpy.frombuffer((DIGITS / name).read_bytes(), numpy.uint8)[header:].copy()


def test_set(size):
    """Images as dltrain reads them: scaled as bytes, normalised by the training images, grey in every channel."""
    def images(name):
        return torch.from_numpy(idx(f"{name}-images-idx3-ubyte", 16)).reshape(-1, 1, 8, 8)
    train = images("train").double()
    test = torch.nn.functional.interpolate(images("t10k").float(), (size, size), mode="bilinear")
    test = ((test + 0.5).floor().double() - train.mean()) / train.std(correction=0)
    return test.expand(-1, 3, -1, -1), torch.from_numpy(idx("t10k-labels-idx1-ubyte", 8)).long()


def loss_of(net, images, labels):
    net.eval()
    with torch.no_grad():
        logits = torch.cat([net(part.float()) for part in images.split(32)]).double()
    return torch.nn.functional.cross_entropy(logits, labels).item(), logits.abs().mean().item()


def said_loss(command, *flags):
    done = subprocess.run([*command, *flags], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join([*command, *flags])}\n{done.stdout}\n{done.stderr}")
    return [line.split() for line in done.stdout.splitlines() if line.startswith("test loss")][-1:]


def model(name):
    auxiliary = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    return getattr(zoo, name)(weights=None, num_classes=10, **auxiliary)


def check(command, name, directory):
    size = SIZES.get(name, 32)
    images, labels = test_set(size)
    depth = sum(1 for module in model(name).modules() if not list(module.children()))
    flags = ["--model", name, "--classes", "10", "--image-size", str(size), "--batch", "4", "--data", str(DIGITS)]
    torch.manual_seed(1)
    net = model(name)
    for key, tensor in net.state_dict().items():
        if key.endswith("running_mean"):
            tensor.normal_(0, 0.1)
        elif key.endswith("running_var"):
            tensor.uniform_(0.5, 1.5)
    given, trained = directory / f"{name}-given.safetensors", directory / f"{name}-trained.safetensors"
    save_file(net.state_dict(), given)

    def compare(way, net, weights):
        expected, magnitude = loss_of(net, images, labels)
        got = float(said_loss(command, *flags, "--init-from", str(weights), "--evaluate")[0][2].rstrip(","))
        bound = 16 * depth * 2**-24 * max(1.0, magnitude)
        error = abs(got - expected)
        print(f"{name:<14} {way:<12} loss {got:.7f}, torchvision {expected:.7f}, "
              f"difference {error:.1e} (bound {bound:.1e})", flush=True)
        return error <= bound

    good = compare("to dltrain", net, given)
    said_loss(command, *flags, "--init-from", str(given), "--steps", "2", "--lr", "1e-4", "--seed", "3",
              "--results", str(directory / f"{name}.h5"), "--save-weights", str(trained))
    back = model(name)
    back.load_state_dict(load_file(trained), strict=True)
    changed = any(not torch.equal(a, b) for a, b in zip(net.parameters(), back.parameters()))
    good &= changed and compare("and back", back, trained)
    given.unlink(), trained.unlink()
    return good


def check_recipe(command, directory):
    """The line that is printed for a pickle makes safetensors of it, which dltrain reads: of each kind of .pth file."""
    net = model("resnet18")
    state = net.state_dict()
    kinds = {"plain": state, "epoch": {"epoch": 3, "state_dict": state}, "model": {"model": state, "args": {"lr": 0.1}},
             "compiled": {f"_orig_mod.{key}": value for key, value in state.items()}}
    flags = ["--model", "resnet18", "--classes", "10", "--image-size", "32", "--batch", "4",
             "--data", str(DIGITS), "--evaluate"]
    losses = set()
    for kind, saved in kinds.items():
        pickle, weights = directory / f"{kind}.pth", directory / "weights.safetensors"
        torch.save(saved, pickle)
        done = subprocess.run([*command, *flags, "--init-from", str(pickle)], capture_output=True, text=True)
        line = done.stderr.split("in Python: ")[1].splitlines()[0]
        subprocess.run([sys.executable, "-c", line.replace("FILE", str(pickle))], check=True, cwd=directory)
        losses.add(said_loss(command, *flags, "--init-from", str(weights))[0][2])
        weights.unlink()
    print(f"recipe for .pth files: losses {losses}", flush=True)
    return len(losses) == 1


def main():
    command, models = sys.argv[1:], MODELS
    if command[0] == "--models":
        command, models = command[2:], command[1].split(",")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        wrong = [name for name in models if not check(command, name, pathlib.Path(directory))]
        wrong += [] if check_recipe(command, pathlib.Path(directory)) else ["the recipe for .pth files"]
    if wrong:
        sys.exit(f"wrong: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
