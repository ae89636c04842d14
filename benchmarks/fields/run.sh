#!/usr/bin/env bash
# How fast samples of HDF5 files are read in random order: by dltrain with one thread and with two, by h5py alone, and
# by h5py behind a DataLoader with two workers. The files are in the page cache.
#
# Usage: run.sh DLTRAIN    (make bench-fields); needs DLTRAIN_MPIRUN and .deps/torch
#        ROUNDS=5 run.sh …
#
# Range, mean and deviation of all numbers must be h5py's, or there are no numbers; the tests compare every number.
set -euo pipefail
cd "$(dirname "$0")/../.."

dltrain=$1
. benchmarks/common.sh
python=.deps/torch/bin/python
peer=benchmarks/fields/peer.py
rounds=${ROUNDS:-5}
export OMP_NUM_THREADS=1

# MB/s of what samples use, as inspect measures it.
ours() { # file, view, threads
    "$dltrain" inspect "$scratch/$1" --view "$2" --threads "$3" |
        sed -n 's/.*, \([0-9.]*\) \([kMG]\)B\/s used$/\1 \2/p' |
        awk '{ print $1 * ($2 == "G" ? 1000 : $2 == "k" ? 0.001 : 1) }'
}

agree() { # file, array
    local theirs ours
    theirs=$("$python" $peer numbers "$scratch/$1" "$2")
    ours=$("$dltrain" inspect "$scratch/$1" --all --view "$2" | grep -A 1 "^  $2  " | tail -n 1)
    printf '%s\n%s\n' "$theirs" "$ours" | awk -v array="$2" '
        NR == 1 { split($0, theirs, " ") }
        # Few integers are listed; of others the line is "LOW … HIGH, mean M, deviation D".
        NR == 2 {
            gsub(",", "")
            if ($0 !~ /mean/) { exit 1 }
            near = 1e-5 * (theirs[4] + 1)
            exit !(($1 - theirs[1]) ^ 2 < near ^ 2 && ($3 - theirs[2]) ^ 2 < near ^ 2 &&
                ($5 - theirs[3]) ^ 2 < near ^ 2 && ($7 - theirs[4]) ^ 2 < near ^ 2)
        }' || {
        printf '%s differs: no numbers\nh5py:    %s\ndltrain: %s\n' "$2" "$theirs" "$ours" >&2
        exit 1
    }
}

line() { # what, file, view, array, samples
    local round name=$4
    agree "$2" "$4"
    for ((round = 0; round < rounds; round++)); do
        ours "$2" "$3" 1 >>"$scratch/$name-one"
        "$python" $peer load "$scratch/$2" "$4" "$5" >>"$scratch/$name-h5py"
        ours "$2" "$3" 2 >>"$scratch/$name-two"
        "$python" $peer workers "$scratch/$2" "$4" "$5" 2 >>"$scratch/$name-workers"
    done
    printf '%s %s %s %s %s\n' "$(median <"$scratch/$name-one")" "$(median <"$scratch/$name-two")" \
        "$(cut -d' ' -f1 "$scratch/$name-h5py" | median)" "$(cut -d' ' -f2 "$scratch/$name-h5py" | median)" \
        "$(median <"$scratch/$name-workers")" | awk -v what="$1" '
        { printf "%-46s%9.0f%9.0f%8.2f%9.0f%8.2fx%9.0f%8.2fx%9.0f%8.2fx\n", what, $1, $2, $2 / $1 / 2,
            $3, $1 / $3, $4, $1 / $4, $5, $2 / $5 }'
}

measure() {
    "$python" $peer make "$scratch"
    "$python" $peer versions
    printf '%-46s%9s%9s%8s%9s%9s%9s%9s%9s%9s\n' 'MB/s of numbers, random samples' \
        '1 thread' '2' 'linear' 'h5py raw' 'ratio' 'and f32' 'ratio' '2 workers' 'ratio'
    line 'cubes 128^3 x 4, i16, gzip' cubes.h5 'full[n,d,h,w,c]' full 24
    line 'the same, gzip and shuffle' cubes.h5 'shuffled[n,d,h,w,c]' shuffled 24
    line 'fields 8 x 180 x 360, f32, gzip and shuffle' fields.h5 'fields[n,c,h,w]' fields 64
    line 'maps 768 x 1152 x 16, f32, in one piece' maps.h5 'data[n,c,h,w]' data 24
}

report fields "Samples of HDF5 files read in random order, medians of $rounds runs
(dltrain makes f32 of them in a network's order; h5py leaves them as they are, or numpy does that behind it)"
