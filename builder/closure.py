"""Pure: what definitions need of their own file when they are carried into an older one."""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from builder import carry
from builder.counterparts import Definition, Function, is_same_code, top_level
from builder.symbols import Symbols, parse, symbols

_IMPLICIT = frozenset(dir(builtins)) | {"__file__", "__name__", "__path__", "__spec__", "__doc__"}


@dataclass(frozen=True)
class Closure:
    """The names to carry, in the source's order, and those of the base that the carried code uses.

    `differing` are the base's own definitions among the latter whose code is not the donor's: same name, and perhaps
    another meaning. `problem` says why the definitions cannot be carried at all; empty where they can.
    """

    names: tuple[str, ...]
    differing: tuple[str, ...]
    problem: str = ""


def closure(wanted: Iterable[str], donor: bytes, base: bytes, path: str) -> Closure:
    """Collect definitions of the donor's file, and all that they use of it and the base's file lacks."""
    theirs, ours = carry.definitions(donor), symbols(base, path)
    if "*" in theirs:
        return Closure((), (), f"{path} imports all names of a module, so what its definitions use cannot be told")
    uses = _Uses(donor, keeps_annotations=not _defers_annotations(base))
    taken: set[str] = set()
    kept: set[str] = set()
    queue = [*wanted]
    while queue:
        name = queue.pop()
        if name in taken or name in kept:
            continue
        if _has(ours, name):
            kept.add(name)
        elif name not in theirs:
            return Closure((), (), f"the pull request's {path} does not define {name} at top level")
        elif uses.is_typing_only(name) and name not in taken:
            return Closure((), (), f"{name} is there for type checkers only, and {path} evaluates its annotations")
        else:
            taken.add(name)
            queue += [other for other in uses.of(name) if other in theirs]
            # Nothing evaluates these, but a checker looks for them.
            hints = {other for other in uses.hints(name) if other in theirs and other not in ours.names}
            taken |= hints
            queue += [other for hint in hints for other in uses.of(hint) if other in theirs]
    return Closure(tuple(sorted(taken, key=lambda name: (theirs[name], name))), _differing(kept, donor, base))


def _has(ours: Symbols, name: str) -> bool:
    return bool(ours.at_runtime(name)) or name in _IMPLICIT


def _defers_annotations(data: bytes) -> bool:
    imports = (node for node in parse(data).body if isinstance(node, ast.ImportFrom) and node.module == "__future__")
    return any(alias.name == "annotations" for node in imports for alias in node.names)


def _differing(kept: Iterable[str], donor: bytes, base: bytes) -> tuple[str, ...]:
    theirs, ours = top_level(parse(donor)), top_level(parse(base))
    both = sorted(name for name in kept if name in theirs and name in ours)
    return tuple(name for name in both if not is_same_code(theirs[name], ours[name]))


class _Uses:
    """The global names that each definition of a source uses when it is made or runs."""

    def __init__(self, data: bytes, *, keeps_annotations: bool) -> None:
        tree = parse(data)
        self._keeps_annotations = keeps_annotations
        self._nodes = dict(_bindings(tree.body))
        self._typing = {name for name, found in symbols(data, "").names.items() if all(b.is_typing_only for b in found)}
        table = symtable.symtable(data.decode("utf-8-sig"), "donor", "exec")
        self._scopes: dict[str, list[symtable.SymbolTable]] = {}
        for scope in table.get_children():
            self._scopes.setdefault(scope.get_name(), []).append(scope)

    def is_typing_only(self, name: str) -> bool:
        return name in self._typing

    def of(self, name: str) -> set[str]:
        """Return what a definition needs when it is made or runs; of what only type checkers see, its condition."""
        node = self._nodes.get(name)
        if node is None or isinstance(node, ast.Import | ast.ImportFrom):
            return set()
        if self.is_typing_only(name) and isinstance(node, ast.If):
            return {part.id for part in ast.walk(node.test) if isinstance(part, ast.Name)}
        if isinstance(node, Definition):
            inside = {used for scope in self._scopes.get(name, ()) for used in _globals(scope)}
            # What only type checkers see is not used inside: it would not be there in the donor either.
            return (inside - self._typing) | set(self._made_with(node))
        return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)} - _stored(node)

    def hints(self, name: str) -> set[str]:
        """Return the names in annotations that nothing evaluates."""
        node = self._nodes.get(name)
        if self._keeps_annotations or not isinstance(node, Definition):
            return set()
        return {part.id for hint in _annotations(node) for part in ast.walk(hint) if isinstance(part, ast.Name)}

    def _made_with(self, node: Definition) -> Iterator[str]:
        """Yield what is used when the definition is made: these belong to the scope around it."""
        parts: list[ast.AST | None] = [*node.decorator_list]
        if isinstance(node, ast.ClassDef):
            parts += [*node.bases, *node.keywords]
        for function in (part for part in ast.walk(node) if isinstance(part, Function)):
            parts += [*function.args.defaults, *function.args.kw_defaults]
        parts += _annotations(node) if self._keeps_annotations else ()
        own = {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
        for word in (word for part in parts if part for word in ast.walk(part)):
            if isinstance(word, ast.Name) and isinstance(word.ctx, ast.Load) and word.id not in own:
                yield word.id


def _annotations(node: Definition) -> Iterator[ast.expr]:
    """Yield the annotations of a definition's functions, and of the fields of a class."""
    for function in (part for part in ast.walk(node) if isinstance(part, Function)):
        found = function.args
        every = [*found.posonlyargs, *found.args, *found.kwonlyargs, found.vararg, found.kwarg]
        yield from (argument.annotation for argument in every if argument and argument.annotation)
        yield from [function.returns] if function.returns else []
    for field in node.body if isinstance(node, ast.ClassDef) else ():
        if isinstance(field, ast.AnnAssign):
            yield field.annotation


def _bindings(body: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """Yield every top-level name with the statement that is carried for it, a whole `if` or `try` around it too."""
    for node in body:
        for name in carry.bound(node):
            yield name, node


def _globals(table: symtable.SymbolTable) -> Iterator[str]:
    for symbol in table.get_symbols():
        if symbol.is_global() and symbol.is_referenced():
            yield symbol.get_name()
    for child in table.get_children():
        yield from _globals(child)


def _stored(node: ast.stmt) -> set[str]:
    """Return the names that a statement binds in passing (loop and comprehension variables, parameters)."""
    found = {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}
    found |= {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    return found | {part.name for part in ast.walk(node) if isinstance(part, Definition)}
