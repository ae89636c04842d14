#!/usr/bin/env bash
# VGG-16 and ResNet-50 on CIFAR-10: accuracy and cross-entropy over steps. README.md has the settings.
set -euo pipefail
# shellcheck source=benchmarks/experiments/common.sh
. "$(dirname "$0")/../common.sh"

ranks=${RANKS:-1}
flags=(--config "$here/settings.toml")
if [ -z "$data" ]; then
    data=synthetic:shapes:$([ -n "$quick" ] && echo 200 || echo 50000)
    say "no --data (CIFAR-10 in its binary version): on the synthetic set $data, whose figures are not CIFAR-10's"
fi
if [ -n "$quick" ]; then
    flags+=(--batch 8 --epochs 2 --steps 6)
fi
for model in ${MODELS:-vgg16 resnet50}; do
    train "$model" "$ranks" "${flags[@]}" --model "$model" --data "$data"
done
report
