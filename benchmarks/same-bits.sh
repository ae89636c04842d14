#!/usr/bin/env bash
# Losses and trained weights of some fifty short runs as a checksum each: every way to update, to sum, to cut a network
# and to save memory, with 1 to 5 ranks. With two builds it says which runs have other bits. What a change moves but
# must not change is held by this; a build for the other MPI is given with its own launcher.
#
# Usage: same-bits.sh NEW [OLD]; needs DLTRAIN_MPIRUN: eval "$(.ci/env openmpi)"
#        ONLY=pipeline same-bits.sh …   the runs whose flags have this (an extended regular expression)
#        OLD may be a file, what the script printed of a build before
set -euo pipefail
cd "$(dirname "$0")/.."

dltrain=$(realpath "$1")
old=${2:+$(realpath "$2")}
. benchmarks/common.sh
export OMP_NUM_THREADS=1

# Ranks and flags of each; a word before them stands for flags.
runs() {
    local small="--model mnist_small --batch 4 --fusion-threshold-mb 0.01"
    local normal="--model shufflenet_v2_x1_0 --image-size 32 --classes 10 --batch 4"
    grep -Ev '^ *(#|$)' <<RUNS | sed "s|SMALL|$small|; s|NORMAL|$normal|; s|DENSE|--model mnist_net --batch 4|"
# Who updates.
1 SMALL --optimizer sgd --momentum 0.9
2 SMALL --optimizer adam --clip-norm 0.5 --accumulation 2
3 SMALL --optimizer lamb --ema 0.9
2 SMALL --zero 1 --optimizer lars --lr 0.1
4 SMALL --zero 2 --optimizer adamw --no-overlap
3 SMALL --zero 3 --accumulation 2 --allreduce ring
3 SMALL --sync root --clip-norm 0.5
3 SMALL --sync server
5 SMALL --sync server:2 --optimizer rmsprop --ema 0.9
3 SMALL --sync server-async --async-order round-robin
2 SMALL --local-steps 2 --outer-momentum 0.5
3 SMALL --sync bmuf:2 --allreduce ring
2 SMALL --sync easgd:1,0.5
4 SMALL --sync gossip
# How sums are made, and what travels.
2 SMALL --allreduce shm
5 SMALL --allreduce ring --wire bf16
4 SMALL --allreduce halving-doubling --wire f16
3 SMALL --allreduce recursive-doubling
4 SMALL --allreduce torus
3 SMALL --allreduce hierarchical
2 SMALL --allreduce mpi
3 SMALL --allreduce ring --wire bf16 --zero 2
2 SMALL --compress topk:0.1
3 SMALL --compress 1bit --local-steps 1
4 SMALL --compress 2bit
2 SMALL --compress powersgd:2
# How images come together.
1 SMALL --shards 4
4 SMALL --shards 4 --optimizer lamb
3 SMALL --global-batch 13
2 SMALL --data synthetic:shapes:64 --augment crop,mixup --label-smoothing 0.1 --epochs 1
# Normalisations, activations computed again, layers that do not learn.
4 NORMAL --sync-bn=2
3 NORMAL --sync-bn --accumulation 2 --recompute --zero 2
2 NORMAL --freeze backbone
# Networks that are cut.
2 SMALL --pipeline 2 --micro-batches 2 --schedule gpipe
3 SMALL --pipeline 3 --micro-batches 4 --clip-norm 0.5
2 SMALL --pipeline 2 --micro-batches 4 --schedule zb-h1
4 NORMAL --mesh data=2,pipeline=2 --micro-batches 2 --schedule interleaved:2 --zero 1
4 NORMAL --pipeline 2 --micro-batches 2 --recompute
2 DENSE --tensor 2 --optimizer sgd
4 DENSE --mesh data=2,tensor=2 --accumulation 2 --clip-norm 0.5
2 SMALL --spatial 2
4 NORMAL --spatial 2 --sync-bn --zero 1
# On the doubles of CUDA's libraries.
2 SMALL --device cuda --precision f16
2 SMALL --device cuda --precision bf16 --zero 3 --accumulation 2
3 DENSE --device cuda --compress topk --no-overlap
2 SMALL --device cuda --pipeline 2 --micro-batches 2
2 SMALL --device reference
RUNS
}

# The scripts, plans and predictions of these, without what is measured.
plans() {
    cat <<PLANS
2 --model resnet50 --dry-run --script
3 --model resnet50 --dry-run --script --sync server
4 --model resnet50 --dry-run --script --pipeline 2 --schedule zb-h1
4 --model alexnet --dry-run --script --tensor 2
2 --model resnet50 --dry-run --predict-nodes 2,8,64 --network jobs/networks/alps.toml
2 --model vgg16 --dry-run --predict-nodes 8 --zero 3 --network jobs/networks/piz-daint.toml
PLANS
}

# The doubles are built once, and anew after a change to them.
doubles() {
    local at=$PWD/target/doubles/same-bits
    if [ ! -e "$at" ] || [ -n "$(find tests/fake_cuda kernels -newer "$at" -print -quit)" ]; then
        tests/fake_cuda/build.sh "$at" >&2
        touch "$at"
    fi
    echo "$at"
}

of() { # build, ranks, flags; a checksum
    local build=$1 ranks=$2 at=$scratch/run
    shift 2
    rm -rf "$at" && mkdir "$at"
    [[ $* == *--dry-run* ]] || set -- "$@" --steps 3 --warmup 0 --lr 0.01 --threads 1 --tensorboard "$at/board" \
        --results "$at/run.h5" --save-weights "$at/weights.safetensors"
    [[ $* != *"--device cuda"* ]] || { DLTRAIN_CUDA_PATH=$(doubles) && export DLTRAIN_CUDA_PATH; }
    "${mpirun[@]}" -n "$ranks" "$build" "$@" >"$at/said" 2>"$at/wrong" </dev/null || {
        cat "$at/said" "$at/wrong" >&2
        return 1
    }
    if [[ $* == *--dry-run* ]]; then
        # The program's own memory is measured: no two runs have the same.
        sed -E '/^ +(program|in all) /d; s/[0-9.]+ [kMG]B//g' "$at/said" | sha256sum | cut -c -16
    else
        # The loss of each step is a number of five bytes behind its name.
        perl -0777 -ne 'print /loss\/train.{5}/sg' "$at"/board/* >"$at/losses"
        [ -s "$at/losses" ] && cat "$at/losses" "$at/weights.safetensors" | sha256sum | cut -c -16
    fi
}

export DLTRAIN_CUDNN_CACHE=$scratch/cudnn
differ=0 number=0
while read -r ranks flags; do
    read -ra words <<<"$flags"
    number=$((number + 1))
    now=$(of "$dltrain" "$ranks" "${words[@]}" || echo failed)
    line="$now -n $ranks $flags"
    if [ -x "${old:-/}" ] && [ -f "${old:-/}" ]; then
        before=$(of "$old" "$ranks" "${words[@]}" || echo failed)
    else
        before=$([ -z "$old" ] || awk -v run="-n $ranks $flags" '
            { sum = $1; sub(/^[^ ]* /, ""); sub(/   NOT.*/, ""); if ($0 == run) print sum }' "$old")
    fi
    if [ "$now" = failed ] || { [ "$old" ] && [ "$now" != "$before" ]; }; then
        line+="   NOT AS BEFORE: ${before:-not there}"
        differ=$((differ + 1))
    fi
    echo "$line"
done < <({ runs; plans; } | grep -E -- "${ONLY:-.}")
echo "$number runs, $differ of them ${old:+with other bits or }failed"
[ "$differ" = 0 ]
