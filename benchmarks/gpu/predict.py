#!/usr/bin/env python3
"""How long a step should take on a GPU: a prediction from the plan, until a card has been measured.

    predict.py DLTRAIN [--libraries DIR] [--models NAME,...] [--precisions bf16,f16] [--batch N] [--parts]
               [--card h200|h100|a100] [--short] [--joins] [--page]

DLTRAIN is asked for its plan (`--dry-run --plan-steps`), so that what changes the program changes the prediction.
Without a GPU give --libraries the doubles of CUDA's libraries (tests/fake_cuda). Each step takes as long as its
products or its bytes at the rates below, whichever is longer, divided by the share of that which its kernel reaches.
The changes are then put in one after the other: a column is the step with it and all before it. --parts prints where
the time goes, before and after; --short the step with all changes alone; --joins what each thing that is done along
with something else gains; --page all that docs/gpu.md has of these, which a test compares with it.
"""

import argparse
import functools
import json
import math
import os
import re
import subprocess
import sys
import tempfile

# ---- The cards: a large product and a copy of PyTorch (by its data sheet an H200 has 989 TFLOP/s and 4.8 TB/s, an H100
# as many and 3.35 TB/s), and warp instructions a second: multiprocessors, 4 schedulers each, GHz, 65 % of the slots
# used. An A100 (312 TFLOP/s, 2.0 TB/s) is taken to reach as large shares: nobody measured it. ----
CARDS = {"h200": (790e12, 4.3e12, 132 * 4 * 1.755e9 * 0.65), "h100": (798e12, 3.0e12, 132 * 4 * 1.755e9 * 0.65),
         "a100": (255e12, 1.8e12, 108 * 4 * 1.410e9 * 0.65)}
PRODUCTS, COPY, ISSUED = CARDS["h200"]

# ---- Shares of the least time that kernels reach, before and after the change. "SASS": counted in the disassembly of
# the kernels for sm_90 (bytes in flight, instructions), before they were changed. "Assumed": nobody measured it. ----
CONVOLUTION = 0.61          # Assumed, from published times of cuDNN's engines; 0.52 to 0.74 is possible (UNCERTAIN).
LINEAR = 0.70               # Assumed: cuBLAS on smaller products than the one that PRODUCTS was measured with.
NORMALISE = (0.87, 0.92)    # SASS.
SUMS = (0.65, 0.90)         # SASS: one load of 8 bytes in flight.
SUMS_RESIDUAL = (0.85, 0.90)  # SASS: with three inputs more is in flight.
BACKWARD = (0.83, 0.92)     # SASS.
MOMENTS = (0.60, 0.80)      # SASS: waves of blocks.
CHANNELS = (0.60, 0.85)     # SASS: concatenations and slices.
ELEMENTWISE = 0.90          # Assumed: additions, activations, updates, copies.
DEPTHWISE = (0.15, 0.61)    # Assumed: cuDNN's naive engine, and a compiled one.
POOL_INSTRUCTIONS = {2: (453, 360), 3: (646, 424)}  # SASS: for 4 channels, both ways, by the window's edge.
IMAGES = 1.09e-10           # SASS: seconds a pixel of the kernel that put f32 images in order.
LOSS = 3.2e-6               # SASS: seconds that a block takes for a row, forward and backward.
KERNEL = 2.5e-6             # Assumed: the least that a kernel in a graph takes.
SMALL_NODES = (16e-6, 7.5e-6)  # Assumed: the kernels on a normalisation's channels alone.
CAST = 4e-6                 # Assumed: a launch that makes halves of a weight.
HOST = (105e-6, 10e-6, 7e-6)  # Assumed: what a step waits for the host; a gap between two launches is 1.5 µs of it.
SUMMED_APART = {"bf16": 0.5, "f16": 0.0}  # Assumed: convolutions whose engine with sums is not the faster way.
KEPT_IN_L2 = 20e6           # Assumed: bytes of a tensor that a second pass backwards through it finds in the L2.
UNCERTAIN = (0.52, 0.74)
PUBLIC = (2035, 2600)       # images/s of PyTorch with resnet50 in f16 on an A100, whose they are is in docs/gpu.md.

MODELS = ["resnet50", "alexnet", "vgg16", "inception_v3", "mobilenet_v2", "densenet121", "mnist_small"]
# What each is and does is in docs/gpu.md.
CHANGES = ["loss", "pools", "images", "norms", "sums", "depthwise", "stem", "small", "host", "nodes", "graph"]
# What is done along with something else.
JOINS = ["bias and ReLU", "a ReLU's gradient", "an addition of gradients", "sums for mean and variance",
         "an addition behind a normalisation"]


@functools.cache
def plan(program, model, batch, precision, libraries, normalised):
    """The steps of the training plan; without what normalises as a convolution reads it only on the doubles."""
    with tempfile.TemporaryDirectory() as place:
        path = os.path.join(place, "steps")
        # Whatever is joined where cuDNN has an engine: nothing is timed.
        environment = dict(os.environ, DLTRAIN_CUDNN_FUSION="1", DLTRAIN_CUDNN_CACHE="/dev/null")
        environment["FAKE_CUDNN_NORMALISED"] = str(int(normalised))
        if libraries:
            environment.update(DLTRAIN_CUDA_PATH=libraries, FAKE_CUDA_MEMORY=str(141 << 30))
        flags = ["--model", model, "--batch", str(batch), "--precision", precision, "--device", "cuda", "--dry-run"]
        done = subprocess.run([program, *flags, "--plan-steps", path], env=environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"predict.py: {program} {' '.join(flags)}: {done.stderr.strip()}")
        return [json.loads(line) for line in open(path)]


class Prediction:
    """Seconds of a step, by what they go into, with these changes made. Ideal: the passes over memory and the products
    that the program made before, at the card's rates: the roofline of the table."""

    def __init__(self, steps, precision, made=(), convolution=CONVOLUTION, ideal=False, apart=None):
        self.precision, self.made, self.convolution, self.ideal = precision, made, convolution, ideal
        # One of JOINS that is not made.
        self.apart = apart
        self.parts = {}
        # Weights whose halves are made by a step of the plan, and those whose halves are counted.
        self.halved, self.counted = {step["layer"] for step in steps if step["op"] == "reorder"}, set()
        for step in steps:
            self.step(step)
        self.cost("host", HOST[self.has("host") + self.has("graph")])
        if self.has("nodes"):
            # One kernel casts the gradients of all weights.
            self.cost("casts of gradients", KERNEL)
        self.total = sum(self.parts.values())

    def has(self, change):
        return int(change in self.made)

    def cost(self, part, seconds):
        """What is neither bytes nor products."""
        self.parts[part] = self.parts.get(part, 0.0) + (0.0 if self.ideal else seconds)

    def work(self, part, moved, share, flop=0, kernels=1):
        """Products or bytes, by kernels that reach this share of the card's rates."""
        least = max(flop / PRODUCTS, moved / COPY)
        seconds = least if self.ideal else max(least / share, kernels * KERNEL)
        self.parts[part] = self.parts.get(part, 0.0) + seconds

    def is_apart(self, join, moved, kernels=1):
        """What it takes by itself."""
        if self.apart == join:
            self.work("apart", moved, ELEMENTWISE, kernels=kernels)

    def step(self, step):
        op, moved = step["op"], sum(step["read"]) + sum(step["written"])
        if op.startswith(("conv2d", "linear")):
            self.halves_of_weights(step)
        if op.startswith("conv2d"):
            self.convolve(step, moved)
        elif op.startswith("linear"):
            self.work("linear layers", moved, LINEAR, step["flop"])
        elif op.startswith("batch norm"):
            self.normalise(step)
        elif op.startswith("max pool"):
            self.pool(step, moved)
        elif op.startswith("softmax"):
            self.loss(step)
        elif op == "reorder":
            self.reorder(step, moved)
        elif op in ("concat", "slice"):
            # Of what it cuts a slice reads as much as it writes.
            self.work("concatenations", 2 * step["written"][0], CHANNELS[self.has("norms")])
        elif op == "update":
            self.work("update", moved, ELEMENTWISE)
        elif op != "reshape":
            self.work("other", moved, ELEMENTWISE)

    def halves_of_weights(self, step):
        """The kernel reads the halves of a weight, which the update has written. Before, a step made them."""
        if "weights" in step["op"] or step["inputs"][1] in self.halved:
            return
        name, halves = step["inputs"][1], step["read"][1]
        if name not in self.counted:
            self.counted.add(name)
            self.halve(3 * halves, halves)

    def halve(self, moved, written):
        """A weight in halves."""
        if self.has("small"):
            self.work("update", written, ELEMENTWISE, kernels=0)
        else:
            self.work("small kernels", moved, ELEMENTWISE, kernels=CAST / KERNEL)

    def convolve(self, step, moved):
        """A product, and what cuDNN does along with it."""
        op, read, written = step["op"], step["read"], step["written"]
        if op.endswith("+add"):
            # What is there already is read; or the sum is a pass of its own.
            moved -= read[2]
            again = read[2] if self.has("sums") and self.apart != "an addition of gradients" else 3 * written[0]
            self.work("sums of gradients", again, ELEMENTWISE)
        if op.endswith("data+relu"):
            self.is_apart("a ReLU's gradient", 2 * written[0])
        elif step["pass"] == "forward" and ("bias: true" in step["settings"] or op.endswith("+relu")):
            self.is_apart("bias and ReLU", 2 * written[0])
        if "backward weights" in op:
            # They come in halves.
            halves = written[0] / 2
            moved -= halves
            self.work("casts of gradients", 3 * halves, ELEMENTWISE, kernels=int(not self.has("nodes")))
        groups = int(re.search(r"groups: (\d+)", step["settings"])[1])
        share = self.convolution
        if groups > 1:
            strided = "stride: [1, 1, 1]" not in step["settings"] and "backward data" in op
            naive = self.precision == "bf16" or strided
            share = DEPTHWISE[self.has("depthwise") if naive else 1]
        if step["inputs"][0] == "images" and not self.has("stem"):
            # cuDNN copies images of four channels to eight itself; forward in f16 it need not.
            moved -= read[0] / 2
            if step["pass"] == "backward" or self.precision == "bf16":
                self.work("convolutions", 1.5 * read[0], ELEMENTWISE)
        self.work("convolutions", moved, share, step["flop"])
        if op == "conv2d+moments":
            share = 1 if self.apart == "sums for mean and variance" else SUMMED_APART[self.precision]
            apart = share * written[0]
            self.work("moments by themselves", apart, MOMENTS[self.has("norms")], kernels=0)

    def kept(self, tensor):
        """Bytes of a tensor that the next kernel finds in the L2."""
        return min(KEPT_IN_L2, tensor) if self.has("norms") else 0.0

    def normalise(self, step):
        op, read, written, late = step["op"], step["read"], step["written"], self.has("norms")
        tensor, kept = read[0], self.kept(read[0])
        if step["pass"] == "forward":
            self.cost("small kernels", SMALL_NODES[self.has("small")])
            if self.has("nodes") and any(".moments" in name for name in step["inputs"]):
                # What normalises reads the sums that a convolution gives along with its result.
                self.cost("small kernels", -KERNEL * (1 - SUMMED_APART[self.precision]))
            if not any(".moments" in name for name in step["inputs"]):
                self.work("moments by themselves", tensor, MOMENTS[late])
            if op == "batch norm scale":
                return self.cost("small kernels", KERNEL)
            large = sum(size for size in read + written if size >= tensor)
            if "add" in op:
                self.is_apart("an addition behind a normalisation", 2 * tensor)
            self.work("normalise", large - kept, NORMALISE[late])
            return
        residual = "add" in op
        passes = (2 + (1 + 1 / 16 if late else 2)) if residual else 2
        self.work("sums", passes * tensor, (SUMS_RESIDUAL if residual else SUMS)[late])
        self.work("gradients of normalisations", 3 * tensor - kept, BACKWARD[late])

    def pool(self, step, moved):
        window = max(int(edge) for edge in re.search(r"kernel: \[1, (\d+), (\d+)\]", step["settings"]).groups())
        backward = step["pass"] == "backward"
        warps = math.prod(step["output"]) / 4 / 32
        issued = warps * POOL_INSTRUCTIONS[min(window, 3)][backward] / ISSUED
        bound = not self.ideal and not self.has("pools") and issued > moved / COPY / ELEMENTWISE
        return self.cost("pooling", issued) if bound else self.work("pooling", moved, ELEMENTWISE)

    def loss(self, step):
        rows = step["output"][0]
        blocks = max(1, math.ceil(step["read"][0] / 4 / 1024))
        part = LOSS / 3 if step["pass"] == "backward" else LOSS * 2 / 3
        self.cost("loss", KERNEL if self.has("loss") else max(KERNEL, part * math.ceil(rows / blocks)))

    def reorder(self, step, moved):
        if step["layer"] == "images":
            padded = step["written"][0]
            if self.has("images") or self.ideal:
                halves = padded if self.has("stem") else padded / 2
                self.work("images", step["read"][0] + halves, ELEMENTWISE)
            else:
                self.cost("images", IMAGES * padded / 16)
        else:
            self.halve(moved, step["written"][0])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dltrain")
    parser.add_argument("--libraries")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--precisions", default="bf16,f16")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--card", choices=CARDS, default="h200")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--joins", action="store_true")
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    plans = lambda model, precision, batch=given.batch: [
        plan(given.dltrain, model, batch, precision, given.libraries, normalised) for normalised in (False, True)]
    if given.page:
        return print_page(given, plans)
    print_table(given, plans, given.card, "joins" if given.joins else "short" if given.short else "changes")


def choose(card):
    global PRODUCTS, COPY, ISSUED
    PRODUCTS, COPY, ISSUED = CARDS[card]


def print_table(given, plans, card, view):
    choose(card)
    counts = [len(CHANGES)] if view == "short" else range(len(CHANGES) + 1)
    titles = ["network", "ms"] if view == "short" else ["network", "before", *(f"+ {change}" for change in CHANGES)]
    titles += ["images/s", "possible", "of the roofline", "+ fused set"]
    if view == "joins":
        titles = ["network", *JOINS, "a normalisation before a convolution"]
    if not given.parts:
        print("| " + " | ".join(titles) + " |\n|" + "---|" * len(titles))
    for model in given.models.split(","):
        for precision in given.precisions.split(","):
            steps, fused = plans(model, precision)
            if view == "joins":
                print_joins(model, precision, steps, fused)
            elif given.parts:
                print_parts(model, precision, steps, fused)
            else:
                print_row(model, precision, (steps, fused), [CHANGES[:count] for count in counts], given.batch)


def print_page(given, plans):
    """The tables of docs/gpu.md, and what it says of some of these networks."""
    for card, view in (("h200", "changes"), ("h100", "joins"), ("h100", "short")):
        print_table(given, plans, card, view)
    if "mnist_small" in given.models:
        time = Prediction(plans("mnist_small", "bf16", 128)[0], "bf16", CHANGES).total
        print(f"mnist_small takes {1e3 * time:.2f} ms ({128 / time / 1e6:.2f} million images/s)")
    if "resnet50" in given.models:
        choose("a100")
        rates = [given.batch / Prediction(plans("resnet50", of)[0], of, CHANGES).total for of in ("bf16", "f16")]
        print(f"it says {rates[0]:,.0f} images/s for resnet50 in bf16 and {rates[1]:,.0f} in f16")
        above = [f"{100 * (rates[0] / public - 1):.0f} to {100 * (rates[1] / public - 1):.0f} %" for public in PUBLIC]
        print(f"above them by {' and by '.join(above)}")
        choose("h200")
        before = Prediction(plans("resnet50", "bf16")[0], "bf16")
        part = lambda *names: f"{1e3 * sum(before.parts[name] for name in names):.1f}"
        norms = ("moments by themselves", "normalise", "sums", "gradients of normalisations")
        print(f"Of resnet50's {1e3 * before.total:.1f} ms before, {part('convolutions')} are convolutions, "
              f"{part(*norms)} normalisations, {part('sums of gradients')} sums of gradients, {part('pooling')} "
              f"poolings, {part('images')} images")


def print_row(model, precision, plans, made, batch):
    steps, fused = plans
    times = [Prediction(steps, precision, changes).total for changes in made]
    slow, fast = (batch / Prediction(steps, precision, CHANGES, share).total for share in UNCERTAIN)
    roofline = Prediction(steps, precision, ideal=True).total
    fused = Prediction(fused, precision, CHANGES).total
    cells = [f"{model} {precision}", *(f"{1e3 * time:.2f}" for time in times), f"{batch / times[-1]:,.0f}",
             f"{slow:,.0f}–{fast:,.0f}", f"{100 * roofline / times[-1]:.0f} %",
             f"{batch / fused:,.0f}" if fused < times[-1] else "–"]
    print("| " + " | ".join(cells) + " |")


def print_joins(model, precision, steps, fused):
    """How much longer a step without each of them would be, in percent."""
    whole = Prediction(steps, precision, CHANGES).total
    more = [100 * (Prediction(steps, precision, CHANGES, apart=join).total / whole - 1) for join in JOINS]
    more.append(100 * (whole / Prediction(fused, precision, CHANGES).total - 1))
    print("| " + " | ".join([f"{model} {precision}", *(f"{gain:.1f}" if gain > 0.05 else "–" for gain in more)]) + " |")


def print_parts(model, precision, steps, fused):
    before, after = Prediction(steps, precision), Prediction(steps, precision, CHANGES)
    columns = [Prediction(steps, precision, ideal=True), before, after, Prediction(fused, precision, CHANGES)]
    print(f"{model} {precision}: ms at the card's rates, before, after all changes, and with the fused set")
    row = lambda name, times: print(f"  {name:<30}" + "".join(f"{1e3 * time:8.2f}" for time in times))
    for part in sorted(before.parts, key=before.parts.get, reverse=True):
        row(part, [column.parts.get(part, 0.0) for column in columns])
    row("step", [column.total for column in columns])


if __name__ == "__main__":
    main()
