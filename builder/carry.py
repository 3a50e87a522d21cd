"""Pure: take whole files or named top-level definitions that the base lacks from a pull request's result tree."""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from builder import insertion
from builder.catalogue import Carry
from builder.model import ReadTree
from builder.statements import defers_annotations, definitions, loaded_names, parts, scopes
from builder.symbols import UnreadableError, parse


@dataclass(frozen=True)
class Carried:
    """One carry entry's outcome; `data` is the file to write, None unless it was carried.

    `needs` are names that the carried definitions use and nothing in the target file defines: they must be listed too.
    """

    path: str
    symbols: tuple[str, ...]
    from_: str
    reason: str
    outcome: Literal["carried", "not needed", "rejected"]
    fact: str
    data: bytes | None = None
    needs: tuple[str, ...] = ()


def carry(entries: tuple[Carry, ...], tree: ReadTree, results: Mapping[int, ReadTree]) -> tuple[Carried, ...]:
    """Carry every entry in order onto the tree as merged so far; `results` reads each pull request's result tree."""
    written: dict[str, bytes] = {}

    def merged(path: str) -> bytes | None:
        return written.get(path) or tree(path)

    outcomes = []
    for entry in entries:
        outcome = _carry_one(entry, merged(entry.path), results[entry.number](entry.path))
        if outcome.data is not None:
            written[entry.path] = outcome.data
        outcomes.append(outcome)
    return tuple(_with_needs(outcome, written) for outcome in outcomes)


def _carry_one(entry: Carry, ours: bytes | None, theirs: bytes | None) -> Carried:
    def answer(outcome: Literal["carried", "not needed", "rejected"], fact: str, data: bytes | None = None) -> Carried:
        return Carried(entry.path, entry.symbols, entry.from_, entry.reason, outcome, fact, data)

    if theirs is None:
        return answer("rejected", f"{entry.from_} has no such file")
    if not entry.symbols:
        if ours is None:
            return answer("carried", "the base has no such file", theirs)
        if ours == theirs:
            return answer("not needed", "the base has this very file")
        return answer("rejected", "the base has another file of that name; name the symbols to carry")
    if ours is None:
        return answer("rejected", "the base has no such file; carry it whole (leave 'symbols' out)")
    return _carry_symbols(entry, ours, theirs, answer)


def _carry_symbols(entry: Carry, ours: bytes, theirs: bytes, answer: Callable[..., Carried]) -> Carried:
    try:
        mine, source = definitions(ours), definitions(theirs)
        unknown = [name for name in entry.symbols if name not in source]
        if unknown:
            return answer("rejected", f"{entry.from_} defines no {', '.join(unknown)} at top level")
        wanted = [name for name in entry.symbols if name not in mine]
        if not wanted:
            return answer("not needed", f"the base defines {', '.join(entry.symbols)}")
        data = insertion.with_definitions(wanted, ours, theirs)
    except UnreadableError as error:
        return answer("rejected", f"cannot be read for certain: {error}")
    except insertion.UnfitError as error:
        return answer("rejected", str(error))
    return answer("carried", f"the base lacks {', '.join(wanted)}", data)


def _with_needs(outcome: Carried, written: Mapping[str, bytes]) -> Carried:
    if outcome.outcome != "carried":
        return outcome
    try:
        needs = tuple(sorted(free_names(written[outcome.path], frozenset(outcome.symbols))))
    except UnreadableError:
        # A whole file is taken as it is: what it needs, and that it cannot be read, the check says.
        needs = ()
    if not needs:
        return Carried(**{**outcome.__dict__, "data": written[outcome.path]})
    fact = f"needs {', '.join(needs)} too, which {outcome.path} does not define: list them under 'symbols'"
    return Carried(**{**outcome.__dict__, "outcome": "rejected", "fact": fact, "data": None, "needs": needs})


def free_names(data: bytes, symbols: frozenset[str]) -> set[str]:
    """Return the global names that these definitions (all of the module if none is named) use and nothing binds."""
    tree = parse(data)
    if any(isinstance(n, ast.ImportFrom) and n.names[0].name == "*" for n in ast.walk(tree)):
        return set()
    known = set(definitions(data)) | set(dir(builtins)) | {"__file__", "__name__", "__path__", "__spec__"}
    own = [scope for scope in scopes(data) if not symbols or scope.get_name() in symbols]
    used = {name for scope in own for name in _globals(scope)}
    for part in parts(data) if symbols else ():
        if (part.binds | part.changes) & symbols:
            used |= loaded_names(part.node, keeps_annotations=not defers_annotations(tree))
    return used - known


def _globals(table: symtable.SymbolTable) -> Iterator[str]:
    for symbol in table.get_symbols():
        if symbol.is_global() and symbol.is_referenced():
            yield symbol.get_name()
    for child in table.get_children():
        yield from _globals(child)
