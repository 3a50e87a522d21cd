"""Pure: where one hunk of a patch stands in a file, by content alone: exactly there, there already, or refused."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

HEADING = re.compile(r"\s*(?:async\s+def|def|class)\s+(\w+)")
"""A line that starts a definition, as diff writes it after `@@`."""


@dataclass(frozen=True)
class Hunk:
    """One edit. `old` and `new` are whole lines with their endings, context included.

    `line` is the hunk's line in the patch; `old_start` and `new_start` are the 0-based lines where its texts stood in
    the files the patch was made from; `leading` and `trailing` count context lines; `heading` is the class or function
    named after `@@`, if any.
    """

    line: int
    old_start: int
    new_start: int
    old: tuple[bytes, ...]
    new: tuple[bytes, ...]
    leading: int
    trailing: int
    heading: str = ""


@dataclass(frozen=True)
class Place:
    """Where a hunk's old text (`fits`) or new text (`present`) stands, `at` 0-based; `name` says which hunk it is.

    `why` explains a hunk that is refused and `details` show it. `is_unique` is False where the text stands elsewhere
    too and only the line number in the patch told them apart.
    """

    hunk: Hunk
    name: str
    state: Literal["fits", "present", "refused"]
    at: int = 0
    why: str = ""
    details: tuple[str, ...] = ()
    is_unique: bool = True

    @property
    def offset(self) -> int:
        """How many lines further down than the patch says; 0 for a refused hunk."""
        return self.at - {"fits": self.hunk.old_start, "present": self.hunk.new_start}.get(self.state, self.at)

    @property
    def end(self) -> int:
        """The line after the text."""
        return self.at + len(self.hunk.new if self.state == "present" else self.hunk.old)


@dataclass(frozen=True)
class Placed:
    """All hunks of one file; `faults` is empty when each has its place."""

    path: str
    lines: tuple[bytes, ...]
    places: tuple[Place, ...]
    faults: tuple[str, ...]

    def edited(self) -> bytes:
        """Return the file with every hunk's old lines replaced by its new ones."""
        lines = list(self.lines)
        for place in reversed(self.places):
            lines[place.at : place.end] = place.hunk.new
        return b"".join(lines)


def place_hunks(hunks: Sequence[Hunk], path: str, data: bytes) -> Placed:
    """Find the place of every hunk in a file's bytes."""
    lines = tuple(re.findall(rb"[^\n]*\n|[^\n]+", data))  # at line feeds only, as diff does; endings are kept
    places = tuple(_place(hunk, lines, f"hunk {n} of {path}") for n, hunk in enumerate(hunks, 1))
    faults = [f"{place.name} {place.why}" for place in places if place.state == "refused"]
    return Placed(path, lines, places, tuple(faults or _order_faults(places)))


def _order_faults(places: Sequence[Place]) -> Iterator[str]:
    """Refuse hunks that would change places or overlap, and line numbers that only some hunks bear out."""
    for first, second in pairwise(places):
        if first.end > second.at:
            yield f"{first.name} and the next one fit only in another order (lines {first.at + 1} and {second.at + 1})"
    if any(place.offset for place in places):
        for place in places:
            if not place.is_unique:
                yield f"{place.name} fits more than one place, and its neighbours do not stand where the patch says"


def _place(hunk: Hunk, lines: Sequence[bytes], name: str) -> Place:
    """Decide by content where a hunk's old text stands, or that its new text is there already.

    Both may match one place: a hunk that only adds at its end leaves its old text inside the new one, one that only
    removes there has its new text inside the old one. The longer of the two is what the file holds.
    """
    fitting = [at for at in _matches(hunk.old, lines, hunk.heading) if _keeps_end(hunk, at, len(lines))]
    present = _matches(hunk.new, lines, hunk.heading)
    if not fitting and not present:
        return _nowhere(hunk, lines, name)
    added = len(hunk.new) - len(hunk.old)
    olds = [at for at in fitting if not any(there <= at <= there + added for there in present)]
    news = [there for there in present if not any(at <= there <= at - added for at in fitting)]
    found = [Place(hunk, name, "fits", at) for at in olds] + [Place(hunk, name, "present", at) for at in news]
    inside = present if olds else fitting
    # With context at both sides, one text inside the other means lines that repeat: then content cannot tell.
    if len(found) == 1 and (not inside or (len(inside) == 1 and 0 in (hunk.leading, hunk.trailing))):
        return found[0]
    if len(found) > 1 and (hunk.old_start in fitting) != (hunk.new_start in present):
        # The patch's own line number decides where only one of the two texts stands.
        stated = [replace(place, is_unique=False) for place in found if not place.offset]
        if stated:
            return stated[0]
    details = [f"{name}: its old text stands at line {at + 1}{_inside(lines, at)}" for at in fitting]
    details += [f"{name}: its new text stands at line {at + 1}{_inside(lines, at)}" for at in present]
    why = "is ambiguous: " + ("it may be there already" if fitting and present else "its text stands more than once")
    return Place(hunk, name, "refused", why=why, details=tuple(details))


def _matches(wanted: Sequence[bytes], lines: Sequence[bytes], heading: str = "") -> list[int]:
    """Return every place where these lines stand exactly, inside or after the named definition if one is named."""
    length, first = len(wanted), wanted[0]
    return [
        at
        for at in range(len(lines) - length + 1)
        if lines[at] == first
        and tuple(lines[at : at + length]) == tuple(wanted)
        and (not heading or heading in _definitions_above(lines, at))
    ]


def _keeps_end(hunk: Hunk, at: int, count: int) -> bool:
    """Tell whether new text without a line feed at its end would stand at the end of the file."""
    return hunk.new[-1].endswith(b"\n") or at + len(hunk.old) == count


def _definitions_above(lines: Sequence[bytes], at: int, indent: int = 1 << 30) -> list[str]:
    """Return the names of the definitions above a line, each with less indentation than the one before."""
    names = []
    for line in reversed(lines[:at]):
        match = HEADING.match(line.decode("utf-8", "replace"))
        depth = len(line) - len(line.lstrip())
        if match and depth < indent:
            names.append(match[1])
            indent = depth
    return names


def _inside(lines: Sequence[bytes], at: int) -> str:
    """Name the class and function around a line, for people."""
    line = lines[at]
    names = _definitions_above(lines, at, len(line) - len(line.lstrip()))
    return f" in {'.'.join(reversed(names))}" if names else ""


_WAYS_TO_DIFFER: Mapping[str, Callable[[bytes], bytes]] = {
    "line endings": lambda line: line.rstrip(b"\r\n"),
    "the byte order mark": lambda line: line.removeprefix(codecs.BOM_UTF8),
    "white space": lambda line: b" ".join(line.split()),
}


def _nowhere(hunk: Hunk, lines: Sequence[bytes], name: str) -> Place:
    """Tell people how a hunk that does not match differs, and where it nearly does: never a place to put it."""
    for at in _matches(hunk.old, lines) + _matches(hunk.new, lines):
        why = f"is for {hunk.heading}, and its text stands at line {at + 1}{_inside(lines, at)}"
        return Place(hunk, name, "refused", why=why)
    for what, simplify in _WAYS_TO_DIFFER.items():
        simple = [simplify(line) for line in lines]
        for wanted in (hunk.old, hunk.new):
            if places := _matches([simplify(line) for line in wanted], simple):
                why = f"differs only in {what} from line {places[0] + 1}{_endings(what, wanted, lines)}"
                return Place(hunk, name, "refused", why=why)
    why = "does not match: its context is not exactly there"
    return Place(hunk, name, "refused", why=why, details=tuple(_near_misses(hunk, lines, name)))


def _near_misses(hunk: Hunk, lines: Sequence[bytes], name: str) -> Iterator[str]:
    inner, before = _inner(hunk)
    places = _matches(inner, lines) if any(line.strip() for line in inner) else []
    for at in places[:5]:
        difference = _first_difference(hunk, lines, at - before)
        yield f"{name}: only its inner lines stand at line {at + 1}{_inside(lines, at)}; {difference}"
    if not places:
        missing = [line for line in hunk.old if line not in lines]
        yield f"{name}: the file has no line {_shown(missing[0])}" if missing else f"{name}: its lines stand apart"


def _inner(hunk: Hunk) -> tuple[Sequence[bytes], int]:
    """Return a hunk's old lines without the outer context, and how many were left out before them.

    Where nothing is removed, these are the two lines between which something is added.
    """
    first, last = hunk.leading, len(hunk.old) - hunk.trailing
    if first >= last:
        first, last = max(first - 1, 0), last + 1
    return hunk.old[first:last], first


def _first_difference(hunk: Hunk, lines: Sequence[bytes], at: int) -> str:
    for number, wanted in enumerate(hunk.old, at):
        found = lines[number] if 0 <= number < len(lines) else None
        if found != wanted:
            return f"line {number + 1} is {_shown(found)}, the patch wants {_shown(wanted)}"
    return "nothing differs"


def _shown(line: bytes | None) -> str:
    if line is None:
        return "outside the file"
    text = line.decode("utf-8", "replace").strip()
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _endings(what: str, wanted: Sequence[bytes], lines: Sequence[bytes]) -> str:
    if what != "line endings":
        return ""
    patch, file = ("CRLF" if any(line.endswith(b"\r\n") for line in part) else "LF" for part in (wanted, lines))
    return f" (patch {patch}, file {file})" if patch != file else " (the newline at the end of the file)"
