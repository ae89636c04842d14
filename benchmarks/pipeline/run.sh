#!/usr/bin/env bash
# ResNet-50 in two stages, a core each: beside torch.distributed.pipelining over gloo, and how long a stage idles beside
# the formula of its schedule.
#
# Usage: run.sh DLTRAIN [TURNS]    (make bench-pipeline); needs DLTRAIN_MPIRUN, and PyTorch with torchvision
set -euo pipefail
cd "$(dirname "$0")/../.."
dltrain=$(realpath "$1")
turns=${2:-3}
. benchmarks/common.sh
python=${PYTHON:-.deps/torch/bin/python}
batch=16

ours() { # schedule, micro-batches[, flags]; prints images a second, the peak and the share of waiting
    "${mpirun[@]}" -n 2 "$dltrain" --model resnet50 --batch $batch --pipeline 2 --micro-batches "$2" --schedule "$1" \
        --threads 1 --steps 3 --warmup 1 --optimizer sgd --lr 1e-3 "${@:3}" --results "$scratch/r.h5" \
        >"$scratch/said" 2>&1 ||
        { cat "$scratch/said" >&2; exit 1; }
    rm -f "$scratch/r.h5"
    awk '/^total images\/sec:/ { rate = $3 }
        /^memory a rank/ { peak = $4 }
        /^share of time/ { match($0, /communication [0-9.]+/); share = substr($0, RSTART + 14, RLENGTH - 14) }
        END { print rate, peak, share }' "$scratch/said"
}

# The first step's loss and the weights after it are those of one rank that adds up as many micro-batches.
check() {
    local flags=(--model resnet50 --image-size 64 --threads 1 --steps 2 --warmup 0 --data synthetic:shapes:32 --quiet)
    "${mpirun[@]}" -n 1 "$dltrain" "${flags[@]}" --batch 2 --accumulation 4 --results "$scratch/a.h5" \
        --save-weights "$scratch/a.safetensors" >/dev/null
    "${mpirun[@]}" -n 2 "$dltrain" "${flags[@]}" --batch 8 --micro-batches 4 --pipeline 2 --results "$scratch/b.h5" \
        --save-weights "$scratch/b.safetensors" >/dev/null
    cmp "$scratch/a.safetensors" "$scratch/b.safetensors" || { echo "other weights" >&2; exit 1; }
    echo "weights after 2 steps: those of accumulation, to the bit"
}

measure() {
    local schedule parts
    check
    echo
    echo "resnet50, batch $batch in 8 micro-batches, medians of $turns turns"
    printf '%-10s %-10s %12s %10s\n' schedule program images/s 'peak MB'
    for schedule in gpipe 1f1b; do
        for _ in $(seq "$turns"); do
            ours "$schedule" 8 >>"$scratch/ours.$schedule"
            "$python" benchmarks/pipeline/peer.py "$schedule" $batch 8 3 2>/dev/null >>"$scratch/peer.$schedule"
        done
        for who in ours peer; do
            printf '%-10s %-10s %12.2f %10.0f\n' "$schedule" "$who" \
                "$(awk '{ print $1 }' "$scratch/$who.$schedule" | median)" \
                "$(awk '{ print $2 }' "$scratch/$who.$schedule" | median)"
        done
    done
    echo
    echo "at 112², cut by measured steps: of a step a stage waits, mean of both, %, medians of $turns turns; formula: where"
    echo "all passes take equally long and messages no time (zb-h1: a third of 1f1b's at best)"
    printf '%-15s %14s %10s %10s\n' schedule micro-batches waits formula
    for schedule in gpipe 1f1b interleaved:2 zb-h1; do
        for parts in 2 4 8 16; do
            for _ in $(seq "$turns"); do
                ours "$schedule" "$parts" --image-size 112 --measure 5 | awk '{ print $3 }'
            done >"$scratch/waits"
            printf '%-15s %14s %10.1f %10.1f\n' "$schedule" "$parts" "$(median <"$scratch/waits")" \
                "$(awk -v m="$parts" -v v="${schedule#*:}" -v zero="$([ "$schedule" = zb-h1 ] && echo 3)" \
                    'BEGIN { i = v + 0 > 1 ? 1 / v : zero ? 1 / 3 : 1; print 100 * i / (m + i) }')"
        done
    done
}

report pipeline "a network in two stages"
