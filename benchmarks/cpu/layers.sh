#!/usr/bin/env bash
# Where a step's time goes: every convolution, linear layer and normalisation of a model, dltrain's time (in a whole
# step, reorders included) beside PyTorch's for the same layer by itself, in its default layout and in channels_last.
#
# Usage: layers.sh DLTRAIN MODEL [BATCH [THREADS]]    needs .deps/torch
set -euo pipefail
cd "$(dirname "$0")/../.."

dltrain=$1
model=$2
batch=${3:-8}
threads=${4:-1}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

"$dltrain" bench layers --model "$model" --batch "$batch" --threads "$threads" --csv "$scratch/layers.csv"
echo
OMP_NUM_THREADS=$threads .deps/torch/bin/python benchmarks/cpu/layers.py "$scratch/layers.csv" "$model" \
    --batch "$batch" --threads "$threads"
