"""One training job of PyTorch over gloo, two processes of one thread on this machine. Prints images a second of both,
and the peak resident set of the larger in MB. Without LOCAL it is ZeRO-1: DistributedDataParallel and
ZeroRedundancyOptimizer with Adam; with it local SGD: SGD with momentum, and a PeriodicModelAverager every LOCAL steps.

usage: peer.py [MODEL [BATCH [STEPS [LOCAL]]]]    (vgg11, 2, 4; mnist_small is dltrain's, else a model of torchvision)
"""
import os
import resource
import statistics
import sys
import time

model = sys.argv[1] if len(sys.argv) > 1 else "vgg11"
batch = int(sys.argv[2]) if len(sys.argv) > 2 else 2
steps = int(sys.argv[3]) if len(sys.argv) > 3 else 4
local = int(sys.argv[4]) if len(sys.argv) > 4 else 0
RANKS = 2


def make(torch):
    """The network, and the shape of an image."""
    if model != "mnist_small":
        import torchvision

        return torchvision.models.get_model(model, weights=None), (3, 224, 224)
    layers = [torch.nn.Conv2d(1, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Flatten()]
    layers += [torch.nn.Linear(6272, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)]
    return torch.nn.Sequential(*layers), (1, 28, 28)


def work(rank, results):
    os.environ.update(OMP_NUM_THREADS="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29531", GLOO_SOCKET_IFNAME="lo")
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import ZeroRedundancyOptimizer

    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    network, image = make(torch)
    averager = PeriodicModelAverager(period=local, warmup_steps=0) if local else None
    if local:
        optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9)
    else:
        network = torch.nn.parallel.DistributedDataParallel(network)
        optimizer = ZeroRedundancyOptimizer(network.parameters(), optimizer_class=torch.optim.Adam, lr=1e-3)
    images, labels = torch.randn(batch, *image), torch.randint(0, 10, (batch,))
    times = []
    for _ in range(steps + 1):
        begun = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(network(images), labels).backward()
        optimizer.step()
        if averager:
            averager.average_parameters(network.parameters())
        else:
            dist.barrier()
        times.append(time.perf_counter() - begun)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    # Few steps have an averaging in them: the mean counts them.
    seconds = statistics.mean(times[1:]) if local else statistics.median(times[1:])
    results.put((RANKS * batch / seconds, peak))
    dist.destroy_process_group()


if __name__ == "__main__":
    import multiprocessing

    multiprocessing.set_start_method("spawn")
    results = multiprocessing.Queue()
    ranks = [multiprocessing.Process(target=work, args=(rank, results)) for rank in range(RANKS)]
    for process in ranks:
        process.start()
    found = [results.get() for _ in ranks]
    for process in ranks:
        process.join()
    print(f"{min(rate for rate, _ in found):.2f} {max(memory for _, memory in found):.0f}")
