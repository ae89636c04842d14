#!/usr/bin/env bash
# Allreduces of two ranks on one host: ours beside Open MPI's and MPICH's MPI_Allreduce (each in a build with that MPI)
# and gloo's, from 4 KB to 256 MB; the 161 gradients of ResNet-50, one by one, in buckets and fused; and four ranks on
# two cores. All take turns; medians of the turns' medians.
#
# Usage: run.sh DLTRAIN_BY_OPENMPI DLTRAIN_BY_MPICH    (make bench-collectives); needs .deps/torch
#        TURNS=1 SIZES=4096,65536 SAMPLES=5 run.sh …     a short one
#
# `dltrain bench allreduce` and the peer check their answers before they print a number.
set -euo pipefail
cd "$(dirname "$0")/../.."

dltrain=$1
declare -A program=([openmpi]=$1 [mpich]=$2)
eval "$(.ci/env openmpi)"
. benchmarks/common.sh
python=.deps/torch/bin/python
turns=${TURNS:-2}
sizes=${SIZES:-4096,16384,65536,262144,1048576,4194304,16777216,67108864,268435456}
samples=(${SAMPLES:+--iterations "$SAMPLES"})
times=$scratch/times # contender, bytes, ranges, microseconds

under() { # MPI, ranks, flags of the benchmark: its rows as "contender bytes ranges microseconds"
    local output mpi=$1 ranks=$2
    output=$(
        eval "$(.ci/env "$mpi")"
        read -ra mpirun <<<"$DLTRAIN_MPIRUN"
        OMP_NUM_THREADS=1 timeout 120 "${mpirun[@]}" -n "$ranks" "${program[$mpi]}" bench allreduce "${@:3}" 2>&1
    ) || {
        echo "$output" >&2
        return 1
    }
    awk -v mpi="$mpi" '!/^#/ { print mpi ":" $5, 4 * $3, $4, $8 }' <<<"$output"
}

value() { # contender, bytes, ranges
    awk -v c="$1" -v b="$2" -v r="$3" '$1 == c && $2 == b && $3 == r { print $4 }' "$times" | median
}

turn() {
    local mpi
    for mpi in openmpi mpich; do
        under $mpi 2 --sizes "$sizes" --algorithm ring,shm "${samples[@]}" >>"$times"
        under $mpi 2 --model resnet50 --algorithm ring,shm "${samples[@]}" >>"$times"
    done
    OMP_NUM_THREADS=1 timeout 120 "$python" benchmarks/collectives/peer.py "$sizes" ${SAMPLES:+"$SAMPLES"} | sed 's/^/gloo /' >>"$times"
}

# One row: the times, and what they say about the aims.
row() { # label, bytes, ranges
    local c all=()
    for c in openmpi:MPI_Allreduce mpich:MPI_Allreduce gloo openmpi:ring mpich:ring openmpi:shm mpich:shm openmpi:\(memory\); do
        all+=("$(value "$c" "$2" "$3")")
    done
    awk -v label="$1" -v v="${all[*]}" 'BEGIN {
        split(v, t, " ")
        vendor = t[1] < t[2] ? t[1] : t[2]
        shm = t[6] < t[7] ? t[6] : t[7]
        printf "%-14s", label
        for (i = 1; i <= 8; i++) printf " %10.1f", t[i]
        printf " %8.2f %8.2f %8.2f %8.2f %8.2f\n", vendor / shm, t[3] / shm, t[1] / t[4], t[2] / t[5], t[8] / shm
    }'
}

measure() {
    local turn size
    for ((turn = 1; turn <= turns; turn++)); do turn; done
    echo "versions: MPICH: $("${program[mpich]}" info | sed -n 's/^MPI *//p'); $("$python" -c 'import torch; print("PyTorch", torch.__version__)')"
    echo
    echo "2 ranks, microseconds; ratios are times over ours: shm to the better MPI_Allreduce and to gloo, ring to the"
    echo "MPI_Allreduce of the same MPI, and the least that memory allows (each rank reads and writes the size once) to shm"
    printf '%-14s %10s %10s %10s %10s %10s %10s %10s %10s %8s %8s %8s %8s %8s\n' size 'Open MPI' MPICH gloo 'ring/Open' \
        ring/MPICH shm/Open shm/MPICH memory shm:MPI shm:gloo ring:O ring:M memory
    for size in ${sizes//,/ }; do row "$(numfmt --to=iec "$size")" "$size" 1; done
    row 'resnet50 x161' 102228128 161
    row 'in 25 MB' 102228128 4
    row 'fused' 102228128 1
    echo
    echo "4 ranks under MPICH (microseconds; ratio: MPI_Allreduce's time over ours)"
    under mpich 4 --sizes 4K,1M --algorithm ring,recursive-doubling,shm --iterations 5 | awk '
        $1 == "mpich:MPI_Allreduce" { vendor = $4 }
        $1 != "mpich:(memory)" { printf "%-22s %10d bytes %12.1f %8.2f\n", $1, $2, $4, vendor / $4 }'
}

report collectives "Allreduce on one host: ours, Open MPI, MPICH, gloo; medians of $turns turns"
