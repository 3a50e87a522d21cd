"""Programs of the host that the lab runs: pip, apt, mmdebstrap, git, servers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

#: Taken when this module is first imported. `tests/conftest.py` imports it before it seals the
#: environment, so that pip and apt keep the user's own mirrors and proxies.
ENVIRONMENT: Final[Mapping[str, str]] = dict(os.environ)

_LAST_LINES: Final = 20


class LabError(RuntimeError):
    """The lab cannot be brought up; the message ends in the failing program's own words."""


def last_lines(text: str, count: int = _LAST_LINES) -> str:
    """Indent the end of a program's output, for an error message."""
    return "\n".join(f"    {line}" for line in text.rstrip().splitlines()[-count:])


def run(
    argv: Sequence[str | Path],
    *,
    stdin: IO[bytes] | None = None,
    environment: Mapping[str, str] | None = None,
    timeout: float | None = 1800,
) -> str:
    """Run a program to its end and return its standard output as text."""
    done = run_bytes(argv, stdin=stdin, environment=environment, timeout=timeout)
    return done.decode(errors="replace")


def run_bytes(
    argv: Sequence[str | Path],
    *,
    stdin: IO[bytes] | None = None,
    environment: Mapping[str, str] | None = None,
    timeout: float | None = 1800,
) -> bytes:
    """Run a program to its end and return its standard output."""
    command = [str(word) for word in argv]
    try:
        done = subprocess.run(
            command,
            stdin=stdin or subprocess.DEVNULL,
            capture_output=True,
            env=dict(ENVIRONMENT if environment is None else environment),
            timeout=timeout,
            check=False,
        )
    except OSError as error:
        raise LabError(f"{command[0]} does not start: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise LabError(f"`{' '.join(command)}` took more than {timeout} s") from error
    if done.returncode:
        said = last_lines((done.stdout + done.stderr).decode(errors="replace"))
        raise LabError(f"`{' '.join(command)}` exited {done.returncode}:\n{said}")
    return done.stdout
