"""The package's files in a base, and how the folder was found that the base really imports them from."""

from __future__ import annotations

import hashlib
import json
import re
import stat
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from posixpath import basename, dirname, join, normpath
from typing import IO

from builder import live_root as live_root_of
from builder.doors import Engine
from builder.errors import InputError, OverlayError, Refused
from builder.model import PLUG_INS, FileMeta, LocalImage, Oid, SourceTree, TreeFile

EXTRA_FOLDERS = ("/usr", "/usr/share", "/usr/share/overlay")
_KEPT_BYTES = 1 << 20
_PIECE = 1 << 18
_VERSION = re.compile(r"^__version__\s*(?::[^=\n]*)?=\s*(?:version\s*=\s*)?['\"]([^'\"\n]+)['\"]", re.MULTILINE)
_COMMIT = re.compile(r"^__commit_id__\s*(?::[^=\n]*)?=\s*(?:commit_id\s*=\s*)?['\"]g?([0-9a-f]{40})['\"]", re.MULTILINE)

_TORCH = re.compile(r"^(__version__|cuda|hip|xpu)\s*(?::[^=\n]*)?=\s*(?:None|['\"]([^'\"\n]+)['\"])", re.MULTILINE)


def extract(
    engine: Engine,
    image: LocalImage,
    *,
    package: str = "sglang",
    live_root: str | None = None,
    extra_folders: Sequence[str] = EXTRA_FOLDERS,
) -> SourceTree:
    """Find the live root by asking the image's own interpreters, and read its package in one stream.

    `folders` of the result has the live root's ancestors, every folder of the package, and those of `extra_folders`
    that exist. A given `live_root` settles which of several it is; see `live_root.find` for what is refused.
    """
    found = live_root_of.find(engine, image, package, given=live_root, extra_folders=extra_folders)
    with engine.archive(image.id, join(found.path, package)) as stream:
        files, folders = _read_archive(stream, package)
    # The engine's archive has whole seconds only, and what the interpreter saw is exact.
    absolute = {join(found.path, path): meta for path, meta in folders.items()}
    version, commit = _version(files, package)
    return SourceTree(
        package=package,
        live_root=found.path,
        files=files,
        folders={**absolute, **found.folders},
        version=version or found.installed,
        commit=commit or _direct_url_commit(found.direct_url),
        found_by=found.found_by,
        interpreter=found.interpreter,
        dead_copies=found.dead_copies,
        distributions={**found.distributions, **_torch_build(found.torch)},
    )


def from_folder(path: Path, package: str = "sglang") -> SourceTree:
    """Read a folder that holds the package: a venv's site-packages, or an unpacked tree. InputError otherwise."""
    root = path.expanduser().resolve()
    top = root / package
    if not (top / "__init__.py").is_file():
        raise InputError(f"dir:{path}", _missing(root, package), hint=_nearby(root, package))
    files = {name: _folder_file(name, root / name) for name in _walk(top, root)}
    folders = [root, *root.parents, top, *(folder for folder in top.rglob("*") if _is_folder(folder))]
    version, commit = _version(files, package)
    return SourceTree(
        package=package,
        live_root=str(root),
        files=files,
        folders={str(folder): _meta(folder) for folder in folders if folder != Path("/")},
        version=version or _installed_version(root, package),
        commit=commit,
        found_by=f"given as dir:{path}",
        distributions=_distributions(root),
    )


def stale_bytecode(tree: SourceTree, changed_paths: Sequence[str]) -> tuple[str, ...]:
    """List the .pyc files of changed or deleted modules: in __pycache__ of any Python, and beside the source."""
    found: set[str] = set()
    for path in changed_paths:
        if path.endswith(".py"):
            folder, stem = dirname(path), re.escape(basename(path).removesuffix(".py"))
            name = re.compile(rf"{re.escape(folder)}/(?:__pycache__/{stem}\.[^./]+(?:\.opt-[^./]+)?|{stem})\.pyc")
            found.update(filter(name.fullmatch, tree.files))
    return tuple(sorted(found))


# --- reading files


def _read_archive(stream: IO[bytes], package: str) -> tuple[dict[str, TreeFile], dict[str, FileMeta]]:
    """Read the tar of the package folder: files by path, and folders."""
    files: dict[str, TreeFile] = {}
    folders: dict[str, FileMeta] = {}
    with tarfile.open(fileobj=stream, mode="r|", bufsize=1 << 16) as tar:
        for entry in tar:
            path = _checked(entry.name, package)
            meta = FileMeta(entry.mode & 0o7777, entry.uid, entry.gid, int(entry.mtime) * 10**9)
            if entry.isdir():
                folders[path] = meta
            elif entry.issym():
                files[path] = _link(entry.linkname, meta)
            elif entry.islnk():
                files[path] = files[_checked(entry.linkname, package)]
            elif (content := tar.extractfile(entry)) is not None:
                files[path] = _tree_file(path, entry.size, meta, content)
            else:
                raise Refused(path, f"is neither file, folder nor link in the base (tar entry type {entry.type!r})")
    return files, folders


def _checked(name: str, package: str) -> str:
    path = name.rstrip("/")
    if normpath(path) != path or path.partition("/")[0] != package:
        raise Refused(repr(name), f"the engine's archive names a path outside {package}/")
    return path


def _tree_file(path: str, size: int, meta: FileMeta, content: IO[bytes]) -> TreeFile:
    """Keep the bytes of sources and other small text; of the rest, only what names them."""
    if path.endswith(".py") or (size < _KEPT_BYTES and not path.endswith(".pyc")):
        data = content.read()
        is_text = path.endswith(".py") or b"\0" not in data[:8000]
        return TreeFile(Oid.of_blob(data), len(data), meta, data if is_text else None)
    blob = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    while piece := content.read(_PIECE):
        blob.update(piece)
    return TreeFile(Oid(blob.hexdigest()), size, meta)


def _link(target: str, meta: FileMeta) -> TreeFile:
    data = target.encode("utf-8", "surrogateescape")
    return TreeFile(Oid.of_blob(data), len(data), meta, None, target)


def _walk(top: Path, root: Path) -> Iterator[str]:
    for path in sorted(top.rglob("*")):
        if not _is_folder(path):
            yield path.relative_to(root).as_posix()


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _folder_file(name: str, path: Path) -> TreeFile:
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return _link(str(path.readlink()), _meta(path))
    if not stat.S_ISREG(status.st_mode):
        raise Refused(str(path), "is neither file, folder nor link")
    with path.open("rb") as content:
        return _tree_file(name, status.st_size, _meta(path), content)


def _meta(path: Path) -> FileMeta:
    status = path.lstat()
    return FileMeta(stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, status.st_mtime_ns)


# --- what a tree says of itself


def _version(files: Mapping[str, TreeFile], package: str) -> tuple[str | None, Oid | None]:
    """Read version and commit from the package's own text, without importing it."""
    version, commit = None, None
    for name in ("_version.py", "version.py", "__init__.py"):
        entry = files.get(f"{package}/{name}")
        text = (entry.data or b"").decode("utf-8", "replace") if entry else ""
        found = _VERSION.search(text)
        version = version or (found[1] if found else None)
        told = _COMMIT.search(text)
        commit = commit or (Oid(told[1]) if told else None)
    return version, commit


def _direct_url_commit(text: str | None) -> Oid | None:
    try:
        return Oid(json.loads(text or "")["vcs_info"]["commit_id"])
    except (ValueError, LookupError, TypeError, OverlayError):
        return None


def _installed_version(root: Path, package: str) -> str | None:
    for folder in sorted(root.glob(f"{package}-*.dist-info")):
        return folder.name.removeprefix(f"{package}-").removesuffix(".dist-info")
    return None


def _distributions(root: Path) -> dict[str, str]:
    """Return the versions of torch and of its plug-ins that stand in a folder."""
    names = (folder.name.removesuffix(".dist-info") for folder in root.glob("*.dist-info"))
    known = {name.lower().replace("-", "_"): version for name, _, version in (name.partition("-") for name in names)}
    modules = {"torch": "torch", **PLUG_INS}
    found = {name: known.get(name, "") for name in modules if name in known or (root / modules[name]).is_dir()}
    own = root / "torch" / "version.py"
    return {**found, **(_torch_build(own.read_text("utf-8", "replace")) if own.is_file() else {})}


def _torch_build(text: str) -> dict[str, str]:
    """Read what torch says it was built for; unlike its metadata, its own file always names that."""
    told = {match[1]: match[2] or "" for match in _TORCH.finditer(text)}
    return {"torch" if name == "__version__" else f"torch.version.{name}": value for name, value in told.items()}


def _missing(root: Path, package: str) -> str:
    if not root.exists():
        return "there is no such folder"
    return f"expected {package}/__init__.py in it, and there is none"


def _nearby(root: Path, package: str) -> str:
    """Name a folder close by that would do."""
    for folder in (root.parent, root / "python", *sorted(root.glob("lib/python3*/site-packages")), root / package):
        if (folder / package / "__init__.py").is_file():
            return f"give dir:{folder}"
    return f"give the folder that holds {package}/, for example a site-packages"
