"""Pure: what the overlaid files depend on that differs between the base and the code they were written against.

Same names with another meaning is the fault that no checker can see; this says where to look for it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from builder.errors import InputError
from builder.model import Tree
from builder.modules import Modules
from builder.presence import Definition, each_definition
from builder.symbols import UnreadableError, module_of, syntax
from builder.touches import Touch, touches
from builder.uses import uses

_SHOWN = 6
"""Definitions and lines that one sentence names; the others are counted."""


@dataclass(frozen=True)
class Drift:
    """A file that the overlay uses and does not replace, and that differs from the one the overlay was written against.

    `lines` are those that one side has and the other lacks; `definitions` are the ones that differ. `touched` says
    where the overlaid files touch one of these: a class that inherits, a call, an attribute that is written.
    """

    path: str
    lines: int
    definitions: tuple[str, ...]
    touched: tuple[str, ...] = ()


def drift(
    base: Tree, after: Tree, changed: Collection[str], donors: Mapping[str, Tree], package: str = "sglang"
) -> tuple[Drift, ...]:
    """List the drifted files that the changed ones depend on, those first where one of them touches what differs.

    `donors` has for each changed path the tree it was written against: the result of the last pull request that brings
    it, so that what the pull request changes and the overlay leaves out is drift, and what the base has already is not.
    A changed path without one was written against the base. A file that stands on one side only is no drift: what it
    lacks or brings are findings.
    """
    modules = Modules(after, package)
    found: dict[str, list[Drift]] = {}
    for path in sorted(changed):
        if path not in donors or path not in after.paths or module_of(path) is None:
            continue
        touched = _touches(path, modules)
        used = {*_imported(path, modules), *(touch.path for touch in touched)} - set(changed)
        for other in sorted(used):
            if (differing := _difference(other, base, donors[path])) is not None:
                told = _told(path, [touch for touch in touched if touch.path == other], differing.definitions)
                drift_of_it = Drift(other, differing.lines, tuple(sorted(differing.definitions)), told)
                found.setdefault(other, []).append(drift_of_it)
    return tuple(sorted(map(_joined, found.values()), key=lambda each: (not each.touched, each.path)))


def _joined(drifts: Sequence[Drift]) -> Drift:
    """Join what one file is to several overlaid ones, which may have been written against different trees."""
    return Drift(
        drifts[0].path,
        max(each.lines for each in drifts),
        tuple(sorted({name for each in drifts for name in each.definitions})),
        tuple(line for each in drifts for line in each.touched),
    )


# -- what a file depends on --------------------------------------------------------------------------------------------


def _touches(path: str, modules: Modules) -> tuple[Touch, ...]:
    try:
        return touches(path, modules)
    except (UnreadableError, RecursionError):
        return ()  # the first is said by the check


def _imported(path: str, modules: Modules) -> Iterator[str]:
    """Yield the files of the modules that a file imports, and those where the imported names are defined."""
    try:
        tree = syntax(modules.read(path))
    except UnreadableError:
        return
    for use in uses(tree, path, modules):
        if modules.has(use.module):
            yield modules.paths[use.module]
            if use.name:
                yield modules.look_up(use.module, use.name, is_typing=True).path


# -- what differs in it ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Difference:
    """How the sides of a file differ: the lines counted, and the differing definitions with their text on both."""

    lines: int
    definitions: Mapping[str, str]


def _difference(path: str, base: Tree, other: Tree) -> _Difference | None:
    """Compare one file on both sides; None where it is the same, or stands on one side only."""
    blob = base.blobs.get(path)
    if blob is not None and blob == other.blobs.get(path):
        return None  # told without reading
    try:
        ours, theirs = base.read(path), other.read(path)
    except InputError:
        return None  # a link or a large binary file: its text is not at hand, and nothing of it is called
    if ours is None or theirs is None or ours == theirs:
        return None
    return _compared(ours, theirs)


@lru_cache(maxsize=256)
def _compared(ours: bytes, theirs: bytes) -> _Difference:
    mine, other = Counter(ours.split(b"\n")), Counter(theirs.split(b"\n"))
    lines = (mine - other).total() + (other - mine).total()
    try:
        return _Difference(lines, dict(_differing_definitions(_definitions(ours), _definitions(theirs))))
    except UnreadableError:
        return _Difference(lines, {})  # the count of lines still tells that they differ


def _definitions(source: bytes) -> dict[str, list[Definition]]:
    found: dict[str, list[Definition]] = {}
    for name, definition in each_definition(source):
        found.setdefault(name, []).append(definition)
    return found


def _differing_definitions(
    mine: Mapping[str, Sequence[Definition]], other: Mapping[str, Sequence[Definition]]
) -> Iterator[tuple[str, str]]:
    for name in mine.keys() | other.keys():
        one, two = mine.get(name, ()), other.get(name, ())
        if len(one) != len(two) or not all(map(Definition.is_same_as, one, two)):
            yield name, "\n".join(line for each in (*one, *two) for line in each.lines)


# -- where to look -----------------------------------------------------------------------------------------------------


def _told(path: str, touched: Iterable[Touch], differing: Mapping[str, str]) -> tuple[str, ...]:
    """Say where a file touches what differs, the surest first; places that touch the same are told at once."""
    lines: dict[Touch, list[int]] = {}
    for touch in touched:
        if _differing_in(touch, differing):
            lines.setdefault(replace(touch, line=0), []).append(touch.line)
    places = sorted(lines.items(), key=lambda item: (_rank(item[0]), sorted(item[1]), item[0].subject, item[0].name))
    return tuple(_sentence(f"{path}:{_few(sorted(set(at)))}", touch, differing) for touch, at in places)


def _rank(touch: Touch) -> int:
    """Order touches by how much of what differs they meet: of a class that is made, few methods may ever be called."""
    return 3 if touch.verb == "calls" and touch.is_class else ("inherits", "calls", "writes").index(touch.verb)


def _differing_in(touch: Touch, differing: Mapping[str, str]) -> list[str]:
    """Return the differing definitions that matter to a touch, those first that speak of the attribute it writes.

    A class as a whole matters with all its members; but a base class of the object written to only with those members
    that speak of the attribute.
    """
    if not touch.is_class:
        return [touch.name] if touch.name in differing else []
    inner = f"{touch.name}."
    members = sorted(name for name in differing if name.startswith(inner))
    owner, _, attribute = touch.subject.rpartition(".")
    if touch.verb == "writes":
        word = re.compile(rf"\b{re.escape(attribute)}\b")
        speaking = [name for name in members if word.search(differing[name])]
        members = speaking if owner != touch.name else [*speaking, *(name for name in members if name not in speaking)]
    own = ["its bases or decorators"] if touch.name in differing and touch.verb != "writes" else []
    return [*own, *(name.removeprefix(inner) for name in members)]


def _sentence(place: str, touch: Touch, differing: Mapping[str, str]) -> str:
    names = _few(_differing_in(touch, differing))
    match touch.verb:
        case "inherits":
            through = f" through {touch.through}" if touch.through else ""
            return f"class {touch.subject} ({place}) inherits {touch.name}{through}, which differs in {names}"
        case "calls":
            return f"{place} calls {touch.subject}, which differs" + (f" in {names}" if touch.is_class else "")
        case "writes":
            return f"{place} writes {touch.subject}; {touch.name} differs in {names}"


def _few(items: Sequence[object]) -> str:
    shown = ", ".join(map(str, items[:_SHOWN]))
    return shown if len(items) <= _SHOWN else f"{shown} and {len(items) - _SHOWN} more"
