"""DOOR: pyrefly, a type checker, as a bounded child over trees written out for it; nothing of them is imported.

The answer depends on the files, the checker's version and the settings below alone: not on what is installed here, on
configuration files that lie around, or on the environment. So it is kept by a digest of these.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import tokenize
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from builder.doors import Complaint, Limits
from builder.errors import InputError, Unavailable, last_lines
from builder.model import Oid, Tree
from builder.records import write_atomic

KINDS = (
    "bad-argument-count",
    "bad-instantiation",
    "bad-override",
    "missing-argument",
    "missing-attribute",
    "missing-import",
    "missing-module-attribute",
    "no-matching-overload",
    "unexpected-keyword",
    "unexpected-positional-argument",
    "unknown-name",
)
"""What is asked for: things that are not there, and calls that do not fit."""

_SETTINGS = """\
preset = "default"
python-version = "3.12"
python-platform = "linux"
search-path = ["tree"]
site-package-path = ["stubs"]
skip-interpreter-query = true
disable-search-path-heuristics = true
disable-project-excludes-heuristics = true
project-excludes = []
use-ignore-files = false
enabled-ignores = []
check-unannotated-defs = true
infer-return-types = "checked"
"""
"""All that could come from elsewhere is set. No ignore comment counts: upstream's own hide what an older base lacks."""

_STUBS = {
    "msgspec/__init__.pyi": """\
from typing import Any, dataclass_transform

def field(*, default: Any = ..., default_factory: Any = ..., name: Any = ...) -> Any: ...
@dataclass_transform(field_specifiers=(field,))
class Struct:
    __struct_fields__: tuple[str, ...]
    __struct_config__: Any
    def __init_subclass__(cls, **settings: Any) -> None: ...

def __getattr__(name: str) -> Any: ...
"""
}
"""What is told of other packages: that a struct has the fields it declares. All the rest of them may be anything."""

_CANARY = "overlay_canary"
_FAULTS = """\
from overlay_canary.lib import Box, Own, absent, f, told
import overlay_canary.nowhere

f(1, three=3)
f()
f(1, 2)
told(2.5)
Box().sise
nothing
"""
_SOUND = """\
from typing import overload
from abc import ABC, abstractmethod

def f(one, *, two=2):
    return one

@overload
def told(a: int) -> int: ...
@overload
def told(a: str) -> str: ...
def told(a):
    return a

class Box:
    size = 1
    def m(self, a): ...

class Own(Box):
    def m(self): ...
"""
_PROVES = frozenset(KINDS) - {"bad-instantiation", "unexpected-positional-argument"}
"""Kinds that the faults above must show in every answer: a checker that is silent on them is silent on all."""

_FORM = "4"
"""Changes with the form of what is kept."""

_STALE_SECONDS = 24 * 3600

_LAUNCHER = """\
import ctypes, os, resource, signal, sys
try:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
except (AttributeError, OSError):
    pass
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Bounds the child's memory from inside, where no lock of ours can be held; and lets it end with us, however we end."""

_ENVIRONMENT = ("PATH", "HOME", "TMPDIR")


class Pyrefly:
    """The checker as it is installed beside this tool; `cache` keeps its answers."""

    name = "pyrefly"

    def __init__(self, cache: Path, limits: Limits | None = None) -> None:
        self._cache = cache.absolute()
        self._limits = limits or Limits(seconds=600)
        self._version = ""

    def version(self) -> str:
        """Return its version; Unavailable if it cannot be run."""
        if not self._version:
            done = self._run([self._program, "--version"], cwd=None)
            word = done.stdout.strip().removeprefix("pyrefly ")
            if done.returncode != 0 or not re.fullmatch(r"\d+(\.\w+)+", word):
                raise self._failed(f"exited {done.returncode} when asked for its version", done.stderr)
            self._version = word
        return self._version

    def check(self, tree: Tree, package: str, files: Collection[str] | None = None) -> tuple[Complaint, ...]:
        """Return what it says of these files (all of the package if None), imports followed within the tree.

        Unavailable, with its own last words, where it did not come to an end within its bounds.
        """
        blobs = _blobs(tree, package)
        wanted = sorted(blobs if files is None else blobs.keys() & set(files))
        if not wanted:
            return ()
        kept = self._cache / "answers" / f"{self._key(blobs, None if files is None else wanted)}.json"
        if (known := _read(kept, blobs)) is not None:
            return known
        try:
            found = self._ask(tree, blobs, [package] if files is None else wanted)
        except OSError as error:
            where = error.filename or self._scratch or tempfile.gettempdir()
            hint = "free space, or set XDG_CACHE_HOME to a folder that can be written"
            message = f"the tree could not be written out for it: {where}: {error.strerror}"
            raise Unavailable("type checker", message, hint=hint) from None
        # An answer that cannot be kept is an answer all the same.
        with suppress(Unavailable):
            write_atomic(kept, json.dumps([[c.kind, c.path, c.line, c.message, c.column] for c in found]).encode())
        return found

    def _key(self, blobs: dict[str, Oid], wanted: Sequence[str] | None) -> str:
        value = [_FORM, self.version(), _SETTINGS, _STUBS, KINDS, wanted, sorted(blobs.items())]
        return hashlib.sha256(json.dumps(value).encode()).hexdigest()

    def _ask(self, tree: Tree, blobs: dict[str, Oid], targets: Sequence[str]) -> tuple[Complaint, ...]:
        with tempfile.TemporaryDirectory(dir=self._scratch, prefix="run-") as name:
            folder = Path(name).resolve()  # it names files by their real paths
            root = folder / "tree"
            self._write_out(tree, blobs, root)
            texts = {f"stubs/{path}": text for path, text in _STUBS.items()}
            texts |= {f"tree/{_CANARY}/lib.py": _SOUND, f"tree/{_CANARY}/user.py": _FAULTS}
            for path, text in texts.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_text(text)
            settings = folder / "pyrefly.toml"
            settings.write_text(_SETTINGS)
            answer = folder / "answer.json"
            options = ["--config", str(settings), "--output", f"json:{answer}", "--progress-bar", "no"]
            options += [word for kind in KINDS for word in ("--only", kind)]
            done = self._run([self._program, "check", *options, "--", *targets, _CANARY], cwd=root)
            # It exits 1 when it found something; what it wrote decides.
            if done.returncode not in (0, 1):
                raise self._failed(_end(done.returncode), done.stderr or done.stdout)
            found = self._answer(answer, root, done.stderr)
            if lacking := _PROVES - {c.kind for c in found if c.path.startswith(f"{_CANARY}/")}:
                raise self._failed(f"does not find the faults it is shown: {', '.join(sorted(lacking))}", done.stderr)
            return tuple(complaint for complaint in found if complaint.path in blobs)

    def _answer(self, path: Path, root: Path, said: str) -> tuple[Complaint, ...]:
        try:
            errors: list[dict[str, Any]] = json.loads(path.read_bytes())["errors"]
            found = [
                Complaint(
                    str(e["name"]),
                    _relative(str(e["path"]), root),
                    int(e["line"]),
                    str(e["concise_description"]),
                    int(e["column"]),
                )
                for e in errors
                if e["name"] in KINDS
            ]
        except (OSError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
            raise self._failed(f"gave no answer that can be read ({type(error).__name__})", said) from None
        return tuple(sorted(set(found), key=lambda c: (c.path, c.line, c.kind, c.message, c.column)))

    def _write_out(self, tree: Tree, blobs: dict[str, Oid], root: Path) -> None:
        for path in blobs:
            place = root / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(_as_utf8(_source(tree, path)))

    @cached_property
    def _program(self) -> str:
        beside = Path(sysconfig.get_path("scripts")) / "pyrefly"
        found = str(beside) if beside.exists() else shutil.which("pyrefly")
        if found is None:
            raise Unavailable("type checker", "pyrefly is not installed", hint="pip install pyrefly")
        return found

    @cached_property
    def _scratch(self) -> Path | None:
        """The folder of runs, None where it cannot be had; what a killed process left there is removed."""
        folder = self._cache / "runs"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK):
                return None
            for left in folder.iterdir():
                if left.stat().st_mtime < time.time() - _STALE_SECONDS:
                    shutil.rmtree(left, ignore_errors=True)
        except OSError:
            return None
        return folder

    def _run(self, argv: Sequence[str], cwd: Path | None) -> subprocess.CompletedProcess[str]:
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        try:
            child = subprocess.Popen(
                [sys.executable, "-I", "-c", _LAUNCHER, str(self._limits.memory_bytes), *argv],
                cwd=cwd,
                env={**environment, "LC_ALL": "C.UTF-8"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            raise self._failed(f"could not be started: {error.strerror}", "") from None
        try:
            out, said = child.communicate(timeout=self._limits.seconds)
        except subprocess.TimeoutExpired:
            raise self._failed(f"did not end within {self._limits.seconds:g} s and was stopped", "") from None
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.communicate()
        return subprocess.CompletedProcess(argv, child.returncode, out, said)

    def _failed(self, what: str, said: str) -> Unavailable:
        hint = "run the same command again; --debug shows more"
        return Unavailable("type checker", f"pyrefly {what}", facts=last_lines(said), hint=hint)


def _blobs(tree: Tree, package: str) -> dict[str, Oid]:
    """Return the package's sources with their blob ids; a link, or a file whose text is not at hand, is left out."""
    found = {}
    for path in tree.paths:
        pure = PurePosixPath(path)
        # A stub beside a source would be believed instead of it; at run time the source counts.
        is_stub = pure.suffix == ".pyi" and str(pure.with_suffix(".py")) in tree.paths
        is_inside = pure.parts[0] == package and ".." not in pure.parts and not pure.is_absolute()
        if is_stub or not is_inside or pure.suffix not in (".py", ".pyi"):
            continue
        try:
            found[path] = tree.blobs.get(path) or Oid.of_blob(_source(tree, path))
        except InputError:
            continue
    return found


def _source(tree: Tree, path: str) -> bytes:
    data = tree.read(path)
    if data is None:
        raise InputError(path, "is not there")
    return data


def _as_utf8(data: bytes) -> bytes:
    """Return a source in the one coding that the checker reads; Python reads the one that the source names."""
    if data.isascii():
        return data
    try:
        coding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return data.decode(coding).encode()
    except (SyntaxError, UnicodeDecodeError, LookupError):
        return data  # Python cannot read it either, which is said by another rule


def _relative(path: str, root: Path) -> str:
    return Path(os.path.relpath(root / path, root)).as_posix()


def _read(path: Path, blobs: Collection[str]) -> tuple[Complaint, ...] | None:
    """Return a kept answer; None where there is none that can be read whole, and it is asked for anew."""
    try:
        entries = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(entries, list) or not all(_is_complaint(entry, blobs) for entry in entries):
        return None
    return tuple(Complaint(*entry) for entry in entries)


def _is_complaint(entry: object, blobs: Collection[str]) -> bool:
    if not isinstance(entry, list) or [type(value) for value in entry] != [str, str, int, str, int]:
        return False
    return entry[0] in KINDS and entry[1] in blobs


def _end(status: int) -> str:
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited {status}"
