#!/usr/bin/env bash
# What `make install` leaves, with each MPI that was built: one dltrain that every launcher starts as one job, with the
# library of that launcher; that runs alone; that works where it is moved to; that says what is missing; and that goes
# away again.
#
# Usage: tests/install.sh MPI…      PROFILE=release: of `make build`; else of the profile that tests are built by
set -euo pipefail
cd "$(dirname "$0")/.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
prefix="$scratch/a b/dltrain"
dltrain=$prefix/bin/dltrain
export OMP_NUM_THREADS=1 PROFILE=${PROFILE:-dev}
declare -A launchers
for mpi in "$@"; do launchers[$mpi]=$(eval "$(.ci/env "$mpi")" && echo "$DLTRAIN_MPIRUN"); done
# Nothing of what it was built with may be needed.
unset DNNL_ROOT DNNLROOT

tried() { # what, then what was printed, and what must be in it
    local said=$2 wanted
    for wanted in "${@:3}"; do
        if ! grep -q -- "$wanted" <<<"$said"; then
            printf 'install: %s: no "%s" in:\n%s\n' "$1" "$wanted" "$said" >&2
            exit 1
        fi
    done
    echo "install: $1: ok"
}

info() { # launcher and its flags
    timeout 60 "$@" -n 2 "$dltrain" info 2>&1 || true
}

for mpi in "$@"; do
    name="$(sed 's/openmpi/Open MPI/; s/mpich/MPICH/' <<<"$mpi")"
    .ci/install "$scratch/first" "$mpi" >/dev/null
    mkdir -p "$scratch/a b"
    mv "$scratch/first" "$prefix"
    tried "$mpi alone" "$("$dltrain" info 2>&1)" "$name" "ranks  *1 on" "$prefix/libexec/dltrain/lib/libdnnl"
    for other in "$@"; do
        read -ra launcher <<<"${launchers[$other]}"
        if [ "$other" = "$mpi" ]; then
            tried "$mpi under its own launcher" "$(info "${launcher[@]}")" "$name" "ranks  *2 on"
        else
            tried "$mpi alone under the launcher of $other" "$(info "${launcher[@]}")" "make build MPI=$other"
        fi
    done
    rm -rf "$prefix"
done

.ci/install "$prefix" "$@" >/dev/null
for mpi in "$@"; do
    read -ra launcher <<<"${launchers[$mpi]}"
    tried "both, by the launcher of $mpi" "$(info "${launcher[@]}")" "built with .*mpicc.*$mpi\|built with .*$mpi.*mpicc" "ranks  *2 on"
    # Whoever else speaks this ABI.
    if [ -e ".deps/wheels/$mpi/bin/mpirun" ]; then
        launcher[0]=$PWD/.deps/wheels/$mpi/bin/mpirun
        version=$(sed -n "s/^$mpi==\([0-9.]*\) .*/\1/p" .ci/pypi.txt)
        tried "both, by PyPI's $mpi $version" "$(info "${launcher[@]}")" " $version, thread" "ranks  *2 on"
    else
        echo "install: SKIPPED: PyPI's $mpi is not there: .ci/deps wheels"
    fi
    tried "DLTRAIN_MPI=$mpi" "$(DLTRAIN_MPI=$mpi "$dltrain" info 2>&1)" "ranks  *1 on"
done
if [ $# = 2 ]; then
    if nodes=$(tests/support/slurm.sh 2 1 true 2>&1); then
        for pair in "pmix:Open MPI" pmi2:MPICH; do
            said=$(timeout 60 tests/support/slurm.sh 2 1 srun --mpi="${pair%:*}" -N 2 "$dltrain" info </dev/null 2>&1 || true)
            tried "both, by srun --mpi=${pair%:*}" "$said" "MPI  *${pair#*:}" "ranks  *2 on 2 nodes"
        done
    else
        echo "install: SKIPPED: no Slurm here: $nodes"
    fi
fi
tried "a misspelt DLTRAIN_MPI" "$(DLTRAIN_MPI=lam "$dltrain" info 2>&1 || true)" "openmpi or mpich, not 'lam'"
# As with a module that is not loaded, and was removed.
LC_ALL=C sed -i 's/libhdf5/libhdfX/' "$prefix/libexec/dltrain/$1/dltrain"
for link in "$prefix/libexec/dltrain/$1"/libhdf5*; do ln -sf nowhere "$link"; done
read -ra launcher <<<"${launchers[$1]}"
said=$(info "${launcher[@]}")
tried "a library that is not there" "$said" "libraries of the program for $1 are not found"
[ "$(grep -c 'error: ' <<<"$said")" = 1 ] || { echo "install: not said once: $said" >&2; exit 1; }

.ci/install --remove "$prefix" >/dev/null
[ -z "$(ls -A "$prefix")" ] || { echo "install: uninstalling left $(ls -A "$prefix")" >&2; exit 1; }
