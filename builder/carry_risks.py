"""Pure: what may differ where a definition is carried: a twin in the base, state that nobody sets, other helpers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from builder.counterparts import Function, top_level
from builder.model import Tree
from builder.statements import MUTATORS, Part, Scope, parts, written, written_inside
from builder.symbols import UnreadableError, as_bytes, syntax
from builder.view import View

_FEW = 3
_MANY = 20
"""In how many other files the base may seem to define it, methods and local variables among them."""

_COMMON = 2
"""In how many other files the base may define a name that is still one thing, and no word that many use."""


@dataclass(frozen=True)
class Twin:
    """A definition of the base that upstream has in another file now: carrying it makes a second one."""

    name: str
    path: str
    line: int

    @property
    def module(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def loses(self) -> str:
        place = f"{self.path}:{self.line}"
        two = f"there would be two of {self.name}: the base's own ({place}) is another object"
        return f"{two}, so isinstance and identity differ"


def twins(names: Iterable[str], path: str, donor: Tree, view: View) -> list[Twin]:
    """Return what the base defines under these names in files where the donor does not any more."""
    merged = view.trees.merged
    theirs = _defined(donor, path)
    wanted = {name: as_bytes(name) for name in names if name in theirs and not name.startswith("__")}
    if not wanted:
        return []
    others = [other for other in _sources(merged, view.trees.package) if other != path]
    found: dict[str, list[Twin]] = {}
    for name, places in _mentions(wanted, [other for other in others if other not in view.trees.put_on], merged):
        ours = {place: _defined(merged, place) for place in places}
        found[name] = [Twin(name, place, ours[place][name].lineno) for place in places if name in ours[place]]
    return [
        twin
        for each in found.values()
        if len(each) <= _COMMON
        for twin in each
        if twin.name not in _defined(donor, twin.path)
    ]


def _mentions(wanted: Mapping[str, bytes], paths: Iterable[str], tree: Tree) -> Iterator[tuple[str, list[str]]]:
    """Yield the files that seem to define each name at top level; none for a name that many do."""
    words = b"|".join(re.escape(word) for word in wanted.values())
    heads = rb"^(?: {4})?(?:(?:class|def|async[ \t]+def)[ \t]+(%b)\b|(%b)[ \t]*(?::[^=\n]+)?=(?!=))" % (words, words)
    pattern = re.compile(heads, re.MULTILINE)
    found: dict[bytes, list[str]] = {}
    for path in paths:
        for word in sorted({one or other for one, other in pattern.findall(tree.read(path) or b"")}):
            found.setdefault(word, []).append(path)
    yield from ((name, found[word]) for name, word in wanted.items() if len(found.get(word, ())) in range(1, _MANY))


def _sources(tree: Tree, package: str) -> list[str]:
    return sorted(p for p in tree.paths if p.endswith(".py") and not p.startswith(f"{package}/test/"))


def _defined(tree: Tree, path: str) -> Mapping[str, ast.stmt]:
    try:
        return top_level(syntax(tree.read(path) or b""))
    except UnreadableError:
        return {}


# -- state -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setter:
    """What sets a variable of the module upstream, and is not there when the variable is read here."""

    variable: str
    name: str
    path: str
    line: int

    @property
    def loses(self) -> str:
        return f"{self.variable} is set by {self.name} upstream ({self.path}:{self.line}), which nothing here does"


def setters(variables: Iterable[str], taken: Iterable[str], path: str, donor: Tree, view: View) -> list[Setter]:
    """Return what sets variables of a donor's file while it runs, and is not taken with them."""
    wanted, kept = frozenset(variables), frozenset(taken)
    if not wanted:
        return []
    ours = _written_by(view.trees.merged, path, wanted)
    found = [
        Setter(variable, name, path, line)
        for (name, variable), line in _written_by(donor, path, wanted).items()
        if name not in kept and (name, variable) not in ours
    ]
    return found + list(_from_outside(wanted, path, donor, view))


def idle_setters(path: str, donor: Tree, view: View) -> list[Setter]:
    """Return what sets variables of a module that is taken whole, and is called by nothing that is put on with it."""
    data = donor.read(path) or b""
    variables = frozenset(name for name, node in _defined(donor, path).items() if not _is_definition(node))
    if not variables:
        return []
    near = [view.trees.merged.read(other) or b"" for other in view.trees.brought if other != path]

    def is_called(name: str) -> bool:
        word = re.compile(rb"\b%b\b" % re.escape(as_bytes(name)))
        return len(word.findall(data)) > 1 or any(map(word.search, near))

    written = _written_by(donor, path, variables)
    own = [Setter(variable, name, path, line) for (name, variable), line in written.items() if not is_called(name)]
    return own + list(_from_outside(variables, path, donor, view))


def _is_definition(node: ast.stmt) -> bool:
    return isinstance(node, Function | ast.ClassDef)


def _written_by(tree: Tree, path: str, variables: frozenset[str]) -> dict[tuple[str, str], int]:
    """Return (function or class, variable) -> line for what sets variables of its own file while it runs."""
    found: dict[tuple[str, str], int] = {}
    for part in _parts(tree, path):
        for function in (inner for inner in ast.walk(part.node) if isinstance(inner, Function)):
            owner = part.node.name if isinstance(part.node, Scope) else function.name
            for name, line in written_inside(function):
                if name in variables:
                    found.setdefault((owner, name), line)
    return found


def _parts(tree: Tree, path: str) -> tuple[Part, ...]:
    try:
        return parts(tree.read(path) or b"")
    except UnreadableError:
        return ()


def _from_outside(variables: frozenset[str], path: str, donor: Tree, view: View) -> Iterator[Setter]:
    """Yield other files of the donor that set variables of this module, as far as they are not put on themselves."""
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    tail = as_bytes(module.rpartition(".")[2])
    words = b"|".join(re.escape(as_bytes(name)) for name in sorted(variables))
    changed = "|".join(sorted(MUTATORS)).encode()
    pattern = re.compile(rb"\b(?:%b)(?:(?:\[[^\n]*\])?[ \t]*[-+|&*]?=(?!=)|\.(?:%b)\()" % (words, changed))
    for other in _sources(donor, view.trees.package):
        data = donor.read(other) or b"" if other != path and other not in view.trees.brought else b""
        if tail in data and pattern.search(data) and (donor.read(other) != view.trees.merged.read(other)):
            yield from _setting(_syntax(data), variables, module, other)


def _syntax(data: bytes) -> ast.Module:
    try:
        return syntax(data)
    except UnreadableError:
        return ast.Module([], [])


def _setting(tree: ast.Module, variables: frozenset[str], module: str, path: str) -> Iterator[Setter]:
    holders, names = _imported(tree, module, variables)
    for node in ast.walk(tree):
        for target in written(node):
            place = target.value if isinstance(target, ast.Subscript) else target
            is_whole = place is target
            if isinstance(place, ast.Attribute) and place.attr in variables and ast.unparse(place.value) in holders:
                yield Setter(place.attr, path.rpartition("/")[2], path, place.lineno)
            elif (
                isinstance(place, ast.Name)
                and place.id in names
                and not (is_whole and isinstance(place.ctx, ast.Store))
            ):
                yield Setter(names[place.id], path.rpartition("/")[2], path, place.lineno)


def _imported(tree: ast.Module, module: str, variables: frozenset[str]) -> tuple[set[str], dict[str, str]]:
    """Return how a file calls a module, and its names for variables of it."""
    holders, names = {module}, dict[str, str]()
    parent, _, tail = module.rpartition(".")
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            source = "." * node.level + (node.module or "")
            for alias in node.names:
                if alias.name == tail and (source == parent or node.level):
                    holders.add(alias.asname or alias.name)
                elif alias.name in variables and (source == module or source.endswith(tail)):
                    names[alias.asname or alias.name] = alias.name
        elif isinstance(node, ast.Import):
            holders |= {alias.asname for alias in node.names if alias.name == module and alias.asname}
    return holders, names


def few(parts: Iterable[str]) -> str:
    """Join what may differ, the first of it."""
    found = list(dict.fromkeys(parts))
    more = [f"and {len(found) - _FEW} more"] if len(found) > _FEW else []
    return "; ".join([*found[:_FEW], *more])
