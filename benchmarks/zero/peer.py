"""One training job of PyTorch's FSDP2 or of DeepSpeed over gloo, two processes of one thread on this machine, with
Adam. FSDP2: every layer that learns is a group of its own, as in PyTorch's tutorial every block is one. DeepSpeed: as
it comes with its stage of ZeRO. Prints images a second of both ranks, and the peak resident set of the larger in MB.

usage: peer.py fsdp2|deepspeed STAGE [MODEL [BATCH [STEPS]]]    (stage 2 or 3; a model of torchvision: vgg11, 2, 4)
"""
import os
import resource
import statistics
import sys
import time

library = sys.argv[1]
stage = int(sys.argv[2])
model = sys.argv[3] if len(sys.argv) > 3 else "vgg11"
batch = int(sys.argv[4]) if len(sys.argv) > 4 else 2
steps = int(sys.argv[5]) if len(sys.argv) > 5 else 4
RANKS = 2


def fsdp2(network, images, labels):
    """A function that takes a step."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (RANKS,))
    for layer in network.modules():
        if isinstance(layer, (torch.nn.Conv2d, torch.nn.Linear)):
            fully_shard(layer, mesh=mesh, reshard_after_forward=stage == 3)
    fully_shard(network, mesh=mesh, reshard_after_forward=stage == 3)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(network(images), labels)
        loss.backward()
        optimizer.step()
        return loss

    return step


def deepspeed(network, images, labels):
    """A function that takes a step."""
    import torch
    import deepspeed

    config = {
        "train_micro_batch_size_per_gpu": batch,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3}},
        "zero_optimization": {"stage": stage},
    }
    engine, *_ = deepspeed.initialize(model=network, model_parameters=network.parameters(), config=config)

    def step():
        loss = torch.nn.functional.cross_entropy(engine(images), labels)
        engine.backward(loss)
        engine.step()
        return loss

    return step


def work(rank, results):
    os.environ.update(
        OMP_NUM_THREADS="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29551", GLOO_SOCKET_IFNAME="lo",
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS), DS_ACCELERATOR="cpu",
        # DeepSpeed makes its kernels with ninja, which pip put beside Python.
        PATH=os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"],
    )
    import torch
    import torch.distributed as dist
    import torchvision

    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    network = torchvision.models.get_model(model, weights=None)
    images, labels = torch.randn(batch, 3, 224, 224), torch.randint(0, 10, (batch,))
    step = {"fsdp2": fsdp2, "deepspeed": deepspeed}[library](network, images, labels)
    times = []
    for _ in range(steps + 1):
        begun = time.perf_counter()
        loss = step()
        dist.barrier()
        times.append(time.perf_counter() - begun)
    # A loss that is no number is no answer.
    assert torch.isfinite(loss), loss
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
