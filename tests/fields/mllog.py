#!/usr/bin/env python3
"""Has MLPerf's own checker (PyPI: mlperf-logging) read what `dltrain --mllog` writes, by the rules of MLPerf HPC 3.0
for CosmoFlow and DeepCAM, closed and open division.

Usage: mllog.py DLTRAIN [LAUNCHER...]    (make test-fields)

Small networks learn small data of as many samples as the rules want: what is checked are the lines, their order and
their values. Each log is then spoiled, which the checker must find, or it would find nothing.
"""
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np

RULES = "3.0.0"


def data(path, count, random):
    """Vectors, numbers that are easily made of them, and three classes of them."""
    with h5py.File(path, "w") as file:
        x = random.normal(size=(count, 8)).astype("f4")
        file["x"] = x
        file["y"] = (0.1 * x[:, :4]).astype("f4")
        file["class"] = ((x[:, 0] > 0).astype("i1") + (x[:, 1] > 0)).astype("i1")


def accepted(log, ruleset=RULES):
    command = [sys.executable, "-m", "mlperf_logging.compliance_checker", "--usage", "hpc", "--ruleset", ruleset, log]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=log.parent)
    return "SUCCESS" in done.stdout + done.stderr, done.stdout + done.stderr


def main(program, directory, launcher):
    random, wrong = np.random.default_rng(1), 0
    sets = {"small": 512, "train": 121266, "test": 15158}
    for name, count in sets.items():
        data(directory / f"{name}.h5", count, random)
    place = lambda name: str(directory / f"{name}.h5")
    numbers = ["--input", "x", "--target", "y", "--loss", "mse", "--metric", "mae",
               "--classes", "4",
               "--data", place("small"), "--test-data", place("small"), "--batch", "32", "--optimizer", "sgd",
               "--lr-schedule", "step",
               "--lr-step-epochs", "1", "--lr-warmup", "1"]
    classes = ["--input", "x", "--target", "class", "--loss", "cross-entropy", "--metric", "iou",
               "--classes", "3",
               "--data", place("train"), "--test-data", place("test"), "--batch", "1024", "--epsilon", "1e-6"]
    cases = [
        ("cosmoflow", numbers),
        ("deepcam", [*classes, "--optimizer", "lamb", "--clip-norm", "1", "--lr-schedule", "step",
                     "--lr-step-epochs", "1"]),
        ("deepcam", [*classes, "--optimizer", "adamw", "--lr-schedule", "cosine"]),
    ]
    for number, (benchmark, flags) in enumerate(cases):
        for division in ("closed", "open"):
            log = directory / f"{number}-{division}.log"
            keys = [f"submission_benchmark={benchmark}", f"submission_division={division}", "submission_org=test"]
            keys = [word for key in keys for word in ("--mllog-key", key)]
            command = [*launcher, program, "--model", "mlp", *flags, "--epochs", 2, "--results",
                       log.with_suffix(".h5"), "--device", "cpu", "--threads", 1, "--quiet", "--mllog", log, *keys]
            subprocess.run([str(word) for word in command], check=True)
            good, said = accepted(log)
            lines = log.read_text().splitlines()
            missing = []
            for key in ("run_stop", "eval_samples", "eval_error" if benchmark == "cosmoflow" else "eval_accuracy"):
                spoiled = directory / "spoiled.log"
                spoiled.write_text("\n".join(line for line in lines if f'"key":"{key}"' not in line) + "\n")
                if accepted(spoiled)[0]:
                    missing.append(key)
            status = '"status":"success"' in lines[-1]
            text = f"{benchmark}, {division}, {flags[flags.index('--optimizer') + 1]}: {len(lines)} lines"
            print(f"{text}, {'accepted' if good else 'REFUSED'}{'' if status else ', status no success: WRONG'}"
                  f"{f', also without {missing}: WRONG' if missing else ''}", flush=True)
            if not good:
                print(said)
            wrong += not good or not status or bool(missing)
    print(f"{wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as there:
        sys.exit(main(sys.argv[1], Path(there), sys.argv[2:]))
