#!/usr/bin/env python3
"""Trains networks of PyTorch from arrays by dltrain and by PyTorch, from the same weights and samples, and compares the
losses and the metric; then compares what `dltrain predict` writes with what PyTorch computes.

Usage: train.py DLTRAIN [LAUNCHER...]    (make test-fields)

Batches hold all samples, so that no order matters. A loss may differ by 1e-5 of itself.
"""
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

STEPS, RATE, SAMPLES = 20, 0.05, 16
torch.manual_seed(1)
torch.set_num_threads(1)


class Beside(nn.Module):
    """Of two inputs: vectors, and a mesh."""

    def __init__(self):
        super().__init__()
        self.mesh = nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(640, 8))
        self.last = nn.Linear(13, 1)

    def forward(self, params, data):
        return self.last(torch.cat([params, self.mesh(data)], 1))


def cubic():
    """Layers of cubes, one of each kind."""
    return nn.Sequential(nn.Conv3d(2, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.ReLU(), nn.MaxPool3d(2),
                         nn.Conv3d(6, 8, (3, 1, 3), padding=(2, 0, 2), dilation=2, groups=2),
                         nn.InstanceNorm3d(8, affine=True), nn.AvgPool3d(3, 1, 1),
                         nn.ConvTranspose3d(8, 6, 3, stride=2, padding=1, output_padding=1), nn.ReLU(),
                         nn.AdaptiveAvgPool3d((4, 4, 2)), nn.Upsample(scale_factor=2, mode="trilinear"),
                         nn.Conv3d(6, 3, 1))


class Within(nn.Module):
    """Of params, flux and weight: what it gives, and its loss, in which each sample has its weight."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, params, flux, weight):
        given = self.net(params)
        penalty = 0.001 * self.net[0].weight.square().sum()
        return given, 0.5 * (weight * (given - flux).square()).mean() + (given - flux).abs().mean() + penalty


def convolutions(channels, classes, last=None):
    layers = [nn.Conv2d(channels, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=2, dilation=2), nn.ReLU(),
              nn.Conv2d(8, classes, 1)]
    return nn.Sequential(*layers, *([last] if last else []))


def data(path, rng):
    """Made to layouts that people have: channels last with labels a point, vectors, sequences, several arrays."""
    with h5py.File(path, "w") as file:
        climate = rng.normal(size=(SAMPLES, 12, 18, 4)).astype("f4") * [1, 10, 100, 0.1] + [0, 5, 300, 1]
        file.create_dataset("climate/data", data=climate.astype("f4"), chunks=(1, 6, 18, 4), compression="gzip", shuffle=True)
        labels = rng.integers(0, 3, size=(SAMPLES, 12, 18)).astype("u1")
        labels[:, 0] = 255
        file.create_dataset("climate/labels", data=labels, chunks=(4, 12, 18), compression="gzip")
        file.create_dataset("params", data=rng.normal(size=(SAMPLES, 5)).astype("f8"))
        file.create_dataset("flux", data=rng.normal(size=SAMPLES).astype(">f4"))
        file.create_dataset("series", data=rng.integers(-300, 300, size=(SAMPLES, 3, 32)).astype("i2"))
        u = rng.normal(size=(SAMPLES, 8, 8)).astype("f4")
        u[3, 2, 2] = np.nan
        file.create_dataset("u", data=u)
        file.create_dataset("cubes", data=rng.normal(size=(SAMPLES, 2, 8, 8, 8)).astype("f4"))
        file.create_dataset("kinds", data=rng.integers(0, 3, size=(SAMPLES, 8, 8, 4)).astype("u1"))
        file.create_dataset("v", data=rng.uniform(size=(SAMPLES, 8, 8)).astype("f4"))
        file.create_dataset("chance", data=rng.uniform(size=(SAMPLES, 8, 8)).astype("f4"))
        file.create_dataset("weight", data=rng.uniform(0, 2, size=SAMPLES))
        file.create_dataset("area", data=np.cos(np.linspace(-1.4, 1.4, 12)))
        file.create_dataset("each", data=rng.integers(0, 5, size=(12, 18, 4)).astype("u1"))

    with h5py.File(path.parent / "stats.h5", "w") as file:
        file["climate/minval"], file["climate/maxval"] = np.zeros(4, "f4"), np.full(4, 300, "f4")


def standard(array, axes):
    array = array.astype("f8")
    return (array - array.mean(axes, keepdims=True)) / array.std(axes, keepdims=True)


def cases(path):
    """Name, network, what it reads, its target, loss of output and target, flags, and the metric."""
    with h5py.File(path) as file:
        names = ["climate/data", "climate/labels", "params", "flux", "weight", "series", "u", "v", "chance", "cubes"]
        get = {name: file[name][()] for name in [*names, "kinds", "area", "each"]}
    climate = standard(get["climate/data"], (0, 1, 2)).transpose(0, 3, 1, 2)
    labels = torch.tensor(get["climate/labels"].astype("i8"))
    weights = torch.tensor([1.0, 2.5, 1.7])
    known = labels != 255

    def entropy(output, target):
        each = F.cross_entropy(output, target, weight=weights, ignore_index=255, reduction="none")
        return each.mean()

    def iou(output):
        best = output.argmax(1)
        values = []
        for sample in range(SAMPLES):
            of = []
            for k in range(3):
                a, b = (best[sample] == k) & known[sample], labels[sample] == k
                union = (a | b).sum().item()
                of.append((a & b).sum().item() / union if union else 1.0)
            values.append(np.mean(of))
        return np.mean(values)

    yield ("classes of points", convolutions(4, 3), climate, labels, entropy,
           ["--input", "climate/data[n,h,w,c]:standard", "--target", "climate/labels[n,h,w]", "--loss", "cross-entropy",
            "--class-weights", "1,2.5,1.7", "--ignore-label", "255", "--metric", "iou"], ("iou", iou))
    def smoothed(output, target):
        return F.cross_entropy(output, target, ignore_index=255, label_smoothing=0.1, reduction="none").mean()

    yield ("classes of points, smoothed", convolutions(4, 3), climate, labels, smoothed,
           ["--input", "climate/data[n,h,w,c]:standard", "--target", "climate/labels[n,h,w]", "--loss", "cross-entropy",
            "--label-smoothing", "0.1", "--ignore-label", "255", "--metric", "iou"], ("iou", iou))
    area = torch.tensor(get["area"].astype("f4"))[:, None]

    def weighed(output, target):
        each = F.cross_entropy(output, target, weight=weights, ignore_index=255, label_smoothing=0.1, reduction="none")
        return (area * each).mean()

    yield ("classes of points that weigh by latitude, smoothed, with weights of classes", convolutions(4, 3), climate,
           labels, weighed,
           ["--input", "climate/data[n,h,w,c]:standard", "--target", "climate/labels[n,h,w]", "--loss", "cross-entropy",
            "--weight", "area[h]", "--class-weights", "1,2.5,1.7", "--label-smoothing", "0.1", "--ignore-label", "255",
            "--metric", "iou"], ("iou", iou))
    each, goal = torch.tensor(get["each"].astype("f4")).permute(2, 0, 1), torch.tensor(climate.astype("f4"))
    yield ("points and channels that weigh", convolutions(4, 4), climate, goal,
           lambda output, target: (each * (output - target).square()).mean(),
           ["--input", "climate/data[n,h,w,c]:standard", "--target", "climate/data[n,h,w,c]:standard", "--loss", "mse",
            "--weight", "each[h,w,c]", "--metric", "rmse"],
           ("rmse", lambda o: (((each * (o - goal).square()).sum((1, 2, 3)) / each.sum()).mean().sqrt()).item()))
    flux = torch.tensor(get["flux"].astype("f4"))[:, None]
    yield ("vectors", nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1)), get["params"], flux, F.mse_loss,
           ["--input", "params", "--target", "flux", "--loss", "mse", "--metric", "r2"],
           ("r2", lambda o: (1 - ((o - flux) ** 2).mean() / flux.var(correction=0)).item()))
    cubes, kinds = get["cubes"], torch.tensor(get["kinds"].astype("i8"))
    yield ("cubes", cubic(), cubes, kinds, F.cross_entropy,
           ["--input", "cubes[n,c,d,h,w]", "--target", "kinds[n,d,h,w]", "--loss", "cross-entropy",
             "--metric", "accuracy"],
           ("accuracy", lambda o: (o.argmax(1) == kinds).float().mean().item()))
    series = np.log1p(np.abs(get["series"])).astype("f8")
    low, high = get["series"].min((0, 2), keepdims=True), get["series"].max((0, 2), keepdims=True)
    series = (get["series"] - low) / (high - low).astype("f8")
    ends = torch.tensor(get["flux"].astype("f4"))[:, None]
    yield ("sequences", nn.Sequential(nn.Conv1d(3, 8, 5, padding=2), nn.ReLU(), nn.Flatten(), nn.Linear(256, 1)), series,
           ends, F.huber_loss, ["--input", "series[n,c,w]:minmax", "--target", "flux", "--loss", "huber", "--metric", "mae"],
           ("mae", lambda o: (o - ends).abs().mean().item()))
    u, v = get["u"], get["v"]
    whole = np.stack([np.nan_to_num(u), v], 1)
    target = torch.tensor(np.nan_to_num(u))[:, None]
    there = torch.tensor(~np.isnan(u))[:, None]

    def masked(output, target):
        return (((output - target) ** 2) * there).mean()

    yield ("arrays beside each other, missing points", convolutions(2, 1), whole, target, masked,
           ["--input", "u[n,h,w]", "--input", "v[n,h,w]", "--target", "u[n,h,w]", "--loss", "mse", "--missing", "mask"], None)
    params, mesh = [torch.tensor(array.astype("f4")) for array in (get["params"], get["climate/data"])]
    net = Beside()
    yield ("two inputs by name", net, (params, mesh.permute(0, 3, 1, 2).contiguous() / 300), flux, F.l1_loss,
           ["--input", f"climate/data[n,h,w,c]:minmax({path.parent}/stats.h5)", "--input", "params", "--target", "flux", "--loss", "mae"], None)
    weight = torch.tensor(get["weight"].astype("f4"))[:, None]
    yield ("a loss in the network, with a weight a sample and a penalty", Within(), (params, flux, weight), None,
           lambda output, _: output[1],
           ["--input", "params", "--target", "flux", "--input", "weight", "--loss", "output:loss"], None)
    chance = torch.tensor(get["chance"])[:, None]
    yield ("shares", convolutions(1, 1), v[:, None], chance, F.binary_cross_entropy_with_logits,
           ["--input", "v[n,h,w]", "--target", "chance[n,h,w]", "--loss", "bce"],
           ("accuracy", lambda o: ((o > 0) == (chance > 0.5)).float().mean().item()))


def main(program, directory, launcher):
    path, wrong = directory / "arrays" / "all.h5", 0
    path.parent.mkdir()
    data(path, np.random.default_rng(3))
    for name, net, sample, target, loss, flags, metric in cases(path):
        if not isinstance(sample, tuple):
            sample = (torch.tensor(np.ascontiguousarray(sample), dtype=torch.float32),)
        file, results = directory / "net.onnx", directory / "run.h5"
        results.unlink(missing_ok=True)
        is_own = isinstance(net, Within)
        names = ["params", "flux", "weight"] if is_own else ["params", "data"] if len(sample) > 1 else ["x"]
        # Else the squares of a penalty are computed in advance, and the weight is no part of it.
        torch.onnx.export(net, tuple(part[:1] for part in sample), file, dynamo=False, input_names=names,
                          output_names=["given", "loss"] if is_own else ["given"], do_constant_folding=not is_own)
        optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=0.9)
        losses, first = [], (net(*sample)[0] if is_own else net(*sample)).detach()
        for _ in range(STEPS):
            optimizer.zero_grad()
            value = loss(net(*sample), target)
            value.backward()
            optimizer.step()
            losses.append(value.item())
        ranks = 2 if launcher else 1
        weights = directory / "w.safetensors"
        weights.unlink(missing_ok=True)
        command = [*launcher, program, "--model", file, "--data", path, "--test-data", path, *flags, "--batch",
                   SAMPLES // ranks, "--epochs", STEPS, "--optimizer", "sgd", "--momentum", "0.9", "--weight-decay", "0",
                   "--lr", RATE, "--results", results, "--save-weights", weights, "--device", "cpu", "--quiet"]
        subprocess.run([str(word) for word in command], check=True)
        with h5py.File(results) as run:
            found = run["steps/loss"][()]
            error = np.max(np.abs(found - losses) / np.abs(losses))
            text = f"{name}: {STEPS} losses within {error:.1e}"
            bad = error > 1e-5
            if metric:
                ours, theirs = run[f"epochs/test_{metric[0]}"][-1], metric[1](net(*sample).detach())
                text += f", {metric[0]} {ours:.6f} and {theirs:.6f}"
                bad |= abs(ours - theirs) > 1e-4 * max(1, abs(theirs))
        output = directory / "output.h5"
        output.unlink(missing_ok=True)
        flags = flags[:2] if is_own else flags
        inputs = [word for at in range(0, len(flags), 2) if flags[at] in ("--input", "--missing") for word in flags[at:at + 2]]
        if "cross-entropy" in flags:
            inputs += ["--loss", "cross-entropy"]
        command = [*launcher, program, "predict", "--model", file, "--data", path, *inputs, "-o", output, "--quiet"]
        subprocess.run([str(word) for word in command], check=True)
        with h5py.File(output) as written:
            values = written["output"][()]
            error = np.max(np.abs(values.reshape(first.shape) - first.numpy()) / np.abs(first.numpy()).max())
            text += f", predictions within {error:.1e}"
            bad |= error > 1e-5
            if "class" in written:
                bad |= not np.array_equal(written["class"][()], first.numpy().argmax(1))
        print(text + (" WRONG" if bad else ""), flush=True)
        wrong += bad
    print(f"{wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as there:
        sys.exit(main(sys.argv[1], Path(there), sys.argv[2:]))
