"""Pure: whether what a definition uses is the same in two trees; equal text that calls other helpers is other code."""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Iterator
from dataclasses import dataclass

from builder import counterparts
from builder.modules import Modules
from builder.symbols import Binding, UnreadableError, syntax

_DEPTH = 2
"""How far what a definition uses is followed."""

_BUILTIN = frozenset(dir(builtins))


@dataclass(frozen=True)
class Place:
    """A module of a tree, by its dotted name."""

    modules: Modules
    module: str

    @property
    def path(self) -> str:
        return self.modules.paths.get(self.module, "")

    def tree(self) -> ast.Module:
        return syntax(self.modules.read(self.path))

    def statements(self, name: str) -> list[ast.stmt]:
        """Return the definitions and assignments of a name at top level, those inside `if` and `try` too."""
        return [node for bound, node in counterparts.named(self.tree().body) if bound == name]

    def imports(self, name: str) -> frozenset[tuple[str | None, str | None]]:
        """Return what a name is imported from; empty where it is defined here, or nowhere."""
        found: tuple[Binding, ...] = self.modules.symbols(self.module).names.get(name, ())
        return frozenset((each.module, each.name) for each in found if each.module is not None)


def differing(name: str, theirs: Place, other: str, ours: Place) -> tuple[str, ...]:
    """Return what the one definition uses and the other one under the same name has otherwise, as far as is looked."""
    return tuple(dict.fromkeys(_differing((name, theirs), (other, ours), _DEPTH)))


def _differing(one: tuple[str, Place], other: tuple[str, Place], depth: int) -> Iterator[str]:
    mine, yours = one[1].statements(one[0]), other[1].statements(other[0])
    if len(mine) != 1 or len(yours) != 1:
        yield other[0]  # what is bound more than once is not told by one of its definitions
        return
    own = {one[0], other[0]}
    for used in sorted((_globals(mine[0]) | _globals(yours[0])) - own):
        try:
            yield from _compared(used, one[1], other[1], depth)
        except UnreadableError:
            yield used


def _compared(name: str, theirs: Place, ours: Place, depth: int) -> Iterator[str]:
    """Yield the name, or what it uses in turn, where it is not the same thing on both sides."""
    one, other = theirs.imports(name), ours.imports(name)
    is_defined = bool(theirs.statements(name)), bool(ours.statements(name))
    if one == other and is_defined == (False, False):
        # The same import, a builtin, or what the same star imports bring.
        if not one and name not in _BUILTIN and theirs.modules.symbols(theirs.module).stars:
            is_alike = theirs.modules.symbols(theirs.module).stars == ours.modules.symbols(ours.module).stars
            yield from () if is_alike else (name,)
        return
    mine, yours = _origin(name, theirs), _origin(name, ours)
    if mine is None or yours is None or mine[0] != yours[0]:
        yield name
        return
    nodes = mine[1].statements(mine[0]), yours[1].statements(yours[0])
    if len(nodes[0]) != 1 or len(nodes[1]) != 1 or not counterparts.is_same_code(nodes[0][0], nodes[1][0]):
        yield name
    elif depth > 1:
        yield from _differing(mine, yours, depth - 1)


def _origin(name: str, place: Place) -> tuple[str, Place] | None:
    """Return where the package itself defines what a module has under a name; None where that is not one place."""
    seen = set()
    while (name, place.module) not in seen:
        seen.add((name, place.module))
        imports = place.imports(name)
        if place.statements(name):
            return None if imports else (name, place)
        if len(imports) != 1:
            return None
        ((module, original),) = imports
        if module is None or original is None or not place.modules.paths.get(module, "").endswith(".py"):
            return None
        name, place = original, Place(place.modules, module)
    return None


def _globals(node: ast.stmt) -> set[str]:
    """Return the global names that a statement uses when it is run, or what it defines is."""
    return set(_referenced(symtable.symtable(ast.unparse(node), "definition", "exec"), is_outer=True))


def _referenced(table: symtable.SymbolTable, *, is_outer: bool = False) -> Iterator[str]:
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (is_outer or symbol.is_global()):
            yield symbol.get_name()
    for child in table.get_children():
        yield from _referenced(child)
