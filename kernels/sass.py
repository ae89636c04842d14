#!/usr/bin/env python3
"""Makes kernels.tsv: what ptxas and the SASS say of each kernel on an A100 and an H200, without either.

Usage: kernels/sass.py [OUTPUT]      OUTPUT: kernels/kernels.tsv

ptxas 12.9 and nvdisasm come from .deps/cuda (`.ci/deps cuda`). A row is a kernel on a generation of GPUs: registers a
thread, bytes spilled, what the costliest of its loops over wide accesses has (instructions, and bytes of global memory,
a thread and round), and how many bytes a thread asks for in one of them before it needs the first. Where a kernel has
no loop that touches memory, all of it counts as one. A test holds the table against limits
(tests/suite/kernels/speed.rs); its first line has the CRC-32 of the PTX that it was made of, so that it cannot be
older.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zlib

HERE = pathlib.Path(__file__).resolve().parent
TOOLS = HERE.parent / ".deps/cuda"


def tool(name):
    """From .deps/cuda, or as the PATH has it."""
    found = shutil.which(name, path=TOOLS) or shutil.which(name)
    return found or sys.exit(f"sass: no {name}; .ci/deps cuda fetches it")


# What each GPU loads.
OF = {80: "dltrain.sm_80.ptx", 90: "dltrain.sm_80.ptx"}

WIDTHS = [(".128", 16), (".64", 8), (".U16", 2), (".S16", 2), (".U8", 1), (".S8", 1)]
LINE = re.compile(r"^\s*/\*([0-9a-f]+)\*/\s+(@!?U?P\w+\s+)?(\S+)\s*(.*?);")
REGISTER = re.compile(r"\bR(\d+)(\.64)?\b")


class Instruction:
    def __init__(self, at, name, operands):
        self.at, self.name, self.operands = at, name, operands

    def bytes(self):
        """Of global memory, a thread."""
        if not re.match(r"(LDG|STG|LDGSTS)\b", self.name):
            return 0
        return next((width for ending, width in WIDTHS if ending in self.name), 4)

    def loaded(self):
        """The registers that a load from global memory fills."""
        if not self.name.startswith("LDG."):
            return set()
        first = int(REGISTER.match(self.operands).group(1)) if REGISTER.match(self.operands) else -8
        return {first + k for k in range(max(1, self.bytes() // 4))}

    def reads(self):
        """The registers that it mentions."""
        return {int(of) + k for of, pair in REGISTER.findall(self.operands) for k in range(2 if pair else 1)}


def functions(listing):
    """Kernels with their instructions, and where labels are."""
    found, name, labels, waiting = {}, None, {}, []
    for line in listing.splitlines():
        if start := re.match(r"^\.text\.(\w+):", line):
            name, labels, waiting = start.group(1), {}, []
            found[name] = ([], labels)
        elif label := re.match(r"^(\.L_\w+):", line):
            waiting.append(label.group(1))
        elif name and (match := LINE.match(line)):
            at = int(match.group(1), 16)
            labels.update({label: at for label in waiting})
            waiting = []
            found[name][0].append(Instruction(at, match.group(3), match.group(4)))
    return found


def loops(code, labels):
    """The innermost loops that touch global memory; or all of the code up to its last exit."""
    ranges = []
    for last in code:
        target = re.search(r"`\((\.L_\w+)\)", last.operands) if last.name.startswith("BRA") else None
        if target and labels.get(target.group(1), last.at + 1) <= last.at:
            ranges.append((labels[target.group(1)], last.at))
    # Behind the code is a branch to itself.
    ranges = [(first, last) for first, last in ranges if first < last]
    inner = [a for a in ranges if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in ranges)]
    bodies = [[one for one in code if first <= one.at <= last] for first, last in inner]
    bodies = [body for body in bodies if any(one.bytes() for one in body)]
    if bodies:
        return bodies
    last = max((one.at for one in code if one.name == "EXIT"), default=0)
    return [[one for one in code if one.at <= last]]


def moved(body):
    return sum(one.bytes() for one in body)


def hottest(bodies):
    """Those whose accesses are the widest that there are, for the most part: the others are for what lies badly."""
    widest = max((one.bytes() for body in bodies for one in body), default=0)
    of_widest = [sum(one.bytes() for one in body if one.bytes() == widest) for body in bodies]
    chosen = [body for body, bytes in zip(bodies, of_widest) if 2 * bytes >= moved(body)]
    return chosen or [max(bodies, key=moved)]


def in_flight(body):
    """The most bytes that are asked for before one of them is used. (Code that is no loop waits as loops do.)"""
    most, asked, waited_for = 0, 0, set()
    for one in body:
        if one.reads() & waited_for and not one.name.startswith("LDG."):
            most, asked, waited_for = max(most, asked), 0, set()
        if loaded := one.loaded():
            asked += one.bytes()
            waited_for |= loaded
    return max(most, asked)


def rows(gpu, folder):
    cubin = pathlib.Path(folder) / f"{gpu}.cubin"
    command = [tool("ptxas"), f"-arch=sm_{gpu}", "-v", HERE / OF[gpu], "-o", cubin]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    resources = {}
    for part in said.split("Compiling entry function '")[1:]:
        registers = int(re.search(r"Used (\d+) registers", part).group(1))
        spilled = sum(int(bytes) for bytes in re.findall(r"(\d+) bytes spill", part))
        shared = re.search(r"(\d+) bytes smem", part)
        resources[part.split("'")[0]] = (registers, spilled, int(shared.group(1)) if shared else 0)
    listing = subprocess.run([tool("nvdisasm"), "-c", cubin], check=True, capture_output=True, text=True).stdout
    for name, (code, labels) in sorted(functions(listing).items()):
        bodies = hottest(loops(code, labels))
        body = max(bodies, key=lambda body: (len(body) / max(1, moved(body)), len(body)))
        yield [name, gpu, *resources[name], len(body), moved(body), max(map(in_flight, bodies))]


def main():
    output = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "kernels.tsv"
    sums = " ".join(f"{name} {zlib.crc32((HERE / name).read_bytes()):08x}" for name in sorted(set(OF.values())))
    lines = [f"# CRC-32 of {sums}", "kernel\tsm\tregisters\tspilled\tshared\tinstructions\tbytes\tin flight"]
    with tempfile.TemporaryDirectory() as folder:
        lines += ["\t".join(map(str, row)) for gpu in OF for row in rows(gpu, folder)]
    output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
