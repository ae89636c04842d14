"""The peer of benchmarks/fields/run.sh: h5py, alone and behind a PyTorch DataLoader.

    peer.py versions
    peer.py make DIR                      files as simulations leave them: counts in cubes, smooth fields, one as it is
    peer.py numbers FILE ARRAY            range, mean and deviation of all numbers
    peer.py load FILE ARRAY SAMPLES       MB/s of samples that are read in random order, as they are in the file; and
                                          made f32 with channels first, as dltrain's are
    peer.py workers FILE ARRAY SAMPLES N  the same by a DataLoader with so many workers
"""

import sys
import time

import h5py
import numpy as np

# The array is as large as this many samples.
CUBES, FIELDS, MAPS = 12, 96, 4


def smooth(random, shape):
    """Noise whose neighbours are alike, as fields are."""
    field = random.standard_normal(shape)
    for axis in range(len(shape)):
        for _ in range(3):
            field = (field + np.roll(field, 1, axis) + np.roll(field, -1, axis)) / 3
    return field / field.std()


def make(directory):
    random = np.random.default_rng(0)
    with h5py.File(f"{directory}/cubes.h5", "w") as file:
        cubes = file.create_dataset("full", (CUBES, 128, 128, 128, 4), "i2", chunks=(1, 128, 128, 128, 4),
                                    compression="gzip", compression_opts=4)
        shuffled = file.create_dataset("shuffled", (CUBES, 128, 128, 128, 4), "i2", chunks=(1, 128, 128, 128, 4),
                                       compression="gzip", compression_opts=4, shuffle=True)
        for at in range(CUBES):
            # Log-normal, so wide that cubes are compressed as CosmoFlow's are (5.9:1).
            field = np.exp(1.15 * smooth(random, (128, 128, 128)) - 1.15 ** 2 / 2)
            cubes[at] = random.poisson(field[..., None] * [1.0, 0.9, 0.8, 0.7])
            shuffled[at] = cubes[at]
    with h5py.File(f"{directory}/fields.h5", "w") as file:
        fields = file.create_dataset("fields", (FIELDS, 8, 180, 360), "f4", chunks=(1, 1, 180, 360),
                                     compression="gzip", compression_opts=4, shuffle=True)
        for at in range(FIELDS):
            fields[at] = [250 + 30 * smooth(random, (180, 360)).round(2) for _ in range(8)]
    with h5py.File(f"{directory}/maps.h5", "w") as file:
        maps = file.create_dataset("data", (MAPS, 768, 1152, 16), "f4")
        for at in range(MAPS):
            maps[at] = random.standard_normal((768, 1152, 16))


def versions():
    import torch

    print("versions: h5py", h5py.__version__, "HDF5", h5py.version.hdf5_version, "PyTorch", torch.__version__)


def numbers(path, name):
    with h5py.File(path) as file:
        all_numbers = file[name][:].astype("f8")
    print(f"{all_numbers.min():.6g} {all_numbers.max():.6g} {all_numbers.mean():.6f} {all_numbers.std():.6f}")


class Samples:
    """Opened in the process that reads, as h5py wants it."""

    def __init__(self, path, name):
        self.path, self.name, self.file = path, name, None
        with h5py.File(path) as file:
            self.length, self.bytes = len(file[name]), file[name][0].nbytes

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if self.file is None:
            self.file = h5py.File(self.path)[self.name]
        return self.file[index]


def load(path, name, samples):
    data = Samples(path, name)
    order = np.random.default_rng(1).integers(0, len(data), samples)
    channels_last = data[0].ndim == 4
    made = np.empty(np.moveaxis(data[0], -1, 0).shape if channels_last else data[0].shape, "f4")

    def rate(convert):
        begun = time.perf_counter()
        for index in order:
            sample = data[int(index)]
            if convert:
                made[...] = np.moveaxis(sample, -1, 0) if channels_last else sample
        return samples * data.bytes / (time.perf_counter() - begun) / 1e6

    print(f"{rate(False):.1f} {rate(True):.1f}")


def workers(path, name, samples, count):
    import torch

    data = Samples(path, name)
    order = np.random.default_rng(1).integers(0, len(data), samples + count).tolist()
    loader = torch.utils.data.DataLoader(data, batch_size=1, sampler=order, num_workers=count)
    batches = iter(loader)
    for _ in range(count):
        next(batches)
    begun = time.perf_counter()
    for _ in range(samples):
        next(batches)
    print(f"{samples * data.bytes / (time.perf_counter() - begun) / 1e6:.1f}")


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    {"versions": versions, "make": make, "numbers": numbers, "load": lambda p, n, s: load(p, n, int(s)),
     "workers": lambda p, n, s, w: workers(p, n, int(s), int(w))}[what](*rest)
