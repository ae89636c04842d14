#!/usr/bin/env python3
"""The peer of benchmarks/fields/train.sh: PyTorch's DDP, whose samples h5py reads behind a DataLoader.

    train.py versions
    train.py make DIR REAL               files and networks of all cases; REAL: A1B_north_america.nc of iris-sample-data
    train.py flags DIR CASE              what dltrain is started with
    train.py torch DIR CASE SETTING...   trains; settings: channels_last, workers=N (2 a rank, unless said)
    train.py same DIR CASE COMMAND...    whether the losses of dltrain, started so, are PyTorch's

`torch` prints `FIGURES samples/s nan first loss, last loss`, the median over steps behind the warm-up, and each rank
`PEAK megabytes` as benchmarks/cpu/peer.py does. `same` has each rank train on one sample, so that no order matters.
"""

import argparse
import subprocess
import sys
import time
import warnings
from pathlib import Path

import h5py
import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / place) for place in ("tests/fixtures", "tests/fields", "benchmarks/cpu")]
from common import CROP, WEIGHTS, smooth

RATE, SAME_STEPS = 0.001, 4
# Crops of DeepCAM, U-Net's images along a side, and how many there are.
CROPS, SIDE, IMAGES = 8, 128, 96


class Case:
    """views: what dltrain reads and compares with; files: what h5py reads, in the order of samples."""

    def __init__(self, directory, name, few=False):
        self.directory, self.name, self.few = Path(directory), name, few
        there = self.directory / (f"{name}-few" if few else name)
        self.data = sorted(there.glob("*.*"))
        if name == "emulator":
            view = "air_temperature[n{},h,w]:standard"
            self.model, self.batch = self.directory / "emulator.onnx", 8
            self.flags = ["--input", view.format(""), "--target", view.format("+1"), "--loss", "mse"]
        elif name == "unet_small":
            self.model, self.batch = name, 4
            self.flags = ["--input", "image[n,c,h,w]", "--target", "mask[n,h,w]", "--loss", "cross-entropy"]
        else:
            self.model, self.batch = name, 1
            self.flags = ["--input", f"climate/data[h,w,c]:minmax({self.directory}/stats.h5)", "--target",
                          "climate/labels_0[h,w]", "--loss", "cross-entropy", "--metric", "iou", "--class-weights",
                          ",".join(map(str, WEIGHTS))]
        if few:
            self.batch = 1
        if name != "emulator":
            self.flags += ["--init-from", self.directory / f"{name}.safetensors"]
        self.flags += ["--model", self.model, "--data", there, "--batch", self.batch, "--optimizer", "sgd",
                       "--momentum", 0.9, "--weight-decay", 0, "--lr", RATE, "--device", "cpu", "--threads", 1]
        if name == "deepcam":
            self.flags += ["--classes", 3]


def network(name):
    """The network of a case with the weights that both begin with; 1×1 convolutions of an emulator come from here."""
    import make_models
    import torch
    from torch import nn

    torch.manual_seed(1)
    if name == "emulator":
        body = [layer for _ in range(3) for layer in (nn.Conv2d(64, 64, 3, padding=1), nn.ReLU())]
        return nn.Sequential(nn.Conv2d(1, 64, 3, padding=1), nn.ReLU(), *body, nn.Conv2d(64, 1, 3, padding=1))
    if name == "unet_small":
        make_models.CLASSES = 2
        return make_models.UNet(3, 16)
    # From other weights no two programs have the same losses (tests/fields/deepcam.py).
    import deepcam
    return deepcam.network()


def make(directory, real):
    import safetensors.torch
    import torch

    directory, random = Path(directory), np.random.default_rng(1)
    for name in ("emulator", "unet_small", "deepcam"):
        for place in (name, f"{name}-few"):
            (directory / place).mkdir()
        net = network(name)
        if name != "emulator":
            safetensors.torch.save_file(net.state_dict(), directory / f"{name}.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(network("emulator"), (torch.zeros(1, 1, 37, 49),), directory / "emulator.onnx", dynamo=False)
    (directory / "emulator/real.nc").symlink_to(Path(real).resolve())
    with h5py.File(real) as file, h5py.File(directory / "emulator-few/real.nc", "w") as few:
        few["air_temperature"] = file["air_temperature"][:3]
    packed = {"compression": "gzip", "compression_opts": 4, "shuffle": True}
    for place, count in (("unet_small", IMAGES), ("unet_small-few", 2)):
        image = smooth(random, (count, 3, SIDE, SIDE)).round(2)
        with h5py.File(directory / place / "all.h5", "w") as file:
            file.create_dataset("image", data=image, chunks=(1, 3, SIDE, SIDE), **packed)
            file.create_dataset("mask", data=(image.sum(1) > 1).astype("u1"), chunks=(1, SIDE, SIDE), **packed)
    for place, count in (("deepcam", CROPS), ("deepcam-few", 2)):
        for at in range(count):
            data = smooth(random, (16, *CROP))
            with h5py.File(directory / place / f"data-{at:03d}.h5", "w") as file:
                file["climate/data"] = np.ascontiguousarray(data.transpose(1, 2, 0))
                file["climate/labels_0"] = (data[0] > 1).astype("i4") + (data[1] > 2) * (data[0] > 1)
    with h5py.File(directory / "stats.h5", "w") as file:
        file["climate/minval"], file["climate/maxval"] = np.full(16, -5, "f4"), np.full(16, 5, "f4")


class Samples:
    """Files are opened in the process that reads, as h5py wants it."""

    def __init__(self, case):
        self.name, self.files, self.opened = case.name, case.data, {}
        if self.name == "emulator":
            with h5py.File(self.files[0]) as file:
                before = file["air_temperature"][:-1].astype("f8")
            self.mean, self.deviation, self.length = before.mean(), before.std(), len(before)
        elif self.name == "unet_small":
            with h5py.File(self.files[0]) as file:
                self.length = len(file["image"])
        else:
            self.length = len(self.files)

    def __len__(self):
        return self.length

    def file(self, at):
        if at not in self.opened:
            self.opened[at] = h5py.File(self.files[at])
        return self.opened[at]

    def __getitem__(self, at):
        import torch

        if self.name == "emulator":
            both = self.file(0)["air_temperature"][at:at + 2]
            both = torch.from_numpy(((both - self.mean) / self.deviation).astype("f4"))
            return both[:1], both[1:]
        if self.name == "unet_small":
            file = self.file(0)
            return torch.from_numpy(file["image"][at]), torch.from_numpy(file["mask"][at].astype("i8"))
        with h5py.File(self.files[at]) as file:
            data, labels = file["climate/data"][...], file["climate/labels_0"][...]
        data = np.ascontiguousarray(((data + np.float32(5)) * np.float32(0.1)).transpose(2, 0, 1))
        return torch.from_numpy(data), torch.from_numpy(labels.astype("i8"))


def train(rank, args, losses_to=None):
    import peer
    import resource
    import torch
    from torch.nn import functional as F

    torch.set_num_threads(1)
    case = Case(args.directory, args.case, args.few)
    net = network(args.case).train()
    if "channels_last" in args.settings:
        net = net.to(memory_format=torch.channels_last)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    net = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=0.9)
    data = Samples(case)
    sampler = torch.utils.data.DistributedSampler(data, shuffle=True, drop_last=True)
    workers = next((int(word[8:]) for word in args.settings if word.startswith("workers=")), 2)
    loader = torch.utils.data.DataLoader(data, case.batch, sampler=sampler, num_workers=workers, drop_last=True,
                                         persistent_workers=workers > 0)
    weights = torch.tensor(WEIGHTS)

    def batches():
        for epoch in range(1000):
            sampler.set_epoch(epoch)
            yield from loader

    losses, seconds, source = [], [], batches()
    for _ in range(args.warmup + args.steps):
        begun = time.perf_counter()
        inputs, targets = next(source)
        if "channels_last" in args.settings:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad(set_to_none=True)
        output = net(inputs)
        if args.case == "emulator":
            loss = F.mse_loss(output, targets)
        elif args.case == "unet_small":
            loss = F.cross_entropy(output, targets)
        else:
            loss = F.cross_entropy(output, targets, weight=weights, reduction="none").mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begun)
    torch.distributed.barrier()
    means = torch.tensor(losses, dtype=torch.float64)
    torch.distributed.all_reduce(means)
    if rank == 0 and args.few:
        np.save(args.directory / "losses.npy", means.numpy() / 2)
    elif rank == 0:
        peer.figures(seconds[args.warmup:], 2 * case.batch, "nan", (means / 2).tolist())
    torch.distributed.destroy_process_group()
    peer.peak(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 * 1.048576)


def torch_task(args):
    import peer

    return peer.in_processes(train, 2, 1, 29519, args)


def same_task(args):
    args.few, args.settings, args.warmup, args.steps = True, ["workers=0"], 0, SAME_STEPS
    if torch_task(args):
        return 1
    results = args.directory / "same.h5"
    results.unlink(missing_ok=True)
    flags = Case(args.directory, args.case, True).flags
    command = [*args.command, *flags, "--epochs", SAME_STEPS, "--results", results]
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
    with h5py.File(results) as run:
        ours = run["steps/loss"][()]
    theirs = np.load(args.directory / "losses.npy")
    apart = np.abs(ours - theirs) / np.abs(theirs)
    print(f"{args.case}: losses {', '.join(f'{loss:.6f}' for loss in ours)}; PyTorch's differ by "
          f"{', '.join(f'{value:.0e}' for value in apart)}")
    # The first is before any update: rounding alone. Normalisations and momentum amplify that of later ones.
    return int(not (apart[0] < 1e-5 and apart.max() < 1e-3))


def main():
    parser = argparse.ArgumentParser()
    tasks = parser.add_subparsers(dest="task", required=True)
    tasks.add_parser("versions")
    task = tasks.add_parser("make")
    task.add_argument("directory", type=Path)
    task.add_argument("real")
    for name in ("flags", "torch", "same"):
        task = tasks.add_parser(name)
        task.add_argument("directory", type=Path)
        task.add_argument("case")
        task.set_defaults(few=False)
        if name == "torch":
            task.add_argument("settings", nargs="*", default=[])
            task.add_argument("--steps", type=int, default=20)
            task.add_argument("--warmup", type=int, default=4)
        if name == "same":
            task.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    if args.task == "versions":
        import torch
        print("versions: h5py", h5py.__version__, "HDF5", h5py.version.hdf5_version, "PyTorch", torch.__version__)
    elif args.task == "make":
        make(args.directory, args.real)
    elif args.task == "flags":
        print(*Case(args.directory, args.case).flags, sep="\n")
    else:
        raise SystemExit({"torch": torch_task, "same": same_task}[args.task](args))


if __name__ == "__main__":
    main()
