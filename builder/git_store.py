"""Where a pull request's commits come from: a local repository, or the cache of a remote one.

A local repository is read in place and never written to. A URL has a cache: an object store filled by shallow, blobless
fetches of just the commits and files asked for. Nothing that reads starts a transfer, so a missing object is an answer
and never a surprise over the network.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import filelock

from builder.doors import Progress
from builder.errors import InputError, Unavailable
from builder.git_repository import Gone, Remote, Repository, require_git, without_credentials
from builder.model import Oid

_SCHEMES = ("https", "http", "ssh", "git", "file")
_LONGEST_WAIT = 900
"""Seconds that another process may take for its fetch."""


class Store(Protocol):
    """Where the commits are: a local repository, or the cache of a remote one."""

    name: str
    objects: Repository

    @property
    def is_complete(self) -> bool:
        """Whether all history and content is here, so that it can be searched."""

    def branch(self, name: str | None) -> tuple[str, Oid]:
        """Return what a branch (by default the repository's own) is called, and its tip."""

    def head(self, number: int) -> Oid | None:
        """Return the commit that `refs/pull/N/head` names."""

    def history(self, *tips: Oid) -> Repository:
        """Return a repository with all ancestors of these commits; it may lack their files."""

    def bring(self, commits: Collection[Oid], depth: int) -> None:
        """Make commits with so many generations available in `objects`, trees included; Gone if one cannot be had."""

    def bring_blobs(self, blobs: Collection[Oid]) -> None:
        """Make blobs available in `objects`, all in one transfer."""

    def advice(self, ref: str) -> str:
        """Say how a missing commit may be had."""


class Local:
    """A repository of the user's: read in place."""

    def __init__(self, source: str) -> None:
        path = _expanded(source)
        self.name = str(path)
        self.objects = Repository(_git_dir(path))
        # Named as git directory, a repository that belongs to somebody else is read as well.
        if self.objects.status("rev-parse", "--git-dir") != 0:
            hint = "give the folder of a clone, or a URL"
            raise InputError("--upstream", f"{path} is not a git repository", hint=hint)

    @property
    def is_complete(self) -> bool:
        return not self.objects.is_shallow and not self.objects.is_partial

    def branch(self, name: str | None) -> tuple[str, Oid]:
        # A clone's own branches may be work in progress: where it knows upstream's, that counts.
        names = (f"refs/remotes/origin/{name or 'HEAD'}", f"refs/heads/{name}" if name else "HEAD")
        if (found := self.objects.tip(*names)) is None:
            message = f"{self.name} has no {name or 'branch checked out'}"
            raise InputError("--upstream-branch", message, hint="name a branch")
        return name or found[0], found[1]

    def head(self, number: int) -> Oid | None:
        found = self.objects.tip(f"refs/pull/{number}/head")
        return found[1] if found else None

    def history(self, *tips: Oid) -> Repository:
        self.bring(tips, depth=1)
        return self.objects

    def bring(self, commits: Collection[Oid], depth: int) -> None:  # noqa: ARG002  nothing is fetched
        for oid in self.objects.lacks(commits):
            raise Gone(oid)

    def bring_blobs(self, blobs: Collection[Oid]) -> None:
        if lacking := self.objects.lacks(blobs):
            message = f"{self.name} lacks file contents, {lacking[0]} for one: it is a partial clone"
            raise Unavailable("upstream", message, hint="give a full clone, or the repository's URL")

    def advice(self, ref: str) -> str:
        return f"git -C {self.name} fetch origin HEAD {ref}"


class Mirror:
    """The cache of a remote repository: one store of commits with files, and one of commits alone for their history."""

    is_complete = False

    def __init__(self, url: str, cache: Path, progress: Progress, stall_seconds: int) -> None:
        self._progress = progress
        self._remote = Remote(url, progress, stall_seconds)
        self.name = self._remote.name
        slug = re.sub(r"[^A-Za-z0-9]+", "-", self.name.rstrip("/").removesuffix(".git"))[-40:].strip("-")
        stem = f"{slug}-{hashlib.sha256(self.name.encode()).hexdigest()[:12]}"
        self.objects = Repository(cache / f"{stem}.git")
        self._commits = Repository(cache / f"{stem}.commits.git")

    def branch(self, name: str | None) -> tuple[str, Oid]:
        ref = f"refs/heads/{name}" if name else "HEAD"
        if (tip := self._remote.refs(ref).get(ref)) is None:
            raise InputError("--upstream-branch", f"{self.name} has no {name or 'HEAD'}", hint="name a branch")
        return name or ref, tip

    def head(self, number: int) -> Oid | None:
        ref = f"refs/pull/{number}/head"
        return self._remote.refs(ref).get(ref)

    def history(self, *tips: Oid) -> Repository:
        # Each tip gets a ref, so that the next fetch transfers only what is new.
        refspecs = [f"+{oid}:refs/overlay/{oid}" for oid in tips]
        self._fetch(self._commits, tips, "tree:0", refspecs)
        return self._commits

    def bring(self, commits: Collection[Oid], depth: int) -> None:
        self._fetch(self.objects, commits, "blob:none", depth=depth)

    def bring_blobs(self, blobs: Collection[Oid]) -> None:
        try:
            self._fetch(self.objects, blobs, "blob:none")
        except Gone as gone:
            raise Unavailable("upstream", f"{self.name} does not give file content {gone.oid}") from gone

    def advice(self, ref: str) -> str:
        return f"check that {ref} belongs to {self.name}"

    def _fetch(
        self,
        store: Repository,
        oids: Collection[Oid],
        filter_: str,
        refspecs: Sequence[str] = (),
        depth: int | None = None,
    ) -> None:
        if not oids or not store.lacks(oids):
            return
        with self._locked(store):
            lacking = store.lacks(oids)  # another process may have fetched them meanwhile
            if not lacking:
                return
            self._remote.fetch(store.git_dir, refspecs or lacking, filter_, depth)
            if still := store.lacks(lacking):
                raise Gone(still[0])

    @contextmanager
    def _locked(self, store: Repository) -> Iterator[None]:
        """Hold the store alone, and make it sound: it is new, or what a killed process left."""
        lock = filelock.FileLock(f"{store.git_dir}.lock")
        try:
            store.git_dir.mkdir(parents=True, exist_ok=True)
            with self._acquired(lock):
                _clean(store.git_dir)
                yield
        except filelock.Timeout as error:
            message = f"another process keeps {lock.lock_file} locked"
            raise Unavailable("upstream", message, hint="wait for it to end") from error
        except OSError as error:
            raise Unavailable("upstream", f"the cache {store.git_dir} cannot be used: {error}") from error

    def _acquired(self, lock: filelock.BaseFileLock) -> AbstractContextManager[object]:
        try:
            return lock.acquire(timeout=1)
        except filelock.Timeout:
            self._progress(f"waiting for another process that fetches from {self.name}", 0, None)
            return lock.acquire(timeout=_LONGEST_WAIT)


def open_store(source: str, cache: Path, progress: Progress, stall_seconds: int) -> Store:
    """Open the repository that a URL or a path names; InputError where it is neither."""
    require_git()
    return Mirror(source, cache, progress, stall_seconds) if _is_url(source) else Local(source)


def _is_url(source: str) -> bool:
    """Tell a URL from a path, and refuse what git would take for an option or for a program to run."""
    shown = without_credentials(source)
    if not source or source.startswith("-") or re.search(r"[\x00-\x1f\x7f]", source):
        raise InputError("--upstream", f"{shown!r} is neither a URL nor a path", hint="for a path begin with ./")
    scheme, is_url, _ = source.partition("://")
    if re.match(r"[\w+.-]*::", source) or (is_url and scheme.lower() not in _SCHEMES):
        hint = f"use one of {', '.join(_SCHEMES)}, or a path"
        raise InputError("--upstream", f"the transport of {shown!r} is not accepted", hint=hint)
    scp = re.fullmatch(r"[^/:@\s]+@([^/:\s]+):.+", source)
    host = scp[1] if scp else (urlsplit(source).hostname or "" if is_url else "")
    if host.startswith("-"):
        raise InputError("--upstream", f"{host!r} is not a host name", hint="check the address")
    return bool(is_url or scp)


def _expanded(source: str) -> Path:
    try:
        return Path(source).expanduser()
    except RuntimeError as error:
        raise InputError("--upstream", f"{source!r}: {error}", hint="write the path out") from error


def _git_dir(path: Path) -> Path:
    """Find the git directory of a folder itself; a repository around it is not meant."""
    inner = path / ".git"
    try:
        if inner.is_file():  # a linked work tree, or a submodule
            return path / inner.read_text().removeprefix("gitdir:").strip()
        return (inner if inner.is_dir() else path).absolute()
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        raise InputError("--upstream", message, hint="check its permissions") from error


def _clean(git_dir: Path) -> None:
    """Make a bare store, or remove what a killed process left; nothing here is needed but refs and complete packs.

    The list of shallow commits goes too: each fetch says itself how deep it goes.
    """
    for leftover in (*git_dir.rglob("*.lock"), *git_dir.glob("objects/pack/tmp_*"), git_dir / "shallow"):
        leftover.unlink(missing_ok=True)
    for folder in ("objects/pack", "refs/heads"):
        (git_dir / folder).mkdir(parents=True, exist_ok=True)
    if not (git_dir / "HEAD").exists():
        (git_dir / "config").write_text("[core]\n\trepositoryformatversion = 0\n\tbare = true\n")
        (git_dir / "HEAD.new").write_text("ref: refs/heads/none\n")
        (git_dir / "HEAD.new").replace(git_dir / "HEAD")  # last and at once: with it the store exists
