#!/usr/bin/env bash
# Gradients and parameters as shards: --zero 2 and --zero 3 beside plain runs on one host, and beside PyTorch's FSDP2
# and DeepSpeed over gloo; the memory of vgg16 on two hosts (tests/support/hosts.sh).
#
# Usage: run.sh DLTRAIN [TURNS]    (make bench-zero); needs root and DLTRAIN_MPIRUN, and PyTorch with torchvision and
#        DeepSpeed
#        PARTS="plain peers memory" run.sh …    only these
set -euo pipefail
cd "$(dirname "$0")/../.."
dltrain=$(realpath "$1")
turns=${2:-5}
parts=${PARTS:-plain peers memory}
. benchmarks/common.sh
python=${PYTHON:-.deps/torch/bin/python}
hosts=tests/support/hosts.sh
export OMP_NUM_THREADS=1

# Prints images a second and the peak in MB.
said() {
    awk '/^total images\/sec:/ { rate = $3 } /^memory a rank/ { peak = $4 } END { print rate, peak }' "$scratch/said"
    rm -f "$scratch/r.h5"
}

here() { # flags
    "${mpirun[@]}" -n 2 "$dltrain" --threads 1 --optimizer adam --results "$scratch/r.h5" "$@" >"$scratch/said" 2>&1 ||
        { cat "$scratch/said" >&2; exit 1; }
    said
}

apart() { # flags
    $hosts run h0 "${mpirun[@]}" --mca plm rsh --mca plm_rsh_agent "$($hosts agent)" -H h0:1,h1:1 -n 2 "$dltrain" \
        --threads 1 --optimizer adam --results "$scratch/r.h5" "$@" >"$scratch/said" 2>&1 ||
        { cat "$scratch/said" >&2; exit 1; }
    said
}

row() { # name, file
    printf '%-24s %12.2f %10.0f\n' "$1" "$(awk '{ print $1 }' "$2" | median)" "$(awk '{ print $2 }' "$2" | median)"
}

plain() {
    local model stage
    for model in resnet50 vgg11; do
        echo
        echo "$model at 64², batch 16, Adam, one host, 2 ranks x 1 thread: medians of $turns turns"
        printf '%-24s %12s %10s\n' "" images/s 'peak MB'
        for _ in $(seq "$turns"); do
            for stage in 0 2 3; do
                here --model "$model" --image-size 64 --batch 16 --warmup 2 --steps 10 --zero $stage \
                    >>"$scratch/$model.$stage"
            done
        done
        for stage in 0 2 3; do row "--zero $stage" "$scratch/$model.$stage"; done
    done
}

peers() {
    local stage library
    echo
    echo "vgg11, batch 2, Adam, 2 ranks x 1 thread: medians of 3 turns; dltrain on two hosts without a limit to their links"
    printf '%-24s %12s %10s\n' "" images/s 'peak MB'
    for _ in 1 2 3; do
        for stage in 2 3; do
            apart --model vgg11 --batch 2 --warmup 1 --steps 4 --zero $stage >>"$scratch/ours.$stage"
            here --model vgg11 --batch 2 --warmup 1 --steps 4 --zero $stage >>"$scratch/here.$stage"
            for library in fsdp2 deepspeed; do
                timeout 300 "$python" benchmarks/zero/peer.py $library $stage vgg11 2 4 2>"$scratch/peer.log" |
                    tail -n 1 >>"$scratch/$library.$stage" || { cat "$scratch/peer.log" >&2; return 1; }
            done
        done
    done
    for stage in 2 3; do
        row "--zero $stage, two hosts" "$scratch/ours.$stage"
        row "--zero $stage, one host" "$scratch/here.$stage"
        row "FSDP2, stage $stage" "$scratch/fsdp2.$stage"
        row "DeepSpeed, stage $stage" "$scratch/deepspeed.$stage"
    done
}

memory() {
    local stage
    echo
    echo "vgg16 at 32², batch 2, Adam, two hosts: a rank's peak"
    for stage in 0 1 2 3; do
        apart --model vgg16 --image-size 32 --batch 2 --warmup 1 --steps 4 --zero $stage >"$scratch/vgg16"
        row "--zero $stage" "$scratch/vgg16"
    done
}

measure() {
    local part
    $hosts down 2>/dev/null || true
    $hosts up 2
    trap '$hosts down; rm -rf "$scratch"' EXIT
    for part in $parts; do "$part"; done
}

report zero "gradients and parameters as shards"
