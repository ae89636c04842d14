#!/usr/bin/env bash
# Training from arrays of HDF5 files: dltrain beside PyTorch's DDP (gloo) whose samples h5py reads behind a DataLoader.
# Two ranks of one thread each, the same files, network, weights and batch, SGD with momentum 0.9.
#
# Usage: train.sh DLTRAIN REAL    (make bench-fields); needs DLTRAIN_MPIRUN and .deps/torch; REAL: A1B_north_america.nc
#        CASES="emulator unet_small deepcam" ROUNDS=3 STEPS=20 WARMUP=2 train.sh …
#
# The losses of both must be the same, or there are no numbers.
set -euo pipefail
cd "$(dirname "$0")/../.."

dltrain=$1
real=$2
. benchmarks/common.sh
python=.deps/torch/bin/python
peer=benchmarks/fields/train.py
memory=benchmarks/cpu/peer.py
rounds=${ROUNDS:-3}
warmup=${WARMUP:-2}
peers=('workers=2' 'workers=2,channels_last')
cases=${CASES:-emulator unet_small deepcam}
export OMP_NUM_THREADS=1

declare -A steps=([emulator]=${STEPS:-30} [unet_small]=${STEPS:-15} [deepcam]=${STEPS:-8})
declare -A what=(
    [emulator]='emulator, 1x37x49, 5 convolutions of 64 channels, batch 8 a rank, the real file'
    [unet_small]='unet_small, 3x128x128, batch 4 a rank, gzip and shuffle'
    [deepcam]='deepcam, 16x96x144, batch 1 a rank, a file a sample, class weights'
)

# Runs one once; prints samples/s and the memory of the larger rank.
one_run() { # case, who
    local output file=$scratch/run.h5 flags
    rm -f "$file"
    if [ "$2" = dltrain ]; then
        mapfile -t flags < <("$python" $peer flags "$scratch" "$1")
        # An epoch has few steps of a small set.
        output=$({ "${mpirun[@]}" -n 2 "$python" $memory run "$dltrain" "${flags[@]}" --epochs 100 \
            --steps $((${steps[$1]} + warmup)) --results "$file" >/dev/null; } 2>&1 &&
            "$python" $memory record "$file" --warmup "$warmup") || { echo "$output" >&2 && return 1; }
    else
        IFS=, read -ra flags <<<"$2"
        output=$("$python" $peer torch "$scratch" "$1" "${flags[@]}" --steps "${steps[$1]}" --warmup "$warmup" 2>&1) ||
            { echo "$output" >&2 && return 1; }
    fi
    awk '
        # Text of two ranks may come on one line, with nothing between.
        { gsub(/PEAK|FIGURES/, " & ") }
        { for (i = 1; i <= NF; i++) if ($i == "PEAK" && $(i + 1) + 0 > peak) peak = $(i + 1) + 0 }
        { for (i = 1; i <= NF; i++) if ($i == "FIGURES") rate = $(i + 1) }
        END { print rate, peak }' <<<"$output"
}

compare() { # case
    local who round rate peak first=''
    echo
    echo "${what[$1]}; ${steps[$1]} steps"
    "$python" $peer same "$scratch" "$1" "${mpirun[@]}" -n 2 "$dltrain" 2>/dev/null ||
        { echo "losses differ: no numbers" && return; }
    for ((round = 0; round < rounds; round++)); do
        for who in dltrain "${peers[@]}"; do
            one_run "$1" "$who" >>"$scratch/$1-$who"
        done
    done
    printf '%-48s%12s%10s%12s%10s\n' '' samples/s 'peak MB' 'dltrain is' memory
    for who in dltrain "${peers[@]}"; do
        rate=$(cut -d' ' -f1 "$scratch/$1-$who" | median)
        peak=$(cut -d' ' -f2 "$scratch/$1-$who" | sort -g | tail -n 1)
        first=${first:-$rate $peak}
        awk -v who="$who" -v rate="$rate" -v peak="$peak" -v first="$first" 'BEGIN {
            split(first, ours, " ")
            if (who != "dltrain") {
                gsub("workers=", "PyTorch, workers a rank: ", who)
                speed = sprintf("%.2fx", ours[1] / rate); memory = sprintf("%.2fx", ours[2] / peak)
            }
            printf "%-48s%12.2f%10d%12s%10s\n", who, rate, peak, speed, memory }'
    done
}

measure() {
    local case
    "$python" $peer make "$scratch" "$real"
    "$python" $peer versions
    echo "peer:     DDP over gloo; peak MB is the larger rank's resident set, workers of the DataLoader not counted"
    for case in $cases; do compare "$case"; done
}

report fields-train "Training from HDF5 files, 2 ranks x 1 thread, medians of steps after $warmup, and of $rounds runs"
