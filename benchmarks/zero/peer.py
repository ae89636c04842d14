"""One training job of PyTorch's FSDP2 over gloo, two processes of one thread on this machine, with Adam. Every layer that
learns is a group of its own, as in PyTorch's tutorial every block is one. Prints images a second of both, and the peak
resident set of the larger in MB.

usage: peer.py STAGE [MODEL [BATCH [STEPS]]]    (2: SHARD_GRAD_OP, 3: FULL_SHARD; a model of torchvision: vgg11, 2, 4)
"""
import os
import resource
import statistics
import sys
import time

stage = int(sys.argv[1])
model = sys.argv[2] if len(sys.argv) > 2 else "vgg11"
batch = int(sys.argv[3]) if len(sys.argv) > 3 else 2
steps = int(sys.argv[4]) if len(sys.argv) > 4 else 4
RANKS = 2


def work(rank, results):
    os.environ.update(OMP_NUM_THREADS="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29551", GLOO_SOCKET_IFNAME="lo")
    import torch
    import torch.distributed as dist
    import torchvision
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    network = torchvision.models.get_model(model, weights=None)
    for layer in network.modules():
        if isinstance(layer, (torch.nn.Conv2d, torch.nn.Linear)):
            fully_shard(layer, mesh=mesh, reshard_after_forward=stage == 3)
    fully_shard(network, mesh=mesh, reshard_after_forward=stage == 3)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    images, labels = torch.randn(batch, 3, 224, 224), torch.randint(0, 10, (batch,))
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
