#!/usr/bin/env bash
# The three MNIST networks: time of the first and the second epoch over batch, size of the data and ranks. README.md has
# the settings.
set -euo pipefail
# shellcheck source=benchmarks/experiments/common.sh
. "$(dirname "$0")/../common.sh"

models=${MODELS:-mnist_net mnist_small mnist_large} batches=${BATCHES:-128 256 512}
times=${TIMES:-1 4 8} ranks=${RANKS:-1 2 4}
if [ -n "$quick" ]; then
    models=${MODELS:-mnist_net mnist_small} batches=${BATCHES:-32 64} times=${TIMES:-1 4} ranks=${RANKS:-1 2}
fi
if [ -z "$data" ]; then
    data=synthetic:shapes:60000
    [ -z "$quick" ] || data=$root/data/digits
    say "no --data (MNIST's four files): on $data, whose figures are not MNIST's"
fi
for model in $models; do
    for batch in $batches; do
        for repeat in $times; do
            for count in $ranks; do
                train "$model-b$batch-x$repeat-r$count" "$count" --config "$here/settings.toml" \
                    --model "$model" --batch "$batch" --repeat-data "$repeat" --data "$data"
            done
        done
    done
done
report
