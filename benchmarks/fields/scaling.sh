#!/usr/bin/env bash
# What CosmoFlow is predicted to take on many nodes of four ranks: one cube a node in slabs (weak scaling), 64 cubes a
# step in all (strong scaling), a cube of 512³ on 8 ranks and more, and LBANN's published case beside it. Seconds are
# simulated: how busy this machine is changes nothing. The rate of a rank is a bound: steps are at least so long.
#
# Usage: scaling.sh DLTRAIN    needs DLTRAIN_MPIRUN and .deps/torch (h5py); PARTS="lbann weak strong large"
#        PAGE=scaling.html     also makes a page of the weak and strong tables' figures (dltrain report)
set -euo pipefail
cd "$(dirname "$0")/../.."

dltrain=$1
. benchmarks/common.sh
untimed=yes
parts=${PARTS:-lbann weak strong large}
# Of one P100, V100 and H100: TFLOP/s in f32 and GB/s, as their data sheets say.
declare -A rate=([piz-daint]='9.3,732' [lassen]='15.7,900' [alps]='67,4000')

# A file of one cube that is nowhere written: a dry run looks at shapes.
blank() {
    .deps/torch/bin/python - "$1" "$scratch/$1.hdf5" <<'END'
import sys, h5py
edge = int(sys.argv[1])
with h5py.File(sys.argv[2], "w") as file:
    file.create_dataset("full", (edge, edge, edge, 4), "i2", chunks=(1, min(edge, 128), min(edge, 128), 4))
    file["unitPar"] = [0.0] * 4
END
}

# Rows of the table of a prediction: edge, ranks that are started here as one node, nodes, flags. What is weak or strong
# is kept for the page.
predicted() {
    local edge=$1 ranks=$2 nodes=$3 kept=()
    shift 3
    [[ -z ${keep:-} ]] || kept=(--save-prediction "$scratch/$keep-$((saved++)).json")
    [ -e "$scratch/$edge.hdf5" ] || blank "$edge"
    "${mpirun[@]}" -n "$ranks" "$dltrain" --model cosmoflow --data "$scratch/$edge.hdf5" \
        --repeat-data 65536 --input 'full[d,h,w,c]:log1p' --target 'unitPar[c]' --loss mse --device cpu --threads 1 \
        --dry-run --predict-nodes "$nodes" "${kept[@]}" "$@" |
        awk '/^ *nodes  / { on = 1 } /^predicted: / { exit } on { print }'
}

measure() {
    local network nodes ranks on keep='' saved=0
    cat >"$scratch/lassen.toml" <<'END'
name = "Lassen: InfiniBand EDR, two links a node"
latency_us = 1.3
hop_us = 0.3
gb_per_s = 12.5
links_a_node = 2
topology = "flat"
END
    if [[ $parts == *lbann* ]]; then
        echo
        echo "LBANN's case: batch 2 at 128^3 by depth on 2 nodes of 2 V100 (it has 35 ms on Lassen), at ${rate[lassen]}"
        predicted 128 2 2 --batch 2 --spatial 4 --network "$scratch/lassen.toml" --roofline "${rate[lassen]}"
    fi
    for network in piz-daint alps; do
        on=(--network "jobs/networks/$network.toml" --roofline "${rate[$network]}")
        if [[ $parts == *weak* ]]; then
            echo
            echo "weak: a cube of 128^3 a node in four slabs, $network, ${rate[$network]} a rank"
            keep=weak
            predicted 128 4 1,8,64,512 --batch 1 --spatial 4 "${on[@]}"
        fi
        if [[ $parts == *strong* ]]; then
            echo
            echo "strong: 64 cubes of 128^3 a step in four slabs each, $network, ${rate[$network]} a rank"
            keep=strong
            for nodes in 1 8 64; do
                predicted 128 4 $nodes --batch $((64 / nodes)) --spatial 4 "${on[@]}"
            done
            echo "  the same in slabs of 8 nodes' ranks"
            predicted 128 4 512 --batch 1 --spatial 32 "${on[@]}"
        fi
        keep=
        if [[ $parts == *large* ]]; then
            for ranks in 8 16 32; do
                echo
                echo "large: a cube of 512^3 in $ranks slabs, --recompute, $network, ${rate[$network]} a rank"
                predicted 512 "$ranks" 1,2 --batch 1 --recompute --spatial "$ranks" "${on[@]}"
            done
        fi
    done
    if [ -n "${PAGE:-}" ]; then
        page
    fi
}

page() {
    local file files=()
    for file in "$scratch"/weak-*.json "$scratch"/strong-*.json; do
        [ ! -e "$file" ] || files+=(--predicted "$file")
    done
    "$dltrain" report "${files[@]}" -o "$PAGE"
}

report fields-scaling "CosmoFlow predicted"
