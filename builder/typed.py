"""Pure: what a type checker says of the merged tree and of no other, as findings.

A checker has much to say of any tree. What counts is what it says of a merged file and does not say of that file in the
tree it comes from, nor in the base; and what it says of the base's other files only since the overlay is there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import takewhile

from builder.classes import Class, Classes
from builder.doors import Complaint, TypeChecker
from builder.findings import Finding, Kind
from builder.model import Tree
from builder.modules import Modules
from builder.symbols import UnreadableError, module_of, parse

_SIMILAR = 0.75
_SHARED = 0.5

_NOT_OURS = frozenset({"NoneType", "Never", "object"})
"""Receivers that say nothing of a tree: what may be None is the code's own business in every tree."""


@dataclass(frozen=True)
class _Shape:
    """How one of the checker's sentences reads: `owner` and `name` are its groups."""

    kind: Kind
    pattern: re.Pattern[str]
    says: str


_SHAPES = (
    _Shape(
        "attribute-missing",
        re.compile(r"Object of (?:class|type) `(?P<owner>.+)` has no attribute `(?P<name>\w+)`"),
        "uses {name} of a {owner}, which has no such attribute",
    ),
    _Shape(
        "attribute-missing",
        re.compile(r"Class `(?P<owner>.+)` has no class attribute `(?P<name>\w+)`"),
        "uses {name} of the class {owner}, which has no such attribute",
    ),
    _Shape(
        "name-missing",
        re.compile(r"No attribute `(?P<name>\w+)` in module `(?P<owner>[\w.]+)`"),
        "reads {name} of {owner}, which does not define it",
    ),
    _Shape(
        "name-missing",
        re.compile(r"Could not find name `(?P<name>\w+)`"),
        "uses {name}, which nothing in the file defines",
    ),
    _Shape(
        "signature",
        re.compile(r"Unexpected keyword argument `(?P<name>\w+)` in function `(?P<owner>[\w.<>]+)`"),
        "calls {owner} with the unknown keyword {name}",
    ),
    _Shape(
        "signature",
        re.compile(r"Missing argument `(?P<name>\w+)` in function `(?P<owner>[\w.<>]+)`"),
        "calls {owner} with a missing argument: {name}",
    ),
    _Shape(
        "signature",
        re.compile(r"Expected (?P<name>\d+) positional arguments?, got \d+ in function `(?P<owner>[\w.<>]+)`"),
        "calls {owner} with too many arguments: it takes {name}",
    ),
)


@dataclass(frozen=True)
class Sides:
    """The trees that are compared: the base, the merged one, and for each path the tree that it comes from."""

    old: Modules
    new: Modules
    changed: Collection[str]
    donors: Mapping[str, Modules]


def check(sides: Sides, checker: TypeChecker) -> tuple[Finding, ...]:
    """Run the checker and return what is new; raise Unavailable where it did not come to an end."""
    package = sides.new.package
    before = checker.check(sides.old.tree, package)
    after = checker.check(sides.new.tree, package)
    known = {(c.path, c.message) for c in (*before, *_of_donors(sides, checker))}
    fresh = [complaint for complaint in after if (complaint.path, complaint.message) not in known]
    judge = _Judge(sides)
    found = (judge.finding(complaint) for complaint in fresh)
    return tuple(finding for finding in found if finding is not None)


def _of_donors(sides: Sides, checker: TypeChecker) -> Iterator[Complaint]:
    grouped: dict[int, tuple[Tree, list[str]]] = {}
    for path, donor in sides.donors.items():
        grouped.setdefault(id(donor), (donor.tree, []))[1].append(path)
    for tree, paths in grouped.values():
        yield from checker.check(tree, sides.new.package, sorted(paths))


class _Judge:
    """Turns complaints into findings; parses a file only where something is to be said of it."""

    def __init__(self, sides: Sides) -> None:
        self._sides = sides
        self._old = Classes(sides.old)
        self._donors: dict[int, Classes] = {}

    def finding(self, complaint: Complaint) -> Finding | None:
        """Return the finding that a complaint stands for; None where it says nothing of what the base lacks."""
        for shape in _SHAPES:
            match = shape.pattern.fullmatch(complaint.message)
            if match is not None:
                words = match.groupdict()
                return self._made(shape, complaint, words.get("owner") or "", words["name"])
        return None

    def _made(self, shape: _Shape, complaint: Complaint, owner: str, name: str) -> Finding | None:
        if owner in _NOT_OURS:
            return None
        path = complaint.path
        is_reverse = path not in self._sides.changed
        told = {
            "attribute-missing": self._attribute,
            "signature": self._signature,
            "name-missing": self._name,
        }[shape.kind](path, owner, name)
        message = shape.says.format(owner=owner, name=name)
        if is_reverse:
            message += "; the overlay changed it"
        return Finding(
            "reverse" if is_reverse else shape.kind,
            path,
            complaint.line,
            told.symbol,
            "",
            told.base_has,
            message,
            names=(name,) if name.isidentifier() else (),
            donor_has=told.donor_has,
        )

    def _name(self, path: str, owner: str, name: str) -> _Told:
        return _Told(f"{owner or module_of(path)}.{name}", None, None)

    def _attribute(self, path: str, owner: str, name: str) -> _Told:
        short = re.sub(r"^type\[(.*)\]$", r"\1", owner).rpartition(".")[2]
        if not short.isidentifier():
            return _Told(f".{name}", None, None)
        ours = self._old.find(short, path)
        theirs = self._of_donor(path, short, ours)
        giver = theirs[0].owner(theirs[1], name) if theirs else None
        symbol = f"{(giver or ours).symbol}.{name}" if giver or ours else f".{name}"  # type: ignore[union-attr]
        donor_has = f"{giver.name}.{name} ({giver.path}:{giver.members[name]})" if giver else None
        return _Told(symbol, self._counterpart(ours, theirs, name), donor_has)

    def _of_donor(self, path: str, name: str, ours: Class | None) -> tuple[Classes, Class] | None:
        modules = self._sides.donors.get(path)
        if modules is None:
            return None
        known = self._donors.setdefault(id(modules), Classes(modules))
        found = (known.at(ours.path, name) if ours else None) or known.find(name, path)
        return (known, found) if found else None

    def _counterpart(self, ours: Class | None, theirs: tuple[Classes, Class] | None, name: str) -> str | None:
        """Name the member that only the base's class has and that is most like the missing one; else where it is."""
        if ours is None:
            return None
        only_ours = self._old.members(ours) - (theirs[0].members(theirs[1]) if theirs else frozenset())
        best = max(sorted(only_ours), key=lambda word: (_shared(word, name), _likeness(word, name)), default=None)
        if best is None or (_shared(best, name) < _SHARED and _likeness(best, name) < _SIMILAR):
            return f"class {ours.name} ({ours.path}:{ours.line})"
        giver = self._old.owner(ours, best) or ours
        return f"{best} ({giver.path}:{giver.members[best]})"

    def _signature(self, path: str, owner: str, _name: str) -> _Told:
        modules = self._sides.donors.get(path)
        return _Told(owner, _head(self._sides.old, owner), _head(modules, owner) if modules else None)


@dataclass(frozen=True)
class _Told:
    symbol: str
    base_has: str | None
    donor_has: str | None


def _shared(one: str, other: str) -> float:
    """Return the share of words that two names have in common at their ends: `nxt_lens_cpu`, `reserved_lens_cpu`."""
    mine, theirs = one.split("_"), other.split("_")
    ahead = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(mine, theirs, strict=False))))
    pairs = zip(reversed(mine[ahead:]), reversed(theirs[ahead:]), strict=False)
    behind = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
    return (ahead + behind) / max(len(mine), len(theirs))


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other, autojunk=False).ratio()


def _head(modules: Modules, symbol: str) -> str | None:
    """Return a function's head as written, and where it stands, by its dotted name."""
    parts = symbol.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:cut])
        if modules.has(module) and modules.paths[module].endswith(".py"):
            path = modules.paths[module]
            try:
                node = _function(parse(modules.read(path)).body, parts[cut:])
            except UnreadableError:
                return None
            return f"{parts[-1]}({ast.unparse(node.args)}) ({path}:{node.lineno})" if node else None
    return None


def _function(body: Iterable[ast.stmt], names: list[str]) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    for node in body:
        if isinstance(node, ast.ClassDef) and len(names) > 1 and node.name == names[0]:
            return _function(node.body, names[1:])
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and names == [node.name]:
            return node
    return None
