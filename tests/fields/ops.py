#!/usr/bin/env python3
"""Trains networks of every op that has axes of space, of sequences, images and cubes, by dltrain and by PyTorch, from
what both of PyTorch's exporters write, and compares losses and what each op gives then; also of the network that
dltrain has written as ONNX again.

Usage: ops.py DLTRAIN [LAUNCHER...]    (make test-fields)

A network is one convolution, each op behind it, and all that these give as one vector. A loss may differ by 1e-5 of
itself from PyTorch's in float64, what an op gives after the last step by 1e-5 of its largest number, or by four times
as much as PyTorch's own in float32 does.
"""
import copy
import logging
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import h5py
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from common import losses_of

STEPS, SAMPLES, RATE, CHANNELS = 5, 4, 0.02, 4
SIZES = {1: (12,), 2: (8, 12), 3: (6, 8, 12)}
AXES = {1: "w", 2: "h,w", 3: "d,h,w"}


class Of(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Scaled(nn.Module):
    """A parameter that is one number."""

    def __init__(self, *shape):
        super().__init__()
        self.alpha = nn.Parameter(torch.full(shape, 0.3))

    def forward(self, x):
        return x + self.alpha * torch.tanh(x)


class Placed(nn.Module):
    """A number for each place of the last axis, from a table."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(12, 1)

    def forward(self, x):
        return x + self.table(torch.arange(12)).view(12)


class Again(nn.Module):
    """A module that is called twice, with a function between."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(torch.tanh(self.module(x)))


class Tied(nn.Module):
    """Linear layers of one weight, once turned."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(12, 12), nn.Linear(12, 12)
        self.other.weight = self.one.weight

    def forward(self, x):
        return F.linear(torch.tanh(self.other(torch.tanh(self.one(x)))), self.one.weight.t())


class Alike(nn.Module):
    """Parameters of one module that begin alike."""

    def __init__(self):
        super().__init__()
        self.gates = nn.ParameterList([torch.full((12,), 0.3) for _ in range(3)])

    def forward(self, x):
        for gate in self.gates:
            x = x + gate * torch.tanh(x)
        return x


class Layers(nn.Module):
    """Layers of an encoder or a decoder, which are copies of one."""

    def __init__(self, kind):
        super().__init__()
        layer = getattr(nn, f"Transformer{kind}Layer")(12, 2, 8, dropout=0.0, batch_first=True)
        self.layers, self.has_two = getattr(nn, f"Transformer{kind}")(layer, 2), kind == "Decoder"

    def forward(self, x):
        return self.layers(x, x[:, :2]) if self.has_two else self.layers(x)


def ops(axes, exporter):
    """Name and module, of those that the exporter knows."""
    of = lambda name: getattr(nn, f"{name}{axes}d")
    each = lambda *numbers: numbers[:axes]
    linear = {1: "linear", 2: "bilinear", 3: "trilinear"}[axes]
    around = [number for axis in range(axes) for number in [(1, 2), (2, 0), (0, 3)][axis]]
    space = tuple(range(2, 2 + axes))
    yield "grouped", of("Conv")(4, 6, 3, padding=1, groups=2)
    yield "depthwise", of("Conv")(4, 8, 3, groups=4, bias=False)
    yield "dilated", of("Conv")(4, 6, each(3, 2, 3), stride=each(2, 1, 2), padding=each(2, 1, 1), dilation=2)
    yield "same", of("Conv")(4, 6, each(4, 3, 2), padding="same")
    yield "mirrored", of("Conv")(4, 6, 3, padding=1, padding_mode="reflect")
    yield "replicated", of("Conv")(4, 6, 3, padding=2, padding_mode="replicate")
    yield "circular", of("Conv")(4, 6, 3, padding=1, padding_mode="circular")
    yield "transposed", of("ConvTranspose")(4, 6, 3, stride=2, padding=1, output_padding=1)
    yield "transposed, grouped, dilated", of("ConvTranspose")(4, 6, 3, stride=2, padding=2, dilation=2, groups=2)
    yield "transposed, of its own on each axis", of("ConvTranspose")(4, 6, each(1, 3, 2), stride=each(1, 2, 3))
    yield "largest", of("MaxPool")(3, 2, 1)
    yield "largest, upwards", of("MaxPool")(3, 2, ceil_mode=True)
    yield "mean", of("AvgPool")(3, 2, 1)
    yield "mean without padding", of("AvgPool")(3, 2, 1, count_include_pad=False)
    yield "mean, upwards", of("AvgPool")(3, 2, 1, ceil_mode=True)
    yield "global mean", of("AdaptiveAvgPool")(1)
    yield "global largest", of("AdaptiveMaxPool")(1)
    if axes < 3 or exporter == "script":
        yield "adaptive mean", of("AdaptiveAvgPool")({1: 4, 2: (2, 4), 3: (3, 4, 6)}[axes])
        yield "adaptive largest", of("AdaptiveMaxPool")({1: 4, 2: (2, 4), 3: (3, 4, 6)}[axes])
    yield "batch norm", of("BatchNorm")(4, momentum=0.3, eps=1e-3)
    yield "batch norm, plain", of("BatchNorm")(4, affine=False)
    yield "instance norm", of("InstanceNorm")(4, affine=True)
    yield "instance norm, plain", of("InstanceNorm")(4)
    yield "group norm", nn.GroupNorm(2, 4)
    yield "group norm, plain", nn.GroupNorm(2, 4, affine=False)
    yield "layer norm", nn.LayerNorm([4, *SIZES[axes]])
    yield "padded by a number", Of(lambda x: F.pad(x, around, value=0.7))
    yield "cut", Of(lambda x: F.pad(x, [-number for number in around]))
    yield "padded by mirrored", Of(lambda x: F.pad(x, around, mode="reflect"))
    yield "padded by the edge", Of(lambda x: F.pad(x, around, mode="replicate"))
    yield "padded around", Of(lambda x: F.pad(x, around, mode="circular"))
    yield "nearest", nn.Upsample(scale_factor=2)
    yield "nearest of a size", nn.Upsample(size=each(11, 17, 5))
    yield linear, nn.Upsample(scale_factor=2, mode=linear)
    yield f"{linear}, corners", nn.Upsample(scale_factor=2, mode=linear, align_corners=True)
    yield f"{linear} of a size", nn.Upsample(size=each(11, 17, 5), mode=linear)
    yield f"{linear}, smaller", nn.Upsample(scale_factor=0.5, mode=linear)
    if axes == 2:
        yield "pixels of channels", nn.PixelShuffle(2)
        yield "channels of pixels", nn.PixelUnshuffle(2)
    yield "parts", Of(lambda x: x[(slice(None), slice(1, 3), *(slice(1, -1, 2) for _ in range(axes)))])
    yield "a mean along all axes", Of(lambda x: x.mean(space, keepdim=True) * x)
    yield "a mean along the last", Of(lambda x: x.mean(-1, keepdim=True))
    yield "slopes", nn.PReLU(4)
    yield "a slope", nn.PReLU()
    yield "scaled by a number", Scaled()
    yield "scaled by an array of one", Scaled(1)
    yield "places of a table", Placed()
    if axes == 1:
        yield "a normalisation twice", Again(nn.LayerNorm(12))
        yield "a convolution twice", Again(nn.Conv1d(4, 4, 3, padding=1))
        yield "a group norm twice", Again(nn.GroupNorm(4, 4))
        yield "a slope twice", Again(nn.PReLU(init=0.4))
        yield "an encoder layer twice", Again(nn.TransformerEncoderLayer(12, 2, 8, dropout=0.0, batch_first=True))
        yield "weights that are tied", Tied()
        yield "gates that begin alike", Alike()
        yield "an encoder", Layers("Encoder")
        yield "a decoder", Layers("Decoder")
    # Between them a function: a normalisation right behind a convolution becomes a part of it by the newer exporter.
    one = lambda op: nn.Sequential(of("Conv")(4, 1, 1), nn.Tanh(), op)
    yield "batch norm of a channel", one(of("BatchNorm")(1))
    yield "instance norm of a channel", one(of("InstanceNorm")(1, affine=True))
    yield "group norm of a channel", one(nn.GroupNorm(1, 1))


class Network(nn.Module):
    def __init__(self, axes, exporter):
        super().__init__()
        self.first = getattr(nn, f"Conv{axes}d")(3, CHANNELS, 3, padding=1)
        self.names, modules = zip(*ops(axes, exporter))
        self.ops = nn.ModuleList(modules)
        # Ones and zeros of several layers the newer exporter writes once, which dltrain tells apart by their modules;
        # but of the same op of the same tensor with them it leaves one node.
        for name, op in zip(self.names, modules):
            if name in ("instance norm", "group norm"):
                nn.init.normal_(op.weight, 1.0)
                nn.init.normal_(op.bias)

    def each(self, x):
        x = F.leaky_relu(self.first(x), 0.2)
        return [op(x).flatten(1) for op in self.ops]

    def forward(self, x):
        return torch.cat(self.each(x), 1)


def export(net, x, path, exporter):
    if exporter == "dynamo":
        torch.onnx.export(net.eval(), (x[:1],), path, dynamo=True, verbose=False, input_names=["x"])
    else:
        training = torch.onnx.TrainingMode.TRAINING
        torch.onnx.export(net.train(), (x[:1],), path, dynamo=False, input_names=["x"], training=training,
                          do_constant_folding=False)


def trained(net, x, y):
    """The losses, and what each op gives then."""
    losses = losses_of(net.train(), x, y, RATE, STEPS)
    with torch.no_grad():
        return losses, [part.numpy() for part in net.eval().each(x)]


def main(program, directory, launcher):
    def run(command, *words):
        words = [str(word) for word in [*launcher, program, *command, *words, "--device", "cpu", "--quiet"]]
        subprocess.run(words, check=True)

    wrong, ranks = 0, 2 if launcher else 1
    data, results, weights, given, model, again = (
        directory / name for name in ("a.h5", "run.h5", "w.safetensors", "p.h5", "net.onnx", "again.onnx"))
    for axes in SIZES:
        views = ["--data", data, "--input", f"x[n,c,{AXES[axes]}]"]
        for exporter in ("script", "dynamo"):
            torch.manual_seed(axes)
            begun = Network(axes, exporter)
            x = torch.randn(SAMPLES, 3, *SIZES[axes])
            y = torch.randn(begun(x).shape)
            with h5py.File(data, "w") as file:
                file["x"], file["y"] = x.numpy(), y.numpy()
            for path in (results, weights, given, model, again):
                path.unlink(missing_ok=True)
            # The older exporter runs the network, which its statistics see.
            export(begun, x, model, exporter)
            rounded, roughly = trained(copy.deepcopy(begun), x, y)
            wanted, exactly = trained(copy.deepcopy(begun).double(), x.double(), y.double())
            run([], "--model", model, *views, "--target", "y[n,c]", "--loss", "mse", "--batch", SAMPLES // ranks,
                "--epochs", STEPS, "--optimizer", "sgd", "--momentum", 0.9, "--weight-decay", 0, "--lr", RATE,
                "--results", results, "--save-weights", weights, *(["--sync-bn"] if ranks > 1 else []))
            with h5py.File(results) as file:
                apart = np.max(np.abs(file["steps/loss"][()] - wanted) / wanted)
            theirs = np.max(np.abs(rounded - wanted) / wanted)
            subprocess.run([program, "export", weights, again, "--model", model], check=True)
            found = []
            for words in (["--model", model, "--init-from", weights], ["--model", again]):
                given.unlink(missing_ok=True)
                run(["predict"], *words, *views, "-o", given)
                with h5py.File(given) as file:
                    found.append(file["output"][()].reshape(SAMPLES, -1))
            bad, at, worst = [], 0, 0.0
            for name, exact, rough in zip(begun.names, exactly, roughly):
                size = np.max(np.abs(exact))
                bound = max(1e-5 * size, 4 * np.max(np.abs(rough - exact)))
                off = max(np.max(np.abs(of[:, at:at + exact.shape[1]] - exact)) for of in found)
                at, worst = at + exact.shape[1], max(worst, off / size)
                bad += [f"{name} ({off / size:.1e})"] if not off <= bound else []
            bad += ["losses"] if not apart < max(1e-5, 4 * theirs) else []
            print(f"{len(begun.names)} ops of {axes} axes by {exporter}, {ranks} ranks: losses within {apart:.1e} of "
                  f"PyTorch's in float64 (its float32 {theirs:.1e}), what ops give within {worst:.1e}"
                  f"{' WRONG: ' + ', '.join(bad) if bad else ''}", flush=True)
            wrong += bool(bad)
    print(f"{wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as there:
        sys.exit(main(sys.argv[1], Path(there), sys.argv[2:]))
