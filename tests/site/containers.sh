#!/usr/bin/env bash
# jobs/site/Containerfile, built by buildah, where no registry can be reached upon a Debian of debootstrap's; run by
# podman with all ranks of a node in one container, and by Charliecloud on two nodes of a Slurm, with an MPI of the host
# in the place of its own.
# shellcheck source=tests/site/common.sh
source "$(dirname "$0")/common.sh"

packages buildah podman runc crun charliecloud debootstrap ||
    skip "buildah, podman, charliecloud, debootstrap: no packages"
[ "$(id -u)" = 0 ] || skip "debootstrap and the Slurm of this machine need root"
tarball
work=$SITE/container
mkdir -p "$work/context"
cp "$TARBALL" "$work/context"
export USER=${USER:-root}
base=docker.io/library/debian:bookworm-slim
if ! timeout 60 buildah pull --quiet $base; then
    base=localhost/debian:bookworm
    if ! buildah inspect --type image $base >/dev/null 2>&1; then
        debootstrap --variant=minbase bookworm "$work/root" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}"
        # As the image of the registry, without what nobody reads in a container.
        tar cf - -C "$work/root" --exclude='./proc/*' --exclude='./sys/*' --exclude='./var/cache/*' \
            --exclude='./var/lib/apt/lists/*' --exclude='./usr/share/doc/*' --exclude='./usr/share/locale/*' \
            --exclude='./usr/share/man/*' . | podman import --quiet - $base
        rm -rf "$work/root"
    fi
    say "no registry can be reached: the base is a Debian 12 made by debootstrap"
fi
# The tools and libraries of this machine in the first stage, where they need not be fetched.
given=()
! sysroot=$(rustc --print sysroot 2>/dev/null) || given+=(--volume "$sysroot:/opt/rust:ro")
[ ! -e "$ROOT/.deps/onednn/lib" ] || given+=(--volume "$ROOT/.deps/onednn:/tmp/dltrain/.deps/onednn:ro")
buildah build --layers --isolation chroot --network host "${given[@]}" --build-arg BASE=$base --build-arg MPI=mpich \
    --build-arg OPT_LEVEL="${SITE_OPT_LEVEL:-3}" --tag dltrain -f "$ROOT/jobs/site/Containerfile" "$work/context"
bytes=$(podman image inspect --format '{{.Size}}' localhost/dltrain)
packed=$(podman save localhost/dltrain | gzip -1 | wc -c)
say "$(buildah --version | cut -d' ' -f1-3): the image: $((bytes / 1000000)) MB, $((packed / 1000000)) MB as it travels"
# A program that is not optimised has 24 MB more.
[ $((bytes / 1000000)) -lt $((${SITE_OPT_LEVEL:-3} == 0 ? 174 : 150)) ] || { say "it is to be under 150 MB"; exit 1; }

# Limits that a machine sets on root, too. crun wants one version of control groups, runc takes both.
podman=(podman --runtime "$(PATH=$PATH:/usr/sbin command -v runc)" --cgroup-manager cgroupfs run --rm --network host
    --shm-size=1g --ulimit "nofile=$(ulimit -Hn):$(ulimit -Hn)" --ulimit nproc=4096:4096)
said=$("${podman[@]}" localhost/dltrain mpirun -n 2 dltrain --model mnist_small --batch 32 --steps 20 --results /tmp)
grep -q "^total images/sec" <<<"$said"
say "$(podman --version): two ranks in one container: $(grep '^total' <<<"$said")," \
    "$(grep -o 'MPICH [0-9.]*' <<<"$said" | head -n 1)"

rm -rf "$work/tree"
container=$(podman create localhost/dltrain)
mkdir -p "$work/tree" && podman export "$container" | tar xf - -C "$work/tree" --exclude='dev/*'
podman rm "$container" >/dev/null
# What Charliecloud binds there by itself, and what it is told to.
mkdir -p "$work"/tree/{dev,proc,sys,run,home,root,tmp,etc,usr/bin,host-mpi,results} "$work/results"
touch "$work"/tree/etc/{hosts,resolv.conf,machine-id} "$work/tree/usr/bin/ch-ssh"
host=$ROOT/.deps/wheels/mpich
[ -e "$host/lib/libmpi.so.12" ] || skip "Charliecloud: .ci/deps wheels fetches the host's MPI"
# On two nodes; the host's MPI is of another version than the container's, so that it shows whose is used.
under_slurm() { # flags of ch-run, then dltrain's
    "$ROOT/tests/support/slurm.sh" 2 "$(nproc)" srun --mpi=pmi2 -N 2 --exclusive timeout 120 \
        ch-run --bind "$host/lib:/host-mpi" --bind "$work/results:/results" "${inside[@]}" "$work/tree" -- \
        /opt/dltrain/bin/dltrain "$@"
}
# UCX takes both nodes for one, as they are one machine, and from one user namespace a process of another is not read:
# between real nodes neither is tried. Ranks of one node that are in one container (ch-run --join) have no such wall.
export UCX_TLS=tcp,self
inside=()
own=$(under_slurm info)
inside=(--set-env=LD_LIBRARY_PATH=/host-mpi)
swapped=$(under_slurm info)
trained=$(under_slurm --model mnist_small --batch 32 --steps 20 --threads 1 --results /results)
for said in "$own" "$swapped"; do grep -q "^ranks  *2 on 2 nodes" <<<"$said"; done
[ "$(grep ^MPI <<<"$own")" != "$(grep ^MPI <<<"$swapped")" ]
say "Charliecloud $(ch-run --version 2>&1) under $(slurmctld -V), 2 nodes: its own" \
    "$(grep ^MPI <<<"$own" | grep -o 'MPICH [^,]*'), by ABI the host's" \
    "$(grep ^MPI <<<"$swapped" | grep -o 'MPICH [^,]*'), which trains: $(grep '^total' <<<"$trained")"
