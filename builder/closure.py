"""Pure: what definitions need of their own file when they are carried into an older one."""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from builder import insertion
from builder.counterparts import Definition, Function, is_same_code, top_level
from builder.statements import defers_annotations, definitions, makers, scopes, source_text
from builder.symbols import Symbols, UnreadableError, symbols, syntax

_IMPLICIT = frozenset(dir(builtins)) | {"__file__", "__name__", "__path__", "__spec__", "__doc__"}


@dataclass(frozen=True)
class Closure:
    """The names to carry, in the source's order, and those of the base that the carried code uses.

    `differing` are the base's own among the latter whose code, or the module they are imported from, is not the
    donor's: same name, and perhaps another meaning. `problem` says why the definitions cannot be carried at all; empty
    where they can. `variables` are those of the module that the carried code uses.
    """

    names: tuple[str, ...]
    differing: tuple[str, ...]
    problem: str = ""
    variables: tuple[str, ...] = ()


def closure(wanted: Iterable[str], donor: bytes, base: bytes, path: str) -> Closure:
    """Collect definitions of the donor's file, and all that they use of it and the base's file lacks."""
    try:
        source_text(base)
        source_text(donor)
        found = _collected(wanted, donor, base, path)
        if found.names:
            insertion.with_definitions(found.names, base, donor)
    except UnreadableError as error:
        return Closure((), (), f"{path} cannot be cut for certain: {error}")
    except insertion.UnfitError as error:
        return Closure((), (), f"{path}: {error}")
    return found


def _collected(wanted: Iterable[str], donor: bytes, base: bytes, path: str) -> Closure:
    theirs, ours = definitions(donor), symbols(base, path)
    if "*" in theirs:
        return Closure((), (), f"{path} imports all names of a module, so what its definitions use cannot be told")
    uses = _Uses(donor, keeps_annotations=not defers_annotations(syntax(base)))
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
        elif uses.is_typing_only(name):
            return Closure((), (), f"{name} is there for type checkers only, and {path} evaluates its annotations")
        else:
            taken.add(name)
            queue += [other for other in uses.of(name) if other in theirs]
            # Nothing evaluates these, but a checker looks for them.
            hints = {other for other in uses.hints(name) if other in theirs and other not in ours.names}
            taken |= hints
            queue += [other for hint in hints for other in uses.of(hint) if other in theirs]
    names = tuple(sorted(taken, key=lambda name: (theirs[name], name)))
    variables = tuple(sorted(name for name in taken | kept if uses.is_variable(name)))
    return Closure(names, _differing(kept, donor, base, path), variables=variables)


def _has(ours: Symbols, name: str) -> bool:
    return bool(ours.at_runtime(name)) or name in _IMPLICIT


def _differing(kept: Iterable[str], donor: bytes, base: bytes, path: str) -> tuple[str, ...]:
    theirs, ours = top_level(syntax(donor)), top_level(syntax(base))
    sources = symbols(donor, path), symbols(base, path)

    def is_same(name: str) -> bool:
        if name in theirs and name in ours:
            return is_same_code(theirs[name], ours[name])
        if name in theirs or name in ours:
            return False
        one, other = ({(b.module, b.name) for b in each.at_runtime(name)} for each in sources)
        return not one or not one.isdisjoint(other)

    return tuple(name for name in sorted(kept) if name not in _IMPLICIT and not is_same(name))


class _Uses:
    """The global names that each definition of a source uses when it is made or runs."""

    def __init__(self, data: bytes, *, keeps_annotations: bool) -> None:
        tree = syntax(data)
        self._keeps_annotations = keeps_annotations
        self._nodes = {name: [part.node for part in makers(data, name)] for name in definitions(data)}
        self._typing = {name for name, found in symbols(data, "").names.items() if all(b.is_typing_only for b in found)}
        self._variables = {name for name, node in top_level(tree).items() if not isinstance(node, Definition)}
        self._scopes: dict[str, list[symtable.SymbolTable]] = {}
        for scope in scopes(data):
            self._scopes.setdefault(scope.get_name(), []).append(scope)

    def is_typing_only(self, name: str) -> bool:
        return name in self._typing

    def of(self, name: str) -> set[str]:
        """Return what a definition needs when it is made or runs; of what only type checkers see, its condition."""
        return {used for node in self._nodes.get(name, ()) for used in self._of_statement(name, node)}

    def _of_statement(self, name: str, node: ast.stmt) -> set[str]:
        if isinstance(node, ast.Import | ast.ImportFrom):
            return set()
        if self.is_typing_only(name) and isinstance(node, ast.If):
            return {part.id for part in ast.walk(node.test) if isinstance(part, ast.Name)}
        if isinstance(node, Definition):
            inside = {used for scope in self._scopes.get(node.name, ()) for used in _globals(scope)}
            # What only type checkers see is not used inside: it would not be there in the donor either.
            return (inside - self._typing) | set(self._made_with(node))
        return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)} - _stored(node)

    def hints(self, name: str) -> set[str]:
        """Return the names in annotations that nothing evaluates."""
        nodes = [node for node in self._nodes.get(name, ()) if isinstance(node, Definition)]
        if self._keeps_annotations:
            return set()
        hints = (hint for node in nodes for hint in _annotations(node))
        return {part.id for hint in hints for part in ast.walk(hint) if isinstance(part, ast.Name)}

    def is_variable(self, name: str) -> bool:
        """Tell a name that is assigned, not defined or imported."""
        return name in self._variables

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
