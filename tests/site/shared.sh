#!/usr/bin/env bash
# What dltrain writes, on a file system that two hosts share and that is as weak as such are: a FUSE file system
# (tests/site/weak.c) in two mounts, with second names of files and without. SHARED=DIR,DIR are two mounts of another
# one instead, which SHARED_NAME calls by its name. Hosts are namespaces: of names, of processes and of mounts.
# shellcheck source=tests/site/common.sh
source "$(dirname "$0")/common.sh"

dltrain=${DLTRAIN:-$SITE/software/software/dltrain/$VERSION-openmpi/bin/dltrain}
[ -x "$dltrain" ] || skip "no dltrain: run the part easybuild first, or set DLTRAIN"
[ "$(id -u)" = 0 ] || skip "mounts and hosts need root"
packages hdf5-tools || skip "hdf5-tools: no package"
eval "$("$ROOT/.ci/env" openmpi)"
export OMP_NUM_THREADS=1
work=$SITE/shared
mkdir -p "$work/tmp"
export TMPDIR=$work/tmp
place=$work/place # where each host sees the file system

# A command on a host, within the shared directory.
on() { # host, command
    # shellcheck disable=SC2016
    unshare --mount --uts --pid --fork --kill-child --mount-proc --propagation private sh -euc 'hostname "n$1"
        mount --bind "$2" "$3"; cd "$3"; shift 3
        # Of a host that lost its power nothing is left there.
        mount -t tmpfs tmp "$TMPDIR"; exec "$@"' sh "$1" "${mounts[$1]}" "$place" "${@:2}"
}
# HDF5's own programs want locks unless they are told.
losses() { on 0 env HDF5_USE_FILE_LOCKING=FALSE h5dump -d steps/loss "$1" | sed 1d; }
fail() {
    say "$name: $*"
    exit 1
}
# Of two commands that began together on two hosts one alone succeeds; the other says why.
one_alone() { # flag, file, command
    local what=$1 says="$2.*(n[01]|already|another run)" codes=(0 0) host
    shift 2
    for host in 0 1; do (on $host "$@" >"$work/said$host" 2>&1) & pids[host]=$!; done
    for host in 0 1; do wait "${pids[host]}" || codes[host]=$?; done
    cat "$work"/said[01]
    # What is written whole when the other begins is found so.
    [ "${codes[*]}" != "0 0" ] || ! grep -q 'of them there already, whole' "$work"/said[01] || return 0
    [[ ${codes[*]} =~ ^(0 [1-9][0-9]*|[1-9][0-9]* 0)$ ]] || fail "$what: two that began together ended with ${codes[*]}"
    grep -qE "$says" "$work/said0" "$work/said1" || fail "$what: the other did not say whose it is"
}

everything_is_written() {
    # An emulated machine is given fewer steps, and more time until it is killed; an optimised program more steps.
    local steps=${STEPS:-4000} every=${EVERY:-100}
    [ "${SITE_OPT_LEVEL:-3}" != 0 ] || { steps=${STEPS:-300} every=${EVERY:-20}; }
    train=("$dltrain" --model mnist_small --data synthetic:shapes:128 --batch 4 --threads 1 --epochs 1000
        --steps "$steps")
    local run=(--results run.h5 --checkpoint run --checkpoint-every "${every}steps" --resume auto) round tried=0
    # A job of two ranks is killed in a step or in a checkpoint, again and again, and goes on from the other host.
    rm -f "$work/whole.h5"
    $DLTRAIN_MPIRUN -n 2 "${train[@]}" --results "$work/whole.h5"
    for round in 1 2 3; do
        on $((round % 2)) timeout -s KILL $((round + ${AFTER:-2})) $DLTRAIN_MPIRUN -n 2 "${train[@]}" "${run[@]}" \
            >"$work/said" 2>&1 && break
        cat "$work/said"
        tried=$((tried + 1))
    done
    for round in 0 1; do
        on $((round % 2)) $DLTRAIN_MPIRUN -n 2 "${train[@]}" "${run[@]}" >"$work/said" 2>&1 && break
        cat "$work/said"
        # Who died on another host is known for dead after half a minute.
        sleep 10
    done
    cat "$work/said"
    [ "$tried" -gt 0 ] || fail "the job was done before it was killed: STEPS=N for more than $steps"
    [ "$(losses run.h5)" = "$(losses "$work/whole.h5")" ] ||
        fail "a run that was killed and went on has other losses"
    say "$name: a job killed $tried times, in turn on two hosts, has the losses of one that was not"

    train+=(--steps 10)
    one_alone "--results" run2.h5 "${train[@]}" --results run2.h5
    one_alone "--checkpoint" run3 "${train[@]}" --checkpoint run3 --results .
    one_alone "pack" set.h5 "$dltrain" pack "$ROOT/data/digits" set.h5
    on 1 "${train[@]}" --data set.h5 --results packed.h5
    one_alone "--save-weights" weights.h5 "${train[@]}" --save-weights weights.h5 --results .
    on 0 "$dltrain" predict set.h5 --model mnist_small --init-from weights.h5 -o said.h5
    on 0 $DLTRAIN_MPIRUN -n 2 "$dltrain" bench autotune --sizes 4K --output tuning.json
    on 1 $DLTRAIN_MPIRUN -n 2 "${train[@]}" --tuning tuning.json --results tuned.h5
    on 0 "${train[@]}" --timeline steps.json --tensorboard board --mllog lines.log --results lines.h5
    on 1 "$dltrain" report run.h5 run2.h5 packed.h5 tuned.h5 -o page.html
    say "$name: of two that began together one owns results, checkpoints, packed files and weights;" \
        "tuning, timeline, TensorBoard's, MLPerf's and pages are written and read"
    on 0 find . -name '.*owner*' -o -name '*.new*' -o -name '.*tmp*' >"$work/left"
    [ ! -s "$work/left" ] || fail "these are left: $(tr '\n' ' ' <"$work/left")"
}

declare -a mounts pids train
if [ -n "${SHARED:-}" ]; then
    name=${SHARED_NAME:-shared}
    IFS=, read -r -a mounts <<<"$SHARED"
    mkdir -p "$place"
    everything_is_written
    exit
fi
packages fuse3 libfuse3-dev pkg-config gcc || skip "fuse3, libfuse3-dev: no packages"
[ -c /dev/fuse ] || skip "no /dev/fuse"
# shellcheck disable=SC2046
cc -O1 "$ROOT/tests/site/weak.c" $(pkg-config --cflags --libs fuse3) -o "$work/weak"
mkdir -p "$work"/mount{0,1} "$place"
mounts=("$work/mount0" "$work/mount1")
trap 'umount "${mounts[@]}"' EXIT
for names in link nolink; do
    name="FUSE, no locks, attributes 3 s old, $names"
    umount "${mounts[@]}" 2>/dev/null || true
    rm -rf "$work/under" && mkdir "$work/under"
    for host in 0 1; do "$work/weak" "$work/under" 3 $names "${mounts[host]}" -s; done
    everything_is_written
done
