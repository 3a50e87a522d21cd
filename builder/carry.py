"""Pure: take whole files or named top-level definitions that the base lacks from a pull request's result tree."""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from builder.catalogue import Carry
from builder.model import ReadTree
from builder.symbols import UnreadableError, is_type_checking, parse


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
    except UnreadableError as error:
        return answer("rejected", f"does not parse: {error}")
    unknown = [name for name in entry.symbols if name not in source]
    if unknown:
        return answer("rejected", f"{entry.from_} defines no {', '.join(unknown)} at top level")
    wanted = [name for name in entry.symbols if name not in mine]
    if not wanted:
        return answer("not needed", f"the base defines {', '.join(entry.symbols)}")
    # A definition that binds several names (a, b = ...) is taken once; the source's own order keeps it loadable.
    imports = _single_imports(theirs)
    lines = theirs.decode("utf-8").splitlines(keepends=True)
    texts = {name: imports.get(name) or "".join(lines[first - 1 : last]) for name, (first, last) in source.items()}
    pieces = [text for _, text in sorted({(source[name], texts[name]) for name in wanted})]
    text = ours.decode("utf-8")
    newline = "\r\n" if "\r\n" in text else "\n"
    body = (newline * 2).join([text.rstrip() + newline, *pieces])
    return answer("carried", f"the base lacks {', '.join(wanted)}", body.encode())


def _single_imports(data: bytes) -> Mapping[str, str]:
    """Return, for each name that a top-level import binds among others, the import of this name alone.

    An import for type checkers only keeps its condition, and none of what else stands under it.
    """
    found: dict[str, str] = {}
    for node in parse(data).body:
        if isinstance(node, ast.If) and is_type_checking(node.test):
            for part in node.body:
                found |= {name: f"if {ast.unparse(node.test)}:\n    {text}" for name, text in _imports(part)}
        elif isinstance(node, ast.Import | ast.ImportFrom) and len(node.names) > 1:
            found |= dict(_imports(node))
    return found


def _imports(node: ast.stmt) -> Iterator[tuple[str, str]]:
    for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
        alone = type(node)(**{**vars(node), "names": [alias]})
        yield from ((name, f"{ast.unparse(alone)}\n") for name in bound(alone))


def definitions(data: bytes) -> Mapping[str, tuple[int, int]]:
    """Return the top-level names of a module with the lines (first and last, 1-based) of what binds them."""
    found: dict[str, tuple[int, int]] = {}
    for node in parse(data).body:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        for name in bound(node):
            found[name] = (first, node.end_lineno or node.lineno)
    return found


def bound(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a top-level statement binds, those inside an `if` or `try` too."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.split(".")[0] for alias in node.names)
    elif isinstance(node, ast.Assign | ast.AnnAssign | ast.If | ast.Try):
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                yield part.id
            elif part is not node and isinstance(part, ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom):
                yield from bound(part)


def _with_needs(outcome: Carried, written: Mapping[str, bytes]) -> Carried:
    if outcome.outcome != "carried":
        return outcome
    needs = tuple(sorted(free_names(written[outcome.path], frozenset(outcome.symbols))))
    if not needs:
        return Carried(**{**outcome.__dict__, "data": written[outcome.path]})
    fact = f"needs {', '.join(needs)} too, which {outcome.path} does not define: list them under 'symbols'"
    return Carried(**{**outcome.__dict__, "outcome": "rejected", "fact": fact, "data": None, "needs": needs})


def free_names(data: bytes, symbols: frozenset[str]) -> set[str]:
    """Return the global names that these definitions (all of the module if none is named) use and nothing binds."""
    text = data.decode("utf-8-sig")
    bound = set(definitions(text.encode())) | set(dir(builtins)) | {"__file__", "__name__", "__path__", "__spec__"}
    if any(isinstance(n, ast.ImportFrom) and n.names[0].name == "*" for n in ast.walk(parse(data))):
        return set()
    table = symtable.symtable(text, "carried", "exec")
    scopes = [t for t in table.get_children() if not symbols or t.get_name() in symbols]
    used = {name for scope in scopes for name in _globals(scope)}
    return used - bound


def _globals(table: symtable.SymbolTable) -> Iterator[str]:
    for symbol in table.get_symbols():
        if symbol.is_global() and symbol.is_referenced():
            yield symbol.get_name()
    for child in table.get_children():
        yield from _globals(child)
