"""Make local images, and use one again when its label names the same recipe."""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import docker
from docker.errors import APIError, BuildError, ImageNotFound, NotFound
from docker.models.containers import Container
from docker.models.images import Image

from tests.lab import cache, host
from tests.lab.layers import Layer

RECIPE_LABEL: Final = "org.overlay.lab.recipe"
RUN_LABEL: Final = "org.overlay.lab.run"
REPOSITORY: Final = "overlay-lab"


@dataclass(frozen=True)
class RunLabel:
    """Marks what one run makes in Docker, so that it can be removed by it.

    Images built on a labelled base inherit the label, and so do their containers.
    """

    value: str

    @property
    def labels(self) -> dict[str, str]:
        return {RUN_LABEL: self.value}

    @property
    def filters(self) -> dict[str, str | list[str] | bool]:
        return {"label": f"{RUN_LABEL}={self.value}"}

    def containers(self, engine: docker.DockerClient) -> list[Container]:
        """List this run's containers, stopped ones too."""
        return list(engine.containers.list(all=True, filters=self.filters, ignore_removed=True))

    def images(self, engine: docker.DockerClient) -> list[Image]:
        """List this run's images."""
        return list(engine.images.list(filters=self.filters))

    def remove_all(self, engine: docker.DockerClient) -> None:
        """Remove what this run left in Docker."""
        for container in self.containers(engine):
            with suppress(NotFound):
                container.remove(force=True, v=True)
        for image in self.images(engine):
            # An image that another one was built on goes when that one is gone.
            with suppress(NotFound, APIError):
                engine.images.remove(str(image.id), force=True)
        for image in self.images(engine):
            with suppress(NotFound):
                engine.images.remove(str(image.id), force=True)


def client() -> docker.DockerClient:
    """Connect to the daemon that the environment names, as it was before tests sealed it."""
    return docker.from_env(environment=dict(host.ENVIRONMENT), timeout=600)


def image_id(engine: docker.DockerClient, name: str) -> str | None:
    """Return a local image's ID, or None."""
    try:
        return str(engine.images.get(name).id)
    except ImageNotFound:
        return None


def made_once(engine: docker.DockerClient, name: str, key: str, make: Callable[[str, Mapping[str, str]], None]) -> str:
    """Return the ID of the image `name`, made by `make(name, labels)` unless it is there.

    An image that has the name by another recipe of the lab is removed.
    """
    if found := _current(engine, name, key):
        return found
    with cache.lock(f"image-{name}"):
        if found := _current(engine, name, key):
            return found
        before = image_id(engine, name)
        make(name, {RECIPE_LABEL: key})
        _remove_if_of_lab(engine, before)
        if made := _current(engine, name, key):
            return made
    raise host.LabError(f"{name} was made, but without the label of its recipe")


def _remove_if_of_lab(engine: docker.DockerClient, image: str | None) -> None:
    # Not if something still stands on it: then it goes with the last of those.
    with suppress(APIError):
        if image and RECIPE_LABEL in engine.images.get(image).labels:
            engine.images.remove(image)


def _current(engine: docker.DockerClient, name: str, key: str) -> str | None:
    try:
        image = engine.images.get(name)
    except ImageNotFound:
        return None
    return str(image.id) if image.labels.get(RECIPE_LABEL) == key else None


def build(
    engine: docker.DockerClient,
    name: str,
    below: str,
    *,
    layer: Layer | None = None,
    lines: Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
) -> str:
    """Put one layer and some Dockerfile lines on an image; return the new image's ID."""
    dockerfile = [f"FROM {below}"]
    if layer is not None:
        dockerfile.append("ADD layer.tar /")
    dockerfile += lines
    dockerfile += [f"LABEL {key}={json.dumps(value)}" for key, value in (labels or {}).items()]
    with tempfile.TemporaryFile() as context:
        _write_context(context, "\n".join(dockerfile) + "\n", layer)
        context.seek(0)
        return _build(engine, name, context)


def _build(engine: docker.DockerClient, name: str, context: IO[bytes]) -> str:
    try:
        image, _ = engine.images.build(
            fileobj=context, custom_context=True, tag=name, rm=True, forcerm=True, network_mode="none"
        )
    except (APIError, BuildError) as error:
        raise host.LabError(f"docker does not build {name}: {error}") from error
    return str(image.id)


def _write_context(file: IO[bytes], dockerfile: str, layer: Layer | None) -> None:
    with tarfile.open(fileobj=file, mode="w") as archive:
        _add(archive, "Dockerfile", io.BytesIO(dockerfile.encode()))
        if layer is not None:
            with tempfile.TemporaryFile() as inner:
                layer.write(inner)
                _add(archive, "layer.tar", inner)


def _add(archive: tarfile.TarFile, name: str, file: IO[bytes]) -> None:
    info = tarfile.TarInfo(name)
    info.size = file.seek(0, 2)
    file.seek(0)
    archive.addfile(info, file)


def import_tar(
    engine: docker.DockerClient,
    name: str,
    chunks: Iterator[bytes],
    *,
    lines: Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
) -> str:
    """Make an image of one layer out of a tar of a root filesystem; return its ID."""
    repository, _, tag = name.rpartition(":")
    changes = [*lines, *(f"LABEL {key}={json.dumps(value)}" for key, value in (labels or {}).items())]
    said = engine.api.import_image_from_data(chunks, repository=repository, tag=tag, changes=changes)
    # The daemon answers 200 before it reads the tar, and tells of errors in the body.
    if "errorDetail" in said:
        raise host.LabError(f"docker does not import {name}: {said.strip()}")
    return str(engine.images.get(name).id)


def chunks(path: Path, start: int = 0, end: int | None = None) -> Iterator[bytes]:
    """Read a part of a file piece by piece, for a request's body."""
    left = path.stat().st_size if end is None else end
    with path.open("rb") as file:
        file.seek(start)
        left -= start
        while piece := file.read(min(left, 1 << 20)):
            left -= len(piece)
            yield piece
