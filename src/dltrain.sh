#!/bin/sh
# dltrain for whichever MPI starts it. `make install` puts a program for each MPI below libexec/dltrain, and this into
# bin/.
#
# Which of them runs is told by DLTRAIN_MPI (openmpi or mpich), else by the launcher's marks in the environment. Without
# a launcher it is the first whose libraries are found. The MPI library may be of another version than was built with:
# it is looked for in the launcher's installation, in LD_LIBRARY_PATH, in that of the mpirun in PATH, and where it was
# at installation, to which links lead that lie beside the program.
#
# Every rank runs this: it starts few processes.
set -eu

case $0 in
    /*) here=$0 ;;
    *) here=$PWD/$0 ;;
esac
[ ! -L "$here" ] || here=$(readlink -f "$here")
programs=${here%/bin/*}/libexec/dltrain

# One rank speaks. The others go after it: a launcher kills all when one fails.
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

# The MPI whose launcher started this process, or nothing, as `mpi`. What stands first may run within what follows.
find_launcher() {
    mpi=
    if has "${OMPI_COMM_WORLD_SIZE:-}"; then
        mpi=openmpi
    elif has "${FLUX_JOB_ID:-}"; then
        : # Starts either.
    elif has "${HYDI_CONTROL_FD:-}" || has "${MPI_LOCALNRANKS:-}"; then
        mpi=mpich
    elif has "${PMIX_NAMESPACE:-}"; then
        mpi=openmpi
    elif has "${PMI_SIZE:-}" || has "${PMI_FD:-}"; then
        mpi=mpich
    else
        case ${SLURM_MPI_TYPE:-} in
            pmix*) mpi=openmpi ;;
            pmi2 | cray*) mpi=mpich ;;
        esac
    fi
}

# Adds the directory of the MPI's library to `libraries`, where the program that is given lies in an installation that
# has one.
add_library_beside() {
    for directory in "${1%/bin/*}/lib" "${1%/bin/*}/lib64"; do
        if [ -e "$directory/$library" ]; then libraries=$libraries$directory:; fi
    done
}

# Runs the program of an MPI, if it is there and the loader finds all that it is linked with.
run() { # MPI, flags
    program=$programs/$1/dltrain
    [ -x "$program" ] || return 0
    case $1 in
        openmpi) library=libmpi.so.40 ;;
        mpich) library=libmpi.so.12 ;;
    esac
    libraries=
    # The process that starts ranks is part of the launcher's installation (Slurm's is not, and cannot be looked up).
    add_library_beside "$(readlink "/proc/$PPID/exe" 2>/dev/null || true)"
    libraries=$libraries${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}
    add_library_beside "$(command -v mpirun || true)"
    libraries=$libraries$programs/$1
    for link in "$programs/$1"/lib*; do
        # Asked so, the loader lists what it finds, and starts nothing.
        [ -e "$link" ] || case $(LD_LIBRARY_PATH=$libraries LD_TRACE_LOADED_OBJECTS=1 "$program" 2>&1) in
            *"not found"*) return 0 ;;
        esac
    done
    shift
    LD_LIBRARY_PATH=$libraries exec "$program" "$@"
}

mpi=${DLTRAIN_MPI:-}
has "$mpi" || find_launcher
case $mpi in
    openmpi | mpich) run "$mpi" "$@" ;;
    "") ;;
    *) fail "DLTRAIN_MPI is openmpi or mpich, not '$mpi'" ;;
esac
if has "$mpi" && [ -x "$programs/$mpi/dltrain" ]; then
    fail "libraries of the program for $mpi are not found: load the modules it was built with, or add their directories to \
LD_LIBRARY_PATH; ldd $programs/$mpi/dltrain names them"
fi
! has "${DLTRAIN_MPI:-}" || fail "DLTRAIN_MPI=$mpi: not installed; make install MPI=$mpi PREFIX=${here%/bin/*}"
# The wrong one, if it is the only one, says itself that it is.
run openmpi "$@"
run mpich "$@"
fail "no MPI library is found for what is installed in $programs: load the module of an MPI, or add its directory to \
LD_LIBRARY_PATH"
