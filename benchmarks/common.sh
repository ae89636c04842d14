# What the benchmarks share; to be sourced from the repository's root with $1 the dltrain to measure.
# shellcheck shell=bash

read -ra mpirun <<<"${DLTRAIN_MPIRUN:?the launcher, as .ci/env prints it}"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

median() {
    sort -g | awk '{ value[NR] = $1 } END { print (value[int((NR + 1) / 2)] + value[int(NR / 2) + 1]) / 2 }'
}

# The share of its time that the machine's cores did something, over one second.
busy() {
    local before after
    before=$(head -n 1 /proc/stat)
    sleep 1
    after=$(head -n 1 /proc/stat)
    printf '%s\n%s\n' "$before" "$after" | awk '
        { total = 0; for (i = 2; i <= 9; i++) total += $i; idle = $5 + $6 }
        NR == 1 { total0 = total; idle0 = idle }
        NR == 2 { printf "%.0f\n", 100 * (1 - (idle - idle0) / (total - total0)) }'
}

# What calls this with untimed=yes measures no time of this machine: a busy one will do.
machine() {
    local load note=''
    load=$(busy)
    if [ -n "${untimed:-}" ]; then
        note=' (no figure here is a time of this machine)'
    elif [ "$load" -ge 10 ]; then
        note=' (NOT CALM: do not quote)'
    fi
    echo "date:     $(date -u '+%F %T') UTC"
    echo "machine:  $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(env -u OMP_NUM_THREADS nproc) cores"
    echo "dltrain:  $("$dltrain" --version | cut -d' ' -f2), $("$dltrain" info | sed -n 's/^MPI *//p')"
    echo "revision: $(git describe --always --dirty 2>/dev/null || echo 'no git')"
    echo "others:   ${load} % of the cores busy before the first run$note"
}

# Runs the function `measure` and keeps what it prints under benchmarks/results/, in the file $result. $1: the
# benchmark, $2: its headline.
report() {
    mkdir -p benchmarks/results
    # Others may begin in the same second.
    until
        result=benchmarks/results/$1-$(date -u +%Y%m%dT%H%M%SZ).txt
        (set -o noclobber && : >"$result") 2>/dev/null
    do
        [ -e "$result" ] || { echo "$result cannot be written" >&2 && return 1; }
        sleep 1
    done
    {
        echo "$2"
        machine
        measure
    } | tee "$result"
    echo "written to $result"
}
