#!/usr/bin/env bash
# How fast images are decoded and prepared (random resized crop to 224, mirrored, normalised) by one thread: JPEG files
# by dltrain, with each of its decoders, and by torchvision behind a DataLoader, and the same images packed as pixels.
# Then how long a resnet50 step waits for packed images.
#
# Usage: run.sh DLTRAIN    (make bench-data); needs DLTRAIN_MPIRUN and .deps/torch
#        ROUNDS=3 BATCHES=16 run.sh …
#
# Both must prepare the same images for evaluation: mean and deviation of 16 of them agree to 0.01, or there are no
# numbers.
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
    one_core "$dltrain" bench data "$1" --augment imagenet --loader-threads 1 --batches "$batches" --jpeg-decoder "$2"
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

against() { # a name, a file of rates, the peer's rate
    awk -v name="$1" -v ours="$(median <"$2")" -v peer="$3" \
        'BEGIN { printf "%-44s%12.1f%23.2fx\n", name, ours, ours / peer }'
}

step() {
    local images=$1
    "$dltrain" --model resnet50 --data "$images" --batch 8 --epochs 1 --steps 6 --warmup 2 --threads "$cores" \
        --optimizer sgd --results "$scratch/step.h5" | sed -n 's/^share of time *//p'
    rm -f "$scratch/step.h5"
}

measure() {
    local round peer_rate decoder decoders=(rust)
    "$python" $peer make "$scratch/images"
    "$dltrain" pack "$scratch/images" "$scratch/packed.h5" >/dev/null
    "$dltrain" pack "$scratch/images" "$scratch/encoded.h5" --encoded >/dev/null
    echo "images:   $(find "$scratch/images" -name '*.JPEG' | wc -l) JPEG files of 500×375, $(du -sk "$scratch/images" | cut -f1) KB"
    echo "versions: $("$python" -c 'import torch, torchvision, PIL; print("PyTorch", torch.__version__, "torchvision", torchvision.__version__, "PIL", PIL.__version__)')"
    echo "libjpeg-turbo of dltrain: $("$dltrain" info | sed -n 's/^JPEG *//p')"
    # A machine without libjpeg-turbo has no line for it.
    ! ours "$scratch/images" turbo >/dev/null 2>&1 || decoders=(turbo rust)
    for decoder in "${decoders[@]}"; do agree "$(ours "$scratch/images" "$decoder")" "$(theirs 0)"; done
    for ((round = 0; round < rounds; round++)); do
        theirs 0 | rate >>"$scratch/inline"
        theirs 1 | rate >>"$scratch/peer"
        for decoder in "${decoders[@]}"; do
            ours "$scratch/images" "$decoder" | rate >>"$scratch/jpeg-$decoder"
            ours "$scratch/encoded.h5" "$decoder" | rate >>"$scratch/encoded-$decoder"
        done
        ours "$scratch/packed.h5" rust | rate >>"$scratch/pixels"
    done
    peer_rate=$(cat "$scratch/inline" "$scratch/peer" | sort -g | tail -n 1)
    printf '%-44s%12s%24s\n' 'one core' images/s 'against the best peer'
    printf '%-44s%12.1f\n' 'torchvision, DataLoader without workers' "$(median <"$scratch/inline")"
    printf '%-44s%12.1f\n' 'torchvision, DataLoader with one worker' "$(median <"$scratch/peer")"
    for decoder in "${decoders[@]}"; do
        against "dltrain, JPEG files, $decoder" "$scratch/jpeg-$decoder" "$peer_rate"
        against "dltrain, packed as JPEG, $decoder" "$scratch/encoded-$decoder" "$peer_rate"
    done
    against 'dltrain, packed as pixels' "$scratch/pixels" "$peer_rate"
    echo "resnet50, batch 8, $cores threads, packed as pixels: $(step "$scratch/packed.h5")"
    echo "resnet50, batch 8, $cores threads, JPEG files:       $(step "$scratch/images")"
}

report data "Images decoded and prepared for training (224×224), medians of $rounds runs of $batches batches of 32"
