"""Frozen value types shared by every module. No I/O; what comes from outside is checked here, once."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, Self

from builder.errors import InputError

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_OID = re.compile(r"[0-9a-f]{40}")
_REPOSITORY_PART = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
_TAG = re.compile(r"[\w][\w.-]{0,127}", re.ASCII)
_DOMAIN = re.compile(r"(?:localhost|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+|[A-Za-z0-9.-]+(?=:)|\[[0-9a-fA-F:]+\])(?::\d+)?")

DOCKER_HUB = "docker.io"


class Digest(str):
    """`sha256:` and 64 hex digits: the sha256 of a blob."""

    def __new__(cls, text: str) -> Self:
        if not _DIGEST.fullmatch(text):
            raise InputError("digest", f"{text!r} is not 'sha256:' and 64 lower-case hex digits")
        return super().__new__(cls, text)

    @classmethod
    def of(cls, data: bytes) -> Self:
        """Return the digest of these bytes."""
        return cls("sha256:" + hashlib.sha256(data).hexdigest())

    @property
    def hex(self) -> str:
        """The 64 hex digits alone."""
        return self.removeprefix("sha256:")


class Oid(str):
    """A full git object id: 40 lower-case hex digits."""

    def __new__(cls, text: str) -> Self:
        if not _OID.fullmatch(text):
            raise InputError("git object id", f"{text!r} is not 40 lower-case hex digits", hint="give the full id")
        return super().__new__(cls, text)

    @classmethod
    def of_blob(cls, data: bytes) -> Self:
        """Return the id git gives a blob of these bytes (`git hash-object`)."""
        return cls(hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest())

    @property
    def short(self) -> str:
        """The first eight digits, for people."""
        return self[:8]


@dataclass(frozen=True)
class Platform:
    """Operating system, architecture and variant, as OCI writes them (`linux/amd64`, `linux/arm64/v8`)."""

    os: str
    architecture: str
    variant: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `os/architecture[/variant]`; raise InputError otherwise."""
        parts = text.split("/")
        if len(parts) not in (2, 3) or not all(parts):
            raise InputError("platform", f"{text!r} is not os/architecture[/variant]", hint="for example linux/amd64")
        return cls(*parts)

    def __str__(self) -> str:
        return "/".join(part for part in (self.os, self.architecture, self.variant) if part)


@dataclass(frozen=True)
class ImageRef:
    """An image reference in the form Docker and OCI distribution use: domain/path[:tag][@digest]."""

    domain: str
    path: str
    tag: str | None = None
    digest: Digest | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a reference as the docker command does; a short name belongs to Docker Hub.

        The tag stays None when neither tag nor digest is given. Raises InputError.
        """
        rest, _, digest = text.partition("@")
        head, _, after = rest.rpartition("/")
        name, _, tag = after.partition(":")
        path = f"{head}/{name}" if head else name
        first, _, remainder = path.partition("/")
        has_domain = bool(remainder) and (_DOMAIN.fullmatch(first) is not None or ":" in first)
        domain, path = (first, remainder) if has_domain else (DOCKER_HUB, path)
        if domain == "index.docker.io":
            domain = DOCKER_HUB
        if domain == DOCKER_HUB and "/" not in path:
            path = f"library/{path}"
        is_sound = all(_REPOSITORY_PART.fullmatch(part) for part in path.split("/")) and len(path) < 256
        if not is_sound or (after.endswith(":")) or (tag and not _TAG.fullmatch(tag)) or text.endswith("@"):
            hint = "for example lmsysorg/sglang:v0.5.19"
            raise InputError("image reference", f"{text!r} is not a valid image reference", hint=hint)
        return cls(domain, path, tag or None, Digest(digest) if digest else None)

    @property
    def repository(self) -> str:
        """Domain and path as people write them: Docker Hub's domain and `library/` are left out."""
        if self.domain != DOCKER_HUB:
            return f"{self.domain}/{self.path}"
        return self.path.removeprefix("library/")

    @property
    def repository_and_tag(self) -> str:
        """The reference without its digest, as people write it."""
        return self.repository + (f":{self.tag}" if self.tag else "")

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return self.repository + tag + (f"@{self.digest}" if self.digest else "")

    def pinned(self, digest: Digest) -> Self:
        """Return the same repository by digest alone."""
        return replace(self, tag=None, digest=digest)

    def mirrored(self, prefix: str | None) -> ImageRef:
        """Put a mirror's host[:port][/path] in front of a Docker Hub reference; leave any other alone."""
        if not prefix or self.domain != DOCKER_HUB:
            return self
        domain, _, path = prefix.strip("/").partition("/")
        return replace(self, domain=domain, path=f"{path}/{self.path}" if path else self.path)


@dataclass(frozen=True)
class FileMeta:
    """What a tar entry says beside the content: permission bits, numeric owner, modification time in ns."""

    mode: int
    uid: int
    gid: int
    mtime_ns: int


@dataclass(frozen=True)
class TreeFile:
    """One file of a source tree.

    `data` is None where the content was not kept (large and not text); `blob` is known all the same.
    `link` is the target of a symbolic link, then `data` is None and `blob` is the blob of the target text, as in git.
    """

    blob: Oid
    size: int
    meta: FileMeta
    data: bytes | None = None
    link: str | None = None

    @property
    def git_mode(self) -> str:
        """The mode git would record: 120000, 100755 or 100644."""
        if self.link is not None:
            return "120000"
        return "100755" if self.meta.mode & 0o100 else "100644"


PLUG_INS: Mapping[str, str] = {
    "habana_torch_plugin": "habana_frameworks",
    "intel_extension_for_pytorch": "intel_extension_for_pytorch",
    "torch_musa": "torch_musa",
    "torch_npu": "torch_npu",
    "torchada": "torchada",
}
"""Distribution -> module, of what gives torch the hardware of a vendor that its own builds do not know."""


@dataclass(frozen=True)
class SourceTree:
    """The package's files in a base, and how their live root was found.

    Paths are relative to the live root's package parent: `sglang/srt/models/dflash.py`.
    """

    package: str
    live_root: str
    files: Mapping[str, TreeFile]
    folders: Mapping[str, FileMeta] = field(default_factory=dict)
    """Absolute path in the image -> metadata, for the live root's ancestors and every folder of the package."""
    version: str | None = None
    commit: Oid | None = None
    """The commit the package says it was built from: a hint, never proof."""
    found_by: str = ""
    interpreter: str = ""
    dead_copies: tuple[str, ...] = ()
    distributions: Mapping[str, str] = field(default_factory=dict)
    """Name -> version of what is installed beside the package and tells for which GPUs: torch, and those of `PLUG_INS`
    that are there. `torch.version.cuda`, `.hip` and `.xpu` are as torch's own file has them, empty for None."""

    def read(self, path: str) -> bytes | None:
        """Return a file's bytes, None if it is absent; raise InputError where the content was not kept."""
        entry = self.files.get(path)
        if entry is None:
            return None
        if entry.data is None:
            raise InputError(path, "is a link or a large binary file in the base; its text cannot be used")
        return entry.data

    @cached_property
    def paths(self) -> frozenset[str]:
        """All file paths."""
        return frozenset(self.files)


ReadTree = Callable[[str], bytes | None]
"""A tree as merging, patches and checks see it: package path -> bytes, None where there is no such file."""


@dataclass(frozen=True)
class Tree:
    """The files of a tree that is to be searched as well as read."""

    paths: frozenset[str]
    read: ReadTree
    blobs: Mapping[str, Oid] = field(default_factory=dict)
    """Path -> git blob id, for the paths where it is known without reading."""

    def overlaid(self, edits: Mapping[str, bytes]) -> Self:
        """Return this tree with some files replaced or added."""
        blobs = {path: blob for path, blob in self.blobs.items() if path not in edits}
        return type(self)(
            self.paths | edits.keys(), lambda path: edits[path] if path in edits else self.read(path), blobs
        )


@dataclass(frozen=True)
class PullRequestRef:
    """A pull request that is not resolved yet."""

    repository: str
    number: int

    def __str__(self) -> str:
        return f"{self.repository}#{self.number}"


MergeKind = Literal["squash", "merge", "rebase", "open", "closed"]


def commit_subject(message: str) -> str:
    """Return a commit message's first paragraph as one line, as git shows it (`%s`)."""
    return " ".join(line.strip() for line in message.strip().split("\n\n", 1)[0].splitlines())


@dataclass(frozen=True)
class PullRequest:
    """A resolved pull request: nothing about it can move any more.

    `committed` is the result commit's committer time in seconds since 1970.
    """

    repository: str
    number: int
    parent: Oid
    result: Oid
    committed: int
    kind: MergeKind
    title: str = ""

    def __str__(self) -> str:
        return f"{self.repository}#{self.number}"


@dataclass(frozen=True)
class Change:
    """One file a pull request changes, in upstream paths (`python/sglang/srt/x.py`).

    Modes are git's six digits; a side that does not exist has None for blob and mode. `old_path` is set for renames.
    """

    path: str
    kind: Literal["added", "modified", "deleted", "renamed"]
    parent_blob: Oid | None
    result_blob: Oid | None
    parent_mode: str | None
    result_mode: str | None
    old_path: str | None = None
    is_binary: bool = False


@dataclass(frozen=True)
class Region:
    """One conflict: the text of each side and where it stands.

    Line pairs are first and last, 1-based, in the whole file of that side; last < first where a side is empty.
    """

    base_lines: tuple[int, int]
    pr_lines: tuple[int, int]
    base_text: str
    pr_text: str
    ancestor_text: str
    ancestor_lines: tuple[int, int] = (1, 0)


@dataclass(frozen=True)
class ThreeWay:
    """What a three-way merge of one file gave.

    `text` is None when there are conflicts; `taken` is the result with every conflict settled for the pull request,
    and `taken_lines` are the settled regions in it (first and last line, 1-based).
    """

    text: bytes | None
    regions: tuple[Region, ...]
    taken: bytes
    taken_lines: tuple[tuple[int, int], ...]


Merge3 = Callable[[bytes, bytes, bytes], ThreeWay]
"""(ours, ancestor, theirs) -> ThreeWay; git's own merge behind `upstream.merge_file`."""


@dataclass(frozen=True)
class Layer:
    """One deterministic layer: the uncompressed tar, its diff ID, and how many files it sets or removes."""

    tar: bytes
    diff_id: Digest
    files: int


@dataclass(frozen=True)
class LocalImage:
    """An image in the engine.

    `id` is what the engine calls it (the config digest on the classic store). `config` is the engine's projection:
    the keys of the OCI image config that it tells, with `rootfs.diff_ids` and `history` where known.
    """

    id: Digest
    repo_digests: tuple[str, ...]
    repo_tags: tuple[str, ...]
    platform: Platform
    diff_ids: tuple[Digest, ...]
    config: Mapping[str, object]
    labels: Mapping[str, str]
    size: int


@dataclass(frozen=True)
class RemoteImage:
    """One platform's image in a registry; `index` is None when the reference names a plain manifest."""

    reference: ImageRef
    index: Digest | None
    manifest: Digest
    config_digest: Digest
    config: bytes
    platform: Platform
    compressed_size: int


@dataclass(frozen=True)
class Completed:
    """What a program that ran in a container left: exit status (None: it was stopped at a limit) and its output."""

    exit_code: int | None
    stdout: str
    stderr: str
    stopped_by: Literal["", "time", "memory"] = ""


CheckOutcome = Literal["pass", "fail", "unknown", "not-applicable", "not-run"]


@dataclass(frozen=True)
class Check:
    """One check of the smoke test: its outcome, one sentence, and the facts behind it (JSON values)."""

    name: str
    outcome: CheckOutcome
    message: str
    facts: Mapping[str, object] = field(default_factory=dict)
    acknowledged: str | None = None
    """The written reason why an unknown outcome is accepted; None where nobody did."""
