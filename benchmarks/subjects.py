"""What is measured: one base of the lab, and the ways to put the same files on it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import docker
from docker.errors import ImageNotFound

from benchmarks import by_hand, process
from benchmarks.process import Taken
from tests.lab.upstream_repo import PULL_REQUEST


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
    steps: list[Mapping[str, float]] = field(default_factory=list)
    """The seconds of each step of each build without smoke."""
    images: set[tuple[str, str]] = field(default_factory=set)
    """What those builds made, and the way the engine took the layer: one and the same each time."""

    @property
    def size(self) -> int:
        return int(self.engine.images.get(self.base).attrs["Size"])

    @property
    def environment(self) -> Mapping[str, str]:
        """The user's own, without settings of the tool; its folders are of this run alone."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OVERLAY_")}
        folders = {f"XDG_{kind}_HOME": str(self.scratch / kind.lower()) for kind in ("CACHE", "STATE")}
        return {**kept, **folders, "GIT_ALLOW_PROTOCOL": "file"}

    def prepare(self) -> None:
        """Warm the caches up, and write what `docker build` builds: the same files, which is proved."""
        layer = self.scratch / "layer.tar"
        self._build_step("--layer", str(layer))
        by_hand.write_context(self._context, self.base, layer.read_bytes())
        with self._removed(self._by_hand):
            by_hand.build(self.engine, self._context, self._by_hand)
            by_hand.prove_same_files(self.engine, self.base, self._by_hand, layer.read_bytes())
        self.plan()

    def docker_build(self) -> Taken:
        """Run `docker build` of the same files."""
        with self._removed(self._by_hand):
            return by_hand.build(self.engine, self._context, self._by_hand)

    def build_without_smoke(self) -> Taken:
        """Run the pipeline's plan, load and tag in a process of its own."""
        taken, told = self._build_step()
        self.steps.append(told["steps"])
        self.images.add((told["image"], told["way"]))
        return taken

    def pairs(self, count: int) -> Sequence[tuple[float, float]]:
        """Return (build step, docker build) in seconds, in turns: what follows the plan beside the same by hand."""
        _, told = self._build_step("--pairs", str(count), "--context", str(self._context))
        return [(ours, theirs) for ours, theirs in told["pairs"]]

    def plan(self) -> Taken:
        """Run `overlay plan`."""
        return self._overlay("plan")

    def whole_builds(self) -> tuple[Taken, Taken]:
        """Run `overlay build` with its smoke test, and again when the image is there."""
        words = ("build", "--draft", str(self.draft), "--tag", self._tag)
        with self._removed(self._tag):
            return self._overlay(*words), self._overlay(*words)

    def help(self) -> Taken:
        """Run `overlay --help`."""
        return process.run_python("builder.cli:main", ["--help"], self.environment, cwd=self.scratch)

    def profile(self, out: Path) -> None:
        """Run `overlay plan` under cProfile."""
        environment = {**self.environment, "OVERLAY_BENCHMARK_PROFILE": str(out)}
        words = ["plan", *self._settings, "--json"]
        process.run_python("benchmarks.profiled:main", words, environment, cwd=self.scratch)

    @property
    def _tag(self) -> str:
        return f"{self.base}-overlaid"

    @property
    def _by_hand(self) -> str:
        return f"{self.base}-by-hand"

    @property
    def _context(self) -> Path:
        return self.scratch / "context"

    @property
    def _settings(self) -> Sequence[str]:
        folders = ("--catalogue", str(self.catalogue), "--upstream", str(self.upstream))
        return ["--base", self.base, "--pr", str(PULL_REQUEST), *folders]

    def _overlay(self, *words: str) -> Taken:
        argv = [*words, *self._settings, "--json"]
        return process.run_python("builder.cli:main", argv, self.environment, cwd=self.scratch)

    def _build_step(self, *more: str) -> tuple[Taken, Mapping[str, Any]]:
        words = [*self._settings, "--tag", self._tag, "--cache", str(self.scratch / "cache"), *more]
        with self._removed(self._tag, f"{self._tag}-by-hand"):
            taken = process.run_python("benchmarks.build_step:main", words, self.environment, cwd=self.scratch)
        return taken, json.loads(taken.stdout)

    @contextmanager
    def _removed(self, *names: str) -> Iterator[None]:
        try:
            yield
        finally:
            for name in names:
                with suppress(ImageNotFound):
                    self.engine.images.remove(name, force=True)


MEASURES: Final[Mapping[str, Callable[[Subject], Taken]]] = {
    "docker build": Subject.docker_build,
    "build without smoke": Subject.build_without_smoke,
    "plan": Subject.plan,
}
"""What is measured in every round."""
