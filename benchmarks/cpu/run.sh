#!/usr/bin/env bash
# The large models on two cores, as 2 ranks x 1 thread and as 1 x 2: dltrain beside PyTorch as it comes (DDP over gloo,
# eager) and with the settings that serve it best. The same random batch, SGD with momentum 0.9, medians over steps.
#
# Usage: run.sh DLTRAIN    (make bench-cpu); needs DLTRAIN_MPIRUN and .deps/torch
#        MODELS="resnet50 resnet50:bf16" LAYOUTS="2x1" STEPS=8 WARMUP=2 run.sh …
#        CONTENDERS="dltrain eager" run.sh …    only these
#
# Each must start at the loss of guessing, ln 1000 (times 1.4 with Inception's auxiliary head), and stay finite: no
# answer, no numbers.
set -euo pipefail
cd "$(dirname "$0")/../.."

dltrain=$1
. benchmarks/common.sh
python=.deps/torch/bin/python
peer=benchmarks/cpu/peer.py
steps=${STEPS:-8}
warmup=${WARMUP:-2}
models=${MODELS:-resnet50 resnet50:bf16 inception_v3 alexnet vgg16 resnet101}
layouts=${LAYOUTS:-2x1 1x2}

# PyTorch is faster when large buffers stay with malloc; glibc gives them back and asks again by default.
tuned_malloc=(MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=8589934592 MALLOC_TOP_PAD_=268435456)

has_flag() {
    "$dltrain" --help | grep -q -e "$1\b"
}

# Who runs: dltrain first, PyTorch as it comes second, then its settings. With + in front: malloc tuned as well.
contenders() {
    local all=(dltrain)
    ! has_flag --recompute || all+=(dltrain-recompute)
    all+=(eager channels_last +channels_last "+channels_last,compile")
    echo "${CONTENDERS:-${all[*]}}"
}

# Runs one; prints what it says. $1: who; the model, its precision, ranks, threads and batch are the caller's.
start() {
    local settings=() flags=() file
    case $1 in
        dltrain*)
            file=$scratch/$RANDOM$RANDOM.h5
            [ "$1" = dltrain ] || flags+=(--recompute)
            [ "$precision" = f32 ] || flags+=(--precision "$precision")
            "${mpirun[@]}" -n "$ranks" "$python" $peer run "$dltrain" --model "$model" --batch "$batch" \
                --steps "$steps" --warmup "$warmup" --optimizer sgd --momentum 0.9 --lr 0.001 \
                --threads "$threads" --results "$file" "${flags[@]}" && "$python" $peer record "$file" --warmup "$warmup"
            ;;
        *)
            IFS=, read -ra settings <<<"${1#+}"
            [ "$1" != eager ] || settings=()
            [ "$precision" = f32 ] || settings+=("$precision")
            [[ $1 != +* ]] || flags=("${tuned_malloc[@]}")
            env "${flags[@]}" "$python" $peer torch "$model" "${settings[@]}" --ranks "$ranks" --threads "$threads" \
                --batch "$batch" --steps "$steps" --warmup "$warmup"
            ;;
    esac
}

# Prints images/s, share of communication and the peak memory of the largest rank, in MB.
one_run() {
    local output
    output=$(start "$1" 2>&1) || {
        echo "$output" >&2
        return 1
    }
    awk -v who="$1" -v expected="$expected_loss" '
        # Text of two ranks may come on one line, with nothing between.
        { gsub(/PEAK|FIGURES/, " & ") }
        { for (i = 1; i <= NF; i++) if ($i == "PEAK" && $(i + 1) + 0 > peak) peak = $(i + 1) + 0 }
        { for (i = 1; i <= NF; i++) if ($i == "FIGURES") { rate = $(i + 1); share = $(i + 2); first = $(i + 3); last = $(i + 4) } }
        END {
            if (!(first > 0.9 * expected && first < 2 * expected && last > 0 && last < 2 * expected)) {
                print who " went from loss " first " to " last ", not from about " expected ": no number" >"/dev/stderr"
                exit 1
            }
            print rate, share, peak
        }' <<<"$output"
}

# GFLOP/s of a large sgemm on all ranks at once, in all.
sgemm() {
    "${mpirun[@]}" -n "$ranks" "$dltrain" bench gemm --threads "$threads" | sed -n 's/^.*in all *\([0-9.]*\) GFLOP.*$/\1/p'
}

flop_an_image() { # in GFLOP
    "$dltrain" --model "$model" --batch "$batch" --threads 1 --dry-run |
        sed -n 's/^.*(\([0-9.]*\) GFLOP a sample).*$/\1/p'
}

compare() { # one model in one layout
    local model=${1%:*} precision=f32 ranks=${2%x*} threads=${2#*x} batch=8 expected_loss=6.9 peak flop who figures
    [[ $1 != *:* ]] || precision=${1#*:}
    [ "$model" != alexnet ] || batch=32
    [ "$model" != inception_v3 ] || expected_loss=9.7
    if [ "$precision" != f32 ] && ! has_flag --precision; then
        echo "this dltrain has no --precision: no $1" >&2
        return
    fi
    rm -f "$scratch"/rate "$scratch"/peak
    peak=$(sgemm)
    flop=$(flop_an_image)
    echo
    echo "$model $precision, batch $batch a rank, $ranks rank(s) x $threads thread(s); $flop GFLOP an image; sgemm $peak GFLOP/s"
    printf '%-28s%12s%12s%14s%12s%12s%12s\n' '' images/s '% of sgemm' 'exposed comm' 'peak MB' 'dltrain is' 'memory'
    for who in $(contenders); do
        figures=$(one_run "$who")
        awk -v who="$who" -v file="$scratch/first" -v flop="$flop" -v sgemm="$peak" '{
            if (who == "dltrain") print $1, $3 >file; else getline ours <file
            split(ours, first)
            speed = memory = ""
            if (who != "dltrain" && first[1]) { speed = sprintf("%.2fx", first[1] / $1); memory = sprintf("%.2fx", first[2] / $3) }
            printf "%-28s%12.2f%12.1f%14s%12d%12s%12s\n", who, $1, 100 * $1 * flop / sgemm, $2 == "nan" ? "" : $2 " %", $3, speed, memory
        }' <<<"$figures"
    done
}

measure() {
    local model layout
    echo "versions: $("$python" -c 'import torch, torchvision; print("PyTorch", torch.__version__, "torchvision", torchvision.__version__)')"
    echo "peers:    eager is DDP over gloo as it comes; + with tuned malloc; peak MB is the largest rank's resident set"
    for model in $models; do
        for layout in $layouts; do compare "$model" "$layout"; done
    done
}

report cpu "Large models on two cores, SGD momentum 0.9, one random batch, median of $steps steps after $warmup"
