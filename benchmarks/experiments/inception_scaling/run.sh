#!/usr/bin/env bash
# Inception v3 over nodes, 64 images a node and step, on synthetic images. README.md has the settings.
set -euo pipefail
# shellcheck source=benchmarks/experiments/common.sh
. "$(dirname "$0")/../common.sh"

per_node=${RANKS_PER_NODE:-1} nodes=${NODES:-1 2 4 8 16 32 64 128}
batch=$((64 / per_node))
flags=(--config "$here/settings.toml")
[ -z "$data" ] || say "--data is not used: what is measured here needs no images of the world"
if [ -n "$quick" ]; then
    nodes=${NODES:-1 2} batch=2
    flags+=(--steps 2 --warmup 1)
    say "--quick: 2 images a rank in place of 64 a node, and ranks of one machine for nodes"
fi
for count in $nodes; do
    [ -z "${SLURM_JOB_ID:-}" ] || launch_flags=(-N "$count")
    train "n$count" $((count * per_node)) "${flags[@]}" --batch "$batch"
done
report
