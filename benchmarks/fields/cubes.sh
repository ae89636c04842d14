#!/usr/bin/env bash
# Training CosmoFlow on cubes: dltrain from HDF5 files beside PyTorch from memory (DDP over gloo where there are two
# ranks), the same network, weights, universes and batch, SGD with momentum 0.9. Then one cube in slabs (--spatial) on
# 1, 2 and 4 ranks of one thread each.
#
# Usage: cubes.sh DLTRAIN    (make bench-fields); needs DLTRAIN_MPIRUN and .deps/torch
#        EDGES="64 128" WAYS="2x1 1x2" ROUNDS=3 STEPS=3 WARMUP=1 SLABS="1 2 4" EDGE=256 cubes.sh …
#
# A batch is 4 cubes a rank, of 128³ one. The losses of both must be the same, or there are no numbers. A cube of 256³
# takes 6 GB, and 1.5 TFLOP a step. By LR=0.001 losses of a single large cube fall so fast that they tell roundings:
# LR=0.0001 shows what is equal, over ten steps of 128³ LR=0.00002.
set -euo pipefail
cd "$(dirname "$0")/../.."

dltrain=$1
. benchmarks/common.sh
python=.deps/torch/bin/python
peer=benchmarks/fields/cubes.py
memory=benchmarks/cpu/peer.py
rounds=${ROUNDS:-3}
steps=${STEPS:-3}
warmup=${WARMUP:-1}
edges=${EDGES-64 128}
slabs=${SLABS-1 2 4}
edge=${EDGE:-256}
export LR=${LR:-0.001}
ways=${WAYS:-2x1 1x2}
bf16=$(! grep -qwE 'avx512_bf16|amx_bf16|bf16' /proc/cpuinfo || echo 'dltrain,bf16 torch,bf16')

# Runs one once, writes its losses; prints samples/s and the memory of the larger rank.
one_run() { # edge, ranks, threads, batch, who
    local output file=$scratch/run.h5 flags=()
    rm -f "$file"
    if [ "${5%%,*}" = dltrain ]; then
        [[ $5 != *bf16* ]] || flags=(--precision bf16)
        output=$({ OMP_NUM_THREADS=$3 "${mpirun[@]}" -n "$2" "$python" $memory run "$dltrain" \
            --model "$scratch/cosmoflow-$1.onnx" --data "$scratch/$1-$2" --input 'full[d,h,w,c]:log1p' \
            --target 'unitPar[c]' --loss mse --batch "$4" --threads "$3" --optimizer sgd --momentum 0.9 \
            --weight-decay 0 --lr "$LR" --epochs $((steps + warmup)) --device cpu "${flags[@]}" \
            --results "$file" >/dev/null; } 2>&1 &&
            "$python" $memory record "$file" --warmup "$warmup") || { echo "$output" >&2 && return 1; }
    else
        [[ $5 != *bf16* ]] || flags+=(--bf16)
        [[ $5 != *channels_last* ]] || flags+=(--channels-last)
        output=$("$python" $peer torch "$scratch" "$1" "$2" "$3" "$4" --steps "$steps" --warmup "$warmup" \
            "${flags[@]}" 2>&1) || { echo "$output" >&2 && return 1; }
    fi
    awk '
        # Text of two ranks may come on one line, with nothing between.
        { gsub(/PEAK|FIGURES/, " & ") }
        { for (i = 1; i <= NF; i++) if ($i == "PEAK" && $(i + 1) + 0 > peak) peak = $(i + 1) + 0 }
        { for (i = 1; i <= NF; i++) if ($i == "FIGURES") rate = $(i + 1) }
        END { print rate, peak }' <<<"$output"
}

compare() { # edge, ranks, threads
    local batch=4 who round rate peak first='' all="dltrain torch torch,channels_last $bf16"
    [ "$1" -lt 128 ] || batch=1
    mkdir "$scratch/$1-$2"
    "${mpirun[@]}" -n 2 "$dltrain" pack "synthetic:universes:$(($2 * batch)):$1" "$scratch/$1-$2" >/dev/null
    echo
    echo "cosmoflow, 4x$1x$1x$1, $2 ranks x $3 threads, batch $batch a rank"
    for ((round = 0; round < rounds; round++)); do
        for who in $all; do
            one_run "$1" "$2" "$3" "$batch" "$who" >>"$scratch/$1-$2-$who.txt" || return 0
            if [ "$round" = 0 ] && [ "$who" = dltrain ]; then cp "$scratch/run.h5" "$scratch/ours.h5"; fi
            if [ "$round" = 0 ] && [ "$who" = torch ]; then
                "$python" $peer same "$scratch/ours.h5" "$scratch/losses.npy" 1e-5 ||
                    { echo "losses differ: no numbers" && return; }
            fi
        done
    done
    printf '%-34s%12s%10s%12s%10s\n' '' samples/s 'peak MB' 'dltrain is' memory
    for who in $all; do
        rate=$(cut -d' ' -f1 "$scratch/$1-$2-$who.txt" | median)
        peak=$(cut -d' ' -f2 "$scratch/$1-$2-$who.txt" | sort -g | tail -n 1)
        [[ $who != dltrain* ]] || first="$rate $peak"
        awk -v who="$who" -v rate="$rate" -v peak="$peak" -v first="$first" 'BEGIN {
            split(first, ours, " ")
            if (who !~ /^dltrain/) {
                speed = sprintf("%.2fx", ours[1] / rate); memory = sprintf("%.2fx", ours[2] / peak)
            }
            sub("torch", "PyTorch", who); gsub(",", ", ", who)
            printf "%-34s%12.3f%10d%12s%10s\n", who, rate, peak, speed, memory }'
    done
}

# Trains on one cube in slabs, by every number of ranks, each beside what the first has.
in_slabs() {
    local ranks records=()
    mkdir "$scratch/cube"
    "${mpirun[@]}" -n 1 "$dltrain" pack "synthetic:universes:1:$edge" "$scratch/cube" >/dev/null
    echo
    echo "cosmoflow, one universe of 4x${edge}x${edge}x${edge} in slabs, 1 thread a rank, $(nproc) cores"
    for ranks in $slabs; do
        "${mpirun[@]}" -n "$ranks" "$dltrain" --model cosmoflow --data "$scratch/cube" --input 'full[d,h,w,c]:log1p' \
            --target 'unitPar[c]' --loss mse --batch 1 --threads 1 --optimizer sgd --momentum 0.9 --weight-decay 0 \
            --lr "$LR" --epochs $((steps + warmup)) --device cpu --spatial "$ranks" \
            --results "$scratch/slabs-$ranks.h5" >/dev/null
        records+=("$scratch/slabs-$ranks.h5")
    done
    "$python" $peer slabs "$warmup" "${records[@]}"
}

measure() {
    local way
    "$python" $peer versions
    echo "peak MB is the larger rank's resident set, PyTorch's with its samples in memory"
    for size in $edges; do
        "$python" $peer make "$scratch" "$size" 2>/dev/null
        for way in $ways; do compare "$size" "${way%x*}" "${way#*x}"; done
    done
    [ -z "$slabs" ] || in_slabs
}

report fields-cubes "Training CosmoFlow on cubes, medians of $steps steps after $warmup, of $rounds runs"
