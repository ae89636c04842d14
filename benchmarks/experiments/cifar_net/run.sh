#!/usr/bin/env bash
# The network of DeepSpeed's CIFAR example with its optimizer. README.md has the settings.
set -euo pipefail
# shellcheck source=benchmarks/experiments/common.sh
. "$(dirname "$0")/../common.sh"

flags=(--config "$here/settings.toml")
ranks=${RANKS:-1 2 4}
if [ -z "$data" ]; then
    data=synthetic:shapes:$([ -n "$quick" ] && echo 1000 || echo 50000)
    say "no --data (CIFAR-10 in its binary version): on the synthetic set $data, whose figures are not CIFAR-10's"
fi
if [ -n "$quick" ]; then
    flags+=(--epochs 2)
    ranks=${RANKS:-1 2}
fi
for count in $ranks; do
    train "cifar_net-r$count" "$count" "${flags[@]}" --data "$data"
done
report
