"""One training job of PyTorch as ZeRO-1 has it: DistributedDataParallel and ZeroRedundancyOptimizer over gloo, two
processes of one thread on this machine. Prints images a second of both, and the peak resident set of the larger in MB.

usage: peer.py [MODEL [BATCH [STEPS]]]    (vgg11, 2, 4)
"""
import os
import resource
import statistics
import sys
import time

model = sys.argv[1] if len(sys.argv) > 1 else "vgg11"
batch = int(sys.argv[2]) if len(sys.argv) > 2 else 2
steps = int(sys.argv[3]) if len(sys.argv) > 3 else 4
RANKS = 2


def work(rank, results):
    os.environ.update(OMP_NUM_THREADS="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29531", GLOO_SOCKET_IFNAME="lo")
    import torch
    import torch.distributed as dist
    import torchvision
    from torch.distributed.optim import ZeroRedundancyOptimizer

    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    network = torchvision.models.get_model(model, weights=None)
    network = torch.nn.parallel.DistributedDataParallel(network)
    optimizer = ZeroRedundancyOptimizer(network.parameters(), optimizer_class=torch.optim.Adam, lr=1e-3)
    images, labels = torch.randn(batch, 3, 224, 224), torch.randint(0, 1000, (batch,))
    times = []
    for _ in range(steps + 1):
        begun = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(network(images), labels).backward()
        optimizer.step()
        dist.barrier()
        times.append(time.perf_counter() - begun)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    results.put((RANKS * batch / statistics.median(times[1:]), peak))
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
