"""The files that PyTorch's exporters write of networks.py's networks: each in a process of its own, within a time, and
kept in a directory, so that a run that was stopped goes on and a mend is tried without an export."""
import contextlib
import fcntl
import functools
import gc
import io
import multiprocessing
import os
import pathlib
import shutil
import tempfile

import torch

import networks

processes = multiprocessing.get_context("fork")


@functools.cache
def warm():
    """Both exporters read half of their packages when they first export: once, for all processes."""
    with tempfile.TemporaryDirectory() as place, contextlib.redirect_stdout(io.StringIO()):
        for way in ("dynamo-fixed", "script-fixed"):
            networks.written(torch.nn.Conv2d(3, 2, 3), torch.zeros(1, 3, 8, 8), f"{place}/{way}.onnx", way)


def reason(error):
    """The last line that says something: PyTorch wraps what went wrong in advice."""
    said = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = next((line for line in said if "Error" in line or "nsupported" in line), (said or [""])[0])
    return f"{type(error).__name__}: {told}"[:200]


def late(seconds):
    """What is said of a step that took longer."""
    return f"more than {seconds} s"


def apart(seconds, work, *given):
    """Why `work` did not end well in a process of its own; `None` where it did."""
    asked, answer = processes.Pipe(duplex=False)

    def attempt():
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1), os.dup2(quiet, 2)
        # A process that ends soon collects nothing.
        gc.disable()
        try:
            work(*given)
            answer.send(None)
        except BaseException as error:
            answer.send(reason(error))

    process = processes.Process(target=attempt)
    process.start()
    answer.close()
    said = late(seconds)
    try:
        if asked.poll(seconds):
            said = asked.recv()
    except EOFError:
        process.join()
        said = f"ended with {process.exitcode}"
    process.kill()
    process.join()
    return said


def export(kept, name, way, seconds):
    """The directory with net.onnx, made where it is not there yet; or the reason why PyTorch writes none."""
    place = pathlib.Path(kept) / name.replace("/", "~") / way
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(place.with_suffix(".lock"), "w") as lock:
        # Another process may be at it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            part = place.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            warm()
            if said := apart(seconds, networks.export, name, part / "net.onnx", way):
                shutil.rmtree(part)
                # What took too long may do otherwise another time.
                if said == late(seconds):
                    return None, said
                part.mkdir()
                (part / "failed").write_text(said)
            part.rename(place)
    failed = place / "failed"
    return (None, failed.read_text()) if failed.exists() else (place, None)
