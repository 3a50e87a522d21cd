"""Pure: what a type checker says of the merged tree and of no other, as findings.

A checker has much to say of any tree. What counts is what it says of a merged file and does not say of that file in the
tree it comes from, nor in the base; and what it says of the base's other files only since the overlay is there.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import takewhile

from builder.classes import Class, Classes
from builder.doors import Complaint, TypeChecker
from builder.findings import Finding, Kind
from builder.model import Tree
from builder.modules import Modules
from builder.signatures import Function, function_in, is_accepting
from builder.symbols import UnreadableError, module_of, syntax
from builder.uses import guards_at

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
        re.compile(r"Object of (?:class|type) `(?P<owner>.+)` has no attribute `(?P<name>\w+)`(?: \(.*\))?"),
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
    _Shape(
        "signature",
        re.compile(
            r"Class member `(?P<owner>[\w.]+\.(?P<name>\w+))` overrides parent class `.+` in an inconsistent manner"
        ),
        "overrides {owner} so that calls which fit its base class do not fit it",
    ),
)

_OTHERWISE: Mapping[str, Kind] = {
    "bad-argument-count": "signature",
    "bad-instantiation": "signature",
    "missing-argument": "signature",
    "missing-attribute": "attribute-missing",
    "no-matching-overload": "signature",
    "unexpected-keyword": "signature",
    "unexpected-positional-argument": "signature",
    "unknown-name": "name-missing",
}
"""What a complaint is whose sentence reads like none of these: a checker's new wording must not silence it.

Imports are not among them: they are looked up by our own rule, which can tell what is unknown.
"""


@dataclass(frozen=True)
class Sides:
    """The trees that are compared: the base, the merged one, and for each path the tree that it comes from."""

    old: Modules
    new: Modules
    changed: Collection[str]
    donors: Mapping[str, Modules]
    looks_back: bool = True
    """Whether the files that are not changed are judged too."""


def check(sides: Sides, checker: TypeChecker) -> tuple[Finding, ...]:
    """Run the checker and return what is new; raise Unavailable where it did not come to an end."""
    package = sides.new.package
    files = None if sides.looks_back else sides.changed
    before = checker.check(sides.old.tree, package, files)
    after = checker.check(sides.new.tree, package, files)
    judge = _Judge(sides)
    found = (judge.finding(complaint) for complaint in _fresh(sides, before, after, _of_donors(sides, checker)))
    return tuple(finding for finding in found if finding is not None)


def _fresh(
    sides: Sides, before: Iterable[Complaint], after: Iterable[Complaint], theirs: Iterable[Complaint]
) -> Iterator[Complaint]:
    """Yield what is said of the merged tree and of no other.

    In a file that nobody changed a complaint has its line. In a changed one lines move: there it counts by the function
    and class around it, and as often as it stands there.
    """
    known = {complaint for complaint in before if complaint.path not in sides.changed}
    places = _Places()
    ours = Counter(places.of(c, sides.old) for c in before if c.path in sides.changed)
    counts = ours | Counter(places.of(c, sides.donors[c.path]) for c in theirs)
    for complaint in after:
        if complaint.path not in sides.changed:
            if complaint not in known:
                yield complaint
        elif counts[place := places.of(complaint, sides.new)] > 0:
            counts[place] -= 1
        else:
            yield complaint


class _Places:
    """Where a complaint stands, whatever its line: the path, the definitions around it, and what it says."""

    def of(self, complaint: Complaint, modules: Modules) -> tuple[str, str, str]:
        """Return path, enclosing definitions and message."""
        try:
            chain = guards_at(syntax(modules.read(complaint.path)), complaint.line)
        except UnreadableError:
            chain = ()
        around = ".".join(guard.text for guard in chain if guard.word.startswith("in "))
        return complaint.path, around, complaint.message


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
        kind = _OTHERWISE.get(complaint.kind)
        return self._otherwise(kind, complaint) if kind else None

    def _otherwise(self, kind: Kind, complaint: Complaint) -> Finding | None:
        """Return a finding in the checker's own words; calls of what is not the package's say nothing of a tree."""
        named = re.findall(r"`([\w.]+)`", complaint.message)
        function = re.search(r"in function `([\w.<>]+)`|for function `([\w.<>]+)`", complaint.message)
        symbol = next(filter(None, function.groups())) if function else named[-1] if named else ""
        if complaint.kind == "no-matching-overload" and not self._sides.new.owns(symbol):
            return None
        is_reverse = complaint.path not in self._sides.changed
        said = complaint.message[:1].lower() + complaint.message[1:]
        made = "reverse" if is_reverse else kind
        return Finding(made, complaint.path, complaint.line, symbol, "", None, said)

    def _made(self, shape: _Shape, complaint: Complaint, owner: str, name: str) -> Finding | None:
        if owner in _NOT_OURS:
            return None
        path = complaint.path
        if complaint.kind == "bad-override":
            owner = f"{module_of(path)}.{owner}"
            if not self._breaks_calls(path, owner):
                return None
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
            column=complaint.column,
        )

    def _breaks_calls(self, path: str, symbol: str) -> bool:
        """Tell whether an override refuses a call that fits what it overrides; types alone break nothing."""
        name = symbol.rpartition(".")[2]
        classes = Classes(self._sides.new)
        own = classes.at(path, symbol.split(".")[-2])
        above = [found for found in classes.lineage(own) if found.symbol != own.symbol] if own else []
        mine = _function_of(self._sides.new, symbol)
        over = next((base for base in above if name in base.members), None)
        theirs = _function_of(self._sides.new, f"{over.symbol}.{name}") if over else None
        return mine is not None and theirs is not None and not is_accepting(mine.args, theirs.args)

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
    found = _located(modules, symbol)
    if found is None:
        return None
    path, node = found
    return f"{node.name}({ast.unparse(node.args)}) ({path}:{node.lineno})"


def _function_of(modules: Modules, symbol: str) -> Function | None:
    found = _located(modules, symbol)
    return found[1] if found else None


def _located(modules: Modules, symbol: str) -> tuple[str, Function] | None:
    parts = symbol.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:cut])
        if modules.has(module) and modules.paths[module].endswith(".py"):
            path = modules.paths[module]
            try:
                node = function_in(syntax(modules.read(path)).body, parts[cut:])
            except UnreadableError:
                return None
            return (path, node) if node else None
    return None
