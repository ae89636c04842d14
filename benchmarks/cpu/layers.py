#!/usr/bin/env python3
"""Times every layer of a model of torchvision by itself, beside dltrain's times of the same ones. See layers.sh."""

import argparse
import csv
import statistics
import time

import torch
import torchvision
from torch import nn

AUXILIARY = ("inception_v3", "googlenet")
LAYERS = (nn.Conv2d, nn.Linear, nn.BatchNorm2d)
REPEATS = 5


def milliseconds(function):
    function()
    times = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        function()
        times.append(time.perf_counter() - begun)
    return 1e3 * statistics.median(times)


def of_layer(layer, shape, memory_format):
    """Milliseconds of forward and backward."""
    x = torch.randn(shape)
    if x.dim() == 4:
        x = x.contiguous(memory_format=memory_format)
    layer = layer.train().to(memory_format=memory_format) if not isinstance(layer, nn.Linear) else layer
    x.requires_grad_()
    y = layer(x)
    gradient = torch.randn_like(y)
    inputs = [x, *layer.parameters()]
    backward = milliseconds(lambda: torch.autograd.grad(y, inputs, gradient, retain_graph=True))
    with torch.no_grad():
        forward = milliseconds(lambda: layer(x))
    return [forward, backward]


def shapes(model, images):
    """Every layer by name, and the shape of what it is given."""
    found = {}

    def keep(name):
        return lambda layer, given: found.update({name: (layer, tuple(given[0].shape))})

    hooks = [layer.register_forward_pre_hook(keep(name)) for name, layer in model.named_modules() if isinstance(layer, LAYERS)]
    with torch.no_grad():
        model(images)
    for hook in hooks:
        hook.remove()
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("csv")
    parser.add_argument("model")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    keywords = {"init_weights": False} if args.model in AUXILIARY else {}
    model = getattr(torchvision.models, args.model)(weights=None, **keywords).train()
    size = 299 if args.model == "inception_v3" else 224
    with open(args.csv, newline="") as file:
        ours = {row["layer"]: row for row in csv.DictReader(file)}
    print(f"PyTorch {torch.__version__}, each layer by itself; dltrain's times include reorders and what is fused behind a layer")
    print(f"{'ms':<34}|{'dltrain':^20}|{'PyTorch':^20}|{'channels_last':^20}| dltrain's × best")
    print(f"{'layer':<34}" + f"|{'forward':>10}{'backward':>10}" * 3)
    sums = [[0.0, 0.0] for _ in range(3)]
    for name, (layer, shape) in shapes(model, torch.randn(args.batch, 3, size, size)).items():
        if name not in ours:
            print(f"{name:<34}| dltrain has no such layer")
            continue
        row = {key: float(value) for key, value in ours[name].items() if key.endswith("_ms")}
        times = [[row["forward_ms"] + row["reorder_ms"], row["backward_data_ms"] + row["backward_weights_ms"]]]
        times += [of_layer(layer, shape, layout) for layout in (torch.contiguous_format, torch.channels_last)]
        sums = [[a + b for a, b in zip(sum_, time_)] for sum_, time_ in zip(sums, times)]
        show(name, times)
    show("sum", sums)


def show(name, times):
    total = [sum(both) for both in times]
    print(f"{name:<34}" + "".join(f"|{forward:>10.3f}{backward:>10.3f}" for forward, backward in times)
          + f"|{min(total[1:]) / total[0]:>10.2f}", flush=True)


if __name__ == "__main__":
    main()
