#!/usr/bin/env bash
# How long a job of two ranks is without a step when one of them is killed: `dltrain elastic` beside the elastic
# launchers of Horovod and PyTorch, on one machine, in turns.
#
# usage: benchmarks/elastic/run.sh DLTRAIN [TURNS]
set -euo pipefail
cd "$(dirname "$0")/../.."
dltrain=$1
turns=${2:-5}
. benchmarks/common.sh
python=${PYTHON:-.deps/torch/bin/python}

# Seconds from the kill to the end of the first step after it.
ours() { # model batch
    "$python" benchmarks/elastic/kill.py "$scratch/steps" "$dltrain" elastic --min-ranks 2 -- "${mpirun[@]}" -n 2 \
        "$dltrain" --model "$1" --batch "$2" --threads 1 --warmup 0 --steps 100000 --optimizer sgd --lr 1e-4 --quiet \
        --checkpoint "$scratch/kept" --checkpoint-every 100000steps --resume auto --commit 1
}

torchrun() { # model batch
    "$python" benchmarks/elastic/kill.py "$scratch/steps" "$python" -m torch.distributed.run --nnodes 1 \
        --nproc-per-node 2 --max-restarts 3 --monitor-interval 0.1 benchmarks/elastic/peer.py torchrun "$1" "$2" \
        "$scratch/steps"
}

# It leaves out the host of a lost rank, and goes on with the other.
horovod() { # model batch
    "$python" benchmarks/elastic/kill.py "$scratch/steps" "$python" -m horovod.runner.launch -np 2 --min-np 1 \
        --max-np 2 --gloo --host-discovery-script benchmarks/elastic/hosts.sh --elastic-timeout 60 \
        "$python" benchmarks/elastic/peer.py horovod "$1" "$2" "$scratch/steps"
}

measure() {
    local model batch turn who systems="ours torchrun"
    "$python" -c 'import horovod.torch' 2>/dev/null && systems+=" horovod" ||
        echo "Horovod is not in $python: its figures are left out"
    printf '%-14s %-10s %12s   %s\n' model launcher 'median s' 'from kill to the end of the next step, s'
    for model in mnist_small:128 resnet50:1; do
        batch=${model#*:} model=${model%:*}
        for turn in $(seq "$turns"); do
            for who in $systems; do
                rm -rf "$scratch/kept" "$scratch/steps" /dev/shm/elastic-peer-*
                "$who" "$model" "$batch" >>"$scratch/$model.$who" ||
                    { echo "$who: no figure in turn $turn" >&2; exit 1; }
            done
        done
        for who in $systems; do
            printf '%-14s %-10s %12.2f   %s\n' "$model" "$who" "$(median <"$scratch/$model.$who")" \
                "$(paste -sd' ' "$scratch/$model.$who")"
        done
    done
}

report elastic "a rank of two is killed; state is kept in memory after every step"
