#!/usr/bin/env bash
# From typing the command to the end of the first step: two ranks of mnist_small, beside PyTorch DDP over gloo. Both
# launch two processes, set up the same network, do one training step and leave.
#
# Usage: run.sh DLTRAIN    (make bench); needs DLTRAIN_MPIRUN and .deps/torch
#        REPEATS=5 run.sh …
set -euo pipefail
cd "$(dirname "$0")/../.."
dltrain=$1
. benchmarks/common.sh

repeats=${REPEATS:-5}
python=.deps/torch/bin/python

seconds() { # the wall time of a command
    local from
    from=$(date +%s.%N)
    "$@" >"$scratch/output" 2>&1 || {
        cat "$scratch/output" >&2
        return 1
    }
    awk -v from="$from" -v to="$(date +%s.%N)" 'BEGIN { printf "%.2f\n", to - from }'
}

ours() {
    seconds "${mpirun[@]}" -n 2 "$dltrain" --batch 128 --steps 1 --warmup 0 --threads 1 --results "$scratch/$RANDOM$RANDOM.h5"
    # From the start of the process to the start of the first step, by its own record.
    sed -n 's/^time .*set-up \([0-9.]*\) s.*/\1/p' "$scratch/output"
}

measure() {
    local turn wall own peer
    echo "versions: $("$python" -c 'import torch; print("PyTorch", torch.__version__)')"
    printf '%-8s%16s%22s%16s   (seconds)\n' turn dltrain 'dltrain, set-up only' PyTorch
    for ((turn = 1; turn <= repeats; turn++)); do
        { read -r wall && read -r own; } < <(ours)
        peer=$(seconds "$python" benchmarks/mnist_small/peer.py speed eager --steps 1 --warmup 1)
        printf '%-8s%16s%22s%16s\n' "$turn" "$wall" "$own" "$peer"
        echo "$wall" >>"$scratch/wall"
        echo "$own" >>"$scratch/own"
        echo "$peer" >>"$scratch/peer"
    done
    printf '%-8s%16s%22s%16s\n' median "$(median <"$scratch/wall")" "$(median <"$scratch/own")" "$(median <"$scratch/peer")"
}

report start "mnist_small, 2 ranks: the whole command for one training step, launch to exit"
