#!/usr/bin/env bash
# dltrain and PyTorch's modes on one GPU, one after the other: SGD with momentum 0.9, one random batch, medians over steps.
#
# Usage: gpu-bundle/bench    (made by make gpu-bundle); needs a python3 with PyTorch and torchvision for its GPU
#        MODELS="resnet50 vgg16" PRECISIONS="bf16" BATCH=256 MODES="eager compile" gpu-bundle/bench
#
# Each must start at the loss of guessing (times 1.4 with Inception's auxiliary head) and stay finite: no answer, no numbers.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")"

export LD_LIBRARY_PATH=$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
models=${MODELS:-mnist_small alexnet vgg16 resnet50 resnet101 resnet152 inception_v3}
modes=${MODES:-eager channels_last compile}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Prints images/s, peak MB of the GPU and the two losses; $1: who.
one_run() {
    local output=$scratch/$RANDOM$RANDOM
    if [ "$1" != dltrain ]; then
        python3 peer.py train "$model" "$batch" "$precision" "$1" | sed -n 's/^FIGURES //p'
        return
    fi
    bin/dltrain --device cuda --model "$model" --batch "$batch" --precision "$precision" --steps 20 --warmup 10 \
        --optimizer sgd --momentum 0.9 --lr 0.001 --results "$output.h5" >"$output" &
    local job=$! peak=0 now
    while kill -0 $job 2>/dev/null; do
        now=$(nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits | head -n 1)
        [ "$now" -le "$peak" ] || peak=$now
        sleep 0.1
    done
    wait $job
    awk -v peak="$peak" '/^images\/sec/ { rate = $2 } / loss / || /^loss/ { last = $NF } END { print rate, peak, "-", last }' "$output"
}

limit() { awk -v name="$1" '$1 == name { print $2 }' "$scratch/limits"; }

compare() {
    local batch=${BATCH:-256} flop who rate peak first last ours=
    flop=$(bin/dltrain --device cuda --model "$model" --batch 8 --dry-run | sed -n 's/^.*(\([0-9.]*\) GFLOP an image).*$/\1/p')
    echo
    echo "$model $precision, batch $batch; ${flop:-?} GFLOP an image; a large product $(limit "$precision") TFLOP/s"
    printf '%-16s%12s%14s%12s%12s\n' '' images/s '% of product' 'GPU MB' 'dltrain is'
    for who in dltrain $modes; do
        read -r rate peak first last < <(one_run "$who") || { echo "$who: no answer"; continue; }
        case $last in *nan* | *inf*) echo "$who ended at loss $last: no number"; continue ;; esac
        case $first in -) ;; *) awk -v f="$first" 'BEGIN { exit !(f > 2 && f < 14) }' ||
            { echo "$who started at loss $first: no number"; continue; } ;; esac
        ours=${ours:-$rate}
        awk -v who="$who" -v rate="$rate" -v peak="$peak" -v ours="$ours" -v flop="${flop:-0}" -v limit="$(limit "$precision")" 'BEGIN {
            printf "%-16s%12.1f%14.1f%12d%12s\n", who, rate, rate * flop / limit / 10, peak, who == "dltrain" ? "" : sprintf("%.2fx", ours / rate) }'
    done
}

echo "dltrain and PyTorch on one GPU"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
python3 -c 'import torch, torchvision as v; print("PyTorch", torch.__version__, "torchvision", v.__version__, "cuDNN", torch.backends.cudnn.version())'
echo "dltrain $(cat revision)"
bin/dltrain info | sed -n '/^GPUs/,$p'
python3 peer.py limits | tee "$scratch/limits"
for model in $models; do
    for precision in ${PRECISIONS:-bf16 f16 tf32}; do compare; done
done
