# What parts of tests/site.sh have in common; they source it. SITE is where they work, ROOT the repository.
# shellcheck shell=bash
set -euo pipefail
: "${SITE:?start me by tests/site.sh}" "${ROOT:?}"
VERSION=$(sed -n 's/^version = "\(.*\)"/\1/p' "$ROOT/Cargo.toml" | head -n 1)
TARBALL=$SITE/dltrain-$VERSION.tar.gz
export VERSION TARBALL

say() { echo "site: $*"; }

# The part cannot be tried here: what is missing, and what was tried.
skip() {
    say "SKIPPED: $*"
    exit 77
}

# Packages of Debian or Ubuntu, as root.
packages() {
    dpkg --status "$@" >/dev/null 2>&1 && return
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get -qq update &&
        DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends "$@"
}

# A tool of PyPI, in an environment of its own: its name there.
from_pypi() {
    [ -e "$SITE/$1/done" ] || {
        python3 -m venv "$SITE/$1" && "$SITE/$1/bin/pip" install --quiet "$1" && touch "$SITE/$1/done"
    }
}

# The tarball of this commit, once; what was installed from another one goes.
tarball() {
    local revision
    revision=$(git -C "$ROOT" rev-parse HEAD)
    [ "$(cat "$SITE/tarball-of" 2>/dev/null)" != "$revision" ] || return 0
    "$ROOT/.ci/dist"
    cp "$ROOT/dist/dltrain-$VERSION".* "$SITE"
    rm -rf "$SITE/software"
    echo "$revision" >"$SITE/tarball-of"
}

# A site's modules, of what this machine has: Open MPI, MPICH, HDF5, LLVM and oneDNN, each as a module of its own.
site_modules() {
    local mpi compiler launcher
    mkdir -p "$SITE"/modules/{openmpi,mpich,hdf5,onednn,rust}
    for mpi in openmpi mpich; do
        # shellcheck disable=SC2153
        compiler=$(eval "$("$ROOT/.ci/env" $mpi)" && command -v "$MPICC")
        launcher=$(command -v mpirun.$mpi || command -v mpirun)
        # A directory in which they are called as in a site's tree. MPICH's launcher finds its helpers beside itself.
        mkdir -p "$SITE/mpi/$mpi/bin"
        ln -sf "$compiler" "$SITE/mpi/$mpi/bin/mpicc"
        rm -f "$SITE/mpi/$mpi/bin/mpirun"
        printf '#!/bin/sh\nexec %s "$@"\n' "$launcher" >"$SITE/mpi/$mpi/bin/mpirun"
        chmod +x "$SITE/mpi/$mpi/bin/mpirun"
        cat >"$SITE/modules/$mpi/site.lua" <<END
family("mpi")
prepend_path("PATH", "$SITE/mpi/$mpi/bin")
setenv("MPICC", "$compiler")
END
    done
    eval "$("$ROOT/.ci/env" openmpi)"
    echo "setenv(\"HDF5_DIR\", \"$HDF5_DIR\")" >"$SITE/modules/hdf5/site.lua"
    echo "${DNNL_ROOT:+setenv(\"DNNL_ROOT\", \"$DNNL_ROOT\")}" >"$SITE/modules/onednn/site.lua"
    echo "prepend_path(\"PATH\", \"$(dirname "$(command -v cargo)")\")" >"$SITE/modules/rust/site.lua"
    unset MPICC HDF5_DIR DNNL_ROOT DLTRAIN_DNNL DLTRAIN_MPIRUN
}

# A command where the network has no other end: an interface is there, since MPI's launchers want one.
alone() {
    # shellcheck disable=SC2016
    unshare --user --map-root-user --net sh -euc 'ip link add eth0 type veth peer name nowhere
        ip addr add 10.79.0.1/24 dev eth0
        for device in lo eth0 nowhere; do ip link set $device up; done
        ! curl --silent --max-time 3 --head https://crates.io >/dev/null || { echo "there is a network" >&2; exit 1; }
        exec "$@"' sh "$@"
}

# Lmod, with the modules of the site and what EasyBuild installs.
use_modules() {
    local init
    for init in /usr/share/lmod/lmod/init/bash /usr/share/lmod/*/init/bash; do
        if [ -e "$init" ]; then break; fi
    done
    set +u
    # shellcheck disable=SC1090
    source "$init"
    module use "$SITE/modules" "$SITE/software/modules/all"
    set -u
}
