"""One rank of a job that goes on when ranks are lost, over gloo: with torchrun's elastic agent, which starts all ranks
again, and its state in /dev/shm after every step; or with Horovod Elastic, whose ranks stay and commit in memory.
When a step has ended and is kept rank 0 adds to STEPS how many ranks there are.

usage: peer.py torchrun|horovod MODEL BATCH STEPS
"""
import os
import sys

import torch

kind, model, batch, steps = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]


def make():
    """The network, and the shape of an image."""
    if model != "mnist_small":
        import torchvision

        return torchvision.models.get_model(model, weights=None), (3, 224, 224)
    layers = [torch.nn.Conv2d(1, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Flatten()]
    layers += [torch.nn.Linear(6272, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)]
    return torch.nn.Sequential(*layers), (1, 28, 28)


def note(ranks):
    with open(steps, "a") as file:
        file.write(str(ranks))


torch.set_num_threads(1)
torch.manual_seed(1)
network, image = make()
images, labels = torch.randn(batch, *image), torch.randint(0, 10, (batch,))


def step(optimizer, network):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(network(images), labels).backward()
    optimizer.step()


def torchrun():
    import torch.distributed as dist

    dist.init_process_group("gloo")
    kept = f"/dev/shm/elastic-peer-{os.environ['TORCHELASTIC_RUN_ID']}-{os.getuid()}"
    wrapped = torch.nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=1e-4, momentum=0.9)
    if os.path.exists(kept):
        state = torch.load(kept)
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
    while True:
        step(optimizer, wrapped)
        if dist.get_rank() == 0:
            torch.save({"network": network.state_dict(), "optimizer": optimizer.state_dict()}, kept + ".new")
            os.replace(kept + ".new", kept)
            note(dist.get_world_size())


def horovod():
    import horovod.torch as hvd

    hvd.init()
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=network.named_parameters())

    @hvd.elastic.run
    def train(state):
        while True:
            step(optimizer, network)
            state.commit()
            if hvd.rank() == 0:
                note(hvd.size())

    train(hvd.elastic.TorchState(model=network, optimizer=optimizer))


torchrun() if kind == "torchrun" else horovod()
