#!/usr/bin/env python3
"""Reads dltrain's event files with TensorBoard's own package: `make test-tensorboard`.

    .ci/deps tensorboard && .deps/tensorboard/bin/python tests/tensorboard/read.py LAUNCHER... DLTRAIN

A run is stopped after 30 steps and goes on from a checkpoint of step 20: TensorBoard must show every step of the record once,
with the record's numbers, the network, and the histograms of all weights and gradients. A second run is read while it goes on.
"""
import pathlib
import subprocess
import sys
import tempfile
import time

import h5py
import numpy
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

DIGITS = pathlib.Path(__file__).resolve().parents[2] / "data" / "digits"
EVERYTHING = {"scalars": 0, "histograms": 0, "tensors": 0, "graph": 0}


def read(directory):
    return EventAccumulator(str(directory), size_guidance=EVERYTHING).Reload()


def check(what, good):
    print(f"{what}: {'as it should be' if good else 'WRONG'}", flush=True)
    return good


def train(command, *flags):
    done = subprocess.run([*command, "--data", str(DIGITS), "--batch", "32", "--quiet", *flags], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{flags}\n{done.stdout}\n{done.stderr}")


def finished_and_resumed(command, directory):
    events, results, kept = directory / "events", directory / "run.h5", directory / "kept"
    flags = ["--results", results, "--tensorboard", events, "--tensorboard-histograms", "20", "--checkpoint", kept]
    flags = [*map(str, flags), "--checkpoint-every", "20steps"]
    train(command, *flags, "--epochs", "3", "--steps", "30")
    # The checkpoints are of steps 20 and 30: the first of them, as after a kill.
    (kept / "step-00000030.h5").unlink()
    train(command, *flags, "--epochs", "3", "--resume", "auto")
    board = read(events)
    with h5py.File(results) as run:
        columns = {"loss/train": "loss", "accuracy/train": "accuracy", "learning_rate": "learning_rate"}
        rows = {tag: run["steps"][name][:].astype("f4") for tag, name in columns.items()}
        rows["images_per_second"] = (run["steps/images"][:] / run["steps/seconds"][:]).astype("f4")
        rows["share/communication"] = (run["steps/communication"][:] / run["steps/seconds"][:]).astype("f4")
        test = run["epochs/test_accuracy"][:].astype("f4")
    good = True
    for tag, expected in rows.items():
        found = board.Scalars(tag)
        steps = [event.step for event in found] == list(range(len(expected)))
        good &= check(f"{tag}, {len(expected)} steps", steps and numpy.array_equal([e.value for e in found], expected))
    good &= check("accuracy/test", numpy.array_equal([e.value for e in board.Scalars("accuracy/test")], test))
    graph = {node.name: node for node in board.Graph().node}
    shape = [dim.size for dim in graph["conv1"].attr["_output_shapes"].list.shape[0].dim]
    good &= check(f"the network, {len(graph)} nodes", shape == [32, 32, 28, 28] and list(graph["loss"].input) == ["fc2", "labels"])
    tags = board.Tags()["histograms"]
    good &= check(f"{len(tags)} histograms", len(tags) == 12 and "gradients/conv1.weight" in tags)
    values = [event.histogram_value for tag in tags for event in board.Histograms(tag)]
    counted = all(h.num == sum(h.bucket) > 0 and h.min <= h.max for h in values)
    return good & check("their bars", counted and [e.step for e in board.Histograms(tags[0])] == [19, 39, 59])


def alive(command, directory):
    events = directory / "live"
    flags = ["--data", str(DIGITS), "--epochs", "1000000", "--quiet", "--results", str(directory / "live.h5")]
    run = subprocess.Popen([*command, *flags, "--tensorboard", str(events), "--time-limit", "2"],
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    seen, deadline = [0], time.time() + 60
    while len(seen) < 4 and time.time() < deadline and run.poll() is None:
        time.sleep(1)
        steps = len(read(events).Scalars("loss/train")) if "loss/train" in (read(events).Tags()["scalars"] if events.exists() else []) else 0
        seen += [steps] if steps > seen[-1] else []
    run.terminate()
    run.wait()
    return check(f"while it goes on: {seen} steps", len(seen) == 4)


def main():
    command = sys.argv[1:]
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        good = finished_and_resumed(command, directory) & alive(command, directory)
    sys.exit(0 if good else 1)


main()
