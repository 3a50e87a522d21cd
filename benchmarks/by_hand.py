"""What people do without the tool: a Dockerfile with one COPY, and `docker build`."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from posixpath import basename

import docker

from benchmarks import process
from benchmarks.process import Taken
from tests.lab import host


def write_context(folder: Path, base: str, layer: bytes) -> None:
    """Write the Dockerfile, and the files of the tool's own layer: one COPY of them all is the fastest there is."""
    for path, data in files(layer).items():
        target = folder / "files" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    (folder / "Dockerfile").write_text(f"FROM {base}\nCOPY files/ /\n")


def build(engine: docker.DockerClient, context: Path, tag: str) -> Taken:
    """Run `docker build`; where there is no such command, the engine's build alone, without a client's time."""
    if client := shutil.which("docker"):
        argv = [client, "build", "--quiet", "--no-cache", "--tag", tag, str(context)]
        return process.run("docker build", argv, os.environ, cwd=context)
    start = time.perf_counter()
    engine.images.build(path=str(context), tag=tag, nocache=True, rm=True)
    return Taken(time.perf_counter() - start, 0.0, 0, "")


def prove_same_files(engine: docker.DockerClient, base: str, made: str, layer: bytes) -> None:
    """Raise LabError unless the image made by hand has the files of the tool's layer, in one layer more."""
    below, above = (engine.images.get(name).attrs["RootFS"]["Layers"] for name in (base, made))
    if above[:-1] != below:
        raise host.LabError("docker build did not add exactly one layer")
    container = engine.containers.create(made, ["true"], network_mode="none")
    try:
        for path, data in files(layer).items():
            stream, _ = container.get_archive(f"/{path}")
            if list(files(b"".join(stream)).values()) != [data]:
                raise host.LabError(f"docker build put another {path} into its image")
    finally:
        container.remove()


def files(tar: bytes) -> Mapping[str, bytes]:
    """Return path -> bytes of a tar's files, whiteouts left out."""
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        entries = [entry for entry in archive if entry.isreg() and not basename(entry.name).startswith(".wh.")]
        return {entry.name: file.read() for entry in entries if (file := archive.extractfile(entry))}
