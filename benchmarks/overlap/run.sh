#!/usr/bin/env bash
# mnist_large, batch 128 a rank, two ranks with one thread each: how much of the communication no computation hides,
# with overlap and without (--no-overlap), from the runs' own records. Checks that both give the same losses.
#
# Usage: run.sh DLTRAIN    (make bench); needs DLTRAIN_MPIRUN
#        REPEATS=3 STEPS=20 run.sh …
set -euo pipefail
cd "$(dirname "$0")/../.."
dltrain=$1
. benchmarks/common.sh

repeats=${REPEATS:-3}
steps=${STEPS:-20}

one_run() { # prints "exposed share in %, images/s, last loss"
    local output
    output=$("${mpirun[@]}" -n 2 "$dltrain" --model mnist_large --batch 128 --steps "$steps" --warmup 3 --threads 1 \
        --optimizer sgd --results "$scratch/$RANDOM$RANDOM.h5" "$@" 2>&1) || {
        echo "$output" >&2
        return 1
    }
    awk '/^share of time/ { match($0, /communication [0-9.]+/); share = substr($0, RSTART + 14, RLENGTH - 14) }
        /\+\/-/ { loss = $NF }
        /^total images\/sec/ { print share, $NF, loss }' <<<"$output"
}

measure() {
    local turn with without
    printf '%-8s%22s%14s%22s%14s\n' turn 'overlap: exposed %' images/s 'without: exposed %' images/s
    for ((turn = 1; turn <= repeats; turn++)); do
        with=$(one_run)
        without=$(one_run --no-overlap)
        [ "${with##* }" = "${without##* }" ] || {
            echo "the losses differ (${with##* } and ${without##* }): no numbers" >&2
            return 1
        }
        read -r a b _ <<<"$with"
        read -r c d _ <<<"$without"
        printf '%-8s%22s%14s%22s%14s\n' "$turn" "$a" "$b" "$c" "$d"
        for pair in "with:$a" "with_rate:$b" "without:$c" "without_rate:$d"; do
            echo "${pair#*:}" >>"$scratch/${pair%%:*}"
        done
    done
    printf '%-8s%22s%14s%22s%14s\n' median "$(median <"$scratch/with")" "$(median <"$scratch/with_rate")" \
        "$(median <"$scratch/without")" "$(median <"$scratch/without_rate")"
}

report overlap "mnist_large, batch 128 a rank, 2 ranks x 1 thread: communication that no computation hides, $steps steps"
