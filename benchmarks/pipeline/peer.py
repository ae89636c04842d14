"""ResNet-50 of torchvision in two stages by torch.distributed.pipelining over gloo, two processes of one thread on this
machine. Prints images a second, and the peak resident set of the larger in MB.

usage: peer.py SCHEDULE [BATCH [MICRO_BATCHES [STEPS]]]    (gpipe or 1f1b; 16, 8, 5)
"""
import os
import resource
import statistics
import sys
import time

schedule = sys.argv[1]
batch, parts, steps = ([int(word) for word in sys.argv[2:5]] + [16, 8, 5][len(sys.argv) - 2 :])[:3]


def work(rank, results):
    os.environ.update(OMP_NUM_THREADS="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29541", GLOO_SOCKET_IFNAME="lo")
    import torch
    import torch.distributed as dist
    import torchvision
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    network = torchvision.models.resnet50(weights=None)
    # At the end of the second group of blocks, where dltrain cuts it too, but for a layer or two.
    first = ["conv1", "bn1", "relu", "maxpool", "layer1", "layer2"]
    second = [getattr(network, name) for name in ["layer3", "layer4", "avgpool"]]
    parts_of = [
        torch.nn.Sequential(*[getattr(network, name) for name in first]),
        torch.nn.Sequential(*second, torch.nn.Flatten(1), network.fc),
    ]
    own = parts_of[rank]
    stage = PipelineStage(own, rank, 2, torch.device("cpu"))
    kind = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[schedule]
    order = kind(stage, n_microbatches=parts, loss_fn=torch.nn.CrossEntropyLoss())
    optimizer = torch.optim.SGD(own.parameters(), lr=1e-3, momentum=0.9)
    images, labels = torch.randn(batch, 3, 224, 224), torch.randint(0, 1000, (batch,))
    times = []
    for _ in range(steps + 1):
        dist.barrier()
        begun = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        order.step(images) if rank == 0 else order.step(target=labels)
        optimizer.step()
        dist.barrier()
        times.append(time.perf_counter() - begun)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    results.put((batch / statistics.median(times[1:]), peak))
    dist.destroy_process_group()


if __name__ == "__main__":
    import multiprocessing

    multiprocessing.set_start_method("spawn")
    results = multiprocessing.Queue()
    ranks = [multiprocessing.Process(target=work, args=(rank, results)) for rank in range(2)]
    for process in ranks:
        process.start()
    found = [results.get() for _ in ranks]
    for process in ranks:
        process.join()
    print(f"{min(rate for rate, _ in found):.2f} {max(memory for _, memory in found):.0f}")
