#!/usr/bin/env bash
# The allreduces between hosts: 64 MB over links shaped to 1 Gbit/s, beside the MPI library's own and the rate that
# iperf3 gets out of the same link. The hosts are namespaces of this machine (tests/support/hosts.sh), which takes root;
# Open MPI only.
#
# Usage: run.sh DLTRAIN    (make bench-hosts); needs DLTRAIN_MPIRUN and iperf3
#        RATE=100mbit SIZES=1M,16M run.sh …
#
# `dltrain bench allreduce` checks every element before it prints a number.
set -euo pipefail
cd "$(dirname "$0")/../.."

dltrain=$(realpath "$1")
. benchmarks/common.sh
hosts=tests/support/hosts.sh
rate=${RATE:-1gbit}
sizes=${SIZES:-64M}
trap '$hosts down; rm -rf "$scratch"' EXIT

# Megabits a second that one TCP connection gets from h0 to h1.
link() {
    $hosts run h1 iperf3 -s -1 -D >/dev/null
    sleep 1
    $hosts run h0 iperf3 -c h1 -t 5 -f m | sed -n 's/^.* \([0-9.]*\) Mbits.*receiver$/\1/p'
}

compare() { # hosts, ranks on each, flags of the benchmark
    local list=h0:$2 host
    for ((host = 1; host < $1; host++)); do list+=,h$host:$2; done
    echo
    echo "$1 hosts x $2 ranks, links of $rate (iperf3: $(link) Mbit/s) ${*:3}"
    $hosts run h0 "${mpirun[@]}" --mca plm rsh --mca plm_rsh_agent "$($hosts agent)" --mca mpi_yield_when_idle 1 \
        -H "$list" -n $(($1 * $2)) "$dltrain" bench allreduce --sizes "$sizes" --iterations 7 "${@:3}"
}

measure() {
    $hosts down
    $hosts up 4 "$rate"
    compare 2 1
    compare 2 1 --wire bf16 --algorithm ring
    compare 2 2
    compare 4 1
}

report hosts "Allreduce over shaped links between hosts on one machine, medians of 7"
