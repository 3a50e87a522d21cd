"""Write image layers as tar files: sorted, with a fixed time, owners and modes as told."""

from __future__ import annotations

import io
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Final, NamedTuple

#: 2026-07-20, release day of the lab's 0.5.17; older than every commit a test lays on top.
MTIME: Final = 1784548800


class Owner(NamedTuple):
    """Who owns files, and their modes."""

    uid: int = 0
    gid: int = 0
    folder_mode: int = 0o755
    file_mode: int = 0o644


ROOT: Final = Owner()


@dataclass(frozen=True)
class _Entry:
    content: Path | bytes | None
    owner: Owner
    mode: int


class Layer:
    """Collect what a layer holds, then write it.

    Parents of a path are written as entries too, as root's, unless a folder of that name was
    put. `parents=False` leaves them to whoever unpacks: two tars joined into one may not both
    name the same folder.
    """

    def __init__(self, *, parents: bool = True) -> None:
        self._parents = parents
        self._entries: dict[str, _Entry] = {}

    def put(self, path: str, content: bytes | str, *, mode: int = 0, owner: Owner = ROOT) -> None:
        """Add a file."""
        data = content.encode() if isinstance(content, str) else content
        self._add(path, _Entry(data, owner, mode or owner.file_mode))

    def put_folder(self, path: str, *, owner: Owner = ROOT) -> None:
        """Add an empty folder."""
        self._add(path, _Entry(None, owner, owner.folder_mode))

    def put_tree(self, path: str, source: Path, *, owner: Owner = ROOT) -> None:
        """Add a folder of the host with all that it holds."""
        self.put_folder(path, owner=owner)
        for found in source.rglob("*"):
            name = f"{path}/{found.relative_to(source).as_posix()}"
            if found.is_dir():
                self.put_folder(name, owner=owner)
            else:
                executable = 0o111 if found.stat().st_mode & 0o100 else 0
                self._add(name, _Entry(found, owner, owner.file_mode | executable))

    def write(self, file: IO[bytes]) -> None:
        """Write the tar."""
        with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for path in sorted(self._entries):
                _write_entry(archive, path, self._entries[path])

    def _add(self, path: str, entry: _Entry) -> None:
        name = path.strip("/")
        for parent in PurePosixPath(name).parents:
            if parent.name and self._parents:
                self._entries.setdefault(str(parent), _Entry(None, ROOT, ROOT.folder_mode))
        self._entries[name] = entry


def _write_entry(archive: tarfile.TarFile, path: str, entry: _Entry) -> None:
    info = tarfile.TarInfo(path)
    info.mtime, info.mode = MTIME, entry.mode
    info.uid, info.gid = entry.owner.uid, entry.owner.gid
    if entry.content is None:
        info.type = tarfile.DIRTYPE
        archive.addfile(info)
        return
    with _opened(entry.content) as file:
        info.size = file.seek(0, io.SEEK_END)
        file.seek(0)
        archive.addfile(info, file)


def _opened(content: Path | bytes) -> IO[bytes]:
    return io.BytesIO(content) if isinstance(content, bytes) else content.open("rb")
