"""Seals the environment, and lends the lab to tests.

Everything heavy is made when a test asks for it first, and kept in the lab's cache for the
next run. Whatever is started here is stopped here, by its process id.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import pytest

# Importing the lab notes the environment as it is; `pytest_configure` seals it afterwards.
from tests.lab import cache, checkpoints, host, wheels
from tests.lab.forge_server import UPSTREAM, Forge
from tests.lab.forge_server import forge as run_forge
from tests.lab.git_history import History, Repository
from tests.lab.upstream_repo import upstream_repository as make_upstream_repository

if TYPE_CHECKING:
    import docker

    from tests.lab.bases import BaseImage, Variant
    from tests.lab.images import RunLabel
    from tests.lab.registry_server import Registry

_CI: Final = bool(host.ENVIRONMENT.get("CI"))

_HOME = pytest.StashKey[str]()

#: What would let a machine's own settings, secrets or network into a test.
_REMOVED: Final = ("GIT_", "OVERLAY_", "XDG_", "DOCKER_CONFIG", "GH_TOKEN", "GITHUB_TOKEN")
_PROXIES: Final = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy")

_DATE: Final = "2026-11-01T12:00:00+00:00"
_SEALED: Final = {
    "GIT_ALLOW_PROTOCOL": "file",
    "GIT_AUTHOR_DATE": _DATE,
    "GIT_AUTHOR_EMAIL": "test@example.invalid",
    "GIT_AUTHOR_NAME": "Test",
    "GIT_COMMITTER_DATE": _DATE,
    "GIT_COMMITTER_EMAIL": "test@example.invalid",
    "GIT_COMMITTER_NAME": "Test",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
}


# -- sealing -------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    home = config.stash[_HOME] = tempfile.mkdtemp(prefix="overlay-test-home-")
    for name in list(os.environ):
        if name.startswith(_REMOVED) or name.lower() in _PROXIES:
            del os.environ[name]
    os.environ.update(_SEALED | _folders(Path(home)))


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(config.stash[_HOME], ignore_errors=True)


def _folders(home: Path) -> dict[str, str]:
    return {
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "XDG_CONFIG_HOME": str(home / "config"),
        "XDG_DATA_HOME": str(home / "data"),
        "XDG_STATE_HOME": str(home / "state"),
    }


@pytest.fixture(scope="session")
def type_checker_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the type checker said in this run, by the content it was asked of: a whole release takes it a while."""
    return tmp_path_factory.mktemp("type-checker")


@pytest.fixture(autouse=True)
def own_home(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, type_checker_cache: Path
) -> Path:
    """Each test starts with an empty home, cache and state folder; only the type checker's answers are shared."""
    home = tmp_path_factory.mktemp("home")
    for name, value in _folders(home).items():
        monkeypatch.setenv(name, value)
    (home / "cache" / "overlay").mkdir(parents=True)
    (home / "cache" / "overlay" / "type-checker").symlink_to(type_checker_cache)
    return home


# -- sources -------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def trees() -> Callable[[str], Path]:
    """`trees("0.5.17")` is the folder that holds that release's `sglang/`: never write there."""

    def tree(version: str = "0.5.17") -> Path:
        with _lab():
            return wheels.tree(version)

    return tree


@pytest.fixture(scope="session")
def upstream_repository() -> Repository:
    """SGLang's releases and the stand-in of #35371 as a bare repository."""
    with _lab():
        return make_upstream_repository()


@pytest.fixture
def history() -> History:
    """An empty history: tell it what happened, then `write` it."""
    return History()


@pytest.fixture
def serve_forge() -> Iterator[Callable[[Mapping[str, Repository]], Forge]]:
    """`serve_forge({"owner/name": repository})` runs a forge until the test ends."""
    with ExitStack() as stack:
        yield lambda repositories: stack.enter_context(run_forge(repositories))


@pytest.fixture
def forge(serve_forge: Callable[[Mapping[str, Repository]], Forge], upstream_repository: Repository) -> Forge:
    """The forge of the lab's upstream."""
    return serve_forge({UPSTREAM: upstream_repository})


@pytest.fixture(scope="session")
def draft_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small DFlash2 draft of 36 tensors: never write there."""
    return checkpoints.write_draft(tmp_path_factory.mktemp("checkpoints") / "draft")


# -- Docker --------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def docker_daemon() -> Iterator[docker.DockerClient]:
    """A client of a real Docker daemon; one is started where none answers."""
    from tests.lab import daemon

    with ExitStack() as stack:
        with _lab():
            engine = stack.enter_context(daemon.docker_daemon())
        yield engine


@pytest.fixture(scope="session")
def run_label(docker_daemon: docker.DockerClient) -> Iterator[RunLabel]:
    """The label of what this run makes in Docker; all of it is removed at the end."""
    from tests.lab.images import RunLabel

    label = RunLabel(uuid.uuid4().hex[:12])
    yield label
    label.remove_all(docker_daemon)


class MakeBase(Protocol):
    """`tiny_base("0.5.17", "finder")`: a base of this run."""

    def __call__(self, version: str = "0.5.17", variant: Variant = "editable") -> BaseImage: ...


@pytest.fixture(scope="session")
def tiny_base(docker_daemon: docker.DockerClient, run_label: RunLabel) -> MakeBase:
    """Make bases without torch: on them everything but real imports works."""
    from tests.lab import bases

    return _labelled_bases(docker_daemon, run_label, "tiny", bases.tiny_base)


@pytest.fixture(scope="session")
def torch_base(docker_daemon: docker.DockerClient, run_label: RunLabel) -> MakeBase:
    """Make bases on which real SGLang imports."""
    from tests.lab import torch_base

    return _labelled_bases(docker_daemon, run_label, "torch", torch_base.torch_base)


def _labelled_bases(
    engine: docker.DockerClient,
    label: RunLabel,
    family: str,
    make: Callable[[docker.DockerClient, str, Variant], BaseImage],
) -> MakeBase:
    from tests.lab import bases

    made: dict[tuple[str, Variant], BaseImage] = {}

    def base(version: str = "0.5.17", variant: Variant = "editable") -> BaseImage:
        if (version, variant) not in made:
            with _lab():
                cached = make(engine, version, variant)
                name = f"overlay-lab-run/{label.value}:{family}-{version}-{variant}"
                made[version, variant] = bases.labelled(engine, cached, name, label.labels)
        return made[version, variant]

    return base


class MakeToyBase(Protocol):
    """`toy_base({"/app/sglang/__init__.py": ""}, lines=["WORKDIR /app"])`: an image name."""

    def __call__(self, files: Mapping[str, bytes | str], lines: Sequence[str] = ()) -> str: ...


@pytest.fixture(scope="session")
def toy_base(docker_daemon: docker.DockerClient, run_label: RunLabel) -> MakeToyBase:
    """Make small images of a few files on the root filesystem (python3, a shell, coreutils)."""
    from tests.lab import bases

    def base(files: Mapping[str, bytes | str], lines: Sequence[str] = ()) -> str:
        name = f"overlay-lab-run/{label.value}:toy-{uuid.uuid4().hex[:8]}"
        with _lab():
            bases.toy_base(docker_daemon, name, files, lines=lines, labels=label.labels)
        return name

    label = run_label
    return base


@pytest.fixture(scope="session")
def registry(docker_daemon: docker.DockerClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """An empty registry on loopback, for the whole run: use tags of your own."""
    from tests.lab import registry_server

    with ExitStack() as stack:
        with _lab():
            root = tmp_path_factory.mktemp("registry")
            running = stack.enter_context(registry_server.registry(docker_daemon, root))
        yield running


# -- the tool ------------------------------------------------------------------------------


class RunOverlay(Protocol):
    """`overlay("plan", "--base", "x")` runs the command as a user would."""

    def __call__(
        self, *arguments: str | Path, cwd: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture
def overlay(own_home: Path) -> RunOverlay:
    """Run the command in a process of its own, in an empty folder unless `cwd` is given."""

    def run(*arguments: str | Path, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-c", "from builder.cli import main; main()"]
        return subprocess.run(
            [*argv, *map(str, arguments)],
            cwd=cwd or own_home,
            env={**os.environ, "PYTHONPATH": str(_CHECKOUT), **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )

    return run


@pytest.fixture
def run_demo(docker_daemon: docker.DockerClient) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`run_demo("--quick")` runs the demo outside the seal, with the lab's own cache; it leaves no image."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tests.lab.demo", "--clean", *arguments],
            cwd=_CHECKOUT,
            env={**host.ENVIRONMENT, "OVERLAY_LAB_CACHE": str(cache.FOLDER)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=1800,
        )

    return run


_CHECKOUT: Final = Path(__file__).parent.parent


@contextmanager
def _lab() -> Iterator[None]:
    """Turn "the lab cannot be brought up" into a skip, and in CI into a failure."""
    try:
        yield
    except host.LabError as error:
        (pytest.fail if _CI else pytest.skip)(f"the lab is not there: {error}")
