#!/usr/bin/env bash
# Several hosts on one Linux machine, for tests and benchmarks: each has a network, a name, a /dev/shm and a number of
# its boot of its own, by which programs tell machines apart.
# Needs root, iproute2 and nsenter.
#
# Usage: hosts.sh up N [RATE]        hosts h0 … h(N-1); RATE of each one's link, as tc writes it (1gbit), both ways
#        hosts.sh run HOST COMMAND…  on one of them
#        hosts.sh agent              what an MPI launcher starts ranks on other hosts with, in place of ssh
#        hosts.sh crash HOST         ends everything on it, as a loss of power would; hosts.sh back HOST
#        hosts.sh down
# HOSTS_NAME names them, so that one machine can have several sets at a time; without it they are `dlt`.
set -euo pipefail

name=${HOSTS_NAME:-dlt}
state=/run/$name-hosts
switch=$name-switch
self=$(readlink -f "$0")

shape() { # network, device, rate
    # A shorter queue halves what TCP makes of the link.
    [ "$3" = none ] || tc -n "$1" qdisc add dev "$2" root tbf rate "$3" burst 256kb latency 400ms
}

start_host() { # name, address, rate
    local host=$1 network=$name-$1
    mkdir -p "/etc/netns/$network"
    cp "$state/hosts" "/etc/netns/$network/hosts"
    ip netns add "$network"
    ip link add eth0 netns "$network" type veth peer name "$host" netns "$switch"
    ip -n "$switch" link set "$host" master bridge up
    ip -n "$network" addr add "$2/24" dev eth0
    ip -n "$network" link set eth0 up
    ip -n "$network" link set lo up
    # Linux's own choice, whatever this machine's is: bbr divides a link unfairly. The route names it, since a namespace
    # may choose for all of its sockets only what the machine allows everybody.
    ip -n "$network" route replace 10.78.0.0/24 dev eth0 congctl cubic ||
        echo "hosts: this kernel has no cubic, so that TCP is $(cat /proc/sys/net/ipv4/tcp_congestion_control)" >&2
    shape "$network" eth0 "$3"
    shape "$switch" "$host" "$3"
    # A process that holds the rest of the host; it says its number once all is there. It outlives who starts it, whose
    # files it must not keep open: pipes would never end, and locks never be free.
    (
        for open in /proc/self/fd/*; do
            open=${open##*/}
            [ "$open" -le 2 ] || exec {open}>&-
        done
        exec setsid ip netns exec "$network" unshare --uts --ipc --mount --propagation private sh -c "
            hostname $host && mount -t tmpfs -o size=2g tmpfs /dev/shm &&
            cat /proc/sys/kernel/random/uuid >$state/$host.boot &&
            mount --bind $state/$host.boot /proc/sys/kernel/random/boot_id && echo \$\$ >$state/$host.new &&
            mv $state/$host.new $state/$host && exec sleep infinity"
    ) </dev/null >/dev/null 2>&1 &
    for _ in $(seq 100); do
        [ ! -e "$state/$host" ] || return 0
        sleep 0.05
    done
    echo "hosts: $host did not start" >&2
    return 1
}

up() {
    local count=$1 rate=${2:-none} host
    mkdir "$state" || { echo "hosts: they are up already; $self down" >&2; exit 1; }
    {
        echo "127.0.0.1 localhost"
        for ((host = 0; host < count; host++)); do echo "10.78.0.$((10 + host)) h$host"; done
    } >"$state/hosts"
    # A launcher calls it with options of ssh, a host, and a command line.
    printf '#!/bin/sh\nwhile case "$1" in -*) true ;; *) false ;; esac; do shift; done\n%s\n' \
        "host=\$1; shift; HOSTS_NAME=$name exec $self run \"\$host\" sh -c \"\$*\"" >"$state/agent"
    chmod +x "$state/agent"
    ip netns add "$switch"
    ip -n "$switch" link add bridge type bridge
    ip -n "$switch" link set bridge up
    for ((host = 0; host < count; host++)); do start_host "h$host" "10.78.0.$((10 + host))" "$rate"; done
}

# Ends all processes of a host but the one that holds it.
end_processes() { # the holder
    local host process
    host=$(readlink "/proc/$1/ns/uts")
    for process in /proc/[0-9]*; do
        [ "${process#/proc/}" != "$1" ] && [ "$(readlink "$process/ns/uts")" = "$host" ] || continue
        kill -9 "${process#/proc/}" 2>/dev/null || true
    done
}

down() {
    local network file holder
    for file in "$state"/h[0-9]*; do
        [ -e "$file" ] && [ "${file%.boot}" = "$file" ] || continue
        holder=$(cat "$file")
        [ ! -e "/proc/$holder" ] || end_processes "$holder"
        kill -9 "$holder" 2>/dev/null || true
    done
    for network in $(ip netns list | sed -n "s/^\($name-[^ ]*\).*/\1/p"); do
        ip netns del "$network"
        rm -rf "/etc/netns/$network"
    done
    rm -rf "$state"
}

# Everything but the process that holds it; commands on it fail until it is back.
crash() {
    local holder
    holder=$(cat "$state/$1")
    mv "$state/$1" "$state/$1.lost"
    end_processes "$holder"
}

case ${1:-} in
    up) up "${@:2}" ;;
    run) exec nsenter -t "$(cat "$state/$2")" --net --uts --ipc --mount --wd="$PWD" -- "${@:3}" ;;
    agent) echo "$state/agent" ;;
    down) down ;;
    crash) crash "$2" ;;
    back) mv "$state/$2.lost" "$state/$2" ;;
    *)
        sed -n '2,11s/^# \{0,1\}//p' "$0"
        exit 2
        ;;
esac
