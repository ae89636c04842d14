#!/usr/bin/env bash
# How fast images are decoded and prepared (random resized crop to 224, mirrored, normalised) by one thread: JPEG files by
# dltrain and by torchvision behind a DataLoader, and the same images packed as pixels. Then how long a resnet50
# step waits for packed images.
#
# Usage: run.sh DLTRAIN    (make bench-data); needs DLTRAIN_MPIRUN and .deps/torch
#        ROUNDS=3 BATCHES=16 run.sh …
#
# Both must prepare the same images for evaluation: mean and deviation of 16 of them agree to 0.01, or there are no numbers.
set -euo pipefail
cd "$(dirname "$0")/../.."

dltrain=$1
. benchmarks/common.sh
python=.deps/torch/bin/python
peer=benchmarks/data/peer.py
rounds=${ROUNDS:-3}
batches=${BATCHES:-16}
cores=$(nproc)
export OMP_NUM_THREADS=1

# Images a second from a line of either program.
rate() {
    sed -n 's/^\([0-9.]*\) images\/s.*/\1/p'
}

one_core() { # the program alone on one core
    taskset -c 0 "$@"
}

ours() {
    one_core "$dltrain" bench data "$1" --augment imagenet --loader-threads 1 --batches "$batches"
}

theirs() {
    one_core "$python" $peer load "$scratch/images" "$1" "$batches"
}

agree() {
    printf '%s\n%s\n' "$1" "$2" | sed 's/.*mean \([-0-9.]*\), deviation \([0-9.]*\).*/\1 \2/' | awk '
        NR == 1 { mean = $1; deviation = $2 }
        NR == 2 { exit !((mean - $1) ^ 2 < 1e-4 && (deviation - $2) ^ 2 < 1e-4) }' || {
        printf 'the evaluated images differ: no numbers\n%s\n%s\n' "$1" "$2" >&2
        exit 1
    }
}

step() {
    local images=$1
    "$dltrain" --model resnet50 --data "$images" --batch 8 --epochs 1 --steps 6 --warmup 2 --threads "$cores" \
        --optimizer sgd --results "$scratch/step.h5" | sed -n 's/^share of time *//p'
    rm -f "$scratch/step.h5"
}

measure() {
    local round jpeg peer_rate inline packed encoded
    "$python" $peer make "$scratch/images"
    "$dltrain" pack "$scratch/images" "$scratch/packed.h5" >/dev/null
    "$dltrain" pack "$scratch/images" "$scratch/encoded.h5" --encoded >/dev/null
    echo "images:   $(find "$scratch/images" -name '*.JPEG' | wc -l) JPEG files of 500×375, $(du -sk "$scratch/images" | cut -f1) KB"
    echo "versions: $("$python" -c 'import torch, torchvision, PIL; print("PyTorch", torch.__version__, "torchvision", torchvision.__version__, "PIL", PIL.__version__)')"
    agree "$(ours "$scratch/images")" "$(theirs 0)"
    for ((round = 0; round < rounds; round++)); do
        ours "$scratch/images" | rate >>"$scratch/jpeg"
        theirs 0 | rate >>"$scratch/inline"
        theirs 1 | rate >>"$scratch/peer"
        ours "$scratch/packed.h5" | rate >>"$scratch/pixels"
        ours "$scratch/encoded.h5" | rate >>"$scratch/encoded"
    done
    jpeg=$(median <"$scratch/jpeg")
    peer_rate=$(cat "$scratch/inline" "$scratch/peer" | sort -g | tail -n 1)
    inline=$(median <"$scratch/inline")
    packed=$(median <"$scratch/pixels")
    encoded=$(median <"$scratch/encoded")
    printf '%-44s%12s%24s\n' 'one core' images/s 'against the best peer'
    printf '%-44s%12.1f\n' 'torchvision, DataLoader without workers' "$inline"
    printf '%-44s%12.1f\n' 'torchvision, DataLoader with one worker' "$(median <"$scratch/peer")"
    awk -v ours="$jpeg" -v peer="$peer_rate" 'BEGIN { printf "%-42s%12.1f%23.2fx\n", "dltrain, JPEG files", ours, ours / peer }'
    awk -v ours="$encoded" -v peer="$peer_rate" 'BEGIN { printf "%-42s%12.1f%23.2fx\n", "dltrain, packed as JPEG", ours, ours / peer }'
    awk -v ours="$packed" -v peer="$peer_rate" 'BEGIN { printf "%-42s%12.1f%23.2fx\n", "dltrain, packed as pixels", ours, ours / peer }'
    echo "resnet50, batch 8, $cores threads, packed as pixels: $(step "$scratch/packed.h5")"
    echo "resnet50, batch 8, $cores threads, JPEG files:       $(step "$scratch/images")"
}

report data "Images decoded and prepared for training (224×224), medians of $rounds runs of $batches batches of 32"
