"""Pure: put top-level definitions of one source into another one, where they are there before anything needs them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from builder.statements import (
    Part,
    Scope,
    defers_annotations,
    definitions,
    makers,
    parts,
    same_syntax,
    source_text,
    unready,
)
from builder.symbols import is_type_checking, parse, symbols, syntax


class UnfitError(Exception):
    """The definitions cannot be put there without another meaning; the text says why."""


def with_definitions(wanted: Sequence[str], ours: bytes, theirs: bytes) -> bytes:
    """Return our source with their definitions of these names; raise UnfitError or UnreadableError.

    All statements that make a name what it is are taken, in their order. They stand at the end, unless something of our
    file needs them while it is loaded: then in front of that.
    """
    text = source_text(ours)
    newline = "\r\n" if "\r\n" in text else "\n"
    pieces = _pieces(wanted, ours, theirs)
    nodes = [node for piece in pieces for node in parse(piece.encode()).body]
    place = _place(frozenset(wanted), syntax(ours).body, nodes, defers_annotations(syntax(ours)))
    bodies = [piece.replace("\r\n", "\n").replace("\n", newline) for piece in pieces]
    mark = "\ufeff" if ours.startswith("\ufeff".encode()) else ""
    if place is None:
        return (mark + (newline * 2).join([text.rstrip() + newline, *bodies])).encode()
    lines = _lines(text)
    at = _start(parts(ours), place, lines)
    before, after = "".join(lines[:at]), "".join(lines[at:])
    return (mark + before + (newline * 2).join([*bodies, after])).encode()


def _lines(text: str) -> list[str]:
    """Cut a text as `ast` counts its lines: `str.splitlines` would cut at form feeds and the like as well."""
    rows = text.split("\n")
    return [f"{row}\n" for row in rows[:-1]] + ([rows[-1]] if rows[-1] else [])


def _pieces(wanted: Sequence[str], ours: bytes, theirs: bytes) -> list[str]:
    lines = _lines(source_text(theirs))
    found: dict[tuple[int, int, str], str] = {}
    for name in wanted:
        for part in makers(theirs, name):
            alone = _alone(part, name)
            if alone:
                found[part.first, part.last, name] = alone
            else:
                _refuse_unfit(part, name, frozenset(wanted), ours, theirs)
                text = "".join(lines[part.first - 1 : part.last])
                text = text if text.endswith("\n") else f"{text}\n"
                if not same_syntax(text, part.node):
                    raise UnfitError(f"line {part.first}, which makes {name}, holds more than one statement")
                found[part.first, part.last, ""] = text
    return [text for _, text in sorted(found.items())]


def _refuse_unfit(part: Part, name: str, wanted: frozenset[str], ours: bytes, theirs: bytes) -> None:
    """Refuse a statement that would do more than to make what is wanted."""
    if name not in part.binds and isinstance(part.node, Scope) and part.node.name not in wanted:
        raise UnfitError(f"line {part.first} registers {part.node.name} with {name}: not a change that can be taken")
    gone = [node for node in ast.walk(part.node) if isinstance(node, ast.Delete)]
    if gone:
        raise UnfitError(f"line {gone[0].lineno} deletes what it made or changed of {name}")
    for other in sorted((part.binds - wanted) & definitions(ours).keys()):
        if _imports(ours, other) != _imports(theirs, other) or not _imports(ours, other):
            raise UnfitError(f"line {part.first}, which makes {name}, binds {other} too, which the base has")


def _imports(data: bytes, name: str) -> set[tuple[str | None, str | None]]:
    """Return what a name is imported from; empty where anything but an import binds it."""
    found = symbols(data, "").names.get(name, ())
    return {(b.module, b.name) for b in found} if all(b.module or b.name for b in found) else set()


def _alone(part: Part, name: str) -> str:
    """Return the import of this name alone, where a statement imports others as well; empty where it is no such one.

    An import for type checkers only keeps its condition, and none of what else stands under it.
    """
    node = part.node
    if isinstance(node, ast.If) and is_type_checking(node.test) and not node.orelse:
        for inner in node.body:
            for found, text in _single_imports(inner):
                if found == name:
                    return f"if {ast.unparse(node.test)}:\n    {text}"
    elif isinstance(node, ast.Import | ast.ImportFrom) and len(node.names) > 1:
        return dict(_single_imports(node)).get(name, "")
    return ""


def _single_imports(node: ast.stmt) -> Iterator[tuple[str, str]]:
    for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
        alone = type(node)(**{**vars(node), "names": [alias]})
        yield alias.asname or alias.name.split(".")[0], f"{ast.unparse(alone)}\n"


# -- the place ---------------------------------------------------------------------------------------------------------


def _place(wanted: frozenset[str], ours: list[ast.stmt], pieces: list[ast.stmt], is_deferred: bool) -> int | None:
    """Return the index of our statement to stand in front of; None for the end."""

    def complaints(at: int) -> dict[tuple[ast.stmt, str], int]:
        nodes = [*ours[:at], *pieces, *ours[at:]]
        found = unready(nodes, keeps_annotations=not is_deferred)
        return {(nodes[index], name): index for index, name in found if (nodes[index], name) not in before}

    before = {(ours[index], name) for index, name in unready(ours, keeps_annotations=not is_deferred)}
    found = complaints(len(ours))
    early = [index for (_, name), index in found.items() if name in wanted and index < len(ours)]
    if not found:
        return None
    if not early:
        node, name = next(iter(found))
        raise UnfitError(f"what is carried uses {name} before it is made ({ast.unparse(node)[:60]})")
    place = min(early)
    left = complaints(place)
    if left:
        name = sorted(name for _, name in left)[0]
        used = sorted(name for (_, name), index in found.items() if index == place)[0]
        line = ours[place].lineno
        raise UnfitError(f"line {line} uses {used} while the file is loaded, and {name}, which that needs, comes later")
    return place


def _start(own: Sequence[Part], place: int, lines: Sequence[str]) -> int:
    """Return how many lines stand before a statement and the comment right above it."""
    at = own[place].first - 1
    earlier = own[place - 1].last if place else 0
    if at < earlier:
        raise UnfitError(f"line {own[place].first} holds more than one statement")
    while at > earlier and lines[at - 1].lstrip().startswith("#"):
        at -= 1
    return at
