#!/usr/bin/env python3
"""Trains networks of cubes by dltrain and by PyTorch, from the same weights and universes, and compares the losses.

Usage: cubes.py DLTRAIN [LAUNCHER...]    (make test-fields)

A batch holds all samples, so that no order matters. A loss may differ by 1e-5 of itself from PyTorch's in float64: what
PyTorch rounds in float32 grows from step to step by itself, which is shown beside. Networks that dltrain has by
name give their first weights through a file; their parameters are called as those here.
"""
import copy
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np
import safetensors.torch
import torch
from torch import nn
from torch.nn import functional as F

from common import losses_of

STEPS, SAMPLES, RATE = 10, 4, 0.001
INPUT = ["--input", "full[d,h,w,c]:log1p", "--loss", "mse", "--metric", "mae"]
PARAMETERS, CUBE = ["--target", "unitPar[c]"], ["--target", "full[d,h,w,c]:log1p", "--classes", "4"]


class CosmoFlow(nn.Module):
    """MLPerf's network of today: 3³ kernels, slope 0.3, channels last before the dense layers, no dropout."""

    def __init__(self, edge=128, levels=5, width=32):
        super().__init__()
        channels, self.levels = [4, *(width << level for level in range(levels))], levels
        features = [channels[-1] * (edge >> levels) ** 3, 128, 64, 4]
        # Named as dltrain has them.
        for number in range(levels):
            self.add_module(f"conv{number + 1}", nn.Conv3d(*channels[number:number + 2], 3, padding=1))
        for number in range(3):
            self.add_module(f"fc{number + 1}", nn.Linear(*features[number:number + 2]))
        for layer in self.children():
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x):
        layers = list(self.children())
        for layer in layers[:self.levels]:
            x = F.max_pool3d(F.leaky_relu(layer(x), 0.3), 2)
        x = x.permute(0, 2, 3, 4, 1).flatten(1)
        for layer in layers[self.levels:-1]:
            x = F.leaky_relu(layer(x), 0.3)
        return 1.2 * torch.tanh(layers[-1](x))


class Twice(nn.Module):
    """Convolution, normalisation and ReLU, twice."""

    def __init__(self, before, *channels):
        super().__init__()
        for number, width in enumerate(channels, 1):
            self.add_module(f"conv{number}", nn.Conv3d(before, width, 3, padding=1))
            self.add_module(f"bn{number}", nn.BatchNorm3d(width))
            before = width

    def forward(self, x):
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class UNet3d(nn.Module):
    """Named as dltrain has it."""

    def __init__(self, inputs=4, outputs=4, width=32, levels=4):
        super().__init__()
        self.levels, before = levels, inputs
        for level in range(levels):
            self.add_module(f"analysis{level + 1}", Twice(before, width << level, width << level + 1))
            before = width << level + 1
        for level in range(levels - 1, 0, -1):
            channels = width << level
            self.add_module(f"up{level}", nn.ConvTranspose3d(2 * channels, 2 * channels, 2, stride=2, bias=False))
            self.add_module(f"synthesis{level}", Twice(3 * channels, channels, channels))
        self.out = nn.Conv3d(2 * width, outputs, 1)

    def forward(self, x):
        before, layer = [], self.get_submodule
        for level in range(1, self.levels + 1):
            x = layer(f"analysis{level}")(x if level == 1 else F.max_pool3d(x, 2))
            before.append(x)
        for level in range(self.levels - 1, 0, -1):
            x = layer(f"synthesis{level}")(torch.cat([before[level - 1], layer(f"up{level}")(x)], 1))
        return self.out(x)


def universes(directory):
    """What files of universes hold, as networks read it."""
    inputs, targets = [], []
    for path in sorted(Path(directory).glob("*.hdf5"), key=lambda path: int(path.name.split("-")[-3])):
        with h5py.File(path) as file:
            inputs.append(np.log1p(file["full"][...].astype("f4")).transpose(3, 0, 1, 2))
            targets.append(file["unitPar"][...])
    return torch.tensor(np.stack(inputs)), torch.tensor(np.stack(targets))


def export(net, edge, path):
    torch.onnx.export(net, (torch.zeros(1, 4, edge, edge, edge),), path, dynamo=False)


def cases():
    """Name, network, edge, whether it comes from a file, target."""
    torch.manual_seed(1)
    yield "cosmoflow from ONNX", CosmoFlow(32), 32, True, PARAMETERS
    yield "three levels from ONNX", CosmoFlow(32, 3, 8), 32, True, PARAMETERS
    yield "cosmoflow", CosmoFlow(32), 32, False, PARAMETERS
    yield "unet3d", UNet3d(), 16, False, CUBE


def main(program, directory, launcher):
    wrong, ranks = 0, 2 if launcher else 1
    run = lambda words: subprocess.run([str(word) for word in [*launcher, program, *words]], check=True)
    for edge in (16, 32):
        (directory / str(edge)).mkdir()
        run(["pack", f"synthetic:universes:{SAMPLES}:{edge}", directory / str(edge)])
    for name, net, edge, is_file, target in cases():
        data, results, weights = directory / str(edge), directory / "run.h5", directory / "w.safetensors"
        inputs, targets = universes(data)
        targets = inputs if target == CUBE else targets
        for path in (results, weights, directory / "w.h5"):
            path.unlink(missing_ok=True)
        model = [name]
        train = [*INPUT, *target, "--data", data, "--batch", SAMPLES // ranks, "--optimizer", "sgd",
                 "--momentum", "0.9", "--weight-decay", "0", "--device", "cpu", "--threads", "1", "--quiet"]
        if is_file:
            model = [directory / "net.onnx"]
            export(net, edge, model[0])
        else:
            # What it begins with: no rate changes it. (Counts are alike at many places, and with most other seeds the
            # last bit says which of two is a pooling's largest: PyTorch's losses in float32 are then 1e-4 away.)
            run(["--model", name, *train, "--seed", 2, "--epochs", 1, "--lr", 1e-30, "--save-weights", weights,
                 "--results", directory / "w.h5"])
            # Without how many batches PyTorch's normalisations have seen.
            net.load_state_dict(safetensors.torch.load_file(weights), strict=name == "cosmoflow")
            model += ["--init-from", weights]
        # As PyTorch has them: of all samples.
        shared = ["--sync-bn"] if name == "unet3d" and launcher else []
        run(["--model", *model, *train, *shared, "--epochs", STEPS, "--lr", RATE, "--results", results])
        rounded = losses_of(copy.deepcopy(net), inputs, targets, RATE, STEPS)
        wanted = losses_of(net.double(), inputs.double(), targets.double(), RATE, STEPS)
        with h5py.File(results) as file:
            apart = np.abs(file["steps/loss"][()] - wanted) / wanted
        error, theirs = apart.max(), np.max(np.abs(rounded - wanted) / wanted)
        bad = not error < 1e-5
        print(f"{name}, {ranks} ranks: {STEPS} losses from {wanted[0]:.6f} to {wanted[-1]:.6f} within {error:.1e} of "
              f"PyTorch's in float64, PyTorch's in float32 within {theirs:.1e}{' WRONG' if bad else ''}", flush=True)
        wrong += bad
    print(f"{wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as there:
        sys.exit(main(sys.argv[1], Path(there), sys.argv[2:]))
