"""The package's files in a base, and how the folder was found that the base really imports them from."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import shlex
import stat
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from posixpath import basename, dirname, join, normpath
from typing import IO, Any

from builder.doors import Engine, Limits
from builder.errors import InputError, OverlayError, Refused, last_lines
from builder.model import Completed, FileMeta, LocalImage, Oid, SourceTree, TreeFile

EXTRA_FOLDERS = ("/usr", "/usr/share", "/usr/share/overlay")
_KEPT_BYTES = 1 << 20
_PIECE = 1 << 18
_PROBE_LIMITS = Limits(seconds=300, memory_bytes=2 << 30)
_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
# Where a Python may be that neither the command nor PATH names.
_USUAL_PYTHONS = ("python3", "python", "/usr/bin/python3", "/usr/local/bin/python3", "/opt/venv/bin/python3")
_VERSION = re.compile(r"^__version__\s*(?::[^=\n]*)?=\s*(?:version\s*=\s*)?['\"]([^'\"\n]+)['\"]", re.MULTILINE)
_COMMIT = re.compile(r"^__commit_id__\s*(?::[^=\n]*)?=\s*(?:commit_id\s*=\s*)?['\"]g?([0-9a-f]{40})['\"]", re.MULTILINE)
_HINT = "choose with --live-root PATH"


@dataclass(frozen=True)
class _Answer:
    """What one interpreter, started in one way, said: the folder it imports the package from, or why it does not."""

    interpreter: str
    role: str
    mode: str
    first: str
    root: str | None
    trouble: str
    installed: str | None
    direct_url: str | None

    def __str__(self) -> str:
        way = f"{self.interpreter} ({self.role}), started as {self.mode} with {self.first} first"
        return f"{way}: {self.root or self.trouble}"


@dataclass(frozen=True)
class _Told:
    """The probe's whole answer, read and checked."""

    answers: tuple[_Answer, ...]
    copies: tuple[str, ...]
    folders: Mapping[str, FileMeta]
    links: Mapping[str, str]
    live_root: str | None
    working_dir: str


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
    that exist. Refused: no Python, no copy, copies that differ by interpreter or by way of starting, a namespace
    package, or a `live_root` that nothing imports from. A given `live_root` settles which of several it is.
    """
    told = _ask(engine, image, package, live_root, extra_folders)
    chosen = _choose(told, _name(image), package, live_root)
    assert chosen.root is not None
    if fault := next((f"{path} -> {target}" for path, target in told.links.items()), None):
        raise Refused(_name(image), f"a folder the layer needs is a link in the base: {fault}")
    with engine.archive(image.id, join(chosen.root, package)) as stream:
        files, folders = _read_archive(stream, package)
    # The engine's archive has whole seconds only, and what the interpreter saw is exact.
    absolute = {join(chosen.root, path): meta for path, meta in folders.items()}
    version, commit = _version(files, package)
    return SourceTree(
        package=package,
        live_root=chosen.root,
        files=files,
        folders={**absolute, **told.folders},
        version=version or chosen.installed,
        commit=commit or _direct_url_commit(chosen.direct_url),
        found_by=_found_by(chosen, told, live_root),
        interpreter=chosen.interpreter,
        dead_copies=tuple(copy for copy in told.copies if copy != join(chosen.root, package)),
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


# --- asking the image


def _ask(engine: Engine, image: LocalImage, package: str, live_root: str | None, extra_folders: Sequence[str]) -> _Told:
    """Run the probe with the first Python of the image that answers."""
    program = resources.files("builder.smoke").joinpath("probes", "live_root.py").read_text("utf-8")
    nonce = secrets.token_hex(16)
    command = _command(image)
    request = {
        "nonce": nonce,
        "package": package,
        "command": command,
        "live_root": live_root,
        "extra_folders": list(extra_folders),
    }
    said: list[str] = []
    for python in _pythons(command):
        done = engine.run(image.id, [python, "-I", "-c", program, json.dumps(request)], limits=_PROBE_LIMITS)
        if done is None:
            continue
        told = _read_answer(done.stdout, nonce, package)
        if told is not None:
            return told
        said += [f"{python}: {line}" for line in _silence(done)]
    where = _name(image)
    if said:
        raise Refused(where, "no Python of the image answered which copy it imports", facts=said)
    looked = ", ".join(_pythons(command))
    raise Refused(where, f"the image has no Python, so nothing in it imports {package}", facts=[f"tried {looked}"])


def _name(image: LocalImage) -> str:
    return next(iter((*image.repo_tags, *image.repo_digests)), str(image.id))


def _command(image: LocalImage) -> list[str]:
    config = image.config.get("config")
    config = config if isinstance(config, Mapping) else {}
    return [str(word) for key in ("Entrypoint", "Cmd") for word in config.get(key) or ()]


def _pythons(command: Sequence[str]) -> list[str]:
    named = [word for argument in command for word in _split(argument) if _PYTHON.fullmatch(basename(word))]
    return list(dict.fromkeys([*named, *_USUAL_PYTHONS]))


def _split(argument: str) -> list[str]:
    try:
        return shlex.split(argument)
    except ValueError:
        return [argument]


def _silence(done: Completed) -> tuple[str, ...]:
    if done.stopped_by:
        return (f"stopped at the limit of {done.stopped_by}",)
    return last_lines(done.stderr, 3) or (f"exit status {done.exit_code} and no answer",)


def _read_answer(stdout: str, nonce: str, package: str) -> _Told | None:
    """Read what stands between the two nonces; everything around it is the image's own talk."""
    parts = stdout.split(nonce)
    if len(parts) != 3:
        return None
    value = json.loads(parts[1])
    return _Told(
        answers=tuple(_read_one(answer, package) for answer in value["answers"]),
        copies=tuple(value["copies"]),
        folders={path: FileMeta(*numbers) for path, numbers in value["folders"].items()},
        links=value["links"],
        live_root=value["live_root"],
        working_dir=value["working_dir"],
    )


def _read_one(answer: Mapping[str, Any], package: str) -> _Answer:
    origin, locations = answer.get("origin"), answer.get("locations") or []
    root, trouble = None, ""
    if "error" in answer:
        trouble = answer["error"]
    elif "origin" not in answer:
        trouble = f"does not find {package}"
    elif origin is None:
        trouble = f"a namespace package without __init__.py, from {', '.join(locations) or 'nowhere'}"
    elif len(locations) != 1:
        trouble = f"a single file, {origin}" if not locations else f"several folders, {', '.join(locations)}"
    elif basename(locations[0]) != package:
        trouble = f"a link to a folder of another name, {locations[0]}"
    else:
        root = dirname(locations[0])
    known = (answer["interpreter"], answer["role"], answer["mode"], answer["first"])
    return _Answer(*known, root, trouble, answer.get("installed"), answer.get("direct_url"))


def _choose(told: _Told, where: str, package: str, live_root: str | None) -> _Answer:
    """Return the answer that gives the live root, or refuse with all that speaks against one."""
    facts = [str(answer) for answer in told.answers]
    roots = {answer.root for answer in told.answers if answer.root}
    if live_root is not None:
        chosen = next((answer for answer in told.answers if answer.root == told.live_root), None)
        if chosen is None:
            seen = ", ".join(sorted(roots)) or "nowhere"
            message = f"no interpreter of the image imports {package} from {live_root}; they import it from {seen}"
            raise Refused(where, message, hint="leave --live-root away, or give one of these", facts=facts)
        return chosen
    # What the image's command, its console script or PATH would run decides; others only where these have no copy.
    found = [answer for answer in told.answers if _has_copy(answer, package)]
    found = [answer for answer in found if answer.role != "elsewhere"] or found
    if not found:
        raise Refused(where, f"no interpreter of the image imports {package}", facts=facts)
    if len({answer.root for answer in found}) > 1:
        message = f"its interpreters, or the ways to start them, do not import the same copy of {package}"
        raise Refused(where, message, hint=_HINT, facts=[str(answer) for answer in found])
    if found[0].root is None:
        raise Refused(where, f"its interpreters find {package}, but not as a package", facts=facts, hint=_HINT)
    return found[0]


def _has_copy(answer: _Answer, package: str) -> bool:
    return answer.root is not None or answer.trouble != f"does not find {package}"


def _found_by(chosen: _Answer, told: _Told, live_root: str | None) -> str:
    agreeing = [answer for answer in told.answers if answer.root == chosen.root]
    modes = " and ".join(dict.fromkeys(answer.mode for answer in agreeing if answer.interpreter == chosen.interpreter))
    asked = f"import lookup of {chosen.interpreter} ({chosen.role}) in {told.working_dir}, started as {modes}"
    return f"given as {live_root}, and {asked}" if live_root else asked


# --- reading files


def _read_archive(stream: IO[bytes], package: str) -> tuple[dict[str, TreeFile], dict[str, FileMeta]]:
    """Read the tar of the package folder: files by path, and folders."""
    files: dict[str, TreeFile] = {}
    folders: dict[str, FileMeta] = {}
    with tarfile.open(fileobj=stream, mode="r|") as tar:
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
