"""Pure: is a pull request's change to a file already in the base? Judged by definitions, never by reversing a diff."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from builder.symbols import UnreadableError, parse

Presence = Literal["exact", "changed", "absent", "unknown"]


@dataclass(frozen=True)
class Evidence:
    """What decided: the definitions the pull request adds or changes, and how its added lines fare.

    `lines` counts the non-trivial lines that the pull request adds, `lines_there` those that ours has too;
    `missing_lines` are the others. The share is reported and decides nothing.
    """

    presence: Presence
    fact: str
    lines: int = 0
    lines_there: int = 0
    missing_definitions: tuple[str, ...] = ()
    missing_lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Versions:
    """One file's contents: in the image, before and after the pull request, and merged (None: no clean merge)."""

    ours: bytes | None
    parent: bytes | None
    result: bytes | None
    merged: bytes | None = None


def judge(path: str, versions: Versions, is_mentioned: Callable[[str], bool]) -> Evidence:
    """Judge one file; `is_mentioned` tells whether any file of the base holds a name."""
    ours, parent, result, merged = versions.ours, versions.parent, versions.result, versions.merged
    if ours == result:
        return Evidence("exact", "equal to the pull request's result")
    if ours is not None and merged == ours:
        return Evidence("exact", "merging the change alters nothing")
    if result is None:
        return Evidence("absent", "the pull request deletes the file, the base has it")
    if ours is None:
        return Evidence("absent", "the base has no such file")
    if ours == parent:
        return Evidence("absent", "equal to the file before the pull request")
    there, missing = _added_lines(ours, parent or b"", result)
    lines, kept = len(there) + len(missing), len(there)
    if not path.endswith(".py"):
        return Evidence("unknown", "not Python: no definitions to judge by", lines, kept, (), missing)
    try:
        found = _by_definitions(ours, parent or b"", result, is_mentioned)
    except UnreadableError as error:
        found = Evidence("unknown", f"does not parse: {error}")
    fact = f"{found.fact}; {kept} of {lines} added lines verbatim"
    return replace(found, fact=fact, lines=lines, lines_there=kept, missing_lines=missing)


def _by_definitions(ours: bytes, parent: bytes, result: bytes, is_mentioned: Callable[[str], bool]) -> Evidence:
    mine, before, after = definitions(ours), definitions(parent), definitions(result)
    added = [name for name in after if name not in before]
    changed = [name for name in after if name in before and not after[name].is_same_as(before[name])]
    # What the base dropped for good after the pull request is no sign that it lacks it; what is still used is.
    gone = [name for name in changed if name not in mine and not is_mentioned(name.rsplit(".", 1)[-1])]
    judged = [name for name in changed if name not in gone]
    if not added and not judged:
        return Evidence("unknown", "the change touches no definition to judge by")
    missing = [name for name in (*added, *judged) if name not in mine]
    unchanged = [name for name in judged if name in mine and mine[name].is_same_as(before[name])]
    if missing or unchanged:
        return Evidence("absent", _absence(missing, unchanged), missing_definitions=tuple(missing + unchanged))
    foreign = [name for name in judged if not _has_trace(mine[name], before[name], after[name])]
    if foreign and not added:
        fact = f"{_few(foreign)} differs from before the pull request, and has nothing of what it brings"
        return Evidence("unknown", fact, missing_definitions=tuple(foreign))
    fact = f"all {len(added)} added and {len(judged)} changed definitions are there"
    fact += f", {_few(foreign)} with other lines" if foreign else ""
    return Evidence("changed", fact + (f", {_few(gone)} was removed since" if gone else ""))


def _has_trace(mine: Definition, before: Definition, after: Definition) -> bool:
    """Tell whether a definition holds a line that the change brings, or lacks every line that it takes away.

    That it differs from the parent's alone may as well be somebody's own edit; where no added definition speaks for
    the change, this has to.
    """
    here, old, new = ({line.strip() for line in each.lines if line.strip()} for each in (mine, before, after))
    brought, taken_away = new - old, old - new
    return bool(here & brought) or (not brought and not here & taken_away)


def _absence(missing: list[str], unchanged: list[str]) -> str:
    parts = []
    if missing:
        parts.append(f"lacks {_few(missing)}")
    if unchanged:
        parts.append(f"{_few(unchanged)} as before the pull request")
    return "; ".join(parts)


def _few(names: list[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"


def _added_lines(ours: bytes, parent: bytes, result: bytes) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split the non-trivial lines that the change adds into those ours has and those it lacks (as multisets)."""
    added = Counter(_lines(result)) - Counter(_lines(parent))
    mine = Counter(_lines(ours))
    trivial = {line for line in added if len(line.strip()) < 4}
    wanted = [line for line in added.elements() if line not in trivial]
    there: list[str] = []
    missing: list[str] = []
    for line in wanted:
        (there if mine[line] > 0 else missing).append(line)
        mine[line] -= 1
    return tuple(there), tuple(missing)


def _lines(data: bytes) -> list[str]:
    return data.decode("utf-8", "replace").splitlines()


@dataclass(frozen=True, eq=False)
class Definition:
    """A definition: its syntax, and its lines as they stand."""

    nodes: Sequence[ast.AST]
    lines: tuple[str, ...]

    def is_same_as(self, other: Definition) -> bool:
        """Tell whether both are the same code; comments and layout do not count."""
        return self.lines == other.lines or _is_same_code(list(self.nodes), list(other.nodes))


def definitions(source: bytes) -> Mapping[str, Definition]:
    """Return every class, function, method, class attribute and module assignment by its dotted name.

    A class stands for its bases and decorators only, its members for themselves, so that a change in one method
    is a change of that method alone. Docstrings count.
    """
    return dict(each_definition(source))


def each_definition(source: bytes) -> Iterator[tuple[str, Definition]]:
    """Yield all definitions, also those that share a name: in two branches, or the getter and setter of a property."""
    # Cut as the parser counts lines: `splitlines` would cut at form feeds and the like as well.
    return _walk(parse(source).body, "", re.split(r"\r\n|\n|\r", source.decode("utf-8", "replace")))


def _is_same_code(one: object, other: object) -> bool:
    """Compare two syntax trees (`ast.dump` without building the text) up to the first difference."""
    if type(one) is not type(other):
        return False
    if isinstance(one, ast.AST):
        return all(_is_same_code(getattr(one, name, None), getattr(other, name, None)) for name in one._fields)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same_code, one, other))
    return repr(one) == repr(other)  # 0.0 is not -0.0


def _walk(body: list[ast.stmt], prefix: str, text: list[str]) -> Iterator[tuple[str, Definition]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, _definition([node], text)
        elif isinstance(node, ast.ClassDef):
            yield prefix + node.name, _definition([*node.bases, *node.keywords, *node.decorator_list], text)
            yield from _walk(node.body, f"{prefix}{node.name}.", text)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    yield prefix + target.id, _definition([node], text)
        else:
            for part in ("body", "orelse", "finalbody"):
                yield from _walk(getattr(node, part, []), prefix, text)
            for branch in (*getattr(node, "handlers", []), *getattr(node, "cases", [])):
                yield from _walk(branch.body, prefix, text)


def _definition(nodes: Sequence[ast.AST], text: list[str]) -> Definition:
    spans = [(getattr(node, "lineno", 1), getattr(node, "end_lineno", None) or 0) for node in nodes]
    return Definition(nodes, tuple(line for first, last in spans for line in text[first - 1 : last]))
