#!/usr/bin/env python3
r"""Holds what dltrain imports to torchvision's classification models, all of them, and to timm's: `make test-zoo`.

    .ci/deps zoo onnxruntime
    .deps/torch/bin/python tests/torchvision/zoo.py [--models A,timm/B] [--ways X,Y] [--again] -- COMMAND...

Every network of networks.py gets random weights and statistics and is exported in each of its WAYS (files.py). COMMAND
runs `scene_of_networks` of tests/suite, which imports the file and writes down what it gives. That is compared with
PyTorch (reference.py): the scores in evaluation, to 1e-4; in training, without what is drawn at random, the gradient of
every parameter, to 1e-3, and three losses, of two steps of gradient descent, to 1e-3. Of a file that was written for
training the count of parameters must be PyTorch's; in others exporters put normalisations into convolutions, and what
they computed in advance has no counterpart, which the table counts. Those stay as they are in the two steps. The
trained network is written as a file again, of which ONNX Runtime gives the scores, to 1e-4. Scores and gradients are
vectors, and what is compared is the norm of the difference with the norm. Both sides compute in float32.

Where all are within these bounds a network is "equal". A gradient that is nothing but rounding (that of a bias before a
normalisation, say) may be as far off as ROUNDINGS times what PyTorch itself is in float64, or in float32 with other
roundings (reference.py), whichever is more, if its norm is not less than the least of PyTorch's by that factor; so may
losses. The network is then "as PyTorch", and the line says which gradients these are of, how far off the worst of them
is as such, and how far off PyTorch's losses are. For the largest models there is no memory for that: there the least
norm of a gradient is NOTHING times what is usual for as many numbers. Where a ReLU reads what a rounding puts on this
side of 0 or on that, a gradient is off by all that it lets through. That befalls one batch and not another: a parameter
must agree in one of BATCHES batches, where the first does not do.

What PyTorch computes of a network and a batch it computes once for all ways: an exported file must give those numbers
whoever wrote it.

The table has a line for each network and way. It is written anew after each of them, and a run goes on where one was
stopped: what is good already is not tried again, but with --again. A step that takes longer than --seconds is "timed
out", whoever was at it, and tried again by the next run. Several runs may have one table, each with other --models.
Files of all networks by all ways are some 60 GB: with --drop those of a network go when it is done.
"""
import argparse
import datetime
import fcntl
import importlib.metadata
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import numpy as np

import files
import networks
import reference

LOGITS, GRADIENTS, LOSSES = 1e-4, 1e-3, 1e-3
ROUNDINGS, NOTHING, BATCHES = 16, 1e-3, 4
RUNTIME = pathlib.Path(".deps/onnxruntime/bin/python")
VERDICTS = ("equal", "as PyTorch", "refused", "no file", "timed out", "WRONG")
GOOD = VERDICTS[:2]
# Behind lines that an earlier state of this wrote; these are tried again.
OLD = "†"


def difference(ours, theirs, least=0.0):
    if ours.shape != theirs.shape:
        return float("inf")
    error = np.linalg.norm(ours.astype(np.float64) - theirs)
    error = error / max(np.linalg.norm(theirs.astype(np.float64)), least, 1e-30)
    return float("inf") if np.isnan(error) else float(error)


def compare(place, before):
    """The verdict but for gradients, how far off each gradient is at least (by its bound and as such), and a line."""
    said, ours = json.loads((place / "said.json").read_text()), place / "ours"
    if (ours / "refused").exists():
        return "refused", {}, " ".join((ours / "refused").read_text().replace(f"{place}/", "").split())[:400]
    numbers = lambda path: np.fromfile(path, np.float32)
    count = int((ours / "count").read_text())
    logits = difference(numbers(ours / "logits"), numbers(place / "logits"))
    errors = {}
    for key in said["sizes"]:
        theirs = numbers(place / "theirs" / key.replace("/", "~"))
        paths = [ours / f"gradient {name.replace('/', '~')}" for name in (key, said["called"][key])]
        gradient = next((numbers(path) for path in paths if path.exists()), np.zeros(0))
        error = difference(gradient, theirs, least_norm(said, key, len(theirs)))
        if np.linalg.norm(gradient) * ROUNDINGS < said.get("least", {}).get(key, 0.0):
            error = float("inf")
        now, then = (error, difference(gradient, theirs)), before.get(key, (float("inf"),) * 2)
        errors[key] = min(now[0], then[0]), min(now[1], then[1])
    extra = len(list(ours.glob("gradient *"))) - len(errors)
    losses = difference_of_losses(numbers(ours / "losses"), said["losses"])
    noisy = said.get("noise of losses", 0.0)
    of_losses = f" (PyTorch's own {noisy:.0e})" if losses > LOSSES else ""
    good = logits <= max(LOGITS, ROUNDINGS * said.get("noise of logits", 0.0))
    good &= losses <= max(LOSSES, ROUNDINGS * noisy)
    good &= not said["whole"] or count == said["count"] and extra == 0
    counted = f"{count:,} parameters"
    if count != said["count"] or extra:
        counted += f" (PyTorch {said['count']:,}; {len(errors)} of its {said['tensors']} tensors and {extra} others)"
    again, is_again = written_again(place)
    is_plain = logits <= LOGITS and losses <= LOSSES and all(plain <= GRADIENTS for _, plain in errors.values())
    return ("equal" if is_plain else "as PyTorch") if good and is_again else "WRONG", errors, (
        f"{counted}  logits {logits:.0e}  {of_gradients(errors)}  losses {losses:.0e}{of_losses}  {again}  "
        f"(image {said['image']}, batch {said['batch']})")


def of_gradients(errors):
    """What a line says of them: the worst by the plain bound, and of the others how many and the worst as such."""
    said, others = "gradients", {key for key in errors if errors[key][1] > GRADIENTS}
    plain = errors.keys() - others
    if plain:
        worst = max(plain, key=lambda key: errors[key][1])
        said += f" {errors[worst][1]:.0e} ({worst})"
    if others:
        worst, bound = (max(others, key=lambda key: errors[key][of]) for of in (1, 0))
        said += f", {len(others)} of {len(errors)} by PyTorch's rounding: off by {errors[worst][1]:.0e} at most ({worst})"
        said += f", {errors[bound][0] / GRADIENTS:.2f} of the bound"
    return said


def least_norm(said, key, numbers):
    """Of a gradient, below which it is nothing but rounding; not asked at first."""
    noise, usual = said.get("noise"), float(np.median(list(said["sizes"].values()))) * numbers**0.5
    if noise is None:
        return 0.0
    return ROUNDINGS * noise[key] / GRADIENTS if any(noise.values()) else NOTHING * usual


def difference_of_losses(ours, theirs):
    return max(abs(a - b) / b for a, b in zip(ours, theirs, strict=True))


def written_again(place):
    """What ONNX Runtime gives of the file that the trained network became, and whether that is equal."""
    ours = place / "ours"
    if (ours / "not again").exists():
        return "not written again: " + " ".join((ours / "not again").read_text().split())[:200], False
    code = """
import sys, numpy as np, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1] + "/ours/again.onnx")
shape = session.get_inputs()[0].shape
images = np.fromfile(sys.argv[1] + "/images", np.float32).reshape(-1, *shape[1:])
session.run(None, {session.get_inputs()[0].name: images})[0].tofile(sys.argv[1] + "/ours/runtime")
"""
    done = subprocess.run([RUNTIME, "-c", code, str(place)], capture_output=True, text=True)
    if done.returncode:
        return f"ONNX Runtime: {(done.stderr.strip().splitlines() or ['?'])[-1][:150]}", False
    read = difference(*(np.fromfile(ours / name, np.float32) for name in ("runtime", "logits again")))
    return f"again {read:.0e}", read <= LOGITS


def check(name, way, given):
    """The verdict on a network, and a line about it."""
    begun, errors = time.time(), {}
    kept = pathlib.Path(given.kept) / name.replace("/", "~") / "pytorch"
    made, said = files.export(given.kept, name, way, given.seconds)
    if not made:
        return failed("no file", said, given.seconds), said
    for seed in range(BATCHES):
        with tempfile.TemporaryDirectory(dir=given.kept) as place:
            verdict, errors, line = once(name, way, seed, given, made, pathlib.Path(place), kept, errors)
        if verdict not in GOOD or within(errors):
            break
    else:
        verdict = "WRONG"
    return verdict, f"{line}  {seed + 1} batch{'es' if seed else ''}  {time.time() - begun:.0f} s"


def failed(verdict, said, seconds):
    """That verdict, but where a step took longer than it may: of that nothing follows."""
    return "timed out" if said == files.late(seconds) else verdict


def within(errors):
    return all(error <= GRADIENTS for error, _ in errors.values())


def once(name, way, seed, given, made, place, kept, errors):
    """Of one batch."""
    if said := files.apart(given.seconds, reference.write, name, way, made / "net.onnx", place, seed, kept):
        return failed("WRONG", said, given.seconds), {}, f"PyTorch: {said}"
    (place / "list").write_text(f"{place}\n")
    environment = {**os.environ, "DLTRAIN_NETWORKS": str(place / "list")}
    # A symbolic link would lead out of the directory, where no weights may be, and `onnx` reads nothing of two names.
    links = [place / file.name for file in made.iterdir()]
    try:
        for link in links:
            link.hardlink_to(made / link.name)
        done = subprocess.run(given.command, capture_output=True, text=True, env=environment, timeout=given.seconds)
    except subprocess.TimeoutExpired:
        return "timed out", {}, f"dltrain: {files.late(given.seconds)}"
    finally:
        for link in links:
            link.unlink(missing_ok=True)
    if done.returncode or not (place / "ours").exists() or not any((place / "ours").iterdir()):
        said = [line for line in (done.stdout + done.stderr).splitlines() if "panicked" in line or "rror" in line]
        return "WRONG", {}, "dltrain: " + " ".join(said)[:300]
    compared = compare(place, errors)
    if compared[1] and (compared[0] != "equal" or not within(compared[1])):
        said = files.apart(given.seconds, reference.write_noise, name, way, made / "net.onnx", place, seed, kept)
        return (failed("WRONG", said, given.seconds), {}, f"PyTorch: {said}") if said else compare(place, errors)
    return compared


class Table:
    """Lines by network and way, in a file."""

    def __init__(self, path, lock):
        self.path, self.lock, self.lines = pathlib.Path(path), lock, {}
        self.read()

    def read(self):
        for line in self.path.read_text().splitlines() if self.path.exists() else []:
            name, way, rest = [*line.split(maxsplit=2), "", "", ""][:3]
            if way in networks.WAYS:
                self.lines[name, way] = rest

    def verdict(self, name, way):
        return next((verdict for verdict in VERDICTS if self.lines.get((name, way), "").startswith(verdict)), None)

    def is_old(self, name, way):
        return self.lines.get((name, way), "").endswith(OLD)

    def say(self, name, way, verdict, line):
        said = f"{verdict:<10} {line}"
        print(f"{name:<36} {way:<13} {said}", flush=True)
        part = self.path.with_suffix(".part")
        with open(self.lock, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Of other runs meanwhile.
            self.read()
            self.lines[name, way] = said
            part.write_text("".join(f"{line}\n" for line in self.text()))
            part.rename(self.path)

    def text(self):
        yield "tests/torchvision/zoo.py: networks as PyTorch's exporters write them, imported by dltrain and compared"
        yield f"date:     {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}"
        yield "versions: " + ", ".join(versions())
        if any(self.is_old(*key) for key in self.lines):
            yield f'{OLD}: compared before "as PyTorch" was told apart from "equal": may be either'
        for way in networks.WAYS:
            of = [self.verdict(*key) for key in self.lines if key[1] == way]
            if of:
                counts = ", ".join(f"{of.count(verdict)} {verdict}" for verdict in VERDICTS if verdict in of)
                yield f"{way}: of {len(networks.names())} networks {len(of)} were tried: {counts}"
        for way in networks.WAYS:
            of = [name for name, by in self.lines if by == way]
            for name in sorted(of, key=lambda name: ("/" in name, name)):
                yield f"{name:<36} {way:<13} {self.lines[name, way]}"


def versions():
    for package in ("torch", "torchvision", "timm", "onnx", "onnxscript"):
        yield f"{package} {importlib.metadata.version(package)}"
    code = "import onnxruntime; print(onnxruntime.__version__)"
    yield "onnxruntime " + subprocess.run([RUNTIME, "-c", code], capture_output=True, text=True).stdout.strip()


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--models", default=",".join(networks.names()))
    arguments.add_argument("--ways", default=",".join(networks.WAYS))
    arguments.add_argument("--table", required=True)
    arguments.add_argument("--kept", required=True, help="the directory of exported files")
    arguments.add_argument("--seconds", type=int, default=900, help="the longest that a step may take")
    arguments.add_argument("--again", action="store_true")
    arguments.add_argument("--only-files", action="store_true", help="export, and compare nothing")
    arguments.add_argument("--drop", action="store_true", help="keep no files of a network that is done")
    arguments.add_argument("command", nargs="*")
    given = arguments.parse_args()
    pathlib.Path(given.kept).mkdir(parents=True, exist_ok=True)
    table, wrong = Table(given.table, pathlib.Path(given.kept) / "table.lock"), []
    for name in given.models.split(","):
        for way in given.ways.split(","):
            if given.only_files:
                print(name, way, *files.export(given.kept, name, way, given.seconds), flush=True)
            elif given.again or table.is_old(name, way) or table.verdict(name, way) not in GOOD:
                verdict, line = check(name, way, given)
                table.say(name, way, verdict, line)
                # An exporter may have none for a network: that is its own matter.
                wrong += [f"{name} {way}: {verdict}"] if verdict not in (*GOOD, "no file") else []
        place = pathlib.Path(given.kept) / name.replace("/", "~")
        shutil.rmtree(place if given.drop else place / "pytorch", ignore_errors=True)
    if wrong:
        sys.exit(f"wrong: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
