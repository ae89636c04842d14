#!/usr/bin/env bash
# Whether CosmoFlow learns the same by dltrain and by PyTorch: the mean absolute error on universes that were not
# trained on, after as many epochs, over several seeds. Each begins with weights of its own seed (by the same law) and
# has its own order of samples.
#
# Usage: learned.sh DLTRAIN    needs DLTRAIN_MPIRUN and .deps/torch; EDGE=32 SAMPLES=256 EPOCHS=8 SEEDS="1 2 3 4 5"
set -euo pipefail
cd "$(dirname "$0")/../.."

dltrain=$1
. benchmarks/common.sh
python=.deps/torch/bin/python
peer=benchmarks/fields/cubes.py
edge=${EDGE:-32}
samples=${SAMPLES:-256}
epochs=${EPOCHS:-8}
seeds=${SEEDS:-1 2 3 4 5}
batch=8
untimed=yes
export LR=${LR:-0.0002}

pack() { # data, directory
    mkdir "$scratch/$2"
    "${mpirun[@]}" -n 2 "$dltrain" pack "$1:$samples:$edge:1" "$scratch/$2" >/dev/null
}

measure() {
    local seed
    "$python" $peer versions
    pack synthetic:universes train
    pack synthetic:universes-test test
    echo
    echo "cosmoflow, $samples universes of 4x$edge^3 and as many to test on"
    echo "$epochs epochs of batches of $batch, Adam $LR"
    for seed in $seeds; do
        "${mpirun[@]}" -n 2 "$dltrain" --model cosmoflow --data "$scratch/train" --test-data "$scratch/test" \
            --input 'full[d,h,w,c]:log1p' --target 'unitPar[c]' --loss mse --metric mae --batch $((batch / 2)) \
            --threads 1 --optimizer adam --weight-decay 0 --lr "$LR" --epochs "$epochs" --seed "$seed" --device cpu \
            --results "$scratch/ours-$seed.h5" >/dev/null
        "$python" $peer learn "$scratch" "$edge" "$batch" "$epochs" "$seed"
    done
    "$python" $peer learned "$scratch"
}

report fields-cubes-learned "What CosmoFlow learns of universes: mean absolute error of tests"
