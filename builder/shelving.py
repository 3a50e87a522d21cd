"""Write what was proposed into the catalogue: patches first, the definition that names them last, all or nothing."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from builder import catalogue
from builder.catalogue import Catalogue, Overlay
from builder.errors import InputError, OverlayError, Refused, Unavailable
from builder.records import write_atomic

_LONGEST_NAME = 100
_LAST_NUMBER = 9999


@dataclass(frozen=True)
class Target:
    """The definition that is edited, or made where `text` is None."""

    name: str
    title: str
    path: Path
    text: bytes | None


def find_target(shelf: Catalogue, overlay: Overlay, title: str, name: str | None, *, is_writing: bool) -> Target:
    """Return the definition to write; refuse before any long work what could not be written in the end."""
    name = overlay.name if name is None else name
    path = shelf.folder / "overlays" / f"{name}.toml"
    if not catalogue.is_name(name) or len(name) > _LONGEST_NAME:
        message = (
            f"{name[:80]!r} is no name: lower-case letters, digits and single dots or dashes, {_LONGEST_NAME} at most"
        )
        raise InputError("--name", message, hint="for example --name dflash2")
    if not overlay.is_bare and name != overlay.name:
        raise InputError("--name", f"the definition {overlay.name} is edited in place", hint="leave --name out")
    if is_writing:
        _refuse_target(shelf, path, is_new=overlay.is_bare)
    return Target(name, title, path, path.read_bytes() if not overlay.is_bare else None)


def _refuse_target(shelf: Catalogue, path: Path, *, is_new: bool) -> None:
    where = f"overlays/{path.name}"
    if shelf.is_packaged:
        message = f"the catalogue in {shelf.folder} is the packaged one; it is never written"
        hint = "make a catalogue of your own (folders overlays, images and patches) and name it with --catalogue"
        raise InputError("--write", message, hint=hint)
    if is_new and os.path.lexists(path):
        raise InputError(where, "is there already", hint=f"choose it with --overlay {path.stem}, or another --name")
    for place in (path, path.parent, shelf.folder / "patches", shelf.folder / "patches" / path.stem):
        if place.is_symlink():
            hint = "name the catalogue it belongs to with --catalogue, or put a copy in its place"
            raise InputError(where, f"{place} is a link to {place.readlink()}; only real files are edited", hint=hint)


def patch_id(shelf: Catalogue, topic: str, slug: str, text: bytes, known: Collection[str]) -> str:
    """Return a name with the next free number, or that of the very same text which nothing of this definition uses yet.

    The latter is what a run left that was killed before it wrote the definition.
    """
    folder = shelf.folder / "patches" / topic
    there = {path.stem: path for path in folder.glob("*.patch")} if folder.is_dir() else {}
    for stem, path in sorted(there.items()):
        if stem[5:] == slug and f"{topic}/{stem}" not in known and path.is_file() and path.read_bytes() == text:
            return f"{topic}/{stem}"
    stems = [*there, *(name.partition("/")[2] for name in known if name.startswith(f"{topic}/"))]
    number = max((int(stem[:4]) for stem in stems if stem[:4].isdigit()), default=0) + 1
    if number > _LAST_NUMBER:
        message = f"the numbers of patches/{topic}/ are used up: the last one is {number - 1}"
        raise InputError(f"patches/{topic}", message, hint="give the patches there lower numbers")
    return f"{topic}/{number:04d}-{slug}"


def write(target: Target, text: str, texts: Mapping[str, bytes], shelf: Catalogue) -> tuple[str, ...]:
    """Write the patches, then the definition that names them; what was written is removed where that fails."""
    written: list[Path] = []
    folder = shelf.folder / "patches" / target.name
    made = [place for place in (folder.parent, folder) if not place.exists()] if texts else []
    try:
        for patch_id, data in texts.items():
            path = shelf.folder / "patches" / f"{patch_id}.patch"
            if not (path.is_file() and path.read_bytes() == data):
                _create(path, data)
                written.append(path)
        if target.text is not None and target.path.read_bytes() != target.text:
            raise Refused(f"overlays/{target.path.name}", "was changed meanwhile", hint="run the same command again")
        if target.text is None and os.path.lexists(target.path):
            raise Refused(f"overlays/{target.path.name}", "was made meanwhile", hint="give another --name")
        write_atomic(target.path, text.encode("utf-8"))
    except BaseException as error:
        for path in written:
            if not _is_named(path, target, shelf):
                path.unlink(missing_ok=True)
        for place in reversed(made):
            with contextlib.suppress(OSError):
                place.rmdir()
        if isinstance(error, OSError):
            raise _unwritable(error, shelf) from None
        raise
    return tuple(path.relative_to(shelf.folder).as_posix() for path in (*written, target.path))


def _is_named(path: Path, target: Target, shelf: Catalogue) -> bool:
    """Tell whether a definition that somebody else wrote meanwhile lists this patch: then it is theirs as well."""
    name = path.relative_to(shelf.folder / "patches").with_suffix("").as_posix()
    try:
        return name.encode() in target.path.read_bytes()
    except OSError:
        return False


def _create(path: Path, data: bytes) -> None:
    """Write a new file whole or not at all; FileExistsError where there is one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        Path(file.name).chmod(0o644)
        os.link(file.name, path)


def _unwritable(error: OSError, shelf: Catalogue) -> OverlayError:
    where = str(error.filename2 or error.filename or shelf.folder)
    message = f"could not be written: {error.strerror or error}; nothing was changed"
    return Unavailable(where, message, hint="mend its rights, or name a catalogue of your own with --catalogue")
