"""What is measured: one base of the lab, and the ways to put the same files on it."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from posixpath import basename
from typing import Final

import docker
from docker.errors import ImageNotFound

from benchmarks import process
from benchmarks.process import Taken
from tests.lab import host
from tests.lab.upstream_repo import PULL_REQUEST

_COMMAND: Final = "builder.cli:main"


@dataclass
class Subject:
    """One base, the settings for it, and where its measurements are made. Images are removed after each of them."""

    engine: docker.DockerClient
    title: str
    base: str
    catalogue: Path
    upstream: Path
    draft: Path
    scratch: Path
    tag: str
    steps: list[Mapping[str, float]] = field(default_factory=list)
    """The seconds of each step of each `build_step`."""
    images: set[str] = field(default_factory=set)
    ways: set[str] = field(default_factory=set)

    @property
    def size(self) -> int:
        return int(self.engine.images.get(self.base).attrs["Size"])

    @property
    def environment(self) -> Mapping[str, str]:
        """The user's own, without settings of the tool; its folders are of this run alone."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OVERLAY_")}
        folders = {f"XDG_{kind}_HOME": str(self.scratch / kind.lower()) for kind in ("CACHE", "STATE")}
        return {**kept, **folders, "GIT_ALLOW_PROTOCOL": "file"}

    # -- the tool

    def plan(self) -> Taken:
        """Run `overlay plan`."""
        return self._overlay("plan")

    def build_step(self, layer: Path | None = None) -> Taken:
        """Run a build without the smoke test."""
        arguments: list[str | Path] = ["--base", self.base, "--tag", self.tag, "--pr", str(PULL_REQUEST)]
        arguments += ["--catalogue", self.catalogue, "--upstream", self.upstream, "--cache", self.scratch / "cache"]
        arguments += ["--layer", layer] if layer else []
        try:
            taken = process.run_python("benchmarks.build_step:main", arguments, self.environment, cwd=self.scratch)
        finally:
            self._remove(self.tag)
        told = json.loads(taken.stdout)
        self.steps.append(told["steps"])
        self.images.add(told["image"])
        self.ways.add(told["way"])
        return taken

    def whole_builds(self) -> tuple[Taken, Taken]:
        """Run `overlay build` with its smoke test, and again when the image is there."""
        words = ("--draft", str(self.draft), "--tag", self.tag)
        try:
            return self._overlay("build", *words), self._overlay("build", *words)
        finally:
            self._remove(self.tag)

    def profile(self, out: Path) -> None:
        """Run `overlay plan` under cProfile."""
        environment = {**self.environment, "OVERLAY_BENCHMARK_PROFILE": str(out)}
        process.run_python("benchmarks.profiled:main", self._words("plan"), environment, cwd=self.scratch)

    def _overlay(self, command: str, *more: str) -> Taken:
        return process.run_python(_COMMAND, self._words(command, *more), self.environment, cwd=self.scratch)

    def _words(self, command: str, *more: str) -> Sequence[str | Path]:
        settings: list[str | Path] = ["--catalogue", self.catalogue, "--upstream", self.upstream]
        return [command, "--base", self.base, "--pr", str(PULL_REQUEST), *more, *settings, "--json"]

    # -- by hand

    def write_context(self) -> None:
        """Write the Dockerfile that people write, and the files of the tool's own layer: one COPY of them all."""
        layer = self.scratch / "layer.tar"
        self.build_step(layer)
        files = self._context / "files"
        for path, data in _files(layer.read_bytes()).items():
            target = files / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        (self._context / "Dockerfile").write_text(f"FROM {self.base}\nCOPY files/ /\n")

    @property
    def _context(self) -> Path:
        return self.scratch / "context"

    def docker_build(self) -> Taken:
        """Run `docker build`; where there is no such command, the engine's build alone, without a client's time."""
        try:
            return self._docker_build()
        finally:
            self._remove(self._by_hand)

    @property
    def _by_hand(self) -> str:
        return f"{self.tag}-by-hand"

    def _docker_build(self) -> Taken:
        if client := shutil.which("docker"):
            argv = [client, "build", "--quiet", "--no-cache", "--tag", self._by_hand, str(self._context)]
            return process.run("docker build", argv, self.environment, cwd=self.scratch)
        start = time.perf_counter()
        self.engine.images.build(path=str(self._context), tag=self._by_hand, nocache=True, rm=True)
        return Taken(time.perf_counter() - start, 0.0, 0, "")

    def prove_same_files(self) -> None:
        """Raise LabError unless the image made by hand holds the bytes of the tool's layer, in one layer more."""
        try:
            self._docker_build()
            layers = [self.engine.images.get(name).attrs["RootFS"]["Layers"] for name in (self.base, self._by_hand)]
            if layers[1][:-1] != layers[0]:
                raise host.LabError("docker build did not add exactly one layer")
            self._compare(_files((self.scratch / "layer.tar").read_bytes()))
        finally:
            self._remove(self._by_hand)

    def _compare(self, wanted: Mapping[str, bytes]) -> None:
        container = self.engine.containers.create(self._by_hand, ["true"], network_mode="none")
        try:
            for path, data in wanted.items():
                stream, _ = container.get_archive(f"/{path}")
                if _files(b"".join(stream)).popitem()[1] != data:
                    raise host.LabError(f"docker build put another {path} into its image")
        finally:
            container.remove()

    def _remove(self, name: str) -> None:
        with suppress(ImageNotFound):
            self.engine.images.remove(name, force=True)


Measure = Callable[[Subject], Taken]

MEASURES: Final[Mapping[str, Measure]] = {
    "docker build": Subject.docker_build,
    "build without smoke": Subject.build_step,
    "plan": Subject.plan,
}
"""What is measured in every round, in this order at first: what is compared stands side by side."""


def _files(tar: bytes) -> dict[str, bytes]:
    """Return path -> bytes of a tar's files, whiteouts left out."""
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        entries = [entry for entry in archive if entry.isreg() and not basename(entry.name).startswith(".wh.")]
        return {entry.name: file.read() for entry in entries if (file := archive.extractfile(entry))}
