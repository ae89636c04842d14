#!/usr/bin/env bash
# mnist_small, batch 128 a rank, two ranks with one thread each: dltrain beside PyTorch DDP over gloo.
#
# Usage: run.sh DLTRAIN    (make bench); needs DLTRAIN_MPIRUN and .deps/torch
#        REPEATS=5 STEPS=200 WARMUP=20 run.sh …
#
# First both train on the digits, and must come to the same accuracy: no answer, no numbers. Then they take
# turns, so that whatever else the machine does meets all of them; the medians count.
set -euo pipefail
cd "$(dirname "$0")/../.."

dltrain=$1
. benchmarks/common.sh
python=.deps/torch/bin/python
repeats=${REPEATS:-5}
steps=${STEPS:-200}
warmup=${WARMUP:-20}

# PyTorch is faster when large buffers stay with malloc; glibc gives them back and asks again by default.
tuned_malloc=(MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=8589934592 MALLOC_TOP_PAD_=268435456)

contenders=(dltrain eager channels_last compile)

one_run() { # prints images/sec
    local output
    case $1 in
        dltrain)
            output=$("${mpirun[@]}" -n 2 "$dltrain" --model mnist_small --batch 128 --steps "$steps" --warmup "$warmup" \
                --optimizer sgd --momentum 0.9 --lr 0.01 --threads 1 --results "$scratch/speed$RANDOM.h5" 2>&1)
            ;;
        eager) output=$("$python" "$peer" speed eager --steps "$steps" --warmup "$warmup" 2>&1) ;;
        *) # with the settings that serve PyTorch best
            output=$(env "${tuned_malloc[@]}" "$python" "$peer" speed "$1" --steps "$steps" --warmup "$warmup" 2>&1)
            ;;
    esac || {
        echo "$output" >&2
        return 1
    }
    # The last loss: far below the ln 10 = 2.3 of guessing. (The peer checks its own.)
    if [ "$1" = dltrain ] && ! awk '/\+\/-/ { loss = $NF } END { exit !(loss != "" && loss < 2) }' <<<"$output"; then
        echo "dltrain did not learn its one batch: no number" >&2
        return 1
    fi
    sed -n 's/^total images\/sec: //p' <<<"$output" | tail -n 1
}

# Both learn the digits, with the same flags, to the same accuracy within two points.
same_answer() {
    local ours theirs
    ours=$("${mpirun[@]}" -n 2 "$dltrain" --model mnist_small --data data/digits --epochs 20 --batch 32 \
        --optimizer sgd --momentum 0.9 --lr 0.05 --threads 1 --results "$scratch/digits.h5" 2>&1) || {
        echo "$ours" >&2
        return 1
    }
    theirs=$("$python" "$peer" digits data/digits --epochs 20 --batch 32 --lr 0.05)
    ours=$(sed -n 's/^.*test accuracy *\([0-9.]*\) *%.*$/\1/p' <<<"$ours" | tail -n 1)
    theirs=$(sed -n 's/^test accuracy \([0-9.]*\)%$/\1/p' <<<"$theirs")
    echo "answer:   test accuracy on the digits after 20 epochs: dltrain $ours %, PyTorch $theirs %"
    awk -v a="$ours" -v b="$theirs" 'BEGIN { exit !(a > 90 && b > 90 && a - b < 2 && b - a < 2) }' || {
        echo "The answers differ by two points or more, or are wrong: no numbers." >&2
        return 1
    }
}

measure() {
    local turn who rate
    echo "versions: $("$python" -c 'import torch; print("PyTorch", torch.__version__)')"
    same_answer
    echo "PyTorch DDP over gloo: eager; channels_last and compile also with tuned malloc"
    printf '%-8s' turn
    printf '%16s' "${contenders[@]}"
    echo
    for ((turn = 1; turn <= repeats; turn++)); do
        printf '%-8s' "$turn"
        for who in "${contenders[@]}"; do
            rate=$(one_run "$who")
            echo "$rate" >>"$scratch/$who"
            printf '%16s' "$rate"
        done
        echo
    done
    printf '%-8s' median
    for who in "${contenders[@]}"; do printf '%16s' "$(median <"$scratch/$who")"; done
    printf '\n%-8s' "dltrain×"
    for who in "${contenders[@]}"; do
        awk -v a="$(median <"$scratch/dltrain")" -v b="$(median <"$scratch/$who")" 'BEGIN { printf "%16.2f", a / b }'
    done
    echo
}

peer=benchmarks/mnist_small/peer.py
report mnist_small \
    "mnist_small, batch 128 a rank, 2 ranks x 1 thread, SGD momentum 0.9, images/s, $steps steps after $warmup"
