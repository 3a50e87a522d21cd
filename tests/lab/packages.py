"""Debian packages that the lab's programs come from, installed when they are missing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.lab import cache, host

#: Program -> the Debian package that brings it.
_PACKAGES: Final = {
    "containerd": "containerd",
    "docker-registry": "docker-registry",
    "dockerd": "docker.io",
    "git": "git",
    "mmdebstrap": "mmdebstrap",
}

#: Debian keeps daemons where an ordinary PATH may not look.
_SEARCH_PATH: Final = os.pathsep.join([host.ENVIRONMENT.get("PATH", os.defpath), "/usr/sbin", "/sbin", "/usr/bin"])

_POLICY: Final = Path("/usr/sbin/policy-rc.d")


def find(program: str) -> Path | None:
    """Return where a program lies, if it is installed."""
    found = shutil.which(program, path=_SEARCH_PATH)
    return Path(found) if found else None


def ensure(*programs: str) -> None:
    """Install what is missing of these programs; needs Debian and root."""
    if not _missing(programs):
        return
    with cache.lock("apt"):
        missing = _missing(programs)
        if missing:
            _install(sorted({_PACKAGES[program] for program in missing}))
    if left := _missing(programs):
        raise host.LabError(f"still not there after installation: {', '.join(left)}")


def program(name: str) -> Path:
    """Return a program's path, after installing its package if need be."""
    ensure(name)
    found = find(name)
    assert found is not None
    return found


def _missing(programs: Iterable[str]) -> list[str]:
    return [program for program in programs if find(program) is None]


def _install(names: list[str]) -> None:
    if find("apt-get") is None or os.geteuid() != 0:
        wanted = " ".join(names)
        raise host.LabError(f"please install: {wanted} (the lab does it itself as root on Debian)")
    environment = {**host.ENVIRONMENT, "DEBIAN_FRONTEND": "noninteractive"}
    host.run(["apt-get", "update", "-qq"], environment=environment)
    install = ["apt-get", "install", "-qq", "--yes", "--no-install-recommends"]
    with _no_services_started():
        host.run([*install, *names], environment=environment)


@contextmanager
def _no_services_started() -> Iterator[None]:
    """Keep packages from starting their services: the lab starts its own, and stops them."""
    if _POLICY.exists():
        yield
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink()
