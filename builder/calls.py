"""Pure: calls of decorated functions that do not fit this base's head of them.

A type checker takes what it cannot see through, as `@torch.no_grad()` of a package that is not in the tree or
`@lru_cache`, for a function that accepts anything. The head still tells what a call must look like, where the tree that
the call was written in has the same decorators and a head that it fits.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from builder.classes import Class, Classes
from builder.falls import may_import
from builder.findings import Finding, Kind
from builder.modules import Modules
from builder.signatures import Function, Shape, misfit
from builder.symbols import UnreadableError, as_bytes, module_of, syntax
from builder.uses import imported_names

_OTHER_HEAD = frozenset({"property", "cached_property", "overload", "staticmethod", "classmethod", "setter", "getter"})
"""Decorators after which the head is not what a call has to fit."""


@dataclass(frozen=True)
class _Target:
    """A function that a call leads to, where it stands, and what is passed to it before the call's own arguments."""

    symbol: str
    path: str
    node: Function
    bound: int = 0


def check(old: Modules, new: Modules, changed: Collection[str], donors: Mapping[str, Modules]) -> tuple[Finding, ...]:
    """Judge the calls in the changed files against the merged tree, and those in the others against what changed."""
    forward = [
        finding
        for path in sorted(changed)
        if path in donors and path in new.tree.paths
        for finding in _misfits(path, new, donors[path], "signature")
    ]
    renewed = {path: names for path in sorted(changed) if (names := _renewed(path, old, new))}
    reverse = [
        finding
        for path in sorted(path for path in new.paths.values() if path.endswith(".py") and path not in changed)
        if (names := _called(path, renewed, new))
        for finding in _misfits(path, new, old, "reverse", names)
    ]
    return (*forward, *reverse)


def _called(path: str, renewed: Mapping[str, frozenset[str]], new: Modules) -> frozenset[str]:
    """Return the names of changed heads that a file may call: it has the word, and may import the changed module."""
    if not renewed:
        return frozenset()
    data = _bytes(path, new)
    near = (names for source, names in renewed.items() if may_import(module_of(source) or "", data))
    return frozenset(name for names in near for name in names if as_bytes(name) in data)


def _misfits(
    path: str, ours: Modules, theirs: Modules, kind: Kind, names: Collection[str] | None = None
) -> Iterator[Finding]:
    """Yield the calls of a file (of these names alone, if any are given) that fit `theirs` and not `ours`."""
    try:
        tree = syntax(ours.read(path))
    except UnreadableError:
        return
    here, there = _Resolver(path, tree, ours), _Resolver(path, tree, theirs)
    for call, owner in _calls(tree, None):
        if names is not None and here.original(_name_of(call)) not in names:
            continue
        target = here.target(call, owner)
        if target is None or not _is_hidden(target.node):
            continue
        wanted = there.target(call, owner)
        if wanted is None or _decorators(wanted.node) != _decorators(target.node):
            continue
        shape = _known_to(Shape.of(call, bound=target.bound), wanted.node.args)
        why, words = misfit(shape, target.node.args)
        if why and not misfit(shape, wanted.node.args)[0]:
            message = f"calls {target.symbol} {why}" + ("; the overlay changed it" if kind == "reverse" else "")
            has, other = _said(target), _said(wanted)
            yield Finding(kind, path, call.lineno, target.symbol, "", has, message, names=words, donor_has=other)


def _known_to(shape: Shape, head: ast.arguments) -> Shape:
    """Leave out the keywords that a launcher takes for itself (`kernel[grid](..., num_warps=4)`)."""
    known = {argument.arg for argument in (*head.posonlyargs, *head.args, *head.kwonlyargs)}
    return shape if head.kwarg else replace(shape, keywords=tuple(word for word in shape.keywords if word in known))


def _is_hidden(node: Function) -> bool:
    """Tell whether a checker may not see the head, and it still is what a call has to fit."""
    return bool(node.decorator_list) and _OTHER_HEAD.isdisjoint(_decorators(node))


def _decorators(node: Function) -> tuple[str, ...]:
    plain = (d.func if isinstance(d, ast.Call) else d for d in node.decorator_list)
    return tuple(ast.unparse(decorator).rpartition(".")[2] for decorator in plain)


def _said(target: _Target) -> str:
    return f"{target.node.name}({ast.unparse(target.node.args)}) ({target.path}:{target.node.lineno})"


def _calls(node: ast.AST, owner: str | None) -> Iterator[tuple[ast.Call, str | None]]:
    """Yield every call with the class around it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield child, owner
        yield from _calls(child, child.name if isinstance(child, ast.ClassDef) else owner)


def _name_of(call: ast.Call) -> str:
    """Return the last name of what is called, behind a launcher's brackets too."""
    function = call.func.value if isinstance(call.func, ast.Subscript) else call.func
    return getattr(function, "attr", "") or getattr(function, "id", "")


class _Resolver:
    """Says which function of one tree a call in a file leads to."""

    def __init__(self, path: str, tree: ast.Module, modules: Modules) -> None:
        self._path = path
        self._modules = modules
        self._classes = Classes(modules)
        self._imports = imported_names(tree, path, modules)

    def original(self, name: str) -> str:
        """Return what a name is called where it is imported from."""
        return self._imports.get(name, ("", ""))[1] or name

    def target(self, call: ast.Call, owner: str | None) -> _Target | None:
        """Return the function, None where that cannot be told."""
        function = call.func.value if isinstance(call.func, ast.Subscript) else call.func
        match function:
            case ast.Name(id=name) if name in self._imports:
                return self._named(*self._imports[name])
            case ast.Attribute(value=ast.Name(id="self"), attr=method) if owner:
                return self._method(owner, method)
            case ast.Attribute(value=ast.Name(id=root), attr=name) if root in self._imports:
                module = ".".join(filter(None, self._imports[root]))
                return self._named(module, name) if self._modules.has(module) else None
        return None

    def _named(self, module: str, name: str) -> _Target | None:
        if not name or not self._modules.has(module):
            return None
        answer = self._modules.look_up(module, name)
        found = self._decorated(answer.path, answer.line) if answer.state == "defined" else None
        return _Target(f"{module_of(answer.path)}.{found.name}", answer.path, found) if found else None

    def _decorated(self, path: str, line: int) -> Function | None:
        """Return the decorated function whose `def` stands in a line; a file is parsed only where there is one."""
        data = _bytes(path, self._modules)
        above = _lines(data)[line - 2 : line - 1]
        is_decorated = bool(above) and above[0].strip()[:1] in (b"@", b")", b"#")
        return _functions(data).get(line) if is_decorated else None

    def _method(self, owner: str, method: str) -> _Target | None:
        own = self._classes.at(self._path, owner)
        giver = self._classes.owner(own, method) if own else None
        if giver is None or giver.path == self._path:
            return None
        return self._in_class(giver, method)

    def _in_class(self, giver: Class, method: str) -> _Target | None:
        found = self._decorated(giver.path, giver.members[method])
        return _Target(f"{giver.symbol}.{method}", giver.path, found, bound=1) if found else None


@lru_cache(maxsize=64)
def _lines(data: bytes) -> list[bytes]:
    return data.split(b"\n")


@lru_cache(maxsize=128)
def _functions(data: bytes) -> Mapping[int, Function]:
    """Return a source's functions and methods by the line of their `def`."""
    try:
        return {node.lineno: node for node in ast.walk(syntax(data)) if isinstance(node, Function)}
    except UnreadableError:
        return {}


def _renewed(path: str, old: Modules, new: Modules) -> frozenset[str]:
    """Return the names of a file's decorated functions whose head the overlay changes."""
    before = {(n.name, ast.dump(n.args)) for n in _functions(_bytes(path, old)).values() if n.decorator_list}
    after = {(n.name, ast.dump(n.args)) for n in _functions(_bytes(path, new)).values() if n.decorator_list}
    return frozenset({name for name, _ in before - after} & {name for name, _ in after - before})


def _bytes(path: str, modules: Modules) -> bytes:
    try:
        return modules.read(path) if path.endswith(".py") else b""
    except UnreadableError:
        return b""
