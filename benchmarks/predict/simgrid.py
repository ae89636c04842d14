#!/usr/bin/env python3
"""Makes traces that SimGrid replays (smpirun -replay) of what `dltrain --dry-run --predict-nodes N --export-trace FILE`
wrote: a check of predictions by another simulator. Frederic Desprez et al.: "Improving the accuracy and efficiency of
time-independent trace replay", PMBS 2012.

Usage: simgrid.py FILE DIRECTORY    then sh DIRECTORY/replay.sh

A rank is several processes of SimGrid's on one node: one computes, and one for each line of transfers carries these
out, one after the other. They tell each other by messages of no bytes, which within a node take no time, when a
transfer starts and when it is over. Messages with bytes are waited for at both ends. What is added, and what ranks do
in memory in common, is computing. Seconds of a message that are none of its links' the sender sleeps before it.
"""

import json
import os
import sys

# FLOP/s of a core of the platform: what is computed is written in nanoseconds.
SPEED = 1e9
# Tags that are no transfer's: barriers of a node, among those that compute and among those that carry; and that of all
# messages with bytes: between two processes they keep their order.
BARRIER, MEETING, MESSAGE = 30_000, 30_001, 30_002


def platform(network, nodes, cores, within):
    """A cluster of Henri Casanova et al.: "Versatile, scalable, and accurate simulation of distributed applications and
    platforms", J. Parallel Distrib. Comput. 74 (2014), which routes as dltrain does. On each node `cores` things are
    computed side by side without being in each other's way; messages within one move so many bytes a second."""
    (kind, of), = [(network["topology"], {})] if network["topology"] == "flat" else network["topology"].items()
    bandwidth, text = network["bandwidth"], ""
    if kind == "flat":
        bandwidth *= network["links_a_node"]
    elif network["links_a_node"] > 1:
        sys.exit(f"simgrid.py: SimGrid's trees and Dragonflies have one link a node, and {network['name']} has "
                 f"{network['links_a_node']}; give a file with links_a_node = 1")
    elif kind == "fattree":
        lists = [",".join(map(str, numbers)) for numbers in (of["down"], of["up"], [1] * len(of["down"]))]
        text = f' topology="FAT_TREE" topo_parameters="{len(of["down"])};{";".join(lists)}"'
        nodes = 1
        for count in of["down"]:
            nodes *= count
    else:
        nodes = of["groups"] * of["switches"] * of["nodes"]
        text = (f' topology="DRAGONFLY" topo_parameters="{of["groups"]},{of["between_groups"]};1,1;{of["switches"]},'
                f'{of["between_switches"]};{of["nodes"]}"')
    return f"""<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <cluster id="machine" prefix="n" suffix="" radical="0-{nodes - 1}" speed="1Gf" core="{cores}" bw="{bandwidth}Bps" \
lat="{network["hop"]}s" sharing_policy="SPLITDUPLEX" loopback_bw="{within}Bps" loopback_lat="0s"{text}/>
</platform>
"""


def replay(processes):
    """The command. Bandwidths and latencies are taken as they are, and both ends wait for a message with bytes."""
    return f"""#!/bin/sh
# Replays these traces by SimGrid's smpirun (Debian: libsimgrid-dev) and prints the simulated seconds.
cd "$(dirname "$0")" || exit
ulimit -n {processes + 64} 2>/dev/null
smpirun -replay traces.txt -platform platform.xml -hostfile hosts.txt -np {processes} \\
    --cfg=network/model:CM02 --cfg=network/crosstraffic:0 --cfg=network/TCP-gamma:1e15 \\
    --cfg=smpi/send-is-detached-thresh:1 --cfg=contexts/stack-size:256 \\
    --log=root.thres:critical --log=smpi_replay.thres:info 2>&1 | sed -n 's/^.*Simulation time //p'
"""


class Trace:
    """What one process does, a line an action."""

    def __init__(self, process):
        self.process, self.lines, self.pending = process, [f"{process} init"], 0.0

    def settle(self):
        """What was to be computed comes before what is next."""
        if self.pending > 0.0:
            self.lines.append(f"{self.process} compute {self.pending * SPEED:.3f}")
        self.pending = 0.0

    def add(self, *words):
        self.settle()
        self.lines.append(" ".join(map(str, (self.process, *words))))

    def sleep(self, seconds):
        if seconds > 0.0:
            self.add("sleep", f"{seconds:.9f}")

    def tell(self, process, tag):
        self.add("send", process, tag, 0)

    def hear(self, process, tag):
        self.add("recv", process, tag, 0)

    def text(self):
        self.add("finalize")
        return "\n".join(self.lines) + "\n"


class Job:
    def __init__(self, head):
        self.head, self.local, self.lines = head, head["ranks_a_node"], head["lines"]
        self.first = [0]
        for lines in self.lines:
            self.first.append(self.first[-1] + 1 + lines)
        network = head["network"]
        self.far, self.near = network["latency"] - 2.0 * network["hop"], head["within"]["latency"]

    def process(self, rank, line=-1):
        """That of a rank which computes, or which carries a line."""
        return self.first[rank] + 1 + line

    def beside(self, rank):
        """The other ranks of a node."""
        first = rank - rank % self.head["ranks_that_meet"]
        return [other for other in range(first, first + self.head["ranks_that_meet"]) if other != rank]

    def computes(self, rank, doings):
        trace, under_way = Trace(self.process(rank)), []
        for _ in range(self.head["steps"]):
            for doing in doings:
                kind, of = (doing, None) if isinstance(doing, str) else next(iter(doing.items()))
                if kind == "work":
                    trace.pending += of
                elif kind == "start":
                    trace.tell(self.process(rank, of[1]), of[0])
                    under_way.append(of)
                # Into the first step nothing is carried over.
                elif kind == "wait" and of in under_way:
                    trace.hear(self.process(rank, of[1]), of[0])
                    under_way = [other for other in under_way if other != of]
                elif kind in ("arrive", "await"):
                    tell_or_hear = trace.tell if kind == "arrive" else trace.hear
                    for other in self.beside(rank):
                        tell_or_hear(self.process(other), BARRIER)
        for transfer, line in under_way:
            trace.hear(self.process(rank, line), transfer)
        return trace.text()

    def carries(self, rank, line, transfers):
        trace = Trace(self.process(rank, line))
        for _ in range(self.head["steps"]):
            for transfer, doings in transfers:
                trace.hear(self.process(rank), transfer)
                for doing in doings:
                    self.doing(trace, rank, line, doing)
                trace.tell(self.process(rank), transfer)
        return trace.text()

    def doing(self, trace, rank, line, doing):
        if doing == "meet":
            for tell_or_hear in (trace.tell, trace.hear):
                for other in self.beside(rank):
                    tell_or_hear(self.process(other, line), MEETING)
        elif "work" in doing:
            trace.pending += doing["work"]
        else:
            sends, receives = doing["messages"]
            for other, there, count in receives:
                trace.add("irecv", self.process(other, there), MESSAGE, count)
            # All that leaves the node is on its way at a time; what stays there is copied one after the other.
            near = [send for send in sends if send[0] // self.local == rank // self.local]
            far = [send for send in sends if send not in near]
            for messages, latency in ((far, self.far), (near, self.near)):
                trace.sleep(latency if messages else 0.0)
                for other, there, count in messages:
                    trace.add("isend", self.process(other, there), MESSAGE, count)
                    if messages is near and len(near) > 1:
                        trace.add("wait", trace.process, self.process(other, there), MESSAGE)
            trace.add("waitall")


def main(source, directory):
    os.makedirs(directory, exist_ok=True)

    def put(name, text):
        with open(os.path.join(directory, name), "w", encoding="ascii") as file:
            file.write(text)

    with open(source, encoding="utf-8") as file:
        job = Job(json.loads(next(file)))
        ranks, most = len(job.lines), 1 + max(job.lines)
        nodes = -(-ranks // job.local)
        put("platform.xml", platform(job.head["network"], nodes, job.local * most, job.head["within"]["bandwidth"]))
        traces, hosts = [], []
        for rank, text in enumerate(file):
            of = json.loads(text)
            names = [f"rank-{rank}.txt", *(f"rank-{rank}-line-{line}.txt" for line in range(job.lines[rank]))]
            put(names[0], job.computes(rank, of["computes"]))
            for line, transfers in enumerate(of["carries"]):
                put(names[1 + line], job.carries(rank, line, transfers))
            traces += names
            hosts += [f"n{rank // job.local}"] * len(names)
    put("traces.txt", "\n".join(traces) + "\n")
    put("hosts.txt", "\n".join(hosts) + "\n")
    put("replay.sh", replay(job.first[-1]))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
