#!/usr/bin/env python3
"""Makes dltrain.ptx, the kernels for every GPU from sm_60 on, and dltrain.sm_80.ptx, for those from sm_80 on, with
NVRTC: no GPU, driver or toolkit is needed.

Usage: kernels/ptx.py [DIRECTORY]      DIRECTORY: kernels

NVRTC 12.9 comes from .deps/cuda (`.ci/deps cuda`) or from where the loader finds libnvrtc.so.12. Other versions make
other text, so that a test can compare only what this one makes. The exit code is 3 where it is not there.
"""

import ctypes
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
VERSION = (12, 9)
# The files, and the oldest GPU that each is for. The program takes the newest that serves (src/device/cuda/gpu.rs).
TARGETS = {"dltrain.ptx": "60", "dltrain.sm_80.ptx": "80"}
# The exit code where there is no such NVRTC.
MISSING = 3
# What is written at the head of the text in place of NVRTC's own version, so that drivers older than it (from CUDA 11
# on) take it: nothing newer is used, as ptxas finds (`make kernels`).
ISA = "7.0"
# A multiplication and an addition stay two, each rounded, as on the host: the same bits there and here.
OPTIONS = [
    "--fmad=false",
    "--std=c++17",
    # Lambdas, too, are for the GPU.
    "--device-as-default-execution-space",
]


def missing(what):
    print(f"ptx: {what}; .ci/deps cuda fetches NVRTC {VERSION[0]}.{VERSION[1]}", file=sys.stderr)
    sys.exit(MISSING)


def library():
    """NVRTC of the version."""
    nvrtc = loaded()
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    if (major.value, minor.value) != VERSION:
        missing(f"NVRTC is {major.value}.{minor.value}")
    return nvrtc


def loaded():
    """NVRTC, with what it opens itself opened before it."""
    directory = HERE.parent / ".deps/cuda/nvrtc"
    if directory.is_dir():
        for builtins in directory.glob("libnvrtc-builtins.so.*"):
            ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
        return ctypes.CDLL(str(directory / "libnvrtc.so.12"))
    try:
        return ctypes.CDLL("libnvrtc.so.12")
    except OSError as error:
        missing(error)


def sources():
    """What #include asks for, by name."""
    files = sorted([*HERE.glob("*.cu"), *HERE.glob("*.cuh")])
    return {file.name.encode(): file.read_bytes() for file in files}


def text(nvrtc, program, what):
    """The log, or the PTX."""
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
    return buffer.value.decode()


def compile_ptx(nvrtc, gpu):
    files = sources()
    main = files.pop(b"dltrain.cu")
    count = len(files)
    bodies = (ctypes.c_char_p * count)(*files.values())
    names = (ctypes.c_char_p * count)(*files.keys())
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), main, b"dltrain.cu", count, bodies, names)
    given = [f"--gpu-architecture=compute_{gpu}", *OPTIONS]
    options = (ctypes.c_char_p * len(given))(*[option.encode() for option in given])
    failed = nvrtc.nvrtcCompileProgram(program, len(given), options)
    log = text(nvrtc, program, "ProgramLog")
    # That GPUs before sm_75 may go in a later version is known.
    log = "".join(line for line in log.splitlines(True) if "deprecated" not in line)
    if failed or log.strip():
        sys.exit(f"ptx: NVRTC has something to say:\n{log}")
    return re.sub(r"^\.version .*$", f".version {ISA}", text(nvrtc, program, "PTX"), count=1, flags=re.MULTILINE)


if __name__ == "__main__":
    directory = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    compiler = library()
    for name, gpu in TARGETS.items():
        (directory / name).write_text(compile_ptx(compiler, gpu))
