#!/usr/bin/env bash
# Who updates what: plain data parallelism by a ring, ZeRO-1, one rank for all, and parameter servers, over links shaped
# to 1 Gbit/s between hosts, beside what docs/algorithms.md says that they take; and ZeRO-1 beside PyTorch's
# DistributedDataParallel with ZeroRedundancyOptimizer over gloo. The hosts are namespaces of this machine
# (tests/support/hosts.sh), which takes root; Open MPI only.
#
# Usage: run.sh DLTRAIN    (make bench-strategies); needs DLTRAIN_MPIRUN and iperf3; PyTorch where .deps/torch has it
#        RATE=100mbit STEPS=5 SECONDS_TO_LEARN=60 PARTS="learned peers" run.sh …
#
# All strategies must give the same weights, to the bit, before a number is printed: plain, root and servers on one host
# by shared memory's order of adding, ZeRO-1 by the ring's.
set -euo pipefail
cd "$(dirname "$0")/../.."

dltrain=$(realpath "$1")
. benchmarks/common.sh
hosts=tests/support/hosts.sh
rate=${RATE:-1gbit}
steps=${STEPS:-3}
parts=${PARTS:-compare learned peers}
trap '$hosts down 2>/dev/null; rm -rf "$scratch"' EXIT
# alexnet at small images: 244.4 MB of gradients, and little to compute. Sums begin after the backward pass, so that
# what is waited for is what they take.
model=(--model alexnet --image-size 63 --batch 1 --threads 1 --optimizer sgd --warmup 1 --fusion-threshold-mb 8)
model+=(--no-overlap)

# Megabits a second that one TCP connection gets from h0 to h1.
link() {
    $hosts run h1 iperf3 -s -1 -D >/dev/null
    sleep 1
    $hosts run h0 iperf3 -c h1 -t 5 -f m | sed -n 's/^.* \([0-9.]*\) Mbits.*receiver$/\1/p'
}

job() { # slots, ranks, flags; prints what the run does
    $hosts run h0 "${mpirun[@]}" --mca plm rsh --mca plm_rsh_agent "$($hosts agent)" --mca mpi_yield_when_idle 1 \
        -H "$1" -n "$2" "$dltrain" "${model[@]}" --steps "$steps" "${@:3}" --results "$scratch/r.h5" --verbose \
        2>&1 </dev/null
    rm -f "$scratch/r.h5"
}

# What the weights are after these steps.
weights() { # slots, ranks, flags
    job "$@" --save-weights "$scratch/w.safetensors" >"$scratch/said" || { cat "$scratch/said" >&2; exit 1; }
    md5sum <"$scratch/w.safetensors"
    rm "$scratch/w.safetensors"
}

# Seconds of a step, and those in which it waited for other ranks.
seconds() { # ranks that compute
    awk -v ranks="$1" '/^total images\/sec:/ { step = ranks / $3 }
        /^share of time/ { match($0, /communication [0-9.]+/); share = substr($0, RSTART + 14, RLENGTH - 14) / 100 }
        END { printf "%.2f %.2f\n", step, share * step }'
}

slots() { seq -s, -f 'h%.0f:1' 0 $(($1 - 1)); }

# Seconds in which so many times every bucket comes to an owner, is updated and goes back; "along" where both take the
# same links, so that one keeps the other waiting, and else in slices of at most 4 MB.
formula() { # times, along | apart
    awk -v r="$megabits" -v times="$1" -v way="$2" '{
        slices = way == "along" ? 1 : int($1 / 4.194304) + 1
        takes = times * $1 / slices * 8 / r
        for (slice = 0; slice < slices; slice++) {
            come += takes
            gone = (gone > come ? gone : come) + takes
        }
    }
    END { print way == "along" ? 2 * come : gone }' <<<"$buckets"
}

compare() { # hosts
    local ranks=$1 name flags workers times way expected measured said step ring
    echo
    echo "$ranks hosts x 1 rank, links of $rate (iperf3: $megabits Mbit/s); seconds a step"
    printf '%-18s %8s %8s %10s %10s %8s\n' strategy ranks step waiting formula ratio
    while read -r name workers times way flags; do
        # shellcheck disable=SC2086
        said=$(job "$(slots "$ranks")" "$ranks" $flags)
        read -r step measured < <(seconds "$workers" <<<"$said")
        expected=$(formula "$times" "$way")
        printf '%-18s %8s %8s %10s %10.2f %8.2f\n' "$name" "$workers" "$step" "$measured" "$expected" \
            "$(awk -v a="$measured" -v b="$expected" 'BEGIN { print a / b }')"
    done < <(
        # Of a ring both halves go round in one direction; with a star sums come in while parameters go out.
        ring=$(awk -v p="$ranks" 'BEGIN { print (p - 1) / p }')
        echo "plain $ranks $ring along --allreduce ring"
        echo "zero-1 $ranks $ring along --zero 1 --allreduce ring"
        echo "root $ranks $((ranks - 1)) apart --sync root"
        echo "server:1 $((ranks - 1)) $((ranks - 1)) apart --sync server:1"
        # A rank sends and gets everything by itself, and the server serves one after the other.
        echo "server-async:1 $((ranks - 1)) $((ranks - 1)) along --sync server-async:1"
        [ "$ranks" -lt 4 ] ||
            echo "server:2 $((ranks - 2)) $(awk -v p="$ranks" 'BEGIN { print (p - 2) / 2 }') apart --sync server:2"
    )
}

# The same weights by any strategy.
check() {
    local plain other
    plain=$(weights h0:3 3 --allreduce shm)
    for other in "3 --sync root" "4 --sync server"; do
        # shellcheck disable=SC2086
        [ "$(weights "$(slots "${other%% *}")" $other)" = "$plain" ] || { echo "$other: other weights" >&2; exit 1; }
    done
    plain=$(weights "$(slots 3)" 3 --allreduce ring)
    [ "$(weights "$(slots 3)" 3 --allreduce ring --zero 1)" = "$plain" ] ||
        { echo "--zero 1: other weights" >&2; exit 1; }
    echo "weights after $steps steps: the same by every strategy, to the bit"
}

# Bytes that all hosts have sent.
sent() {
    ip netns exec dlt-switch sh -c 'cat /sys/class/net/h*/statistics/rx_bytes' | awk '{ sum += $1 } END { printf "%.0f", sum }'
}

# What the digits are learned to in equal time: with local steps fewer bytes travel, and another training is done.
learned() { # hosts, seconds
    local name flags before epochs speed last best
    echo
    echo "$1 hosts x 1 rank, links of $rate: mnist_small on data/digits, batch 16, Adam, for $2 s"
    printf '%-22s %8s %12s %10s %10s %10s\n' strategy epochs images/s MB/epoch last best
    while read -r name flags; do
        before=$(sent)
        # It ends as it is told to, with a code of its own.
        # shellcheck disable=SC2086
        { $hosts run h0 "${mpirun[@]}" --mca plm rsh --mca plm_rsh_agent "$($hosts agent)" \
            --mca mpi_yield_when_idle 1 -H "$(slots "$1")" -n "$1" "$dltrain" --model mnist_small --data data/digits \
            --batch 16 --threads 1 --optimizer adam --lr 0.002 --epochs 100000 --time-limit "0:00:$2" $flags \
            --results "$scratch/l.h5" 2>/dev/null </dev/null || true; } |
            awk -v name="$name" '$1 ~ /^[0-9]+$/ && $5 ~ /%$/ {
                epochs = $1; rate += $6; last = $5 + 0; if (last > best) best = last
            }
            END { printf "%-22s %d %.0f %.2f%% %.2f%%\n", name, epochs, rate / epochs, last, best }' >"$scratch/row"
        read -r _ epochs speed last best <"$scratch/row"
        printf '%-22s %8d %12d %10.1f %10s %10s\n' "$name" "$epochs" "$speed" \
            "$(awk -v a="$before" -v b="$(sent)" -v n="$epochs" 'BEGIN { print (b - a) / 1e6 / n }')" "$last" "$best"
        rm -f "$scratch/l.h5"
    done <<EOF
plain --allreduce ring
root --sync root
server:1 --sync server
server-async:1 --sync server-async
local-8 --local-steps 8 --allreduce ring
bmuf-8 --sync bmuf:8 --allreduce ring
easgd-8,0.25 --sync easgd:8,0.25 --allreduce ring
gossip --sync gossip --allreduce ring
EOF
}

# dltrain on two hosts without a limit to their links, PyTorch by gloo on one.
peers() {
    local turn
    [ -x .deps/torch/bin/python ] || { echo "no PyTorch in .deps/torch: its figures are left out"; return; }
    $hosts down && $hosts up 2
    echo
    echo "vgg11, batch 2, Adam, 2 ranks x 1 thread: images/s and MB of a rank, medians of 3 turns"
    for turn in 1 2 3; do
        $hosts run h0 "${mpirun[@]}" --mca plm rsh --mca plm_rsh_agent "$($hosts agent)" -H h0:1,h1:1 -n 2 "$dltrain" \
            --model vgg11 --batch 2 --threads 1 --optimizer adam --warmup 1 --steps 4 --zero 1 \
            --results "$scratch/p.h5" >"$scratch/ours" 2>&1
        rm -f "$scratch/p.h5"
        sed -n 's/^total images\/sec: //p' "$scratch/ours" >>"$scratch/ours.rate"
        sed -n 's/^memory a rank *\([0-9]*\) MB.*/\1/p' "$scratch/ours" >>"$scratch/ours.memory"
        .deps/torch/bin/python benchmarks/strategies/peer.py >"$scratch/theirs"
        awk '{ print $1 }' "$scratch/theirs" >>"$scratch/theirs.rate"
        awk '{ print $2 }' "$scratch/theirs" >>"$scratch/theirs.memory"
    done
    for turn in ours theirs; do
        printf '%-10s %8s images/s %8s MB\n' "$([ $turn = ours ] && echo dltrain || echo PyTorch)" \
            "$(median <"$scratch/$turn.rate")" "$(median <"$scratch/$turn.memory")"
    done
    awk -v a="$(median <"$scratch/ours.rate")" -v b="$(median <"$scratch/theirs.rate")" \
        'BEGIN { printf "ratio      %8.2f\n", a / b }'
}

measure() {
    $hosts down 2>/dev/null || true
    $hosts up 4 "$rate"
    check
    megabits=$(link)
    # Megabytes of each, in the order in which they leave.
    buckets=$("$dltrain" "${model[@]}" --dry-run |
        awk '/^bucket/ { on = 1; next } !NF { on = 0 } on && $3 == "MB" { print $2 }')
    local part
    for part in $parts; do
        case $part in
            compare) compare 3; compare 4 ;;
            learned) learned 4 "${SECONDS_TO_LEARN:-20}" ;;
            peers) peers ;;
        esac
    done
}

report strategies "Who updates what over shaped links between hosts on one machine"
