"""What the rest of the package may ask of a door. Each is implemented by the one module that imports the library."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import IO, Protocol

from builder.model import (
    Change,
    Completed,
    Digest,
    ImageRef,
    Layer,
    LocalImage,
    Oid,
    Platform,
    PullRequest,
    PullRequestRef,
    RemoteImage,
    Tree,
)

Progress = Callable[[str, int, int | None], None]
"""(what, done, total or None): called often while long work goes on."""


def no_progress(what: str, done: int, total: int | None) -> None:
    """Report to nobody."""


@dataclass(frozen=True)
class ForgePullRequest:
    """What the forge says of a pull request. `merge_commit` is None unless it was merged."""

    number: int
    title: str
    state: str
    merge_commit: str | None
    base_ref: str
    base: str
    head: str
    commit_subjects: tuple[str, ...]
    clone_url: str


class Forge(Protocol):
    """The site that hosts the pull requests."""

    def pull_request(self, ref: PullRequestRef) -> ForgePullRequest:
        """Ask for one pull request; InputError if there is none, Unavailable if the forge does not answer."""


@dataclass(frozen=True)
class Origin:
    """A commit that brought something: some lines of the file asked about (first and last), or the file as a whole.

    `parent` is its first parent, `path` what the file was called there.
    """

    commit: Oid
    parent: Oid | None
    subject: str
    path: str
    lines: tuple[int, int] | None = None


class Upstream(Protocol):
    """A git repository that holds the pull requests' commits, and git's own merge."""

    @property
    def has_history(self) -> bool:
        """Whether all history is at hand, so that it can be searched; the cache of a URL has not."""

    def resolve(self, ref: PullRequestRef, *, accept_closed: bool = False) -> PullRequest:
        """Find parent and result of a pull request."""

    def pinned(self, ref: PullRequestRef, parent: Oid, result: Oid) -> PullRequest:
        """Make these two commits available and return them as the pull request; Refused if they cannot be had."""

    def changes(self, pull_request: PullRequest) -> tuple[Change, ...]:
        """List the files that differ between parent and result, renames followed, sorted by path."""

    def read(self, commit: Oid, path: str) -> bytes | None:
        """Return a file's bytes in a commit (upstream path), None where it is absent."""

    def prefetch(self, commit: Oid, paths: Iterable[str]) -> None:
        """Make many files available in one transfer, where `read` would fetch them one by one."""

    def paths(self, commit: Oid, prefix: str) -> Mapping[str, Oid]:
        """Return path -> blob id below a folder of a commit; needs no blobs."""

    def introduced(self, text: str, path: str, until: Oid) -> str | None:
        """Name the commit (`oid subject`) that added this text to the path; None if history cannot be searched."""

    def blame(
        self, commit: Oid, path: str, spans: Sequence[tuple[int, int]], seconds: float
    ) -> tuple[Origin, ...] | None:
        """Tell who brought these lines of a file; None if history cannot be searched, or not in this time."""

    def added(self, path: str, until: Oid, seconds: float) -> tuple[Origin, ...] | None:
        """Tell who last added this file, empty where nobody did; None as for `blame`."""

    def versions(self, path: str, until: Oid, seconds: float) -> tuple[tuple[Oid, Oid | None], ...] | None:
        """List the commits that changed a file, newest first, and what they left (None: deleted); None as for `blame`.

        The branch's history, beyond `until` where that commit is on it, else the history up to `until`.
        """

    def touched(self, origin: Origin) -> tuple[Change, ...]:
        """List what a commit changed against its first parent, renames as two changes; nothing for a first commit."""


class Registry(Protocol):
    """An OCI registry over HTTP."""

    def resolve(self, ref: ImageRef, platform: Platform) -> RemoteImage:
        """Fetch manifest and config of one platform; nothing else is downloaded."""


@dataclass(frozen=True)
class Complaint:
    """One thing a type checker says of a file; `kind` is the checker's own word.

    `line` and `column` (1-based, in characters) tell where the expression starts; a column of 0 is unknown.
    """

    kind: str
    path: str
    line: int
    message: str
    column: int = 0


class TypeChecker(Protocol):
    """A static type checker, run over trees that are never imported."""

    name: str

    def version(self) -> str:
        """Return its version; Unavailable if it cannot be run."""

    def check(self, tree: Tree, package: str, files: Collection[str] | None = None) -> tuple[Complaint, ...]:
        """Return what it says of these files (all of the package if None), imports followed within the tree.

        Unavailable, with its own last words, where it did not come to an end within its bounds.
        """


@dataclass(frozen=True)
class EngineInfo:
    """The engine's version, its image store (`overlay2`, `containerd`, ...) and its own platform."""

    version: str
    store: str
    platform: Platform


@dataclass(frozen=True)
class Limits:
    """Bounds of a container that runs a program of ours."""

    seconds: float = 300.0
    memory_bytes: int = 8 << 30


class Engine(Protocol):
    """The container engine."""

    def info(self) -> EngineInfo: ...

    def inspect(self, reference: str) -> LocalImage | None:
        """Look an image up by reference or id; None if the engine does not have it. Never pulls."""

    def find(self, label: str, value: str) -> tuple[LocalImage, ...]:
        """List the local images that carry a label with this value."""

    def pull(self, reference: ImageRef, platform: Platform, progress: Progress) -> LocalImage:
        """Pull by digest or tag and show progress."""

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
        """Run one program in a throwaway container, entrypoint bypassed; None if the image has no such program.

        No network, read-only root with scratch space at /tmp and HOME, no capabilities, no new privileges, bounded
        memory, processes and time; the container is gone afterwards, also after an exception or Ctrl-C.
        """

    def archive(self, image: Digest, path: str) -> AbstractContextManager[IO[bytes]]:
        """Stream the tar of one path of an image (a created, never started container, removed afterwards)."""

    def load(self, config: bytes, layer: Layer, base: LocalImage, deletions: Sequence[str]) -> tuple[LocalImage, str]:
        """Put base + layer into the engine, untagged; return the image and the way that worked (`load`, `commit`)."""

    def tag(self, image: Digest, reference: ImageRef) -> None: ...

    def remove(self, image: Digest) -> None:
        """Remove an untagged image of ours; one that is tagged or in use stays."""

    def images(self) -> Iterator[LocalImage]: ...
