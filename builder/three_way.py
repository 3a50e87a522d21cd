"""Pure: a three-way merge of one file's lines, from the edits that lead from the ancestor to each side."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from builder.errors import Refused
from builder.model import Region, ThreeWay

_LINE = re.compile(rb"[^\n]*\n|[^\n]+")
_MARKER = re.compile(rb"(<{3,}|={3,}|>{3,})(?: .*)?\r?\n?")
_CERTAIN = 7
"""git's own marker size: a line that opens or closes a conflict at this size is a marker even when it stands alone."""


@dataclass(frozen=True)
class Edit:
    """Lines `start` up to `end` of the ancestor (0-based) become `size` lines of a side."""

    start: int
    end: int
    size: int


def lines(data: bytes) -> list[bytes]:
    r"""Split as git does: after each \n only, so that a \r stays part of its line."""
    return _LINE.findall(data)


def require_mergeable(name: str, data: bytes) -> None:
    """Refuse a binary file, and one that holds conflict markers of any size already."""
    if b"\0" in data:
        message = f"{name} is binary: it holds a NUL byte"
        raise Refused("three-way merge", message, hint="copy the file, or leave it out")
    if (number := _marked_line(lines(data))) is not None:
        message = f"{name} already holds a conflict marker at line {number}"
        raise Refused("three-way merge", message, hint="settle that conflict where the file comes from")


def _marked_line(text: Sequence[bytes]) -> int | None:
    """Find a line that is a marker by its size, or an opening one with its middle and end of the same size."""
    awaited: dict[int, tuple[bytes, int]] = {}
    for number, line in enumerate(text, 1):
        if (found := _MARKER.fullmatch(line)) is None:
            continue
        sign, size = found[1][:1], len(found[1])
        if sign != b"=" and size >= _CERTAIN:
            return number
        if sign == b"<":
            awaited[size] = (b"=", number)
        elif awaited.get(size, (b"", 0))[0] == sign:
            if sign == b">":
                return awaited[size][1]
            awaited[size] = (b">", awaited[size][1])
    return None


def combine(
    ours: bytes, ancestor: bytes, theirs: bytes, our_edits: Sequence[Edit], their_edits: Sequence[Edit]
) -> ThreeWay:
    """Merge by the edits of both sides, as `git merge-file --zdiff3` does.

    Edits that overlap or touch and do not end in the same lines are a conflict, narrowed to where the sides differ.
    Every line of the outcome is a line of one side, byte for byte; where each region stands is known exactly, which is
    what git's own output, text between markers, cannot tell.
    """
    mine, old, pr = lines(ours), lines(ancestor), lines(theirs)
    settled: list[bytes] = []
    regions: list[Region] = []
    taken: list[tuple[int, int]] = []
    for span in _spans(our_edits, their_edits, len(old), len(mine), len(pr)):
        a, b = mine[span.ours], pr[span.theirs]
        if not span.is_contested or a == b:
            settled += b if span.is_theirs else a
            continue
        head, tail = _common_ends(a, b)
        settled += b[:head]
        changed = b[head : len(b) - tail]
        regions.append(
            Region(
                _numbers(span.ours.start + head, len(a) - head - tail),
                _numbers(span.theirs.start + head, len(changed)),
                _text(a[head : len(a) - tail]),
                _text(changed),
                _text(old[span.ancestor]),
                _numbers(span.ancestor.start, span.ancestor.stop - span.ancestor.start),
            )
        )
        taken.append(_numbers(len(settled), len(changed)))
        settled += changed + b[len(b) - tail :]
    text = b"".join(settled)
    return ThreeWay(None if regions else text, tuple(regions), text, tuple(taken))


@dataclass(frozen=True)
class _Span:
    """The same stretch of all three files, and which sides changed it."""

    ancestor: slice
    ours: slice
    theirs: slice
    is_ours: bool
    is_theirs: bool

    @property
    def is_contested(self) -> bool:
        return self.is_ours and self.is_theirs


def _spans(our_edits: Sequence[Edit], their_edits: Sequence[Edit], old: int, mine: int, pr: int) -> Iterator[_Span]:
    """Cut the three files into stretches that nobody, one side, or both changed, in order."""
    at = (0, 0, 0)
    for ours, theirs in _groups(our_edits, their_edits):
        start = min(edit.start for edit in (*ours, *theirs))
        end = max(edit.end for edit in (*ours, *theirs))
        unchanged = start - at[0]
        starts = (start, at[1] + unchanged, at[2] + unchanged)
        yield _span(at, starts)
        ends = (end, starts[1] + end - start + _growth(ours), starts[2] + end - start + _growth(theirs))
        yield _span(starts, ends, bool(ours), bool(theirs))
        at = ends
    yield _span(at, (old, mine, pr))


def _span(
    start: tuple[int, int, int], end: tuple[int, int, int], is_ours: bool = False, is_theirs: bool = False
) -> _Span:
    ancestor, ours, theirs = (slice(a, b) for a, b in zip(start, end, strict=True))
    return _Span(ancestor, ours, theirs, is_ours, is_theirs)


def _groups(our_edits: Sequence[Edit], their_edits: Sequence[Edit]) -> Iterator[tuple[list[Edit], list[Edit]]]:
    """Put together what overlaps or touches in the ancestor; yield (our edits, their edits) of each group."""
    sided = [(edit, 0) for edit in our_edits] + [(edit, 1) for edit in their_edits]
    group: tuple[list[Edit], list[Edit]] = ([], [])
    reach = -1
    for edit, side in sorted(sided, key=lambda item: (item[0].start, item[0].end)):
        if edit.start > reach and any(group):
            yield group
            group = ([], [])
        group[side].append(edit)
        reach = max(reach, edit.end)
    if any(group):
        yield group


def _growth(edits: Sequence[Edit]) -> int:
    return sum(edit.size - (edit.end - edit.start) for edit in edits)


def _common_ends(a: Sequence[bytes], b: Sequence[bytes]) -> tuple[int, int]:
    """Count the lines both sides begin and end with alike, no line twice."""
    head = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
    rest = zip(reversed(a[head:]), reversed(b[head:]), strict=False)
    return head, sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], rest))


def _numbers(start: int, count: int) -> tuple[int, int]:
    return start + 1, start + count


def _text(part: Sequence[bytes]) -> str:
    return b"".join(part).decode(errors="replace")
