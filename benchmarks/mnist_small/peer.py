#!/usr/bin/env python3
"""The peer of `dltrain --model mnist_small`: the same network in PyTorch, DistributedDataParallel over gloo.

Two processes with one thread each, SGD with momentum 0.9, 32-bit floats. Started by run.sh.

    peer.py digits DIRECTORY         trains on the digits; prints final train loss and test accuracy
    peer.py speed SETTING [options]  trains on one random batch; prints `total images/sec: N` last
                                     SETTING: eager, channels_last, compile
"""

import argparse
import os
import pathlib
import struct
import time

RANKS = 2
PARAMETERS = 402_442


def network(torch):
    """Convolution, two fully connected layers; (N, 1, 28, 28) to (N, 10)."""
    nn = torch.nn
    net = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(6272, 64), nn.ReLU(), nn.Linear(64, 10),
    )
    assert sum(p.numel() for p in net.parameters()) == PARAMETERS
    return net


def read_idx(torch, directory, name):
    """Images (N, 1, H, W) and labels (N) of one half of the set."""
    images = (directory / f"{name}-images-idx3-ubyte").read_bytes()
    count, height, width = struct.unpack(">3I", images[4:16])
    images = torch.frombuffer(bytearray(images[16:]), dtype=torch.uint8).view(count, 1, height, width).float()
    labels = (directory / f"{name}-labels-idx1-ubyte").read_bytes()[8:]
    return images, torch.frombuffer(bytearray(labels), dtype=torch.uint8).long()


def digits(torch, rank, args):
    """Trains as run.sh has dltrain train, with the same preparation of the images."""
    functional = torch.nn.functional
    images, labels = read_idx(torch, args.directory, "train")
    test_images, test_labels = read_idx(torch, args.directory, "t10k")
    mean, deviation = images.mean(), images.std(correction=0)
    images, test_images = (
        functional.interpolate((x - mean) / deviation, (28, 28), mode="bilinear") for x in (images, test_images)
    )
    net = torch.nn.parallel.DistributedDataParallel(network(torch))
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9)
    share = args.batch
    for epoch in range(args.epochs):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
        losses = []
        for start in range(0, len(images) - RANKS * share + 1, RANKS * share):
            mine = order[start + rank * share:][:share]
            optimizer.zero_grad()
            loss = functional.cross_entropy(net(images[mine]), labels[mine])
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    loss = torch.stack(losses).mean()
    torch.distributed.all_reduce(loss)
    with torch.no_grad():
        accuracy = (net.module(test_images).argmax(1) == test_labels).float().mean()
    if rank == 0:
        print(f"train loss {loss.item() / RANKS:.5f}")
        print(f"test accuracy {100 * accuracy.item():.2f}%")


def speed(torch, rank, args):
    """Times whole training steps on one batch, as dltrain does without --data."""
    net = network(torch)
    images = torch.randn(args.batch, 1, 28, 28)
    labels = torch.randint(0, 10, (args.batch,))
    if args.setting != "eager":
        net = net.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    net = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9)
    if args.setting == "compile":
        net = torch.compile(net)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    first = step()
    for _ in range(args.warmup - 1):
        step()
    torch.distributed.barrier()
    begun = time.perf_counter()
    for _ in range(args.steps):
        last = step()
    torch.distributed.barrier()
    seconds = time.perf_counter() - begun
    assert torch.isfinite(last) and last < first, f"the loss went from {first} to {last}"
    if rank == 0:
        print(f"loss {first:.4f} {last:.4f}")
        print(f"total images/sec: {RANKS * args.batch * args.steps / seconds:.2f}")


def rank_main(rank, args):
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(1 if args.task == "digits" else 1 + rank)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=RANKS)
    (digits if args.task == "digits" else speed)(torch, rank, args)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    tasks = parser.add_subparsers(dest="task", required=True)
    task = tasks.add_parser("digits")
    task.add_argument("directory", type=pathlib.Path)
    task.add_argument("--epochs", type=int, default=20)
    task.add_argument("--batch", type=int, default=32)
    task.add_argument("--lr", type=float, default=0.05)
    task = tasks.add_parser("speed")
    task.add_argument("setting", choices=["eager", "channels_last", "compile"])
    task.add_argument("--steps", type=int, default=200)
    task.add_argument("--warmup", type=int, default=20)
    task.add_argument("--batch", type=int, default=128)
    task.add_argument("--lr", type=float, default=0.01)
    args = parser.parse_args()

    os.environ.update(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", MASTER_ADDR="127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29517")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=rank_main, args=(rank, args)) for rank in range(RANKS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    raise SystemExit(max(abs(process.exitcode) for process in processes))


if __name__ == "__main__":
    main()
