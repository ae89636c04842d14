#!/usr/bin/env python3
"""Has dltrain train from files as others publish them, each by one command, and compares the samples that it reads with
h5py's slices; then from files that others wrote, and from such that are damaged.

Usage: layouts.py DLTRAIN DIRECTORY [LAUNCHER...]    (make test-fields; DIRECTORY has iris-sample-data and
       esmvaltool-sample-data)

The published files are terabytes, so that twins stand for them: small, and made here to the published schema. What
dltrain reads is what a network gives that changes nothing, a convolution of 1×1 by the identity: every number must be
h5py's. Nothing may be written beside the files, nor to them.
"""
import hashlib
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np
import torch
from torch import nn

torch.manual_seed(1)
RANDOM = np.random.default_rng(5)
# One message must end a job of bad files within so many seconds.
SOON = 20


def noise(*shape):
    return RANDOM.normal(size=shape).astype("f4")


def write(path, arrays, **attributes):
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, (data, settings) in arrays.items():
            file.create_dataset(name, data=data, **settings)
        file.attrs.update(attributes)


def plain(**arrays):
    return {name.replace("_coordinate", "-coordinate"): (data, {}) for name, data in arrays.items()}


class Twin:
    """Files in a directory, one command to train from them, and what each of its views means.

    samples: how many there are. read: of each view the array (samples, channels, places…) that h5py has for it."""

    def __init__(self, name, data, model, flags, samples, read, near=0.0):
        self.name, self.data, self.model, self.flags = name, data, model, flags
        self.samples, self.read, self.near = samples, read, near


def two(channels, classes=None, kind=nn.Conv2d):
    return nn.Sequential(kind(channels, 8, 3, padding=1), nn.ReLU(), kind(8, classes or channels, 3, padding=1))


def deepcam(there):
    """mlcommons/hpc, deepcam/src/deepCam/data/cam_hdf5_dataset.py: a file a sample with climate/data (768, 1152, 16)
    and climate/labels_0 (768, 1152); beside them stats.h5 with climate/minval and climate/maxval (16)."""
    data = [noise(32, 48, 16) * np.arange(1, 17, dtype="f4") for _ in range(5)]
    labels = [RANDOM.integers(0, 3, size=(32, 48)) for _ in data]
    for at, (values, classes) in enumerate(zip(data, labels)):
        write(there / "train" / f"data-2106-08-{at + 1:02d}-00-1.h5",
              {"climate/data": (values, {}), "climate/labels_0": (classes, {})})
    least, most = (of(data, axis=(0, 1, 2)) for of in (np.min, np.max))
    write(there / "stats.h5", {"climate/minval": (least, {}), "climate/maxval": (most, {})})
    view = f"climate/data[h,w,c]:minmax({there}/stats.h5)"
    flags = ["--input", view, "--target", "climate/labels_0[h,w]", "--loss", "cross-entropy", "--class-weights",
             "1.0017,2.6146,1.7164", "--metric", "iou", "--batch", 1, "--epochs", 1]
    scaled = (np.stack(data) - least) / (most - least)
    read = {view: scaled.transpose(0, 3, 1, 2), "climate/labels_0[h,w]": np.stack(labels)[:, None]}
    return Twin("DeepCAM", there / "train", "deepcam", flags, 5, read, 1e-6)


def burgers(there):
    """pdebench/PDEBench, pdebench/data_gen/data_gen_NLE/Data_Merge.py, `transform`: tensor (N, T, X) f32, x-coordinate
    (X), t-coordinate (T + 1)."""
    tensor = noise(6, 12, 64)
    write(there / "1D_Burgers_Sols_Nu0.001.hdf5",
          plain(tensor=tensor, x_coordinate=noise(64), t_coordinate=noise(13)), Nu=0.001)
    # The benchmark's own task: ten steps are read, what follows is asked for.
    flags = ["--input", "tensor[n,c=0..10,w]", "--target", "tensor[n,c=10..2,w]", "--loss", "mse"]
    read = {"tensor[n,c=0..10,w]": tensor[:, :10], "tensor[n,c=10..2,w]": tensor[:, 10:]}
    return Twin("PDEBench, Burgers", there / "1D_Burgers_Sols_Nu0.001.hdf5", two(10, 2, nn.Conv1d), flags, 6, read)


def fluid(there):
    """The same file, `merge`: density, pressure, Vx, Vy (N, T, X, Y) f32 beside each other."""
    names = ["density", "pressure", "Vx", "Vy"]
    arrays = {name: noise(3, 5, 16, 12) for name in names}
    path = there / "2D_CFD_Rand_M0.1_Eta0.01_Zeta0.01_periodic_Train.hdf5"
    write(path, plain(**arrays, x_coordinate=noise(16), y_coordinate=noise(12), t_coordinate=noise(6)), eta=0.01, M=0.1)
    flags, read = [], {}
    for name in names:
        flags += ["--input", f"{name}[n,t,h,w]", "--target", f"{name}[n,t+1,h,w]"]
        read[f"{name}[n,t,h,w]"] = arrays[name][:, :-1].reshape(12, 1, 16, 12)
        read[f"{name}[n,t+1,h,w]"] = arrays[name][:, 1:].reshape(12, 1, 16, 12)
    return Twin("PDEBench, 2-D fluid", path, two(4), [*flags, "--loss", "mse", "--metric", "r2"], 12, read)


def well(there):
    """PolymathicAI/the_well, docs/data_format.md: t0_fields/* (B, T, H, W), t1_fields/* (B, T, H, W, D), t2_fields/*
    (B, T, H, W, D, D), fields that do not change in time (B, H, W), scalars, masks of boundaries (bool), attributes."""
    density, velocity, stress = noise(2, 4, 8, 12), noise(2, 4, 8, 12, 2), noise(2, 4, 8, 12, 2, 2)
    forcing = noise(2, 8, 12)
    for split, part in (("train", slice(None)), ("valid", slice(1))):
        path = there / split / "flow.hdf5"
        write(path, {"t0_fields/density": (density[part], {}), "t0_fields/forcing": (forcing[part], {}),
                     "t1_fields/velocity": (velocity[part], {}), "t2_fields/stress": (stress[part], {}),
                     "dimensions/time": (noise(4), {}), "dimensions/x": (noise(8), {}), "dimensions/y": (noise(12), {}),
                     "boundary_conditions/x_periodic/mask": (np.eye(1, 8, dtype=bool)[0], {}),
                     "scalars/Re": (np.float32(100), {})},
              dataset_name="flow", grid_type="cartesian", n_spatial_dims=2, n_trajectories=len(density[part]))
    flags = ["--input", "t0_fields/density[n,t,h,w]", "--input", "t0_fields/forcing[n,h,w]",
             "--input", "t1_fields/velocity[n,t,h,w,c]", "--input", "t2_fields/stress[n,t,h,w,0,c]",
             "--target", "t0_fields/density[n,t+1,h,w]", "--target", "t1_fields/velocity[n,t+1,h,w,c]",
             "--test-data", there / "valid", "--loss", "mae"]

    def of(array):
        return np.moveaxis(array, -1, 2).reshape(6, array.shape[-1], 8, 12)
    read = {flags[1]: density[:, :-1].reshape(6, 1, 8, 12), flags[3]: np.repeat(forcing, 3, 0)[:, None],
            flags[5]: of(velocity[:, :-1]), flags[7]: of(stress[:, :-1, ..., 0, :]),
            flags[9]: density[:, 1:].reshape(6, 1, 8, 12), flags[11]: of(velocity[:, 1:])}
    return Twin("The Well", there / "train", two(6, 3), flags, 6, read)


def fourcastnet(there):
    """NVlabs/FourCastNet, utils/data_loader_multifiles.py: a file a year with fields (1460, 21, 721, 1440) f32, of
    whose rows the last is left away; no pair of samples reaches over the end of a year."""
    years = [noise(steps, 21, 13, 24) for steps in (6, 8)]
    for year, fields in zip((2014, 2016), years):
        write(there / "train" / f"{year}.h5", plain(fields=fields))
    before, after = "fields[n,c=0..20,h=0..12,w]", "fields[n+1,c=0..20,h=0..12,w]"
    flags = ["--input", f"{before}:standard", "--target", f"{after}:standard", "--loss", "mse", "--metric", "rmse"]
    read = {before: np.concatenate([fields[:-1, :20, :12] for fields in years]),
            after: np.concatenate([fields[1:, :20, :12] for fields in years])}
    return Twin("FourCastNet's years", there / "train", two(20), flags, 12, read)


def cosmoflow(there):
    """mlcommons/hpc, cosmoflow/prepare.py, `read_hdf5`: full (512, 512, 512, 4) int16 counts, unitPar (4). Layers of it
    are pictures of four channels."""
    full = [RANDOM.poisson(2.0, size=(16, 16, 16, 4)).astype("i2") for _ in range(2)]
    parameters = RANDOM.uniform(-1, 1, size=(2, 4))
    for at in range(2):
        write(there / "train" / f"univ_ics_2019-03_a{at}.hdf5", plain(full=full[at], unitPar=parameters[at]))
    flags = ["--input", "full[n,h,w,c]:log1p", "--target", "unitPar[c]", "--loss", "mse", "--metric", "mae"]
    net = nn.Sequential(nn.Conv2d(4, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(392, 4), nn.Tanh())
    read = {"full[n,h,w,c]": np.concatenate(full).transpose(0, 3, 1, 2),
            "unitPar[c]": parameters.astype("f4")[:, :, None, None]}
    return Twin("CosmoFlow's originals by layers", there / "train", net, flags, 32, read)


def tiles(there):
    """The same in tiles, which are cubes."""
    full = [RANDOM.poisson(2.0, size=(16, 16, 16, 4)).astype("i2") for _ in range(2)]
    for at in range(2):
        write(there / "train" / f"univ_ics_2019-03_a{at}.hdf5", plain(full=full[at], unitPar=RANDOM.uniform(-1, 1, size=4)))
    view = "full[d/8,h/8,w/8,c]"
    flags = ["--input", f"{view}:log1p", "--target", "unitPar[c]", "--classes", 4, "--loss", "mse"]
    cut = np.concatenate(full).reshape(4, 8, 2, 8, 2, 8, 4).transpose(0, 2, 4, 6, 1, 3, 5)
    return Twin("CosmoFlow's originals by tiles", there / "train", "mlp", flags, 16, {view: cut.reshape(16, 4, 8, 8, 8)})


def shards(there):
    """NVIDIA/DeepLearningExamples, PyTorch/LanguageModeling/BERT, create_pretraining_data.py: input_ids (N, 128) i4,
    input_mask and segment_ids i1, masked_lm_positions and masked_lm_ids (N, 20) i4, next_sentence_labels (N) i1, all
    gzip. Its tokens are numbers to the network, since none has an embedding yet."""
    packed = {"compression": "gzip"}
    kinds = {"input_ids": (128, 30522, "i4"), "input_mask": (128, 2, "i1"), "segment_ids": (128, 2, "i1"),
             "masked_lm_positions": (20, 128, "i4"), "masked_lm_ids": (20, 30522, "i4")}
    all_files = []
    for at in range(2):
        arrays = {name: RANDOM.integers(0, most, size=(10, width)).astype(kind)
                  for name, (width, most, kind) in kinds.items()}
        arrays["next_sentence_labels"] = RANDOM.integers(0, 2, size=10).astype("i1")
        write(there / "train" / f"wikicorpus_en_training_{at}.hdf5",
              {name: (data, packed) for name, data in arrays.items()})
        all_files.append(arrays)
    flags = ["--input", "input_ids:standard", "--input", "segment_ids", "--target", "next_sentence_labels",
             "--loss", "cross-entropy"]
    read = {name: np.concatenate([arrays[name] for arrays in all_files])[:, :, None, None]
            for name in ("input_ids", "segment_ids", "masked_lm_ids")}
    net = nn.Sequential(nn.Flatten(), nn.Linear(256, 16), nn.ReLU(), nn.Linear(16, 2))
    return Twin("NVIDIA's BERT shards as numbers", there / "train", net, flags, 20, read)


class Job:
    def __init__(self, program, launcher, there):
        self.program, self.launcher, self.there = program, launcher, there

    def run(self, *words):
        command = [*self.launcher, self.program, *words, "--device", "cpu"]
        begun = time.monotonic()
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        self.seconds = time.monotonic() - begun
        return done

    def train(self, model, data, *flags):
        """What a run printed, and its results."""
        results = self.there / "run.h5"
        results.unlink(missing_ok=True)
        settings = {"--batch": 2, "--epochs": 2, "--optimizer": "sgd", "--lr": 0.01}
        rest = [word for flag, value in settings.items() if flag not in flags for word in (flag, value)]
        done = self.run("--model", model, "--data", data, *flags, *rest, "--results", results)
        assert done.returncode == 0, done.stderr
        with h5py.File(results) as run:
            return done.stdout + done.stderr, {name: run["epochs"][name][()] for name in run["epochs"]}

    def refused(self, model, data, flags, code, *words):
        """One message for the job, soon, and nothing written."""
        results = self.there / "run.h5"
        results.unlink(missing_ok=True)
        done = self.run("--model", model, "--data", data, *flags, "--results", results)
        errors = [line for line in done.stderr.splitlines() if line.startswith("dltrain: error")]
        assert done.returncode == code and len(errors) == 1 and all(word in errors[0] for word in words), (words, done)
        assert self.seconds < SOON, f"after {self.seconds:.0f} s"
        assert not results.exists()

    def read(self, data, views, channels, places, flags=()):
        """The samples as dltrain reads them, one view behind the other as channels."""
        kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[places - 1]
        path, output = self.there / "same.onnx", self.there / "read.h5"
        same = kind(channels, channels, 1, bias=False)
        same.weight.data = torch.eye(channels).reshape(channels, channels, *[1] * places)
        export(same, channels, [8] * places, path)
        output.unlink(missing_ok=True)
        inputs = [word for view in views for word in ("--input", view)]
        done = self.run("predict", "--model", path, "--data", data, *inputs, *flags, "--batch", 4, "-o", output)
        assert done.returncode == 0, done.stderr
        with h5py.File(output) as file:
            return file["output"][()]


def export(net, channels, places, path):
    import warnings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net, (torch.zeros(1, channels, *places),), path, dynamo=False, input_names=["x"])
    return path


def state(directory):
    return {path: (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).digest())
            for path in directory.rglob("*") if path.is_file()}


def of_views(flags, of):
    return [flags[at + 1] for at, word in enumerate(flags) if word == of]


def plain_view(text):
    return re.sub(r"\]:(standard|log1p)$", "]", re.sub(r"^(\w+):standard$", r"\1", text))


def check_twin(job, twin, there):
    before, model = state(there), twin.model
    if isinstance(model, nn.Module):
        inputs = [twin.read[plain_view(view)] for view in of_views(twin.flags, "--input")]
        channels = sum(view.shape[1] for view in inputs)
        model = export(model, channels, inputs[0].shape[2:], there.parent / "net.onnx")
    text, epochs = job.train(model, twin.data, *twin.flags)
    assert f"{twin.samples} samples to train on" in text, text
    assert np.isfinite(epochs["train_loss"]).all(), epochs
    assert state(there) == before, "files were changed"
    read = 0
    by_places = {}
    for view, expected in twin.read.items():
        by_places.setdefault(expected.shape[2:], []).append(view)
    for views in by_places.values():
        # What has no number of its own goes with one that has: every sample has both.
        expected = np.concatenate([twin.read[view] for view in views], 1).astype("f4")
        found = job.read(twin.data, views, expected.shape[1], len(expected.shape) - 2)
        found = found.reshape(len(found), *expected.shape[1:])
        assert found.shape == expected.shape, (found.shape, expected.shape)
        error = np.abs(found - expected).max()
        assert error <= twin.near, f"{views} differ by {error}"
        read += found.size
    print(f"{twin.name}: trained from {twin.samples} samples, {read:,} numbers as h5py reads them", flush=True)


class Emulator(nn.Module):
    """Begins as persistence: the last of four years is what it says of the next."""
    def __init__(self):
        super().__init__()
        self.years = nn.Conv2d(4, 1, 1)
        self.body = nn.Sequential(nn.Conv2d(4, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 1, 5, padding=2))
        self.years.weight.data.zero_()
        self.years.weight.data[0, 3] = 1
        for last in (self.years.bias.data, self.body[2].bias.data):
            last.zero_()
        self.body[2].weight.data.mul_(0.1)

    def forward(self, x):
        return self.years(x) + self.body(x)


def check_met_office(job, directory):
    """Air temperature of 240 years, trained from one scenario and tested on the other."""
    training, test = (next(directory.rglob(f"{name}_north_america.nc")) for name in ("A1B", "E1"))
    before = state(training.parent)
    views = [f"air_temperature[{n},h,w]:standard" for n in ("n-3", "n-2", "n-1", "n")]
    flags = [word for view in views for word in ("--input", view)]
    weights, output = job.there / "emulator.safetensors", job.there / "next.h5"
    net = export(Emulator(), 4, (37, 49), job.there / "emulator.onnx")
    _, epochs = job.train(net, training, "--test-data", test, *flags, "--target", "air_temperature[n+1,h,w]:standard",
                          "--loss", "mse", "--metric", "rmse", "--batch", 4, "--epochs", 5, "--optimizer", "adam",
                          "--lr", 0.001, "--lr-schedule", "cosine", "--save-weights", weights)
    done = job.run("predict", "--model", net, "--init-from", weights, "--data", test, *flags, "--target",
                   "air_temperature[n+1,h,w]:standard", "-o", output)
    assert done.returncode == 0, done.stderr
    with h5py.File(training) as first, h5py.File(test) as second, h5py.File(output) as file:
        deviation = first["air_temperature"][3:-1].std(dtype="f8")
        years, predicted = second["air_temperature"][()], file["output"][:, 0]
        unit, places = file["output"].attrs["units"], file["latitude"][()]
        axes = [dimension.keys() for dimension in file["output"].dims]
        same = np.array_equal(places, second["latitude"][()])
    persistence, ours = (np.sqrt(np.mean((years[4:] - other).astype("f8") ** 2)) for other in (years[3:-1], predicted))
    assert same and unit in ("K", b"K"), (unit, places)
    # As h5py knows them, by HDF5's own library of dimension scales.
    assert axes[0] == ["sample"] and axes[2:] == [["latitude"], ["longitude"]], axes
    # The metric is of rescaled numbers; what predict writes is of kelvins.
    shown = epochs["test_rmse"][-1] * deviation
    assert abs(shown - ours) < 0.01 * ours, (shown, ours)
    assert ours < 0.95 * persistence, (ours, persistence)
    assert state(training.parent) == before, "files were changed"
    print(f"Met Office, next year: error {ours:.4f} K, of persistence {persistence:.4f} K", flush=True)


def check_cmip(job, directory):
    """Files as a model writes them, one a year: those of two models, of other places, are refused together."""
    root = next(path for path in directory.rglob("CMIP") if path.is_dir())
    place = next(path for path in (root / "AWI/AWI-CM-1-1-MR").rglob("Amon/ta/gn/*"))
    views = ["ta[n,c,h,w]", "ta[n+1,c,h,w]"]
    flags = ["--input", f"{views[0]}:standard", "--target", f"{views[1]}:standard", "--loss", "mse", "--batch", 16]
    net = export(nn.Conv2d(2, 2, 1), 2, (2, 3), job.there / "net.onnx")
    text, _ = job.train(net, place, *flags, "--epochs", 1)
    files = sorted(place.glob("*.nc"))
    arrays = []
    for path in files:
        with h5py.File(path) as file:
            arrays.append(file["ta"][()])
    expected = np.concatenate([np.concatenate([array[:-1], array[1:]], 1) for array in arrays])
    assert f"{len(files)} files: {len(expected)} samples to train on" in text, text
    assert np.array_equal(job.read(place, views, 4, 2), expected)
    job.refused(net, root / "**/*.nc", flags, 3, "ta has samples of [", "], and not [")
    print(f"CMIP6: trained from {len(expected)} samples of {len(files)} files, numbers as h5py reads them", flush=True)


def spoilt(place):
    """What was done to one of three files, and what the message must say of it."""
    paths = [place / f"{name}.h5" for name in "abc"]

    def new():
        for path in paths:
            write(path, {"u": (noise(6, 8, 12), {"chunks": (1, 8, 12), "compression": "gzip"})})
            unit(path, "K")

    def unit(path, name):
        with h5py.File(path, "a") as file:
            file["u"].attrs["units"] = name

    new()
    yield "nothing", 0, []
    paths[1].write_bytes(paths[1].read_bytes()[:-4000])
    yield "truncated", 3, ["b.h5", "truncated"]
    new()
    write(paths[2], plain(u=noise(6, 8, 11)))
    yield "another shape", 3, ["c.h5", "samples of [8, 11], and not [8, 12]", "a.h5"]
    new()
    unit(paths[2], "degC")
    yield "another unit", 3, ["c.h5", "unit degC, and not K", "a.h5"]
    new()
    write(paths[2], plain(u=noise(6, 8, 12).astype("f8")))
    yield "another type", 3, ["c.h5", "f64, and not f32", "a.h5"]
    new()
    write(paths[2], plain(v=noise(6, 8, 12)))
    yield "no such array", 3, ["c.h5", "no array u"]
    new()
    with h5py.File(paths[1]) as file:
        chunk = file["u"].id.get_chunk_info(3)
    damaged = bytearray(paths[1].read_bytes())
    damaged[chunk.byte_offset + 20:chunk.byte_offset + 60] = bytes(40)
    paths[1].write_bytes(damaged)
    yield "a damaged chunk", 3, ["b.h5", "damaged"]
    new()
    with h5py.File(paths[1], "a") as file:
        file["u"][4, 3, 2] = np.nan
    yield "not a number", 3, ["b.h5 n 4", "--missing"]
    new()
    paths[2].write_text("no array")
    yield "text", 3, ["c.h5", "no HDF5"]
    new()
    with h5py.File(paths[2], "w", libver="latest") as file:
        file.create_dataset("u", data=noise(6, 8, 12), chunks=(1, 8, 12), maxshape=(None, 8, 12)).attrs["units"] = "K"
        file.swmr_mode = True
        yield "being written", 3, ["c.h5", "another program writes it"]


def check_spoilt(job, place):
    net = export(two(1), 1, (8, 12), job.there / "net.onnx")
    flags = ["--input", "u[n,h,w]:standard", "--target", "u[n+1,h,w]:standard", "--loss", "mse", "--batch", 2]
    said = []
    for what, code, words in spoilt(place):
        if code:
            job.refused(net, place, flags, code, *words)
            said.append(what)
        else:
            job.train(net, place, *flags)
    print(f"refused by one message each: {', '.join(said)}", flush=True)


def main(program, directory, launcher, there):
    job, wrong = Job(program, launcher, there), 0
    cases = [(make.__name__, lambda make=make: check_twin(job, make(there / make.__name__), there / make.__name__))
             for make in (deepcam, burgers, fluid, well, fourcastnet, cosmoflow, tiles, shards)]
    cases += [("spoilt", lambda: check_spoilt(job, there / "spoilt")),
              ("Met Office", lambda: check_met_office(job, directory)), ("CMIP6", lambda: check_cmip(job, directory))]
    for name, check in cases:
        try:
            check()
        except AssertionError as error:
            print(f"{name}: WRONG: {error}", flush=True)
            wrong += 1
    print(f"{wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as there:
        sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:], Path(there)))
