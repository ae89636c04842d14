#!/bin/sh
# dltrain for whichever MPI starts it. `make install` puts a program for each MPI below libexec/dltrain, and this into bin/.
#
# Which of them runs is told by DLTRAIN_MPI (openmpi or mpich), else by the launcher's marks in the environment. Without a
# launcher it is the first whose MPI library is found. That library may be of another version than was built with: it is looked
# for in the launcher's installation, in LD_LIBRARY_PATH, in that of the mpirun in PATH, and where it was at installation.
set -eu

case $0 in
    /*) here=$0 ;;
    *) here=$PWD/$0 ;;
esac
[ ! -L "$here" ] || here=$(readlink -f "$here")
programs=${here%/bin/*}/libexec/dltrain

# Every rank runs this; one speaks. The others go after it: a launcher kills all when one fails.
fail() {
    case ${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${PMIX_RANK:-${SLURM_PROCID:-0}}}} in
        0) echo "dltrain: error: $1" >&2 ;;
        *) sleep 1 ;;
    esac
    exit 4
}

has() {
    [ -n "${1:-}" ]
}

# The MPI whose launcher started this process, or nothing. What stands first may run within what follows.
launched_by() {
    if has "${OMPI_COMM_WORLD_SIZE:-}"; then
        echo openmpi
    elif has "${FLUX_JOB_ID:-}"; then
        : # Starts either.
    elif has "${HYDI_CONTROL_FD:-}" || has "${MPI_LOCALNRANKS:-}"; then
        echo mpich
    elif has "${PMIX_NAMESPACE:-}"; then
        echo openmpi
    elif has "${PMI_SIZE:-}" || has "${PMI_FD:-}"; then
        echo mpich
    else
        case ${SLURM_MPI_TYPE:-} in
            pmix*) echo openmpi ;;
            pmi2 | cray*) echo mpich ;;
        esac
    fi
}

library_of() {
    case $1 in
        openmpi) echo libmpi.so.40 ;;
        mpich) echo libmpi.so.12 ;;
    esac
}

# The directory of an MPI's library, and a colon, where the program that is given lies in an installation that has one.
library_beside() { # MPI, program
    program=$(readlink -f "$2" 2>/dev/null) || return 0
    for directory in "${program%/bin/*}/lib" "${program%/bin/*}/lib64"; do
        if [ -e "$directory/$(library_of "$1")" ]; then
            echo "$directory:"
            return 0
        fi
    done
}

# The process that starts ranks is part of the launcher's installation (Slurm's is not, and cannot be looked up).
libraries() {
    of_launcher=$(library_beside "$1" "/proc/$PPID/exe")
    of_path=$(library_beside "$1" "$(command -v mpirun)")
    echo "$of_launcher${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$of_path$programs/$1"
}

# Runs the program of an MPI, if it is there and the loader finds all that it is linked with: asked so, it lists that and starts
# nothing.
run() { # MPI, flags
    program=$programs/$1/dltrain
    [ -x "$program" ] || return 0
    libraries=$(libraries "$1")
    shift
    case $(LD_LIBRARY_PATH=$libraries LD_TRACE_LOADED_OBJECTS=1 "$program" 2>&1) in
        *"not found"*) return 0 ;;
    esac
    LD_LIBRARY_PATH=$libraries exec "$program" "$@"
}

mpi=${DLTRAIN_MPI:-$(launched_by)}
case $mpi in
    openmpi | mpich) run "$mpi" "$@" ;;
    "") ;;
    *) fail "DLTRAIN_MPI is openmpi or mpich, not '$mpi'" ;;
esac
if [ -n "$mpi" ] && [ -x "$programs/$mpi/dltrain" ]; then
    fail "a library of the program for $mpi is not found ($(library_of "$mpi"), HDF5): load the modules it was built with, or add \
their directories to LD_LIBRARY_PATH; ldd $programs/$mpi/dltrain names it"
fi
[ -z "${DLTRAIN_MPI:-}" ] || fail "DLTRAIN_MPI=$mpi: not installed; make install MPI=$mpi PREFIX=${here%/bin/*}"
# The wrong one, if it is the only one, says itself that it is.
run openmpi "$@"
run mpich "$@"
fail "no MPI library is found for what is installed in $programs: load the module of an MPI, or add its directory to \
LD_LIBRARY_PATH"
