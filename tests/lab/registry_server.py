"""Debian's docker-registry on loopback: the hub, as a registry mirror sees it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import docker
import requests
from docker.errors import APIError

from tests.lab import host, packages, services

#: The repository of the official images, and so of the lab's.
HUB_REPOSITORY: Final = "lmsysorg/sglang"

_CONFIG: Final = """\
version: 0.1
log:
  level: info
storage:
  filesystem:
    rootdirectory: {root}
  delete:
    enabled: true
http:
  addr: {address}
"""

_MANIFEST_TYPES: Final = ", ".join(
    [
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.oci.image.manifest.v1+json",
    ]
)


@dataclass(frozen=True)
class Registry:
    """A running registry; `prefix` is what a user gives as `--registry-mirror`."""

    prefix: str
    engine: docker.DockerClient

    @property
    def url(self) -> str:
        return f"http://{self.prefix}"

    def push(self, image: str, tag: str, repository: str = HUB_REPOSITORY) -> str:
        """Push a local image; return its digest. The name that pushing needs is removed again."""
        name = f"{self.prefix}/{repository}"
        self.engine.images.get(image).tag(name, tag)
        try:
            digest = self._push(name, tag)
        finally:
            self.engine.images.remove(f"{name}:{tag}", noprune=True)
        return digest

    def digest(self, tag: str, repository: str = HUB_REPOSITORY) -> str:
        """Return the digest that a tag points at."""
        headers = {"Accept": _MANIFEST_TYPES}
        answer = self._ask("HEAD", f"{repository}/manifests/{tag}", headers)
        answer.raise_for_status()
        return answer.headers["Docker-Content-Digest"]

    def delete(self, digest: str, repository: str = HUB_REPOSITORY) -> None:
        """Delete a manifest, as the hub does with old nightly images."""
        self._ask("DELETE", f"{repository}/manifests/{digest}").raise_for_status()

    def answers(self) -> bool:
        """Tell whether the registry is up."""
        try:
            return self._ask("GET", "").ok
        except requests.RequestException:
            return False

    def _ask(self, method: str, path: str, headers: Mapping[str, str] | None = None) -> requests.Response:
        # A session without the environment: a user's proxy is not for loopback.
        with requests.Session() as session:
            session.trust_env = False
            return session.request(method, f"{self.url}/v2/{path}", headers=headers, timeout=30)

    def _push(self, name: str, tag: str) -> str:
        digest = ""
        try:
            for line in self.engine.api.push(name, tag=tag, stream=True, decode=True):
                if "error" in line:
                    raise host.LabError(f"docker does not push {name}:{tag}: {line['error']}")
                digest = line.get("aux", {}).get("Digest", digest)
        except APIError as error:
            raise host.LabError(f"docker does not push {name}:{tag}: {error}") from error
        return digest


@contextmanager
def registry(engine: docker.DockerClient, root: Path) -> Iterator[Registry]:
    """Run a registry over a folder of blobs; what an earlier one left there is served too."""
    port = services.free_port()
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="overlay-lab-registry-") as name:
        config = Path(name) / "config.yml"
        config.write_text(_CONFIG.format(root=root, address=f"127.0.0.1:{port}"))
        made = Registry(f"127.0.0.1:{port}", engine)
        argv: list[str | Path] = [packages.program("docker-registry"), "serve", config]
        server = services.start(argv, log=Path(name) / "log", is_ready=made.answers)
        try:
            yield made
        finally:
            services.stop(server)
