"""Pure: the classes of a tree, by name, and what their instances have."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from builder.modules import Modules
from builder.symbols import UnreadableError, bound_names, module_of, parse


@dataclass(frozen=True)
class Class:
    """A class: where it stands, its bases as written, and the names its instances have with the line of each."""

    path: str
    name: str
    line: int
    bases: tuple[str, ...]
    members: Mapping[str, int]
    fields: tuple[str, ...]
    """The annotated names of its body, in order: the fields of a dataclass."""

    @property
    def symbol(self) -> str:
        """The full dotted name."""
        return f"{module_of(self.path)}.{self.name}"


class Classes:
    """The classes of one tree; a name is looked up as a file sees it, then anywhere in the tree."""

    def __init__(self, modules: Modules) -> None:
        self._modules = modules
        self._anywhere: dict[str, tuple[str, ...]] = {}

    def find(self, name: str, seen_from: str) -> Class | None:
        """Return the class that a file means by a name; None where there is none, or several far away."""
        module = module_of(seen_from)
        if module and self._modules.has(module):
            answer = self._modules.look_up(module, name, is_typing=True)
            found = self._in_file(answer.path, name) if answer.state == "defined" else None
            if found is not None:
                return found
        places = self._places(name)
        return self._in_file(places[0], name) if len(places) == 1 else None

    def at(self, path: str, name: str) -> Class | None:
        """Return the class of this name in a file."""
        return self._in_file(path, name)

    def owner(self, of: Class, member: str) -> Class | None:
        """Return the class that gives `of` this member: itself, or the first of its bases that does."""
        return next((found for found in self.lineage(of) if member in found.members), None)

    def members(self, of: Class) -> frozenset[str]:
        """Return all members, those of the package's base classes included."""
        return frozenset(name for found in self.lineage(of) for name in found.members)

    def lineage(self, of: Class) -> Iterator[Class]:
        """Yield a class and its bases within the package, the nearest first."""
        queue, seen = [of], set()
        while queue:
            current = queue.pop(0)
            if current.symbol in seen:
                continue
            seen.add(current.symbol)
            yield current
            above = (self.find(base, current.path) for base in current.bases)
            queue += [base for base in above if base is not None]

    def _in_file(self, path: str, name: str) -> Class | None:
        try:
            return classes(self._modules.read(path), path).get(name) if path.endswith(".py") else None
        except UnreadableError:
            return None

    def _places(self, name: str) -> tuple[str, ...]:
        if name not in self._anywhere:
            word, pattern = name.encode(), re.compile(rb"^[ \t]*class %b\b" % re.escape(name.encode()), re.MULTILINE)
            paths = sorted(path for path in self._modules.paths.values() if path.endswith(".py"))
            self._anywhere[name] = tuple(path for path in paths if self._defines(path, word, pattern))
        return self._anywhere[name]

    def _defines(self, path: str, word: bytes, pattern: re.Pattern[bytes]) -> bool:
        try:
            data = self._modules.read(path)
        except UnreadableError:
            return False
        return word in data and pattern.search(data) is not None


@lru_cache(maxsize=256)
def classes(data: bytes, path: str) -> Mapping[str, Class]:
    """Return the classes of one source by name, the last where several have one name; raise UnreadableError."""
    return {node.name: _class(node, path) for node in ast.walk(parse(data)) if isinstance(node, ast.ClassDef)}


def _class(node: ast.ClassDef, path: str) -> Class:
    members: dict[str, int] = {}
    for name, line in _members(node):
        members.setdefault(name, line)
    fields = tuple(n.target.id for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name))
    bases = tuple(_last_name(base) for base in node.bases)
    return Class(path, node.name, node.lineno, tuple(filter(None, bases)), members, fields)


def _members(node: ast.ClassDef) -> Iterator[tuple[str, int]]:
    queue: list[ast.stmt] = list(node.body)
    while queue:
        statement = queue.pop(0)
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id, statement.lineno
        for name in bound_names(statement):
            yield name, statement.lineno
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _set_on_self(statement)
        elif not isinstance(statement, ast.ClassDef):
            queue += [child for child in ast.walk(statement) if isinstance(child, ast.stmt) and child is not statement]


def _set_on_self(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, int]]:
    arguments = [*function.args.posonlyargs, *function.args.args]
    if not arguments:
        return
    own = arguments[0].arg
    for node in ast.walk(function):
        match node:
            case ast.Attribute(value=ast.Name(id=root), ctx=ast.Store()) if root == own:
                yield node.attr, node.lineno


def _last_name(node: ast.expr) -> str:
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
