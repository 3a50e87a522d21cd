"""An engine in memory: images are a config and layers, containers are programs of this machine.

Kept honest by the contract in tests/test_engine.py, which runs on it and on the real daemon. What it cannot do is
stated there: it confines nothing.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from posixpath import basename, dirname, join
from typing import IO, Any

from builder.doors import EngineInfo, Limits, Progress
from builder.errors import InputError, Refused, Unavailable
from builder.model import Completed, Digest, ImageRef, Layer, LocalImage, Platform

AMD64 = Platform("linux", "amd64")
WHITEOUT = ".wh."

Script = Callable[[Sequence[str], bytes], Completed | None]
"""(argv, stdin) -> what the program left; None where the image has no such program."""


@dataclass(frozen=True)
class FakeImage:
    """One image: config blob and layers, each an uncompressed tar."""

    config: bytes
    layers: tuple[bytes, ...]
    tags: tuple[str, ...] = ()
    repo_digests: tuple[str, ...] = ()
    id: Digest = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", Digest.of(self.config))

    @property
    def told(self) -> dict[str, Any]:
        value = json.loads(self.config)
        assert isinstance(value, dict)
        return value

    @property
    def local(self) -> LocalImage:
        told = self.told
        run_config = told.get("config") or {}
        return LocalImage(
            id=self.id,
            repo_digests=self.repo_digests,
            repo_tags=self.tags,
            platform=Platform(told["os"], told["architecture"], told.get("variant", "")),
            diff_ids=tuple(Digest(diff_id) for diff_id in told["rootfs"]["diff_ids"]),
            config=told,
            labels=dict(run_config.get("Labels") or {}),
            size=sum(map(len, self.layers)),
        )

    def files(self) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
        """Return what a container of the image sees: absolute path -> entry and content."""
        found: dict[str, tuple[tarfile.TarInfo, bytes]] = {}
        for layer in self.layers:
            with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
                for entry in tar:
                    path = "/" + entry.name.strip("/")
                    file = tar.extractfile(entry) if entry.isreg() else None
                    if basename(path).startswith(WHITEOUT):
                        hidden = join(dirname(path), basename(path).removeprefix(WHITEOUT))
                        found = {name: kept for name, kept in found.items() if not _is_below(name, hidden)}
                    else:
                        found[path] = (entry, file.read() if file else b"")
        return found


class FakeEngine:
    """Implements builder.doors.Engine. `script` answers `run`; without it programs of this machine do."""

    def __init__(self, script: Script | None = None, ways: Sequence[str] = ("load", "commit")) -> None:
        self.script = script
        self.ways = tuple(ways)
        self.stored: dict[Digest, FakeImage] = {}
        self.remote: dict[str, FakeImage] = {}
        """What can be pulled: reference as written -> image."""

    def add(
        self,
        files: Mapping[str, bytes | str],
        *,
        config: Mapping[str, object] | None = None,
        tags: Sequence[str] = (),
        repo_digests: Sequence[str] = (),
        platform: Platform = AMD64,
    ) -> LocalImage:
        """Make an image of one layer; files below a folder `bin` may be run."""
        layer = _tar(files)
        told = {
            "architecture": platform.architecture,
            "os": platform.os,
            **({"variant": platform.variant} if platform.variant else {}),
            "created": "2026-01-01T00:00:00Z",
            "config": dict(config or {}),
            "rootfs": {"type": "layers", "diff_ids": [Digest.of(layer)]},
            "history": [{"created": "2026-01-01T00:00:00Z", "comment": "made by a test"}],
        }
        made = FakeImage(json.dumps(told).encode(), (layer,), tuple(tags), tuple(repo_digests))
        self.stored[made.id] = made
        return made.local

    def info(self) -> EngineInfo:
        return EngineInfo("0", "memory", AMD64)

    def inspect(self, reference: str) -> LocalImage | None:
        found = self._find(reference)
        return found.local if found else None

    def find(self, label: str, value: str) -> tuple[LocalImage, ...]:
        return tuple(image for image in self.images() if image.labels.get(label) == value)

    def images(self) -> Iterator[LocalImage]:
        yield from [image.local for image in self.stored.values()]

    def pull(self, reference: ImageRef, platform: Platform, progress: Progress) -> LocalImage:
        if reference.digest is None and self.inspect(str(reference)) is not None:
            raise Refused(str(reference), "a local image has this tag, and a pull by tag could move it")
        image = self.remote.get(str(reference))
        if image is None:
            raise Refused(str(reference), "the registry has no such image")
        if image.local.platform != platform:
            raise Refused(str(reference), "has no image for this platform")
        progress(f"pull {reference}", 1, 1)
        names = {"repo_digests": (str(reference),)} if reference.digest else {"tags": (_tag_name(reference),)}
        self.stored[image.id] = replace(image, **names)  # type: ignore[arg-type]
        return self.stored[image.id].local

    def run(
        self,
        image: Digest,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        working_dir: str | None = None,
        limits: Limits | None = None,
        user: str | None = None,
    ) -> Completed | None:
        made = self._present(image)
        if self.script is not None:
            return self.script(argv, stdin)
        run_config = made.told.get("config") or {}
        own = dict(entry.split("=", 1) for entry in run_config.get("Env") or ())
        files = made.files()
        folders = [""] if "/" in argv[0] else own.get("PATH", "/usr/local/bin:/usr/bin:/bin").split(":")
        path = next((found for folder in folders if (found := join(folder, argv[0])) in files), None)
        if path is None:
            return None
        if not files[path][0].mode & 0o111:
            return Completed(126, "", f"{path}: permission denied")
        with tempfile.TemporaryDirectory() as name:
            root = _unpack(files, Path(name))
            scratch = root / "tmp"
            scratch.mkdir(exist_ok=True)
            work = root / (working_dir or run_config.get("WorkingDir") or "/").lstrip("/")
            program = sys.executable if basename(path).startswith("python") else shutil.which(basename(path)) or path
            ours = {"HOME": str(scratch), "PYTHONDONTWRITEBYTECODE": "1", "PATH": os.environ["PATH"]}
            env = {**own, **ours, **(environment or {})}
            return _run([program, *argv[1:]], stdin, env, work, limits or Limits())

    @contextmanager
    def archive(self, image: Digest, path: str) -> Iterator[IO[bytes]]:
        files = self._present(image).files()
        if path not in files and not any(_is_below(name, path) for name in files):
            raise InputError(path, "the image has no such path")
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for name in sorted(name for name in files if _is_below(name, path)):
                entry, data = files[name]
                entry = entry.replace(name=basename(path) + name.removeprefix(path), deep=False)
                entry.mtime = int(entry.mtime)
                tar.addfile(entry, io.BytesIO(data))
        buffer.seek(0)
        yield buffer

    def load(self, config: bytes, layer: Layer, base: LocalImage, deletions: Sequence[str]) -> tuple[LocalImage, str]:
        below = self.stored.get(base.id)
        if below is None:
            raise Unavailable("docker", f"the base {base.id} is not in the engine any more")
        way = self.ways[0]
        if way == "commit":
            # As a real commit: its own time, so another id.
            config = json.dumps({**json.loads(config), "created": f"2026-01-01T00:00:{len(self.stored):02d}Z"}).encode()
        made = FakeImage(config, (*below.layers, layer.tar))
        self.stored.setdefault(made.id, made)
        return self.stored[made.id].local, way

    def tag(self, image: Digest, reference: ImageRef) -> None:
        if reference.digest is not None:
            raise InputError(str(reference), "is pinned by digest and cannot be a tag")
        self._present(image)
        name = _tag_name(reference)
        for other in list(self.stored.values()):
            tags = tuple(tag for tag in other.tags if tag != name)
            self.stored[other.id] = replace(other, tags=(*tags, name) if other.id == image else tags)

    def remove(self, image: Digest) -> None:
        found = self.stored.get(image)
        if found and not found.tags and not found.repo_digests:
            del self.stored[image]

    def _find(self, reference: str) -> FakeImage | None:
        for image in self.stored.values():
            names = {image.id, *image.tags, *image.repo_digests}
            if reference in names or f"{reference}:latest" in names:
                return image
        return None

    def _present(self, image: str) -> FakeImage:
        found = self._find(image)
        if found is None:
            raise InputError(image, "the engine has no such image")
        return found


def _tag_name(reference: ImageRef) -> str:
    return f"{reference.repository}:{reference.tag or 'latest'}"


def _is_below(name: str, folder: str) -> bool:
    return name == folder or name.startswith(folder.rstrip("/") + "/")


def _tar(files: Mapping[str, bytes | str]) -> bytes:
    buffer = io.BytesIO()
    folders = {parent for path in files for parent in _parents(path)}
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path in sorted({*folders, *files}):
            content = files.get(path, b"")
            data = content.encode() if isinstance(content, str) else content
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.mtime, entry.size, entry.mode = 1_700_000_000, len(data), 0o644
            if path in folders:
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            elif basename(dirname(path)) == "bin":
                entry.mode = 0o755
            tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def _parents(path: str) -> Iterator[str]:
    while (path := dirname(path)).strip("/"):
        yield path


def _unpack(files: Mapping[str, tuple[tarfile.TarInfo, bytes]], root: Path) -> Path:
    for path in sorted(files):
        entry, data = files[path]
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if entry.isdir():
            target.mkdir(exist_ok=True)
        elif entry.issym():
            target.symlink_to(entry.linkname)
        else:
            target.write_bytes(data)
            target.chmod(entry.mode)
    return root


def _run(argv: Sequence[str], stdin: bytes, env: Mapping[str, str], work: Path, limits: Limits) -> Completed:
    try:
        done = subprocess.run(argv, input=stdin, env=env, cwd=work, capture_output=True, timeout=limits.seconds)
    except subprocess.TimeoutExpired as late:
        return Completed(None, (late.stdout or b"").decode(), (late.stderr or b"").decode(), "time")
    return Completed(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))
