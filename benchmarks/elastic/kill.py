"""Starts a job of two ranks, kills one of them with SIGKILL when it has done some steps, and prints the seconds until
the end of the first step after that. A peer notes the end of its steps in STEPS; dltrain's are seen by the commits
that it leaves in memory of the node after each.

usage: kill.py STEPS COMMAND…
"""
import glob
import os
import signal
import subprocess
import sys
import time

# A launcher that has not gone on after so many seconds is taken to hang, and this is its figure.
ALIVE = 60


def steps():
    """What there is of steps: it changes with each."""
    try:
        return os.stat(sys.argv[1]).st_size
    except FileNotFoundError:
        newest = [path for path in glob.glob("/dev/shm/dltrain-commit-*/step-*.h5")]
        return max((os.path.basename(path) for path in newest), default=None)


def wait(job, seen, hangs=False):
    """Until there is another step than those seen. `hangs`: not longer than a minute, which is then said."""
    begun = time.monotonic()
    while steps() in seen:
        late = time.monotonic() - begun > ALIVE
        if late and hangs and job.poll() is None:
            return print(f"{sys.argv[2:]}: no step within {ALIVE} s", file=sys.stderr)
        if job.poll() is not None or late:
            sys.exit(f"{sys.argv[2:]}: no step; code {job.returncode}")
        time.sleep(0.002)


def ranks(root):
    """The processes below one that compute: Python or dltrain, without children of their own."""
    parents = {}
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(path) as file:
                pid, rest = file.read().split(" (", 1)
                name, rest = rest.rsplit(") ", 1)
                with open(f"/proc/{pid}/cmdline") as file:
                    words = file.read().split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents[int(pid)] = (int(rest.split()[1]), name, words)
    found = []
    for pid, (parent, name, words) in parents.items():
        above = parent
        while above in parents and above != root:
            above = parents[above][0]
        computes = name == "dltrain" or any(word.endswith("elastic/peer.py") for word in words)
        if above == root and computes and not any(of == pid for of, _, _ in parents.values()):
            found.append(pid)
    return sorted(found)


def main():
    environment = dict(os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", HOROVOD_CPU_OPERATIONS="gloo")
    job = subprocess.Popen(
        sys.argv[2:], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        seen = {None, 0}
        for _ in range(5):
            wait(job, seen)
            seen.add(steps())
        last = ranks(job.pid)[-1]
        os.kill(last, signal.SIGKILL)
        killed = time.monotonic()
        # What the others had under way may still end.
        time.sleep(0.05)
        seen.add(steps())
        wait(job, seen, hangs=True)
        print(f"{time.monotonic() - killed:.2f}")
    finally:
        job.send_signal(signal.SIGTERM)
        try:
            job.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
        for path in glob.glob("/dev/shm/dltrain-commit-*/*"):
            os.remove(path)


main()
