#!/usr/bin/env python3
"""The peer of benchmarks/fields/cubes.sh: CosmoFlow in PyTorch, by DDP over gloo where there are two ranks.

    cubes.py versions
    cubes.py make DIR EDGE                        the network as ONNX, with the weights that both begin with
    cubes.py torch DIR EDGE RANKS THREADS BATCH   trains; --bf16 by autocast, --channels-last
    cubes.py same RECORD.h5 LOSSES.npy BOUND      whether the losses are the same; and dltrain's memory beside its plan
    cubes.py slabs WARMUP RECORD.h5...            what runs on 1 rank and more have of one cube
    cubes.py learn DIR EDGE BATCH EPOCHS SEED     learns of the files in DIR/train, tests after each epoch on DIR/test
    cubes.py learned DIR                          what both have learned, by seed; whether dltrain's mean is PyTorch's

`torch` prints `FIGURES samples/s nan first loss, last loss`, the median over steps behind the warm-up, and each rank
`PEAK megabytes` as benchmarks/cpu/peer.py does. Samples are in memory, as the network reads them.
"""

import argparse
import os
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests/fields"), str(ROOT / "benchmarks/cpu")]
RATE = float(os.environ.get("LR", "0.001"))


def network(edge):
    import torch
    from cubes import CosmoFlow

    torch.manual_seed(1)
    return CosmoFlow(edge)


def train(rank, args):
    import peer
    import resource
    import torch
    from cubes import universes
    from torch.nn import functional as F

    torch.set_num_threads(args.threads)
    net = network(args.edge).train()
    inputs, targets = universes(args.directory / f"{args.edge}-{args.ranks}")
    own = slice(rank * args.batch, (rank + 1) * args.batch)
    inputs, targets = inputs[own].clone(), targets[own].clone()
    if args.channels_last:
        net = net.to(memory_format=torch.channels_last_3d)
        inputs = inputs.contiguous(memory_format=torch.channels_last_3d)
    if args.ranks > 1:
        torch.distributed.init_process_group("gloo", rank=rank, world_size=args.ranks)
        net = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=0.9)
    losses, seconds = [], []
    for _ in range(args.warmup + args.steps):
        begun = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
            output = net(inputs)
        loss = F.mse_loss(output.float(), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begun)
    means = torch.tensor(losses, dtype=torch.float64)
    if args.ranks > 1:
        torch.distributed.all_reduce(means)
        torch.distributed.destroy_process_group()
    if rank == 0:
        np.save(args.directory / "losses.npy", means.numpy() / args.ranks)
        peer.figures(seconds[args.warmup:], args.ranks * args.batch, "nan", (means / args.ranks).tolist())
    peer.peak(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 * 1.048576)


def torch_task(args):
    import peer

    return peer.in_processes(train, args.ranks, args.threads, 29521, args)


def same_task(args):
    import h5py

    with h5py.File(args.record) as run:
        ours = run["steps/loss"][()]
    theirs = np.load(args.losses)[:len(ours)]
    apart = np.abs(ours - theirs) / np.abs(theirs)
    peak, planned = memory(args.record)
    print(f"losses {', '.join(f'{loss:.6f}' for loss in ours)}; PyTorch's differ by {apart.max():.0e}")
    print(f"dltrain's memory at its peak {peak:.0f} MB, planned {planned:.0f} MB")
    return int(len(ours) != len(theirs) or not apart.max() < args.bound)


def memory(record):
    """Megabytes of the rank that has most: at its peak, and as planned."""
    import h5py

    with h5py.File(record) as run:
        return [run[f"summary/{name}"][()] / 1e6 for name in ("peak_memory", "planned_memory")]


def slabs_task(args):
    import h5py

    print(f"{'ranks':>5}{'s a step':>10}{'peak MB':>9}{'planned':>9}{'sent MB a step':>16}{'apart':>9}  losses")
    first, wrong = None, False
    for record in args.records:
        with h5py.File(record) as run:
            losses, seconds = run["steps/loss"][()], run["steps/seconds"][args.warmup:]
            ranks = Path(record).stem.rsplit("-", 1)[-1]
            sent = run["summary/sent_a_step"][()] / 1e6
        first = losses if first is None else first
        apart = np.abs(losses / first - 1).max()
        wrong |= not apart < 1e-5
        peak, planned = memory(record)
        print(f"{ranks:>5}{np.median(seconds):>10.2f}{peak:>9.0f}{planned:>9.0f}{sent:>16.1f}{apart:>9.0e}  "
              + ", ".join(f"{loss:.6f}" for loss in losses))
    return int(wrong)


def learn_task(args):
    import torch
    from cubes import CosmoFlow, universes
    from torch.nn import functional as F

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.manual_seed(args.seed)
    net = CosmoFlow(args.edge)
    inputs, targets = universes(args.directory / "train")
    held = universes(args.directory / "test")
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
    errors = []
    for _ in range(args.epochs):
        for batch in torch.randperm(len(inputs)).split(args.batch):
            optimizer.zero_grad(set_to_none=True)
            F.mse_loss(net(inputs[batch]), targets[batch]).backward()
            optimizer.step()
        with torch.no_grad():
            off = [(net(x) - y).abs() for x, y in zip(*(of.split(args.batch) for of in held))]
        errors.append(torch.cat(off).mean().item())
    np.save(args.directory / f"theirs-{args.seed}.npy", errors)


def learned_task(args):
    """A line for each seed. The mean of dltrain's errors is to lie between PyTorch's least and greatest."""
    import h5py

    seeds = sorted(path.stem.split("-")[1] for path in args.directory.glob("theirs-*.npy"))
    theirs = [np.load(args.directory / f"theirs-{seed}.npy") for seed in seeds]
    ours = []
    for seed in seeds:
        with h5py.File(args.directory / f"ours-{seed}.h5") as run:
            ours.append(run["epochs/test_mae"][()])
    print(f"{'seed':>8}{'dltrain':>10}{'PyTorch':>10}")
    for row in zip(seeds, ours, theirs):
        print(f"{row[0]:>8}{row[1][-1]:>10.4f}{row[2][-1]:>10.4f}")
    ends = [np.array([errors[-1] for errors in of]) for of in (ours, theirs)]
    for name, of in [("mean", np.mean), ("sd", lambda of: of.std(ddof=1))]:
        print(f"{name:>8}" + "".join(f"{of(end):>10.4f}" for end in ends))
    for name, of in [("dltrain", ours), ("PyTorch", theirs)]:
        print(f"mean by epoch, {name}: " + ", ".join(f"{error:.3f}" for error in np.mean(of, axis=0)))
    within = ends[1].min() <= ends[0].mean() <= ends[1].max()
    where = "within" if within else "OUTSIDE"
    print(f"dltrain's mean is {where} PyTorch's seeds, {ends[1].min():.4f} to {ends[1].max():.4f}")
    return int(not within)


TASKS = {"torch": torch_task, "same": same_task, "slabs": slabs_task, "learn": learn_task, "learned": learned_task}


def main():
    parser = argparse.ArgumentParser()
    tasks = parser.add_subparsers(dest="task", required=True)
    tasks.add_parser("versions")
    task = tasks.add_parser("make")
    task.add_argument("directory", type=Path)
    task.add_argument("edge", type=int)
    task = tasks.add_parser("torch")
    task.add_argument("directory", type=Path)
    for name in ("edge", "ranks", "threads", "batch"):
        task.add_argument(name, type=int)
    task.add_argument("--steps", type=int, default=3)
    task.add_argument("--warmup", type=int, default=1)
    task.add_argument("--bf16", action="store_true")
    task.add_argument("--channels-last", action="store_true")
    task = tasks.add_parser("same")
    task.add_argument("record")
    task.add_argument("losses")
    task.add_argument("bound", type=float)
    task = tasks.add_parser("slabs")
    task.add_argument("warmup", type=int)
    task.add_argument("records", nargs="+")
    task = tasks.add_parser("learn")
    task.add_argument("directory", type=Path)
    for name in ("edge", "batch", "epochs", "seed"):
        task.add_argument(name, type=int)
    task = tasks.add_parser("learned")
    task.add_argument("directory", type=Path)
    args = parser.parse_args()
    if args.task == "versions":
        import torch
        print("versions: PyTorch", torch.__version__)
    elif args.task == "make":
        from cubes import export
        export(network(args.edge), args.edge, args.directory / f"cosmoflow-{args.edge}.onnx")
    else:
        raise SystemExit(TASKS[args.task](args))


if __name__ == "__main__":
    main()
