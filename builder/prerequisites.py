"""What a pull request was written on top of and the base lacks: the order of a stack, and who brought what is missing.

Judged by content, not by dates. Nothing is guessed: each prerequisite names the file, lines or name that says so, and
where history could not be searched, that is said.
"""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from builder.catalogue import Overlay
from builder.doors import Origin, Upstream
from builder.errors import Refused
from builder.findings import Finding
from builder.merge import BaseFile, FileResult, Merged, Sides, Subject, package_path, presence_of, runtime_changes
from builder.model import Change, Oid, PullRequest, Region
from builder.presence import definitions
from builder.symbols import UnreadableError
from builder.three_way import lines as split_lines

_SECONDS = 20.0
"""How long all of a plan's searches in history may take together."""

_OTHERS = 8
"""So many other files of a commit tell whether the base has it."""

_TRIVIAL = 4
"""A line of fewer characters is anybody's."""

_GAP = 3
"""Lines so close to each other are told as one stretch."""

_NUMBER = re.compile(r"\(#(\d+)\)$|^Merge pull request #(\d+) from ")

Lines = tuple[int, int]


@dataclass(frozen=True)
class Trace:
    """One piece of evidence for a prerequisite.

    `lines` are first and last, 1-based: of a conflict in the file at the pull request's parent, of a finding in the
    merged file; None where the file is missing as a whole. `symbol` is the definition around the lines, or the name
    that a finding misses; it may be empty.
    """

    kind: Literal["missing-in-base", "conflict", "finding"]
    path: str
    lines: Lines | None = None
    symbol: str = ""


@dataclass(frozen=True)
class Prerequisite:
    """A commit (`oid subject`) that a pull request builds on and the base lacks.

    `needs` is the number of the pull request that the commit merged, None where its subject names none.
    """

    pull_request: int
    needs: int | None
    commit: str
    evidence: tuple[Trace, ...]


@dataclass(frozen=True)
class Search:
    """The prerequisites, those with the best evidence first, and a line for each thing that was not searched."""

    found: tuple[Prerequisite, ...] = ()
    not_searched: tuple[str, ...] = ()


# -- the order of a stack ----------------------------------------------------------------------------------------------


def refuse_order(subjects: Sequence[Subject], changes: Mapping[int, Sequence[Change]], upstream: Upstream) -> None:
    """Refuse a stack in which a pull request stands before one that it was written on top of and the base lacks.

    The subjects are as before merging. Where two change no file in common, their order makes no difference. No history
    is needed, only the parent's version of the files that the other one changes.
    """

    @cache
    def is_below(low: int, high: int) -> bool:
        lower, upper = subjects[low], subjects[high]
        own = changes[lower.pull_request.number]
        if _modes(own, lower).keys().isdisjoint(_modes(changes[upper.pull_request.number], upper)):
            return False
        files = _files_at(upper.pull_request.parent, own, lower, upstream)
        return _is_present(own, replace(lower, ours=files, base=files, is_mentioned=_mentions(files)))

    faults = [
        (subjects[high].pull_request, lower.pull_request)
        for low, lower in enumerate(subjects)
        for high in range(low)
        if is_below(low, high)
        and not is_below(high, low)
        and not _is_present(changes[lower.pull_request.number], lower)
    ]
    if faults:
        order = [subjects[index].pull_request.number for index in _in_order(len(subjects), is_below)]
        raise _wrong_order(faults, order, subjects[0].overlay)


def _wrong_order(faults: Sequence[tuple[PullRequest, PullRequest]], order: list[int], overlay: Overlay) -> Refused:
    hint = f"give {' '.join(f'--pr {number}' for number in order)}"
    if not overlay.is_bare:
        hint = f"write pull-requests = {order} in overlays/{overlay.name}.toml"
    facts = [
        f"#{lower.number} is in the tree at #{upper.number}'s parent {upper.parent.short}, and not in the base"
        for upper, lower in faults
    ]
    upper, lower = faults[0]
    message = f"was written on top of #{lower.number}, which is put on after it"
    return Refused(f"#{upper.number}", message, facts=facts, hint=hint)


def _in_order(count: int, is_below: Callable[[int, int], bool]) -> list[int]:
    """Put each behind those that it was written on top of, and leave the order as it is otherwise."""
    left, placed = list(range(count)), []
    while left:
        free = (each for each in left if not any(is_below(other, each) for other in left if other != each))
        placed.append(next(free, left[0]))
        left.remove(placed[-1])
    return placed


def _files_at(commit: Oid, changes: Iterable[Change], subject: Subject, upstream: Upstream) -> dict[str, BaseFile]:
    """Read, of a commit, the files that a pull request changes."""
    modes = _modes(changes, subject)
    upstream.prefetch(commit, modes)
    found = ((path, upstream.read(commit, path)) for path in modes)
    return {
        package_path(path, subject.overlay): BaseFile(Oid.of_blob(data), modes[path], data)
        for path, data in found
        if data is not None
    }


def _modes(changes: Iterable[Change], subject: Subject) -> dict[str, str]:
    """Return every upstream path that a pull request changes at run time, and the mode it leaves there."""
    runtime = runtime_changes(changes, subject.overlay)
    modes = ((path, each.result_mode or each.parent_mode) for each in runtime for path in (each.path, each.old_path))
    return {path: mode or "100644" for path, mode in modes if path}


def _is_present(changes: Iterable[Change], subject: Subject) -> bool:
    return presence_of(changes, subject) in ("exact", "changed")


def _mentions(files: Mapping[str, BaseFile]) -> Callable[[str], bool]:
    return lambda name: any(file.data is not None and name.encode() in file.data for file in files.values())


# -- who brought what is missing ---------------------------------------------------------------------------------------


def search(
    subjects: Sequence[Subject], merged: Sequence[Merged], changes: Mapping[int, Sequence[Change]], upstream: Upstream
) -> Search:
    """Ask history who brought the files, and the lines in conflict, that the base lacks of each parent's tree.

    Commits that the base has, and pull requests that are put on before, are left out.
    """
    history = _History(upstream)
    found: list[_Told] = []
    not_searched: list[str] = []
    for subject, entry in zip(subjects, merged, strict=True):
        number = entry.pull_request.number
        telling = [result for result in entry.files if _is_telling(result)]
        if telling and not upstream.has_history:
            not_searched.append(_no_history(number))
            continue
        before = {package_path(each.path, subject.overlay): each.old_path or each.path for each in changes[number]}
        for result in telling:
            traced = history.trace(result, before.get(result.path, result.path), subject)
            if traced is None:
                not_searched.append(f"who brought what #{number} needs of {result.path}: git could not tell in time")
            found += (_Told(number, commit, trace) for commit, trace in traced or ())
    return Search(_combined(found, merged), tuple(not_searched))


def with_findings(known: Search, findings: Iterable[Finding], merged: Sequence[Merged], *, has_history: bool) -> Search:
    """Add what the final findings tell: who introduced a missing thing, where that was a pull request."""
    found = [_Told(each.pull_request, each.commit, trace) for each in known.found for trace in each.evidence]
    not_searched = list(known.not_searched)
    for finding in findings:
        number, commit = _owner(finding.path, merged), finding.introduced_by
        if not finding.is_open or finding.kind == "reverse":
            continue  # settled, or about what the overlay itself takes away
        if commit is None and not has_history:
            not_searched.append(_no_history(number))
        if commit is not None and number_of(commit) is not None:
            trace = Trace("finding", finding.path, (finding.line, finding.line), finding.symbol)
            found.append(_Told(number, commit, trace))
    return Search(_combined(found, merged), tuple(dict.fromkeys(not_searched)))


def number_of(commit: str) -> int | None:
    """Return the pull request that a commit's subject says it merged (`oid subject` will do), None if it names none."""
    found = _NUMBER.search(commit.partition(" ")[2])
    return int(found[1] or found[2]) if found else None


@dataclass(frozen=True)
class _Told:
    """A piece of evidence, the pull request it is for, and the commit it speaks of."""

    pull_request: int
    commit: str
    trace: Trace


def _combined(found: Iterable[_Told], merged: Sequence[Merged]) -> tuple[Prerequisite, ...]:
    """Make one entry a commit; a pull request itself, and what is put on before it, is no prerequisite of it."""
    order = [entry.pull_request.number for entry in merged]
    given = {number: order[: index + 1] for index, number in enumerate(order)}
    traces: dict[tuple[int, str], dict[Trace, None]] = {}
    for told in found:
        if number_of(told.commit) not in given[told.pull_request]:
            traces.setdefault((told.pull_request, told.commit), {})[told.trace] = None
    entries = (Prerequisite(n, number_of(commit), commit, tuple(each)) for (n, commit), each in traces.items())
    return tuple(sorted(entries, key=_rank))


def _rank(entry: Prerequisite) -> tuple[bool, int, int, int, str]:
    """Put first what a person can give by number, then what is missing outright, then the most lines."""
    missing = sum(trace.kind != "conflict" for trace in entry.evidence)
    lines = sum(trace.lines[1] - trace.lines[0] + 1 for trace in entry.evidence if trace.lines)
    return entry.needs is None, -missing, -lines, entry.pull_request, entry.commit


def _owner(path: str, merged: Sequence[Merged]) -> int:
    """Return the pull request that a finding in a path is about: the last one that changes it."""
    owners = [entry.pull_request.number for entry in merged if path in entry.runtime_paths]
    return (owners or [merged[-1].pull_request.number])[-1]


def _no_history(number: int) -> str:
    return f"what #{number} builds on: only a complete local clone can be searched (--upstream PATH)"


def _is_telling(result: FileResult) -> bool:
    is_unmet = result.state == "missing-in-base" or bool(result.regions)
    return result.is_blocking and is_unmet


class _History:
    """Asks who brought what, for so many seconds in all."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._deadline = time.monotonic() + _SECONDS

    @property
    def _left(self) -> float:
        return max(self._deadline - time.monotonic(), 0.01)

    def trace(self, result: FileResult, path: str, subject: Subject) -> list[tuple[str, Trace]] | None:
        """Return (`oid subject`, evidence) of each commit that the base lacks; None where git took too long.

        `path` is the file's upstream path at the pull request's parent.
        """
        if result.state == "missing-in-base":
            return self._of_file(path, subject)
        return self._of_lines(result, path, subject)

    def _of_file(self, path: str, subject: Subject) -> list[tuple[str, Trace]] | None:
        added = self._upstream.added(path, subject.pull_request.parent, self._left)
        if added is None:
            return None
        trace = Trace("missing-in-base", package_path(path, subject.overlay))
        # A base that has the rest of that commit had this file too, and it went later: the base is newer.
        return [(_named(origin), trace) for origin in added if not self._has_others(origin, path, subject)]

    def _has_others(self, origin: Origin, path: str, subject: Subject) -> bool:
        runtime = runtime_changes(self._upstream.touched(origin), subject.overlay)
        others = [change for change in runtime if change.path != path and change.path.endswith(".py")]
        return bool(others) and self._has(origin, others[:_OTHERS], subject)

    def _of_lines(self, result: FileResult, path: str, subject: Subject) -> list[tuple[str, Trace]] | None:
        parent = subject.pull_request.parent
        before = subject.sides.parent(path) or b""
        mine = subject.ours.get(result.path) or subject.ours.get(package_path(path, subject.overlay))
        lacking = _lacking(result.regions, before, (mine and mine.data) or b"")
        origins = self._upstream.blame(parent, path, _spans(lacking), self._left)
        versions = self._upstream.versions(path, parent, self._left)
        if origins is None or versions is None:
            return None
        is_lacking = self._lacks(versions, result, subject)
        known = _Definitions(before)
        name = package_path(path, subject.overlay)
        return [
            (_named(origin), Trace("conflict", name, (first, last), known.around(first)))
            for origin in origins
            if origin.lines and is_lacking(origin)
            for first, last in _spans([n for n in lacking if origin.lines[0] <= n <= origin.lines[1]])
        ]

    def _lacks(
        self, versions: Sequence[tuple[Oid, Oid | None]], result: FileResult, subject: Subject
    ) -> Callable[[Origin], bool]:
        """Tell whether the base lacks a commit's change of a file.

        Where the base's file is one of upstream's own versions, all older ones are in it; else the definitions decide.
        """
        blobs = [blob for _, blob in versions]
        if result.base_blob in blobs:
            newer = {commit for commit, _ in versions[: blobs.index(result.base_blob)]}
            return lambda origin: origin.commit in newer

        @cache
        def has(commit: Origin) -> bool:
            own = [change for change in self._upstream.touched(commit) if change.path == commit.path]
            return self._has(commit, own, subject)

        return lambda origin: not has(replace(origin, lines=None))

    def _has(self, origin: Origin, changes: Sequence[Change], subject: Subject) -> bool:
        """Tell whether the untouched base has these changes of a commit."""
        parent = origin.parent
        sides = Sides(
            lambda path: self._upstream.read(parent, path) if parent else None,
            lambda path: self._upstream.read(origin.commit, path),
        )
        return _is_present(changes, replace(subject, ours=subject.base, sides=sides))


def _lacking(regions: Iterable[Region], before: bytes, mine: bytes) -> list[int]:
    """List the numbers of the parent's lines, within conflicts, that the base has nowhere."""
    text, known = _stripped(before), set(_stripped(mine))
    numbers = (number for region in regions for number in range(region.ancestor_lines[0], region.ancestor_lines[1] + 1))
    return [n for n in numbers if len(text[n - 1]) >= _TRIVIAL and text[n - 1] not in known]


def _spans(numbers: Sequence[int]) -> list[Lines]:
    """Put numbers together to first and last of what stands close to each other."""
    spans: list[Lines] = []
    for number in numbers:
        if spans and number - spans[-1][1] <= _GAP:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    return spans


def _stripped(data: bytes) -> list[bytes]:
    return [line.strip() for line in split_lines(data)]


class _Definitions:
    """The functions and methods of a source, by where they stand."""

    def __init__(self, source: bytes) -> None:
        try:
            found = definitions(source)
        except UnreadableError:
            found = {}
        self._spans = {
            name: (node.lineno, node.end_lineno or node.lineno)
            for name, definition in found.items()
            for node in definition.nodes
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }

    def around(self, line: int) -> str:
        """Return the dotted name of what a line stands in, empty where there is none."""
        return next((name for name, (first, last) in self._spans.items() if first <= line <= last), "")


def _named(origin: Origin) -> str:
    return f"{origin.commit} {origin.subject}"
