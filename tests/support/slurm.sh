#!/usr/bin/env bash
# A Slurm of several nodes on one Linux machine, for tests and for trying jobs/: a controller, and a slurmd for each
# node, in namespaces of their own, so that nothing else sees them and nothing is left of them. Needs root and Slurm
# (`.ci/deps slurm`); accounting it has none.
#
# Usage: slurm.sh NODES CPUS [COMMAND…]    runs COMMAND there, else a shell; nodes are n0 … n(NODES-1), each with 4 GPUs
#                                          by name and the feature "gpu". With as many CPUS as this machine
#                                          has ranks are bound to their cores, as on clusters
#        slurm.sh enter PID COMMAND…       a command in the Slurm whose `slurm.sh` has that process number
#        slurm.sh crash NODE               within: ends everything on a node, as a loss of power would
set -euo pipefail

state=/run/slurm-bed
self=$(readlink -f "$0")
export PATH=$PATH:/usr/sbin:/sbin

configure() { # nodes, cpus
    local last=$(($1 - 1)) version binds=none
    # To cores that are not there nothing can be bound.
    [ "$2" != "$(nproc)" ] || binds=affinity
    mkdir -p "$state"/{save,spool,pid,log} /run/munge /etc/slurm
    mount -t tmpfs tmpfs /etc/slurm
    cat >/etc/slurm/slurm.conf <<END
ClusterName=bed
SlurmctldHost=login
SlurmctldPort=16817
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CryptoType=crypto/munge
StateSaveLocation=$state/save
SlurmdSpoolDir=$state/spool/%n
TmpFS=$state/tmp/%n
SlurmctldPidFile=$state/pid/slurmctld
SlurmdPidFile=$state/pid/%n
SlurmctldLogFile=$state/log/slurmctld
SlurmdLogFile=$state/log/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/$binds
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=1
MpiDefault=none
ReturnToService=2
SlurmdTimeout=300
KillWait=5
MinJobAge=3600
MessageTimeout=60
TreeWidth=65533
JobRequeue=1
PropagateResourceLimitsExcept=MEMLOCK
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=n[0-$last] NodeAddr=10.79.0.1 Port=17000-$((17000 + last)) CPUs=$2 RealMemory=100000 Feature=gpu Gres=gpu:4
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
RebootProgram=$state/reboot
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP GraceTime=60
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
END
    # slurmd begins anew, and says that its node does.
    cat >"$state/reboot" <<END
#!/bin/sh
setsid sh -c 'sleep 1; kill \$(cat $state/pid/\$0); sleep 1; exec slurmd -b -N \$0' "\$(hostname)" &
END
    chmod +x "$state/reboot"
    echo "NodeName=n[0-$last] Name=gpu File=/dev/null,/dev/zero,/dev/full,/dev/random" >/etc/slurm/gres.conf
    # From 23.11 on slurmd can do without cgroups, and before it does not ask.
    version=$(slurmd -V | sed 's/[^0-9]*\([0-9]*\)\.\([0-9]*\).*/\1\2/')
    [ "$version" -lt 2311 ] || echo "CgroupPlugin=disabled" >/etc/slurm/cgroup.conf
}

idle() {
    sinfo --responding --noheader --states=idle --format=%D 2>/dev/null | awk '{ all += $1 } END { print all + 0 }'
}

# In the namespaces, as their process 1: with it everything goes.
within() { # nodes, cpus, command
    local nodes=$1 cpus=$2 node
    shift 2
    mount -t proc proc /proc
    mount -t tmpfs tmpfs /run
    mount -t tmpfs tmpfs /dev/shm
    hostname login
    printf '127.0.0.1 localhost\n10.79.0.1 login\n' >/run/hosts
    mount --bind /run/hosts /etc/hosts
    # Modules of this machine are not those that jobs/ name, and login shells would have them.
    [ ! -d /etc/profile.d ] || mount -t tmpfs tmpfs /etc/profile.d
    # With no address but the loopback's, the C library finds none for the daemons to listen at.
    ip link add eth0 type veth peer name switch
    ip addr add 10.79.0.1/24 dev eth0
    ip link set lo up && ip link set switch up && ip link set eth0 up
    configure "$nodes" "$cpus"
    (umask 077 && head -c 1024 /dev/urandom >/run/munge/key)
    chown -R "$(id -u):$(id -g)" /run/munge
    chmod 755 /run/munge
    munged --force --key-file=/run/munge/key --pid-file=/run/munge/pid --log-file=/run/munge/log --seed-file=/run/munge/seed
    slurmctld -c
    for ((node = 0; node < nodes; node++)); do
        mkdir -p "$state"/{spool,tmp}/"n$node"
        # Names are what Open MPI tells nodes apart by. /dev/shm they have in common: without it Debian's MPICH 4.0 does
        # not end.
        unshare --uts sh -c 'hostname "$1" && exec slurmd -N "$1"' sh "n$node"
    done
    for ((node = 0; node < 600; node++)); do
        [ "$(idle)" != "$nodes" ] || break
        sleep 0.1
    done
    if [ "$(idle)" != "$nodes" ]; then
        echo "slurm: $(idle) of $nodes nodes came up" >&2
        tail -n 5 "$state"/log/slurmctld "$state"/log/n0 >&2
        exit 1
    fi
    "$@"
}

# All processes of a node are in its namespaces.
crash() {
    local host process
    host=$(readlink "/proc/$(cat "$state/pid/$1")/ns/uts")
    for process in /proc/[0-9]*; do
        if [ "$(readlink "$process/ns/uts")" = "$host" ]; then kill -9 "${process#/proc/}"; fi
    done
}

case ${1:-} in
    enter)
        child=$(cat "/proc/$2/task/$2/children")
        exec nsenter -t "${child%% *}" --pid --net --mount --uts --ipc --wd="$PWD" -- "${@:3}"
        ;;
    within) within "${@:2}" ;;
    crash) crash "$2" ;;
    [1-9]*)
        for program in slurmctld slurmd munged srun ip unshare nsenter; do
            command -v "$program" >/dev/null || { echo "slurm: $program is missing: .ci/deps slurm" >&2; exit 1; }
        done
        [ "$(id -u)" = 0 ] || { echo "slurm: needs root" >&2; exit 1; }
        [ $# -ge 2 ] || { echo "slurm: NODES CPUS" >&2; exit 2; }
        [ $# -gt 2 ] || set -- "$1" "$2" "${SHELL:-bash}"
        exec unshare --pid --fork --kill-child --net --uts --ipc --mount --propagation private "$self" within "$@"
        ;;
    *)
        sed -n '2,11s/^# \{0,1\}//p' "$0"
        exit 2
        ;;
esac
