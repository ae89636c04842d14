#!/usr/bin/env bash
# Images a second and memory over the batch, on synthetic images: AlexNet, ResNet-50, -101, -152. README.md has the
# settings.
set -euo pipefail
# shellcheck source=benchmarks/experiments/common.sh
. "$(dirname "$0")/../common.sh"

ranks=${RANKS:-1} batches=${BATCHES:-1 2 4 8 16 32 64 128 256 512}
flags=(--config "$here/settings.toml")
[ -z "$data" ] || say "--data is not used: what is measured here needs no images of the world"
if [ -n "$quick" ]; then
    batches=${BATCHES:-2 4 8}
    flags+=(--image-size 64 --steps 2 --warmup 1)
fi
for model in ${MODELS:-alexnet resnet50 resnet101 resnet152}; do
    for batch in $batches; do
        code=0
        train "$model-b$batch" "$ranks" "${flags[@]}" --model "$model" --batch "$batch" || code=$?
        # A larger one fits even less.
        [ "$code" != 4 ] || break
        [ "$code" = 0 ] || exit "$code"
    done
done
report
