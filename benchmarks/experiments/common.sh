# What the experiments share; to be sourced by a run.sh. Reads the command line into:
#   quick    not empty: a few steps, to see that all of it runs
#   data     what --data points to, or empty
#   out      a directory for the records, the logs and the report
# and gives: train NAME RANKS FLAG…, and report.
# shellcheck shell=bash disable=SC2034

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
here=$(cd "$(dirname "$0")" && pwd)
experiment=$(basename "$here")
quick='' data='' out='' dltrain=''

usage() {
    cat >&2 <<END
Usage: $0 [--quick] [--data PATH] [--out DIR] [DLTRAIN]

  --quick      a few steps of each run, on a laptop: shows that it works, not what it comes to
  --data PATH  the data set, in a format that dltrain reads; without it the synthetic set, or what is in the repository
  --out DIR    where records, logs and report.html go [default: results/$experiment-<time>]
  DLTRAIN      the program [default: target/openmpi or target/mpich, else dltrain of PATH]

In a Slurm job ranks are started with srun (SRUN="srun --mpi=pmix" for other flags), else with DLTRAIN_MPIRUN, or the mpirun
that DLTRAIN was built for, or mpirun.
A run whose record is in DIR already is not repeated: the same command goes on with a study.
END
    exit 2
}

while [ $# -gt 0 ]; do
    case $1 in
        --quick) quick=1 ;;
        --data)
            data=${2:-}
            shift
            ;;
        --out)
            out=${2:-}
            shift
            ;;
        -*) usage ;;
        *) dltrain=$1 ;;
    esac
    shift || usage
done
for built in "$root"/target/openmpi/release/dltrain "$root"/target/mpich/release/dltrain; do
    if [ -z "$dltrain" ] && [ -x "$built" ]; then dltrain=$built; fi
done
dltrain=${dltrain:-dltrain}
# One that was built here comes with the launcher that fits.
mpi=$(sed -n 's|^.*target/\([a-z]*\)/release/dltrain$|\1|p' <<<"$dltrain")
if [ -n "$mpi" ] && [ -z "${DLTRAIN_MPIRUN:-}" ]; then eval "$("$root/.ci/env" "$mpi")"; fi
out=${out:-results/$experiment${quick:+-quick}-$(date -u +%Y%m%dT%H%M%SZ)}
mkdir -p "$out"

if [ -n "${SLURM_JOB_ID:-}" ]; then
    read -ra launcher <<<"${SRUN:-srun}"
else
    read -ra launcher <<<"${DLTRAIN_MPIRUN:-mpirun}"
fi

# What of the launcher is besides the number of ranks.
launch_flags=()

say() { echo "$experiment: $*"; }

# A record and a log. Returns what dltrain did: 4 is a batch that does not fit.
train() {
    local name=$1 ranks=$2 code=0
    shift 2
    if [ -e "$out/$name.h5" ]; then
        say "$name: is there already"
        return 0
    fi
    say "$name: $ranks rank$([ "$ranks" = 1 ] || echo s)"
    "${launcher[@]}" "${launch_flags[@]}" -n "$ranks" "$dltrain" --results "$out/$name.tmp.h5" "$@" >"$out/$name.log" 2>&1 || code=$?
    if [ "$code" = 0 ]; then
        mv "$out/$name.tmp.h5" "$out/$name.h5"
        tail -n 1 "$out/$name.log"
        return 0
    fi
    rm -f "$out/$name.tmp.h5"
    grep -m 1 'dltrain: ' "$out/$name.log" >&2 || tail -n 5 "$out/$name.log" >&2
    say "$name: exit code $code; its log is $out/$name.log" >&2
    return "$code"
}

report() {
    "$dltrain" report "$out"/*.h5 -o "$out/report.html"
}
