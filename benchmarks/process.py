"""Run one program and say what it took."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.lab import host

CHECKOUT = Path(__file__).parent.parent
_PEAK = "OVERLAY_BENCHMARK_PEAK"
# The kernel's own count for this program: `ru_maxrss` of a child begins at the peak of the process that started it.
_TOLD_AT_EXIT = f"""
import atexit, os
def tell():
    with open("/proc/self/status") as status, open(os.environ["{_PEAK}"], "w") as file:
        file.write(status.read())
atexit.register(tell)
"""


@dataclass(frozen=True)
class Taken:
    """What a program took: seconds on the clock, seconds of processor (its children's too), its own peak memory."""

    seconds: float
    processor_seconds: float
    peak_bytes: int
    stdout: str


def run(name: str, argv: Sequence[str | Path], environment: Mapping[str, str], *, cwd: Path) -> Taken:
    """Run a program to its end; LabError with this name and its last words where it fails."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as said:
        start = time.perf_counter()
        process = subprocess.Popen(
            [str(word) for word in argv],
            env=dict(environment),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=said,
        )
        try:
            _, status, used = os.wait4(process.pid, 0)
        except BaseException:
            process.terminate()  # or it would go on making what is cleaned up meanwhile
            process.wait()
            raise
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        said.seek(0)
        printed, words = out.read().decode(errors="replace"), said.read().decode(errors="replace")
    if process.returncode:
        told = host.last_lines(words + printed)
        raise host.LabError(f"{name} exited {process.returncode}:\n{told}")
    return Taken(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss << 10, printed)


def run_python(entry: str, arguments: Sequence[str | Path], environment: Mapping[str, str], *, cwd: Path) -> Taken:
    """Run `module:function` of the checkout in an interpreter of its own."""
    module, _, function = entry.partition(":")
    program = f"{_TOLD_AT_EXIT}\nfrom {module} import {function}\n{function}()"
    with tempfile.NamedTemporaryFile("r") as told:
        search = {"PYTHONPATH": str(CHECKOUT), _PEAK: told.name}
        taken = run(entry, [sys.executable, "-c", program, *arguments], {**environment, **search}, cwd=cwd)
        peak = re.search(r"^VmHWM:\s*(\d+) kB", told.read(), re.MULTILINE)
    if peak is None:
        raise host.LabError(f"{entry} did not tell its peak memory")
    return Taken(taken.seconds, taken.processor_seconds, int(peak[1]) << 10, taken.stdout)
