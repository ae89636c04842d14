#!/usr/bin/env bash
# ResNet-50 on images of CIFAR-10's size over two devices: data parallel, model parallel and as a pipeline. README.md
# has the settings.
set -euo pipefail
# shellcheck source=benchmarks/experiments/common.sh
. "$(dirname "$0")/../common.sh"

flags=(--config "$here/settings.toml")
images=64
if [ -z "$data" ]; then
    data=synthetic:shapes:$([ -n "$quick" ] && echo 256 || echo 50000)
    say "no --data (CIFAR-10 in its binary version): on the synthetic set $data, whose figures are not CIFAR-10's"
fi
if [ -n "$quick" ]; then
    flags+=(--epochs 1 --steps 4)
    images=16
else
    flags+=(--epochs 2)
fi
flags+=(--data "$data")
train one-device 1 "${flags[@]}" --batch "$images"
train data-parallel 2 "${flags[@]}" --batch $((images / 2))
# Stages are cut by what they take here.
stages=(--batch "$images" --pipeline 2 --measure 5)
train model-parallel 2 "${flags[@]}" "${stages[@]}" --micro-batches 1
for schedule in gpipe 1f1b interleaved:2 zb-h1; do
    train "pipeline-${schedule/:/-}" 2 "${flags[@]}" "${stages[@]}" --micro-batches 8 --schedule "$schedule"
done
report
