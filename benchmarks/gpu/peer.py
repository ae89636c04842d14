#!/usr/bin/env python3
"""What dltrain is measured against on a GPU: the same networks of torchvision on the same card.

    peer.py train MODEL BATCH PRECISION MODE   one random batch; PRECISION tf32, bf16 or f16; MODE eager, channels_last,
                                               compile (max-autotune) or reduce-overhead (compiled, chosen faster)
    peer.py limits                             TFLOP/s of a large product in each precision, and GB/s of a copy

The first prints `FIGURES images/s, first loss, last loss`: over all steps after the warm-up, which nothing waits for in
between that PyTorch does not wait for itself.
"""

import argparse
import statistics
import time

import torch

AUXILIARY = {"inception_v3": 0.4, "googlenet": 0.3}
TYPES = {"bf16": torch.bfloat16, "f16": torch.float16}


def mnist_small():
    """As `dltrain models` describes it."""
    from torch import nn

    return nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(),
                         nn.Linear(32 * 14 * 14, 64), nn.ReLU(), nn.Linear(64, 10))


def network(name):
    if name == "mnist_small":
        return mnist_small(), (1, 28, 28), 10
    import torchvision

    keywords = {"init_weights": True} if name in AUXILIARY else {}
    size = 299 if name == "inception_v3" else 224
    return getattr(torchvision.models, name)(weights=None, **keywords), (3, size, size), 1000


def seconds(work, warmup, steps):
    """Of each step, waited for."""
    times = []
    for step in range(warmup + steps):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        work()
        torch.cuda.synchronize()
        if step >= warmup:
            times.append(time.perf_counter() - begun)
    return times


def train(args):
    torch.manual_seed(1)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    net, image, classes = network(args.model)
    net = net.cuda().train()
    images, labels = torch.randn(args.batch, *image).cuda(), torch.randint(0, classes, (args.batch,)).cuda()
    if args.mode != "eager":
        net, images = net.to(memory_format=torch.channels_last), images.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.001, momentum=0.9, foreach=True)
    if args.mode in ("compile", "reduce-overhead"):
        net = torch.compile(net, mode="max-autotune" if args.mode == "compile" else args.mode)
    scaler = torch.amp.GradScaler("cuda", enabled=args.precision == "f16")
    losses = []

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", TYPES.get(args.precision, torch.bfloat16), enabled=args.precision in TYPES):
            outputs = net(images)
            logits, *auxiliary = outputs if isinstance(outputs, tuple) else (outputs,)
            loss = torch.nn.functional.cross_entropy(logits, labels)
            for other in auxiliary:
                loss = loss + AUXILIARY[args.model] * torch.nn.functional.cross_entropy(other, labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())

    for _ in range(args.warmup):
        step()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(args.steps):
        step()
    torch.cuda.synchronize()
    rate = args.batch * args.steps / (time.perf_counter() - begun)
    print(f"FIGURES {rate:.1f} {losses[0]:.4f} {losses[-1]:.4f}")


def limits(args):
    torch.backends.cuda.matmul.allow_tf32 = True
    n = 8192
    for name, dtype in {"tf32": torch.float32, **TYPES}.items():
        a, b = (torch.randn(n, n, device="cuda", dtype=dtype) for _ in range(2))
        print(name, f"{2 * n**3 / statistics.median(seconds(lambda: a @ b, 5, 20)) / 1e12:.1f}")
    a, b = (torch.empty(1 << 28, device="cuda") for _ in range(2))
    print("copy", f"{2 * 4 * (1 << 28) / statistics.median(seconds(lambda: b.copy_(a), 5, 20)) / 1e9:.0f}")


def main():
    parser = argparse.ArgumentParser()
    tasks = parser.add_subparsers(required=True)
    task = tasks.add_parser("train")
    task.add_argument("model")
    task.add_argument("batch", type=int)
    task.add_argument("precision", choices=["tf32", "bf16", "f16"])
    task.add_argument("mode", choices=["eager", "channels_last", "compile", "reduce-overhead"])
    task.add_argument("--steps", type=int, default=60)
    task.add_argument("--warmup", type=int, default=15)
    task.set_defaults(run=train)
    tasks.add_parser("limits").set_defaults(run=limits)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
