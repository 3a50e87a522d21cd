"""Pure: what one pull request does to each file of the tree as merged so far, and whether that is safe."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Literal

from builder.catalogue import FileRule, Overlay, matches_blob
from builder.errors import InputError, OverlayError
from builder.model import Change, Merge3, Oid, PullRequest, Region
from builder.presence import Evidence, Presence, Versions, judge
from builder.suggest import did_you_mean

State = Literal[
    "unchanged",
    "already-present",
    "clean",
    "copied",
    "taken",
    "conflict",
    "missing-in-base",
    "outside-runtime",
    "needs-build",
]

BLOCKING: frozenset[State] = frozenset({"conflict", "missing-in-base", "needs-build"})

LINK, GITLINK = "120000", "160000"

_COMPILED = frozenset(
    (
        ".c",
        ".cc",
        ".cpp",
        ".cxx",
        ".cu",
        ".cuh",
        ".h",
        ".hpp",
        ".hip",
        ".rs",
        ".pyx",
        ".pxd",
        ".f90",
        ".proto",
        ".so",
        ".a",
    )
)
_BUILD_FILES = re.compile(
    r"(?:^|/)(?:pyproject[\w.-]*\.toml|setup\.(?:py|cfg)|MANIFEST\.in|CMakeLists\.txt|Makefile|Cargo\.(?:toml|lock)"
    r"|build\.rs|requirements[\w.-]*\.txt|constraints[\w.-]*\.txt|uv\.lock|poetry\.lock)$|\.cmake$"
)
_JIT = re.compile(r"/jit/|/jit_kernel/")


@dataclass(frozen=True)
class BaseFile:
    """A file of the image as merging sees it; `data` is None for a link or content that was not kept."""

    blob: Oid
    git_mode: str
    data: bytes | None


@dataclass(frozen=True)
class Sides:
    """Reads a pull request's own trees by upstream path."""

    parent: Callable[[str], bytes | None]
    result: Callable[[str], bytes | None]


@dataclass(frozen=True)
class FileResult:
    """One pull request and path: its state, what decided, and the content to write (None where nothing changes).

    `removes` is a path that goes (a deletion, or the old name of a rename). `lost` are lines of ours that the result
    lacks and the pull request did not remove; `brought` are lines neither ours nor added by the pull request.
    """

    pull_request: int
    path: str
    state: State
    strategy: Literal["merge", "copy"] = "merge"
    presence: Evidence | None = None
    base_blob: Oid | None = None
    parent_blob: Oid | None = None
    result_blob: Oid | None = None
    mode: str | None = None
    data: bytes | None = None
    removes: str | None = None
    regions: tuple[Region, ...] = ()
    taken: tuple[tuple[int, int], ...] = ()
    lost: tuple[str, ...] = ()
    brought: tuple[str, ...] = ()
    reason: str = ""
    acknowledged: str | None = None

    @property
    def blob(self) -> Oid | None:
        """The git blob id of what will stand in the image."""
        return Oid.of_blob(self.data) if self.data is not None else None

    @property
    def is_blocking(self) -> bool:
        """Whether this refuses the build."""
        return self.state in BLOCKING and self.acknowledged is None


@dataclass(frozen=True)
class Subject:
    """What merging one pull request needs to know; `ours` is the image as merged so far, `base` the untouched one."""

    pull_request: PullRequest
    overlay: Overlay
    ours: Mapping[str, BaseFile]
    base: Mapping[str, BaseFile]
    sides: Sides
    merge3: Merge3
    is_mentioned: Callable[[str], bool]
    is_forced: bool = False


@dataclass(frozen=True)
class Merged:
    """One pull request on the tree: its presence over all runtime files, per-file results, and what was skipped.

    `skipped` are (upstream path, reason).
    """

    pull_request: PullRequest
    presence: Literal["exact", "changed", "absent", "unknown"]
    files: tuple[FileResult, ...]
    skipped: tuple[tuple[str, str], ...] = field(default=())
    runtime_paths: frozenset[str] = frozenset()
    """Every package path that the pull request changes at run time, put on or not."""


def classify(change: Change, overlay: Overlay) -> tuple[Literal["runtime", "outside-runtime", "needs-build"], str]:
    """Partition an upstream path, with the reason. What is compiled on demand inside the package is runtime."""
    path = change.path
    inside = path.startswith(f"{overlay.upstream_prefix}{overlay.package}/")
    parts = path.split("/")
    is_test = any(part in ("test", "tests") for part in parts[:-1]) or PurePosixPath(path).name.startswith("test_")
    if is_test:
        return "outside-runtime", "test"
    if GITLINK in (change.parent_mode, change.result_mode):
        return "needs-build", "a submodule moves"
    if _BUILD_FILES.search(path) and parts[0] not in ("docs", "docker", ".github", "examples", "benchmark"):
        return "needs-build", "a build file or dependency pin"
    is_compiled = PurePosixPath(path).suffix in _COMPILED
    if is_compiled and not (inside and _JIT.search(path)) and parts[0] not in ("docs", "examples", "benchmark"):
        return "needs-build", "a compiled source"
    if inside:
        return "runtime", ""
    return "outside-runtime", _outside(parts)


def _outside(parts: list[str]) -> str:
    kinds = {"docs": "documentation", ".github": "CI", "docker": "CI", "scripts": "CI", "benchmark": "benchmark"}
    if parts[-1].endswith((".md", ".rst")):
        return "documentation"
    return kinds.get(parts[0], "not in the package")


def _within_bounds(change: Change, overlay: Overlay) -> tuple[Change, ...]:
    """Split a rename that crosses the package's boundary: what leaves is deleted, what enters is added."""
    if change.old_path is None:
        return (change,)
    gone = replace(change, path=change.old_path, old_path=None, kind="deleted", result_blob=None, result_mode=None)
    come = replace(change, old_path=None, kind="added", parent_blob=None, parent_mode=None)
    if classify(gone, overlay)[0] == classify(change, overlay)[0]:
        return (change,)
    return (gone, come)


def package_path(path: str, overlay: Overlay) -> str:
    """Return an upstream path relative to the live root's package parent."""
    return path.removeprefix(overlay.upstream_prefix)


def merge_pull_request(changes: Collection[Change], subject: Subject) -> Merged:
    """Merge every file of one pull request; nothing is applied, all faults are reported."""
    runtime, others, skipped = [], [], []
    for change in (part for whole in changes for part in _within_bounds(whole, subject.overlay)):
        kind, why = classify(change, subject.overlay)
        if kind == "runtime":
            runtime.append(change)
        elif kind == "outside-runtime":
            skipped.append((change.path, why))
        else:
            others.append(_needs_build(change, why, subject))
    judged = {change.path: _judge(change, subject) for change in runtime}
    presence = _overall([evidence for _, evidence in judged.values()])
    is_settled = presence in ("exact", "changed") and not subject.is_forced
    files = []
    for change in runtime:
        path = package_path(change.path, subject.overlay)
        why_not = subject.overlay.left_out(path)
        versions, evidence = judged[change.path]
        if why_not and not is_settled:
            skipped.append((change.path, f"left out: {why_not}"))
            continue
        files.append(_merge_file(change, path, versions, evidence, subject))
    wanted = () if is_settled else tuple(others)
    paths = frozenset(package_path(change.path, subject.overlay) for change in runtime)
    return Merged(subject.pull_request, presence, (*files, *wanted), tuple(skipped), paths)


def presence_of(changes: Iterable[Change], subject: Subject) -> Presence:
    """Judge whether a tree has a pull request in all its runtime files, without merging it."""
    return _overall(_judge(part, subject)[1] for part in runtime_changes(changes, subject.overlay))


def runtime_changes(changes: Iterable[Change], overlay: Overlay) -> tuple[Change, ...]:
    """Keep the changes that decide at run time; a rename across the package's boundary is split."""
    parts = (part for change in changes for part in _within_bounds(change, overlay))
    return tuple(part for part in parts if classify(part, overlay)[0] == "runtime")


def refuse_strangers(overlay: Overlay, merged: Sequence[Merged]) -> None:
    """Refuse a definition that names files which none of its pull requests changes: a typo there would be silent."""
    known = frozenset(path for entry in merged for path in entry.runtime_paths)
    named = [("file", rule.path) for rule in overlay.file] + [("leave-out", entry.path) for entry in overlay.leave_out]
    faults = [
        f"{table}: path: no pull request of it changes {path!r}{did_you_mean(path, known)}"
        for table, path in named
        if path not in known
    ]
    if faults:
        hint = "mend the path; the plan with --no-definition lists the files"
        raise InputError(f"overlays/{overlay.name}.toml", faults[0], facts=faults[1:], hint=hint)


def _overall(evidence: Iterable[Evidence]) -> Literal["exact", "changed", "absent", "unknown"]:
    found = {item.presence for item in evidence}
    if "absent" in found:
        return "absent"
    if "unknown" in found or not found:
        return "unknown"
    return "changed" if "changed" in found else "exact"


def _needs_build(change: Change, why: str, subject: Subject) -> FileResult:
    path = package_path(change.path, subject.overlay)
    facts = _changed_lines(subject.sides.parent(change.old_path or change.path), subject.sides.result(change.path))
    acknowledged = next(
        (a.reason for a in subject.overlay.acknowledge if a.kind == "needs-build" and a.path in (path, change.path)),
        None,
    )
    return FileResult(
        subject.pull_request.number,
        path,
        "needs-build",
        parent_blob=change.parent_blob,
        result_blob=change.result_blob,
        reason=f"{why}: {facts}" if facts else why,
        acknowledged=acknowledged,
    )


def _changed_lines(parent: bytes | None, result: bytes | None) -> str:
    """Show the first changed lines of a build file: what is needed against what was."""
    if (parent is not None and b"\0" in parent) or (result is not None and b"\0" in result):
        return ""
    old, new = Counter(_lines(parent or b"")), Counter(_lines(result or b""))
    lines = [f"-{line.strip()}" for line in (old - new)] + [f"+{line.strip()}" for line in (new - old)]
    return "; ".join(line for line in lines[:6] if len(line) > 1)


def _judge(change: Change, subject: Subject) -> tuple[Versions, Evidence]:
    """Read the versions of a runtime file and judge whether the change is there already."""
    path = package_path(change.path, subject.overlay)
    mine = subject.ours.get(path) or subject.ours.get(_old_path(change, subject.overlay) or "")
    parent = subject.sides.parent(change.old_path or change.path) if change.parent_blob else None
    result = subject.sides.result(change.path) if change.result_blob else None
    ours = mine.data if mine else None
    if mine is not None and ours is None and mine.blob == change.parent_blob and mine.git_mode == change.parent_mode:
        ours = parent  # not kept in memory, and known by its blob to be the file the pull request changes
    if mine is not None and ours is None:
        same = mine.blob == change.result_blob and mine.git_mode == change.result_mode
        fact = "equal to the pull request's result" if same else "a link or a large binary file in the base"
        return Versions(None, parent, result), Evidence("exact" if same else "unknown", fact)
    merged = _try_merge(ours, parent, result, subject.merge3)
    versions = Versions(ours, parent, result, merged)
    evidence = judge(path, versions, subject.is_mentioned)
    old_path = _old_path(change, subject.overlay)
    if evidence.presence == "exact" and old_path in subject.ours:
        evidence = Evidence("absent", f"its old name {old_path} is still in the base")
    is_other_mode = mine is not None and change.parent_mode != change.result_mode != mine.git_mode
    if evidence.presence == "exact" and change.result_mode is not None and is_other_mode:
        evidence = Evidence("unknown", f"the content is there, its mode {change.result_mode} is not")
    return versions, evidence


def _old_path(change: Change, overlay: Overlay) -> str | None:
    return package_path(change.old_path, overlay) if change.old_path else None


def _try_merge(ours: bytes | None, parent: bytes | None, result: bytes | None, merge3: Merge3) -> bytes | None:
    if ours is None or parent is None or result is None or b"\0" in ours + parent + result:
        return None
    try:
        return merge3(ours, parent, result).text
    except OverlayError:
        return None  # the real merge below says why


def _merge_file(change: Change, path: str, versions: Versions, evidence: Evidence, subject: Subject) -> FileResult:
    base = subject.base.get(path) or subject.base.get(_old_path(change, subject.overlay) or "")
    rule = subject.overlay.rule(path)
    start = FileResult(
        subject.pull_request.number,
        path,
        "unchanged",
        strategy=rule.strategy if rule else "merge",
        presence=evidence,
        base_blob=base.blob if base else None,
        parent_blob=change.parent_blob,
        result_blob=change.result_blob,
        reason=rule.reason if rule else "",
    )
    if change.parent_blob == change.result_blob and change.kind == "modified":
        return replace(start, reason=_mode_change(change))
    if not subject.is_forced and evidence.presence in ("exact", "changed"):
        return replace(start, state="already-present", reason=evidence.fact)
    if LINK in (change.parent_mode, change.result_mode):
        return replace(start, state="conflict", reason="the pull request makes or changes a symbolic link here")
    placed = _placed(change, path, versions, start, subject, rule)
    return _with_line_account(_with_mode(placed, change, path, subject), versions)


def _mode_change(change: Change) -> str:
    if change.parent_mode == change.result_mode:
        return ""
    return f"only the mode changes: {change.parent_mode} to {change.result_mode}; not applied"


def _placed(
    change: Change, path: str, versions: Versions, start: FileResult, subject: Subject, rule: FileRule | None
) -> FileResult:
    """Settle one runtime file that is not there yet."""
    ours, parent, result = versions.ours, versions.parent, versions.result
    old_path = _old_path(change, subject.overlay)
    if rule is not None and rule.strategy == "copy" and result is not None:
        return _copy(start, versions, rule)
    if result is None:
        return _delete(start, versions, path)
    moved = old_path if change.kind == "renamed" and old_path in subject.ours else None
    if moved is not None and path in subject.ours:
        return _settle_double(start, moved, versions, subject)
    if ours is None and path not in subject.ours and parent is None:
        return replace(start, state="clean", data=result)
    if ours is None and path not in subject.ours and moved is None:
        return replace(start, state="missing-in-base", reason=_similar(path, subject.ours))
    if ours is None:
        return replace(start, state="conflict", reason="the base has a link or a large binary file here")
    if ours == parent:
        return replace(start, state="clean", data=result, removes=moved)
    if parent is None:
        return replace(start, state="conflict", reason="the pull request adds this file and the base has another one")
    return _three_way(replace(start, removes=moved), ours, parent, result, subject.merge3, rule)


def _settle_double(start: FileResult, moved: str, versions: Versions, subject: Subject) -> FileResult:
    """Settle a rename where the base has both names: the old one goes where it is what the pull request moved."""
    if versions.ours == versions.result and subject.ours[moved].blob == start.parent_blob:
        return replace(start, state="clean", removes=moved)
    return replace(start, state="conflict", reason=f"a rename of {moved}, and the base has both names")


def _delete(start: FileResult, versions: Versions, path: str) -> FileResult:
    if versions.ours == versions.parent:
        return replace(start, state="clean", removes=path)
    return replace(start, state="conflict", reason="the pull request deletes this file, the base has changed it")


def _copy(start: FileResult, versions: Versions, rule: FileRule) -> FileResult:
    """Take the whole result file where that reverts nothing, or where this very base file was reviewed."""
    copied = replace(start, state="copied", data=versions.result)
    if versions.ours == versions.parent:
        return replace(copied, reason=f"{rule.reason} (exact pre-image)")
    accepted = next((a for a in rule.accept if start.base_blob and matches_blob(a.base_blob, start.base_blob)), None)
    if accepted is not None:
        return replace(copied, reason=f"{rule.reason} (accepted: {accepted.reason})")
    lost = lost_lines(versions)
    found = f"base blob {start.base_blob}" if start.base_blob else "a file the base lacks"
    reason = (
        f"a copy would revert {len(lost)} lines of the base: {found} is neither the pull request's parent nor accepted"
    )
    if start.base_blob:
        reason += f'; once reviewed: accept = [{{ base-blob = "{start.base_blob}", reason = "..." }}]'
    return replace(start, state="conflict", reason=reason, lost=lost)


def _three_way(
    start: FileResult, ours: bytes, parent: bytes, result: bytes, merge3: Merge3, rule: FileRule | None
) -> FileResult:
    if b"\0" in ours + parent + result:
        return replace(start, state="conflict", reason="a binary file that differs on both sides")
    try:
        merged = merge3(ours, parent, result)
    except OverlayError as error:
        return replace(start, state="conflict", reason=error.message)
    if merged.text is not None:
        return replace(start, state="clean", data=merged.text)
    if rule is not None and rule.on_conflict == "take-pr":
        return replace(start, state="taken", data=merged.taken, taken=merged.taken_lines, regions=merged.regions)
    count = len(merged.regions)
    reason = f"both changed the same lines in {count} place{'s' if count > 1 else ''}"
    if (b"\r\n" in ours) != (b"\r\n" in result):
        reason += "; one side has CRLF line endings and the other LF"
    return replace(start, state="conflict", regions=merged.regions, reason=reason)


def _with_mode(result: FileResult, change: Change, path: str, subject: Subject) -> FileResult:
    """Keep the base's own mode, unless the pull request changes it or brings the file."""
    if result.data is None:
        return result
    mine = subject.ours.get(path)
    is_changed = change.parent_mode != change.result_mode or mine is None
    return replace(result, mode=change.result_mode if is_changed or mine is None else mine.git_mode)


def _with_line_account(result: FileResult, versions: Versions) -> FileResult:
    if result.data is None:
        return result
    mine, after = Counter(_lines(versions.ours or b"")), Counter(_lines(result.data))
    added = Counter(_lines(versions.result or b"")) - Counter(_lines(versions.parent or b""))
    brought = tuple((after - mine - added).elements())
    return replace(result, lost=lost_lines(replace(versions, result=result.data), versions.result), brought=brought)


def lost_lines(versions: Versions, pull_request_result: bytes | None = None) -> tuple[str, ...]:
    """List the lines of ours that the result lacks, beyond those that the pull request itself removes."""
    theirs = pull_request_result if pull_request_result is not None else versions.result
    removed = Counter(_lines(versions.parent or b"")) - Counter(_lines(theirs or b""))
    gone = Counter(_lines(versions.ours or b"")) - Counter(_lines(versions.result or b""))
    return tuple((gone - removed).elements())


def _lines(data: bytes) -> list[str]:
    return [line for line in data.decode("utf-8", "replace").splitlines() if line.strip()]


def _similar(path: str, ours: Mapping[str, BaseFile]) -> str:
    name = PurePosixPath(path).name
    elsewhere = sorted(other for other in ours if PurePosixPath(other).name == name)[:3]
    if elsewhere:
        return f"the base has no such file; a file of that name is at {', '.join(elsewhere)}"
    return "the base has no such file, and none of that name elsewhere"
