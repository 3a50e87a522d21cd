"""The lab's cache folder: each artefact is made once per recipe, and never half."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from filelock import FileLock

from tests.lab import host


def _folder() -> Path:
    chosen = host.ENVIRONMENT.get("OVERLAY_LAB_CACHE")
    if chosen:
        return Path(chosen).absolute()
    home = host.ENVIRONMENT.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(home).absolute() / "overlay-lab"


#: Found at import, that is before the tests point HOME and XDG_CACHE_HOME elsewhere.
FOLDER: Final = _folder()


def recipe_key(*inputs: str) -> str:
    """Name a recipe by what goes into it: its version, names of inputs, texts."""
    return hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:16]


def lock(name: str) -> FileLock:
    """Return the machine-wide lock of one artefact, image or service."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    folder = FOLDER / "locks"
    folder.mkdir(exist_ok=True)
    return FileLock(folder / f"{name.replace('/', '-')}.lock")


def made_once(name: str, key: str, make: Callable[[Path], None]) -> Path:
    """Return the artefact `name`, made by `make(path)` unless one of the same recipe is there.

    `make` writes a file or a folder at the path that it is given. The stamp beside the
    artefact is written last, so a crash at any point leaves something that is made again.
    """
    target = FOLDER / name
    stamp = target.with_name(target.name + ".recipe")
    if _is_current(target, stamp, key):
        return target
    with lock(name):
        if not _is_current(target, stamp, key):
            _make(target, stamp, key, make)
    return target


def _is_current(target: Path, stamp: Path, key: str) -> bool:
    return target.exists() and stamp.is_file() and stamp.read_text() == key


def _make(target: Path, stamp: Path, key: str, make: Callable[[Path], None]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        made = scratch / target.name
        make(made)
        stamp.unlink(missing_ok=True)
        _remove(target)
        made.rename(target)
        write_atomically(stamp, key)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Write a small text file so that a reader sees the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    Path(name).replace(path)
