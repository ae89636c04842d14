#!/usr/bin/env bash
# Predictions beside SimGrid's replay of the same steps, message by message: another program's simulation of the network
# (libsimgrid-dev). Simulated seconds on both sides, so that the machine's load changes nothing.
#
# Usage: run.sh DLTRAIN    (make bench-predict); needs DLTRAIN_MPIRUN and smpirun
#        NODES="2 8" UNEVEN=6 MOST= LARGE= run.sh …       fewer nodes, and no run of 4,096
#
# Every pair that is measured is printed. A step is compared by the time that two of them take, from the first action
# until nothing is under way. It fails where one differs by more than 5 %.
set -euo pipefail
cd "$(dirname "$0")/../.."

dltrain=$(realpath "$1")
. benchmarks/common.sh
command -v smpirun >/dev/null || { echo "bench-predict: smpirun is missing (apt-get install libsimgrid-dev)" >&2; exit 1; }
nodes=${NODES-2 4 8 16 32 128}
uneven=${UNEVEN-6 24 100}
most=${MOST-512}
large=${LARGE-4096}
result=
# As fast as a P100, so that sums are in the way.
rates=10.6,732

tree() {
    cat >"$scratch/tree.toml" <<'TOML'
name = "fat tree"
latency_us = 2.0
hop_us = 0.4
gb_per_s = 5.0
links_a_node = 1
topology = "fat-tree"
[fat-tree]
down = [16, 8, 4]
up = [1, 8, 4]
TOML
}

dragonfly() {
    cat >"$scratch/dragonfly.toml" <<'TOML'
name = "Dragonfly"
latency_us = 1.6
hop_us = 0.3
gb_per_s = 5.0
links_a_node = 1
topology = "dragonfly"
[dragonfly]
groups = 8
switches = 16
nodes = 4
between_groups = 8
between_switches = 2
TOML
}

flat() {
    cat >"$scratch/flat.toml" <<'TOML'
name = "flat"
latency_us = 10.0
hop_us = 1.0
gb_per_s = 1.2
links_a_node = 1
topology = "flat"
TOML
}

pair() { # ranks a node, nodes, network's file, flags
    local local=$1 count=$2 network=$3 said predicted replayed begun
    rm -rf "$scratch/traces" "$scratch/trace.json"
    said=$("${mpirun[@]}" -n "$local" "$dltrain" --dry-run --threads 1 --roofline $rates --predict-nodes "$count" \
        --network "$network" --export-trace "$scratch/trace.json" "${@:4}" 2>&1) || { echo "$said" >&2; return 1; }
    benchmarks/predict/simgrid.py "$scratch/trace.json" "$scratch/traces"
    predicted=$(sed -n 's/.*expected to take \([0-9.]*\) s in all.*/\1/p' <<<"$said")
    begun=$SECONDS
    replayed=$(sh "$scratch/traces/replay.sh")
    awk -v p="$predicted" -v r="$replayed" -v n="$(basename "$network" .toml)" -v nodes="$count" -v local="$local" \
        -v s=$((SECONDS - begun)) -v flags="${*:4}" \
        'BEGIN { printf "%-10s %6d x %d  %12.6f %12.6f %+8.2f %%  %5d s  %s\n", n, nodes, local, p, r, 100 * (p / r - 1), s, flags }'
}

# Every way of some numbers of nodes on one network.
ways() { # network, nodes…
    local network=$scratch/$1.toml count way stages few
    for count in "${@:2}"; do
        few=()
        # A ring of many ranks has thousands of messages a rank and bucket: one bucket is enough to look at.
        [ "$count" -lt 100 ] || few=(--fusion-threshold-mb 1000)
        for way in "--allreduce halving-doubling" "--allreduce recursive-doubling" "--sync server"; do
            # shellcheck disable=SC2086
            pair 1 "$count" "$network" --model resnet50 --batch 8 $way
        done
        [ "$count" -lt 512 ] || [ "$1" = dragonfly ] || continue
        for way in "--allreduce ring" "--allreduce torus" "--zero 1" "--zero 2" "--zero 3"; do
            # shellcheck disable=SC2086
            pair 1 "$count" "$network" --model resnet50 --batch 8 $way "${few[@]}"
        done
        for stages in 2 4; do
            [ $((count % stages)) -eq 0 ] || continue
            # Groups of neighbours, over nodes.
            pair 1 "$count" "$network" --model alexnet --batch 8 --tensor $stages "${few[@]}"
            pair 1 "$count" "$network" --model resnet50 --batch 8 --spatial $stages "${few[@]}"
            for way in gpipe 1f1b zb-h1 interleaved:2; do
                [ "$count" -lt 100 ] || [ $way = 1f1b ] || continue
                pair 1 "$count" "$network" --model resnet50 --batch 32 --pipeline $stages --micro-batches 4 \
                    --schedule $way "${few[@]}"
            done
        done
        # Within nodes.
        [ "$count" -gt 8 ] || pair 4 "$count" "$network" --model alexnet --batch 8 --tensor 4
        [ "$count" -gt 8 ] || pair 4 "$count" "$network" --model resnet50 --batch 8 --spatial 2
        [ "$count" -ge 100 ] || pair 4 "$count" "$network" --model resnet50 --batch 8 --allreduce hierarchical
    done
}

measure() {
    local network
    tree
    dragonfly
    flat
    echo
    echo "seconds of two steps, at $rates TFLOP/s and GB/s a rank"
    echo "network     nodes x ranks    predicted     replayed     error    replay  flags"
    for network in flat tree dragonfly; do ways $network $nodes $uneven; done
    if [ -n "$large" ]; then
        echo
        echo "the reports' models on Piz Daint's network, batch 64, by the algorithms that auto takes"
        for model in inception_v3 resnet50 vgg16; do
            pair 1 "$large" jobs/networks/piz-daint.toml --model $model --batch 64
        done
    fi
    for network in flat tree dragonfly; do ways $network $most; done
}

report predict "Predicted steps beside SimGrid's replay of them ($(smpirun --version 2>/dev/null | sed -n 's/.*SimGrid version \([0-9.]*\).*/SimGrid \1/p' | head -n 1))"
# The largest difference of some pairs: those that an expression of awk takes.
worst() {
    awk '$3 == "x" && $4 > 0 && ('"$1"') { e = $7 < 0 ? -$7 : $7; if (e > w) w = e } END { print w + 0 }' "$result"
}

rest='(log($2) / log(2) - int(log($2) / log(2) + 1e-9))'
even=$(worst "$rest < 1e-9")
echo "the worst pair of a power of two of nodes differs by $even %, of the others by $(worst "$rest > 1e-9") %"
awk -v w="$(worst 1)" 'BEGIN { exit w > 5 }'
