#!/usr/bin/env python3
"""The peer of `dltrain bench allreduce`: torch.distributed.all_reduce over gloo, two processes with one thread each.

Started by run.sh; prints one line "BYTES RANGES MICROSECONDS" for each size, and for the gradients of ResNet-50 as 161
ranges, in buckets of 25 MB as DistributedDataParallel has them, and as one range. A time is the median of samples, each
the mean of some repeats on the slower process, as in dltrain. Every answer is checked first.

    peer.py BYTES,BYTES,… [SAMPLES]
"""

import statistics
import sys
import tempfile
import time

RANKS = 2
PARAMETERS = 25_557_032
BUCKET = (25 << 20) // 4


def gradients():
    """Elements of each gradient, in the order of readiness."""
    import torchvision

    lengths = [p.numel() for p in torchvision.models.resnet50().parameters()][::-1]
    assert (len(lengths), sum(lengths)) == (161, PARAMETERS)
    return lengths


def bucketed(lengths):
    buckets = [0]
    for length in lengths:
        if buckets[-1] >= BUCKET:
            buckets.append(0)
        buckets[-1] += length
    return buckets


def measure(torch, rank, lengths, samples):
    """Seconds for ranges that are in flight together."""
    distributed = torch.distributed
    ranges = [torch.full((length,), float(rank + 1)) for length in lengths]

    def run():
        for work in [distributed.all_reduce(values, async_op=True) for values in ranges]:
            work.wait()

    run()
    assert all((values == 3).all() for values in ranges), "wrong sums"
    for values in ranges:
        values.zero_()

    def sample(repeats):
        distributed.barrier()
        begin = time.perf_counter()
        for _ in range(repeats):
            run()
        slowest = torch.tensor((time.perf_counter() - begin) / repeats)
        distributed.all_reduce(slowest, distributed.ReduceOp.MAX)
        return slowest.item()

    sample(2)
    rough = max(sample(3), 1e-9)
    repeats = int(min(max(200e-6 / rough, 1), 100))
    samples = samples or int(min(max(0.5 / (rough * repeats), 5), 500))
    return statistics.median(sample(repeats) for _ in range(samples))


def process(rank, file, sizes, samples):
    import torch

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{file}", rank=rank, world_size=RANKS)
    each = gradients()
    for lengths in [[size // 4] for size in sizes] + [each, bucketed(each), [sum(each)]]:
        seconds = measure(torch, rank, lengths, samples)
        if rank == 0:
            print(4 * sum(lengths), len(lengths), f"{seconds * 1e6:.2f}", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    import torch

    sizes = [int(size) for size in sys.argv[1].split(",")]
    samples = int(sys.argv[2]) if len(sys.argv) > 2 else None
    with tempfile.TemporaryDirectory() as directory:
        torch.multiprocessing.spawn(process, (f"{directory}/meet", sizes, samples), nprocs=RANKS)
