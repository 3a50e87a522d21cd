"""Start a server program, wait until it answers, and stop it by its process id."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.lab import host

_STOP_SECONDS: Final = 30.0

#: Kept so that a child is reaped by the object that started it.
_CHILDREN: Final[dict[int, subprocess.Popen[bytes]]] = {}


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(argv: Sequence[str | Path], *, log: Path, is_ready: Callable[[], bool], seconds: float = 60) -> int:
    """Start a server, wait until it is ready and return its process id.

    If it ends or stays silent it is stopped, and the error holds its log's last lines.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        # Its own session: Ctrl-C in the terminal is for us, who then stop it.
        server = subprocess.Popen(
            [str(word) for word in argv],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=dict(host.ENVIRONMENT),
            start_new_session=True,
        )
    _CHILDREN[server.pid] = server
    try:
        _wait(server, Path(str(argv[0])).name, log, is_ready, seconds)
    except BaseException:
        stop(server.pid)
        raise
    return server.pid


def _wait(
    server: subprocess.Popen[bytes],
    name: str,
    log: Path,
    is_ready: Callable[[], bool],
    seconds: float,
) -> None:
    deadline = time.monotonic() + seconds
    while not is_ready():
        if server.poll() is not None:
            problem = f"{name} ended with status {server.returncode}"
        elif time.monotonic() > deadline:
            problem = f"{name} does not answer after {seconds:.0f} s"
        else:
            time.sleep(0.1)
            continue
        said = host.last_lines(log.read_text(errors="replace"))
        raise host.LabError(f"{problem}; the last lines of {log}:\n{said}")


def stop(pid: int, seconds: float = _STOP_SECONDS) -> None:
    """End one process, gently first; it may be a child of ours or of an earlier run."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.kill(pid, sign)
        deadline = time.monotonic() + seconds
        while is_running(pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        if not is_running(pid):
            _CHILDREN.pop(pid, None)
            return


def is_running(pid: int) -> bool:
    """Tell whether a process runs; a child of ours that ended is reaped."""
    if pid in _CHILDREN:
        return _CHILDREN[pid].poll() is None
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def name_of(pid: int) -> str:
    """Return the name of the program that a process runs, or an empty text."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
