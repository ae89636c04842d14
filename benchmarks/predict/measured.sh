#!/usr/bin/env bash
# Predictions beside what steps took, over links of several rates between hosts of one or two ranks: predicted from
# steps that one host's ranks ran without communication, and from what `dltrain bench autotune` measured between two
# hosts. The hosts are namespaces of this machine (tests/support/hosts.sh), which takes root; Open MPI only.
#
# Every rank computes SLOW times as long as it does, for each rank of its host, and sleeps the rest (slow.c), so that
# there is a core for what each does with its messages, however many ranks there are. What kernels take is found once
# for each model: machines have slow minutes. Predictions and autotune run the same way, but the rate of products that
# autotune measures is not slowed down: runs and predictions choose buckets by it. A step of the network is then that
# much longer, and Open MPI moves no message while one runs, unless by its progress thread, which is on here
# (PROGRESS=0: off).
#
# A socket has buffers of BUFFERS bytes. The buffers that Linux chooses fill the queues of slow links: acknowledgements
# wait in these queues, and a link does not carry both ways at a time (docs/algorithms.md).
#
# Usage: measured.sh DLTRAIN    (make bench-measured); needs DLTRAIN_MPIRUN
#        PARTS="pairs choices" RATES="1gbit" HOSTS="2 3 4" LOCAL="1 2" MODELS="resnet50" STEPS=3 ROUNDS=3 SLOW=5 \
#            PROGRESS=0 BUFFERS=131072 WAYS="plain server" SETTINGS="1x2 1x4 2x1 4x1" measured.sh …
#
# Predictions and runs take turns: ROUNDS of each for a pair, of which the medians are printed, since a machine has slow
# seconds. Where a step takes longer than those (3 s) one prediction does, and two runs, if these agree within 5 %; one
# run of one step where that takes more than 15 s. With HOSTS_NAME=NAME several can run side by side, if links are so
# slow that cores rest.
#
# All pairs that are measured are printed. Then what --parallel auto takes for 2 and 4 ranks, on one host and on hosts
# of their own with 1 Gbit/s, is measured beside all that it rehearsed. It fails where the mean error is above 5 %, one
# is above 12 %, of two ways that differ by more than 5 % the slower one is predicted to be the faster, or a choice is
# more than 10 % slower than the best.
set -euo pipefail
cd "$(dirname "$0")/../.."

dltrain=$(realpath "$1")
. benchmarks/common.sh
hosts=tests/support/hosts.sh
rates=${RATES-1gbit 300mbit 100mbit}
counts=${HOSTS-2 3 4}
locals=${LOCAL-1 2}
settings=${SETTINGS-1x2 1x4 2x1 4x1}
models=${MODELS-mnist_large resnet50 vgg11 alexnet}
steps=${STEPS:-3}
rounds=${ROUNDS:-3}
slow=${SLOW:-5}
progress=${PROGRESS:-1}
buffers=${BUFFERS:-131072}
wanted=${WAYS-plain zero-1 server doubling}
parts=${PARTS:-pairs choices}
result=
export HOSTS_NAME=${HOSTS_NAME:-measured}
trap '$hosts down 2>/dev/null; rm -rf "$scratch"' EXIT

# What starts dltrain slowly, for hosts of so many ranks.
slow() { # ranks of a host
    # A message of 60 KB takes half a millisecond with 1 Gbit/s.
    local rest=50
    [ "${rate:-1gbit}" = 1gbit ] || rest=1000
    local dnnl=${DLTRAIN_DNNL:-$(ldconfig -p | sed -n 's/.*libdnnl.so.3.* => //p;T;q')}
    mkdir -p "$scratch/dnnl/lib"
    cc -O2 -shared -fPIC -o "$scratch/dnnl/lib/libdnnl.so.3" benchmarks/predict/slow.c \
        -Wl,--no-as-needed "$dnnl" -Wl,-rpath,"$(dirname "$dnnl")"
    cat >"$scratch/slow" <<SH
#!/bin/sh
export SLOW=$((slow * $1)) SLOW_REST=$rest SLOW_TABLE=$scratch/kernels
export DNNL_ROOT=$scratch/dnnl LD_PRELOAD=$scratch/dnnl/lib/libdnnl.so.3
exec $dltrain "\$@"
SH
    chmod +x "$scratch/slow"
}

flags_of() { # model
    case $1 in
        mnist_large) echo --model mnist_large --batch 8 ;;
        resnet50) echo --model resnet50 --image-size 64 --classes 10 --batch 4 ;;
        vgg11) echo --model vgg11 --image-size 64 --classes 10 --batch 2 ;;
        alexnet) echo --model alexnet --image-size 63 --classes 10 --batch 4 ;;
    esac
}

job() { # hosts, ranks on each, what slow is given
    local list=h0:$2 host
    for ((host = 1; host < $1; host++)); do list+=,h$host:$2; done
    $hosts run h0 "${mpirun[@]}" --mca plm rsh --mca plm_rsh_agent "$($hosts agent)" --mca mpi_yield_when_idle 1 \
        --mca btl_tcp_progress_thread "$progress" --mca btl_tcp_sndbuf "$buffers" --mca btl_tcp_rcvbuf "$buffers" \
        -H "$list" -n $(($1 * $2)) "$scratch/slow" "${@:3}" 2>&1 </dev/null
}

# Seconds of a step on so many hosts. Each host measures its own ranks, all at the same time, since here they share what
# hosts of their own would have: caches and memory.
predicted() { # hosts, ranks on each, flags
    local flags=(--dry-run --threads 1 --optimizer sgd --measure 4 --tuning "$scratch/tuning.json" --predict-nodes "$1")
    local host
    for ((host = 1; host < $1; host++)); do
        $hosts run h$host "${mpirun[@]}" -n "$2" "$scratch/slow" "${flags[@]}" "${@:3}" >/dev/null 2>&1 </dev/null &
    done
    job 1 "$2" "${flags[@]}" "${@:3}" >"$scratch/said" || { cat "$scratch/said" >&2; return 1; }
    wait
    sed -n '/^ *nodes  *ranks/,/^predicted/p' "$scratch/said" |
        awk '$4 == "ms" { print $3 / 1000 } $4 == "s" { print $3 }'
}

measured() { # hosts, ranks on each, flags; seconds that a step takes, roughly, are in $about
    local steps=$steps
    ! longer 3 || steps=$(((steps + 1) / 2))
    ! longer 15 || steps=1
    job "$1" "$2" --threads 1 --optimizer sgd --lr 1e-4 --warmup 1 --steps "$steps" \
        --tuning "$scratch/tuning.json" --results "$scratch/r.h5" "${@:3}" >"$scratch/said" ||
        { cat "$scratch/said" >&2; return 1; }
    rm -f "$scratch/r.h5"
    awk '/^total images\/sec:/ { rate = $3 } /^batch/ { images = $(NF - 2) } END { print images / rate }' \
        "$scratch/said"
}

longer() { # seconds; whether a step is
    awk -v about="$about" -v than="$1" 'BEGIN { exit about <= than }'
}

agree() { # whether all runs do
    awk 'NR == 1 || $1 < least { least = $1 } $1 > most { most = $1 } END { exit most > 1.05 * least }' "$scratch/steps"
}

# A step's seconds as predicted and as measured.
pair() { # hosts, ranks on each, flags
    local round about
    : >"$scratch/predictions" && : >"$scratch/steps"
    for ((round = 0; round < rounds; round++)); do
        if [ "$round" -eq 0 ] || ! longer 3; then
            about=$(predicted "$@")
            echo "$about" >>"$scratch/predictions"
        fi
        measured "$@" >>"$scratch/steps"
        ! longer 15 || break
        ! longer 3 || [ "$round" -eq 0 ] || ! agree || break
    done
    echo "$(median <"$scratch/predictions") $(median <"$scratch/steps")"
}

ways() { # hosts, ranks on each
    echo plain
    echo "zero-1 --zero 1"
    [ "$1" -lt 3 ] || echo "server --sync server"
    [ $(($1 * $2 % 2)) -gt 0 ] || echo "doubling --allreduce recursive-doubling"
}

ways_of() { # hosts, ranks on each
    local model name flags given
    for model in $models; do
        read -ra given <<<"$(flags_of "$model")"
        # Kernels take from now on what they take in this run, which has no messages.
        if [ ! -s "$scratch/kernels.$2.$model" ]; then
            SLOW_SAVE=1 predicted 1 "$2" "${given[@]}" >/dev/null
            mv "$scratch/kernels" "$scratch/kernels.$2.$model"
        fi
        cp "$scratch/kernels.$2.$model" "$scratch/kernels"
        while read -r name flags; do
            [[ " $wanted " == *" $name "* ]] || continue
            # shellcheck disable=SC2086
            pair "$1" "$2" "${given[@]}" $flags |
                awk -v rate="$rate" -v count="$1" -v each="$2" -v model="$model" -v name="$name" '{
                    printf "%-8s %d x %d  %-12s %-10s %10.3f %10.3f %+8.1f %%\n", rate, count, each, model, name,
                        $1, $2, 100 * ($1 / $2 - 1)
                }'
        done < <(ways "$1" "$2")
    done
}

# Every way that --parallel auto rehearses, as it predicted it and as it is.
choice() { # hosts, ranks on each, model
    local given about taken way round number
    rm -f "$scratch/kernels"
    read -ra given <<<"$(flags_of "$3")"
    job "$1" "$2" --threads 1 --optimizer sgd --warmup 0 --steps 1 --parallel auto --measure 4 --memory-limit 6GiB \
        --tuning "$scratch/tuning.json" --results "$scratch/r.h5" "${given[@]}" >"$scratch/said" ||
        { cat "$scratch/said" >&2; return 1; }
    rm -f "$scratch/r.h5"
    # Predicted seconds, a star or a dash, and the flags, in a line each.
    awk '/^[* ] .* (ms|s) .* way$/ { next } /^[* ] +[0-9.]+ ms / && !/does not fit/ {
        taken = sub(/^\*/, "") ? "*" : "-"; seconds = $1 / 1000
        way = $0; sub(/^.*B  /, "", way); print seconds, taken, way
    }' "$scratch/said" >"$scratch/ways"
    rm -f "$scratch"/took*
    for ((round = 0; round < rounds; round++)); do
        number=0
        while read -r about _ way; do
            [ "$way" != "data parallelism" ] || way=
            number=$((number + 1))
            [ "$round" -eq 0 ] || ! longer 3 || continue
            # shellcheck disable=SC2086
            measured "$1" "$2" "${given[@]}" $way >>"$scratch/took$number"
        done <"$scratch/ways"
    done
    number=0
    while read -r about taken way; do
        number=$((number + 1))
        printf '%d x %d  %-12s %10.3f %10.3f %s %s\n' "$1" "$2" "$3" "$about" "$(median <"$scratch/took$number")" \
            "$taken" "$way"
    done <"$scratch/ways" | tee "$scratch/row"
    awk '$7 == "*" { taken = $6 } { if (!best || $6 < best) best = $6 }
        END { printf "choice: %.3f of the best\n", taken / best }' "$scratch/row"
}

choices() {
    local model setting
    echo
    echo "ways as --parallel auto predicts them, and as they are; * is taken. Links of 1 Gbit/s, ranks compute $slow" \
        "times as long for each of a host, medians of $rounds runs of $steps steps (of one, if longer than 3 s)"
    printf '%-6s %-12s %10s %10s %s\n' hosts model predicted measured way
    $hosts down 2>/dev/null || true
    $hosts up 4 1gbit 2>&1
    for setting in $settings; do
        read -r count each <<<"${setting/x/ }"
        slow "$each"
        job 2 "$each" bench autotune --output "$scratch/tuning.json" >"$scratch/said" ||
            { cat "$scratch/said" >&2; return 1; }
        for model in $models; do choice "$count" "$each" "$model"; done
    done
}

pairs() {
    local rate each count
    echo "ranks compute $slow times as long for each of a host, progress threads: $progress; a step's seconds," \
        "medians of $rounds runs of $steps steps (of two that agree, if longer than 3 s; of one, if longer than 15)," \
        "buffers of $buffers bytes"
    printf '%-8s %-6s %-12s %-10s %10s %10s %10s\n' links hosts model way predicted measured error
    for rate in $rates; do
        $hosts down 2>/dev/null || true
        $hosts up 4 "$rate" 2>&1
        for each in $locals; do
            slow "$each"
            job 2 "$each" bench autotune --output "$scratch/tuning.json" >"$scratch/said" ||
                { cat "$scratch/said" >&2; return 1; }
            for count in $counts; do ways_of "$count" "$each"; done
        done
    done
}

measure() {
    local part
    for part in $parts; do "$part"; done
}

report measured "a step as predicted, and as it was"
awk 'NF == 10 && $NF == "%" {
    error = $(NF - 1); error = error < 0 ? -error : error
    sum += error; count++; if (error > worst) worst = error
    # Of the ways of one model on the same hosts those that differ by more than 5 %: in the order that was predicted?
    job = $1 " " $2 $3 $4 " " $5
    for (other = 1; other <= ways[job]; other++) {
        predicted = $7 / taken[job, other, "predicted"]; measured = $8 / taken[job, other, "measured"]
        if (measured > 1.05 || measured < 1 / 1.05) { differ++; if ((predicted > 1) != (measured > 1)) wrong++ }
    }
    ways[job]++; taken[job, ways[job], "predicted"] = $7; taken[job, ways[job], "measured"] = $8
}
/^choice:/ { if ($2 > slowest) slowest = $2 }
END {
    if (count) printf "%d pairs: mean error %.1f %%, worst %.1f %%\n", count, sum / count, worst
    if (count) printf "%d times ways differ by more than 5 %%: %d in another order than predicted\n", differ, wrong
    if (slowest) printf "choices: at most %.3f times as long as the best way\n", slowest
    exit (count && sum / count > 5) || worst > 12 || wrong || slowest > 1.1
}' "$result" | tee -a "$result"
