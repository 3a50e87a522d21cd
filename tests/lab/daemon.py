"""A Docker daemon: the one that answers, or one that the lab installs, starts and stops.

Several runs may use a daemon that one of them started: each enters its process id as a user,
and the last one to leave stops it. `python -m tests.lab up` keeps it until `down`.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import docker
from docker.errors import DockerException

from tests.lab import cache, host, images, packages, services

_HOST: Final = host.ENVIRONMENT.get("DOCKER_HOST") or "unix:///var/run/docker.sock"

_STATE: Final = cache.FOLDER / "daemon"
_PIDFILE: Final = _STATE / "dockerd.pid"
_USERS: Final = _STATE / "users"
_LOG: Final = _STATE / "dockerd.log"

#: A kernel without netfilter modules refuses the daemon's bridge; the lab needs no network.
_WITHOUT_NETWORK: Final = ("--iptables=false", "--ip6tables=false", "--bridge=none")


@contextmanager
def docker_daemon() -> Iterator[docker.DockerClient]:
    """Yield a client of a daemon that answers; stop it afterwards if the lab started it."""
    enter(os.getpid())
    try:
        engine = images.client()
        yield engine
        engine.close()
    finally:
        leave(os.getpid())


def enter(user: int) -> None:
    """Make sure that a daemon answers, and note one more user of it."""
    with cache.lock("daemon"):
        if not answers():
            _start()
        _USERS.mkdir(parents=True, exist_ok=True)
        (_USERS / str(user)).touch()


def leave(user: int) -> None:
    """Note one user less; stop the daemon if nobody is left and the lab started it."""
    with cache.lock("daemon"):
        (_USERS / str(user)).unlink(missing_ok=True)
        if not _living_users():
            _stop()


def keep() -> None:
    """Keep the daemon after this process has ended, until `release`."""
    enter(0)


def release() -> None:
    """Undo `keep`."""
    leave(0)


def answers() -> bool:
    """Tell whether the environment's Docker daemon is there."""
    # The SDK's constructor connects, and leaks its socket when nobody is there.
    if _HOST.startswith("unix://") and not _is_listening(_HOST.removeprefix("unix://")):
        return False
    try:
        engine = docker.from_env(environment=dict(host.ENVIRONMENT), timeout=10)
        try:
            return bool(engine.ping())
        finally:
            engine.close()
    except DockerException:
        return False


def _is_listening(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def started_by_lab() -> int | None:
    """Return the process id of the daemon that the lab started, if it runs."""
    try:
        pid = int(_PIDFILE.read_text())
    except (OSError, ValueError):
        return None
    # The id may long be somebody else's.
    return pid if services.name_of(pid) == "dockerd" else None


def _living_users() -> list[int]:
    users = [int(path.name) for path in _USERS.glob("*")]
    return [user for user in users if user == 0 or services.is_running(user)]


def _start() -> None:
    if host.ENVIRONMENT.get("DOCKER_HOST"):
        raise host.LabError(f"no Docker daemon answers at DOCKER_HOST={_HOST}")
    if os.geteuid() != 0:
        raise host.LabError("no Docker daemon answers, and only root can start one")
    packages.ensure("dockerd", "containerd")
    # A daemon that was killed left its users noted.
    shutil.rmtree(_USERS, ignore_errors=True)
    try:
        start(())
    except host.LabError:
        start(_WITHOUT_NETWORK)


def start(options: Sequence[str]) -> int:
    """Start dockerd and return its process id; `options` for tests of this very function."""
    argv: list[str | Path] = [packages.program("dockerd"), f"--pidfile={_PIDFILE}", *options]
    _STATE.mkdir(parents=True, exist_ok=True)
    _PIDFILE.unlink(missing_ok=True)
    return services.start(argv, log=_LOG, is_ready=answers)


def _stop() -> None:
    pid = started_by_lab()
    if pid is not None:
        services.stop(pid)
        _PIDFILE.unlink(missing_ok=True)
