#!/usr/bin/env python3
"""What dltrain's large models are measured against: the same networks of torchvision, and what reads both's results.

    peer.py torch MODEL SETTING...   trains on one random batch; settings: channels_last, compile, bf16
    peer.py record FILE.h5           the same figures of a run of dltrain, from its record
    peer.py run COMMAND...           runs a command; says on standard error how much memory it had at most

The first two print `FIGURES images/s, share of communication, first loss, last loss`: the median over steps after the
warm-up. Every rank of the first and the third prints `PEAK megabytes`, its largest resident set.
"""

import argparse
import os
import resource
import statistics
import sys
import time

AUXILIARY = {"inception_v3": 0.4, "googlenet": 0.3}


def figures(seconds, images, communication, losses):
    rate = images / statistics.median(seconds)
    print(f"FIGURES {rate:.3f} {communication} {losses[0]:.4f} {losses[-1]:.4f}", flush=True)


def peak(megabytes):
    print(f"PEAK {megabytes:.0f}", file=sys.stderr, flush=True)


def train(rank, args):
    import torch
    import torchvision

    torch.set_num_threads(args.threads)
    torch.manual_seed(1 + rank)
    keywords = {"init_weights": True} if args.model in AUXILIARY else {}
    net = getattr(torchvision.models, args.model)(weights=None, **keywords).train()
    size = 299 if args.model == "inception_v3" else 224
    images, labels = torch.randn(args.batch, 3, size, size), torch.randint(0, 1000, (args.batch,))
    if "channels_last" in args.settings:
        net = net.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    if args.ranks > 1:
        torch.distributed.init_process_group("gloo", rank=rank, world_size=args.ranks)
        net = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9)
    if "compile" in args.settings:
        net = torch.compile(net)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled="bf16" in args.settings):
            outputs = net(images)
            logits, *auxiliary = outputs if isinstance(outputs, tuple) else (outputs,)
            loss = torch.nn.functional.cross_entropy(logits, labels)
            for other in auxiliary:
                loss = loss + AUXILIARY[args.model] * torch.nn.functional.cross_entropy(other, labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    losses, seconds = [], []
    for _ in range(args.warmup + args.steps):
        begun = time.perf_counter()
        losses.append(step())
        seconds.append(time.perf_counter() - begun)
    if args.ranks > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    if rank == 0:
        figures(seconds[args.warmup:], args.ranks * args.batch, "nan", losses)
    peak(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 * 1.048576)


def in_processes(task, ranks, threads, port, args):
    """Runs task(rank, args) in as many processes as ranks, which find each other; gives the greatest exit code."""
    os.environ.update(OMP_NUM_THREADS=str(threads), CUDA_VISIBLE_DEVICES="", MASTER_ADDR="127.0.0.1")
    os.environ.setdefault("MASTER_PORT", str(port))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=task, args=(rank, args)) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return max(abs(process.exitcode) for process in processes)


def torch_task(args):
    return in_processes(train, args.ranks, args.threads, 29518, args)


def record_task(args):
    import h5py

    with h5py.File(args.file, "r") as run:
        steps = run["steps"]
        # The record keeps the steps of the warm-up too, as PyTorch's are kept here.
        seconds, images = steps["seconds"][args.warmup:], steps["images"][-1]
        share = 100 * sum(steps["communication"][args.warmup:]) / sum(seconds)
        figures(list(seconds), int(images), f"{share:.1f}", steps["loss"][:])
    return 0


def run_task(args):
    # Not a subprocess: the launcher's open files must reach the program.
    child = os.fork()
    if child == 0:
        os.execvp(args.command[0], args.command)
    _, status, usage = os.wait4(child, 0)
    peak(usage.ru_maxrss / 1024 * 1.048576)
    return os.waitstatus_to_exitcode(status) & 0xFF


def main():
    parser = argparse.ArgumentParser()
    tasks = parser.add_subparsers(dest="task", required=True)
    task = tasks.add_parser("torch")
    task.add_argument("model")
    task.add_argument("settings", nargs="*", default=[])
    task.add_argument("--ranks", type=int, default=2)
    task.add_argument("--threads", type=int, default=1)
    task.add_argument("--batch", type=int, default=8)
    task.add_argument("--steps", type=int, default=8)
    task.add_argument("--warmup", type=int, default=2)
    task.add_argument("--lr", type=float, default=0.001)
    task = tasks.add_parser("record")
    task.add_argument("file")
    task.add_argument("--warmup", type=int, default=2)
    task = tasks.add_parser("run")
    task.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    raise SystemExit({"torch": torch_task, "record": record_task, "run": run_task}[args.task](args))


if __name__ == "__main__":
    main()
