#!/usr/bin/env python3
"""Trains DeepCAM from files of its layout by dltrain and by PyTorch, from the same weights and samples: 20 losses may
differ by 1e-5 of themselves, and IoU must be the same at each step and in a test at the end, but for points whose two
best scores are no farther apart than that (PyTorch in float32 has other classes there than in float64 too).

Usage: deepcam.py DLTRAIN [LAUNCHER...]    with a launcher on two ranks
       START=torch STEPS=20 …              from PyTorch's own first weights (docs/fields.md); asks nothing

PyTorch computes in float64, so that the difference is dltrain's rounding, and in float32 for comparison. Normalisations
have biases from 1 to 3 and so few places near the zero of the ReLUs behind them: there rounding decides whether a
gradient passes. An epoch is one step, and each of two ranks has, and normalises, one image: no order matters.
"""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np
import safetensors.torch
import torch
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[1] / "fixtures"))
import make_models
from common import CROP, WEIGHTS, smooth

STEPS, RATE, IMAGES = int(os.environ.get("STEPS", 20)), 0.001, 2
START = os.environ.get("START", "far")
torch.set_num_threads(1)


def network():
    torch.manual_seed(1)
    make_models.CLASSES = 3
    net = make_models.DeepCam()
    norms = {name for name, module in net.named_modules() if isinstance(module, torch.nn.BatchNorm2d)}
    if START == "far":
        with torch.no_grad():
            for name, parameter in net.named_parameters():
                of_norm = name.rpartition(".")[0] in norms
                parameter.copy_(torch.from_numpy(make_models.start(name, tuple(parameter.shape), of_norm)))
    return net


def files(there):
    """As mlcommons/hpc has them: a file a sample, channels last; beside them what rescales."""
    random = np.random.default_rng(1)
    (there / "train").mkdir()
    images, labels = [], []
    for at in range(IMAGES):
        image = smooth(random, (16, *CROP))
        label = (image[0] > 1).astype("i8") + ((image[1] > 0.5) & (image[0] > 1))
        with h5py.File(there / "train" / f"data-2106-08-{at + 1:02d}-00-1.h5", "w") as file:
            file["climate/data"] = np.ascontiguousarray(image.transpose(1, 2, 0))
            file["climate/labels_0"] = label
        images.append((image + np.float32(5)) * np.float32(0.1))
        labels.append(label)
    with h5py.File(there / "stats.h5", "w") as file:
        file["climate/minval"], file["climate/maxval"] = np.full(16, -5, "f4"), np.full(16, 5, "f4")
    safetensors.torch.save_file(network().state_dict(), there / "w.safetensors")
    return torch.from_numpy(np.stack(images)), torch.from_numpy(np.stack(labels))


def iou(outputs, labels):
    """The mean over samples of the mean over classes; a class that is nowhere counts as 1. And what it may change by,
    and how many points do it, where two classes have scores as near as losses may be apart."""
    values, room, ties = [], 0, 0
    (best, second), (first, other) = (of.unbind(1) for of in outputs.topk(2, dim=1))
    near = best - second < 2e-5 * outputs.abs().max()
    for sample, label, second, tie in zip(first, labels, other, near):
        unions = []
        for k in range(3):
            union = ((sample == k) | (label == k)).sum().item()
            values.append(((sample == k) & (label == k)).sum().item() / union if union else 1.0)
            unions.append(max(union - tie.sum().item(), 1))
        room += sum(1 / unions[k] for classes in (sample, second) for k in classes[tie].tolist())
        ties += tie.sum().item()
    return np.mean(values), room / len(values), ties


def by_pytorch(images, labels, dtype, ranks):
    """Losses and IoU of the steps, then of a test."""
    net, weights = network().to(dtype).train(), torch.tensor(WEIGHTS, dtype=dtype)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=0.9)
    images, found = images.to(dtype), []
    # Each rank has running statistics of its own, and a test takes their mean (docs/internals.md).
    statistics = [{name: buffer.clone() for name, buffer in net.named_buffers()} for _ in range(ranks)]
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss, outputs = 0, []
        for own, buffers in zip(torch.arange(IMAGES).chunk(ranks), statistics):
            net.load_state_dict(buffers, strict=False)
            output = net(images[own])
            buffers.update((name, buffer.clone()) for name, buffer in net.named_buffers())
            each = F.cross_entropy(output, labels[own], weight=weights, reduction="none").mean() / ranks
            each.backward()
            loss += each.item()
            outputs.append(output.detach())
        optimizer.step()
        found.append((loss, *iou(torch.cat(outputs), labels)))
    means = {name: sum(of[name] for of in statistics) / ranks for name, _ in net.named_buffers()}
    net.load_state_dict(means, strict=False)
    with torch.no_grad():
        found.append((0, *iou(net.eval()(images), labels)))
    losses, *of_iou = map(np.array, zip(*found))
    return losses[:-1], *of_iou


def by_dltrain(there, program, launcher, ranks):
    results = there / "run.h5"
    command = [*launcher, program, "--model", "deepcam", "--classes", 3, "--data", there / "train", "--test-data",
               there / "train", "--input", f"climate/data[h,w,c]:minmax({there}/stats.h5)", "--target",
               "climate/labels_0[h,w]", "--loss", "cross-entropy", "--class-weights", ",".join(map(str, WEIGHTS)),
               "--metric", "iou", "--init-from", there / "w.safetensors", "--batch", IMAGES // ranks, "--epochs", STEPS,
               "--optimizer", "sgd", "--momentum", 0.9, "--weight-decay", 0, "--lr", RATE, "--device", "cpu",
               "--threads", 1, "--results", results, "--quiet"]
    subprocess.run([str(word) for word in command], check=True)
    with h5py.File(results) as run:
        return run["steps/loss"][()], np.append(run["epochs/train_iou"][()], run["epochs/test_iou"][-1])


def main(program, there, launcher):
    ranks = 2 if launcher else 1
    images, labels = files(there)
    exact, ours = by_pytorch(images, labels, torch.float64, ranks), by_dltrain(there, program, launcher, ranks)
    near = by_pytorch(images, labels, torch.float32, ranks)

    def apart(values):
        return np.abs(values[0] - exact[0]) / exact[0]

    print(f"DeepCAM, {IMAGES} of {CROP[0]} x {CROP[1]} on {ranks} ranks: {STEPS} losses from {exact[0][0]:.6f} to "
          f"{exact[0][-1]:.6f}; from those in float64 dltrain's are within {apart(ours).max():.1e}, PyTorch's in "
          f"float32 within {apart(near).max():.1e}")
    if START != "far":
        for name, values in (("dltrain", ours), ("PyTorch, float32", near)):
            print(f"{name}: {' '.join(f'{value:.0e}' for value in apart(values))}")
        return 0
    counts = [np.abs(values[1] - exact[1]) for values in (ours, near)]
    print(f"IoU of the steps from {exact[1][0]:.6f} to {exact[1][-2]:.6f}, of the test {exact[1][-1]:.6f}; "
          f"{exact[3].sum()} points are undecided, which may make {exact[2].max():.1e}; dltrain's is within "
          f"{counts[0].max():.1e} (of the test {counts[0][-1]:.1e}), PyTorch's in float32 within {counts[1].max():.1e}")
    wrong = apart(ours).max() > 1e-5 or (counts[0] > exact[2] + 1e-7).any()
    print("WRONG" if wrong else "0 wrong")
    return int(wrong)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        sys.exit(main(sys.argv[1], Path(directory), sys.argv[2:]))
