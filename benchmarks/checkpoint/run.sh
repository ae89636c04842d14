#!/usr/bin/env bash
# How much checkpoints disturb training: steps while one is written in the background against the others of the same
# run, and the copy between two steps against the time from one checkpoint to the next. From the run's own record.
#
# Usage: run.sh DLTRAIN    (make bench-checkpoint); needs DLTRAIN_MPIRUN and .deps/torch (for h5py)
#        MODEL=resnet50 BATCH=8 RANKS=2 STEPS=60 EVERY=20 DIRECTORY=/where/checkpoints/go run.sh …
#
# The run must end as one without checkpoints does, and go on from its last checkpoint, or there are no numbers.
set -euo pipefail
cd "$(dirname "$0")/../.."
dltrain=$1
. benchmarks/common.sh

model=${MODEL:-resnet50}
ranks=${RANKS:-2}
batch=${BATCH:-8}
steps=${STEPS:-60}
every=${EVERY:-20}
kept=$(mktemp -d -p "${DIRECTORY:-$scratch}")
trap 'rm -rf "$scratch" "$kept"' EXIT

train() {
    "${mpirun[@]}" -n "$ranks" "$dltrain" --model "$model" --batch "$batch" --optimizer sgd --warmup 0 "$@" \
        >"$scratch/log" 2>&1 || {
        cat "$scratch/log" >&2
        return 1
    }
}

measure() {
    train --steps "$steps" --results "$scratch/plain.h5"
    train --steps "$steps" --results "$scratch/saving.h5" --checkpoint "$kept" --checkpoint-every "${every}steps"
    train --steps "$((steps + 1))" --results "$scratch/again.h5" --checkpoint "$kept" --resume auto
    echo "checkpoints: $(du -sk "$kept" | cut -f1) KB in $kept ($(stat -f -c %T "$kept"))"
    .deps/torch/bin/python - "$scratch" "$every" <<'PYTHON'
import sys
import h5py
import numpy as np

directory, every = sys.argv[1], int(sys.argv[2])
plain, saving = (h5py.File(f"{directory}/{name}.h5")["steps"] for name in ("plain", "saving"))
if not np.array_equal(plain["loss"][:], saving["loss"][:]):
    sys.exit("the losses with and without checkpoints differ: no numbers")
seconds, beside = saving["seconds"][2:], saving["saving"][2:] > 0
copies = saving["copying"][2:]
copies = copies[copies > 0]
if not beside.any() or beside.all() or len(copies) == 0:
    sys.exit("no step beside a checkpoint, or none without: take more --steps, or EVERY more")
quiet, disturbed = np.median(seconds[~beside]), np.median(seconds[beside])
period = every * quiet
extra = np.sum(np.maximum(seconds[beside] - quiet, 0)) / len(copies)
print(f"steps without one:       median {quiet * 1e3:9.1f} ms ({np.sum(~beside)} steps)")
print(f"steps beside one:        median {disturbed * 1e3:9.1f} ms ({np.sum(beside)} steps): {disturbed / quiet - 1:+.1%}")
print(f"a copy between two steps:median {np.median(copies) * 1e3:9.1f} ms ({len(copies)}), {np.median(copies) / quiet:.1%} of a step")
print(f"in all, every {every} steps:   {(np.median(copies) + extra) / period:.2%} of the time")
PYTHON
}

report checkpoint "$model, batch $batch a rank, $ranks ranks, $steps steps: what a checkpoint every $every steps costs"
