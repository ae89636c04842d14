#!/usr/bin/env bash
# Predictions beside what steps took, over links of several rates between hosts of one or two ranks: predicted from steps
# that one host's ranks ran without communication, and from what `dltrain bench autotune` measured between two hosts. The
# hosts are namespaces of this machine (tests/support/hosts.sh), which takes root; Open MPI only.
#
# Every rank has the same part of a core to itself, by a quota (cgroups), however many there are: else more ranks would
# be slower ranks. They fit on the cores that are there.
#
# Usage: measured.sh DLTRAIN    (make bench-measured); needs DLTRAIN_MPIRUN
#        RATES="1gbit" HOSTS="2 3 4" LOCAL="1 2" MODELS="resnet50" PART=0.2 STEPS=4 measured.sh …
#
# All pairs that are measured are printed. It fails where the mean error is above 5 %, or one above 12 %.
set -euo pipefail
cd "$(dirname "$0")/../.."

dltrain=$(realpath "$1")
. benchmarks/common.sh
hosts=tests/support/hosts.sh
rates=${RATES-1gbit 300mbit 100mbit}
counts=${HOSTS-2 3 4}
locals=${LOCAL-1 2}
models=${MODELS-mnist_large resnet50 vgg11 alexnet}
steps=${STEPS:-4}
part=${PART:-0.2}
result=
trap '$hosts down 2>/dev/null; rm -rf "$scratch"' EXIT

# What starts dltrain with a part of a core, in a cgroup of its own; of threads and all that it starts too.
slow() {
    cat >"$scratch/slow" <<SH
#!/bin/sh
if [ -d /sys/fs/cgroup/cpu ]; then
    group=/sys/fs/cgroup/cpu/dltrain-\$\$
    mkdir \$group
    echo 10000 >\$group/cpu.cfs_period_us
    echo $(awk -v p="$part" 'BEGIN { printf "%.0f", 10000 * p }') >\$group/cpu.cfs_quota_us
else
    group=/sys/fs/cgroup/dltrain-\$\$
    mkdir \$group
    echo "$(awk -v p="$part" 'BEGIN { printf "%.0f", 10000 * p }') 10000" >\$group/cpu.max
fi
echo \$\$ >\$group/cgroup.procs
exec $dltrain "\$@"
SH
    chmod +x "$scratch/slow"
}

flags_of() { # model
    case $1 in
        mnist_large) echo --model mnist_large --batch 64 ;;
        resnet50) echo --model resnet50 --image-size 64 --classes 10 --batch 4 ;;
        vgg11) echo --model vgg11 --image-size 64 --classes 10 --batch 2 ;;
        alexnet) echo --model alexnet --image-size 63 --classes 10 --batch 4 ;;
    esac
}

job() { # hosts, ranks on each, what slow is given
    local list=h0:$2 host
    for ((host = 1; host < $1; host++)); do list+=,h$host:$2; done
    $hosts run h0 "${mpirun[@]}" --mca plm rsh --mca plm_rsh_agent "$($hosts agent)" --mca mpi_yield_when_idle 1 \
        -H "$list" -n $(($1 * $2)) "$scratch/slow" "${@:3}" 2>&1 </dev/null
    rmdir /sys/fs/cgroup/cpu/dltrain-* /sys/fs/cgroup/dltrain-* 2>/dev/null || true
}

# Seconds of a step for each number of hosts, in a line each.
predicted() { # rate, ranks on a host, flags
    job 1 "$2" --dry-run --threads 1 --optimizer sgd --measure 5 --tuning "$scratch/tuning-$1-$2.json" \
        --predict-nodes "${counts// /,}" "${@:3}" >"$scratch/said" || { cat "$scratch/said" >&2; return 1; }
    sed -n '/^ *nodes  *ranks/,/^predicted/p' "$scratch/said" |
        awk '$4 == "ms" { print $1, $3 / 1000 } $4 == "s" { print $1, $3 }'
}

measured() { # hosts, ranks on each, flags
    job "$1" "$2" --threads 1 --optimizer sgd --lr 1e-4 --warmup 1 --steps "$steps" \
        --tuning "$scratch/tuning-$rate-$2.json" --results "$scratch/r.h5" "${@:3}" >"$scratch/said" ||
        { cat "$scratch/said" >&2; return 1; }
    rm -f "$scratch/r.h5"
    awk '/^total images\/sec:/ { rate = $3 } /^batch/ { images = $(NF - 2) } END { print images / rate }' \
        "$scratch/said"
}

ways() { # hosts, ranks on each
    echo plain
    echo "zero-1 --zero 1"
    [ "$1" -lt 3 ] || echo "server --sync server"
    [ $(($1 * $2 % 2)) -gt 0 ] || echo "doubling --allreduce recursive-doubling"
}

pairs() { # ranks on each
    local each=$1 model count name flags given took
    for model in $models; do
        read -ra given <<<"$(flags_of "$model")"
        : >"$scratch/predicted"
        for name in "plain" "zero-1 --zero 1" "server --sync server" "doubling --allreduce recursive-doubling"; do
            read -r name flags <<<"$name"
            # shellcheck disable=SC2086
            predicted "$rate" "$each" "${given[@]}" $flags | sed "s/^/$name /" >>"$scratch/predicted"
        done
        for count in $counts; do
            while read -r name flags; do
                # shellcheck disable=SC2086
                took=$(measured "$count" "$each" "${given[@]}" $flags)
                awk -v name="$name" -v count="$count" -v each="$each" -v took="$took" -v model="$model" \
                    -v rate="$rate" '$1 == name && $2 == count {
                    printf "%-8s %d x %d  %-12s %-10s %10.3f %10.3f %+8.1f %%\n", rate, count, each, model, name, $3, \
                        took, 100 * ($3 / took - 1)
                }' "$scratch/predicted"
            done < <(ways "$count" "$each")
        done
    done
}

measure() {
    local rate each
    slow
    echo "a rank has $part of a core; a step's seconds, of $steps steps"
    printf '%-8s %-6s %-12s %-10s %10s %10s %10s\n' links hosts model way predicted measured error
    for rate in $rates; do
        $hosts down 2>/dev/null || true
        $hosts up 4 "$rate"
        for each in $locals; do
            job 2 "$each" bench autotune --output "$scratch/tuning-$rate-$each.json" >"$scratch/said" ||
                { cat "$scratch/said" >&2; return 1; }
            pairs "$each"
        done
    done
}

report measured "a step as predicted, and as it was"
awk '$NF == "%" {
    error = $(NF - 1); error = error < 0 ? -error : error
    sum += error; count++; if (error > worst) worst = error
}
END {
    printf "%d pairs: mean error %.1f %%, worst %.1f %%\n", count, sum / count, worst
    exit sum / count > 5 || worst > 12
}' "$result" | tee -a "$result"
