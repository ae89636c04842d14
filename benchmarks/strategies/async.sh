#!/usr/bin/env bash
# Asynchronous parameter servers: `--sync server-async` beside TensorFlow's ParameterServerStrategy, each with one
# server and two workers of one thread on this machine, in turns.
#
# Usage: async.sh DLTRAIN [TURNS]; needs DLTRAIN_MPIRUN, and PYTHON with TensorFlow (pip install tensorflow-cpu)
set -euo pipefail
cd "$(dirname "$0")/../.."
dltrain=$(realpath "$1")
turns=${2:-3}
. benchmarks/common.sh

ours() {
    "${mpirun[@]}" -n 3 "$dltrain" --model mnist_small --batch 128 --threads 1 --steps 400 --warmup 20 --optimizer sgd \
        --momentum 0 --lr 0.001 --sync server-async --results "$scratch/r.h5" 2>/dev/null |
        sed -n 's/^total images\/sec: //p'
    rm "$scratch/r.h5"
}

# Of one worker the updates are those of a rank alone: the same losses.
check() {
    local flags=(--model mnist_small --batch 16 --threads 1 --steps 20 --warmup 0 --quiet --data data/digits)
    "${mpirun[@]}" -n 1 "$dltrain" "${flags[@]}" --results "$scratch/a.h5" --save-weights "$scratch/a.safetensors"
    "${mpirun[@]}" -n 2 "$dltrain" "${flags[@]}" --results "$scratch/b.h5" --save-weights "$scratch/b.safetensors" \
        --sync server-async
    cmp "$scratch/a.safetensors" "$scratch/b.safetensors" || { echo "other weights" >&2; exit 1; }
    rm "$scratch"/*.h5
    echo "weights after 20 steps of one worker: those of a rank alone, to the bit"
} >/dev/null

measure() {
    local who
    check
    for _ in $(seq "$turns"); do
        ours >>"$scratch/dltrain"
        "$PYTHON" benchmarks/strategies/tensorflow_server.py 128 400 2 2>/dev/null >>"$scratch/tensorflow"
    done
    echo "mnist_small, batch 128 a worker; images a second of both workers"
    for who in dltrain tensorflow; do
        printf '%-12s %10.0f   (%s)\n' "$who" "$(median <"$scratch/$who")" "$(paste -sd' ' "$scratch/$who")"
    done
}

report async "an asynchronous server and two workers"
