#!/usr/bin/env bash
# Two builds of dltrain beside each other, to see whether a change has made it slower: whole training steps of
# mnist_small (2 ranks, 1 thread each) and resnet50 (1 rank, 2 threads). They take turns, and every other pair begins
# with the other build, so that whatever else the machine does meets both. Printed are the median of the pairs' ratios
# and its 95 % interval, by the binomial distribution, which assumes nothing of how runs differ.
#
# Usage: builds.sh NEW OLD; needs DLTRAIN_MPIRUN: eval "$(.ci/env openmpi)"
#        PAIRS=30 MODELS=resnet50 builds.sh …
set -euo pipefail
cd "$(dirname "$0")/.."

dltrain=$1
old=$2
. benchmarks/common.sh
pairs=${PAIRS:-30}
models=${MODELS:-mnist_small resnet50}

flags_of() { # model; ranks, and flags
    case $1 in
        mnist_small) echo "2 --batch 128 --threads 1 --steps 200 --warmup 20 --lr 0.01" ;;
        resnet50) echo "1 --batch 8 --threads 2 --steps 4 --warmup 1 --lr 0.001" ;;
        *) echo "builds.sh: no $1 here" >&2 && return 1 ;;
    esac
}

rate() { # build, model; images/s
    local flags
    read -ra flags <<<"$(flags_of "$2")"
    "${mpirun[@]}" -n "${flags[0]}" "$1" --model "$2" --optimizer sgd --momentum 0.9 "${flags[@]:1}" \
        --results "$scratch/$RANDOM$RANDOM.h5" >"$scratch/said" 2>&1 || { cat "$scratch/said" >&2; return 1; }
    awk '/^total images\/sec:/ { print $3 }' "$scratch/said"
}

measure() {
    local model pair before after
    echo "newer:    $("$dltrain" info | sed -n 's/^dltrain *//p')"
    echo "older:    $("$old" info | sed -n 's/^dltrain *//p')"
    for model in $models; do
        rate "$old" "$model" >/dev/null
        rate "$dltrain" "$model" >/dev/null
        : >"$scratch/pairs"
        for ((pair = 0; pair < pairs; pair++)); do
            if ((pair % 2)); then
                after=$(rate "$dltrain" "$model")
                before=$(rate "$old" "$model")
            else
                before=$(rate "$old" "$model")
                after=$(rate "$dltrain" "$model")
            fi
            echo "$before $after" >>"$scratch/pairs"
        done
        printf '%-12s older %s images/s, newer %s, ' "$model" "$(cut -d ' ' -f 1 "$scratch/pairs" | median)" \
            "$(cut -d ' ' -f 2 "$scratch/pairs" | median)"
        awk '{ print $2 / $1 }' "$scratch/pairs" | sort -g | awk '
            { ratio[NR] = $1 }
            END {
                # Which of the sorted ratios begins the interval: the median lies below it at most in 2.5 % of cases.
                term = 2 ^ -NR; sum = term
                for (out = 0; sum <= 0.025; out++) { term *= (NR - out) / (out + 1); sum += term }
                middle = (ratio[int((NR + 1) / 2)] + ratio[int(NR / 2) + 1]) / 2
                low = out > 0 ? ratio[out] : ratio[1]; high = out > 0 ? ratio[NR + 1 - out] : ratio[NR]
                printf "%d pairs, newer to older %.4f (%.4f to %.4f)\n", NR, middle, low, high
            }'
    done
}

report builds "whole training steps of two builds, SGD momentum 0.9, in turn"
