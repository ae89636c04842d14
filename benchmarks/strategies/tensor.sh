#!/usr/bin/env bash
# AlexNet with its linear layers split over two ranks (--tensor 2) against plain data parallelism: a rank on each of two
# hosts, whose links are shaped to 1 Gbit/s. The hosts are namespaces of this machine (tests/support/hosts.sh), which
# takes root; Open MPI only.
#
# Usage: tensor.sh DLTRAIN    (make bench-tensor); needs DLTRAIN_MPIRUN
#        RATE=100mbit STEPS=5 TURNS=3 BATCH=32 tensor.sh …
#
# Weights of both must agree to 1e-5 of their norm before a number is printed.
set -euo pipefail
cd "$(dirname "$0")/../.."

dltrain=$(realpath "$1")
. benchmarks/common.sh
hosts=tests/support/hosts.sh
rate=${RATE:-1gbit}
steps=${STEPS:-5}
batch=${BATCH:-32}
trap '$hosts down 2>/dev/null; rm -rf "$scratch"' EXIT

job() { # flags; prints what the run does
    $hosts run h0 "${mpirun[@]}" --mca plm rsh --mca plm_rsh_agent "$($hosts agent)" --mca mpi_yield_when_idle 1 \
        -H h0:1,h1:1 -n 2 "$dltrain" --model alexnet --batch "$batch" --threads 1 --optimizer sgd --lr 0.01 "$@" \
        2>&1 </dev/null
}

# Seconds of a step in all, and of these waiting.
train() { # flags
    job --warmup 1 --steps "$steps" --results "$scratch/r.h5" "$@" >"$scratch/said" ||
        { cat "$scratch/said" >&2; exit 1; }
    rm -f "$scratch/r.h5"
    awk -v images="$((2 * batch))" '/^total images\/sec:/ { step = images / $3 }
        /^share of time/ { match($0, /communication [0-9.]+/); share = substr($0, RSTART + 14, RLENGTH - 14) / 100 }
        /^memory a rank/ { memory = $4 }
        END { printf "%.3f %.3f %d\n", step, share * step, memory }' "$scratch/said"
}

# Weights after three steps.
weights() { # file, flags
    job --warmup 0 --steps 3 --results "$scratch/w.h5" --save-weights "$@" >"$scratch/said" ||
        { cat "$scratch/said" >&2; exit 1; }
    rm -f "$scratch/w.h5"
}

# Of each tensor the norm of the difference as a share of its own, by every 31st number.
check() {
    weights "$scratch/plain.safetensors"
    weights "$scratch/tensor.safetensors" --tensor 2
    python3 - "$scratch/plain.safetensors" "$scratch/tensor.safetensors" <<'END'
import array, json, sys

def tensors(path):
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        head = json.loads(file.read(length))
        for name, of in sorted(head.items()):
            if name != "__metadata__":
                start, end = of["data_offsets"]
                file.seek(8 + length + start)
                yield name, of["shape"], array.array("f", file.read(end - start))[::31]

norm = lambda values: sum(value * value for value in values) ** 0.5
worst = count = 0
for (name, shape, a), (other, _, b) in zip(*map(tensors, sys.argv[1:]), strict=True):
    assert name == other and len(a) == len(b), (name, shape, other)
    worst, count = max(worst, norm(x - y for x, y in zip(a, b)) / max(norm(a), 1e-3)), count + 1
if worst > 1e-5 or count < 16:
    sys.exit(f"weights differ by {worst:.1e} of their norm, {count} tensors")
print(f"weights after 3 steps: the same to {worst:.1e} of their norm")
END
    rm "$scratch/plain.safetensors" "$scratch/tensor.safetensors"
}

measure() {
    $hosts down 2>/dev/null || true
    $hosts up 2 "$rate"
    check
    job --tensor 2 --dry-run | sed -n '/^linear layers split/,/^$/p'
    echo "AlexNet, batch $batch a rank, 2 hosts x 1 rank x 1 thread, links of $rate, turns one after the other"
    printf '%-12s %10s %10s %10s\n' '' 's/step' waiting 'MB a rank'
    local flags name step waits memory
    for _ in $(seq "${TURNS:-3}"); do
        for name in plain tensor; do
            flags=()
            [ "$name" = plain ] || flags=(--tensor 2)
            read -r step waits memory < <(train "${flags[@]}")
            printf '%-12s %10s %10s %10s\n' "$name" "$step" "$waits" "$memory"
            echo "$step" >>"$scratch/$name"
        done
    done
    awk -v a="$(median <"$scratch/plain")" -v b="$(median <"$scratch/tensor")" \
        'BEGIN { printf "medians %.3f s and %.3f s: %.2f times as fast\n", a, b, a / b }'
}

report tensor "Split linear layers over shaped links between hosts on one machine"
