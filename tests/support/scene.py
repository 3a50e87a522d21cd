"""A small world for whole-pipeline tests: a toy base, an upstream with pull requests, a catalogue, and the command."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker

from tests.lab.images import RunLabel

ROOT = "/sgl-workspace/sglang/python"
PTH = "/usr/lib/python3/dist-packages/__editable__.sglang.pth"

A = "".join(f"def f{n}():\n    return {n}\n\n\n" for n in range(6))
B = "from sglang.srt.a import f1\n\nVALUE = f1()\n"


def base_files(**files: str) -> dict[str, str]:
    """Return the image paths of a toy `sglang`; keywords are module names below `srt` with another text."""
    modules = {"a": A, "b": B, **files}
    package = {f"{ROOT}/sglang/srt/{name}.py": text for name, text in modules.items()}
    return {
        PTH: f"{ROOT}\n",
        f"{ROOT}/sglang/__init__.py": "",
        f"{ROOT}/sglang/version.py": '__version__ = "1.0"\n',
        **package,
    }


def upstream_files(**files: str) -> dict[str, str]:
    """Return the same modules under upstream's paths."""
    return {f"python/sglang/srt/{name}.py": text for name, text in {"a": A, "b": B, **files}.items()}


@dataclass(frozen=True)
class Result:
    """What one run of the command printed."""

    exit_code: int
    document: dict[str, Any]
    stderr: str

    @property
    def states(self) -> dict[str, str]:
        """Package path -> state."""
        return {entry["path"]: entry["state"] for entry in self.document["files"]}


@dataclass(frozen=True)
class Scene:
    """Runs the command with one upstream and one catalogue, and looks at what it left in the engine."""

    overlay: Any
    catalogue: Path
    upstream: Path
    engine: docker.DockerClient
    run_label: RunLabel

    def run(self, command: str, *arguments: str | Path, **environment: str) -> Result:
        """Run a command with `--json`; its standard output must be one document."""
        settings = ("--catalogue", self.catalogue, "--upstream", self.upstream, "--json")
        done = self.overlay(command, *settings, *arguments, **environment)
        return Result(done.returncode, json.loads(done.stdout), done.stderr)

    def build(self, base: str, *arguments: str | Path, **environment: str) -> Result:
        """Build on a base with a tag of this run."""
        return self.run("build", "--base", base, "--tag", self.tag, *arguments, **environment)

    @property
    def tag(self) -> str:
        """A tag that is removed with the run."""
        return f"overlay-lab-run/{self.run_label.value}:built"

    def image_id(self, reference: str) -> str | None:
        """Return an image's ID, None where there is no such image."""
        try:
            return str(self.engine.images.get(reference).id)
        except docker.errors.ImageNotFound:
            return None

    def read_file(self, path: str, reference: str | None = None) -> bytes:
        """Read one file of an image, the built one unless another is named."""
        container = self.engine.containers.create(reference or self.tag, entrypoint=["/nothing"], network_mode="none")
        try:
            stream, _ = container.get_archive(path)
            with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as tar:
                member = tar.extractfile(tar.getmembers()[0])
                assert member is not None
                return member.read()
        finally:
            container.remove()

    def containers(self) -> list[str]:
        """List this run's containers."""
        return [str(container.id) for container in self.run_label.containers(self.engine)]

    def untagged(self) -> set[str]:
        """List this run's images without a tag."""
        return {str(image.id) for image in self.run_label.images(self.engine) if not image.tags}

    def define(self, name: str, text: str, patches: Mapping[str, str] | None = None) -> None:
        """Write a definition and its patches."""
        (self.catalogue / f"overlays/{name}.toml").write_text(text)
        for patch_id, patch in (patches or {}).items():
            path = self.catalogue / f"patches/{patch_id}.patch"
            path.parent.mkdir(exist_ok=True)
            path.write_text(patch)


def write_catalogue(folder: Path) -> Path:
    """Make an empty catalogue."""
    for name in ("overlays", "images", "patches"):
        (folder / name).mkdir(parents=True)
    return folder
